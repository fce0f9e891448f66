//! Counts the memory that each thread allocates, so that targets can run in parallel.

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

// SAFETY: every call is forwarded to the system allocator with unchanged arguments.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller guarantees a layout of non-zero size, which is passed on unchanged.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller guarantees a layout of non-zero size, which is passed on unchanged.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller guarantees that `block` is from this allocator, hence from the system's, with the same
        // layout.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Bound on the bytes that a decoder may allocate: a constant, and an amount for every byte of the input.
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

/// Returns the result of `work` and the peak of the memory that it held, in bytes above the level before.
pub(crate) fn peak_of<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = NOW.get();
    PEAK.set(before);
    let given = work();
    (given, usize::try_from(PEAK.get() - before).unwrap_or_default())
}
