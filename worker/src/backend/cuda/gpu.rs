//! A GPU: its context, the one stream that everything runs on, its matrix library and its kernels.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use cudarc::driver::result::{device, launch_kernel};
use cudarc::driver::sys::CUresult;
use cudarc::driver::{CudaContext, CudaStream, DriverError};

use super::abi::{Arguments, Kernel};
use super::error::GpuError;
use super::kernels::Kernels;
use super::products::Products;
use crate::backend::device::Precision;

/// A GPU that is ready to train. Belongs to one thread.
pub struct Gpu {
    pub(super) stream: Arc<CudaStream>,
    pub(super) kernels: Kernels,
    pub(super) products: Products,
    /// Bytes of its memory that arrays hold.
    pub(super) held: Arc<AtomicU64>,
    /// How long the host has waited for it since it asked last.
    busy: Cell<Duration>,
}

impl Gpu {
    /// Opens a GPU by its number.
    pub fn open(ordinal: usize, precision: Precision) -> Result<Self, GpuError> {
        Self::name_of(ordinal)?;
        let context = CudaContext::new(ordinal)?;
        // SAFETY: everything here is used on one stream, and freed on it; there is nothing between streams to track.
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
        // SAFETY: each only looks for a library by its name, and runs what that does when it is loaded.
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

    /// What a GPU is called, if there is one of that number and everything that training on it takes. It is not opened.
    pub fn name_of(ordinal: usize) -> Result<String, GpuError> {
        Self::check_libraries()?;
        let found = match CudaContext::device_count() {
            Ok(found) => found.try_into().unwrap_or(0),
            // The driver is there, but no device that it knows.
            Err(DriverError(CUresult::CUDA_ERROR_NO_DEVICE)) => 0,
            Err(error) => return Err(error.into()),
        };
        if ordinal >= found {
            return Err(GpuError::NoDevice { wanted: ordinal, found });
        }
        Ok(device::get_name(device::get(ordinal as i32)?)?)
    }

    /// Bytes of the memory of a GPU that is there. It is not opened.
    pub fn memory_of(ordinal: usize) -> Result<u64, GpuError> {
        let found = device::get(ordinal as i32)?;
        // SAFETY: the device is one that the driver has told of.
        Ok(unsafe { device::total_mem(found)? } as u64)
    }

    /// Bytes of its memory that are free.
    pub(super) fn free_memory(&self) -> Result<usize, GpuError> {
        Ok(self.stream.context().mem_get_info()?.0)
    }

    /// Waits until all that was asked for is done.
    pub(super) fn wait(&self) -> Result<(), GpuError> {
        Ok(self.stream.synchronize()?)
    }

    /// Notes that the host has waited for it so long.
    pub(super) fn worked(&self, time: Duration) {
        self.busy.set(self.busy.get() + time);
    }

    /// How long the host has waited for it since it asked last.
    pub(super) fn take_busy(&self) -> Duration {
        self.busy.take()
    }

    /// Launches a kernel after all that was asked for before.
    ///
    /// # Safety
    /// Every address among the arguments must be that of an array of this GPU which reaches as far as the kernel reads or
    /// writes with these sizes, and which lives until the stream has come to it.
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
        // SAFETY: the arguments are the kernel's, by its type, and are copied before the call returns; what they say is
        // the caller's duty, as stated above.
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

/// How many threads run a kernel.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grid {
    pub(super) blocks: (usize, usize),
    /// Of each block.
    pub(super) threads: (usize, usize),
}

impl Grid {
    /// One thread for each of so many numbers.
    pub(super) fn each(total: usize) -> Self {
        const THREADS: usize = 256;
        Self {
            blocks: (total.div_ceil(THREADS), 1),
            threads: (THREADS, 1),
        }
    }

    /// So many blocks in a row.
    pub(super) fn row(blocks: usize, threads: usize) -> Self {
        Self {
            blocks: (blocks, 1),
            threads: (threads, 1),
        }
    }
}
