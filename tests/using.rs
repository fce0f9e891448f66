//! Tests of the use of a trained model: prediction, description, figures by class, and export to other programs.

use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use crate::command_line::train;
use crate::harness::{CANNOT, Tau, idx_folder, points_csv, skip, words};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// Trains a model that separates two clouds of points, and returns its path.
fn trained(tau: &Tau) -> String {
    let csv = points_csv(tau, "points.csv", 600);
    let output = train(tau, &format!("csv:{csv}"), &[]).ok();
    output.last()["model"].as_str().unwrap().to_owned()
}

fn predictions(tau: &Tau, model: &str, data: &str) -> Vec<Value> {
    let output = tau.must(&["predict", model, "--data", data, "--json"]);
    output.objects()
}

/// Returns true if a script succeeded, or false, after a message, if this machine lacks something.
fn is_carried_out(output: &Output) -> bool {
    let errors = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(CANNOT) {
        skip(errors.lines().last().unwrap_or_default());
        return false;
    }
    assert!(output.status.success(), "{errors}");
    true
}

#[test]
fn samples_without_labels_are_predicted_in_their_order_wherever_their_columns_are() {
    let tau = Tau::new();
    let model = trained(&tau);
    let write = |name: &str, text: &str| std::fs::write(tau.path(name), text).unwrap();
    write("new.csv", "x,y\n0.1,0.2\n3.1,-2.2\n-0.3,0.5\n");
    write("moved.csv", "id,y,x\na,0.2,0.1\nb,-2.2,3.1\nc,0.5,-0.3\n");
    write("bare.csv", "0.1,0.2\n3.1,-2.2\n-0.3,0.5\n");
    let expected = predictions(&tau, &model, "csv:new.csv");
    let classes: Vec<&str> = expected.iter().map(|one| one["class"].as_str().unwrap()).collect();
    assert_eq!(classes, ["side0", "side1", "side0"]);
    assert!(expected.iter().all(|one| one["probability"].as_f64().unwrap() > 0.5));
    for same in ["csv:moved.csv", "csv:bare.csv"] {
        assert_eq!(predictions(&tau, &model, same), expected, "{same}");
    }
    let lines = tau.run(&["predict", &model, "--data", "csv:new.csv"]).stdout;
    let lines: Vec<&str> = lines.lines().collect();
    assert_eq!((lines.len(), lines[0]), (4, "class,probability"));
    assert!(lines[2].starts_with("side1,0."), "{lines:?}");

    let more = tau
        .run(&words(&format!(
            "predict {model} --data csv:new.csv --all --row --id x"
        )))
        .stdout;
    let lines: Vec<&str> = more.lines().collect();
    assert_eq!(lines[0], "class,probability,row,x,side0,side1");
    assert!(
        lines.len() == 4 && lines[2].starts_with("side1,0.") && lines[2].contains(",2,"),
        "{more}"
    );
    let refused = tau.run(&["predict", &model, "--data", "csv:new.csv", "--id", "name"]);
    refused.fails(2, "no column 'name', which --id names");

    // Labels in the data are ignored, and so is its division: all 600 rows are predicted.
    assert_eq!(predictions(&tau, &model, "csv:points.csv").len(), 600);
    write("lacking.csv", "x,z\n1,2\n");
    let refused = tau.run(&["predict", &model, "--data", "csv:lacking.csv"]);
    refused.fails(2, "no column 'y'");
}

