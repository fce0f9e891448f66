//! Tests of one node in two pipelines of three stages each, unless a test says otherwise. Nodes 1 to 3 are the first
//! pipeline.

use protocol::job::JobDraft;
use protocol::wire::run_plan::{Participant, StageTakeover};

use super::*;
use crate::small_plan::small_plan;

const WORKER: WorkerKey = WorkerKey(1);

struct Node {
    plan: RunPlan,
    core: PipelineNode,
}

impl Node {
    fn new(me: u64) -> Self {
        let mut plan = small_plan(6);
        let draft = JobDraft {
            exchange: Some("layers:groups=3".into()),
            ..JobDraft::default()
        };
        *plan.job = draft.resolve().unwrap();
        Self::of(me, plan)
    }

    fn of(me: u64, plan: RunPlan) -> Self {
        let core = PipelineNode::new(NodeId(me), &plan);
        Self { plan, core }
    }

    /// Adds links to these nodes.
    fn linked(mut self, nodes: &[u64]) -> Self {
        for &node in nodes {
            self.hear(PipelineEvent::LinkUp(NodeId(node)));
        }
        self
    }

    fn hear(&mut self, event: PipelineEvent) -> Vec<PipelineEffect> {
        let mut effects = Vec::new();
        self.core.handle(event, &self.plan, &mut effects);
        effects
    }

    fn sends(&mut self, bytes: &Arc<[u8]>) -> Vec<PipelineEffect> {
        let bytes = Arc::clone(bytes);
        self.hear(PipelineEvent::FromWorker { worker: WORKER, bytes })
    }

    fn receives(&mut self, from: u64, bytes: &Arc<[u8]>) -> Vec<PipelineEffect> {
        let (from, bytes) = (NodeId(from), Arc::clone(bytes));
        self.hear(PipelineEvent::FromPeer { from, bytes })
    }

    /// Makes exactly these nodes silent, and takes the given-up ones out of the live nodes.
    fn silent(&mut self, silent: &[u64], given_up: &[u64]) -> Vec<PipelineEffect> {
        let set = |nodes: &[u64]| nodes.iter().copied().map(NodeId).collect::<BTreeSet<_>>();
        let all = self.plan.participants.iter().map(|one| one.node);
        let given_up = set(given_up);
        self.hear(PipelineEvent::Liveness(Liveness {
            live: all.filter(|node| !given_up.contains(node)).collect(),
            silent: set(silent),
            gone: BTreeSet::new(),
        }))
    }

    /// Admits a node that takes over this place in a pipeline from a lost one.
    fn admits(&mut self, node: u64, place: StageAddress) -> Vec<PipelineEffect> {
        let guest = Participant {
            node: NodeId(node),
            guest: true,
            lacks_first_weights: false,
            takes: Some(StageTakeover { place, turn: 1 }),
            ..self.plan.participants[0].clone()
        };
        assert!(self.plan.admit(guest));
        self.hear(PipelineEvent::Admitted)
    }
}

fn place(pipeline: u32, stage: u8) -> StageAddress {
    StageAddress { pipeline, stage }
}

fn message(to: StageAddress, from: u8) -> Arc<[u8]> {
    let head = FlowHead {
        pipeline: to.pipeline,
        to: to.stage,
        from,
        generation: 0,
        body: FlowBody::Reset,
    };
    Flow::without_numbers(head).encode().unwrap().into()
}

fn send(to: u64, bytes: &Arc<[u8]>) -> PipelineEffect {
    let (to, bytes) = (NodeId(to), Arc::clone(bytes));
    PipelineEffect::Send { to, bytes }
}

fn slot(slot: usize, alive: bool) -> PipelineEffect {
    PipelineEffect::Slot { slot, alive }
}

#[test]
fn a_message_goes_to_the_holder_of_its_stage() {
    let mut node = Node::new(4).linked(&[5, 6, 1]);
    let forward = message(place(1, 2), 0);
    assert_eq!(node.sends(&forward), [send(6, &forward)]);
    node.admits(9, place(1, 2));
    assert_eq!(
        node.sends(&forward),
        [PipelineEffect::Broken],
        "there is no link to the new holder"
    );
    node = node.linked(&[9]);
    assert_eq!(node.sends(&forward), [send(9, &forward)]);
}

