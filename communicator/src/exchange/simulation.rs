//! Many nodes in one thread, under a seeded storm: links break, on one side first; they lose, repeat, reorder and delay;
//! partitions come and go; nodes die, start again and join late; workers die; peers are slow; logs are short; bits flip.
//!
//! At every step, whatever happened: each replica is the sum of exactly the batches that its frontier names, each made
//! once; its worker holds the same; memory is within its limits. When the storm is over, all survivors must agree, and
//! nothing that a survivor had learned may be lost. A failure prints its seed; `TAU_SIMULATION_SEED=n cargo test -p
//! tau-communicator simulation` replays it, `TAU_SIMULATION_SEEDS=n` runs the first n, and `TAU_SIMULATION_FROM=n` others.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write as _;

use protocol::batch::{Batch, Payload};
use protocol::changes::word;
use protocol::digest::Digest;
use protocol::frontier::Frontier;
use protocol::ids::{NodeId, OriginId};
use protocol::lattice::Tau;
use protocol::rng::CounterRng;
use protocol::sums::Adder;

use super::planted::{Bug, PLANTED};
use super::tests::{RUN, WEIGHTS, batch_of};
use super::{Effect, Event, Exchange, Limits, Message, OriginInfo, Routing};
use crate::ledger::Ledger;
use crate::seeds;

/// Seeds that every test run goes through.
const SEEDS: u64 = 10_000;
/// Origins of one node, at most: incarnations of its worker.
const WORKERS_MAX: u64 = 1000;
/// Enough memory for everything.
const UNLIMITED: usize = usize::MAX >> 1;
/// The bytes of a batch of five changes, at most.
const BATCH_BYTES_MAX: usize = 100;
/// Ticks in which survivors must come to an agreement once the storm is over.
const CALM_TICKS: usize = 1500;

/// Messages between two ticks of a calm world; a few hundred, in fact.
const DELIVERIES_MAX: usize = 100_000;

struct Node {
    exchange: Exchange,
    alive: bool,
    knows: BTreeSet<NodeId>,
    /// The worker of the moment: its origin, the last batch it made, and its replica.
    worker: Option<Worker>,
    workers: u64,
    /// A bit of its ledger has flipped, and the ledger was not replaced yet.
    damaged: bool,
}

struct Worker {
    origin: OriginId,
    sequence: u64,
    counts: Vec<i32>,
}

/// One direction of a link.
#[derive(Default)]
struct Way {
    queue: VecDeque<Message>,
    /// The receiver has not noticed yet that the link is gone.
    dangling: bool,
    /// Everything on it gets lost, and nobody is told.
    dead: bool,
}

struct World {
    random: CounterRng,
    limits: Limits,
    routing: Routing,
    nodes: BTreeMap<NodeId, Node>,
    /// What is under way between two nodes, by direction.
    ways: BTreeMap<(NodeId, NodeId), Way>,
    /// The digests of each origin's batches, summed up to each sequence: what a frontier must come to.
    made: BTreeMap<OriginId, Vec<Digest>>,
    lossy: bool,
    slow: Option<NodeId>,
    stormy: bool,
    next: u64,
}

fn limits(random: &mut CounterRng) -> Limits {
    let mut pick = |choices: &[usize]| choices[random.below(choices.len() as u64) as usize];
    Limits {
        window: pick(&[2, 8, 8]) as u64,
        window_bytes: usize::MAX,
        acknowledge_every: 3,
        patience_ticks: 3,
        reset_ticks: 12,
        mark_ticks: pick(&[1, 3, 8]) as u32,
        single_bytes_max: pick(&[200, 2000, UNLIMITED]),
        unmarked_bytes_max: pick(&[3000, UNLIMITED, UNLIMITED]),
        merged_bytes_max: pick(&[300, UNLIMITED, UNLIMITED]),
        range_worth_bytes: pick(&[100, 600, usize::MAX]),
        piece_bytes: pick(&[40, 1000]),
        parcel_window: 100,
        snapshots_max: 2,
    }
}

