//! Keys that are shut out for a while, whatever their quotas say.

use std::time::Duration;

use crossbeam_utils::CachePadded;

use crate::cell::{NEW, STATE_BITS};
use crate::error::BuildError;
use crate::sync::{AtomicU64, Ordering};
use crate::table::{ExactSet, Outcome, Rule, Table};
use crate::timeline::Timeline;

/// Shuts out keys that go on asking although they are refused: the longer they do, the longer.
///
/// After so many refusals in a row ([`after`](Self::after), 1 unless set) a key is blocked for the first time; after as
/// many more for twice as long, and so on up to the longest. A refusal because it is blocked counts as well. A request
/// that is allowed ends the row, and so does staying away for the longest time after a block is over.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Limiter, Penalty, Quota};
///
/// let patience = Penalty::new(Duration::from_secs(10), Duration::from_secs(3_600)).after(20);
/// let limiter = Limiter::<str>::builder(Quota::per_second(5)).penalty(patience).build()?;
/// # Ok::<(), tollgate::BuildError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Penalty {
    first: Duration,
    longest: Duration,
    after: u16,
}

impl Penalty {
    /// The first block, and the longest that repeated doubling leads to. If `longest` is the shorter of the two, every
    /// block is that long.
    #[must_use]
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest, after: 1 }
    }

    /// How many refusals in a row lead to a block, and to the next longer one; 0 counts as 1.
    #[must_use]
    pub const fn after(self, refusals: u16) -> Self {
        Self { after: if refusals == 0 { 1 } else { refusals }, ..self }
    }

    /// How long the block is that follows the `count`-th refusal in a row; `None` if none does. Beyond what can be counted
    /// every refusal leads to the longest.
    fn block(&self, count: u64) -> Option<u64> {
        let after = u64::from(self.after);
        if count > MOST {
            return Some(self.memory());
        }
        if !count.is_multiple_of(after) {
            return None;
        }
        // From 2^64 ns on the longest is shorter.
        let doublings = u32::try_from(count / after - 1).unwrap_or(u32::MAX).min(64);
        let nanos = self.first.as_nanos().saturating_mul(1 << doublings);
        Some(nanos.min(self.longest.as_nanos()).try_into().unwrap_or(u64::MAX))
    }

    /// For how long a row of refusals is remembered after the last of them.
    fn memory(&self) -> u64 {
        self.longest.as_nanos().try_into().unwrap_or(u64::MAX)
    }
}

const COUNT_BITS: u32 = 16;
const MOST: u64 = (1 << COUNT_BITS) - 1;

/// A state is the tick until which a key is blocked, or that of its last refusal; and in the lowest bits the refusals in
/// a row.
#[derive(Debug)]
pub(super) struct Penalties {
    table: Table<ExactSet>,
    /// The moment from which on nobody is blocked, so that as long as nobody is, a check looks no further.
    latest: CachePadded<AtomicU64>,
    penalty: Option<Penalty>,
    /// A tick is 2^`shift` nanoseconds: some 8 µs with the nine years of the default.
    shift: u32,
}

#[derive(Clone, Copy)]
enum Deed {
    /// Counts a refusal.
    Refuse(Penalty),
    /// Blocks until at least this tick.
    Block(u64),
    /// Ends a row of refusals, but no block.
    Allow,
    Forgive,
}

#[derive(Clone, Copy)]
struct Ask {
    tick: u64,
    shift: u32,
    /// The ticks for which a key is remembered after its block.
    memory: u64,
    deed: Deed,
}

fn unpack(state: u64) -> (u64, u64) {
    (state >> COUNT_BITS, state & MOST)
}

fn pack(until: u64, count: u64) -> u64 {
    (until.min((1 << (STATE_BITS - COUNT_BITS)) - 1) << COUNT_BITS) | count.min(MOST)
}

impl Rule for Ask {
    fn charge(&self, state: u64) -> Option<u64> {
        let (until, count) = unpack(if self.is_idle(state) { NEW } else { state });
        Some(match self.deed {
            Deed::Refuse(penalty) => {
                let ticks = penalty.block(count + 1).map_or(0, |nanos| nanos.div_ceil(1 << self.shift));
                pack(until.max(self.tick.saturating_add(ticks)), count + 1)
            }
            Deed::Block(tick) => pack(until.max(tick), count),
            Deed::Allow if until > self.tick => pack(until, 0),
            Deed::Allow | Deed::Forgive => NEW,
        })
    }

