use proptest::prelude::*;

use super::*;
use crate::log::cursor::ShardId;
use crate::weights::changes::{ChangesError, apply_to_weights, change};
use crate::weights::dense::Dense;
use crate::weights::lattice::{BATCH_STEPS_MAX, Tau, weight_of};
use crate::weights::sums::Sums;

const WEIGHTS: usize = 500;

fn batch(sequence: u64, payload: Payload) -> Batch {
    let header = Header {
        run: RunId(0x1122),
        origin: OriginId(0x3344),
        sequence,
        seen: 200,
        digest: payload.digest(),
        cursors: vec![CursorAdvance {
            shard: ShardId { epoch: 1, shard: 2 },
            done: 64,
        }],
        samples: 64,
        loss: 0.5,
        status: OriginStatus {
            last: true,
            round_phase: RoundPhase::Idle,
            round: 300,
            ..OriginStatus::default()
        },
    };
    Batch { header, payload }
}

fn encoded(batch: &Batch) -> Vec<u8> {
    let mut bytes = Vec::new();
    batch.header.encode(&batch.payload, &mut bytes).unwrap();
    bytes
}

fn steps(tau: Tau, changes: Vec<u32>) -> Payload {
    Payload::Steps { tau, changes }
}

fn sums(entries: Vec<(u32, i32)>) -> Payload {
    Payload::Sums(Sums::checked(entries, WEIGHTS).unwrap())
}

fn any_steps() -> impl Strategy<Value = Payload> {
    let changes = proptest::collection::btree_map(0..WEIGHTS as u32, (any::<bool>(), 1..3usize), 0..60);
    (1..5000u32, changes).prop_map(|(size, map)| {
        let changes = map
            .into_iter()
            .flat_map(|(index, (plus, copies))| std::iter::repeat_n(change(index, plus), copies))
            .collect();
        steps(Tau::from_steps(size).unwrap(), changes)
    })
}

fn any_sums() -> impl Strategy<Value = Payload> {
    let moves = prop_oneof![-5..6i32, -100_000..100_000i32].prop_filter("no zeros", |steps| *steps != 0);
    proptest::collection::btree_map(0..WEIGHTS as u32, moves, 0..WEIGHTS)
        .prop_map(|map| sums(map.into_iter().collect()))
}

fn any_dense() -> impl Strategy<Value = Payload> {
    let steps = prop_oneof![-5..6i32, -100_000..100_000i32];
    (0..20u32, proptest::collection::vec(steps, 0..WEIGHTS - 20))
        .prop_map(|(first, steps)| Payload::Dense(Dense::checked(first, steps, WEIGHTS).unwrap()))
}

fn any_batch() -> impl Strategy<Value = Batch> {
    (1..1000u64, prop_oneof![any_steps(), any_sums(), any_dense()])
        .prop_map(|(sequence, payload)| batch(sequence, payload))
}

