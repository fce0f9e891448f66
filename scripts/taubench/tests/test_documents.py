"""Documents are compared with what exists: each kind of fault is found in both directions."""

import os
import pathlib
import tempfile
import unittest

from taubench import binary, command_lines, documents, job_values, log_events, metrics
from taubench.documents import Document
from taubench.errors import Failed, Missing
from taubench.tests.test_commands import SCRIPTS, carry_out

HELP = {
    "": """Trains

Usage: tau <COMMAND>

Commands:
  train        Train on this machine.
               Without flags: MNIST
  credentials  Create credentials
  up           Start nodes
  seed         Start a node
  help         Print this message

Options:
  -h, --help     Print help
  -V, --version  Print version
""",
    "train": """Usage: tau train [OPTIONS]

Options:
      --epochs <N>        Passes over the rows, see
                          --version for nothing
      --balanced[=<BOOL>]  Balance
      --page [<ADDR>]     Show the run
  -h, --help              Print help
""",
    "credentials": """Commands:
  new   Create new credentials
  help  Print this message

Options:
  -h, --help  Print help
""",
    "credentials new": "Options:\n  -h, --help  Print help\n",
    "up": "Options:\n      --port <PORT>  The port\n",
    "seed": "Node:\n      --data-root <DIR>  The folder\n",
}
COMMANDS = command_lines.known(lambda *words: HELP[" ".join(words)])
COMPLETE = """# Commands

```
tau train [--epochs N]
          [--balanced] [--page [ADDR]]
tau credentials new FILE
tau up HOST… [--port 7700] [-- node flags]
tau seed [--data-root DIR]     tau --version
```
"""


def usage(text, name="docs/usage/commands.md"):
    return Document(name, text)


def commands(*shown):
    return list(command_lines.complaints(COMMANDS, [usage(COMPLETE), *shown]))


class Commands(unittest.TestCase):
    def test_the_help_tells_commands_and_flags(self):
        self.assertEqual(set(COMMANDS), {"", "train", "credentials", "credentials new", "up", "seed"})
        self.assertEqual(COMMANDS["train"], {"epochs", "balanced", "page", "help"})
        self.assertEqual(COMMANDS[""], {"help", "version"})

    def test_what_fits_is_no_fault(self):
        shown = """Use `tau train --epochs 5`, `--page`, `tau COMMAND --help`, `tau train | tau seed --data-root D`,
            `tau up a -- --data-root D`, `tau up --port 1 'x --y'`, `cargo test -p tau --test a`, `-- train --page`,
            `TAU_LOG=info tau train --page`, `A=$(id -u) docker up --build` and `tau seed [flags but --epochs]`.\n\n"""
        shown += "```\nerror: this build of tau does not train: add --page ('tau train --page' shows it)\n```\n"
        self.assertEqual(commands(Document("README.md", shown)), [])

    def test_what_is_documented_must_exist(self):
        readme = "Text\n`tau trian`, `tau credentials old`, `--epoch`,\n`tau train --port 1` and `tau --epochs`\n"
        wanted = [
            "README.md:2: there is no command 'tau trian'",
            "README.md:2: there is no command 'tau credentials old'",
            "README.md:2: there is no flag --epoch",
            "README.md:3: 'tau train' has no flag --port",
            "README.md:3: 'tau' has no flag --epochs",
        ]
        self.assertEqual(commands(Document("README.md", readme)), wanted)

    def test_blocks_and_scripts_are_looked_at_with_their_line(self):
        readme = "```sh\n# now\ntau train \\\n  --port 1\ncargo run --release -- train --port 2\n```\n"
        script = '# `tau train --port 1`\nx=$(tau seed --port 2 2>/dev/null | grep --count 1)\ntau $x --nonsense "$y"\n'
        wanted = [
            "README.md:3: 'tau train' has no flag --port",
            "README.md:5: 'tau train' has no flag --port",
            "examples/a.sh:1: 'tau train' has no flag --port",
            "examples/a.sh:2: 'tau seed' has no flag --port",
            "examples/a.sh:2: there is no flag --count",
            "examples/a.sh:3: there is no flag --nonsense",
        ]
        self.assertEqual(commands(Document("README.md", readme), Document("examples/a.sh", script)), wanted)

    def test_what_exists_must_be_documented(self):
        less = (
            COMPLETE.replace("tau credentials new FILE\n", "").replace(" [--balanced]", "").replace("tau --version", "")
        )
        found = list(command_lines.complaints(COMMANDS, [usage(less), Document("README.md", COMPLETE)]))
        wanted = [
            "docs/usage: the command 'tau credentials' is not documented",
            "docs/usage: the command 'tau credentials new' is not documented",
            "docs/usage: the flag --balanced is not documented (of train)",
            "docs/usage: the flag --version is not documented (of tau)",
        ]
        self.assertEqual(found, wanted)


