//! Typed addresses in the GPU's memory.

use std::marker::PhantomData;

use cudarc::driver::sys::CUdeviceptr;

/// Address of an array of `T` in the GPU's memory, or in host memory that the GPU can reach.
#[repr(transparent)]
pub struct DeviceAddress<T> {
    address: CUdeviceptr,
    of: PhantomData<*const T>,
}

impl<T> Clone for DeviceAddress<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for DeviceAddress<T> {}

impl<T> PartialEq for DeviceAddress<T> {
    fn eq(&self, other: &Self) -> bool {
        self.address == other.address
    }
}

impl<T> DeviceAddress<T> {
    pub(super) fn new(address: CUdeviceptr) -> Self {
        Self {
            address,
            of: PhantomData,
        }
    }

    pub(super) fn address(self) -> CUdeviceptr {
        self.address
    }

    /// Returns the address of the number `index` places further on.
    pub(super) fn plus(self, index: usize) -> Self {
        Self::new(self.address + (index * size_of::<T>()) as u64)
    }
}