#[test]
fn a_model_is_shown_with_its_run_and_taken_apart_by_class() {
    let tau = Tau::new();
    let model = trained(&tau);
    let shown = tau.run(&["show", &model, "--json"]).last();
    assert_eq!(shown["weights"], 16 * 3 + 2 * 17);
    assert_eq!(shown["columns"], serde_json::json!(["x", "y"]));
    assert_eq!(shown["result"]["digest"], shown["digest"]);
    let text = tau.run(&["show", &model]).stdout;
    for part in [
        "dense 16",
        "classes   2: side0, side1",
        "columns   2: x, y",
        "accuracy  ",
        "epochs = 3",
    ] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    // The result of another run must not be shown for this model.
    let result = Path::new(&model).with_file_name("result.json");
    let other = std::fs::read_to_string(&result)
        .unwrap()
        .replace(shown["digest"].as_str().unwrap(), "0");
    std::fs::write(&result, other).unwrap();
    assert_eq!(tau.run(&["show", &model, "--json"]).last()["result"], Value::Null);

    let data = ["--data", "csv:points.csv", "--confusion"];
    let evaluated = tau
        .run(&[&["evaluate", &model, "--json"], data.as_slice()].concat())
        .last();
    let matrix = &evaluated["confusion"]["matrix"];
    let count = |row: usize, column: usize| matrix[row][column].as_u64().unwrap();
    assert_eq!((0..4).map(|at| count(at / 2, at % 2)).sum::<u64>(), 120);
    let right = (count(0, 0) + count(1, 1)) as f64 / 120.0;
    assert_eq!(evaluated["accuracy"].as_f64().unwrap(), right);
    assert_eq!(
        (&evaluated["samples"], &evaluated["samples_in_data"]),
        (&120.into(), &600.into())
    );
    // All rows of a file that was not trained on are evaluated, unless a test part is requested.
    std::fs::copy(tau.path("points.csv"), tau.path("new.csv")).unwrap();
    for (data, says) in [
        ("csv:points.csv", "on 120 test samples of 600 (the test part)"),
        (
            "csv:new.csv",
            "on 600 test samples (all: the model was not trained on this data)",
        ),
        ("csv:new.csv?test=0.5", "on 300 test samples of 600 (the test part)"),
    ] {
        let text = tau.run(&["evaluate", &model, "--data", data]).stdout;
        assert!(text.contains(says), "{data}: {text}");
    }
    // The model knows the data that it was trained on.
    let text = tau.run(&["evaluate", &model, "--confusion"]).stdout;
    assert!(text.starts_with("accuracy ") && text.contains("precision"), "{text}");
}

