use std::time::Duration;

use super::*;
use crate::ids::RunId;
use crate::job::JobDraft;
use crate::reasons::{Excluded, LeftOut};
use crate::stats::WorkerStats;
use crate::stats::measured::{Course, Evaluation, NodeUsage, ProcessUsage, Scores};
use crate::stats::named::NamedNumbers;
use crate::weights::digest::Digest;
use crate::wire::control::Phase;
use crate::wire::flow::StageAddress;
use crate::wire::run_beat::{Ballot, ParticipantState, RunBeat, Settled};
use crate::wire::run_plan::StageTakeover;

fn info(id: u64) -> NodeInfo {
    NodeInfo {
        id: NodeId(id),
        name: node_name("host", NodeId(id)),
        address: "127.0.0.1:1".parse().unwrap(),
        version: "0.1.0".into(),
        device: "cpu".into(),
        workers: 1,
        since: 1_700_000_000_000,
    }
}

fn participant(id: u64, guest: bool) -> Participant {
    Participant {
        node: NodeId(id),
        name: node_name("host", NodeId(id)),
        address: "127.0.0.1:1".parse().unwrap(),
        workers: 2,
        guest,
        lacks_first_weights: false,
        takes: None,
        life: 0,
    }
}

fn plan() -> RunPlan {
    RunPlan {
        job: Box::new(JobDraft::default().resolve().unwrap()),
        data: DataInfo::example(),
        first: Digest(3),
        weights: 7,
        participants: vec![participant(9, false), participant(3, false), participant(5, true)],
        resumed: vec![Resumed {
            run: RunId(1),
            digest: Digest(1),
            first: Digest(3),
            frontier: 5,
            samples: 7,
            slots: 4,
        }],
        left_out: vec![LeftOut::node("host-5", Excluded::NoWorker)].into(),
        chosen: vec!["epochs".into()].into(),
        succeeds: None,
    }
}

fn settled() -> Settled {
    Settled {
        digest: Digest(7),
        whole: Digest(7),
        workers_agree: true,
        stats: WorkerStats::default(),
        samples: 10,
        repeated: 0,
        bytes_sent: 10,
        seconds: 1.0,
        usage: NodeUsage::default(),
        course: Course::default(),
        scores: Some(Scores {
            accuracy: Some(0.5),
            loss: 1.0,
            mae: None,
            named: NamedNumbers::default(),
        }),
    }
}

fn beat() -> Beat {
    Beat {
        from: info(1),
        number: 3,
        members: vec![info(2), info(3)],
        runs: vec![RunBeat {
            run: RunId(7),
            plan: Some(plan()),
            stop: None,
            diverged: None,
            states: vec![(
                NodeId(1),
                ParticipantState {
                    settled: Some(settled()),
                    ..ParticipantState::default()
                },
            )],
        }],
    }
}

/// Applies a change to a valid beat, and returns true if the changed beat still passes its check.
fn holds(change: impl FnOnce(&mut Beat)) -> bool {
    let mut beat = beat();
    change(&mut beat);
    ControlMessage::Beat(Box::new(beat)).check().is_ok()
}

/// Applies a change to the run in a valid beat, and returns true if the changed beat still passes its check.
fn run_holds(change: impl FnOnce(&mut RunPlan, &mut Settled)) -> bool {
    holds(|beat| {
        let run = &mut beat.runs[0];
        change(run.plan.as_mut().unwrap(), run.states[0].1.settled.as_mut().unwrap());
    })
}

#[test]
fn what_nodes_say_can_be_said() {
    assert!(holds(|_| {}));
    assert!(holds(
        |beat| beat.members = (2..2 + MEMBERS_MAX as u64).map(info).collect()
    ));
    assert!(run_holds(|plan, _| plan.participants[2].workers = WORKERS_MAX));
    assert!(run_holds(|plan, _| plan.participants.retain(|one| !one.guest)));
    assert!(run_holds(|plan, _| {
        plan.resumed.clear();
        plan.participants[0].lacks_first_weights = true;
    }));
    // A run that diverges has a NaN loss.
    assert!(run_holds(|_, settled| settled.stats.loss = f64::NAN));
    assert!(run_holds(|_, settled| settled.stats.training = TIME_MAX));
}

#[test]
fn places_are_taken_over_where_there_are_places() {
    let spread = |plan: &mut RunPlan| {
        let draft = JobDraft {
            exchange: Some("layers:groups=2".into()),
            ..JobDraft::default()
        };
        *plan.job = draft.resolve().unwrap();
        plan.resumed.clear();
        plan.participants = [(1, false), (2, false), (3, true)]
            .map(|(id, guest)| participant(id, guest))
            .into();
    };
    let taken = |pipeline, stage| StageTakeover {
        place: StageAddress { pipeline, stage },
        turn: 1,
    };
    assert!(!run_holds(|plan, _| {
        spread(plan);
        let turn = u32::MAX;
        plan.participants[2].takes = Some(StageTakeover { turn, ..taken(0, 0) });
    }));
    let takes = |pipeline, stage| {
        run_holds(|plan, _| {
            spread(plan);
            plan.participants[2].takes = Some(taken(pipeline, stage));
        })
    };
    assert!(takes(0, 0) && takes(0, 1));
    assert!(!takes(1, 0) && !takes(0, 2));
    assert!(
        !run_holds(|plan, _| spread(plan)),
        "a guest without a pipeline stage must be refused"
    );
    assert!(!run_holds(|plan, _| {
        spread(plan);
        plan.participants.pop();
        plan.participants[1].takes = Some(taken(0, 0));
    }));
    let guest = |plan: &mut RunPlan| plan.participants.last_mut().unwrap().takes = Some(taken(0, 0));
    assert!(
        !run_holds(|plan, _| guest(plan)),
        "a pipeline stage must be refused if the network is not split"
    );
}

