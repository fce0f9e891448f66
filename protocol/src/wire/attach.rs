//! Messages between a node and its workers, except for batches, which travel as they are in both directions.

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

/// Maximum number of the ledger's counts (weights as whole numbers) in one [`ToWorker::Counts`] message.
pub const COUNTS_PER_PIECE: usize = 1 << 20;

/// Maximum number of moved weights in one [`ToWorker::Sums`] message.
pub const SUMS_PER_PIECE: usize = 1 << 20;

/// A message from a node to one of its workers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ToWorker {
    /// Asks the worker to open the job's data and to answer with [`FromWorker::Prepared`] or [`FromWorker::Refused`].
    Prepare {
        /// The run that the data is for.
        run: RunId,
        /// The job to be trained.
        #[serde(with = "crate::job::as_text")]
        job: Box<Job>,
    },
    /// A piece of the ledger's counts (weights as whole numbers), from which the worker begins. Pieces come in order,
    /// before [`ToWorker::Begin`]; without any, the worker begins with the initial weights.
    Counts(Vec<i32>),
    /// Tells the worker to train, with its place in the run and the state to begin from.
    Begin(Box<Assignment>),
    /// Sums of weight changes: some weights, each with the steps that it is to move. Pieces come in order, before
    /// [`ToWorker::Jump`], which applies them.
    Sums(Vec<(u32, i32)>),
    /// Tells the worker to apply all preceding [`ToWorker::Sums`]: batches of others that the node got in another form
    /// than single ones, such as a merged range or a snapshot.
    Jump(Box<JumpOrder>),
    /// Tells the worker if it is throttled (true): then it sends no batches, and its changes stay in its residual.
    Pause(bool),
    /// Lets a worker that waits in a round go on. All messages of the workers that it waited for were sent before this
    /// one.
    GoOn(GoOn),
    /// Lets a worker that waits in sequential averaging go on alone, without a partial sum of the workers' differences:
    /// no worker comes before it in this pass, or the one before it is absent or late.
    GoOnPassing,
    /// Reports that an origin (one life of a worker) sends no batches any more, or does so again. The shards of samples
    /// that a dead origin began may be claimed.
    Origin {
        origin: OriginId,
        /// True if the origin (one life of a worker) goes on with the shards of samples that it began.
        alive: bool,
    },
    /// Reports that a slot, to which samples were dealt, has lost its worker, or has one again.
    Slot {
        slot: usize,
        /// True if the slot has a worker, which trains its samples.
        alive: bool,
    },
    /// Asks the worker to measure the quality of its present weights on the evaluation samples, and to report the
    /// scores with this moment of the run.
    Evaluate(Moment),
    /// Asks the worker to write its own state (residual and optimiser state) to a file for a checkpoint, and to answer
    /// with [`FromWorker::Saved`].
    Save {
        /// Path of the file to which the worker writes its state.
        path: PathBuf,
    },
    /// Tells the worker to take no further step and to end its stream of batches.
    Stop,
    /// Tells the worker to take no further step, send its residual (changes not sent yet) and end its stream of
    /// batches, because the node leaves the run.
    Leave,
    /// Tells the worker to take no further step, but not to end its stream of batches yet: [`ToWorker::GoBack`] or
    /// [`ToWorker::Stop`] follows.
    StandBy,
    /// Tells the worker to go back to the weights that it kept because they reached the target or were the
    /// best, and to end its stream of batches. All other workers have ended theirs. If the job keeps the best weights,
    /// the present ones are measured first, and their scores reported for this moment.
    GoBack(Moment),
    /// Tells the worker that all batches of the run have come. It answers with [`FromWorker::Finished`] and, if a model
    /// is to be saved, with [`FromWorker::SavedModel`]. May be repeated until the run is aborted.
    Finish {
        /// Place and contents of the model to save; none if this worker saves none.
        save: Option<SaveOrder>,
    },
    /// Reports that a worker of this worker's pipeline is unreachable or was restarted: the minibatches in flight are
    /// lost.
    PipelineBroken,
    /// Tells the worker to forget the run, and to answer with [`FromWorker::Idle`].
    Abort,
}

