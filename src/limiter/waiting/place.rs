//! Places in time: as the user holds them, and as those hold them who wait.

use std::fmt;
use std::hash::BuildHasher;
use std::task::Waker;
use std::time::Duration;

use super::super::Limiter;
use super::room::Queues;
use crate::clock::Clock;
use crate::decision::Decision;
use crate::error::WaitError;
use crate::table::Event;

/// A place in time, see [`Limiter::reserve`].
///
/// It is used by letting its time come: wait for as long as [`wait`](Self::wait) says, do what it was for, and drop it.
/// Dropped before its time it is given back, and those behind it move up. [`keep`](Self::keep) uses it in any case,
/// [`cancel`](Self::cancel) gives it back in any case.
#[must_use = "a reservation that is dropped before its time is given back"]
pub struct Reservation<'a, K: ?Sized, C: Clock, S: BuildHasher> {
    pub(super) place: Place<'a, K, C, S>,
}

impl<K: ?Sized, C: Clock, S: BuildHasher> Reservation<'_, K, C, S> {
    /// How long it is from now until its time; zero once that has come, for good. It becomes less if one who came before
    /// gives up, and changes with the quota: it is [`Duration::MAX`] as long as a quota can never give its cost. With several
    /// quotas it may turn out to be a little longer when it is over: what one of them held back, another lets go at its own
    /// pace. So ask until it is zero.
    #[must_use]
    pub fn wait(&self) -> Duration {
        match self.place.wait() {
            u64::MAX => Duration::MAX,
            wait => Duration::from_nanos(wait),
        }
    }

    /// The units that it is for.
    #[must_use]
    pub fn cost(&self) -> u64 {
        self.place.cost
    }

    /// Uses the place, whether its time has come or not. Until then it counts as one who waits.
    pub fn keep(mut self) {
        self.place.leave();
    }

    /// Gives the place back, whether its time has come or not, as if it had never been booked.
    ///
    /// Once its time has come, others may have charged the key after it; then what may have come back of it by itself is not
    /// given back once more, and with [other quotas](crate::Builder::other_quotas), by which a key can be checked while some
    /// wait for it, nothing is. Those behind it go no earlier than now.
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

/// The ticket of those who need not enter the queue, as they take nothing.
pub(super) const NOBODY: u64 = 0;

/// A place in the queue, which is given back unless it is used.
pub(super) struct Place<'a, K: ?Sized, C: Clock, S: BuildHasher> {
    limiter: &'a Limiter<K, C, S>,
    id: u64,
    ticket: u64,
    cost: u64,
    /// When it was booked.
    booked: u64,
    /// The moment after which there is no use in it any more.
    until: u64,
    /// Whether it is neither used nor given back.
    open: bool,
}

/// What one who waits is to do next.
pub(super) enum Next {
    /// It is its turn.
    Go,
    /// Sleep until so much time has passed since the place was booked, or until woken.
    WakeAfter(Duration),
    /// Sleep until woken.
    Woken,
}

impl<'a, K: ?Sized, C: Clock, S: BuildHasher> Place<'a, K, C, S> {
    pub(super) fn new(limiter: &'a Limiter<K, C, S>, id: u64, ticket: u64, cost: u64, booked: u64, until: u64) -> Self {
        Self { limiter, id, ticket, cost, booked, until, open: ticket != NOBODY }
    }

    /// The nanoseconds until its time.
    fn wait(&self) -> u64 {
        let now = self.limiter.now();
        self.wait_in(&mut self.limiter.room.lock(), now)
    }

    fn wait_in(&self, queues: &mut Queues, now: u64) -> u64 {
        self.limiter.refresh(queues, self.id, now);
        let waits = queues.entry(self.id, self.ticket).filter(|entry| !entry.came);
        waits.map_or(0, |entry| self.limiter.wait_for(&entry.spots, now))
    }