impl World {
    fn new(seed: u64, routing: Routing) -> Self {
        let mut random = CounterRng::new(seed, 0);
        // Mostly few: what goes wrong among twenty mostly goes wrong among four, and sooner.
        let count = match random.below(20) {
            0 => 2 + random.below(19),
            1..4 => 2 + random.below(9),
            _ => 2 + random.below(4),
        };
        let limits = limits(&mut random);
        let lossy = random.below(2) == 0;
        let slow = (random.below(3) == 0).then(|| NodeId(1 + random.below(count)));
        let mut world = Self {
            random,
            limits,
            routing,
            nodes: BTreeMap::new(),
            ways: BTreeMap::new(),
            made: BTreeMap::new(),
            lossy,
            slow,
            stormy: true,
            next: 1,
        };
        for _ in 0..count {
            world.add();
        }
        let founders = world.alive();
        for &at in &founders {
            for &founder in &founders {
                world.nodes.get_mut(&at).unwrap().knows.insert(founder);
                world.tell(at, Event::Founder(founder));
            }
            world.start_worker(at);
        }
        world.mend_all();
        world
    }

    /// A new node, which knows nobody yet.
    fn add(&mut self) -> NodeId {
        let id = NodeId(self.next);
        self.next += 1;
        let exchange = Exchange::new(id, Ledger::new(RUN, vec![0; WEIGHTS]), self.limits).routed(self.routing);
        self.nodes.insert(
            id,
            Node {
                exchange,
                alive: true,
                knows: BTreeSet::from([id]),
                worker: None,
                workers: 0,
                damaged: false,
            },
        );
        id
    }

    fn alive(&self) -> Vec<NodeId> {
        let alive = self.nodes.iter().filter(|(_, node)| node.alive);
        alive.map(|(&id, _)| id).collect()
    }

    fn pick(&mut self, from: &[NodeId]) -> NodeId {
        from[self.random.below(from.len() as u64) as usize]
    }

    /// A node hears of others: that they take part.
    fn learn_of(&mut self, at: NodeId, others: &BTreeSet<NodeId>) {
        for &other in others {
            if self.nodes.get_mut(&at).unwrap().knows.insert(other) {
                self.tell(at, Event::Joined(other));
            }
        }
    }

    fn learn_all(&mut self, at: NodeId) {
        let alive = self.alive().into_iter().collect();
        self.learn_of(at, &alive);
    }

    fn start_worker(&mut self, at: NodeId) {
        let node = self.nodes.get_mut(&at).unwrap();
        if node.damaged {
            // Nothing begins from a ledger that is known to be wrong.
            return;
        }
        let origin = OriginId(at.0 * WORKERS_MAX + node.workers);
        node.workers += 1;
        let slot = at.0 as u32;
        self.made.insert(origin, vec![Digest::default()]);
        self.tell(
            at,
            Event::Origin(OriginInfo {
                origin,
                home: at,
                slot,
                ended: None,
            }),
        );
        let node = self.nodes.get_mut(&at).unwrap();
        node.worker = Some(Worker {
            origin,
            sequence: 0,
            counts: node.exchange.ledger().counts().to_vec(),
        });
    }

    fn end_worker(&mut self, at: NodeId) {
        if let Some(worker) = self.nodes.get_mut(&at).unwrap().worker.take() {
            self.tell(
                at,
                Event::Origin(OriginInfo {
                    origin: worker.origin,
                    home: at,
                    slot: at.0 as u32,
                    ended: Some(worker.sequence),
                }),
            );
        }
    }

    fn tell(&mut self, at: NodeId, event: Event) {
        let mut effects = Vec::new();
        let node = self.nodes.get_mut(&at).unwrap();
        if !node.alive {
            return;
        }
        node.exchange.handle(event, &mut effects);
        let mut restart = false;
        for effect in effects {
            match effect {
                Effect::Send { to, message } => {
                    // Without a link the message goes nowhere, as into a socket that is closed.
                    if let Some(way) = self.ways.get_mut(&(at, to))
                        && !way.dead
                        && !way.dangling
                    {
                        way.queue.push_back(message);
                    }
                }
                Effect::Reset(peer) => self.cut(at, peer),
                Effect::Deliver { origin, bytes } => {
                    if let Some(worker) = &mut self.nodes.get_mut(&at).unwrap().worker
                        && worker.origin != origin
                    {
                        let batch = Batch::decode(&bytes, WEIGHTS).unwrap();
                        batch.payload.apply_to_counts(&mut worker.counts).unwrap();
                    }
                }
                Effect::Shift(shift) => {
                    if let Some(worker) = &mut self.nodes.get_mut(&at).unwrap().worker {
                        shift.sums.apply_to_counts(&mut worker.counts).unwrap();
                    }
                }
                Effect::Damaged(_) => self.nodes.get_mut(&at).unwrap().damaged = true,
                Effect::Healed => self.nodes.get_mut(&at).unwrap().damaged = false,
                Effect::RestartWorkers => restart = true,
                Effect::Ended(_) | Effect::Giving(_) | Effect::Mended(_) => {}
                other => panic!("{at} asks for {other:?} of honest peers"),
            }
        }
        if restart {
            self.end_worker(at);
            self.start_worker(at);
        }
        self.check(at);
    }

