//! The log: batches that some member may still need, in order and without gaps. Old batches are merged, not dropped.
//!
//! Merging keeps the effect of batches and forgets where each one ends. So a merged range must not span a *point*, a
//! sequence from which some member may ask for the rest; [`Log::compact`] gets the points from its caller.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use protocol::ids::{OriginId, RunId};
use protocol::log::batch::Batch;
use protocol::log::bundle::Bundle;
use protocol::log::frontier::{Frontier, SequenceRange};
use protocol::log::merged_range::{MergedRange, Merger};

use protocol::wire::snapshot::{EntryKind, LogEntry};

/// Encoded batches that some member of the run may still need: consecutive ones of each origin (a worker's numbered
/// stream of batches), up to the newest.
#[derive(Clone, Debug)]
pub(super) struct Log {
    run: RunId,
    weights: usize,
    origins: BTreeMap<OriginId, VecDeque<RetainedEntry>>,
    single_bytes: usize,
    merged_bytes: usize,
}

/// An entry of the log: a batch, a merged range, or a bundle (a sum of several workers' batches) as seen by one of
/// them.
#[derive(Clone, Debug)]
struct RetainedEntry {
    entry: LogEntry,
    /// All batches of the bundle that the entry belongs to (the sum of one batch from each of several workers), each of
    /// which has an entry that shares its bytes; `None` for other entries.
    bundled: Option<Arc<[(OriginId, u64)]>>,
}

impl RetainedEntry {
    /// Number of bytes that the entry adds to the log's size. A bundle (a sum of several workers' batches) has an entry
    /// for each of them, and each entry counts an equal part of it.
    fn bytes(&self) -> usize {
        self.entry.bytes.len() / self.bundled.as_ref().map_or(1, |batches| batches.len().max(1))
    }
}

impl std::ops::Deref for RetainedEntry {
    type Target = LogEntry;

    fn deref(&self) -> &LogEntry {
        &self.entry
    }
}

impl Log {
    pub(super) fn new(run: RunId, weights: usize) -> Self {
        Self {
            run,
            weights,
            origins: BTreeMap::new(),
            single_bytes: 0,
            merged_bytes: 0,
        }
    }

    /// Appends the next batch of an origin (a worker's stream of batches).
    pub(super) fn append(&mut self, origin: OriginId, sequence: u64, bytes: Arc<[u8]>) {
        let entry = entry_of(origin, sequence, bytes, EntryKind::Batch);
        self.push(RetainedEntry { entry, bundled: None });
    }

    /// Appends a merged range that holds the next batches of one worker.
    pub(super) fn append_range(&mut self, range: &MergedRange) {
        self.push(merged_entry(range));
    }

    /// Appends a bundle (the sum of one batch from each of several workers) of its workers' next batches.
    pub(super) fn append_bundle(&mut self, bundle: &Bundle, bytes: &Arc<[u8]>) {
        let batches: Arc<[(OriginId, u64)]> = bundle.batches().collect();
        for &(origin, sequence) in batches.iter() {
            self.push(RetainedEntry {
                entry: entry_of(origin, sequence, Arc::clone(bytes), EntryKind::Bundle),
                bundled: Some(Arc::clone(&batches)),
            });
        }
    }

    fn push(&mut self, entry: RetainedEntry) {
        *self.bytes_of(&entry) += entry.bytes();
        let entries = self.origins.entry(entry.origin).or_default();
        debug_assert!(
            entries.back().is_none_or(|last| last.to == entry.from),
            "the log of an origin must not have a gap"
        );
        entries.push_back(entry);
    }

    fn bytes_of(&mut self, entry: &RetainedEntry) -> &mut usize {
        match entry.kind {
            EntryKind::Batch => &mut self.single_bytes,
            // Merging makes neither of them smaller.
            EntryKind::Range | EntryKind::Bundle => &mut self.merged_bytes,
        }
    }

    /// Returns the entry of a worker's batches that begins right after this sequence, if there is one.
    pub(super) fn after(&self, origin: OriginId, sequence: u64) -> Option<&LogEntry> {
        self.kept_after(origin, sequence).map(|kept| &kept.entry)
    }

    fn kept_after(&self, origin: OriginId, sequence: u64) -> Option<&RetainedEntry> {
        let entries = self.origins.get(&origin)?;
        let position = entries.partition_point(|entry| entry.from < sequence);
        entries.get(position).filter(|entry| entry.from == sequence)
    }

