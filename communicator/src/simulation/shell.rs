//! Carries out the effects of a simulated node's run and exchange, as the actors of a real node do.

use protocol::ids::{NodeId, OriginId, RunId};
use protocol::log::batch::BatchError;
use protocol::reasons::{Excluded, RunFailure};
use protocol::wire::attach::FromWorker;
use protocol::wire::control::{FoundCheckpoint, Offer, Phase};
use protocol::wire::frame::Kind;
use protocol::wire::run_plan::{Resumed, RunPlan};
use protocol::wire::snapshot::Snapshot;

use super::node::{Checkpoint, Disk, Open, TIMING, WEIGHTS, Worker, data};
use super::world::{Due, World};
use crate::exchange::Breach;
use crate::ledger::Ledger;
use crate::run::{ExchangeOrder, RunEffect, RunEvent, WorkerKey};
use crate::run_exchange::{
    ExchangeNews, RunExchange, RunExchangeArguments, RunExchangeEffect, RunExchangeEvent, WriteOccasion,
};
use crate::run_files::RunFiles;

impl World {
    /// Passes an event to a node's run and carries out the effects.
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

    /// Records the outcome of a run. Panics if the run already had another result.
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
            // A node that was not ready in time may join the run later, as a guest.
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
                    weights: WEIGHTS as u64,
                    groups: 1,
                    speed: 0,
                    memory_bytes: None,
                    gpu_bytes: None,
                    data,
                    digest: match &self.layers {
                        Some(layers) => layers.first_digest(),
                        None => self.nodes[&at].first_ledger(run).digest(),
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

    /// Looks for a node's checkpoint of an earlier run on its disk and reports it to the node's run after a delay.
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
                    first: ledger.digest() - ledger.head().digest_of_batches(),
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

    /// Checks that a node that has left a run in time has handed over all its workers' batches, if a node that takes
    /// them is linked to it.
    fn check_handed_over(&self, at: NodeId) {
        if !self.leaving.contains(&at) {
            return;
        }
        let node = &self.nodes[&at];
        let status = node.core.status(self.time()).and_then(|status| status.outcome);
        let has_left = matches!(status, Some(Err(RunFailure::Excluded(Excluded::AskedToEnd))));
        let hands_over = |open: &&Open| has_left && open.topology().hands_over();
        let Some(open) = node.exchange.as_ref().filter(hands_over) else {
            return;
        };
        // Nodes do not exchange batches with a node that was found lying.
        let of_run = |other: &NodeId| {
            let accused = |by, of| self.accused.contains(&(open.run, by, of));
            if accused(at, *other) || accused(*other, at) || !open.core.liveness().live.contains(other) {
                return None;
            }
            let theirs = self.nodes[other].exchange.as_ref();
            // A guest that has not caught up takes no batches.
            let has_begun = |theirs: &&Open| theirs.core.told().is_some_and(|told| told.ready);
            theirs.filter(|theirs| theirs.run == open.run && theirs.core.linked().contains(&at) && has_begun(theirs))
        };
        let others: Vec<&Open> = open.core.linked().iter().filter_map(of_run).collect();
        for (key, origin) in open.core.seats() {
            let uncounted = node
                .workers
                .get(key)
                .and_then(|worker| Some(worker.training.as_ref()?.uncounted));
            assert!(
                others.is_empty() || uncounted.unwrap_or(0) == 0,
                "node {at} leaves with trained samples that no other node counts"
            );
            let made = self.made[origin].len() as u64 - 1;
            let has_all = |theirs: &&Open| theirs.ledger().frontier().applied(*origin) >= made;
            assert!(
                others.is_empty() || others.iter().any(has_all),
                "node {at} leaves with batches that no other node has"
            );
        }
    }

    /// Handles the end of a node's background task by passing its event to the run. If the task prepared the node's
    /// offer to take part in the run, the node first makes the replica of the weights with which the run starts.
    pub(super) fn found(&mut self, at: NodeId, event: RunEvent) {
        let node = self.nodes.get_mut(&at).unwrap();
        if let RunEvent::Offered { run, .. } = event
            && node.core.is_offering(run)
        {
            node.ledger = Some((run, node.first_ledger(run)));
        }
        self.run(at, event);
    }

    /// Gives a worker an order, which it answers after a delay in milliseconds.
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
        if let Some(message) = act(worker) {
            self.worker_says(at, key, delay, message);
        }
    }

