//! What a fleet of servers on one Redis costs and admits: checks a second with and without leases, how far leases are from
//! the quota with 2 to 1,000 servers, and what a large fleet needs.
//!
//! `cargo bench --bench fleet --all-features` prints the tables; `-- --write` puts them into `docs/scale.md`. For a fleet of
//! yours: `-- --servers 50 --checks 2000 --clients 5000000 --shard-gb 8`.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic, clippy::cast_precision_loss, clippy::cast_sign_loss)]

// Only a part of it is needed here.
#[allow(dead_code, clippy::expect_used)]
#[path = "../tests/redis/process.rs"]
mod process;
mod support;

use std::fmt::Display;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tollgate::redis::{Lease, RedisBuilder, RedisLimiter};
use tollgate::{Algorithm, ManualClock, Quota};

use process::Redis;
use support::Call;
use support::measure::Random;
use support::report::{Report, Table, grouped, machine};

const PATIENT: Duration = Duration::from_secs(60);

/// The slices of all simulations: 50 units, which lapse after 200 ms.
const LEASE: Lease = Lease::new(50, Duration::from_millis(200));

/// What each server of a simulation brings to the quota of all, a second. The burst is that of 200 ms.
const RATE: u64 = 1_000;

fn limiter(builder: RedisBuilder, redis: &Redis) -> RedisLimiter {
    builder.deadline(PATIENT).capacity(16).build(&redis.url()).unwrap()
}

/// Checks a second of one limit for everybody, by 64 tasks on one connection, and the trips of a thousand checks.
async fn speed(redis: &Redis, name: &str, lease: Option<Lease>, time: Duration) -> (f64, f64) {
    let builder = RedisLimiter::builder(Quota::per_second(1_000_000_000)).prefix(name);
    let limiter = limiter(if let Some(lease) = lease { builder.lease(lease) } else { builder }, redis);
    limiter.ready().await;
    let (start, mut tasks) = (Instant::now(), JoinSet::new());
    for _ in 0..64 {
        let limiter = limiter.clone();
        tasks.spawn(async move {
            while start.elapsed() < time {
                assert!(limiter.check("everybody").await.is_allowed());
                tokio::task::coop::consume_budget().await;
            }
        });
    }
    tasks.join_all().await;
    let stats = limiter.stats();
    (stats.allowed as f64 / start.elapsed().as_secs_f64(), 1_000.0 * stats.round_trips as f64 / stats.allowed as f64)
}

/// Who asks how much in a simulation.
#[derive(Clone, Copy)]
enum Demand {
    /// All servers, for twice the quota.
    Twice,
    /// A half of the servers, another one every 100 ms, for twice the quota.
    Moving,
    /// All servers take slices, which they spend when the quota is full again: nothing is worse.
    Worst,
}

/// What a simulation came to, in units; trips in those of a thousand checks.
struct Outcome {
    quota: u64,
    admitted: u64,
    most_over: i64,
    trips: f64,
}

/// Servers on one limit, in virtual time.
struct Fleet {
    clock: ManualClock,
    limiters: Vec<RedisLimiter>,
    random: Random,
    /// The most that any window up to now has admitted beyond its share of the quota, and the most of any window.
    over: i64,
    most_over: i64,
    admitted: u64,
}

impl Fleet {
    async fn new(redis: &Redis, servers: u64, prefix: &str) -> Self {
        let clock = ManualClock::at(1_800_000_000_000_000_000);
        let quota = Quota::per_second(RATE * servers).with_burst(RATE * servers / 5);
        let builder = RedisLimiter::builder(quota).prefix(prefix).clock(clock.clone()).lease(LEASE);
        let limiters: Vec<_> = (0..servers).map(|_| limiter(builder.clone(), redis)).collect();
        for limiter in &limiters {
            limiter.ready().await;
        }
        Self { clock, limiters, random: Random::seeded(servers), over: 0, most_over: 0, admitted: 0 }
    }

    fn servers(&self) -> u64 {
        self.limiters.len() as u64
    }

    /// One millisecond, in which servers ask in random order.
    async fn step(&mut self, asks: impl Fn(u64) -> u64) {
        let (servers, mut admitted) = (self.servers(), 0);
        let first = self.random.below(servers);
        for place in 0..servers {
            let server = (first + place) % servers;
            for _ in 0..asks(server) {
                admitted += u64::from(self.limiters[server as usize].check("everybody").await.is_allowed());
            }
        }
        self.admitted += admitted;
        // The largest sum of any run of milliseconds, less what comes back in it.
        let (admitted, share) = (admitted.cast_signed(), (RATE * servers / 1_000).cast_signed());
        self.over = self.over.max(0) + admitted;
        self.most_over = self.most_over.max(self.over - (RATE * servers / 5).cast_signed());
        self.over -= share;
        self.clock.advance(Duration::from_millis(1));
    }

