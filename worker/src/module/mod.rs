//! Modules: networks whose layers are the user's code, such as a PyTorch module.
//!
//! Tau trains a module as it trains its own networks: it chooses the samples, moves the weights and exchanges changes.
//! The weights lie in one array that is Tau's, in the order of a [`Layout`]'s tensors. There are two kinds of samples:
//!
//! - Those that Tau reads. The module computes outputs from rows of them, and the gradient of its weights from the
//!   gradient of its outputs; Tau computes the loss.
//! - Those of the module's own data. Tau names their positions, and the module computes the loss and its gradient.
//!
//! Nothing here knows the language of the code: an interpreter's process hands its [`ModuleHost`] to
//! [`crate::process::attach`].

#[cfg(test)]
mod native;
#[cfg(test)]
mod tests;
mod watch;

use std::fmt::Debug;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use protocol::job::model::{Layout, ModelError, Role, Shape};
use protocol::job::target::TargetInfo;
use protocol::stats::named::NamedNumbers;
use protocol::weights::lattice::{RANGE_ALARM_STEPS, STEPS_PER_UNIT, nearest_count};
use thiserror::Error;

use crate::dataset::{self, Answers, DatasetError, Samples};
use crate::machine::parallel::Threads;
use crate::model_file::UntrainedTensor;

pub use watch::CallWatch;

/// Line that a file of code must contain near its beginning, so that jobs cannot run any other file of a node.
const MARK: &str = "# tau: model";
/// Number of lines at the beginning of a file among which the mark must be.
const MARK_WITHIN: usize = 10;
/// Largest size in bytes of a file of code; a larger one is taken for a mistake.
const SOURCE_BYTES_MAX: u64 = 1 << 20;
/// Largest magnitude of a module's first weight: from here on training would log warnings.
const WEIGHT_MAX: f32 = (RANGE_ALARM_STEPS / STEPS_PER_UNIT) as f32;

/// Interpreter of the process that this worker runs in. It turns files of code into modules.
pub trait ModuleHost: Debug + Send + Sync {
    /// Runs the code of a file and returns the module that it makes. The module's first weights follow from the seed.
    fn load(&self, source: &ModuleSource) -> Result<Arc<dyn Module>, ModuleFailure>;

    /// Returns the duration of the longest call of code that is under way; `None` if there is none. Never waits for the
    /// interpreter.
    fn longest_call(&self) -> Option<Duration>;

    /// Returns the line of code that is being run, for people; `None` if it is no line of the user's. May wait for the
    /// interpreter.
    fn whereabouts(&self) -> Option<String>;
}

/// File of code that makes a module, and the samples that the module is for.
#[derive(Clone, Debug, PartialEq)]
pub struct ModuleSource {
    /// Path of the file, for messages.
    pub file: PathBuf,
    /// Contents of the file. The host runs exactly these, and does not read the file again.
    pub code: Vec<u8>,
    /// Shape of one sample that Tau reads and that goes into the module; `None` if the module reads its samples itself.
    pub input: Option<Shape>,
    /// Seed of the module's first weights.
    pub seed: u64,
}

/// A network of the user's code, loaded into this process.
pub trait Module: Send + Sync {
    /// Returns the module's trained tensors.
    fn tensors(&self) -> Result<Vec<ModuleTensor>, ModuleFailure>;

    /// Returns the facts about the module's own samples. It is called only if the module was loaded without an input
    /// shape.
    fn data(&self) -> Result<ModuleData, ModuleFailure>;

    /// Returns a digest of all code that has run, by which nodes compare theirs. From now on the module reads no further
    /// files of code.
    fn seal(&self) -> Result<[u8; 32], ModuleFailure>;

    /// Writes the module's first weights, tensor after tensor in the order of their keys.
    fn first_weights(&self, weights: &mut [f32]) -> Result<(), ModuleFailure>;

    /// Makes a network of the module's structure for one thread, which computes with this many threads.
    fn network(&self, threads: usize) -> Result<Box<dyn ModuleNetwork>, ModuleFailure>;
}

