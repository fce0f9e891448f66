//! What a decoder allocates, counted by thread, so that targets may run side by side.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static NOW: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

struct Counting;

fn count(bytes: isize) {
    NOW.set(NOW.get() + bytes);
    PEAK.set(PEAK.get().max(NOW.get()));
}

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What a decoder may allocate: so much, and so much more for every byte of its input.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bound {
    base: usize,
    per_byte: usize,
}

impl Bound {
    pub(crate) const fn new(base: usize, per_byte: usize) -> Self {
        Self { base, per_byte }
    }

    pub(crate) fn of(self, input: usize) -> usize {
        self.base + self.per_byte * input
    }
}

/// What `work` gives, and the most memory that it held at once, beyond what was there before.
pub(crate) fn peak_of<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = NOW.get();
    PEAK.set(before);
    let given = work();
    (given, usize::try_from(PEAK.get() - before).unwrap_or_default())
}
