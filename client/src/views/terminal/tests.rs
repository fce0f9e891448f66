//! Tests of the terminal view, with the screen as text.

use std::time::Duration;

use protocol::reasons::waiting::WaitingFor;
use protocol::stats::measured::{Evaluation, ProcessUsage};
use protocol::stats::{LogNotice, NodeReport, PeerRecord, Severity, StatsRecord};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent};
use ratatui::style::Modifier;

use super::*;
use crate::timeline::{End, Facts};

mod odd;

const MEGABYTE: u64 = 1_000_000;
const RUN: &str = "0123456789abcdef";
const START: f64 = 1e9;

/// Returns a node's record at this second of a run.
fn record(node: &str, second: u32) -> StatsRecord {
    let number = u64::from(second);
    StatsRecord {
        node: node.into(),
        run: RUN.into(),
        state: "training".into(),
        time: START + f64::from(second),
        seconds: f64::from(second),
        samples_per_second: 12_500.0,
        samples: number * 12_500,
        ledger_samples: number * 37_500,
        loss: Some(2.3 / f64::from(second)),
        accuracy: (second > 1).then_some(0.97 + f64::from(second) * 0.001),
        evaluation: (second > 1).then_some(Evaluation {
            samples: number * 37_500,
            seconds: f64::from(second),
            accuracy: Some(0.97 + f64::from(second) * 0.001),
            loss: 1.9 / f64::from(second),
            mae: None,
            ..Evaluation::default()
        }),
        tau: 1.21e-3,
        density: 0.002,
        bytes_in: number * 3 * MEGABYTE,
        bytes_out: number * MEGABYTE + number * number * 100_000,
        staleness: 1.5,
        frontier_lag: 4,
        digest: "fedcba9876543210".into(),
        queue: 17,
        exchange_share: 0.126,
        cpu: 1.9,
        memory_bytes: 514 * MEGABYTE,
        ..StatsRecord::default()
    }
}

/// Returns the records of three nodes over this many seconds.
fn three_nodes(seconds: u32) -> Vec<StatsRecord> {
    (1..=seconds)
        .flat_map(|second| ["alpha", "beta", "gamma"].map(|node| record(node, second)))
        .collect()
}

fn facts(phase: &'static str, end: Option<End>) -> Facts {
    Facts {
        run: RUN.into(),
        data: "builtin:mnist".into(),
        model: "dense 100, relu, dense 10".into(),
        optimiser: "muon".into(),
        exchange: "strom".into(),
        epochs: 10,
        train: 60_000,
        phase,
        waiting: Vec::new(),
        end,
    }
}

fn timeline(records: &[StatsRecord]) -> Timeline {
    let mut timeline = Timeline::default();
    timeline.take(records);
    timeline
}

/// Returns the timeline of three nodes in the middle of a run whose facts are known.
fn training(seconds: u32) -> Timeline {
    let mut timeline = timeline(&three_nodes(seconds));
    timeline.take_facts(facts("training", None), 0.0);
    timeline
}

/// Returns the timeline of many nodes, each faster than the one before.
fn crowd(nodes: u32) -> Timeline {
    let records = (1..=2).flat_map(|second| {
        (0..nodes).map(move |node| StatsRecord {
            samples_per_second: f64::from(node),
            ..record(&format!("n{node:02}"), second)
        })
    });
    timeline(&records.collect::<Vec<_>>())
}

fn finished(agree: bool, missing: &[&str]) -> End {
    End::Finished {
        accuracy: Some(0.9845),
        mae: None,
        loss: 0.0561,
        samples: 600_000,
        seconds: 42.0,
        agree,
        nodes: 3,
        missing: missing.iter().map(|&name| name.into()).collect(),
        digest: "end".into(),
        reason: "trained".into(),
        model: "/home/ada/tau-node/0123456789abcdef/alpha.safetensors".into(),
    }
}

fn drawn(timeline: &Timeline, controls: &mut Controls, said: Option<&str>, size: (u16, u16)) -> Terminal<TestBackend> {
    let mut terminal = Terminal::new(TestBackend::new(size.0, size.1)).unwrap();
    terminal.draw(|frame| draw(timeline, controls, said, frame)).unwrap();
    terminal
}

