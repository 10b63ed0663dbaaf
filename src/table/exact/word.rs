//! The cell word of a slot: two bits that say what the slot is, and 62 bits of state or bookkeeping.
//!
//! ```text
//! 63  62 | 61                      0
//!  life  | state                        a live entry; lives are 1, 2, 3, 1, …
//!   0    | kind:2  life:2  nonce:58     empty, claimed or pending
//! ```
//!
//! Each time a slot changes hands its *life* goes on by one, and a nonce is never used twice, so a compare-and-swap
//! that is late does not mistake one life of a slot for another.

use crate::cell::STATE_BITS;
use crate::table::set::{Kind, Word as SlotWord};

/// How many values tell lives apart. Only one under loom, so that the models must hold without their help.
const LIVES: u64 = if cfg!(loom) { 1 } else { 3 };

const STATE_MASK: u64 = (1 << STATE_BITS) - 1;
const NONCE_BITS: u32 = 58;
const NONCE_MASK: u64 = (1 << NONCE_BITS) - 1;
const LIFE_SHIFT: u32 = 58;
const KIND_SHIFT: u32 = 60;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Word(pub(super) u64);

impl Word {
    fn marker(kind: Kind, life: u64, nonce: u64) -> Self {
        Self(((kind as u64) << KIND_SHIFT) | (life << LIFE_SHIFT) | (nonce & NONCE_MASK))
    }

    /// The life of a live word, or the last life of the slot.
    fn life(self) -> u64 {
        if self.0 > STATE_MASK { self.0 >> STATE_BITS } else { (self.0 >> LIFE_SHIFT) & 3 }
    }

    /// What follows when a thread takes the slot. The nonce was never used before.
    pub(super) fn claimed(self, nonce: u64) -> Self {
        Self::marker(Kind::Claimed, self.life(), nonce)
    }

    /// The marker that follows a claimed one.
    pub(super) fn pending(self) -> Self {
        Self::marker(Kind::Pending, self.life(), self.0)
    }
}

impl SlotWord for Word {
    #[inline]
    fn kind(self) -> Kind {
        if self.0 > STATE_MASK {
            return Kind::Live;
        }
        match self.0 >> KIND_SHIFT {
            0 => Kind::Empty,
            1 => Kind::Claimed,
            _ => Kind::Pending,
        }
    }

    #[inline]
    fn state(self) -> u64 {
        self.0 & STATE_MASK
    }

    #[inline]
    fn with_state(self, state: u64) -> Self {
        Self((self.0 & !STATE_MASK) | state)
    }

    #[inline]
    fn is_same_life(self, other: Self) -> bool {
        self.0 > STATE_MASK && (self.0 ^ other.0) <= STATE_MASK
    }

    fn activated(self, state: u64) -> Self {
        Self(((self.life() % LIVES + 1) << STATE_BITS) | state)
    }

    fn cancelled(self) -> Self {
        Self::marker(Kind::Empty, self.life(), self.0)
    }

    fn emptied(self, nonce: u64) -> Self {
        Self::marker(Kind::Empty, self.life(), nonce)
    }
}
