//! Bundles, taken and made: rounds that are added up on their way, where the strategy says so.

use std::collections::BTreeSet;
use std::sync::Arc;

use protocol::batch::{Batch, Header, OriginStatus, Payload, RoundPhase};
use protocol::bundle::{Bundle, digest_of};
use protocol::dense::{Dense, Sign, add_up};
use protocol::ids::{NodeId, OriginId};
use protocol::wire::link::Message;
use protocol::wire::part::RoundPart;

use super::bundling::{Bundling, BundlingOutcome};
use super::core::Exchange;
use super::event::Effect;
use super::log::Log;
use super::planted::{Bug, planted};
use crate::ledger::{Ledger, Outcome};

/// What a bundle is for a ledger.
pub(super) enum BundleCheck {
    /// What it would add to it; nothing, if no header is left.
    New(Bundle),
    /// Batches before it are missing.
    Later,
    /// Some of it is here, and is not known by itself.
    Cannot,
}

impl Exchange {
    /// One of this node's workers has made a batch: it may be for the round that is to be added up.
    pub(super) fn offer(&mut self, batch: Batch, effects: &mut Vec<Effect>) {
        let (Some(bundling), Some(barrier)) = (&mut self.bundling, &self.barrier) else {
            return;
        };
        if is_share(&batch.header.status) {
            let mut follows = BundlingOutcome::default();
            let members = barrier.members(&self.origins);
            bundling.offer(batch, &members, &mut follows);
            self.carry_out(follows, effects);
        }
    }

    /// A part of a round comes from a peer.
    pub(super) fn take_part(&mut self, from: NodeId, part: RoundPart, effects: &mut Vec<Effect>) {
        if self.newcomer || self.frozen {
            return;
        }
        if let Some(bundling) = &mut self.bundling {
            let mut follows = BundlingOutcome::default();
            bundling.take(from, part, &mut follows);
            self.carry_out(follows, effects);
        }
    }

    /// A member sends its batch of a round by itself: it does not add it up with the others.
    pub(super) fn hear_single(&mut self, origin_node: NodeId, status: &OriginStatus, effects: &mut Vec<Effect>) {
        let Some(bundling) = &mut self.bundling else {
            return;
        };
        let goes_alone = |(round, members): (u64, &[NodeId])| status.round >= round && members.contains(&origin_node);
        if is_share(status) && bundling.open().is_some_and(goes_alone) {
            let mut follows = BundlingOutcome::default();
            bundling.give_up(true, &mut follows);
            self.carry_out(follows, effects);
        }
    }

    /// Goes on with the open round, as far as what has happened allows.
    pub(super) fn go_on_bundling(&mut self, effects: &mut Vec<Effect>) {
        let (Some(bundling), Some(barrier)) = (&mut self.bundling, &self.barrier) else {
            return;
        };
        let mut follows = BundlingOutcome::default();
        let members = barrier.members(&self.origins);
        let lost = |(_, open): (u64, &[NodeId])| open.iter().any(|member| !members.contains(member));
        if bundling.open().is_some_and(lost) {
            bundling.give_up(false, &mut follows);
        }
        if let Some(round) = bundling.is_to_begin()
            && barrier.has_come(self.me, round, &self.origins)
        {
            bundling.begin(&mut follows);
        }
        self.carry_out(follows, effects);
        self.try_pending(effects);
    }

    /// Applies the round that is whole, if what comes before it is here.
    fn try_pending(&mut self, effects: &mut Vec<Effect>) {
        let pending = self.bundling.as_ref().and_then(|bundling| bundling.pending());
        let Some(bundle) = pending.filter(|_| !self.frozen && !self.newcomer) else {
            return;
        };
        let are_known = bundle.batches().all(|(origin, _)| self.origins.contains_key(&origin));
        if !are_known || is_early(bundle, &self.ledger) {
            return;
        }
        let Some(bundle) = self.bundling.as_mut().and_then(Bundling::take_pending) else {
            return;
        };
        let applied = match self.check_bundle(bundle) {
            BundleCheck::New(rest) => self.apply_bundle(rest, effects),
            BundleCheck::Later | BundleCheck::Cannot => false,
        };
        let Some(bundling) = &mut self.bundling else {
            return;
        };
        let mut follows = BundlingOutcome::default();
        if applied {
            bundling.succeed();
            self.tell_round(effects);
        } else {
            bundling.give_up(true, &mut follows);
        }
        self.carry_out(follows, effects);
    }

    /// Tells all at once what this node has after a round, so that nothing of it is kept for long.
    pub(super) fn tell_round(&mut self, effects: &mut Vec<Effect>) {
        let nodes: Vec<NodeId> = self.peers.keys().copied().collect();
        for node in nodes {
            self.tell(node, effects);
            self.mark(node, 0, effects);
        }
    }

    pub(super) fn tick_bundling(&mut self, effects: &mut Vec<Effect>) {
        let (Some(bundling), Some(barrier)) = (&mut self.bundling, &self.barrier) else {
            return;
        };
        let mut follows = BundlingOutcome::default();
        bundling.tick(barrier.patience_for_bundles(), &mut follows);
        self.carry_out(follows, effects);
    }