fn lines(terminal: &Terminal<TestBackend>) -> Vec<String> {
    let buffer = terminal.backend().buffer();
    let line = |row| {
        (0..buffer.area.width)
            .map(|column| buffer[(column, row)].symbol())
            .collect::<String>()
    };
    let lines = (0..buffer.area.height).map(line);
    lines.map(|line| line.trim_end().to_owned()).collect()
}

fn screen(timeline: &Timeline, width: u16, height: u16) -> Vec<String> {
    lines(&drawn(timeline, &mut Controls::default(), None, (width, height)))
}

/// Returns the screen after these keys, with a frame drawn before each.
fn after_keys(timeline: &Timeline, keys: &[KeyCode], size: (u16, u16)) -> Vec<String> {
    let mut controls = Controls::default();
    for &key in keys {
        drawn(timeline, &mut controls, None, size);
        assert!(!controls.press(KeyEvent::from(key), timeline.nodes()), "{key:?} leaves");
    }
    lines(&drawn(timeline, &mut controls, None, size))
}

fn dots(lines: &[String]) -> usize {
    let braille = |symbol: &char| ('\u{2801}'..='\u{28ff}').contains(symbol);
    lines.iter().flat_map(|line| line.chars()).filter(braille).count()
}

fn has(lines: &[String], text: &str) -> bool {
    lines.iter().any(|line| line.contains(text))
}

#[test]
fn an_ordinary_terminal_shows_everything() {
    let lines = screen(&training(9), 80, 24);
    assert_eq!(
        lines[..6],
        [
            "run 01234567  training  epoch 5.6/10  56 %  0:09 of 0:16  37.5k samples/s",
            "builtin:mnist · dense 100, relu, dense 10 · muon · strom",
            "node▴  state    smp/s  loss acc%      τ den%   in  out stale  lag ex%  cpu  mem",
            "alpha  training 12.5k 0.256 97.9 1.2e-3 0.20 3.0M 2.7M   1.5    4  13  1.9 514M",
            "beta   training 12.5k 0.256 97.9 1.2e-3 0.20 3.0M 2.7M   1.5    4  13  1.9 514M",
            "gamma  training 12.5k 0.256 97.9 1.2e-3 0.20 3.0M 2.7M   1.5    4  13  1.9 514M",
        ]
    );
    let heading = "loss over samples, log scale  training 0.277  eval 0.211 ──";
    assert!(lines[6].starts_with(heading), "{}", lines[6]);
    assert!(lines[7].trim_start().starts_with("2.300│"), "{}", lines[7]);
    let ends: Vec<&str> = lines[18].split_whitespace().collect();
    assert_eq!(ends, ["0", "338k"]);
    assert!(dots(&lines[7..18]) > 40);
    assert!(lines[19].starts_with("events ──"), "{}", lines[19]);
    assert_eq!(lines[22], "   0:08 ago  node gamma takes part in the run");
    assert!(
        lines[23].starts_with("q leave  ? help  s sort  ↑↓ pick  ⏎ node"),
        "{}",
        lines[23]
    );
}

#[test]
fn a_large_terminal_shows_words_in_full_and_two_curves() {
    let mut timeline = training(30);
    for second in 31..45 {
        let said = vec![LogNotice {
            severity: Severity::News,
            text: format!("word {second}").into(),
        }]
        .into();
        timeline.take(&[StatsRecord {
            said,
            ..record("alpha", second)
        }]);
    }
    let lines = screen(&timeline, 200, 60);
    assert!(lines[0].contains("accuracy 101.40 %"), "{}", lines[0]);
    assert!(lines[0].contains("eval loss 0.0"), "{}", lines[0]);
    assert!(!lines[0].contains("replicas"), "{}", lines[0]);
    assert!(
        lines[2].starts_with("node▴   state        samples/s  samples   loss"),
        "{}",
        lines[2]
    );
    assert!(
        lines[2].contains("exchange %  waited %  cores  memory B"),
        "{}",
        lines[2]
    );
    let curves = lines.iter().find(|line| line.starts_with("loss over samples")).unwrap();
    assert!(curves.contains("eval accuracy over samples"), "{curves}");
    let words = lines.iter().filter(|line| line.contains("word")).count();
    assert!(words >= 10, "{words} events are shown");
}

