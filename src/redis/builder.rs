//! How a shared limiter is put together, and what can go wrong then.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ahash::RandomState;
use redis::cluster::ClusterClient;
use redis::{Client, RedisError};

use super::fallback::{Fallback, WhenDown};
use super::keys::Keys;
use super::link::{CONNECT, Link, Server};
use super::memory::Memory;
use super::purse::{Lease, Purse};
use super::terms::Terms;
use super::{Inner, RedisLimiter};
use crate::clock::{Clock, PreciseClock};
use crate::error::BuildError;
use crate::quota::{Algorithm, Quota, QuotaError};

/// Puts a [`RedisLimiter`] together: begin with [`RedisLimiter::builder`], end with [`build`](Self::build) or
/// [`build_on_cluster`](Self::build_on_cluster).
#[derive(Clone)]
#[must_use = "a builder does nothing until it builds"]
pub struct RedisBuilder {
    quotas: Vec<Quota>,
    prefix: String,
    deadline: Duration,
    when_down: WhenDown,
    lease: Option<Lease>,
    remembers: bool,
    capacity: usize,
    clock: Option<Arc<dyn Clock>>,
}

impl RedisBuilder {
    pub(super) fn new(quota: Quota) -> Self {
        Self {
            quotas: vec![quota],
            prefix: "tollgate".to_owned(),
            deadline: Duration::from_millis(5),
            when_down: WhenDown::default(),
            lease: None,
            remembers: true,
            capacity: 100_000,
            clock: None,
        }
    }

    /// One quota more for each client: a request is admitted by all of its quotas, or charged to none of them, in the same
    /// trip.
    pub fn and(mut self, quota: Quota) -> Self {
        self.quotas.push(quota);
        self
    }

    /// What all keys begin with; `tollgate` unless set. Limiters of the same prefix share what clients owe for quotas of
    /// the same algorithm and period. No braces, and at least one character.
    pub fn prefix(self, prefix: impl Into<String>) -> Self {
        Self { prefix: prefix.into(), ..self }
    }

    /// The longest that a check waits for Redis; 5 ms unless set. What is not decided by then is decided without it. (The
    /// timers of tokio go in steps of a millisecond.)
    pub fn deadline(self, deadline: Duration) -> Self {
        Self { deadline, ..self }
    }

    /// What decides when Redis does not; [`WhenDown::Open`] unless set.
    pub fn when_down(self, when_down: WhenDown) -> Self {
        Self { when_down, ..self }
    }

    /// Takes slices of the budgets at a time; none unless set. See [`Lease`] for what it costs.
    pub fn lease(self, lease: Lease) -> Self {
        Self { lease: Some(lease), ..self }
    }

    /// Whether a refusal is remembered here until there is something to give, so that who is refused costs Redis nothing more;
    /// it is unless set. What another server gives back or forgives meanwhile is then noticed only when that is over.
    pub fn remember(self, remembers: bool) -> Self {
        Self { remembers, ..self }
    }

    /// For how many clients there is room in what this process keeps: refusals and leases, 24 bytes each, and the limiter of
    /// [`WhenDown::Local`]. 100,000 unless set. Beyond it those that matter least are forgotten, which costs trips to Redis.
    pub fn capacity(self, clients: usize) -> Self {
        Self { capacity: clients, ..self }
    }

    /// Takes the time from here and not from the Redis server: for tests and simulations. All servers then need the same
    /// clock. Keys are kept for at least a minute of the Redis server's time.
    pub fn clock(self, clock: impl Clock + 'static) -> Self {
        Self { clock: Some(Arc::new(clock)), ..self }
    }

    /// Builds it on one Redis server, whose address is a URL: `redis://[user:password@]host[:port][/db]`, with `rediss://` for TLS
    /// (feature `redis-tls`, by the certificates that the system trusts), or `unix:///path`. With `?protocol=resp3` it speaks RESP3.
    ///
    /// No connection is made before the first check (or [`ready`](RedisLimiter::ready)), so Redis may be down.
    ///
    /// # Errors
    ///
    /// A [`RedisBuildError`] if a quota, the prefix or the address is impossible, or there is no memory for the capacity.
    pub fn build(self, url: &str) -> Result<RedisLimiter, RedisBuildError> {
        let client = Client::open(url).map_err(RedisBuildError::address)?;
        self.on(Server::Single(Box::new(client)))
    }

