//! The command line as types: the arguments of each command, parsed by clap. The flags of a job are the fields of
//! [`JobDraft`].

mod fleet;
mod views;

use std::path::PathBuf;

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Args, Parser, Subcommand};
use protocol::job::JobDraft;

pub(crate) use fleet::{Down, FleetFlags, Up};
use protocol::wire::bounds::chosen_name;
pub(crate) use views::{Doctor, PageArguments, RunPage};

use crate::run::folder::named_model;

/// TCP port that nodes listen on by default, and that an address without a port means.
pub(crate) const PORT: u16 = 7700;
/// Environment variable with the path of the credentials file; a `--credentials` flag overrides it.
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
    /// Train on a cluster of nodes on this machine, save the model and print the result. Without any flags: MNIST
    #[command(
        // A repeated flag overrides the earlier one, as in most tools: scripts can append to a user's flags.
        args_override_self = true,
        after_help = "Ctrl-C ends training early and saves the model; a second Ctrl-C exits at once without saving."
    )]
    Train(Box<Train>),
    /// Create a cluster's credentials
    #[command(subcommand)]
    Credentials(CredentialsCommand),
    /// Print a cluster's token: the addresses of its nodes and its credentials as one line to paste
    Token(TokenFlags),
    /// Start a cluster's first node
    #[command(args_override_self = true, after_help = "Ctrl-C stops the node and its workers.")]
    Seed(Seed),
    /// Start a node and join it to a cluster
    #[command(args_override_self = true, after_help = "Ctrl-C stops the node and its workers.")]
    Join(Join),
    /// Start a cluster on other machines over ssh: copies this program and the credentials to each host, and starts a
    /// node there
    #[command(
        args_override_self = true,
        after_help = "ssh must log in with a key: no password is asked for. Hosts that already run a node are left \
                      as they are. If one host fails, the nodes started on the other hosts are stopped and removed \
                      again. Nodes open data below the user's home, or below the folder given with '-- --data-root \
                      DIR'."
    )]
    Up(Up),
    /// Stop the nodes that 'tau up' has started, and remove the files that it has copied; models are kept
    #[command(args_override_self = true)]
    Down(Down),
    /// Check this machine or a cluster for problems that prevent training, and suggest remedies
    #[command(args_override_self = true)]
    Doctor(Doctor),
    /// Attach another worker to a node on this machine by hand; nodes start their own workers
    #[command(args_override_self = true)]
    Worker(Worker),
    /// Start a run on a cluster, follow it and save its model
    #[command(
        args_override_self = true,
        after_help = "Ctrl-C ends training early and saves the model; a second Ctrl-C exits at once and leaves the \
                      run to the nodes."
    )]
    Start(Box<Start>),
    /// Watch a cluster: a table of its nodes and the loss
    #[command(args_override_self = true)]
    Stats(Stats),
    /// List a cluster's nodes
    #[command(args_override_self = true)]
    Nodes(Ask),
    /// End a cluster's run early; its nodes save the model
    #[command(args_override_self = true)]
    Stop(Ask),
    /// Make every node of a cluster write a checkpoint of the run
    Checkpoint(Ask),
    /// Measure a saved model on a dataset's test samples
    #[command(args_override_self = true)]
    Evaluate(Evaluate),
    /// Predict samples with a saved model: one line per sample, with its class and probability, or with the predicted
    /// numbers
    #[command(args_override_self = true)]
    Predict(Predict),
    /// Show a saved model's layers, weights and job, and the result of the run that trained it
    Show(Show),
    /// Write a saved model in another format
    #[command(args_override_self = true)]
    Export(Export),
    /// Compare strategies: run all combinations of the listed values, one after the other, and report them side by
    /// side
    #[command(
        args_override_self = true,
        after_help = "Ctrl-C ends the study; the same command continues it with the remaining runs. Job flags apply \
                      to every run."
    )]
    Study(Box<Study>),
    /// Print the release of this program
    Version,
    /// Write a shell's completion script for 'tau' to standard output
    Completions {
        /// The shell that the script is for
        #[arg(value_name = "SHELL")]
        shell: clap_complete::Shell,
    },
    /// Write manual pages for 'tau' and each of its commands
    Man {
        /// The folder that the pages are written to
        #[arg(value_name = "DIR")]
        dir: PathBuf,
    },
    /// Show a past run in a browser, as it was at any second
    #[command(args_override_self = true)]
    Page(PageArguments),
    /// Write a report of runs, from folders of 'tau study', 'tau train' or 'tau start'
    #[command(args_override_self = true)]
    Report(Report),
}

