//! What the shells of a node carry out: the effects of its run and of its exchange.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use protocol::ids::{NodeId, RunId};
use protocol::log::batch::{Batch, BatchError};
use protocol::log::bundle::Bundle;
use protocol::reasons::{Excluded, RunFailure};
use protocol::stats::measured::NodeUsage;
use protocol::wire::attach::FromWorker;
use protocol::wire::control::{FoundCheckpoint, Offer, Phase};
use protocol::wire::run_plan::{Resumed, RunPlan};

use super::node::{Checkpoint, Disk, Open, Training, WEIGHTS, Worker, data};
use super::world::{Due, World};
use crate::exchange::{Breach, Effect, Event, Exchange};
use crate::ledger::Ledger;
use crate::pipeline::{PipelineEffect, PipelineEvent, PipelineNode};
use crate::run::{ExchangeOrder, RunEffect, RunEvent, Settlement, WorkerKey, lacks_checkpoint, progress};
use protocol::wire::link::{Message, OriginInfo};
use protocol::wire::snapshot::Snapshot;
use worker::training::ToTraining;

impl World {
    /// Tells a node's run what happened, and carries out what follows.
    pub(super) fn run(&mut self, at: NodeId, event: RunEvent) {
        let now = self.time();
        let node = self.nodes.get_mut(&at).unwrap();
        let mut effects = Vec::new();
        node.core.handle(event, now, &mut effects);
        for effect in effects {
            self.carry_out(at, effect);
        }
        self.note_end(at);
    }

    /// Takes note of how a run ended. A second outcome of the same run is a mistake.
    pub(super) fn note_end(&mut self, at: NodeId) {
        let now = self.time();
        let node = self.nodes.get_mut(&at).unwrap();
        let Some(status) = node.core.status(now) else {
            return;
        };
        let Some(outcome) = status.outcome else {
            return;
        };
        let outcome = outcome.map(|result| *result);
        if let Some(before) = node.ended.get(&status.run) {
            // Who was not ready in time may come to the run later, as a guest.
            let same = before == &outcome;
            assert!(
                same || before.is_err(),
                "node {at} reports a second outcome of run {}",
                status.run
            );
            if same {
                return;
            }
        }
        node.ended.insert(status.run, outcome.clone());
        let text = match &outcome {
            Ok(result) => format!(
                "with {:?}, missing {:?}, {}",
                result.participants, result.missing, result.digest
            ),
            Err(reason) => format!("because {reason}"),
        };
        self.say(&format!("{at} ends run {} {text}", status.run));
    }

