//! A worker as a process: attached to its node by a socket, it prepares and trains as the node orders.
//!
//! ```text
//!  node ═ socket ═▶ this thread ── ToTraining ──▶ training thread
//!       ◀═ socket ═ reporter ◀──── FromTraining ─┘
//! ```
//!
//! Work that may wait for a disk runs on threads of its own, so that this thread always listens: `preparing` opens
//! data, `files` writes files.
//!
//! The worker is an actor whose mailbox is the socket: when the socket closes, the node is gone and the process ends.

mod evaluating;
mod files;
mod measured_weights;
mod prepared;
mod preparing;
mod reporter;
mod socket;

use std::fmt::Display;
use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::thread::JoinHandle;
use std::time::Duration;

use protocol::job::Keep;
use protocol::log::batch::Batch;
use protocol::log::bundle::Bundle;
use protocol::stats::measured::Moment;
use protocol::weights::encoding;
use protocol::weights::sums::Sums;
use protocol::wire;
use protocol::wire::attach::{Assignment, FailureCause, FromWorker, JumpOrder, ToWorker, WorkerInfo};
use protocol::wire::flow::Flow;
use protocol::wire::frame::Kind;
use protocol::wire::prefix::Prefix;
use thiserror::Error;

use crate::backend::device::Device;
use crate::machine::panics;
use crate::machine::parallel::Threads;
use crate::module::{CallWatch, ModuleHost};
use crate::pipeline::PipelineEvent;
use crate::training::ToTraining;
use crate::training::thread::TrainingThread;
use files::Files;
use measured_weights::MeasuredWeights;
use prepared::Prepared;
use preparing::Preparing;
use reporter::Reporter;
pub use socket::read_frame;
use socket::{Writer, invalid};

/// Interval at which a worker tells its node that it is alive.
const BEAT: Duration = Duration::from_secs(1);
/// Usual time after which a call of a module's code is taken for hung: far longer than any useful step.
pub const CODE_LIMIT: Duration = Duration::from_mins(10);

/// The settings that a worker process is started with.
#[derive(Clone, Debug)]
pub struct Options {
    pub version: String,
    pub device: Device,
    pub threads: Threads,
    /// Folder in which all data must be; relative paths of data refer to it.
    pub data_root: PathBuf,
    /// Time after which a call of a module's code is taken for hung.
    pub code_limit: Duration,
    /// Folder that the node writes to, from which no code is run, if the node has named it.
    pub own_folder: Option<PathBuf>,
    /// Interpreter of this process, which runs the code of modules; `None` if the process has none.
    pub modules: Option<Arc<dyn ModuleHost>>,
    /// Names and versions of the interpreter and its packages, for people; empty if the process has none.
    pub runtime: String,
}

/// Reason why a worker process stopped working for its node.
#[derive(Debug, Error)]
pub enum AttachError {
    /// Reason why a worker ended: no node listens at the socket.
    #[error("no node listens at {path}: give the socket that the node named when it started")]
    NoNode {
        /// Path of the socket at which no node listens.
        path: PathBuf,
        source: io::Error,
    },
    /// Reason why a worker ended: the connection to the node broke.
    #[error("the connection to the node broke")]
    Broken(#[from] io::Error),
}

/// Attaches to the node that listens at a socket, and works for it until it closes the socket. If the node ends without
/// having read everything, the reset connection counts as closed, too.
pub fn attach(path: &Path, options: &Options) -> Result<(), AttachError> {
    match work_for(path, options) {
        Err(AttachError::Broken(error))
            if matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe) =>
        {
            Ok(())
        }
        ended => ended,
    }
}

fn work_for(path: &Path, options: &Options) -> Result<(), AttachError> {
    let stream = UnixStream::connect(path).map_err(|source| AttachError::NoNode {
        path: path.into(),
        source,
    })?;
    end_on_panic();
    let (mut reader, writer) = socket::ends(stream)?;
    writer.message(&FromWorker::Hello(WorkerInfo {
        version: options.version.clone(),
        pid: std::process::id(),
        device: match options.runtime.as_str() {
            "" => options.device.to_string(),
            runtime => format!("{}, {runtime}", options.device),
        },
        gpu_bytes: options.device.gpu_bytes(),
        threads: options.threads.0,
    }))?;
    let limit = options.code_limit;
    let watch = options.modules.clone().map(|host| CallWatch::new(host, limit));
    beat(writer.clone(), watch)?;
    Process {
        options: options.clone(),
        writer,
        preparing: Preparing::default(),
        files: Files::default(),
        counts: Vec::new(),
        sums: Vec::new(),
        running: None,
    }
    .run(&mut reader)
}

