//! The node's end of a worker process, with a ledger and a job for it. Attaching changes the effect of a panic on the
//! process, so each user of this module is a test binary of its own.

use std::io::Write;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use protocol::ids::{OriginId, RunId};
use protocol::job::model::{Layout, initial_counts};
use protocol::job::{Job, JobDraft};
use protocol::log::batch::Batch;
use protocol::log::cursor::Cursors;
use protocol::wire::attach::{Assignment, COUNTS_PER_PIECE, FromWorker, ToWorker};
use protocol::wire::frame::{self, Kind};
use worker::backend::device::Device;
use worker::dataset::Dataset;
use worker::machine::parallel::Threads;
use worker::process::{CODE_LIMIT, Options, attach, read_frame};

/// The node's end of a worker.
pub(crate) struct Node {
    stream: UnixStream,
    worker: JoinHandle<()>,
}

#[derive(Debug)]
pub(crate) enum Heard {
    Word(FromWorker),
    Batch(Vec<u8>),
}

impl Node {
    pub(crate) fn start(folder: &Path) -> Self {
        let path = folder.join("socket");
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        let root = folder.to_owned();
        let worker = std::thread::spawn(move || {
            let options = Options {
                device: Device::Cpu,
                version: "test".into(),
                threads: Threads(1),
                data_root: root,
                code_limit: CODE_LIMIT,
                own_folder: None,
                modules: None,
                runtime: String::new(),
            };
            // The worker must end without an error, however its node ends.
            attach(&path, &options).unwrap();
        });
        Self {
            stream: listener.accept().unwrap().0,
            worker,
        }
    }

    pub(crate) fn say(&mut self, message: &ToWorker) {
        let contents = postcard::to_stdvec(message).unwrap();
        let header = frame::header(Kind::Message, contents.len()).unwrap();
        self.stream.write_all(&header).unwrap();
        self.stream.write_all(&contents).unwrap();
    }

    /// Returns the next batch or message, without the messages that every worker sends regularly.
    pub(crate) fn hear(&mut self) -> Heard {
        loop {
            let (kind, contents) = read_frame(&mut self.stream).unwrap().expect("the worker is gone");
            if kind == Kind::Batch {
                return Heard::Batch(contents);
            }
            match postcard::from_bytes(&contents).unwrap() {
                FromWorker::Alive | FromWorker::Hello(_) | FromWorker::Stats(_) => {}
                message => return Heard::Word(message),
            }
        }
    }

    pub(crate) fn prepare(&mut self, run: RunId, job: &Job) {
        let job = Box::new(job.clone());
        self.say(&ToWorker::Prepare { run, job });
        match self.hear() {
            Heard::Word(FromWorker::Prepared { run: named, .. }) => assert_eq!(named, run),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn begin(&mut self, job: &Job, counts: &[i32], assignment: Assignment) {
        self.prepare(assignment.run, job);
        for piece in counts.chunks(COUNTS_PER_PIECE) {
            self.say(&ToWorker::Counts(piece.to_vec()));
        }
        self.say(&ToWorker::Begin(Box::new(assignment)));
    }

    /// Aborts the run and skips all earlier messages; the worker remains attached.
    pub(crate) fn abort(&mut self) {
        self.say(&ToWorker::Abort);
        while !matches!(self.hear(), Heard::Word(FromWorker::Idle)) {}
    }

    /// Closes the socket and waits for the worker to end.
    pub(crate) fn end(self) {
        drop(self.stream);
        self.worker.join().unwrap();
    }
}

/// A node's ledger: its own replica in counts, with the cursors of the batches in it. All of them are of one origin.
#[derive(Clone)]
pub(crate) struct Ledger {
    pub(crate) counts: Vec<i32>,
    cursors: Cursors,
    batches: u64,
    samples: u64,
}

impl Ledger {
    pub(crate) fn apply(&mut self, frame: &[u8]) -> u64 {
        let Batch { header, payload } = Batch::decode(frame, self.counts.len()).unwrap();
        payload.apply_to_counts(&mut self.counts).unwrap();
        self.cursors.extend(header.cursors);
        self.batches += 1;
        self.samples += u64::from(header.samples);
        header.sequence
    }

    pub(crate) fn assignment(&self, job: &Job, restore: Option<PathBuf>) -> Assignment {
        Assignment {
            run: RunId(1),
            job: Box::new(job.clone()),
            paced: None,
            founders: 1,
            origin: OriginId(5),
            slot: 0,
            slots: 1,
            cursors: self.cursors.clone(),
            batches: self.batches,
            samples: self.samples,
            restore,
            round: 3,
            workers: 2,
            pipeline: None,
        }
    }
}

pub(crate) fn job(folder: &Path) -> (Job, Ledger) {
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
        density: Some("0.2".into()),
        optimiser: Some("sgd:0.01,momentum=0.9".into()),
        lr_schedule: Some("constant".into()),
        ..JobDraft::default()
    };
    let job = draft.resolve().unwrap();
    let dataset = Dataset::open(&job.data, job.seed, None).unwrap();
    let layout = Layout::new(&job.model, dataset.input, dataset.target.outputs()).unwrap();
    let ledger = Ledger {
        counts: initial_counts(&layout, job.seed),
        cursors: Cursors::default(),
        batches: 0,
        samples: 0,
    };
    (job, ledger)
}