#[test]
fn a_message_to_no_stage_of_the_own_pipeline_disconnects_its_worker() {
    let mut node = Node::new(4).linked(&[5, 6, 1, 2, 3]);
    let torn: Arc<[u8]> = Arc::from(&[0x80][..]);
    let other_pipeline = message(place(0, 1), 0);
    let no_stage = message(place(1, 3), 0);
    let own_stage = message(place(1, 0), 0);
    for wrong in [torn, other_pipeline, no_stage, own_stage] {
        assert_eq!(node.sends(&wrong), [PipelineEffect::HangUp(WORKER)], "{wrong:?}");
    }
    let mut whole = Node::of(1, small_plan(2)).linked(&[2]);
    assert_eq!(
        whole.sends(&message(place(0, 1), 0)),
        [PipelineEffect::HangUp(WORKER)],
        "a run without pipelines has no stages"
    );
}

#[test]
fn a_message_comes_from_the_own_pipeline_to_the_own_stage() {
    let mut node = Node::new(5).linked(&[4, 6, 2]);
    let bytes = message(place(1, 1), 0);
    assert_eq!(node.receives(4, &bytes), [PipelineEffect::Deliver(Arc::clone(&bytes))]);
    assert_eq!(node.receives(2, &bytes), [], "node 2 is in another pipeline");
    assert_eq!(node.receives(4, &message(place(1, 2), 0)), []);
    assert_eq!(node.receives(4, &message(place(0, 1), 0)), []);
}

#[test]
fn a_replaced_node_is_not_listened_to() {
    let mut node = Node::new(5).linked(&[4]);
    node.admits(9, place(1, 0));
    node = node.linked(&[9]);
    let bytes = message(place(1, 1), 0);
    assert_eq!(node.receives(4, &bytes), []);
    assert_eq!(node.receives(9, &bytes), [PipelineEffect::Deliver(bytes)]);
}

#[test]
fn a_lost_worker_resets_the_others_of_its_pipeline() {
    let mut node = Node::new(5).linked(&[2, 4, 6]);
    assert_eq!(
        node.hear(PipelineEvent::WorkerLost),
        [send(4, &message(place(1, 0), 1)), send(6, &message(place(1, 2), 1))]
    );
    node.hear(PipelineEvent::LinkDown(NodeId(4)));
    assert_eq!(
        node.hear(PipelineEvent::WorkerLost),
        [send(6, &message(place(1, 2), 1))],
        "a node without a link hears of it when the link is back"
    );
    let mut whole = Node::of(1, small_plan(2)).linked(&[2]);
    assert_eq!(whole.hear(PipelineEvent::WorkerLost), []);
}

#[test]
fn a_node_that_cannot_be_reached_breaks_its_own_pipeline() {
    let mut node = Node::new(5).linked(&[2, 4]);
    assert_eq!(node.hear(PipelineEvent::LinkDown(NodeId(2))), []);
    assert_eq!(node.hear(PipelineEvent::LinkDown(NodeId(4))), [PipelineEffect::Broken]);
    assert_eq!(
        node.hear(PipelineEvent::LinkDown(NodeId(4))),
        [],
        "a link that is down already breaks nothing"
    );
    assert_eq!(
        node.hear(PipelineEvent::LinkUp(NodeId(4))),
        [PipelineEffect::Broken],
        "messages of node 4 may have been lost before"
    );
    assert_eq!(node.hear(PipelineEvent::LinkUp(NodeId(4))), []);
    assert_eq!(node.hear(PipelineEvent::LinkUp(NodeId(2))), []);
    assert_eq!(node.silent(&[2], &[]), [slot(0, false)]);
    assert_eq!(node.silent(&[2, 6], &[]), [slot(1, false), PipelineEffect::Broken]);
    assert_eq!(node.silent(&[2, 6], &[6]), [], "node 6 was silent before");
}

