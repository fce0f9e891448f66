//! Starting a run: who was asked, who can take part, and what follows. Pure.

use std::collections::BTreeMap;

use protocol::ids::NodeId;
use protocol::job::Job;
use protocol::wire::bounds::{LEFT_OUT_MAX, SENTENCE_BYTES_MAX, shorten};
use protocol::wire::control::{NodeInfo, Offer};
use protocol::wire::run_plan::{Participant, Resumed, RunPlan};

/// The answers to a prepare.
#[derive(Clone, Debug)]
pub(crate) struct Coordination {
    job: Box<Job>,
    resumed: Option<Resumed>,
    allow_partial: bool,
    invited: BTreeMap<NodeId, NodeInfo>,
    answers: BTreeMap<NodeId, Result<Offer, String>>,
}

/// What a prepare comes to.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Decision {
    /// The run begins.
    Begin(RunPlan),
    /// It does not; a sentence for each node that stands in the way.
    Refuse(Vec<String>),
}

impl Coordination {
    /// Nobody has answered yet.
    #[must_use]
    pub(crate) fn new(
        job: Box<Job>,
        resumed: Option<Resumed>,
        allow_partial: bool,
        invited: impl IntoIterator<Item = NodeInfo>,
    ) -> Self {
        Self {
            job,
            resumed,
            allow_partial,
            invited: invited.into_iter().map(|info| (info.id, info)).collect(),
            answers: BTreeMap::new(),
        }
    }

    /// A node has answered, or can answer no more.
    pub(crate) fn answer(&mut self, node: NodeId, answer: Result<Offer, String>) {
        if self.invited.contains_key(&node) {
            self.answers.entry(node).or_insert(answer);
        }
    }

    /// Those that have not answered yet.
    pub(crate) fn unanswered(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.invited
            .keys()
            .copied()
            .filter(|node| !self.answers.contains_key(node))
    }

    /// What those are waited for to do.
    pub(crate) fn waiting(&self) -> Vec<String> {
        let names = self.unanswered().map(|node| &self.invited[&node].name);
        names.map(|name| format!("{name} to get ready")).collect()
    }

    pub(crate) fn job(&self) -> &Job {
        &self.job
    }

    /// What follows, once all have answered. All must have found the same data and the same first weights: what most
    /// of them found counts, and of two equal crowds the one with the lower name.
    #[must_use]
    pub(crate) fn decide(&self) -> Option<Decision> {
        if self.answers.len() < self.invited.len() {
            return None;
        }
        let same = |a: &Offer, b: &Offer| (a.data == b.data) && a.digest == b.digest;
        let offers = || self.answers.values().filter_map(|answer| answer.as_ref().ok());
        let crowd = |offer: &Offer| offers().filter(|other| same(offer, other)).count();
        let usual = offers().rev().max_by_key(|offer| crowd(offer));
        let mut reasons = Vec::new();
        let mut participants = Vec::new();
        for (node, answer) in &self.answers {
            let info = &self.invited[node];
            match (answer, usual) {
                (Ok(offer), Some(usual)) if same(offer, usual) => participants.push(Participant {
                    guest: false,
                    node: *node,
                    name: info.name.clone(),
                    address: info.address,
                    workers: offer.workers,
                }),
                (Ok(offer), Some(usual)) if offer.data == usual.data => reasons.push(match &self.job.from {
                    Some(file) => format!(
                        "{} holds another model under {}: give all nodes the same file",
                        info.name,
                        file.display()
                    ),
                    None => format!(
                        "{} makes other first weights of the same job: bring all nodes to the same release",
                        info.name
                    ),
                }),
                (Ok(_), _) => reasons.push(format!(
                    "{} holds other data under {}: give all nodes the same files",
                    info.name, self.job.data
                )),
                (Err(reason), _) => reasons.push(format!("{}: {reason}", info.name)),
            }
        }
        let Some(usual) = usual.filter(|_| reasons.is_empty() || self.allow_partial) else {
            if !participants.is_empty() {
                reasons.push("add --allow-partial to begin without them".into());
            }
            return Some(Decision::Refuse(reasons));
        };
        // Names are drawn; addresses stay the same from run to run, and so do the slots.
        participants.sort_by_key(|participant| participant.address);
        if let Some(lanes) = self.job.exchange.lanes() {
            let groups = lanes.cut.groups();
            match in_lanes(&mut participants, groups) {
                Ok(spare) => reasons.extend(spare),
                Err(reason) => return Some(Decision::Refuse(vec![reason])),
            }
        }
        Some(Decision::Begin(RunPlan {
            job: self.job.clone(),
            data: usual.data.clone(),
            first: usual.digest,
            participants,
            resumed: self.resumed,
            left_out: told(reasons),
        }))
    }
}

