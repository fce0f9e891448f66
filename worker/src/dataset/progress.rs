//! Progress reports while data is read.

/// Progress of reading data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Number of units of data (such as bytes) read so far.
    pub done: u64,
    /// Number of units of data (such as bytes) to read in all.
    pub total: u64,
    /// Name of the unit in which progress is counted, in the plural.
    pub unit: &'static str,
}

/// Callback for the progress of reading data; called now and then, from any thread.
pub type Watcher<'a> = &'a (dyn Fn(Progress) + Sync);
