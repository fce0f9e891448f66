//! A worker process is asked for what it alone has, and another begins with it. A test of its own, because attaching
//! changes what a panic does to the process.

use std::io::Write;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use protocol::attach::{Assignment, COUNTS_PER_PIECE, FromWorker, ToWorker};
use protocol::batch::Batch;
use protocol::changes::apply_to_counts;
use protocol::cursor::Cursors;
use protocol::data::DataSpec;
use protocol::frame::{self, Kind};
use protocol::ids::{OriginId, RunId};
use protocol::job::{Job, JobDraft};
use protocol::model::{Layout, initial_counts};
use worker::dataset::Dataset;
use worker::device::Device;
use worker::ops::Threads;
use worker::process::{Options, attach, read_frame};
use worker::state_file;

/// The node's end of a worker.
struct Node {
    stream: UnixStream,
    worker: JoinHandle<()>,
}

#[derive(Debug)]
enum Heard {
    Word(FromWorker),
    Batch(Vec<u8>),
}

impl Node {
    fn start(folder: &Path) -> Self {
        let path = folder.join("socket");
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        let worker = std::thread::spawn(move || {
            let options = Options {
                device: Device::Cpu,
                version: "test".into(),
                threads: Threads(1),
                data_root: None,
            };
            // How the connection ends is not what is tested.
            let _ = attach(&path, &options);
        });
        Self {
            stream: listener.accept().unwrap().0,
            worker,
        }
    }

    fn say(&mut self, word: &ToWorker) {
        let contents = postcard::to_stdvec(word).unwrap();
        let header = frame::header(Kind::Word, contents.len()).unwrap();
        self.stream.write_all(&header).unwrap();
        self.stream.write_all(&contents).unwrap();
    }

    fn save(&mut self, path: &Path) {
        self.say(&ToWorker::Save { path: path.into() });
    }

    /// The next batch or word; what every worker says now and then is left out.
    fn hear(&mut self) -> Heard {
        loop {
            let (kind, contents) = read_frame(&mut self.stream).unwrap().expect("the worker is gone");
            if kind == Kind::Batch {
                return Heard::Batch(contents);
            }
            match postcard::from_bytes(&contents).unwrap() {
                FromWorker::Alive | FromWorker::Hello(_) | FromWorker::Stats(_) | FromWorker::Prepared { .. } => {}
                word => return Heard::Word(word),
            }
        }
    }

    fn begin(&mut self, job: &Job, counts: &[i32], assignment: Assignment) {
        self.say(&ToWorker::Prepare {
            run: RunId(1),
            job: Box::new(job.clone()),
        });
        for piece in counts.chunks(COUNTS_PER_PIECE) {
            self.say(&ToWorker::Counts(piece.to_vec()));
        }
        self.say(&ToWorker::Begin(Box::new(assignment)));
    }

    /// Ends the run; the worker still hears.
    fn abort(&mut self) {
        self.say(&ToWorker::Abort);
    }

    /// Closes the socket and waits for the worker to end.
    fn end(self) {
        drop(self.stream);
        self.worker.join().unwrap();
    }
}

/// A node's ledger, of one origin.
#[derive(Clone)]
struct Ledger {
    counts: Vec<i32>,
    cursors: Cursors,
    batches: u64,
    samples: u64,
}

impl Ledger {
    fn apply(&mut self, frame: &[u8]) -> u64 {
        let Batch { header, words } = Batch::decode(frame, self.counts.len()).unwrap();
        apply_to_counts(&words, header.tau, &mut self.counts).unwrap();
        self.cursors.extend(header.cursors);
        self.batches += 1;
        self.samples += u64::from(header.samples);
        header.sequence
    }

    fn assignment(&self, restore: Option<PathBuf>) -> Assignment {
        Assignment {
            run: RunId(1),
            origin: OriginId(5),
            slot: 0,
            slots: 1,
            cursors: self.cursors.clone(),
            batches: self.batches,
            samples: self.samples,
            restore,
        }
    }
}

