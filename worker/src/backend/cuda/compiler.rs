//! Compiles the kernels when a GPU is opened, and keeps what came out for the next time.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cudarc::driver::sys::CUresult;
use cudarc::driver::{CudaContext, CudaFunction, CudaModule};
use cudarc::nvrtc::{CompileError, CompileOptions, Ptx, compile_ptx_with_opts};
use sha2::{Digest, Sha256};

use super::error::GpuError;

const COMMON: &str = include_str!("kernels/common.cuh");
/// The folder under the user's cache.
const FOLDER: &str = "tau";

macro_rules! kernels {
    ($($module:ident in $file:literal { $($kernel:ident),* $(,)? })*) => {
        /// All kernels, by the names that they have in their files.
        #[derive(Debug)]
        pub(super) struct Kernels {
            $($(pub(super) $kernel: CudaFunction,)*)*
        }

        /// Compiles all kernels for a GPU, or finds them compiled.
        pub(super) fn load(context: &Arc<CudaContext>) -> Result<Kernels, GpuError> {
            let capability = context.compute_capability()?;
            $(let $module = module(context, include_str!(concat!("kernels/", $file)), capability)?;)*
            Ok(Kernels {
                $($($kernel: $module.load_function(stringify!($kernel))?,)*)*
            })
        }
    };
}

kernels! {
    update in "update.cu" {
        update_sgd, update_velocity, update_squares, update_adam, count_due, emit, squares, judge,
    }
    replica in "replica.cu" { apply, shift, digest, sample_residual }
    layers in "layers.cu" {
        gather_bytes, gather_floats, bias_rows4, bias, bias_rows_back, bias_rows4_back, bias_planes_back, add_parts, softmax_few, softmax_many, softmax_any,
        relu, relu_back, tanh_all, tanh_all_back, sigmoid, sigmoid_back, gelu, gelu_back, dropout,
    }
    images in "images.cu" {
        unfold, fold, max_pool, max_pool_back, mean_pool, mean_pool_back, swap_outer,
    }
}

/// The kernels of a file: as they were compiled before, if that still works, or anew.
fn module(context: &Arc<CudaContext>, file: &str, (major, minor): (i32, i32)) -> Result<Arc<CudaModule>, GpuError> {
    let source = format!("{COMMON}\n{file}");
    let architecture = format!("--gpu-architecture=compute_{major}{minor}");
    let cached = cache().map(|folder| folder.join(name_of(&source, &architecture)));
    let text = cached.as_deref().and_then(|path| std::fs::read_to_string(path).ok());
    // A file that was torn, or that another version of CUDA made, is made anew.
    if let Some(text) = text
        && let Ok(module) = context.load_module(Ptx::from_src(text))
    {
        return Ok(module);
    }
    let options = CompileOptions {
        // What leaves must be the same bits as on a CPU.
        fmad: Some(false),
        ftz: Some(false),
        prec_div: Some(true),
        prec_sqrt: Some(true),
        options: vec![architecture],
        ..CompileOptions::default()
    };
    let ptx = compile_ptx_with_opts(&source, options).map_err(|error| GpuError::Kernels(log_of(error)))?;
    let text = ptx.to_src();
    let module = context.load_module(ptx).map_err(|error| match error.0 {
        CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION => {
            GpuError::Kernels("the CUDA toolkit is newer than the driver: update NVIDIA's driver".into())
        }
        _ => error.into(),
    })?;
    if let Some(path) = cached
        && let Err(error) = keep(&path, &text)
    {
        tracing::debug!(%error, path = %path.display(), "the compiled kernels could not be kept");
    }
    Ok(module)
}

/// What the compiler said.
fn log_of(error: CompileError) -> String {
    match error {
        CompileError::CompileError { log, .. } => log.to_string_lossy().into_owned(),
        other => format!("{other:?}"),
    }
}

/// Whatever changes what comes out changes the name.
fn name_of(source: &str, architecture: &str) -> String {
    let mut hash = Sha256::new();
    hash.update(env!("CARGO_PKG_VERSION"));
    hash.update(architecture);
    hash.update(source);
    let hash = hash.finalize();
    let short = hash.iter().take(8).fold(0, |short, &byte| short << 8 | u64::from(byte));
    format!("kernels-{short:016x}.ptx")
}

/// Where compiled kernels are kept: where the user keeps such things.
fn cache() -> Option<PathBuf> {
    let given = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache"));
    given
        .filter(|folder| folder.is_absolute())
        .or_else(home)
        .map(|cache| cache.join(FOLDER))
}

/// Written aside and renamed: another worker may read it at any moment.
fn keep(path: &Path, text: &str) -> std::io::Result<()> {
    whole_file::make_folder_of(path)?;
    whole_file::write(path, |file| std::io::Write::write_all(file, text.as_bytes()))
}
