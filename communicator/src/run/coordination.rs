//! Coordination of a run's start: collects the nodes' answers to the prepare request and decides on the run's plan.
//! Pure.

use protocol::bounded::Name;
use std::collections::BTreeMap;

use protocol::ids::{NodeId, RunId};
use protocol::job::{Cut, Job, PipelineSpec};
use protocol::reasons::waiting::{NodeTask, WaitingFor};
use protocol::reasons::{Excluded, LeftOut, Refusal, left_out};
use protocol::wire::control::{NodeInfo, Offer};
use protocol::wire::run_plan::{Participant, Resumed, RunPlan};

use super::cutting;

/// The point from which a run resumes; empty for a run that starts afresh.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ResumePoint {
    /// The checkpoint to resume from; for a model in pipeline stages, one for each stage.
    pub(crate) checkpoints: Vec<Resumed>,
    /// Nodes that have a checkpoint, with its stage. Nodes whose checkpoint is among `checkpoints` come first.
    pub(crate) holders: Vec<(NodeId, u8)>,
    /// The diverged run that this run repeats at a lower learning rate; `None` if it repeats none.
    pub(crate) succeeds: Option<RunId>,
}

/// A run that is being started, while nodes answer the prepare request.
#[derive(Clone, Debug)]
pub(crate) struct Coordination {
    job: Box<Job>,
    going_on: ResumePoint,
    allow_partial: bool,
    invited: BTreeMap<NodeId, NodeInfo>,
    answers: BTreeMap<NodeId, Result<Offer, Excluded>>,
}

/// Decision on the start of a run: it begins, or is refused.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Decision {
    /// The run begins, with this plan.
    Begin(Box<RunPlan>),
    /// The run does not begin, for these reasons.
    Refuse(Vec<Refusal>),
}

impl Coordination {
    /// Starts to collect the invited nodes' answers to the request to prepare for a run.
    #[must_use]
    pub(crate) fn new(
        job: Box<Job>,
        going_on: ResumePoint,
        allow_partial: bool,
        invited: impl IntoIterator<Item = NodeInfo>,
    ) -> Self {
        Self {
            job,
            going_on,
            allow_partial,
            invited: invited.into_iter().map(|info| (info.id, info)).collect(),
            answers: BTreeMap::new(),
        }
    }

    /// Records a node's answer to the request to prepare, or the reason for which the node can no longer answer. Only
    /// the first answer of a node counts.
    pub(crate) fn answer(&mut self, node: NodeId, answer: Result<Offer, Excluded>) {
        if self.invited.contains_key(&node) {
            self.answers.entry(node).or_insert(answer);
        }
    }

    /// Returns the invited nodes that have not answered the request to prepare for the run.
    pub(crate) fn unanswered(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.invited
            .keys()
            .copied()
            .filter(|node| !self.answers.contains_key(node))
    }

