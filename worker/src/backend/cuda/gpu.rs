//! A GPU with its CUDA context, the one stream that everything runs on, the matrix library and the kernels.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use cudarc::driver::result::{device, launch_kernel};
use cudarc::driver::sys::{CUgraphInstantiate_flags, CUresult, CUstreamCaptureMode};
use cudarc::driver::{CudaContext, CudaGraph, CudaStream, DriverError};

use super::abi::{Arguments, Kernel};
use super::error::GpuError;
use super::kernels::Kernels;
use super::products::Products;
use crate::backend::device::Precision;

/// An open GPU that is ready to train. It belongs to one thread.
pub struct Gpu {
    pub(super) stream: Arc<CudaStream>,
    pub(super) kernels: Kernels,
    pub(super) products: Products,
    /// Bytes of GPU memory that are allocated for arrays of this `Gpu`.
    pub(super) held: Arc<AtomicU64>,
    /// Time that the host has waited for the GPU since [`Gpu::take_busy`] was last called.
    busy: Cell<Duration>,
}

impl Gpu {
    /// Opens the GPU with this number.
    pub fn open(ordinal: usize, precision: Precision) -> Result<Self, GpuError> {
        Self::name_of(ordinal)?;
        let context = CudaContext::new(ordinal)?;
        // SAFETY: all memory is used and freed on one stream, so no events between streams need to be tracked.
        unsafe { context.disable_event_tracking() };
        let stream = context.new_stream()?;
        let kernels = Kernels::load(&context)?;
        let products = Products::new(&stream, precision)?;
        Ok(Self {
            stream,
            kernels,
            products,
            held: Arc::default(),
            busy: Cell::default(),
        })
    }

    fn check_libraries() -> Result<(), GpuError> {
        // SAFETY: each call only loads a library by its name, which runs the library's initialisers.
        let (driver, compiler, products) = unsafe {
            (
                cudarc::driver::sys::is_culib_present(),
                cudarc::nvrtc::sys::is_culib_present(),
                cudarc::cublaslt::sys::is_culib_present(),
            )
        };
        match (driver, compiler, products) {
            (false, _, _) => Err(GpuError::NoDriver("libcuda")),
            (_, false, _) => Err(GpuError::NoLibrary("libnvrtc")),
            (_, _, false) => Err(GpuError::NoLibrary("libcublasLt")),
            _ => Ok(()),
        }
    }

    /// Returns the name of a GPU without opening it; fails if the GPU, the driver or a CUDA library is missing.
    pub fn name_of(ordinal: usize) -> Result<String, GpuError> {
        Self::check_libraries()?;
        let found = match CudaContext::device_count() {
            Ok(found) => found.try_into().unwrap_or(0),
            // A driver without any device that it knows reports an error instead of 0.
            Err(DriverError(CUresult::CUDA_ERROR_NO_DEVICE)) => 0,
            Err(error) => return Err(error.into()),
        };
        if ordinal >= found {
            return Err(GpuError::NoDevice { wanted: ordinal, found });
        }
        Ok(device::get_name(device::get(ordinal as i32)?)?)
    }

    /// Returns the bytes of a GPU's memory without opening it.
    pub fn memory_of(ordinal: usize) -> Result<u64, GpuError> {
        let found = device::get(ordinal as i32)?;
        // SAFETY: `device::get` returned this device.
        Ok(unsafe { device::total_mem(found)? } as u64)
    }

    /// Free bytes of the GPU's memory.
    pub(super) fn free_memory(&self) -> Result<usize, GpuError> {
        Ok(self.stream.context().mem_get_info()?.0)
    }

    /// Waits until all launched work is done.
    pub(super) fn wait(&self) -> Result<(), GpuError> {
        Ok(self.stream.synchronize()?)
    }

    /// Records the work that `launch` launches as a graph, without running it. That work must neither wait for the
    /// device nor allocate memory.
    pub(super) fn record(&self, launch: impl FnOnce() -> Result<(), GpuError>) -> Result<CudaGraph, GpuError> {
        // Other threads of this process, which evaluate for example, may do anything meanwhile.
        self.stream
            .begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
        let launched = launch();
        // Ended in any case: a stream that records can do nothing else.
        let graph = self.stream.end_capture(CUgraphInstantiate_flags(0));
        launched?;
        let graph = graph?.ok_or(DriverError(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED))?;
        graph.upload()?;
        Ok(graph)
    }

    /// Records that the host has waited for the GPU for this time.
    pub(super) fn worked(&self, time: Duration) {
        self.busy.set(self.busy.get() + time);
    }

    /// Returns the time that the host has waited for the GPU since the last call, and resets it.
    pub(super) fn take_busy(&self) -> Duration {
        self.busy.take()
    }

    /// Launches a kernel on the stream, after all work launched before.
    ///
    /// # Safety
    /// Every address among the arguments must belong to an array of this GPU that covers all that the kernel reads or
    /// writes with these sizes, and that lives until the kernel has run.
    pub(super) unsafe fn launch<A: Arguments>(
        &self,
        kernel: &Kernel<A>,
        grid: Grid,
        arguments: A,
    ) -> Result<(), GpuError> {
        let Grid { blocks, threads } = grid;
        if blocks.0 == 0 || blocks.1 == 0 {
            return Ok(());
        }
        let side = |(x, y): (usize, usize)| (x as u32, y as u32, 1);
        // SAFETY: the argument types are those of the kernel, by its type, and are copied before the call returns; the
        // caller promises that the addresses are valid.
        arguments.with_pointers(|pointers| unsafe {
            launch_kernel(
                kernel.function.cu_function(),
                side(blocks),
                side(threads),
                0,
                self.stream.cu_stream(),
                pointers,
            )
        })?;
        Ok(())
    }
}

/// Numbers of thread blocks, and of threads in each, that run a kernel.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grid {
    pub(super) blocks: (usize, usize),
    /// Number of threads in each thread block, in two dimensions.
    pub(super) threads: (usize, usize),
}

impl Grid {
    /// Returns a grid with one thread for each of `total` numbers.
    pub(super) fn each(total: usize) -> Self {
        const THREADS: usize = 256;
        Self {
            blocks: (total.div_ceil(THREADS), 1),
            threads: (THREADS, 1),
        }
    }

    /// Returns a one-dimensional grid of thread blocks for launching a kernel.
    pub(super) fn row(blocks: usize, threads: usize) -> Self {
        Self {
            blocks: (blocks, 1),
            threads: (threads, 1),
        }
    }
}
