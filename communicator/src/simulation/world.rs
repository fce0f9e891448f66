//! The world of the simulation: a clock, whole nodes, and a queue of future events.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::time::Duration;

use protocol::ids::{NodeId, OriginId, RunId};
use protocol::job::{Job, RoundTopology, RoundWeighting};
use protocol::rng::CounterRng;
use protocol::stats::measured::Scores;
use protocol::weights::digest::Digest;
use protocol::wire::attach::FromWorker;
use protocol::wire::control::ControlMessage;
use protocol::wire::run_beat::RunBeat;
use protocol::wire::run_plan::RunPlan;

use super::check_nodes;
use super::node::{Checkpoint, Node, TIMING, Worker};
use super::stages::Layers;
use super::working::{Goal, job};
use crate::node::roster::DialOutcome;
use crate::run::{RunEvent, WorkerKey};
use crate::run_exchange::{RunExchangeEvent, WriteOccasion};
use protocol::wire::link::Message;

/// Duration of one step of the clock: a tick of the exchange.
pub(super) const STEP: Duration = TIMING.clocks.exchange_tick;
/// Time after which a hanging worker is killed.
const HANG_LIMIT: Duration = TIMING.workers.silence;
/// Time until a dead worker is restarted.
const RESTART: Duration = Duration::from_millis(500);

/// A future event of the simulation.
pub(super) enum Due {
    /// A message of the control plane arrives.
    ControlMessage {
        to: NodeId,
        from: NodeId,
        message: ControlMessage,
    },
    /// A beat (a node's periodic state message) arrives.
    Beat {
        to: NodeId,
        from: NodeId,
        number: u64,
        members: Vec<NodeId>,
        runs: Vec<RunBeat>,
    },
    Left {
        to: NodeId,
        node: NodeId,
    },
    /// A node notices that the other side has ended a session.
    SessionEnded {
        at: NodeId,
        peer: NodeId,
    },
    /// A node's attempt to dial another node ends.
    Dialled {
        at: NodeId,
        node: NodeId,
        outcome: DialOutcome,
    },
    /// A message of the data plane arrives on the link with this number.
    Message {
        to: NodeId,
        from: NodeId,
        link: u64,
        message: Message,
    },
    /// A node notices that a link is gone.
    Unlinked {
        at: NodeId,
        from: NodeId,
        link: u64,
    },
    /// A background task of a node ends, and the node's run gets this event.
    Event {
        at: NodeId,
        event: RunEvent,
    },
    /// A node's exchange of batches in a run starts.
    Open {
        at: NodeId,
        run: RunId,
        plan: Box<RunPlan>,
    },
    /// A worker's answer to an order reaches its node. The answer is dropped if the worker got another order meanwhile.
    Worker {
        at: NodeId,
        key: WorkerKey,
        orders: u64,
        message: FromWorker,
    },
    /// A worker tries to write a model to the node's disk.
    Write {
        at: NodeId,
        key: WorkerKey,
        orders: u64,
        run: RunId,
        scores: Option<Scores>,
    },
    /// A node tries to write its replica to its disk.
    WriteLedger {
        at: NodeId,
        run: RunId,
        occasion: WriteOccasion,
        checkpoint: Box<Checkpoint>,
    },
    /// A node has written a checkpoint, or has failed to.
    CheckpointWritten {
        at: NodeId,
        run: RunId,
    },
    /// A hanging worker is killed. A new one attaches later.
    Killed {
        at: NodeId,
        key: WorkerKey,
    },
    Attach {
        at: NodeId,
    },
}

/// A link between two nodes of the simulation, which the world keeps under their names, the lower one first.
pub(super) struct Link {
    pub(super) number: u64,
    /// Those of the two nodes at whose end the link counts as up.
    pub(super) up: BTreeSet<NodeId>,
    /// Arrival time of the last message to each of the two nodes. Later messages to that node arrive after it, because
    /// links keep the order.
    pub(super) arrival: BTreeMap<NodeId, u64>,
    /// True if a message was lost on the link, so that no later message arrives.
    pub(super) broken: bool,
}

