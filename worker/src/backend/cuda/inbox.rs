//! Other workers' changes on their way to the device: they are collected while the device is busy, and applied in one
//! go before a kernel reads the weights.

use super::abi::{SEGMENTS_MAX, Segment};
use super::address::DeviceAddress;
use super::error::GpuError;
use super::gpu::{Gpu, Grid};
use super::kernels::ApplyWaiting;
use super::memory::{Array, Pinned, copy_words};

/// Words of other workers' changes that fit into the host buffer: enough for all that arrive between two steps.
const WORDS: usize = 1 << 20;
/// Number of words that describe one segment (piece of other workers' changes).
const SEGMENT_WORDS: usize = size_of::<Segment>() / size_of::<u32>();
/// Number of words of the table that describes all segments of changes and precedes the changes themselves.
const TABLE_WORDS: usize = SEGMENTS_MAX as usize * SEGMENT_WORDS;

/// Device addresses at which other workers' changes are applied: own and shared weights, and the next step's results.
#[derive(Clone, Copy)]
pub(super) struct Target {
    pub(super) shared: DeviceAddress<f32>,
    pub(super) own: DeviceAddress<f32>,
    pub(super) report: DeviceAddress<super::abi::Report>,
}

/// Collects other workers' changes on the host until they are applied on the GPU.
///
/// A load is a table of segments followed by the words of their entries, so one copy transfers all of it. Loads that
/// were sent stay in the buffer before the load that is being filled, because the device may still read them.
pub(super) struct Inbox {
    loads: Pinned<u32>,
    /// Index in `loads` of the changes that wait for the device; `next` is the index of the first free word after them.
    from: usize,
    next: usize,
    segments: Vec<Segment>,
    entries: u32,
    /// Buffer on the device for the changes that one copy transfers.
    received: Array<u32>,
    /// Number of words of other workers' changes that were copied to the device so far.
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

    /// Returns the number of words by which the changes that wait for the device may still grow.
    fn room(&self) -> usize {
        if self.segments.len() < SEGMENTS_MAX as usize {
            self.loads.len() - self.next
        } else {
            0
        }
    }

    /// Adds changes by ±`tau` to those that wait for the device; sends the waiting ones whenever there is no room for
    /// more.
    ///
    /// # Safety
    /// As for [`Inbox::send`]; the words must name weights of the target.
    pub(super) unsafe fn add_changes(
        &mut self,
        gpu: &Gpu,
        words: &[u32],
        tau: f32,
        target: Target,
    ) -> Result<(), GpuError> {
        let mut rest = words;
        while !rest.is_empty() {
            // A batch may be cut anywhere, because its pieces are applied in order.
            let (now, later) = rest.split_at(rest.len().min(self.room()));
            if now.is_empty() {
                // SAFETY: the caller promises that the target has all named weights and lives until the kernel has run.
                unsafe { self.make_room(gpu, target)? };
                continue;
            }
            self.describe(now.len(), tau);
            self.put(now.iter().copied());
            rest = later;
        }
        Ok(())
    }

    /// Adds movements of weights, each weight once and by a multiple of the step between two neighbouring values, to
    /// the changes that wait for the device; sends the waiting ones whenever there is no room for more.
    ///
    /// # Safety
    /// As for [`Inbox::send`]; the entries must name weights of the target.
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
                // SAFETY: the caller promises that the target has all named weights and lives until the kernel has run.
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

    /// Sends the collected changes to the device. If little of the buffer is then free, waits until all have arrived.
    ///
    /// # Safety
    /// As for [`Inbox::send`].
    unsafe fn make_room(&mut self, gpu: &Gpu, target: Target) -> Result<(), GpuError> {
        // SAFETY: the caller promises that the target has all named weights and lives until the kernel has run.
        unsafe { self.send(gpu, target)? };
        if self.room() < self.loads.len() / 4 {
            gpu.wait()?;
            self.arrived();
        }
        Ok(())
    }

    /// Launches one copy and one kernel that apply all collected changes of other workers to the target's weights.
    ///
    /// # Safety
    /// The target's arrays must include all weights that the changes name, and live until the kernel has run.
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
        // SAFETY: the load has `words` words, which stay until the load has arrived; the device buffer has room for any
        // load; the segments describe the entries that `put` wrote. The caller promises the rest.
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

    /// Frees the host buffer of changes; called when the stream was waited for, so that all have arrived.
    pub(super) fn arrived(&mut self) {
        if self.segments.is_empty() {
            self.from = 0;
            self.next = TABLE_WORDS;
        }
    }
}
