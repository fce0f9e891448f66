//! Snapshots, given and taken: the way back for whoever can be helped no other way.

use std::collections::BTreeMap;

use protocol::bundle::Bundle;
use protocol::frontier::SequenceRange;
use protocol::ids::{NodeId, OriginId};
use protocol::sums::{Adder, Sums};

use super::breach::Breach;
use super::bundles::{BundleCheck, rest_of};
use super::core::{Exchange, SnapshotRequest};
use super::event::{Effect, Jump};
use super::log::Log;
use super::parcel::Outgoing;
use super::peer::Peer;
use super::peer_link::PeerLink;
use crate::ledger::{Ledger, Outcome};
use protocol::wire::link::{Message, Note};
use protocol::wire::snapshot::{self, LogEntry};

impl Exchange {
    /// Compares the ledger with what its batches add up to. One flipped bit is put right at once; beyond that a peer's
    /// ledger is needed. Whether the ledger is right.
    pub(super) fn audit(&mut self, effects: &mut Vec<Effect>) -> bool {
        if self.is_damaged() {
            return false;
        }
        match self.ledger.mend() {
            Ok(mended) => {
                effects.extend(mended.map(Effect::Mended));
                true
            }
            Err(error) => {
                effects.push(Effect::Damaged(error));
                self.want(None, true, effects);
                false
            }
        }
    }

    /// This node needs a snapshot: from whoever said so, or from anybody.
    pub(super) fn want(&mut self, giver: Option<NodeId>, damaged: bool, effects: &mut Vec<Effect>) {
        let wanted = self.wanted.get_or_insert(SnapshotRequest {
            giver: None,
            ticks: 0,
            damaged: false,
        });
        wanted.damaged |= damaged;
        // One at a time: it will help against all others' reasons too.
        if wanted.giver.is_none() {
            wanted.giver = giver;
            if giver.is_some() {
                self.ask(effects);
            } else {
                self.ask_next(effects);
            }
        }
    }

    /// Asks for the snapshot that is wanted.
    pub(super) fn ask(&mut self, effects: &mut Vec<Effect>) {
        let Some(wanted) = &mut self.wanted else {
            return;
        };
        wanted.ticks = 0;
        effects.extend(wanted.giver.map(|to| Effect::Send {
            to,
            message: Message::Note(Note::Ask),
        }));
    }

    /// Asks the next one: whoever was asked last is gone, has nothing to give, or what it gave was no help.
    fn ask_next(&mut self, effects: &mut Vec<Effect>) {
        let heard = |(&node, peer): (&NodeId, &Peer)| peer.is_heard().then_some(node);
        let last = self.wanted.and_then(|wanted| wanted.giver);
        let mut all = self.peers.iter().filter_map(heard);
        let next = all.clone().find(|&node| Some(node) > last).or_else(|| all.next());
        match &mut self.wanted {
            // Whoever cannot help otherwise will say so again on the next link.
            Some(wanted) if next.is_none() && !wanted.damaged => self.wanted = None,
            Some(wanted) => wanted.giver = next,
            None => {}
        }
        self.ask(effects);
    }

    /// One more tick without a snapshot that is wanted.
    pub(super) fn wait_for_snapshot(&mut self, effects: &mut Vec<Effect>) {
        let heard = |node: NodeId| self.peers.get(&node).is_some_and(Peer::is_heard);
        let Some(wanted) = &mut self.wanted else {
            return;
        };
        wanted.ticks += 1;
        if wanted.ticks >= self.limits.reset_ticks || !wanted.giver.is_some_and(heard) {
            self.ask_next(effects);
        }
    }

    /// Gives a peer the snapshot that it has asked for, unless it has something that would be missing from it.
    pub(super) fn give(&mut self, node: NodeId, effects: &mut Vec<Effect>) {
        let giving = |peer: &Peer| peer.outgoing().is_some_and(Outgoing::is_snapshot);
        let others = self.peers.values().filter(|peer| giving(peer)).count();
        let may_have = |peer: &Peer| {
            let asks = |link: &PeerLink| link.asks && link.outgoing.is_none();
            peer.link.as_ref().is_some_and(asks) && !self.newcomer && self.ledger.frontier().lacks(&peer.has).is_empty()
        };
        if others >= self.limits.snapshots_max || !self.peers.get(&node).is_some_and(may_have) {
            return;
        }
        // A peer would take a wrong one for a lie.
        if !self.audit(effects) {
            return;
        }
        let Some(peer) = self.peers.get_mut(&node) else {
            return;
        };
        let lacking = peer.has.lacks(self.ledger.frontier());
        let log: Vec<LogEntry> = lacking
            .iter()
            .flat_map(|range| self.log.entries(range.origin))
            .cloned()
            .collect();
        let snapshot = snapshot::encode(self.ledger.head(), self.ledger.counts().into(), &log);
        if let Some(link) = &mut peer.link {
            link.asks = false;
            link.outgoing = Some(Outgoing::snapshot(snapshot));
        }
        effects.push(Effect::Giving(node));
        self.pump(node, effects);
    }

