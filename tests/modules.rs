//! Tests of models that are Python code. They need PyTorch and the extension; skipped with a message without.

use std::path::PathBuf;

use serde_json::Value;

use crate::harness::cluster::Cluster;
use crate::harness::python::Python;
use crate::harness::{Output, Tau, points_csv, skip};

/// A module like Tau's own `dense 128, relu, dense`.
const NET: &str = "# tau: model
from torch import nn

def model():
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))
";

/// A module for the table of [`points_csv`].
const POINTS: &str = "# tau: model
from torch import nn

def model():
    return nn.Sequential(nn.Linear(2, 20), HIDDEN, nn.ReLU(), nn.Linear(20, 2))
";

/// A module with data, loss and measurements of its own: points in a plane, of which those above a line are of class 1.
const OWN: &str = "# tau: model
import torch
from torch import nn
from torch.nn import functional as F
from helper import SIDE

class Points(torch.utils.data.Dataset):
    def __init__(self, count, seed):
        self.x = torch.rand(count, 2, generator=torch.Generator().manual_seed(seed))
        self.targets = (self.x.sum(1) > SIDE).long()
    def __len__(self):
        return len(self.x)
    def __getitem__(self, index):
        return self.x[index] + 0.01 * torch.rand(2), self.targets[index]

def model():
    return nn.Sequential(nn.Linear(2, 20), nn.ReLU(), nn.Dropout(0.1), nn.Linear(20, 2))

def data():
    return Points(2000, 1), Points(500, 2)

def loss(net, batch):
    x, y = batch
    return F.cross_entropy(net(x), y)

def evaluate(net, batch):
    x, y = batch
    return {'loss': loss(net, batch), 'accuracy': (net(x).argmax(1) == y).float().mean(), 'half': 0.5}
";

/// A folder with a file of code, and an interpreter that runs it.
struct Modules {
    tau: Tau,
    python: Python,
}

impl Modules {
    fn new() -> Option<Self> {
        Some(Self {
            python: Python::find()?,
            tau: Tau::new(),
        })
    }

    fn interpreter(&self) -> String {
        self.python.program().display().to_string()
    }

    /// Trains the module of a file of code on one node, on a table of two classes.
    fn train_points(&self, code: &str) -> Output {
        points_csv(&self.tau, "points.csv", 2000);
        self.train(code, &["--data", "csv:points.csv", "--nodes", "1", "--epochs", "3"])
    }

    /// Trains a module with data of its own, which imports a neighbour, with these flags.
    fn train_own(&self, code: &str, more: &[&str]) -> Output {
        std::fs::write(self.tau.path("helper.py"), "SIDE = 1.0\n").unwrap();
        self.train(code, more)
    }

    /// Trains the module of a file of code.
    fn train(&self, code: &str, more: &[&str]) -> Output {
        std::fs::write(self.tau.path("net.py"), code).unwrap();
        let python = self.interpreter();
        let run = [
            "train",
            "--model",
            "py:net.py",
            "--threads",
            "1",
            "--json",
            "--python",
            &python,
        ];
        self.tau.run(&[&run[..], more].concat())
    }
}

#[test]
fn a_module_on_three_nodes_trains_and_its_replicas_agree() {
    let Some(modules) = Modules::new() else { return };
    let mnist = ["--data", "builtin:mnist", "--minibatch", "128"];
    let output = modules.train(NET, &[&mnist[..], &["--nodes", "3", "--epochs", "1"]].concat());
    let finished = output.finished(3);
    assert!(finished["accuracy"].as_f64().unwrap() > 0.9, "{finished}");
    output.trained(60_000);
    let saved: PathBuf = modules.tau.path("tau-out/latest/model.safetensors");
    let tensors = std::fs::read(saved).unwrap();
    for key in ["1.bias", "1.weight", "3.bias", "3.weight"] {
        let quoted = format!("\"{key}\"");
        assert!(
            tensors.windows(quoted.len()).any(|part| part == quoted.as_bytes()),
            "{key}"
        );
    }
    // The code that the user names measures and predicts, on data that Tau reads.
    let (file, python) = ("tau-out/latest/model.safetensors", modules.interpreter());
    let code = ["--model-source", "net.py", "--python", &python, "--json"];
    let measured = modules.tau.run(&[&["evaluate", file][..], &code].concat());
    assert_eq!(measured.code, 0, "{}", measured.stderr);
    let accuracy = measured.last()["accuracy"].as_f64().unwrap();
    assert!(
        (accuracy - finished["accuracy"].as_f64().unwrap()).abs() < 1e-6,
        "{finished}"
    );
    let predicted = modules
        .tau
        .run(&[&["predict", file, "--data", "builtin:mnist"][..], &code].concat());
    assert_eq!(predicted.code, 0, "{}", predicted.stderr);
    assert_eq!(predicted.stdout.lines().count(), 10_000);
    assert_eq!(predicted.last()["class"], "6");
    modules.tau.run(&["evaluate", file]).fails(2, "--model-source");
    let other = NET.replace("nn.Linear(784", "nn.Linear(783");
    std::fs::write(modules.tau.path("net.py"), other).unwrap();
    let failed = modules
        .tau
        .run(&[&["predict", file, "--data", "builtin:mnist"][..], &code].concat());
    failed.fails(1, "its code failed");
}

