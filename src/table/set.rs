//! What the protocol needs of a set of slots, however it keeps keys and states.

use core::fmt::Debug;

use super::line::Places;

/// What the owner of a slot is doing with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Free for anybody.
    Empty = 0,
    /// Taken by one thread, which alone may write the slot; to all others there is no entry here.
    Claimed = 1,
    /// Names its key, but is not yet known to be the only entry that does.
    Pending = 2,
    /// An entry with a state.
    Live = 3,
}

/// The word of a slot that is changed by compare-and-swap.
pub(crate) trait Word: Copy + Eq + Debug {
    fn kind(self) -> Kind;

    /// The state of a live word.
    fn state(self) -> u64;

    /// The same life of a live word with another state.
    fn with_state(self, state: u64) -> Self;

    /// Whether both are live, and of the same life.
    fn is_same_life(self, other: Self) -> bool;

    /// What follows a pending word that has proved to be the only one of its key: the first word of its life.
    fn activated(self, state: u64) -> Self;

    /// What follows a pending word that is given up: an empty slot.
    fn cancelled(self) -> Self;

    /// What follows a live word that is swept away. The nonce was never used before.
    fn emptied(self, nonce: u64) -> Self;
}

/// Some slots next to each other, [`WIDTH`] of them.
pub(crate) trait Set: Debug + Send + Sync {
    type Word: Word;

    /// The most bits that a state can have.
    const STATE_BITS: u32;

    fn new() -> Self;

    /// Asks the processor for all that a hit needs.
    fn prefetch(&self);

    /// Asks the processor for what tells whether a key is here.
    fn prefetch_ids(&self);

    /// The places that may be those of `id`.
    fn matches(&self, id: u64) -> Places;

    /// The word of a slot as it stands.
    fn word(&self, place: usize) -> Self::Word;

    /// Whether the slot belongs to `id`, by a look that is not older than `word`.
    fn shows(&self, place: usize, word: Self::Word, id: u64) -> bool;

    /// Whether `word`, which was read from the slot, was `id`'s.
    fn was_of(&self, place: usize, word: Self::Word, id: u64) -> bool;

    /// Puts `new` in the place of `old`, unless the slot has changed in any way; then tells what it is now.
    fn replace(&self, place: usize, old: Self::Word, new: Self::Word) -> Result<(), Self::Word>;

    /// Takes a slot, unless it has changed in any way since it was seen as `old`, and shows it as pending for `id`: as
    /// the word returned. The nonce was never used before. `prepare` runs while the slot is claimed, if its words have
    /// room for saying so, and no other thread takes it for anybody's.
    fn claim(&self, place: usize, old: Self::Word, id: u64, nonce: u64, prepare: impl FnOnce()) -> Option<Self::Word>;

    /// The places whose slots are empty.
    #[inline]
    fn empty(&self) -> Places {
        Places::that(|place| self.word(place).kind() == Kind::Empty)
    }
}
