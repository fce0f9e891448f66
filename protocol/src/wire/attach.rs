//! What a node and its workers say to each other, beside batches. Batches go as they are, in both directions.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::ids::{OriginId, RunId};
use crate::job::Job;
use crate::job::data::DataInfo;
use crate::log::cursor::Cursors;
use crate::log::frontier::Frontier;
use crate::stats::WorkerStats;
use crate::stats::measured::{Evaluation, Moment, Scores};
use crate::weights::contribution::Contribution;
use crate::weights::digest::Digest;
use crate::wire::flow::PipelineAssignment;

/// Counts of a ledger in one piece.
pub const COUNTS_PER_PIECE: usize = 1 << 20;

/// Moved weights in one piece.
pub const SUMS_PER_PIECE: usize = 1 << 20;

/// What a node tells a worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ToWorker {
    /// Open the job's data and answer with [`FromWorker::Prepared`] or [`FromWorker::Refused`].
    Prepare {
        /// The run that it is for.
        run: RunId,
        /// What is to be trained.
        #[serde(with = "crate::job::as_text")]
        job: Box<Job>,
    },
    /// Some of the ledger's counts, to begin from. Pieces come in order, before [`ToWorker::Begin`]; without any, the
    /// worker begins with the initial weights.
    Counts(Vec<i32>),
    /// Train.
    Begin(Box<Assignment>),
    /// Some weights and the steps that each is to move. Pieces come in order, before [`ToWorker::Jump`], which applies them.
    Sums(Vec<(u32, i32)>),
    /// Move the weights of all such pieces: they are what came other than as batches.
    Jump(Box<JumpOrder>),
    /// Whether the worker is throttled: what would leave stays in the residual.
    Pause(bool),
    /// All whom this worker waits for have come as far as it has, and what they sent was sent before this.
    GoOn(GoOn),
    /// In this worker's pass nobody comes before it, or is waited for: it goes on from what it has.
    GoOnPassing,
    /// An origin that sends no batches any more, or does so again: what it began is free, or is not.
    Origin {
        /// Which.
        origin: OriginId,
        /// Whether it goes on with what it began.
        alive: bool,
    },
    /// A slot without a worker, or with one again.
    Slot {
        /// Which.
        slot: usize,
        /// Whether a worker trains there.
        alive: bool,
    },
    /// Measure the present weights on the evaluation samples. They are of this moment.
    Evaluate(Moment),
    /// Write what this worker alone has, its residual and its optimiser's state, to a file, and answer with
    /// [`FromWorker::Saved`].
    Save {
        /// The file.
        path: PathBuf,
    },
    /// Take no further step; close the origin.
    Stop,
    /// Take no further step, let out the residual, and close the origin: this node leaves, and the run goes on without it.
    Leave,
    /// Take no further step, but leave the origin open: [`ToWorker::GoBack`] or [`ToWorker::Stop`] follows.
    StandBy,
    /// Move the weights back to those that were measured and are to be kept, and close the origin. All others have closed
    /// theirs, so the present weights, of this moment, are the last; where the best are kept, they are measured first.
    GoBack(Moment),
    /// All batches have come: answer with [`FromWorker::Finished`] and, if a model is to be saved, with
    /// [`FromWorker::SavedModel`]. May be said again, as long as the run is not aborted.
    Finish {
        /// Where to save.
        save: Option<SaveOrder>,
    },
    /// Somebody in this worker's pipeline cannot be reached, or was started again: what is under way there is over.
    PipelineBroken,
    /// Forget the run, and answer with [`FromWorker::Idle`].
    Abort,
}

/// All whom a worker waits for have come to its round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GoOn {
    /// The round.
    pub round: u64,
    /// The contribution of its difference that the worker is to let out now: all have told their losses. Without one it
    /// trains on: all have let out theirs.
    pub contribution: Option<Contribution>,
    /// The newest round that anybody has come to.
    pub newest: u64,
    /// How many workers make the next one together.
    pub workers: u32,
}

/// What a jump stands for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JumpOrder {
    /// Whose batches they are, if they are of one origin.
    pub origin: Option<OriginId>,
    /// How many batches.
    pub batches: u64,
    /// The samples in them.
    pub samples: u64,
    /// Which samples are done with them.
    pub cursors: Cursors,
}

/// Where a model is saved, and what is to stand in its file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SaveOrder {
    /// The file.
    pub path: PathBuf,
    /// The batches that it is the sum of.
    pub frontier: Frontier,
    /// Where it is a stage, whether the rest of its pipeline is there to be measured with it.
    pub with_pipeline: bool,
}

/// A worker's place in a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Assignment {
    /// The run.
    pub run: RunId,
    /// The job with all settings decided.
    #[serde(with = "crate::job::as_text")]
    pub job: Box<Job>,
    /// The evaluations that the worker makes by itself, where it alone decides what is trained next.
    pub paced: Option<Pace>,
    /// The slots of the workers that began the run. Those beyond the job's number of trainers only train when lower ones are
    /// lost.
    pub founders: usize,
    /// The name of this incarnation.
    pub origin: OriginId,
    /// Its place among the run's workers.
    pub slot: usize,
    /// How many there are.
    pub slots: usize,
    /// Which samples are done already.
    pub cursors: Cursors,
    /// The batches applied to the weights that it begins with.
    pub batches: u64,
    /// The samples in them.
    pub samples: u64,
    /// What a worker had alone at exactly these batches of its own, in a file.
    pub restore: Option<PathBuf>,
    /// The newest round that anybody has come to, where the strategy has rounds.
    pub round: u64,
    /// How many workers make the next one together.
    pub workers: u32,
    /// Its place in a pipeline, where it holds a stage of the network only.
    pub pipeline: Option<PipelineAssignment>,
}

