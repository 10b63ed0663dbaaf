//! A limiter on a clock that stands where the input says: what `replay` and `simulate` share.

use std::hash::Hash;
use std::time::Duration;

use anyhow::Context;
use tollgate::{BuildError, Limiter, ManualClock, Quota, QuotaError};

use super::complain;

/// The shortest horizon that a limiter is built with.
const MIN_HORIZON: Duration = Duration::from_secs(1);

/// The smallest capacity: so few keys cost nothing.
const MIN_CAPACITY: usize = 1024;

/// A limiter and the clock that it lives by.
pub struct DryRun<K: ?Sized> {
    pub limiter: Limiter<K, ManualClock>,
    pub clock: ManualClock,
}

impl<K: Hash + ?Sized> DryRun<K> {
    /// A limiter by all of `quotas`, of which there is at least one, for times from `first` to `last`, in nanoseconds, with room for twice the `keys` that it will see: a
    /// dry run must not displace any.
    pub fn new(quotas: &[Quota], first: u64, last: u64, keys: usize) -> Result<Self, BuildError> {
        let horizon = Duration::from_nanos(last.saturating_sub(first)).max(MIN_HORIZON);
        let capacity = keys.saturating_mul(2).max(MIN_CAPACITY);
        let clock = ManualClock::at(first);
        let [quota, more @ ..] = quotas else { return Err(BuildError::Quota(QuotaError::ZeroLimit)) };
        let builder = more.iter().fold(Limiter::builder(*quota), |builder, quota| builder.and(*quota));
        let limiter = builder.capacity(capacity).clock(clock.clone()).horizon(horizon).build()?;
        Ok(Self { limiter, clock })
    }

    /// A key that is forgotten while it owes something gets more than its quota: not silently.
    pub fn warn_of_displaced(&self) {
        let displaced = self.limiter.stats().displaced;
        if displaced > 0 {
            complain(format_args!("keys were forgotten for lack of room, so too much was allowed: {displaced}"));
        }
    }
}

/// Reads quotas and makes sure that a limiter can be built for each at all, so that a later failure is that of the
/// input's times alone.
pub fn parse_quotas(texts: &[String]) -> anyhow::Result<Vec<Quota>> {
    texts.iter().map(|text| parse_quota(text)).collect()
}

fn parse_quota(text: &str) -> anyhow::Result<Quota> {
    let quota: Quota = text.parse().with_context(|| about(text))?;
    DryRun::<str>::new(&[quota], 0, 0, 0).with_context(|| about(text))?;
    Ok(quota)
}

fn about(quota: &str) -> String {
    format!("quota {quota:?}")
}
