//! One quota, and what each key has used of it: an algorithm and the memory that keeps its states.

mod cells;
mod log;
#[cfg(all(test, loom))]
mod loom_tests;

use alloc::vec::Vec;

use crate::decision::Decision;
use crate::error::BuildError;
use crate::quota::{Algorithm, Quota};
use crate::table::{CompactSet, ExactSet, Shards};
use crate::terms::{FIRST, Terms};
use crate::timeline::Timeline;

use cells::Cells;
use log::Log;

/// What happens to a new key when every slot that it may use is taken by a key that still owes something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WhenFull {
    /// It takes the place of the key that loses least by being forgotten. A flood of fresh keys, each with one request
    /// to its name, then displaces its own and hardly any that has used up a burst: only where all slots that a key may
    /// use are held by such keys does the first of the flood displace one of them, and the next displaces the first.
    /// What is displaced is counted in [`Stats::displaced`](crate::Stats::displaced).
    #[default]
    DisplaceLeast,
    /// It is refused until an entry in its way is idle. No key that is held ever gets more than its quota.
    Refuse,
    /// It is admitted without being counted. No key that is held ever gets more than its quota, but new keys do.
    AdmitUntracked,
}

/// How a limiter keeps its keys: what a key costs, and how surely two keys are two.
///
/// | | bytes a key | two keys share a budget | algorithms | refills |
/// |---|---|---|---|---|
/// | `Exact` | 24 | if all 64 bits of their hashes agree | all | exact, or a millionth of the wait or two ns late |
/// | `Compact` | 12 | at most one in a million, for each new key of a full table | token and leaky bucket | a tick late |
///
/// Take `Compact` where memory counts and an unlucky client in a million may share its budget with a stranger; where a
/// key is worth money, take `Exact`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Memory {
    /// Two words a slot: the whole hash of a key, and its state.
    #[default]
    Exact,
    /// One word a slot: 24 bits of the hash beside the two sets of eight in which a key may be, and a state of 39 bits,
    /// which holds a bucket. With [`WhenFull::DisplaceLeast`] and a table that is full beyond its capacity, a new key
    /// meets at most 16 others: 16 in 2^24 share.
    ///
    /// Time is counted in ticks, a whole number of them for each unit: 2^39 cover the
    /// [horizon](crate::Builder::horizon) and the time of a burst. With the nine years of the default a tick is half a
    /// millisecond and a quota may give up to 1,700 units a second; with a day a tick is 0.2 µs. A refill may come a tick
    /// late, and none comes early; of a burst that comes unit by unit within one tick the last unit may have to wait for
    /// the next.
    Compact,
}

/// For how many keys there is room, and how they are kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    pub(crate) capacity: usize,
    pub(crate) memory: Memory,
    pub(crate) shards: usize,
    pub(crate) when_full: WhenFull,
    /// How many quotas there may be besides the first.
    pub(crate) others: u8,
}

impl Room {
    /// For a single key.
    pub(crate) const FOR_ONE: Self =
        Self { capacity: 1, memory: Memory::Exact, shards: 1, when_full: WhenFull::Refuse, others: 0 };
}

/// A place in time with one ledger.
#[derive(Debug, Default)]
pub(crate) enum Place {
    /// For nothing, or of a key that is not tracked: there is nothing to wait for, and nothing to give back.
    #[default]
    Free,
    /// Beyond what can be kept.
    Never,
    /// Charged to a cell: its states before and after.
    Cell { before: u64, after: u64 },
    /// Taken of a log, from a moment on.
    Log { begin: u64, units: Vec<log::Taken> },
}

/// What a key is charged or given back after the fact.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Settlement {
    Charge(u64),
    Refund(u64),
}

/// A place of a queue that is booked anew.
#[derive(Debug)]
pub(crate) struct Link<'a> {
    pub(crate) place: &'a mut Place,
    pub(crate) cost: u64,
    /// The moment before which it cannot be: that at which its time had come, or now.
    pub(crate) at: u64,
    /// Whether its time had come.
    pub(crate) came: bool,
}

