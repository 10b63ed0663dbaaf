//! The peers, each behind the same two methods, and everybody who takes part.
//!
//! Left out: `gcra`'s own keyed limiter, whose only check is `async`.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use dashmap::DashMap;
use governor::RateLimiter;
use governor::middleware::NoOpMiddleware;
use governor::nanos::Nanos;
use governor::state::{InMemoryState, NotKeyed};
use tollgate::{BuildError, Clock, GlobalLimiter, Limiter, ManualClock, Memory, PreciseClock};
use trypema::local::LocalRateLimiterProvider;
use trypema::{RateLimit, RateLimitDecision, RateLimiterBuilder, WindowSize};

use crate::support::contender::{self, Contender, Key, Make, Rate};

/// One that takes part.
pub struct Entrant<K> {
    pub name: &'static str,
    pub make: Make<K>,
    pub judged: Judged<K>,
}

/// How its decisions can be compared with exact ones.
pub enum Judged<K> {
    /// It believes a clock of ours.
    ByClock(fn(Rate, &ManualClock) -> Box<dyn Contender<K>>),
    /// It knows nothing but the real time, so only what it decides at one moment can be told beforehand.
    AtOnce,
    /// It is the same limiter as another that is judged.
    Elsewhere,
}

/// Those that limit one key.
pub const SINGLE: [Entrant<()>; 7] = [
    Entrant {
        name: "governor, direct",
        make: |rate, _| Box::new(RateLimiter::direct(rate.of_governor())),
        judged: Judged::ByClock(|rate, clock| {
            Box::new(RateLimiter::direct_with_clock(rate.of_governor(), Told(clock.clone())))
        }),
    },
    Entrant {
        name: "ratelimit",
        make: |rate, _| Box::new(ratelimit(rate, ratelimit::StdClock::new())),
        judged: Judged::ByClock(|rate, clock| Box::new(ratelimit(rate, Told(clock.clone())))),
    },
    Entrant { name: "leaky-bucket", make: |rate, _| Box::new(leaky_bucket(rate)), judged: Judged::AtOnce },
    Entrant {
        name: "gcra in a `Mutex`",
        make: |rate, _| Box::new(GcraCrate::new(rate, Instant::now)),
        judged: Judged::ByClock(|rate, clock| {
            let (start, clock) = (Instant::now(), clock.clone());
            Box::new(GcraCrate::new(rate, move || start + Duration::from_nanos(clock.now())))
        }),
    },
    Entrant {
        name: "by hand in a `Mutex`",
        make: |rate, _| Box::new(Locked::new(rate, PreciseClock::new())),
        judged: Judged::ByClock(|rate, clock| Box::new(Locked::new(rate, clock.clone()))),
    },
    Entrant {
        name: "tollgate, `GlobalLimiter`",
        make: |rate, _| Box::new(GlobalLimiter::new(rate.quota()).unwrap()),
        judged: Judged::ByClock(|rate, clock| {
            Box::new(GlobalLimiter::with_clock(rate.quota(), clock.clone()).unwrap())
        }),
    },
    // Not exact, as it says, but for a single thread at one moment.
    Entrant {
        name: "tollgate, leasing 64",
        make: |rate, _| Box::new(GlobalLimiter::new(rate.quota()).unwrap().leasing(64)),
        judged: Judged::AtOnce,
    },
];

/// governor, and tollgate in all its ways: those that are measured at all work. A new way of asking joins here.
pub fn keyed<K: Key>() -> Vec<Entrant<K>> {
    vec![
        governor(),
        tollgate(),
        Entrant { name: "batches of 64", make: contender::batches, judged: Judged::Elsewhere },
        Entrant { name: "coarse clock", make: contender::coarse, judged: Judged::Elsewhere },
        Entrant {
            name: "compact memory",
            make: contender::compact,
            judged: Judged::ByClock(|rate, clock| Box::new(compact(rate, clock))),
        },
    ]
}