    /// Whether its time has come, be it that nobody has asked. If so it is charged for this time.
    fn has_come(&self) -> bool {
        let now = self.limiter.now();
        let mut queues = self.limiter.room.lock();
        let entry = queues.entry(self.id, self.ticket);
        entry.is_some_and(|entry| entry.came || self.limiter.wait_for(&entry.spots, now) == 0)
    }

    /// Looks whether it is its turn, and if not, how long to wait. So much time has passed since it was booked, by a timer.
    pub(super) fn look(&self, waker: &Waker, passed: Duration) -> Result<Next, WaitError> {
        let Limiter { clock, timeline, .. } = self.limiter;
        let now = self.limiter.now();
        if let Some(refusal) = self.limiter.blocked(self.id, self.cost, now) {
            return Err(WaitError::Refused(refusal));
        }
        let Some(due) = self.due(waker, now)? else { return Ok(Next::Go) };
        if clock.wake_at(timeline.reading(due), waker) {
            return Ok(Next::Woken);
        }
        // What passes on the timer counts, even if the limiter's clock lags behind or stands still: so one can wait in a
        // test where only the time of the runtime moves.
        let now = now.max(self.booked.saturating_add(u64::try_from(passed.as_nanos()).unwrap_or(u64::MAX)));
        let due = self.due(waker, now)?;
        Ok(due.map_or(Next::Go, |due| Next::WakeAfter(Duration::from_nanos(due.saturating_sub(self.booked)))))
    }

    /// When its time comes, if it has not; and has it woken if that changes.
    fn due(&self, waker: &Waker, now: u64) -> Result<Option<u64>, WaitError> {
        // A waker may do anything while it is cloned or dropped, so not while the room is locked.
        let mut waker = Some(waker.clone());
        let wait = {
            let mut queues = self.limiter.room.lock();
            if let Some(entry) = queues.entry(self.id, self.ticket) {
                std::mem::swap(&mut entry.waker, &mut waker);
            }
            self.wait_in(&mut queues, now)
        };
        let due = now.saturating_add(wait);
        if self.limiter.is_never(wait, now) {
            return Err(WaitError::TooLong { wait: Duration::MAX });
        }
        if due > self.until {
            return Err(WaitError::TooLong { wait: Duration::from_nanos(wait) });
        }
        Ok((wait > 0).then_some(due))
    }

    /// Takes its turn.
    pub(super) fn go(&mut self) -> Decision {
        let decision = self.granted().unwrap_or_else(|| self.limiter.look(self.id, 0));
        self.leave();
        decision
    }

    fn granted(&self) -> Option<Decision> {
        let Self { limiter, id, cost, ticket, .. } = *self;
        let now = limiter.now();
        let mut queues = limiter.room.lock();
        let entry = queues.entry(id, ticket)?;
        let ledgers = limiter.ledgers().zip(&entry.spots).enumerate();
        let granted = ledgers.map(|(quota, (ledger, spot))| ledger.granted(id, &spot.place, cost, now).of_quota(quota));
        granted.reduce(Decision::tighter)
    }

    /// Uses it, and counts that.
    fn leave(&mut self) {
        if !std::mem::take(&mut self.open) {
            return;
        }
        let Self { limiter, id, ticket, .. } = *self;
        let now = limiter.now();
        let waker = {
            let mut queues = limiter.room.lock();
            let waker = queues.entry(id, ticket).and_then(|entry| {
                entry.used = true;
                entry.waker.take()
            });
            limiter.refresh(&mut queues, id, now);
            waker
        };
        // Not while the room was locked; see `due`.
        drop(waker);
        limiter.first.shards().count(Event::Allowed);
        limiter.penalties.allowed(id, now);
    }

    fn give_up(&mut self) {
        if std::mem::take(&mut self.open) {
            self.limiter.give_up(self.id, self.ticket, self.limiter.now());
        }
    }
}

impl<K: ?Sized, C: Clock, S: BuildHasher> Drop for Place<'_, K, C, S> {
    fn drop(&mut self) {
        self.give_up();
    }
}