#[derive(Debug)]
pub(crate) enum Ledger {
    Exact(Cells<ExactSet>),
    Compact(Cells<CompactSet>),
    Log(Log),
}

/// Does the same with a ledger, whichever it is.
macro_rules! with {
    ($ledger:expr, $kept:ident => $what:expr) => {
        match $ledger {
            Ledger::Exact($kept) => $what,
            Ledger::Compact($kept) => $what,
            Ledger::Log($kept) => $what,
        }
    };
}

impl Ledger {
    /// Takes the memory. Fails if the quota is impossible, or does not fit what is to keep it.
    pub(crate) fn new(quota: &Quota, timeline: &Timeline, room: Room) -> Result<Self, BuildError> {
        quota.validate()?;
        Ok(match (room.memory, quota.algorithm()) {
            (Memory::Exact, Algorithm::SlidingWindowLog) if room.others == 0 => {
                Self::Log(Log::new(quota, timeline, room)?)
            }
            (Memory::Exact, _) => Self::Exact(Cells::new(quota, timeline, room)?),
            (Memory::Compact, algorithm) if !algorithm.takes_burst() => {
                return Err(BuildError::NotCompact { algorithm });
            }
            (Memory::Compact, _) => Self::Compact(Cells::new(quota, timeline, room)?),
        })
    }

    /// The quotas by which its keys are checked. A log has its own only, for good.
    #[inline]
    pub(crate) fn terms(&self) -> Option<&Terms> {
        match self {
            Self::Exact(cells) => Some(cells.terms()),
            Self::Compact(cells) => Some(cells.terms()),
            Self::Log(_) => None,
        }
    }

    /// The first quota.
    pub(crate) fn quota(&self) -> Quota {
        match self {
            Self::Log(log) => log.quota(),
            Self::Exact(cells) => cells.terms().quota(),
            Self::Compact(cells) => cells.terms().quota(),
        }
    }

    /// Makes `quota` the first from `now` on.
    pub(crate) fn set_quota(&self, quota: &Quota, now: u64) -> Result<(), BuildError> {
        let only_for_cells = BuildError::OtherAlgorithm { algorithm: quota.algorithm() };
        self.terms().ok_or(only_for_cells)?.set(quota, now)
    }

    /// The number of a quota by which some keys are checked instead of the first; `None` if there is no room for it.
    pub(crate) fn number(&self, quota: &Quota) -> Result<Option<usize>, BuildError> {
        match self.terms() {
            Some(terms) => terms.number(quota),
            None => Ok((self.quota() == *quota).then_some(0)),
        }
    }

    /// The most units that it gives at once, by the quota of this number.
    #[inline]
    pub(crate) fn limit(&self, number: usize) -> u64 {
        match self {
            Self::Log(log) => log.limit(),
            Self::Exact(cells) => cells.terms().limit(number),
            Self::Compact(cells) => cells.terms().limit(number),
        }
    }

    /// Asks the processor for all that a check of `id` is likely to need.
    #[inline]
    pub(crate) fn prefetch(&self, id: u64) {
        with!(self, kept => kept.prefetch(id));
    }

    /// Charges `id`, and counts what came of it. The clock is read by `now` once the memory has been asked for.
    #[inline]
    pub(crate) fn decide(&self, id: u64, cost: u64, now: impl FnOnce() -> u64) -> Decision {
        with!(self, kept => kept.decide(id, cost, now))
    }

    /// Charges `id` at the moment `now` by the quota of this number, without asking for the memory first, and without
    /// counting.
    #[inline]
    pub(crate) fn decide_at(&self, number: usize, id: u64, cost: u64, now: u64) -> Decision {
        with!(self, kept => kept.decide_at(number, id, cost, now))
    }

    /// Charges a unit to each of `ids`, whose memory has been asked for, and tells how many were allowed, without counting.
    pub(crate) fn decide_batch(&self, ids: &[u64], now: u64, decisions: &mut [Decision]) -> u64 {
        with!(self, kept => kept.decide_batch(ids, now, decisions))
    }