#[test]
fn two_curves_are_one_above_the_other_where_it_is_tall_and_not_wide() {
    let timeline = training(9);
    let titles = |width, height| {
        let lines = screen(&timeline, width, height).into_iter();
        lines.filter(|line| line.contains(" over samples")).count()
    };
    assert_eq!((titles(80, 24), titles(80, 40), titles(120, 24)), (1, 2, 1));
    assert!(has(&screen(&timeline, 120, 24), "eval accuracy"));
    assert!(!has(&screen(&timeline, 119, 24), "eval accuracy"));
}

#[test]
fn a_narrow_terminal_leaves_out_what_matters_least() {
    let timeline = training(2);
    let lines = screen(&timeline, 40, 24);
    assert_eq!(lines[0], "training  12 %  0:02 of 0:16");
    assert_eq!(lines[1], "builtin:mnist · dense 100, relu, dense …");
    assert_eq!(lines[2], "node▴  state    smp/s  loss acc%  lag");
    let lines = screen(&timeline, 14, 24);
    assert_eq!((&*lines[0], &*lines[2]), ("training  12 %", "node▴  smp/s"));
}

#[test]
fn a_low_terminal_shows_nodes_before_all_else() {
    let timeline = training(9);
    assert!(dots(&screen(&timeline, 80, 15)) > 0);
    let lines = screen(&timeline, 80, 14);
    assert_eq!(dots(&lines), 0);
    assert!(lines[5].starts_with("gamma"));
    assert!(has(&lines, "events"));
    let lines = screen(&timeline, 80, 4);
    assert!(lines[2].starts_with("alpha"));
    assert_eq!(lines[3], "1 to 1 of 3 nodes");
}

#[test]
fn many_nodes_are_scrolled_and_sorted() {
    let timeline = crowd(40);
    let lines = screen(&timeline, 80, 24);
    assert!(lines[3].starts_with("n00"), "{}", lines[3]);
    assert_eq!(lines[11], "1 to 8 of 40 nodes");
    let rows = |keys: &[KeyCode]| {
        let lines = after_keys(&timeline, keys, (80, 24));
        [3, 10].map(|row: usize| lines[row].split(' ').next().unwrap().to_owned())
    };
    assert_eq!(rows(&[KeyCode::End]), ["n32", "n39"]);
    assert_eq!(rows(&[KeyCode::End, KeyCode::Up]), ["n32", "n39"]);
    assert_eq!(rows(&[KeyCode::PageDown]), ["n01", "n08"]);
    assert_eq!(rows(&[KeyCode::End, KeyCode::PageUp, KeyCode::PageUp]), ["n23", "n30"]);
    assert_eq!(rows(&[KeyCode::End, KeyCode::Home]), ["n00", "n07"]);
    assert_eq!(rows(&[KeyCode::Char('s')]), ["n39", "n32"]);
    // The selected node stays selected and visible.
    assert_eq!(rows(&[KeyCode::Down, KeyCode::Char('s')]), ["n07", "n00"]);
    let titles = after_keys(&timeline, &[KeyCode::Char('s')], (80, 24)).swap_remove(2);
    assert!(titles.contains("smp/s▾") && !titles.contains("node▴"), "{titles}");
}

