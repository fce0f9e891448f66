//! How a command fails: one sentence and an exit code.

use std::error::Error;
use std::fmt::Display;
use std::process::ExitCode;

use protocol::stats::Failed;

use crate::output;

/// Why a command did not do what it was asked to.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The user's input was wrong: nothing was changed. One sentence for each mistake.
    BadInput(Vec<String>),
    /// The work itself failed.
    Failed(String),
}

impl Failure {
    /// Bad input, for one reason.
    pub(crate) fn input(error: impl Error) -> Self {
        Self::BadInput(vec![sentence(&error)])
    }

    /// Bad input, in these words.
    pub(crate) fn because(reason: impl Into<String>) -> Self {
        Self::BadInput(vec![reason.into()])
    }

    /// Failed work.
    pub(crate) fn failed(error: impl Display) -> Self {
        Self::Failed(error.to_string())
    }

    pub(crate) fn report(&self, json: bool) {
        let reasons = match self {
            Self::BadInput(reasons) => reasons.as_slice(),
            Self::Failed(reason) => std::slice::from_ref(reason),
        };
        for reason in reasons {
            eprintln!("error: {reason}");
        }
        if json {
            output::line(&Failed::because(reasons.join("; ")));
        }
    }

    pub(crate) fn exit_code(&self) -> ExitCode {
        match self {
            Self::BadInput(_) => ExitCode::from(2),
            Self::Failed(_) => ExitCode::from(1),
        }
    }
}

/// An error with what caused it, on one line.
fn sentence(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text} ({cause})");
        source = cause.source();
    }
    text
}