/// Those that limit many keys. Two of them take strings only, so strings they are.
pub fn peers() -> Vec<Entrant<String>> {
    vec![
        governor(),
        Entrant {
            name: "throttlecrab in a `Mutex`",
            make: |rate, keys| Box::new(Throttlecrab::new(rate, keys, SystemTime::now)),
            judged: Judged::ByClock(|rate, clock| {
                let clock = clock.clone();
                let now = move || SystemTime::UNIX_EPOCH + Duration::from_nanos(clock.now());
                Box::new(Throttlecrab::new(rate, 1_000, now))
            }),
        },
        Entrant { name: "trypema", make: |rate, _| Box::new(Trypema::new(rate)), judged: Judged::AtOnce },
        Entrant {
            name: "by hand in `moka`",
            make: |rate, keys| Box::new(InMoka::new(rate, keys, PreciseClock::new())),
            judged: Judged::ByClock(|rate, clock| Box::new(InMoka::new(rate, 1_000, clock.clone()))),
        },
        Entrant {
            name: "by hand in `scc::HashMap`",
            make: |rate, _| Box::new(InScc::new(rate, PreciseClock::new())),
            judged: Judged::ByClock(|rate, clock| Box::new(InScc::new(rate, clock.clone()))),
        },
        Entrant {
            name: "by hand in `DashMap`",
            make: |rate, _| Box::new(InDashMap::new(rate, PreciseClock::new())),
            judged: Judged::ByClock(|rate, clock| Box::new(InDashMap::new(rate, clock.clone()))),
        },
        tollgate(),
    ]
}

fn governor<K: Key>() -> Entrant<K> {
    Entrant {
        name: "governor",
        make: contender::governor,
        judged: Judged::ByClock(|rate, clock| {
            Box::new(RateLimiter::dashmap_with_clock(rate.of_governor(), Told(clock.clone())))
        }),
    }
}

fn tollgate<K: Key>() -> Entrant<K> {
    Entrant {
        name: "tollgate",
        make: contender::tollgate,
        judged: Judged::ByClock(|rate, clock| {
            Box::new(contender::builder(rate, 1_000).clock(clock.clone()).build().unwrap())
        }),
    }
}

/// Compact memory that lasts two days, longer than any script, or where the quota allows no more as long as it can: the
/// shorter, the finer its ticks.
fn compact<K: Key>(rate: Rate, clock: &ManualClock) -> Limiter<K, ManualClock> {
    let lasting = |horizon| {
        let builder = contender::builder(rate, 1_000).clock(clock.clone());
        builder.memory(Memory::Compact).horizon(horizon).build()
    };
    match lasting(Duration::from_secs(2 * 86_400)) {
        Err(BuildError::HorizonTooLong { longest }) => lasting(longest).unwrap(),
        limiter => limiter.unwrap(),
    }
}

/// A clock that is told the time, for crates that have a trait of their own for it.
#[derive(Clone)]
struct Told(ManualClock);

impl governor::clock::Clock for Told {
    type Instant = Nanos;

    fn now(&self) -> Nanos {
        self.0.now().into()
    }
}

impl ratelimit::Clock for Told {
    fn elapsed(&self) -> Duration {
        Duration::from_nanos(self.0.now())
    }
}

impl<C: Clock> Contender<()> for GlobalLimiter<C> {
    fn charge(&self, (): &(), cost: u64) -> bool {
        self.check_n(cost).is_ok_and(|decision| decision.is_allowed())
    }

    fn check(&self, (): &()) -> bool {
        GlobalLimiter::check(self).is_allowed()
    }
}

impl<C: governor::clock::Clock + Sync> Contender<()>
    for RateLimiter<NotKeyed, InMemoryState, C, NoOpMiddleware<C::Instant>>
{
    fn charge(&self, (): &(), cost: u64) -> bool {
        let cost = u32::try_from(cost).ok().and_then(NonZeroU32::new).unwrap();
        self.check_n(cost).is_ok_and(|fits| fits.is_ok())
    }

    fn check(&self, (): &()) -> bool {
        RateLimiter::check(self).is_ok()
    }
}

