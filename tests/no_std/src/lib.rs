//! The library where there is no std. This is a whole program's worth of Rust, with a panic handler and an allocator of its
//! own: if anything in it brought std along, the two panic handlers would not go together.
#![no_std]

use core::alloc::{GlobalAlloc, Layout};
use core::panic::PanicInfo;
use core::ptr;

use tollgate::{Clock, GlobalLimiter, ManualClock, Quota, check_all};

/// Never has anything, which is enough for what is only built and never run.
struct NoMemory;

// SAFETY: null says that the allocation failed, so there is nothing to free.
unsafe impl GlobalAlloc for NoMemory {
    unsafe fn alloc(&self, _layout: Layout) -> *mut u8 {
        ptr::null_mut()
    }

    unsafe fn dealloc(&self, _pointer: *mut u8, _layout: Layout) {}
}

#[global_allocator]
static ALLOCATOR: NoMemory = NoMemory;

#[panic_handler]
fn panic(_info: &PanicInfo) -> ! {
    loop {}
}

/// A clock such as a kernel might have.
struct Uptime(fn() -> u64);

impl Clock for Uptime {
    fn now(&self) -> u64 {
        (self.0)()
    }
}

/// The nanoseconds to wait after two units of a quota, which is given as text of `length` bytes; `u64::MAX` if it is none.
///
/// # Safety
///
/// `text` must point to `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wait(text: *const u8, length: usize) -> u64 {
    // SAFETY: as the caller has promised.
    let text = unsafe { core::slice::from_raw_parts(text, length) };
    core::str::from_utf8(text).ok().and_then(wait_of).unwrap_or(u64::MAX)
}

fn wait_of(text: &str) -> Option<u64> {
    let quota: Quota = text.parse().ok()?;
    let by_uptime = GlobalLimiter::with_clock(quota, Uptime(|| 1_000)).ok()?;
    let by_hand = GlobalLimiter::with_clock(quota, ManualClock::at(1_000)).ok()?;
    by_uptime.check().is_allowed().then_some(())?;
    let decision = check_all(&[&by_uptime, &by_hand], 1).ok()?;
    let wait = if decision.is_allowed() { decision.available_after() } else { decision.retry_after() };
    u64::try_from(wait.as_nanos()).ok()
}