    async fn run(mut self, demand: Demand, millis: u64) -> Outcome {
        let servers = self.servers();
        for milli in 0..millis {
            match demand {
                Demand::Twice => self.step(|_| 2).await,
                Demand::Moving => self.step(|server| 4 * u64::from((server + milli / 100) % 2 == 0)).await,
                Demand::Worst => match milli % 1_000 {
                    // Of 1, 2, 4, 8, 16 and 32 units, and one of the next.
                    0 => self.step(|_| 64).await,
                    // The quota is full again, and nothing has lapsed yet: what is left of a slice, and twenty more.
                    150 => self.step(|_| 1_049).await,
                    _ => self.step(|_| 0).await,
                },
            }
        }
        let stats: Vec<_> = self.limiters.iter().map(RedisLimiter::stats).collect();
        let trips: u64 = stats.iter().map(|stats| stats.round_trips).sum();
        let checks: u64 = stats.iter().map(|stats| stats.allowed + stats.refused).sum();
        Outcome {
            quota: RATE * servers / 5 + RATE * servers * millis / 1_000,
            admitted: self.admitted,
            most_over: self.most_over,
            trips: 1_000.0 * trips as f64 / checks as f64,
        }
    }
}

/// The bytes that Redis needs for each client, all told, as it says itself.
async fn bytes_of_client(redis: &Redis, algorithm: Algorithm, clients: u64) -> u64 {
    redis.command(&["FLUSHALL"]);
    let used = || {
        let text: String = redis::from_redis_value(redis.command(&["INFO", "memory"])).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("used_memory:")).unwrap();
        line.trim().parse::<u64>().unwrap()
    };
    let quota = Quota::per_day(1_000).with_algorithm(algorithm);
    let limiter = limiter(RedisLimiter::builder(quota), redis);
    limiter.ready().await;
    let (before, mut tasks) = (used(), JoinSet::new());
    for task in 0..64 {
        let limiter = limiter.clone();
        tasks.spawn(async move {
            for client in (task..clients).step_by(64) {
                // As many characters as an IPv6 network has.
                let client = format!("2001:db8:{:x}:{:x}::/64", 0x1000 + client / 4_096, 0x1000 + client % 4_096);
                assert!(limiter.check_n(client, 10).await.unwrap().is_allowed());
            }
        });
    }
    tasks.join_all().await;
    (used() - before) / clients
}

/// What a fleet is made of.
struct Needs {
    servers: u64,
    /// Of a server, a second.
    checks: u64,
    clients: u64,
    /// What a shard holds.
    shard_gb: u64,
}

impl Needs {
    fn read() -> Self {
        let given = |name: &str, default: u64| {
            let text = std::env::args().skip_while(|argument| argument != name).nth(1);
            text.map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} {text} is no number")))
        };
        Self {
            servers: given("--servers", 1_000),
            checks: given("--checks", 10_000),
            clients: given("--clients", 1_000_000_000),
            shard_gb: given("--shard-gb", 25),
        }
    }

    /// One limit, for half of all checks, lies on one shard; trips are the fewer the larger the slices are.
    fn of_everybody(&self, trips: f64, shard: f64) -> String {
        let trips = (self.servers * self.checks) as f64 * trips / 1_000.0;
        let most = (f64::from(LEASE.most()) * trips / (shard / 2.0)).ceil().max(2.0) as u64;
        let over = self.servers * (most - 1);
        let percent = 200.0 * over as f64 / (self.servers * self.checks) as f64;
        format!(
            "One limit for everybody, half of all those checks a second, lies on one shard. With slices of {} units that makes \
             {} trips a second, so it needs slices of {}, and can be {} units over: {percent:.0} % of what it admits in a second.\n",
            LEASE.most(),
            grouped(trips as u64),
            grouped(most),
            grouped(over),
        )
    }

    /// `bytes` for a client, `trips` of a thousand checks, and what a shard can do in a second, half of which is used.
    fn row(&self, name: &str, bytes: u64, trips: f64, shard: f64) -> [String; 5] {
        let memory = u128::from(self.clients) * u128::from(bytes);
        let trips = (self.servers * self.checks) as f64 * trips / 1_000.0;
        let by_memory = memory.div_ceil(u128::from(self.shard_gb) * 1_000_000_000) as f64;
        let by_trips = (trips / (shard / 2.0)).ceil();
        let number = |number: f64| grouped(number as u64);
        [
            name.to_owned(),
            format!("{} GB", grouped(memory.div_ceil(1_000_000_000) as u64)),
            number(trips),
            format!("{} for memory, {} for trips", number(by_memory), number(by_trips)),
            number(by_memory.max(by_trips)),
        ]
    }
}

