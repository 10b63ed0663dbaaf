//! Waiting as a future: in the virtual time of tokio's paused clock, and of a manual clock.

#![cfg(all(not(loom), feature = "tokio"))]
#![allow(clippy::unwrap_used)]

#[path = "support/turns.rs"]
mod turns;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use proptest::prelude::*;
use tokio::runtime::{Builder, Runtime};
use tokio::time::{Instant, advance};
use tollgate::{Algorithm, Limiter, ManualClock, Quota, WaitError};
use turns::turns;

fn paused() -> Runtime {
    Builder::new_current_thread().enable_time().start_paused(true).build().unwrap()
}

/// E06: the times are distinct, one a second, in the order in which they came. With the default clock, too, which does not
/// know that the runtime's time is paused.
#[test]
fn a_hundred_leave_one_by_one() {
    paused().block_on(async {
        let limiter = Arc::new(Limiter::<str>::builder(Quota::per_second(1)).build().unwrap());
        let (begin, left) = (Instant::now(), Arc::new(Mutex::new(Vec::new())));
        let tasks = (0..100).map(|number| {
            let (limiter, left) = (Arc::clone(&limiter), Arc::clone(&left));
            tokio::spawn(async move {
                assert!(limiter.until_ready("key").await.unwrap().decision().is_allowed());
                left.lock().unwrap().push((number, begin.elapsed().as_secs_f64().round() as i32));
            })
        });
        for task in tasks.collect::<Vec<_>>() {
            task.await.unwrap();
        }
        assert_eq!(*left.lock().unwrap(), (0..100).map(|number| (number, number)).collect::<Vec<_>>());
    });
}

/// The pace of each of several quotas is kept, too, if the limiter's clock does not know that the runtime's time moves.
#[test]
fn several_quotas_keep_their_pace_by_the_timer_alone() {
    paused().block_on(async {
        let window = Quota::per_minute(3).with_algorithm(Algorithm::FixedWindow);
        let limiter = Arc::new(Limiter::<str>::builder(Quota::per_second(1)).and(window).build().unwrap());
        limiter.charge("key", 3);
        let (begin, left) = (Instant::now(), Arc::new(Mutex::new(Vec::new())));
        let tasks = (0..6).map(|_| {
            let (limiter, left) = (Arc::clone(&limiter), Arc::clone(&left));
            tokio::spawn(async move {
                limiter.until_ready("key").await.unwrap();
                left.lock().unwrap().push(begin.elapsed());
            })
        });
        for task in tasks.collect::<Vec<_>>() {
            task.await.unwrap();
        }
        let left = left.lock().unwrap();
        // The two clocks are not read at the very same moment.
        let second = Duration::from_millis(990);
        assert!(left.windows(2).all(|pair| pair[1] >= pair[0] + second), "{left:?}");
        assert!(left[3] >= left[0] + Duration::from_millis(59_900), "{left:?}");
    });
}

/// A waker that asks the same limiter while it is dropped.
struct Curious(Arc<Limiter<str, ManualClock>>);

impl std::task::Wake for Curious {
    fn wake(self: Arc<Self>) {}
}

impl Drop for Curious {
    fn drop(&mut self) {
        let _ = (self.0.waiting(), self.0.reserve("key", 1));
    }
}

#[test]
fn wakers_may_do_anything_while_they_are_dropped() {
    let clock = ManualClock::new();
    let limiter = Arc::new(Limiter::<str>::builder(Quota::per_second(1)).clock(clock.clone()).build().unwrap());
    assert!(limiter.check("key").is_allowed());
    let mut waits = Box::pin(limiter.until_ready("key"));
    let mut gives_up = Box::pin(limiter.until_ready("key"));
    for _ in 0..2 {
        let waker = std::task::Waker::from(Arc::new(Curious(Arc::clone(&limiter))));
        let mut context = std::task::Context::from_waker(&waker);
        assert!(waits.as_mut().poll(&mut context).is_pending());
        assert!(gives_up.as_mut().poll(&mut context).is_pending());
    }
    drop(gives_up);
    clock.set(1_000_000_000);
    assert!(poll_once(waits.as_mut()).is_some());
    assert_eq!(limiter.waiting(), 0);
}

