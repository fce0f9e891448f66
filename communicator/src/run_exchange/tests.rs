//! Tests of the exchange of a run, event by event. The simulation tests whole runs.

use protocol::wire::link::{Message, Note};

use super::*;
use crate::small_plan::small_plan;
use crate::timing::Timing;

const RUN: RunId = RunId(9);

/// Makes the exchange of node 1 in a run of three nodes, with the effects of its start.
fn node() -> (RunExchange, Vec<RunExchangeEffect>) {
    let arguments = RunExchangeArguments {
        me: NodeId(1),
        run: RUN,
        plan: small_plan(3),
        ledger: Ledger::new(RUN, vec![0; 8]),
        states: Vec::new(),
        files: RunFiles::new("d".into(), "n1"),
        keeps_runs: false,
        clocks: Timing::DEFAULT.clocks,
    };
    RunExchange::start(arguments, Duration::ZERO)
}

impl RunExchange {
    fn after(&mut self, event: RunExchangeEvent) -> Vec<RunExchangeEffect> {
        self.handle(event, Duration::from_secs(1))
    }

    fn order(&mut self, order: ExchangeOrder, origin: u64) -> Vec<RunExchangeEffect> {
        let origin = OriginId(origin);
        self.after(RunExchangeEvent::Order { order, origin })
    }

    fn seats_worker(&mut self, worker: u64) -> Vec<RunExchangeEffect> {
        let seat = ExchangeOrder::Seat {
            worker: WorkerKey(worker),
            slot: 0,
        };
        self.order(seat, worker)
    }
}

/// The names of effects, without those that report progress.
fn names(effects: &[RunExchangeEffect]) -> Vec<String> {
    let is_progress = |effect: &&RunExchangeEffect| matches!(effect, RunExchangeEffect::Run(RunEvent::Progress(..)));
    let others = effects.iter().filter(|effect| !is_progress(effect));
    let name = |effect: &RunExchangeEffect| match effect {
        RunExchangeEffect::Tell { worker, message } => format!("{} {message:?}", worker.0),
        effect => format!("{effect:?}"),
    };
    let short = |text: String| text.split(['(', ' ', '{']).take(2).collect::<Vec<_>>().join(" ");
    others.map(|effect| short(name(effect)).trim().to_owned()).collect()
}

#[test]
fn a_founder_is_ready_when_it_has_links_to_all_others() {
    let (mut node, effects) = node();
    assert_eq!(names(&effects), ["Connect Participant", "Connect Participant"]);
    let is_ready = |effects: &[RunExchangeEffect]| {
        effects.iter().find_map(|effect| match effect {
            RunExchangeEffect::Run(RunEvent::Progress(_, progress)) => Some(progress.ready),
            _ => None,
        })
    };
    assert_eq!(is_ready(&node.after(RunExchangeEvent::LinkUp(NodeId(2)))), Some(false));
    assert_eq!(is_ready(&node.after(RunExchangeEvent::LinkUp(NodeId(3)))), Some(true));
}

#[test]
fn peers_are_heard_over_links_that_are_up() {
    let (mut node, _) = node();
    let is_answered = |node: &mut RunExchange| {
        let (from, message) = (NodeId(2), Message::Note(Note::Ask));
        !node.after(RunExchangeEvent::Received { from, message }).is_empty()
    };
    assert!(!is_answered(&mut node));
    node.after(RunExchangeEvent::LinkUp(NodeId(2)));
    assert!(is_answered(&mut node));
}

#[test]
fn a_worker_is_heard_from_its_seat_only() {
    let (mut node, _) = node();
    let batch = || RunExchangeEvent::Batch {
        worker: WorkerKey(7),
        bytes: [1, 2, 3].into(),
    };
    assert!(node.after(batch()).is_empty());
    assert_eq!(names(&node.seats_worker(7)), ["Hear", "7 Begin"]);
    assert_eq!(
        names(&node.after(batch())),
        ["Notice BatchRejected", "HangUp WorkerKey"]
    );
    let effects = node.order(ExchangeOrder::Unseat(WorkerKey(7)), 0);
    assert_eq!(names(&effects)[0], "Hear");
    assert!(node.after(batch()).is_empty());
}

#[test]
fn a_checkpoint_waits_for_workers_that_are_there() {
    let (mut node, _) = node();
    node.seats_worker(1);
    node.seats_worker(2);
    let effects = node.order(ExchangeOrder::Checkpoint, 0);
    assert_eq!(names(&effects), ["1 Save", "2 Save"]);
    let saved = RunExchangeEvent::Saved {
        worker: WorkerKey(1),
        sequence: Some(0),
        path: "state".into(),
    };
    assert!(node.after(saved).is_empty());
    let effects = node.order(ExchangeOrder::Unseat(WorkerKey(2)), 0);
    let states = effects.iter().find_map(|effect| match effect {
        RunExchangeEffect::Write { occasion, path, header } => Some((*occasion, path.clone(), header.states.len())),
        _ => None,
    });
    let path = RunFiles::new("d".into(), "n1").checkpoint(RUN);
    assert_eq!(states, Some((WriteOccasion::Checkpoint, path, 1)));
    // The checkpoint that was requested meanwhile starts when this one is written.
    assert!(node.order(ExchangeOrder::Checkpoint, 0).is_empty());
    assert_eq!(names(&node.after(RunExchangeEvent::CheckpointWritten)), ["1 Save"]);
}
