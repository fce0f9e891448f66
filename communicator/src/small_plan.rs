//! Small nodes and run plans for tests: each node has one worker and is named after its number.

use protocol::bounded::BoundedVec;
use protocol::ids::NodeId;
use protocol::job::JobDraft;
use protocol::job::data::DataInfo;
use protocol::job::model::Shape;
use protocol::job::target::TargetInfo;
use protocol::weights::digest::Digest;
use protocol::wire::control::NodeInfo;
use protocol::wire::run_plan::{Participant, RunPlan};

pub(crate) fn small_node(id: u64) -> NodeInfo {
    NodeInfo {
        id: NodeId(id),
        name: format!("n{id}"),
        address: "127.0.0.1:1".parse().unwrap(),
        version: "1".into(),
        device: "cpu".into(),
        workers: 1,
        since: 0,
    }
}

pub(crate) fn small_plan(nodes: u64) -> RunPlan {
    let participant = |id| Participant {
        node: NodeId(id),
        name: format!("n{id}"),
        address: "127.0.0.1:1".parse().unwrap(),
        workers: 1,
        guest: false,
        lacks_first_weights: false,
        takes: None,
        life: 0,
    };
    RunPlan {
        job: Box::new(JobDraft::default().resolve().unwrap()),
        data: DataInfo {
            hash: [0; 32],
            input: Shape::Flat(3),
            target: TargetInfo::Classes(2),
            train: 10,
            test: 2,
            validation: 0,
            most_frequent: 1,
            code: None,
        },
        first: Digest::default(),
        weights: 64,
        participants: (1..=nodes).map(participant).collect(),
        resumed: Vec::new(),
        left_out: BoundedVec::default(),
        chosen: BoundedVec::default(),
        succeeds: None,
    }
}
