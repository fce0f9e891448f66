//! Tau's worker as an extension module of Python: an interpreter that calls `attach` becomes a worker of a node, which
//! trains the models that the interpreter's code makes.
//!
//! Rust keeps everything from the loss on; Python computes outputs and goes back from their gradient. Arrays are handed
//! over as addresses: they belong to Rust and stay where they are until the call ends, or until the network is dropped.

use std::collections::BTreeMap;
use std::fmt;
use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use protocol::sentence::sentence;
use pyo3::exceptions::PyRuntimeError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use tracing_subscriber::filter::LevelFilter;
use worker::backend::device::Device;
use worker::machine::parallel::Threads;
use worker::model_file::{Dtype, UntrainedTensor};
use worker::module::{
    CodeFolders, Minibatch, Module, ModuleData, ModuleFailure, ModuleHost, ModuleNetwork, ModuleSource, ModuleTensor,
    Rows,
};
use worker::process::{self, CODE_LIMIT, Options};

/// Python's state of a thread of the worker, which lasts as long as the thread: PyTorch keeps pointers to it between calls.
struct ThreadState {
    outermost: ffi::PyGILState_STATE,
    state: *mut ffi::PyThreadState,
}

thread_local! {
    static THREAD_STATE: ThreadState = ThreadState::new();
}

impl ThreadState {
    fn new() -> Self {
        // SAFETY: the interpreter runs, since it has called `attach`. The calls give this thread a state, and release the
        // interpreter's lock without giving the state up.
        unsafe {
            Self {
                outermost: ffi::PyGILState_Ensure(),
                state: ffi::PyEval_SaveThread(),
            }
        }
    }
}

impl Drop for ThreadState {
    fn drop(&mut self) {
        // SAFETY: undoes the calls of `new` in the opposite order, on the same thread.
        unsafe {
            ffi::PyEval_RestoreThread(self.state);
            ffi::PyGILState_Release(self.outermost);
        }
    }
}

/// Calls a function with the interpreter's lock held.
fn attached<R>(call: impl FnOnce(Python<'_>) -> R) -> R {
    THREAD_STATE.with(|_| Python::attach(call))
}

/// Start times of the calls of the user's code that are under way, by number of the call: the oldest call comes first.
static CALLS: Mutex<BTreeMap<u64, Instant>> = Mutex::new(BTreeMap::new());
/// Number of the next call of the user's code.
static NEXT_CALL: AtomicU64 = AtomicU64::new(0);

/// Calls a function that runs the user's code, and lists the call in [`CALLS`] meanwhile: such code may never return.
fn calling<R>(call: impl FnOnce(Python<'_>) -> R) -> R {
    let number = NEXT_CALL.fetch_add(1, Ordering::Relaxed);
    let calls = || CALLS.lock().unwrap_or_else(PoisonError::into_inner);
    calls().insert(number, Instant::now());
    let returned = attached(call);
    calls().remove(&number);
    returned
}

/// The interpreter of this process, as the worker knows it.
struct Interpreter {
    /// Python object whose method `load` runs a file of code.
    loader: Py<PyAny>,
}

impl fmt::Debug for Interpreter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Interpreter")
    }
}

impl ModuleHost for Interpreter {
    fn longest_call(&self) -> Option<Duration> {
        let calls = CALLS.lock().unwrap_or_else(PoisonError::into_inner);
        calls.first_key_value().map(|(_, began)| began.elapsed())
    }

    fn whereabouts(&self) -> Option<String> {
        attached(|py| self.loader.call_method0(py, "whereabouts")?.extract(py)).unwrap_or_default()
    }

    fn load(&self, source: &ModuleSource) -> Result<Arc<dyn Module>, ModuleFailure> {
        calling(|py| {
            let code = PyBytes::new(py, &source.code);
            let shape = source.input.map(|input| input.dims());
            let arguments = (&source.file, code, shape, source.seed);
            let object = self.loader.call_method1(py, "load", arguments)?;
            Ok::<_, PyErr>(Arc::new(Loaded { object }) as Arc<dyn Module>)
        })
        .map_err(failure)
    }
}

/// A module that the interpreter has loaded.
struct Loaded {
    /// Python object `tau.worker.Module`.
    object: Py<PyAny>,
}

impl Module for Loaded {
    fn tensors(&self) -> Result<Vec<ModuleTensor>, ModuleFailure> {
        let tensors: Result<Vec<(String, Vec<usize>, bool)>, _> =
            attached(|py| self.object.call_method0(py, "tensors")?.extract(py));
        let tensor = |(key, dims, by_adam)| ModuleTensor { key, dims, by_adam };
        Ok(tensors.map_err(failure)?.into_iter().map(tensor).collect())
    }

    fn data(&self) -> Result<ModuleData, ModuleFailure> {
        let data = calling(|py| {
            let data = self.object.call_method0(py, "data")?;
            let (classes, test, hash): (Vec<u8>, usize, [u8; 32]) = data.extract(py)?;
            let (classes, _) = classes.as_chunks::<4>();
            let classes = classes.iter().map(|&bytes| u32::from_ne_bytes(bytes)).collect();
            Ok::<_, PyErr>(ModuleData { classes, test, hash })
        });
        data.map_err(failure)
    }

