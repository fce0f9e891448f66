//! The portion of a network that a node holds, where it is spread over nodes. Pure.

use protocol::ids::NodeId;
use protocol::model::{Layout, Partition, Portion};
use protocol::wire::run_plan::RunPlan;

/// What a participant holds; none where everybody holds all of it.
pub(crate) fn portion_of(plan: &RunPlan, node: NodeId) -> Option<Portion> {
    let (lanes, place) = (plan.job.exchange.lanes()?, plan.place(node)?);
    let layout = whole(plan)?;
    let partition = Partition::new(layout, lanes).ok()?;
    Some(partition.portion(usize::from(place.portion)))
}

/// The weights of the whole network, where it is spread over nodes.
pub(crate) fn weights_of_all(plan: &RunPlan) -> Option<u64> {
    plan.portions()?;
    whole(plan).map(|layout| layout.weights as u64)
}

fn whole(plan: &RunPlan) -> Option<Layout> {
    Layout::new(&plan.job.model, plan.data.input, plan.data.target.outputs()).ok()
}
