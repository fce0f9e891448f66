//! What comes in: batches of this node's workers, and everything that peers say.

use std::sync::Arc;

use protocol::batch::{BATCH_BYTES_MAX, Batch, BatchError, OriginStatus};
use protocol::bundle::Bundle;
use protocol::frontier::SequenceRange;
use protocol::ids::{NodeId, OriginId};
use protocol::merged_range::MergedRange;

use super::breach::Breach;
use super::bundles::BundleCheck;
use super::core::Exchange;
use super::event::{Effect, Jump};
use super::limits::{Limits, MEMBERS_MAX, ORIGINS_MAX};
use super::parcel::{self, Outgoing, PieceOutcome};
use super::planted::{Bug, planted};
use crate::ledger::{LedgerError, Outcome};
use protocol::wire::link::{Message, Note, OriginInfo, ParcelKind, Piece};
use protocol::wire::snapshot;

/// What a range's head may take: it names the samples that are done with it.
const RANGE_HEAD_BYTES_MAX: usize = 16 << 20;

impl Exchange {
    pub(super) fn local(&mut self, bytes: &Arc<[u8]>, effects: &mut Vec<Effect>) {
        let batch = match Batch::decode(bytes, self.ledger.weight_count()) {
            Ok(batch) => batch,
            Err(error) => return effects.push(Effect::WorkerFault(error.to_string())),
        };
        let origin = batch.header.origin;
        if self.node_of(origin) != Some(self.me) {
            return effects.push(Effect::WorkerFault(format!(
                "origin {origin} does not belong to this node"
            )));
        }
        match self.apply(bytes, &batch, effects) {
            Ok(Outcome::Applied(_) | Outcome::Diverged(_)) => {
                self.offer(batch, effects);
                self.pump_all(effects);
            }
            Ok(Outcome::Duplicate | Outcome::Ahead { .. } | Outcome::Overlaps) => {
                effects.push(Effect::WorkerFault(format!(
                    "a batch of origin {origin} is out of sequence"
                )));
            }
            // The worker has not heard yet that the run is over.
            Err(LedgerError::Range(_)) => {}
            Err(error) => effects.push(Effect::WorkerFault(error.to_string())),
        }
    }

    /// Applies a batch, keeps it and hands it to the workers.
    fn apply(&mut self, bytes: &Arc<[u8]>, batch: &Batch, effects: &mut Vec<Effect>) -> Result<Outcome, LedgerError> {
        let outcome = self.ledger.apply(batch)?;
        if outcome == Outcome::Duplicate && planted(Bug::DoubleApply) {
            effects.push(Effect::Deliver {
                origin: batch.header.origin,
                bytes: Arc::clone(bytes),
            });
        }
        if let Outcome::Applied(_) | Outcome::Diverged(_) = outcome {
            let (origin, sequence) = (batch.header.origin, batch.header.sequence);
            self.log.append(origin, sequence, Arc::clone(bytes));
            let message = (batch.header.status, Some(batch.header.loss));
            self.note(origin, sequence, message, effects);
            self.note_outcome(outcome, effects);
            effects.push(Effect::Deliver {
                origin,
                bytes: Arc::clone(bytes),
            });
        }
        Ok(outcome)
    }

    /// Applies a range, keeps it and hands what it does to the workers.
    fn apply_range(&mut self, range: MergedRange, effects: &mut Vec<Effect>) -> Result<Outcome, LedgerError> {
        let outcome = self.ledger.apply_range(&range)?;
        if let Outcome::Applied(_) | Outcome::Diverged(_) = outcome {
            self.log.append_range(&range);
            let MergedRange { header, sums } = range;
            self.note(header.origin, header.to, (header.status, None), effects);
            self.note_outcome(outcome, effects);
            effects.push(Effect::Jump(Box::new(Jump {
                origin: Some(header.origin),
                sums,
                batches: header.to - header.from,
                samples: header.samples,
                cursors: header.cursors,
            })));
        }
        Ok(outcome)
    }

    /// What follows from having applied something, besides handing it on.
    pub(super) fn note(
        &mut self,
        origin: OriginId,
        to: u64,
        (status, loss): (OriginStatus, Option<f32>),
        effects: &mut Vec<Effect>,
    ) {
        let is_own = self.node_of(origin) == Some(self.me);
        if let Some(barrier) = &mut self.barrier {
            barrier.applied(origin, status, loss, is_own);
        }
        if status.last
            && let Some(info) = self.origins.get_mut(&origin)
        {
            info.ended.get_or_insert(to);
        }
        if status.stop {
            effects.push(Effect::Stop);
        }
    }