#[test]
fn the_picked_node_is_marked_and_shown_alone() {
    let mut timeline = training(3);
    timeline.take(&[StatsRecord {
        said: vec![LogNotice {
            severity: Severity::Warning,
            text: "a worker is stuck".into(),
        }]
        .into(),
        peers: vec![PeerRecord {
            node: "alpha".into(),
            bytes_in: 1_500_000,
            bytes_out: 2_500_000,
            lag: 3,
            queue: 0,
        }],
        processes: vec![ProcessUsage {
            process: "worker 0".into(),
            cpu_seconds: 7.5,
            ..ProcessUsage::default()
        }],
        ..record("beta", 4)
    }]);
    timeline.take_members(&[NodeReport {
        node: "beta".into(),
        address: "192.0.2.7:7700".into(),
        state: "training".into(),
        device: "cpu".into(),
        workers: 2,
        since: 0.0,
        rtt_ms: Some(0.35),
    }]);
    let mut controls = Controls::default();
    let press = |controls: &mut Controls, code| controls.press(KeyEvent::from(code), timeline.nodes());
    press(&mut controls, KeyCode::Down);
    press(&mut controls, KeyCode::Down);
    let terminal = drawn(&timeline, &mut controls, None, (80, 24));
    let reversed = |row| {
        terminal.backend().buffer()[(0, row)]
            .modifier
            .contains(Modifier::REVERSED)
    };
    assert_eq!([3, 4, 5].map(reversed), [false, true, false]);
    press(&mut controls, KeyCode::Enter);
    let shown = lines(&drawn(&timeline, &mut controls, None, (80, 24)));
    assert_eq!(shown[2], "node beta  training  192.0.2.7:7700  cpu  2 workers");
    assert_eq!(shown[3], "last warning or error: a worker is stuck");
    for text in [
        "round trip           0.3 ms",
        "12.5k samples/s",
        "1.50 rounds",
        "fedcba9876543210",
    ] {
        assert!(has(&shown, text), "{text}: {shown:#?}");
    }
    assert!(
        has(&shown, "alpha            1.5 MB       2.5 MB         3              0"),
        "{shown:#?}"
    );
    assert!(has(&shown, "worker 0         7.5 s"), "{shown:#?}");
    assert!(!press(&mut controls, KeyCode::Esc));
    assert!(has(&lines(&drawn(&timeline, &mut controls, None, (80, 24))), "events"));
}

#[test]
fn help_explains_every_column_on_an_ordinary_screen() {
    let mut records = three_nodes(3);
    for record in &mut records {
        record.gpu_memory_bytes = 1;
    }
    let timeline = timeline(&records);
    let shown = after_keys(&timeline, &[KeyCode::Char('?')], (80, 24));
    let columns = columns::telling(timeline.nodes());
    assert!(columns.len() > 20);
    for column in columns {
        let line = shown.iter().find(|line| line.contains(column.meaning));
        assert!(
            line.is_some_and(|line| line.contains(column.title)),
            "{}: {shown:#?}",
            column.title
        );
    }
    assert!(has(&shown, "any key closes help"), "{shown:#?}");
    let shown = after_keys(&training(3), &[KeyCode::Char('?'), KeyCode::Char('z')], (80, 24));
    assert!(has(&shown, "alpha  training"), "{shown:#?}");
}

#[test]
fn keys_choose_what_curves_are_drawn_over() {
    let timeline = training(9);
    assert!(has(
        &after_keys(&timeline, &[KeyCode::Char('l')], (80, 24)),
        "loss over samples  "
    ));
    let shown = after_keys(&timeline, &[KeyCode::Char('x')], (80, 24));
    assert!(has(&shown, "loss over time, log scale"));
    let ends: Vec<&str> = shown[18].split_whitespace().collect();
    assert_eq!(ends, ["0:00", "0:09"]);
    // A loss of zero has no logarithm.
    let zero = StatsRecord {
        loss: Some(0.0),
        ..record("alpha", 1)
    };
    assert!(has(&screen(&self::timeline(&[zero]), 80, 24), "loss over samples  "));
}

#[test]
fn a_run_that_is_over_says_what_it_was() {
    let mut timeline = training(3);
    timeline.take_facts(facts("finished", Some(finished(true, &[]))), 0.0);
    let text = screen(&timeline, 80, 24)[2..5].join(" ");
    assert_eq!(
        text,
        "finished: accuracy 98.45 %, loss 0.0561, replicas agree (3 of 3); the contacted node saved the model as \
         /home/ada/tau-node/0123456789abcdef/alpha.safetensors: fetch it with 'tau start --attach'"
    );
    assert!(screen(&timeline, 200, 60)[2].ends_with("'tau start --attach'"));
    assert!(screen(&timeline, 80, 24)[0].contains("finished  epoch 10.0/10  100 %  0:42"));
    assert!(screen(&timeline, 200, 60)[0].contains("3 of 3 replicas equal"));
    timeline.take_facts(facts("finished", Some(finished(false, &["delta"]))), 0.0);
    assert!(has(
        &screen(&timeline, 200, 60),
        "replicas DO NOT AGREE (3 of 4; missing: delta)"
    ));
    let reason = "the data is gone".into();
    timeline.take_facts(facts("failed", Some(End::Failed { reason })), 0.0);
    assert_eq!(screen(&timeline, 80, 24)[2], "failed: the data is gone");
}

