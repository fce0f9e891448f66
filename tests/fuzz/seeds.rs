//! Valid values of every kind: what the corpus is made of.

use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use communicator::checkpoint;
use communicator::exchange::{Message, OriginInfo, ParcelKind, Piece, Word as Note};
use communicator::link::{self, Hello};
use communicator::snapshot::{self, Applied, Head, LogEntry};
use communicator::transport::{Plane, dial};
use flate2::Compression;
use flate2::write::GzEncoder;
use protocol::attach::{
    Assignment, DataInfo, FromWorker, SaveOrder, Scores, ShiftOrder, ToWorker, WorkerInfo, WorkerStats,
};
use protocol::batch::{Batch, Flags, Header, Payload};
use protocol::begin::{Begin, Participant, Resumed};
use protocol::changes::word;
use protocol::control::{Beat, Found, NodeInfo, Offer, Phase, Reply, Request, RunResult, RunStatus, Word};
use protocol::cursor::{CursorAdvance, Cursors, ShardId};
use protocol::digest::Digest;
use protocol::encoding::{self, Encoding};
use protocol::frame::{self, Kind};
use protocol::frontier::{Frontier, SequenceRange};
use protocol::ids::{NodeId, OriginId, RunId};
use protocol::job::{Job, JobDraft};
use protocol::lattice::{Tau, weight_of};
use protocol::merged_range::{MergedRange, Merger};
use protocol::model::{Layout, Shape, initial_counts};
use protocol::run_beat::{Ballot, GivenUp, ParticipantState, RunBeat, Settled, StopReason};
use protocol::stats::{NodeReport, PeerRecord, StatsRecord};
use protocol::sums::Sums;
use serde::Serialize;
use worker::dataset::Scaling;
use worker::model_file::{self, Metadata};
use worker::state_file;
use worker::trainer::{Numbers, TrainerState};
use worker::training::State;

use crate::doors::Door;
use crate::engine::add_to_corpus;
use crate::targets::{SNAPSHOT_WEIGHTS, WEIGHTS};

pub(crate) const TRAIN_IMAGES: &str = "train-images-idx3-ubyte";
pub(crate) const TRAIN_LABELS: &str = "train-labels-idx1-ubyte";
const TEST_IMAGES: &str = "t10k-images-idx3-ubyte";
const TEST_LABELS: &str = "t10k-labels-idx1-ubyte";

/// Makes the corpus anew, if that is wanted.
pub(crate) fn write_if_asked() {
    if std::env::var("TAU_FUZZ_CORPUS").is_err() {
        return;
    }
    batches();
    ranges();
    frames();
    control();
    attached();
    texts();
    model_files();
    datasets();
    handshakes();
}