    /// Returns the encoded batch with this sequence, unless the log has the batch only within a sum of batches.
    pub(super) fn get(&self, origin: OriginId, sequence: u64) -> Option<&Arc<[u8]>> {
        let entry = self.after(origin, sequence.checked_sub(1)?)?;
        (entry.kind == EntryKind::Batch).then_some(&entry.bytes)
    }

    /// Returns the batches of the bundle (the sum of one batch from each of several workers) that begins right after
    /// this sequence, if there is one.
    pub(super) fn bundled_after(&self, origin: OriginId, sequence: u64) -> Option<&Arc<[(OriginId, u64)]>> {
        self.kept_after(origin, sequence)?.bundled.as_ref()
    }

    /// Returns the sequence right before the worker's next bundled batch (part of a sum of several workers' batches) in
    /// the log. Batches up to and with the given sequence do not count.
    pub(super) fn bundle_from(&self, origin: OriginId, sequence: u64) -> Option<u64> {
        let entries = self.origins.get(&origin)?;
        let from = entries.partition_point(|entry| entry.from < sequence);
        let mut later = entries.range(from..);
        later
            .find(|entry| entry.kind == EntryKind::Bundle)
            .map(|entry| entry.from)
    }

    /// Returns true if a frontier (the batches that some node has) includes a batch of this origin that is part of a
    /// bundle (a sum of several workers' batches), but not all batches of that bundle. Such a node must keep the
    /// batches in its log to subtract them, because it may be sent the whole bundle.
    pub(super) fn is_cut(&self, origin: OriginId, frontier: &Frontier) -> bool {
        let lacks = |&(origin, sequence): &(OriginId, u64)| frontier.applied(origin) < sequence;
        let entries = self.origins.get(&origin).into_iter().flatten();
        let before = entries.take_while(|entry| entry.to <= frontier.applied(origin));
        before
            .filter_map(|entry| entry.bundled.as_ref())
            .any(|batches| batches.iter().any(lacks))
    }

    /// Returns true if a merged range of a worker's batches can begin or end at this sequence: no entry of the log
    /// spans it.
    pub(super) fn is_point(&self, origin: OriginId, sequence: u64) -> bool {
        let Some(entries) = self.origins.get(&origin) else {
            return true;
        };
        let position = entries.partition_point(|entry| entry.to <= sequence);
        entries.get(position).is_none_or(|entry| entry.from >= sequence)
    }

