//! Where numbers lie on the device.

use std::marker::PhantomData;

use cudarc::driver::sys::CUdeviceptr;

/// The address of numbers on the device.
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

    /// The address of a number further on.
    pub(super) fn plus(self, index: usize) -> Self {
        Self::new(self.address + (index * size_of::<T>()) as u64)
    }
}