    /// Returns an entry for each invited node that has not answered yet, for the list of things that the run waits for,
    /// which people see.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = WaitingFor> {
        let names = self.unanswered().map(|node| &self.invited[&node].name);
        names.map(|name| WaitingFor::node(name, NodeTask::GetReady))
    }

    pub(crate) fn job(&self) -> &Job {
        &self.job
    }

    /// Decides on the run's start once all invited nodes have answered. All participants must have the same data and
    /// the same first weights; the most frequent combination counts and, of two that are equally frequent, that of the
    /// node with the lowest id. If nodes draw the first weights by themselves, only the number of weights must be the
    /// same: the most frequent weights become the run's, and the other nodes get them from a snapshot.
    #[must_use]
    pub(crate) fn decide(&self, me: NodeId) -> Option<Decision> {
        if self.answers.len() < self.invited.len() {
            return None;
        }
        let same = |a: &Offer, b: &Offer| a.data == b.data && a.has_weights_for(&self.job, b.digest, b.weights);
        let offers = || self.answers.values().filter_map(|answer| answer.as_ref().ok());
        let crowd = |offer: &Offer| {
            let all = offers().filter(|other| same(offer, other));
            (
                all.clone().count(),
                all.filter(|other| other.digest == offer.digest).count(),
            )
        };
        let chosen = offers().rev().max_by_key(|offer| crowd(offer));
        // Nodes take the weights of a checkpoint, whatever they have drawn.
        let resumed = self.going_on.checkpoints.first();
        let mut excluded = Vec::new();
        let mut participants = Vec::new();
        let mut groups = 1;
        for (node, answer) in &self.answers {
            let info = &self.invited[node];
            let why = match (answer, chosen) {
                (Ok(offer), Some(chosen)) if same(offer, chosen) => {
                    // Each node must be able to hold any stage, so the largest number of groups counts.
                    groups = groups.max(offer.groups);
                    participants.push(Participant {
                        guest: false,
                        lacks_first_weights: resumed.is_none() && offer.digest != chosen.digest,
                        takes: None,
                        life: 0,
                        node: *node,
                        name: info.name.clone(),
                        address: info.address,
                        workers: offer.workers,
                    });
                    continue;
                }
                (Ok(offer), Some(chosen)) if offer.data == chosen.data => {
                    Excluded::other_weights(&self.job, offer.weights, chosen.weights)
                }
                (Ok(offer), Some(chosen)) => Excluded::other_data(&self.job, &offer.data, &chosen.data),
                // Cannot happen: where there is an offer, one of them is the chosen one.
                (Ok(_), None) => Excluded::NotPrepared,
                (Err(why), _) => why.clone(),
            };
            excluded.push(LeftOut::node(&info.name, why));
        }
        let Some(chosen) = chosen.filter(|_| excluded.is_empty() || self.allow_partial) else {
            let hint = (!participants.is_empty()).then_some(Refusal::AllowPartial);
            let excluded = excluded.into_iter().map(Refusal::from);
            return Some(Decision::Refuse(excluded.chain(hint).collect()));
        };
        // Node ids are random, but addresses stay the same from run to run, and so do the slots.
        participants.sort_by_key(|participant| participant.address);
        let mut job = Box::new(Job {
            exchange: self.job.exchange.decided(Cut::Into(groups)),
            ..self.job.for_data(chosen.data.input)
        });
        if let Some(stages) = job.exchange.pipelines().and_then(PipelineSpec::stages) {
            match in_pipelines(participants, me, stages, &self.going_on.holders) {
                Ok((in_pipelines, spare)) => {
                    participants = in_pipelines;
                    excluded.extend(spare);
                }
                Err(reason) => return Some(Decision::Refuse(vec![reason])),
            }
            let offers = participants
                .iter()
                .filter_map(|one| self.answers[&one.node].as_ref().ok());
            if let Some(cut) = cutting::by_speed(&job, &offers.collect::<Vec<_>>()) {
                // Cuts that the job itself names are kept.
                job.exchange = self.job.exchange.decided(cut);
            }
        }
        let mut plan = RunPlan {
            job,
            data: chosen.data.clone(),
            first: resumed
                .filter(|_| self.job.nodes_draw_weights())
                .map_or(chosen.digest, |resumed| resumed.first),
            weights: chosen.weights,
            participants,
            resumed: self.going_on.checkpoints.clone(),
            left_out: left_out(excluded),
            chosen: self.job.open.names().map(Name::from).collect(),
            succeeds: self.going_on.succeeds,
        };
        match plan
            .job
            .decided_for(&plan.data, chosen.weights as usize, plan.topology().workers())
        {
            Ok(job) => *plan.job = job,
            Err(error) => return Some(Decision::Refuse(vec![Refusal::Job(error.to_string().into())])),
        }
        Some(Decision::Begin(Box::new(plan)))
    }
}

