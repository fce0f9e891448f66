//! The simulated nodes with their exchanges and workers; it carries out the exchanges' effects.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use protocol::ids::{NodeId, OriginId};
use protocol::log::batch::{Batch, OriginStatus, Payload};
use protocol::log::bundle::Bundle;
use protocol::rng::CounterRng;
use protocol::weights::changes::change;
use protocol::weights::dense::Dense;
use protocol::weights::digest::Digest;
use protocol::weights::lattice::Tau;
use protocol::weights::sums::Adder;

use crate::exchange::tests::{RUN, WEIGHTS, batch_in_round};
use crate::exchange::{Barrier, Effect, Event, Exchange, Limits, Patience, ReductionPath, Routing};
use crate::ledger::Ledger;
use crate::small_plan::small_plan;
use protocol::wire::link::{Message, OriginInfo};

/// Maximum number of workers that a simulated node starts, one after the other. Each has its own stream of batches.
const WORKERS_MAX: u64 = 1000;
/// Memory limit in bytes that is never reached.
pub(super) const UNLIMITED: usize = usize::MAX >> 1;
/// Maximum size of a batch in this simulation, in bytes.
pub(super) const BATCH_BYTES_MAX: usize = 160;
/// The barrier's timeouts in this simulation, in ticks.
const PATIENCE: Patience = Patience {
    late: 8,
    first: 20,
    counted: 30,
};

/// The path of batches between the nodes of a simulation.
#[derive(Clone, Debug)]
pub(super) enum Traffic {
    /// Batches go one by one along this routing, and workers do not wait for each other.
    Single(Routing),
    /// Workers train in rounds, and nodes add up the batches of each round along this path.
    Bundled(ReductionPath),
}

pub(super) struct Node {
    pub(super) exchange: Exchange,
    pub(super) alive: bool,
    pub(super) knows: BTreeSet<NodeId>,
    /// The worker that trains on the node now, if there is one.
    pub(super) worker: Option<Worker>,
    pub(super) workers: u64,
    /// True while a bit of the node's replica is flipped and the replica is not replaced.
    pub(super) damaged: bool,
}

pub(super) struct Worker {
    pub(super) origin: OriginId,
    pub(super) sequence: u64,
    pub(super) counts: Vec<i32>,
    /// In a simulation with rounds: the last round that the worker has reached.
    pub(super) round: u64,
    /// In a simulation with rounds: the newest round that the worker has heard of.
    pub(super) newest: u64,
    pub(super) waits: bool,
}

/// One direction of a simulated link, with the messages in flight on it.
#[derive(Default)]
pub(super) struct Path {
    pub(super) queue: VecDeque<Message>,
    /// True if the link is gone but the receiver has not noticed yet.
    pub(super) dangling: bool,
    /// True if all messages on the link are lost without a notice to either side.
    pub(super) dead: bool,
}

pub(super) struct World {
    pub(super) random: CounterRng,
    pub(super) limits: Limits,
    traffic: Traffic,
    founders: u64,
    pub(super) nodes: BTreeMap<NodeId, Node>,
    /// The messages in flight between two nodes, by direction.
    pub(super) channels: BTreeMap<(NodeId, NodeId), Path>,
    /// For each origin (a worker's stream of batches), the sums of the batches' digests up to each sequence, from which
    /// a replica's expected digest follows.
    pub(super) made: BTreeMap<OriginId, Vec<Digest>>,
    pub(super) lossy: bool,
    pub(super) slow: Option<NodeId>,
    pub(super) stormy: bool,
    pub(super) next: u64,
    /// Number of bundles (sums of a round's batches) that were applied on all nodes.
    pub(super) bundles: u64,
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
    pub(super) fn new(seed: u64, traffic: Traffic) -> Self {
        let mut random = CounterRng::new(seed, 0);
        // Mostly few nodes: faults among twenty nodes mostly occur among four, too, and sooner.
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
            traffic,
            founders: count,
            nodes: BTreeMap::new(),
            channels: BTreeMap::new(),
            made: BTreeMap::new(),
            lossy,
            slow,
            stormy: true,
            next: 1,
            bundles: 0,
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

    /// Adds a new node, which knows no other node yet.
    pub(super) fn add(&mut self) -> NodeId {
        let id = NodeId(self.next);
        self.next += 1;
        let ledger = Ledger::new(RUN, vec![0; WEIGHTS]);
        let mut exchange = match &self.traffic {
            Traffic::Single(routing) => Exchange::routed(id, ledger, self.limits, routing.clone()),
            Traffic::Bundled(channel) => {
                let barrier = Barrier::new(id, PATIENCE, &small_plan(self.founders));
                Exchange::bundled(id, ledger, self.limits, barrier, *channel)
            }
        };
        exchange.reckon_with_workers(id, 1);
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

    pub(super) fn alive(&self) -> Vec<NodeId> {
        let alive = self.nodes.iter().filter(|(_, node)| node.alive);
        alive.map(|(&id, _)| id).collect()
    }

    pub(super) fn pick(&mut self, from: &[NodeId]) -> NodeId {
        from[self.random.below(from.len() as u64) as usize]
    }

    /// Tells a simulated node that these others take part in the run.
    pub(super) fn learn_of(&mut self, at: NodeId, others: &BTreeSet<NodeId>) {
        for &other in others {
            if self.nodes.get_mut(&at).unwrap().knows.insert(other) {
                let exchange = &mut self.nodes.get_mut(&at).unwrap().exchange;
                exchange.reckon_with_workers(other, 1);
                self.tell(at, Event::Joined(other));
            }
        }
    }

    pub(super) fn learn_all(&mut self, at: NodeId) {
        let alive = self.alive().into_iter().collect();
        self.learn_of(at, &alive);
    }

    pub(super) fn start_worker(&mut self, at: NodeId) {
        let node = self.nodes.get_mut(&at).unwrap();
        if node.damaged {
            // No worker starts from a ledger that is known to be damaged.
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
                node: at,
                slot,
                ended: None,
            }),
        );
        let node = self.nodes.get_mut(&at).unwrap();
        node.worker = Some(Worker {
            origin,
            sequence: 0,
            counts: node.exchange.ledger().counts().to_vec(),
            round: 0,
            newest: node.exchange.rounds().map_or(0, |(newest, _)| newest),
            waits: false,
        });
    }

