//! Refusals that are remembered, so that who goes on asking costs Redis nothing until there is something to give.

use std::time::Duration;

use crate::cell::STATE_BITS;
use crate::decision::Decision;
use crate::error::BuildError;
use crate::sync::{AtomicU64, Ordering};
use crate::table::{ExactSet, Outcome, Rule, Table};

use super::terms::Terms;

/// In nanoseconds; Redis knows nothing finer.
const TICK: u64 = 1_000;

const QUOTA_BITS: u32 = 10;
const PARDON_BITS: u32 = 20;

/// There is room for one client that got something back in so many.
const PARDONED_SHARE: usize = 16;

#[derive(Debug)]
pub(super) struct Memory {
    /// By client and cost, as who has nothing left for ten units may have something for one. A state is the tick until which
    /// it is refused, and in the lowest bits by which of the quotas.
    refusals: Table<ExactSet>,
    /// By client: how often it got something back, so that all that was remembered of it before is found no more. Kept for as
    /// long as that could be.
    pardons: Table<ExactSet>,
    /// The tick at which the last of all refusals is over.
    latest: AtomicU64,
    /// In nanoseconds: no check is under way for longer.
    deadline: u64,
}

/// A state with its moment in ticks of a table, above `bits` others.
#[derive(Clone, Copy)]
struct Entry {
    now: u64,
    bits: u32,
    deed: Deed,
}

#[derive(Clone, Copy)]
enum Deed {
    /// Puts this in place of what is over earlier.
    Put(u64, u64),
    /// Counts one more, and keeps it until then.
    Count(u64),
}

impl Entry {
    /// As late as the state has room for.
    fn state(self, until: u64, rest: u64) -> u64 {
        let mask = (1 << self.bits) - 1;
        until.min((1 << (STATE_BITS - self.bits)) - 1) << self.bits | rest & mask
    }
}

impl Rule for Entry {
    fn charge(&self, state: u64) -> Option<u64> {
        Some(match self.deed {
            Deed::Put(until, _) if until < state >> self.bits => return None,
            Deed::Put(until, rest) => self.state(until, rest),
            Deed::Count(until) => self.state(until.max(state >> self.bits), state + 1),
        })
    }

    fn undo(&self, state: u64, _charged: u64) -> u64 {
        state
    }

    fn is_idle(&self, state: u64) -> bool {
        state >> self.bits <= self.now
    }

    fn debt(&self, _position: usize, state: u64) -> u64 {
        (state >> self.bits).saturating_sub(self.now)
    }
}

impl Memory {
    pub(super) fn new(capacity: usize, deadline: Duration) -> Result<Self, BuildError> {
        Ok(Self {
            refusals: Table::new(capacity, 1)?,
            pardons: Table::new(capacity / PARDONED_SHARE + 1, 1)?,
            latest: AtomicU64::new(0),
            deadline: u64::try_from(deadline.as_nanos()).unwrap_or(u64::MAX),
        })
    }

    /// The entry of a client's requests of a cost, which is another once the client got something back.
    pub(super) fn entry(&self, id: u64, cost: u64) -> u64 {
        let pardons = self.pardons.peek(id) & ((1 << PARDON_BITS) - 1);
        let salt = (pardons << 44 ^ cost).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        id ^ salt.rotate_left(32)
    }

    /// The refusal of a request of this cost, as far as it is still right.
    pub(super) fn recall(&self, id: u64, cost: u64, now: u64, terms: &[Terms]) -> Option<Decision> {
        // Relaxed, here and below: who sees a refusal of another thread late asks Redis.
        if self.latest.load(Ordering::Relaxed).saturating_mul(TICK) <= now {
            return None;
        }
        let state = self.refusals.peek(self.entry(id, cost));
        let until = (state >> QUOTA_BITS) * TICK;
        let wait = until.checked_sub(now).filter(|&wait| wait > 0)?;
        let quota = (state & ((1 << QUOTA_BITS) - 1)) as usize;
        Some(terms.get(quota)?.refusal(wait, cost).of_quota(quota))
    }

    /// Remembers that requests are refused, by the quota of this number, for so long from the moment `sent`.
    pub(super) fn note(&self, entry: u64, sent: u64, wait: Duration, quota: usize) {
        let until = u128::from(sent) + wait.as_nanos();
        let tick = u64::try_from(until / u128::from(TICK)).unwrap_or(u64::MAX);
        let quota = quota as u64;
        if tick < 1 << (STATE_BITS - QUOTA_BITS) && quota < 1 << QUOTA_BITS {
            self.latest.fetch_max(tick, Ordering::Relaxed);
            let put = Entry { now: sent / TICK, bits: QUOTA_BITS, deed: Deed::Put(tick, quota) };
            // Where there is no room, the one that would be over first makes some.
            let _: Outcome = self.refusals.charge(None, entry, put, true);
        }
    }

    /// Forgets that requests of a client were refused.
    pub(super) fn forget(&self, id: u64, now: u64) {
        // Also where nothing is remembered: a check that is under way may be refused, and must notice.
        let under_way = now.saturating_add(self.deadline) / TICK;
        let latest = self.latest.load(Ordering::Relaxed).max(under_way);
        // In coarser ticks, for which there is room.
        let [now, latest] = [now / TICK, latest].map(|tick| tick >> (PARDON_BITS - QUOTA_BITS));
        let entry = Entry { now, bits: PARDON_BITS, deed: Deed::Count(latest + 1) };
        let _: Outcome = self.pardons.charge(None, id, entry, true);
    }
}
