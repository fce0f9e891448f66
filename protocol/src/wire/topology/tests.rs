//! Two pipelines of three stages each, and runs whose nodes hold the whole model.

use super::*;
use crate::bounded::BoundedVec;
use crate::job::JobDraft;
use crate::job::data::DataInfo;
use crate::reasons::AllLeftOut;
use crate::weights::digest::Digest;

fn participant(id: u64) -> Participant {
    Participant {
        node: NodeId(id),
        name: format!("n{id}"),
        address: "127.0.0.1:1".parse().unwrap(),
        workers: 1,
        guest: false,
        lacks_first_weights: false,
        takes: None,
        life: 0,
    }
}

fn plan(exchange: &str, founders: &[u64]) -> RunPlan {
    let draft = JobDraft {
        exchange: Some(exchange.into()),
        ..JobDraft::default()
    };
    RunPlan {
        job: Box::new(draft.resolve().unwrap()),
        data: DataInfo::example(),
        first: Digest::default(),
        weights: 7,
        participants: founders.iter().copied().map(participant).collect(),
        resumed: Vec::new(),
        left_out: AllLeftOut::default(),
        chosen: BoundedVec::default(),
        succeeds: None,
    }
}

const MIDDLE: StageAddress = StageAddress { pipeline: 1, stage: 1 };

fn of_pipelines() -> RunPlan {
    plan("layers:groups=3", &[9, 3, 5, 4, 7, 1])
}

fn holder(plan: &RunPlan) -> Option<u64> {
    plan.topology().holder(MIDDLE).map(|one| one.node.0)
}

#[test]
fn pipelines_are_rows_of_participants() {
    let plan = of_pipelines();
    let topology = plan.topology();
    assert_eq!((plan.slots(), topology.workers(), topology.stages()), (2, 2, 3));
    assert_eq!(topology.place(NodeId(7)), Some(MIDDLE));
    assert_eq!((topology.stage(NodeId(7)), topology.stage(NodeId(4))), (1, 0));
    assert_eq!(holder(&plan), Some(7));
    assert_eq!(topology.slots_of(NodeId(1)), 1..2);
    assert!(topology.slots_of(NodeId(2)).is_empty());
    assert!(topology.same_slice(NodeId(3), NodeId(7)) && !topology.same_slice(NodeId(3), NodeId(5)));
    assert!(topology.are_in_one_pipeline(NodeId(9), NodeId(5)));
    assert!(!topology.are_in_one_pipeline(NodeId(9), NodeId(4)));
    let linked = [3, 5, 4, 7, 1].map(|node| topology.are_linked(NodeId(9), NodeId(node)));
    assert_eq!(linked, [true, true, true, false, false]);
    let lost = |node| node == NodeId(7);
    assert_eq!(topology.vacancies(lost), [MIDDLE]);
    assert_eq!(topology.slots_without(lost, lost), BTreeSet::from([1]));
    assert!(topology.can_go_on_without(lost));
    assert!(!topology.can_go_on_without(|node| [NodeId(7), NodeId(9)].contains(&node)));
}

#[test]
fn the_last_to_take_a_place_over_holds_it() {
    let mut plan = of_pipelines();
    let lost = |node| node == NodeId(7);
    // Two nodes take the place over at the same time, and another one after both are lost.
    let placed = |plan: &RunPlan, id| plan.topology().placed(participant(id), lost).unwrap();
    let (one, other) = (placed(&plan, 8), placed(&plan, 10));
    assert_eq!(one.takes, Some(StageTakeover { place: MIDDLE, turn: 1 }));
    assert!(plan.admit(one.clone()) && !plan.admit(one) && plan.admit(other));
    let topology = plan.topology();
    assert_eq!(
        (topology.place(NodeId(8)), topology.slots_of(NodeId(8))),
        (Some(MIDDLE), 1..2)
    );
    assert_eq!(
        (topology.workers(), plan.slots()),
        (2, 2),
        "the number of pipelines must not change"
    );
    assert!(topology.same_slice(NodeId(3), NodeId(8)) && topology.are_in_one_pipeline(NodeId(1), NodeId(8)));
    assert_eq!(holder(&plan), Some(8));
    let replaced = |plan: &RunPlan| [7, 8, 10, 12, 1].map(|id| plan.topology().is_replaced(NodeId(id)));
    assert_eq!(replaced(&plan), [true, false, true, false, false]);
    assert_eq!(topology.vacancies(lost), []);
    assert!(topology.slots_without(lost, lost).is_empty() && !topology.has_room(lost));
    assert_eq!(topology.placed(participant(12), lost), None);
    let next = topology.placed(participant(12), |node| node == NodeId(8)).unwrap();
    assert!(plan.admit(next));
    assert_eq!(
        holder(&plan),
        Some(12),
        "a node that was given up must not get its stage back"
    );
    assert_eq!(replaced(&plan), [true, true, true, false, false]);
}

