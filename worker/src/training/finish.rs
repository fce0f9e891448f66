//! A pending order to finish, with limits on the evaluation of the pipeline before it.

use std::time::Duration;

use protocol::wire::attach::SaveOrder;

/// Time for which a pipeline's leader waits for an answer before it finishes the run without an evaluation: a worker
/// that hangs is replaced after ten seconds, and its successor opens the data first.
const SILENCE_MAX: Duration = Duration::from_mins(1);
/// Largest number of broken evaluations at the end of a run, so that a worker that dies in each of them does not hold
/// up the end.
const BREAKS_MAX: u32 = 5;

/// Order to finish the run, which may wait until the pipeline's weights are evaluated.
#[derive(Debug)]
pub(super) struct Finish {
    /// File to save the final model in; `None` if this worker does not save it.
    pub(super) order: Option<SaveOrder>,
    /// Time of the last progress towards the evaluation of the pipeline's final weights.
    advanced: Duration,
    /// Number of evaluations at the end of the run that broke with their pipeline.
    breaks: u32,
}

impl Finish {
    pub(super) fn new(order: Option<SaveOrder>, now: Duration) -> Self {
        Self {
            order,
            advanced: now,
            breaks: 0,
        }
    }

    /// True if the order to finish asks for an evaluation of the pipeline first, and the limits on time and attempts
    /// allow one.
    pub(super) fn measures(&self, now: Duration) -> bool {
        let is_ordered = self.order.as_ref().is_some_and(|order| order.with_pipeline);
        is_ordered && self.breaks < BREAKS_MAX && now.saturating_sub(self.advanced) < SILENCE_MAX
    }

    /// Records that the evaluation of the final weights, which precedes the end of the run, began or made progress at
    /// this time. The evaluation is given up if it makes no progress for long.
    pub(super) fn advanced(&mut self, now: Duration) {
        self.advanced = now;
    }

    /// Records that the pipeline broke during the evaluation before the end.
    pub(super) fn broke(&mut self, now: Duration) {
        self.breaks += 1;
        self.advanced = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::log::frontier::Frontier;

    fn finish(with_pipeline: bool, now: Duration) -> Finish {
        let order = SaveOrder {
            path: "model".into(),
            frontier: Frontier::default(),
            with_pipeline,
        };
        Finish::new(Some(order), now)
    }

    #[test]
    fn a_pipeline_is_tried_for_a_while_and_anew_after_it_broke_but_not_for_ever() {
        let start = Duration::from_secs(9);
        let mut finish = finish(true, start);
        let mut now = start;
        for _ in 0..BREAKS_MAX {
            assert!(finish.measures(now + SILENCE_MAX / 2));
            assert!(!finish.measures(now + SILENCE_MAX));
            now += SILENCE_MAX / 2;
            finish.broke(now);
        }
        assert!(!finish.measures(now));
    }

    #[test]
    fn what_is_only_saved_or_told_waits_for_nobody() {
        let now = Duration::from_secs(9);
        assert!(!finish(false, now).measures(now));
        assert!(!Finish::new(None, now).measures(now));
    }
}