    /// What is done to another key by a chance of one in billions is not undone.
    fn undo(&self, state: u64, _charged: u64) -> u64 {
        state
    }

    fn is_idle(&self, state: u64) -> bool {
        state == NEW || unpack(state).0.saturating_add(self.memory) <= self.tick
    }

    fn debt(&self, _position: usize, state: u64) -> u64 {
        unpack(state).0.saturating_sub(self.tick)
    }
}

impl Penalties {
    /// Room for `capacity` keys.
    pub(super) fn new(capacity: usize, timeline: &Timeline, penalty: Option<Penalty>) -> Result<Self, BuildError> {
        let bits = u64::BITS - timeline.end().leading_zeros();
        Ok(Self {
            table: Table::new(capacity, 1)?,
            latest: CachePadded::new(AtomicU64::new(0)),
            penalty,
            shift: bits.saturating_sub(STATE_BITS - COUNT_BITS),
        })
    }

    fn ask(&self, now: u64, deed: Deed) -> Ask {
        let memory = self.penalty.map_or(0, |penalty| penalty.memory() >> self.shift);
        Ask { tick: now >> self.shift, shift: self.shift, memory, deed }
    }

    /// Whether anybody has ever been blocked, or refusals are counted.
    #[inline]
    pub(super) fn matter(&self) -> bool {
        self.latest.load(Ordering::Relaxed) != 0 || self.penalty.is_some()
    }

    /// The moment until which `id` is blocked, if it is.
    pub(super) fn blocked_until(&self, id: u64, now: u64) -> Option<u64> {
        if self.latest.load(Ordering::Relaxed) <= now {
            return None;
        }
        let until = unpack(self.table.peek(id)).0 << self.shift;
        Some(until).filter(|&until| until > now)
    }

    pub(super) fn block(&self, id: u64, now: u64, duration: u64) {
        if duration == 0 {
            return;
        }
        let until = now.saturating_add(duration).div_ceil(1 << self.shift);
        self.enter(id, now, Deed::Block(until));
    }

    /// Counts a refusal of `id`, if there is a penalty for it.
    pub(super) fn refused(&self, id: u64, now: u64) {
        if let Some(penalty) = self.penalty {
            self.enter(id, now, Deed::Refuse(penalty));
        }
    }

    fn enter(&self, id: u64, now: u64, deed: Deed) {
        if let Outcome::Charged(state) = self.table.charge(None, id, self.ask(now, deed), true) {
            self.latest.fetch_max(unpack(state).0 << self.shift, Ordering::Relaxed);
        }
    }

    /// Lets `id` go on, and forgets its refusals.
    pub(super) fn forgive(&self, id: u64, now: u64) {
        self.table.amend(id, self.ask(now, Deed::Forgive));
    }

    /// Ends a row of refusals, if there is one.
    pub(super) fn allowed(&self, id: u64, now: u64) {
        if self.penalty.is_some() && self.table.peek(id) != NEW {
            self.table.amend(id, self.ask(now, Deed::Allow));
        }
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.table.memory_bytes()
    }
}

#[cfg(all(test, loom))]
#[allow(clippy::unwrap_used)]
mod loom_tests {
    use std::sync::Arc;

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// Does something beside a block, which holds whatever that is.
    fn beside_a_block(deed: fn(&Penalties)) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(move || {
            let penalty = Penalty::new(Duration::from_secs(1), Duration::from_secs(1)).after(3);
            let timeline = Timeline::new(0, Duration::from_secs(60));
            let penalties = Arc::new(Penalties::new(1, &timeline, Some(penalty)).unwrap());
            penalties.refused(1, 0);
            let other = Arc::clone(&penalties);
            let thread = loom::thread::spawn(move || deed(&other));
            penalties.block(1, 0, 5 * SECOND);
            thread.join().unwrap();
            assert_eq!(penalties.blocked_until(1, SECOND), Some(5 * SECOND));
            penalties.forgive(1, SECOND);
            assert_eq!(penalties.blocked_until(1, SECOND), None);
        });
    }

    #[test]
    fn a_request_that_is_allowed_ends_no_block() {
        beside_a_block(|penalties| penalties.allowed(1, 0));
    }

    #[test]
    fn a_refusal_shortens_no_block() {
        beside_a_block(|penalties| penalties.refused(1, 0));
    }
}
