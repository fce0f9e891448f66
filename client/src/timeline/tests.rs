//! Tests of timelines built from records.

use protocol::stats::{LogNotice, Severity};

use super::*;

const RUN: &str = "0000000000000007";

fn record(node: &str, second: u32) -> StatsRecord {
    StatsRecord {
        node: node.into(),
        run: RUN.into(),
        state: "training".into(),
        time: 1e9 + f64::from(second),
        seconds: f64::from(second),
        samples: u64::from(second) * 10,
        ledger_samples: u64::from(second) * 20,
        samples_per_second: 10.0,
        loss: Some(1.0),
        digest: format!("digest {second}"),
        bytes_out: u64::from(second) * 100,
        ..StatsRecord::default()
    }
}

fn events(happened: Vec<Happened>) -> Vec<TimelineEntry> {
    happened.into_iter().map(|happened| happened.what).collect()
}

fn facts(phase: &'static str, end: Option<End>) -> Facts {
    Facts {
        run: RUN.into(),
        data: "builtin:mnist".into(),
        model: "dense 10".into(),
        optimiser: "sgd".into(),
        exchange: "strom".into(),
        epochs: 2,
        train: 100,
        phase,
        waiting: Vec::new(),
        end,
    }
}

#[test]
fn a_node_takes_part_once_also_if_it_was_away_when_the_run_ended() {
    let mut timeline = Timeline::default();
    timeline.take(&[record("a", 1), record("b", 1)]);
    (2..9).for_each(|second| drop(timeline.take(&[record("b", second)])));
    let end = End::Failed { reason: "x".into() };
    timeline.take_facts(facts("ended", Some(end)), 1e9 + 9.0);
    // The cluster drops the node, and the node comes back.
    timeline.take_members(&[]);
    assert_eq!(timeline.nodes().len(), 1);
    let back = events(timeline.take(&[record("a", 10)]));
    assert_eq!(back, [TimelineEntry::Back { node: "a".into() }]);
}

#[test]
fn silence_is_noted_once_and_who_is_silent_is_in_no_mean() {
    let mut timeline = Timeline::default();
    let node = || String::from("a");
    let joined = events(timeline.take(&[record("a", 1), record("b", 1)]));
    let b = TimelineEntry::Joined { node: "b".into() };
    assert_eq!(joined, [TimelineEntry::Joined { node: node() }, b]);
    assert_eq!(timeline.nodes().samples_per_second(), 20.0);
    let happened: Vec<TimelineEntry> = (2..9)
        .flat_map(|second| events(timeline.take(&[record("b", second)])))
        .collect();
    assert_eq!(happened, [TimelineEntry::Silent { node: node() }]);
    assert_eq!(timeline.nodes().samples_per_second(), 10.0);
    let silent = timeline.nodes().iter().next().unwrap();
    assert_eq!((silent.state(), silent.silent), ("silent", Some(7.0)));
    assert_eq!(
        timeline.nodes().total(|record| record.samples),
        10 + 80,
        "the samples of a silent node still count"
    );
    let back = events(timeline.take(&[record("a", 9)]));
    assert_eq!(back, [TimelineEntry::Back { node: node() }]);
}

#[test]
fn a_run_that_is_over_stays_as_it_was() {
    let mut timeline = Timeline::default();
    timeline.take_facts(facts("training", None), 1e9);
    for second in 1..5 {
        timeline.take(&[record("a", second), record("b", second)]);
    }
    let summary = timeline.summary();
    assert_eq!((summary.samples, summary.share), (80, Some(0.4)));
    assert_eq!((summary.left, summary.epoch), (Some(6.0), Some(0.8)));
    let replicas = summary.replicas;
    assert_eq!((replicas.equal, replicas.of, &*replicas.digest), (2, 2, "digest 4"));
    // Records of a node that has left the exchange do not count.
    let idle = |node: &str, second: u32| StatsRecord {
        node: node.into(),
        run: RUN.into(),
        state: "idle".into(),
        time: 1e9 + f64::from(second),
        ..StatsRecord::default()
    };
    timeline.take(&[idle("a", 5), idle("b", 6)]);
    assert_eq!(timeline.summary().samples, 80);
    assert_eq!(timeline.nodes().total(|record| record.samples), 80);
    let seconds: Vec<f64> = timeline.curve().points().iter().map(|point| point.seconds).collect();
    assert_eq!(seconds, [1.0, 2.0, 3.0, 4.0]);
    let happened = timeline.take_facts(
        facts(
            "finished",
            Some(End::Finished {
                accuracy: Some(0.9),
                mae: None,
                loss: 0.1,
                samples: 200,
                seconds: 10.0,
                agree: true,
                nodes: 3,
                missing: Vec::new(),
                digest: "end".into(),
                reason: "trained".into(),
                model: "model".into(),
            }),
        ),
        1e9 + 6.0,
    );
    let reason = "trained".into();
    assert_eq!(events(happened), [TimelineEntry::Finished { reason }]);
    let summary = timeline.summary();
    assert_eq!(
        (summary.share, summary.left, summary.accuracy),
        (Some(1.0), None, Some(0.9))
    );
    assert_eq!((summary.replicas.equal, &*summary.state), (3, "finished"));
}

