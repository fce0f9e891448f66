//! Memory of the GPU, and page-locked memory of the host that the GPU can reach.

use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cudarc::driver::result::{free_host, malloc_host};
use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{CudaContext, CudaSlice, DevicePtr, DeviceRepr, ValidAsZeroBits};

use super::address::DeviceAddress;
use super::error::GpuError;
use super::gpu::{Gpu, Grid};
use super::kernels::CopyWords;

/// An array in the GPU's memory.
pub struct Array<T> {
    memory: CudaSlice<T>,
    at: DeviceAddress<T>,
    /// Bytes allocated for all arrays of the same `Gpu`, shared with `Gpu::held`.
    held: Arc<AtomicU64>,
}

impl<T> Drop for Array<T> {
    fn drop(&mut self) {
        self.held.fetch_sub(self.memory.num_bytes() as u64, Ordering::Relaxed);
    }
}

impl<T: DeviceRepr + ValidAsZeroBits> Array<T> {
    /// Allocates an array of `len` zeros.
    pub(super) fn zeros(gpu: &Gpu, len: usize) -> Result<Self, GpuError> {
        // An empty array still gets an address.
        let memory = gpu.stream.alloc_zeros(len.max(1))?;
        let at = DeviceAddress::new(memory.device_ptr(&gpu.stream).0);
        let held = Arc::clone(&gpu.held);
        held.fetch_add(memory.num_bytes() as u64, Ordering::Relaxed);
        Ok(Self { memory, at, held })
    }

    /// Allocates an array with a copy of the host's numbers, padded with zeros to `len`.
    pub(super) fn padded(gpu: &Gpu, values: &[T], len: usize) -> Result<Self, GpuError> {
        let mut array = Self::zeros(gpu, len.max(values.len()))?;
        array.write(gpu, values)?;
        Ok(array)
    }

    /// Overwrites the beginning of the array with numbers of the host, and waits until that is done.
    pub(super) fn write(&mut self, gpu: &Gpu, values: &[T]) -> Result<(), GpuError> {
        self.write_from(gpu, 0, values)
    }

    /// Overwrites the array from index `first` on with numbers of the host, and waits until that is done.
    pub(super) fn write_from(&mut self, gpu: &Gpu, first: usize, values: &[T]) -> Result<(), GpuError> {
        if !values.is_empty() {
            let mut place = self.memory.slice_mut(first..first + values.len());
            gpu.stream.memcpy_htod(values, &mut place)?;
            gpu.wait()?;
        }
        Ok(())
    }

    /// Launches a copy of another array of the same length into this one.
    pub(super) fn copy_from(&mut self, gpu: &Gpu, other: &Self) -> Result<(), GpuError> {
        Ok(gpu.stream.memcpy_dtod(&other.memory, &mut self.memory)?)
    }

    /// Launches the setting of all of the array's numbers to zero.
    pub(super) fn clear(&mut self, gpu: &Gpu) -> Result<(), GpuError> {
        Ok(gpu.stream.memset_zeros(&mut self.memory)?)
    }

    /// Copies the numbers at the indices in `window` from the device to the host.
    pub(super) fn read(&self, gpu: &Gpu, window: Range<usize>) -> Result<Vec<T>, GpuError> {
        if window.is_empty() {
            return Ok(Vec::new());
        }
        let values = gpu.stream.clone_dtoh(&self.memory.slice(window))?;
        gpu.wait()?;
        Ok(values)
    }
}

impl<T> Array<T> {
    pub(super) fn at(&self) -> DeviceAddress<T> {
        self.at
    }

    /// Returns the address of the array's number at `index`.
    pub(super) fn from(&self, index: usize) -> DeviceAddress<T> {
        assert!(index <= self.memory.len());
        self.at.plus(index)
    }

    pub(super) fn len(&self) -> usize {
        self.memory.len()
    }
}

/// Page-locked host memory that kernels can read and write.
pub(super) struct Pinned<T> {
    first: *mut T,
    len: usize,
    /// Context that the memory was allocated in; keeps it alive.
    _context: Arc<CudaContext>,
}

impl<T: DeviceRepr + ValidAsZeroBits> Pinned<T> {
    /// Allocates `len` zeros in page-locked host memory.
    pub(super) fn zeros(gpu: &Gpu, len: usize) -> Result<Self, GpuError> {
        let context = Arc::clone(gpu.stream.context());
        context.bind_to_thread()?;
        // SAFETY: the memory is owned from here on, is page-aligned, and zeros are valid values of `T`.
        let first = unsafe {
            let first = malloc_host(len.max(1) * size_of::<T>(), 0)?.cast::<T>();
            first.write_bytes(0, len);
            first
        };
        Ok(Self {
            first,
            len,
            _context: context,
        })
    }

    /// Returns the address at which kernels reach this host memory: host and device share one address space.
    pub(super) fn at(&self) -> DeviceAddress<T> {
        DeviceAddress::new(self.first as CUdeviceptr)
    }
}

impl<T> Deref for Pinned<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `first` points to `len` initialised numbers that this value owns. Kernels write them only between
        // their launch and the wait that follows, while the host does not read them.
        unsafe { std::slice::from_raw_parts(self.first, self.len) }
    }
}

impl<T> DerefMut for Pinned<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`.
        unsafe { std::slice::from_raw_parts_mut(self.first, self.len) }
    }
}

impl<T> Drop for Pinned<T> {
    fn drop(&mut self) {
        // SAFETY: `malloc_host` allocated the memory, and no copy is in progress: the owner has waited, or the driver
        // waits here.
        let _ = unsafe { free_host(self.first.cast()) };
    }
}

/// Launches a copy of words; either address may be in host memory.
///
/// # Safety
/// `count` words must be valid at both addresses until the copy has run, and the source must not change until then.
pub(super) unsafe fn copy_words(
    gpu: &Gpu,
    from: DeviceAddress<u32>,
    to: DeviceAddress<u32>,
    count: usize,
) -> Result<(), GpuError> {
    let arguments = CopyWords {
        from,
        to,
        count: count as u32,
    };
    // SAFETY: the caller promises that `count` words are valid at both addresses.
    unsafe { gpu.launch(&gpu.kernels.copy_words, Grid::each(count), arguments) }
}