/// Places nodes in pipelines, one worker each, pipeline after pipeline. A node with a checkpoint of a stage gets that
/// stage again if one of the pipelines has it free. Nodes that do not fill a whole pipeline are left out.
fn in_pipelines(
    mut participants: Vec<Participant>,
    me: NodeId,
    stages: usize,
    holders: &[(NodeId, u8)],
) -> Result<(Vec<Participant>, Vec<LeftOut>), Refusal> {
    let pipelines = participants.len() / stages;
    if pipelines == 0 {
        return Err(Refusal::TooFewNodes {
            stages: stages as u32,
            nodes: participants.len() as u32,
        });
    }
    let mut places: Vec<Option<Participant>> = vec![None; pipelines * stages];
    for &(node, stage) in holders.iter().filter(|(_, stage)| usize::from(*stage) < stages) {
        let mut alike = (0..pipelines).map(|pipeline| pipeline * stages + usize::from(stage));
        let free = alike.find(|&place| places.get(place).is_some_and(Option::is_none));
        let at = participants.iter().position(|one| one.node == node);
        if let (Some(place), Some(at)) = (free, at) {
            places[place] = Some(participants.remove(at));
        }
    }
    // `me`, the node that the client asked, is not left out as spare if that can be avoided.
    let free = places.iter().filter(|place| place.is_none()).count();
    let own = participants.iter().position(|one| one.node == me);
    if let Some(at) = own.filter(|&at| free > 0 && at >= free) {
        participants.swap(at, free - 1);
    }
    let mut others = participants.into_iter();
    for place in &mut places {
        *place = place.take().or_else(|| others.next());
    }
    let one_worker = |one: Participant| Participant { workers: 1, ..one };
    let spare = |one: Participant| LeftOut::node(&one.name, Excluded::Spare(stages as u32));
    Ok((
        places.into_iter().flatten().map(one_worker).collect(),
        others.map(spare).collect(),
    ))
}

#[cfg(test)]
mod tests {
    use protocol::job::JobDraft;
    use protocol::job::data::DataInfo;
    use protocol::job::model::Shape;
    use protocol::job::target::TargetInfo;
    use protocol::weights::digest::Digest;

    use super::*;
    use crate::small_plan::small_node;

    fn info(id: u64) -> NodeInfo {
        NodeInfo {
            address: format!("127.0.0.1:{}", 100 - id).parse().unwrap(),
            ..small_node(id)
        }
    }

    type Answer = Result<Offer, Excluded>;

    #[expect(clippy::unnecessary_wraps, reason = "answers have this type")]
    fn offer(hash: u8) -> Answer {
        Ok(Offer {
            weights: 0,
            data: DataInfo {
                hash: [hash; 32],
                input: Shape::Flat(3),
                target: TargetInfo::Classes(2),
                train: 10,
                test: 2,
                validation: 0,
                most_frequent: 1,
                code: None,
            },
            digest: Digest::default(),
            workers: 2,
            groups: 1,
            speed: 0,
            memory_bytes: None,
            gpu_bytes: None,
        })
    }

    fn unable() -> Excluded {
        Excluded::Unable("no such file".into())
    }

    fn decide(allow_partial: bool, answers: &[(u64, Result<Offer, Excluded>)]) -> Option<Decision> {
        let job = Box::new(JobDraft::default().resolve().unwrap());
        let mut coordination = Coordination::new(job, ResumePoint::default(), allow_partial, (1..=3).map(info));
        for (node, answer) in answers {
            coordination.answer(NodeId(*node), answer.clone());
        }
        coordination.decide(NodeId(1))
    }

    #[test]
    fn who_has_not_answered_is_named() {
        let job = Box::new(JobDraft::default().resolve().unwrap());
        let mut coordination = Coordination::new(job, ResumePoint::default(), false, (1..=3).map(info));
        coordination.answer(NodeId(2), offer(1));
        let expected = ["n1", "n3"].map(|name| WaitingFor::node(name, NodeTask::GetReady));
        assert!(coordination.waiting().eq(expected));
    }

