use proptest::prelude::*;

use super::*;
use crate::weights::changes::change;

const ALL: [Encoding; 3] = [Encoding::Fixed, Encoding::Rice, Encoding::Bitmap];

fn one_step(changes: &[u32], weights: usize, encoding: Encoding, payload: &[u8]) -> Result<Vec<u32>, PayloadError> {
    let mut out = vec![7; 3];
    let result = decode(encoding, payload, changes.len(), weights, Tau::ONE_STEP, &mut out);
    if result.is_err() {
        assert!(out.is_empty(), "a refused payload left changes behind");
    }
    result.map(|()| out)
}

pub(crate) fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex
        .chars()
        .filter_map(|digit| Some(digit.to_digit(16)? as u8))
        .collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

/// Generates sorted changes with one sign per weight; with `repeats`, some changes repeat.
fn changes(weights: u32, repeats: bool) -> impl Strategy<Value = Vec<u32>> {
    let copies = if repeats { 1..4usize } else { 1..2 };
    proptest::collection::btree_map(0..weights, (any::<bool>(), copies), 0..200).prop_map(|map| {
        map.into_iter()
            .flat_map(|(index, (plus, copies))| std::iter::repeat_n(change(index, plus), copies))
            .collect()
    })
}

proptest! {
    #[test]
    fn every_encoding_gives_back_what_it_took(
        (weights, changes) in prop_oneof![Just(201u32), Just(5_000), Just((1 << 31) - 1)]
            .prop_flat_map(|weights| (Just(weights), any::<bool>()))
            .prop_flat_map(|(weights, repeats)| (Just(weights), changes(weights, repeats)))
    ) {
        let weights = weights as usize;
        for encoding in ALL {
            // A bitmap of two thousand million weights is valid, but takes too much memory for a test.
            if encoding == Encoding::Bitmap && weights > 1 << 20 {
                continue;
            }
            let mut payload = Vec::new();
            if encode(encoding, &changes, &mut payload) {
                prop_assert_eq!(one_step(&changes, weights, encoding, &payload), Ok(changes.clone()));
            } else {
                prop_assert!(encoding == Encoding::Bitmap && changes::has_repeats(&changes));
            }
        }
        let mut payload = Vec::new();
        let encoding = encode_shortest(&changes, &mut payload);
        prop_assert_eq!(one_step(&changes, weights, encoding, &payload), Ok(changes.clone()));
        prop_assert!(payload.len() <= changes.len() * 4);
    }

    #[test]
    fn any_bytes_are_refused_or_mean_valid_changes(
        payload in proptest::collection::vec(any::<u8>(), 0..300),
        count in 0..400usize,
        weights in 1..100_000usize,
    ) {
        for encoding in ALL {
            let mut out = Vec::new();
            if decode(encoding, &payload, count, weights, Tau::ONE_STEP, &mut out).is_ok() {
                prop_assert_eq!(out.len(), count);
                prop_assert_eq!(changes::check(&out, weights, Tau::ONE_STEP), Ok(()));
                // Accepted changes have only this form in this encoding, apart from Rice's free choice of parameter.
                if encoding != Encoding::Rice {
                    let mut again = Vec::new();
                    prop_assert!(encode(encoding, &out, &mut again));
                    prop_assert_eq!(again, payload.clone());
                }
            } else {
                prop_assert!(out.is_empty());
            }
            prop_assert!(out.capacity() <= payload.len() * 8);
        }
    }

    #[test]
    fn truncated_payloads_are_refused(changes in changes(5_000, true), cut in 1..50usize) {
        prop_assume!(!changes.is_empty());
        for encoding in ALL {
            let mut payload = Vec::new();
            if encode(encoding, &changes, &mut payload) {
                let kept = payload.len().saturating_sub(cut);
                prop_assert!(one_step(&changes, 5_000, encoding, &payload[..kept]).is_err());
                payload.push(0);
                prop_assert!(one_step(&changes, 5_000, encoding, &payload).is_err());
            }
        }
    }
}

#[test]
fn golden_bytes() {
    // These bytes are part of the batch format: a change of them needs a new `batch::VERSION`.
    let changes = [change(1, true), change(3, false), change(8, true)];
    let golden = [
        (Encoding::Fixed, "0300000006000000 11000000"),
        // k = 1: gaps 1, 2, 5 are 1|1|+, 01|0|-, 001|1|+, written from the low end.
        (Encoding::Rice, "01 170e"),
        (Encoding::Bitmap, "01000000 2140"),
    ];
    for (encoding, hex) in golden {
        let mut payload = Vec::new();
        assert!(encode(encoding, &changes, &mut payload));
        assert_eq!(payload, bytes(hex), "{encoding:?}");
        assert_eq!(one_step(&changes, 9, encoding, &payload), Ok(changes.to_vec()));
    }
}

