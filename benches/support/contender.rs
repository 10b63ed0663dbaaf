//! What is measured: one way of asking all limiters, and those limiters that more than one benchmark asks.

use std::hash::Hash;
use std::net::{IpAddr, Ipv6Addr};
use std::num::NonZeroU32;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use governor::middleware::NoOpMiddleware;
use governor::state::keyed::DashMapStateStore;
use governor::{DefaultKeyedRateLimiter, RateLimiter};
use tollgate::{Algorithm, Builder, Clock, CoarseClock, Decision, Limiter, Memory, Quota};

/// What each key may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    pub limit: u32,
    pub period: Duration,
    pub burst: u32,
}

impl Rate {
    /// So much that every check is admitted.
    pub const PLENTY: Self = Self { limit: 1_000_000_000, period: Duration::from_secs(1), burst: 1_000_000 };
    /// So little that every check but a key's first is refused.
    pub const SCARCE: Self = Self { limit: 1, period: Duration::from_secs(3_600), burst: 1 };

    /// The time in which one unit comes back.
    pub fn interval(self) -> Duration {
        self.period / self.limit
    }

    pub fn quota(self) -> Quota {
        Quota::with_period(self.limit.into(), self.period).with_burst(self.burst.into())
    }

    pub fn of_governor(self) -> governor::Quota {
        let burst = NonZeroU32::new(self.burst).unwrap();
        governor::Quota::with_period(self.interval()).unwrap().allow_burst(burst)
    }
}

/// Something that many different values of can be made.
pub trait Key: Hash + Eq + Clone + Send + Sync + 'static {
    fn nth(number: u64) -> Self;
}

/// For limiters of one key.
impl Key for () {
    fn nth(_: u64) -> Self {}
}

impl Key for u64 {
    fn nth(number: u64) -> Self {
        number
    }
}

impl Key for IpAddr {
    fn nth(number: u64) -> Self {
        Ipv6Addr::from((0x2001_0db8 << 96) | u128::from(number)).into()
    }
}

impl Key for String {
    fn nth(number: u64) -> Self {
        format!("user-{number}")
    }
}

/// A limiter that decides by itself what time it is.
pub trait Contender<K: Key>: Sync {
    /// Takes `cost` units, at least 1, all or none.
    fn charge(&self, key: &K, cost: u64) -> bool;

    /// Takes one unit.
    fn check(&self, key: &K) -> bool {
        self.charge(key, 1)
    }

    /// Checks the keys of a list in their order, beginning again at its end. Compiled for each contender, as a user's
    /// own code would be.
    fn walk(&self, keys: &[K], checks: usize) {
        for key in keys.iter().cycle().take(checks) {
            std::hint::black_box(self.check(key));
        }
    }

    /// Walks through each list on a thread of its own, all at once, and tells how long it took from the first's beginning
    /// to the last's end.
    fn run(&self, lists: &[Vec<K>], checks: usize) -> Duration {
        let barrier = Barrier::new(lists.len());
        let work = |keys: &[K]| {
            barrier.wait();
            let start = Instant::now();
            self.walk(keys, checks);
            (start, Instant::now())
        };
        std::thread::scope(|scope| {
            let running: Vec<_> = lists.iter().map(|keys| scope.spawn(|| work(keys))).collect();
            let (starts, ends): (Vec<_>, Vec<_>) = running.into_iter().map(|thread| thread.join().unwrap()).unzip();
            *ends.iter().max().unwrap() - *starts.iter().min().unwrap()
        })
    }
}

/// How a contender is made: for keys of one kind, at a rate, with room for so many keys.
pub type Make<K> = fn(Rate, usize) -> Box<dyn Contender<K>>;

impl<K: Key, C: Clock> Contender<K> for Limiter<K, C> {
    fn charge(&self, key: &K, cost: u64) -> bool {
        self.check_n(key, cost).is_ok_and(|decision| decision.is_allowed())
    }

    #[inline]
    fn check(&self, key: &K) -> bool {
        Limiter::check(self, key).is_allowed()
    }
}

impl<K, C> Contender<K> for RateLimiter<K, DashMapStateStore<K>, C, NoOpMiddleware<C::Instant>>
where
    K: Key,
    C: governor::clock::Clock + Sync,
{
    fn charge(&self, key: &K, cost: u64) -> bool {
        let cost = u32::try_from(cost).ok().and_then(NonZeroU32::new).unwrap();
        self.check_key_n(key, cost).is_ok_and(|fits| fits.is_ok())
    }

    #[inline]
    fn check(&self, key: &K) -> bool {
        self.check_key(key).is_ok()
    }
}

/// tollgate, asked for many keys at a time.
struct Batches<K>(Limiter<K>);

impl<K> Batches<K> {
    const KEYS: usize = 64;
}

impl<K: Key> Contender<K> for Batches<K> {
    fn charge(&self, key: &K, cost: u64) -> bool {
        Contender::charge(&self.0, key, cost)
    }

    fn walk(&self, keys: &[K], checks: usize) {
        let mut decisions = [Decision::default(); 64];
        for batch in keys.chunks(Self::KEYS).cycle().take(checks.div_ceil(Self::KEYS)) {
            std::hint::black_box(self.0.check_many(batch, &mut decisions));
        }
    }
}

pub fn builder<K>(rate: Rate, keys: usize) -> Builder<K> {
    Limiter::builder(rate.quota()).capacity(keys.max(1_000))
}

pub fn coarse_clock() -> CoarseClock {
    CoarseClock::start(Duration::from_millis(1)).unwrap()
}

pub fn tollgate<K: Key>(rate: Rate, keys: usize) -> Box<dyn Contender<K>> {
    Box::new(builder(rate, keys).build().unwrap())
}

pub fn coarse<K: Key>(rate: Rate, keys: usize) -> Box<dyn Contender<K>> {
    Box::new(builder(rate, keys).clock(coarse_clock()).build().unwrap())
}

pub fn compact<K: Key>(rate: Rate, keys: usize) -> Box<dyn Contender<K>> {
    // A state of 39 bits has room for eight minutes of [`Rate::PLENTY`], more than any measurement takes.
    let horizon = Duration::from_secs(480);
    Box::new(builder(rate, keys).memory(Memory::Compact).horizon(horizon).build().unwrap())
}

pub fn batches<K: Key>(rate: Rate, keys: usize) -> Box<dyn Contender<K>> {
    Box::new(Batches(builder(rate, keys).build().unwrap()))
}

/// Which of tollgate's algorithms decides, on a clock that costs next to nothing or not.
pub fn algorithm(algorithm: Algorithm, rate: Rate, keys: usize, with_coarse_clock: bool) -> Box<dyn Contender<u64>> {
    let builder = Limiter::builder(rate.quota().with_algorithm(algorithm)).capacity(keys.max(1_000));
    if with_coarse_clock {
        Box::new(builder.clock(coarse_clock()).build().unwrap())
    } else {
        Box::new(builder.build().unwrap())
    }
}

pub fn governor<K: Key>(rate: Rate, _: usize) -> Box<dyn Contender<K>> {
    Box::new(DefaultKeyedRateLimiter::<K>::keyed(rate.of_governor()))
}
