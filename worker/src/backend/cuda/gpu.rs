//! A GPU: its context, the one stream that everything runs on, its matrix library and its kernels.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use cudarc::driver::result::{device, launch_kernel};
use cudarc::driver::sys::CUresult;
use cudarc::driver::{CudaContext, CudaFunction, CudaStream, DriverError};

use super::compiler::{self, Kernels};
use super::error::GpuError;
use super::products::Products;
use crate::device::Precision;

/// A GPU that is ready to train. Belongs to one thread.
pub struct Gpu {
    pub(super) stream: Arc<CudaStream>,
    pub(super) kernels: Kernels,
    pub(super) products: Products,
    /// Bytes of its memory that arrays hold.
    pub(super) held: Arc<AtomicU64>,
}

impl Gpu {
    /// Opens a GPU by its number.
    pub fn open(ordinal: usize, precision: Precision) -> Result<Self, GpuError> {
        Self::name_of(ordinal)?;
        let context = CudaContext::new(ordinal)?;
        // SAFETY: everything here is used on one stream, and freed on it; there is nothing between streams to track.
        unsafe { context.disable_event_tracking() };
        let stream = context.new_stream()?;
        let kernels = compiler::load(&context)?;
        let products = Products::new(&stream, precision)?;
        Ok(Self {
            stream,
            kernels,
            products,
            held: Arc::default(),
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

    /// Bytes of its memory that are free.
    pub(super) fn free_memory(&self) -> Result<usize, GpuError> {
        Ok(self.stream.context().mem_get_info()?.0)
    }

    /// Waits until all that was asked for is done.
    pub(super) fn wait(&self) -> Result<(), GpuError> {
        Ok(self.stream.synchronize()?)
    }

    /// Begins to launch a kernel.
    pub(super) fn kernel<'a>(&'a self, kernel: &'a CudaFunction) -> Launch<'a> {
        Launch {
            gpu: self,
            kernel,
            storage: [0; STORAGE],
            used: 0,
            starts: [0; ARGUMENTS_MAX],
            count: 0,
        }
    }
}

/// Words of arguments that a kernel may have.
const STORAGE: usize = 32;
const ARGUMENTS_MAX: usize = 16;

/// A kernel that is about to be launched. Arguments are copied in order; pointers are device addresses.
pub(super) struct Launch<'a> {
    gpu: &'a Gpu,
    kernel: &'a CudaFunction,
    storage: [u64; STORAGE],
    used: usize,
    starts: [usize; ARGUMENTS_MAX],
    count: usize,
}

impl Launch<'_> {
    /// Adds an argument, which must be what the kernel declares in its place.
    pub(super) fn with<T: Copy>(mut self, value: T) -> Self {
        let words = size_of::<T>().div_ceil(size_of::<u64>());
        assert!(self.used + words <= STORAGE && align_of::<T>() <= align_of::<u64>());
        // SAFETY: there is room for it, and the place is aligned for anything up to a u64.
        unsafe { self.storage.as_mut_ptr().add(self.used).cast::<T>().write(value) };
        self.starts[self.count] = self.used;
        self.used += words;
        self.count += 1;
        self
    }

    /// Launches it with one thread for each of so many numbers.
    ///
    /// # Safety
    /// As for [`Launch::blocks`].
    pub(super) unsafe fn each(self, total: usize) -> Result<(), GpuError> {
        const THREADS: usize = 256;
        // SAFETY: the caller's word.
        unsafe { self.blocks((total.div_ceil(THREADS), 1), (THREADS, 1)) }
    }

    /// Launches it with so many blocks of so many threads.
    ///
    /// # Safety
    /// The arguments must be the kernel's, and its pointers reach as far as the kernel does.
    pub(super) unsafe fn blocks(mut self, blocks: (usize, usize), threads: (usize, usize)) -> Result<(), GpuError> {
        if blocks.0 == 0 || blocks.1 == 0 {
            return Ok(());
        }
        let base = self.storage.as_mut_ptr();
        let mut arguments = [std::ptr::null_mut::<c_void>(); ARGUMENTS_MAX];
        for (argument, &start) in arguments.iter_mut().zip(&self.starts[..self.count]) {
            *argument = base.wrapping_add(start).cast();
        }
        // SAFETY: the caller's word; arguments are copied before the call returns.
        unsafe {
            launch_kernel(
                self.kernel.cu_function(),
                (blocks.0 as u32, blocks.1 as u32, 1),
                (threads.0 as u32, threads.1 as u32, 1),
                0,
                self.gpu.stream.cu_stream(),
                &mut arguments[..self.count],
            )?;
        }
        Ok(())
    }
}