    /// Takes a link away; both sides notice.
    fn cut(&mut self, a: NodeId, b: NodeId) {
        for (from, to) in [(a, b), (b, a)] {
            if self.ways.remove(&(from, to)).is_some() {
                self.tell(to, Event::LinkDown(from));
            }
        }
    }

    /// Takes a link away; one side notices later, and goes on hearing what was under way.
    fn cut_one_sided(&mut self, a: NodeId, b: NodeId) {
        if self.ways.contains_key(&(a, b)) && self.ways.remove(&(b, a)).is_some() {
            self.tell(a, Event::LinkDown(b));
            if let Some(way) = self.ways.get_mut(&(a, b)) {
                way.dangling = true;
            }
        }
    }

    fn mend(&mut self, a: NodeId, b: NodeId) {
        let both = self.nodes[&a].alive && self.nodes[&b].alive;
        let known = self.nodes[&a].knows.contains(&b) && self.nodes[&b].knows.contains(&a);
        let whole = self.ways.contains_key(&(a, b)) && self.ways.contains_key(&(b, a));
        if a == b || !both || !known || whole {
            return;
        }
        self.cut(a, b);
        self.ways.insert((a, b), Way::default());
        self.ways.insert((b, a), Way::default());
        self.tell(a, Event::LinkUp(b));
        self.tell(b, Event::LinkUp(a));
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
        let mut payload = Payload::Steps { tau, words };
        if self.random.below(4) == 0 {
            // Any sum will do: a batch says by itself what it holds.
            let mut adder = Adder::new(WEIGHTS);
            if let Payload::Steps { tau, words } = &payload {
                adder.add_changes(words, *tau);
            }
            payload = Payload::Sums(adder.finish().unwrap());
        }
        let Some(worker) = &mut self.nodes.get_mut(&at).unwrap().worker else {
            return;
        };
        worker.sequence += 1;
        payload.apply_to_counts(&mut worker.counts).unwrap();
        let sums = self.made.get_mut(&worker.origin).unwrap();
        sums.push(*sums.last().unwrap() + payload.digest());
        let bytes = batch_of(worker.origin, worker.sequence, &payload);
        assert!(bytes.len() <= BATCH_BYTES_MAX);
        self.tell(at, Event::Local(bytes));
    }

