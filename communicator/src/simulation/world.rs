//! The world of the simulation: a clock, whole nodes, and what will happen to them when.

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
use super::working::job;
use crate::node::roster::DialOutcome;
use crate::run::{RunEvent, WorkerKey};
use crate::run_exchange::{RunExchangeEvent, WriteOccasion};
use protocol::wire::link::Message;

/// One step of the clock: a tick of the exchange.
pub(super) const STEP: Duration = TIMING.clocks.exchange_tick;
/// How long a worker that hangs is left alone, and one that died is waited for.
const HANG_LIMIT: Duration = TIMING.workers.silence;
const RESTART: Duration = Duration::from_millis(500);

/// Something that will happen.
pub(super) enum Due {
    /// A message of the control plane arrives.
    ControlMessage {
        to: NodeId,
        from: NodeId,
        message: ControlMessage,
    },
    /// A beat arrives.
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
    /// A node notices that the other machine has ended a session.
    SessionEnded {
        at: NodeId,
        peer: NodeId,
    },
    /// A node has dialled another.
    Dialled {
        at: NodeId,
        node: NodeId,
        outcome: DialOutcome,
    },
    /// A message of the data plane arrives, on the link with this number.
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
    /// Something is done that a shell does apart.
    Event {
        at: NodeId,
        event: RunEvent,
    },
    /// The exchange of a run is started.
    Open {
        at: NodeId,
        run: RunId,
        plan: Box<RunPlan>,
    },
    /// A worker answers, unless it was told something else meanwhile.
    Worker {
        at: NodeId,
        key: WorkerKey,
        orders: u64,
        message: FromWorker,
    },
    /// A worker writes a model, when the disk answers.
    Write {
        at: NodeId,
        key: WorkerKey,
        orders: u64,
        run: RunId,
        scores: Option<Scores>,
    },
    /// A node writes a ledger, when the disk answers.
    WriteLedger {
        at: NodeId,
        run: RunId,
        occasion: WriteOccasion,
        checkpoint: Box<Checkpoint>,
    },
    /// A node has written a checkpoint, or could not.
    CheckpointWritten {
        at: NodeId,
        run: RunId,
    },
    /// A worker that hangs is killed; a new one attaches.
    Killed {
        at: NodeId,
        key: WorkerKey,
    },
    Attach {
        at: NodeId,
    },
}

/// A link between two nodes, the lower name first.
pub(super) struct Link {
    pub(super) number: u64,
    /// Sides that still believe in it.
    pub(super) up: BTreeSet<NodeId>,
    /// When the last message of each direction arrives: links keep the order.
    pub(super) arrival: BTreeMap<NodeId, u64>,
    /// Something was lost on it: nothing arrives any more.
    pub(super) broken: bool,
}

pub(super) struct World {
    pub(super) random: CounterRng,
    pub(super) now: u64,
    pub(super) nodes: BTreeMap<NodeId, Node>,
    queue: BinaryHeap<Reverse<(u64, u64)>>,
    due: BTreeMap<u64, Due>,
    /// What has come to nodes that stand still, in order.
    pending: BTreeMap<NodeId, Vec<Due>>,
    pub(super) numbers: u64,
    pub(super) links: BTreeMap<(NodeId, NodeId), Link>,
    /// Since when two nodes that want a link have none.
    pub(super) apart: BTreeMap<(NodeId, NodeId), u64>,
    /// Pairs that cannot reach each other now, and nodes that cannot be dialled.
    pub(super) blocked: BTreeSet<(NodeId, NodeId)>,
    pub(super) undialable: BTreeSet<NodeId>,
    /// Those of the pairs that are refused when they dial each other, rather than left without an answer.
    pub(super) rejecting: BTreeSet<(NodeId, NodeId)>,
    /// Nodes that have a session with another, and nodes that have reached another by dialling it.
    pub(super) sessions: BTreeSet<(NodeId, NodeId)>,
    pub(super) reached: BTreeSet<(NodeId, NodeId)>,
    /// The digests of each origin's batches, summed up to each sequence.
    pub(super) made: BTreeMap<OriginId, Vec<Digest>>,
    /// Who has found whom lying, in which run.
    pub(super) accused: BTreeSet<(RunId, NodeId, NodeId)>,
    pub(super) samples: u64,
    pub(super) trace: Vec<String>,
    pub(super) slow: bool,
    /// How networks are cut, where they are spread over nodes.
    pub(super) layers: Option<Layers>,
    /// Workers wait for each other's rounds.
    pub(super) in_rounds: Option<RoundWeighting>,
    /// Which way those go.
    pub(super) way: RoundTopology,
    /// Workers have nothing to train now and then.
    pub(super) may_idle: bool,
    /// Workers may wait for samples that others hold back.
    pub(super) may_stall: bool,
    /// Nodes that are asked to end, and have not ended.
    pub(super) leaving: BTreeSet<NodeId>,
    /// How often somebody went on from a round to which another had not come, and how often in all.
    pub(super) unwaited: (u32, u32),
}

pub(super) fn pair(a: NodeId, b: NodeId) -> (NodeId, NodeId) {
    (a.min(b), a.max(b))
}

impl World {
    pub(super) fn new(seed: u64) -> Self {
        let mut random = CounterRng::new(seed, 7);
        // Some runs would not end by themselves within any storm.
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
            may_idle: true,
            may_stall: false,
            leaving: BTreeSet::new(),
            unwaited: (0, 0),
        }
    }

    /// What is trained in this world.
    pub(super) fn job(&self) -> Job {
        match &self.layers {
            Some(layers) => layers.job(),
            None => job(self.in_rounds, self.way),
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
        // Names are drawn at random: they decide who dials, and who gives way.
        let id = NodeId(1 + self.random.below(1 << 20));
        self.add_named(id, format!("n{}", id.0), seed)
    }

    /// Starts a dead node again: a new process with the name of the dead one.
    pub(super) fn start_again(&mut self, dead: NodeId, seed: NodeId) -> NodeId {
        let id = NodeId(1 + self.random.below(1 << 20));
        let former = self.nodes[&dead].info.clone();
        let id = self.add_named(id, former.name, Some(seed));
        // Mostly at the address that it had; now and then at another one.
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
        self.nodes.insert(id, Node::new(id, name, seed, workers));
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

    /// One step of time.
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
        // What comes to a node that stands still waits for it, and what it does itself does, too.
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
