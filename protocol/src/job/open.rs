//! The settings that a job leaves open. The rule in [`super::rule`] decides them when all nodes have prepared.

use std::collections::BTreeSet;

use super::OpenKey;

/// Set of the settings that a job leaves out and that are decided when a run begins; decided ones are removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Open(BTreeSet<OpenKey>);

impl Open {
    /// True if the job left this setting out and it has not been decided yet.
    #[must_use]
    pub fn has(&self, key: OpenKey) -> bool {
        self.0.contains(&key)
    }

    /// Marks a setting that the job left out as decided, so that its value is no longer a placeholder.
    pub(super) fn close(&mut self, key: OpenKey) {
        self.0.remove(&key);
    }

    /// Returns the names of the settings that the job leaves out and that have not been decided yet.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.0.iter().map(|key| key.name())
    }
}

impl FromIterator<OpenKey> for Open {
    fn from_iter<I: IntoIterator<Item = OpenKey>>(keys: I) -> Self {
        Self(keys.into_iter().collect())
    }
}