/// A network of a module, at work on one thread: its weights are Tau's.
pub trait ModuleNetwork: Send {
    /// Computes the outputs of some samples (`rows`) in training, and returns them row by row. The random key decides
    /// dropout. [`ModuleNetwork::backward`] goes back from these outputs.
    fn forward(&mut self, weights: &[f32], rows: Rows<'_>, key: u64) -> Result<Vec<f32>, ModuleFailure>;

    /// Computes the gradient of all weights from that of the last outputs, and replaces `gradient` with it.
    fn backward(&mut self, output_gradient: &[f32], gradient: &mut [f32]) -> Result<(), ModuleFailure>;

    /// Computes the outputs of some samples outside of training.
    fn infer(&mut self, weights: &[f32], rows: Rows<'_>) -> Result<Vec<f32>, ModuleFailure>;

    /// Returns the mean loss of the module's own samples at these positions, and replaces `gradient` with the gradient
    /// of all weights. The random key decides dropout and augmentation.
    fn step(
        &mut self,
        weights: &[f32],
        positions: &[u32],
        key: u64,
        gradient: &mut [f32],
    ) -> Result<f32, ModuleFailure>;

    /// Measures the model on the module's own samples at these positions, outside of training: returns means under
    /// their names, with `loss` among them.
    fn measure(&mut self, weights: &[f32], positions: &[u32]) -> Result<Vec<(String, f64)>, ModuleFailure>;

    /// Takes over the newest tensors that are not trained from the network that trains, for evaluations. Returns true if
    /// the network has running statistics, as batch norms have: then [`ModuleNetwork::observe`] measures them.
    fn settle(&mut self) -> Result<bool, ModuleFailure>;

    /// Measures running statistics with these weights on a minibatch: from then on they are the means of those of all
    /// minibatches since [`ModuleNetwork::settle`].
    fn observe(&mut self, weights: &[f32], minibatch: Minibatch<'_>) -> Result<(), ModuleFailure>;

    /// Returns the tensors of the module with these weights that are saved with the model and are not trained: buffers,
    /// frozen parameters, and tied weights (trained tensors under a further key).
    fn untrained(&mut self, weights: &[f32]) -> Result<Vec<UntrainedTensor>, ModuleFailure>;
}

/// Trained tensor of a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModuleTensor {
    /// Key of the tensor, as `torch.nn.Module` names it.
    pub key: String,
    /// Dimensions of the tensor, outermost first.
    pub dims: Vec<usize>,
    /// True if Adam moves the tensor where other matrices get orthogonal updates: embeddings, the head of a model with
    /// data of its own, and the matrices that the user's file names.
    pub by_adam: bool,
}

/// Facts about a module's own samples: the training samples have the first positions, and the test samples follow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModuleData {
    /// Class of each training sample, from 0; all are 0 if the samples have no classes.
    pub classes: Vec<u32>,
    /// Number of test samples.
    pub test: usize,
    /// Hash by which nodes compare their data.
    pub hash: [u8; 32],
}

/// Samples that go into a module, row by row.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    pub values: &'a [f32],
    pub samples: usize,
}