    fn seal(&self) -> Result<[u8; 32], ModuleFailure> {
        attached(|py| self.object.call_method0(py, "seal")?.extract(py)).map_err(failure)
    }

    fn first_weights(&self, weights: &mut [f32]) -> Result<(), ModuleFailure> {
        let place = place_mut(weights);
        let written = attached(|py| self.object.call_method1(py, "first_weights", place).map(drop));
        written.map_err(failure)
    }

    fn network(&self, threads: usize) -> Result<Box<dyn ModuleNetwork>, ModuleFailure> {
        let network = calling(|py| self.object.call_method1(py, "network", (threads,)));
        let object = network.map_err(failure)?;
        Ok(Box::new(Network { object }))
    }
}

/// Returns the address and the length of an array, for Python.
fn place(array: &[f32]) -> (usize, usize) {
    (array.as_ptr() as usize, array.len())
}

/// Returns the address and the length of an array that Python writes to.
fn place_mut(array: &mut [f32]) -> (usize, usize) {
    (array.as_mut_ptr() as usize, array.len())
}

/// Returns positions of samples as native-endian 32-bit numbers, for an `array.array("I")` in Python.
fn plain<'py>(py: Python<'py>, positions: &[u32]) -> Bound<'py, PyBytes> {
    let bytes: Vec<u8> = positions.iter().flat_map(|position| position.to_ne_bytes()).collect();
    PyBytes::new(py, &bytes)
}

/// A network of a loaded module, at work on one thread.
struct Network {
    /// Python object `tau.worker.Network`.
    object: Py<PyAny>,
}

impl Network {
    /// Calls a method that computes outputs, and copies them.
    fn outputs(&self, method: &str, weights: &[f32], rows: Rows<'_>, key: u64) -> Result<Vec<f32>, ModuleFailure> {
        let outputs = calling(|py| {
            let arguments = (place(weights), place(rows.values), rows.samples, key);
            let outputs = self.object.call_method1(py, method, arguments)?;
            let bytes: Bound<'_, PyBytes> = outputs.extract(py)?;
            let (floats, _) = bytes.as_bytes().as_chunks::<4>();
            Ok::<_, PyErr>(floats.iter().map(|&bytes| f32::from_ne_bytes(bytes)).collect())
        });
        outputs.map_err(failure)
    }
}

impl ModuleNetwork for Network {
    fn forward(&mut self, weights: &[f32], rows: Rows<'_>, key: u64) -> Result<Vec<f32>, ModuleFailure> {
        self.outputs("forward", weights, rows, key)
    }

    fn backward(&mut self, output_gradient: &[f32], gradient: &mut [f32]) -> Result<(), ModuleFailure> {
        let places = (place(output_gradient), place_mut(gradient));
        let written = calling(|py| self.object.call_method1(py, "backward", places).map(drop));
        written.map_err(failure)
    }

    fn infer(&mut self, weights: &[f32], rows: Rows<'_>) -> Result<Vec<f32>, ModuleFailure> {
        self.outputs("infer", weights, rows, 0)
    }

    fn step(
        &mut self,
        weights: &[f32],
        positions: &[u32],
        key: u64,
        gradient: &mut [f32],
    ) -> Result<f32, ModuleFailure> {
        let gradient = place_mut(gradient);
        let loss = calling(|py| {
            let arguments = (place(weights), plain(py, positions), key, gradient);
            self.object.call_method1(py, "step", arguments)?.extract(py)
        });
        loss.map_err(failure)
    }

    fn measure(&mut self, weights: &[f32], positions: &[u32]) -> Result<Vec<(String, f64)>, ModuleFailure> {
        let found = calling(|py| {
            let arguments = (place(weights), plain(py, positions));
            self.object.call_method1(py, "measure", arguments)?.extract(py)
        });
        found.map_err(failure)
    }

    fn settle(&mut self) -> Result<bool, ModuleFailure> {
        calling(|py| self.object.call_method0(py, "settle")?.extract(py)).map_err(failure)
    }

    fn observe(&mut self, weights: &[f32], minibatch: Minibatch<'_>) -> Result<(), ModuleFailure> {
        let observed = calling(|py| match minibatch {
            Minibatch::Rows(rows) => {
                let arguments = (place(weights), place(rows.values), rows.samples);
                self.object.call_method1(py, "observe_rows", arguments).map(drop)
            }
            Minibatch::Own(positions) => {
                let arguments = (place(weights), plain(py, positions));
                self.object.call_method1(py, "observe", arguments).map(drop)
            }
        });
        observed.map_err(failure)
    }

