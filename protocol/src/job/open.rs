//! The settings that a job leaves open. The rule in [`super::rule`] decides them when all nodes have prepared.

use std::collections::BTreeSet;

/// A setting that may be left open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OpenKey {
    /// The layers. They follow from the data alone, because nodes compare first weights before the run begins.
    Model,
    /// Passes over the training rows.
    Epochs,
    /// Samples in one minibatch.
    Minibatch,
    /// Rule, rate and weight decay.
    Optimiser,
    /// The exchange strategy.
    Exchange,
    /// Workers that train at the same time.
    Trainers,
}

impl OpenKey {
    /// The key's name in TOML.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Model => "model",
            Self::Epochs => "epochs",
            Self::Minibatch => "minibatch",
            Self::Optimiser => "optimiser",
            Self::Exchange => "exchange",
            Self::Trainers => "trainers",
        }
    }
}

/// The open settings of one job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Open(BTreeSet<OpenKey>);

impl Open {
    /// Whether this setting is open.
    #[must_use]
    pub fn has(&self, key: OpenKey) -> bool {
        self.0.contains(&key)
    }

    /// Removes a setting that has been decided.
    pub(super) fn close(&mut self, key: OpenKey) {
        self.0.remove(&key);
    }

    /// The value of a setting for a draft: none while it is open.
    pub(super) fn unless<T>(&self, key: OpenKey, value: T) -> Option<T> {
        (!self.has(key)).then_some(value)
    }

    /// The open settings, by name.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.0.iter().map(|key| key.name())
    }
}

impl FromIterator<OpenKey> for Open {
    fn from_iter<I: IntoIterator<Item = OpenKey>>(keys: I) -> Self {
        Self(keys.into_iter().collect())
    }
}