pub(super) struct World {
    pub(super) random: CounterRng,
    pub(super) now: u64,
    pub(super) nodes: BTreeMap<NodeId, Node>,
    queue: BinaryHeap<Reverse<(u64, u64)>>,
    due: BTreeMap<u64, Due>,
    /// Events for frozen nodes, in order, until these nodes go on.
    pending: BTreeMap<NodeId, Vec<Due>>,
    pub(super) numbers: u64,
    pub(super) links: BTreeMap<(NodeId, NodeId), Link>,
    /// For each pair of nodes that want a link, the time since which they have none.
    pub(super) apart: BTreeMap<(NodeId, NodeId), u64>,
    /// Pairs of nodes that cannot reach each other.
    pub(super) blocked: BTreeSet<(NodeId, NodeId)>,
    /// Nodes that cannot be dialled.
    pub(super) undialable: BTreeSet<NodeId>,
    /// The blocked pairs whose dials are refused at once rather than left to time out.
    pub(super) rejecting: BTreeSet<(NodeId, NodeId)>,
    /// Pairs (node, peer) of which the node has a session with the peer.
    pub(super) sessions: BTreeSet<(NodeId, NodeId)>,
    /// Pairs (node, peer) of which the node has reached the peer by dialling.
    pub(super) reached: BTreeSet<(NodeId, NodeId)>,
    /// For each origin (a worker's stream of batches), the sums of its batches' digests: entry n is the sum over the
    /// first n batches.
    pub(super) made: BTreeMap<OriginId, Vec<Digest>>,
    /// Accusations (run, accuser, accused): in this run, the first node has found the second one lying.
    pub(super) accused: BTreeSet<(RunId, NodeId, NodeId)>,
    pub(super) samples: u64,
    pub(super) trace: Vec<String>,
    pub(super) slow: bool,
    /// The cut of networks into stages; `None` if each node holds the whole model.
    pub(super) layers: Option<Layers>,
    /// Number of different first weights that nodes draw, if the model is a module (`--model py:FILE`); 0 if it is not, so
    /// that all nodes begin alike.
    pub(super) draws: u64,
    /// The rule by which workers' batches are weighted, if workers train in rounds; `None` if they do not wait for each
    /// other.
    pub(super) in_rounds: Option<RoundWeighting>,
    /// Target of the simulated runs.
    pub(super) goal: Goal,
    /// The path by which rounds are added up in this world: from all to all, over a server, or along a ring.
    pub(super) way: RoundTopology,
    /// True if the simulation may let workers that train in rounds run out of samples for a while.
    pub(super) may_idle: bool,
    /// True if a worker that has run out of samples may still keep some that it trained without counting them in a
    /// batch. If false, the simulation fails when a node takes over samples of such a worker.
    pub(super) may_stall: bool,
    /// Nodes that were asked to leave and have not ended yet.
    pub(super) leaving: BTreeSet<NodeId>,
    /// Number of times that a worker left a round that another worker had not reached, and number of times that a
    /// worker left a round at all.
    pub(super) unwaited: (u32, u32),
}

pub(super) fn pair(a: NodeId, b: NodeId) -> (NodeId, NodeId) {
    (a.min(b), a.max(b))
}

impl World {
    pub(super) fn new(seed: u64) -> Self {
        let mut random = CounterRng::new(seed, 7);
        // Some runs are too long to end by themselves within a storm.
        let samples = if random.below(4) == 0 {
            1 << 20
        } else {
            20 + random.below(400)
        };
        let slow = random.below(3) == 0;
        Self {
            random,
            now: 1000,
            nodes: BTreeMap::new(),
            queue: BinaryHeap::new(),
            due: BTreeMap::new(),
            pending: BTreeMap::new(),
            numbers: 0,
            links: BTreeMap::new(),
            apart: BTreeMap::new(),
            blocked: BTreeSet::new(),
            undialable: BTreeSet::new(),
            rejecting: BTreeSet::new(),
            sessions: BTreeSet::new(),
            reached: BTreeSet::new(),
            made: BTreeMap::new(),
            accused: BTreeSet::new(),
            samples,
            trace: Vec::new(),
            slow,
            layers: None,
            draws: 0,
            in_rounds: match seed % 12 {
                2 | 8 => Some(RoundWeighting::Mean),
                5 => Some(RoundWeighting::Weighted),
                11 => Some(RoundWeighting::Best),
                _ => None,
            },
            way: match seed / 12 % 4 {
                0 => RoundTopology::Mesh,
                1 => RoundTopology::Server,
                2 => RoundTopology::RingReduce,
                _ => RoundTopology::Ring,
            },
            goal: match seed / 48 % 3 {
                0 => Goal::Accuracy,
                1 => Goal::Loss,
                _ => Goal::Both,
            },
            may_idle: true,
            may_stall: false,
            leaving: BTreeSet::new(),
            unwaited: (0, 0),
        }
    }

