//! Tests of bundled rounds: on every path, with parts in any order and repeated.

use protocol::ids::RunId;
use protocol::log::batch::{Header, OriginStatus};
use protocol::rng::CounterRng;

use super::*;

fn batch(origin: u64, round: u64, steps: Vec<i32>, weights: usize) -> Batch {
    let payload = if steps.is_empty() {
        Payload::default()
    } else {
        Payload::Dense(Dense::checked(0, steps, weights).unwrap())
    };
    let header = Header {
        run: RunId(1),
        origin: OriginId(origin),
        sequence: round,
        seen: 0,
        digest: payload.digest(),
        cursors: Vec::new(),
        samples: 1,
        loss: f32::NAN,
        status: OriginStatus {
            round,
            ..OriginStatus::default()
        },
    };
    Batch { header, payload }
}

/// Several nodes with one worker each, in one round.
struct Round {
    random: CounterRng,
    nodes: Vec<Bundling>,
    steps: Vec<Vec<i32>>,
    queue: Vec<(NodeId, NodeId, RoundPart)>,
    /// Number of bytes of weights' movements that each node has sent.
    sent: Vec<usize>,
}

impl Round {
    fn new(seed: u64, path: ReductionPath, count: usize, weights: usize) -> Self {
        let mut random = CounterRng::new(seed, 3);
        let steps = (0..count).map(|_| match random.below(6) {
            // A worker that is not the best emits nothing.
            0 => Vec::new(),
            _ => (0..weights).map(|_| random.below(61) as i32 - 30).collect(),
        });
        Self {
            steps: steps.collect(),
            random,
            nodes: (0..count as u64)
                .map(|id| Bundling::new(path, NodeId(id), weights))
                .collect(),
            queue: Vec::new(),
            sent: vec![0; count],
        }
    }

    fn members(&self) -> Vec<NodeId> {
        (0..self.nodes.len() as u64).map(NodeId).collect()
    }

    /// Lets a node's worker reach the round.
    fn come(&mut self, at: usize, round: u64) {
        let members = self.members();
        let node = &mut self.nodes[at];
        let mut follows = BundlingOutcome::default();
        let made = batch(at as u64, round, self.steps[at].clone(), node.weights);
        node.offer(made, &members, &mut follows);
        assert_eq!(node.is_to_begin(), Some(round));
        node.begin(&mut follows);
        self.send(at, follows);
    }

    fn send(&mut self, at: usize, follows: BundlingOutcome) {
        assert!(!follows.let_go, "no node may give up bundling the round");
        for (to, part) in follows.out {
            self.sent[at] += part.steps.len();
            self.queue.push((NodeId(at as u64), to, part));
        }
    }

    /// Delivers all parts of sums that are in flight, in random order and some of them twice.
    fn deliver(&mut self) {
        while !self.queue.is_empty() {
            let next = self.random.below(self.queue.len() as u64) as usize;
            let (from, to, part) = if self.random.below(8) == 0 {
                self.queue[next].clone()
            } else {
                self.queue.swap_remove(next)
            };
            let mut follows = BundlingOutcome::default();
            self.nodes[to.0 as usize].take(from, part, &mut follows);
            self.send(to.0 as usize, follows);
        }
    }
}

#[test]
fn every_way_gives_everybody_the_sum_of_all_others() {
    for seed in 0..600 {
        let path = [ReductionPath::Star, ReductionPath::RingReduce, ReductionPath::Ring][seed as usize % 3];
        let mut sizes = CounterRng::new(seed, 4);
        let (count, weights) = (3 + sizes.below(7) as usize, 1 + sizes.below(300) as usize);
        let mut round = Round::new(seed, path, count, weights);
        for at in 0..count {
            round.come(at, 2);
            if round.random.below(2) == 0 {
                round.deliver();
            }
        }
        round.deliver();
        for at in 0..count {
            let bundle = round.nodes[at]
                .take_pending()
                .unwrap_or_else(|| panic!("seed {seed}: node {at} has no bundle"));
            let others: Vec<u64> = (0..count as u64).filter(|&other| other != at as u64).collect();
            let origins: Vec<u64> = bundle.batches().map(|(origin, _)| origin.0).collect();
            assert_eq!(origins, others, "seed {seed}");
            assert_eq!(bundle.dense.digest(), bundle.digest(), "seed {seed}");
            assert!(round.nodes[at].holds(OriginId(at as u64), 2, NodeId((at as u64 + 1) % count as u64)));
            round.nodes[at].succeed();
            assert_eq!((round.nodes[at].bundled, round.nodes[at].given_up), (1, 0));
        }
    }
}