#[test]
fn a_module_with_data_of_its_own_trains_on_three_nodes_and_gives_the_same_again_on_one() {
    let Some(modules) = Modules::new() else { return };
    let strom = ["--exchange", "strom", "--optimiser", "muon", "--minibatch", "32"];
    let output = modules.train_own(OWN, &[&strom[..], &["--nodes", "3", "--epochs", "4"]].concat());
    let finished = output.finished(3);
    assert!(finished["accuracy"].as_f64().unwrap() > 0.9, "{finished}");
    output.trained(8000);
    // The saved model is measured by the code that the user names, and by none that a file names.
    let (saved, python) = ("tau-out/latest/model.safetensors", modules.interpreter());
    let code = ["--model-source", "net.py", "--python", &python, "--json"];
    let output = modules.tau.run(&[&["evaluate", saved][..], &code].concat());
    assert_eq!(output.code, 0, "{}", output.stderr);
    let measured = output.last();
    for (name, samples) in [("accuracy", 500), ("loss", 500)] {
        let (found, expected) = (measured[name].as_f64().unwrap(), finished[name].as_f64().unwrap());
        assert!((found - expected).abs() < 0.02, "{name}: {measured}, {finished}");
        assert_eq!(measured["samples"], samples);
    }
    assert_eq!(measured["named"]["half"], 0.5);
    for command in [&["evaluate", saved][..], &["export", saved, "--onnx", "net.onnx"]] {
        let refused = modules.tau.run(command);
        assert_eq!(refused.code, 2, "{}", refused.stdout);
        refused.says("only that code computes the model");
    }
    let digest = || {
        let output = modules.train_own(OWN, &["--nodes", "1", "--epochs", "4", "--validation", "0.1"]);
        output.agreed()["digest"].clone()
    };
    let first = digest();
    assert!(first.is_string(), "{first}");
    assert_eq!(first, digest());
    // Nothing is written beside sources.
    assert!(!modules.tau.path("__pycache__").exists());
}

/// Tests that files are checked on their way to the interpreter; `python/tests` has more cases.
#[test]
fn only_code_that_was_hashed_is_run() {
    let Some(modules) = Modules::new() else { return };
    let epochs = ["--nodes", "1", "--epochs", "1", "--minibatch", "32"];
    let refused = |code: &str, says: &str| {
        let output = modules.train_own(code, &epochs);
        assert_eq!(output.code, 1, "{}", output.stdout);
        let error = output.last()["error"].to_string();
        assert!(error.contains(says), "{error}\n{}", output.stderr);
        assert!(!modules.tau.path("was-run").exists());
    };
    // A stray file has the name of an installed module.
    let stray = "open('was-run', 'w').close()\n";
    std::fs::write(modules.tau.path("torch.py"), stray).unwrap();
    std::fs::write(modules.tau.path("random.py"), stray).unwrap();
    modules.train_own(OWN, &epochs).agreed();
    assert!(!modules.tau.path("was-run").exists());
    // A file is imported in a step, after nodes have compared their code.
    std::fs::write(modules.tau.path("late.py"), stray).unwrap();
    let late = OWN.replace(
        "    x, y = batch\n    return F",
        "    x, y = batch\n    if len(x) > 2:\n        import late\n    return F",
    );
    refused(
        &late,
        "imports late.py after the model was prepared: import it at the top",
    );
    // A link leads out of the folder.
    let outside = tempfile::tempdir().unwrap();
    std::fs::write(outside.path().join("other.py"), "open('was-run', 'w').close()\n").unwrap();
    std::os::unix::fs::symlink(outside.path().join("other.py"), modules.tau.path("other.py")).unwrap();
    let root = modules.tau.path(".").display().to_string();
    let linked = OWN.replace("from helper", "import other\nfrom helper");
    let output = modules.train_own(&linked, &[&epochs[..], &["--data-root", &root]].concat());
    assert_eq!(output.code, 1, "{}", output.stdout);
    output.says("lies outside of the data directory");
    assert!(!modules.tau.path("was-run").exists());
}

