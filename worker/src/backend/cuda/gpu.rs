//! A GPU with its CUDA context, the stream that nearly everything runs on, the matrix library and the kernels.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use cudarc::driver::result::{device, launch_kernel};
use cudarc::driver::sys::CUresult;
use cudarc::driver::{CudaContext, CudaEvent, CudaGraph, CudaStream, DriverError};

use super::abi::{Arguments, Kernel};
use super::error::GpuError;
use super::kernels::Kernels;
use super::products::Products;
use super::recorded::record;
use crate::backend::device::Precision;

/// An open GPU that is ready to train. It belongs to one thread.
pub struct Gpu {
    pub(super) stream: Arc<CudaStream>,
    /// Second stream, for work beside that of the first.
    pub(super) side: Arc<CudaStream>,
    /// Event on the first stream behind which work on the second begins.
    forked: CudaEvent,
    /// Event on the second stream behind which a recorded graph ends.
    joined: CudaEvent,
    /// True while a graph is recorded.
    records: Cell<bool>,
    /// True while work is launched on the second stream.
    is_beside: Cell<bool>,
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
        // SAFETY: all memory is freed on one stream, and the host or a graph waits for what the other one uses, so no
        // events between streams need to be tracked.
        unsafe { context.disable_event_tracking() };
        let stream = context.new_stream()?;
        let kernels = Kernels::load(&context)?;
        let side = context.new_stream()?;
        let products = Products::new([&stream, &side], precision)?;
        Ok(Self {
            stream,
            side,
            forked: context.new_event(None)?,
            joined: context.new_event(None)?,
            records: Cell::default(),
            is_beside: Cell::default(),
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

    /// Records the work that `launch` launches as a graph, without running it; see [`record`].
    pub(super) fn record(&self, launch: impl FnOnce() -> Result<(), GpuError>) -> Result<CudaGraph, GpuError> {
        record(&self.stream, || {
            // The second stream belongs to the graph from its beginning to its end, so that it can have branches.
            self.forked.record(&self.stream)?;
            self.side.wait(&self.forked)?;
            self.records.set(true);
            let launched = launch();
            self.records.set(false);
            self.joined.record(&self.side)?;
            self.stream.wait(&self.joined)?;
            launched
        })
    }

    /// Launches work beside that which is launched next, if a graph is recorded; else before it. It begins behind
    /// everything launched so far, and what it writes must not be used before the graph's end.
    pub(super) fn branch(&self, launch: impl FnOnce() -> Result<(), GpuError>) -> Result<(), GpuError> {
        if self.records.get() {
            self.beside(launch)
        } else {
            launch()
        }
    }

    /// Launches work on the second stream: behind everything launched so far, and beside what is launched next. What it
    /// writes must not be used before the host has waited for it.
    pub(super) fn beside(&self, launch: impl FnOnce() -> Result<(), GpuError>) -> Result<(), GpuError> {
        self.forked.record(&self.stream)?;
        self.side.wait(&self.forked)?;
        self.is_beside.set(true);
        self.products.go_beside(true);
        let launched = launch();
        self.is_beside.set(false);
        self.products.go_beside(false);
        launched
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
        let stream = if self.is_beside.get() { &self.side } else { &self.stream };
        let side = |(x, y): (usize, usize)| (x as u32, y as u32, 1);
        // SAFETY: the argument types are those of the kernel, by its type, and are copied before the call returns; the
        // caller promises that the addresses are valid.
        arguments.with_pointers(|pointers| unsafe {
            launch_kernel(
                kernel.function.cu_function(),
                side(blocks),
                side(threads),
                0,
                stream.cu_stream(),
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
