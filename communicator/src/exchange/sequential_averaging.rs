//! Sequential averaging (`stepwise`): in each pass a partial sum of the workers' differences goes from worker to
//! worker; each adds its own and goes on from the mean so far.
//!
//! Only the workers' own copies are averaged. Shared weights do not move, so nothing here can make replicas differ.
//! Each pass begins at another worker, because the first worker of a pass gets no other's difference. A worker whose
//! predecessor is absent, has other shared weights or takes too long goes on alone.

use std::collections::{BTreeMap, BTreeSet};

use protocol::ids::{NodeId, OriginId};
use protocol::weights::dense::{Dense, Sign, add_up};
use protocol::weights::encoding;
use protocol::wire::prefix::{Prefix, PrefixHead};

/// Workers in the order in which a partial sum goes from one to the next, with their nodes.
pub(super) type Chain = Vec<(OriginId, NodeId)>;

/// An action that sequential averaging asks its caller to carry out.
#[derive(Debug, PartialEq)]
pub(super) enum AveragingStep {
    /// Let a worker of this node go on, from the mean of this prefix (partial sum) if there is one.
    GoOn(OriginId, Option<Prefix>),
    /// Send a prefix (partial sum) to another node.
    Send(NodeId, Prefix),
}

/// A worker of this node that waits for the partial sum of its predecessor.
#[derive(Clone, Debug)]
struct Waiting {
    own: Prefix,
    chain: Chain,
    ticks: u32,
}

/// This node's state in sequential averaging: which of its workers wait for a partial sum, and which sums came early.
#[derive(Clone, Debug)]
pub(super) struct SequentialAveraging {
    me: NodeId,
    weights: usize,
    waiting: BTreeMap<OriginId, Waiting>,
    /// For each worker of this node, the newest partial sum that arrived before the worker reached its averaging step.
    early: BTreeMap<OriginId, Prefix>,
    /// Workers whose partial sums did not arrive in time. Nothing is expected from them until one arrives.
    unresponsive: BTreeSet<OriginId>,
}

impl SequentialAveraging {
    pub(super) fn new(me: NodeId, weights: usize) -> Self {
        Self {
            me,
            weights,
            waiting: BTreeMap::new(),
            early: BTreeMap::new(),
            unresponsive: BTreeSet::new(),
        }
    }

    /// Starts a pass (one walk of a partial sum through all workers) for a worker of this node, with its own
    /// difference, along this chain. The worker goes on at once unless it has to wait for its predecessor.
    pub(super) fn begin(&mut self, own: Prefix, chain: Chain, steps: &mut Vec<AveragingStep>) {
        let origin = own.head.from;
        let early = self.early.remove(&origin);
        let waiting = Waiting { own, chain, ticks: 0 };
        let waits = waiting
            .predecessor()
            .is_some_and(|before| !self.unresponsive.contains(&before));
        self.waiting.insert(origin, waiting);
        match early {
            Some(early) => self.take(early, steps),
            None if !waits => self.go_on(origin, None, steps),
            None => {}
        }
    }

    /// Takes a partial sum for a worker of this node.
    pub(super) fn take(&mut self, prefix: Prefix, steps: &mut Vec<AveragingStep>) {
        let PrefixHead {
            pass, from, to, shared, ..
        } = prefix.head;
        self.unresponsive.remove(&from);
        let Some(waiting) = self.waiting.get(&to) else {
            self.early.insert(to, prefix);
            return;
        };
        let own = &waiting.own.head;
        if pass < own.pass || waiting.predecessor().is_none() {
            // The first worker of a pass expects no partial sum, and sums of older passes are useless.
            return;
        }
        if pass == own.pass && shared == own.shared {
            self.go_on(to, Some(&prefix), steps);
        } else {
            if pass > own.pass {
                self.early.insert(to, prefix);
            }
            self.go_on(to, None, steps);
        }
    }

    /// Removes workers whose streams of batches (origins) have ended: they neither wait nor send any more.
    pub(super) fn forget(&mut self, has_ended: impl Fn(OriginId) -> bool) {
        self.waiting.retain(|&origin, _| !has_ended(origin));
        self.early.retain(|&origin, _| !has_ended(origin));
        self.unresponsive.retain(|&origin| !has_ended(origin));
    }

    /// Counts a tick for the workers that wait for a partial sum. Those that have waited for `ticks_max` ticks, or
    /// whose predecessor no longer takes part in their round, go on alone.
    pub(super) fn tick(
        &mut self,
        ticks_max: u32,
        is_there: impl Fn(OriginId, OriginId) -> bool,
        steps: &mut Vec<AveragingStep>,
    ) {
        let mut left: Vec<OriginId> = Vec::new();
        for (&origin, waiting) in &mut self.waiting {
            waiting.ticks += 1;
            let before = waiting.predecessor();
            let in_vain = waiting.ticks >= ticks_max;
            if in_vain {
                self.unresponsive.extend(before);
            }
            if in_vain || !before.is_some_and(|before| is_there(origin, before)) {
                left.push(origin);
            }
        }
        for origin in left {
            self.go_on(origin, None, steps);
        }
    }