/// B13
#[test]
fn virtual_time_is_enough() {
    let real = std::time::Instant::now();
    paused().block_on(async {
        let limiter = Arc::new(Limiter::<str>::builder(Quota::per_minute(1)).build().unwrap());
        assert!(limiter.check("key").is_allowed());
        let shared = Arc::clone(&limiter);
        let task = tokio::spawn(async move { shared.until_ready("key").await });
        tokio::task::yield_now().await;
        assert_eq!(limiter.waiting(), 1);
        advance(Duration::from_secs(59)).await;
        assert!(!task.is_finished());
        advance(Duration::from_secs(1)).await;
        assert!(task.await.unwrap().unwrap().decision().is_allowed());
    });
    assert!(real.elapsed() < Duration::from_secs(30), "a minute of virtual time took a while: {:?}", real.elapsed());
}

/// A manual clock wakes those who wait on it, whatever the runtime's time does.
#[test]
fn a_manual_clock_wakes() {
    Builder::new_current_thread().build().unwrap().block_on(async {
        let clock = ManualClock::new();
        let limiter = Arc::new(Limiter::<str>::builder(Quota::per_minute(1)).clock(clock.clone()).build().unwrap());
        assert!(limiter.until_ready("key").await.unwrap().decision().is_allowed());
        let shared = Arc::clone(&limiter);
        let task = tokio::spawn(async move { shared.until_ready("key").await });
        tokio::task::yield_now().await;
        clock.advance(Duration::from_nanos(59_999_999_999));
        tokio::task::yield_now().await;
        assert!(!task.is_finished());
        clock.advance(Duration::from_nanos(1));
        assert!(task.await.unwrap().unwrap().decision().is_allowed());
        assert!(!limiter.check("key").is_allowed(), "F07: the unit is taken");
    });
}

/// F01, F02, F04: a future that is dropped takes nothing: before its first poll, while it waits, or when its turn has come
/// and it has not noticed.
#[test]
fn a_dropped_future_takes_nothing() {
    paused().block_on(async {
        for algorithm in Algorithm::ALL {
            let clock = ManualClock::new();
            let quota = Quota::per_second(2).with_algorithm(*algorithm);
            let limiter = Limiter::<str>::builder(quota).clock(clock.clone()).build().unwrap();
            drop(limiter.until_ready("key"));
            assert_eq!(limiter.peek("key").reset_after(), Duration::ZERO);

            while limiter.check("key").is_allowed() {}
            let before = limiter.peek("key").retry_after();
            let mut waits = Box::pin(limiter.until_ready("key"));
            assert!(poll_once(waits.as_mut()).is_none());
            assert_eq!(limiter.waiting(), 1);
            drop(waits);
            assert_eq!((limiter.waiting(), limiter.peek("key").retry_after()), (0, before), "{algorithm}");

            let mut waits = Box::pin(limiter.until_ready("key"));
            assert!(poll_once(waits.as_mut()).is_none());
            clock.advance(before);
            drop(waits);
            assert!(limiter.check("key").is_allowed(), "{algorithm}");
        }
    });
}

/// Polls once.
fn poll_once<F: Future>(future: std::pin::Pin<&mut F>) -> Option<F::Output> {
    match future.poll(&mut std::task::Context::from_waker(std::task::Waker::noop())) {
        std::task::Poll::Ready(output) => Some(output),
        std::task::Poll::Pending => None,
    }
}

#[test]
fn those_behind_are_woken_when_one_gives_up() {
    paused().block_on(async {
        let limiter = Arc::new(Limiter::<str>::builder(Quota::per_minute(1)).build().unwrap());
        assert!(limiter.check("key").is_allowed());
        let begin = Instant::now();
        let spawn = || {
            let limiter = Arc::clone(&limiter);
            tokio::spawn(async move {
                limiter.until_ready("key").await.unwrap();
                begin.elapsed().as_secs_f64().round() as i32
            })
        };
        let (first, second, third) = (spawn(), spawn(), spawn());
        tokio::task::yield_now().await;
        advance(Duration::from_secs(30)).await;
        assert_eq!(limiter.waiting(), 3);
        first.abort();
        assert_eq!((second.await.unwrap(), third.await.unwrap()), (60, 120));
    });
}

