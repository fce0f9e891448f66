//! What is on the screen, as text.

use protocol::stats::StatsRecord;
use ratatui::Terminal;
use ratatui::backend::TestBackend;

use super::*;

const MEGABYTE: u64 = 1_000_000;

/// A node's record at some second of a run.
fn record(node: &str, second: u64) -> StatsRecord {
    StatsRecord {
        node: node.into(),
        run: "0123456789abcdef".into(),
        state: "training".into(),
        samples_per_second: 12_500.0,
        samples: second * 12_500,
        loss: Some(2.3 / second as f64),
        accuracy: (second > 1).then_some(0.97 + second as f64 * 0.001),
        tau: 1.21e-3,
        density: 0.002,
        bytes_in: second * 3 * MEGABYTE,
        bytes_out: second * MEGABYTE + second * second * 100_000,
        staleness: 1.5,
        frontier_lag: 4,
        digest: "fedcba9876543210".into(),
        queue: 17,
        paused_share: 0.0,
        exchange_share: 0.126,
        cpu: 1.9,
        memory_bytes: 514 * MEGABYTE,
        ..StatsRecord::default()
    }
}

/// Three nodes over some seconds.
fn three_nodes(seconds: u64) -> Vec<StatsRecord> {
    (1..=seconds)
        .flat_map(|second| ["alpha", "beta", "gamma"].map(|node| record(node, second)))
        .collect()
}

fn view(records: &[StatsRecord]) -> StatsView {
    let mut view = StatsView::new();
    view.update(records);
    view
}

fn screen(view: &StatsView, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| view.draw(frame)).unwrap();
    let buffer = terminal.backend().buffer();
    let line = |row| {
        (0..width)
            .map(|column| buffer[(column, row)].symbol())
            .collect::<String>()
    };
    (0..height).map(|row| line(row).trim_end().to_owned()).collect()
}

fn dots(lines: &[String]) -> usize {
    let braille = |symbol: &char| ('\u{2801}'..='\u{28ff}').contains(symbol);
    lines.iter().flat_map(|line| line.chars()).filter(braille).count()
}

#[test]
fn an_ordinary_terminal_shows_everything() {
    let mut view = view(&three_nodes(3));
    view.expect_samples(300_000);
    let lines = screen(&view, 80, 24);
    assert_eq!(
        lines[..5],
        [
            "run 01234567  112k of 300k samples (38%)  37.5k/s  accuracy 0.9730  q leaves",
            "node   state smp/s  loss acc%      τ den%   in  out stale  lag  que ex% cpu  mem",
            "alpha  train 12.5k 0.767 97.3 1.2e-3 0.20 3.0M 1.5M   1.5    4   17  13 1.9 514M",
            "beta   train 12.5k 0.767 97.3 1.2e-3 0.20 3.0M 1.5M   1.5    4   17  13 1.9 514M",
            "gamma  train 12.5k 0.767 97.3 1.2e-3 0.20 3.0M 1.5M   1.5    4   17  13 1.9 514M",
        ]
    );
    assert!(lines[5].starts_with("loss over samples──"), "{}", lines[5]);
    assert!(lines[6].trim_start().starts_with("2.300│"), "{}", lines[6]);
    assert!(lines[21].trim_start().starts_with("0.767│"), "{}", lines[21]);
    let ends: Vec<&str> = lines[23].split_whitespace().collect();
    assert_eq!(ends, ["37.5k", "112k"]);
    assert!(dots(&lines[6..22]) > 40);
}

#[test]
fn a_wide_terminal_shows_words_in_full() {
    let name = "0011223344556677";
    let lines = screen(&view(&[record(name, 1)]), 120, 24);
    assert!(lines[1].starts_with("node             state    smp/s"), "{}", lines[1]);
    assert!(
        lines[2].starts_with("0011223344556677 training 12.5k 2.300"),
        "{}",
        lines[2]
    );
}

#[test]
fn a_narrow_terminal_leaves_out_what_matters_least() {
    let view = view(&three_nodes(2));
    let lines = screen(&view, 40, 24);
    assert_eq!(lines[0], "75.0k samples  37.5k/s  accuracy 0.9720");
    assert_eq!(lines[1], "node   state  smp/s  loss acc%  out  lag");
    assert_eq!(lines[2], "alpha  traini 12.5k 1.150 97.2 1.3M    4");
    let lines = screen(&view, 14, 24);
    assert_eq!(lines[..3], ["75.0k samples", "node   smp/s", "alpha  12.5k"]);
}

#[test]
fn a_low_terminal_shows_nodes_before_the_curve() {
    let view = view(&three_nodes(9));
    assert!(dots(&screen(&view, 80, 14)) > 0);
    let lines = screen(&view, 80, 13);
    assert_eq!(dots(&lines), 0);
    assert!(lines[4].starts_with("gamma"));
    let lines = screen(&view, 80, 4);
    assert!(lines[2].starts_with("alpha"));
    assert_eq!(lines[3], "and 2 more");
}

#[test]
fn many_nodes_leave_the_curve_its_place() {
    let records: Vec<StatsRecord> = (1..=2)
        .flat_map(|second| (0..40).map(move |node| record(&format!("n{node:02}"), second)))
        .collect();
    let lines = screen(&view(&records), 80, 24);
    assert!(lines[14].starts_with("n12"), "{}", lines[14]);
    assert_eq!(lines[15], "and 27 more");
    assert!(lines[16].starts_with("loss over samples"));
    assert!(dots(&lines[17..]) > 0);
}

