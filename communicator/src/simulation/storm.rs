//! The storm: random events that happen to the nodes of a world, and the calm after it.

use std::time::Duration;

use protocol::ids::{NodeId, RunId};
use protocol::wire::control::{Phase, Reply, Request, RunOrder};

use super::node::{Disk, Node, Open};
use super::stages::Layers;
use super::world::{World, pair};
use crate::run::{RunEvent, Ticket, WorkerKey};
use crate::run_exchange::RunExchangeEvent;
use protocol::wire::link::Message;

/// Number of steps that the simulation's clock takes in one simulated second.
pub(super) const STEPS: u64 = 20;
/// Seconds after the last fault within which every run that was stopped, or whose samples are all trained, must be over
/// on every living node. Silent nodes are given up after 30 s, nodes with which no exchange is possible after 30 s as
/// well, and a file is waited for 30 s.
pub(super) const BOUND_SECONDS: u64 = 100;

impl World {
    /// Makes a world of nodes that know each other, with their workers.
    pub(super) fn cluster(seed: u64, count: usize) -> Self {
        Self::new(seed).with_nodes(count)
    }

    /// Makes a world of nodes that train a PyTorch module, each of which draws one of `draws` different first weights.
    pub(super) fn of_modules(seed: u64, count: usize, draws: u64) -> Self {
        let mut world = Self::new(seed);
        world.draws = draws;
        world.with_nodes(count)
    }

    fn with_nodes(mut self, count: usize) -> Self {
        let first = self.add(None);
        for _ in 1..count {
            self.add(Some(first));
        }
        self.pass(Duration::from_secs(3));
        self
    }

    /// Makes a world of nodes that train networks cut into these stages. There are enough nodes for one or two
    /// pipelines, and sometimes a spare one.
    pub(super) fn of_pipelines(seed: u64, cut: &str) -> Self {
        let mut world = Self::new(seed);
        world.in_rounds = None;
        let is_long = world.random.below(2) == 0;
        world.samples = if is_long { 4_000 } else { 20 + world.random.below(200) };
        let layers = Layers::new(cut, world.samples);
        let (pipelines, spare) = if is_long {
            (2, 1)
        } else {
            (1 + world.random.below(2), world.random.below(2))
        };
        let count = layers.stages() * pipelines as usize + spare as usize;
        world.layers = Some(layers);
        let first = world.add(None);
        for _ in 1..count {
            world.add(Some(first));
        }
        world.pass(Duration::from_secs(3));
        world
    }

    /// Freezes a node of a pipeline for longer than the others wait for it, so that a spare node takes its stage.
    pub(super) fn vacate(&mut self) {
        let seconds = 2 + self.random.below(6);
        self.pass(Duration::from_secs(seconds));
        let training: Vec<NodeId> = self
            .alive()
            .into_iter()
            .filter(|&id| self.trains(id).is_some())
            .collect();
        if training.is_empty() {
            return;
        }
        let id = self.pick(&training);
        self.say(&format!("{id} stands still for long"));
        self.nodes.get_mut(&id).unwrap().stopped = true;
        let seconds = 33 + self.random.below(8);
        self.pass(Duration::from_secs(seconds));
        self.say(&format!("{id} goes on"));
        self.nodes.get_mut(&id).unwrap().stopped = false;
    }

    /// Sometimes kills a worker of a node when nearly all samples are trained.
    fn disturb_the_end(&mut self, at: NodeId) {
        let open = self.nodes[&at].exchange.as_ref();
        let is_near = |open: &Open| {
            let total = open.core.plan().data.train;
            (total.saturating_sub(8)..total).contains(&open.ledger().cursors().samples_done())
        };
        if open.is_some_and(is_near)
            && self.random.below(8) == 0
            && let Some(key) = self.worker_of(at)
        {
            self.say(&format!("a worker of {at} is killed at the end"));
            self.kill_worker(at, key);
        }
    }

    /// Maximum number of nodes in the simulated cluster.
    fn nodes_max(&self) -> usize {
        if self.layers.is_some() { 12 } else { 8 }
    }

    pub(super) fn pass(&mut self, time: Duration) {
        for _ in 0..time.as_millis() / 50 {
            self.step();
        }
    }

    /// Advances the simulation until a condition holds. Returns true if it held within this many seconds.
    pub(super) fn until(&mut self, seconds: u64, is_so: impl Fn(&Self) -> bool) -> bool {
        for _ in 0..seconds * STEPS {
            if is_so(self) {
                return true;
            }
            self.step();
        }
        is_so(self)
    }

    pub(super) fn start(&mut self, at: NodeId, allow_partial: bool) -> RunId {
        let run = RunId(1 + self.random.below(1 << 40));
        self.say(&format!("{at} is asked to start run {run}"));
        let job = Box::new(self.job());
        self.request(at, run, Request::StartTraining { job, allow_partial });
        run
    }

