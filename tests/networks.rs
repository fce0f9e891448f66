//! Tests of models with all kinds of layers, and of data with numeric targets.

use std::path::{Path, PathBuf};

use crate::harness::cluster::Cluster;

/// Writes a table whose last two columns are functions of the others.
fn numbers_csv(path: &Path) {
    let row = |at: usize| {
        let (a, b, c) = (at * 37 % 101, at * 53 % 89, at * 29 % 97);
        let far = a as f64 * 0.5 - b as f64 * 0.25 + (c * c) as f64 * 0.01;
        format!("{a},{b},{c},{far:.2},{:.3}", 100.0 - far / 3.0)
    };
    let rows: Vec<String> = (0..600).map(row).collect();
    std::fs::write(path, format!("a,b,c,far,near\n{}\n", rows.join("\n"))).unwrap();
}

/// Returns every model under a folder.
fn models(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).unwrap().flatten().map(|entry| entry.path());
    let (folders, files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    let files = files
        .into_iter()
        .filter(|file| file.extension().is_some_and(|kind| kind == "safetensors"));
    files.chain(folders.iter().flat_map(|folder| models(folder))).collect()
}

#[test]
fn numbers_are_predicted_by_a_network_of_blocks_and_all_nodes_save_the_same_file() {
    let mut cluster = Cluster::new();
    // The statistics of batch norms must not depend on the number of a node's threads.
    for threads in ["1", "2", "1"] {
        cluster.add(&["--threads", threads]);
    }
    cluster.wait_for_nodes(3);
    numbers_csv(&cluster.tau.path("numbers.csv"));
    let data = "csv:numbers.csv?label=far,near&test=0.2";
    let model = "dense 24, batchnorm, relu, residual [ dense 24, batchnorm, silu ], layernorm, dense";
    let job = [
        "--data",
        data,
        "--model",
        model,
        "--epochs",
        "40",
        "--optimiser",
        "adam:0.01",
        "--minibatch",
        "16",
    ];
    let run = cluster.must("start", &job);
    let last = run.last();
    assert_eq!(last["replicas_agree"], true, "{last}");
    let (r2, mae) = (last["r2"].as_f64().unwrap(), last["mae"].as_f64().unwrap());
    assert!(
        r2 > 0.5 && mae > 0.0 && last["warnings"].as_array().unwrap().is_empty(),
        "{last}"
    );

    let saved: Vec<Vec<u8>> = cluster
        .nodes
        .iter()
        .flat_map(|node| models(&node.dir))
        .map(|file| std::fs::read(file).unwrap())
        .collect();
    assert_eq!(saved.len(), 3);
    assert!(
        saved.iter().all(|one| *one == saved[0]),
        "nodes have saved different files"
    );

    let file = "tau-out/latest/model.safetensors";
    let measured = cluster.tau.run(&["evaluate", file, "--json"]).last();
    assert!((measured["r2"].as_f64().unwrap() - r2).abs() < 1e-6, "{measured}");
    std::fs::write(cluster.tau.path("new.csv"), "c,b,a\n10,20,30\n").unwrap();
    let told = cluster
        .tau
        .run(&["predict", file, "--data", "csv:new.csv", "--json"])
        .last();
    assert!(told["far"].is_number() && told["near"].is_number(), "{told}");
    let shown = cluster.tau.run(&["show", file]);
    assert!(shown.stdout.contains("numbers   2: far, near"), "{}", shown.stdout);
    cluster.tau.must(&["export", file, "--onnx", "model.onnx"]);
    let refused = cluster.tau.run(&["evaluate", file, "--confusion"]);
    refused.fails(2, "predicts numbers");
}
