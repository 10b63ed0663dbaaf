//! The quotas by which the keys of one ledger are checked: its own, which may be changed, and those of some keys instead.
//!
//! Each quota has a number, which stands in the highest bits of the states that were charged by it; so a state can be read
//! whoever finds it. The ledger's own quota is number 0. A key that is checked by another quota than the time before takes
//! its debt along, in units.

use alloc::boxed::Box;
use core::time::Duration;

use crate::cell::{Cell, NEW, Policy, Words, ask};
use crate::error::BuildError;
use crate::published::Published;
use crate::quota::{Algorithm, Quota};
use crate::sync::{AtomicBool, AtomicU64, Ordering};
use crate::timeline::Timeline;

/// The number of a ledger's own quota.
pub(crate) const FIRST: usize = 0;

/// Those of a policy, and those of its quota.
const POLICY_WORDS: usize = size_of::<Words>() / size_of::<u64>();
const WORDS: usize = POLICY_WORDS + 4;

#[derive(Debug)]
pub(crate) struct Terms {
    /// The policy of the first quota, as long as it is not changed.
    first: Policy,
    /// Whether there is, or may be, more to know than `first`.
    more: AtomicBool,
    numbered: Box<[Numbered]>,
    timeline: Timeline,
    /// The bits of a state below the number of its quota.
    bits: u32,
}

/// A quota and its policy.
#[derive(Debug)]
struct Numbered {
    /// A hash of the quota; 0 as long as the number is free. Not that of the first, which may change.
    hash: AtomicU64,
    /// Whether the words are those of the quota.
    filled: AtomicBool,
    words: Published<WORDS>,
}

impl Terms {
    /// Terms for states of `bits` bits, with room for some quotas more.
    pub(crate) fn new(quota: &Quota, timeline: &Timeline, bits: u32, others: u8) -> Result<Self, BuildError> {
        let bits = bits - (u8::BITS - others.leading_zeros());
        let first = Policy::new(quota, timeline, bits)?;
        let words = to_words(first, quota);
        let numbered = (0..=others).map(|_| Numbered {
            hash: AtomicU64::new(0),
            filled: AtomicBool::new(false),
            words: Published::new(words),
        });
        Ok(Self { first, more: AtomicBool::new(others > 0), numbered: numbered.collect(), timeline: *timeline, bits })
    }

    /// The bytes of it that do not lie within itself.
    pub(crate) fn memory_bytes(&self) -> usize {
        size_of_val(&*self.numbered)
    }

    /// The only policy that there is, if there has never been another.
    #[inline]
    pub(crate) fn only(&self) -> Option<&Policy> {
        // Relaxed: a thread that sees a change late decides as if it had come before.
        if self.more.load(Ordering::Relaxed) { None } else { Some(&self.first) }
    }

    /// Whether there is no room for quotas besides the first.
    pub(crate) fn has_only_one(&self) -> bool {
        self.numbered.len() == 1
    }

