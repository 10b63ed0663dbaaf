//! Many servers on one limit.

use std::process::{Command, Stdio};
use std::time::Duration;

use tokio::task::JoinSet;
use tollgate::redis::{Lease, RedisLimiter, Source};
use tollgate::{Algorithm, ManualClock, Quota};

use crate::process::Redis;

const PATIENT: Duration = Duration::from_secs(60);

const PROCESSES: u32 = 4;
const CONNECTIONS: u32 = 8;

/// Of which nothing comes back while a test runs, with any algorithm.
fn yearly(limit: u64, algorithm: Algorithm) -> Quota {
    Quota::with_period(limit, Duration::from_secs(365 * 86_400)).with_algorithm(algorithm)
}

/// The part of [`together_they_admit_the_limit`] that is done by other processes.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "done by the processes of another test"]
async fn one_of_many_processes() {
    let url = std::env::var("TOLLGATE_TEST_REDIS").unwrap();
    for algorithm in Algorithm::ALL {
        let mut servers = JoinSet::new();
        for _ in 0..CONNECTIONS {
            let builder = RedisLimiter::builder(yearly(1_000, *algorithm)).deadline(PATIENT).remember(false);
            let limiter = builder.build(&url).unwrap();
            servers.spawn(async move {
                let mut admitted = 0;
                for _ in 0..100 {
                    let answer = limiter.check("everybody").await;
                    assert_eq!(answer.source(), Source::Redis);
                    admitted += u64::from(answer.is_allowed());
                }
                admitted
            });
        }
        println!("admitted {algorithm} {}", servers.join_all().await.iter().sum::<u64>());
    }
}

/// 3,200 checks by 32 connections of four processes, of which a thousand can be admitted.
#[test]
fn together_they_admit_the_limit() {
    let redis = Redis::start();
    let start = || {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["fleet::one_of_many_processes", "--exact", "--ignored", "--nocapture"]);
        command.env("TOLLGATE_TEST_REDIS", redis.url()).stdout(Stdio::piped()).spawn().unwrap()
    };
    let processes: Vec<_> = (0..PROCESSES).map(|_| start()).collect();
    let mut lines = String::new();
    for process in processes {
        let output = process.wait_with_output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{text}");
        lines.push_str(&text);
    }
    for algorithm in Algorithm::ALL {
        let mark = format!("admitted {algorithm} ");
        let counts: Vec<u64> = lines.lines().filter_map(|line| line.split(&mark).nth(1)?.trim().parse().ok()).collect();
        assert_eq!(counts.len(), PROCESSES as usize, "{lines}");
        // One more may be on its way in a leaky bucket.
        let limit = 1_000 + u64::from(*algorithm == Algorithm::LeakyBucket);
        assert_eq!(counts.iter().sum::<u64>(), limit, "{algorithm}: {counts:?}");
    }
    assert!(redis.keys().iter().all(|(_, ttl)| *ttl >= 0));
}

#[tokio::test]
async fn who_goes_on_asking_costs_at_most_two_trips_a_window() {
    let redis = Redis::start();
    for algorithm in Algorithm::ALL {
        let clock = ManualClock::at(1_800_000_000_000_000_000);
        let quota = Quota::per_minute(3).with_algorithm(*algorithm);
        let builder = RedisLimiter::builder(quota).prefix(algorithm.name()).deadline(PATIENT).clock(clock.clone());
        let limiter = builder.build(&redis.url()).unwrap();
        limiter.ready().await;
        for window in 0..3 {
            let (before, mut admitted, mut refused) = (redis.calls("evalsha"), 0, 0);
            while refused < 10_000 {
                match limiter.check("abuser").await {
                    answer if answer.is_allowed() => admitted += 1,
                    answer => {
                        assert!(answer.decision().retry_after() > Duration::ZERO);
                        refused += 1;
                    }
                }
            }
            let trips = redis.calls("evalsha") - before - admitted;
            assert!(trips <= 2, "{algorithm}: {trips} in window {window}, besides those that were admitted");
            // To the nanosecond at which it is worth while to ask again.
            let wait = limiter.check("abuser").await.decision().retry_after();
            clock.advance(wait.saturating_sub(Duration::from_nanos(1)));
            assert!(!limiter.check("abuser").await.is_allowed());
            clock.advance(Duration::from_nanos(1));
            let answer = limiter.check("abuser").await;
            assert!(answer.is_allowed() && answer.source() == Source::Redis, "{algorithm}: {answer:?}");
            clock.advance(Duration::from_secs(60));
        }
    }
}