    pub(super) fn carry_out(&mut self, at: NodeId, effect: RunEffect) {
        match effect {
            RunEffect::Publish { beats, phase } => {
                let node = self.nodes.get_mut(&at).unwrap();
                let going = beats.first().filter(|_| phase != Phase::Ended);
                let participants = going.and_then(|beat| beat.plan.as_ref()).into_iter();
                let participants = participants.flat_map(|plan| plan.participants.iter().map(|one| one.node));
                node.roster.take_part(participants.collect());
                node.beats = beats;
                self.beat(at);
            }
            RunEffect::Send { to, message } => self.send(at, to, message),
            RunEffect::Broadcast(message) => {
                for to in self.known(at) {
                    self.send(at, to, message.clone());
                }
            }
            RunEffect::Reply(ticket, reply) => {
                let before = self.nodes.get_mut(&at).unwrap().replies.insert(ticket, reply);
                assert!(before.is_none(), "{at} answers a client twice");
            }
            RunEffect::Prepare { worker, run, .. } => {
                let slowly = self.random.below(8) == 0;
                let delay = 20 + self.random.below(if slowly { 15_000 } else { 300 });
                let fits = self.nodes[&at].data;
                let answer = if fits {
                    let data = match &self.layers {
                        Some(layers) => layers.data(),
                        None => data(self.samples),
                    };
                    FromWorker::Prepared { run, data, speed: 0 }
                } else {
                    let reason = "the data is gone".into();
                    FromWorker::Refused { run, reason }
                };
                self.order(at, worker, delay, |worker| {
                    worker.training = None;
                    worker.stage = None;
                    worker.prepared = None;
                    Some(answer)
                });
            }
            RunEffect::Dismiss(worker) => self.order(at, worker, 30, |worker| {
                worker.training = None;
                worker.stage = None;
                worker.prepared = None;
                Some(FromWorker::Idle)
            }),
            RunEffect::HangUp(worker) => self.after(1, Due::Killed { at, key: worker }),
            RunEffect::Offer { run, data, workers, .. } => {
                let offer = Ok(Offer {
                    groups: 1,
                    speed: 0,
                    memory_bytes: None,
                    gpu_bytes: None,
                    data,
                    digest: match &self.layers {
                        Some(layers) => layers.first_digest(),
                        None => first_ledger(run).digest(),
                    },
                    workers,
                });
                let delay = 1 + self.random.below(100);
                self.after(
                    delay,
                    Due::Event {
                        at,
                        event: RunEvent::Offered { run, offer },
                    },
                );
            }
            RunEffect::LookUp { run, resumes } => self.look_up(at, run, resumes),
            RunEffect::Open { run, plan } => {
                let delay = 1 + self.random.below(80);
                self.after(delay, Due::Open { at, run, plan });
            }
            RunEffect::Exchange(order) => self.exchange_order(at, order),
            RunEffect::Close => {
                self.check_handed_over(at);
                let node = self.nodes.get_mut(&at).unwrap();
                node.ledger = None;
                if node.exchange.take().is_some() {
                    for other in self.nodes.keys().copied().collect::<Vec<_>>() {
                        self.cut(at, other, 0);
                    }
                }
            }
            RunEffect::Left => self.leave(at),
        }
    }

    /// Looks for a node's checkpoint of an earlier run.
    fn look_up(&mut self, at: NodeId, run: RunId, resumes: RunId) {
        let job = Box::new(self.job());
        let slots = self.nodes[&at].info.workers;
        let found = self.nodes[&at]
            .checkpoints
            .get(&resumes)
            .map(|Checkpoint { ledger, stage }| {
                let resumed = Resumed {
                    run: resumes,
                    digest: ledger.digest(),
                    frontier: ledger.frontier().fingerprint(),
                    samples: ledger.samples(),
                    slots,
                };
                let stage = *stage;
                Box::new(FoundCheckpoint { resumed, job, stage })
            });
        self.after(
            30,
            Due::Event {
                at,
                event: RunEvent::LookedUp { run, found },
            },
        );
    }

    /// Whoever has left a run that goes on, and had time for it, has handed over all that its workers made, if anybody is
    /// linked to it.
    fn check_handed_over(&self, at: NodeId) {
        if !self.leaving.contains(&at) {
            return;
        }
        let node = &self.nodes[&at];
        let status = node.core.status(self.time()).and_then(|status| status.outcome);
        let has_left = matches!(status, Some(Err(RunFailure::Excluded(Excluded::AskedToEnd))));
        let hands_over = |open: &&Open| has_left && open.plan.topology().hands_over();
        let Some(open) = node.exchange.as_ref().filter(hands_over) else {
            return;
        };
        // Nothing is given to whoever was found lying, nor taken from it.
        let of_run = |other: &NodeId| {
            let accused = |by, of| self.accused.contains(&(open.run, by, of));
            if accused(at, *other) || accused(*other, at) || !open.pipeline.liveness().live.contains(other) {
                return None;
            }
            let theirs = self.nodes[other].exchange.as_ref();
            // A guest that has not caught up has nothing of anybody.
            let has_begun = |theirs: &&Open| theirs.told.is_some_and(|told| told.ready);
            theirs.filter(|theirs| theirs.run == open.run && theirs.linked.contains(&at) && has_begun(theirs))
        };
        let others: Vec<&Open> = open.linked.iter().filter_map(of_run).collect();
        for (key, origin) in &open.seated {
            let uncounted = node
                .workers
                .get(key)
                .and_then(|worker| Some(worker.training.as_ref()?.uncounted));
            assert!(
                others.is_empty() || uncounted.unwrap_or(0) == 0,
                "node {at} leaves with trained samples that no other node counts"
            );
            let made = self.made[origin].len() as u64 - 1;
            let has_all = |theirs: &&Open| theirs.core.ledger().frontier().applied(*origin) >= made;
            assert!(
                others.is_empty() || others.iter().any(has_all),
                "node {at} leaves with batches that no other node has"
            );
        }
    }