#[test]
fn what_no_node_says_is_a_breach() {
    assert!(!holds(|beat| beat.from.name = "x".repeat(65)));
    assert!(!holds(|beat| beat.from.name = "a b".into()));
    assert!(!holds(|beat| beat.members[0].name = "../x".into()));
    assert!(!run_holds(|plan, _| plan.participants[0].name = String::new()));
    assert!(!holds(|beat| beat.from.workers = WORKERS_MAX + 1));
    assert!(!holds(|beat| beat.number = u64::MAX));
    assert!(!holds(
        |beat| beat.members = (2..=2 + MEMBERS_MAX as u64).map(info).collect()
    ));
    assert!(!holds(|beat| beat.runs[0].states[0].1.number = u64::MAX));
    assert!(!holds(|beat| beat.runs[0].states[0].1.ballot = Some(Ballot {
        fingerprint: 1,
        members: 1,
        attempt: u64::MAX,
    })));
    assert!(!holds(|beat| beat.runs = vec![beat.runs[0].clone(); 3]));
    assert!(!run_holds(|plan, _| plan.participants[2].workers = 1 << 50));
    assert!(!run_holds(|plan, _| plan.participants[0].workers = 0));
    assert!(!run_holds(|plan, _| plan.participants.clear()));
    assert!(!run_holds(|plan, _| plan.participants[1] = participant(9, false)));
    assert!(!run_holds(|plan, _| plan.participants[2] = participant(9, true)));
    assert!(!run_holds(|plan, _| plan.participants[0].guest = true));
    assert!(!run_holds(|plan, _| plan.participants.push(participant(4, true))));
    assert!(
        !run_holds(|plan, _| plan.participants.drain(..2).for_each(drop)),
        "nobody began the run"
    );
    let lacking = |nodes: &'static [usize]| {
        run_holds(|plan, _| {
            plan.resumed.clear();
            for &at in nodes {
                plan.participants[at].lacks_first_weights = true;
            }
        })
    };
    assert!(!lacking(&[0, 1]), "no founder has the first weights");
    assert!(!lacking(&[2]), "a guest takes a snapshot anyway");
    assert!(
        !run_holds(|plan, _| plan.participants[0].lacks_first_weights = true),
        "the run continues from a checkpoint"
    );
    assert!(!run_holds(|plan, _| plan.weights = u64::MAX));
    assert!(!run_holds(|plan, _| plan.participants[2].life = u32::MAX));
    assert!(!run_holds(|plan, _| plan.resumed[0].slots = usize::MAX));
    assert!(!run_holds(|plan, _| plan.resumed.push(plan.resumed[0])));
    assert!(!run_holds(|plan, _| plan.data.input = Shape::Flat(usize::MAX)));
    assert!(!run_holds(|plan, _| plan.data.train = 1 << 40));
    assert!(!run_holds(|_, settled| settled.stats.training = Duration::MAX));
    assert!(!run_holds(|_, settled| settled.seconds = f64::INFINITY));
    assert!(!run_holds(|_, settled| settled.seconds = f64::NAN));
    assert!(!run_holds(|_, settled| settled.samples = u64::MAX));
    assert!(!run_holds(|_, settled| settled.stats.batches = u64::MAX));
    assert!(!run_holds(
        |_, settled| settled.scores.as_mut().unwrap().accuracy = Some(f64::NAN)
    ));
}

