//! The contribution factors that follow from announced losses: the fraction of its difference that each worker emits in
//! a round.

use protocol::ids::OriginId;
use protocol::weights::contribution::Contribution;

/// The last loss that an origin (a worker) has announced.
#[derive(Clone, Copy, Debug)]
pub(super) struct AnnouncedLoss {
    pub(super) origin: OriginId,
    pub(super) slot: u32,
    pub(super) loss: f32,
    /// True if the loss belongs to the round whose contribution factors are computed, or to a later one.
    pub(super) is_of_round: bool,
}

impl AnnouncedLoss {
    fn is_a_loss(&self) -> bool {
        self.loss.is_finite() && self.loss >= 0.0
    }
}

/// Returns a contribution factor (the fraction of its difference that a worker emits) in proportion to the worker's
/// loss, among `workers` workers. Workers with unknown losses count with the mean of the known ones; a value that is
/// not a loss (negative or not finite) has the factor 0. Rounding would distort very small factors, so none is smaller
/// than 1/`SMALLEST` of an equal one.
pub(super) fn by_loss(origin: OriginId, losses: &[AnnouncedLoss], workers: u32) -> Contribution {
    /// Limit on small contribution factors (the fractions of their differences that workers emit): none is smaller than
    /// an equal share divided by this number.
    const SMALLEST: u64 = 64;
    let numbers = || losses.iter().filter(|one| one.is_a_loss());
    let sum: f64 = numbers().map(|one| f64::from(one.loss)).sum();
    let known = numbers().count();
    if known == 0 || sum <= 0.0 {
        return Contribution::of_one_in(workers);
    }
    let Some(own) = numbers().find(|one| one.origin == origin) else {
        return Contribution::NOTHING;
    };
    let unknown = (workers as usize).saturating_sub(losses.len());
    let all = sum * (known + unknown) as f64 / known as f64;
    Contribution::nearest(f64::from(own.loss) / all).at_least(SMALLEST, Contribution::of_one_in(workers))
}

/// Returns the contribution factor (the fraction of its difference that a worker emits): 1 for the worker with the
/// lowest loss (of several, the one with the first slot), 0 for the others.
pub(super) fn of_the_best(origin: OriginId, losses: &[AnnouncedLoss]) -> Contribution {
    let of_round = losses.iter().filter(|one| one.is_of_round && one.is_a_loss());
    let order = |a: &&AnnouncedLoss, b: &&AnnouncedLoss| {
        (a.loss.total_cmp(&b.loss)).then((a.slot, a.origin).cmp(&(b.slot, b.origin)))
    };
    match of_round.min_by(order) {
        Some(best) if best.origin == origin => Contribution::ALL,
        _ => Contribution::NOTHING,
    }
}

/// Returns the contribution factor (the fraction of its difference that a worker emits): 1 for the worker of the first
/// slot, 0 for the others.
pub(super) fn of_the_first(origin: OriginId, losses: &[AnnouncedLoss]) -> Contribution {
    let of_round = losses.iter().filter(|one| one.is_of_round);
    match of_round.min_by_key(|one| (one.slot, one.origin)) {
        Some(first) if first.origin == origin => Contribution::ALL,
        _ => Contribution::NOTHING,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn losses(losses: &[f32]) -> Vec<AnnouncedLoss> {
        let one = |(slot, &loss): (u32, &f32)| AnnouncedLoss {
            origin: OriginId(1000 - u64::from(slot)),
            slot,
            loss,
            is_of_round: true,
        };
        (0..).zip(losses).map(one).collect()
    }

    #[test]
    fn equal_losses_have_equal_shares_to_the_bit() {
        for workers in 1..200u32 {
            for loss in [0.3, 2.3, 1e-9, 7e20] {
                let losses = losses(&vec![loss; workers as usize]);
                assert_eq!(
                    by_loss(losses[0].origin, &losses, workers),
                    Contribution::of_one_in(workers),
                    "{workers} workers with loss {loss}"
                );
            }
        }
    }

    #[test]
    fn shares_follow_losses_and_add_up() {
        let losses = losses(&[1.0, 3.0, 4.0]);
        let weighting: Vec<Contribution> = losses.iter().map(|one| by_loss(one.origin, &losses, 3)).collect();
        assert_eq!(weighting, [0.125, 0.375, 0.5].map(Contribution::nearest));
        // A fourth worker whose loss is unknown counts with the mean of the others.
        assert_eq!(by_loss(losses[0].origin, &losses, 4), Contribution::nearest(3.0 / 32.0));
    }

    #[test]
    fn what_is_no_loss_has_no_share() {
        let mut losses = losses(&[f32::NAN, 3.0, -1.0]);
        assert_eq!(by_loss(losses[0].origin, &losses, 3), Contribution::NOTHING);
        assert_eq!(by_loss(losses[1].origin, &losses, 3), Contribution::ALL);
        assert_eq!(of_the_best(losses[2].origin, &losses), Contribution::NOTHING);
        assert_eq!(of_the_best(losses[1].origin, &losses), Contribution::ALL);
        losses[1].loss = f32::NAN;
        assert_eq!(by_loss(losses[1].origin, &losses, 3), Contribution::of_one_in(3));
        assert_eq!(of_the_best(losses[1].origin, &losses), Contribution::NOTHING);
        losses[1].loss = 0.0;
        assert_eq!(by_loss(losses[1].origin, &losses[1..2], 2), Contribution::of_one_in(2));
    }

    #[test]
    fn the_best_of_this_round_takes_all() {
        let mut losses = losses(&[0.5, 0.2, 0.2, 0.1]);
        losses[3].is_of_round = false;
        let best: Vec<Contribution> = losses.iter().map(|one| of_the_best(one.origin, &losses)).collect();
        assert_eq!(
            best,
            [
                Contribution::NOTHING,
                Contribution::ALL,
                Contribution::NOTHING,
                Contribution::NOTHING
            ]
        );
    }

    #[test]
    fn the_first_slot_has_all_whatever_its_loss() {
        let losses = losses(&[9.0, 0.1, f32::NAN]);
        let weighting = losses.iter().map(|one| of_the_first(one.origin, &losses));
        assert_eq!(
            weighting.collect::<Vec<_>>(),
            [Contribution::ALL, Contribution::NOTHING, Contribution::NOTHING]
        );
    }
}
