//! Limits that have to be asked elsewhere, and answer later: [`AsyncGate`].

use std::fmt::Display;
use std::hash::Hash;
use std::marker::PhantomData;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;

use http::request::Parts;
use tokio::runtime::Handle;

use super::Extract;
use super::gate::{Account, Gate};
use crate::decision::{Decision, Numbers, Verdict};
use crate::error::CostError;
use crate::global::GlobalLimiter;
use crate::ip_limiter::IpLimiter;
use crate::limiter::Limiter;
use crate::quota::{Algorithm, Quota};
use crate::redis::{RedisLimiter, SharedDecision, Source};
use crate::sync::{AtomicBool, Ordering};
use crate::together::{Limit, peek_all, sealed};

/// A limiter of requests whose keys are of type `K`, which may have to ask elsewhere: a [`RedisLimiter`], or one of the
/// limiters in process, which never have to.
pub trait AsyncGate<K>: Send + Sync + 'static {
    /// Takes `cost` units from the budget of `key`, all or none.
    ///
    /// # Errors
    ///
    /// A [`CostError`] if that can never be admitted.
    fn check(&self, key: &K, cost: u64) -> impl Future<Output = Result<SharedDecision, CostError>> + Send;

    /// Takes `units` whether they are there or not.
    fn charge(&self, key: &K, units: u64) -> impl Future<Output = ()> + Send;

    /// Gives `units` back.
    fn refund(&self, key: &K, units: u64) -> impl Future<Output = ()> + Send;

    /// The quota at this place, in the order of [`Decision::quota_index`].
    fn quota(&self, index: usize) -> Option<Quota>;
}

/// Keys are told to Redis by their text.
impl<K: Display + Sync> AsyncGate<K> for RedisLimiter {
    async fn check(&self, key: &K, cost: u64) -> Result<SharedDecision, CostError> {
        self.check_n(key, cost).await
    }

    async fn charge(&self, key: &K, units: u64) {
        // Whoever asks for it later is not told.
        let _ = self.charge(key, units).await;
    }

    async fn refund(&self, key: &K, units: u64) {
        let _ = self.refund(key, units).await;
    }

    fn quota(&self, index: usize) -> Option<Quota> {
        self.quotas().get(index).copied()
    }
}

/// As the gate that it is: it answers at once.
macro_rules! in_process {
    ($([$($generics:tt)*] $limiter:ty, $key:ty;)*) => {$(
        impl<$($generics)*> AsyncGate<$key> for $limiter
        where
            Self: Gate<$key>,
        {
            async fn check(&self, key: &$key, cost: u64) -> Result<SharedDecision, CostError> {
                decide_here(self, key, cost)
            }

            async fn charge(&self, key: &$key, units: u64) {
                Gate::charge(self, key, units);
            }

            async fn refund(&self, key: &$key, units: u64) {
                Gate::refund(self, key, units);
            }

            fn quota(&self, index: usize) -> Option<Quota> {
                Gate::quota(self, index)
            }
        }
    )*};
}

in_process! {
    [K: Sync, Q: ?Sized + 'static, C: Send + Sync + 'static, S: Send + Sync + 'static] Limiter<Q, C, S>, K;
    [C: Send + Sync + 'static, S: Send + Sync + 'static] IpLimiter<C, S>, IpAddr;
    [K: Sync, C: Send + Sync + 'static] GlobalLimiter<C>, K;
}

fn decide_here<K, G: Gate<K>>(gate: &G, key: &K, cost: u64) -> Result<SharedDecision, CostError> {
    let decision = gate.check(key, cost)?;
    let mut each = Vec::new();
    gate.with(key, &mut |limit| each.extend(peek_all(&[limit])));
    if let Some(binding) = each.get_mut(decision.quota_index()) {
        *binding = decision;
    }
    Ok(SharedDecision::new(decision, each, Source::Here))
}

impl<K: Sync, G: AsyncGate<K>> AsyncGate<K> for Arc<G> {
    async fn check(&self, key: &K, cost: u64) -> Result<SharedDecision, CostError> {
        (**self).check(key, cost).await
    }

    async fn charge(&self, key: &K, units: u64) {
        (**self).charge(key, units).await;
    }

    async fn refund(&self, key: &K, units: u64) {
        (**self).refund(key, units).await;
    }

    fn quota(&self, index: usize) -> Option<Quota> {
        (**self).quota(index)
    }
}

/// All the keys of a gate that is asked beforehand.
pub(super) trait SharedAccounts: Send + Sync {
    fn ask<'a>(&'a self, request: &Parts, cost: u64) -> Asking<'a>;
    fn quota(&self, index: usize) -> Option<Quota>;
}

type Asking<'a> = Pin<Box<dyn Future<Output = Asked> + Send + 'a>>;

/// A gate and how its keys are found.
pub(super) struct SharedKeyed<G, E, K> {
    gate: Arc<G>,
    extract: E,
    keys: PhantomData<fn() -> K>,
}

impl<G, E, K> SharedKeyed<G, E, K> {
    pub(super) fn new(gate: G, extract: E) -> Self {
        Self { gate: Arc::new(gate), extract, keys: PhantomData }
    }
}

impl<G, E, K> SharedAccounts for SharedKeyed<G, E, K>
where
    G: AsyncGate<K>,
    E: Extract<K>,
    K: Hash + Clone + Send + Sync + 'static,
{
    fn ask<'a>(&'a self, request: &Parts, cost: u64) -> Asking<'a> {
        let key = self.extract.extract(request);
        Box::pin(async move {
            let answer = self.gate.check(&key, cost).await;
            let owner = SharedKey { gate: Arc::clone(&self.gate), key };
            let is_taken = answer.as_ref().is_ok_and(|answer| answer.decision().granted() > 0);
            Asked { owner: Arc::new(owner), answer, cost, is_open: AtomicBool::new(is_taken) }
        })
    }

    fn quota(&self, index: usize) -> Option<Quota> {
        self.gate.quota(index)
    }
}

