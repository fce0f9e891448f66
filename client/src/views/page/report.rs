//! The report of a run: its page as one HTML file, which opens from disk without a server.
//!
//! Its size is bounded for any run. The curves merge neighbouring points, so that at most [a few
//! hundred](crate::timeline::Curve) cover the whole run. There are the newest five hundred events, and up to 256
//! evaluations over the whole run. If the page is too large nevertheless, events and nodes are dropped.

use std::io::Write as _;
use std::path::Path;

use protocol::stats::Finished;
use whole_file::PartialFile;

use super::documents::RunDocuments;
use super::news::News;
use super::replay::Replay;
use super::text::Text;
use crate::output::notice;
use crate::run::interrupt::Unfinished;
use crate::timeline::Timeline;

/// File name of the HTML report in a run's folder.
pub(crate) const REPORT: &str = "report.html";
/// Size limit of a run's HTML report in bytes.
const BYTES_MAX: usize = 2_000_000;

/// Builds the HTML report of an ended run from its folder. An error says what is wrong with the folder.
pub(crate) fn of_folder(folder: &Path) -> Result<String, String> {
    let mut replay = Replay::open(folder)?;
    let (timeline, documents) = replay.ended();
    page(timeline, documents)
}

/// Writes the report of a run that has just ended to the run's folder. A failure is reported and is no error of the
/// run.
pub(crate) fn keep(finished: &Finished) {
    if let Some(folder) = Path::new(&finished.model).parent() {
        write(folder, of_folder(folder));
    }
}

/// Writes the report of a run that this client has followed to the run's folder, from the timeline in memory.
pub(crate) fn keep_followed(timeline: &Timeline, folder: &Path) {
    let documents = RunDocuments::read(folder);
    write(folder, documents.and_then(|documents| page(timeline, &documents)));
}

fn write(folder: &Path, page: Result<String, String>) {
    let written = page.and_then(|page| {
        let written = write_whole(&folder.join(REPORT), &page);
        written.map_err(|error| error.to_string())
    });
    if let Err(why) = written {
        notice::say(&format!("{REPORT} of the run could not be written: {why}"));
    }
}

/// Writes a report's page whole or not at all, even if a signal ends the program meanwhile.
fn write_whole(place: &Path, page: &str) -> std::io::Result<()> {
    let mut file = PartialFile::beside(place)?;
    let _unfinished = Unfinished::new(file.path());
    file.file().write_all(page.as_bytes())?;
    file.keep()
}

