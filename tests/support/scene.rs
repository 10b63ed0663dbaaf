//! A limiter on a clock that stands where a test says.
// Each test uses a part of it.
#![allow(dead_code)]

use std::time::Duration;

use tollgate::{Algorithm, Decision, Limiter, ManualClock, Quota};

pub const SECOND: Duration = Duration::from_secs(1);
pub const NANO: Duration = Duration::from_nanos(1);

/// A limiter on a clock that begins at zero, asked for a key at a moment.
pub struct Scene<K: ?Sized> {
    pub limiter: Limiter<K, ManualClock>,
    pub clock: ManualClock,
}

impl<K: ?Sized + std::hash::Hash> Scene<K> {
    pub fn new(quota: Quota) -> Self {
        Self::with_capacity(quota, 1_000)
    }

    pub fn with_capacity(quota: Quota, capacity: usize) -> Self {
        let clock = ManualClock::new();
        let limiter = Limiter::builder(quota).capacity(capacity).clock(clock.clone()).build().unwrap();
        Self { limiter, clock }
    }

    pub fn at(&self, now: Duration) {
        self.clock.set(u64::try_from(now.as_nanos()).unwrap());
    }
}

impl Scene<str> {
    pub fn ask(&self, now: Duration, cost: u64) -> Decision {
        self.at(now);
        self.limiter.check_n("key", cost).unwrap()
    }

    #[track_caller]
    pub fn ok(&self, now: Duration, cost: u64, remaining: u64) {
        let decision = self.ask(now, cost);
        assert!(decision.is_allowed(), "at {now:?}: {decision:?}");
        assert_eq!(decision.remaining(), remaining, "at {now:?}");
        assert_eq!(decision.retry_after(), Duration::ZERO);
    }

    #[track_caller]
    pub fn no(&self, now: Duration, cost: u64, remaining: u64, wait: Duration) {
        let decision = self.ask(now, cost);
        assert!(!decision.is_allowed(), "at {now:?}: {decision:?}");
        assert_eq!((decision.remaining(), decision.retry_after()), (remaining, wait), "at {now:?}");
    }
}

/// The same quota by another algorithm. A leaky bucket admits one unit more at once than may wait in it.
pub fn by(algorithm: Algorithm, quota: Quota) -> Quota {
    let quota = quota.with_algorithm(algorithm);
    if algorithm == Algorithm::LeakyBucket { quota.with_burst(quota.burst() - 1) } else { quota }
}

/// A scene for each algorithm.
pub fn scenes<K: ?Sized + std::hash::Hash>(quota: Quota) -> impl Iterator<Item = (Algorithm, Scene<K>)> {
    Algorithm::ALL.iter().map(move |&algorithm| (algorithm, Scene::new(by(algorithm, quota))))
}

pub fn every(limit: u64, seconds: u64) -> Quota {
    Quota::with_period(limit, Duration::from_secs(seconds))
}

pub fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub fn ns(nanos: u64) -> Duration {
    Duration::from_nanos(nanos)
}