    /// The job that the nodes of this simulation train.
    pub(super) fn job(&self) -> Job {
        match &self.layers {
            Some(layers) => layers.job(),
            None => job(self.in_rounds, self.way, self.goal, self.draws > 0),
        }
    }

    pub(super) fn time(&self) -> Duration {
        Duration::from_millis(self.now)
    }

    pub(super) fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    pub(super) fn say(&mut self, what: &str) {
        self.trace.push(format!("{:>8.2}  {what}", self.now as f64 / 1e3));
    }

    pub(super) fn add(&mut self, seed: Option<NodeId>) -> NodeId {
        // Names are random, because they decide which node dials and which one gives way.
        let id = NodeId(1 + self.random.below(1 << 20));
        self.add_named(id, format!("n{}", id.0), seed)
    }

    /// Restarts a dead node: a new process with the dead one's name.
    pub(super) fn start_again(&mut self, dead: NodeId, seed: NodeId) -> NodeId {
        let id = NodeId(1 + self.random.below(1 << 20));
        let former = self.nodes[&dead].info.clone();
        let id = self.add_named(id, former.name, Some(seed));
        // The address is mostly the former one, and sometimes another.
        if self.random.below(3) > 0 {
            self.nodes.get_mut(&id).unwrap().info.address = former.address;
        }
        id
    }

    fn add_named(&mut self, id: NodeId, name: String, seed: Option<NodeId>) -> NodeId {
        let workers = match self.layers {
            Some(_) => 1,
            None => 1 + self.random.below(2) as usize,
        };
        let draws = match self.draws {
            0 => 0,
            draws => self.random.below(draws) as i32,
        };
        self.nodes.insert(id, Node::new(id, name, seed, workers, draws));
        for _ in 0..workers {
            self.after(1 + self.numbers % 400, Due::Attach { at: id });
        }
        id
    }

    pub(super) fn alive(&self) -> Vec<NodeId> {
        self.nodes
            .iter()
            .filter(|(_, node)| node.alive)
            .map(|(&id, _)| id)
            .collect()
    }

    pub(super) fn pick(&mut self, from: &[NodeId]) -> NodeId {
        from[self.random.below(from.len() as u64) as usize]
    }

    pub(super) fn after(&mut self, milliseconds: u64, due: Due) {
        let number = self.number();
        self.due.insert(number, due);
        self.queue.push(Reverse((self.now + milliseconds, number)));
    }

    pub(super) fn reaches(&self, a: NodeId, b: NodeId) -> bool {
        let alive = |node: NodeId| self.nodes.get(&node).is_some_and(|node| node.alive);
        alive(a) && alive(b) && !self.blocked.contains(&pair(a, b))
    }

    /// Advances the clock by one step and carries out the events that are due.
    pub(super) fn step(&mut self) {
        self.now += STEP.as_millis() as u64;
        for due in std::mem::take(&mut self.pending).into_values().flatten() {
            self.happens(due);
        }
        while let Some(&Reverse((at, number))) = self.queue.peek()
            && at <= self.now
        {
            self.queue.pop();
            if let Some(due) = self.due.remove(&number) {
                self.happens(due);
            }
        }
        let ticks = self.now / STEP.as_millis() as u64;
        let steps = |time: Duration| time.as_millis() as u64 / STEP.as_millis() as u64;
        for id in self.alive() {
            if !self.nodes[&id].runs() {
                continue;
            }
            match self.layers {
                Some(_) => self.compute_stages(id),
                None => self.train_all(id),
            }
            self.exchange(id, RunExchangeEvent::Tick);
            let phase = ticks + id.0;
            if phase.is_multiple_of(steps(TIMING.clocks.membership_tick)) {
                self.tick_roster(id);
            }
            if phase.is_multiple_of(steps(TIMING.clocks.run_tick)) {
                self.run(id, RunEvent::Tick);
            }
            if phase.is_multiple_of(steps(TIMING.membership.beat_every)) {
                self.beat(id);
            }
        }
        if ticks.is_multiple_of(10) {
            self.make_links();
        }
        check_nodes(self);
    }

