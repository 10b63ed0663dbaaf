//! Which requests a limit is for, what they cost, and by which key: [`Policy`].

use std::fmt;
use std::sync::Arc;

use http::request::Parts;
use http::{Method, response};

use super::gate::{Accounts, Gate, Keyed};
use super::key::Extract;
#[cfg(feature = "redis")]
use super::shared::{SharedAccounts, SharedKeyed};
use crate::quota::Quota;

pub(super) type Matches = dyn Fn(&Parts) -> bool + Send + Sync;
type Cost = dyn Fn(&Parts) -> u64 + Send + Sync;
type Settle = dyn Fn(&response::Parts, u64) -> u64 + Send + Sync;

/// One limit of a [`RateLimitLayer`](super::RateLimitLayer): a limiter, by which key, for which requests, and at what cost.
///
/// ```
/// use std::net::SocketAddr;
/// use http::Method;
/// use tollgate::http::{ClientAddr, Policy, RateLimitLayer};
/// use tollgate::{ClientIp, Limiter, Quota};
///
/// let client = ClientAddr::peer(|peer: &SocketAddr| peer.ip());
/// let limiter = |quota| Limiter::<ClientIp>::builder(quota).capacity(100_000).build();
///
/// let all = Policy::new(limiter(Quota::per_minute(100))?, client.clone());
/// let search = Policy::new(limiter(Quota::per_minute(10))?, client)
///     .named(["search"])
///     .methods([Method::GET])
///     .when(|request| request.uri.path().starts_with("/search"));
/// let layer = RateLimitLayer::builder().policy(all).policy(search).build();
/// # Ok::<(), tollgate::BuildError>(())
/// ```
#[must_use = "a policy does nothing without a layer"]
pub struct Policy<L = InProcess> {
    pub(super) limiter: L,
    names: Vec<String>,
    matches: Vec<Box<Matches>>,
    cost: Option<Box<Cost>>,
    settle: Option<Arc<Settle>>,
    pub(super) bytes_per_unit: Option<u64>,
    pub(super) is_dry_run: bool,
    pub(super) is_hidden: bool,
}

/// Limiters in this process, of a [`Policy`].
pub struct InProcess(pub(super) Box<dyn Accounts>);

/// Limiters that are asked elsewhere, of a [`Policy`].
#[cfg(feature = "redis")]
pub struct Shared(pub(super) Box<dyn SharedAccounts>);

/// What a layer asks.
pub(super) enum Asks {
    Here(InProcess),
    #[cfg(feature = "redis")]
    Elsewhere(Shared),
}

impl Asks {
    fn quota(&self, index: usize) -> Option<Quota> {
        match self {
            Self::Here(here) => here.0.quota(index),
            #[cfg(feature = "redis")]
            Self::Elsewhere(elsewhere) => elsewhere.0.quota(index),
        }
    }
}

impl From<InProcess> for Asks {
    fn from(here: InProcess) -> Self {
        Self::Here(here)
    }
}

#[cfg(feature = "redis")]
impl From<Shared> for Asks {
    fn from(elsewhere: Shared) -> Self {
        Self::Elsewhere(elsewhere)
    }
}

impl Policy {
    /// Limits all requests by the limiter `gate`, by the key that `extract` finds, at one unit each.
    ///
    /// The limiter may be shared with others in an [`Arc`]. All clones of a layer share it.
    pub fn new<K, G, E>(gate: G, extract: E) -> Self
    where
        K: std::hash::Hash + Clone + Send + 'static,
        G: Gate<K>,
        E: Extract<K>,
    {
        Self::of(InProcess(Box::new(Keyed::new(gate, extract))))
    }
}

#[cfg(feature = "redis")]
impl Policy<Shared> {
    /// The same with a limiter that may have to ask elsewhere, for a [`SharedRateLimitLayer`](super::SharedRateLimitLayer).
    ///
    /// Keys are told to Redis by their text, so all servers have to make the same: those of [`KeyBy`](super::KeyBy) need a
    /// common [secret](super::KeyBy::secret).
    pub fn shared<K, G, E>(gate: G, extract: E) -> Self
    where
        K: std::hash::Hash + Clone + Send + Sync + 'static,
        G: super::AsyncGate<K>,
        E: Extract<K>,
    {
        Self::of(Shared(Box::new(SharedKeyed::new(gate, extract))))
    }
}

impl<L> Policy<L> {
    fn of(limiter: L) -> Self {
        Self {
            limiter,
            names: Vec::new(),
            matches: Vec::new(),
            cost: None,
            settle: None,
            bytes_per_unit: None,
            is_dry_run: false,
            is_hidden: false,
        }
    }

