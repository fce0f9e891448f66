//! Tests of the terminal output of the real binary: the live view with its keys, and progress bars.

use crate::harness::cluster::{Cluster, SMALL, job, kill};
use crate::harness::terminal::{Size, Terminal};
use crate::harness::watching::{kill_node, wait_until_trains};
use crate::harness::{Tau, points_csv};

const DOWN: &str = "\x1b[B";
const ENTER: &str = "\r";
const ESCAPE: &str = "\x1b";
const CONTROL_C: &str = "\x03";

/// Opens the live view of a cluster, which asks the first node.
fn stats(cluster: &Cluster, size: Size) -> Terminal {
    let asked = &cluster.nodes[0].address;
    let arguments = ["stats", "--cluster", asked, "--credentials", "cluster.pem"];
    Terminal::start(&cluster.tau, size, &arguments)
}

fn dots(lines: &[String]) -> usize {
    let braille = |symbol: &char| ('\u{2801}'..='\u{28ff}').contains(symbol);
    lines.iter().flat_map(|line| line.chars()).filter(braille).count()
}

fn has(lines: &[String], text: &str) -> bool {
    lines.iter().any(|line| line.contains(text))
}

/// Returns the label at the end of the charts' horizontal axis.
fn axis_end(lines: &[String]) -> Option<String> {
    let axis = lines.iter().position(|line| line.contains('└'))?;
    lines.get(axis + 1)?.split_whitespace().last().map(str::to_owned)
}

/// Leaves the live view with a key, and asserts that the terminal is as it was.
fn leaves(terminal: &mut Terminal, key: &str) {
    assert!(terminal.is_taken());
    terminal.press(key);
    assert_eq!(terminal.finish(), 0, "{}", terminal.text());
    assert!(!terminal.is_taken(), "the screen was not given back");
    assert!(terminal.is_cooked(), "keys still come one by one");
    assert!(!terminal.text().contains("smp/s"), "{}", terminal.text());
}

#[test]
fn the_live_view_is_driven_by_keys_and_tells_how_a_run_goes_and_ends() {
    let mut cluster = Cluster::training(3);
    let names: Vec<String> = cluster.nodes.iter().map(|node| node.name.clone()).collect();
    let mut view = stats(&cluster, (80, 24));
    let shown = view.wait_until("no curve is drawn", |lines| dots(lines) > 20);
    assert_eq!(shown.len(), 24);
    assert!(
        shown[0].starts_with("run ") && shown[0].contains("training  epoch "),
        "{}",
        shown[0]
    );
    assert!(
        shown[1].contains(" · dense 16, relu, dense 2 · muon:0.01 · strom"),
        "{}",
        shown[1]
    );
    assert!(shown[23].starts_with("q leave  ? help  s sort"), "{}", shown[23]);
    for name in &names {
        view.wait_until("a node is not in the table", |lines| {
            has(&lines[2..7], &name[..name.len().min(16)])
        });
    }
    let end = axis_end(&shown);
    view.wait_until("the curve does not move", |lines| {
        dots(lines) > 20 && axis_end(lines) != end
    });

    view.press("?");
    let help = view.wait_for("Samples trained per second");
    assert!(has(&help, "Batches that peers have"), "{help:#?}");
    view.press("x");
    view.wait_for("loss over samples");
    view.press("x");
    view.wait_for("loss over time");
    view.press("s");
    view.wait_for("smp/s▾");
    view.press("sssss");
    view.wait_for("node▴");
    let mut sorted = names.clone();
    sorted.sort();
    view.press(&DOWN.repeat(2));
    view.press(ENTER);
    let alone = view.wait_for("training loss");
    assert!(has(&alone, &format!("node {}", sorted[1])), "{alone:#?}");
    assert!(
        has(&alone, "peers") && has(&alone, &sorted[0]) && has(&alone, "worker"),
        "{alone:#?}"
    );
    view.press(ESCAPE);
    view.wait_for("loss over time");

    // A node dies, and is shown as silent without rates.
    let killed = kill_node(&mut cluster, 2);
    view.wait_until("the dead node is not silent", |lines| {
        lines[2..7]
            .iter()
            .any(|line| line.contains("silent 0:") && killed.starts_with(line.split(' ').next().unwrap()))
    });
    view.wait_for(&format!("{killed} fell silent"));

    cluster.must("stop", &[]);
    let over = view.wait_for("finished: accuracy ");
    let sentence = over.join(" ");
    assert!(sentence.contains("replicas agree (2 of 3; missing: "), "{sentence}");
    assert!(sentence.contains("'tau start --attach'"), "{sentence}");
    assert!(over[0].contains("finished"), "{}", over[0]);
    leaves(&mut view, "q");
}

#[test]
fn a_large_screen_is_used_and_may_change_its_size() {
    let cluster = Cluster::training(2);
    let mut view = stats(&cluster, (200, 60));
    let shown = view.wait_until("no curve is drawn", |lines| dots(lines) > 20);
    assert_eq!(shown.len(), 60);
    assert!(has(&shown, "samples/s  samples   loss  accuracy %"), "{shown:#?}");
    let curves = shown.iter().find(|line| line.starts_with("loss over samples")).unwrap();
    assert!(curves.contains("eval accuracy over samples"), "{curves}");
    assert!(shown[59].starts_with("q leave"), "{}", shown[59]);
    view.wait_for("takes part");
    view.resize((80, 24));
    view.wait_until("it is not drawn anew", |lines| {
        lines.len() == 24 && lines[23].starts_with("q leave")
    });
    view.resize((20, 5));
    view.wait_until("it is not drawn anew", |lines| {
        lines.len() == 5 && lines[1].starts_with("node▴")
    });
    view.resize((120, 40));
    let mut shown = view.wait_until("it is not drawn anew", |lines| {
        lines.len() == 40 && lines[39].starts_with("q leave")
    });
    // With crossterm 0.29 a key that arrives together with a change of size is read only with the next key.
    for _ in 0..3 {
        shown = view.wait_until("it is not drawn again", |lines| lines != shown);
    }
    leaves(&mut view, CONTROL_C);
}