fn ratelimit<C: ratelimit::Clock>(rate: Rate, clock: C) -> ratelimit::Ratelimiter<C> {
    let builder = ratelimit::Builder::with_clock(rate.limit.into(), clock).period(rate.period);
    builder.max_tokens(rate.burst.into()).initial_available(rate.burst.into()).build().unwrap()
}

impl<C: ratelimit::Clock + Sync> Contender<()> for ratelimit::Ratelimiter<C> {
    fn charge(&self, (): &(), cost: u64) -> bool {
        self.try_wait_n(cost).is_ok()
    }
}

fn leaky_bucket(rate: Rate) -> leaky_bucket::RateLimiter {
    // It refills by whole intervals of a millisecond or more.
    let units = (1_000_000 / rate.interval().as_nanos()).max(1);
    let interval = rate.interval() * u32::try_from(units).unwrap();
    let burst = rate.burst as usize;
    let units = usize::try_from(units).unwrap();
    leaky_bucket::RateLimiter::builder().max(burst).initial(burst).refill(units).interval(interval).build()
}

impl Contender<()> for leaky_bucket::RateLimiter {
    fn charge(&self, (): &(), cost: u64) -> bool {
        self.try_acquire(usize::try_from(cost).unwrap())
    }
}

/// The state that the crate offers beside its async limiter.
struct GcraCrate<N> {
    state: Mutex<gcra::GcraState>,
    limit: gcra::RateLimit,
    now: N,
}

impl<N> GcraCrate<N> {
    fn new(rate: Rate, now: N) -> Self {
        // Its period is that in which a whole burst comes back.
        let limit = gcra::RateLimit::new(rate.burst, rate.interval() * rate.burst);
        Self { state: Mutex::default(), limit, now }
    }
}

impl<N: Fn() -> Instant + Sync> Contender<()> for GcraCrate<N> {
    fn charge(&self, (): &(), cost: u64) -> bool {
        let cost = u32::try_from(cost).unwrap();
        self.state.lock().unwrap().check_and_modify_at(&self.limit, (self.now)(), cost).is_ok()
    }
}

struct Throttlecrab<N> {
    limiter: Mutex<throttlecrab::RateLimiter<throttlecrab::AdaptiveStore>>,
    rate: Rate,
    now: N,
}

impl<N> Throttlecrab<N> {
    fn new(rate: Rate, keys: usize, now: N) -> Self {
        let store = throttlecrab::AdaptiveStore::with_capacity(keys);
        Self { limiter: Mutex::new(throttlecrab::RateLimiter::new(store)), rate, now }
    }
}

impl<N: Fn() -> SystemTime + Sync> Contender<String> for Throttlecrab<N> {
    fn charge(&self, key: &String, cost: u64) -> bool {
        let Rate { limit, period, burst } = self.rate;
        let (period, cost) = (i64::try_from(period.as_secs()).unwrap(), i64::try_from(cost).unwrap());
        let now = (self.now)();
        self.limiter.lock().unwrap().rate_limit(key, burst.into(), limit.into(), period, cost, now).unwrap().0
    }
}

struct Trypema {
    provider: Arc<LocalRateLimiterProvider>,
    rate: RateLimit,
}

impl Trypema {
    /// The window, in whole seconds, is the time in which a burst comes back, and so many units as a burst fit into it.
    fn new(rate: Rate) -> Self {
        let seconds = (rate.interval() * rate.burst).as_secs_f64().ceil().max(1.0);
        let window = WindowSize::seconds(seconds as u64).unwrap();
        let provider = LocalRateLimiterProvider::builder().window_size(window).disable_cleanup().build().unwrap();
        // It rounds the product of rate and window down; without the millionth a burst of 7 might be one of 6.
        let rate = RateLimit::per_second((f64::from(rate.burst) + 1e-6) / seconds).unwrap();
        Self { provider, rate }
    }
}