/// Lets nodes stand in lanes, with one worker each. Those that do not make a whole lane are left out, with a sentence for each.
fn in_lanes(participants: &mut Vec<Participant>, groups: usize) -> Result<Vec<String>, String> {
    let whole = participants.len() / groups * groups;
    if whole == 0 {
        return Err(format!(
            "the network is cut into {groups} groups, each of which takes a node, and there are {}: start more nodes, or \
             ask for fewer groups",
            participants.len()
        ));
    }
    let spare = participants.split_off(whole);
    for participant in participants {
        participant.workers = 1;
    }
    let sentence = |one: Participant| format!("{} is spare: nodes take part in rows of {groups}", one.name);
    Ok(spare.into_iter().map(sentence).collect())
}

/// What all participants are told of those who are left out: no more than fits into a beat.
fn told(mut reasons: Vec<String>) -> Vec<String> {
    let more = reasons.len().saturating_sub(LEFT_OUT_MAX - 1);
    if more > 1 {
        reasons.truncate(LEFT_OUT_MAX - 1);
        reasons.push(format!("and {more} more"));
    }
    for reason in &mut reasons {
        shorten(reason, SENTENCE_BYTES_MAX);
    }
    reasons
}

#[cfg(test)]
mod tests {
    use protocol::digest::Digest;
    use protocol::job::JobDraft;
    use protocol::model::Shape;
    use protocol::target::TargetInfo;
    use protocol::wire::attach::DataInfo;

    use super::*;
    use crate::small_plan::small_node;

    fn info(id: u64) -> NodeInfo {
        NodeInfo {
            address: format!("127.0.0.1:{}", 100 - id).parse().unwrap(),
            ..small_node(id)
        }
    }

    type Answer = Result<Offer, String>;

    #[expect(clippy::unnecessary_wraps, reason = "answers are results")]
    fn offer(hash: u8) -> Answer {
        Ok(Offer {
            data: DataInfo {
                hash: [hash; 32],
                input: Shape::Flat(3),
                target: TargetInfo::Classes(2),
                train: 10,
                test: 2,
                most_frequent: 1,
            },
            digest: Digest::default(),
            workers: 2,
        })
    }

    fn decide(allow_partial: bool, answers: &[(u64, Result<Offer, String>)]) -> Option<Decision> {
        let job = Box::new(JobDraft::default().resolve().unwrap());
        let mut coordination = Coordination::new(job, None, allow_partial, (1..=3).map(info));
        for (node, answer) in answers {
            coordination.answer(NodeId(*node), answer.clone());
        }
        coordination.decide()
    }

    #[test]
    fn who_has_not_answered_is_named() {
        let job = Box::new(JobDraft::default().resolve().unwrap());
        let mut coordination = Coordination::new(job, None, false, (1..=3).map(info));
        coordination.answer(NodeId(2), offer(1));
        assert_eq!(coordination.waiting(), ["n1 to get ready", "n3 to get ready"]);
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
        assert_eq!(names(all), ["n3", "n2", "n1"], "by address");
    }

    #[test]
    fn who_cannot_take_part_is_named_and_the_user_decides() {
        let answers = [(1, offer(1)), (2, Err("no such file".into())), (3, offer(2))];
        let Some(Decision::Refuse(reasons)) = decide(false, &answers) else {
            panic!("it began");
        };
        assert_eq!(reasons[0], "n2: no such file");
        assert!(
            reasons[1].starts_with("n3 holds other data under builtin:mnist"),
            "{reasons:?}"
        );
        assert!(reasons[2].contains("--allow-partial"));
        assert_eq!(names(decide(true, &answers)), ["n1"]);
    }

    #[test]
    fn most_decide_what_the_data_is() {
        let answers = [(1, offer(1)), (2, offer(2)), (3, offer(2))];
        assert_eq!(names(decide(true, &answers)), ["n3", "n2"]);
    }

    #[test]
    fn nobody_at_all_is_no_run() {
        let broken = || Err("broken".to_string());
        let decision = decide(true, &[(1, broken()), (2, broken()), (3, broken())]);
        assert_eq!(
            decision,
            Some(Decision::Refuse(vec![
                "n1: broken".into(),
                "n2: broken".into(),
                "n3: broken".into()
            ]))
        );
    }
}
