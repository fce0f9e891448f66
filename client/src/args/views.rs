//! Command-line arguments of live pages and of `tau doctor`.

use std::path::PathBuf;

use clap::Args;

use super::Cluster;

/// The flag that serves a live page of the run that a client follows (`tau train`, `tau start`).
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct RunPage {
    /// Show the run live in a browser, on a page served at this address; its URL, with a token, is printed
    #[arg(long, value_name = "ADDR", num_args = 0..=1, default_missing_value = ANY)]
    pub(crate) page: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct PageArguments {
    /// The run's folder, as 'tau train' and 'tau start' write it; tau-out/latest is the newest
    #[arg(value_name = "RUN_FOLDER")]
    pub(crate) folder: PathBuf,
    /// The address that the page is served at, as HOST:PORT
    #[arg(long, value_name = "ADDR", default_value = ANY)]
    pub(crate) listen: String,
    /// Write one JSON object per line to standard output, and nothing else
    #[arg(long)]
    pub(crate) json: bool,
}

/// Default address of a page: any free port on the loopback interface.
pub(crate) const ANY: &str = "127.0.0.1:0";

#[derive(Debug, Args)]
pub(crate) struct Doctor {
    #[command(flatten)]
    pub(crate) cluster: Cluster,
    /// Also check that this data can be read, and is the same on all nodes
    #[arg(long, value_name = "SPEC")]
    pub(crate) data: Option<String>,
    /// Write one JSON object per finding to standard output, and nothing else
    #[arg(long)]
    pub(crate) json: bool,
}