#[test]
fn the_next_run_begins_afresh_and_what_comes_late_of_the_last_is_left_out() {
    let mut timeline = Timeline::default();
    timeline.take(&[record("a", 1), record("a", 2)]);
    let next = StatsRecord {
        run: "0000000000000008".into(),
        ..record("b", 3)
    };
    timeline.take(&[next, record("a", 3)]);
    assert_eq!((timeline.run(), timeline.summary().samples), ("0000000000000008", 60));
    let late = timeline.nodes().iter().next().unwrap();
    assert_eq!((&*late.record.node, late.record.samples), ("a", 0));
    // Facts of the old run that arrive before the first record of the new one are ignored too.
    let reason = "it has failed".into();
    timeline.take_facts(facts("failed", Some(End::Failed { reason })), 1e9);
    assert!(timeline.facts().is_none());
}

#[test]
fn what_nodes_say_happens_and_the_grave_is_their_trouble() {
    let mut timeline = Timeline::default();
    let notice = |severity, text: &str| LogNotice {
        severity,
        text: text.into(),
    };
    let said = vec![
        notice(Severity::Warning, "a worker is stuck"),
        notice(Severity::News, "saved"),
    ]
    .into();
    let happened = timeline.take(&[StatsRecord { said, ..record("a", 1) }]);
    assert_eq!(happened.len(), 3);
    let node = timeline.nodes().iter().next().unwrap();
    assert_eq!(node.trouble.as_deref(), Some("a worker is stuck"));
    let text = serde_json::to_value(&happened[1]).unwrap();
    assert_eq!((&text["event"], &text["gravity"]), (&"said".into(), &"warning".into()));
    assert_eq!(timeline.happened_after(1).count(), 2);
}

#[test]
fn evaluations_are_taken_once_and_the_best_stays() {
    let mut timeline = Timeline::default();
    let evaluated = |second: u32, accuracy| StatsRecord {
        evaluation: Some(Evaluation {
            seconds: f64::from(second),
            accuracy: Some(accuracy),
            ..Evaluation::default()
        }),
        ..record("a", second + 1)
    };
    timeline.take(&[
        evaluated(1, 0.5),
        evaluated(1, 0.5),
        evaluated(3, 0.9),
        evaluated(4, 0.8),
    ]);
    assert_eq!(timeline.evaluations().len(), 3);
    let summary = timeline.summary();
    assert_eq!((summary.accuracy, summary.best), (Some(0.8), Some(0.9)));
}

#[test]
fn a_run_without_accuracy_is_judged_by_its_lowest_loss() {
    let mut timeline = Timeline::default();
    let evaluated = |second: u32, loss| StatsRecord {
        evaluation: Some(Evaluation {
            seconds: f64::from(second),
            loss,
            ..Evaluation::default()
        }),
        ..record("a", second + 1)
    };
    timeline.take(&[evaluated(1, 3.0), evaluated(2, 2.0), evaluated(3, 2.5)]);
    let summary = timeline.summary();
    assert_eq!(summary.quality(), (QualityMetric::Loss, Some(2.5)));
    assert_eq!((summary.accuracy, summary.best), (None, Some(2.0)));
}

#[test]
fn members_that_have_said_nothing_are_shown_and_dropped_with_the_list() {
    let member = |node: &str| NodeReport {
        node: node.into(),
        address: "192.0.2.1:7700".into(),
        state: "idle".into(),
        device: "cpu".into(),
        workers: 1,
        since: 0.0,
        rtt_ms: None,
    };
    let mut timeline = Timeline::default();
    timeline.take_members(&[member("a"), member("b")]);
    timeline.take(&[record("a", 1)]);
    assert_eq!(timeline.nodes().len(), 2, "members are kept when a new run begins");
    timeline.take_members(&[member("c")]);
    let names: Vec<&str> = timeline.nodes().iter().map(|node| &*node.record.node).collect();
    assert_eq!(names, ["a", "c"]);
}

