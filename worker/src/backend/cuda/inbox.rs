//! What others changed, on its way to the device: collected while the device is at work, and applied in one go before
//! anything looks at the weights.

use super::abi::{SEGMENTS_MAX, Segment};
use super::address::DeviceAddress;
use super::error::GpuError;
use super::gpu::{Gpu, Grid};
use super::kernels::ApplyWaiting;
use super::memory::{Array, Pinned, copy_words};

/// Words that may be on their way: what comes between two steps.
const WORDS: usize = 1 << 20;
/// Words of a segment's description.
const SEGMENT_WORDS: usize = size_of::<Segment>() / size_of::<u32>();
/// Words of all descriptions, which lie before the entries.
const TABLE_WORDS: usize = SEGMENTS_MAX as usize * SEGMENT_WORDS;

/// Where changes are to be applied: both copies of the weights, and the report of the next step.
#[derive(Clone, Copy)]
pub(super) struct Target {
    pub(super) shared: DeviceAddress<f32>,
    pub(super) own: DeviceAddress<f32>,
    pub(super) report: DeviceAddress<super::abi::Report>,
}

/// What waits to be applied.
///
/// A load is a table of segments and the words of their entries, side by side, so that one copy brings all of it. Loads
/// that were sent lie before the one that is being filled, since the device may still read them.
pub(super) struct Inbox {
    loads: Pinned<u32>,
    /// Where the load begins that is being filled, and where its next word goes.
    from: usize,
    next: usize,
    segments: Vec<Segment>,
    entries: u32,
    /// A load, on the device.
    received: Array<u32>,
    /// Words that were sent.
    pub(super) sent: u64,
}

impl Inbox {
    pub(super) fn new(gpu: &Gpu) -> Result<Self, GpuError> {
        Ok(Self {
            loads: Pinned::zeros(gpu, TABLE_WORDS + WORDS)?,
            from: 0,
            next: TABLE_WORDS,
            segments: Vec::new(),
            entries: 0,
            received: Array::zeros(gpu, TABLE_WORDS + WORDS)?,
            sent: 0,
        })
    }

    /// Words for which there is room in this load.
    fn room(&self) -> usize {
        if self.segments.len() < SEGMENTS_MAX as usize {
            self.loads.len() - self.next
        } else {
            0
        }
    }

    /// Adds changes by τ; sends a load off whenever it is full.
    ///
    /// # Safety
    /// As for [`Inbox::send`], with words that name weights of the target.
    pub(super) unsafe fn add_changes(
        &mut self,
        gpu: &Gpu,
        words: &[u32],
        tau: f32,
        target: Target,
    ) -> Result<(), GpuError> {
        let mut rest = words;
        while !rest.is_empty() {
            // Wherever a batch is cut, its parts are applied in order.
            let (now, later) = rest.split_at(rest.len().min(self.room()));
            if now.is_empty() {
                // SAFETY: as the caller has promised.
                unsafe { self.make_room(gpu, target)? };
                continue;
            }
            self.describe(now.len(), tau);
            self.put(now.iter().copied());
            rest = later;
        }
        Ok(())
    }

    /// Adds whole steps of weights, each of which is named once.
    ///
    /// # Safety
    /// As for [`Inbox::send`], with entries that name weights of the target.
    pub(super) unsafe fn add_steps(
        &mut self,
        gpu: &Gpu,
        entries: &[(u32, i32)],
        target: Target,
    ) -> Result<(), GpuError> {
        let mut rest = entries;
        while !rest.is_empty() {
            let (now, later) = rest.split_at(rest.len().min(self.room() / 2));
            if now.is_empty() {
                // SAFETY: as the caller has promised.
                unsafe { self.make_room(gpu, target)? };
                continue;
            }
            self.describe(now.len(), 0.0);
            self.put(now.iter().map(|&(index, _)| index << 1));
            self.put(now.iter().map(|&(_, steps)| steps as u32));
            rest = later;
        }
        Ok(())
    }

    fn describe(&mut self, count: usize, tau: f32) {
        self.segments.push(Segment {
            entries_before: self.entries,
            count: count as u32,
            from: (self.next - self.from - TABLE_WORDS) as u32,
            tau,
        });
        self.entries += count as u32;
    }

    fn put(&mut self, words: impl ExactSizeIterator<Item = u32>) {
        let place = &mut self.loads[self.next..][..words.len()];
        self.next += words.len();
        place.iter_mut().zip(words).for_each(|(place, word)| *place = word);
    }

    /// Sends the load off; where all memory is on its way, waits until that has arrived.
    ///
    /// # Safety
    /// As for [`Inbox::send`].
    unsafe fn make_room(&mut self, gpu: &Gpu, target: Target) -> Result<(), GpuError> {
        // SAFETY: as the caller has promised.
        unsafe { self.send(gpu, target)? };
        if self.room() < self.loads.len() / 4 {
            gpu.wait()?;
            self.arrived();
        }
        Ok(())
    }

    /// Launches one copy and one kernel for all that waits.
    ///
    /// # Safety
    /// The target's arrays must have all weights that were named, and live until the stream has come to it.
    pub(super) unsafe fn send(&mut self, gpu: &Gpu, target: Target) -> Result<(), GpuError> {
        if self.segments.is_empty() {
            return Ok(());
        }
        let table = self.loads[self.from..].chunks_exact_mut(SEGMENT_WORDS);
        for (place, segment) in table.zip(&self.segments) {
            let Segment {
                entries_before,
                count,
                from,
                tau,
            } = *segment;
            place.copy_from_slice(&[entries_before, count, from, tau.to_bits()]);
        }
        let words = self.next - self.from;
        let received = self.received.at();
        let arguments = ApplyWaiting {
            waiting: DeviceAddress::new(received.address()),
            segment_count: self.segments.len() as u32,
            words: received.plus(TABLE_WORDS),
            entries: self.entries,
            shared: target.shared,
            own: target.own,
            report: target.report,
        };
        // SAFETY: the load has so many words, which stay until it has arrived, and the place on the device has room for
        // any load; the segments describe what was put there, and the rest is as the caller has promised.
        unsafe {
            copy_words(gpu, self.loads.at().plus(self.from), received, words)?;
            let grid = Grid::each(self.entries as usize);
            gpu.launch(&gpu.kernels.apply_waiting, grid, arguments)?;
        }
        self.sent += words as u64;
        self.segments.clear();
        self.entries = 0;
        self.from = self.next;
        self.next = (self.from + TABLE_WORDS).min(self.loads.len());
        Ok(())
    }

    /// All that was sent has arrived, since the stream was waited for: its memory is free again.
    pub(super) fn arrived(&mut self) {
        if self.segments.is_empty() {
            self.from = 0;
            self.next = TABLE_WORDS;
        }
    }
}