fn job(folder: &Path) -> (Job, Ledger) {
    let file = folder.join("points.csv");
    let rows: Vec<String> = (0..2000)
        .map(|i| format!("{},{},side{}", i * 37 % 101, i * 53 % 103, i % 2))
        .collect();
    std::fs::write(&file, rows.join("\n")).unwrap();
    let draft = JobDraft {
        data: Some(format!("csv:{}", file.display())),
        model: Some("dense 8, relu, dense 2".into()),
        epochs: Some(100_000),
        minibatch: Some(16),
        density: Some(0.2),
        optimiser: Some("sgd:0.01,momentum=0.9".into()),
        lr_schedule: Some("constant".into()),
        ..JobDraft::default()
    };
    let job = draft.resolve().unwrap();
    let spec: DataSpec = job.data.clone();
    let dataset = Dataset::open(&spec, job.seed, None).unwrap();
    let layout = Layout::new(&job.model, dataset.input, dataset.classes.len()).unwrap();
    let ledger = Ledger {
        counts: initial_counts(&layout, job.seed),
        cursors: Cursors::default(),
        batches: 0,
        samples: 0,
    };
    (job, ledger)
}

#[test]
fn a_worker_saves_between_two_batches_and_another_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let (job, mut ledger) = job(folder.path());
    let weights = ledger.counts.len();
    let path = folder.path().join("state");
    let mut node = Node::start(folder.path());

    // Nothing trains yet.
    node.save(&path);
    match node.hear() {
        Heard::Word(FromWorker::Saved {
            sequence: None,
            path: named,
        }) => assert_eq!(named, path),
        other => panic!("{other:?}"),
    }

    // A file that was there belongs to other batches.
    std::fs::write(&path, "old").unwrap();
    node.begin(&job, &ledger.counts, ledger.assignment(None));
    let mut last = 0;
    let (saved, at) = loop {
        match node.hear() {
            Heard::Batch(frame) => {
                last = ledger.apply(&frame);
                if last == 40 {
                    node.save(&path);
                }
            }
            Heard::Word(FromWorker::Saved { sequence, path: named }) => {
                assert_eq!((sequence, &named), (Some(last), &path));
                assert!(std::fs::read(&path).map_or(true, |bytes| bytes != b"old"));
                break (ledger.clone(), last);
            }
            other @ Heard::Word(_) => panic!("{other:?}"),
        }
    };
    // What a worker that had not been interrupted goes on with.
    let mut expected = Vec::new();
    while expected.len() < 5 {
        match node.hear() {
            Heard::Batch(frame) => expected.push(frame),
            other @ Heard::Word(_) => panic!("{other:?}"),
        }
    }
    node.end();
    let state = state_file::load(&path, weights).unwrap();
    assert_eq!((state.origin, state.sequence), (OriginId(5), at));

    // Steps that were held back because this test was slow would make other batches of the same samples.
    let steady = |frames: &[Vec<u8>]| {
        let samples = |frame: &Vec<u8>| Batch::decode(frame, weights).unwrap().header.samples;
        frames.iter().all(|frame| samples(frame) == 16)
    };
    let go_on = |restore: Option<PathBuf>| {
        let mut node = Node::start(folder.path());
        node.begin(&job, &saved.counts, saved.assignment(restore));
        let mut found = Vec::new();
        while found.len() < 5 {
            match node.hear() {
                Heard::Batch(frame) => found.push(frame),
                other @ Heard::Word(_) => panic!("{other:?}"),
            }
        }
        node.abort();
        node.end();
        found
    };
    let restored = go_on(Some(path.clone()));
    if steady(&expected) && steady(&restored) {
        assert_eq!(restored, expected);
    }
    let first = |frames: &[Vec<u8>]| Batch::decode(&frames[0], weights).unwrap().header.sequence;
    assert_eq!(first(&restored), at + 1);

    // What cannot be used is left out.
    std::fs::write(&path, "torn").unwrap();
    assert_eq!(first(&go_on(Some(path))), 1);
}
