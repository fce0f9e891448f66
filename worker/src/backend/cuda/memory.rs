//! Memory: arrays on the device, and memory of the host that the device can reach by itself.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cudarc::driver::result::{free_host, malloc_host, memcpy_dtoh_async, memcpy_htod_async};
use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{CudaContext, CudaSlice, DevicePtr, DeviceRepr, ValidAsZeroBits};

use super::error::GpuError;
use super::gpu::Gpu;

/// The address of numbers on the device.
#[repr(transparent)]
pub(super) struct At<T> {
    address: CUdeviceptr,
    of: PhantomData<*const T>,
}

impl<T> Clone for At<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for At<T> {}

impl<T> At<T> {
    pub(super) fn new(address: CUdeviceptr) -> Self {
        Self {
            address,
            of: PhantomData,
        }
    }

    pub(super) fn address(self) -> CUdeviceptr {
        self.address
    }

    /// The address of a number further on.
    pub(super) fn plus(self, index: usize) -> Self {
        Self::new(self.address + (index * size_of::<T>()) as u64)
    }
}

/// An array on the device.
pub(super) struct Array<T> {
    memory: CudaSlice<T>,
    at: At<T>,
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
        let at = At::new(memory.device_ptr(&gpu.stream).0);
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
        if !values.is_empty() {
            gpu.stream
                .memcpy_htod(values, &mut self.memory.slice_mut(..values.len()))?;
            gpu.wait()?;
        }
        Ok(())
    }

    /// Zeros again, after what was asked for before.
    pub(super) fn clear(&mut self, gpu: &Gpu) -> Result<(), GpuError> {
        Ok(gpu.stream.memset_zeros(&mut self.memory)?)
    }

    /// The first numbers, for the host.
    pub(super) fn read(&self, gpu: &Gpu, len: usize) -> Result<Vec<T>, GpuError> {
        if len == 0 {
            return Ok(Vec::new());
        }
        let values = gpu.stream.clone_dtoh(&self.memory.slice(..len))?;
        gpu.wait()?;
        Ok(values)
    }
}

impl<T> Array<T> {
    /// Its address.
    pub(super) fn at(&self) -> At<T> {
        self.at
    }

    /// The address of one of its numbers.
    pub(super) fn from(&self, index: usize) -> At<T> {
        assert!(index <= self.memory.len());
        self.at.plus(index)
    }

    pub(super) fn len(&self) -> usize {
        self.memory.len()
    }
}

/// Words in memory of the host that copies go to and come from without anybody waiting.
pub(super) struct Pinned {
    at: *mut u32,
    len: usize,
    /// The memory belongs to it.
    _context: Arc<CudaContext>,
}

impl Pinned {
    pub(super) fn new(gpu: &Gpu, len: usize) -> Result<Self, GpuError> {
        let context = Arc::clone(gpu.stream.context());
        context.bind_to_thread()?;
        // SAFETY: the memory is owned from here on; it is filled before anything reads it.
        let at = unsafe {
            let at = malloc_host(len * size_of::<u32>(), 0)?.cast::<u32>();
            at.write_bytes(0, len);
            at
        };
        Ok(Self {
            at,
            len,
            _context: context,
        })
    }
}

impl Deref for Pinned {
    type Target = [u32];

    fn deref(&self) -> &[u32] {
        // SAFETY: it owns so many initialised numbers. The device writes them only between `fetch` and the wait after it,
        // while the trainer does not look.
        unsafe { std::slice::from_raw_parts(self.at, self.len) }
    }
}

impl DerefMut for Pinned {
    fn deref_mut(&mut self) -> &mut [u32] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.at, self.len) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: it was allocated so, and nothing is under way: whoever owns it has waited, or waits in the driver.
        let _ = unsafe { free_host(self.at.cast()) };
    }
}

/// Begins to copy numbers of pinned memory to the device. They must stay as they are until the stream was waited for.
pub(super) fn send(gpu: &Gpu, values: &[u32], to: At<u32>) -> Result<(), GpuError> {
    if values.is_empty() {
        return Ok(());
    }
    // SAFETY: callers give the address of an array with room for them.
    Ok(unsafe { memcpy_htod_async(to.address(), values, gpu.stream.cu_stream()) }?)
}

/// Begins to copy numbers from the device to pinned memory. They are there when the stream was waited for.
pub(super) fn fetch(gpu: &Gpu, from: At<u32>, values: &mut [u32]) -> Result<(), GpuError> {
    if values.is_empty() {
        return Ok(());
    }
    // SAFETY: callers give the address of an array that has so many.
    Ok(unsafe { memcpy_dtoh_async(values, from.address(), gpu.stream.cu_stream()) }?)
}