#[test]
fn guests_share_the_vacancies_out() {
    let plan = of_pipelines();
    let lost = |node| [NodeId(3), NodeId(7)].contains(&node);
    let many = Participant {
        workers: 4,
        ..participant(21)
    };
    let places = [participant(20), many].map(|guest| plan.topology().placed(guest, lost).unwrap());
    assert!(
        places
            .iter()
            .all(|guest| guest.workers == 1 && plan.topology().admits(guest))
    );
    let pipelines = places.map(|guest| guest.takes.unwrap().place.pipeline);
    assert_eq!(pipelines, [0, 1]);
    let beyond = |pipeline, stage| Participant {
        takes: Some(StageTakeover {
            place: StageAddress { pipeline, stage },
            turn: 1,
        }),
        ..participant(20)
    };
    for guest in [participant(20), beyond(2, 0), beyond(0, 3)] {
        assert!(!plan.topology().admits(&guest), "{:?}", guest.takes);
    }
}

#[test]
fn the_first_node_of_a_whole_pipeline_evaluates() {
    let mut plan = of_pipelines();
    let nodes = [9, 3, 4, 7].map(NodeId);
    let topology = plan.topology();
    assert_eq!(nodes.map(|node| topology.leads(node)), [true, false, true, false]);
    assert_eq!(nodes.map(|node| topology.is_led(node)), [false, true, false, true]);
    let without = |plan: &RunPlan, lost: u64| plan.topology().evaluator(|node| node != NodeId(lost));
    assert_eq!(
        (without(&plan, 1), without(&plan, 5)),
        (Some(NodeId(9)), Some(NodeId(4)))
    );
    let leads = |node, lost| topology.leads_whole_pipeline(NodeId(node), |node| node != NodeId(lost));
    assert_eq!([leads(9, 1), leads(9, 5), leads(3, 1)], [true, false, false]);
    assert!(topology.counts_samples_for(NodeId(3), NodeId(4)));
    assert!(!topology.counts_samples_for(NodeId(3), NodeId(3)));
    plan.job.trainers = Trainers::AtMost(1);
    assert!(!plan.topology().evaluates_by_itself());
    assert!(plan.topology().saves_stages() && plan.topology().needs_all_workers());
    assert!(!plan.topology().hands_over());
}

#[test]
fn nodes_that_hold_the_whole_model_are_all_alike() {
    let mut plan = plan("strom", &[9, 3, 5]);
    let topology = plan.topology();
    assert_eq!((topology.stages(), topology.workers()), (1, 3));
    let (one, other) = (NodeId(9), NodeId(3));
    assert!(topology.same_slice(one, other) && topology.are_linked(one, other));
    assert!(!topology.are_in_one_pipeline(one, other) && !topology.is_replaced(one));
    assert!(topology.leads(one) && !topology.is_led(one) && !topology.leads_whole_pipeline(one, |_| true));
    let lost = |node| node == NodeId(9);
    assert_eq!(topology.vacancies(lost), []);
    assert!(topology.has_room(lost) && topology.can_go_on_without(|_| true));
    assert_eq!(topology.slots_without(lost, lost), BTreeSet::from([0]));
    assert_eq!(topology.evaluator(|node| !lost(node)), Some(NodeId(3)));
    let guest = Participant {
        workers: 4,
        ..participant(20)
    };
    assert_eq!(topology.placed(guest.clone(), lost), Some(guest.clone()));
    assert!(topology.admits(&guest));
    assert!(topology.counts_samples_for(other, other) && !topology.counts_samples_for(other, one));
    assert_eq!((topology.weights(7), topology.held_stage(one)), (7, None));
    assert!(topology.hands_over() && !topology.saves_stages() && !topology.needs_all_workers());
    assert!(!topology.evaluates_by_itself());
    plan.job.trainers = Trainers::AtMost(1);
    assert!(plan.topology().evaluates_by_itself());
}

#[test]
fn stages_make_up_the_model() {
    let mut plan = plan("layers:groups=2", &[1, 2]);
    plan.job.model = "dense 8, relu, dense".parse().unwrap();
    plan.data.input = crate::job::model::Shape::Flat(3);
    let held = [1, 2].map(|node| plan.topology().held_stage(NodeId(node)).unwrap().layout.weights as u64);
    assert!(held.iter().all(|&weights| weights > 0));
    assert_eq!(plan.topology().weights(held[0]), held.iter().sum::<u64>());
}