    /// What its quotas are called in headers, refusals, logs and counters, in their order. Unless set, `default`, or where
    /// there are several, the text of each.
    ///
    /// Printable ASCII; any other character becomes a `?`.
    pub fn named<N: Into<String>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        let printable = |c: char| if c == ' ' || c.is_ascii_graphic() { c } else { '?' };
        self.names = names.into_iter().map(|name| name.into().chars().map(printable).collect()).collect();
        self
    }

    /// Only for requests of which this is true; if it is given more than once, of which all are.
    pub fn when(mut self, matches: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        self.matches.push(Box::new(matches));
        self
    }

    /// Only for requests of these methods.
    pub fn methods(self, methods: impl IntoIterator<Item = Method>) -> Self {
        let methods: Vec<Method> = methods.into_iter().collect();
        self.when(move |request| methods.contains(&request.method))
    }

    /// Only for requests for this path and what lies under it: `/search` is for `/search` and `/search/images`, but not for
    /// `/searching`.
    ///
    /// The path is taken as it was sent. If the router behind the layer takes other spellings for the same (a double slash, a
    /// percent sign), put the layer behind the router instead, around the route.
    pub fn under(self, path: impl Into<String>) -> Self {
        let path = path.into();
        let path = path.trim_end_matches('/').to_owned();
        self.when(move |request| {
            request.uri.path().strip_prefix(path.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        })
    }

    /// What a request costs, in units. A request that costs nothing is admitted in any case, and one that costs more than a
    /// quota can ever give is refused for good, without a time to come back.
    pub fn cost(self, cost: impl Fn(&Parts) -> u64 + Send + Sync + 'static) -> Self {
        Self { cost: Some(Box::new(cost)), ..self }
    }

    /// What a request has turned out to cost by its answer, in units: told by the head of the answer, and what was taken.
    /// More is charged, as a debt if need be, less is given back.
    ///
    /// ```
    /// # use tollgate::{Quota, GlobalLimiter, http::Policy};
    /// # let policy = Policy::new(GlobalLimiter::new(Quota::per_second(1))?, |_: &http::request::Parts| ());
    /// // Answers that fail for no fault of the client's, or that cost nothing to make, do not count.
    /// policy.settle(|answer, cost| match answer.status.as_u16() {
    ///     304 | 500.. => 0,
    ///     _ => cost,
    /// });
    /// # Ok::<(), tollgate::BuildError>(())
    /// ```
    pub fn settle(self, settle: impl Fn(&response::Parts, u64) -> u64 + Send + Sync + 'static) -> Self {
        Self { settle: Some(Arc::new(settle)), ..self }
    }

    /// Charges the bytes of the body of an answer, too, when it is done (or given up): a unit for each `bytes_per_unit` that
    /// were begun, at least one byte. They are a debt if need be, so the limit holds for what comes after.
    pub fn count_bytes(self, bytes_per_unit: u64) -> Self {
        Self { bytes_per_unit: Some(bytes_per_unit.max(1)), ..self }
    }

    /// Refuses nothing: decides, tells in headers, logs and counters what it would have done, and lets the request pass.
    pub fn dry_run(self) -> Self {
        Self { is_dry_run: true, ..self }
    }

    /// Tells clients nothing of this policy, but for `Retry-After` if it refuses.
    pub fn hidden(self) -> Self {
        Self { is_hidden: true, ..self }
    }

    pub(super) fn matches(&self, request: &Parts) -> bool {
        self.matches.iter().all(|matches| matches(request))
    }

    pub(super) fn cost_of(&self, request: &Parts) -> u64 {
        self.cost.as_ref().map_or(1, |cost| cost(request))
    }

    /// What the request has cost, if that is not what was taken.
    pub(super) fn settled(&self, answer: &response::Parts, cost: u64) -> u64 {
        self.settle.as_ref().map_or(cost, |settle| settle(answer, cost))
    }

    /// Whether what a request costs is known only by its answer.
    pub(super) fn waits_for_answer(&self) -> bool {
        self.settle.is_some() || self.bytes_per_unit.is_some()
    }

    /// The same, whichever limiters it has.
    pub(super) fn erased(self) -> Policy<Asks>
    where
        Asks: From<L>,
    {
        let Self { limiter, names, matches, cost, settle, bytes_per_unit, is_dry_run, is_hidden } = self;
        Policy { limiter: limiter.into(), names, matches, cost, settle, bytes_per_unit, is_dry_run, is_hidden }
    }
}

impl Policy<Asks> {
    /// Its quotas, with their names.
    pub(super) fn quotas(&self) -> Vec<(String, Quota)> {
        let quotas = (0..).map_while(|index| self.limiter.quota(index)).collect::<Vec<_>>();
        let is_one = quotas.len() == 1;
        let name = |(index, quota): (usize, Quota)| {
            let given = self.names.get(index).cloned();
            (given.unwrap_or_else(|| if is_one { "default".to_owned() } else { quota.to_string() }), quota)
        };
        quotas.into_iter().enumerate().map(name).collect()
    }
}

impl<L> fmt::Debug for Policy<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Policy")
            .field("names", &self.names)
            .field("is_dry_run", &self.is_dry_run)
            .finish_non_exhaustive()
    }
}