/// Tells the node every second that this process is not stuck, until the node is gone or the code of a module is taken
/// for hung: then this thread tells the node why and falls silent, so that the node ends this process.
fn beat(writer: Writer, mut watch: Option<CallWatch>) -> io::Result<()> {
    std::thread::Builder::new().name("beat".into()).spawn(move || {
        while writer.message(&FromWorker::Alive).is_ok() {
            std::thread::sleep(BEAT);
            if let Some(reason) = watch.as_mut().and_then(CallWatch::look) {
                let cause = FailureCause::Code;
                let _ = writer.message(&FromWorker::Failed { reason, cause });
                return;
            }
        }
    })?;
    Ok(())
}

/// Makes a panic in any thread end the process, unless the panic is caught: a worker that no longer trains must not
/// look alive. The node starts another one.
fn end_on_panic() {
    const CRASHED: i32 = 101;
    let say = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if !panics::is_caught() {
            say(panic);
            std::process::exit(CRASHED);
        }
    }));
}

struct Process {
    options: Options,
    writer: Writer,
    preparing: Preparing,
    files: Files,
    /// Weights of the node's ledger (its exact integer copy of the model) that have arrived so far; they come in
    /// pieces.
    counts: Vec<i32>,
    /// Changes of weights for the next order to catch up, as far as they have arrived, because they come in pieces:
    /// index of the weight, and multiple of the step between two neighbouring values.
    sums: Vec<(u32, i32)>,
    running: Option<Running>,
}

/// Threads and channels of the run that a worker process is training.
struct Running {
    weights: usize,
    inbound: SyncSender<ToTraining>,
    training: JoinHandle<()>,
    reporter: Reporter,
    /// Evaluated weights that the run may end with instead of the last ones.
    kept: MeasuredWeights,
    /// True if the run ends with its best weights: the last weights are then evaluated and compared with them.
    keeps_best: bool,
}

impl Process {
    fn run(mut self, reader: &mut impl Read) -> Result<(), AttachError> {
        let ended = self.serve(reader);
        // The node will look for the announced files, even if it has ended.
        self.files.wait();
        ended
    }

    fn serve(&mut self, reader: &mut impl Read) -> Result<(), AttachError> {
        while let Some((kind, contents)) = read_frame(reader)? {
            match kind {
                // The node has checked the batch and applied it to its ledger; only its arrival has to be checked.
                Kind::Batch => self.tell_read(|weights| {
                    Batch::reread(&contents, weights).map(|batch| ToTraining::Apply(Arc::new(batch)))
                })?,
                Kind::Bundle => self.tell_read(|weights| {
                    Bundle::reread(&contents, weights).map(|bundle| ToTraining::ApplyBundle(Arc::new(bundle)))
                })?,
                Kind::Prefix => self.tell_read(|weights| read_prefix(&contents, weights))?,
                Kind::Flow => {
                    // Another worker waits for an answer to this message, even if it cannot be decoded.
                    let message = Flow::decode(&contents).map_or(PipelineEvent::Broken, PipelineEvent::Flow);
                    self.tell(ToTraining::Pipeline(message));
                }
                Kind::Message => self.message(wire::decode(&contents).map_err(invalid)?)?,
                Kind::Have | Kind::Origin | Kind::Hello | Kind::Piece | Kind::Note | Kind::Part => {
                    return Err(invalid("the node sent a kind of message that workers do not accept").into());
                }
            }
        }
        Ok(())
    }

    fn message(&mut self, message: ToWorker) -> io::Result<()> {
        match message {
            ToWorker::Prepare { run, job } => {
                self.end();
                let options = self.options.clone();
                let open = move || Prepared::open(&job, &options);
                return self.preparing.ask(run, &self.writer, open);
            }
            ToWorker::Counts(counts) => self.counts.extend(counts),
            ToWorker::Begin(assignment) => return self.begin(&assignment),
            ToWorker::Sums(sums) => self.sums.extend(sums),
            ToWorker::Jump(order) => return self.jump(*order),
            ToWorker::GoOn(order) => self.tell(ToTraining::GoOn(order)),
            ToWorker::GoOnPassing => self.tell(ToTraining::GoOnPassing(None)),
            ToWorker::Pause(paused) => self.tell(ToTraining::Pause(paused)),
            ToWorker::Origin { origin, alive } => self.tell(ToTraining::Origin { origin, alive }),
            ToWorker::Slot { slot, alive } => self.tell(ToTraining::Slot { slot, alive }),
            ToWorker::Evaluate(moment) => self.tell(ToTraining::Copy(moment)),
            ToWorker::Save { path } => return self.save(path),
            ToWorker::Stop => self.tell(ToTraining::Stop),
            ToWorker::Leave => self.tell(ToTraining::Leave),
            ToWorker::StandBy => self.tell(ToTraining::StandBy),
            ToWorker::GoBack(moment) => self.go_back(moment),
            ToWorker::Finish { save } => self.tell(ToTraining::Finish(save)),
            ToWorker::PipelineBroken => self.tell(ToTraining::Pipeline(PipelineEvent::Broken)),
            ToWorker::Abort => {
                self.end();
                return self.preparing.clear(&self.writer);
            }
        }
        Ok(())
    }

