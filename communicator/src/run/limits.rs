//! Every time limit of a run, in one table.

use std::time::Duration;

/// How long a run waits for what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RunLimits {
    /// How often this node tells the others how far it is, though nothing has changed.
    pub(crate) beat_every: Duration,
    /// A participant that nothing was heard of for so long, over nobody, is silent: others may take its samples.
    pub(crate) silent_after: Duration,
    /// A participant that nothing was heard of for so long is not waited for.
    pub(crate) give_up_after: Duration,
    /// If this node's own clock went on by more than this between two ticks, it is this node that stood still.
    pub(crate) stood_still_after: Duration,
    /// How long workers that have not attached yet are waited for before this node answers a prepare.
    pub(crate) workers_attach: Duration,
    /// How often nodes that have not answered a prepare are asked again.
    pub(crate) ask_again: Duration,
    /// How long a node that is ready waits to hear that the run begins.
    pub(crate) begin: Duration,
    /// How long nodes wait for a run's beginning when nothing is heard of the node that prepares it: another may know of it.
    pub(crate) orphaned: Duration,
    /// How long nodes may take to look for checkpoints.
    pub(crate) search: Duration,
    /// How long training waits for links: what is learned without them is learned apart.
    pub(crate) links: Duration,
    /// For so long nobody must have had anything to give before a node that has nothing gives up.
    pub(crate) stranded: Duration,
    /// How long participants whose batches are all made may fail to get to the same ones before those that cannot be
    /// reached are given up.
    pub(crate) settle: Duration,
    /// How long workers may take to tell the digest of what they have.
    pub(crate) digests: Duration,
    /// How long this node's own file is waited for when another node has measured the model.
    pub(crate) save: Duration,
    /// How long it is waited for when nobody has: large models take long to measure.
    pub(crate) measure: Duration,
    /// How long a worker may take to drop a run that is over.
    pub(crate) dismiss: Duration,
    /// For so long others are told how the run before this one ended.
    pub(crate) remember: Duration,
    /// What is waited for longer than this is said in the log.
    pub(crate) say_after: Duration,
}

impl Default for RunLimits {
    fn default() -> Self {
        Self {
            beat_every: Duration::from_millis(450),
            silent_after: Duration::from_millis(2500),
            give_up_after: Duration::from_secs(30),
            stood_still_after: Duration::from_secs(1),
            workers_attach: Duration::from_secs(15),
            ask_again: Duration::from_secs(3),
            begin: Duration::from_mins(10),
            orphaned: Duration::from_secs(8),
            search: Duration::from_secs(20),
            links: Duration::from_secs(3),
            stranded: Duration::from_secs(5),
            settle: Duration::from_secs(30),
            digests: Duration::from_secs(30),
            save: Duration::from_secs(30),
            measure: Duration::from_mins(15),
            dismiss: Duration::from_secs(10),
            remember: Duration::from_mins(1),
            say_after: Duration::from_secs(5),
        }
    }
}