    /// What charging `id` would come to.
    pub(crate) fn look(&self, number: usize, id: u64, cost: u64, now: u64) -> Decision {
        with!(self, kept => kept.look(number, id, cost, now))
    }

    /// Charges `id` whether there is room or not, unless it is new and the table has no room for it.
    pub(crate) fn force(&self, id: u64, cost: u64, now: u64) {
        if cost > 0 {
            with!(self, kept => kept.force(id, cost, now));
        }
    }

    /// Charges `id`, by the quota of this number, for the first time at which `cost` units can be admitted after all that
    /// it has been charged already. Fails if that is too far away to be kept, or, with the refusal, if the table has no room
    /// for a new key.
    pub(crate) fn book(&self, number: usize, id: u64, cost: u64, now: u64) -> Result<Place, Option<Decision>> {
        with!(self, kept => kept.book(number, id, cost, now))
    }

    /// The nanoseconds until the time of a place; `u64::MAX` if it never comes.
    pub(crate) fn wait(&self, place: &Place, now: u64) -> u64 {
        match *place {
            Place::Free => 0,
            Place::Never => u64::MAX,
            Place::Cell { after, .. } => self.terms().map_or(0, |terms| terms.wait(after, now)),
            Place::Log { begin, .. } => begin.saturating_sub(now),
        }
    }

    /// What is to be said when the time of a place has come.
    pub(crate) fn granted(&self, id: u64, place: &Place, cost: u64, now: u64) -> Decision {
        match (self, place) {
            (Self::Log(log), Place::Log { .. }) => log.granted(id, cost, now),
            (Self::Exact(cells), &Place::Cell { after, .. }) => cells.granted(after, cost, now),
            (Self::Compact(cells), &Place::Cell { after, .. }) => cells.granted(after, cost, now),
            _ => self.look(FIRST, id, 0, now),
        }
    }

    /// Books anew the places of a queue from some place on, as if the one that is `given` up, just before them, had never
    /// been. If others have charged the key meanwhile, so that this cannot be told, less is given back rather than too much.
    pub(crate) fn replay(&self, id: u64, given: Option<(&Place, u64)>, behind: &mut [Link<'_>], now: u64) {
        with!(self, kept => kept.replay(id, given, behind, now));
    }

    /// Books anew the places of a queue from some place on, whose times are over without anybody having gone.
    pub(crate) fn postpone(&self, id: u64, links: &mut [Link<'_>], now: u64) {
        with!(self, kept => kept.postpone(id, links, now));
    }

    /// Charges `id`, or gives units back, before all places of its queue, which are booked anew. None of their times has come.
    pub(crate) fn settle(&self, id: u64, settlement: Settlement, queue: &mut [Link<'_>], now: u64) {
        with!(self, kept => kept.settle(id, settlement, queue, now));
    }

    /// Gives `cost` units back to `id`, never above full.
    pub(crate) fn refund(&self, id: u64, cost: u64, now: u64) {
        with!(self, kept => kept.refund(id, cost, now));
    }

    /// Takes back what was charged to `id` a moment ago by `charged`, as if it had never been.
    pub(crate) fn undo(&self, number: usize, id: u64, charged: &Decision, now: u64) {
        with!(self, kept => kept.undo(number, id, charged, now));
    }

    /// Forgets what `id` has used.
    pub(crate) fn forget(&self, id: u64, now: u64) {
        with!(self, kept => kept.forget(id, now));
    }

    /// Frees the entries of the next `sets` sets that are idle, and tells how many they were.
    pub(crate) fn sweep(&self, sets: usize, now: u64) -> usize {
        with!(self, kept => kept.sweep(sets, now))
    }

    pub(crate) fn set_count(&self) -> usize {
        with!(self, kept => kept.set_count())
    }

    /// The entries held, idle ones included.
    pub(crate) fn len(&self) -> usize {
        with!(self, kept => kept.len())
    }

    /// The bytes of it that do not lie within itself.
    pub(crate) fn memory_bytes(&self) -> usize {
        with!(self, kept => kept.memory_bytes())
    }

    #[inline]
    pub(crate) fn shards(&self) -> &Shards {
        with!(self, kept => kept.shards())
    }
}
