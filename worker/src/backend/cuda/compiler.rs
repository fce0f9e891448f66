//! Compiles the GPU kernels when a GPU is opened, and caches the result on disk.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cudarc::driver::sys::CUresult;
use cudarc::driver::{CudaContext, CudaModule};
use cudarc::nvrtc::{CompileError, CompileOptions, Ptx, compile_ptx_with_opts};
use sha2::{Digest, Sha256};

use super::error::GpuError;

/// Name of the folder for compiled kernels in the user's cache directory.
const FOLDER: &str = "tau";

/// Returns the kernels of a source: from the cache if the cached ones still load, else newly compiled.
pub(super) fn module(context: &Arc<CudaContext>, source: &str) -> Result<Arc<CudaModule>, GpuError> {
    let (major, minor) = context.compute_capability()?;
    let architecture = format!("--gpu-architecture=compute_{major}{minor}");
    let cached = cache().map(|folder| folder.join(name_of(source, &architecture)));
    let text = cached.as_deref().and_then(|path| std::fs::read_to_string(path).ok());
    // A damaged file, or one from another version of CUDA, does not load and is replaced.
    if let Some(text) = text
        && let Ok(module) = context.load_module(Ptx::from_src(text))
    {
        return Ok(module);
    }
    let ptx = compile(source, &architecture)?;
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
        tracing::debug!(
            event = "kernel_cache_write_failed", %error, path = %path.display(),
            "the compiled GPU kernels could not be cached"
        );
    }
    Ok(module)
}

/// Compiles CUDA source text to PTX for one GPU architecture.
pub(super) fn compile(source: &str, architecture: &str) -> Result<Ptx, GpuError> {
    let options = CompileOptions {
        // No fused multiply-add or fast division: the emitted changes must be the same to the bit as on a CPU.
        fmad: Some(false),
        ftz: Some(false),
        prec_div: Some(true),
        prec_sqrt: Some(true),
        options: vec![architecture.into()],
        ..CompileOptions::default()
    };
    compile_ptx_with_opts(source, options).map_err(|error| GpuError::Kernels(log_of(error)))
}

/// Returns the compiler's messages about a failed compilation.
fn log_of(error: CompileError) -> String {
    match error {
        CompileError::CompileError { log, .. } => log.to_string_lossy().into_owned(),
        other => format!("{other:?}"),
    }
}

/// File name of the cached kernels: a hash of everything that affects the compiled code.
fn name_of(source: &str, architecture: &str) -> String {
    let mut hash = Sha256::new();
    hash.update(env!("CARGO_PKG_VERSION"));
    hash.update(architecture);
    hash.update(source);
    let hash = hash.finalize();
    let short = hash.iter().take(8).fold(0, |short, &byte| short << 8 | u64::from(byte));
    format!("kernels-{short:016x}.ptx")
}

/// Folder in which compiled kernels are cached, by the XDG convention.
fn cache() -> Option<PathBuf> {
    let given = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache"));
    given
        .filter(|folder| folder.is_absolute())
        .or_else(home)
        .map(|cache| cache.join(FOLDER))
}

/// Stores compiled kernels: writes another file and renames it, because another worker may read the path at any moment.
fn keep(path: &Path, text: &str) -> std::io::Result<()> {
    whole_file::make_folder_of(path)?;
    whole_file::write(path, |file| std::io::Write::write_all(file, text.as_bytes()))
}