#[test]
fn in_a_ring_nobody_sends_more_than_twice_a_model() {
    for count in 3..=10 {
        let weights = 200_000;
        let mut round = Round::new(1, ReductionPath::Ring, count, weights);
        round.steps = vec![vec![1; weights]; count];
        (0..count).for_each(|at| round.come(at, 2));
        // Parts are delivered without repeats.
        while let Some((from, to, part)) = round.queue.pop() {
            let mut follows = BundlingOutcome::default();
            round.nodes[to.0 as usize].take(from, part, &mut follows);
            round.send(to.0 as usize, follows);
        }
        let share = 2 * (count - 1) * weights / count;
        for sent in round.sent {
            assert!(
                sent * 100 <= share * 102,
                "a node sent {sent} weights, expected about {share}, with {count} nodes"
            );
        }
    }
}

#[test]
fn a_round_that_others_mean_otherwise_is_given_up_and_tried_again_later() {
    let mut round = Round::new(1, ReductionPath::Star, 3, 8);
    round.come(0, 2);
    round.come(1, 2);
    // The third node takes a fourth node for a member, too.
    let node = &mut round.nodes[2];
    let mut follows = BundlingOutcome::default();
    let members: Vec<NodeId> = (0..4).map(NodeId).collect();
    node.offer(batch(2, 2, vec![1; 8], 8), &members, &mut follows);
    node.begin(&mut follows);
    let (from, part) = (NodeId(2), follows.out[0].1.clone());
    let hub = &mut round.nodes[0];
    let mut follows = BundlingOutcome::default();
    hub.take(from, part, &mut follows);
    assert!(follows.let_go && !hub.holds(OriginId(0), 2, NodeId(1)));
    assert_eq!(hub.points(OriginId(0)).collect::<Vec<_>>(), [1, 2]);
    // After this failure batches go singly until round 16; after a further one, until round 32.
    let members = round.members();
    let hub = &mut round.nodes[0];
    for (next, is_tried) in [
        (3, false),
        (15, false),
        (16, true),
        (17, false),
        (31, false),
        (32, true),
    ] {
        let mut follows = BundlingOutcome::default();
        hub.offer(batch(0, next, vec![1; 8], 8), &members, &mut follows);
        assert_eq!(hub.is_to_begin().is_some(), is_tried, "{next}");
        if is_tried {
            hub.give_up(true, &mut follows);
            assert!(follows.let_go);
        }
    }
    // The loss of a member does not count as a failure.
    hub.resumes_at = 0;
    let mut follows = BundlingOutcome::default();
    hub.offer(batch(0, 40, vec![1; 8], 8), &members, &mut follows);
    hub.give_up(false, &mut follows);
    hub.offer(batch(0, 41, vec![1; 8], 8), &members, &mut follows);
    assert_eq!(hub.is_to_begin(), Some(41));
}

#[test]
fn a_flood_of_parts_takes_no_memory() {
    let mut node = Bundling::new(ReductionPath::Ring, NodeId(0), 1000);
    for round in 5..50_000 {
        let head = protocol::wire::part::PartHead {
            round,
            members: 7,
            piece: 0,
            whole: false,
            headers: Vec::new(),
        };
        let part = RoundPart {
            head,
            steps: vec![0; 4000].into(),
        };
        node.take(NodeId(1), part, &mut BundlingOutcome::default());
    }
    let bytes: usize = node.stash.iter().map(|(_, part)| part.steps.len()).sum();
    assert!(bytes < 2 * STASH_BYTES_MIN, "{bytes}");
}