    /// Sends a client's request to a node. If the request starts a run, the run gets this name.
    fn request(&mut self, at: NodeId, run: RunId, request: Request) -> Ticket {
        let ticket = self.ticket();
        self.run(at, RunEvent::Request { ticket, run, request });
        ticket
    }

    pub(super) fn ask_to_stop(&mut self, at: NodeId) -> Option<Reply> {
        let ticket = self.request(at, RunId(0), Request::Order(RunOrder::Stop));
        let reply = self.nodes[&at].replies.get(&ticket).cloned();
        self.say(&format!("{at} is asked to stop: {reply:?}"));
        reply
    }

    /// Returns the run in which a node trains and the node, if the node is up to date with the others.
    pub(super) fn trains(&self, at: NodeId) -> Option<(RunId, NodeId)> {
        let status = self.nodes[&at].core.status(self.time())?;
        let open = self.nodes[&at].exchange.as_ref()?;
        let ready = open.core.told().is_some_and(|told| told.ready);
        (status.phase == Phase::Training && ready).then_some((status.run, at))
    }

    fn worker_of(&mut self, at: NodeId) -> Option<WorkerKey> {
        let keys: Vec<WorkerKey> = self.nodes[&at].workers.keys().copied().collect();
        (!keys.is_empty()).then(|| keys[self.random.below(keys.len() as u64) as usize])
    }

    /// Advances the simulation by one step, and sometimes causes a fault.
    #[expect(clippy::too_many_lines, reason = "a list of all faults")]
    pub(super) fn storm_step(&mut self) {
        self.step();
        let running: Vec<NodeId> = self.alive().into_iter().filter(|id| self.nodes[id].runs()).collect();
        if running.is_empty() {
            return;
        }
        let (a, b) = (self.pick(&running), self.pick(&running));
        if self.layers.is_some() {
            self.disturb_the_end(a);
        }
        match self.random.below(4000) {
            0..30 => {
                if let Some(key) = self.worker_of(a) {
                    self.say(&format!("a worker of {a} is killed"));
                    self.kill_worker(a, key);
                }
            }
            30..40 => {
                if let Some(key) = self.worker_of(a) {
                    self.say(&format!("a worker of {a} hangs"));
                    self.hang_worker(a, key);
                }
            }
            40..50 if self.alive().len() > 1 => {
                self.say(&format!("{a} dies"));
                self.die(a);
            }
            50..52 if self.alive().len() > 1 => {
                self.say(&format!("{a} leaves at once"));
                self.leave(a);
            }
            52..60 if self.leaving.contains(&a) || self.alive().len() > 1 + self.leaving.len() => self.ask_to_leave(a),
            60..66 if self.nodes.len() < self.nodes_max() => {
                let id = self.add(Some(a));
                self.say(&format!("{id} comes"));
            }
            66..90 => {
                self.say(&format!("{a} stands still"));
                // The node is mostly frozen for a moment, and sometimes for longer than others wait.
                let long = self.random.below(3) == 0;
                let until = if long {
                    self.now + 32_000 + self.random.below(20_000)
                } else {
                    0
                };
                let node = self.nodes.get_mut(&a).unwrap();
                node.stopped = true;
                node.stopped_until = until;
            }
            90..190 => self.go_on(),
            190..200 => self.partition(),
            200..212 if a != b => {
                self.say(&format!("{a} and {b} do not reach each other"));
                self.block(a, b);
            }
            212..240 => {
                self.say("all reach each other");
                self.blocked.clear();
                self.rejecting.clear();
            }
            240..260 => self.cut(a, b, 3000),
            260..300 => drop(self.ask_to_stop(a)),
            300..330 => {
                let partial = self.random.below(2) == 0;
                self.start(a, partial);
            }
            330..333 => {
                self.say(&format!("the data of {a} is gone"));
                self.nodes.get_mut(&a).unwrap().data = false;
            }
            333..337 => {
                let disk = if self.random.below(2) == 0 {
                    Disk::Full
                } else {
                    Disk::Hung
                };
                self.say(&format!("the disk of {a} is {disk:?}"));
                self.nodes.get_mut(&a).unwrap().disk = disk;
            }
            337..341 => {
                self.say(&format!("{a} cannot be dialled"));
                self.undialable.insert(a);
            }
            341..344 if a != b => {
                // The exchange would report the same of a dishonest node.
                self.say(&format!("{a} finds that {b} lies"));
                self.lies(a, b);
            }
            344..350 => {
                self.request(a, RunId(0), Request::Order(RunOrder::Checkpoint));
            }
            350..354 => self.ask_to_resume(a),
            354..366 if self.nodes.len() < self.nodes_max() => {
                let named = |id: NodeId| self.nodes[&id].info.name.clone();
                let living: Vec<String> = self.alive().into_iter().map(named).collect();
                let is_free = |node: &&Node| !node.alive && !living.contains(&node.info.name);
                let dead: Vec<NodeId> = self.nodes.values().filter(is_free).map(|node| node.info.id).collect();
                if !dead.is_empty() {
                    let dead = self.pick(&dead);
                    let id = self.start_again(dead, a);
                    self.say(&format!("{dead} is started again as {id}"));
                }
            }
            366..374 if a != b => {
                self.say(&format!("the sessions of {a} and {b} are reset"));
                self.reset_sessions(a, b);
            }
            // Worlds of modules write checkpoints and resume runs more often.
            374..394 if self.draws > 0 => {
                self.request(a, RunId(0), Request::Order(RunOrder::Checkpoint));
            }
            394..424 if self.draws > 0 => self.ask_to_resume(a),
            _ => {}
        }
    }

