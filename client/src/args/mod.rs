//! The command line as types. The job's flags are the job's own type.

mod fleet;
mod views;

use std::path::PathBuf;

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Args, Parser, Subcommand};
use protocol::job::JobDraft;

pub(crate) use fleet::{Down, FleetFlags, Up};
use protocol::wire::bounds::chosen_name;
pub(crate) use views::{Doctor, PageArguments, RunPage};

use crate::run_folder::named_model;

/// Names the credentials, where no flag does.
pub(crate) const CREDENTIALS_VARIABLE: &str = "TAU_CREDENTIALS";

/// Train one neural network on many machines at once, with no server in the middle.
#[derive(Debug, Parser)]
#[command(name = "tau", version = crate::version::VERSION, arg_required_else_help = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Train on a cluster of nodes on this machine, save the model and print what came out. Without any flags: MNIST
    #[command(
        // The last word counts, as in most tools: scripts can append to a user's flags.
        args_override_self = true,
        after_help = "Ctrl-C ends training early and saves what there is; a second one ends at once, without saving."
    )]
    Train(Box<Train>),
    /// Make a cluster's credentials
    #[command(subcommand)]
    Credentials(CredentialsCommand),
    /// Print a cluster as one line to paste: where its nodes are, and its credentials
    Token(TokenFlags),
    /// Start a cluster's first node
    #[command(args_override_self = true, after_help = "Ctrl-C stops the node and its workers.")]
    Seed(Seed),
    /// Start a node and join it to a cluster
    #[command(args_override_self = true, after_help = "Ctrl-C stops the node and its workers.")]
    Join(Join),
    /// Bring a cluster up on other machines over ssh: copies this program and the credentials, and starts a node on each
    #[command(
        args_override_self = true,
        after_help = "Hosts are asked for no password: ssh must get there by a key. A host where a node runs is left as it \
                      is. If one fails, what was begun on the others is taken down again. Nodes open data below the user's \
                      home, or below '-- --data-root DIR'."
    )]
    Up(Up),
    /// End the nodes that 'tau up' has started, and remove what it has copied; models are kept
    #[command(args_override_self = true)]
    Down(Down),
    /// Look for what keeps this machine or a cluster from training, and say what to do
    #[command(args_override_self = true)]
    Doctor(Doctor),
    /// Attach a further worker to a node of this machine by hand; nodes start their own
    #[command(args_override_self = true)]
    Worker(Worker),
    /// Start a run on a cluster, follow it and save its model
    #[command(
        args_override_self = true,
        after_help = "Ctrl-C ends training early and saves what there is; a second one leaves the run to the nodes."
    )]
    Start(Box<Start>),
    /// Watch a cluster: a table of its nodes and the loss
    #[command(args_override_self = true)]
    Stats(Stats),
    /// List a cluster's nodes
    #[command(args_override_self = true)]
    Nodes(Ask),
    /// End a cluster's run early; what it has learned is saved
    #[command(args_override_self = true)]
    Stop(Ask),
    /// Let every node of a cluster write a checkpoint of the run
    Checkpoint(Ask),
    /// Measure a saved model on a dataset's held-out samples
    #[command(args_override_self = true)]
    Evaluate(Evaluate),
    /// Tell what a saved model takes samples for: one line each, with the class and its probability
    #[command(args_override_self = true)]
    Predict(Predict),
    /// Show what a saved model consists of, and the run that made it
    Show(Show),
    /// Write a saved model in another format
    #[command(args_override_self = true)]
    Export(Export),
    /// Compare strategies: run all combinations of what is listed, one after the other, and report them side by side
    #[command(
        args_override_self = true,
        after_help = "Ctrl-C ends the study; the same command goes on where it was. Job flags count for every run."
    )]
    Study(Box<Study>),
    /// Print which release this is
    Version,
    /// Write what a shell completes 'tau' with to standard output
    Completions {
        /// The shell
        #[arg(value_name = "SHELL")]
        shell: clap_complete::Shell,
    },
    /// Write manual pages for 'tau' and each of its commands
    Man {
        /// The folder they go to
        #[arg(value_name = "DIR")]
        dir: PathBuf,
    },
    /// Show a run that is over in a browser, as it was at any second
    #[command(args_override_self = true)]
    Page(PageArguments),
    /// Make a report of runs: folders of 'tau study', or of 'tau train' and 'tau start'
    #[command(args_override_self = true)]
    Report(Report),
}

