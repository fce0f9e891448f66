//! The failure of a command: sentences for the user, and an exit code.

use std::error::Error;
use std::process::ExitCode;

use protocol::sentence::sentence;
use protocol::stats::Failed;

use crate::output::{self, notice};

/// Reason why a command of `tau` failed, which also decides the exit code.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The command failed because of wrong input by the user, before anything was changed. One sentence for each
    /// mistake.
    BadInput(Vec<String>),
    /// The command failed because the cluster refused it. One sentence for each reason.
    Refused(Vec<String>),
    /// The command failed during its work, for this reason: for example, a file could not be written.
    Failed(String),
    /// The command's work is done and reported, but the replicas (the nodes' copies of the model) ended with different
    /// weights.
    Disagreed,
}

impl Failure {
    /// Returns the failure of a command because of wrong input by the user, with this sentence as the reason.
    pub(crate) fn input(reason: impl Into<String>) -> Self {
        Self::BadInput(vec![reason.into()])
    }

    /// Returns the failure of a command because of wrong input by the user, with the text of an error as the reason.
    pub(crate) fn bad(error: impl Error) -> Self {
        Self::input(sentence(&error))
    }

    /// Returns the failure of a command during its work, as when a file cannot be written, with the text of an error as
    /// the reason.
    pub(crate) fn work(error: impl Error) -> Self {
        Self::Failed(sentence(&error))
    }

    /// Returns a sentence for each reason why the command failed.
    pub(crate) fn reasons(&self) -> Vec<String> {
        const DISAGREED: &str =
            "not all replicas ended with the same weights: this is a fault in Tau or in a machine's memory";
        match self {
            Self::BadInput(reasons) | Self::Refused(reasons) => reasons.clone(),
            Self::Failed(reason) => vec![reason.clone()],
            Self::Disagreed => vec![DISAGREED.into()],
        }
    }

    pub(crate) fn report(&self, json: bool) {
        let reasons = self.reasons();
        for reason in &reasons {
            notice::say(&format!("error: {reason}"));
        }
        // The last JSON object already reports a disagreement.
        if json && !matches!(self, Self::Disagreed) {
            output::line(&Failed::because(reasons.join("; ")));
        }
    }

    pub(crate) fn exit_code(&self) -> ExitCode {
        match self {
            Self::BadInput(_) => ExitCode::from(2),
            Self::Refused(_) | Self::Failed(_) | Self::Disagreed => ExitCode::from(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_follow_in_parentheses() {
        #[derive(Debug, thiserror::Error)]
        #[error("it broke")]
        struct Broke(#[source] std::io::Error);

        let failure = Failure::work(Broke(std::io::Error::other("too hot")));
        assert!(matches!(failure, Failure::Failed(text) if text == "it broke (too hot)"));
    }
}
