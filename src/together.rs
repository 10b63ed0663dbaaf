//! Several limits decided as one: admitted by all, or charged to none.
//!
//! First all are looked at, which changes nothing; so what any of them refuses is refused without a trace. Then each is
//! charged in turn. If one refuses after all, because another thread was faster, those before it are undone. So another
//! thread may be refused for a charge that is about to be undone, but never longer than that.

use crate::decision::Decision;
use crate::error::CostError;
use crate::ledger::Ledger;

/// Something that can be decided together with others by [`check_all`]: a key of a limiter
/// ([`Limiter::of`](crate::Limiter::of)), or a [`GlobalLimiter`](crate::GlobalLimiter). Not to be implemented elsewhere.
pub trait Limit: sealed::Parts {}

pub(crate) mod sealed {
    use super::{Decision, Part, Share};

    /// The quotas of a limit, by number.
    pub trait Parts {
        fn parts(&self) -> usize;

        /// A quota as a ledger keeps it; `None` if it is kept in some other way.
        fn share(&self, _part: usize) -> Option<Share<'_>> {
            None
        }

        /// The most units that a quota can ever give at once.
        fn most(&self, part: usize) -> u64 {
            self.look(part, 0).limit()
        }

        fn look(&self, part: usize, cost: u64) -> Decision {
            self.share(part).map_or_else(Decision::default, |share| share.look(cost))
        }

        fn charge(&self, part: usize, cost: u64) -> Decision {
            self.share(part).map_or_else(Decision::default, |share| share.charge(cost))
        }

        fn undo(&self, part: usize, charged: &Decision) {
            if let Some(share) = self.share(part) {
                share.undo(charged);
            }
        }

        /// The refusal of a key that is blocked, whatever its quotas say.
        fn blocked(&self, _cost: u64) -> Option<Decision> {
            None
        }

        /// Counts what was decided.
        fn count(&self, _decision: &Decision) {}
    }
}

/// Takes `cost` units from each of `limits`, or nothing from any: a quota for each client, one for its tenant and one for
/// everybody, say.
///
/// The decision is that of the quota which refused (the one with the longest wait, if several did), or which has least
/// left. [`quota_index`](Decision::quota_index) tells which it is, counted through the quotas of all limits. Of no limits at
/// all, nothing is allowed. One that comes twice is charged twice. It is meant for a handful: time grows with the square of
/// the number of quotas, and the stack with the number.
///
/// Limiters count it as one of their checks if it is allowed, or if they are the one that refuses.
///
/// # Errors
///
/// A [`CostError`] if the cost is more than one of the quotas can ever give at once. Nothing is taken then.
///
/// ```
/// use tollgate::{GlobalLimiter, Limiter, Quota, check_all};
///
/// let users = Limiter::<str>::builder(Quota::per_second(5)).build()?;
/// let tenants = Limiter::<u64>::builder(Quota::per_minute(3)).build()?;
/// let everybody = GlobalLimiter::new(Quota::per_second(10_000))?;
///
/// let check = |user: &str, tenant: u64| check_all(&[&users.of(user), &tenants.of(&tenant), &everybody], 1);
/// assert!(check("alice", 7)?.is_allowed());
/// assert!(check("bob", 7)?.is_allowed());
/// assert_eq!(check("bob", 7)?.remaining(), 0);
///
/// let refused = check("alice", 7)?;
/// assert_eq!((refused.is_allowed(), refused.quota_index()), (false, 1));
/// assert_eq!(users.peek("alice").remaining(), 4, "what the tenant is refused is not charged to the user");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn check_all(limits: &[&dyn Limit], cost: u64) -> Result<Decision, CostError> {
    let nth = |index: usize| {
        let parts = limits.iter().flat_map(|limit| (0..limit.parts()).map(move |number| (*limit, number)));
        parts.map(|(limit, number)| PartOf { limit, number }).nth(index)
    };
    let limit = (0..).map_while(|index| nth(index).map(|part| part.limit.most(part.number))).min().unwrap_or(u64::MAX);
    if cost > limit {
        return Err(CostError { cost, limit });
    }
    let decision = match blocked(limits, cost) {
        Some(refusal) => refusal,
        None => decide(nth, cost),
    };
    if cost == 0 {
        // Nothing was asked for.
    } else if decision.is_allowed() {
        for limit in limits {
            limit.count(&decision);
        }
    } else if let Some(refusing) = nth(decision.quota_index()) {
        refusing.limit.count(&decision);
    }
    Ok(decision)
}

/// What each quota of `limits` would say of one unit now, without taking anything, in the order of
/// [`quota_index`](Decision::quota_index): for those who want to tell how all of them stand, and not only the one that binds.
///
/// That a key is blocked is told by checks only.
///
/// ```
/// use tollgate::{Limiter, Quota, peek_all};
///
/// let limiter = Limiter::<str>::builder(Quota::per_minute(5)).and(Quota::per_day(100)).build()?;
/// assert!(limiter.check("alice").is_allowed());
/// let left: Vec<u64> = peek_all(&[&limiter.of("alice")]).map(|decision| decision.remaining()).collect();
/// assert_eq!(left, [4, 99]);
/// # Ok::<(), tollgate::BuildError>(())
/// ```
pub fn peek_all(limits: &[&dyn Limit]) -> impl Iterator<Item = Decision> {
    let parts = limits.iter().flat_map(|limit| (0..limit.parts()).map(move |number| (*limit, number)));
    parts.enumerate().map(|(index, (limit, number))| limit.look(number, 1).of_quota(index))
}