impl Contender<String> for Trypema {
    fn charge(&self, key: &String, cost: u64) -> bool {
        self.provider.absolute().inc(key, &self.rate, cost) == RateLimitDecision::Allowed
    }
}

/// What one might write by hand: a theoretical arrival time in nanoseconds for each key, here on tollgate's own clock.
struct ByHand<C> {
    interval: u64,
    burst_time: u64,
    clock: C,
}

impl<C: Clock> ByHand<C> {
    fn new(rate: Rate, clock: C) -> Self {
        let interval = u64::try_from(rate.interval().as_nanos()).unwrap();
        Self { interval, burst_time: interval * u64::from(rate.burst), clock }
    }

    fn next(&self, arrival: u64, now: u64, cost: u64) -> Option<u64> {
        let next = arrival.max(now).checked_add(self.interval.checked_mul(cost)?)?;
        (next <= now + self.burst_time).then_some(next)
    }

    fn charge(&self, arrival: &AtomicU64, cost: u64) -> bool {
        let now = self.clock.now();
        arrival.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |arrival| self.next(arrival, now, cost)).is_ok()
    }
}

struct Locked<C> {
    arrival: Mutex<u64>,
    by_hand: ByHand<C>,
}

impl<C: Clock> Locked<C> {
    fn new(rate: Rate, clock: C) -> Self {
        Self { arrival: Mutex::default(), by_hand: ByHand::new(rate, clock) }
    }
}

impl<C: Clock> Contender<()> for Locked<C> {
    fn charge(&self, (): &(), cost: u64) -> bool {
        let mut arrival = self.arrival.lock().unwrap();
        let next = self.by_hand.next(*arrival, self.by_hand.clock.now(), cost);
        *arrival = next.unwrap_or(*arrival);
        next.is_some()
    }
}

struct InMoka<K, C> {
    map: moka::sync::Cache<K, Arc<AtomicU64>>,
    by_hand: ByHand<C>,
}

impl<K: Key, C: Clock> InMoka<K, C> {
    fn new(rate: Rate, keys: usize, clock: C) -> Self {
        // Twice the room: a key that it puts out is a budget forgotten.
        Self { map: moka::sync::Cache::new(2 * keys.max(1_000) as u64), by_hand: ByHand::new(rate, clock) }
    }
}

impl<K: Key, C: Clock> Contender<K> for InMoka<K, C> {
    fn charge(&self, key: &K, cost: u64) -> bool {
        self.by_hand.charge(&self.map.get_with_by_ref(key, Arc::default), cost)
    }
}

struct InScc<K: Key, C> {
    map: scc::HashMap<K, AtomicU64>,
    by_hand: ByHand<C>,
}

impl<K: Key, C: Clock> InScc<K, C> {
    fn new(rate: Rate, clock: C) -> Self {
        Self { map: scc::HashMap::new(), by_hand: ByHand::new(rate, clock) }
    }
}

impl<K: Key, C: Clock> Contender<K> for InScc<K, C> {
    fn charge(&self, key: &K, cost: u64) -> bool {
        let known = self.map.read_sync(key, |_, arrival| self.by_hand.charge(arrival, cost));
        known.unwrap_or_else(|| self.by_hand.charge(self.map.entry_sync(key.clone()).or_default().get(), cost))
    }
}

struct InDashMap<K, C> {
    map: DashMap<K, AtomicU64>,
    by_hand: ByHand<C>,
}

impl<K: Key, C: Clock> InDashMap<K, C> {
    fn new(rate: Rate, clock: C) -> Self {
        Self { map: DashMap::new(), by_hand: ByHand::new(rate, clock) }
    }
}

impl<K: Key, C: Clock> Contender<K> for InDashMap<K, C> {
    fn charge(&self, key: &K, cost: u64) -> bool {
        if let Some(arrival) = self.map.get(key) {
            return self.by_hand.charge(&arrival, cost);
        }
        self.by_hand.charge(&self.map.entry(key.clone()).or_default(), cost)
    }
}