    /// The sequences before this one at which the log's entries of a worker's batches begin, the latest first. A merged
    /// range can begin there.
    pub(super) fn points_before(&self, origin: OriginId, sequence: u64) -> impl Iterator<Item = u64> + '_ {
        let entries = self.origins.get(&origin).into_iter().flatten().rev();
        entries
            .map(|entry| entry.from)
            .skip_while(move |&from| from >= sequence)
    }

    /// Returns the sequence at which the log entry ends that holds a worker's batch right after this sequence. A merged
    /// entry may begin before the sequence.
    pub(super) fn end_around(&self, origin: OriginId, sequence: u64) -> Option<u64> {
        let entries = self.origins.get(&origin)?;
        let position = entries.partition_point(|entry| entry.to <= sequence);
        entries.get(position).map(|entry| entry.to)
    }

    /// Number of bytes of a worker's single batches after this sequence, without the newest `recent` ones.
    pub(super) fn single_bytes_after(&self, origin: OriginId, sequence: u64, recent: u64) -> usize {
        let entries = self.origins.get(&origin).into_iter().flatten().rev();
        let later = entries.skip(recent as usize).take_while(|entry| entry.from >= sequence);
        let single = later.filter(|entry| entry.kind == EntryKind::Batch);
        single.map(|entry| entry.bytes.len()).sum()
    }

    /// Merges all entries of a worker's batches from one sequence to another into one range. Returns `None` if some of
    /// them are not in the log, if `from` or `to` lies within a merged entry, or if a batch is only known within a sum
    /// with other workers' batches (a bundle). `to` may be beyond the newest batch.
    pub(super) fn merged(&self, origin: OriginId, from: u64, to: u64) -> Option<MergedRange> {
        let entries = self.origins.get(&origin)?;
        let first = entries.partition_point(|entry| entry.from < from);
        let last = entries.partition_point(|entry| entry.to <= to);
        if first >= last || entries.get(first)?.from != from {
            return None;
        }
        let covers = entries.get(last - 1)?.to;
        let ends_here = covers == to || last == entries.len();
        ends_here.then(|| self.merge(origin, entries.range(first..last)))?
    }

    fn merge<'a>(&self, origin: OriginId, entries: impl Iterator<Item = &'a RetainedEntry>) -> Option<MergedRange> {
        let mut entries = entries.peekable();
        let mut merger = Merger::new(self.run, origin, entries.peek()?.from, self.weights);
        for entry in entries {
            // Decoding cannot fail: each entry was decoded when it came.
            match entry.kind {
                EntryKind::Range => merger.add_range(&MergedRange::decode(&entry.bytes, self.weights).ok()?),
                EntryKind::Batch => merger.add_batch(&Batch::decode(&entry.bytes, self.weights).ok()?),
                EntryKind::Bundle => return None,
            }
        }
        merger.finish()
    }

    /// Merges a worker's entries into ranges that do not span these sequences, because a member may have the batches
    /// just up to there. The newest `recent` batches and bundles are left alone.
    pub(super) fn compact(&mut self, origin: OriginId, points: &BTreeSet<u64>, recent: u64) {
        let Some(entries) = self.origins.remove(&origin) else {
            return;
        };
        let newest = entries.back().map_or(0, |entry| entry.to);
        let mut kept = VecDeque::with_capacity(entries.len());
        let mut group: Vec<RetainedEntry> = Vec::new();
        for entry in entries {
            // A group ends at a point, at a bundle, and before the recent batches.
            let is_bundle = |entry: &RetainedEntry| entry.kind == EntryKind::Bundle;
            let ends = group.last().is_some_and(|last| {
                points.contains(&last.to) || last.to + recent > newest || is_bundle(last) || is_bundle(&entry)
            });
            if ends {
                self.close(origin, &mut group, &mut kept);
            }
            group.push(entry);
        }
        self.close(origin, &mut group, &mut kept);
        self.origins.insert(origin, kept);
    }

    fn close(&mut self, origin: OriginId, group: &mut Vec<RetainedEntry>, kept: &mut VecDeque<RetainedEntry>) {
        let merged = if group.len() > 1 {
            self.merge(origin, group.iter())
        } else {
            None
        };
        match merged {
            Some(range) => {
                for entry in group.drain(..) {
                    *self.bytes_of(&entry) -= entry.bytes();
                }
                let entry = merged_entry(&range);
                self.merged_bytes += entry.bytes();
                kept.push_back(entry);
            }
            None => kept.extend(group.drain(..)),
        }
    }

    /// Removes the log's entries that end at or before these sequences: no member needs their batches.
    pub(super) fn trim(&mut self, needless: &Frontier) {
        for (origin, sequence) in needless.iter() {
            while let Some(entries) = self.origins.get_mut(&origin)
                && let Some(oldest) = entries.pop_front_if(|entry| entry.to <= sequence)
            {
                *self.bytes_of(&oldest) -= oldest.bytes();
            }
        }
    }

    /// All entries of the log that hold batches of this worker.
    pub(super) fn entries(&self, origin: OriginId) -> impl Iterator<Item = &LogEntry> {
        let entries = self.origins.get(&origin).into_iter().flatten();
        entries.map(|kept| &kept.entry)
    }

    /// Takes over another node's log of a worker's batches, which is newer than this one. If the logs have a common
    /// sequence at which entries begin, this log's entries stay and the other's follow them; otherwise the other log's
    /// entries replace these. Entries whose contents contradict their labels, or that do not lead up to `to`, are
    /// dropped.
    pub(super) fn adopt(&mut self, origin: OriginId, to: u64, theirs: impl DoubleEndedIterator<Item = LogEntry>) {
        let mut next = to;
        let mut suffix = VecDeque::new();
        for entry in theirs.rev() {
            if entry.to != next {
                break;
            }
            let Some(sound) = self.sound(entry) else {
                break;
            };
            next = sound.from;
            suffix.push_front(sound);
        }
        let newest = self.origins.get(&origin).and_then(|own| own.back()).map(|last| last.to);
        let bridge = newest.and_then(|newest| self.bridge(origin, newest, &suffix));
        if bridge.is_none() {
            for entry in self.origins.remove(&origin).unwrap_or_default() {
                *self.bytes_of(&entry) -= entry.bytes();
            }
        }
        for entry in bridge.into_iter().chain(suffix) {
            // Entries that this log or the bridge already covers do not follow, and are skipped.
            if self.follows(&entry) {
                self.push(entry);
            }
        }
    }

    /// Returns true if the log can take the entry next: the entry begins where this log of its worker's batches ends,
    /// or the log has no batch of that worker.
    fn follows(&self, entry: &RetainedEntry) -> bool {
        let last = self.origins.get(&entry.origin).and_then(|entries| entries.back());
        last.is_none_or(|last| last.to == entry.from)
    }

    /// Takes the entry of the other log that spans batch `newest`, and returns the rest of it after `newest`: the
    /// batches up to there are subtracted by means of this log. `None` if no entries of the two logs begin at a common
    /// sequence.
    fn bridge(&self, origin: OriginId, newest: u64, theirs: &VecDeque<RetainedEntry>) -> Option<RetainedEntry> {
        let over = theirs
            .iter()
            .position(|entry| entry.from <= newest && newest < entry.to)?;
        if theirs[over].from == newest {
            return theirs.get(over).cloned();
        }
        let begins_here = |at: &usize| self.after(origin, theirs[*at].from).is_some();
        let common = (0..=over).rev().find(begins_here)?;
        let known = self.merged(origin, theirs[common].from, newest)?;
        let whole = self.merge(origin, theirs.range(common..=over))?;
        whole.after(&known, self.weights).map(|rest| merged_entry(&rest))
    }

    /// Accepts an entry of another node's log if its bytes hold the batches that it names; otherwise returns `None`.
    fn sound(&self, entry: LogEntry) -> Option<RetainedEntry> {
        let single = entry.from.checked_add(1) == Some(entry.to);
        let mut bundled = None;
        let is_sound = match entry.kind {
            EntryKind::Range => MergedRange::decode(&entry.bytes, self.weights).is_ok_and(|range| {
                let header = &range.header;
                (header.run, header.origin, header.from, header.to) == (self.run, entry.origin, entry.from, entry.to)
            }),
            EntryKind::Batch => Batch::decode(&entry.bytes, self.weights).is_ok_and(|batch| {
                let header = &batch.header;
                single && (header.run, header.origin, header.sequence) == (self.run, entry.origin, entry.to)
            }),
            EntryKind::Bundle => Bundle::decode(&entry.bytes, self.weights).is_ok_and(|bundle| {
                let batches: Arc<[(OriginId, u64)]> = bundle.batches().collect();
                let of_run = bundle.headers.iter().all(|header| header.run == self.run);
                let holds = batches.contains(&(entry.origin, entry.to));
                bundled = Some(batches);
                single && of_run && holds
            }),
        };
        is_sound.then_some(RetainedEntry { entry, bundled })
    }

    /// Flips a bit of a batch in the log, for tests of damaged logs.
    #[cfg(test)]
    pub(super) fn spoil(&mut self, origin: OriginId, sequence: u64) {
        let entries = self.origins.get_mut(&origin).unwrap();
        let entry = entries.iter_mut().find(|entry| entry.to == sequence).unwrap();
        let mut bytes = entry.bytes.to_vec();
        bytes[7] ^= 1;
        entry.entry.bytes = bytes.into();
    }

    /// For each origin (a worker's stream of batches), the range of batches that the log covers.
    pub(super) fn kept(&self) -> impl Iterator<Item = SequenceRange> + '_ {
        self.origins.iter().filter_map(|(&origin, entries)| {
            let (from, to) = (entries.front()?.from, entries.back()?.to);
            Some(SequenceRange { origin, from, to })
        })
    }

    /// Number of bytes of single batches in the log.
    pub(super) fn single_bytes(&self) -> usize {
        self.single_bytes
    }

    /// Number of bytes in the log that merged ranges and bundles (sums of several batches) take.
    pub(super) fn merged_bytes(&self) -> usize {
        self.merged_bytes
    }
}

fn entry_of(origin: OriginId, sequence: u64, bytes: Arc<[u8]>, kind: EntryKind) -> LogEntry {
    LogEntry {
        origin,
        from: sequence - 1,
        to: sequence,
        bytes,
        kind,
    }
}

fn merged_entry(range: &MergedRange) -> RetainedEntry {
    let entry = LogEntry {
        origin: range.header.origin,
        from: range.header.from,
        to: range.header.to,
        bytes: range.encode().into(),
        kind: EntryKind::Range,
    };
    RetainedEntry { entry, bundled: None }
}

#[cfg(test)]
mod tests;