/// A key of a gate, whichever they are.
trait Owner: Send + Sync {
    fn settle(self: Arc<Self>, charge: u64, refund: u64);
    fn quota(&self, index: usize) -> Option<Quota>;
    fn alias(&self) -> u64;
}

struct SharedKey<G, K> {
    gate: Arc<G>,
    key: K,
}

impl<G, K> Owner for SharedKey<G, K>
where
    G: AsyncGate<K>,
    K: Hash + Send + Sync + 'static,
{
    /// Nobody waits for it.
    fn settle(self: Arc<Self>, charge: u64, refund: u64) {
        let Ok(runtime) = Handle::try_current() else { return };
        if charge > 0 || refund > 0 {
            runtime.spawn(async move {
                if charge > 0 {
                    self.gate.charge(&self.key, charge).await;
                }
                if refund > 0 {
                    self.gate.refund(&self.key, refund).await;
                }
            });
        }
    }

    fn quota(&self, index: usize) -> Option<Quota> {
        self.gate.quota(index)
    }

    fn alias(&self) -> u64 {
        super::key::alias(&self.key)
    }
}

/// A key that has been asked for: a limit with a decision made beforehand. What was taken is given back, unless it was
/// wanted.
pub(super) struct Asked {
    owner: Arc<dyn Owner>,
    answer: Result<SharedDecision, CostError>,
    cost: u64,
    /// Whether something was taken of which it is not known yet whether it is wanted.
    is_open: AtomicBool,
}

impl Asked {
    /// The quota that refused, or all if it is not known which.
    pub(super) fn is_refused(&self) -> bool {
        !self.answer.as_ref().is_ok_and(SharedDecision::is_allowed)
    }

    /// What is known of a quota.
    fn decision(&self, index: usize) -> Option<Decision> {
        let answer = self.answer.as_ref().ok()?;
        answer.each().iter().copied().find(|decision| decision.quota_index() == index)
    }

    // Relaxed, here and below: one task has it at a time.
    fn keep_what_was_taken(&self) {
        self.is_open.store(false, Ordering::Relaxed);
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        if self.is_open.load(Ordering::Relaxed) {
            Arc::clone(&self.owner).settle(0, self.cost);
        }
    }
}

impl Account for Asked {
    fn check(&self, _cost: u64) -> Result<Decision, CostError> {
        self.keep_what_was_taken();
        self.answer.as_ref().map(SharedDecision::decision).map_err(|error| *error)
    }

    fn with(&self, then: &mut dyn FnMut(&dyn Limit)) {
        then(self);
    }

    fn charge(&self, units: u64) {
        Arc::clone(&self.owner).settle(units, 0);
    }

    fn refund(&self, units: u64) {
        Arc::clone(&self.owner).settle(0, units);
    }

    fn quota(&self, index: usize) -> Option<Quota> {
        self.owner.quota(index)
    }

    fn knows(&self, index: usize) -> bool {
        self.decision(index).is_some()
    }

    fn alias(&self) -> u64 {
        self.owner.alias()
    }

    fn keep(&self) -> Box<dyn Account> {
        let (owner, answer) = (Arc::clone(&self.owner), self.answer.clone());
        Box::new(Self { owner, answer, cost: self.cost, is_open: AtomicBool::new(false) })
    }
}

impl sealed::Parts for Asked {
    fn parts(&self) -> usize {
        (0..usize::MAX).take_while(|&index| self.owner.quota(index).is_some()).count()
    }

    fn most(&self, part: usize) -> u64 {
        let limit = |quota: Quota| quota.burst() + u64::from(quota.algorithm() == Algorithm::LeakyBucket);
        self.owner.quota(part).map_or(0, limit)
    }

    /// Of a quota of which nothing is known: that it does not stand in the way.
    fn look(&self, part: usize, cost: u64) -> Decision {
        let open = || Decision::of_numbers(Numbers::full(self.most(part)), 0, 0, cost, Verdict::Allowable);
        self.decision(part).map_or_else(open, |decision| decision.of_cost(cost))
    }

    fn charge(&self, part: usize, cost: u64) -> Decision {
        self.keep_what_was_taken();
        self.look(part, cost)
    }

    fn undo(&self, _part: usize, charged: &Decision) {
        if charged.granted() > 0 {
            self.is_open.store(true, Ordering::Relaxed);
        }
    }
}

impl Limit for Asked {}
