//! What a layer asks: [`Gate`], any limiter.

use std::borrow::Borrow;
use std::hash::{BuildHasher, Hash};
use std::marker::PhantomData;
use std::net::IpAddr;
use std::sync::Arc;

use crate::clock::Clock;
use crate::decision::Decision;
use crate::error::CostError;
use crate::global::GlobalLimiter;
use crate::ip_limiter::IpLimiter;
use crate::limiter::Limiter;
use crate::quota::Quota;
use crate::together::Limit;

/// A limiter of requests whose keys are of type `K`: a [`Limiter`], an [`IpLimiter`], or a [`GlobalLimiter`], which takes any
/// key.
pub trait Gate<K>: Send + Sync + 'static {
    /// Takes `cost` units from the budget of `key`, all or none.
    ///
    /// # Errors
    ///
    /// A [`CostError`] if that can never be admitted.
    fn check(&self, key: &K, cost: u64) -> Result<Decision, CostError>;

    /// Hands the limit of `key` to `then`, to be decided together with others.
    fn with(&self, key: &K, then: &mut dyn FnMut(&dyn Limit));

    /// Takes `units` whether they are there or not.
    fn charge(&self, key: &K, units: u64);

    /// Gives `units` back.
    fn refund(&self, key: &K, units: u64);

    /// The quota at this place, in the order of [`Decision::quota_index`].
    fn quota(&self, index: usize) -> Option<Quota>;
}

impl<K, Q, C, S> Gate<K> for Limiter<Q, C, S>
where
    K: Hash,
    Q: Borrow<K> + ?Sized + 'static,
    C: Clock + Send + Sync + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    fn check(&self, key: &K, cost: u64) -> Result<Decision, CostError> {
        self.check_n(key, cost)
    }

    fn with(&self, key: &K, then: &mut dyn FnMut(&dyn Limit)) {
        then(&self.of(key));
    }

    fn charge(&self, key: &K, units: u64) {
        self.charge(key, units);
    }

    fn refund(&self, key: &K, units: u64) {
        self.refund(key, units);
    }

    fn quota(&self, index: usize) -> Option<Quota> {
        self.quota_at(index)
    }
}

impl<C, S> Gate<IpAddr> for IpLimiter<C, S>
where
    C: Clock + Send + Sync + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    fn check(&self, key: &IpAddr, cost: u64) -> Result<Decision, CostError> {
        self.check_n(*key, cost)
    }

    fn with(&self, key: &IpAddr, then: &mut dyn FnMut(&dyn Limit)) {
        then(&self.of(*key));
    }

    fn charge(&self, key: &IpAddr, units: u64) {
        self.charge(*key, units);
    }

    fn refund(&self, key: &IpAddr, units: u64) {
        self.refund(*key, units);
    }

    fn quota(&self, index: usize) -> Option<Quota> {
        self.tiers().nth(index).map(|(_, quota)| quota)
    }
}

impl<K, C: Clock + Send + Sync + 'static> Gate<K> for GlobalLimiter<C> {
    fn check(&self, _key: &K, cost: u64) -> Result<Decision, CostError> {
        self.check_n(cost)
    }

    fn with(&self, _key: &K, then: &mut dyn FnMut(&dyn Limit)) {
        then(self);
    }

    fn charge(&self, _key: &K, units: u64) {
        self.charge(units);
    }

    fn refund(&self, _key: &K, units: u64) {
        self.refund(units);
    }

    fn quota(&self, index: usize) -> Option<Quota> {
        (index == 0).then(|| self.quota())
    }
}

impl<K, G: Gate<K> + ?Sized> Gate<K> for Arc<G> {
    fn check(&self, key: &K, cost: u64) -> Result<Decision, CostError> {
        (**self).check(key, cost)
    }

    fn with(&self, key: &K, then: &mut dyn FnMut(&dyn Limit)) {
        (**self).with(key, then);
    }

    fn charge(&self, key: &K, units: u64) {
        (**self).charge(key, units);
    }

    fn refund(&self, key: &K, units: u64) {
        (**self).refund(key, units);
    }

    fn quota(&self, index: usize) -> Option<Quota> {
        (**self).quota(index)
    }
}

/// One key of a gate, whichever they are.
pub(super) trait Account: Send {
    fn check(&self, cost: u64) -> Result<Decision, CostError>;
    fn with(&self, then: &mut dyn FnMut(&dyn Limit));
    fn charge(&self, units: u64);
    fn refund(&self, units: u64);
    fn quota(&self, index: usize) -> Option<Quota>;
    /// Whether it is known how that stands.
    fn knows(&self, _index: usize) -> bool {
        true
    }
    /// What the key is called where it is told to anybody.
    fn alias(&self) -> u64;
    /// The same, to be kept for as long as one likes.
    fn keep(&self) -> Box<dyn Account>;
}

/// All the keys of a gate, found in requests.
pub(super) trait Accounts: Send + Sync {
    fn open(&self, request: &http::request::Parts, then: &mut dyn FnMut(&dyn Account));
    fn quota(&self, index: usize) -> Option<Quota>;
}

/// A gate and how its keys are found.
pub(super) struct Keyed<G, E, K> {
    gate: Arc<G>,
    extract: E,
    keys: PhantomData<fn() -> K>,
}

impl<G, E, K> Keyed<G, E, K> {
    pub(super) fn new(gate: G, extract: E) -> Self {
        Self { gate: Arc::new(gate), extract, keys: PhantomData }
    }
}

impl<G: Gate<K>, E: super::Extract<K>, K: Hash + Clone + Send + 'static> Accounts for Keyed<G, E, K> {
    fn open(&self, request: &http::request::Parts, then: &mut dyn FnMut(&dyn Account)) {
        then(&KeyOf { gate: &self.gate, key: self.extract.extract(request), kind: PhantomData });
    }

    fn quota(&self, index: usize) -> Option<Quota> {
        self.gate.quota(index)
    }
}

/// A key of a gate, which is borrowed or its own.
struct KeyOf<A, G, K> {
    gate: A,
    key: K,
    kind: PhantomData<fn() -> G>,
}

impl<A, G, K> Account for KeyOf<A, G, K>
where
    A: Borrow<Arc<G>> + Send,
    G: Gate<K>,
    K: Hash + Clone + Send + 'static,
{
    fn check(&self, cost: u64) -> Result<Decision, CostError> {
        self.gate.borrow().check(&self.key, cost)
    }

    fn with(&self, then: &mut dyn FnMut(&dyn Limit)) {
        self.gate.borrow().with(&self.key, then);
    }

    fn charge(&self, units: u64) {
        self.gate.borrow().charge(&self.key, units);
    }

    fn refund(&self, units: u64) {
        self.gate.borrow().refund(&self.key, units);
    }

    fn quota(&self, index: usize) -> Option<Quota> {
        self.gate.borrow().quota(index)
    }

    fn alias(&self) -> u64 {
        super::key::alias(&self.key)
    }

    fn keep(&self) -> Box<dyn Account> {
        let (gate, key) = (Arc::clone(self.gate.borrow()), self.key.clone());
        Box::new(KeyOf { gate, key, kind: PhantomData })
    }
}