#[test]
fn no_size_is_too_small_or_too_odd() {
    let view = view(&three_nodes(5));
    for width in [1, 2, 5, 9, 79, 300] {
        for height in 1..30 {
            screen(&view, width, height);
            screen(&StatsView::new(), width, height);
        }
    }
}

#[test]
fn before_the_first_record_it_says_so() {
    let lines = screen(&StatsView::new(), 80, 24);
    assert_eq!(lines[0], "No news from the cluster yet.  q leaves");
}

#[test]
fn what_is_not_known_is_a_dash() {
    let mut first = record("alpha", 1);
    first.loss = None;
    first.tau = 0.0;
    let lines = screen(&view(&[first]), 80, 24);
    let cells: Vec<&str> = lines[2].split_whitespace().collect();
    assert_eq!(cells[3..9], ["–", "–", "–", "0.20", "–", "–"]);
    assert_eq!(dots(&lines), 0);
}

#[test]
fn records_may_come_one_by_one_or_all_at_once() {
    let records = three_nodes(30);
    let at_once = view(&records);
    let mut one_by_one = StatsView::new();
    for record in &records {
        one_by_one.update(std::slice::from_ref(record));
    }
    assert_eq!(screen(&at_once, 80, 24), screen(&one_by_one, 80, 24));
    assert_eq!(at_once.history.points().count(), 29);
}

#[test]
fn a_node_that_is_no_longer_heard_of_is_silent_and_its_speed_does_not_count() {
    let mut view = view(&three_nodes(2));
    for second in 3..=5 {
        view.update(&[record("alpha", second), record("beta", second)]);
    }
    let lines = screen(&view, 80, 24);
    assert!(lines[4].starts_with("gamma  silen"), "{}", lines[4]);
    assert!(lines[0].contains("150k samples  25.0k/s"), "{}", lines[0]);
    view.update(&[record("gamma", 5)]);
    let lines = screen(&view, 80, 24);
    assert!(lines[4].starts_with("gamma  train"), "{}", lines[4]);
    assert!(lines[0].contains("37.5k/s"), "{}", lines[0]);
}

#[test]
fn a_counter_that_goes_back_gives_no_rate() {
    let lines = screen(&view(&[record("alpha", 5), record("alpha", 1)]), 80, 24);
    let cells: Vec<&str> = lines[2].split_whitespace().collect();
    assert_eq!(cells[7..9], ["–", "–"]);
}

#[test]
fn a_new_run_begins_anew_and_late_words_of_the_old_one_do_not_bring_it_back() {
    let mut view = view(&three_nodes(5));
    view.expect_samples(1_000_000);
    let mut next = record("alpha", 1);
    next.run = "next".into();
    let lines = screen_after(&mut view, &[next.clone(), record("beta", 6), next]);
    assert_eq!(lines[0], "run next  12.5k samples  12.5k/s  q leaves");
    assert_eq!(lines.iter().filter(|line| line.contains("train")).count(), 1);
    assert_eq!(view.history.points().count(), 1);
}

fn screen_after(view: &mut StatsView, records: &[StatsRecord]) -> Vec<String> {
    view.update(records);
    screen(view, 80, 24)
}

#[test]
fn the_curve_is_the_mean_by_samples_of_all_that_train() {
    let mut fast = record("fast", 1);
    fast.samples_per_second = 300.0;
    fast.loss = Some(1.0);
    let mut slow = record("slow", 1);
    slow.samples_per_second = 100.0;
    slow.loss = Some(2.0);
    let mut lost = record("lost", 1);
    lost.loss = Some(f64::NAN);
    let view = view(&[fast, slow, lost]);
    let point = view.nodes.progress().unwrap();
    assert_eq!((point.samples, point.loss), (37_500.0, 1.25));
}

/// Names come from the network: they must not steer the terminal.
#[test]
fn control_characters_do_not_reach_the_terminal() {
    let mut evil = record("a\u{1b}[2Jb\nc", 1);
    evil.run = "\u{1b}]0;x\u{7}".into();
    evil.state = "\u{9b}31m".into();
    let text = screen(&view(&[evil]), 80, 24).concat();
    assert!(!text.contains(char::is_control), "{text:?}");
}

#[test]
fn no_number_is_too_large_or_too_odd() {
    let mut view = StatsView::new();
    for value in [
        0.0,
        -1.0,
        f64::MAX,
        f64::MIN,
        f64::INFINITY,
        f64::NAN,
        f64::MIN_POSITIVE,
    ] {
        let mut odd = record("odd", 1);
        odd.samples_per_second = value;
        odd.loss = Some(value);
        odd.accuracy = Some(value);
        odd.tau = value;
        odd.density = value;
        odd.staleness = value;
        odd.exchange_share = value;
        odd.cpu = value;
        odd.samples = u64::MAX;
        odd.memory_bytes = u64::MAX;
        let mut even = odd.clone();
        even.node = "even".into();
        even.loss = Some(1.0);
        view.expect_samples(1);
        screen_after(&mut view, &[odd, even]);
    }
}

#[test]
fn what_is_waited_for_stands_below() {
    let mut view = view(&three_nodes(3));
    view.waits_for(&["gamma has not settled: its disk does not answer".into()]);
    view.says(Some("127.0.0.1:7700 does not answer; asking 127.0.0.1:7701".into()));
    let lines = screen(&view, 80, 24);
    assert_eq!(lines[22], "waiting: gamma has not settled: its disk does not answer");
    assert_eq!(lines[23], "127.0.0.1:7700 does not answer; asking 127.0.0.1:7701");
    assert!(lines[0].starts_with("run "), "{}", lines[0]);
    view.waits_for(&[]);
    view.says(None);
    assert!(!screen(&view, 80, 24).iter().any(|line| line.contains("waiting")));
}