/// Minibatch that a module is run on.
#[derive(Clone, Copy, Debug)]
pub enum Minibatch<'a> {
    /// Samples of data that Tau reads.
    Rows(Rows<'a>),
    /// Positions of the module's own samples.
    Own(&'a [u32]),
}

/// Failure of a module's code, as one sentence that names the place in the code.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct ModuleFailure(pub String);

/// Reason why a module cannot be trained.
#[derive(Debug, Error)]
pub enum ModuleError {
    /// Reason why a module cannot be trained: the worker's process has no interpreter.
    #[error("this node runs no Python, but the model is {file}: start the node with --python")]
    NoHost { file: PathBuf },
    /// Reason why a module cannot be trained: its file cannot be opened on this node.
    #[error(transparent)]
    Open(#[from] DatasetError),
    /// Reason why a module cannot be trained: its file lies in the folder that its node writes to.
    #[error("{file} lies in the node's own folder, from which no code is run: move it elsewhere below --data-root")]
    OwnFolder { file: PathBuf },
    /// Reason why a module cannot be trained: the operating system failed to read its file.
    #[error("{file} could not be read")]
    Read { file: PathBuf, source: std::io::Error },
    /// Reason why a module cannot be trained: its file is too large for code.
    #[error("{file} has more than {SOURCE_BYTES_MAX} bytes: a file that defines a model is smaller")]
    TooLarge { file: PathBuf },
    /// Reason why a module cannot be trained: its file is not marked as one that may be run.
    #[error("{file} does not say that it defines a model: write '{MARK}' as its first line")]
    Unmarked { file: PathBuf },
    /// Reason why a module cannot be trained: its code failed.
    #[error(transparent)]
    Failed(#[from] ModuleFailure),
    /// Reason why a module cannot be trained: its tensors are too many, or none.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// Reason why a module cannot be trained: a first weight lies outside of the allowed range.
    #[error(
        "{file}: '{tensor}' begins with a weight of {weight}, but weights must lie within ±{WEIGHT_MAX}: scale the \
         tensor down"
    )]
    OutOfRange {
        file: PathBuf,
        /// Key of the tensor that has the weight out of range.
        tensor: String,
        weight: f32,
    },
}

/// A module that is ready to train: its code has run, and its first weights are known.
#[derive(Clone)]
pub struct OpenModule {
    module: Arc<dyn Module>,
    target: TargetInfo,
    /// Network that evaluates. It is made before training begins, because making it draws random numbers of the
    /// interpreter's.
    evaluates: Arc<Mutex<CheckedNetwork>>,
}

impl OpenModule {
    fn new(module: Arc<dyn Module>, target: TargetInfo, threads: Threads) -> Result<Self, ModuleFailure> {
        let evaluates = CheckedNetwork {
            network: module.network(threads.0)?,
            target,
        };
        Ok(Self {
            module,
            target,
            evaluates: Arc::new(Mutex::new(evaluates)),
        })
    }

    /// Makes a network of the module that trains on one thread, and computes with this many threads.
    pub fn network(&self, threads: Threads) -> Result<CheckedNetwork, ModuleFailure> {
        Ok(CheckedNetwork {
            network: self.module.network(threads.0)?,
            target: self.target,
        })
    }

    /// Returns the network that evaluates the module.
    #[must_use]
    pub fn evaluating(&self) -> Arc<Mutex<CheckedNetwork>> {
        Arc::clone(&self.evaluates)
    }
}

/// A network of a module, whose outputs are checked to have the form that the data needs.
pub struct CheckedNetwork {
    network: Box<dyn ModuleNetwork>,
    target: TargetInfo,
}

impl CheckedNetwork {
    /// Computes the outputs of some samples in training, as [`ModuleNetwork::forward`] does. A single sample is taken
    /// twice, because a batch norm cannot normalise it; the second row of outputs is to have no gradient.
    pub fn forward(&mut self, weights: &[f32], rows: Rows<'_>, key: u64) -> Result<Vec<f32>, ModuleFailure> {
        if rows.samples > 1 {
            let outputs = self.network.forward(weights, rows, key)?;
            return checked(self.target, outputs, rows.samples);
        }
        let twice = rows.values.repeat(2);
        let rows = Rows {
            values: &twice,
            samples: 2,
        };
        let mut outputs = self.network.forward(weights, rows, key)?;
        outputs = checked(self.target, outputs, 2)?;
        outputs.truncate(outputs.len() / 2);
        Ok(outputs)
    }

    /// Computes the gradient of all weights from that of the last outputs of this many samples, as
    /// [`ModuleNetwork::backward`] does.
    pub fn backward(
        &mut self,
        samples: usize,
        output_gradient: &[f32],
        gradient: &mut [f32],
    ) -> Result<(), ModuleFailure> {
        if samples > 1 {
            return self.network.backward(output_gradient, gradient);
        }
        let mut both = output_gradient.to_vec();
        both.resize(2 * output_gradient.len(), 0.0);
        self.network.backward(&both, gradient)
    }

    /// Computes the outputs of some samples outside of training, as [`ModuleNetwork::infer`] does.
    pub fn infer(&mut self, weights: &[f32], rows: Rows<'_>) -> Result<Vec<f32>, ModuleFailure> {
        let outputs = self.network.infer(weights, rows)?;
        checked(self.target, outputs, rows.samples)
    }

    /// Computes the mean loss of the module's own samples at these positions, and the gradient of all weights, as
    /// [`ModuleNetwork::step`] does. A single sample is taken twice, because a batch norm cannot normalise it.
    pub fn step(
        &mut self,
        weights: &[f32],
        positions: &[u32],
        key: u64,
        gradient: &mut [f32],
    ) -> Result<f32, ModuleFailure> {
        match positions {
            &[only] => self.network.step(weights, &[only; 2], key, gradient),
            several => self.network.step(weights, several, key, gradient),
        }
    }

    /// Measures the model on the module's own samples at these positions, as [`ModuleNetwork::measure`] does, and checks
    /// that the numbers are few, their names short, and an accuracy a share.
    pub fn measure(&mut self, weights: &[f32], positions: &[u32]) -> Result<Vec<(String, f64)>, ModuleFailure> {
        let found = self.network.measure(weights, positions)?;
        let named = NamedNumbers::new(found.iter().map(|(name, number)| (name, *number)));
        named.map_err(|error| ModuleFailure(format!("evaluate(): {error}")))?;
        let mut accuracies = found.iter().filter(|(name, _)| name == "accuracy");
        if accuracies.any(|(_, accuracy)| !(0.0..=1.0).contains(accuracy)) {
            let why =
                "evaluate() returns an accuracy that is no share from 0 to 1: give it another name, or leave it out";
            return Err(ModuleFailure(why.into()));
        }
        Ok(found)
    }

    /// Returns the tensors of the module that are saved and not trained, as [`ModuleNetwork::untrained`] does.
    pub fn untrained(&mut self, weights: &[f32]) -> Result<Vec<UntrainedTensor>, ModuleFailure> {
        self.network.untrained(weights)
    }

    /// Prepares evaluations with these weights: takes over the newest tensors that are not trained, and measures running
    /// statistics, if the network has any, on these minibatches of the samples.
    pub fn settle(
        &mut self,
        weights: &[f32],
        samples: &Samples,
        minibatches: impl IntoIterator<Item = Vec<u32>>,
    ) -> Result<(), ModuleFailure> {
        if !self.network.settle()? {
            return Ok(());
        }
        let (mut inputs, mut answers) = (Vec::new(), Answers::default());
        for minibatch in minibatches {
            if let Some(positions) = samples.positions_at(&minibatch) {
                self.network.observe(weights, Minibatch::Own(&positions))?;
                continue;
            }
            samples.gather(&minibatch, &mut inputs, &mut answers);
            let rows = Rows {
                values: &inputs,
                samples: minibatch.len(),
            };
            self.network.observe(weights, Minibatch::Rows(rows))?;
        }
        Ok(())
    }
}

/// Returns a module's outputs for some samples if the data can be compared with them. One output is enough to tell two
/// classes apart.
pub fn checked(target: TargetInfo, outputs: Vec<f32>, samples: usize) -> Result<Vec<f32>, ModuleFailure> {
    let wanted = target.outputs();
    let is_one_of_two = target == TargetInfo::Classes(2) && outputs.len() == samples;
    if outputs.len() == samples * wanted || is_one_of_two {
        return Ok(outputs);
    }
    Err(ModuleFailure(format!(
        "the model gives {} numbers for {samples} samples, but the data needs {wanted} for each: end the model with \
         {wanted} outputs",
        outputs.len()
    )))
}

/// Reads a file of code from one of these folders, and has the interpreter run it. `input` is the shape of one sample that
/// Tau reads; `None` if the module reads its samples itself.
pub fn load(
    host: Option<&dyn ModuleHost>,
    file: &Path,
    folders: CodeFolders<'_>,
    input: Option<Shape>,
    seed: u64,
) -> Result<Arc<dyn Module>, ModuleError> {
    let host = host.ok_or_else(|| ModuleError::NoHost { file: file.into() })?;
    let source = ModuleSource {
        file: file.into(),
        code: folders.read_model(file)?,
        input,
        seed,
    };
    Ok(host.load(&source)?)
}

/// Makes a loaded module ready to train. Returns the module's layout, too, and its first weights as counts (whole
/// numbers of the smallest step between two weights).
pub fn open(
    module: Arc<dyn Module>,
    file: &Path,
    target: TargetInfo,
    threads: Threads,
) -> Result<(OpenModule, Layout, Vec<i32>), ModuleError> {
    let tensors = module.tensors()?.into_iter();
    let layout = Layout::of_tensors(tensors.map(|ModuleTensor { key, dims, by_adam }| {
        let role = if by_adam { Role::AdamMatrix } else { role(&key, &dims) };
        (key, dims, role)
    }))?;
    let mut weights = vec![0.0; layout.weights];
    module.first_weights(&mut weights)?;
    let outside = |&at: &usize| !(-WEIGHT_MAX..=WEIGHT_MAX).contains(&weights[at]);
    if let Some(at) = (0..weights.len()).find(outside) {
        let tensor = layout.tensors.iter().find(|tensor| tensor.range().contains(&at));
        return Err(ModuleError::OutOfRange {
            file: file.into(),
            tensor: tensor.map_or_else(String::new, |tensor| tensor.key.clone()),
            weight: weights[at],
        });
    }
    let counts = weights.into_iter().map(nearest_count).collect();
    Ok((OpenModule::new(module, target, threads)?, layout, counts))
}

/// Returns the role of a module's tensor, by which the optimiser chooses: matrices are weights, and of the others those
/// named `bias` are biases.
#[must_use]
pub fn role(key: &str, dims: &[usize]) -> Role {
    match dims {
        [_, _, ..] => Role::Weight,
        _ if key.ends_with("bias") => Role::Bias,
        _ => Role::Gain,
    }
}

/// Rules for where files of code may lie.
#[derive(Clone, Copy, Debug, Default)]
pub struct CodeFolders<'a> {
    /// Folder below which all files must lie, as data must; `None` for a user's own process and files.
    pub root: Option<&'a Path>,
    /// Folder from which no code is run: the node writes to it, so members of its cluster can put files there.
    pub own: Option<&'a Path>,
}

