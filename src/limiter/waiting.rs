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
use crate::ledger::{Link, Settlement};
use crate::table::Event;
use crate::terms::FIRST;

pub(super) use room::Room;
use room::{Entry, Queues, Spot};

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
    /// booked, but lets nobody go who [`wait`](Self::wait)s; [`reset`](Self::reset) lets those who wait begin anew.
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
        let mut queues = self.room.lock();
        self.room.enter();
        let entered = self.book_all(id, cost, now).and_then(|spots| {
            let wait = self.wait_for(&spots, now);
            let error = if self.is_never(wait, now) {
                WaitError::TooLong { wait: Duration::MAX }
            } else if u128::from(wait) > longest.as_nanos() {
                WaitError::TooLong { wait: Duration::from_nanos(wait) }
            } else if wait > 0 && !self.room.has_room(&queues, id) {
                WaitError::TooManyWaiting { wait: Duration::from_nanos(wait) }
            } else {
                return Ok(queues.push(id, cost, spots, now + wait, wait > 0));
            };
            self.give_back(&spots, id, cost, now);
            Err(error)
        });
        let ticket = entered.inspect_err(|_| self.room.leave())?;
        let until = now.saturating_add(u64::try_from(longest.as_nanos()).unwrap_or(u64::MAX));
        Ok(Place { limiter: self, id, ticket, cost, until, open: true })
    }

    /// Whether a time lies beyond the end of the limiter's time, where it stands still.
    fn is_never(&self, wait: u64, now: u64) -> bool {
        wait > 0 && now.saturating_add(wait) > self.timeline.end()
    }

    /// Books a place with each quota, or with none.
    fn book_all(&self, id: u64, cost: u64, now: u64) -> Result<Vec<Spot>, WaitError> {
        let mut spots = Vec::with_capacity(self.more.len() + 1);
        for ledger in self.ledgers() {
            if cost == 0 {
                spots.push(Spot::default());
                continue;
            }
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

    /// Marks the places that are for an earlier time than the latest.
    fn mark_early(&self, spots: &mut [Spot], now: u64) {
        let wait = self.wait_for(spots, now);
        for (ledger, spot) in self.ledgers().zip(spots) {
            spot.early = ledger.wait(&spot.place, now) < wait;
        }
    }

    /// Gives up places behind which nobody stands.
    fn give_back(&self, spots: &[Spot], id: u64, cost: u64, now: u64) {
        for (ledger, spot) in self.ledgers().zip(spots) {
            ledger.replay(id, Some((&spot.place, cost)), &mut [], now);
        }
    }

    /// Books the places of a queue anew, as if the one that is `given` up, just before them, had never been.
    fn replay(&self, id: u64, given: Option<&Entry>, queue: &mut [Entry], now: u64) {
        let times = queue.iter().map(|entry| self.time_of(entry, now)).collect::<Vec<_>>();
        for (quota, ledger) in self.ledgers().enumerate() {
            let given = given.and_then(|entry| Some((&entry.spots.get(quota)?.place, entry.cost)));
            ledger.replay(id, given, &mut links(queue, quota, &times), now);
        }
        self.mark_moved(queue, &times, now);
    }

    /// Those that have been booked anew may be early with other quotas than before.
    fn mark_moved(&self, queue: &mut [Entry], times: &[(u64, bool)], now: u64) {
        for (entry, _) in queue.iter_mut().zip(times).filter(|(_, (_, came))| !came) {
            self.mark_early(&mut entry.spots, now);
        }
    }

    /// The moment before which an entry cannot be: that at which its time came, if it has, or now. And whether it has.
    fn time_of(&self, entry: &Entry, now: u64) -> (u64, bool) {
        let came = entry.came || self.wait_for(&entry.spots, now) == 0;
        (if came { entry.due.min(now) } else { now }, came)
    }

    /// Books anew those places that were booked for an earlier time than the one that has come now: what one quota held
    /// back, another is not to let go all at once.
    fn catch_up(&self, id: u64, queue: &mut [Entry], now: u64) {
        if self.more.is_empty() {
            return;
        }
        let times = queue.iter().map(|entry| self.time_of(entry, now)).collect::<Vec<_>>();
        for (quota, ledger) in self.ledgers().enumerate() {
            let is_late = |entry: &Entry, came: bool| came && !entry.came && entry.spots[quota].early;
            let late = queue.iter().zip(&times).map(|(entry, &(_, came))| is_late(entry, came)).collect::<Vec<_>>();
            let Some(first) = late.iter().position(|&late| late) else { continue };
            let mut links = links(queue, quota, &times);
            for (link, &late) in links.iter_mut().zip(&late) {
                if late {
                    (link.at, link.came) = (now, false);
                }
            }
            ledger.replay(id, None, &mut links[first..], now);
        }
        for entry in queue.iter_mut().filter(|entry| !entry.came) {
            self.mark_early(&mut entry.spots, now);
        }
    }

    /// Charges units after the fact, or gives them back: before all who wait, who move accordingly.
    pub(super) fn settle(&self, id: u64, settlement: Settlement, now: u64) {
        if matches!(settlement, Settlement::Charge(0) | Settlement::Refund(0)) {
            return;
        }
        if self.room.is_empty() {
            return self.ledgers().for_each(|ledger| match settlement {
                Settlement::Charge(units) => ledger.force(id, units, now),
                Settlement::Refund(units) => ledger.refund(id, units, now),
            });
        }
        let mut queues = self.room.lock();
        let queue = queues.of(id);
        let times = queue.iter().map(|entry| self.time_of(entry, now)).collect::<Vec<_>>();
        for (quota, ledger) in self.ledgers().enumerate() {
            ledger.settle(id, settlement, &mut links(queue, quota, &times), now);
        }
        self.mark_moved(queue, &times, now);
        let wakers = room::wakers(queue);
        drop(queues);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Forgets what a key has used. Those who wait for it begin anew.
    pub(super) fn forget_id(&self, id: u64, now: u64) {
        let forget = || self.ledgers().for_each(|ledger| ledger.forget(id, now));
        if self.room.is_empty() {
            return forget();
        }
        let mut queues = self.room.lock();
        forget();
        for entry in queues.of(id) {
            let void = || self.ledgers().map(|_| Spot::default()).collect();
            let (_, came) = self.time_of(entry, now);
            entry.came |= came;
            entry.spots = if came { void() } else { self.book_all(id, entry.cost, now).unwrap_or_else(|_| void()) };
        }
        let wakers = room::wakers(queues.of(id));
        drop(queues);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// The nanoseconds until the time of the latest of the places.
    fn wait_for(&self, spots: &[Spot], now: u64) -> u64 {
        self.ledgers().zip(spots).map(|(ledger, spot)| ledger.wait(&spot.place, now)).max().unwrap_or(0)
    }

    /// The nanoseconds until the time of an entry, which is told.
    fn tell(&self, entry: &mut Entry, now: u64) -> u64 {
        if entry.came {
            return 0;
        }
        let wait = self.wait_for(&entry.spots, now);
        entry.came = wait == 0;
        entry.due = if wait == 0 { entry.due.min(now) } else { now.saturating_add(wait) };
        wait
    }
}

/// The places of a queue with one of the quotas.
fn links<'a>(queue: &'a mut [Entry], quota: usize, times: &[(u64, bool)]) -> Vec<Link<'a>> {
    let link = |(entry, &(at, came)): (&'a mut Entry, &(u64, bool))| {
        let cost = entry.cost;
        entry.spots.get_mut(quota).map(|spot| Link { place: &mut spot.place, cost, at, came })
    };
    queue.iter_mut().zip(times).filter_map(link).collect()
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
    /// How long it is from now until its time; zero once that has come, for good. It becomes less if one who came before
    /// gives up, and changes with the quota. With several quotas it may turn out to be a little longer when it is nearly
    /// over: what one of them held back, another lets go at its own pace. So ask until it is zero.
    #[must_use]
    pub fn wait(&self) -> Duration {
        Duration::from_nanos(self.place.wait())
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

    /// Gives the place back, whether its time has come or not, as if it had never been booked.
    ///
    /// Once its time has come, others may have charged the key after it; then what may have come back of it by itself is not
    /// given back once more, and with [other quotas](crate::Builder::other_quotas) nothing is. Those behind it go no earlier
    /// than now.
    pub fn cancel(mut self) {
        self.place.give_up();
    }
}

impl<K: ?Sized, C: Clock, S: BuildHasher> Drop for Reservation<'_, K, C, S> {
    fn drop(&mut self) {
        // Otherwise the place gives itself back.
        if self.place.has_come() {
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
    /// The nanoseconds until its time.
    fn wait(&self) -> u64 {
        let now = self.limiter.now();
        let mut queues = self.limiter.room.lock();
        self.wait_in(&mut queues, now)
    }

    fn wait_in(&self, queues: &mut Queues, now: u64) -> u64 {
        self.limiter.catch_up(self.id, queues.of(self.id), now);
        queues.entry(self.id, self.ticket).map_or(0, |entry| self.limiter.tell(entry, now))
    }

    /// Whether its time has come, be it that nobody has asked. If so it is charged for this time.
    fn has_come(&self) -> bool {
        let now = self.limiter.now();
        let mut queues = self.limiter.room.lock();
        let Some(entry) = queues.entry(self.id, self.ticket) else { return false };
        let came = entry.came || self.limiter.wait_for(&entry.spots, now) == 0;
        self.wait_in(&mut queues, now);
        came
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
        if let Some(refusal) = self.limiter.blocked(self.id, self.cost, now) {
            return Err(WaitError::Refused(refusal));
        }
        let wait = {
            let mut queues = self.limiter.room.lock();
            if let Some(entry) = queues.entry(self.id, self.ticket) {
                entry.waker = Some(waker.clone());
            }
            self.wait_in(&mut queues, now)
        };
        if wait == 0 {
            return Ok(Next::Go);
        }
        let due = now.saturating_add(wait);
        let too_long = WaitError::TooLong { wait: Duration::from_nanos(wait) };
        if due > self.until || self.limiter.is_never(wait, now) {
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
        let Self { limiter, id, cost, ticket, .. } = *self;
        let now = limiter.now();
        let told = |entry: &Entry| {
            let ledgers = limiter.ledgers().zip(&entry.spots).enumerate();
            let told =
                ledgers.map(|(quota, (ledger, spot))| ledger.granted(id, &spot.place, cost, now).of_quota(quota));
            told.reduce(Decision::tighter)
        };
        let decision =
            if cost == 0 { None } else { limiter.room.lock().entry(id, ticket).and_then(|entry| told(entry)) };
        let decision = decision.unwrap_or_else(|| limiter.look(id, 0));
        self.leave();
        decision
    }

    /// Uses it, and counts that.
    fn leave(&mut self) {
        if !std::mem::take(&mut self.open) {
            return;
        }
        let Self { limiter, id, ticket, cost, .. } = *self;
        limiter.room.lock().take(id, ticket);
        limiter.room.leave();
        if cost > 0 {
            limiter.first.shards().count(Event::Allowed);
            limiter.penalties.allowed(id, limiter.now());
        }
    }

    fn give_up(&mut self) {
        if !std::mem::take(&mut self.open) {
            return;
        }
        let Self { limiter, id, ticket, .. } = *self;
        let now = limiter.now();
        let mut queues = limiter.room.lock();
        let Some((index, entry)) = queues.take(id, ticket) else { return };
        let behind = queues.of(id).get_mut(index..).unwrap_or_default();
        limiter.replay(id, Some(&entry), behind, now);
        let wakers = room::wakers(behind);
        drop(queues);
        limiter.room.leave();
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