    fn carry_out(&mut self, follows: BundlingOutcome, effects: &mut Vec<Effect>) {
        effects.extend(follows.out.into_iter().map(|(to, part)| Effect::Send {
            to,
            message: Message::Part(part),
        }));
        if follows.let_go {
            self.pump_all(effects);
        }
    }

    /// What a bundle is for this node's ledger.
    pub(super) fn check_bundle(&self, bundle: Bundle) -> BundleCheck {
        rest_of(bundle, &self.ledger, &[&self.log])
    }

    /// Applies what is left of a bundle, keeps it and hands it to the workers. Whether it is in the ledger now.
    pub(super) fn apply_bundle(&mut self, mut rest: Bundle, effects: &mut Vec<Effect>) -> bool {
        if rest.headers.is_empty() {
            return true;
        }
        // Nobody else can have made batches of this node's own origins.
        let is_own = |header: &Header| self.node_of(header.origin) == Some(self.me);
        if rest.headers.iter().any(is_own) {
            return false;
        }
        let Some(bytes) = rest.encode() else {
            return false;
        };
        if rest.headers.len() > 1 && planted(Bug::ForgottenOrigin) {
            rest.headers.pop();
        }
        let Ok(outcome @ (Outcome::Applied(_) | Outcome::Diverged(_))) = self.ledger.apply_bundle(&rest) else {
            return false;
        };
        let bytes: Arc<[u8]> = bytes.into();
        self.log.append_bundle(&rest, &bytes);
        effects.push(Effect::Bundle(bytes));
        for header in &rest.headers {
            let message = (header.status, Some(header.loss));
            self.note(header.origin, header.sequence, message, effects);
        }
        self.note_outcome(outcome, effects);
        true
    }
}

/// Whether a batch holds its origin's share of a round.
fn is_share(status: &OriginStatus) -> bool {
    status.round_phase == RoundPhase::Contributes && !status.last && !status.stop
}

/// What a bundle is for a ledger whose latest batches these logs have: without those that the ledger has already.
pub(super) fn rest_of(bundle: Bundle, ledger: &Ledger, logs: &[&Log]) -> BundleCheck {
    if is_early(&bundle, ledger) {
        return BundleCheck::Later;
    }
    let Bundle { headers, dense } = bundle;
    let is_known = |header: &Header| ledger.frontier().applied(header.origin) >= header.sequence;
    let (known, new): (Vec<Header>, Vec<Header>) = headers.into_iter().partition(is_known);
    if known.is_empty() || new.is_empty() {
        return check(Bundle { headers: new, dense });
    }
    if planted(Bug::BundleAnywhere) {
        return BundleCheck::New(Bundle { headers: new, dense });
    }
    let known: BTreeSet<(OriginId, u64)> = known.iter().map(|header| (header.origin, header.sequence)).collect();
    let first = dense.first();
    let mut steps = dense.into_steps();
    let mut left = known.clone();
    while let Some(&(origin, sequence)) = left.first() {
        let by_itself = |log: &&Log| known_by_itself((origin, sequence), &known, log, ledger.weight_count());
        let Some((batches, dense)) = logs.iter().find_map(by_itself) else {
            return BundleCheck::Cannot;
        };
        for batch in batches {
            left.remove(&batch);
        }
        let is_alike = (dense.first(), dense.steps().len()) == (first, steps.len());
        let moves_nothing = dense.steps().is_empty();
        if !(moves_nothing || is_alike && add_up(&mut steps, dense.steps(), Sign::Minus)) {
            return BundleCheck::Cannot;
        }
    }
    match Dense::checked(first, steps, ledger.weight_count()) {
        Some(dense) => check(Bundle { headers: new, dense }),
        None => BundleCheck::Cannot,
    }
}

/// Whether batches that come before a bundle's are missing in a ledger.
fn is_early(bundle: &Bundle, ledger: &Ledger) -> bool {
    let is_early = |header: &Header| ledger.frontier().applied(header.origin) + 1 < header.sequence;
    bundle.headers.iter().any(is_early)
}

/// What is left must be what its headers say.
fn check(rest: Bundle) -> BundleCheck {
    if rest.headers.is_empty() || rest.dense.digest() == digest_of(&rest.headers) {
        BundleCheck::New(rest)
    } else {
        BundleCheck::Cannot
    }
}

/// The steps of a batch that a log has, alone or together with others that are known, too; and which those are. None, if it
/// is not known by itself.
fn known_by_itself(
    (origin, sequence): (OriginId, u64),
    known: &BTreeSet<(OriginId, u64)>,
    log: &Log,
    weights: usize,
) -> Option<(Vec<(OriginId, u64)>, Dense)> {
    if let Some(bytes) = log.get(origin, sequence) {
        let dense = match Batch::decode(bytes, weights).ok()?.payload {
            Payload::Dense(dense) => dense,
            payload if payload.is_empty() => Dense::default(),
            _ => return None,
        };
        return Some((vec![(origin, sequence)], dense));
    }
    let before = sequence.checked_sub(1)?;
    let batches = log.bundled_after(origin, before)?;
    if !batches.iter().all(|batch| known.contains(batch)) {
        return None;
    }
    let bytes = &log.after(origin, before)?.bytes;
    let dense = Bundle::decode(bytes, weights).ok()?.dense;
    Some((batches.to_vec(), dense))
}
