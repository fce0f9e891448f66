//! Beats of other nodes: about this node's run, about runs that this node may join, and about runs elsewhere.

use std::time::Duration;

use protocol::ids::NodeId;
use protocol::reasons::RunFailure;
use protocol::wire::run_beat::RunBeat;

use super::active::ActiveRun;
use super::core::RunCore;
use super::event::RunEffect;
use super::guests::is_given_up_by_all;

impl RunCore {
    /// Handles a peer's beat (periodic state message), which describes the runs that the peer knows.
    pub(super) fn beat(&mut self, from: NodeId, runs: Vec<RunBeat>, now: Duration, effects: &mut Vec<RunEffect>) {
        self.note_elsewhere(from, &runs);
        let known = |run: &ActiveRun| runs.iter().any(|beat| beat.run == run.run);
        let own = runs
            .iter()
            .flat_map(|beat| &beat.states)
            .filter(|(node, _)| *node == from);
        let newest = own.map(|(_, state)| state.number).max();
        self.with_run(now, effects, |run, scope| {
            if let Some(number) = newest
                && !run.is_over()
                && !known(run)
                && run.members.has_spoken(from)
            {
                // The peer took part in this run and takes part in another one now.
                run.news |= run.members.turns_elsewhere(from, number);
                if run.is_being_prepared() && run.coordinator == from {
                    run.fail(RunFailure::Cancelled, scope);
                }
            }
        });
        for (index, beat) in runs.into_iter().enumerate() {
            let called_off = |run: &ActiveRun| run.is_over() && !run.took_part();
            if self
                .current
                .as_ref()
                .is_some_and(|run| run.run == beat.run && !called_off(run))
            {
                self.with_run(now, effects, |run, scope| run.hear_peer(from, beat, scope));
            } else if index == 0 {
                self.try_join(from, beat, now);
            }
        }
    }

    /// Records the run that goes on at a node, so that a client's stop request can be forwarded there.
    fn note_elsewhere(&mut self, from: NodeId, runs: &[RunBeat]) {
        let goes_on = |beat: &&RunBeat| {
            let own = beat.states.iter().find(|(node, _)| *node == from);
            beat.plan.is_some() && own.is_some_and(|(_, state)| !state.ended)
        };
        match runs.first().filter(goes_on) {
            Some(beat) => self.elsewhere.insert(from, beat.run),
            None => self.elsewhere.remove(&from),
        };
    }

    /// Joins a peer's run as a guest (a node that comes late), unless this node is busy, has taken part in that run
    /// before, or finds no room in it.
    fn try_join(&mut self, from: NodeId, beat: RunBeat, now: Duration) {
        let busy = self.current.as_ref().is_some_and(|run| !run.is_over());
        let own = beat.states.iter().find(|(node, _)| *node == from);
        let going = own.is_some_and(|(_, state)| !state.ended && !state.closed && !state.withdrawn);
        let ends = beat.stop.is_some() || beat.diverged.is_some();
        let took_part = self.ended.contains(&(beat.run, true));
        let Some(plan) = beat.plan.filter(|_| !busy && going && !ends) else {
            return;
        };
        if plan.participant(self.me.id).is_some() || took_part {
            return;
        }
        let is_lost = |node| is_given_up_by_all(&plan, &beat.states, from, node);
        if !plan.topology().has_room(is_lost) {
            return;
        }
        tracing::info!(event = "run_joined", joins = %beat.run, "this node joins a run that is under way");
        let joins = self.preparing(beat.run, from, plan.job.clone(), Some(plan), now);
        self.enter(joins, now);
    }
}