    /// One message arrives; on a lossy network it may get lost, come twice or be overtaken.
    fn deliver(&mut self) -> bool {
        let busy: Vec<(NodeId, NodeId)> = self
            .ways
            .iter()
            .filter(|(_, way)| !way.queue.is_empty())
            .map(|(&way, _)| way)
            .collect();
        if busy.is_empty() {
            return false;
        }
        let (from, to) = busy[self.random.below(busy.len() as u64) as usize];
        if self.stormy && self.slow == Some(to) && self.random.below(8) > 0 {
            return true;
        }
        let chance = if self.lossy { self.random.below(100) } else { 99 };
        let queue = &mut self.ways.get_mut(&(from, to)).unwrap().queue;
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
            350..880 => {
                self.deliver();
            }
            880..960 => {
                self.tell(a, Event::Tick);
                // Whoever came late begins when it has about what the others have.
                let live = |node| self.nodes[&node].alive;
                if self.nodes[&a].worker.is_none() && self.nodes[&a].exchange.is_caught_up(live) {
                    self.start_worker(a);
                }
            }
            960..966 => self.cut(a, b),
            966..970 => self.cut_one_sided(a, b),
            970..973 => {
                if let Some(way) = self.ways.get_mut(&(a, b)) {
                    way.dead = true;
                }
            }
            973..985 => self.mend(a, b),
            985..988 => self.partition(&alive),
            988 => self.mend_all(),
            // Of those that were forgotten for want of memory, only the nodes of their origins remember everything: when
            // they die too, something may be lost. That is not promised, so it is not asked for.
            989 if alive.len() > 2 && self.forgets_nobody() && self.is_sound() => self.crash(a),
            990 if self.nodes.len() < 24 => {
                // A fresh node, or one that died and is started again: it is told of by one, and others hear later.
                let id = self.add();
                let told = self.nodes[&a].knows.clone();
                self.learn_of(id, &told);
                self.learn_of(a, &BTreeSet::from([id]));
            }
            991..993 if self.nodes[&a].worker.is_some() => {
                self.end_worker(a);
                self.start_worker(a);
            }
            993..998 => {
                let told = self.nodes[&b].knows.clone();
                self.learn_of(a, &told);
            }
            998 => self.end_silence(a, b),
            999 => self.flip(a),
            _ => {}
        }
    }

    /// Bits of a ledger flip, and its node's audit finds that. One it mends itself; more, only where another has what is
    /// needed: what nobody has right can be healed by nobody.
    fn flip(&mut self, at: NodeId) {
        let bits = self.random.below(3);
        let places: Vec<(usize, u32)> = (0..bits)
            .map(|_| (self.random.below(WEIGHTS as u64) as usize, self.random.below(12) as u32))
            .collect();
        let may_replace = |(id, other): (&NodeId, &Node)| {
            let ledger = other.exchange.ledger().clone();
            *id != at && other.alive && !other.exchange.newcomer && self.nodes[&at].exchange.with_own(ledger).is_some()
        };
        if bits <= 1 || self.is_sound() && self.nodes.iter().any(may_replace) {
            let ledger = &mut self.nodes.get_mut(&at).unwrap().exchange.ledger;
            for (index, bit) in places {
                ledger.flip(index, bit);
            }
            self.tell(at, Event::Audit);
        }
    }

    fn forgets_nobody(&self) -> bool {
        let Limits {
            merged_bytes_max,
            unmarked_bytes_max,
            ..
        } = self.limits;
        merged_bytes_max.min(unmarked_bytes_max) == UNLIMITED
    }

    fn is_sound(&self) -> bool {
        !self.nodes.values().any(|node| node.alive && node.damaged)
    }

    /// Nobody of one side reaches anybody of the other.
    fn partition(&mut self, alive: &[NodeId]) {
        let border = self.random.below(alive.len() as u64) as usize;
        for &left in &alive[..border] {
            for &right in &alive[border..] {
                self.cut(left, right);
            }
        }
    }

    /// The side of a half-broken link that did not know finds out.
    fn end_silence(&mut self, a: NodeId, b: NodeId) {
        if self.ways.get(&(a, b)).is_some_and(|way| way.dangling) {
            self.cut(a, b);
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
        self.stormy = false;
        let dead: Vec<NodeId> = self.nodes.keys().copied().filter(|id| !self.nodes[id].alive).collect();
        let declared = self.random.below(2) == 0;
        for at in self.alive() {
            self.learn_all(at);
            for gone in dead.iter().filter(|_| declared) {
                self.nodes.get_mut(&at).unwrap().knows.remove(gone);
                self.tell(at, Event::Left(*gone));
            }
        }
        let broken: Vec<(NodeId, NodeId)> = self.ways.keys().copied().collect();
        for (a, b) in broken {
            let way = self.ways.get(&(a, b));
            if way.is_some_and(|way| way.dead || way.dangling) {
                self.cut(a, b);
            }
        }
        for _ in 0..CALM_TICKS {
            self.mend_all();
            self.deliver_all();
            for at in self.alive() {
                self.tell(at, Event::Tick);
            }
            if self.ways.values().all(|way| way.queue.is_empty()) && self.is_agreed() {
                break;
            }
        }
    }

    /// Everything that is under way arrives, and what follows from it; that must come to an end by itself.
    fn deliver_all(&mut self) {
        let mut delivered = 0;
        while self.deliver() {
            delivered += 1;
            assert!(delivered < DELIVERIES_MAX, "words without end\n{}", self.describe());
        }
    }

    fn is_agreed(&self) -> bool {
        let mut alive = self.nodes.values().filter(|node| node.alive);
        let first = alive.next().unwrap();
        alive.all(|node| node.exchange.ledger().frontier() == first.exchange.ledger().frontier())
            && self.kept_in_vain().is_none()
            && self.damaged().is_none()
    }

    /// A node whose ledger was not replaced, though there is another.
    fn damaged(&self) -> Option<NodeId> {
        let alive = self.alive();
        let sound = alive.iter().any(|id| !self.nodes[id].damaged);
        alive.into_iter().find(|id| sound && self.nodes[id].damaged)
    }

    /// A node that keeps what everybody has, if all the dead were declared so.
    fn kept_in_vain(&self) -> Option<NodeId> {
        let alive = self.alive();
        let waits = |node: &Node| node.exchange.peers.keys().any(|other| !alive.contains(other));
        let vain = |node: &Node| node.exchange.log_bytes() > 0 && !waits(node);
        alive.iter().copied().find(|id| vain(&self.nodes[id]))
    }

    /// What must hold of a node at every moment.
    fn check(&self, at: NodeId) {
        let node = &self.nodes[&at];
        let ledger = node.exchange.ledger();
        if node.damaged {
            assert!(ledger.audit().is_err());
            return;
        }
        ledger.audit().unwrap();
        let mut expected = Digest::default();
        for (origin, sequence) in ledger.frontier().iter() {
            let sum = self.made[&origin].get(sequence as usize);
            expected += *sum.unwrap_or_else(|| panic!("{at} has a batch that was never made"));
        }
        assert_eq!(ledger.digest(), expected, "{at} is not the sum of its batches");
        if let Some(worker) = &node.worker {
            assert_eq!(
                worker.counts,
                ledger.counts(),
                "the worker of {at} differs from its ledger"
            );
        }
        assert!(
            node.exchange.is_bounded(BATCH_BYTES_MAX),
            "{at} keeps {} bytes",
            node.exchange.log_bytes()
        );
    }

    /// What some survivor has applied.
    fn learned(&self) -> Frontier {
        let mut learned = Frontier::default();
        for node in self.nodes.values().filter(|node| node.alive) {
            learned.merge(node.exchange.ledger().frontier());
        }
        learned
    }

    /// How things stand, for whoever looks into a failure.
    fn describe(&self) -> String {
        let mut text = String::new();
        for (id, node) in self.nodes.iter().filter(|(_, node)| node.alive) {
            let Exchange { log, peers, wanted, .. } = &node.exchange;
            let kept: Vec<_> = log.kept().collect();
            let frontier = node.exchange.ledger().frontier();
            let _ = writeln!(text, "{id}: {frontier:?}, keeps {kept:?}, wants {wanted:?}");
            for (id, peer) in peers {
                let _ = writeln!(text, "  {id}: {peer:?}");
            }
        }
        text
    }

    fn check_agreement(&self, learned: &Frontier) {
        for (id, node) in self.nodes.iter().filter(|(_, node)| node.alive) {
            assert_eq!(
                node.exchange.ledger().frontier(),
                learned,
                "{id} lacks something that a survivor had learned\n{}",
                self.describe()
            );
        }
        if let Some(id) = self.damaged() {
            panic!("{id} is still damaged\n{}", self.describe());
        }
        if let Some(id) = self.kept_in_vain() {
            panic!("{id} keeps {} bytes in vain", self.nodes[&id].exchange.log_bytes());
        }
    }
}