#[test]
fn what_happened_in_a_run_is_kept_and_the_next_run_does_not_touch_it() {
    let tau = Tau::new();
    let first = trained(&tau);
    let bytes = std::fs::read(&first).unwrap();
    let lines = |name: &str| -> Vec<Value> {
        let text = std::fs::read_to_string(Path::new(&first).with_file_name(name)).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let events: Vec<Value> = lines("events.jsonl").iter().map(|line| line["event"].clone()).collect();
    assert_eq!(events.first(), Some(&"followed".into()));
    assert_eq!(events.last(), Some(&"finished".into()));
    assert!(
        lines("metrics.jsonl")
            .iter()
            .all(|line| line["time"].as_f64().unwrap() > 1e9)
    );
    let page = std::fs::read_to_string(Path::new(&first).with_file_name("report.html")).unwrap();
    let (_, data) = page.split_once("id=\"data\">").unwrap();
    let shown: Value = serde_json::from_str(data.split_once("</script>").unwrap().0).unwrap();
    let result: Value =
        serde_json::from_slice(&std::fs::read(Path::new(&first).with_file_name("result.json")).unwrap()).unwrap();
    for figure in ["accuracy", "loss", "samples", "digest", "model"] {
        assert_eq!(shown["facts"]["end"][figure], result[figure], "{figure}");
    }
    assert_eq!(shown["evaluations"], result["evaluations"]);

    let second = trained(&tau);
    assert_ne!(first, second);
    assert_eq!(std::fs::read(&first).unwrap(), bytes);
    assert_eq!(
        std::fs::canonicalize(tau.path("tau-out/latest/model.safetensors")).unwrap(),
        std::fs::canonicalize(&second).unwrap()
    );
}

#[test]
fn an_exported_model_answers_alike() {
    let tau = Tau::new();
    let images = idx_folder(&tau, "images", 12, false);
    let layers =
        "conv 3 3x3 pad 1, gelu, maxpool 2, conv 4 3x3 stride 2, tanh, flatten, dropout 0.2, dense 9, sigmoid, dense 2";
    let output = train(
        &tau,
        &format!("idx:{images}"),
        &["--model", layers, "--out", "convolution"],
    )
    .ok();
    let convolution = output.last()["model"].as_str().unwrap().to_owned();
    // Categories as text, missing values and, once, a numeric target: the model file describes all of them.
    let colours = ["red", "blue", "green"];
    let rows = (0..300usize).map(|row| {
        let size = if row % 9 == 0 {
            String::new()
        } else {
            (row % 17).to_string()
        };
        format!("{},{size},{}.5,{}", colours[row * row % 3], row % 40, row % 2)
    });
    let rows: Vec<String> = rows.collect();
    std::fs::write(
        tau.path("shop.csv"),
        format!("colour,size,price,sold\n{}\n", rows.join("\n")),
    )
    .unwrap();
    let table = |options: &str| {
        let data = format!("csv:shop.csv?onehot=colour&missing=mean{options}");
        let output = train(&tau, &data, &["--model", "dense 8, relu, dense"]).ok();
        output.last()["model"].as_str().unwrap().to_owned()
    };
    for (model, data) in [
        (table(""), "shop.csv"),
        (table("&label=price"), "shop.csv"),
        (trained(&tau), "points.csv"),
        (convolution, "images/t10k-images-idx3-ubyte"),
    ] {
        let check = Command::new("python3")
            .arg(format!("{ROOT}/scripts/check-onnx"))
            .args(["--tau", env!("CARGO_BIN_EXE_tau"), &model])
            .arg(tau.path(data))
            .output();
        let Ok(output) = check else {
            return skip("there is no python3");
        };
        if !is_carried_out(&output) {
            return;
        }
    }
}

/// Returns the Python blocks in a document.
fn python_in(document: &str) -> Vec<String> {
    let text = std::fs::read_to_string(format!("{ROOT}/{document}")).unwrap();
    let blocks = text.split("```python\n").skip(1);
    blocks.map(|block| block.split("```").next().unwrap().into()).collect()
}

/// Every Python block in the documents runs unchanged, on a model that Tau has trained.
#[test]
fn the_python_of_the_documents_runs_as_printed() {
    let Some(python) = [format!("{ROOT}/target/pytorch/bin/python"), "python3".into()]
        .into_iter()
        .find(|python| {
            let found = Command::new(python).args(["-c", "import torch, safetensors"]).output();
            found.is_ok_and(|output| output.status.success())
        })
    else {
        return skip("no Python here has PyTorch and safetensors");
    };
    let carry_out = |tau: &Tau, lines: &str| {
        let output = Command::new(&python)
            .args(["-c", lines])
            .current_dir(tau.path(""))
            .output()
            .unwrap();
        assert!(is_carried_out(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    let trained_by = |flags: &[&str]| {
        let tau = Tau::new();
        std::os::unix::fs::symlink(format!("{ROOT}/scripts"), tau.path("scripts")).unwrap();
        let mut rows = String::from("x,y,sum\n");
        for row in 0..200 {
            let (x, y) = (row % 20, row % 7 * 100);
            let _ = writeln!(rows, "{x},{y},{}.5", 5 * x + y);
        }
        std::fs::write(tau.path("sums.csv"), rows).unwrap();
        let common = ["train", "--nodes", "1", "--threads", "1", "--json"];
        tau.must(&[&common, flags].concat());
        tau
    };
    let (readme, usage) = (python_in("README.md"), python_in("docs/usage/commands.md"));
    let ([readme], [classes, numbers]) = (&readme[..], &usage[..]) else {
        panic!("a block of Python is new: let this test run it");
    };
    let digits = trained_by(&["--epochs", "1"]);
    for lines in [readme, classes] {
        assert!(!carry_out(&digits, lines).is_empty());
    }
    let sums = trained_by(&["--data", "csv:sums.csv", "--model", "dense 8, relu, dense"]);
    let also =
        "import json\nprint(json.dumps([rows.tolist(), (output * number['deviation'] + number['mean']).tolist()]))";
    let told = carry_out(&sums, &format!("{numbers}{also}"));
    assert!(told.starts_with("sum tensor("), "{told}");
    let exact: Value = serde_json::from_str(told.lines().last().unwrap()).unwrap();
    let mut rows = String::from("x,y\n");
    for row in exact[0].as_array().unwrap() {
        let _ = writeln!(rows, "{},{}", row[0], row[1]);
    }
    std::fs::write(sums.path("rows.csv"), rows).unwrap();
    let model = "tau-out/latest/model.safetensors";
    for (ours, theirs) in predictions(&sums, model, "csv:rows.csv")
        .iter()
        .zip(exact[1].as_array().unwrap())
    {
        let (ours, theirs) = (ours["sum"].as_f64().unwrap(), theirs.as_f64().unwrap());
        assert!((ours - theirs).abs() < 1e-3, "Tau says {ours}, PyTorch {theirs}");
    }
}