TABLE = """
figures! {
    record {
        /// Time; it is no figure
        time: f64;
        /// Loss
        loss: Option<f64> => gauge("tau_loss", Unit::Loss).lasting()
            .column("loss", "loss", 3),
            workers |work| work.recent.mean_loss(), result told;
        /// Samples
        samples: u64 => counter("tau_samples", Unit::Samples);
    }
    result {
        /// Bytes
        wire: u64 => gauge("", Unit::Bytes).studied("sent"), usage |nodes| nodes.iter().sum();
    }
}
"""
METRICS = metrics.known(TABLE, 'level("tau_share", "Share")?;')
FIGURES = """
| field | meaning | Prometheus |
|---|---|---|
| `loss` | Loss | `tau_loss` |
| `samples` | Samples | `tau_samples_total` |

| field | title |
|---|---|
| `loss` | |
| `wire` | sent |
"""


def figures(page, *shown):
    shown = shown or [usage("`tau_share` too")]
    return list(metrics.complaints(METRICS, [Document("docs/metrics.md", page), *shown]))


class Metrics(unittest.TestCase):
    def test_the_table_tells_figures(self):
        self.assertEqual(METRICS.figures, {"loss": "tau_loss", "samples": "tau_samples_total"})
        self.assertEqual((METRICS.run_figures, METRICS.extra), ({"loss", "wire"}, {"tau_share"}))
        self.assertEqual(figures(FIGURES), [])
        with self.assertRaises(Failed):
            metrics.known("", "")

    def test_what_is_documented_must_exist(self):
        page = FIGURES.replace("| `wire` | sent |", "| `wire` | sent |\n| `wires` | |")
        page = page.replace("| `tau_loss` |", "| `tau_share` |").replace("`tau_samples_total`", "`tau_samples`")
        wanted = [
            "docs/metrics.md:5: there is no metric tau_samples",
            "docs/metrics.md:4: Prometheus has loss as tau_loss, not as tau_share",
            "docs/metrics.md:11: results have no figure wires",
            "README.md:1: there is no metric tau_shares",
        ]
        found = figures(page, Document("README.md", "`tau_shares`"), usage("`tau_share`"))
        self.assertEqual(found, wanted)
        self.assertIn(
            "docs/metrics.md:4: records have no figure lost", figures(FIGURES.replace("`loss` | Loss", "`lost` |"))
        )

    def test_what_exists_must_be_documented(self):
        page = FIGURES.replace("| `samples` | Samples | `tau_samples_total` |\n", "").replace("| `wire` | sent |\n", "")
        wanted = [
            "docs/metrics.md: the figure samples of records is not documented",
            "docs/metrics.md: the figure wire of results is not documented",
            "docs/usage: the metric tau_share is not documented",
        ]
        self.assertEqual(figures(page, usage("nothing")), wanted)


class LogEvents(unittest.TestCase):
    PAGE = "| event | level |\n|---|---|\n| `node_joined` | info |\n| `node_left` | info |\n"
    LAST = "docs/log-events.md: this is not what the source says: run scripts/log-events"

    def test_the_page_has_all_events_and_no_others(self):
        self.assertEqual(list(log_events.unlike(self.PAGE, self.PAGE)), [])
        found = list(log_events.unlike(self.PAGE.replace("node_left", "node_lost"), self.PAGE))
        wanted = [
            "docs/log-events.md: there is no event node_lost",
            "docs/log-events.md: the event node_left is not documented",
            self.LAST,
        ]
        self.assertEqual(found, wanted)
        self.assertEqual(list(log_events.unlike(self.PAGE.replace("info", "warn"), self.PAGE)), [self.LAST])

    def test_events_in_other_documents_exist(self):
        shown = Document("docs/trouble.md", '```\nWARN event="node_left" peer="b"\nWARN event="node_lost"\n```\n')
        wanted = ["docs/trouble.md:3: no log line has the event node_lost"]
        self.assertEqual(list(log_events.unknown({"node_left"}, [shown])), wanted)


FORMS = ["conv OUT KxK [stride S]", "relu", "residual [ LAYERS ]"]
MODEL = """# Jobs

## Model

| layer | meaning |
|---|---|
| `conv OUT KxK [stride S]` | A convolution. |
| `relu`, `residual [ LAYERS ]` | `tanh` is only mentioned. |

## Strategies

`strom` is the default.

| name | meaning |
|---|---|
| `mesh` | `mesh:every=16` |

Options: `WAY[:every=N|epoch][,mean|async]`.

## A network that is larger than a machine

| option | division |
|---|---|
| `layers:groups=3` | Three. |

`slices=2` too.

## More

| name |
|---|
| `nothing` |
"""