#[tokio::test]
async fn what_is_remembered_is_forgotten_with_what_was_used() {
    let redis = Redis::start();
    let limiter =
        RedisLimiter::builder(yearly(2, Algorithm::TokenBucket)).deadline(PATIENT).build(&redis.url()).unwrap();
    for forgive in [true, false] {
        assert!(limiter.check_n("a", 2).await.unwrap().is_allowed());
        for source in [Source::Redis, Source::Remembered] {
            let refused = limiter.check("a").await;
            assert_eq!((refused.source(), refused.is_allowed()), (source, false));
            assert!(!refused.decision().is_blocked());
        }
        // Of another cost nothing is known.
        assert_eq!(limiter.check_n("a", 2).await.unwrap().source(), Source::Redis);
        assert!(if forgive { limiter.reset("a").await } else { limiter.refund("a", 1).await });
        assert!(limiter.check("a").await.is_allowed());
        assert!(limiter.reset("a").await);
    }
}

/// A refusal that was on its way when something was given back is not remembered.
#[tokio::test]
async fn what_is_given_back_during_a_check_is_not_refused_after_it() {
    let redis = Redis::start();
    let quota = yearly(1, Algorithm::TokenBucket);
    let limiter = RedisLimiter::builder(quota).deadline(PATIENT).build(&redis.url()).unwrap();
    limiter.ready().await;
    for client in 0..10 {
        assert!(limiter.check(client).await.is_allowed());
        let (refused, is_done) = if client % 2 == 0 {
            tokio::join!(limiter.check(client), limiter.refund(client, 1))
        } else {
            tokio::join!(limiter.check(client), limiter.reset(client))
        };
        assert_eq!((refused.is_allowed(), is_done), (false, true));
        assert!(limiter.check(client).await.is_allowed());
    }
}

/// Nothing of a slice lies unspent while this server refuses.
#[tokio::test(flavor = "multi_thread")]
async fn a_slice_is_spent_before_refusals_are_remembered() {
    let redis = Redis::start();
    for run in 0..5 {
        let builder = RedisLimiter::builder(yearly(100, Algorithm::FixedWindow)).prefix(format!("run-{run}"));
        let lease = Lease::new(64, Duration::from_secs(60));
        let limiter = builder.deadline(PATIENT).lease(lease).build(&redis.url()).unwrap();
        let mut checks = JoinSet::new();
        for _ in 0..400 {
            let limiter = limiter.clone();
            checks.spawn(async move { u64::from(limiter.check("a").await.is_allowed()) });
        }
        let mut admitted: u64 = checks.join_all().await.into_iter().sum();
        for _ in 0..200 {
            admitted += u64::from(limiter.check("a").await.is_allowed());
        }
        assert_eq!(admitted, 100);
    }
}