#[test]
fn the_same_job_with_a_module_gives_the_same_weights_again() {
    let Some(modules) = Modules::new() else { return };
    let code = POINTS.replace("HIDDEN", "nn.Dropout(0.2)");
    let digest = || modules.train_points(&code).agreed()["digest"].clone();
    let first = digest();
    assert!(first.is_string(), "{first}");
    assert_eq!(first, digest());
}

#[test]
fn a_batch_norm_is_evaluated_with_statistics_at_the_final_weights() {
    let Some(modules) = Modules::new() else { return };
    let code = POINTS.replace("HIDDEN", "nn.BatchNorm1d(20)");
    let finished = modules.train_points(&code).agreed();
    assert!(finished["accuracy"].as_f64().unwrap() > 0.9, "{finished}");
    // Few steps with a slow average: what training has seen of the mean is mostly its beginning, 0, far from 1000; and no
    // node but one has trained.
    let short = [
        "--data",
        "csv:points.csv",
        "--minibatch",
        "200",
        "--optimiser",
        "adam:0.05",
        "--trainers",
        "1",
    ];
    let far =
        "class Far(nn.BatchNorm1d):\n    def forward(self, x):\n        return super().forward(x + 1000)\n\ndef model";
    let code = code
        .replace("nn.BatchNorm1d(20)", "Far(20, momentum=0.001)")
        .replace("def model", far);
    let finished = modules
        .train(&code, &[&short[..], &["--nodes", "3", "--epochs", "4"]].concat())
        .agreed();
    assert!(finished["accuracy"].as_f64().unwrap() > 0.9, "{finished}");
}

/// Tests the way of a mistake to the user; `python/tests` has more of them.
#[test]
fn mistakes_in_code_are_named_with_their_place_before_the_run() {
    let Some(modules) = Modules::new() else { return };
    let points = |hidden: &str| POINTS.replace("HIDDEN", hidden);
    for (code, says) in [
        (
            "# tau: model\nimport nothing\n",
            "net.py:2 in <module>: there is no module nothing",
        ),
        (&points("nn.Linear(21, 20)"), "RuntimeError"),
        (
            &points("nn.ReLU()").replace("20, 2)", "20, 7)"),
            "the data needs 2 for each",
        ),
    ] {
        let output = modules.train_points(code);
        assert_eq!(output.code, 1, "{code}: {}", output.stdout);
        let last: Value = output.last();
        let error = last["error"].as_str().unwrap_or_default();
        assert!(error.contains(says), "{code}: {last}\n{}", output.stderr);
    }
    let unmarked = modules.train_points("def model(): pass\n");
    unmarked.fails(2, "write '# tau: model' as its first line");
    std::fs::remove_file(modules.tau.path("net.py")).unwrap();
    let python = modules.interpreter();
    let missing = modules.tau.run(&["train", "--model", "py:net.py", "--python", &python]);
    missing.fails(2, "net.py");
}

#[test]
fn code_that_fails_in_a_run_ends_it_with_the_place_and_no_values() {
    let Some(modules) = Modules::new() else { return };
    let code = "# tau: model
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = nn.Linear(2, 2)

    def forward(self, x):
        if self.training and len(x) > 2:
            raise ValueError('the secret value')
        return self.last(x)

model = Net
";
    let output = modules.train_points(code);
    assert_eq!(output.code, 1, "{}", output.stdout);
    let error = output.last()["error"].to_string();
    assert!(error.contains("net.py:11 in forward: ValueError"), "{error}");
    assert!(!error.contains("secret"), "{error}");
    output.says("the secret value");
}

#[test]
fn an_interpreter_without_tau_is_refused_before_anything_starts() {
    let tau = Tau::new();
    std::fs::write(tau.path("net.py"), NET).unwrap();
    let run = ["train", "--model", "py:net.py", "--python"];
    tau.run(&[&run[..], &["/bin/false"]].concat())
        .fails(2, "cannot import tau");
    tau.run(&[&run[..], &["nowhere/python"]].concat())
        .fails(2, "cannot be started");
    let seed = [
        "seed",
        "--insecure",
        "--listen",
        "127.0.0.1:0",
        "--python",
        "/bin/false",
    ];
    tau.run(&seed).fails(2, "--data-root");
}

#[test]
fn a_node_runs_code_only_if_it_was_told_to() {
    let cluster = Cluster::of(1);
    std::fs::write(cluster.tau.path("net.py"), NET).unwrap();
    let output = cluster.ask("start", &["--model", "py:net.py", "--epochs", "1"]);
    assert_eq!(output.code, 1);
    output.says("start the node with --python");
    if Python::find().is_none() {
        skip("nodes with --python are not tried");
    }
}
