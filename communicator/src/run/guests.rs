//! Guests: nodes that join a run after it has begun, and the places that they take.

use protocol::ids::NodeId;
use protocol::wire::run_beat::ParticipantState;
use protocol::wire::run_plan::{Participant, RunPlan};

use super::active::Scope;
use super::members::Members;

/// Returns this node as a guest (a participant that comes late) of a run; `None` if the run has no place for it. A
/// pipeline has a place only where a node was given up.
pub(super) fn as_guest(
    (members, asked): (&Members, NodeId),
    plan: &RunPlan,
    scope: &Scope<'_>,
    workers: usize,
) -> Option<Participant> {
    let guest = Participant {
        node: scope.me.id,
        name: scope.me.name.clone(),
        address: scope.me.address,
        workers,
        guest: true,
        lacks_first_weights: false,
        takes: None,
        life: plan.next_life(&scope.me.name),
    };
    let states = members.states();
    let is_lost = |node| is_given_up_by_all(plan, &states, asked, node);
    plan.topology().placed(guest, is_lost)
}

/// Returns true if all participants have given `node` up, as far as the node `asked` knows. Participants that `asked`
/// has given up, too, are not counted: their last states may be old.
pub(super) fn is_given_up_by_all(
    plan: &RunPlan,
    states: &[(NodeId, ParticipantState)],
    asked: NodeId,
    node: NodeId,
) -> bool {
    let Some((_, asked)) = states.iter().find(|(one, _)| *one == asked) else {
        return false;
    };
    let speaks = |one: NodeId, state: &ParticipantState| {
        let is_in_it = plan.participant(one).is_some() && !state.ended && !state.withdrawn;
        is_in_it && state.number > 0 && !asked.gives_up(one)
    };
    let mut voices = states.iter().filter(|(one, state)| speaks(*one, state));
    asked.gives_up(node) && voices.all(|(_, state)| state.gives_up(node))
}

#[cfg(test)]
mod tests {
    use protocol::wire::run_beat::GivenUp;

    use super::*;
    use crate::small_plan::small_plan;

    #[test]
    fn a_place_is_vacant_when_all_who_are_there_say_so() {
        let plan = small_plan(3);
        let ids: Vec<NodeId> = plan.participants.iter().map(|one| one.node).collect();
        let says = |lost: &[NodeId]| ParticipantState {
            number: 1,
            given_up: lost.iter().map(|&node| (node, GivenUp::Silent)).collect(),
            ..ParticipantState::default()
        };
        let lost = |states: &[(NodeId, ParticipantState)]| is_given_up_by_all(&plan, states, ids[0], ids[2]);
        let (one, other) = (ids[0], ids[1]);
        assert!(lost(&[(one, says(&[ids[2]])), (other, says(&[ids[2]]))]));
        assert!(
            !lost(&[(one, says(&[ids[2]])), (other, says(&[]))]),
            "another participant still waits for the node"
        );
        assert!(!lost(&[(one, says(&[])), (other, says(&[ids[2]]))]));
        assert!(
            lost(&[(one, says(&[other, ids[2]])), (other, says(&[]))]),
            "the state of a lost participant does not count"
        );
        assert!(
            lost(&[(one, says(&[ids[2]])), (NodeId(99), says(&[]))]),
            "the state of a node outside the run does not count"
        );
        assert!(!lost(&[]));
    }
}
