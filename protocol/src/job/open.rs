//! The settings that a job leaves open. The rule in [`super::rule`] decides them when all nodes have prepared.

use std::collections::BTreeSet;

use super::OpenKey;

/// Set of the settings that one job leaves open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Open(BTreeSet<OpenKey>);

impl Open {
    /// True if the job left this setting open and the rule has not decided it yet.
    #[must_use]
    pub fn has(&self, key: OpenKey) -> bool {
        self.0.contains(&key)
    }

    /// Marks an open setting of a job as decided.
    pub(super) fn close(&mut self, key: OpenKey) {
        self.0.remove(&key);
    }

    /// Returns the names of the settings that the job leaves open.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.0.iter().map(|key| key.name())
    }
}

impl FromIterator<OpenKey> for Open {
    fn from_iter<I: IntoIterator<Item = OpenKey>>(keys: I) -> Self {
        Self(keys.into_iter().collect())
    }
}