/// The refusal of the first limit of which the key is blocked.
fn blocked(limits: &[&dyn Limit], cost: u64) -> Option<Decision> {
    let mut before = 0;
    for limit in limits {
        if let Some(refusal) = limit.blocked(cost) {
            return Some(refusal.of_quota(before));
        }
        before += limit.parts();
    }
    None
}

/// A limit that is charged several units for one, see [`times`].
struct Times<'a> {
    limit: &'a dyn Limit,
    factor: u64,
}

/// The same limit, of which each unit costs `factor`: so [`check_all`] can take a different cost from each.
///
/// ```
/// use tollgate::{Limiter, Quota, check_all, times};
///
/// let requests = Limiter::<str>::builder(Quota::per_second(10)).build()?;
/// let bytes = Limiter::<str>::builder(Quota::per_second(1_000)).build()?;
/// let decision = check_all(&[&requests.of("alice"), &times(&bytes.of("alice"), 900)], 1)?;
/// assert!(decision.is_allowed());
/// assert_eq!((requests.peek("alice").remaining(), bytes.peek("alice").remaining()), (9, 100));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn times(limit: &dyn Limit, factor: u64) -> impl Limit {
    Times { limit, factor }
}

impl sealed::Parts for Times<'_> {
    fn parts(&self) -> usize {
        self.limit.parts()
    }

    fn most(&self, part: usize) -> u64 {
        self.limit.most(part).checked_div(self.factor).unwrap_or(u64::MAX)
    }

    fn look(&self, part: usize, cost: u64) -> Decision {
        self.limit.look(part, cost.saturating_mul(self.factor))
    }

    fn charge(&self, part: usize, cost: u64) -> Decision {
        match self.factor {
            0 => self.limit.look(part, 0),
            factor => self.limit.charge(part, cost.saturating_mul(factor)),
        }
    }

    fn undo(&self, part: usize, charged: &Decision) {
        self.limit.undo(part, charged);
    }

    fn blocked(&self, cost: u64) -> Option<Decision> {
        self.limit.blocked(cost)
    }

    fn count(&self, decision: &Decision) {
        self.limit.count(decision);
    }
}

impl Limit for Times<'_> {}

/// One quota of a limit.
struct PartOf<'a> {
    limit: &'a dyn Limit,
    number: usize,
}

impl Part for PartOf<'_> {
    fn look(&self, cost: u64) -> Decision {
        self.limit.look(self.number, cost)
    }

    fn charge(&self, cost: u64) -> Decision {
        self.limit.charge(self.number, cost)
    }

    fn undo(&self, charged: &Decision) {
        self.limit.undo(self.number, charged);
    }
}

/// One quota as it stands for one key.
pub(crate) trait Part {
    /// What charging it would come to.
    fn look(&self, cost: u64) -> Decision;
    fn charge(&self, cost: u64) -> Decision;
    /// Takes back what was charged a moment ago, as if it had never been.
    fn undo(&self, charged: &Decision);
}

/// What a key has used of one quota, at a moment.
pub struct Share<'a> {
    pub(crate) ledger: &'a Ledger,
    /// The number of the quota in the ledger.
    pub(crate) number: usize,
    pub(crate) id: u64,
    pub(crate) now: u64,
}

impl Part for Share<'_> {
    fn look(&self, cost: u64) -> Decision {
        self.ledger.look(self.number, self.id, cost, self.now)
    }

    fn charge(&self, cost: u64) -> Decision {
        self.ledger.decide_at(self.number, self.id, cost, self.now)
    }

    fn undo(&self, charged: &Decision) {
        self.ledger.undo(self.number, self.id, charged, self.now);
    }
}

/// The decision of all limits, of which `part` gives the first, the second and so on: that which refuses, with the longest
/// wait if several do; else that which has least left.
pub(crate) fn decide<P: Part>(part: impl Fn(usize) -> Option<P>, cost: u64) -> Decision {
    if cost == 0 {
        return look(part, 0);
    }
    let refusals = looks(&part, cost).filter(|decision| !decision.is_allowed());
    refusals.reduce(Decision::tighter).or_else(|| charge(&part, 0, cost)).unwrap_or_default()
}

/// What they would decide. Of no limits at all, nothing.
pub(crate) fn look<P: Part>(part: impl Fn(usize) -> Option<P>, cost: u64) -> Decision {
    looks(&part, cost).reduce(Decision::tighter).unwrap_or_default()
}

/// What each would decide.
fn looks<P: Part>(part: &impl Fn(usize) -> Option<P>, cost: u64) -> impl Iterator<Item = Decision> {
    (0..).map_while(move |index| Some(part(index)?.look(cost).of_quota(index)))
}

/// Charges the limits from number `index` on, all or none.
fn charge<P: Part>(part: &impl Fn(usize) -> Option<P>, index: usize, cost: u64) -> Option<Decision> {
    let limit = part(index)?;
    let decision = limit.charge(cost).of_quota(index);
    if !decision.is_allowed() {
        return Some(decision);
    }
    let Some(others) = charge(part, index + 1, cost) else { return Some(decision) };
    if !others.is_allowed() {
        limit.undo(&decision);
        return Some(others);
    }
    Some(decision.tighter(others))
}
