//! Eight slots in two adjacent cache lines.

use super::word::{Kind, Word};
use crate::sync::{AtomicU64, Ordering};

/// The slots of a set. Loom's models are kept small by two.
pub(super) const WIDTH: usize = if cfg!(loom) { 2 } else { 8 };

/// The places of a set whose bits are set, the lowest first.
pub(super) struct Places(pub(super) u32);

impl Iterator for Places {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        let place = self.0.trailing_zeros() as usize;
        self.0 &= self.0.checked_sub(1)?;
        Some(place)
    }
}

/// The ids fill one cache line and the cells the next, which the adjacent-line prefetcher brings along.
#[derive(Debug)]
#[repr(C, align(128))]
pub(super) struct Set {
    ids: [AtomicU64; WIDTH],
    cells: [AtomicU64; WIDTH],
}

impl Set {
    pub(super) fn new() -> Self {
        let zeros = || std::array::from_fn(|_| AtomicU64::new(0));
        Self { ids: zeros(), cells: zeros() }
    }

    /// A bit for each slot that shows `id`, the first slot's lowest. All are compared, without a branch for each: a
    /// branch that is mispredicted costs more than the rest of the line.
    #[inline]
    pub(super) fn matches(&self, id: u64) -> u32 {
        let bit = |place: usize| u32::from(self.ids[place].load(Ordering::Relaxed) == id) << place;
        (0..WIDTH).map(bit).fold(0, |bits, bit| bits | bit)
    }

    /// A bit for each slot that is empty.
    #[inline]
    pub(super) fn empty(&self) -> u32 {
        let bit = |place: usize| u32::from(self.slot(place).word().kind() == Kind::Empty) << place;
        (0..WIDTH).map(bit).fold(0, |bits, bit| bits | bit)
    }

    #[inline]
    pub(super) fn slot(&self, place: usize) -> Slot<'_> {
        Slot { id: &self.ids[place], cell: &self.cells[place] }
    }

    /// Asks the processor to fetch both lines.
    #[inline]
    pub(super) fn prefetch(&self) {
        prefetch_line(&self.ids);
        prefetch_line(&self.cells);
    }

    /// Asks the processor to fetch the line of the ids.
    #[inline]
    pub(super) fn prefetch_ids(&self) {
        prefetch_line(&self.ids);
    }
}

#[inline]
fn prefetch_line(line: &[AtomicU64; WIDTH]) {
    #[cfg(all(target_arch = "x86_64", not(loom)))]
    // SAFETY: a prefetch reads nothing that the program can see, and faults on no address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(loom))))]
    let _ = line;
}

/// One slot: whose it is, and its cell word.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot<'a> {
    id: &'a AtomicU64,
    cell: &'a AtomicU64,
}

impl Slot<'_> {
    /// The word as it stands.
    #[inline]
    pub(super) fn word(&self) -> Word {
        // Acquire: pairs with the Release of `publish`, and of `replace` which continues its release sequence, so that
        // the id read after a word is the id of that word's life or of a later one.
        Word(self.cell.load(Ordering::Acquire))
    }

    #[inline]
    pub(super) fn shows(&self, id: u64) -> bool {
        // Acquire: pairs with the Release of `publish`; who sees a new id sees that the slot was claimed before.
        self.id.load(Ordering::Acquire) == id
    }

    /// Puts `new` in the place of `old`, unless the slot has changed in any way; then tells what it is now.
    #[inline]
    pub(super) fn replace(&self, old: Word, new: Word) -> Result<(), Word> {
        // AcqRel: who activates, cancels or takes over a slot has seen, and passes on, what the slot held before.
        // Acquire: as in `word`.
        match self.cell.compare_exchange(old.0, new.0, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Ok(()),
            Err(now) => Err(Word(now)),
        }
    }

    /// Puts `new` in the place of `old`, unless the slot has changed in any way.
    #[inline]
    pub(super) fn swap(&self, old: Word, new: Word) -> bool {
        self.replace(old, new).is_ok()
    }

    /// Names the key of a slot that this thread has claimed, and shows it as pending.
    pub(super) fn publish(&self, id: u64, pending: Word) {
        // Release, both: pair with the Acquire of `shows` and of `word`.
        self.id.store(id, Ordering::Release);
        self.cell.store(pending.0, Ordering::Release);
    }
}