/// Eight servers with leases, which ask for many keys at once: none is admitted more than the limit, and of what is left, no
/// more lies with them than may.
#[tokio::test(flavor = "multi_thread")]
async fn leases_admit_no_more_than_the_limit() {
    let redis = Redis::start();
    let (limit, servers, most) = (3_000, 8, 20);
    for algorithm in [Algorithm::TokenBucket, Algorithm::FixedWindow, Algorithm::SlidingWindowCounter] {
        let mut tasks = JoinSet::new();
        for _ in 0..servers {
            let lease = Lease::new(most, Duration::from_secs(3_600));
            let builder = RedisLimiter::builder(yearly(limit, algorithm)).prefix(algorithm.name()).deadline(PATIENT);
            let limiter = builder.lease(lease).build(&redis.url()).unwrap();
            for _ in 0..4 {
                let limiter = limiter.clone();
                tasks.spawn(async move {
                    let (mut admitted, mut leased) = (0, 0);
                    for _ in 0..1_000 {
                        let answer = limiter.check("everybody").await;
                        admitted += u64::from(answer.is_allowed());
                        leased += u64::from(answer.source() == Source::Leased);
                        tokio::task::yield_now().await;
                    }
                    (admitted, leased)
                });
            }
        }
        let counts = tasks.join_all().await;
        let admitted: u64 = counts.iter().map(|(admitted, _)| admitted).sum();
        let leased: u64 = counts.iter().map(|(_, leased)| leased).sum();
        println!("{algorithm}: {admitted} of {limit} admitted, {leased} of them without a trip");
        assert!(admitted <= limit, "{admitted}");
        assert!(admitted >= limit - servers * u64::from(most - 1), "{admitted}");
        assert!(leased > limit / 2, "{leased}");
    }
}

/// Who comes while another asks for a slice waits for what that brings.
#[tokio::test]
async fn one_check_at_a_time_asks_for_a_slice() {
    let redis = Redis::start();
    let builder = RedisLimiter::builder(yearly(100_000, Algorithm::TokenBucket)).deadline(PATIENT);
    let limiter = builder.lease(Lease::new(1_000, Duration::from_secs(3_600))).build(&redis.url()).unwrap();
    limiter.ready().await;
    let mut trips = Vec::new();
    for _ in 0..5 {
        let (before, mut checks) = (limiter.stats().round_trips, JoinSet::new());
        for _ in 0..50 {
            let limiter = limiter.clone();
            checks.spawn(async move { limiter.check("everybody").await.is_allowed() });
        }
        assert!(checks.join_all().await.into_iter().all(|is_allowed| is_allowed));
        trips.push(limiter.stats().round_trips - before);
    }
    // Slices begin small, and whoever has waited three times asks alone.
    assert!(trips[0] > 3 && trips[3..].iter().all(|&trips| trips <= 2), "{trips:?}");
    // What Redis has counted is what was admitted and what is left of the slice.
    let left = 100_000 - limiter.peek("everybody").await.decision().remaining();
    assert!((250..250 + 1_000).contains(&left), "{left}");
}

/// A slice lapses, and with a fixed window even before that.
#[tokio::test]
async fn slices_lapse() {
    let redis = Redis::start();
    let clock = ManualClock::at(600_000_000_000);
    let build = |algorithm: Algorithm| {
        let quota = Quota::per_minute(100).with_algorithm(algorithm);
        let builder = RedisLimiter::builder(quota).prefix(algorithm.name()).deadline(PATIENT).clock(clock.clone());
        builder.lease(Lease::new(10, Duration::from_secs(120))).build(&redis.url()).unwrap()
    };
    let (window, bucket) = (build(Algorithm::FixedWindow), build(Algorithm::TokenBucket));
    for limiter in [&window, &bucket] {
        // Slices of 1, 2, 4 and 8 units, and one of the last.
        for _ in 0..8 {
            assert!(limiter.check("a").await.is_allowed());
        }
        assert_eq!(limiter.stats().leased, 4);
    }
    clock.advance(Duration::from_secs(60));
    assert_eq!(window.check("a").await.source(), Source::Redis, "what is left of the window before counts in that");
    assert_eq!(bucket.check("a").await.source(), Source::Leased);
    clock.advance(Duration::from_secs(70));
    assert_eq!(bucket.check("a").await.source(), Source::Redis);
}