impl Command {
    /// Returns true if this process is a node that a person started: `tau seed` or `tau join` without `--tied`. Such a
    /// process logs normal events too.
    pub(crate) fn is_a_node(&self) -> bool {
        match self {
            Self::Seed(seed) | Self::Join(Join { seed, .. }) => !seed.tied,
            _ => false,
        }
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum CredentialsCommand {
    /// Create new credentials. Give every node of the cluster a copy of the file, and keep it private
    New {
        /// The file to create; it must not exist yet, and only its owner can read it
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
}

#[derive(Debug, Args)]
pub(crate) struct TokenFlags {
    /// Addresses of nodes of the cluster, at which joining machines can reach them
    #[arg(long, value_name = "ADDR", value_delimiter = ',', env = "TAU_CLUSTER")]
    pub(crate) cluster: Vec<String>,
    /// The cluster's credentials
    #[arg(long, value_name = "FILE", env = CREDENTIALS_VARIABLE)]
    pub(crate) credentials: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct Train {
    /// A job as a TOML file: its keys are the job flags' names with '_' for '-'; flags override the file
    #[arg(value_name = "JOB.toml")]
    pub(crate) file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) job: JobDraft,
    #[command(flatten)]
    pub(crate) compute: ComputeFlags,
    /// Number of nodes to start on this machine
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub(crate) nodes: usize,
    #[command(flatten)]
    pub(crate) page: RunPage,
    /// The folder for runs, each in a subfolder named by its id; DIR/latest points at the newest
    #[arg(long, value_name = "DIR", default_value = "tau-out")]
    pub(crate) out: PathBuf,
    /// Write one JSON object per line to standard output, and nothing else
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Seed {
    /// The address that the node listens on: HOST:PORT, or :PORT for all of this machine's addresses; port 0 takes
    /// any free port [default: :7700, or 127.0.0.1:7700 with --insecure]
    #[arg(long, value_name = "ADDR")]
    pub(crate) listen: Option<String>,
    #[command(flatten)]
    pub(crate) node: NodeFlags,
    /// Write one JSON object per line to standard output, and nothing else
    #[arg(long)]
    pub(crate) json: bool,
    /// Stop when standard input ends: the process that started the node is gone
    #[arg(long, hide = true)]
    pub(crate) tied: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Join {
    /// Addresses of nodes of the cluster (one that answers is enough), or the token that 'tau token' prints
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
    /// The node's name, which it keeps when it is started again; no other running node may have it [default: the
    /// host's name and a part of the node's id]
    #[arg(long, value_name = "NAME", value_parser = chosen_name)]
    pub(crate) name: Option<String>,
    /// The address at which other machines reach the node, if not the one that it listens on
    #[arg(long, value_name = "ADDR")]
    pub(crate) advertise: Option<String>,
    /// The folder for the node's socket, models and checkpoints [default: tau-node]
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// Number of runs whose folders are kept under --dir; when a run begins, the folders of older runs are removed
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) keep_runs: u16,
    /// Seconds that the node may take to leave its run after SIGTERM or Ctrl-C: its workers send the changes that they
    /// have not sent yet, and the other nodes take over its samples
    #[arg(long, value_name = "SECONDS", default_value_t = 8, value_parser = clap::value_parser!(u16).range(..=3600))]
    pub(crate) grace: u16,
    /// Show the cluster live in a browser, on a page served at this address; its URL, with a token, is printed
    #[arg(long, value_name = "ADDR")]
    pub(crate) page: Option<String>,
    /// Allow everyone who has the page's token to end runs from the page
    #[arg(long, requires = "page")]
    pub(crate) page_stop: bool,
    /// Serve this node's metrics for Prometheus at this address, under /metrics; requests need the page's token
    #[arg(long, value_name = "ADDR")]
    pub(crate) metrics: Option<String>,
    #[command(flatten)]
    pub(crate) compute: ComputeFlags,
}

/// Flags for the hardware and the data of workers. A local cluster passes only these on to its nodes, because it
/// chooses their addresses, folders and credentials itself.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Node")]
pub(crate) struct ComputeFlags {
    /// The device that workers compute on: auto, cpu, or cuda:N
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    pub(crate) device: String,
    /// Number of workers of each node; each is a process
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) workers: usize,
    /// Threads of each worker [default: all cores, divided among the workers]
    #[arg(long, value_name = "T")]
    pub(crate) threads: Option<usize>,
    /// The precision of matrix products on a GPU: f32 or tf32 [default: tf32 on a GPU]
    #[arg(long, value_name = "P")]
    pub(crate) precision: Option<String>,
    /// Open data only under this folder, where relative paths start [default: the working directory; for 'tau train',
    /// no restriction]
    #[arg(long, value_name = "DIR")]
    pub(crate) data_root: Option<PathBuf>,
    /// Run models that are Python code (--model py:FILE) by this interpreter, in which Tau's wheel is installed; a node
    /// then needs --data-root [default: none; for 'tau train' of such a model that of `TAU_PYTHON`, else the python beside
    /// this program, else python3]
    #[arg(long, value_name = "INTERPRETER")]
    pub(crate) python: Option<PathBuf>,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct SecurityFlags {
    /// The cluster's credentials
    #[arg(long, value_name = "FILE", env = CREDENTIALS_VARIABLE)]
    pub(crate) credentials: Option<PathBuf>,
    /// Connect without encryption and credentials, within this machine only
    #[arg(long)]
    pub(crate) insecure: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Worker {
    /// The node's socket, whose path the node prints when it starts
    #[arg(value_name = "SOCKET")]
    pub(crate) node: PathBuf,
    /// The device that workers compute on: auto, cpu, or cuda:N
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    pub(crate) device: String,
    /// The precision of matrix products on a GPU: f32 or tf32 [default: tf32]
    #[arg(long, value_name = "P")]
    pub(crate) precision: Option<String>,
    /// Number of threads [default: all cores]
    #[arg(long, value_name = "T")]
    pub(crate) threads: Option<usize>,
    /// Open data only under this folder, where relative paths start [default: the working directory]
    #[arg(long, value_name = "DIR")]
    pub(crate) data_root: Option<PathBuf>,
    /// The node itself started this worker: ignore signals, and exit without an error if the node has ended
    #[arg(long, hide = true)]
    pub(crate) tied: bool,
}

/// The cluster that a client command connects to: addresses of its nodes, and its credentials.
#[derive(Clone, Debug, Args)]
pub(crate) struct Cluster {
    /// Addresses of nodes of the cluster (one is enough, because it names the others), or the token that 'tau token'
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
    /// A job as a TOML file: its keys are the job flags' names with '_' for '-'; flags override the file
    #[arg(value_name = "JOB.toml", conflicts_with = "attach")]
    pub(crate) file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) job: JobDraft,
    /// Exit once the run has begun; the nodes save the model
    #[arg(long, conflicts_with = "attach")]
    pub(crate) detach: bool,
    /// Instead of starting a run, follow the current one, or fetch the model of the last one
    #[arg(long)]
    pub(crate) attach: bool,
    /// Begin the run without the nodes that cannot take part
    #[arg(long)]
    pub(crate) allow_partial: bool,
    #[command(flatten)]
    pub(crate) page: RunPage,
    /// Continue an earlier run, finished or not, from the furthest checkpoint that any node has of it; --epochs,
    /// --max-seconds, --target-accuracy, --target-loss, --evaluations, --patience, --keep, --checkpoint-every and
    /// --give-up-after may be changed
    #[arg(long, value_name = "RUN", conflicts_with_all = ["file", "attach"])]
    pub(crate) resume: Option<PathBuf>,
    /// The folder for runs, each in a subfolder named by its id; DIR/latest points at the newest
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
    /// Print the newest record of every node, and exit
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
    /// Strategies to compare, separated by spaces, or by commas if no strategy contains a comma
    #[arg(long, value_name = "LIST")]
    pub(crate) exchanges: Option<String>,
    /// Numbers of nodes to train on, each of which is tried [default: 3]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) nodes: Vec<usize>,
    /// Ways to split the samples among workers: random, equal or class
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) splits: Vec<String>,
    /// Random seeds; means and standard deviations are taken over the runs with these seeds
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) seeds: Vec<i64>,
    /// Report the time after which a run's evaluations first reach this accuracy; runs go on, unless
    /// --target-accuracy ends them there
    #[arg(long, value_name = "A")]
    pub(crate) target: Option<f64>,
    #[command(flatten)]
    pub(crate) job: JobDraft,
    #[command(flatten)]
    pub(crate) compute: ComputeFlags,
    /// Run on all nodes of this cluster instead of on new local clusters
    #[arg(long, value_name = "ADDR", value_delimiter = ',', conflicts_with = "nodes")]
    pub(crate) cluster: Vec<String>,
    #[command(flatten)]
    pub(crate) security: SecurityFlags,
    /// Repeat the runs that have failed
    #[arg(long)]
    pub(crate) retry: bool,
    /// The folder for the runs and the report
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
    /// The folder that the report is written to
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
    /// The data, as 'tau train' takes it. Its test samples are measured, or all samples if the model was trained on
    /// another file and neither test= nor testfile= is given [default: the data that the model was trained on]
    #[arg(long, value_name = "SPEC")]
    pub(crate) data: Option<String>,
    /// The Python file that made the model, if the model is a module. It is run with your rights; nothing in the model
    /// file decides what is run
    #[arg(long, value_name = "FILE")]
    pub(crate) model_source: Option<PathBuf>,
    /// Python interpreter that runs the code of --model-source [default: as for 'tau train']
    #[arg(long, value_name = "INTERPRETER", requires = "model_source")]
    pub(crate) python: Option<PathBuf>,
    /// Also print recall, precision and F1 of each class, and the confusion matrix
    #[arg(long)]
    pub(crate) confusion: bool,
    /// Number of threads [default: all cores]
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
    /// The samples: csv:FILE or parquet:FILE with the columns of the training data (found by name; labels are not
    /// needed), npz:FILE, images:DIR, images:FILE, idx:FILE of images, or the test samples of idx:DIR, cifar:DIR or
    /// builtin:mnist
    #[arg(long, value_name = "SPEC")]
    pub(crate) data: String,
    /// Add the probability of every class, in a column named after the class
    #[arg(long)]
    pub(crate) all: bool,
    /// Add the number of each sample, counted from 1, as 'row'; for images also the path of the file as 'file'
    #[arg(long)]
    pub(crate) row: bool,
    /// Add this column of the data to the output, by its name or position
    #[arg(long, value_name = "COLUMN")]
    pub(crate) id: Option<String>,
    /// The Python file that made the model, if the model is a module. It is run with your rights; nothing in the model
    /// file decides what is run
    #[arg(long, value_name = "FILE")]
    pub(crate) model_source: Option<PathBuf>,
    /// Python interpreter that runs the code of --model-source [default: as for 'tau train']
    #[arg(long, value_name = "INTERPRETER", requires = "model_source")]
    pub(crate) python: Option<PathBuf>,
    /// Number of threads [default: all cores]
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
    /// Write the model as ONNX to this file; it includes the scaling of inputs
    #[arg(long, value_name = "FILE")]
    pub(crate) onnx: PathBuf,
}