    /// What was looked for is found: the core is told, and a ledger that it asked for is held until the run begins.
    pub(super) fn found(&mut self, at: NodeId, event: RunEvent) {
        let node = self.nodes.get_mut(&at).unwrap();
        if let RunEvent::Offered { run, .. } = event
            && node.core.is_offering(run)
        {
            node.ledger = Some((run, first_ledger(run)));
        }
        self.run(at, event);
    }

    /// Tells a worker something, which it answers in a while.
    pub(super) fn order(
        &mut self,
        at: NodeId,
        key: WorkerKey,
        delay: u64,
        act: impl FnOnce(&mut Worker) -> Option<FromWorker>,
    ) {
        let Some(worker) = self.nodes.get_mut(&at).unwrap().workers.get_mut(&key) else {
            return;
        };
        worker.orders += 1;
        let orders = worker.orders;
        if let Some(message) = act(worker) {
            self.after(
                delay,
                Due::Worker {
                    at,
                    key,
                    orders,
                    message,
                },
            );
        }
    }

    /// A further report of a worker, without a new order.
    pub(super) fn worker_says(&mut self, at: NodeId, key: WorkerKey, delay: u64, message: FromWorker) {
        if let Some(worker) = self.nodes[&at].workers.get(&key) {
            let orders = worker.orders;
            self.after(
                delay,
                Due::Worker {
                    at,
                    key,
                    orders,
                    message,
                },
            );
        }
    }

    pub(super) fn open(&mut self, at: NodeId, run: RunId, plan: RunPlan) {
        let node = self.nodes.get_mut(&at).unwrap();
        if node.exchange.is_none() && !node.core.is_opening(run) {
            return;
        }
        let Some((_, mut ledger)) = node.ledger.take_if(|(name, _)| *name == run) else {
            panic!("{at} begins run {run} twice, or without a ledger");
        };
        if let Some(stage) = plan.topology().held_stage(at) {
            ledger = Ledger::new(run, stage.initial_counts(plan.job.seed));
        }
        if let Some(resumed) = plan.resumed_by(at)
            && let Some(Checkpoint { ledger: found, .. }) = node.checkpoints.get(&resumed.run)
            && found.is_that_of(resumed)
        {
            let mut head = found.head();
            head.run = run;
            let snapshot = Snapshot {
                head,
                counts: found.counts().to_vec(),
                log: Vec::new(),
            };
            ledger = Ledger::restored(snapshot, run, ledger.initial()).unwrap();
        }
        let mut core = Exchange::for_run(at, ledger, &plan);
        let mut events: Vec<Event> = core
            .ledger()
            .frontier()
            .iter()
            .map(|(origin, sequence)| {
                Event::Origin(OriginInfo {
                    origin,
                    node: at,
                    slot: OriginInfo::NO_SLOT,
                    ended: Some(sequence),
                })
            })
            .collect();
        if !plan.is_guest(at) && !lacks_checkpoint(&core, &plan, at) {
            events.push(Event::Founder(at));
        }
        let others = plan.participants.iter().filter(|one| one.node != at);
        for one in others.filter(|one| plan.topology().same_slice(at, one.node)) {
            let guest = plan.is_guest(at) || one.guest;
            events.push(if guest {
                Event::Joined(one.node)
            } else {
                Event::Founder(one.node)
            });
        }
        for event in events {
            core.handle(event, &mut Vec::new());
        }
        node.exchange = Some(Open {
            run,
            pipeline: PipelineNode::new(at, &plan),
            plan,
            core,
            freeze: 0,
            takes_over: false,
            told: None,
            linked: BTreeSet::new(),
            seated: BTreeMap::new(),
        });
        assert!(node.took_part.insert(run), "{at} takes part in run {run} twice");
        // It may join as a guest what it was called off from before that began.
        if node.ended.get(&run).is_some_and(Result::is_err) {
            node.ended.remove(&run);
        }
        self.run(at, RunEvent::Opened { run, opened: Ok(()) });
    }