def layers(text, *shown):
    return list(job_values.layer_complaints(FORMS, [usage(text, job_values.JOBS), *shown]))


class Layers(unittest.TestCase):
    def test_the_error_tells_layers(self):
        error = "error: --model: there is no layer '?'; there are: conv OUT KxK [stride S], relu, residual [ LAYERS ]\n"
        self.assertEqual(job_values.layers(error), FORMS)
        with self.assertRaises(Failed):
            job_values.layers("error: no")
        self.assertEqual(layers(MODEL), [])

    def test_what_is_documented_must_exist(self):
        text = MODEL.replace("`relu`", "`relu`, `rellu`").replace("[stride S]", "[step S]")
        job = Document("examples/job.toml", 'model = "dense 5, residual[conv 1 3x3, relu]"')
        wanted = [
            "docs/usage/jobs.md:7: the form of this layer is 'conv OUT KxK [stride S]', not 'conv OUT KxK [step S]'",
            "docs/usage/jobs.md:8: there is no layer 'rellu'",
            "README.md:1: there is no layer 'tanh'",
            "examples/job.toml:1: there is no layer 'dense 5'",
        ]
        self.assertEqual(layers(text, Document("README.md", "`tau train --model 'relu, tanh'`"), job), wanted)

    def test_what_exists_must_be_documented(self):
        wanted = ["docs/usage/jobs.md: the layer 'relu' is not documented"]
        self.assertEqual(layers(MODEL.replace("`relu`, ", "")), wanted)


PARSER = """
            Some(("builtin", "mnist")) => Ok(Self::BuiltinMnist),
            Some(("builtin", name)) => Err(unknown(name)),
            Some(("csv", rest)) => parse_csv(rest),
            Some(("npz", rest)) => parse_npz(rest),
        if key == "sep" {
"""


def takes(kind, *arms):
    lines = "".join(f"            {arm} => self.x = value,\n" for arm in arms)
    head = "    pub(super) fn take(&mut self) {\n        match key {\n"
    return f"impl {kind} {{\n{head}{lines}            _ => false,\n        }}\n    }}\n}}\n"


SCHEMES = job_values.schemes(
    PARSER,
    takes("TableOptions", '"label"'),
    takes("TestSplit", '"testfile" if value.is_empty()', '"testfile"'),
    takes("ArrayOptions", '"test"') + takes("ImageOptions", '"colour" | "color"'),
)
SOURCES = """# Data

## Kinds of data

| specification | reads |
|---|---|
| `builtin:mnist` | MNIST |
| `csv:FILE` | a table |
| `npz:FILE` | arrays |

## Arrays

`test=0.2` is the share.

## Images

`colour=grey` or `color=grey`

## Tables

| option |
|---|
| `label=COLUMN` |
| `testfile=FILE`, `sep=tab` |
"""


def data(text, *shown):
    return list(job_values.data_complaints(SCHEMES, [usage(text, job_values.DATA), *shown]))


class Data(unittest.TestCase):
    def test_the_source_tells_schemes_and_options(self):
        self.assertEqual(SCHEMES.names, ["builtin:mnist", "csv", "npz"])
        self.assertEqual(SCHEMES.options["csv"], [("label",), ("testfile",), ("sep",)])
        self.assertEqual(SCHEMES.options["images"], [("colour", "color")])
        self.assertEqual(data(SOURCES), [])
        with self.assertRaises(Failed):
            job_values.schemes(PARSER, "", "", "")

    def test_what_is_documented_must_exist(self):
        text = SOURCES.replace("`csv:FILE` |", "`csv:FILE`, `zip:FILE` |").replace("`sep=tab`", "`sep=tab`, `quote=x`")
        readme = "`tau train --data 'csv:a.csv?label=x&tset=1'`\n`--data builtin:cifar`\n`--data SPEC`\n"
        wanted = [
            "docs/usage/data.md:8: there is no data source 'zip:FILE'",
            "README.md:2: there is no data source 'builtin:cifar'",
            "docs/usage/data.md:24: csv: has no option quote=",
            "README.md:1: csv: has no option tset=",
        ]
        self.assertEqual(data(text, Document("README.md", readme)), wanted)

    def test_what_exists_must_be_documented(self):
        text = SOURCES.replace("| `npz:FILE` | arrays |\n", "").replace("`test=0.2`", "It").replace(", `sep=tab`", "")
        text = text.replace("`colour=grey` or ", "")
        wanted = [
            "docs/usage/data.md: the data source npz: is not documented",
            "docs/usage/data.md: the option sep= of csv: is not documented",
            "docs/usage/data.md: the option test= of npz: is not documented",
        ]
        self.assertEqual(data(text), wanted)