/// A node that took no part in the last two runs still reports the run before them, which must not replace the present
/// run.
#[test]
fn who_speaks_of_an_old_run_does_not_bring_it_back() {
    let mut timeline = Timeline::default();
    timeline.take_facts(facts("training", None), 1e9);
    let stale = StatsRecord {
        run: "000000000000000a".into(),
        state: "idle".into(),
        ..record("x", 2)
    };
    timeline.take(&[record("a", 1), stale.clone(), record("a", 2)]);
    assert_eq!((timeline.run(), timeline.summary().samples), (RUN, 40));
    let other = timeline.nodes().iter().find(|node| node.record.node == "x").unwrap();
    assert_eq!((other.state(), other.record.samples), ("idle", 0));
    // A false record of another run has no effect while the asked nodes are in a run.
    let lie = StatsRecord {
        state: "training".into(),
        ..stale
    };
    timeline.take(&[lie.clone(), record("a", 3)]);
    assert_eq!(timeline.run(), RUN);
    // Before the first facts a false record does have an effect, which the facts then undo.
    let mut timeline = Timeline::default();
    timeline.take(&[record("a", 1), lie]);
    assert_ne!(timeline.run(), RUN);
    timeline.take_facts(facts("training", None), 1e9);
    timeline.take(&[record("a", 2)]);
    assert_eq!((timeline.run(), timeline.summary().samples), (RUN, 40));
}

/// Tests the records of a run that takes less than a second.
#[test]
fn a_short_run_has_a_curve_and_all_its_evaluations() {
    let at = |node: &str, hundredths: u32, evaluations: &[f64]| {
        let seconds = f64::from(hundredths) / 100.0;
        let evaluations = evaluations.iter().map(|&seconds| Evaluation {
            seconds,
            ..Evaluation::default()
        });
        StatsRecord {
            time: 1e9 + seconds,
            seconds,
            evaluations: evaluations.collect(),
            ..record(node, 1)
        }
    };
    let mut timeline = Timeline::default();
    for hundredths in [5, 10, 20] {
        timeline.take(&[at("b", hundredths, &[])]);
    }
    // The first node that settles has trained nothing in the last tenths of a second.
    let idle = StatsRecord {
        loss: None,
        ..at("b", 40, &[])
    };
    timeline.take(&[idle, at("a", 39, &[0.1, 0.2, 0.3])]);
    let seconds: Vec<f64> = timeline.evaluations().iter().map(|one| one.seconds).collect();
    assert_eq!(seconds, [0.1, 0.2, 0.3]);
    let end = End::Finished {
        accuracy: Some(0.9),
        mae: None,
        loss: 0.1,
        samples: 20,
        seconds: 0.4,
        agree: true,
        nodes: 1,
        missing: vec!["b".into()],
        digest: String::new(),
        reason: String::new(),
        model: String::new(),
    };
    timeline.take_facts(facts("finished", Some(end)), 1e9 + 0.5);
    let points = timeline.curve().points().iter();
    let points: Vec<_> = points.map(|point| (point.seconds, point.loss.is_finite())).collect();
    let expected = [(0.05, true), (0.1, true), (0.2, true), (0.4, false), (0.4, true)];
    assert_eq!(
        points, expected,
        "the last point of the curve lies at the end of the run"
    );
    let last = Evaluation {
        seconds: 0.4,
        ..Evaluation::default()
    };
    timeline.close(&[timeline.evaluations(), &[last]].concat());
    assert_eq!(timeline.evaluations().len(), 4);
    let states: Vec<&str> = timeline.nodes().iter().map(Node::state).collect();
    assert_eq!(
        states,
        ["finished", "training"],
        "node b is missing at the end, so its state stays"
    );
}

#[test]
fn who_has_left_is_forgotten_once_the_run_is_over() {
    let mut timeline = Timeline::default();
    timeline.take_facts(facts("training", None), 1e9);
    timeline.take(&[record("a", 1), record("gone", 1)]);
    timeline.take(&[record("a", 9)]);
    timeline.take_members(&[]);
    assert_eq!(timeline.nodes().len(), 2, "the samples of a silent node still count");
    let reason = "x".into();
    timeline.take_facts(facts("failed", Some(End::Failed { reason })), 1e9);
    timeline.take_members(&[]);
    assert_eq!(timeline.nodes().len(), 1);
}

#[test]
fn what_is_told_again_changes_nothing() {
    let mut timeline = Timeline::default();
    timeline.take(&[record("a", 1), record("b", 1), record("a", 20), record("b", 20)]);
    assert_eq!(timeline.take(&[record("a", 1), record("b", 2)]), []);
    assert!(timeline.nodes().iter().all(|node| !node.is_silent()));
}