    #[expect(clippy::too_many_lines, reason = "one short match arm for each order")]
    pub(super) fn exchange_order(&mut self, at: NodeId, order: ExchangeOrder) {
        if self.nodes[&at].exchange.is_none() {
            return;
        }
        match order {
            ExchangeOrder::Joined(participant) => {
                let open = self.nodes.get_mut(&at).unwrap().exchange.as_mut().unwrap();
                open.plan.admit(participant.clone());
                open.core.reckon_with_workers(participant.node, participant.workers);
                let is_same = open.plan.topology().same_slice(at, participant.node);
                self.pipeline(at, PipelineEvent::Admitted);
                if is_same {
                    self.exchange(at, Event::Joined(participant.node));
                }
            }
            ExchangeOrder::Liveness(liveness) => {
                let open = self.nodes.get_mut(&at).unwrap().exchange.as_mut().unwrap();
                let before = &open.pipeline.liveness().gone;
                let is_same = |node: &NodeId| open.plan.topology().same_slice(at, *node);
                let gone: Vec<NodeId> = liveness.gone.difference(before).copied().filter(is_same).collect();
                let absent = liveness.absent().into_iter().filter(is_same).collect();
                self.pipeline(at, PipelineEvent::Liveness(liveness));
                for node in gone {
                    self.exchange(at, Event::Left(node));
                }
                self.exchange(at, Event::Silent(absent));
            }
            ExchangeOrder::Seat { worker, slot } if self.layers.is_some() => self.seat_stage(at, worker, slot, false),
            ExchangeOrder::Seat { worker, .. } => self.seat(at, worker),
            ExchangeOrder::Reseat { worker, slot } => self.seat_stage(at, worker, slot, true),
            ExchangeOrder::Unseat(worker) => {
                let open = self.nodes.get_mut(&at).unwrap().exchange.as_mut().unwrap();
                if let Some(origin) = open.seated.remove(&worker) {
                    let ended = Some(open.core.ledger().frontier().applied(origin));
                    self.pipeline(at, PipelineEvent::WorkerLost);
                    let mut known = self.nodes[&at].exchange.as_ref().unwrap().core.origins();
                    let info = known.find(|info| info.origin == origin).copied();
                    drop(known);
                    if let Some(info) = info {
                        self.exchange(at, Event::Origin(OriginInfo { ended, ..info }));
                    }
                }
            }
            ExchangeOrder::StopWorkers { stands_by } => {
                self.stop_workers(at, stands_by);
                self.tell_stages(at, &ToTraining::Stop);
            }
            ExchangeOrder::LeaveWorkers => {
                self.leave_workers(at);
                self.tell_stages(at, &ToTraining::Leave);
            }
            ExchangeOrder::TakeOver(slots) => {
                self.take_over(at, &slots);
                self.pipeline(at, PipelineEvent::TakeOver(slots));
            }
            ExchangeOrder::GoBack(key) => self.go_back(at, key),
            ExchangeOrder::Evaluate if self.layers.is_some() => self.evaluate_stage(at),
            ExchangeOrder::Evaluate => {
                let reached = self.random.below(30) == 0;
                self.evaluate(at, reached);
            }
            ExchangeOrder::Checkpoint => {
                let node = self.nodes.get_mut(&at).unwrap();
                if node.disk == Disk::Sound {
                    let open = node.exchange.as_ref().unwrap();
                    node.checkpoints.insert(open.run, open.checkpoint(at));
                }
            }
            ExchangeOrder::Keep => {
                let node = self.nodes.get_mut(&at).unwrap();
                let open = node.exchange.as_ref().unwrap();
                let run = open.run;
                let kept = match node.disk {
                    Disk::Sound => {
                        let checkpoint = open.checkpoint(at);
                        node.checkpoints.insert(run, checkpoint);
                        Ok("kept".into())
                    }
                    Disk::Full => Err("full".into()),
                    Disk::Hung => return self.after(500, Due::Keep { at }),
                };
                let event = RunEvent::Kept(run, kept);
                self.after(30, Due::Event { at, event });
            }
            ExchangeOrder::Freeze { number, fingerprint } => {
                let open = self.nodes.get_mut(&at).unwrap().exchange.as_mut().unwrap();
                if open.core.fingerprint() == fingerprint {
                    open.freeze = number;
                    self.exchange(at, Event::Freeze(true));
                }
            }
            ExchangeOrder::Thaw => {
                self.nodes.get_mut(&at).unwrap().exchange.as_mut().unwrap().freeze = 0;
                self.exchange(at, Event::Freeze(false));
            }
            ExchangeOrder::Settle => {
                let open = self.nodes[&at].exchange.as_ref().unwrap();
                let ledger = open.core.ledger();
                let settlement = Box::new(Settlement {
                    digest: ledger.audit(),
                    whole: open
                        .plan
                        .topology()
                        .held_stage(at)
                        .map(|stage| stage.digest(ledger.counts())),
                    samples: ledger.samples(),
                    repeated: 0,
                    seconds: 1.0,
                    bytes_sent: 1,
                    weights: WEIGHTS as u64,
                    usage: NodeUsage::default(),
                });
                let event = RunEvent::Settlement(open.run, settlement);
                self.after(10, Due::Event { at, event });
            }
            ExchangeOrder::Finish { worker, save } if self.layers.is_some() => self.finish_stage(at, worker, save),
            ExchangeOrder::Finish { worker, save } => {
                let counts = self.nodes[&at]
                    .workers
                    .get(&worker)
                    .and_then(|worker| worker.training.as_ref());
                let Some(counts) = counts.map(|training| training.counts.clone()) else {
                    return;
                };
                self.finish(at, worker, &counts, save.is_some());
            }
            ExchangeOrder::Measure { worker, .. } => {
                let counts = self.nodes[&at]
                    .exchange
                    .as_ref()
                    .unwrap()
                    .core
                    .ledger()
                    .counts()
                    .to_vec();
                self.finish(at, worker, &counts, true);
            }
        }
        self.tell_progress(at);
    }

