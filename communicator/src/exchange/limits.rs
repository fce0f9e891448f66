//! All limits of an exchange: memory, windows and times, in one table.

/// Upper bounds of an exchange's queues, log and waiting times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of one worker's batches in flight to one peer without acknowledgement.
    pub window: u64,
    /// Maximum bytes of batches in flight to one peer; a single batch may be larger.
    pub window_bytes: usize,
    /// Number of batches taken from a peer after which they are acknowledged without waiting for the next tick.
    pub acknowledge_every: u64,
    /// Ticks without progress after which a peer gets the batches that it lacks from other nodes than the one that made
    /// them.
    pub patience_ticks: u32,
    /// Ticks without an acknowledgement of data in flight after which a link is taken for dead.
    pub reset_ticks: u32,
    /// Ticks between two marks for a peer. A mark is a point after which this node's log holds all batches.
    pub mark_ticks: u32,
    /// Bytes of single batches that the log keeps for peers that are behind. Beyond this limit they are merged into
    /// ranges.
    pub single_bytes_max: usize,
    /// Bytes of single batches that the log keeps unmerged while some member has not told which batches it has. Beyond
    /// this limit the log drops such members: they will need a snapshot.
    pub unmarked_bytes_max: usize,
    /// Bytes of merged ranges that the log keeps. Beyond this limit the log drops the member that is furthest behind,
    /// which then needs a snapshot. Batches that no other node may have are kept all the same: those of this node's own
    /// workers, and of nodes that are absent.
    pub merged_bytes_max: usize,
    /// A peer that lacks more bytes of one worker's batches than this gets them as a merged range.
    pub range_worth_bytes: usize,
    /// Bytes in one piece of a parcel (a range, bundle or snapshot that is sent in pieces).
    pub piece_bytes: usize,
    /// Maximum bytes of a parcel (a range, bundle or snapshot that is sent in pieces) in flight without confirmation.
    pub parcel_window: usize,
    /// Maximum number of snapshots (whole replicas) that this node sends at the same time.
    pub snapshots_max: usize,
}

/// Maximum number of origins (workers' streams of batches) in a run: more than workers and their restarts ever make.
pub(super) const ORIGINS_MAX: usize = 4096;
/// Maximum number of members of a run, dead ones included: more than there ever are.
pub(super) const MEMBERS_MAX: usize = 4096;

impl Limits {
    /// Returns the limits for a model with this many weights. The log for peers that are behind takes at most 64 MiB
    /// and 4 bytes a weight as single batches (256 MiB and 4 bytes a weight while some member has not told which
    /// batches it has), and 256 MiB and 16 bytes a weight as merged ranges.
    #[must_use]
    pub const fn for_weights(weights: usize) -> Self {
        Self {
            window: 32,
            window_bytes: 4 << 20,
            acknowledge_every: 4,
            patience_ticks: 5,
            reset_ticks: 50,
            mark_ticks: 20,
            single_bytes_max: (64 << 20) + 4 * weights,
            unmarked_bytes_max: (256 << 20) + 4 * weights,
            merged_bytes_max: (256 << 20) + 16 * weights,
            range_worth_bytes: (64 << 10) + 2 * weights,
            piece_bytes: 256 << 10,
            parcel_window: 1 << 20,
            snapshots_max: 2,
        }
    }
}
