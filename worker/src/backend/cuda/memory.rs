//! Memory: arrays on the device, and memory of the host that the device can reach by itself.

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

/// An array on the device.
pub struct Array<T> {
    memory: CudaSlice<T>,
    at: DeviceAddress<T>,
    /// Counts the bytes of all arrays.
    held: Arc<AtomicU64>,
}

impl<T> Drop for Array<T> {
    fn drop(&mut self) {
        self.held.fetch_sub(self.memory.num_bytes() as u64, Ordering::Relaxed);
    }
}

impl<T: DeviceRepr + ValidAsZeroBits> Array<T> {
    /// So many zeros.
    pub(super) fn zeros(gpu: &Gpu, len: usize) -> Result<Self, GpuError> {
        // An array of nothing still has a place.
        let memory = gpu.stream.alloc_zeros(len.max(1))?;
        let at = DeviceAddress::new(memory.device_ptr(&gpu.stream).0);
        let held = Arc::clone(&gpu.held);
        held.fetch_add(memory.num_bytes() as u64, Ordering::Relaxed);
        Ok(Self { memory, at, held })
    }

    /// A copy of the host's numbers, and zeros up to a length.
    pub(super) fn padded(gpu: &Gpu, values: &[T], len: usize) -> Result<Self, GpuError> {
        let mut array = Self::zeros(gpu, len.max(values.len()))?;
        array.write(gpu, values)?;
        Ok(array)
    }

    /// Replaces the first numbers by the host's. Waits until that is done.
    pub(super) fn write(&mut self, gpu: &Gpu, values: &[T]) -> Result<(), GpuError> {
        self.write_from(gpu, 0, values)
    }

    /// Replaces the numbers from an index on by the host's. Waits until that is done.
    pub(super) fn write_from(&mut self, gpu: &Gpu, first: usize, values: &[T]) -> Result<(), GpuError> {
        if !values.is_empty() {
            let mut place = self.memory.slice_mut(first..first + values.len());
            gpu.stream.memcpy_htod(values, &mut place)?;
            gpu.wait()?;
        }
        Ok(())
    }

    /// Replaces all numbers by those of an array of the same length, after what was asked for before.
    pub(super) fn copy_from(&mut self, gpu: &Gpu, other: &Self) -> Result<(), GpuError> {
        Ok(gpu.stream.memcpy_dtod(&other.memory, &mut self.memory)?)
    }

    /// Zeros again, after what was asked for before.
    pub(super) fn clear(&mut self, gpu: &Gpu) -> Result<(), GpuError> {
        Ok(gpu.stream.memset_zeros(&mut self.memory)?)
    }

    /// The numbers of a window, for the host.
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
    /// Its address.
    pub(super) fn at(&self) -> DeviceAddress<T> {
        self.at
    }

    /// The address of one of its numbers.
    pub(super) fn from(&self, index: usize) -> DeviceAddress<T> {
        assert!(index <= self.memory.len());
        self.at.plus(index)
    }

    pub(super) fn len(&self) -> usize {
        self.memory.len()
    }
}

/// Memory of the host that kernels can read and write.
pub(super) struct Pinned<T> {
    first: *mut T,
    len: usize,
    /// The memory belongs to it.
    _context: Arc<CudaContext>,
}

impl<T: DeviceRepr + ValidAsZeroBits> Pinned<T> {
    /// So many zeros.
    pub(super) fn zeros(gpu: &Gpu, len: usize) -> Result<Self, GpuError> {
        let context = Arc::clone(gpu.stream.context());
        context.bind_to_thread()?;
        // SAFETY: the memory is owned from here on, is aligned to a page, and zeros are valid.
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

    /// Its address for kernels: host and device count in one space of addresses.
    pub(super) fn at(&self) -> DeviceAddress<T> {
        DeviceAddress::new(self.first as CUdeviceptr)
    }
}

impl<T> Deref for Pinned<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: it owns so many initialised numbers. Kernels write them only between their launch and the wait after it,
        // while nobody looks.
        unsafe { std::slice::from_raw_parts(self.first, self.len) }
    }
}

impl<T> DerefMut for Pinned<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.first, self.len) }
    }
}

impl<T> Drop for Pinned<T> {
    fn drop(&mut self) {
        // SAFETY: it was allocated so, and nothing is under way: whoever owns it has waited, or waits in the driver.
        let _ = unsafe { free_host(self.first.cast()) };
    }
}

/// Launches a copy of words; either place may be memory of the host.
///
/// # Safety
/// Both places must have so many words until the stream has come to it, and those that are read must stay as they are.
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
    // SAFETY: as the caller has promised.
    unsafe { gpu.launch(&gpu.kernels.copy_words, Grid::each(count), arguments) }
}