    /// Tells a node's exchange what happened, and carries out what follows.
    pub(super) fn exchange(&mut self, at: NodeId, event: Event) {
        let Some(open) = self.nodes.get_mut(&at).and_then(|node| node.exchange.as_mut()) else {
            return;
        };
        let run = open.run;
        let mut effects = Vec::new();
        open.core.handle(event, &mut effects);
        for effect in effects {
            match effect {
                Effect::Send { to, message } => self.transmit(at, to, message),
                Effect::Reset(peer) => self.cut(at, peer, 0),
                Effect::Deliver { origin, bytes } => {
                    let weights = self.nodes[&at].exchange.as_ref().unwrap().core.ledger().weight_count();
                    let batch = Batch::decode(&bytes, weights).unwrap();
                    self.tell_stages_but(at, Some(origin), &ToTraining::Apply(Arc::new(batch.clone())));
                    for training in self.trainings(at).filter(|training| training.origin != origin) {
                        batch.payload.apply_to_counts(&mut training.counts).unwrap();
                    }
                }
                Effect::Bundle(bytes) => {
                    let bundle = Bundle::decode(&bytes, WEIGHTS).unwrap();
                    for training in self.trainings(at) {
                        bundle.dense.apply_to_counts(&mut training.counts).unwrap();
                    }
                }
                Effect::GoOn { origin, order } => self.leave_round(at, origin, order),
                Effect::Jump(jump) => {
                    for training in self.trainings(at) {
                        jump.sums.apply_to_counts(&mut training.counts).unwrap();
                    }
                    self.jump_stages(at, *jump);
                }
                Effect::RestartWorkers => {
                    let open = self.nodes[&at].exchange.as_ref();
                    let seated: Vec<WorkerKey> = open.iter().flat_map(|open| open.seated.keys().copied()).collect();
                    for key in seated {
                        self.kill_worker(at, key);
                    }
                }
                Effect::Stop => self.run(at, RunEvent::StopSeen(run)),
                // The storm puts a lie into somebody's mouth now and then.
                Effect::Quarantine {
                    peer,
                    reason: Breach::Batch(BatchError::UnknownVersion(0)),
                } => {
                    self.cut(at, peer, 0);
                    self.accused.insert((run, at, peer));
                    self.run(at, RunEvent::Lied { run, node: peer });
                }
                Effect::Ended(_) => self.compare_origins(at),
                Effect::Giving(_) => {}
                other => panic!("node {at} asks for {other:?}, but all peers are honest"),
            }
        }
    }

