//! The stage of a network that a node holds, where it is spread over nodes. Pure.

use protocol::ids::NodeId;
use protocol::model::{Layout, Partition, PipelineStage};
use protocol::wire::run_plan::RunPlan;

/// What a participant holds; none where everybody holds all of it.
pub(crate) fn stage_of(plan: &RunPlan, node: NodeId) -> Option<PipelineStage> {
    let (pipelines, place) = (plan.job.exchange.pipelines()?, plan.place(node)?);
    let layout = whole(plan)?;
    let partition = Partition::new(layout, pipelines).ok()?;
    Some(partition.stage(usize::from(place.stage)))
}

/// The weights of the whole network, where it is spread over nodes.
pub(crate) fn weights_of_all(plan: &RunPlan) -> Option<u64> {
    plan.stages()?;
    whole(plan).map(|layout| layout.weights as u64)
}

fn whole(plan: &RunPlan) -> Option<Layout> {
    Layout::new(&plan.job.model, plan.data.input, plan.data.target.outputs()).ok()
}
