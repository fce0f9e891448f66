//! Tests that the quantiser allocates nothing once its buffer has grown. A test binary of its own, because it counts
//! allocations.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use protocol::rng::CounterRng;
use protocol::weights::changes::apply_to_weights;
use protocol::weights::lattice::Tau;
use worker::trainer::quantise::{Reached, quantise};

struct Counting;

thread_local! {
    /// Number of allocations of this thread; the test runner's other threads do not count.
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: `Counting` forwards every call to the system's allocator unchanged, which upholds the trait's contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // A thread that is ending has lost its counter.
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller guarantees that `layout` has a size above zero.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller guarantees that `block` was allocated here, so by `System`, with this `layout`.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn quantising_allocates_nothing() {
    const WEIGHTS: usize = 100_003;
    let random = CounterRng::new(1, 0);
    let update: Vec<f32> = (0..WEIGHTS as u64)
        .map(|at| (random.at(at) >> 40) as f32 / 2f32.powi(24) - 0.5)
        .collect();
    let mut own = vec![0.0; WEIGHTS];
    let mut shared = vec![0.0; WEIGHTS];
    let tau = Tau::nearest(2.0);
    let mut changes = Vec::with_capacity(WEIGHTS);
    let before = ALLOCATIONS.get();
    let mut emitted = 0;
    for _ in 0..25 {
        changes.clear();
        own.iter_mut().zip(&update).for_each(|(own, update)| *own += update);
        quantise(Reached::exactly(&own), &shared, tau, 0, usize::MAX, &mut changes).unwrap();
        apply_to_weights(&changes, tau, &mut shared).unwrap();
        emitted += changes.len();
    }
    assert_eq!(ALLOCATIONS.get(), before);
    assert!(emitted > 2 * WEIGHTS);
}