    /// The policy of this number.
    pub(crate) fn by(&self, number: usize) -> By<'_> {
        By { terms: self, number, policy: self.policy(number) }
    }

    pub(crate) fn policy(&self, number: usize) -> Policy {
        let numbered = self.numbered.get(number).unwrap_or(&self.numbered[0]);
        Policy::from_words(numbered.words.read())
    }

    /// The most units that the policy of this number gives at once.
    #[inline]
    pub(crate) fn limit(&self, number: usize) -> u64 {
        self.only().map_or_else(|| self.policy(number).limit(), Policy::limit)
    }

    /// The first quota.
    pub(crate) fn quota(&self) -> Quota {
        quota_from_words(self.numbered[0].words.read())
    }

    /// Makes `quota` the first from `now` on.
    pub(crate) fn set(&self, quota: &Quota, now: u64) -> Result<(), BuildError> {
        let Self { numbered, timeline, more, .. } = self;
        let change = |words: [u64; WORDS]| {
            let changed = policy_from_words(words).changed(quota, timeline, now)?;
            Ok::<_, BuildError>(to_words(changed, quota))
        };
        quota.validate()?;
        numbered[0].words.replace(change)?;
        // Relaxed: as in `only`.
        more.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// The number of a quota, which it is given if it has none; `None` if there is no room for one more. Takes time in
    /// proportion to the quotas that there is room for.
    pub(crate) fn number(&self, quota: &Quota) -> Result<Option<usize>, BuildError> {
        if *quota == self.quota() {
            return Ok(Some(FIRST));
        }
        let wanted = hash(quota);
        for (number, numbered) in self.numbered.iter().enumerate().skip(1) {
            let mut found = numbered.hash.load(Ordering::Relaxed);
            if found == 0 {
                // Not before it is known that it will do.
                self.words(quota)?;
                found = match numbered.hash.compare_exchange(0, wanted, Ordering::Relaxed, Ordering::Relaxed) {
                    Ok(_) => wanted,
                    Err(other) => other,
                };
            }
            if found == wanted {
                numbered.fill(|| self.words(quota))?;
                return Ok(Some(number));
            }
        }
        Ok(None)
    }

    /// The words of a quota that nobody has changed.
    fn words(&self, quota: &Quota) -> Result<[u64; WORDS], BuildError> {
        quota.validate()?;
        Ok(to_words(Policy::new(quota, &self.timeline, self.bits)?, quota))
    }

    /// The number of the quota by which a state was charged, and what that quota knows of it.
    fn parted(&self, state: u64) -> (usize, u64) {
        ((state >> self.bits) as usize, state & ((1 << self.bits) - 1))
    }

    /// The policy by which a state was charged last, and what that knows of it.
    pub(crate) fn of(&self, state: u64) -> (Policy, u64) {
        match self.only() {
            Some(policy) => (*policy, state),
            None => self.by(FIRST).told_of_another(state, |inner| inner),
        }
    }

    /// The nanoseconds from `now` on until what led to a state can be admitted.
    pub(crate) fn wait(&self, state: u64, now: u64) -> u64 {
        let (policy, state) = self.of(state);
        policy.wait(state, now, 0)
    }

    /// A state that was charged by the quota of this number, as the table keeps it.
    pub(crate) fn joined(&self, number: usize, state: u64) -> u64 {
        if state == NEW { NEW } else { ((number as u64) << self.bits) | state }
    }
}

impl Numbered {
    /// Fills the words. Whoever finds them empty does so, and all write the same, so that nobody waits.
    fn fill(&self, words: impl FnOnce() -> Result<[u64; WORDS], BuildError>) -> Result<(), BuildError> {
        // Acquire: pairs with the Release below.
        if !self.filled.load(Ordering::Acquire) {
            let words = words()?;
            self.words.replace(|_| Ok::<_, BuildError>(words))?;
            // Release: whoever sees it finds the words. A state that bears the number is charged after that.
            self.filled.store(true, Ordering::Release);
        }
        Ok(())
    }
}

/// The policy of one number, for states that may have been charged by others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct By<'a> {
    terms: &'a Terms,
    number: usize,
    policy: Policy,
}

impl By<'_> {
    /// The policy, and what is to be told of a state that it sees so.
    pub(crate) fn told<T>(&self, state: u64, now: u64, tell: impl FnOnce(u64) -> T) -> (Policy, T) {
        (self.policy, tell(self.own(state, now)))
    }

    /// The same of a state of another key, which may be of another quota.
    pub(crate) fn told_of_another<T>(&self, state: u64, tell: impl FnOnce(u64) -> T) -> (Policy, T) {
        let (last, inner) = self.last(state);
        (last.policy, tell(inner))
    }

    /// The policy by which a state was charged last, and what that knows of it.
    fn last(&self, state: u64) -> (Self, u64) {
        let (number, inner) = self.terms.parted(state);
        if number == self.number || state == NEW { (*self, inner) } else { (self.terms.by(number), inner) }
    }

    /// A state as one of this policy.
    #[inline]
    fn own(&self, state: u64, now: u64) -> u64 {
        let (number, inner) = self.terms.parted(state);
        if number == self.number { inner } else { self.converted(number, inner, now) }
    }

    #[cold]
    #[inline(never)]
    fn converted(&self, number: usize, inner: u64, now: u64) -> u64 {
        // A new state has the number 0, and owes nothing by any policy.
        self.policy.convert(&self.terms.policy(number), inner, now)
    }

    /// A state of this policy, as the table keeps it.
    fn kept(&self, state: u64) -> u64 {
        self.terms.joined(self.number, state)
    }
}