    /// Lets a worker send a message after a delay, without a new order.
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
        let now = self.time();
        let node = self.nodes.get_mut(&at).unwrap();
        if node.exchange.is_none() && !node.core.is_opening(run) {
            return;
        }
        let Some((_, ledger)) = node.ledger.take_if(|(name, _)| *name == run) else {
            panic!("{at} begins run {run} twice, or without a ledger");
        };
        let mut ledger = ledger.at_beginning(&plan, at);
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
        let arguments = RunExchangeArguments {
            me: at,
            run,
            plan,
            ledger,
            states: Vec::new(),
            files: RunFiles::new("".into(), &node.info.name),
            keeps_runs: false,
            clocks: TIMING.clocks,
        };
        let (core, effects) = RunExchange::start(arguments, now);
        node.exchange = Some(Open {
            run,
            core,
            takes_over: false,
        });
        assert!(node.took_part.insert(run), "{at} takes part in run {run} twice");
        // After the node was not in time for the beginning, it may join the run as a guest.
        if node.ended.get(&run).is_some_and(Result::is_err) {
            node.ended.remove(&run);
        }
        self.carry_out_for_exchange(at, run, effects);
        self.run(at, RunEvent::Opened { run, opened: Ok(()) });
    }

    /// Passes an order of the run to a node's exchange.
    fn exchange_order(&mut self, at: NodeId, order: ExchangeOrder) {
        let is_gone = |worker| !self.nodes[&at].workers.contains_key(&worker);
        if order.new_worker().is_some_and(is_gone) {
            return;
        }
        if let ExchangeOrder::TakeOver(slots) = &order {
            self.take_over(at, slots);
        }
        let origin = OriginId(self.number());
        self.exchange(at, RunExchangeEvent::Order { order, origin });
    }

    /// Passes an event to a node's exchange and carries out the effects.
    pub(super) fn exchange(&mut self, at: NodeId, event: RunExchangeEvent) {
        let now = self.time();
        let Some(open) = self.nodes.get_mut(&at).and_then(|node| node.exchange.as_mut()) else {
            return;
        };
        let sender = match &event {
            RunExchangeEvent::Received { from, .. } => Some(*from),
            _ => None,
        };
        let effects = open.core.handle(event, now);
        // Messages between stages of a pipeline must come from the current holder of a stage.
        let is_flow =
            |effect: &RunExchangeEffect| matches!(effect, RunExchangeEffect::Deliver { kind: Kind::Flow, .. });
        let is_replaced = |node: NodeId| open.topology().is_replaced(node);
        assert!(
            !effects.iter().any(is_flow) || sender.is_some_and(|sender| !is_replaced(sender)),
            "{at} hands its worker a message of {sender:?}, which was replaced"
        );
        let run = open.run;
        self.carry_out_for_exchange(at, run, effects);
    }

    /// Carries out the effects of a node's exchange. Events for the run's core are handled after all others, as in a
    /// real node, where they wait in a mailbox.
    fn carry_out_for_exchange(&mut self, at: NodeId, run: RunId, effects: Vec<RunExchangeEffect>) {
        let (mut hung_up, mut events) = (Vec::new(), Vec::new());
        for effect in effects {
            match effect {
                // The simulated network sets up links; there are no records and no logs.
                RunExchangeEffect::Connect(_)
                | RunExchangeEffect::Absent { .. }
                | RunExchangeEffect::Hear { .. }
                | RunExchangeEffect::Report
                | RunExchangeEffect::Notice(
                    ExchangeNews::Joined(_) | ExchangeNews::Giving(_) | ExchangeNews::RangeApplied { .. },
                ) => {}
                RunExchangeEffect::Reconnect(peer) | RunExchangeEffect::Disconnect(peer) => self.cut(at, peer, 0),
                RunExchangeEffect::Send { to, message } => self.transmit(at, to, message),
                RunExchangeEffect::Tell { worker, message } => self.tell_worker(at, worker, message),
                RunExchangeEffect::Deliver { worker, kind, contents } => self.deliver(at, worker, kind, &contents),
                RunExchangeEffect::HangUp(worker) => hung_up.push(worker),
                RunExchangeEffect::Run(event) => events.push(event),
                RunExchangeEffect::Settle(settlement) => {
                    let event = RunEvent::Settlement(run, settlement);
                    self.after(10, Due::Event { at, event });
                }
                RunExchangeEffect::Write { occasion, header, .. } => {
                    let open = self.nodes[&at].exchange.as_ref().unwrap();
                    let checkpoint = Box::new(Checkpoint {
                        ledger: open.ledger().clone(),
                        stage: header.stage,
                    });
                    self.write_ledger(at, run, occasion, checkpoint);
                }
                RunExchangeEffect::Notice(ExchangeNews::Quarantined {
                    peer,
                    // Only the storm makes nodes lie, with this version number.
                    reason: Breach::Batch(BatchError::UnknownVersion(0)),
                }) => drop(self.accused.insert((run, at, peer))),
                RunExchangeEffect::Notice(news) => panic!("node {at} tells of {news:?}, but all peers are honest"),
            }
        }
        for worker in hung_up {
            self.kill_worker(at, worker);
        }
        for event in events {
            self.run(at, event);
        }
    }

    /// Writes a replica to a node's disk; if the disk hangs, tries again later.
    pub(super) fn write_ledger(
        &mut self,
        at: NodeId,
        run: RunId,
        occasion: WriteOccasion,
        checkpoint: Box<Checkpoint>,
    ) {
        let node = self.nodes.get_mut(&at).unwrap();
        let written = match node.disk {
            Disk::Sound => {
                node.checkpoints.insert(run, *checkpoint);
                Ok("kept".into())
            }
            Disk::Full => Err("full".into()),
            Disk::Hung => {
                let due = Due::WriteLedger {
                    at,
                    run,
                    occasion,
                    checkpoint,
                };
                return self.after(500, due);
            }
        };
        match occasion {
            WriteOccasion::Checkpoint => self.after(30, Due::CheckpointWritten { at, run }),
            WriteOccasion::Kept => {
                let event = RunEvent::Kept(run, written);
                self.after(30, Due::Event { at, event });
            }
            WriteOccasion::Last => {}
        }
    }
}
