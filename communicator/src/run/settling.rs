//! Agreement on one result: participants get to the same batches, and each learns that all have agreed on them.
//!
//! ```text
//!  closed ──▶ all stand together ──▶ ballot ──▶ all vote alike ──▶ frozen ──▶ all are frozen ──▶ finishing
//!    ▲                                                                │
//!    └───────────── a member has moved on: it takes further batches ──┘
//! ```
//!
//! A ballot names the batches and the members of an end. A node that has cast one takes it back when a participant
//! returns, a guest comes or a batch arrives; then all count the attempt up, so that no ballot is ever cast twice. A
//! node that has seen that all vote alike is *frozen*: it takes no further batch. It thaws only when another member has
//! taken its ballot back, which a member does only before it is frozen itself, or for the same reason; so no member has
//! ended on the old ballots. A member that falls silent now is left out, but the batches stay: it may have ended with
//! them.

use std::collections::BTreeSet;

use protocol::ids::NodeId;
use protocol::wire::run_beat::GivenUp;

use super::active::{ActiveRun, Scope, State};
use super::event::ExchangeOrder;
use super::states::Finishing;
use crate::planted::{Bug, planted};

impl ActiveRun {
    /// Returns the members with which this node would end the run now.
    fn members_to_end(&self, scope: &Scope<'_>) -> BTreeSet<NodeId> {
        let mut members = self.members.waited_for(scope.now, scope.limits);
        // Nodes that hold other layers have other batches, and agree on them among themselves.
        if let Some(plan) = self.plan() {
            members.retain(|&node| plan.topology().same_slice(scope.me.id, node));
        }
        if planted(Bug::EndedAlone) {
            return BTreeSet::from([scope.me.id]);
        }
        if planted(Bug::ForgottenGuest)
            && let Some(plan) = self.plan()
        {
            members.retain(|&node| node == scope.me.id || !plan.is_guest(node));
        }
        members
    }

    /// Advances the agreement on the end of the run as far as possible.
    pub(super) fn settle(&mut self, scope: &mut Scope<'_>) {
        let State::Settling(exchanging, _) = &self.state else {
            return;
        };
        // Workers of later pipeline stages wait until the leader says that no minibatch follows, and the leader may be
        // gone.
        if !exchanging.stopped && self.leaders_have_ended(scope) {
            self.stop_workers(scope);
        }
        let State::Settling(exchanging, _) = &self.state else {
            return;
        };
        let progress = exchanging.progress;
        let own = &mut self.members.own;
        let before = own.clone();
        own.closed = exchanging.is_closed();
        own.fingerprint = progress.fingerprint;
        own.stands_by = exchanging.is_standing_by();
        own.catching_up = exchanging.is_moving(scope.now, scope.limits);
        if self.members.own.stands_by {
            self.go_back(false, scope);
        }
        if self.members.own.frozen {
            self.stay_frozen(scope);
        } else {
            self.vote(scope);
        }
        self.news |= self.members.own != before;
        let State::Settling(_, settling) = &self.state else {
            return;
        };
        if self.members.own.frozen && self.members.are_frozen(&settling.members) {
            let members = settling.members.clone();
            self.begin_to_finish(members, scope);
        } else {
            self.look_for_the_unreachable(scope);
        }
    }

    fn vote(&mut self, scope: &mut Scope<'_>) {
        let members = self.members_to_end(scope);
        let State::Settling(exchanging, settling) = &mut self.state else {
            return;
        };
        let progress = exchanging.progress;
        let fingerprint = self.members.own.fingerprint;
        let agreed = self.members.own.closed && !progress.damaged && self.members.stand_together(&members);
        let before = self.members.own.ballot;
        self.members.vote(&members, agreed);
        let mine = self.members.own.ballot;
        if before != mine && std::mem::take(&mut settling.freezing) {
            scope.order(ExchangeOrder::Thaw);
        }
        settling.members = members;
        if mine.is_none() || !self.members.vote_alike(&settling.members) {
            return;
        }
        if !settling.freezing {
            settling.freezing = true;
            settling.freezes += 1;
            let number = settling.freezes;
            scope.order(ExchangeOrder::Freeze { number, fingerprint });
        } else if progress.frozen == settling.freezes {
            self.members.own.frozen = true;
        }
    }

    fn stay_frozen(&mut self, scope: &mut Scope<'_>) {
        let (now, limits) = (scope.now, scope.limits);
        let State::Settling(_, settling) = &mut self.state else {
            return;
        };
        let Some(own) = self.members.own.ballot else {
            return;
        };
        self.members.leave_out_the_lost(&mut settling.members, now, limits);
        if self.members.has_moved_on(&settling.members, own.fingerprint) {
            self.members.take_back();
            settling.freezing = false;
            scope.order(ExchangeOrder::Thaw);
        }
    }

    /// Gives up members that cannot be reached. If all members have made their last batches, and for the settle limit
    /// no batch has moved between them although their batches differ, those with other batches than this node are given
    /// up.
    fn look_for_the_unreachable(&mut self, scope: &mut Scope<'_>) {
        let State::Settling(exchanging, settling) = &mut self.state else {
            return;
        };
        let states = settling.members.iter().filter_map(|&node| self.members.state(node));
        // This node's own worker that stands by waits for the others, so it is no excuse for them.
        let stands_by = self.members.own.stands_by && !exchanging.goes_back;
        let closed = states.clone().all(|state| state.closed || stands_by && state.stands_by);
        let moving = states.clone().any(|state| state.catching_up);
        let fingerprints: Vec<u64> = states.map(|state| state.fingerprint).collect();
        if !closed || moving || fingerprints != settling.fingerprints {
            settling.fingerprints = fingerprints;
            settling.unmoved = scope.now;
        }
        if scope.now.saturating_sub(settling.unmoved) < scope.limits.settle {
            return;
        }
        settling.unmoved = scope.now;
        if stands_by {
            return self.go_back(true, scope);
        }
        let own = self.members.own.fingerprint;
        let elsewhere: Vec<NodeId> = settling
            .members
            .iter()
            .copied()
            .filter(|&node| self.members.state(node).is_none_or(|state| state.fingerprint != own))
            .collect();
        for node in elsewhere {
            if self.members.break_with(node, GivenUp::OutOfReach) {
                tracing::warn!(
                    event = "participant_given_up",
                    peer = self.name(node),
                    "cannot exchange batches with a participant; this node gives the participant up"
                );
                self.news = true;
            }
        }
    }

    fn begin_to_finish(&mut self, members: BTreeSet<NodeId>, scope: &mut Scope<'_>) {
        self.news = true;
        let now = scope.now;
        self.change_state(|state| match state {
            State::Settling(exchanging, _) => State::Finishing(exchanging, Finishing::new(members, now)),
            other => other,
        });
        self.members.own.decided = true;
        scope.order(ExchangeOrder::Settle);
    }
}