#[test]
fn slots_are_told_dead_and_alive_once_each() {
    let mut node = Node::new(1);
    assert_eq!(node.silent(&[4], &[]), [slot(1, false)]);
    assert_eq!(node.silent(&[4, 5], &[4]), [], "the slot of both is dead already");
    assert_eq!(node.core.dead_slots(), &BTreeSet::from([1]));
    assert_eq!(node.silent(&[5], &[]), [], "the pipeline still lacks a node");
    assert_eq!(node.silent(&[], &[]), [slot(1, true)]);
    assert!(node.core.dead_slots().is_empty());

    let mut plan = small_plan(3);
    plan.participants[1].workers = 2;
    let mut whole = Node::of(1, plan);
    assert_eq!(whole.silent(&[2], &[]), [slot(1, false), slot(2, false)]);
    assert_eq!(whole.silent(&[3], &[]), [slot(1, true), slot(2, true), slot(3, false)]);
}

#[test]
fn a_vacancy_that_is_filled_makes_its_slot_live() {
    let mut node = Node::new(1);
    assert_eq!(node.silent(&[5], &[5]), [slot(1, false)]);
    assert_eq!(node.admits(9, place(1, 1)), [slot(1, true)]);
    assert_eq!(node.silent(&[5, 9], &[5]), [slot(1, false)], "the new holder is silent");
}

#[test]
fn slots_that_are_taken_over_stay_dead() {
    let mut node = Node::of(1, small_plan(3));
    let taken = PipelineEvent::TakeOver(BTreeSet::from([1, 2]));
    assert_eq!(node.hear(taken.clone()), [slot(1, false), slot(2, false)]);
    assert_eq!(node.hear(taken), []);
    assert_eq!(node.silent(&[2], &[]), []);
    assert_eq!(node.silent(&[], &[]), []);
    assert_eq!(node.core.dead_slots(), &BTreeSet::from([1, 2]));
}

#[test]
fn slots_that_nobody_resumed_are_dead_from_the_beginning() {
    let mut plan = small_plan(2);
    plan.resumed = vec![protocol::wire::run_plan::Resumed {
        run: protocol::ids::RunId(1),
        digest: protocol::weights::digest::Digest::default(),
        first: protocol::weights::digest::Digest::default(),
        frontier: 0,
        samples: 1,
        slots: 4,
    }];
    let mut node = Node::of(1, plan);
    assert_eq!(node.core.dead_slots(), &BTreeSet::from([2, 3]));
    assert_eq!(node.silent(&[], &[]), []);
}

#[test]
fn a_reserve_waits_until_a_trainer_is_given_up() {
    let mut plan = small_plan(3);
    plan.job.trainers = Trainers::AtMost(1);
    let mut node = Node::of(2, plan);
    assert_eq!(node.silent(&[1], &[]), [], "a slow trainer is not replaced");
    assert_eq!(node.silent(&[1], &[1]), [slot(0, false)]);
}

#[test]
fn origins_are_dead_when_they_have_ended_or_are_out_of_reach() {
    let mut node = Node::of(1, small_plan(3));
    let origin = |id, node, slot, ended| OriginInfo {
        origin: OriginId(id),
        node: NodeId(node),
        slot,
        ended,
    };
    let compare = |node: &mut Node, ended| {
        let origins = [
            origin(10, 1, 0, None),
            origin(20, 2, 1, None),
            origin(30, 3, 2, None),
            origin(31, 3, 2, ended),
        ];
        let mut effects = Vec::new();
        node.core.compare_origins(origins.iter(), &mut effects);
        effects
    };
    let told = |id, alive| {
        let origin = OriginId(id);
        PipelineEffect::Origin { origin, alive }
    };
    assert_eq!(compare(&mut node, None), []);
    assert_eq!(compare(&mut node, Some(7)), [told(31, false)]);
    node.silent(&[2], &[]);
    assert_eq!(compare(&mut node, Some(7)), [told(20, false)]);
    node.silent(&[], &[]);
    assert_eq!(compare(&mut node, Some(7)), [told(20, true)]);
    // This node's own worker still trains its slot, although the slot was taken over.
    node.hear(PipelineEvent::TakeOver(BTreeSet::from([0, 2])));
    assert_eq!(compare(&mut node, Some(7)), [told(30, false)]);
    assert_eq!(node.core.dead_origins(), &BTreeSet::from([OriginId(30), OriginId(31)]));
}
