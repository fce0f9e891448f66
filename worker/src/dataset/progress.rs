//! How far the reading of data is, for whoever waits for it.

/// How far the reading of data is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// What is read.
    pub done: u64,
    /// All there is to read.
    pub total: u64,
    /// What is counted, in the plural.
    pub unit: &'static str,
}

/// Whoever is told, now and then and from any thread.
pub type Watcher<'a> = &'a (dyn Fn(Progress) + Sync);
