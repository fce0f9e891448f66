//! The comparison of a bundle (the sum of one batch from each of several origins) with a ledger that may have some of
//! its batches.

use std::collections::BTreeSet;

use protocol::ids::OriginId;
use protocol::log::batch::{Batch, Header, Payload};
use protocol::log::bundle::{Bundle, digest_of};
use protocol::weights::dense::{Dense, Sign, add_up};

use super::log::Log;
use crate::ledger::Ledger;
use crate::planted::{Bug, planted};

/// The result of comparing a bundle (the sum of one batch from each of several workers) with a ledger (a node's
/// replica).
pub(super) enum BundleCheck {
    /// The bundle (a sum of several workers' batches) without the batches that the node already has. It has no headers
    /// if the node has them all.
    New(Bundle),
    /// The bundle (a sum of several workers' batches) must wait: the node lacks batches that precede the bundle's.
    Later,
    /// The bundle (a sum of several workers' batches) is not applicable: the node has some of its batches, but their
    /// own sum is unknown, so they cannot be subtracted.
    Cannot,
}

/// Subtracts from a bundle (the sum of one batch from each of several workers) the batches that a node already has, so
/// that the rest can be applied. The changes of these batches are looked up in `logs`.
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
        let by_itself = |log: &&Log| known_by_itself(origin, sequence, &known, log, ledger.weight_count());
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

/// Returns true if a node lacks batches that precede those of a bundle (a sum of several workers' batches).
pub(super) fn is_early(bundle: &Bundle, ledger: &Ledger) -> bool {
    let is_early = |header: &Header| ledger.frontier().applied(header.origin) + 1 < header.sequence;
    bundle.headers.iter().any(is_early)
}

/// Accepts the remainder of a bundle (a sum of several workers' batches) if its movements of weights have the digest
/// that its headers promise.
fn check(rest: Bundle) -> BundleCheck {
    if rest.headers.is_empty() || rest.dense.digest() == digest_of(&rest.headers) {
        BundleCheck::New(rest)
    } else {
        BundleCheck::Cannot
    }
}

/// Finds a batch's movements of weights in a log: alone, or as the sum of a bundle whose batches the node all has.
/// Returns the sum with the names of its batches, or `None` if the batch's movements are unknown.
fn known_by_itself(
    origin: OriginId,
    sequence: u64,
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
