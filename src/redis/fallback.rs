//! What decides when Redis does not.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Clock;
use crate::decision::{Decision, Numbers, Verdict};
use crate::error::BuildError;
use crate::limiter::{Builder, Limiter};
use crate::quota::Quota;

use super::keys::Tag;
use super::terms::Terms;

/// For how long those are told to stay away who are refused because nobody can decide.
const COME_BACK: u64 = 1_000_000_000;

/// What a check decides when Redis does not: when it is down, or does not answer before the deadline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WhenDown {
    /// Everything is admitted: a limiter that is broken does not break the service.
    #[default]
    Open,
    /// Everything is refused.
    Closed,
    /// The limiter in this process decides, by its share of the quotas: with `servers` servers, that part of each. What was
    /// used before is not known to it.
    Local {
        /// Among how many servers a quota is shared out; 0 counts as 1.
        servers: u32,
    },
}

pub(super) enum Fallback {
    Open,
    Closed,
    Local(Box<Limiter<str, Arc<dyn Clock>>>),
}

impl Fallback {
    pub(super) fn new(
        when_down: WhenDown,
        quotas: &[Quota],
        capacity: usize,
        clock: &Arc<dyn Clock>,
    ) -> Result<Self, BuildError> {
        let servers = match when_down {
            WhenDown::Open => return Ok(Self::Open),
            WhenDown::Closed => return Ok(Self::Closed),
            WhenDown::Local { servers } => servers.max(1),
        };
        let mut shares = quotas.iter().map(|quota| share(quota, servers));
        let first = shares.next().unwrap_or_else(|| Quota::per_second(0));
        let builder = shares.fold(Limiter::builder(first), Builder::and);
        Ok(Self::Local(Box::new(builder.capacity(capacity).clock(Arc::clone(clock)).build()?)))
    }

    /// The decisions of all quotas about a request of this cost.
    pub(super) fn decide(&self, tag: &Tag, cost: u64, takes: bool, terms: &[Terms]) -> (Decision, Vec<Decision>) {
        let numbers = |terms: &Terms| Numbers::full(terms.limit());
        let each = |decide: &dyn Fn(&Terms) -> Decision| {
            terms.iter().enumerate().map(|(index, terms)| decide(terms).of_quota(index)).collect::<Vec<_>>()
        };
        let each = match self {
            Self::Open => each(&|terms| {
                let numbers = numbers(terms);
                let remaining = if takes { numbers.remaining.saturating_sub(cost) } else { numbers.remaining };
                let verdict = if takes { Verdict::Allowed } else { Verdict::Allowable };
                Decision::of_numbers(Numbers { remaining, ..numbers }, 0, 0, cost, verdict)
            }),
            Self::Closed => each(&|terms| {
                let (retry_after, more_after) = (COME_BACK, COME_BACK);
                let numbers = Numbers { remaining: 0, retry_after, more_after, ..numbers(terms) };
                Decision::of_numbers(numbers, 0, 0, cost, Verdict::Refused)
            }),
            Self::Local(limiter) => return Self::decide_here(limiter, tag, cost, takes),
        };
        (each.iter().copied().reduce(Decision::tighter).unwrap_or_default(), each)
    }

    fn decide_here(
        limiter: &Limiter<str, Arc<dyn Clock>>,
        tag: &Tag,
        cost: u64,
        takes: bool,
    ) -> (Decision, Vec<Decision>) {
        let key = tag.as_str();
        // A share may be less than the cost, which the whole quota can give; then it waits for all of the share.
        let decision = match limiter.check_n(key, if takes { cost } else { 0 }) {
            Ok(decision) if takes => decision,
            Ok(_) => limiter.peek(key),
            Err(error) => limiter.check_n(key, error.limit).unwrap_or_default(),
        };
        let each = crate::together::peek_all(&[&limiter.of(key)]).collect();
        (decision, each)
    }

    pub(super) fn charge(&self, tag: &Tag, units: u64) {
        if let Self::Local(limiter) = self {
            limiter.charge(tag.as_str(), units);
        }
    }

    pub(super) fn refund(&self, tag: &Tag, units: u64) {
        if let Self::Local(limiter) = self {
            limiter.refund(tag.as_str(), units);
        }
    }

    pub(super) fn reset(&self, tag: &Tag) {
        if let Self::Local(limiter) = self {
            limiter.reset(tag.as_str());
        }
    }
}

/// The part of a quota that one of some servers may give: of the limit, or where that is less than a unit each, one unit in
/// as much more time.
fn share(quota: &Quota, servers: u32) -> Quota {
    let (limit, burst) = (quota.limit() / u64::from(servers), quota.burst() / u64::from(servers));
    let share = match limit {
        0 => {
            let nanos = quota.period().as_nanos() * u128::from(servers) / u128::from(quota.limit().max(1));
            Quota::with_period(1, Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)))
        }
        _ => Quota::with_period(limit, quota.period()),
    };
    let share = share.with_algorithm(quota.algorithm());
    if quota.algorithm().takes_burst() { share.with_burst(burst.max(1)) } else { share }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_never_larger_together_than_the_quota() {
        let of = |text: &str, servers| text.parse().map(|quota| share(&quota, servers).to_string());
        assert_eq!(of("100/min", 3).as_deref(), Ok("33/min"));
        assert_eq!(of("100/min burst=20", 4).as_deref(), Ok("25/min burst=5"));
        assert_eq!(of("5/min algorithm=fixed-window", 10).as_deref(), Ok("1/2min algorithm=fixed-window"));
        assert_eq!(of("1/s burst=3", 2).as_deref(), Ok("1/2s"));
    }
}