/// Order to a worker that waits in a round to go on, because the workers that it waits for have reached the round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GoOn {
    /// Number of the round (exchange of all workers' differences) that the worker waits in.
    pub round: u64,
    /// Share of the difference between its own and the shared weights that the worker is to send now, because the
    /// losses of all workers are known. None if it has sent its share already, and trains on because the shares of all
    /// workers have come.
    pub contribution: Option<Contribution>,
    /// Number of the newest round (exchange of all workers' differences) that any worker has reached.
    pub newest: u64,
    /// Number of workers that make the next round (exchange of all workers' differences) together.
    pub workers: u32,
}

/// Facts about several batches whose weight changes a worker applies at once (in one jump) instead of one by one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JumpOrder {
    /// The origin (worker) that made the batches, if one made all of them.
    pub origin: Option<OriginId>,
    /// Number of batches whose changes the worker applies at once, in this jump.
    pub batches: u64,
    /// Number of samples in the batches that the worker applies at once, in this jump.
    pub samples: u64,
    /// Cursors after the batches that the worker applies at once: the number of samples done in each shard of an epoch.
    pub cursors: Cursors,
}

/// Place of a model to be saved, and facts to be written to its file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SaveOrder {
    /// Path of the model file to be written.
    pub path: PathBuf,
    /// Frontier of the saved weights: the last applied batch of each worker.
    pub frontier: Frontier,
    /// True if the whole pipeline is there, so that a pipeline stage's worker can measure the model's quality together
    /// with the others.
    pub with_pipeline: bool,
}

/// A worker's role in a run (job, slot, stage of a pipeline), and the state that it begins from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Assignment {
    pub run: RunId,
    /// The job, with all settings decided.
    #[serde(with = "crate::job::as_text")]
    pub job: Box<Job>,
    /// Rate of the evaluations that the worker makes without being asked; none if the node asks for evaluations. A
    /// worker makes them itself only if it alone decides which samples are trained next.
    pub paced: Option<Pace>,
    /// Number of slots (numbers of workers) at the run's beginning. A job may limit the number of workers that train:
    /// then those in the lowest slots train, and the others only once workers in lower slots are lost.
    pub founders: usize,
    /// Id of the worker's stream of batches, by which other nodes know it.
    pub origin: OriginId,
    /// The worker's number in the run, to which samples are dealt.
    pub slot: usize,
    /// Number of slots in the run, to which samples are dealt; each belongs to one worker.
    pub slots: usize,
    /// Cursors at the worker's beginning: the number of samples already done in each shard of an epoch.
    pub cursors: Cursors,
    /// Number of batches applied to the weights that the worker begins with.
    pub batches: u64,
    /// Number of samples in the batches applied to the weights that the worker begins with.
    pub samples: u64,
    /// File with the worker's own state (residual and optimiser state) from a checkpoint, as it was after exactly the
    /// worker's batches that are applied; none to begin without.
    pub restore: Option<PathBuf>,
    /// Number of the newest round that any worker has reached, if the strategy has rounds.
    pub round: u64,
    /// Number of workers that make the next round of the exchange together.
    pub workers: u32,
    /// The worker's stage of a pipeline, if it holds only a stage of the network.
    pub pipeline: Option<PipelineAssignment>,
}

/// Rate of the evaluations that a worker makes by itself, between two of its steps, instead of waiting to be asked.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pace {
    /// Number of samples that the worker trains between two evaluations.
    pub every: u64,
    /// Seconds from the run's first step until the worker got its place in the run.
    pub seconds: f64,
}