    /// What follows from a weight that left the range, if one has.
    pub(super) fn note_outcome(&mut self, outcome: Outcome, effects: &mut Vec<Effect>) {
        // A flipped bit can take a weight out of the range, too.
        if let Outcome::Diverged(error) = outcome
            && self.audit(effects)
            && self.ledger.is_diverged()
        {
            effects.push(Effect::Diverged(error.to_string()));
        }
    }

    pub(super) fn received(&mut self, from: NodeId, message: Message, effects: &mut Vec<Effect>) {
        let Some(peer) = self.peers.get_mut(&from) else {
            return;
        };
        let Some(link) = &mut peer.link else {
            return;
        };
        link.speaks();
        match message {
            Message::Origin(info) => {
                if self.origins.contains_key(&info.origin) || self.make_room_for_an_origin() {
                    self.learn(Some(from), info, effects);
                } else {
                    self.quarantine(from, Breach::TooManyOrigins, effects);
                }
            }
            Message::Have(frontier) => {
                let first = !peer.is_heard();
                peer.confirm(&frontier);
                if self.wanted.is_some_and(|wanted| wanted.giver == Some(from)) && first {
                    // It has not heard on this link that it was asked.
                    self.ask(effects);
                } else if self.newcomer {
                    self.want(Some(from), false, effects);
                }
                self.catch_up(from, effects);
            }
            // It has asked for none, or the run ends without it: if it does not, it comes again.
            Message::Batch(_) if self.newcomer || self.frozen => {
                self.dropped_while_frozen.extend(self.frozen.then_some(from));
            }
            Message::Batch(bytes) => match Batch::decode(&bytes, self.ledger.weight_count()) {
                Err(BatchError::Damaged) => self.take_damage(from, effects),
                Err(error) => self.quarantine(from, error.into(), effects),
                Ok(batch) => {
                    peer.damaged = 0;
                    if let Err(reason) = self.take(from, &bytes, &batch, effects) {
                        self.quarantine(from, reason, effects);
                    }
                }
            },
            Message::Piece(piece) => {
                if let Err(reason) = self.take_piece(from, &piece, effects) {
                    self.quarantine(from, reason, effects);
                }
            }
            Message::Part(part) => self.take_part(from, part, effects),
            Message::Prefix(prefix) => self.take_prefix(prefix, effects),
            Message::Note(note) => self.hear(from, note, effects),
            Message::Flow(_) => {}
        }
    }

    fn hear(&mut self, from: NodeId, note: Note, effects: &mut Vec<Effect>) {
        let Some(peer) = self.peers.get_mut(&from) else {
            return;
        };
        let Some(link) = &mut peer.link else {
            return;
        };
        match note {
            Note::Mark { members: nodes, .. } | Note::Links(nodes) if nodes.len() > MEMBERS_MAX => {
                self.quarantine(from, Breach::TooManyMembers, effects);
            }
            Note::Links(links) => self.take_links(from, links, effects),
            Note::Mark {
                number,
                frontier,
                members,
            } => {
                let except = peer.take_mark(&frontier, self.ledger.frontier(), &self.log);
                effects.push(Effect::Send {
                    to: from,
                    message: Message::Note(Note::Marked { number, except }),
                });
                for node in members {
                    self.reckon_with(node);
                }
                self.trim();
                self.catch_up(from, effects);
            }
            Note::Newcomer => link.waits(),
            Note::Marked { number, except } => {
                peer.marked(number, &except);
                self.trim();
            }
            Note::Got(bytes) => {
                let before = link.outgoing.as_ref().map_or(0, Outgoing::got);
                link.outgoing.take_if(|parcel| parcel.confirm(bytes));
                self.moved += bytes.saturating_sub(before);
                self.pump(from, effects);
            }
            Note::Cannot(SequenceRange {
                origin, from: start, ..
            }) => {
                // The rest of what is under way there means nothing without it: begin again, from its mark.
                peer.refused.insert((origin, start));
                self.reset(from, effects);
            }
            Note::TooFar => self.want(Some(from), false, effects),
            Note::Ask => {
                link.asks = !link.outgoing.as_ref().is_some_and(Outgoing::is_snapshot);
                self.give(from, effects);
            }
        }
    }

    /// A peer has said what it has: it may need more.
    fn catch_up(&mut self, node: NodeId, effects: &mut Vec<Effect>) {
        let near = self.peers.get(&node).is_some_and(|peer| self.is_near(peer));
        if let Some(link) = self.link_mut(node).filter(|_| near) {
            link.comes_near();
        }
        self.merge_for(node);
        self.pump(node, effects);
    }