#[test]
fn each_fault_is_refused() {
    let changes = [change(1, true), change(3, false), change(8, true)];
    for encoding in ALL {
        let mut payload = Vec::new();
        assert!(encode(encoding, &changes, &mut payload));
        assert!(matches!(
            one_step(&changes, 8, encoding, &payload),
            Err(PayloadError::Changes(ChangesError::IndexOutOfRange {
                index: 8,
                weights: 8
            }))
        ));
        let mut out = Vec::new();
        for count in [2, 4] {
            assert!(decode(encoding, &payload, count, 9, Tau::ONE_STEP, &mut out).is_err());
        }
    }
    let bitmap = |bytes: &[u8]| {
        let mut out = Vec::new();
        decode(Encoding::Bitmap, bytes, 2, 100, Tau::ONE_STEP, &mut out)
    };
    assert_eq!(bitmap(&[0, 0, 0, 0, 0b0000_0101]), Ok(()));
    assert_eq!(bitmap(&[0, 0, 0, 0, 0b0000_1101]), Err(PayloadError::BadSymbol));
    assert_eq!(bitmap(&[0, 0, 0, 0, 0b0000_0101, 0]), Err(PayloadError::Padded));
    assert_eq!(bitmap(&[0, 0, 0, 0, 0b0001_0100]), Err(PayloadError::Padded));
    let mut out = Vec::new();
    assert_eq!(
        decode(
            Encoding::Rice,
            &[31, 255, 255, 255, 255, 255],
            1,
            100,
            Tau::ONE_STEP,
            &mut out
        ),
        Err(PayloadError::BadParameter)
    );
    assert_eq!(
        decode(
            Encoding::Rice,
            &[0, 0, 0, 0, 0, 255],
            CHANGES_MAX,
            100,
            Tau::ONE_STEP,
            &mut out
        ),
        Err(PayloadError::Truncated)
    );
    assert_eq!(
        out.capacity(),
        0,
        "the decoder reserved memory for changes that the payload does not hold"
    );
    // A gap of 0 with the other sign: weight 0 up, then down.
    let mixed = [0, 0b0111];
    assert_eq!(
        decode(Encoding::Rice, &mixed, 2, 100, Tau::ONE_STEP, &mut out),
        Err(ChangesError::MixedSigns(0).into())
    );
}

#[test]
fn far_parts_of_a_model_cost_little() {
    // Two clusters of changes, the first far from index 0, the second at the very end.
    const WEIGHTS: usize = 1 << 31;
    let cluster = |start: u32| (0..100).map(move |i| change(start + 5 * i, i % 3 == 0));
    let end = (1u32 << 31) - 1 - 5 * 99;
    let changes: Vec<u32> = cluster(1 << 20).chain(cluster(end)).collect();
    let mut payload = Vec::new();
    assert!(encode(Encoding::Rice, &changes, &mut payload));
    // Four or five bits for most changes, seven bytes for each of the two jumps.
    assert!(payload.len() < 200 * 5 / 8 + 2 * 7, "{} bytes", payload.len());
    assert_eq!(
        one_step(&changes, WEIGHTS, Encoding::Rice, &payload),
        Ok(changes.clone())
    );
    for cut in 1..payload.len() {
        assert!(one_step(&changes, WEIGHTS, Encoding::Rice, &payload[..cut]).is_err());
    }
}

#[test]
fn rice_comes_within_3_percent_of_the_entropy() {
    const WEIGHTS: u32 = 4_000_000;
    let random = crate::rng::CounterRng::new(8, 0);
    for density in [1e-4f64, 1e-3, 1e-2, 1.0 / 16.0] {
        let border = (density * 2f64.powi(63)) as u64;
        let changes: Vec<u32> = (0..WEIGHTS)
            .map(|index| (index, random.at(u64::from(index))))
            .filter(|&(_, draw)| draw >> 1 < border)
            .map(|(index, draw)| change(index, draw & 1 == 1))
            .collect();
        let mut payload = Vec::new();
        assert_eq!(encode_shortest(&changes, &mut payload), Encoding::Rice);
        let found = changes.len() as f64 / f64::from(WEIGHTS);
        let entropy = found - found * found.log2() - (1.0 - found) * (1.0 - found).log2();
        let bound_bytes = entropy * f64::from(WEIGHTS) / 8.0;
        let ratio = payload.len() as f64 / bound_bytes;
        assert!(ratio < 1.03, "{ratio} of the bound at {density}");
    }
}

#[test]
fn the_shortest_is_chosen() {
    let encoding_of = |changes: &[u32]| encode_shortest(changes, &mut Vec::new());
    assert_eq!(encoding_of(&[]), Encoding::Fixed);
    let sparse: Vec<u32> = (0..100).map(|i| change(i * 1000 + i % 7, i % 3 == 0)).collect();
    assert_eq!(encoding_of(&sparse), Encoding::Rice);
    // Every weight changes: a bitmap takes two bits a change, Rice code three.
    let dense: Vec<u32> = (0..10_000).map(|i| change(i, i % 3 == 0)).collect();
    assert_eq!(encoding_of(&dense), Encoding::Bitmap);
    assert_eq!(encoding_of(&[change((1 << 31) - 1, true)]), Encoding::Fixed);
}
