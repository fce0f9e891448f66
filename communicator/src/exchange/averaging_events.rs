//! Sequential averaging as they come to an exchange: from its workers, and from peers.

use protocol::ids::OriginId;
use protocol::wire::link::Message;
use protocol::wire::prefix::Prefix;

use super::core::Exchange;
use super::event::Effect;
use super::sequential_averaging::{AveragingStep, rotated};

impl Exchange {
    /// One of this node's workers has come to a pass.
    pub(super) fn pass(&mut self, own: Prefix, effects: &mut Vec<Effect>) {
        let origin = own.head.from;
        let (Some(averaging), Some(barrier)) = (&mut self.averaging, &self.barrier) else {
            return effects.push(Effect::WorkerFault(
                "the worker sent a partial average, but this run does not average sequentially".into(),
            ));
        };
        let chain = rotated(barrier.in_round_with(origin, &self.origins), own.head.pass);
        let mut steps = Vec::new();
        averaging.begin(own, chain, &mut steps);
        carry_out(steps, effects);
    }

    /// A prefix comes for one of this node's workers. What is for nobody here, or of an unknown worker, is not kept.
    pub(super) fn take_prefix(&mut self, prefix: Prefix, effects: &mut Vec<Effect>) {
        let is_known = self.origins.contains_key(&prefix.head.from);
        let is_mine = self.node_of(prefix.head.to) == Some(self.me);
        if let Some(averaging) = self.averaging.as_mut().filter(|_| is_known && is_mine) {
            let mut steps = Vec::new();
            averaging.take(prefix, &mut steps);
            carry_out(steps, effects);
        }
    }

    pub(super) fn tick_passes(&mut self, effects: &mut Vec<Effect>) {
        let (Some(averaging), Some(barrier)) = (&mut self.averaging, &self.barrier) else {
            return;
        };
        let mut steps = Vec::new();
        let is_there = |waits: OriginId, before: OriginId| {
            let with = barrier.in_round_with(waits, &self.origins);
            with.iter().any(|(origin, _)| *origin == before)
        };
        averaging.tick(barrier.late_after(), is_there, &mut steps);
        carry_out(steps, effects);
    }
}

fn carry_out(steps: Vec<AveragingStep>, effects: &mut Vec<Effect>) {
    effects.extend(steps.into_iter().map(|step| match step {
        AveragingStep::GoOn(origin, prefix) => Effect::Pass { origin, prefix },
        AveragingStep::Send(to, prefix) => Effect::Send {
            to,
            message: Message::Prefix(prefix),
        },
    }));
}
