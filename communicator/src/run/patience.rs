//! Early stopping: ends a run whose evaluation loss no longer falls.

/// Lowest evaluation loss that this node has measured, and the number of evaluations in a row that did not come below
/// it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    best: f64,
    in_vain: u32,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            best: f64::INFINITY,
            in_vain: 0,
        }
    }
}

impl Patience {
    /// Records an evaluation's loss. Returns true if `limit` evaluations in a row have not lowered the loss; a loss
    /// that is not a number does not lower it.
    pub(super) fn note_loss(&mut self, loss: f64, limit: Option<u32>) -> bool {
        if loss < self.best {
            *self = Self { best: loss, in_vain: 0 };
        } else {
            self.in_vain = self.in_vain.saturating_add(1);
        }
        limit.is_some_and(|limit| self.in_vain >= limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends_after(losses: &[f64], limit: Option<u32>) -> Option<usize> {
        let mut patience = Patience::default();
        losses.iter().position(|&loss| patience.note_loss(loss, limit))
    }

    #[test]
    fn only_evaluations_in_a_row_count() {
        let losses = [0.9, 0.8, 0.8, 0.7, 0.71, 0.7, 0.69, 0.8, 0.8, 0.8];
        assert_eq!(ends_after(&losses, Some(1)), Some(2), "an equal loss is no improvement");
        assert_eq!(ends_after(&losses, Some(2)), Some(5));
        assert_eq!(ends_after(&losses, Some(3)), Some(9));
        assert_eq!(ends_after(&losses, Some(4)), None);
        assert_eq!(ends_after(&losses, None), None);
    }

    #[test]
    fn what_is_no_number_is_no_better() {
        assert_eq!(ends_after(&[f64::NAN, f64::NAN, 0.5], Some(2)), Some(1));
    }
}