    fn begin(&mut self, assignment: &Assignment) -> io::Result<()> {
        let counts = std::mem::take(&mut self.counts);
        let Some(prepared) = self.preparing.prepared() else {
            return self.fail("the node started a run that this worker has not prepared");
        };
        let prepared = Arc::new(prepared.with_job(&assignment.job));
        let started = prepared.stage(assignment.pipeline).and_then(|stage| {
            let thread = prepared.start(assignment, stage.as_ref(), counts)?;
            Ok((thread, stage))
        });
        match started {
            Ok((
                TrainingThread {
                    inbound,
                    outbound,
                    thread,
                },
                stage,
            )) => {
                let kept = MeasuredWeights::default();
                let held = stage.map(|(_, stage)| stage);
                self.running = Some(Running {
                    weights: held.as_ref().map_or(&prepared.layout, |stage| &stage.layout).weights,
                    keeps_best: prepared.job.keep == Keep::Best,
                    reporter: Reporter::start(
                        assignment.run,
                        prepared,
                        held,
                        outbound,
                        self.writer.clone(),
                        self.files.clone(),
                        kept.clone(),
                    )?,
                    kept,
                    inbound,
                    training: thread,
                });
                Ok(())
            }
            Err(reason) => self.fail(&reason),
        }
    }

    fn fail(&self, reason: &str) -> io::Result<()> {
        self.writer.message(&FromWorker::Failed {
            reason: reason.into(),
            cause: FailureCause::Worker,
        })
    }

    /// Passes a message for a model of this many weights to the training thread, or reports that it cannot be read.
    fn tell_read<E: Display>(&self, read: impl FnOnce(usize) -> Result<ToTraining, E>) -> io::Result<()> {
        // Without a run, the message belongs to the last run and was on its way when that was aborted.
        let Some(running) = &self.running else {
            return Ok(());
        };
        match read(running.weights) {
            Ok(message) => {
                self.tell(message);
                Ok(())
            }
            Err(error) => self.fail(&error.to_string()),
        }
    }

    fn jump(&mut self, order: JumpOrder) -> io::Result<()> {
        let sums = std::mem::take(&mut self.sums);
        self.tell_read(|weights| {
            let sums =
                Sums::checked(sums, weights).ok_or("the node sent changes of weights that this model does not have")?;
            Ok::<_, &str>(ToTraining::Jump(Arc::new(sums), Arc::new(order)))
        })
    }

    /// Orders the training thread to report the worker's own state (residual and optimiser state), which the reporter
    /// then writes to the path. If no run is in progress, answers the node at once that nothing is saved.
    fn save(&self, path: PathBuf) -> io::Result<()> {
        if let Some(running) = &self.running
            && running.inbound.send(ToTraining::Save(path.clone())).is_ok()
        {
            return Ok(());
        }
        self.writer.message(&FromWorker::Saved { sequence: None, path })
    }

    /// Orders the training thread to go back to the weights that reached the target, or to the best weights, once the
    /// last weights are evaluated. Without either the worker stops.
    fn go_back(&self, moment: Moment) {
        let Some(running) = &self.running else {
            return;
        };
        self.tell(match running.kept.take_on_target() {
            Some(weights) => ToTraining::GoBack(weights),
            None if running.keeps_best => ToTraining::CopyLast(moment, running.inbound.clone()),
            None => ToTraining::Stop,
        });
    }

    fn tell(&self, message: ToTraining) {
        if let Some(running) = &self.running {
            // A thread that has ended has reported the reason through the reporter.
            let _ = running.inbound.send(message);
        }
    }

    /// Ends a run in progress, at any point. Does not wait for files that are still being written, because a disk may
    /// never answer.
    fn end(&mut self) {
        self.counts.clear();
        self.sums.clear();
        if let Some(running) = self.running.take() {
            // Closing the channel ends the training thread, and that ends the reporter.
            drop(running.inbound);
            let _ = running.training.join();
            running.reporter.join();
        }
    }
}

/// Decodes the sum of differences (this worker's and those of the workers before it) from whose mean this worker goes
/// on in a sequential averaging step; its model has `weights` weights.
fn read_prefix(contents: &[u8], weights: usize) -> Result<ToTraining, &'static str> {
    let read = Prefix::decode(contents).ok().and_then(|prefix| {
        let sum = encoding::read_dense(&prefix.steps, weights).ok()?;
        Some(ToTraining::GoOnPassing(Some(Arc::new((sum, prefix.head.count)))))
    });
    read.ok_or("the node sent a sum of other workers' weights that cannot be decoded")
}