/// A message from a worker to its node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum FromWorker {
    /// The worker's first message, with the description of its process.
    Hello(WorkerInfo),
    /// Sign of life, sent every second even during a long step: a silent worker is stuck.
    Alive,
    /// A piece of the counts (weights as whole numbers) of the model file that the run begins with. Sent only if the
    /// job names such a file; pieces come in order, before [`FromWorker::Prepared`].
    First {
        /// The run that begins with the counts.
        run: RunId,
        counts: Vec<i32>,
        /// Names of the tensors that the model file does not have and that start from random values; only in the first
        /// piece.
        afresh: Vec<String>,
    },
    /// Reports that the job's data is open, in answer to [`ToWorker::Prepare`].
    Prepared {
        /// The run that the data is for.
        run: RunId,
        /// Description of the job's data, which the worker has opened.
        data: DataInfo,
        /// The worker's approximate speed in million multiplications per second; 0 if it is not needed.
        speed: u64,
    },
    /// Reports that the worker cannot take part in the run, in answer to [`ToWorker::Prepare`].
    Refused {
        /// The run that the worker refuses.
        run: RunId,
        /// The reason for which the worker cannot take part, as one sentence.
        reason: String,
    },
    /// The worker's statistics since the run began, sent once a second and when its stream of batches ends.
    Stats(Box<WorkerStats>),
    /// Reports that the worker has had no samples to train for a second. Lists the samples that other workers hold, by
    /// slot; if there are none, all samples are trained as far as the worker knows.
    Starved(Vec<Missing>),
    /// Reports that the worker, which had no samples to train, trains again.
    Fed,
    /// Reports the scores of an evaluation that the node asked for or that the worker makes by itself.
    Evaluated {
        run: RunId,
        /// The scores, and the moment of the run that they belong to.
        evaluation: Evaluation,
    },
    /// Reports that the worker's own state is in a file, as it was after its last batch, which was sent before this
    /// message.
    Saved {
        /// Sequence number of the last batch before the state was saved; none if the state could not be saved.
        sequence: Option<u64>,
        /// Path of the file with the worker's state.
        path: PathBuf,
    },
    /// Reports that the worker has ended its stream of batches (its origin); its last batch was sent before this
    /// message.
    Closed {
        /// Norm of the worker's residual (changes never sent) that is dropped.
        residual_norm: f64,
    },
    /// Reports that the worker has applied all batches of the run. Sent before anything is saved, so that a disk that
    /// hangs does not keep nodes from comparing digests.
    Finished {
        /// The digest recomputed from the worker's weights; none if a weight is not a multiple of the smallest step
        /// that weights can make.
        digest: Option<Digest>,
    },
    /// Reports that the model is saved and its quality measured, as [`ToWorker::Finish`] ordered. May come late, even
    /// after the run was aborted.
    SavedModel {
        run: RunId,
        /// The model's scores, if this worker could measure them, or one sentence on why the model is not saved.
        saved: Result<Option<Scores>, String>,
    },
    /// Answer to each [`ToWorker::Abort`]: none of the earlier orders is in progress any more, except for files being
    /// written.
    Idle,
    /// Reports that this worker cannot go on with the run.
    Failed {
        /// The reason for which the worker cannot go on, as one sentence.
        reason: String,
        cause: FailureCause,
    },
}

/// Cause of a worker's failure, by which its node decides if the worker is started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FailureCause {
    /// Cause of a worker's failure: its device, its memory or a message; another process may do better.
    Worker,
    /// Cause of a worker's failure: the run has diverged, so that no worker can go on.
    Diverged,
    /// Cause of a worker's failure: the user's code, which may fail again.
    Code,
}

/// Samples of one slot that a worker with nothing to train waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missing {
    /// The slot (number of a worker) that the samples are assigned to.
    pub slot: u32,
    /// Number of the slot's samples that are not trained yet.
    pub samples: u64,
}

/// Description of a worker process (release, process id, device and memory), which it sends to its node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerInfo {
    /// The worker's release of Tau.
    pub version: String,
    /// The worker's process id.
    pub pid: u32,
    /// The device that the worker computes on.
    pub device: String,
    /// Bytes of the GPU's memory, if the worker computes on a GPU.
    pub gpu_bytes: Option<u64>,
    /// The worker's number of threads.
    pub threads: usize,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::JobDraft;
    use crate::stats::named::NamedNumbers;

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
            accuracy: Some(0.5),
            loss: 1.0,
            mae: None,
            named: NamedNumbers::new([("perplexity", 7.5)]).unwrap(),
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