impl Command {
    /// Whether this process is a node that people have started themselves.
    pub(crate) fn is_a_node(&self) -> bool {
        match self {
            Self::Seed(seed) | Self::Join(Join { seed, .. }) => !seed.tied,
            _ => false,
        }
    }
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
pub(crate) struct TokenFlags {
    /// Addresses of nodes of the cluster, as those who join reach them
    #[arg(long, value_name = "ADDR", value_delimiter = ',', env = "TAU_CLUSTER")]
    pub(crate) cluster: Vec<String>,
    /// The cluster's credentials
    #[arg(long, value_name = "FILE", env = CREDENTIALS_VARIABLE)]
    pub(crate) credentials: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct Train {
    /// A job as a TOML file: the job flags' names with '_' for '-'; flags win over it
    #[arg(value_name = "JOB.toml")]
    pub(crate) file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) job: JobDraft,
    #[command(flatten)]
    pub(crate) compute: ComputeFlags,
    /// How many nodes train
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub(crate) nodes: usize,
    #[command(flatten)]
    pub(crate) page: RunPage,
    /// Where runs are kept, each in a folder of its name; DIR/latest is the newest
    #[arg(long, value_name = "DIR", default_value = "tau-out")]
    pub(crate) out: PathBuf,
    /// Write one JSON object per line to standard output, and nothing else
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Seed {
    /// Where the node listens, as HOST:PORT, or :PORT for all of this machine's addresses; port 0 takes any [default:
    /// :7700, or 127.0.0.1:7700 with --insecure]
    #[arg(long, value_name = "ADDR")]
    pub(crate) listen: Option<String>,
    #[command(flatten)]
    pub(crate) node: NodeFlags,
    /// Write one JSON object per line to standard output, and nothing else
    #[arg(long)]
    pub(crate) json: bool,
    /// Stop when standard input ends
    #[arg(long, hide = true)]
    pub(crate) tied: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Join {
    /// Addresses of nodes of the cluster, of which one that answers is enough; or what 'tau token' prints
    #[arg(value_name = "ADDR or TOKEN", required = true, value_delimiter = ',')]
    pub(crate) seeds: Vec<String>,
    #[command(flatten)]
    pub(crate) seed: Seed,
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Node")]
pub(crate) struct NodeFlags {
    #[command(flatten)]
    pub(crate) security: SecurityFlags,
    /// What the node is called, also when it is started again; no other living node may be [default: after the host]
    #[arg(long, value_name = "NAME", value_parser = chosen_name)]
    pub(crate) name: Option<String>,
    /// Where others reach the node, if not where it listens
    #[arg(long, value_name = "ADDR")]
    pub(crate) advertise: Option<String>,
    /// Where the node keeps its socket and saves models [default: tau-node]
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// Runs whose folders are kept under --dir; when a run begins, those of older ones are removed
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) keep_runs: u16,
    /// Seconds that the node may take to leave its run when it is told to end, by SIGTERM or Ctrl-C: its workers send what
    /// they have learned, and the other nodes take over its samples
    #[arg(long, value_name = "SECONDS", default_value_t = 8, value_parser = clap::value_parser!(u16).range(..=3600))]
    pub(crate) grace: u16,
    /// Show the cluster live in a browser, on a page served at this address; its URL, with a token, is printed
    #[arg(long, value_name = "ADDR")]
    pub(crate) page: Option<String>,
    /// Let whoever has the page's token end runs from it
    #[arg(long, requires = "page")]
    pub(crate) page_stop: bool,
    /// Give this node's metrics to Prometheus at this address, under /metrics; the page's token is asked for
    #[arg(long, value_name = "ADDR")]
    pub(crate) metrics: Option<String>,
    #[command(flatten)]
    pub(crate) compute: ComputeFlags,
}

/// What nodes compute with. Nodes of a local cluster are given this and no more: their addresses, folders and credentials
/// are their own business.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Node")]
pub(crate) struct ComputeFlags {
    /// What computes: auto, cpu, or cuda:N
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    pub(crate) device: String,
    /// Workers of each node, a process each
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) workers: usize,
    /// Threads of each worker [default: all cores, shared out]
    #[arg(long, value_name = "T")]
    pub(crate) threads: Option<usize>,
    /// How a GPU multiplies: f32 or tf32 [default: tf32 on a GPU]
    #[arg(long, value_name = "P")]
    pub(crate) precision: Option<String>,
    /// Open data only under this folder, where relative paths start [default: the working directory; for 'tau train',
    /// anywhere]
    #[arg(long, value_name = "DIR")]
    pub(crate) data_root: Option<PathBuf>,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct SecurityFlags {
    /// The cluster's credentials
    #[arg(long, value_name = "FILE", env = CREDENTIALS_VARIABLE)]
    pub(crate) credentials: Option<PathBuf>,
    /// Speak plain text, within this machine only
    #[arg(long)]
    pub(crate) insecure: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Worker {
    /// The node's socket, as it says when it starts
    #[arg(value_name = "SOCKET")]
    pub(crate) node: PathBuf,
    /// What computes: auto, cpu, or cuda:N
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    pub(crate) device: String,
    /// How a GPU multiplies: f32 or tf32 [default: tf32]
    #[arg(long, value_name = "P")]
    pub(crate) precision: Option<String>,
    /// Threads [default: all cores]
    #[arg(long, value_name = "T")]
    pub(crate) threads: Option<usize>,
    /// Open data only under this folder, where relative paths start [default: the working directory]
    #[arg(long, value_name = "DIR")]
    pub(crate) data_root: Option<PathBuf>,
    /// Its node has started it
    #[arg(long, hide = true)]
    pub(crate) tied: bool,
}

/// A cluster, as a client reaches it.
#[derive(Clone, Debug, Args)]
pub(crate) struct Cluster {
    /// Addresses of nodes of the cluster, of which one is enough as the others are learned from it; or what 'tau token'
    /// prints
    #[arg(long, value_name = "ADDR", value_delimiter = ',', env = "TAU_CLUSTER")]
    pub(crate) cluster: Vec<String>,
    #[command(flatten)]
    pub(crate) security: SecurityFlags,
}

#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
pub(crate) struct Start {
    #[command(flatten)]
    pub(crate) cluster: Cluster,
    /// A job as a TOML file: the job flags' names with '_' for '-'; flags win over it
    #[arg(value_name = "JOB.toml", conflicts_with = "attach")]
    pub(crate) file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) job: JobDraft,
    /// Leave once the run has begun; the nodes save the model
    #[arg(long, conflicts_with = "attach")]
    pub(crate) detach: bool,
    /// Follow the run that is under way, or fetch the model of the last one, instead of starting one
    #[arg(long)]
    pub(crate) attach: bool,
    /// Begin without the nodes that cannot take part
    #[arg(long)]
    pub(crate) allow_partial: bool,
    #[command(flatten)]
    pub(crate) page: RunPage,
    /// Go on with an earlier run, also with one that has finished, from the furthest checkpoint that any node has of it;
    /// --epochs, --max-seconds, --target-accuracy, --evaluations, --patience, --keep, --checkpoint-every and --give-up-after may change
    #[arg(long, value_name = "RUN", conflicts_with_all = ["file", "attach"])]
    pub(crate) resume: Option<PathBuf>,
    /// Where runs are kept, each in a folder of its name; DIR/latest is the newest
    #[arg(long, value_name = "DIR", default_value = "tau-out")]
    pub(crate) out: PathBuf,
    /// Write one JSON object per line to standard output, and nothing else
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Stats {
    #[command(flatten)]
    pub(crate) cluster: Cluster,
    /// Show the newest record of every node, and leave
    #[arg(long)]
    pub(crate) once: bool,
    /// Write one JSON object per node and second to standard output, and nothing else
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Ask {
    #[command(flatten)]
    pub(crate) cluster: Cluster,
    /// Write one JSON object per line to standard output, and nothing else
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Study {
    /// A study as a TOML file: experiments with their name, nodes and job keys, each a value or a list
    #[arg(value_name = "STUDY.toml", conflicts_with = "preset")]
    pub(crate) file: Option<PathBuf>,
    /// A study that comes with Tau: speed-up, downpour-nodes, downpour-splits, downpour-as-published, averaging,
    /// best-peer or links
    #[arg(long, value_name = "NAME")]
    pub(crate) preset: Option<String>,
    /// Strategies, separated by spaces, or by commas where no strategy has one
    #[arg(long, value_name = "LIST")]
    pub(crate) exchanges: Option<String>,
    /// Numbers of nodes [default: 3]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) nodes: Vec<usize>,
    /// Splits of the samples
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) splits: Vec<String>,
    /// Seeds; means and deviations are over these
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) seeds: Vec<i64>,
    /// The accuracy whose time is read off the runs' evaluations; with --target-accuracy runs end there
    #[arg(long, value_name = "A")]
    pub(crate) target: Option<f64>,
    #[command(flatten)]
    pub(crate) job: JobDraft,
    #[command(flatten)]
    pub(crate) compute: ComputeFlags,
    /// Run on this cluster instead of fresh local ones, with all its nodes
    #[arg(long, value_name = "ADDR", value_delimiter = ',', conflicts_with = "nodes")]
    pub(crate) cluster: Vec<String>,
    #[command(flatten)]
    pub(crate) security: SecurityFlags,
    /// Make runs again that have failed
    #[arg(long)]
    pub(crate) retry: bool,
    /// Where runs and the report are kept
    #[arg(long, value_name = "DIR", default_value = "tau-study")]
    pub(crate) out: PathBuf,
    /// Write one JSON object per line to standard output, and nothing else
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Report {
    /// Folders of studies or of runs
    #[arg(value_name = "DIR", required = true)]
    pub(crate) folders: Vec<PathBuf>,
    /// Where the report is written
    #[arg(long, value_name = "DIR", default_value = "tau-report")]
    pub(crate) out: PathBuf,
    /// Write one JSON object to standard output, and nothing else
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Evaluate {
    /// The model file
    #[arg(value_name = "MODEL", value_parser = OsStringValueParser::new().try_map(named_model))]
    pub(crate) model: PathBuf,
    /// The data, as 'tau train' takes it. Its test part is measured, or all of it if it is another file than the model was
    /// trained on and neither test= nor testfile= is given [default: what it was trained on]
    #[arg(long, value_name = "SPEC")]
    pub(crate) data: Option<String>,
    /// Also tell for each class how well it is recognised, and what it is taken for
    #[arg(long)]
    pub(crate) confusion: bool,
    /// Threads [default: all cores]
    #[arg(long, value_name = "T")]
    pub(crate) threads: Option<usize>,
    /// Write one JSON object to standard output, and nothing else
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Predict {
    /// The model file
    #[arg(value_name = "MODEL", value_parser = OsStringValueParser::new().try_map(named_model))]
    pub(crate) model: PathBuf,
    /// The samples: csv:FILE or parquet:FILE with the columns of the training data (found by name; labels are not needed),
    /// npz:FILE, images:DIR, images:FILE, idx:FILE of images, or the test part of idx:DIR, cifar:DIR or builtin:mnist
    #[arg(long, value_name = "SPEC")]
    pub(crate) data: String,
    /// Add the probability of every class, in a column of its name
    #[arg(long)]
    pub(crate) all: bool,
    /// Add the number of each sample, from 1, as 'row'; for images also their 'file'
    #[arg(long)]
    pub(crate) row: bool,
    /// Add this column of the table, by its name or position
    #[arg(long, value_name = "COLUMN")]
    pub(crate) id: Option<String>,
    /// Threads [default: all cores]
    #[arg(long, value_name = "T")]
    pub(crate) threads: Option<usize>,
    /// Write a JSON object per sample instead of CSV
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Show {
    /// The model file
    #[arg(value_name = "MODEL", value_parser = OsStringValueParser::new().try_map(named_model))]
    pub(crate) model: PathBuf,
    /// Write one JSON object to standard output, and nothing else
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Export {
    /// The model file
    #[arg(value_name = "MODEL", value_parser = OsStringValueParser::new().try_map(named_model))]
    pub(crate) model: PathBuf,
    /// Write it as ONNX to this file; scaling is included
    #[arg(long, value_name = "FILE")]
    pub(crate) onnx: PathBuf,
}