fn main() {
    let call = Call::read();
    let report = Report::new("fleet --all-features", "scale.md", call.write && !call.test);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(tables(&report, call.test));
}

async fn tables(report: &Report, is_test: bool) {
    let redis = Redis::start();
    report.put("fleet-machine", &machine());
    let trips_a_second = speeds(report, &redis, is_test).await;
    let twice = simulations(report, &redis, is_test).await;
    needs(report, &redis, is_test, trips_a_second, twice).await;
}

/// Tells the trips a second without leases.
async fn speeds(report: &Report, redis: &Redis, is_test: bool) -> f64 {
    let lease = |most| Some(Lease::new(most, Duration::from_millis(200)));
    let ways: [(&str, Option<Lease>); 4] = [
        ("no leases", None),
        ("slices of up to 50", lease(50)),
        ("slices of up to 1,000", lease(1_000)),
        ("slices of up to 100,000", lease(100_000)),
    ];
    let mut table = Table::new(["", "checks a second", "trips of 1,000 checks"]);
    let mut rates = Vec::new();
    let time = Duration::from_millis(if is_test { 50 } else { 3_000 });
    for (name, lease) in ways {
        let prefix = format!("speed-{}", rates.len());
        let (rate, trips) = speed(redis, &prefix, lease, time).await;
        table.row([name.to_owned(), grouped(rate as u64), format!("{trips:.1}")]);
        rates.push(rate);
    }
    report.put("fleet-speed", &table);
    rates[0]
}

/// Tells the trips of a thousand checks of the largest fleet, whose demand is twice the quota.
async fn simulations(report: &Report, redis: &Redis, is_test: bool) -> f64 {
    let sizes: &[u64] = if is_test { &[2, 10] } else { &[2, 10, 100, 1_000] };
    let head = [
        "servers",
        "demand",
        "admitted, of the quota",
        "most over it in any window",
        "it may be",
        "trips of 1,000 checks",
    ];
    let mut table = Table::new(head);
    let mut twice = 0.0;
    for &servers in sizes {
        let may = servers * u64::from(LEASE.most() - 1);
        let demands =
            [(Demand::Twice, "twice the quota"), (Demand::Moving, "the same, moving"), (Demand::Worst, "the worst")];
        for (place, (demand, name)) in demands.into_iter().enumerate() {
            let fleet = Fleet::new(redis, servers, &format!("fleet-{servers}-{place}")).await;
            let outcome = fleet.run(demand, if is_test { 200 } else { 3_000 }).await;
            assert!(outcome.most_over <= may.cast_signed(), "{servers} {name}: {} over", outcome.most_over);
            if let Demand::Twice = demand {
                twice = outcome.trips;
            }
            let share = match demand {
                Demand::Worst => "-".to_owned(),
                _ => format!("{:.1} %", 100.0 * outcome.admitted as f64 / outcome.quota as f64),
            };
            let over = u64::try_from(outcome.most_over).unwrap_or(0);
            table.row([
                grouped(servers),
                name.to_owned(),
                share,
                grouped(over),
                grouped(may),
                format!("{:.1}", outcome.trips),
            ]);
        }
    }
    report.put("fleet-leases", &table);
    twice
}

async fn needs(report: &Report, redis: &Redis, is_test: bool, trips_a_second: f64, leased: f64) {
    let clients = if is_test { 1_000 } else { 100_000 };
    let mut table = Table::new(["10 units used of 1,000 a day", "bytes of a client"]);
    let mut bucket = 0;
    for &algorithm in Algorithm::ALL {
        let bytes = bytes_of_client(redis, algorithm, clients).await;
        table.row([&algorithm as &dyn Display, &bytes]);
        if algorithm == Algorithm::TokenBucket {
            bucket = bytes;
        }
    }
    report.put("fleet-bytes", &table);

    let needs = Needs::read();
    let mut table = Table::new(["token bucket", "memory", "trips a second", "shards", "so"]);
    table.row(needs.row("a limit for each client", bucket, 1_000.0, trips_a_second));
    table.row(needs.row("the same, nine of ten checks by who is refused", bucket, 100.0, trips_a_second));
    let Needs { servers, checks, clients, shard_gb } = needs;
    let [servers, checks, clients, shard] = [servers, checks, clients, trips_a_second as u64].map(grouped);
    let all = needs.of_everybody(leased, trips_a_second);
    report.put(
        "fleet-needs",
        &format!(
            "{servers} servers of {checks} checks a second each, {clients} clients, shards of {shard_gb} GB that are used by half \
             of {shard} trips a second:\n\n{table}\n{all}"
        ),
    );
}
