//! The command line as types. The job's flags are the job's own type.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use protocol::job::JobDraft;

/// Train one neural network on many machines at once, with no server in the middle.
#[derive(Debug, Parser)]
#[command(name = "tau", version, arg_required_else_help = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Train a model on this machine, save it and print what came out. Without any flags: MNIST
    #[command(
        // The last word counts, as in most tools: scripts can append to a user's flags.
        args_override_self = true,
        after_help = "Ctrl-C ends training early and saves what there is; a second one ends at once, without saving."
    )]
    Train(Box<Train>),
    /// Measure a saved model on a dataset's held-out samples
    #[command(args_override_self = true)]
    Evaluate(Evaluate),
    /// Make a cluster's credentials
    #[command(subcommand)]
    Credentials(CredentialsCommand),
}

#[derive(Debug, Subcommand)]
pub(crate) enum CredentialsCommand {
    /// Make new credentials. Give every node of the cluster a copy of the file, and keep it private
    New {
        /// A file that does not exist yet; only its owner can read it
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Train {
    /// A job as a TOML file: the job flags' names with '_' for '-'; flags win over it
    #[arg(value_name = "JOB.toml")]
    pub(crate) file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) job: JobDraft,
    #[command(flatten)]
    pub(crate) node: NodeFlags,
    /// How many nodes train
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) nodes: usize,
    /// Where the model is saved, as model.safetensors
    #[arg(long, value_name = "DIR", default_value = "tau-out")]
    pub(crate) out: PathBuf,
    /// Write one JSON object per line to standard output, and nothing else
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Node")]
pub(crate) struct NodeFlags {
    /// What computes: auto or cpu
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    pub(crate) device: String,
    /// Threads of each worker [default: all cores]
    #[arg(long, value_name = "T")]
    pub(crate) threads: Option<usize>,
    /// Open data only under this folder
    #[arg(long, value_name = "DIR")]
    pub(crate) data_root: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct Evaluate {
    /// The model file
    #[arg(value_name = "MODEL")]
    pub(crate) model: PathBuf,
    /// The data: builtin:mnist, idx:DIR or csv:FILE?label=NAME-or-position&test=0.2
    #[arg(long, value_name = "SPEC")]
    pub(crate) data: String,
    /// Threads [default: all cores]
    #[arg(long, value_name = "T")]
    pub(crate) threads: Option<usize>,
    /// Write one JSON object to standard output, and nothing else
    #[arg(long)]
    pub(crate) json: bool,
}
