//! Command-line arguments of `tau up` and `tau down`, which run nodes on other machines over ssh.

use std::path::PathBuf;

use clap::Args;

use super::CREDENTIALS_VARIABLE;

/// The hosts of `tau up` and `tau down`, and the way to reach them.
#[derive(Debug, Args)]
pub(crate) struct FleetFlags {
    /// The hosts, as HOST, USER@HOST or HOST:SSH-PORT; @FILE reads one host from each line of a file
    #[arg(value_name = "HOST", required = true)]
    pub(crate) hosts: Vec<String>,
    /// Tau's folder on every host; a relative path starts in the user's home
    #[arg(long, value_name = "DIR", default_value = "tau-up")]
    pub(crate) dir: String,
    /// The ssh command that connects to the hosts, in shell syntax
    #[arg(long, value_name = "COMMAND", default_value = "ssh")]
    pub(crate) ssh: String,
}

#[derive(Debug, Args)]
pub(crate) struct Up {
    #[command(flatten)]
    pub(crate) fleet: FleetFlags,
    /// The cluster's credentials; the file is created if it does not exist [default: cluster.pem]
    #[arg(long, value_name = "FILE", env = CREDENTIALS_VARIABLE)]
    pub(crate) credentials: Option<PathBuf>,
    /// The port that nodes listen on; 0 takes any free port
    #[arg(long, value_name = "PORT", default_value_t = super::PORT)]
    pub(crate) port: u16,
    /// Flags of 'tau seed' to start every node with
    #[arg(last = true, value_name = "NODE FLAGS")]
    pub(crate) node: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Down {
    #[command(flatten)]
    pub(crate) fleet: FleetFlags,
    /// Also remove the models and checkpoints that the nodes have saved
    #[arg(long)]
    pub(crate) purge: bool,
}
