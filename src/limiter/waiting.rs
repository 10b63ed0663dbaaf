//! Waiting for one's turn: places in time, and those who wait for theirs.

mod room;

use std::borrow::Borrow;
use std::fmt;
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

pub(super) use room::Room;
use room::{Places, Queues};

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
    /// With several quotas its time is the latest of all; each of them has charged it as of its own. (Those who
    /// [`wait`](Self::wait) also keep the pace of a quota that would have let them go earlier.)
    ///
    /// A cost that is more than is left in a window waits for units of this window and of the next.
    ///
    /// # Errors
    ///
    /// A [`WaitError`], at once and without a trace, if the cost is more than a quota can ever give, if the key is blocked
    /// or the table full, or if too many are waiting already.
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
    /// As [`reserve`](Self::reserve).
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
        let mut started = None;
        loop {
            match place.look(&waker, &mut started, Instant::now(), Instant::checked_add)? {
                Next::Go => return Ok(Admitted { decision: place.go() }),
                Next::WakeAt(deadline) => thread::park_timeout(deadline.saturating_duration_since(Instant::now())),
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
        let (mut started, mut sleep) = (None, None);
        std::future::poll_fn(move |context| {
            loop {
                match place.look(context.waker(), &mut started, Instant::now(), Instant::checked_add)? {
                    Next::Go => return Poll::Ready(Ok(Admitted { decision: place.go() })),
                    Next::Woken => return Poll::Pending,
                    Next::WakeAt(deadline) => {
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

    /// How many are waiting, or have not yet noticed that their turn has come.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.room.len()
    }

    /// Charges all quotas for a time to come, and enters the queue.
    fn book(&self, id: u64, cost: u64, longest: Duration) -> Result<Place<'_, K, C, S>, WaitError> {
        let booked = self.try_book(id, cost, longest);
        if booked.is_err() {
            self.first.shards().count(Event::Refused);
        }
        booked
    }

    fn try_book(&self, id: u64, cost: u64, longest: Duration) -> Result<Place<'_, K, C, S>, WaitError> {
        self.possible(FIRST, cost)?;
        let now = self.now();
        if let Some(refusal) = self.blocked(id, cost, now) {
            return Err(WaitError::Refused(refusal));
        }
        let mut queues = self.room.lock();
        let places = self.book_all(id, cost, now)?;
        let wait = self.wait_for(&places, now);
        let is_late = u128::from(wait) > longest.as_nanos();
        if is_late || wait > 0 && !self.room.has_room(&queues, id) {
            self.give_back(&places, id, cost, now);
            let wait = Duration::from_nanos(wait);
            return Err(if is_late { WaitError::TooLong { wait } } else { WaitError::TooManyWaiting { wait } });
        }
        let ticket = queues.enter(id, cost, places, wait > 0);
        let until = now.saturating_add(u64::try_from(longest.as_nanos()).unwrap_or(u64::MAX));
        Ok(Place { limiter: self, id, ticket, cost, until, open: true })
    }

    /// Books a place with each quota, or with none.
    fn book_all(&self, id: u64, cost: u64, now: u64) -> Result<Places, WaitError> {
        let mut places = Vec::with_capacity(self.more.len() + 1);
        for ledger in self.ledgers() {
            if cost == 0 {
                places.push((0, false));
                continue;
            }
            match ledger.book(FIRST, id, cost, now) {
                Ok(place) => places.push((place, false)),
                Err(refusal) => {
                    self.give_back(&places, id, cost, now);
                    let too_long = WaitError::TooLong { wait: Duration::MAX };
                    return Err(refusal.map_or(too_long, WaitError::Refused));
                }
            }
        }
        let wait = self.wait_for(&places, now);
        for (ledger, (place, early)) in self.ledgers().zip(&mut places) {
            *early = ledger.wait(*place, now) < wait;
        }
        Ok(places.into_boxed_slice())
    }

    /// Books anew those places that were booked for an earlier time than the one that has come now: what one quota held
    /// back, another is not to let go all at once.
    fn catch_up(&self, queues: &mut Queues, id: u64, now: u64) {
        if self.more.is_empty() {
            return;
        }
        for entry in queues.all(id) {
            if self.wait_for(&entry.places, now) > 0 {
                continue;
            }
            for (ledger, (place, early)) in self.ledgers().zip(&mut entry.places) {
                if std::mem::take(early) {
                    ledger.give_up(id, *place, entry.cost, now);
                    // It is admitted by the old place if there is no room for a new one any more.
                    *place = ledger.book(FIRST, id, entry.cost, now).unwrap_or(*place);
                }
            }
        }
    }

    fn give_back(&self, places: &[(u64, bool)], id: u64, cost: u64, now: u64) {
        for (ledger, (place, _)) in self.ledgers().zip(places) {
            ledger.give_up(id, *place, cost, now);
        }
    }

    /// The nanoseconds until the time of the latest of the places.
    fn wait_for(&self, places: &[(u64, bool)], now: u64) -> u64 {
        self.ledgers().zip(places).map(|(ledger, (place, _))| ledger.wait(*place, now)).max().unwrap_or(0)
    }
}

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

/// A place in time, see [`Limiter::reserve`].
///
/// It is used by letting its time come: wait for as long as [`wait`](Self::wait) says, do what it was for, and drop it.
/// Dropped before its time it is given back, and those behind it move up. [`keep`](Self::keep) uses it in any case,
/// [`cancel`](Self::cancel) gives it back in any case.
#[must_use = "a reservation that is dropped before its time is given back"]
pub struct Reservation<'a, K: ?Sized, C: Clock, S: BuildHasher> {
    place: Place<'a, K, C, S>,
}

impl<K: ?Sized, C: Clock, S: BuildHasher> Reservation<'_, K, C, S> {
    /// How long it is from now until its time; zero from then on. It becomes less if one who came before gives up, and
    /// changes with the quota.
    #[must_use]
    pub fn wait(&self) -> Duration {
        let now = self.place.limiter.now();
        Duration::from_nanos(self.place.wait(now))
    }

    /// The units that it is for.
    #[must_use]
    pub fn cost(&self) -> u64 {
        self.place.cost
    }

    /// Uses the place, whether its time has come or not.
    pub fn keep(mut self) {
        self.place.leave();
    }

    /// Gives the place back, whether its time has come or not. What would have come back of it by now anyway is not given
    /// back once more.
    pub fn cancel(mut self) {
        self.place.give_up();
    }
}

impl<K: ?Sized, C: Clock, S: BuildHasher> Drop for Reservation<'_, K, C, S> {
    fn drop(&mut self) {
        // Otherwise the place gives itself back.
        if self.wait().is_zero() {
            self.place.leave();
        }
    }
}

