//! Tests that a decoder never allocates more memory than a batch may hold, whatever bytes it reads.
//!
//! The tests are a program of their own, because they count every allocation of their process.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use protocol::ids::{OriginId, RunId};
use protocol::log::batch::{BATCH_BYTES_MAX, Batch, BatchError, Header, OriginStatus, Payload, VERSION};
use protocol::log::cursor::{CursorAdvance, ShardId};
use protocol::rng::CounterRng;
use protocol::weights::changes::change;
use protocol::weights::encoding::{Encoding, decode};
use protocol::weights::lattice::Tau;
use protocol::weights::sums::Sums;

/// Number of weights of the model that batches are decoded for.
const WEIGHTS: usize = 5_000;

struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system allocator unchanged, which fulfils the trait's contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Ordering::SeqCst) + layout.size();
        PEAK.fetch_max(now, Ordering::SeqCst);
        // SAFETY: the caller fulfils the contract of `alloc`, which is the same for `System.alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::SeqCst);
        // SAFETY: the caller fulfils the contract of `dealloc`, and `block` comes from `System.alloc` with the same
        // layout.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Returns the peak of memory in bytes that `work` held at once, beyond the memory that was in use before.
fn peak_of(work: impl FnOnce()) -> usize {
    let before = NOW.load(Ordering::SeqCst);
    PEAK.store(before, Ordering::SeqCst);
    work();
    PEAK.load(Ordering::SeqCst) - before
}

fn steps() -> Vec<u8> {
    let changes: Vec<u32> = (0..500).map(|i| change(i * 7, i % 3 == 0)).collect();
    encoded(&Payload::Steps {
        tau: Tau::from_steps(300).unwrap(),
        changes,
    })
}

fn sums() -> Vec<u8> {
    let entries = (0..500u32).map(|i| (i * 7, i as i32 - 1000)).collect();
    encoded(&Payload::Sums(Sums::checked(entries, WEIGHTS).unwrap()))
}

fn encoded(payload: &Payload) -> Vec<u8> {
    let shard = ShardId { epoch: 0, shard: 1 };
    let header = Header {
        run: RunId(1),
        origin: OriginId(2),
        sequence: 3,
        seen: 5,
        digest: payload.digest(),
        cursors: vec![CursorAdvance { shard, done: 9 }; 3],
        samples: 64,
        loss: 1.0,
        status: OriginStatus::default(),
    };
    let mut bytes = Vec::new();
    header.encode(payload, &mut bytes).unwrap();
    bytes
}

/// Asserts that decoding `bytes` takes little memory. A Rice-coded change takes at least two bits and becomes a change
/// of four bytes: sixteen times its size. A sum takes at least three bits and becomes eight bytes: less than 22 times.
/// The remaining 4096 bytes leave room for a few cursors only.
fn check(bytes: &[u8]) {
    let peak = peak_of(|| drop(Batch::decode(bytes, WEIGHTS)));
    let allowed = (22 * bytes.len() + 4096).min(BATCH_BYTES_MAX);
    assert!(peak <= allowed, "{peak} bytes for a batch of {}", bytes.len());
}

/// Returns a batch with a valid checksum whose header moves `count` cursors.
fn with_cursors(count: u32) -> Vec<u8> {
    let mut bytes = vec![VERSION];
    // Run, origin, sequence, batches seen and digest, one byte each; then the list of cursors.
    bytes.extend([1, 2, 3, 4, 5]);
    let mut rest = count;
    while rest >= 128 {
        bytes.push(rest as u8 | 128);
        rest >>= 7;
    }
    bytes.push(rest as u8);
    bytes.extend(std::iter::repeat_n(1, 3 * count as usize));
    let crc = crc32fast::hash(&bytes);
    bytes.extend(crc.to_le_bytes());
    bytes
}

/// All checks are one test, because the allocations of a second test would be counted too.
#[test]
fn hostile_bytes_take_no_more_memory_than_a_batch() {
    const SEED: u64 = 20;
    let mut random = CounterRng::new(SEED, 0);
    // Batches with wrong bytes under a valid checksum, which a hostile member can send.
    let honest = [steps(), sums()];
    for round in 0..30_000 {
        let mut forged = honest[round % 3 % 2].clone();
        let body = forged.len() - 4;
        for _ in 0..=random.below(4) {
            let at = if round % 2 == 0 {
                random.below(40) as usize
            } else {
                random.below(body as u64) as usize
            };
            forged[at] = random.next_u64() as u8;
        }
        let crc = crc32fast::hash(&forged[..body]);
        forged[body..].copy_from_slice(&crc.to_le_bytes());
        check(&forged);
    }
    for cursors in [5_500_000, 70] {
        let bytes = with_cursors(cursors);
        check(&bytes);
        let refused = Batch::decode(&bytes, WEIGHTS).unwrap_err();
        assert_eq!(refused, BatchError::BadHeader);
    }
    // Random payloads with a claimed number of changes, up to the largest that a header can claim.
    for encoding in [Encoding::Fixed, Encoding::Rice, Encoding::Bitmap] {
        for len in [0, 1, 5, 100, 5_000] {
            let payload: Vec<u8> = (0..len).map(|_| random.next_u64() as u8).collect();
            for count in [0, 1, 1 << 22, usize::MAX] {
                let mut out = Vec::new();
                let peak = peak_of(|| drop(decode(encoding, &payload, count, 1 << 31, Tau::ONE_STEP, &mut out)));
                assert!(peak <= 16 * len, "{peak} bytes for a payload of {len}, {encoding:?}");
            }
        }
    }
}