proptest! {
    #[test]
    fn the_bytes_give_back_its_batch(batch in any_batch()) {
        prop_assert_eq!(Batch::decode(&encoded(&batch), WEIGHTS), Ok(batch));
    }

    #[test]
    fn any_order_gives_the_same_weights_to_the_bit(
        batches in proptest::collection::vec(any_batch(), 1..12),
        counts in proptest::collection::vec(-100_000..100_000i32, WEIGHTS),
        order_seed: u64,
    ) {
        let mut shuffled = batches.clone();
        crate::rng::CounterRng::new(order_seed, 0).shuffle(&mut shuffled);
        let replica = |batches: &[Batch]| {
            let mut weights: Vec<f32> = counts.iter().copied().map(weight_of).collect();
            let mut own = weights.clone();
            let mut integers = counts.clone();
            let mut expected = Digest::of_counts(&counts);
            for batch in batches {
                match &batch.payload {
                    Payload::Steps { tau, changes } => apply_to_weights(changes, *tau, &mut weights).unwrap(),
                    Payload::Sums(sums) => sums.apply_to_both(&mut weights, &mut own).unwrap(),
                    Payload::Dense(dense) => dense.apply_to_both(&mut weights, &mut own).unwrap(),
                };
                batch.payload.apply_to_counts(&mut integers).unwrap();
                expected += batch.header.digest;
            }
            let bits: Vec<u32> = weights.iter().map(|weight| weight.to_bits()).collect();
            let ledger: Vec<u32> = integers.iter().map(|&count| weight_of(count).to_bits()).collect();
            assert_eq!(bits, ledger, "the float weights and the integer counts differ");
            assert_eq!(Digest::of_counts(&integers), expected);
            assert_eq!(Digest::of_weights(&weights), Some(expected));
            (bits, expected)
        };
        prop_assert_eq!(replica(&batches), replica(&shuffled));
    }

    #[test]
    fn damaged_batches_are_refused(batch in any_batch(), position: prop::sample::Index, flip in 1..=255u8) {
        let mut bytes = encoded(&batch);
        let position = position.index(bytes.len());
        bytes[position] ^= flip;
        prop_assert!(Batch::decode(&bytes, WEIGHTS).is_err());
        bytes[position] ^= flip;
        prop_assert!(Batch::decode(&bytes[..position], WEIGHTS).is_err());
        bytes.push(0);
        prop_assert!(Batch::decode(&bytes, WEIGHTS).is_err());
    }

    /// Tests forged bytes with a valid checksum, which a hostile sender can compute: the decoder must refuse them, or
    /// they must be a valid batch.
    #[test]
    fn forged_batches_are_refused_or_valid(batch in any_batch(), position: prop::sample::Index, value: u8) {
        let mut bytes = encoded(&batch);
        bytes.truncate(checksum::open(&bytes).unwrap().len());
        let position = position.index(bytes.len());
        bytes[position] = value;
        checksum::close(&mut bytes, 0);
        if let Ok(accepted) = Batch::decode(&bytes, WEIGHTS) {
            match &accepted.payload {
                Payload::Steps { tau, changes } => {
                    prop_assert_eq!(crate::weights::changes::check(changes, WEIGHTS, *tau), Ok(()));
                }
                Payload::Sums(sums) => prop_assert!(Sums::checked(sums.entries().to_vec(), WEIGHTS).is_some()),
                Payload::Dense(dense) => {
                    prop_assert!(Dense::checked(dense.first(), dense.steps().to_vec(), WEIGHTS).is_some());
                }
            }
            prop_assert_eq!(accepted.header.digest, accepted.payload.digest());
        }
    }

    #[test]
    fn random_bytes_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        prop_assert!(Batch::decode(&bytes, WEIGHTS).is_err());
    }
}

#[test]
fn golden_bytes() {
    let tau = Tau::from_steps(300).unwrap();
    let bytes = encoded(&batch(
        5,
        steps(tau, vec![change(1, true), change(3, false), change(8, true)]),
    ));
    // Fields: version, run, origin, sequence, seen; digest; cursors; samples, loss, status; form, count, bytes;
    // payload; checksum.
    let golden = "05 a222 c466 05 c801 e4a1aede8a8bc48c7c 01010240 40 0000003f 05ac02 00 ac02 01 03 03 01170e 045babf9";
    assert_eq!(bytes, crate::weights::encoding::tests::bytes(golden));
    let bytes = encoded(&batch(5, sums(vec![(1, 300), (3, -2), (8, 7)])));
    let golden = "05 a222 c466 05 c801 d39bd8aed6e7f89912 01010240 40 0000003f 05ac02 01 03 07 0006c2b503b011 309e333c";
    assert_eq!(bytes, crate::weights::encoding::tests::bytes(golden));
}

#[test]
fn an_unknown_version_is_named() {
    let mut bytes = encoded(&batch(1, Payload::default()));
    bytes.truncate(checksum::open(&bytes).unwrap().len());
    bytes[0] = 9;
    checksum::close(&mut bytes, 0);
    assert_eq!(Batch::decode(&bytes, WEIGHTS), Err(BatchError::UnknownVersion(9)));
}

#[test]
fn lies_in_a_header_are_named() {
    let honest = batch(1, steps(Tau::ONE_STEP, vec![change(4, true)]));
    let mut liar = honest.clone();
    liar.header.digest = Digest(1);
    assert_eq!(
        Batch::decode(&encoded(&liar), WEIGHTS),
        Err(BatchError::DigestDisagrees)
    );
    let mut liar = honest.clone();
    liar.header.sequence = 0;
    assert_eq!(Batch::decode(&encoded(&liar), WEIGHTS), Err(BatchError::NoSequence));
    let mut liar = honest;
    liar.header.cursors = vec![liar.header.cursors[0]; CURSORS_MAX + 1];
    assert_eq!(Batch::decode(&encoded(&liar), WEIGHTS), Err(BatchError::BadHeader));
}

#[test]
fn sums_that_move_a_weight_too_far_are_refused() {
    let far = |steps| Batch::decode(&encoded(&batch(1, sums(vec![(4, steps)]))), WEIGHTS);
    assert!(far(BATCH_STEPS_MAX as i32 - 1).is_ok());
    let refused = Err(BatchError::Payload(ChangesError::MovesTooFar(4).into()));
    assert_eq!(far(BATCH_STEPS_MAX as i32), refused);
    assert_eq!(far(-(BATCH_STEPS_MAX as i32)), refused);
}
