//! Transfers of activations and gradients between host and GPU, for pipeline stages whose neighbours run on other
//! machines.

use std::rc::Rc;
use std::time::Instant;

use super::address::DeviceAddress;
use super::error::GpuError;
use super::gpu::Gpu;
use super::memory::{Pinned, copy_words};

/// A page-locked host buffer through which numbers are copied to the device and back.
pub(super) struct Border {
    pinned: Pinned<u32>,
    /// Number of words at the start of the buffer that may still be on their way to the device.
    sent: usize,
    /// Start of the oldest transfer that may still be running; used to measure the time that the host waits for the
    /// GPU.
    since: Option<Instant>,
    gpu: Rc<Gpu>,
}

impl Border {
    pub(super) fn new(gpu: &Rc<Gpu>) -> Result<Self, GpuError> {
        Ok(Self {
            pinned: Pinned::zeros(gpu, 0)?,
            sent: 0,
            since: None,
            gpu: Rc::clone(gpu),
        })
    }

    /// Makes room in the page-locked host buffer for `count` more words.
    fn reserve(&mut self, count: usize) -> Result<(), GpuError> {
        if self.pinned.len() < self.sent + count {
            // The device may still read the old buffer.
            self.gpu.wait()?;
            self.pinned = Pinned::zeros(&self.gpu, self.sent + count)?;
            self.sent = 0;
        }
        Ok(())
    }

    /// Starts a copy of words to an address on the device.
    ///
    /// # Safety
    /// `to` must have room for all words.
    pub(super) unsafe fn send(
        &mut self,
        words: impl ExactSizeIterator<Item = u32>,
        to: DeviceAddress<u32>,
    ) -> Result<(), GpuError> {
        let count = words.len();
        self.reserve(count)?;
        self.since.get_or_insert_with(Instant::now);
        let room = &mut self.pinned[self.sent..][..count];
        room.iter_mut().zip(words).for_each(|(place, word)| *place = word);
        let from = self.pinned.at().plus(self.sent);
        self.sent += count;
        // SAFETY: the words stay in the buffer until the stream was waited for; the caller promises room at `to`.
        unsafe { copy_words(&self.gpu, from, to, count) }
    }

    /// Starts a copy of numbers to an address on the device, like [`Border::send`].
    ///
    /// # Safety
    /// `to` must have room for all numbers.
    pub(super) unsafe fn send_numbers(&mut self, numbers: &[f32], to: DeviceAddress<f32>) -> Result<(), GpuError> {
        // SAFETY: the caller promises room at `to`.
        unsafe {
            self.send(
                numbers.iter().map(|number| number.to_bits()),
                DeviceAddress::new(to.address()),
            )
        }
    }

    /// Waits for all launched work and returns `count` numbers from an address on the device.
    ///
    /// # Safety
    /// At least `count` numbers must lie at `from` when all launched work is done.
    pub(super) unsafe fn fetch(&mut self, from: DeviceAddress<f32>, count: usize) -> Result<Vec<f32>, GpuError> {
        // Words that are still on their way to the device may be overwritten: the stream reads them before it writes
        // here.
        if self.pinned.len() < count {
            self.reserve(count)?;
        }
        // SAFETY: the buffer has room for `count` numbers and is read only after the wait; the caller promises that
        // they exist.
        unsafe { copy_words(&self.gpu, DeviceAddress::new(from.address()), self.pinned.at(), count)? };
        self.gpu.wait()?;
        self.sent = 0;
        if let Some(since) = self.since.take() {
            self.gpu.worked(since.elapsed());
        }
        Ok(self.pinned[..count].iter().copied().map(f32::from_bits).collect())
    }
}
