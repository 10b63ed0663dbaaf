//! Slots of two words: the whole hash of the key, and its cell.

mod word;

use super::line::{Line, Places};
use super::set::Set;
use crate::cell::STATE_BITS;
use crate::sync::Ordering;

use word::Word;

/// Eight slots. Their ids fill one cache line and their cells the next, which the adjacent-line prefetcher brings along.
#[derive(Debug)]
#[repr(C, align(128))]
pub(crate) struct ExactSet {
    ids: Line,
    cells: Line,
}

impl ExactSet {
    #[inline]
    fn has_id(&self, place: usize, id: u64) -> bool {
        // Acquire: pairs with the Release of `claim`; who sees a new id sees that the slot was claimed before.
        self.ids.at(place).load(Ordering::Acquire) == id
    }
}

impl Set for ExactSet {
    type Word = Word;

    const STATE_BITS: u32 = STATE_BITS;

    fn new() -> Self {
        Self { ids: Line::new(), cells: Line::new() }
    }

    #[inline]
    fn prefetch(&self) {
        self.ids.prefetch();
        self.cells.prefetch();
    }

    #[inline]
    fn prefetch_ids(&self) {
        self.ids.prefetch();
    }

    #[inline]
    fn matches(&self, id: u64) -> Places {
        self.ids.matches(id)
    }

    #[inline]
    fn word(&self, place: usize) -> Word {
        // Acquire: pairs with the Release of `claim`, and of `replace` which continues its release sequence, so that
        // the id read after a word is the id of that word's life or of a later one.
        Word(self.cells.at(place).load(Ordering::Acquire))
    }

    /// Reads the id anew: an older look at it may have been before the life of `word` began.
    #[inline]
    fn shows(&self, place: usize, _word: Word, id: u64) -> bool {
        self.has_id(place, id)
    }

    /// It was if it stands before and after a look at the id.
    #[inline]
    fn was_of(&self, place: usize, word: Word, id: u64) -> bool {
        self.has_id(place, id) && self.word(place) == word
    }

    #[inline]
    fn replace(&self, place: usize, old: Word, new: Word) -> Result<(), Word> {
        // AcqRel: who activates, cancels or takes over a slot has seen, and passes on, what the slot held before.
        // Acquire: as in `word`.
        match self.cells.at(place).compare_exchange(old.0, new.0, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Ok(()),
            Err(now) => Err(Word(now)),
        }
    }

    fn claim(&self, place: usize, old: Word, id: u64, nonce: u64, prepare: impl FnOnce()) -> Option<Word> {
        let claimed = old.claimed(nonce);
        self.replace(place, old, claimed).ok()?;
        prepare();
        let pending = claimed.pending();
        // Release, both: pair with the Acquire of `has_id` and of `word`.
        self.ids.at(place).store(id, Ordering::Release);
        self.cells.at(place).store(pending.0, Ordering::Release);
        Some(pending)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::set::{Kind, Word as _};
    use super::*;

    #[test]
    fn empty_places_are_those_of_empty_slots() {
        let set = ExactSet::new();
        for (nonce, place) in (0..).zip([1, 4, 6]) {
            assert!(
                set.claim(place, set.word(place), 7, nonce, || ()).is_some_and(|word| word.kind() == Kind::Pending)
            );
        }
        assert_eq!(set.empty().len(), 5);
        assert_eq!(set.empty().collect::<Vec<_>>(), [0, 2, 3, 5, 7]);
    }
}