    fn happens(&mut self, due: Due) {
        // Events at a frozen node wait until it goes on, and so do its own actions.
        let at = match &due {
            Due::ControlMessage { to, .. } | Due::Beat { to, .. } | Due::Left { to, .. } | Due::Message { to, .. } => {
                *to
            }
            Due::Unlinked { at, .. }
            | Due::SessionEnded { at, .. }
            | Due::Dialled { at, .. }
            | Due::Event { at, .. }
            | Due::Open { at, .. }
            | Due::Worker { at, .. }
            | Due::Write { at, .. }
            | Due::WriteLedger { at, .. }
            | Due::CheckpointWritten { at, .. }
            | Due::Killed { at, .. }
            | Due::Attach { at } => *at,
        };
        let Some(node) = self.nodes.get_mut(&at).filter(|node| node.alive) else {
            return;
        };
        if node.stopped {
            self.pending.entry(at).or_default().push(due);
            return;
        }
        match due {
            Due::ControlMessage { from, message, .. } => self.run(at, RunEvent::ControlMessage { from, message }),
            Due::Beat {
                from,
                number,
                members,
                runs,
                ..
            } => self.hear_beat(at, (from, number), &members, runs),
            Due::Left { node: gone, .. } => {
                if let Some(change) = node.roster.leaves(gone) {
                    self.changed(at, change);
                }
            }
            Due::Message {
                from, link, message, ..
            } => {
                if self
                    .links
                    .get(&pair(at, from))
                    .is_some_and(|one| one.number == link && one.up.contains(&at))
                {
                    self.exchange(at, RunExchangeEvent::Received { from, message });
                }
            }
            Due::Unlinked { from, link, .. } => self.unlinked(at, from, link),
            Due::SessionEnded { peer, .. } => self.session_ends(at, peer),
            Due::Dialled { node, outcome, .. } => self.dialled(at, node, outcome),
            Due::Event { event, .. } => self.found(at, event),
            Due::Open { run, plan, .. } => self.open(at, run, *plan),
            Due::Worker {
                key, orders, message, ..
            } => {
                let current = node
                    .workers
                    .get(&key)
                    .is_some_and(|worker| worker.orders == orders && !worker.hangs);
                if current {
                    if let FromWorker::Prepared { run, .. } = &message {
                        node.workers.get_mut(&key).unwrap().prepared = Some(*run);
                    }
                    match message {
                        FromWorker::Saved { sequence, path } => {
                            let worker = key;
                            self.exchange(at, RunExchangeEvent::Saved { worker, sequence, path });
                        }
                        message => self.run(at, RunEvent::Worker(key, message)),
                    }
                }
            }
            Due::Write {
                key,
                orders,
                run,
                scores,
                ..
            } => self.write_model(at, key, orders, (run, scores)),
            Due::WriteLedger {
                run,
                occasion,
                checkpoint,
                ..
            } => self.write_ledger(at, run, occasion, checkpoint),
            Due::CheckpointWritten { run, .. } => {
                if node.exchange.as_ref().is_some_and(|open| open.run == run) {
                    self.exchange(at, RunExchangeEvent::CheckpointWritten);
                }
            }
            Due::Killed { key, .. } => self.kill_worker(at, key),
            Due::Attach { .. } => {
                let key = WorkerKey(self.number());
                self.nodes.get_mut(&at).unwrap().workers.insert(key, Worker::default());
                self.run(at, RunEvent::Attached(key));
            }
        }
    }

    pub(super) fn kill_worker(&mut self, at: NodeId, key: WorkerKey) {
        if self.nodes.get_mut(&at).unwrap().workers.remove(&key).is_some() {
            self.after(RESTART.as_millis() as u64, Due::Attach { at });
            self.run(at, RunEvent::Detached(key));
        }
    }

    pub(super) fn hang_worker(&mut self, at: NodeId, key: WorkerKey) {
        if let Some(worker) = self.nodes.get_mut(&at).unwrap().workers.get_mut(&key) {
            worker.hangs = true;
            self.after(HANG_LIMIT.as_millis() as u64, Due::Killed { at, key });
        }
    }
}
