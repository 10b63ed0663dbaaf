//! Slots of one word, which holds a part of the key's hash and its state together.
//!
//! ```text
//! 63   40 | 39 | 38      0
//!   tag   |  1 | state        a live entry
//!   tag   |  0 | nonce        a pending one
//!    0    |  0 |   0          an empty slot
//! ```
//!
//! A word says by itself whose it is, so whatever is decided by it is decided by a compare-and-swap of it, and a slot
//! can change hands in one.

use super::line::{Line, Places};
use super::set::{Kind, Set, Word as SlotWord};
use crate::sync::Ordering;

/// The bits of a state: some nine years in half milliseconds, or a day in fifths of a microsecond.
pub(crate) const STATE_BITS: u32 = 39;

const LIVE: u64 = 1 << STATE_BITS;
const REST: u64 = LIVE - 1;
const TAG_SHIFT: u32 = 40;

/// The part of a nonce that counts, and the part that names the shard.
const NONCE_COUNT_BITS: u32 = 29;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Word(u64);

impl Word {
    #[inline]
    fn tag(self) -> u64 {
        self.0 >> TAG_SHIFT
    }
}

impl SlotWord for Word {
    #[inline]
    fn kind(self) -> Kind {
        match self.0 {
            0 => Kind::Empty,
            word if word & LIVE != 0 => Kind::Live,
            _ => Kind::Pending,
        }
    }

    #[inline]
    fn state(self) -> u64 {
        self.0 & REST
    }

    #[inline]
    fn with_state(self, state: u64) -> Self {
        Self((self.0 & !REST) | state)
    }

    /// A life that ends and begins anew with the same key is as good as the old one.
    #[inline]
    fn is_same_life(self, other: Self) -> bool {
        self.kind() == Kind::Live && (self.0 ^ other.0) <= REST
    }

    fn activated(self, state: u64) -> Self {
        Self((self.tag() << TAG_SHIFT) | LIVE | state)
    }

    fn cancelled(self) -> Self {
        Self(0)
    }

    fn emptied(self, _nonce: u64) -> Self {
        Self(0)
    }
}

/// What stands for a key beside its sets: 24 bits that depend on all of its hash, for 25 of them may have chosen the
/// set already. Not 0, which is an empty slot's.
#[inline]
fn tag(id: u64) -> u64 {
    // 2^64 divided by the golden ratio, the multiplier of Fibonacci hashing (Knuth, TAOCP vol. 3, section 6.4).
    (id.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> TAG_SHIFT).max(1)
}

/// Eight slots in one cache line.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct CompactSet(Line);

impl Set for CompactSet {
    type Word = Word;

    const STATE_BITS: u32 = STATE_BITS;

    fn new() -> Self {
        Self(Line::new())
    }

    #[inline]
    fn prefetch(&self) {
        self.0.prefetch();
    }

    #[inline]
    fn prefetch_ids(&self) {
        self.0.prefetch();
    }

    #[inline]
    fn matches(&self, id: u64) -> Places {
        self.0.matches_top_24(tag(id) as u32)
    }

    #[inline]
    fn word(&self, place: usize) -> Word {
        // Acquire: pairs with the Release of `replace`; who sees an entry sees what it took the place of.
        Word(self.0.at(place).load(Ordering::Acquire))
    }

    #[inline]
    fn shows(&self, _place: usize, word: Word, id: u64) -> bool {
        word.tag() == tag(id)
    }

    #[inline]
    fn was_of(&self, place: usize, word: Word, id: u64) -> bool {
        self.shows(place, word, id)
    }

    #[inline]
    fn replace(&self, place: usize, old: Word, new: Word) -> Result<(), Word> {
        // AcqRel, Acquire: pair with each other and with `word`.
        match self.0.at(place).compare_exchange(old.0, new.0, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Ok(()),
            Err(now) => Err(Word(now)),
        }
    }

    /// The nonce is folded into 39 bits: a thread would have to enter 2^29 keys during another's one insertion before
    /// it used one again.
    fn claim(&self, place: usize, old: Word, id: u64, nonce: u64, prepare: impl FnOnce()) -> Option<Word> {
        let folded = (super::shards::shard_of(nonce) << NONCE_COUNT_BITS) | (nonce & ((1 << NONCE_COUNT_BITS) - 1));
        let pending = Word((tag(id) << TAG_SHIFT) | folded);
        self.replace(place, old, pending).ok()?;
        prepare();
        Some(pending)
    }
}
