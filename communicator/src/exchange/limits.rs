//! The limits of an exchange, in one table.

/// The borders of everything that could grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Batches of one origin under way to one peer before its acknowledgement is waited for.
    pub window: u64,
    /// Bytes of batches under way to one peer; a single batch may be larger.
    pub window_bytes: usize,
    /// Batches taken from a peer before it is told, between two ticks.
    pub acknowledge_every: u64,
    /// Ticks without progress of a peer before others than the origin's own node help it.
    pub patience_ticks: u32,
    /// Ticks without an acknowledgement of what is under way before its link is taken for dead.
    pub reset_ticks: u32,
    /// Ticks between two marks for a peer.
    pub mark_ticks: u32,
    /// Bytes of single batches kept for those who are behind. Beyond it they are merged.
    pub single_bytes_max: usize,
    /// Bytes of single batches kept unmerged while some member has not said yet what it needs. Beyond it such members are
    /// forgotten.
    pub unmarked_bytes_max: usize,
    /// Bytes of merged ranges kept. Beyond it whoever is furthest behind is forgotten, and takes a snapshot. What
    /// nobody else may have is kept all the same: batches of this node's own workers, and of nodes that are not there.
    pub merged_bytes_max: usize,
    /// A peer that lacks more bytes of one origin than this gets them as a range.
    pub range_worth_bytes: usize,
    /// The bytes of one piece of a parcel.
    pub piece_bytes: usize,
    /// The bytes of a parcel that are under way.
    pub parcel_window: usize,
    /// Snapshots that are given at a time.
    pub snapshots_max: usize,
}

/// Origins of a run: more than workers and their restarts ever make.
pub(super) const ORIGINS_MAX: usize = 4096;
/// Members of a run: more than there ever are, those that died included.
pub(super) const MEMBERS_MAX: usize = 4096;

impl Limits {
    /// The limits for a model of so many weights. What is kept for those who are behind takes at most 64 MiB and 4 bytes
    /// a weight as single batches (256 MiB while somebody new has not been heard), and 256 MiB and 16 bytes a weight as
    /// ranges.
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