    /// Lets a worker go on with its own difference added to the partial sum, if there is one, and passes the new sum to
    /// the next worker.
    fn go_on(&mut self, origin: OriginId, before: Option<&Prefix>, steps: &mut Vec<AveragingStep>) {
        let Some(waiting) = self.waiting.remove(&origin) else {
            return;
        };
        let Waiting { own, chain, .. } = waiting;
        let sum = before.and_then(|before| added(&own, before, self.weights));
        let next = chain.iter().skip_while(|(of, _)| *of != origin).nth(1).copied();
        let told = sum.clone().unwrap_or(own);
        steps.push(AveragingStep::GoOn(origin, sum));
        if let Some((to, node)) = next {
            let head = PrefixHead {
                from: origin,
                to,
                ..told.head
            };
            let prefix = Prefix { head, ..told };
            if node == self.me {
                self.take(prefix, steps);
            } else {
                steps.push(AveragingStep::Send(node, prefix));
            }
        }
    }
}

impl Waiting {
    /// The worker from which this one gets the partial sum; `None` if the sum begins with this one.
    fn predecessor(&self) -> Option<OriginId> {
        let place = self
            .chain
            .iter()
            .position(|(origin, _)| *origin == self.own.head.from)?;
        self.chain.get(place.checked_sub(1)?).map(|(origin, _)| *origin)
    }
}

/// Adds two partial sums. Returns `None` if they do not cover the same weights or leave the range.
fn added(own: &Prefix, before: &Prefix, weights: usize) -> Option<Prefix> {
    let (one, other) = (
        encoding::read_dense(&own.steps, weights).ok()?,
        encoding::read_dense(&before.steps, weights).ok()?,
    );
    let first = one.first();
    if (other.first(), other.steps().len()) != (first, one.steps().len()) {
        return None;
    }
    let mut steps = one.into_steps();
    let fits = add_up(&mut steps, other.steps(), Sign::Plus);
    let mut bytes = Vec::new();
    let sum = Dense::checked(first, steps, weights).filter(|_| fits)?;
    encoding::write_dense(&sum, &mut bytes);
    let count = before.head.count.checked_add(own.head.count)?;
    let head = PrefixHead { count, ..own.head };
    Some(Prefix {
        head,
        steps: bytes.into(),
    })
}