    pub(super) fn end_worker(&mut self, at: NodeId) {
        if let Some(worker) = self.nodes.get_mut(&at).unwrap().worker.take() {
            self.tell(
                at,
                Event::Origin(OriginInfo {
                    origin: worker.origin,
                    node: at,
                    slot: at.0 as u32,
                    ended: Some(worker.sequence),
                }),
            );
        }
    }

    pub(super) fn tell(&mut self, at: NodeId, event: Event) {
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
                    // A message without a link is lost, as if its socket were closed.
                    if let Some(channel) = self.channels.get_mut(&(at, to))
                        && !channel.dead
                        && !channel.dangling
                    {
                        channel.queue.push_back(message);
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
                Effect::Bundle(bytes) => {
                    let bundle = Bundle::decode(&bytes, WEIGHTS).unwrap();
                    self.bundles += 1;
                    if let Some(worker) = &mut self.nodes.get_mut(&at).unwrap().worker {
                        bundle.dense.apply_to_counts(&mut worker.counts).unwrap();
                    }
                }
                Effect::GoOn { origin, order } => {
                    if let Some(worker) = &mut self.nodes.get_mut(&at).unwrap().worker
                        && worker.origin == origin
                    {
                        worker.waits = false;
                        worker.newest = order.newest;
                    }
                }
                Effect::Jump(jump) => {
                    if let Some(worker) = &mut self.nodes.get_mut(&at).unwrap().worker {
                        jump.sums.apply_to_counts(&mut worker.counts).unwrap();
                    }
                }
                Effect::Damaged(_) => self.nodes.get_mut(&at).unwrap().damaged = true,
                Effect::Healed => self.nodes.get_mut(&at).unwrap().damaged = false,
                Effect::RestartWorkers => restart = true,
                Effect::Ended(_) | Effect::Giving(_) | Effect::Mended(_) => {}
                other => panic!("node {at} asks for {other:?}, but all peers are honest"),
            }
        }
        if restart {
            self.end_worker(at);
            self.start_worker(at);
        }
        self.check(at);
    }

    pub(super) fn is_bundled(&self) -> bool {
        matches!(self.traffic, Traffic::Bundled(_))
    }

    /// Tells a node which nodes are silent: the dead ones, and those without a link to it.
    pub(super) fn tell_silent(&mut self, at: NodeId) {
        let is_lost = |id: &NodeId| !self.nodes[id].alive || !self.channels.contains_key(&(*id, at));
        let known = self.nodes[&at].knows.iter().filter(|&&id| id != at);
        let silent = known.copied().filter(is_lost).collect();
        self.tell(at, Event::Silent(silent));
    }

    pub(super) fn train(&mut self, at: NodeId) {
        let waits = |worker: &Worker| worker.waits;
        if self.nodes[&at].worker.as_ref().is_some_and(waits) {
            return;
        }
        let mut changes: Vec<u32> = (0..self.random.below(6))
            .map(|_| change(self.random.below(WEIGHTS as u64) as u32, true))
            .collect();
        changes.sort_unstable();
        let minus = self.random.below(2) == 0;
        if minus {
            changes = changes.iter().map(|change| change ^ 1).collect();
        }
        let tau = Tau::from_steps(1 + self.random.below(100) as u32).unwrap();
        // Batches of a run may have different kinds of payload, because each names its own.
        let payload = match self.random.below(8) {
            1.. if self.is_bundled() => {
                let steps = (0..WEIGHTS).map(|_| self.random.below(201) as i32 - 100);
                Payload::Dense(Dense::checked(0, steps.collect(), WEIGHTS).unwrap())
            }
            0 if self.is_bundled() => Payload::default(),
            0 | 1 => {
                let mut adder = Adder::new(WEIGHTS);
                adder.add_changes(&changes, tau);
                Payload::Sums(adder.finish().unwrap())
            }
            2 => {
                let first = self.random.below(WEIGHTS as u64 - 9) as u32;
                let steps = (0..9).map(|_| self.random.below(201) as i32 - 100);
                Payload::Dense(Dense::checked(first, steps.collect(), WEIGHTS).unwrap())
            }
            _ => Payload::Steps { tau, changes },
        };
        let in_rounds = self.is_bundled();
        let Some(worker) = &mut self.nodes.get_mut(&at).unwrap().worker else {
            return;
        };
        worker.sequence += 1;
        payload.apply_to_counts(&mut worker.counts).unwrap();
        let sums = self.made.get_mut(&worker.origin).unwrap();
        sums.push(*sums.last().unwrap() + payload.digest());
        let mut status = OriginStatus::default();
        if in_rounds {
            worker.round = worker.newest.max(worker.round + 1);
            worker.waits = true;
            status.round = worker.round;
        }
        let bytes = batch_in_round(worker.origin, worker.sequence, &payload, status);
        assert!(bytes.len() <= BATCH_BYTES_MAX);
        self.tell(at, Event::Local(bytes));
    }
}
