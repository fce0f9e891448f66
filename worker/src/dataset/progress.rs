//! Progress reports while data is read.

/// Progress of reading data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Number of units read so far.
    pub done: u64,
    /// Number of units in all.
    pub total: u64,
    /// Name of the unit, in the plural.
    pub unit: &'static str,
}

/// Callback for progress; called now and then, from any thread.
pub type Watcher<'a> = &'a (dyn Fn(Progress) + Sync);