    /// Takes a batch from a peer; an error is something that an honest member never sends.
    fn take(
        &mut self,
        from: NodeId,
        bytes: &Arc<[u8]>,
        batch: &Batch,
        effects: &mut Vec<Effect>,
    ) -> Result<(), Breach> {
        let (origin, sequence) = (batch.header.origin, batch.header.sequence);
        let origin_node = self.check_origin(origin, sequence)?;
        if self.log.get(origin, sequence).is_some_and(|known| known != bytes) {
            // Who only hands it on cannot know which of the two is right.
            return if from == origin_node {
                Err(Breach::OtherContents { origin, sequence })
            } else {
                Ok(())
            };
        }
        let outcome = self.apply(bytes, batch, effects);
        let is_new = matches!(outcome, Ok(Outcome::Applied(_) | Outcome::Diverged(_)));
        if self.took(from, outcome, (origin, sequence), effects)? {
            self.relay(origin_node, effects);
        }
        if is_new {
            if from == origin_node {
                self.hear_single(origin_node, &batch.header.status, effects);
            }
            if batch.payload.is_dense() && self.barrier.is_some() {
                // Dense batches are large: nothing of a round is kept longer than it must be.
                self.tell(from, effects);
                self.mark(from, 0, effects);
            }
        }
        Ok(())
    }

    /// The checksum of a batch or a range is wrong. TLS protects the line, so a bit has flipped in a machine's memory: the
    /// link is set up again, and the sender checks what it has kept. A peer that sends nothing but damage is quarantined.
    fn take_damage(&mut self, from: NodeId, effects: &mut Vec<Effect>) {
        /// So often in a row it may be an accident.
        const DAMAGED_MAX: u32 = 8;
        let Some(peer) = self.peers.get_mut(&from) else {
            return;
        };
        peer.damaged += 1;
        if peer.damaged > DAMAGED_MAX {
            self.quarantine(from, Breach::OnlyDamage, effects);
        } else {
            self.reset(from, effects);
        }
    }

    /// Whether one more origin can be known. Those that ended without a batch are nobody's loss: workers that failed at
    /// once leave many.
    fn make_room_for_an_origin(&mut self) -> bool {
        if self.origins.len() >= ORIGINS_MAX {
            let frontier = self.ledger.frontier();
            let empty = |info: &&OriginInfo| info.ended == Some(0) && frontier.applied(info.origin) == 0;
            let Some(empty) = self.origins.values().find(empty).map(|info| info.origin) else {
                return false;
            };
            self.origins.remove(&empty);
        }
        true
    }

    /// The node that an origin's batches come from, which must be known, and make them itself if it is this one.
    fn check_origin(&self, origin: OriginId, to: u64) -> Result<NodeId, Breach> {
        let origin_node = self.node_of(origin).ok_or(Breach::UnknownOrigin(origin))?;
        // Own batches come back only as duplicates: nobody else can have more of them.
        if origin_node == self.me && to > self.ledger.frontier().applied(origin) {
            return Err(Breach::NeverMade { origin, sequence: to });
        }
        Ok(origin_node)
    }

    /// Handles the outcome of something that a peer sent. Returns whether it is now in the ledger; then the peer is known
    /// to have it, and is told from time to time how far this node is.
    fn took(
        &mut self,
        from: NodeId,
        outcome: Result<Outcome, LedgerError>,
        (origin, to): (OriginId, u64),
        effects: &mut Vec<Effect>,
    ) -> Result<bool, Breach> {
        match outcome {
            Ok(Outcome::Ahead { .. }) => {
                self.reset(from, effects);
                return Ok(false);
            }
            Ok(_) => {}
            // The run is over here; the peer will hear of it.
            Err(LedgerError::Range(_)) => return Ok(false),
            Err(error) => return Err(error.into()),
        }
        if let Some(peer) = self.peers.get_mut(&from) {
            peer.showed(origin, to);
        }
        let every = self.limits.acknowledge_every;
        if let Some(link) = self.link_mut(from) {
            link.untold += 1;
            if link.untold >= every {
                self.tell(from, effects);
            }
        }
        Ok(true)
    }