    /// Asks a node to go on with a run of which it has a checkpoint, if it has any.
    fn ask_to_resume(&mut self, at: NodeId) {
        let Some(&resumes) = self.nodes[&at].checkpoints.keys().next() else {
            return;
        };
        let run = RunId(1 + self.random.below(1 << 40));
        self.say(&format!("{at} is asked to go on with {resumes} as {run}"));
        let request = Request::Resume {
            run: resumes,
            changes: Box::default(),
            allow_partial: true,
        };
        self.request(at, run, request);
    }

    /// Asks a node to leave its run and end afterwards. A second request ends the node at once.
    pub(super) fn ask_to_leave(&mut self, at: NodeId) {
        if self.leaving.insert(at) {
            self.say(&format!("{at} is asked to leave"));
            self.run(at, RunEvent::Leave);
        } else {
            self.end_leaving(at);
        }
    }

    /// Ends a node whose time for leaving is over, even if the others lack some of its batches.
    fn end_leaving(&mut self, at: NodeId) {
        self.say(&format!("{at} has no more time to leave"));
        self.leaving.remove(&at);
        self.run(at, RunEvent::LeaveUnfinished);
        if self.nodes[&at].alive {
            self.leave(at);
        }
    }

    /// Separates two nodes: messages and dials between them get no answer, or are rejected.
    pub(super) fn block(&mut self, a: NodeId, b: NodeId) {
        self.blocked.insert(pair(a, b));
        self.cut(a, b, 3000);
        if self.random.below(2) == 0 {
            self.rejecting.insert(pair(a, b));
            self.reset_sessions(a, b);
        }
    }

    /// Lets a node receive, from another node, a message that no honest node would send.
    pub(super) fn lies(&mut self, at: NodeId, from: NodeId) {
        // The version does not exist, but the checksum is right: otherwise the message would count as damaged.
        let mut lie = vec![0];
        lie.extend(crc32fast::hash(&lie).to_le_bytes());
        let message = Message::Batch(lie.into());
        self.exchange(at, RunExchangeEvent::Received { from, message });
    }

    /// Lets one frozen node go on, chosen at random among those that have been frozen for their full time.
    fn go_on(&mut self) {
        let may = |node: &Node| node.stopped && node.stopped_until <= self.now;
        let stopped: Vec<NodeId> = self.alive().into_iter().filter(|id| may(&self.nodes[id])).collect();
        if !stopped.is_empty() {
            let id = self.pick(&stopped);
            self.say(&format!("{id} goes on"));
            self.nodes.get_mut(&id).unwrap().stopped = false;
        }
    }

    fn partition(&mut self) {
        let alive = self.alive();
        let border = self.random.below(alive.len() as u64) as usize;
        self.say(&format!(
            "{:?} and {:?} do not reach each other",
            &alive[..border],
            &alive[border..]
        ));
        for &left in &alive[..border] {
            for &right in &alive[border..] {
                self.block(left, right);
            }
        }
    }

    /// Ends the faults. Some nodes may stay undialable or out of each other's reach, as long as all are connected over
    /// others; hanging disks go on hanging.
    pub(super) fn calm_down(&mut self) {
        self.say("the storm is over");
        // A node that takes too long to leave ends anyway.
        for node in std::mem::take(&mut self.leaving) {
            if self.nodes[&node].alive {
                self.end_leaving(node);
            }
        }
        for node in self.nodes.values_mut() {
            node.stopped = false;
            node.data = true;
        }
        let hub = self.alive()[0];
        // A node that joined at one that died at once gets another address to join at.
        for node in self.nodes.values_mut().filter(|node| node.info.id != hub) {
            node.seed = Some(hub);
        }
        if self.random.below(2) == 0 {
            self.blocked.clear();
            self.rejecting.clear();
        }
        let alive = self.alive();
        if self.layers.is_some() {
            // Nodes of the same stage exchange batches directly only: no third node relays them.
            self.blocked.clear();
            self.rejecting.clear();
            self.undialable.clear();
        } else if alive.len() > 2 && self.random.below(2) == 0 {
            let (a, b) = (self.pick(&alive), self.pick(&alive));
            self.block(a, b);
        }
        self.blocked.retain(|&(a, b)| a != hub && b != hub);
        let blocked = &self.blocked;
        self.rejecting.retain(|way| blocked.contains(way));
        self.undialable.remove(&hub);
    }
}