#[test]
fn a_timeout_is_told_at_once_and_leaves_no_trace() {
    paused().block_on(async {
        let limiter = Limiter::<str>::builder(Quota::per_minute(1)).clock(ManualClock::new()).build().unwrap();
        let begin = Instant::now();
        assert!(limiter.until_ready_timeout("key", Duration::ZERO).await.is_ok());
        let error = limiter.until_ready_timeout("key", Duration::from_secs(59)).await.unwrap_err();
        assert!(matches!(error, WaitError::TooLong { wait } if wait == Duration::from_secs(60)));
        assert!(matches!(limiter.until_ready_n("key", 2, Duration::MAX).await, Err(WaitError::Cost(_))));
        assert_eq!(begin.elapsed(), Duration::ZERO);
        assert_eq!(limiter.peek("key").retry_after(), Duration::from_secs(60));
    });
}

/// A quota that becomes slower lets those who wait go later, or not at all if that is too late for them.
#[test]
fn a_new_quota_moves_those_who_wait() {
    paused().block_on(async {
        let clock = ManualClock::new();
        let limiter = Arc::new(Limiter::<str>::builder(Quota::per_minute(1)).clock(clock.clone()).build().unwrap());
        assert!(limiter.check("key").is_allowed());
        let patient = Arc::clone(&limiter);
        let patient = tokio::spawn(async move { patient.until_ready("key").await });
        let hasty = Arc::clone(&limiter);
        let hasty = tokio::spawn(async move { hasty.until_ready_timeout("key", Duration::from_secs(120)).await });
        tokio::task::yield_now().await;
        limiter.set_quota(&Quota::per_hour(1)).unwrap();
        assert!(matches!(hasty.await.unwrap(), Err(WaitError::TooLong { wait }) if wait == Duration::from_secs(7_200)));
        clock.advance(Duration::from_secs(1_800));
        tokio::task::yield_now().await;
        assert!(!patient.is_finished());
        limiter.set_quota(&Quota::per_second(1)).unwrap();
        tokio::task::yield_now().await;
        clock.advance(Duration::from_millis(500));
        assert!(patient.await.unwrap().unwrap().decision().is_allowed());
    });
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Ask(u64),
    Wait(u64),
    Drop(prop::sample::Index),
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1..4_u64).prop_map(Step::Ask),
        3 => (0..2_500_u64).prop_map(Step::Wait),
        3 => any::<prop::sample::Index>().prop_map(Step::Drop),
    ]
}

/// Of a bucket of 3 units, one a second, in milliseconds.
fn times(came: &[(u64, u64)]) -> (Vec<u64>, u64) {
    turns(1_000, 3, came)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// Futures that are dropped while they wait, or when their turn has come and they have not noticed, leave everything as
    /// if they had never asked; the others complete at their time, and not before.
    #[test]
    fn a_future_completes_at_its_time_or_leaves_no_trace(steps in prop::collection::vec(any_step(), 1..60)) {
        let clock = ManualClock::new();
        let limiter = Limiter::<str>::builder(Quota::per_second(1).with_burst(3)).clock(clock.clone()).build().unwrap();
        let (mut now, mut came, mut futures) = (0, Vec::new(), Vec::new());
        for step in steps {
            match step {
                Step::Ask(cost) => {
                    came.push((now, cost));
                    futures.push(Some(Box::pin(limiter.until_ready_n("key", cost, Duration::MAX))));
                }
                Step::Wait(ms) => {
                    now += ms;
                    clock.set(now * 1_000_000);
                }
                Step::Drop(which) => {
                    let (times, _) = times(&came);
                    // One whose time is over, and after whom others came, is given back in part only.
                    let open = (0..futures.len())
                        .filter(|&index| futures[index].is_some())
                        .filter(|&index| times[index] >= now || index + 1 == came.len());
                    let open = open.collect::<Vec<_>>();
                    if !open.is_empty() {
                        let index = open[which.index(open.len())];
                        futures.remove(index);
                        came.remove(index);
                    }
                    // Others are not polled yet.
                    continue;
                }
            }
            let (times, tat) = times(&came);
            for (future, time) in futures.iter_mut().zip(times) {
                if let Some(waiting) = future {
                    let done = poll_once(waiting.as_mut()).is_some();
                    prop_assert_eq!(done, time <= now);
                    if done {
                        *future = None;
                    }
                }
            }
            prop_assert_eq!(limiter.peek("key").reset_after().as_millis(), u128::from(tat.saturating_sub(now)));
        }
        drop(futures);
        prop_assert_eq!(limiter.waiting(), 0);
    }
}