    /// A message has come on a link: for a worker of a pipeline, or for the exchange of those that hold the same.
    pub(super) fn receive(&mut self, at: NodeId, from: NodeId, message: Message) {
        let Some(open) = self.nodes[&at].exchange.as_ref() else {
            return;
        };
        match message {
            Message::Flow(bytes) => self.pipeline(at, PipelineEvent::FromPeer { from, bytes }),
            message if open.plan.topology().same_slice(at, from) => {
                self.exchange(at, Event::Received { from, message });
            }
            _ => {}
        }
    }

    /// Tells a node's core of pipelines what happened, and carries out what follows.
    pub(super) fn pipeline(&mut self, at: NodeId, event: PipelineEvent) {
        let Some(open) = self.nodes.get_mut(&at).and_then(|node| node.exchange.as_mut()) else {
            return;
        };
        let sender = match &event {
            PipelineEvent::FromPeer { from, .. } => Some(*from),
            _ => None,
        };
        let mut effects = Vec::new();
        open.pipeline.handle(event, &open.plan, &mut effects);
        // What reaches a worker has come from the holder of a stage to the holder of another.
        let holds = |node: NodeId| {
            let holder = open
                .plan
                .topology()
                .place(node)
                .and_then(|place| open.plan.topology().holder(place));
            holder.is_some_and(|holder| holder.node == node)
        };
        let delivers = effects
            .iter()
            .any(|effect| matches!(effect, PipelineEffect::Deliver(_)));
        assert!(
            !delivers || sender.is_some_and(holds),
            "{at} hands its worker a message of {sender:?}, which was replaced"
        );
        for effect in effects {
            self.carry_out_for_pipeline(at, effect);
        }
    }

    pub(super) fn trainings(&mut self, at: NodeId) -> impl Iterator<Item = &mut Training> {
        let node = self.nodes.get_mut(&at).unwrap();
        let seated = node.exchange.as_ref().map(|open| &open.seated);
        let workers = node
            .workers
            .iter_mut()
            .filter(move |(key, _)| seated.is_some_and(|seated| seated.contains_key(key)));
        workers.filter_map(|(_, worker)| worker.training.as_mut())
    }

    pub(super) fn tell_progress(&mut self, at: NodeId) {
        let Some(open) = self.nodes.get_mut(&at).and_then(|node| node.exchange.as_mut()) else {
            return;
        };
        let is_linked = |node| open.linked.contains(&node);
        let progress = progress(
            &open.core,
            &open.plan,
            at,
            open.pipeline.liveness(),
            open.freeze,
            is_linked,
        );
        if open.told != Some(progress) {
            open.told = Some(progress);
            let event = RunEvent::Progress(open.run, progress);
            self.run(at, event);
        }
    }
}

/// What every node of a run begins with.
fn first_ledger(run: RunId) -> Ledger {
    Ledger::new(run, vec![0; WEIGHTS])
}