    /// Builds it on a Redis cluster, some of whose nodes have these addresses.
    ///
    /// # Errors
    ///
    /// As [`build`](Self::build).
    pub fn build_on_cluster<'a>(
        self,
        urls: impl IntoIterator<Item = &'a str>,
    ) -> Result<RedisLimiter, RedisBuildError> {
        // What is sent again is for the link to say. Nothing takes longer than its deadline.
        // A node that hangs must not take the time in which the others are found.
        let builder = ClusterClient::builder(urls).retries(0).connection_timeout(CONNECT / 4);
        let client = builder.build().map_err(RedisBuildError::address)?;
        self.on(Server::Cluster(Box::new(client)))
    }

    /// Where nobody has chosen who does the cryptography of TLS, ring does; without anybody there would be a panic.
    #[cfg(feature = "redis-tls")]
    #[expect(
        deprecated,
        reason = "its successor needs more to be built than a server may want; it can be chosen instead"
    )]
    fn choose_provider() {
        if rustls::crypto::CryptoProvider::get_default().is_none() {
            // An error is that somebody else was faster.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
    }

    fn on(self, server: Server) -> Result<RedisLimiter, RedisBuildError> {
        if self.capacity == 0 {
            return Err(BuildError::ZeroCapacity.into());
        }
        #[cfg(feature = "redis-tls")]
        Self::choose_provider();
        let terms: Box<[Terms]> = self.quotas.iter().map(Terms::new).collect::<Result<_, _>>()?;
        if let (Some(_), Some(quota)) = (self.lease, self.quotas.iter().find(|quota| queues(quota))) {
            return Err(RedisBuildError::LeaseOfQueue { quota: *quota });
        }
        let keys = Keys::new(&self.prefix, &self.quotas)?;
        let is_by_clock = self.clock.is_some();
        let clock = self.clock.unwrap_or_else(|| Arc::new(PreciseClock::new()));
        let memory = if self.remembers { Some(Memory::new(self.capacity, self.deadline)?) } else { None };
        let purse = |lease| Purse::new(self.capacity, lease, clock.now());
        let inner = Inner {
            fallback: Fallback::new(self.when_down, &self.quotas, self.capacity, &clock)?,
            memory,
            purse: self.lease.map(purse).transpose()?,
            link: Arc::new(Link::new(server, keys, terms, self.deadline)),
            quotas: self.quotas.into(),
            hasher: RandomState::new(),
            clock,
            is_by_clock,
        };
        Ok(RedisLimiter { inner: Arc::new(inner) })
    }
}

fn queues(quota: &Quota) -> bool {
    quota.algorithm() == Algorithm::LeakyBucket
}

impl fmt::Debug for RedisBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisBuilder")
            .field("quotas", &self.quotas)
            .field("prefix", &self.prefix)
            .field("deadline", &self.deadline)
            .field("when_down", &self.when_down)
            .field("lease", &self.lease)
            .field("remembers", &self.remembers)
            .field("capacity", &self.capacity)
            .finish_non_exhaustive()
    }
}

/// Why a [`RedisLimiter`] could not be built.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RedisBuildError {
    /// A quota is impossible, or what this process keeps cannot be had.
    Build(BuildError),
    /// The limit is larger than what is kept in Redis can count.
    LimitTooLarge {
        /// The quota.
        quota: Quota,
        /// The largest limit.
        largest: u64,
    },
    /// The time in Redis is in microseconds, and does not divide finely enough for this quota.
    TooFine {
        /// The quota.
        quota: Quota,
    },
    /// The units of a leaky bucket leave one by one, so no slice of it can be spent at will.
    LeaseOfQueue {
        /// The quota.
        quota: Quota,
    },
    /// The prefix is empty or has braces, which would make keys of a client lie on several nodes.
    Prefix {
        /// The prefix.
        prefix: String,
    },
    /// The address is none of a Redis server.
    Address {
        /// What is wrong with it.
        problem: String,
    },
}

impl RedisBuildError {
    #[expect(clippy::needless_pass_by_value, reason = "it is mapped over")]
    fn address(error: RedisError) -> Self {
        Self::Address { problem: error.to_string() }
    }
}

impl From<BuildError> for RedisBuildError {
    fn from(error: BuildError) -> Self {
        Self::Build(error)
    }
}

impl From<QuotaError> for RedisBuildError {
    fn from(error: QuotaError) -> Self {
        Self::Build(error.into())
    }
}

impl fmt::Display for RedisBuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Build(error) => error.fmt(f),
            Self::LimitTooLarge { quota, largest } => {
                write!(f, "the limit of {quota} is too large to be kept in Redis; it can be at most {largest}")
            }
            Self::TooFine { quota } if quota.algorithm().takes_burst() => {
                write!(f, "the rate of {quota} is too odd for microseconds; take a limit that divides the period")
            }
            Self::TooFine { quota } => {
                write!(f, "the period of {quota} is no whole number of microseconds, by which Redis tells the time")
            }
            Self::LeaseOfQueue { quota } => {
                write!(
                    f,
                    "{quota} lets units out one by one, so none can be leased; leave the lease out, or use token-bucket"
                )
            }
            Self::Prefix { prefix } => {
                write!(f, "the prefix {prefix:?} is no good; it needs at least one character, and no braces")
            }
            Self::Address { problem } => {
                write!(f, "no address of a Redis server: {problem}; write redis://[user:password@]host[:port][/db]")
            }
        }
    }
}

impl Error for RedisBuildError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Build(error) => Some(error),
            _ => None,
        }
    }
}
