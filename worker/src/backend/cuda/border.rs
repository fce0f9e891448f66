//! Where numbers go over the bus, because what lies before and after is elsewhere.

use std::rc::Rc;
use std::time::Instant;

use super::address::DeviceAddress;
use super::error::GpuError;
use super::gpu::Gpu;
use super::memory::{Pinned, copy_words};

/// The way of numbers to the device and from it.
pub(super) struct Border {
    pinned: Pinned<u32>,
    /// How much of it is on its way to the device.
    sent: usize,
    /// When the first of that was.
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

    /// Makes room for so many words at once.
    fn reserve(&mut self, count: usize) -> Result<(), GpuError> {
        if self.pinned.len() < self.sent + count {
            // What is on its way lies there.
            self.gpu.wait()?;
            self.pinned = Pinned::zeros(&self.gpu, self.sent + count)?;
            self.sent = 0;
        }
        Ok(())
    }

    /// Sends words to a place on the device.
    ///
    /// # Safety
    /// There must be room for them.
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
        // SAFETY: what was written stays until the stream was waited for, and the rest is as the caller has promised.
        unsafe { copy_words(&self.gpu, from, to, count) }
    }

    /// The same for numbers.
    ///
    /// # Safety
    /// There must be room for them.
    pub(super) unsafe fn send_numbers(&mut self, numbers: &[f32], to: DeviceAddress<f32>) -> Result<(), GpuError> {
        // SAFETY: as the caller has promised.
        unsafe {
            self.send(
                numbers.iter().map(|number| number.to_bits()),
                DeviceAddress::new(to.address()),
            )
        }
    }

    /// Waits for so many numbers that will lie somewhere on the device when all that was asked for is done.
    ///
    /// # Safety
    /// So many must lie there then.
    pub(super) unsafe fn fetch(&mut self, from: DeviceAddress<f32>, count: usize) -> Result<Vec<f32>, GpuError> {
        // What is on its way to the device was read when this is written: the stream comes to it later.
        if self.pinned.len() < count {
            self.reserve(count)?;
        }
        // SAFETY: the host has room for them, and looks when it has waited; the rest is as the caller has promised.
        unsafe { copy_words(&self.gpu, DeviceAddress::new(from.address()), self.pinned.at(), count)? };
        self.gpu.wait()?;
        self.sent = 0;
        if let Some(since) = self.since.take() {
            self.gpu.worked(since.elapsed());
        }
        Ok(self.pinned[..count].iter().copied().map(f32::from_bits).collect())
    }
}