#[test]
fn what_is_measured_is_bounded() {
    let process = || ProcessUsage {
        process: "node".into(),
        ..ProcessUsage::default()
    };
    let evaluated = |change: fn(&mut Evaluation)| {
        let mut evaluation = Evaluation::default();
        change(&mut evaluation);
        run_holds(|_, settled| settled.course.add(evaluation))
    };
    // A model that diverges has a NaN loss.
    assert!(evaluated(|one| one.loss = f64::NAN));
    let long = |count: usize| {
        let numbers = (0..count).map(|number| (format!("{number:064}"), f64::NAN));
        NamedNumbers::new(numbers).unwrap()
    };
    assert!(run_holds(|_, settled| {
        for seconds in 0..300_u32 {
            settled.course.add(Evaluation {
                seconds: f64::from(seconds),
                named: long(NamedNumbers::MAX),
                ..Evaluation::default()
            });
        }
    }));
    assert!(evaluated(|one| one.accuracy = None) && !evaluated(|one| one.accuracy = Some(1.5)));
    assert!(!evaluated(|one| one.seconds = f64::NAN));
    assert!(!evaluated(|one| one.samples = u64::MAX));
    assert!(run_holds(
        |_, settled| settled.usage.processes = vec![process(); PROCESSES_MAX]
    ));
    assert!(!run_holds(
        |_, settled| settled.usage.processes = vec![process(); PROCESSES_MAX + 1]
    ));
    assert!(!run_holds(|_, settled| settled.usage.node = "x".repeat(65)));
    assert!(!run_holds(|_, settled| settled.usage.wire_out = u64::MAX));
    let used = |change: fn(&mut ProcessUsage)| {
        let mut process = process();
        change(&mut process);
        run_holds(|_, settled| settled.usage.processes.push(process))
    };
    assert!(!used(|process| process.process = "x".repeat(65)));
    assert!(!used(|process| process.cpu_seconds = -1.0));
    assert!(!used(|process| process.disk_write_bytes = u64::MAX));
}

#[test]
fn words_are_said_in_ones_own_name() {
    let run = RunId(1);
    let own = [
        ControlMessage::Beat(Box::new(beat())),
        ControlMessage::Echo {
            from: NodeId(1),
            number: 3,
        },
        ControlMessage::Find {
            run,
            coordinator: NodeId(1),
            resumes: run,
        },
        ControlMessage::FoundCheckpoint {
            run,
            from: NodeId(1),
            found: None,
        },
        ControlMessage::Answer {
            run,
            from: NodeId(1),
            answer: Err(Excluded::NoWorker),
        },
        ControlMessage::Leaving(NodeId(1)),
    ];
    for message in own {
        assert!(message.check().is_ok() && message.is_from(NodeId(1)), "{message:?}");
        assert!(!message.is_from(NodeId(1 << 60)), "{message:?}");
    }
}

#[test]
fn records_are_short() {
    let record = |change: fn(&mut StatsRecord)| {
        let mut record = StatsRecord::default();
        change(&mut record);
        ControlMessage::Stats(Box::new(record)).check().is_ok()
    };
    assert!(record(|record| record.loss = Some(f64::NAN)));
    assert!(!record(|record| record.state = "x".repeat(900_000)));
    assert!(!record(|record| record.tau = f64::NAN));
    assert!(!record(|record| record.time = f64::INFINITY));
    assert!(!record(|record| record.bytes_in = u64::MAX));
    let peer = PeerRecord {
        node: "n".into(),
        bytes_in: 0,
        bytes_out: 0,
        lag: 0,
        queue: 0,
    };
    let many = StatsRecord {
        peers: vec![peer; MEMBERS_MAX + 1],
        ..StatsRecord::default()
    };
    assert!(many.check().is_err());
}

#[test]
fn names_end_with_the_beginning_of_an_id() {
    let id = NodeId(0x1234_5678_9abc_def0);
    assert_eq!(node_name("my host\n", id), "my-host-123456");
    assert_eq!(node_name("", id), "node-123456");
    assert!(node_name(&"x".repeat(100), id).len() <= NAME_BYTES_MAX);
    for host in ["my host", "", "a-b-c", "é", &"x".repeat(100)] {
        assert!(is_name(&node_name(host, id)));
    }
}

#[test]
fn a_chosen_name_is_short_and_can_stand_anywhere() {
    for good in ["a", "7", "gpu-2", "Rack_1.host.example", &"x".repeat(32)] {
        assert_eq!(chosen_name(good).as_deref(), Ok(good));
        assert!(is_name(good));
    }
    for bad in [
        "",
        ".",
        "..",
        "-x",
        "_x",
        "a b",
        "a/b",
        "é",
        "a\n",
        "a;b",
        &"x".repeat(33),
    ] {
        assert!(chosen_name(bad).is_err(), "{bad}");
    }
}

#[test]
fn how_far_a_node_is_can_be_told_from_its_beat() {
    let mut beat = beat().runs.remove(0);
    let (node, state) = beat.states[0].clone();
    let mut phase = |change: &dyn Fn(&mut ParticipantState), plan: bool| {
        let mut state = ParticipantState {
            number: state.number,
            ..ParticipantState::default()
        };
        change(&mut state);
        beat.states = vec![(node, state)];
        let plan = beat.plan.clone().filter(|_| plan);
        let beat = RunBeat { plan, ..beat.clone() };
        (beat.phase_of(node), beat.phase_of(NodeId(u64::MAX)))
    };
    for (change, plan, expected) in [
        ((|_| {}) as fn(&mut ParticipantState), false, Phase::Preparing),
        (|_| {}, true, Phase::Training),
        (|state| state.closed = true, true, Phase::Settling),
        (
            |state| (state.closed, state.decided) = (true, true),
            true,
            Phase::Finishing,
        ),
        (|state| state.ended = true, true, Phase::Ended),
        (|state| state.withdrawn = true, false, Phase::Ended),
    ] {
        assert_eq!(phase(&change, plan), (expected, Phase::Ended));
    }
}