impl<K: ?Sized, C: Clock, S: BuildHasher> fmt::Debug for Reservation<'_, K, C, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation").field("cost", &self.cost()).field("wait", &self.wait()).finish()
    }
}

/// A place in the queue, which is given back unless it is used.
struct Place<'a, K: ?Sized, C: Clock, S: BuildHasher> {
    limiter: &'a Limiter<K, C, S>,
    id: u64,
    ticket: u64,
    cost: u64,
    /// The moment after which there is no use in it any more.
    until: u64,
    /// Whether it is neither used nor given back.
    open: bool,
}

/// When a timer was started, by the limiter's time and by its own. What passes on the timer counts, even if the limiter's
/// clock stands still: so one can wait in a test where only the time of the runtime moves.
type Started<I> = Option<(u64, I)>;

/// What one who waits is to do next.
enum Next<I> {
    /// It is its turn.
    Go,
    /// Sleep until then, or until woken.
    WakeAt(I),
    /// Sleep until woken.
    Woken,
}

impl<K: ?Sized, C: Clock, S: BuildHasher> Place<'_, K, C, S> {
    /// The nanoseconds from `now` until its time.
    fn wait(&self, now: u64) -> u64 {
        self.limiter.wait_for(self.limiter.room.lock().places(self.id, self.ticket, None), now)
    }

    /// Looks whether it is its turn. `instant` is the time by a timer, and `later` adds to it.
    fn look<I: Copy + PartialOrd>(
        &self,
        waker: &Waker,
        started: &mut Started<I>,
        instant: I,
        later: impl Fn(&I, Duration) -> Option<I>,
    ) -> Result<Next<I>, WaitError> {
        let Limiter { clock, timeline, .. } = self.limiter;
        let now = self.limiter.now();
        let wait = {
            let mut queues = self.limiter.room.lock();
            self.limiter.catch_up(&mut queues, self.id, now);
            self.limiter.wait_for(queues.places(self.id, self.ticket, Some(waker)), now)
        };
        if wait == 0 {
            return Ok(Next::Go);
        }
        let due = now.saturating_add(wait);
        let too_long = WaitError::TooLong { wait: Duration::from_nanos(wait) };
        if due > self.until {
            return Err(too_long);
        }
        if clock.wake_at(timeline.reading(due), waker) {
            return Ok(Next::Woken);
        }
        let (now_then, instant_then) = *started.get_or_insert((now, instant));
        let since = Duration::from_nanos(due.saturating_sub(now_then));
        let deadline = later(&instant_then, since).ok_or(too_long)?;
        Ok(if instant >= deadline { Next::Go } else { Next::WakeAt(deadline) })
    }

    /// Takes its turn.
    fn go(&mut self) -> Decision {
        let Self { limiter, id, cost, .. } = *self;
        let now = limiter.now();
        let granted = |queues: &mut Queues| {
            let ledgers = limiter.ledgers().zip(queues.places(id, self.ticket, None)).enumerate();
            let told =
                ledgers.map(|(quota, (ledger, (place, _)))| ledger.granted(id, *place, cost, now).of_quota(quota));
            told.reduce(Decision::tighter)
        };
        let decision = if cost == 0 { None } else { granted(&mut limiter.room.lock()) };
        let decision = decision.unwrap_or_else(|| limiter.look(id, 0));
        if cost > 0 {
            limiter.count(id, &decision, now);
        }
        self.leave();
        decision
    }

    fn leave(&mut self) {
        if std::mem::take(&mut self.open) {
            self.limiter.room.lock().take(self.id, self.ticket);
        }
    }

    fn give_up(&mut self) {
        if !std::mem::take(&mut self.open) {
            return;
        }
        let Self { limiter, id, ticket, cost, .. } = *self;
        let now = limiter.now();
        let mut queues = limiter.room.lock();
        let Some((index, entry)) = queues.take(id, ticket) else { return };
        limiter.give_back(&entry.places, id, cost, now);
        let wakers = queues.move_up(id, index, |quota, place, after| {
            limiter.ledgers().nth(quota).map_or(place, |ledger| ledger.moved_up(id, place, cost, after, now))
        });
        drop(queues);
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl<K: ?Sized, C: Clock, S: BuildHasher> Drop for Place<'_, K, C, S> {
    fn drop(&mut self) {
        self.give_up();
    }
}

/// Wakes a thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
