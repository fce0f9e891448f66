//! Tests of the log: the batches that it keeps, merges and forgets.

use protocol::log::batch::{Header, OriginStatus};
use protocol::weights::changes::change;
use protocol::weights::dense::Dense;
use protocol::weights::lattice::Tau;

use super::*;
use crate::exchange::tests::{RUN, WEIGHTS, batch};

const ONE: OriginId = OriginId(1);
const OTHER: OriginId = OriginId(2);

fn bytes(origin: OriginId, sequence: u64) -> Arc<[u8]> {
    let changes = [change(sequence as u32 % 64, true)];
    batch(origin, sequence, &changes, Tau::from_steps(sequence as u32).unwrap())
}

fn log(lengths: &[(OriginId, u64)]) -> Log {
    let mut log = Log::new(RUN, WEIGHTS);
    for &(origin, length) in lengths {
        (1..=length).for_each(|sequence| log.append(origin, sequence, bytes(origin, sequence)));
    }
    log
}

fn frontier(origin: OriginId, sequence: u64) -> Frontier {
    let mut frontier = Frontier::default();
    frontier.raise(origin, sequence);
    frontier
}

fn points(points: &[u64]) -> BTreeSet<u64> {
    points.iter().copied().collect()
}

fn ranges(log: &Log, origin: OriginId) -> Vec<(u64, u64)> {
    let entries = log.origins.get(&origin).into_iter().flatten();
    entries.map(|entry| (entry.from, entry.to)).collect()
}

#[test]
fn batches_stay_until_nobody_needs_them() {
    let mut log = log(&[(ONE, 5), (OTHER, 1)]);
    log.trim(&frontier(ONE, 3));
    assert!(log.get(ONE, 3).is_none());
    assert!(log.get(ONE, 4).is_some() && log.get(ONE, 5).is_some());
    assert!(log.get(ONE, 6).is_none());
    assert!(log.get(OTHER, 1).is_some());
    log.append(ONE, 6, bytes(ONE, 6));
    assert!(log.get(ONE, 6).is_some());
    log.trim(&frontier(ONE, 6));
    log.trim(&frontier(OTHER, 1));
    assert_eq!((log.single_bytes(), log.merged_bytes()), (0, 0));
}

#[test]
fn a_log_can_start_in_the_middle() {
    let mut log = Log::new(RUN, WEIGHTS);
    log.append(ONE, 8, bytes(ONE, 8));
    assert!(log.get(ONE, 7).is_none());
    assert!(log.get(ONE, 8).is_some());
}

#[test]
fn merging_stops_at_points_and_before_what_is_recent() {
    let mut log = log(&[(ONE, 10)]);
    let before = log.merged(ONE, 0, 10).unwrap();
    log.compact(ONE, &self::points(&[0, 4]), 3);
    assert_eq!(ranges(&log, ONE), [(0, 4), (4, 8), (8, 9), (9, 10)]);
    assert_eq!(log.merged(ONE, 0, 10), Some(before.clone()));
    assert!(log.merged(ONE, 4, 9).is_some());
    assert!(
        log.merged(ONE, 3, 10).is_none(),
        "sequence 3 lies within a range, so no merged range can begin there"
    );
    assert!(
        log.merged(ONE, 0, 5).is_none(),
        "sequence 5 lies within a range, so no merged range can end there"
    );
    assert!(log.get(ONE, 4).is_none() && log.get(ONE, 9).is_some());
    let points: Vec<u64> = (0..12).filter(|&sequence| log.is_point(ONE, sequence)).collect();
    assert_eq!(points, [0, 4, 8, 9, 10, 11]);
    log.compact(ONE, &self::points(&[0]), 1);
    assert_eq!(ranges(&log, ONE), [(0, 10)]);
    assert_eq!(log.merged(ONE, 0, 10), Some(before));
    assert_eq!(log.single_bytes(), 0);
    log.trim(&frontier(ONE, 9));
    assert_eq!(
        ranges(&log, ONE),
        [(0, 10)],
        "a range that is still needed in part is kept"
    );
    log.trim(&frontier(ONE, 10));
    assert_eq!(log.merged_bytes(), 0);
}