impl CodeFolders<'_> {
    /// Reads a file of code and checks that it is marked as one that defines a model.
    pub fn read_model(self, file: &Path) -> Result<Vec<u8>, ModuleError> {
        let code = self.read(file)?;
        let mut lines = code.split(|&byte| byte == b'\n').take(MARK_WITHIN);
        if lines.any(|line| line.trim_ascii() == MARK.as_bytes()) {
            Ok(code)
        } else {
            Err(ModuleError::Unmarked { file: file.into() })
        }
    }

    /// Reads a file of code.
    pub fn read(self, file: &Path) -> Result<Vec<u8>, ModuleError> {
        let path = dataset::resolve_file(file, self.root)?;
        let own = self.own.and_then(|own| own.canonicalize().ok());
        if own.is_some_and(|own| path.canonicalize().is_ok_and(|path| path.starts_with(own))) {
            return Err(ModuleError::OwnFolder { file: file.into() });
        }
        let mut code = Vec::new();
        let opened = dataset::open_file(&path, None)?;
        let read = opened.take(SOURCE_BYTES_MAX + 1).read_to_end(&mut code);
        read.map_err(|source| ModuleError::Read {
            file: file.into(),
            source,
        })?;
        if code.len() as u64 > SOURCE_BYTES_MAX {
            return Err(ModuleError::TooLarge { file: file.into() });
        }
        Ok(code)
    }
}
