//! Batches, and changes in each encoding.

use protocol::batch::Flags;
use protocol::batch::Header;
use protocol::changes::word;
use protocol::cursor::CursorAdvance;
use protocol::cursor::ShardId;
use protocol::digest::Digest;
use protocol::encoding;
use protocol::encoding::Encoding;
use protocol::ids::OriginId;
use protocol::ids::RunId;
use protocol::lattice::Tau;

use crate::engine::add_to_corpus;
use crate::targets::WEIGHTS;

/// Sparse, dense, with repeats, and none: each encoding has its turn.
pub(super) fn changes() -> [(&'static str, Vec<u32>); 4] {
    [
        ("none", Vec::new()),
        ("sparse", (0..40).map(|i| word(i * 111, i % 3 == 0)).collect()),
        ("dense", (100..400).map(|i| word(i, i % 2 == 0)).collect()),
        ("repeats", (0..30).map(|i| word(i / 2 * 9, i / 2 % 2 == 0)).collect()),
    ]
}

pub(super) fn header(words: &[u32], cursors: u32) -> Header {
    let tau = Tau::from_steps(300).unwrap();
    let advance = |shard| CursorAdvance {
        shard: ShardId { epoch: 3, shard },
        done: 64 * shard,
    };
    Header {
        run: RunId(0x0123_4567_89ab_cdef),
        origin: OriginId(77),
        sequence: 300,
        seen: 1_000,
        tau,
        digest: Digest::of_changes(words, tau),
        cursors: (0..cursors).map(advance).collect(),
        samples: 64,
        loss: 0.75,
        flags: Flags {
            last: cursors == 0,
            stop: false,
        },
    }
}

pub(super) fn batch(words: &[u32], cursors: u32) -> Vec<u8> {
    let mut frame = Vec::new();
    header(words, cursors).encode(words, &mut frame).unwrap();
    frame
}

pub(super) fn batches() {
    for (name, words) in changes() {
        add_to_corpus("batch", name, &batch(&words, words.len() as u32 % 7));
        for (target, encoding) in [
            ("encoding_words", Encoding::Words),
            ("encoding_rice", Encoding::Rice),
            ("encoding_bitmap", Encoding::Bitmap),
        ] {
            let mut bytes = (words.len() as u16).to_le_bytes().to_vec();
            // Nothing has one form, whatever the encoding; a bitmap has no repeats.
            if words.is_empty() || encoding::encode(encoding, &words, &mut bytes) {
                add_to_corpus(target, name, &bytes);
            }
        }
    }
}

/// Weights that batches of the corpus reach.
const _: () = assert!(40 * 111 < WEIGHTS);