    fn untrained(&mut self, weights: &[f32]) -> Result<Vec<UntrainedTensor>, ModuleFailure> {
        let tensors: Result<Vec<PythonTensor>, _> = calling(|py| {
            self.object
                .call_method1(py, "untrained", (place(weights),))?
                .extract(py)
        });
        let tensor = |(key, dtype, dims, bytes): PythonTensor| {
            let known = dtype_of(&dtype);
            let dtype =
                known.ok_or_else(|| ModuleFailure(format!("{key} is {dtype}, which no model file can hold")))?;
            Ok(UntrainedTensor {
                key,
                dtype,
                dims,
                bytes,
            })
        };
        tensors.map_err(failure)?.into_iter().map(tensor).collect()
    }
}

/// Tensor as Python gives it: key, name of its type, dimensions and bytes.
type PythonTensor = (String, String, Vec<usize>, Vec<u8>);

/// Returns the type of numbers that PyTorch calls by this name, if a model file can hold it.
fn dtype_of(name: &str) -> Option<Dtype> {
    Some(match name {
        "torch.bool" => Dtype::BOOL,
        "torch.uint8" => Dtype::U8,
        "torch.int8" => Dtype::I8,
        "torch.int16" => Dtype::I16,
        "torch.int32" => Dtype::I32,
        "torch.int64" => Dtype::I64,
        "torch.float16" => Dtype::F16,
        "torch.bfloat16" => Dtype::BF16,
        "torch.float32" => Dtype::F32,
        "torch.float64" => Dtype::F64,
        _ => return None,
    })
}

impl Drop for Network {
    /// Gives the module's parameters memory of their own: that of the weights is about to go, and the user's code may
    /// hold the module.
    fn drop(&mut self) {
        attached(|py| {
            if let Err(error) = self.object.call_method0(py, "release") {
                error.print(py);
            }
        });
    }
}

/// Returns the failure that an exception of `tau.worker` describes: its text is a sentence for people.
#[expect(clippy::needless_pass_by_value, reason = "errors are mapped by this function")]
fn failure(error: PyErr) -> ModuleFailure {
    attached(|py| ModuleFailure(error.value(py).to_string()))
}

/// Works for the node that listens at a socket, until the node ends or closes the socket.
#[pyfunction]
#[expect(clippy::needless_pass_by_value, reason = "arguments of Python are made for the call")]
fn attach(
    py: Python<'_>,
    socket: PathBuf,
    threads: usize,
    data_root: PathBuf,
    own_folder: Option<PathBuf>,
    runtime: String,
    loader: Py<PyAny>,
) -> PyResult<()> {
    worker::machine::memory::keep_freed_blocks();
    start_log();
    let options = Options {
        version: VERSION.into(),
        device: Device::Cpu,
        threads: Threads(threads),
        data_root,
        code_limit: code_limit(),
        own_folder,
        modules: Some(Arc::new(Interpreter { loader })),
        runtime,
    };
    let worked = py.detach(|| process::attach(&socket, &options));
    worked.map_err(|error| PyRuntimeError::new_err(sentence(&error)))
}

/// Returns the bytes of a file of code that a module imports, under the same rules as the module's own file.
#[pyfunction]
#[expect(clippy::needless_pass_by_value, reason = "arguments of Python are made for the call")]
fn read(
    py: Python<'_>,
    data_root: PathBuf,
    own_folder: Option<PathBuf>,
    file: PathBuf,
) -> PyResult<Bound<'_, PyBytes>> {
    let folders = CodeFolders {
        root: Some(&data_root),
        own: own_folder.as_deref(),
    };
    let code = folders
        .read(&file)
        .map_err(|error| PyRuntimeError::new_err(sentence(&error)))?;
    Ok(PyBytes::new(py, &code))
}

/// Returns the time after which a call of the user's code is taken for hung: the seconds of `TAU_CODE_LIMIT`, or
/// [`CODE_LIMIT`] without that variable.
fn code_limit() -> Duration {
    let seconds = std::env::var("TAU_CODE_LIMIT")
        .ok()
        .and_then(|seconds| seconds.parse().ok());
    let seconds = seconds.filter(|&seconds| seconds > 0);
    seconds.map_or(CODE_LIMIT, Duration::from_secs)
}

/// Writes the worker's log to standard error, which is its node's: problems, or what the level in `TAU_LOG` admits.
fn start_log() {
    let level = std::env::var("TAU_LOG").ok().and_then(|level| level.parse().ok());
    let log = tracing_subscriber::fmt()
        .with_max_level(level.unwrap_or(LevelFilter::WARN))
        .with_ansi(std::io::stderr().is_terminal())
        .log_internal_errors(false)
        .with_writer(std::io::stderr);
    // A log that the interpreter's program has set up stays in force.
    let _ = log.try_init();
}

/// Release of Tau that the extension belongs to; a node's workers must have the node's.
const VERSION: &str = env!("TAU_VERSION");

#[pymodule]
fn _tau(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("VERSION", VERSION)?;
    module.add_function(wrap_pyfunction!(read, module)?)?;
    module.add_function(wrap_pyfunction!(attach, module)?)
}