fn page(timeline: &Timeline, documents: &RunDocuments) -> Result<String, String> {
    let text = Text::new();
    let mut news = News::whole(timeline, documents.shown());
    loop {
        let page = text.with_data(&String::from_utf8_lossy(&news.text()));
        if page.len() <= BYTES_MAX {
            return Ok(page);
        }
        if !news.halve() {
            return Err(format!("the texts of the run exceed {BYTES_MAX} bytes"));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use serde_json::{Value, json};

    use super::*;
    use crate::run::folder::{JOB, RESULT};
    use crate::run::journal::{EVENTS, METRICS};

    /// Creates the folder of a run of these nodes that took this many seconds, with one record per node and second.
    fn folder(nodes: &[String], seconds: u32) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        let mut records = String::new();
        for second in 1..=seconds {
            for node in nodes {
                let record = json!({
                    "node": node, "run": "7", "state": "training", "time": 1e9 + f64::from(second),
                    "seconds": f64::from(second), "ledger_samples": 100 * second, "samples": 3 * second,
                    "samples_per_second": 3.125, "loss": 2.0 / f64::from(second), "digest": "00ff",
                    "said": if second == seconds { json!([{ "gravity": "warning", "text": "the disk is full" }]) } else { json!([]) },
                });
                writeln!(records, "{record}").unwrap();
            }
        }
        let evaluation = |part: f64| json!({ "seconds": part * f64::from(seconds), "samples": (part * 100.0) as u64, "accuracy": part * 0.9, "loss": 0.5 });
        let result = json!({
            "event": "finished", "run": "7", "accuracy": 0.9, "base_rate": 0.125, "loss": 0.25, "epochs": 3.0,
            "samples": 100 * seconds, "seconds": seconds, "samples_per_second": 100.0, "nodes": nodes.len(),
            "missing": [], "replicas_agree": true, "digest": "00ff", "bytes_sent": 1000, "bytes_dense": 5000,
            "density": 0.1, "exchange_share": 0.25, "cpu_seconds": 12.5,
            "evaluations": [evaluation(0.5), evaluation(1.0)], "chosen": { "minibatch": 64 }, "reason": "trained",
            "warnings": ["the model is hardly better than guessing"], "model": "out/7/model.safetensors",
        });
        write(METRICS, &records);
        write(
            EVENTS,
            &format!("{}\n", json!({ "time": 1e9 + 1.5, "event": "stop_asked" })),
        );
        write(RESULT, &result.to_string());
        write(JOB, "data = \"csv:iris.csv\"\nminibatch = 64\nepochs = 3\n");
        folder
    }

    fn nodes(many: usize, name: impl Fn(usize) -> String) -> Vec<String> {
        (0..many).map(name).collect()
    }

    /// Returns the JSON data in a report's page.
    fn data(page: &str) -> Value {
        let (_, rest) = page.split_once("id=\"data\">").unwrap();
        serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap()
    }

    #[test]
    fn a_report_of_100_000_records_of_32_nodes_holds_the_whole_run_in_little_space() {
        let folder = folder(&nodes(32, |number| format!("node-{number:02}")), 3125);
        let page = of_folder(folder.path()).unwrap();
        assert!(page.len() < BYTES_MAX / 10, "{} bytes", page.len());
        let data = data(&page);
        let points = data["points"].as_array().unwrap();
        let second = |point: &Value| point[0].as_f64().unwrap();
        assert!((256..512).contains(&points.len()), "{}", points.len());
        assert!(
            second(&points[0]) < 10.0 && second(points.last().unwrap()) > 3100.0,
            "{points:?}"
        );
        assert_eq!(data["nodes"].as_array().unwrap().len(), 32);
        assert_eq!(data["evaluations"][1]["accuracy"], 0.9);
        let events = data["events"].as_array().unwrap();
        let has = |text: &str| {
            events
                .iter()
                .any(|event| event["sentence"].as_str().unwrap().contains(text))
        };
        assert!(
            has("node-31 takes part") && has("node-31: the disk is full") && has("asked to stop"),
            "{events:?}"
        );
        assert!(has("the run finished: trained"));
        assert_eq!(data["facts"]["end"]["accuracy"], 0.9);
        let figure = |title: &str| {
            let figures = data["outcome"]["figures"].as_array().unwrap();
            let found = figures.iter().find(|figure| figure["title"] == title);
            found.unwrap_or_else(|| panic!("{title}: {figures:?}"))["value"].clone()
        };
        assert_eq!((figure("base rate"), figure("CPU time")), (0.125.into(), 12.5.into()));
        assert_eq!(
            data["outcome"]["warnings"][0],
            "the model is hardly better than guessing"
        );
        let settings = data["outcome"]["settings"].as_array().unwrap();
        let chosen = settings.iter().filter(|setting| setting["chosen"] == true);
        let chosen: Vec<_> = chosen.map(|setting| (&setting["key"], &setting["value"])).collect();
        assert_eq!(chosen, [(&"minibatch".into(), &"64".into())]);
        assert!(
            data["trouble"].is_null() && data["past"].is_null(),
            "nothing is left out"
        );
    }

    #[test]
    fn a_report_that_would_be_too_large_says_what_it_leaves_out() {
        // Names of nodes in a file may have any length, and each of these characters takes six bytes.
        let folder = folder(&nodes(100, |number| format!("{number:03}{}", "<".repeat(5000))), 2);
        let page = of_folder(folder.path()).unwrap();
        assert!(page.len() <= BYTES_MAX, "{} bytes", page.len());
        let data = data(&page);
        let left = data["nodes"].as_array().unwrap().len();
        assert!((1..100).contains(&left), "{left} nodes");
        let trouble = data["trouble"].as_str().unwrap();
        assert!(trouble.contains(&format!("{left} nodes only")), "{trouble}");
        let folder = self::folder(&nodes(1, |_| "a".into()), 1);
        let reason = "<".repeat(BYTES_MAX);
        let result = std::fs::read_to_string(folder.path().join(RESULT)).unwrap();
        std::fs::write(
            folder.path().join(RESULT),
            result.replace("\"trained\"", &format!("\"{reason}\"")),
        )
        .unwrap();
        assert!(of_folder(folder.path()).unwrap_err().contains("exceed"));
    }

    #[test]
    fn text_from_elsewhere_ends_no_element() {
        let evil = "</script><script>alert(1)</script><!-- policy --><!-- data -->{script}";
        let folder = folder(&[evil.into()], 2);
        let page = of_folder(folder.path()).unwrap();
        let plain = Text::new().with_data("{}");
        for tag in ["<script", "</script", "<!--"] {
            assert_eq!(page.matches(tag).count(), plain.matches(tag).count(), "{tag}");
        }
        assert_eq!(data(&page)["nodes"][0]["node"], evil);
        assert!(
            page.contains("http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; script-src 'sha256-")
        );
        assert!(!page.contains("connect-src"), "a report asks nobody");
    }

    #[test]
    fn half_a_line_is_left_out_and_records_that_cannot_be_read_are_named() {
        let folder = folder(&["ü".into()], 3);
        let metrics = folder.path().join(METRICS);
        // The client died between the two bytes of a letter.
        let mut records = std::fs::read(&metrics).unwrap();
        let letter = records.windows(2).rposition(|pair| pair == "ü".as_bytes()).unwrap();
        records.truncate(letter + 1);
        std::fs::write(&metrics, records).unwrap();
        let page = data(&of_folder(folder.path()).unwrap());
        assert_eq!(page["nodes"][0]["node"], "ü");
        assert_eq!(page["facts"]["end"]["accuracy"], 0.9);

        std::fs::remove_file(&metrics).unwrap();
        std::fs::create_dir(&metrics).unwrap();
        let why = of_folder(folder.path()).unwrap_err();
        assert!(why.starts_with("metrics.jsonl could not be read"), "{why}");
    }

    #[test]
    fn a_failed_run_and_one_without_records_have_reports() {
        let folder = folder(&["a".into()], 2);
        std::fs::remove_file(folder.path().join(METRICS)).unwrap();
        let whole = data(&of_folder(folder.path()).unwrap());
        assert_eq!(
            (&whole["run"], &whole["evaluations"][1]["accuracy"]),
            (&"7".into(), &0.9.into())
        );

        let folder = self::folder(&["a".into()], 2);
        std::fs::remove_file(folder.path().join(RESULT)).unwrap();
        let failed = json!({ "time": 1e9 + 3.0, "event": "failed", "reason": "it diverged" });
        std::fs::write(folder.path().join(EVENTS), failed.to_string()).unwrap();
        let failed = data(&of_folder(folder.path()).unwrap());
        assert_eq!(
            failed["facts"]["end"],
            json!({ "end": "failed", "reason": "it diverged" })
        );
        assert_eq!(failed["outcome"]["figures"], json!([]));
    }
}