WAYS = ["strom", "mesh", "WAY[:every=N|epoch][,mean|async]", "layers[:groups=N][,slices=M]"]


def strategies(text, *shown):
    return list(job_values.strategy_complaints(WAYS, [usage(text, job_values.JOBS), *shown]))


class Strategies(unittest.TestCase):
    def test_the_error_tells_strategies(self):
        self.assertEqual(job_values.strategies(f"there is no exchange '?'; use one of: {', '.join(WAYS)}"), WAYS)
        self.assertEqual(strategies(MODEL), [])

    def test_what_is_documented_must_exist(self):
        text = MODEL.replace("| `mesh` |", "| `mesh`, `star` |").replace("mean|async", "median|async")
        text = text.replace("layers:groups=3", "layers:cut=3").replace(
            "`slices=2`", "`slices=2`, `groups=3`, `deep=1`, `mean`"
        )
        readme = '`--exchange tree` `tau study --exchanges "mesh:async strom:best"`\n'
        study = Document("examples/study.toml", 'exchange = ["strom", "chain"]')
        wanted = [
            "docs/usage/jobs.md:16: there is no strategy 'star'",
            "docs/usage/jobs.md:18: the strategy WAY has no option 'median'",
            "docs/usage/jobs.md:24: the strategy layers has no option 'cut'",
            "docs/usage/jobs.md:26: no strategy has an option deep=",
            "README.md:1: there is no strategy 'tree'",
            "examples/study.toml:1: there is no strategy 'chain'",
            "README.md:1: the strategy strom has no option 'best'",
        ]
        self.assertEqual(strategies(text, Document("README.md", readme), study), wanted)

    def test_what_exists_must_be_documented(self):
        text = MODEL.replace("`strom`", "This").replace("`slices=2`", "This").replace(",mean|async", ",mean")
        wanted = [
            "docs/usage/jobs.md: the strategy strom is not documented",
            "docs/usage/jobs.md: the option async of the strategy WAY is not documented",
            "docs/usage/jobs.md: the option slices of the strategy layers is not documented",
        ]
        self.assertEqual(strategies(text), wanted)


class Links(unittest.TestCase):
    def test_links_paths_and_functions_exist(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for inner in ("docs", "worker", "examples"):
                (root / inner).mkdir()
            (root / "worker/a.rs").write_text("fn there() {}\n")
            (root / "README.md").write_text("# Tau\n\n[a](docs/a.md#one-two)\n")
            text = "# One two\n\n```\n[x](y.md)\n```\n`worker/a.rs`, `there`, `worker/a.rs`,\n`gone`, `worker/b.rs`\n"
            (root / "docs/a.md").write_text(f"{text}[r](../README.md#tow) [b](b.md) [w](https://tau)\n")
            (root / "SECURITY.md").write_text("[gone](docs/gone.md)\n")
            (root / "examples/README.md").write_text("[gone](gone.toml)\n")
            found = [fault for path in documents.linked(root) for fault in documents.complaints(root, path)]
            shown = [document.name for document in documents.using(root)]
        wanted = [
            "docs/a.md:6: worker/a.rs has no function gone",
            "docs/a.md:7: there is no worker/b.rs",
            "docs/a.md:8: ../README.md#tow has no such heading",
            "docs/a.md:8: there is no b.md",
            "SECURITY.md:1: there is no docs/gone.md",
            "examples/README.md:1: there is no gone.toml",
        ]
        self.assertEqual(found, wanted)
        self.assertEqual(shown, ["README.md", "docs/a.md", "examples/README.md"])


class Binary(unittest.TestCase):
    def test_the_newest_binary_is_taken(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder).resolve()
            with self.assertRaisesRegex(Missing, "build it with 'cargo build'"):
                binary.find(root, None)
            for profile, written in (("debug", 100), ("release", 50)):
                path = root / "target" / profile / "tau"
                path.parent.mkdir(parents=True)
                path.touch(mode=0o755)
                os.utime(path, (written, written))
            self.assertEqual(binary.find(root, None), root / "target/debug/tau")
            os.utime(root / "target/release/tau", (200, 200))
            self.assertEqual(binary.find(root, None), root / "target/release/tau")
            self.assertEqual(binary.find(root, root / "target/debug/tau"), root / "target/debug/tau")

    def test_without_a_binary_the_exit_code_is_2(self):
        code, told, errors = carry_out(SCRIPTS / "check-docs", "--tau", "/nowhere/tau")
        self.assertEqual((code, told), (2, ""))
        self.assertEqual(
            errors, "error: /nowhere/tau is no program: build it with 'cargo build', or name one with --tau\n"
        )