#[test]
fn a_silent_node_is_dim_and_tells_for_how_long_and_has_no_rates() {
    let mut timeline = training(2);
    for second in 3..=14 {
        timeline.take(&[record("alpha", second), record("beta", second)]);
    }
    let terminal = drawn(&timeline, &mut Controls::default(), None, (80, 24));
    let shown = lines(&terminal);
    let cells: Vec<&str> = shown[5].split_whitespace().collect();
    assert_eq!(cells, ["gamma", "silent", "0:12", "1.150", "97.2", "1.2e-3"]);
    let dim = |row| terminal.backend().buffer()[(0, row)].modifier.contains(Modifier::DIM);
    assert_eq!([4, 5].map(dim), [false, true]);
    assert!(shown[0].contains("25.0k samples/s"), "{}", shown[0]);
    assert!(has(&shown, "gamma fell silent"), "{shown:#?}");
    timeline.take(&[record("gamma", 14)]);
    let shown = screen(&timeline, 80, 24);
    assert!(shown[5].starts_with("gamma  training"), "{}", shown[5]);
    assert!(has(&shown, "gamma is back"), "{shown:#?}");
}

#[test]
fn what_is_waited_for_and_what_is_said_stands_below_the_header() {
    let mut timeline = training(3);
    let waiting = vec![WaitingFor::Silent {
        node: "gamma".into(),
        silence: Duration::from_secs(12),
        limit: Duration::from_secs(30),
    }];
    timeline.take_facts(
        Facts {
            waiting,
            ..facts("settling", None)
        },
        0.0,
    );
    let said = "127.0.0.1:7700 does not answer; asking 127.0.0.1:7701";
    let shown = lines(&drawn(&timeline, &mut Controls::default(), Some(said), (80, 24)));
    assert_eq!(shown[2], "waiting for gamma, silent for 12 s, given up at 30 s");
    assert_eq!(shown[3], said);
    assert!(shown[4].starts_with("node▴"), "{}", shown[4]);
}

#[test]
fn sentences_are_broken_between_words_where_they_can_be() {
    assert_eq!(wrapped("a word or two", 7), ["a word", "or two"]);
    assert_eq!(wrapped("unbreakable", 4), ["unbr", "eaka", "ble"]);
    assert_eq!(wrapped("so unbreakable", 5), ["so", "unbre", "akabl", "e"]);
    assert!(wrapped("", 0).is_empty());
}

#[test]
fn a_run_without_accuracy_shows_its_evaluation_loss() {
    let mut records = three_nodes(4);
    for record in &mut records {
        record.accuracy = None;
        record.evaluation = record.evaluation.take().map(|one| Evaluation { accuracy: None, ..one });
    }
    let mut timeline = timeline(&records);
    let shown = after_keys(&timeline, &[], (160, 40));
    assert!(has(&shown, "eval loss 0.4750  best 0.4750"), "{shown:#?}");
    assert!(has(&shown, "eval loss over samples, log scale"), "{shown:#?}");
    assert!(!has(&shown, "accuracy") && !has(&shown, "acc%"), "{shown:#?}");
    let mut end = finished(true, &[]);
    if let End::Finished { accuracy, .. } = &mut end {
        *accuracy = None;
    }
    timeline.take_facts(facts("finished", Some(end)), 0.0);
    let shown = after_keys(&timeline, &[], (160, 40));
    assert!(has(&shown, "finished: loss 0.0561, replicas agree"), "{shown:#?}");
}

#[test]
fn where_numbers_are_predicted_nothing_is_called_an_accuracy() {
    let mut records = three_nodes(4);
    for record in &mut records {
        (record.accuracy, record.mae) = (Some(-0.25), Some(3.5));
        record.evaluation = record.evaluation.take().map(|one| Evaluation {
            accuracy: Some(-0.25),
            mae: Some(3.5),
            ..one
        });
    }
    let timeline = timeline(&records);
    for keys in [&[][..], &[KeyCode::Enter]] {
        let shown = after_keys(&timeline, keys, (160, 40));
        assert!(has(&shown, "R²") && has(&shown, "-0.25"), "{shown:#?}");
        assert!(!has(&shown, "accuracy") && !has(&shown, "acc%"), "{shown:#?}");
    }
}
