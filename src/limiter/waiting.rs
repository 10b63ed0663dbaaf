//! Waiting for one's turn.

mod moves;
mod place;
mod room;

use std::borrow::Borrow;
use std::hash::{BuildHasher, Hash};
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use super::Limiter;
use crate::clock::Clock;
use crate::decision::Decision;
use crate::error::WaitError;
use crate::table::Event;
use crate::terms::FIRST;

pub use place::Reservation;
use place::{Next, Place};
pub(super) use room::Room;
use room::Spot;

impl<K: ?Sized, C: Clock, S: BuildHasher> Limiter<K, C, S> {
    /// Books a place in time for `cost` units of `key`, and says how long it is until then: first come, first served.
    ///
    /// The units are charged at once, for the first time at which they can be admitted after all that was charged before;
    /// so nobody who comes later, by a check or by waiting, gets in between, and nobody starves. See [`Reservation`] for how
    /// to use the place or to give it back. It is booked with the limiter's own quotas, as a check would be
    /// decided.
    ///
    /// Takes a lock that only those who wait share, and time in proportion to those who wait for the key.
    ///
    /// With several quotas its time is the latest of all; see [`Reservation::wait`]. What does not fit into a window waits
    /// for the next, and what is left in the window goes unused. A [`block`](Self::block) does not touch places that are
    /// booked, but lets nobody go who [`wait`](Self::wait)s; [`reset`](Self::reset) lets those who wait begin anew. Once a
    /// [new quota](Self::set_quota) is lower than its cost, a place has lost its turn: it comes, behind all others, when there
    /// is room for it again.
    ///
    /// # Errors
    ///
    /// A [`WaitError`], at once and without a trace, if the cost is more than a quota can ever give, if the key is blocked
    /// or the table full, if too many are waiting already, or if the time is beyond what can be kept: the limiter's
    /// [horizon](crate::Builder::horizon), or of a [sliding-window log](crate::Algorithm::SlidingWindowLog) (with the default
    /// horizon) eight periods.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Limiter, ManualClock, Quota};
    ///
    /// let clock = ManualClock::new();
    /// let limiter = Limiter::<str>::builder(Quota::per_second(1)).clock(clock.clone()).build()?;
    /// let first = limiter.reserve("alice", 1)?;
    /// let second = limiter.reserve("alice", 1)?;
    /// let third = limiter.reserve("alice", 1)?;
    /// assert_eq!((first.wait(), second.wait(), third.wait()), (Duration::ZERO, Duration::from_secs(1), Duration::from_secs(2)));
    ///
    /// drop(second);
    /// assert_eq!(third.wait(), Duration::from_secs(1), "those behind move up");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn reserve<Q>(&self, key: &Q, cost: u64) -> Result<Reservation<'_, K, C, S>, WaitError>
    where
        K: Borrow<Q>,
        Q: Hash + ?Sized,
    {
        self.reserve_within(key, cost, Duration::MAX)
    }

    /// Books a place in time that is at most `longest` away; see [`reserve`](Self::reserve).
    ///
    /// # Errors
    ///
    /// As [`reserve`](Self::reserve), and if the wait would be longer.
    pub fn reserve_within<Q>(
        &self,
        key: &Q,
        cost: u64,
        longest: Duration,
    ) -> Result<Reservation<'_, K, C, S>, WaitError>
    where
        K: Borrow<Q>,
        Q: Hash + ?Sized,
    {
        let place = self.book(self.hasher.hash_one(key), cost, longest)?;
        Ok(Reservation { place })
    }

    /// Holds the thread until one unit of `key` is admitted, and takes it: first come, first served, in the pace of the
    /// quota.
    ///
    /// The unit is taken by then: a check would take another.
    ///
    /// # Errors
    ///
    /// As [`reserve`](Self::reserve); also later, if what came meanwhile makes it so.
    ///
    /// ```
    /// use tollgate::{Limiter, Quota};
    ///
    /// let limiter = Limiter::<str>::builder(Quota::per_second(1_000).with_burst(1)).build()?;
    /// for _ in 0..3 {
    ///     limiter.wait("alice")?;
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn wait<Q>(&self, key: &Q) -> Result<Admitted, WaitError>
    where
        K: Borrow<Q>,
        Q: Hash + ?Sized,
    {
        self.wait_n(key, 1, Duration::MAX)
    }