/// Rotates the workers so that each pass (one walk of a partial sum through all workers) begins at the next worker.
pub(super) fn rotated(mut workers: Chain, pass: u64) -> Chain {
    if !workers.is_empty() {
        let begins = (pass % workers.len() as u64) as usize;
        workers.rotate_left(begins);
    }
    workers
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use protocol::weights::digest::Digest;

    use super::*;

    const WEIGHTS: usize = 3;

    fn own(worker: u64, pass: u64, shared: u64, steps: [i32; WEIGHTS]) -> Prefix {
        let mut bytes = Vec::new();
        encoding::write_steps(0, &steps, &mut bytes);
        Prefix {
            head: PrefixHead {
                pass,
                shared: Digest(shared),
                from: OriginId(worker),
                to: OriginId(worker),
                count: 1,
            },
            steps: bytes.into(),
        }
    }

    /// The number of workers in the mean from which a worker went on, and their sum; `None` if it went on alone.
    type From = Option<(u32, Vec<i32>)>;

    /// Three nodes with one worker each, which deliver messages to each other at once.
    struct Nodes {
        nodes: Vec<SequentialAveraging>,
        /// For each node, the sums from which its worker went on.
        gone: Vec<Vec<From>>,
    }

    impl Nodes {
        fn new() -> Self {
            Self {
                nodes: (0..3).map(|id| SequentialAveraging::new(NodeId(id), WEIGHTS)).collect(),
                gone: vec![Vec::new(); 3],
            }
        }

        fn chain(pass: u64) -> Chain {
            rotated((0..3).map(|id| (OriginId(id), NodeId(id))).collect(), pass)
        }

        fn comes(&mut self, worker: u64, pass: u64, shared: u64, steps: [i32; WEIGHTS]) {
            let mut done = Vec::new();
            self.nodes[worker as usize].begin(own(worker, pass, shared, steps), Self::chain(pass), &mut done);
            self.carry_out(done);
        }

        fn carry_out(&mut self, done: Vec<AveragingStep>) {
            let mut queue = VecDeque::from(done);
            while let Some(step) = queue.pop_front() {
                match step {
                    AveragingStep::GoOn(origin, prefix) => {
                        let from = prefix.map(|prefix| {
                            let dense = encoding::read_dense(&prefix.steps, WEIGHTS).unwrap();
                            (prefix.head.count, dense.into_steps())
                        });
                        self.gone[origin.0 as usize].push(from);
                    }
                    AveragingStep::Send(to, prefix) => {
                        let mut done = Vec::new();
                        self.nodes[to.0 as usize].take(prefix, &mut done);
                        queue.extend(done);
                    }
                }
            }
        }
    }

    #[test]
    fn each_goes_on_from_the_sum_of_all_before_it_and_itself() {
        // The result does not depend on the order in which workers reach the pass.
        for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
            let mut nodes = Nodes::new();
            for worker in order {
                nodes.comes(worker, 3, 9, [1 << worker, 0, -(worker as i32)]);
            }
            let gone = nodes.gone.iter().map(|gone| &gone[..]).collect::<Vec<_>>();
            let expected = [None, Some((2, vec![3, 0, -1])), Some((3, vec![7, 0, -3]))];
            assert_eq!(gone, expected.iter().map(std::slice::from_ref).collect::<Vec<_>>());
        }
    }

    #[test]
    fn over_the_passes_everybody_hears_of_everybody() {
        let mut heard: BTreeSet<(OriginId, OriginId)> = BTreeSet::new();
        for pass in 0..3 {
            let chain = Nodes::chain(pass);
            for (at, (worker, _)) in chain.iter().enumerate() {
                heard.extend(chain[..at].iter().map(|(before, _)| (*worker, *before)));
            }
        }
        assert_eq!(heard.len(), 6);
    }

    #[test]
    fn who_has_other_weights_or_does_not_come_is_not_added_up() {
        let mut nodes = Nodes::new();
        nodes.comes(0, 0, 9, [1; 3]);
        nodes.comes(1, 0, 8, [2; 3]);
        assert_eq!(
            nodes.gone[1],
            [None],
            "a worker that started from other weights gets nothing to add to"
        );
        nodes.comes(2, 0, 8, [4; 3]);
        assert_eq!(nodes.gone[2], [Some((2, vec![6; 3]))]);
        // Worker 0 does not answer: worker 1 waits for it until the timeout once, and then not any more.
        for (pass, ticks) in [(3, 5), (6, 0)] {
            nodes.comes(1, pass, 8, [1; 3]);
            for tick in 0..ticks {
                assert_eq!(nodes.gone[1].len(), 1, "{tick}");
                let mut done = Vec::new();
                nodes.nodes[1].tick(5, |_, _| true, &mut done);
                nodes.carry_out(done);
            }
            assert_eq!(nodes.gone[1].pop(), Some(None));
        }
        // Worker 0 is heard again, so worker 1 waits for it, until worker 0 is gone.
        nodes.comes(0, 6, 8, [1; 3]);
        nodes.comes(1, 9, 8, [1; 3]);
        assert_eq!(nodes.gone[1].len(), 1);
        let mut done = Vec::new();
        nodes.nodes[1].tick(5, |_, _| false, &mut done);
        nodes.carry_out(done);
        assert_eq!(nodes.gone[1].len(), 2);
    }

    #[test]
    fn nothing_is_kept_for_workers_that_have_ended() {
        let mut node = SequentialAveraging::new(NodeId(1), WEIGHTS);
        let chain = |at| vec![(OriginId(4), NodeId(0)), (OriginId(at), NodeId(1))];
        let mut done = Vec::new();
        // Worker 5 waits for worker 4, which does not answer, and a partial sum arrives early for worker 6.
        node.begin(own(5, 0, 9, [1; 3]), chain(5), &mut done);
        node.tick(1, |_, _| true, &mut done);
        let mut early = own(4, 1, 9, [1; 3]);
        early.head.to = OriginId(6);
        node.unresponsive.insert(OriginId(3));
        node.take(early, &mut done);
        node.begin(own(5, 1, 9, [1; 3]), chain(5), &mut done);
        assert_eq!(
            (node.waiting.len(), node.early.len(), node.unresponsive.len()),
            (1, 1, 1)
        );
        node.forget(|origin| [3, 5, 6].contains(&origin.0));
        assert!(node.waiting.is_empty() && node.early.is_empty() && node.unresponsive.is_empty());
    }

    #[test]
    fn two_workers_of_one_node_hear_of_each_other() {
        let mut node = SequentialAveraging::new(NodeId(1), WEIGHTS);
        let chain = vec![(OriginId(4), NodeId(1)), (OriginId(5), NodeId(1))];
        let mut done = Vec::new();
        node.begin(own(5, 0, 9, [1; 3]), chain.clone(), &mut done);
        assert_eq!(done, []);
        node.begin(own(4, 0, 9, [2; 3]), chain, &mut done);
        assert!(matches!(
            &done[..],
            [AveragingStep::GoOn(OriginId(4), None), AveragingStep::GoOn(OriginId(5), Some(prefix))] if prefix.head.count == 2
        ));
    }
}