#[test]
fn anothers_log_goes_on_where_this_one_ends() {
    let entries = |log: &Log| log.entries(ONE).cloned().collect::<Vec<_>>();
    let mut theirs = log(&[(ONE, 12)]);
    theirs.compact(ONE, &points(&[2, 5, 9]), 1);
    let adopted = |theirs: &Log, to| {
        let mut mine = log(&[(ONE, 6)]);
        mine.compact(ONE, &points(&[3, 5]), 1);
        mine.adopt(ONE, to, entries(theirs).into_iter());
        let whole = mine.merged(ONE, 0, to);
        (ranges(&mine, ONE), whole)
    };
    let all = log(&[(ONE, 12)]).merged(ONE, 0, 12);
    // The other log's entry from 5 to 9 spans the 6 at which this log ends, and both have a point at 5.
    let expected = vec![(0, 3), (3, 5), (5, 6), (6, 9), (9, 12)];
    assert_eq!(adopted(&theirs, 12), (expected, all.clone()));
    theirs.compact(ONE, &points(&[2]), 1);
    let expected = vec![(0, 3), (3, 5), (5, 6), (6, 12)];
    assert_eq!(adopted(&theirs, 12), (expected, all), "both logs begin at sequence 0");
    assert_eq!(adopted(&theirs, 13).0, [], "the other log ends before sequence 13");
    let mut late = log(&[(ONE, 12)]);
    late.trim(&frontier(ONE, 1));
    late.compact(ONE, &points(&[]), 1);
    assert_eq!(adopted(&late, 12).0, [(1, 12)], "the two logs have no point in common");
    let mut lies = entries(&log(&[(ONE, 12)]));
    lies[7].from = 6;
    let mut mine = log(&[(ONE, 6)]);
    mine.adopt(ONE, 12, lies.into_iter());
    assert_eq!(ranges(&mine, ONE), [(8, 9), (9, 10), (10, 11), (11, 12)]);
}

#[test]
fn a_range_may_be_asked_for_up_to_the_newest() {
    let log = log(&[(ONE, 3)]);
    assert_eq!(log.merged(ONE, 1, 99).map(|range| range.header.to), Some(3));
    assert!(log.merged(ONE, 3, 99).is_none(), "no batch follows sequence 3");
    assert!(log.merged(OTHER, 0, 9).is_none());
}

#[test]
fn a_bundle_is_an_entry_of_each_of_its_origins_and_merges_with_none() {
    let steps = |seed: i32| Dense::checked(0, vec![seed; WEIGHTS], WEIGHTS).unwrap();
    let header = |origin, sequence, dense: &Dense| Header {
        run: RUN,
        origin,
        sequence,
        seen: 0,
        digest: dense.digest(),
        cursors: Vec::new(),
        samples: 1,
        loss: 0.0,
        status: OriginStatus::default(),
    };
    let mut log = log(&[(ONE, 3), (OTHER, 1)]);
    let before = log.merged_bytes();
    let bundle = Bundle {
        headers: vec![header(ONE, 4, &steps(1)), header(OTHER, 2, &steps(2))],
        dense: steps(3),
    };
    let bytes: Arc<[u8]> = bundle.encode().unwrap().into();
    log.append_bundle(&bundle, &bytes);
    (5..=6).for_each(|sequence| log.append(ONE, sequence, self::bytes(ONE, sequence)));
    assert!(log.get(ONE, 4).is_none() && log.merged(ONE, 0, 6).is_none() && log.merged(ONE, 4, 6).is_some());
    assert_eq!(log.bundled_after(ONE, 3).unwrap()[..], [(ONE, 4), (OTHER, 2)]);
    assert_eq!(log.bundle_from(ONE, 1), Some(3));
    // A bundle is counted once, in equal parts for its origins.
    assert!(log.merged_bytes() - before <= bytes.len() && log.merged_bytes() - before + 2 > bytes.len());
    log.compact(ONE, &points(&[0]), 1);
    assert_eq!(ranges(&log, ONE), [(0, 3), (3, 4), (4, 6)]);

    // A node that has one batch of the bundle and not the other has to remember that batch.
    let mut cut = frontier(ONE, 4);
    assert!(log.is_cut(ONE, &cut) && !log.is_cut(OTHER, &cut));
    cut.raise(OTHER, 2);
    assert!(!log.is_cut(ONE, &cut) && !log.is_cut(OTHER, &cut));

    // Another node takes the log over.
    let mut theirs = Log::new(RUN, WEIGHTS);
    theirs.adopt(OTHER, 2, log.entries(OTHER).cloned().collect::<Vec<_>>().into_iter());
    assert_eq!(theirs.bundled_after(OTHER, 1).unwrap()[..], [(ONE, 4), (OTHER, 2)]);
    log.trim(&frontier(ONE, 6));
    log.trim(&frontier(OTHER, 2));
    assert_eq!((log.single_bytes(), log.merged_bytes()), (0, 0));
}
