//! Batches, and changes in each encoding, for the corpus.

use protocol::ids::{OriginId, RunId};
use protocol::log::batch::{Header, OriginStatus, Payload, RoundPhase};
use protocol::log::bundle::Bundle;
use protocol::log::cursor::{CursorAdvance, ShardId};
use protocol::weights::changes::change;
use protocol::weights::dense::Dense;
use protocol::weights::encoding;
use protocol::weights::encoding::Encoding;
use protocol::weights::lattice::Tau;
use protocol::weights::sums::Sums;

use crate::engine::add_to_corpus;
use crate::targets::WEIGHTS;

/// Returns named lists of changes: none, sparse, dense, and with repeats.
pub(super) fn changes() -> [(&'static str, Vec<u32>); 4] {
    [
        ("none", Vec::new()),
        ("sparse", (0..40).map(|i| change(i * 111, i % 3 == 0)).collect()),
        ("dense", (100..400).map(|i| change(i, i % 2 == 0)).collect()),
        ("repeats", (0..30).map(|i| change(i / 2 * 9, i / 2 % 2 == 0)).collect()),
    ]
}

pub(super) fn steps(changes: &[u32]) -> Payload {
    Payload::Steps {
        tau: Tau::from_steps(300).unwrap(),
        changes: changes.to_vec(),
    }
}

pub(super) fn header(payload: &Payload, cursors: u32) -> Header {
    let advance = |shard| CursorAdvance {
        shard: ShardId { epoch: 3, shard },
        done: 64 * shard,
    };
    Header {
        run: RunId(0x0123_4567_89ab_cdef),
        origin: OriginId(77),
        sequence: 300,
        seen: 1_000,
        digest: payload.digest(),
        cursors: (0..cursors).map(advance).collect(),
        samples: 64,
        loss: 0.75,
        status: OriginStatus {
            last: cursors == 0,
            round_phase: if cursors == 1 {
                RoundPhase::Idle
            } else {
                RoundPhase::Announces
            },
            round: 12,
            ..OriginStatus::default()
        },
    }
}

pub(super) fn batch(payload: &Payload, cursors: u32) -> Vec<u8> {
    let mut frame = Vec::new();
    header(payload, cursors).encode(payload, &mut frame).unwrap();
    frame
}

/// Returns the bundle of one batch from each of two origins.
pub(super) fn bundle() -> Bundle {
    let steps = |factor: i32| {
        let steps = (0..200).map(|i: i32| (i - 90) * factor);
        Dense::checked(300, steps.collect(), WEIGHTS).unwrap()
    };
    let header = |origin: u64, factor: i32| Header {
        origin: OriginId(origin),
        ..header(&Payload::Dense(steps(factor)), 2)
    };
    Bundle {
        headers: vec![header(77, 2), header(1 << 50, 5)],
        dense: steps(7),
    }
}

pub(super) fn batches() {
    add_to_corpus("bundle", "two", &bundle().encode().unwrap());
    let entries = (0..60)
        .map(|i: u32| (i * 80, (i as i32 - 31).pow(3) * 7))
        .filter(|entry| entry.1 != 0);
    let sums = Sums::checked(entries.collect(), WEIGHTS).unwrap();
    add_to_corpus("batch", "sums", &batch(&Payload::Sums(sums), 2));
    let dense = |factor: i32| {
        let steps = (0..200).map(|i: i32| if i == 7 { 1 << 20 } else { (i - 90) * factor });
        Payload::Dense(Dense::checked(300, steps.collect(), WEIGHTS).unwrap())
    };
    for (name, factor) in [("dense-bytes", 1), ("dense-shorts", 300), ("dense-whole", 100_000)] {
        add_to_corpus("batch", name, &batch(&dense(factor), 2));
    }
    for (name, changes) in changes() {
        add_to_corpus("batch", name, &batch(&steps(&changes), changes.len() as u32 % 7));
        for (target, encoding) in [
            ("encoding_fixed", Encoding::Fixed),
            ("encoding_rice", Encoding::Rice),
            ("encoding_bitmap", Encoding::Bitmap),
        ] {
            let mut bytes = (changes.len() as u16).to_le_bytes().to_vec();
            // No changes look the same in every encoding; a bitmap cannot encode repeats.
            if changes.is_empty() || encoding::encode(encoding, &changes, &mut bytes) {
                add_to_corpus(target, name, &bytes);
            }
        }
    }
}

/// Checks that all changes in the corpus are to existing weights.
const _: () = assert!(40 * 111 < WEIGHTS);
