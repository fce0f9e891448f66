//! Tests of the default settings on small tables: only the data is given, and several nodes are never worse than one.

use std::fmt::Write as _;

use crate::harness::{Output, Tau, words};

/// Random number generator with the same numbers on every machine (SplitMix64).
struct Random(u64);

impl Random {
    /// Returns a random number from 0 to 1.
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (word ^ (word >> 31)) as f64 / u64::MAX as f64
    }

    /// Returns a random number with mean 0 and standard deviation 1.
    fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.uniform()).sum::<f64>() - 6.0
    }
}

/// Returns a row of the classification task of two half moons that overlap a little.
fn moons(random: &mut Random, row: usize) -> String {
    let angle = std::f64::consts::PI * random.uniform();
    let (sign, shift) = if row.is_multiple_of(2) { (1.0, 0.0) } else { (-1.0, 1.0) };
    let x = sign * angle.cos() + shift + 0.2 * random.normal();
    let y = sign * angle.sin() + 0.5 * shift + 0.2 * random.normal();
    format!("{x},{y},moon{}", row % 2)
}

/// Returns a row of Friedman's first function, a regression task with five inputs that matter and five that do not.
fn friedman(random: &mut Random, _row: usize) -> String {
    let x: Vec<f64> = (0..10).map(|_| random.uniform()).collect();
    let bend = 10.0 * (std::f64::consts::PI * x[0] * x[1]).sin() + 20.0 * (x[2] - 0.5).powi(2);
    cells(&x, bend + 10.0 * x[3] + 5.0 * x[4] + random.normal())
}

/// Returns a row of a linear regression task whose ten inputs explain half of the variance.
fn noisy(random: &mut Random, _row: usize) -> String {
    let x: Vec<f64> = (0..10).map(|_| random.normal()).collect();
    let line: f64 = x
        .iter()
        .zip([0.6, -0.5, 0.4, 0.3, -0.2])
        .map(|(x, weight)| x * weight)
        .sum();
    cells(&x, line + 0.95 * random.normal())
}

fn cells(inputs: &[f64], answer: f64) -> String {
    let mut text = inputs.iter().fold(String::new(), |mut text, input| {
        let _ = write!(text, "{input},");
        text
    });
    let _ = write!(text, "{answer}");
    text
}

fn write_table(tau: &Tau, name: &str, rows: usize, row: fn(&mut Random, usize) -> String) {
    let mut random = Random(7);
    let rows: Vec<String> = (0..rows).map(|at| row(&mut random, at)).collect();
    std::fs::write(tau.path(name), rows.join("\n")).unwrap();
}

fn train(tau: &Tau, table: &str, nodes: &str, seed: &str) -> Output {
    let data = format!("csv:{table}");
    let output = tau.run(&words(&format!(
        "train --json --threads 1 --data {data} --nodes {nodes} --seed {seed}"
    )));
    assert_eq!(output.code, 0, "{table} on {nodes} nodes: {}", output.stderr);
    output
}

#[test]
fn small_tables_are_learned_with_nothing_but_the_data_on_one_node_and_on_three() {
    let tau = Tau::new();
    let flowers = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/flowers.csv");
    std::fs::copy(flowers, tau.path("flowers.csv")).unwrap();
    write_table(&tau, "moons.csv", 400, moons);
    write_table(&tau, "friedman.csv", 600, friedman);
    write_table(&tau, "noisy.csv", 400, noisy);
    for (table, least) in [
        ("flowers.csv", 0.86),
        ("moons.csv", 0.91),
        ("friedman.csv", 0.85),
        // No model can explain more than half of the variance.
        ("noisy.csv", 0.3),
    ] {
        for seed in ["1", "2"] {
            let [one, three] = ["1", "3"].map(|nodes| train(&tau, table, nodes, seed).last());
            let accuracy = one["accuracy"].as_f64().unwrap();
            assert!(accuracy >= least, "{table}, seed {seed}: {accuracy}");
            assert_eq!(
                three["digest"], one["digest"],
                "{table}: three nodes learn what one does"
            );
            let evaluations = one["evaluations"].as_array().unwrap().len();
            let epochs = one["chosen"]["epochs"].as_u64().unwrap() as usize;
            // One after every epoch, up to the number that is kept, and one of the saved weights.
            assert!(
                evaluations >= epochs.min(250),
                "{table}: {evaluations} in {epochs} epochs"
            );
        }
    }
}

#[test]
fn a_run_says_what_was_chosen_and_a_job_file_trains_it_again() {
    let tau = Tau::new();
    write_table(&tau, "moons.csv", 400, moons);
    let said = tau.must(&["train", "--threads", "1", "--data", "csv:moons.csv", "--nodes", "2"]);
    let line = said.stderr.lines().find(|line| line.contains("chosen by the nodes: "));
    let line = line.unwrap_or_else(|| panic!("{}", said.stderr));
    for word in [
        "dense 100, relu, dense",
        "adam:",
        "minibatch 32",
        "1 of 2 workers trains",
    ] {
        assert!(line.contains(word), "{line}");
    }
    let shown = tau.run(&["show", "tau-out/latest/model.safetensors"]);
    assert!(shown.stdout.contains("trainers = \"1\""), "{}", shown.stdout);
    let first = std::fs::read_to_string(tau.path("tau-out/latest/result.json")).unwrap();
    let first: serde_json::Value = serde_json::from_str(&first).unwrap();
    let again = tau
        .run(&words("train --json --threads 1 --nodes 1 tau-out/latest/job.toml"))
        .last();
    assert_eq!(again["digest"], first["digest"]);
    assert_eq!(
        again["chosen"],
        serde_json::json!({}),
        "a whole job leaves nothing open"
    );
}

#[test]
fn a_run_that_diverges_is_trained_once_more_at_half_the_rate() {
    let tau = Tau::new();
    write_table(&tau, "noisy.csv", 400, noisy);
    // For linear least squares, steps above a certain length increase the loss each time; half this rate is low enough.
    let flags = words("--model dense --optimiser sgd:1.2 --clip none --minibatch 320 --epochs 400");
    let job = [
        &words("train --json --threads 1 --data csv:noisy.csv --nodes 2")[..],
        &flags[..],
    ]
    .concat();
    let output = tau.run(&job);
    assert_eq!(output.code, 0, "{}{}", output.stdout, output.stderr);
    let finished = output.last();
    let first = finished["succeeds"].as_str().unwrap();
    assert!(
        output.stderr.contains(first) && output.stderr.contains("sgd:0.6"),
        "{}",
        output.stderr
    );
    assert_eq!(finished["replicas_agree"], true);
    let refused = tau.run(&[&job[..], &["--back-off=false"]].concat());
    assert_eq!(refused.code, 1, "{}", refused.stdout);
    assert!(
        refused.last()["error"]
            .as_str()
            .unwrap()
            .contains("add --optimiser sgd:0.6"),
        "{}",
        refused.stdout
    );
}