    fn take_piece(&mut self, from: NodeId, piece: &Piece, effects: &mut Vec<Effect>) -> Result<(), Breach> {
        let Limits {
            single_bytes_max,
            merged_bytes_max,
            ..
        } = self.limits;
        // A range takes no more than ten bytes a weight and the cursors of its head; a snapshot takes its counts and a log
        // within its limits.
        let log_max = single_bytes_max.saturating_add(merged_bytes_max).saturating_mul(2);
        let ranges_max = RANGE_HEAD_BYTES_MAX + 10 * self.ledger.weight_count();
        let total_max = match piece.kind {
            ParcelKind::Range => ranges_max,
            ParcelKind::Bundle => BATCH_BYTES_MAX,
            ParcelKind::Snapshot => {
                snapshot::length_max(self.ledger.weight_count(), log_max).saturating_add(ranges_max)
            }
        };
        if piece.total > total_max as u64 {
            return Err(Breach::OversizeParcel(piece.total));
        }
        self.moved += piece.bytes.len() as u64;
        let Some(link) = self.link_mut(from) else {
            return Ok(());
        };
        let (got, whole) = match parcel::take(&mut link.incoming, piece) {
            PieceOutcome::OutOfPlace => {
                self.reset(from, effects);
                return Ok(());
            }
            PieceOutcome::Part(got) => (got, None),
            PieceOutcome::Whole(kind, bytes) => (piece.total, Some((kind, bytes))),
        };
        effects.push(Effect::Send {
            to: from,
            message: Message::Note(Note::Got(got)),
        });
        if let Some(wanted) = &mut self.wanted
            && wanted.giver == Some(from)
            && piece.kind == ParcelKind::Snapshot
        {
            wanted.ticks = 0;
        }
        match whole {
            Some((ParcelKind::Snapshot, bytes)) => return self.install(from, &bytes, effects),
            Some(_) if self.newcomer || self.frozen => self.dropped_while_frozen.extend(self.frozen.then_some(from)),
            Some((ParcelKind::Range, bytes)) => return self.take_range(from, &bytes, effects),
            Some((ParcelKind::Bundle, bytes)) => return self.take_bundle(from, &bytes, effects),
            None => {}
        }
        Ok(())
    }

    /// What a peer has sent whole: an error if it is a lie, and none if it was damaged on its way.
    fn undamaged<T>(
        &mut self,
        from: NodeId,
        decoded: Result<T, BatchError>,
        effects: &mut Vec<Effect>,
    ) -> Result<Option<T>, Breach> {
        match decoded {
            Err(BatchError::Damaged) => {
                self.take_damage(from, effects);
                Ok(None)
            }
            Err(lie) => Err(lie.into()),
            Ok(whole) => {
                if let Some(peer) = self.peers.get_mut(&from) {
                    peer.damaged = 0;
                }
                Ok(Some(whole))
            }
        }
    }

    /// Takes a bundle that a peer hands on.
    fn take_bundle(&mut self, from: NodeId, bytes: &[u8], effects: &mut Vec<Effect>) -> Result<(), Breach> {
        let decoded = Bundle::decode(bytes, self.ledger.weight_count());
        let Some(bundle) = self.undamaged(from, decoded, effects)? else {
            return Ok(());
        };
        for (origin, sequence) in bundle.batches() {
            self.check_origin(origin, sequence)?;
        }
        let batches: Vec<(OriginId, u64)> = bundle.batches().collect();
        let refused = match self.check_bundle(bundle) {
            BundleCheck::New(rest) => !self.apply_bundle(rest, effects),
            BundleCheck::Later => {
                self.reset(from, effects);
                return Ok(());
            }
            BundleCheck::Cannot => true,
        };
        let lacks = |&(origin, sequence): &(OriginId, u64)| self.ledger.frontier().applied(origin) < sequence;
        if refused && let Some((origin, to)) = batches.iter().copied().find(lacks) {
            let range = SequenceRange {
                origin,
                from: to - 1,
                to,
            };
            effects.push(Effect::Send {
                to: from,
                message: Message::Note(Note::Cannot(range)),
            });
            return Ok(());
        }
        if let Some(peer) = self.peers.get_mut(&from) {
            for &(origin, to) in &batches {
                peer.showed(origin, to);
            }
        }
        self.tell(from, effects);
        Ok(())
    }

    /// Takes a range from a peer. Of one whose beginning is here already, that is taken away first.
    fn take_range(&mut self, from: NodeId, bytes: &[u8], effects: &mut Vec<Effect>) -> Result<(), Breach> {
        let weights = self.ledger.weight_count();
        let Some(mut range) = self.undamaged(from, MergedRange::decode(bytes, weights), effects)? else {
            return Ok(());
        };
        let (origin, start, to) = (range.header.origin, range.header.from, range.header.to);
        self.check_origin(origin, to)?;
        let applied = self.ledger.frontier().applied(origin);
        if start < applied && applied < to && planted(Bug::WrongMerge) {
            range.header.from = applied;
        } else if start < applied && applied < to {
            let known = self.log.merged(origin, start, applied);
            let rest = known.and_then(|known| range.after(&known, weights));
            let Some(rest) = rest else {
                let range = SequenceRange {
                    origin,
                    from: start,
                    to,
                };
                effects.push(Effect::Send {
                    to: from,
                    message: Message::Note(Note::Cannot(range)),
                });
                return Ok(());
            };
            range = rest;
        }
        let outcome = self.apply_range(range, effects);
        if self.took(from, outcome, (origin, to), effects)? {
            self.tell(from, effects);
        }
        Ok(())
    }
}