/// Sparse, dense, with repeats, and none: each encoding has its turn.
fn changes() -> [(&'static str, Vec<u32>); 4] {
    [
        ("none", Vec::new()),
        ("sparse", (0..40).map(|i| word(i * 111, i % 3 == 0)).collect()),
        ("dense", (100..400).map(|i| word(i, i % 2 == 0)).collect()),
        ("repeats", (0..30).map(|i| word(i / 2 * 9, i / 2 % 2 == 0)).collect()),
    ]
}

fn steps(words: &[u32]) -> Payload {
    Payload::Steps {
        tau: Tau::from_steps(300).unwrap(),
        words: words.to_vec(),
    }
}

fn header(payload: &Payload, cursors: u32) -> Header {
    let advance = |shard| CursorAdvance {
        shard: ShardId { epoch: 3, shard },
        done: 64 * shard,
    };
    Header {
        run: RunId(0x0123_4567_89ab_cdef),
        origin: OriginId(77),
        sequence: 300,
        seen: 1_000,
        digest: payload.digest(),
        cursors: (0..cursors).map(advance).collect(),
        samples: 64,
        loss: 0.75,
        flags: Flags {
            last: cursors == 0,
            stop: false,
        },
    }
}

fn batch(payload: &Payload, cursors: u32) -> Vec<u8> {
    let mut frame = Vec::new();
    header(payload, cursors).encode(payload, &mut frame).unwrap();
    frame
}

fn batches() {
    let entries = (0..60)
        .map(|i: u32| (i * 80, (i as i32 - 31).pow(3) * 7))
        .filter(|entry| entry.1 != 0);
    let sums = Sums::checked(entries.collect(), WEIGHTS).unwrap();
    add_to_corpus("batch", "sums", &batch(&Payload::Sums(sums), 2));
    for (name, words) in changes() {
        add_to_corpus("batch", name, &batch(&steps(&words), words.len() as u32 % 7));
        for (target, encoding) in [
            ("encoding_words", Encoding::Words),
            ("encoding_rice", Encoding::Rice),
            ("encoding_bitmap", Encoding::Bitmap),
        ] {
            let mut bytes = (words.len() as u16).to_le_bytes().to_vec();
            // Nothing has one form, whatever the encoding; a bitmap has no repeats.
            if words.is_empty() || encoding::encode(encoding, &words, &mut bytes) {
                add_to_corpus(target, name, &bytes);
            }
        }
    }
}

/// Two batches as one range.
fn merged_range() -> MergedRange {
    let decoded = |words: &[u32]| Batch::decode(&batch(&steps(words), 3), WEIGHTS).unwrap();
    let [_, (_, sparse), (_, dense), _] = changes();
    let (first, mut second) = (decoded(&sparse), decoded(&dense));
    second.header.sequence += 1;
    let mut merger = Merger::new(
        first.header.run,
        first.header.origin,
        first.header.sequence - 1,
        WEIGHTS,
    );
    merger.add_batch(&first);
    merger.add_batch(&second);
    merger.finish().unwrap()
}

fn ranges() {
    let range = merged_range();
    add_to_corpus("merged_range", "two", &range.encode());
    let run = range.header.run;
    let empty = Merger::new(run, OriginId(3), 0, WEIGHTS).finish().unwrap();
    let mut empty = empty.clone();
    empty.header.to = 1;
    add_to_corpus("merged_range", "empty", &empty.encode());
    let entry = |merged, bytes: Vec<u8>| LogEntry {
        origin: range.header.origin,
        from: range.header.from,
        to: range.header.to,
        bytes: bytes.into(),
        merged,
    };
    let head = Head {
        run,
        applied: vec![Applied {
            origin: range.header.origin,
            sequence: range.header.to,
            digest: range.header.digest,
        }],
        cursors: range.header.cursors.clone(),
        samples: range.header.samples,
        weights: SNAPSHOT_WEIGHTS as u64,
    };
    let counts: Vec<i32> = (0..SNAPSHOT_WEIGHTS as i32).map(|i| i.pow(3) - 70).collect();
    let log = [entry(true, range.encode()), entry(false, batch(&steps(&[]), 0))];
    for (name, log) in [("without-log", &log[..0]), ("with-log", &log[..])] {
        let bytes = snapshot::encode(head.clone(), counts.clone().into(), log).next(usize::MAX);
        add_to_corpus("snapshot", name, &bytes);
    }
    let header = checkpoint::Header {
        run,
        job: Box::new(job()),
        data: data_info(),
        slots: 3,
        states: vec![checkpoint::State {
            origin: range.header.origin,
            sequence: 300,
            path: "node.0.1.state".into(),
        }],
    };
    let folder = tempfile::tempdir().unwrap();
    let path = checkpoint::path(folder.path(), "node");
    checkpoint::write(&path, &header, head, counts.into()).unwrap();
    add_to_corpus("checkpoint", "node", &std::fs::read(path).unwrap());
    let state = State {
        origin: range.header.origin,
        sequence: 300,
        steps: 301,
        emission: vec![0.01, 0.1, 0.3],
        trainer: TrainerState {
            numbers: Numbers { ahead: 0.5, turns: 2 },
            arrays: vec![vec![0.25; SNAPSHOT_WEIGHTS], vec![-1.5; SNAPSHOT_WEIGHTS]],
        },
    };
    let path = folder.path().join("node.0.1.state");
    state_file::save(&path, &state).unwrap();
    add_to_corpus("state_file", "worker", &std::fs::read(path).unwrap());
}

fn frontier() -> Frontier {
    let mut frontier = Frontier::default();
    for origin in 1..6 {
        frontier.raise(OriginId(origin << (origin * 10)), origin * 300);
    }
    frontier
}

fn framed(kind: Kind, contents: &[u8]) -> Vec<u8> {
    let mut bytes = frame::header(kind, contents.len()).unwrap().to_vec();
    bytes.extend_from_slice(contents);
    bytes
}

fn frames() {
    let hello = [
        Hello::Link {
            version: "0.1.0".into(),
            run: RunId(9),
            from: NodeId(1 << 40),
            to: NodeId(5),
        },
        Hello::Accepted { from: NodeId(5) },
        Hello::Model { run: RunId(9) },
    ];
    for (name, hello) in ["link", "accepted", "model"].into_iter().zip(&hello) {
        let contents = link::encode(hello).unwrap();
        add_to_corpus("hello_contents", name, &contents);
        add_to_corpus("hello", name, &framed(Kind::Hello, &contents));
    }
    let origin = OriginInfo {
        origin: OriginId(7),
        home: NodeId(5),
        slot: 2,
        ended: Some(300),
    };
    let mark = Note::Mark {
        number: 300,
        frontier: frontier(),
        members: vec![NodeId(5), NodeId(1 << 60)],
    };
    let marked = Note::Marked {
        number: 300,
        except: vec![OriginId(7), OriginId(1 << 60)],
    };
    let range = SequenceRange {
        origin: OriginId(7),
        from: 2,
        to: 300,
    };
    let piece = Piece {
        kind: ParcelKind::Range,
        total: 1 << 20,
        offset: 70_000,
        bytes: merged_range().encode().into(),
    };
    let messages = [
        ("batch", Message::Batch(batch(&steps(&changes()[1].1), 2).into())),
        ("have", Message::Have(frontier())),
        ("origin", Message::Origin(origin)),
        ("mark", Message::Word(mark)),
        ("marked", Message::Word(marked)),
        ("cannot", Message::Word(Note::Cannot(range))),
        ("ask", Message::Word(Note::Ask)),
        ("newcomer", Message::Word(Note::Newcomer)),
        ("links", Message::Word(Note::Links(vec![NodeId(3), NodeId(4)]))),
        ("piece", Message::Piece(piece)),
    ];
    for (name, message) in messages {
        let (kind, contents) = match &message {
            Message::Batch(bytes) => (Kind::Batch, bytes.to_vec()),
            Message::Have(frontier) => (Kind::Have, link::encode(frontier).unwrap()),
            Message::Origin(info) => (Kind::Origin, link::encode(info).unwrap()),
            Message::Word(word) => (Kind::Note, link::encode(word).unwrap()),
            Message::Piece(piece) => {
                let mut contents = link::encode(&(piece.kind, piece.total, piece.offset)).unwrap();
                contents.extend_from_slice(&piece.bytes);
                (Kind::Piece, contents)
            }
        };
        add_to_corpus("message", name, &framed(kind, &contents));
        add_to_corpus("frame", name, &framed(kind, &contents));
    }
    for (name, kind) in [("word", Kind::Word), ("piece", Kind::Piece), ("hello", Kind::Hello)] {
        add_to_corpus("frame", name, &framed(kind, b"some contents"));
        add_to_corpus("worker_frame", name, &framed(kind, b"some contents"));
        add_to_corpus("frame_header", name, &frame::header(kind, 700).unwrap());
    }
}

fn wire(target: &str, name: &str, value: &impl Serialize) {
    add_to_corpus(target, name, &link::encode(value).unwrap());
}

fn job() -> Job {
    let draft = JobDraft {
        data: Some("csv:flowers.csv?label=species&test=0.25".into()),
        model: Some("dense 16, relu, dense 3".into()),
        target_accuracy: Some(0.97),
        ..JobDraft::default()
    };
    draft.resolve().unwrap()
}

fn address() -> SocketAddr {
    "192.168.1.10:7700".parse().unwrap()
}

fn node(id: u64) -> NodeInfo {
    NodeInfo {
        id: NodeId(id),
        name: format!("host-{id:06x}"),
        address: if id.is_multiple_of(2) {
            address()
        } else {
            "[2001:db8::1]:7700".parse().unwrap()
        },
        version: "0.1.0".into(),
        device: "cpu".into(),
        workers: 2,
        since: 1_700_000_000_000,
    }
}

fn data_info() -> DataInfo {
    DataInfo {
        hash: [0xa5; 32],
        input: Shape::Image {
            channels: 1,
            height: 28,
            width: 28,
        },
        classes: 10,
        train: 60_000,
        test: 10_000,
    }
}

fn worker_stats() -> WorkerStats {
    WorkerStats {
        gpu: Duration::from_millis(900),
        gpu_memory: 1 << 33,
        batches: 1_000,
        samples: 64_000,
        changes: 950_000,
        loss: 12_345.5,
        training: Duration::from_millis(10_500),
        exchange: Duration::from_micros(400_123),
        held_back: 3,
        tau: 0.000_3,
        staleness: 0.4,
        residual_norm: 1.25,
        residual_lost: 0.5,
        alarmed: false,
    }
}

const SCORES: Scores = Scores {
    accuracy: 0.98,
    loss: 0.07,
};

const RESUMED: Resumed = Resumed {
    run: RunId(8),
    digest: Digest(0xabc),
    samples: 19_200,
    slots: 3,
};

fn begin() -> Begin {
    let participant = |id| Participant {
        node: NodeId(id),
        name: format!("host-{id}"),
        address: address(),
        workers: 2,
        guest: id > 3,
    };
    Begin {
        job: Box::new(job()),
        data: data_info(),
        participants: vec![participant(3), participant(4)],
        resumed: Some(RESUMED),
    }
}

fn settled() -> Settled {
    Settled {
        digest: Digest(0xfeed),
        workers_agree: true,
        stats: worker_stats(),
        samples: 64_000,
        repeated: 70,
        bytes_sent: 123_456,
        seconds: 5.5,
        scores: Some(SCORES),
    }
}

fn participant_state() -> ParticipantState {
    ParticipantState {
        number: 88,
        closed: true,
        stand: 0x5eed,
        catching_up: false,
        attempt: 2,
        ballot: Some(Ballot {
            stand: 0x5eed,
            members: 7,
            attempt: 2,
        }),
        frozen: true,
        decided: true,
        settled: Some(settled()),
        saved: Some(true),
        ended: false,
        withdrawn: false,
        given_up: vec![(NodeId(5), GivenUp::OutOfReach)],
    }
}

fn stats_record() -> StatsRecord {
    let peer = PeerRecord {
        node: "host-4".into(),
        bytes_in: 1_000,
        bytes_out: 2_000,
        lag: 3,
        queue: 4,
    };
    StatsRecord {
        node: "host-3".into(),
        run: RunId(9).to_string(),
        state: "training".into(),
        loss: Some(0.5),
        peers: vec![peer.clone(), peer],
        ..StatsRecord::default()
    }
}

fn control() {
    let run = RunId(9);
    let beat = |runs| Beat {
        from: node(3),
        number: 77,
        members: vec![node(3), node(4)],
        runs,
    };
    let in_run = RunBeat {
        run,
        begin: Some(begin()),
        stop: Some(StopReason::TimeUp),
        diverged: None,
        states: vec![
            (NodeId(3), participant_state()),
            (NodeId(4), ParticipantState::default()),
        ],
    };
    let offer = Offer {
        data: data_info(),
        digest: Digest(5),
        workers: 2,
    };
    let answer = |answer| Word::Answer {
        run,
        from: NodeId(3),
        answer,
    };
    let find = Word::Find {
        run,
        coordinator: NodeId(3),
        resumes: RunId(8),
    };
    let found = Word::Found {
        run,
        from: NodeId(4),
        found: Some(Box::new(Found {
            resumed: RESUMED,
            job: Box::new(job()),
        })),
    };
    let words = [
        ("beat", Word::Beat(Box::new(beat(Vec::new())))),
        ("beat-in-run", Word::Beat(Box::new(beat(vec![in_run])))),
        (
            "echo",
            Word::Echo {
                from: NodeId(3),
                number: 77,
            },
        ),
        (
            "prepare",
            Word::Prepare {
                run,
                coordinator: NodeId(3),
                job: Box::new(job()),
            },
        ),
        ("find", find),
        ("found", found),
        ("checkpoint", Word::Checkpoint(run)),
        ("stop", Word::Stop(run)),
        ("answer", answer(Ok(offer))),
        ("answer-no", answer(Err("points.csv could not be read".into()))),
        (
            "abort",
            Word::Abort {
                run,
                reason: "a node is missing".into(),
            },
        ),
        ("stats", Word::Stats(Box::new(stats_record()))),
        ("leaving", Word::Leaving(NodeId(3))),
        ("unwelcome", Word::Unwelcome("bring it to the same release".into())),
    ];
    for (name, word) in words {
        wire("word", name, &word);
    }
    let start = Request::StartTraining {
        job: Box::new(job()),
        allow_partial: true,
    };
    for (name, request) in [
        ("nodes", Request::Nodes),
        ("start", start),
        ("stop", Request::Stop),
        ("checkpoint", Request::Checkpoint),
        (
            "resume",
            Request::Resume {
                run,
                allow_partial: false,
            },
        ),
        ("status", Request::Status),
        ("stats", Request::Stats { after: 1 << 20 }),
    ] {
        wire("request", name, &request);
    }
    replies();
}

fn replies() {
    let run = RunId(9);
    let report = NodeReport {
        node: "host-3".into(),
        address: address().to_string(),
        state: "alive".into(),
        device: "cpu".into(),
        workers: 2,
        since: 1.7e9,
        rtt_ms: Some(0.4),
    };
    let result = RunResult {
        participants: vec!["host-3".into()],
        missing: vec!["host-4".into()],
        agree: true,
        digest: Digest(5),
        scores: SCORES,
        stats: worker_stats(),
        samples: 64_000,
        repeated: 70,
        weights: 500_000,
        seconds: 5.5,
        bytes_sent: 123_456,
        stop: Some(StopReason::TargetReached),
        model: "tau-node/9/model.safetensors".into(),
    };
    let status = |outcome| {
        Reply::Status(Some(Box::new(RunStatus {
            run,
            phase: Phase::Ended,
            job: Box::new(job()),
            train: 60_000,
            outcome,
            waiting: vec!["host-4: it has not told its digest".into()],
        })))
    };
    for (name, reply) in [
        ("nodes", Reply::Nodes(vec![report.clone(), report])),
        ("started", Reply::Started(run)),
        ("stopping", Reply::Stopping(run)),
        ("called-off", Reply::CalledOff(run)),
        ("checkpointing", Reply::Checkpointing(run)),
        ("no-status", Reply::Status(None)),
        ("status", status(Some(Ok(Box::new(result))))),
        ("status-failed", status(Some(Err("diverged".into())))),
        (
            "stats",
            Reply::Stats {
                last: 500,
                records: vec![stats_record(), stats_record()],
            },
        ),
        ("refused", Reply::Refused(vec!["busy".into(), "no data".into()])),
    ] {
        wire("reply", name, &reply);
    }
}

fn attached() {
    let run = RunId(9);
    let hello = WorkerInfo {
        version: "0.1.0".into(),
        pid: 4_321,
        device: "cpu".into(),
        threads: 2,
    };
    let data = data_info();
    let reason = String::from("points.csv could not be read");
    let finished = FromWorker::Finished {
        digest: Some(Digest(5)),
    };
    let saved_model = |saved| FromWorker::SavedModel { run, saved };
    for (name, word) in [
        ("hello", FromWorker::Hello(hello)),
        ("alive", FromWorker::Alive),
        ("prepared", FromWorker::Prepared { run, data }),
        (
            "refused",
            FromWorker::Refused {
                run,
                reason: reason.clone(),
            },
        ),
        ("stats", FromWorker::Stats(Box::new(worker_stats()))),
        ("evaluated", FromWorker::Evaluated { run, scores: SCORES }),
        (
            "saved",
            FromWorker::Saved {
                sequence: Some(300),
                path: PathBuf::from("tau-node/9/host.0.1.state"),
            },
        ),
        ("closed", FromWorker::Closed { residual_norm: 1.5 }),
        ("finished", finished),
        ("saved-model", saved_model(Ok(SCORES))),
        ("unsaved-model", saved_model(Err("the disk is full".into()))),
        ("idle", FromWorker::Idle),
        ("failed", FromWorker::Failed { reason, diverged: true }),
    ] {
        wire("from_worker", name, &word);
    }
    let assignment = Assignment {
        run,
        origin: OriginId(7),
        slot: 1,
        slots: 4,
        cursors: Cursors::from(header(&steps(&[]), 9).cursors),
        batches: 300,
        samples: 19_200,
        restore: Some("tau-node/9/host.0.1.state".into()),
    };
    let path = PathBuf::from("tau-node/9/host.0.1.state");
    let save = Some(SaveOrder {
        path: "tau-node/9/model.safetensors".into(),
        frontier: frontier(),
    });
    let job = Box::new(job());
    for (name, word) in [
        ("prepare", ToWorker::Prepare { run, job }),
        ("counts", ToWorker::Counts((-50..50).map(|i: i32| i.pow(3)).collect())),
        ("begin", ToWorker::Begin(Box::new(assignment))),
        ("sums", ToWorker::Sums(vec![(0, 5), (7, -9), (4_999, i32::MAX)])),
        (
            "shift",
            ToWorker::Shift(Box::new(ShiftOrder {
                origin: Some(OriginId(7)),
                batches: 300,
                samples: 19_200,
                cursors: Cursors::from(header(&steps(&[]), 9).cursors),
            })),
        ),
        ("pause", ToWorker::Pause(true)),
        (
            "origin-dead",
            ToWorker::Origin {
                origin: OriginId(7),
                alive: false,
            },
        ),
        ("slot", ToWorker::Slot { slot: 3, alive: false }),
        ("evaluate", ToWorker::Evaluate),
        ("save", ToWorker::Save { path }),
        ("stop", ToWorker::Stop),
        ("finish", ToWorker::Finish { save }),
        ("abort", ToWorker::Abort),
    ] {
        wire("to_worker", name, &word);
    }
}

fn texts() {
    let full = "data = \"idx:images\"\nmodel = \"conv 8 3x3, relu, flatten, dense 10\"\nepochs = 3\nminibatch = 32\n\
        optimiser = \"sgd:0.05,momentum=0.9,nesterov\"\nclip = 2.5\nlr_schedule = \"cosine:warmup=0.1\"\n\
        tau = 0.0078125\nsplit = \"class\"\nbalanced = true\nexchange = \"strom\"\ntarget_accuracy = 0.97\n\
        max_seconds = 60.5\ncheckpoint_every = 10\nseed = 42\n";
    let short = "density = 1e-3 # few\noptimiser = 'adam:0.002'\nlr_schedule = \"step:every=0.25,factor=0.5\"\n\
        clip = \"none\"\nsplit = \"equal\"\n";
    for (name, text) in [("full", full), ("short", short), ("empty", "")] {
        add_to_corpus("job", name, text.as_bytes());
    }
    for (name, text) in [
        ("builtin", "builtin:mnist"),
        ("idx", "idx:some/folder"),
        ("csv", "csv:iris.csv"),
        ("csv-options", "csv:iris.csv?label=-2&test=1e-3"),
        ("csv-name", "csv:ir?label=a=b"),
    ] {
        add_to_corpus("data", name, text.as_bytes());
    }
    for (name, text) in [
        ("perceptron", "dense 512, relu, dense 128, tanh, dense 3"),
        (
            "network",
            "conv 8 3x3, relu, conv 4 5x5 stride 2 pad 1, gelu, maxpool 2, avgpool 3, dropout 0.25, flatten, dense 3",
        ),
        ("smallest", "dense 3"),
        ("padded", "conv 2 3x3 pad 7 stride 3,sigmoid , flatten,dense 3"),
    ] {
        add_to_corpus("model", name, text.as_bytes());
    }
}

fn model_files() {
    let scaling = |columns| Scaling::Standard {
        mean: vec![1.5; columns],
        deviation: vec![0.1; columns],
    };
    let image = Shape::Image {
        channels: 1,
        height: 5,
        width: 4,
    };
    for (name, model, input, scaling) in [
        ("perceptron", "dense 4, relu, dense 2", Shape::Flat(3), scaling(3)),
        ("network", "conv 2 3x3, relu, flatten, dense 2", image, Scaling::Unit),
    ] {
        let draft = JobDraft {
            model: Some(model.into()),
            ..JobDraft::default()
        };
        let job = draft.resolve().unwrap();
        let layout = Layout::new(&job.model, input, 2).unwrap();
        let counts = initial_counts(&layout, 1);
        let weights: Vec<f32> = counts.iter().copied().map(weight_of).collect();
        let classes = ["no", "yes"].map(String::from);
        let digest = Digest::of_counts(&counts);
        let metadata = Metadata::new(&job, input, &classes, &scaling, &frontier(), digest);
        let file = tempfile::NamedTempFile::new().unwrap();
        model_file::save(file.path(), &layout, &weights, &metadata).unwrap();
        add_to_corpus("model_file", name, &std::fs::read(file.path()).unwrap());
    }
}

/// The bytes of an IDX file.
fn idx(dimensions: &[u32], data: impl Iterator<Item = u8>) -> Vec<u8> {
    let mut bytes = vec![0, 0, 8, dimensions.len() as u8];
    bytes.extend(dimensions.iter().flat_map(|dimension| dimension.to_be_bytes()));
    bytes.extend(data);
    bytes
}

/// Six small images to learn from and three to measure on.
pub(crate) fn idx_files() -> [(&'static str, Vec<u8>); 4] {
    let images = |count: u32| idx(&[count, 4, 3], (0..count as u8 * 12).map(|pixel| pixel * 3));
    let labels = |count: u32| idx(&[count], (0..count as u8).map(|sample| sample % 3));
    [
        (TRAIN_IMAGES, images(6)),
        (TRAIN_LABELS, labels(6)),
        (TEST_IMAGES, images(3)),
        (TEST_LABELS, labels(3)),
    ]
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn datasets() {
    let [(_, images), (_, labels), ..] = idx_files();
    add_to_corpus("idx", "images", &images);
    add_to_corpus("idx", "labels", &labels);
    add_to_corpus("idx", "images-gz", &gzip(&images));
    for (name, text) in [
        ("header", "x,y,side\n1,2.5,left\n-3e2,4,right\n5,6,left\n7,8,right\n"),
        ("plain", "1,2,3\r\n4,5,6\r\n\r\n7,8,9\r\n1,1,3"),
        ("quoted", "\"a \"\"b\"\"\",\"c,d\"\n1 , x\n\"2\",\"y\ny\"\n3,x\n"),
        ("extremes", "a,class\n3.4e38,1\n-3.4e38,10\n1e-45,9\n0,1\n"),
    ] {
        add_to_corpus("csv", name, text.as_bytes());
    }
}

/// What a member says first, and what a node answers. Both are drawn anew each time: half of it is random.
fn handshakes() {
    let mut door = Door::open();
    for (name, plane) in [("control", Plane::Control), ("data", Plane::Data)] {
        let Door { runtime, security, .. } = &door;
        let hello = runtime.block_on(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let listening = async {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut bytes = vec![0; 4 << 10];
                let length = tokio::io::AsyncReadExt::read(&mut stream, &mut bytes).await.unwrap();
                bytes.truncate(length);
                bytes
            };
            let (_, hello) = tokio::join!(dial(address, plane, security, Duration::from_secs(5)), listening);
            hello
        });
        add_to_corpus("accept", name, &hello);
        // Nobody who dials has sent this hello, so none of them takes the answer.
        add_to_corpus("dial", &format!("refused-{name}"), &door.knock(&hello));
    }
}

/// Weights that batches of the corpus reach.
const _: () = assert!(40 * 111 < WEIGHTS);
