//! One cache line of eight words, and the two things that are done with all of it at once: fetching and comparing.

use crate::sync::AtomicU64;
#[cfg(any(test, loom, not(all(target_arch = "x86_64", target_feature = "sse2"))))]
use crate::sync::Ordering;

/// The slots of a set. Loom's models are kept small by two.
pub(super) const WIDTH: usize = if cfg!(loom) { 2 } else { 8 };

/// Some of the places of a line, the lowest first. Place `n` has bit `2n`: what comparisons under SSE2 give with the
/// fewest instructions.
pub(crate) struct Places(u32);

impl Places {
    /// Those of which `holds` is true, without a branch for each: a branch that is mispredicted costs more than the rest.
    #[inline]
    pub(super) fn that(holds: impl Fn(usize) -> bool) -> Self {
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
        // The remainder changes nothing, and shows the compiler that the place is within the line.
        let place = (self.0.trailing_zeros() / 2) as usize % WIDTH;
        self.0 &= self.0.checked_sub(1)?;
        Some(place)
    }
}

#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Line([AtomicU64; WIDTH]);

impl Line {
    pub(super) fn new() -> Self {
        Self(core::array::from_fn(|_| AtomicU64::new(0)))
    }

    #[inline]
    pub(super) fn at(&self, place: usize) -> &AtomicU64 {
        &self.0[place]
    }

    /// The places that hold `word`.
    #[inline]
    pub(super) fn matches(&self, word: u64) -> Places {
        #[cfg(all(target_arch = "x86_64", target_feature = "sse2", not(loom)))]
        return Places(sse2::matches(&self.0, word));
        #[cfg(not(all(target_arch = "x86_64", target_feature = "sse2", not(loom))))]
        Places::that(|place| self.at(place).load(Ordering::Relaxed) == word)
    }

    /// The places whose words have `top` for their uppermost 24 bits.
    #[inline]
    pub(super) fn matches_top_24(&self, top: u32) -> Places {
        #[cfg(all(target_arch = "x86_64", target_feature = "sse2", not(loom)))]
        return Places(sse2::matches_top_24(&self.0, top));
        #[cfg(not(all(target_arch = "x86_64", target_feature = "sse2", not(loom))))]
        Places::that(|place| self.at(place).load(Ordering::Relaxed) >> 40 == u64::from(top))
    }

    /// Asks the processor to fetch the line.
    #[inline]
    pub(super) fn prefetch(&self) {
        #[cfg(all(target_arch = "x86_64", target_feature = "sse2", not(loom)))]
        // SAFETY: a prefetch reads nothing that the program can see, and faults on no address.
        unsafe {
            use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(self.0.as_ptr().cast());
        }
    }
}

/// Eight ids compared in 17 instructions instead of 35: a refused check of a hot key took 12 ns instead of 17.
/// Kernels are often compiled without SSE2.
#[cfg(all(target_arch = "x86_64", target_feature = "sse2", not(loom)))]
mod sse2 {
    use core::arch::asm;
    use core::arch::x86_64::{
        __m128i, _mm_castps_si128, _mm_castsi128_ps, _mm_cmpeq_epi32, _mm_movemask_epi8, _mm_packs_epi16,
        _mm_packs_epi32, _mm_set1_epi32, _mm_set1_epi64x, _mm_shuffle_ps, _mm_srli_epi32,
    };

    use super::WIDTH;
    use crate::sync::AtomicU64;

    /// Bit `2n` for each `n` at which `words` is `word`.
    #[inline]
    pub(super) fn matches(words: &[AtomicU64; WIDTH], word: u64) -> u32 {
        let pairs = load(words);
        // SAFETY: without SSE2 this is not compiled.
        unsafe {
            let word = _mm_set1_epi64x(word.cast_signed());
            let [a, b, c, d] = pairs.map(|pair| _mm_cmpeq_epi32(pair, word));
            let halves = _mm_packs_epi16(_mm_packs_epi32(a, b), _mm_packs_epi32(c, d));
            // Two bits a word, one for each of its halves.
            let equal = _mm_movemask_epi8(halves).cast_unsigned();
            equal & (equal >> 1) & 0x5555
        }
    }

    /// Bit `2n` for each `n` at which the uppermost 24 bits of `words` are `top`.
    #[inline]
    pub(super) fn matches_top_24(words: &[AtomicU64; WIDTH], top: u32) -> u32 {
        let [a, b, c, d] = load(words);
        // SAFETY: without SSE2 this is not compiled.
        unsafe {
            let top = _mm_set1_epi32(top.cast_signed());
            let equal = |a, b| {
                // The upper halves of four words.
                let upper = _mm_shuffle_ps::<0b11_01_11_01>(_mm_castsi128_ps(a), _mm_castsi128_ps(b));
                _mm_cmpeq_epi32(_mm_srli_epi32::<8>(_mm_castps_si128(upper)), top)
            };
            // Two bits a word, both the same.
            _mm_movemask_epi8(_mm_packs_epi32(equal(a, b), equal(c, d))).cast_unsigned() & 0x5555
        }
    }

    /// Relaxed loads of all words.
    #[inline]
    fn load(words: &[AtomicU64; WIDTH]) -> [__m128i; WIDTH / 2] {
        let (a, b, c, d): (__m128i, __m128i, __m128i, __m128i);
        // SAFETY: reads the 64 bytes of `words` and nothing else. They are aligned to a line, so the processor reads
        // each aligned u64 at once, and what it does is what eight relaxed loads do. A plain vector load would be a
        // data race to the language; an assembly block is whatever atomic operations it amounts to.
        unsafe {
            asm!(
                "movdqa {a}, [{words}]",
                "movdqa {b}, [{words} + 16]",
                "movdqa {c}, [{words} + 32]",
                "movdqa {d}, [{words} + 48]",
                words = in(reg) words.as_ptr(),
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const ID: u64 = 0x0123_4567_89ab_cdef;

    /// Words that share a half, a third or all but a bit with `ID`.
    const OTHERS: [u64; 8] =
        [0, ID & 0xffff_ffff, ID & !0xffff_ffff, ID.rotate_left(32), !ID, ID ^ 1, ID ^ (1 << 63), ID ^ (1 << 40)];

    /// Calls `check` with each way of filling a line with `ID` and one other word, and with the places of either kind.
    fn for_all_lines(check: impl Fn(&Line, u64, Vec<usize>)) {
        for other in OTHERS {
            for pattern in 0..1_u32 << WIDTH {
                let is_id = |place: &usize| pattern >> place & 1 == 1;
                let line = Line::new();
                for place in 0..WIDTH {
                    line.at(place).store(if is_id(&place) { ID } else { other }, Ordering::Relaxed);
                }
                check(&line, other, (0..WIDTH).filter(is_id).collect());
            }
        }
    }

    #[test]
    fn matches_are_the_places_that_hold_the_word_whatever_the_others_hold() {
        for_all_lines(|line, other, of_id| {
            assert_eq!(line.matches(ID).collect::<Vec<_>>(), of_id, "beside {other:x}");
            assert_eq!(line.matches(ID).len() as usize, of_id.len());
        });
    }

    #[test]
    fn a_match_of_the_top_looks_at_no_other_bit() {
        for_all_lines(|line, other, of_id| {
            let expected = if other >> 40 == ID >> 40 { (0..WIDTH).collect() } else { of_id };
            assert_eq!(line.matches_top_24((ID >> 40) as u32).collect::<Vec<_>>(), expected, "beside {other:x}");
        });
    }
}