    /// Holds the thread until `cost` units of `key` are admitted, but no longer than `longest`; see [`wait`](Self::wait).
    ///
    /// # Errors
    ///
    /// As [`wait`](Self::wait), and at once if it would take longer.
    pub fn wait_n<Q>(&self, key: &Q, cost: u64, longest: Duration) -> Result<Admitted, WaitError>
    where
        K: Borrow<Q>,
        Q: Hash + ?Sized,
    {
        let mut place = self.book(self.hasher.hash_one(key), cost, longest)?;
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        let booked = Instant::now();
        loop {
            match place.look(&waker, booked.elapsed())? {
                Next::Go => return Ok(Admitted { decision: place.go() }),
                Next::WakeAfter(wait) => thread::park_timeout(wait.saturating_sub(booked.elapsed())),
                Next::Woken => thread::park(),
            }
        }
    }

    /// Completes when one unit of `key` is admitted, and takes it: first come, first served, in the pace of the quota.
    ///
    /// The unit is taken by then: a check would take another. A future that is dropped
    /// before it is done takes nothing, and those behind it move up.
    ///
    /// Timers are those of tokio, by which also a runtime with paused time is served; a [`ManualClock`](crate::ManualClock)
    /// wakes by itself.
    ///
    /// # Errors
    ///
    /// As [`reserve`](Self::reserve).
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build()?.block_on(async {
    /// use tollgate::{Limiter, Quota};
    ///
    /// let limiter = Limiter::<str>::builder(Quota::per_minute(1)).build()?;
    /// let before = tokio::time::Instant::now();
    /// limiter.until_ready("alice").await?;
    /// limiter.until_ready("alice").await?;
    /// assert!(before.elapsed().as_secs_f64() > 59.9);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[cfg(feature = "tokio")]
    pub async fn until_ready<Q>(&self, key: &Q) -> Result<Admitted, WaitError>
    where
        K: Borrow<Q>,
        Q: Hash + ?Sized,
    {
        self.until_ready_n(key, 1, Duration::MAX).await
    }

    /// Completes when one unit of `key` is admitted, but within `timeout`; see [`until_ready`](Self::until_ready).
    ///
    /// # Errors
    ///
    /// As [`until_ready`](Self::until_ready), and at once if it would take longer.
    #[cfg(feature = "tokio")]
    pub async fn until_ready_timeout<Q>(&self, key: &Q, timeout: Duration) -> Result<Admitted, WaitError>
    where
        K: Borrow<Q>,
        Q: Hash + ?Sized,
    {
        self.until_ready_n(key, 1, timeout).await
    }

    /// Completes when `cost` units of `key` are admitted, but within `timeout`; see [`until_ready`](Self::until_ready).
    ///
    /// # Errors
    ///
    /// As [`until_ready`](Self::until_ready), and at once if it would take longer.
    #[cfg(feature = "tokio")]
    pub async fn until_ready_n<Q>(&self, key: &Q, cost: u64, timeout: Duration) -> Result<Admitted, WaitError>
    where
        K: Borrow<Q>,
        Q: Hash + ?Sized,
    {
        use std::task::Poll;
        use tokio::time::{Instant, sleep_until};

        let mut place = self.book(self.hasher.hash_one(key), cost, timeout)?;
        let (booked, mut sleep) = (Instant::now(), None);
        std::future::poll_fn(move |context| {
            loop {
                match place.look(context.waker(), booked.elapsed())? {
                    Next::Go => return Poll::Ready(Ok(Admitted { decision: place.go() })),
                    Next::Woken => return Poll::Pending,
                    Next::WakeAfter(wait) => {
                        // A wait beyond what a timer can keep is looked at again after a year.
                        let deadline = booked.checked_add(wait).unwrap_or_else(|| Instant::now() + YEAR);
                        let sleep = sleep.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
                        sleep.as_mut().reset(deadline);
                        if sleep.as_mut().poll(context).is_pending() {
                            return Poll::Pending;
                        }
                    }
                }
            }
        })
        .await
    }

    /// How many are waiting, or have not yet noticed that their turn has come; and how many places are to come that were
    /// [kept](Reservation::keep). Takes time in proportion to them.
    #[must_use]
    pub fn waiting(&self) -> usize {
        let now = self.now();
        let mut queues = self.room.lock();
        self.refresh_all(&mut queues, now);
        queues.len()
    }

    /// Charges all quotas for a time to come, and enters the queue.
    fn book(&self, id: u64, cost: u64, longest: Duration) -> Result<Place<'_, K, C, S>, WaitError> {
        let now = self.now();
        let booked = self.try_book(id, cost, longest, now);
        match &booked {
            Ok(_) => (),
            Err(WaitError::Refused(decision)) => self.count(id, decision, now),
            Err(error) => {
                self.first.shards().count(Event::Refused);
                if !matches!(error, WaitError::Cost(_)) {
                    self.penalties.refused(id, now);
                }
            }
        }
        booked
    }

    fn try_book(&self, id: u64, cost: u64, longest: Duration, now: u64) -> Result<Place<'_, K, C, S>, WaitError> {
        self.possible(FIRST, cost)?;
        if let Some(refusal) = self.blocked(id, cost, now) {
            return Err(WaitError::Refused(refusal));
        }
        let ticket = if cost == 0 { place::NOBODY } else { self.enter(id, cost, longest, now)? };
        let until = now.saturating_add(u64::try_from(longest.as_nanos()).unwrap_or(u64::MAX));
        Ok(Place::new(self, id, ticket, cost, now, until))
    }

