//! Tests that no size of the terminal and no record from the network makes drawing fail.

use super::*;

#[test]
fn no_size_is_too_small_or_too_odd() {
    let mut over = training(5);
    over.take_facts(facts("finished", Some(finished(true, &["delta"]))), 0.0);
    let keys: [&[KeyCode]; 4] = [&[], &[KeyCode::Char('?')], &[KeyCode::Enter], &[KeyCode::End]];
    for timeline in [Timeline::default(), training(5), over, crowd(30)] {
        for keys in keys {
            for width in [1, 2, 5, 9, 41, 79, 120, 300] {
                for height in (1..30).chain([60, 100]) {
                    after_keys(&timeline, keys, (width, height));
                }
            }
        }
    }
}

#[test]
fn before_the_first_record_it_says_so() {
    let lines = screen(&Timeline::default(), 80, 24);
    assert_eq!(lines[0], "no records from the cluster yet");
    assert!(lines[23].starts_with("q leave"));
}

#[test]
fn what_is_not_known_is_a_dash() {
    let first = |node| StatsRecord {
        loss: None,
        tau: 0.0,
        ..record(node, 1)
    };
    let lines = screen(&timeline(&[first("alpha"), first("beta")]), 80, 24);
    let cells: Vec<&str> = lines[3].split_whitespace().collect();
    assert_eq!(cells[3..9], ["–", "–", "0.20", "–", "–", "1.5"]);
    assert_eq!(dots(&lines), 0);
}

#[test]
fn one_node_alone_exchanges_nothing() {
    let titles = |records: &[StatsRecord]| {
        let lines = screen(&timeline(records), 200, 24);
        let titles = lines.iter().find(|line| line.starts_with("node")).unwrap().clone();
        ["in B/s", "out B/s", "exchange %"].map(|title| titles.contains(title))
    };
    assert_eq!(titles(&[record("alpha", 1)]), [false; 3]);
    assert_eq!(titles(&[record("alpha", 1), record("beta", 1)]), [true; 3]);
}

/// Names come from the network and must not control the terminal.
#[test]
fn control_characters_do_not_reach_the_terminal() {
    let evil = StatsRecord {
        node: "a\u{1b}[2Jb\nc".into(),
        run: "\u{1b}]0;x\u{7}".into(),
        state: "\u{9b}31m".into(),
        said: vec![LogNotice {
            severity: Severity::Error,
            text: "\u{1b}[31mred\r\n".into(),
        }]
        .into(),
        peers: vec![PeerRecord {
            node: "\u{1b}[H".into(),
            bytes_in: 0,
            bytes_out: 0,
            lag: 0,
            queue: 0,
        }],
        ..record("a", 1)
    };
    let mut timeline = timeline(&[evil]);
    let reason = "\u{1b}[2J".into();
    timeline.take_facts(
        Facts {
            run: "\u{1b}]0;x\u{7}".into(),
            waiting: vec![WaitingFor::Told("\u{1b}c".into())],
            ..facts("failed", Some(End::Failed { reason }))
        },
        0.0,
    );
    for keys in [&[][..], &[KeyCode::Enter]] {
        let text = after_keys(&timeline, keys, (80, 24)).concat();
        assert!(!text.contains(char::is_control), "{text:?}");
    }
}

#[test]
fn no_number_is_too_large_or_too_odd() {
    let odd = [
        0.0,
        -1.0,
        f64::MAX,
        f64::MIN,
        f64::INFINITY,
        f64::NAN,
        f64::MIN_POSITIVE,
    ];
    let mut timeline = Timeline::default();
    for (second, value) in (1..).zip(odd) {
        let odd = StatsRecord {
            samples_per_second: value,
            loss: Some(value),
            accuracy: Some(value),
            tau: value,
            density: value,
            staleness: value,
            exchange_share: value,
            cpu: value,
            samples: u64::MAX,
            ledger_samples: u64::MAX,
            memory_bytes: u64::MAX,
            evaluation: Some(Evaluation {
                samples: u64::MAX,
                seconds: value,
                accuracy: Some(value),
                loss: value,
                ..Evaluation::default()
            }),
            ..record("odd", second)
        };
        let even = StatsRecord {
            loss: Some(1.0),
            ..record("even", second)
        };
        timeline.take(&[odd, even]);
        timeline.take_facts(facts("training", None), 0.0);
        for keys in [&[][..], &[KeyCode::Enter], &[KeyCode::Char('x')], &[KeyCode::Char('l')]] {
            after_keys(&timeline, keys, (80, 24));
            after_keys(&timeline, keys, (200, 60));
        }
    }
}