/// Evaluations that a worker makes by itself between two of its steps.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pace {
    /// Samples between two evaluations.
    pub every: u64,
    /// Seconds since the run's first step when the worker was seated.
    pub seconds: f64,
}

/// What a worker tells its node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum FromWorker {
    /// The first message.
    Hello(WorkerInfo),
    /// Said every second, whatever it does: one that is silent is stuck, however long its steps take.
    Alive,
    /// Some of the counts that the run begins with, where that is with a model's. Pieces come in order, before
    /// [`FromWorker::Prepared`].
    First {
        /// The run that it is for.
        run: RunId,
        /// The counts.
        counts: Vec<i32>,
        /// The tensors that the model has not, and that begin afresh; said with the first piece.
        afresh: Vec<String>,
    },
    /// The job's data is open.
    Prepared {
        /// The run that it is for.
        run: RunId,
        /// What the data is.
        data: DataInfo,
        /// How fast this worker is, about: million products a second. 0 where nobody has to know.
        speed: u64,
    },
    /// This worker cannot take part.
    Refused {
        /// The run that it was for.
        run: RunId,
        /// One sentence.
        reason: String,
    },
    /// What it did since the run began, once a second and when it closes.
    Stats(Box<WorkerStats>),
    /// This worker has had nothing to train for a second: the remaining samples are in the hands of others. Without any, all
    /// samples are trained as far as it knows.
    Starved(Vec<Missing>),
    /// It trains again.
    Fed,
    /// An evaluation that was asked for.
    Evaluated {
        /// In which run.
        run: RunId,
        /// What was found.
        evaluation: Evaluation,
    },
    /// What this worker alone has is written, as it was after its last batch, which was sent before this.
    Saved {
        /// That batch's sequence; none if the file could not be written.
        sequence: Option<u64>,
        /// The file.
        path: PathBuf,
    },
    /// The origin is closed; its last batch was sent before this.
    Closed {
        /// The norm of what was never emitted and is dropped.
        residual_norm: f64,
    },
    /// All is applied. Said before anything is saved: a disk that hangs keeps nobody from comparing digests.
    Finished {
        /// The digest recomputed from the weights; none if one has left the lattice.
        digest: Option<Digest>,
    },
    /// The model is saved and measured, as [`ToWorker::Finish`] ordered. May come late, even after the run was aborted.
    SavedModel {
        /// Of which run.
        run: RunId,
        /// How good it is, where this worker could tell, or one sentence on why it is not saved.
        saved: Result<Option<Scores>, String>,
    },
    /// The answer to each [`ToWorker::Abort`]: nothing of what was ordered before it is under way any more, but for files.
    Idle,
    /// The run cannot go on here.
    Failed {
        /// One sentence.
        reason: String,
        /// Whether the run has diverged, so that nobody can go on.
        diverged: bool,
    },
}

/// Samples that a starved worker waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missing {
    /// The slot that was to train them.
    pub slot: u32,
    /// The number of samples.
    pub samples: u64,
}

/// Who a worker is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerInfo {
    /// Its release.
    pub version: String,
    /// Its process.
    pub pid: u32,
    /// What it computes on.
    pub device: String,
    /// The bytes of a GPU's memory, if it computes on one.
    pub gpu_bytes: Option<u64>,
    /// With how many threads.
    pub threads: usize,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::JobDraft;

    #[test]
    fn messages_survive_the_wire() {
        let messages = [
            ToWorker::Prepare {
                run: RunId(7),
                job: Box::new(JobDraft::default().resolve().unwrap()),
            },
            ToWorker::Counts(vec![-1, 0, 1 << 20]),
            ToWorker::Pause(true),
            ToWorker::Finish { save: None },
        ];
        for message in messages {
            let bytes = postcard::to_stdvec(&message).unwrap();
            assert_eq!(postcard::from_bytes::<ToWorker>(&bytes).unwrap(), message);
        }
        let scores = Scores {
            accuracy: 0.5,
            loss: 1.0,
            mae: None,
        };
        let saved = |saved| FromWorker::SavedModel { run: RunId(7), saved };
        for message in [
            FromWorker::Idle,
            saved(Ok(Some(scores))),
            saved(Ok(None)),
            saved(Err("full".into())),
        ] {
            let bytes = postcard::to_stdvec(&message).unwrap();
            assert_eq!(postcard::from_bytes::<FromWorker>(&bytes).unwrap(), message);
        }
    }

    #[test]
    fn a_piece_of_counts_fits_into_a_message() {
        // An i32 takes five bytes at most.
        const { assert!(COUNTS_PER_PIECE * 5 + 16 < crate::log::batch::BATCH_BYTES_MAX) }
        const { assert!(SUMS_PER_PIECE * 10 + 16 < crate::log::batch::BATCH_BYTES_MAX) }
    }
}
