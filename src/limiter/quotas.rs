//! Quotas that differ from key to key, and quotas that change.

use std::borrow::Borrow;
use std::hash::{BuildHasher, Hash};

use super::Limiter;
use crate::clock::Clock;
use crate::decision::Decision;
use crate::error::{BuildError, CheckError};
use crate::ledger::Ledger;
use crate::quota::Quota;

impl<K: ?Sized, C: Clock, S: BuildHasher> Limiter<K, C, S> {
    /// Takes one unit from the budget of `key` by `quota` instead of the limiter's own (of several: instead of the first; the
    /// others hold too): for plans of different price, or endpoints of different cost, in one table.
    ///
    /// A key owes what it owes, in units, by whatever quotas it is checked: it keeps its debt when its plan changes. Between
    /// two checks units come back at the rate of the quota by which it was checked last, and so do
    /// [`charge`](Self::charge) and [`refund`](Self::refund) count. Quotas of all algorithms can be mixed, but for the
    /// sliding-window log.
    ///
    /// Quotas are known by their numbers: the first check with one that was not seen before takes one of as many places as
    /// [`Builder::other_quotas`](crate::Builder::other_quotas) has made, for good.
    ///
    /// # Errors
    ///
    /// A [`CheckError`] if the quota is impossible, or if there is no room for one more. Nothing is taken then.
    ///
    /// ```
    /// use tollgate::{Limiter, Quota};
    ///
    /// const FREE: Quota = Quota::per_minute(10);
    /// const PRO: Quota = Quota::per_minute(1_000);
    ///
    /// let limiter = Limiter::<str>::builder(FREE).other_quotas(1).build()?;
    /// assert_eq!(limiter.check("alice").remaining(), 9);
    /// assert_eq!(limiter.check_with("bob", &PRO)?.remaining(), 999);
    /// assert_eq!(limiter.check_with("alice", &PRO)?.remaining(), 998, "she takes her debt along");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn check_with<Q>(&self, key: &Q, quota: &Quota) -> Result<Decision, CheckError>
    where
        K: Borrow<Q>,
        Q: Hash + ?Sized,
    {
        self.check_n_with(key, 1, quota)
    }

    /// Takes `cost` units from the budget of `key`, all or none, by `quota`; see [`check_with`](Self::check_with).
    ///
    /// # Errors
    ///
    /// As [`check_with`](Self::check_with), and if the cost is more than the quota can ever give at once.
    pub fn check_n_with<Q>(&self, key: &Q, cost: u64, quota: &Quota) -> Result<Decision, CheckError>
    where
        K: Borrow<Q>,
        Q: Hash + ?Sized,
    {
        let number = self.number(quota)?;
        self.possible(number, cost)?;
        let (id, now) = (self.hasher.hash_one(key), self.now());
        Ok(if cost == 0 { self.look_at(number, id, 0, now) } else { self.decide_at(number, id, cost, now) })
    }

    /// What a check of `key` by `quota` would say now, without taking anything.
    ///
    /// # Errors
    ///
    /// As [`check_with`](Self::check_with).
    pub fn peek_with<Q>(&self, key: &Q, quota: &Quota) -> Result<Decision, CheckError>
    where
        K: Borrow<Q>,
        Q: Hash + ?Sized,
    {
        let number = self.number(quota)?;
        Ok(self.look_at(number, self.hasher.hash_one(key), 1, self.now()))
    }

    /// The number of a quota that stands in for the first.
    pub(super) fn number(&self, quota: &Quota) -> Result<usize, CheckError> {
        self.first.number(quota)?.ok_or(CheckError::TooManyQuotas { quota: *quota })
    }

    /// Changes the quota (of several: the first) while the limiter runs: checks that begin after it are decided by the new
    /// one. No check waits for it, and none sees a mixture. Those who [wait](Self::reserve) are booked anew, in time in
    /// proportion to them. (From the first change on a check takes some 20 nanoseconds more.)
    ///
    /// What keys owe they go on owing, in units: of 3 units used out of 16, 3 are used after the rate is raised a
    /// hundredfold, and come back at the new rate at once. If the new quota allows less than a key owes, the key pays off
    /// what is more before anything is admitted again. In window algorithms, the window at the moment of change becomes
    /// the one of the new period around that moment (and a sliding-window counter weighs the one before by that); and of a
    /// debt beyond the limit that is older than the last change but one, as much is forgiven as the largest limit since
    /// would have paid off.
    ///
    /// The states of the keys stay as they are and were laid out for the first quota. So the algorithm stays (token and
    /// leaky bucket are one here), and the new quota must not be too far from the old: the counts of windows have room for
    /// some times the limit; ticks of buckets are a fraction of a unit, so that with a far lower rate they are longer.
    /// With a far higher one they are spent faster, and go round: once 2^62 of them have gone by (for `10/20s` raised a
    /// hundredfold that takes 534 days, never less than an hour), a debt can be at most an eighth of that, and a table wants
    /// to be [swept](Self::sweep) at least once in the other seven, or a key that was not seen for all of that may seem to
    /// have just been.
    ///
    /// # Errors
    ///
    /// A [`BuildError`] if the quota is impossible, of another algorithm, or too far from the old one. Nothing is changed
    /// then.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Limiter, Quota};
    ///
    /// let quota = Quota::with_period(10, Duration::from_secs(20)).with_burst(16);
    /// let limiter = Limiter::<str>::builder(quota).build()?;
    /// assert_eq!(limiter.check_n("alice", 3)?.remaining(), 13);
    ///
    /// limiter.set_quota(&Quota::with_period(1_000, Duration::from_secs(20)).with_burst(20))?;
    /// assert_eq!(limiter.peek("alice").remaining(), 17);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_quota(&self, quota: &Quota) -> Result<(), BuildError> {
        self.set_quota_at(0, quota)
    }

    /// Changes the quota of this place among several, as [`set_quota`](Self::set_quota) does the first.
    ///
    /// # Errors
    ///
    /// As [`set_quota`](Self::set_quota); and if there is no quota at this place.
    pub fn set_quota_at(&self, index: usize, quota: &Quota) -> Result<(), BuildError> {
        self.requote(index, quota, self.now())
    }

    /// The quota of this place among several, as it stands now; the first is at 0.
    #[must_use]
    pub fn quota_at(&self, index: usize) -> Option<Quota> {
        self.ledgers().nth(index).map(Ledger::quota)
    }

    /// The quotas of each key as they stand now, in the order in which the builder was given them.
    #[must_use]
    pub fn quotas(&self) -> Vec<Quota> {
        self.ledgers().map(Ledger::quota).collect()
    }
}
