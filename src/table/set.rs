//! Eight slots in two adjacent cache lines.

use super::word::{Kind, Word};
use crate::sync::{AtomicU64, Ordering};

/// The slots of a set. Loom's models are kept small by two.
pub(super) const WIDTH: usize = if cfg!(loom) { 2 } else { 8 };

/// Some of the places of a set, the lowest first. Place `n` has bit `2n`: what a comparison of 64-bit lanes gives under
/// SSE2 with the fewest instructions.
pub(super) struct Places(u32);

impl Places {
    /// Those of which `holds` is true, without a branch for each: a branch that is mispredicted costs more than the rest.
    #[inline]
    fn that(holds: impl Fn(usize) -> bool) -> Self {
        Self((0..WIDTH).map(|place| u32::from(holds(place)) << (2 * place)).fold(0, |places, place| places | place))
    }

    #[inline]
    pub(super) fn len(&self) -> u32 {
        self.0.count_ones()
    }
}

impl Iterator for Places {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        // The remainder changes nothing, and shows the compiler that the place is within the set.
        let place = (self.0.trailing_zeros() / 2) as usize % WIDTH;
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

    /// The places whose slots show `id`.
    #[inline]
    pub(super) fn matches(&self, id: u64) -> Places {
        #[cfg(all(target_arch = "x86_64", not(loom)))]
        return Places(sse2::matches(&self.ids, id));
        #[cfg(not(all(target_arch = "x86_64", not(loom))))]
        Places::that(|place| self.ids[place].load(Ordering::Relaxed) == id)
    }

    /// The places whose slots are empty.
    #[inline]
    pub(super) fn empty(&self) -> Places {
        Places::that(|place| self.slot(place).word().kind() == Kind::Empty)
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

/// Eight ids compared in 17 instructions instead of 35: a refused check of a hot key took 12 ns instead of 17.
#[cfg(all(target_arch = "x86_64", not(loom)))]
mod sse2 {
    use std::arch::asm;
    use std::arch::x86_64::{
        __m128i, _mm_cmpeq_epi32, _mm_movemask_epi8, _mm_packs_epi16, _mm_packs_epi32, _mm_set1_epi64x,
    };

    use super::WIDTH;
    use crate::sync::AtomicU64;

    /// Bit `2n` for each `n` at which `ids` is `id`.
    #[inline]
    pub(super) fn matches(ids: &[AtomicU64; WIDTH], id: u64) -> u32 {
        // SAFETY: SSE2 is a part of x86-64.
        unsafe {
            let id = _mm_set1_epi64x(id.cast_signed());
            let [a, b, c, d] = load(ids).map(|pair| _mm_cmpeq_epi32(pair, id));
            let halves = _mm_packs_epi16(_mm_packs_epi32(a, b), _mm_packs_epi32(c, d));
            // Two bits an id, one for each of its halves.
            let equal = _mm_movemask_epi8(halves).cast_unsigned();
            equal & (equal >> 1) & 0x5555
        }
    }

    /// Relaxed loads of all ids.
    #[inline]
    fn load(ids: &[AtomicU64; WIDTH]) -> [__m128i; WIDTH / 2] {
        let (a, b, c, d): (__m128i, __m128i, __m128i, __m128i);
        // SAFETY: reads the 64 bytes of `ids` and nothing else. They are aligned to a line, so the processor reads each
        // aligned u64 at once, and what it does is what eight relaxed loads do. A plain vector load would be a data
        // race to the language; an assembly block is whatever atomic operations it amounts to.
        unsafe {
            asm!(
                "movdqa {a}, [{ids}]",
                "movdqa {b}, [{ids} + 16]",
                "movdqa {c}, [{ids} + 32]",
                "movdqa {d}, [{ids} + 48]",
                ids = in(reg) ids.as_ptr(),
                a = lateout(xmm_reg) a,
                b = lateout(xmm_reg) b,
                c = lateout(xmm_reg) c,
                d = lateout(xmm_reg) d,
                options(readonly, nostack, preserves_flags),
            );
        }
        [a, b, c, d]
    }
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn places_that_show(ids: [u64; WIDTH], id: u64) -> Vec<usize> {
        let set = Set::new();
        for (place, shown) in ids.into_iter().enumerate() {
            set.ids[place].store(shown, Ordering::Relaxed);
        }
        set.matches(id).collect()
    }

    #[test]
    fn matches_are_the_places_that_show_the_id_whatever_the_others_show() {
        let id = 0x0123_4567_89ab_cdef_u64;
        let halves = [0, id & 0xffff_ffff, id & !0xffff_ffff, id.rotate_left(32), !id, id ^ 1, id ^ (1 << 63)];
        for other in halves {
            for pattern in 0..1_u32 << WIDTH {
                let ids = std::array::from_fn(|place| if pattern >> place & 1 == 1 { id } else { other });
                let expected: Vec<_> = (0..WIDTH).filter(|place| pattern >> place & 1 == 1).collect();
                assert_eq!(places_that_show(ids, id), expected, "beside {other:x}");
            }
        }
    }

    #[test]
    fn empty_places_are_those_of_empty_slots() {
        let set = Set::new();
        let taken = [1, 4, 6];
        for (nonce, place) in (0..).zip(taken) {
            let word = set.slot(place).word();
            assert!(set.slot(place).swap(word, word.claimed(nonce)));
        }
        assert_eq!(set.empty().len(), 5);
        assert_eq!(set.empty().collect::<Vec<_>>(), [0, 2, 3, 5, 7]);
    }
}