fn run(seed: u64, routing: Routing) {
    let mut world = World::new(seed, routing);
    let steps = 300 + world.random.below(700);
    for _ in 0..steps {
        world.storm_step();
    }
    let learned = world.learned();
    world.settle();
    world.check_agreement(&learned);
}

#[test]
fn survivors_agree_after_any_storm() {
    seeds::none_fails("survivors_agree", SEEDS, |seed| {
        run(seed, Routing::Mesh);
        Ok(())
    });
}

#[test]
fn survivors_agree_whichever_way_batches_go() {
    // The hub may be slow, cut off or dead for good: then batches go past it.
    let hub = NodeId(1);
    seeds::none_fails("whichever_way", SEEDS / 10, |seed| {
        run(seed, Routing::Star { hub });
        Ok(())
    });
}

#[test]
fn planted_bugs_are_found() {
    for bug in [Bug::DroppedRepair, Bug::DoubleApply, Bug::WrongMerge, Bug::NoMerge] {
        PLANTED.set(Some(bug));
        let found = (0..100).filter(|&seed| std::panic::catch_unwind(|| run(seed, Routing::Mesh)).is_err());
        let found = found.count();
        PLANTED.set(None);
        println!("{found} of 100 seeds find {bug:?}");
        assert!(found > 0, "{bug:?} is not found");
    }
}