    fn names(decision: Option<Decision>) -> Vec<String> {
        match decision {
            Some(Decision::Begin(plan)) => plan.participants.into_iter().map(|one| one.name).collect(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn all_answers_are_waited_for() {
        assert_eq!(decide(true, &[(1, offer(1)), (2, offer(1)), (9, offer(1))]), None);
        let all = decide(false, &[(1, offer(1)), (2, offer(1)), (3, offer(1))]);
        assert_eq!(names(all), ["n3", "n2", "n1"], "participants are ordered by address");
    }

    #[test]
    fn who_cannot_take_part_is_named_and_the_user_decides() {
        let answers = [(1, offer(1)), (2, Err(unable())), (3, offer(2))];
        let Some(Decision::Refuse(reasons)) = decide(false, &answers) else {
            panic!("the run must not begin");
        };
        let data = Excluded::OtherData("builtin:mnist".into());
        assert_eq!(
            reasons,
            [
                LeftOut::node("n2", unable()).into(),
                LeftOut::node("n3", data).into(),
                Refusal::AllowPartial
            ]
        );
        assert_eq!(names(decide(true, &answers)), ["n1"]);
    }

    #[test]
    fn most_decide_what_the_data_is() {
        let answers = [(1, offer(1)), (2, offer(2)), (3, offer(2))];
        assert_eq!(names(decide(true, &answers)), ["n3", "n2"]);
    }

    /// Makes the offer of a node that drew this number of first weights, with this digest.
    fn drawn(digest: u64, weights: u64) -> Answer {
        offer(1).map(|offer| Offer {
            digest: Digest(digest),
            weights,
            ..offer
        })
    }

    /// Returns the decision on a run of this model with these offers of nodes 1 and up.
    fn of_model(model: Option<&str>, going_on: ResumePoint, offers: &[Answer]) -> Decision {
        let draft = JobDraft {
            model: model.map(Into::into),
            ..JobDraft::default()
        };
        let job = Box::new(draft.resolve().unwrap());
        let nodes = 1..=offers.len() as u64;
        let mut coordination = Coordination::new(job, going_on, true, nodes.clone().map(info));
        for (node, answer) in nodes.zip(offers) {
            coordination.answer(NodeId(node), answer.clone());
        }
        coordination.decide(NodeId(1)).unwrap()
    }

    /// Returns the digest of the run's first weights, and the nodes that lack them.
    fn lacking(decision: Decision) -> (u64, Vec<u64>) {
        let Decision::Begin(plan) = decision else {
            panic!("{decision:?}");
        };
        let mut lacking: Vec<u64> = plan
            .participants
            .iter()
            .filter(|one| one.lacks_first_weights)
            .map(|one| one.node.0)
            .collect();
        lacking.sort_unstable();
        (plan.first.0, lacking)
    }

    #[test]
    fn nodes_of_a_module_that_drew_other_weights_take_part() {
        let module = |offers: &[Answer]| of_model(Some("py:net.py"), ResumePoint::default(), offers);
        let drew = |digests: &[u64]| -> Vec<Answer> { digests.iter().map(|&digest| drawn(digest, 7)).collect() };
        assert_eq!(lacking(module(&drew(&[5, 5, 5]))), (5, vec![]));
        assert_eq!(lacking(module(&drew(&[4, 5, 5]))), (5, vec![1]));
        assert_eq!(
            lacking(module(&drew(&[4, 5, 6]))),
            (4, vec![2, 3]),
            "of equally frequent weights, those of the lowest node are taken"
        );
        let Decision::Begin(plan) = module(&[drawn(4, 7), drawn(5, 8), drawn(6, 8)]) else {
            panic!("the run must begin");
        };
        assert_eq!((plan.first.0, plan.weights, plan.participants.len()), (5, 8, 2));
        let other = Excluded::OtherModule {
            file: "net.py".to_owned().into(),
            weights: 7,
            usual: 8,
        };
        assert_eq!(plan.left_out, left_out(vec![LeftOut::node("n1", other)]));
    }

    #[test]
    fn nodes_with_other_weights_of_layers_are_left_out() {
        let decision = of_model(None, ResumePoint::default(), &[drawn(4, 7), drawn(5, 7), drawn(5, 7)]);
        let Decision::Begin(plan) = &decision else {
            panic!("{decision:?}");
        };
        assert_eq!(
            plan.left_out,
            left_out(vec![LeftOut::node("n1", Excluded::OtherWeights)])
        );
        assert_eq!(lacking(decision), (5, vec![]));
    }

    #[test]
    fn a_resumed_run_of_a_module_begins_with_the_checkpoints_weights() {
        let resumed = Resumed {
            run: RunId(8),
            digest: Digest(100),
            first: Digest(9),
            frontier: 1,
            samples: 10,
            slots: 4,
        };
        let going_on = ResumePoint {
            checkpoints: vec![resumed],
            ..ResumePoint::default()
        };
        let offers = [drawn(4, 7), drawn(5, 7), drawn(5, 7)];
        assert_eq!(
            lacking(of_model(Some("py:net.py"), going_on.clone(), &offers)),
            (9, vec![]),
            "all nodes take the checkpoint or a snapshot"
        );
        assert_eq!(lacking(of_model(None, going_on, &offers[1..])), (5, vec![]));
    }

    #[test]
    fn who_can_hold_least_decides_into_how_many_groups_the_network_is_cut() {
        let decided = |exchange: &str, fewest: [u8; 3]| {
            let draft = JobDraft {
                exchange: Some(exchange.into()),
                ..JobDraft::default()
            };
            let job = Box::new(draft.resolve().unwrap());
            let mut coordination = Coordination::new(job, ResumePoint::default(), false, (1..=3).map(info));
            for (node, groups) in (1..).zip(fewest) {
                let one = offer(1).map(|offer| Offer { groups, ..offer });
                coordination.answer(NodeId(node), one);
            }
            match coordination.decide(NodeId(1)) {
                Some(Decision::Begin(plan)) => Ok((plan.job.exchange.to_string(), plan.participants.len())),
                Some(Decision::Refuse(reasons)) => Err(reasons),
                None => panic!("a decision is due when all nodes have answered"),
            }
        };
        assert_eq!(decided("layers", [2, 3, 2]), Ok(("layers:groups=3".into(), 3)));
        assert_eq!(
            decided("layers:micro=8", [2; 3]),
            Ok(("layers:groups=2,micro=8".into(), 2))
        );
        let too_few = Refusal::TooFewNodes { stages: 5, nodes: 3 };
        assert_eq!(decided("layers", [2, 5, 2]), Err(vec![too_few]));
        assert_eq!(decided("layers:groups=2", [2; 3]), Ok(("layers:groups=2".into(), 2)));
    }

    #[test]
    fn who_has_kept_some_layers_gets_them_again() {
        let participant = |id: u64| Participant {
            node: NodeId(id),
            name: format!("n{id}"),
            address: info(id).address,
            workers: 2,
            guest: false,
            lacks_first_weights: false,
            takes: None,
            life: 0,
        };
        let stand_with = |me: u64, nodes: u64, holders: &[(u64, u8)]| {
            let holders: Vec<_> = holders.iter().map(|&(node, group)| (NodeId(node), group)).collect();
            let (stand, spare) = in_pipelines((1..=nodes).map(participant).collect(), NodeId(me), 2, &holders).unwrap();
            assert!(stand.iter().all(|one| one.workers == 1));
            let nodes: Vec<u64> = stand.iter().map(|one| one.node.0).collect();
            (nodes, spare.len())
        };
        let stand = |nodes, holders: &[(u64, u8)]| stand_with(1, nodes, holders);
        assert_eq!(stand(5, &[]), (vec![1, 2, 3, 4], 1));
        assert_eq!(
            stand_with(5, 5, &[]),
            (vec![1, 2, 3, 5], 1),
            "the node that was asked to start the run is not a spare"
        );
        assert_eq!(stand_with(3, 3, &[(2, 0)]), (vec![2, 3], 1));
        assert_eq!(stand(4, &[(1, 1), (2, 0)]), (vec![2, 1, 3, 4], 0));
        // Fewer pipelines than before: earlier entries win. Unknown nodes and stages that do not exist are ignored.
        assert_eq!(stand(3, &[(3, 1), (2, 1), (9, 0), (1, 7)]), (vec![1, 3], 1));
        assert!(in_pipelines(vec![participant(1)], NodeId(1), 2, &[]).is_err());
    }

    #[test]
    fn nobody_at_all_is_no_run() {
        let decision = decide(true, &[1, 2, 3].map(|node| (node, Err(unable()))));
        let left_out = ["n1", "n2", "n3"].map(|name| LeftOut::node(name, unable()).into());
        assert_eq!(decision, Some(Decision::Refuse(left_out.into())));
    }
}
