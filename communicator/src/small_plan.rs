//! A plan for tests: some nodes with one worker each, named after their numbers, with whom the run begins.

use protocol::ids::NodeId;
use protocol::job::JobDraft;
use protocol::model::Shape;
use protocol::wire::attach::DataInfo;
use protocol::wire::run_plan::{Participant, RunPlan};

pub(crate) fn small_plan(nodes: u64) -> RunPlan {
    let participant = |id| Participant {
        node: NodeId(id),
        name: format!("n{id}"),
        address: "127.0.0.1:1".parse().unwrap(),
        workers: 1,
        guest: false,
    };
    RunPlan {
        job: Box::new(JobDraft::default().resolve().unwrap()),
        data: DataInfo {
            hash: [0; 32],
            input: Shape::Flat(3),
            classes: 2,
            train: 10,
            test: 2,
        },
        participants: (1..=nodes).map(participant).collect(),
        resumed: None,
    }
}
