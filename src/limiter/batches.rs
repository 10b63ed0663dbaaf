//! Many keys decided together, so that the memory of all is asked for before any of it is waited for.

use std::borrow::Borrow;
use std::hash::{BuildHasher, Hash};

use super::Limiter;
use crate::clock::Clock;
use crate::decision::Decision;
use crate::error::CheckError;
use crate::quota::Quota;
use crate::table::Event;
use crate::terms::FIRST;

/// How many keys of a batch are fetched ahead of the first decision.
const BATCH: usize = 32;

/// One check of a batch: a key, what it costs, and by which quota.
///
/// ```
/// use tollgate::{Quota, Request};
///
/// let upload = Request::new("alice").cost(20).quota(Quota::per_minute(1_000));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Request<'a, Q: ?Sized> {
    key: &'a Q,
    cost: u64,
    quota: Option<Quota>,
}

impl<'a, Q: ?Sized> Request<'a, Q> {
    /// One unit of a key, by the limiter's own quota.
    #[must_use]
    pub const fn new(key: &'a Q) -> Self {
        Self { key, cost: 1, quota: None }
    }

    /// So many units, all or none.
    #[must_use]
    pub const fn cost(self, cost: u64) -> Self {
        Self { cost, ..self }
    }

    /// By this quota, see [`Limiter::check_with`].
    #[must_use]
    pub const fn quota(self, quota: Quota) -> Self {
        Self { quota: Some(quota), ..self }
    }
}

/// A request made ready to decide.
#[derive(Clone, Copy, Default)]
struct Ready {
    id: u64,
    cost: u64,
    number: usize,
}

impl<K: ?Sized, C: Clock, S: BuildHasher> Limiter<K, C, S> {
    /// Takes one unit from the budget of each of `keys`, in their order, and puts what became of it into the same place
    /// of `decisions`. It decides what single checks at one moment would, keys that come more than once included, but
    /// reads the clock once and waits for memory far less: from a few keys on it is several times as fast.
    ///
    /// `keys` is a slice of keys, or anything else that yields references to them. Returns how many keys were checked:
    /// all of them, or as many as there is room for in `decisions`. What lies beyond, in either, is not touched.
    ///
    /// ```
    /// use tollgate::{Decision, Limiter, Quota};
    ///
    /// let limiter = Limiter::<str>::builder(Quota::per_minute(100).with_burst(2)).build()?;
    /// let mut decisions = [Decision::default(); 4];
    /// assert_eq!(limiter.check_many(["alice", "bob", "alice", "alice"], &mut decisions), 4);
    /// assert_eq!(decisions.map(|decision| decision.is_allowed()), [true, true, true, false]);
    /// # Ok::<(), tollgate::BuildError>(())
    /// ```
    pub fn check_many<'a, Q>(&self, keys: impl IntoIterator<Item = &'a Q>, decisions: &mut [Decision]) -> usize
    where
        K: Borrow<Q>,
        Q: Hash + ?Sized + 'a,
    {
        let ids = keys.into_iter().map(|key| self.hasher.hash_one(key));
        self.decide_many(ids, decisions)
    }

    /// Checks each of `requests`, in their order, and puts what became of it into the same place of `results`: like
    /// [`check_many`](Self::check_many) for requests that have costs, and quotas of their own. What single checks at one
    /// moment would decide, this does.
    ///
    /// Returns how many requests were checked: all of them, or as many as there is room for in `results`.
    ///
    /// A request that can never be admitted, or has a quota that is impossible or has no room (see
    /// [`check_with`](Self::check_with)), gets its [`CheckError`] and takes nothing; the others are decided.
    ///
    /// ```
    /// use tollgate::{Decision, Limiter, Quota, Request};
    ///
    /// const PRO: Quota = Quota::per_minute(1_000);
    ///
    /// let limiter = Limiter::<str>::builder(Quota::per_minute(10)).other_quotas(1).build()?;
    /// let requests = [Request::new("alice").cost(7), Request::new("bob").cost(7).quota(PRO), Request::new("alice").cost(11)];
    /// let mut results = [(); 3].map(|()| Ok(Decision::default()));
    /// assert_eq!(limiter.check_requests(requests, &mut results), 3);
    /// let [alice, bob, too_much] = results;
    /// assert_eq!((alice?.remaining(), bob?.remaining()), (3, 993));
    /// assert!(too_much.is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn check_requests<'a, Q>(
        &self,
        requests: impl IntoIterator<Item = Request<'a, Q>>,
        results: &mut [Result<Decision, CheckError>],
    ) -> usize
    where
        K: Borrow<Q>,
        Q: Hash + ?Sized + 'a,
    {
        let (mut requests, mut now, mut checked) = (requests.into_iter(), None, 0);
        for results in results.chunks_mut(BATCH) {
            let mut batch = [Ready::default(); BATCH];
            let mut fetched = 0;
            for ((place, result), request) in batch.iter_mut().zip(&mut *results).zip(requests.by_ref()) {
                *result = self.ready(&request).map(|ready| {
                    *place = ready;
                    Decision::default()
                });
                fetched += 1;
            }
            if fetched == 0 {
                break;
            }
            let now = *now.get_or_insert_with(|| self.now());
            for (ready, result) in batch.iter().zip(&mut *results).take(fetched) {
                if let Ok(decision) = result {
                    let Ready { id, cost, number } = *ready;
                    *decision = match cost {
                        0 => self.look_at(number, id, 0, now),
                        _ => self.decide_at(number, id, cost, now),
                    };
                }
            }
            checked += fetched;
        }
        checked
    }

    /// Asks for the memory of a request, if it is one that can be decided.
    fn ready<Q>(&self, request: &Request<'_, Q>) -> Result<Ready, CheckError>
    where
        K: Borrow<Q>,
        Q: Hash + ?Sized,
    {
        let number = request.quota.map_or(Ok(FIRST), |quota| self.number(&quota))?;
        self.possible(number, request.cost)?;
        let id = self.hasher.hash_one(request.key);
        self.ledgers().for_each(|ledger| ledger.prefetch(id));
        Ok(Ready { id, cost: request.cost, number })
    }

    /// Decides [`BATCH`] by [`BATCH`], so that the memory that a batch needs is asked for before any of it is waited for.
    fn decide_many(&self, mut ids: impl Iterator<Item = u64>, decisions: &mut [Decision]) -> usize {
        let mut batch = [0; BATCH];
        let mut now = None;
        let (mut checked, mut allowed) = (0, 0);
        let plain = self.more.is_empty() && !self.penalties.matter();
        for decisions in decisions.chunks_mut(BATCH) {
            let mut fetched = 0;
            for (place, id) in batch.iter_mut().zip(ids.by_ref().take(decisions.len())) {
                self.ledgers().for_each(|ledger| ledger.prefetch(id));
                *place = id;
                fetched += 1;
            }
            if fetched == 0 {
                break;
            }
            let (now, ids) = (*now.get_or_insert_with(|| self.now()), &batch[..fetched]);
            if plain {
                allowed += self.first.decide_batch(ids, now, decisions);
            } else {
                decisions.iter_mut().zip(ids).for_each(|(decision, &id)| *decision = self.decide_at(FIRST, id, 1, now));
            }
            checked += fetched;
        }
        if plain {
            self.first.shards().add(Event::Allowed, allowed);
            self.first.shards().add(Event::Refused, checked as u64 - allowed);
        }
        checked
    }
}