    /// Puts a snapshot in the ledger's place, with what this node has beyond it. An error is something that an honest
    /// member never sends.
    pub(super) fn install(&mut self, from: NodeId, bytes: &[u8], effects: &mut Vec<Effect>) -> Result<(), Breach> {
        let Some(wanted) = self.wanted.filter(|wanted| wanted.giver == Some(from)) else {
            return Ok(());
        };
        let weights = self.ledger.weight_count();
        let mut snapshot = snapshot::decode(bytes, weights).ok_or(Breach::UnreadableSnapshot)?;
        let log = std::mem::take(&mut snapshot.log);
        let (run, initial) = (self.ledger.run(), self.ledger.initial());
        let ledger = Ledger::restored(snapshot, run, initial)?;
        for (origin, sequence) in ledger.frontier().iter() {
            if !self.origins.contains_key(&origin) {
                return Err(Breach::UnknownOriginInSnapshot(origin));
            }
            let (theirs, ours) = (ledger.digest_of(origin), self.ledger.digest_of(origin));
            if self.ledger.frontier().applied(origin) == sequence && theirs != ours {
                return Err(Breach::OtherBatchesInSnapshot(origin));
            }
        }
        let merged = self.with_own(ledger, &log);
        // A frozen node has agreed on its batches, and takes a ledger of exactly these only.
        let merged = merged.filter(|ledger| !self.frozen || ledger.frontier() == self.ledger.frontier());
        let Some(ledger) = merged else {
            // Too old, though it was new when it was made: the next one will be newer, if there is time for what is under
            // way. At the next tick somebody is asked again.
            self.wanted = Some(SnapshotRequest {
                ticks: self.limits.reset_ticks,
                ..wanted
            });
            return Ok(());
        };
        self.wanted = None;
        self.newcomer = false;
        self.replace(ledger, log, wanted.damaged, effects);
        Ok(())
    }

    /// Adds to another's ledger what this node has beyond it; none if that is not known any more. The other's log tells what
    /// it has of bundles that are here.
    pub(super) fn with_own(&self, mut ledger: Ledger, log: &[LogEntry]) -> Option<Ledger> {
        let mut theirs = Log::new(ledger.run(), ledger.weight_count());
        for (origin, entries) in by_origin(log.to_vec()) {
            let to = ledger.frontier().applied(origin);
            theirs.adopt(origin, to, entries.into_iter());
        }
        loop {
            let lacking = ledger.frontier().lacks(self.ledger.frontier());
            if lacking.is_empty() {
                return Some(ledger);
            }
            let before = ledger.frontier().clone();
            for range in lacking {
                self.add_own(range, &mut ledger, &theirs)?;
            }
            // Bundles may wait for each other's predecessors, but not in a circle.
            if *ledger.frontier() == before {
                return None;
            }
        }
    }

    /// Adds to another's ledger what this node has of a range, up to a bundle, or that bundle; none if it cannot be.
    fn add_own(&self, range: SequenceRange, ledger: &mut Ledger, theirs: &Log) -> Option<()> {
        let SequenceRange { origin, from, to } = range;
        if ledger.frontier().applied(origin) != from {
            // A bundle of another origin has brought it on.
            return Some(());
        }
        let outcome = if self.log.bundled_after(origin, from).is_some() {
            let entry = self.log.after(origin, from)?;
            let bundle = Bundle::decode(&entry.bytes, ledger.weight_count()).ok()?;
            match rest_of(bundle, ledger, &[&self.log, theirs]) {
                BundleCheck::New(rest) => ledger.apply_bundle(&rest),
                BundleCheck::Later => return Some(()),
                BundleCheck::Cannot => return None,
            }
        } else {
            let to = self.log.bundle_from(origin, from).map_or(to, |bundle| bundle.min(to));
            ledger.apply_range(&self.log.merged(origin, from, to)?)
        };
        matches!(outcome, Ok(Outcome::Applied(_))).then_some(())
    }

    /// What was applied since another ledger, by the log: its counts may be damaged.
    fn news_since(&self, before: &Ledger) -> Option<Sums> {
        let mut sums = Adder::new(self.ledger.weight_count());
        for news in before.frontier().lacks(self.ledger.frontier()) {
            sums.add_sums(&self.log.merged(news.origin, news.from, news.to)?.sums);
        }
        sums.finish()
    }

    fn replace(&mut self, ledger: Ledger, log: Vec<LogEntry>, damaged: bool, effects: &mut Vec<Effect>) {
        let before = std::mem::replace(&mut self.ledger, ledger);
        let mut theirs = by_origin(log);
        for news in before.frontier().lacks(self.ledger.frontier()) {
            let theirs = theirs.remove(&news.origin).unwrap_or_default();
            self.log.adopt(news.origin, news.to, theirs.into_iter());
        }
        if damaged {
            effects.push(Effect::Healed);
        }
        let sums = if damaged {
            self.news_since(&before)
        } else {
            Sums::between(before.counts(), self.ledger.counts())
        };
        effects.push(match sums {
            Some(sums) => Effect::Jump(Box::new(Jump {
                origin: None,
                sums,
                batches: self.ledger.batches() - before.batches(),
                samples: self.ledger.samples().saturating_sub(before.samples()),
                cursors: self.ledger.cursors().clone(),
            })),
            None => Effect::RestartWorkers,
        });
        let nodes: Vec<NodeId> = self.peers.keys().copied().collect();
        for node in nodes {
            self.tell(node, effects);
        }
        self.trim();
    }
}

/// A log's entries by their origins.
fn by_origin(log: Vec<LogEntry>) -> BTreeMap<OriginId, Vec<LogEntry>> {
    let mut entries: BTreeMap<OriginId, Vec<LogEntry>> = BTreeMap::new();
    for entry in log {
        entries.entry(entry.origin).or_default().push(entry);
    }
    entries
}