/// Charges are decided, and booked, by this policy; what else is done to a state, or asked about it, is left to the one by which it was
/// charged last.
impl Cell for By<'_> {
    fn limit(&self) -> u64 {
        self.policy.limit()
    }

    fn charge(&self, state: u64, now: u64, cost: u64) -> Option<u64> {
        self.policy.charge(self.own(state, now), now, cost).map(|charged| self.kept(charged))
    }

    fn force(&self, state: u64, now: u64, cost: u64) -> u64 {
        // An idle state is as good as none, so it is of no other quota either.
        let state = if self.is_idle(state, now) { NEW } else { state };
        let (last, inner) = self.last(state);
        last.kept(last.policy.force(inner, now, cost))
    }

    fn book(&self, state: u64, now: u64, cost: u64) -> Option<u64> {
        let own = self.own(state, now);
        ask!(&self.policy, cell => cell.book(own, now, cost)).map(|booked| self.kept(booked))
    }

    fn refund(&self, state: u64, now: u64, cost: u64) -> u64 {
        let (last, inner) = self.last(state);
        last.kept(last.policy.refund(inner, now, cost))
    }

    fn undo(&self, state: u64, now: u64, charged: u64, cost: u64) -> u64 {
        let (last, inner) = self.last(state);
        let charged = if charged == state { inner } else { last.own(charged, now) };
        last.kept(last.policy.undo(inner, now, charged, cost))
    }

    fn is_idle(&self, state: u64, now: u64) -> bool {
        let (last, inner) = self.last(state);
        ask!(&last.policy, cell => cell.is_idle(inner, now))
    }

    /// In nanoseconds, since units of different quotas do not compare.
    fn debt(&self, state: u64, now: u64) -> u64 {
        let (last, inner) = self.last(state);
        last.policy.reset_after(inner, now)
    }

    fn remaining(&self, state: u64, now: u64) -> u64 {
        self.policy.remaining(self.own(state, now), now)
    }

    fn admitted_at(&self, state: u64, now: u64, cost: u64) -> u64 {
        now.saturating_add(self.policy.wait(self.own(state, now), now, cost))
    }

    fn idle_at(&self, state: u64, now: u64) -> u64 {
        let (last, inner) = self.last(state);
        last.policy.idle_at(inner, now)
    }
}

fn to_words(policy: Policy, quota: &Quota) -> [u64; WORDS] {
    let algorithm = Algorithm::ALL.iter().position(|&algorithm| algorithm == quota.algorithm()).unwrap_or(0);
    let mut words = [0; WORDS];
    words[..POLICY_WORDS].copy_from_slice(&policy.to_words());
    words[POLICY_WORDS..].copy_from_slice(&[quota.limit(), quota.period_ns(), quota.burst(), algorithm as u64]);
    words
}

fn policy_from_words(words: [u64; WORDS]) -> Policy {
    Policy::from_words(core::array::from_fn(|word| words[word]))
}

fn quota_from_words([.., limit, period, burst, algorithm]: [u64; WORDS]) -> Quota {
    let algorithm = Algorithm::ALL.get(algorithm as usize).copied().unwrap_or_default();
    Quota::with_period(limit, Duration::from_nanos(period)).with_burst(burst).with_algorithm(algorithm)
}

/// Never 0. Two quotas of the same hash, of which there is a chance of one in billions of billions, would be taken for one.
fn hash(quota: &Quota) -> u64 {
    let [.., limit, period, burst, algorithm] = to_words(Policy::NOTHING, quota);
    let mix = |hash: u64, word: u64| (hash ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29);
    [limit, period, burst, algorithm].into_iter().fold(0x243F_6A88_85A3_08D3, mix).max(1)
}