    /// Enters the queue, and tells the ticket.
    fn enter(&self, id: u64, cost: u64, longest: Duration, now: u64) -> Result<u64, WaitError> {
        let mut queues = self.room.lock();
        self.room.enter();
        self.refresh(&mut queues, id, now);
        let entered = self.book_all(id, cost, now).and_then(|spots| {
            let wait = self.wait_for(&spots, now);
            let error = if self.is_never(wait, now) {
                WaitError::TooLong { wait: Duration::MAX }
            } else if u128::from(wait) > longest.as_nanos() {
                WaitError::TooLong { wait: Duration::from_nanos(wait) }
            } else if wait > 0 && !self.has_room(&mut queues, id, now) {
                WaitError::TooManyWaiting { wait: Duration::from_nanos(wait) }
            } else {
                return Ok(queues.push(id, cost, spots, now + wait, wait > 0));
            };
            self.give_back(&spots, id, cost, now);
            Err(error)
        });
        entered.inspect_err(|_| self.room.leave(1))
    }

    /// Whether one more may wait for this key.
    fn has_room(&self, queues: &mut room::Queues, id: u64, now: u64) -> bool {
        self.room.has_room(queues, id) || {
            self.refresh_all(queues, now);
            self.room.has_room(queues, id)
        }
    }

    /// Whether a time lies beyond the end of the limiter's time, where it stands still.
    fn is_never(&self, wait: u64, now: u64) -> bool {
        wait > 0 && now.saturating_add(wait) > self.timeline.end()
    }

    /// Books a place with each quota, or with none.
    fn book_all(&self, id: u64, cost: u64, now: u64) -> Result<Vec<Spot>, WaitError> {
        let mut spots = Vec::with_capacity(self.more.len() + 1);
        for ledger in self.ledgers() {
            match ledger.book(FIRST, id, cost, now) {
                Ok(place) => spots.push(Spot { place, early: false }),
                Err(refusal) => {
                    self.give_back(&spots, id, cost, now);
                    let too_long = WaitError::TooLong { wait: Duration::MAX };
                    return Err(refusal.map_or(too_long, WaitError::Refused));
                }
            }
        }
        self.mark_early(&mut spots, now);
        Ok(spots)
    }

    /// Gives up places behind which nobody stands.
    fn give_back(&self, spots: &[Spot], id: u64, cost: u64, now: u64) {
        for (ledger, spot) in self.ledgers().zip(spots) {
            ledger.replay(id, Some((&spot.place, cost)), &mut [], now);
        }
    }
}

#[cfg(feature = "tokio")]
const YEAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// One that has waited and is admitted: what it waited for is taken.
#[derive(Clone, Copy, Debug)]
pub struct Admitted {
    decision: Decision,
}

impl Admitted {
    /// The decision, which allows it, and tells what is left.
    pub fn decision(&self) -> Decision {
        self.decision
    }
}

/// Wakes a thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
