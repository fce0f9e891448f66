//! Who is there: participants that fall silent, return, come late, and what they say of the run.

use std::collections::BTreeSet;

use protocol::control::RunBeat;
use protocol::ids::NodeId;

use super::{Attached, Context, Current};
use crate::node::exchange::{ExchangeMessage, Standing};

impl Current {
    pub(in crate::node::run) fn live(&mut self, silent: BTreeSet<NodeId>, context: &Context, attached: &Attached) {
        self.silent = silent;
        self.tell_live();
        self.check_over(context, attached);
    }

    /// A participant will not be waited for any more; what it is, whether it may come back.
    pub(in crate::node::run) fn give_up(&mut self, node: NodeId, for_good: bool, context: &Context) {
        let takes_part = self
            .begin
            .as_ref()
            .is_some_and(|begin| begin.participant(node).is_some());
        if self.is_over() || !takes_part || node == context.me.id {
            return;
        }
        let news = self.given_up.insert(node) | (for_good && self.gone.insert(node));
        if news {
            tracing::warn!(%node, for_good, "a participant is not waited for any more");
            self.tell_live();
        }
    }

    /// A participant that was silent is heard again, and has not left the run for another.
    fn returned(&mut self, node: NodeId) {
        if !self.gone.contains(&node) && self.given_up.remove(&node) {
            tracing::info!(%node, "a participant is back");
            self.tell_live();
        }
    }

    /// Everybody who takes part in it, while it goes on.
    pub(in crate::node::run) fn participants(&self) -> impl Iterator<Item = NodeId> + '_ {
        let begin = self.begin.iter().filter(|_| !self.is_over());
        begin.flat_map(|begin| begin.participants.iter().map(|one| one.node))
    }

    pub(super) fn waited_for(&self) -> BTreeSet<NodeId> {
        let participants = self.begin.iter().flat_map(|begin| &begin.participants);
        let nodes = participants.map(|participant| participant.node);
        nodes.filter(|node| !self.given_up.contains(node)).collect()
    }

    pub(super) fn tell_live(&self) {
        if let Some(exchange) = &self.exchange {
            let _ = exchange.cast(ExchangeMessage::Live(Standing {
                live: self.waited_for(),
                silent: self.silent.union(&self.given_up).copied().collect(),
                gone: self.gone.clone(),
            }));
        }
    }

    /// A peer tells how far it is.
    pub(in crate::node::run) async fn peer(
        &mut self,
        from: NodeId,
        beat: RunBeat,
        context: &Context,
        attached: &Attached,
    ) {
        if self.is_over() {
            return;
        }
        if let Some(reason) = beat.failed {
            // Who did not take part, or not to the end, does not speak for those who do.
            let speaks = match &self.begin {
                Some(begin) => begin.participant(from).is_some() && !self.given_up.contains(&from),
                None => from == self.coordinator,
            };
            if speaks {
                self.fail(reason, context, attached);
            }
            return;
        }
        if beat.withdrawn {
            self.give_up(from, true, context);
            return;
        }
        self.returned(from);
        if self.is_guest(context) && self.seated.is_none() && (beat.settled.is_some() || beat.stop.is_some()) {
            self.withdraw("it ends before this node has caught up", context, attached);
            return;
        }
        if let Some(begin) = beat.begin {
            self.begin(begin, context, attached).await;
        }
        if let Some(reason) = beat.stop {
            self.stop(reason, context);
        }
        if let Some(settled) = beat.settled.filter(|_| !self.given_up.contains(&from)) {
            self.ending.settle(from, settled);
            self.check_over(context, attached);
        }
    }
}