#[test]
fn a_view_whose_cluster_is_gone_says_so() {
    let mut cluster = Cluster::of(1);
    let mut view = stats(&cluster, (80, 24));
    view.wait_for("no run");
    kill_node(&mut cluster, 0);
    view.wait_for("no node has answered for ");
    leaves(&mut view, "q");
}

/// Asserts that no bar was wider than its terminal, and that none is left on the screen.
fn bars_are_whole_and_gone(terminal: &Terminal) {
    let broken = terminal.broken_bars();
    assert!(broken.is_empty(), "{}", broken[0]);
    let text = terminal.text();
    assert!(!text.contains(['█', '░']) && !text.contains("samples/s  "), "{text}");
}

#[test]
fn progress_bars_begin_empty_fit_every_width_and_go_in_the_end() {
    let tau = Tau::new();
    points_csv(&tau, "points.csv", 600);
    for width in [60, 80, 120] {
        let out = format!("out{width}");
        let job = job("400", &["--nodes", "2", "--threads", "1", "--out", &out]);
        let mut terminal = Terminal::start(&tau, (width, 24), &[&["train"], &job[..]].concat());
        terminal.wait_until("no bar is shown", |lines| {
            lines.iter().any(|line| line.contains('░') && line.contains(" %  0:"))
        });
        assert_eq!(terminal.finish(), 0, "{}", terminal.text());
        let first = terminal.first_bar().unwrap();
        assert!(first.contains("   0 %  0:0") && !first.contains('█'), "{first}");
        bars_are_whole_and_gone(&terminal);
        assert!(terminal.text().contains("accuracy"), "{}", terminal.text());
    }
}

#[test]
fn control_c_leaves_no_bar_behind() {
    let tau = Tau::new();
    points_csv(&tau, "points.csv", 600);
    let job = job("1000000", &["--nodes", "2", "--threads", "1"]);
    let trains = |lines: &[String]| lines.iter().any(|line| line.contains("% ") && line.contains(" of "));
    for width in [60, 100] {
        let mut terminal = Terminal::start(&tau, (width, 24), &[&["train"], &job[..]].concat());
        terminal.wait_until("it does not train", trains);
        terminal.press(CONTROL_C);
        assert_eq!(terminal.finish(), 0, "{}", terminal.text());
        bars_are_whole_and_gone(&terminal);
        assert!(!terminal.text().contains("ending the run"), "{}", terminal.text());
    }
    // The second Ctrl-C ends the command at once.
    let mut terminal = Terminal::start(&tau, (80, 24), &[&["train"], &job[..]].concat());
    terminal.wait_until("it does not train", trains);
    terminal.press(CONTROL_C);
    terminal.press(CONTROL_C);
    assert!([0, 1].contains(&terminal.finish()), "{}", terminal.text());
    bars_are_whole_and_gone(&terminal);
}

#[test]
fn a_bar_names_whom_it_waits_for() {
    let cluster = Cluster::of(2);
    let asked = &cluster.nodes[0].address;
    let start = ["start", "--cluster", asked, "--credentials", "cluster.pem"];
    let job = [SMALL, &["--epochs", "1000000", "--give-up-after", "45"]].concat();
    let mut terminal = Terminal::start(&cluster.tau, (80, 24), &[&start, &job[..]].concat());
    let other = &cluster.nodes[1];
    wait_until_trains(&cluster, &other.name);
    let processes = [&[other.process.pid()], &other.workers()[..]].concat();
    let signal_all = |signal: &str| {
        for &pid in &processes {
            kill(signal, pid);
        }
    };
    signal_all("-STOP");
    terminal.press(CONTROL_C);
    let sentence = format!("waiting for {}, silent for ", other.name);
    let shown = terminal.wait_until("the silent node is not named", |lines| {
        lines.join("").contains(&sentence)
    });
    let line = shown.iter().find(|line| line.contains(&sentence)).unwrap();
    assert!(line.ends_with(" s, given up at 45 s"), "{line}");
    // A wider terminal also has room for the present task.
    terminal.resize((140, 24));
    terminal.wait_until("it is not said what is done", |lines| {
        let line = lines.iter().find(|line| line.contains(&sentence));
        line.is_some_and(|line| line.contains("ending the run") || line.contains("settling"))
    });
    signal_all("-CONT");
    assert_eq!(terminal.finish(), 0, "{}", terminal.text());
    bars_are_whole_and_gone(&terminal);
}

#[test]
fn without_a_terminal_a_line_now_and_then_tells_how_far_it_is() {
    let tau = Tau::new();
    points_csv(&tau, "points.csv", 600);
    let job = job("1000000", &["--nodes", "1", "--threads", "1"]);
    let running = tau.start(&[&["train"], &job[..]].concat());
    Cluster::wait_until("nothing is said of how far it is", || {
        running
            .log()
            .lines()
            .any(|line| line.contains(" %  0:") && line.ends_with(" samples/s"))
    });
    assert!(!running.log().contains(['█', '░', '\x1b']), "{}", running.log());
    running.interrupt();
    running.finish().ok();
}
