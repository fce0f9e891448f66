//! Many nodes in one thread, under a seeded storm: links break, lose, repeat and reorder, partitions come, nodes die.
//!
//! At any time no replica may hold anything but the sum of its batches, and equal frontiers must mean equal
//! weights. When the storm is over, all survivors must agree. A failure prints its seed; `TAU_SIMULATION_SEED=n cargo
//! test -p tau-communicator simulation` replays it, and `TAU_SIMULATION_SEEDS=n` runs the first n.

use std::collections::{BTreeMap, VecDeque};

use protocol::changes::word;
use protocol::frontier::Frontier;
use protocol::ids::{NodeId, OriginId};
use protocol::lattice::Tau;
use protocol::rng::CounterRng;

use super::tests::{RUN, WEIGHTS, batch, origin};
use super::{Effect, Event, Exchange, Limits, Message};
use crate::ledger::Ledger;

const STEPS: u64 = 1500;
const LIMITS: Limits = Limits {
    window: 8,
    window_bytes: usize::MAX,
    acknowledge_every: 3,
    patience_ticks: 3,
    reset_ticks: 12,
    log_bytes_max: usize::MAX,
};

struct Node {
    exchange: Exchange,
    alive: bool,
    sequence: u64,
}

struct World {
    random: CounterRng,
    nodes: BTreeMap<NodeId, Node>,
    /// What is under way between two nodes that have a link, by direction.
    links: BTreeMap<(NodeId, NodeId), VecDeque<Message>>,
    lossy: bool,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = CounterRng::new(seed, 0);
        let count = 2 + random.below(7);
        let ids: Vec<NodeId> = (1..=count).map(NodeId).collect();
        let nodes = ids.iter().map(|&id| {
            let exchange = Exchange::new(id, Ledger::new(RUN, vec![0; WEIGHTS]), LIMITS);
            (
                id,
                Node {
                    exchange,
                    alive: true,
                    sequence: 0,
                },
            )
        });
        let lossy = random.below(2) == 0;
        let mut world = Self {
            nodes: nodes.collect(),
            links: BTreeMap::new(),
            random,
            lossy,
        };
        for &at in &ids {
            for &id in &ids {
                world.tell(at, Event::Joined(id));
            }
            // The others learn of it on their links.
            world.tell(at, Event::Origin(origin(at.0)));
        }
        world.mend_all();
        world
    }

    fn alive(&self) -> Vec<NodeId> {
        self.nodes
            .iter()
            .filter(|(_, node)| node.alive)
            .map(|(&id, _)| id)
            .collect()
    }

    fn pick(&mut self, from: &[NodeId]) -> NodeId {
        from[self.random.below(from.len() as u64) as usize]
    }

    fn tell(&mut self, at: NodeId, event: Event) {
        let mut effects = Vec::new();
        let node = self.nodes.get_mut(&at).unwrap();
        if node.alive {
            node.exchange.handle(event, &mut effects);
        }
        for effect in effects {
            match effect {
                Effect::Send { to, message } => {
                    // Without a link the message goes nowhere, as into a socket that is closed.
                    if let Some(queue) = self.links.get_mut(&(at, to)) {
                        queue.push_back(message);
                    }
                }
                Effect::Reset(peer) => self.cut(at, peer),
                Effect::Deliver { .. } => {}
                other => panic!("{at} asks for {other:?} of honest peers"),
            }
        }
    }

    fn cut(&mut self, a: NodeId, b: NodeId) {
        let there = self.links.remove(&(a, b)).is_some() | self.links.remove(&(b, a)).is_some();
        if there {
            self.tell(a, Event::LinkDown(b));
            self.tell(b, Event::LinkDown(a));
        }
    }

    fn mend(&mut self, a: NodeId, b: NodeId) {
        if a != b && self.nodes[&a].alive && self.nodes[&b].alive && !self.links.contains_key(&(a, b)) {
            self.links.insert((a, b), VecDeque::new());
            self.links.insert((b, a), VecDeque::new());
            self.tell(a, Event::LinkUp(b));
            self.tell(b, Event::LinkUp(a));
        }
    }

    fn mend_all(&mut self) {
        let ids = self.alive();
        for &a in &ids {
            for &b in &ids {
                self.mend(a, b);
            }
        }
    }

    fn train(&mut self, at: NodeId) {
        let mut words: Vec<u32> = (0..self.random.below(6))
            .map(|_| word(self.random.below(WEIGHTS as u64) as u32, true))
            .collect();
        words.sort_unstable();
        let minus = self.random.below(2) == 0;
        if minus {
            words = words.iter().map(|word| word ^ 1).collect();
        }
        let tau = Tau::from_steps(1 + self.random.below(100) as u32).unwrap();
        let node = self.nodes.get_mut(&at).unwrap();
        node.sequence += 1;
        let bytes = batch(OriginId(at.0), node.sequence, &words, tau);
        self.tell(at, Event::Local(bytes));
    }

    /// One message arrives; on a lossy network it may get lost, come twice or be overtaken.
    fn deliver(&mut self) -> bool {
        let busy: Vec<(NodeId, NodeId)> = self
            .links
            .iter()
            .filter(|(_, q)| !q.is_empty())
            .map(|(&l, _)| l)
            .collect();
        if busy.is_empty() {
            return false;
        }
        let (from, to) = busy[self.random.below(busy.len() as u64) as usize];
        let chance = if self.lossy { self.random.below(100) } else { 99 };
        let queue = self.links.get_mut(&(from, to)).unwrap();
        // What is said of origins stays in its place: without it an honest batch would look like a forged one.
        let moves = |message: Option<&Message>| message.is_some_and(|message| !matches!(message, Message::Origin(_)));
        if chance == 0 && moves(queue.front()) && moves(queue.get(1)) {
            queue.swap(0, 1);
        }
        let message = queue.pop_front().unwrap();
        if chance == 1 && moves(Some(&message)) {
            return true;
        }
        if chance == 2 {
            queue.push_front(message.clone());
        }
        self.tell(to, Event::Received { from, message });
        true
    }

    fn storm_step(&mut self) {
        let alive = self.alive();
        let (a, b) = (self.pick(&alive), self.pick(&alive));
        match self.random.below(1000) {
            0..350 => self.train(a),
            350..900 => {
                self.deliver();
            }
            900..970 => self.tell(a, Event::Tick),
            970..980 => self.cut(a, b),
            980..994 => self.mend(a, b),
            994..997 => {
                // A partition: nobody of one side reaches anybody of the other.
                let border = self.random.below(alive.len() as u64) as usize;
                for &left in &alive[..border] {
                    for &right in &alive[border..] {
                        self.cut(left, right);
                    }
                }
            }
            997 => self.mend_all(),
            998 if alive.len() > 2 => self.crash(a),
            _ => {}
        }
    }

    fn crash(&mut self, node: NodeId) {
        for other in self.alive() {
            self.cut(node, other);
        }
        self.nodes.get_mut(&node).unwrap().alive = false;
    }

    /// The storm is over: links hold, the dead are declared dead, and time passes.
    fn settle(&mut self) {
        self.lossy = false;
        let dead: Vec<NodeId> = self
            .nodes
            .iter()
            .filter(|(_, node)| !node.alive)
            .map(|(&id, _)| id)
            .collect();
        for at in self.alive() {
            for &gone in &dead {
                self.tell(at, Event::Left(gone));
            }
        }
        for _ in 0..400 {
            self.mend_all();
            while self.deliver() {}
            for at in self.alive() {
                self.tell(at, Event::Tick);
            }
        }
    }

    /// What must hold at every moment.
    fn check(&self) {
        let nodes: Vec<&Node> = self.nodes.values().filter(|node| node.alive).collect();
        for node in &nodes {
            node.exchange.ledger().audit().unwrap();
        }
        for (at, a) in nodes.iter().enumerate() {
            for b in &nodes[at + 1..] {
                let (a, b) = (a.exchange.ledger(), b.exchange.ledger());
                assert!(
                    a.frontier() != b.frontier() || a.digest() == b.digest(),
                    "equal frontiers, other weights"
                );
            }
        }
    }

    /// What some survivor has applied.
    fn learned(&self) -> Frontier {
        let mut learned = Frontier::default();
        for node in self.nodes.values().filter(|node| node.alive) {
            learned.merge(node.exchange.ledger().frontier());
        }
        learned
    }

    fn check_agreement(&self, learned: &Frontier) {
        let nodes: Vec<&Node> = self.nodes.values().filter(|node| node.alive).collect();
        let first = nodes[0].exchange.ledger();
        assert_eq!(
            first.frontier(),
            learned,
            "something that a survivor had learned is lost"
        );
        for (&id, node) in self.nodes.iter().filter(|(_, node)| node.alive) {
            assert_eq!(node.exchange.ledger().frontier(), first.frontier(), "{id} differs");
            assert_eq!(node.exchange.ledger().weights(), first.weights());
            assert_eq!(node.exchange.log_bytes(), 0, "{id} keeps what everybody has");
        }
    }
}

fn run(seed: u64) {
    let mut world = World::new(seed);
    for step in 0..STEPS {
        world.storm_step();
        if step % 16 == 0 {
            world.check();
        }
    }
    let learned = world.learned();
    world.settle();
    world.check();
    world.check_agreement(&learned);
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn survivors_agree_after_any_storm() {
    let seeds = match variable("TAU_SIMULATION_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..variable("TAU_SIMULATION_SEEDS").unwrap_or(300),
    };
    for seed in seeds {
        let outcome = std::panic::catch_unwind(|| run(seed));
        assert!(
            outcome.is_ok(),
            "replay with TAU_SIMULATION_SEED={seed} cargo test -p tau-communicator simulation"
        );
    }
}
