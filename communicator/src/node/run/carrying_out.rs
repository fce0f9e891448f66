//! Carries out the effects of the run's core.

use protocol::reasons::Excluded;
use protocol::wire::attach::ToWorker;
use protocol::wire::control::Phase;

use super::first_counts::FirstCounts;
use super::{RunMessage, RunState, checkpoint_search, offer};
use crate::log_context;
use crate::node::exchange::ExchangeMessage;
use crate::node::membership::MembershipMessage;
use crate::run::{ExchangeOrder, RunEffect, RunEvent};

impl RunState {
    pub(super) fn carry_out(&mut self, effect: RunEffect) {
        match effect {
            RunEffect::Publish { beats, phase } => {
                log_context::set_run(beats.first().filter(|_| phase != Phase::Ended).map(|beat| beat.run));
                self.tell_membership(MembershipMessage::Run(beats, phase));
            }
            RunEffect::Send { to, message } if to == self.me.id => {
                let event = RunEvent::ControlMessage { from: to, message };
                let _ = self.myself.cast(RunMessage::Event(event));
            }
            RunEffect::Send { to, message } => {
                let message = Box::new(message);
                self.tell_membership(MembershipMessage::Send { to, message });
            }
            RunEffect::Broadcast(message) => self.tell_membership(MembershipMessage::Broadcast(Box::new(message))),
            RunEffect::Reply(ticket, reply) => {
                if let Some(client) = self.clients.take(ticket) {
                    let _ = client.send(reply.into());
                }
            }
            RunEffect::Prepare { worker, run, job } => self.tell_worker(worker, ToWorker::Prepare { run, job }),
            RunEffect::Dismiss(worker) => self.tell_worker(worker, ToWorker::Abort),
            RunEffect::HangUp(worker) => {
                if let Some(worker) = self.workers.get(&worker) {
                    worker.hang_up();
                }
            }
            RunEffect::Offer {
                run,
                job,
                data,
                workers,
            } => {
                let (myself, first) = (self.myself.clone(), self.first.take(run));
                let workers = self.workers(workers);
                if let Some(first) = &first {
                    first.tell();
                }
                tokio::task::spawn_blocking(move || {
                    let counts = first.map(|first| first.counts);
                    let offered = offer::make(run, &job, counts, data, workers).map_err(Excluded::from);
                    let _ = myself.cast(RunMessage::Offered { run, offered });
                });
            }
            RunEffect::LookUp { run, resumes } => {
                let (myself, dir) = (self.myself.clone(), self.files.dir().to_path_buf());
                tokio::task::spawn_blocking(move || {
                    let found = checkpoint_search::look(&dir, resumes).map(Box::new);
                    let _ = myself.cast(RunMessage::Event(RunEvent::LookedUp { run, found }));
                });
            }
            RunEffect::Open { run, plan } => self.open(run, *plan),
            RunEffect::Exchange(order) => self.order(order),
            RunEffect::Close => {
                self.ledger = None;
                self.first = FirstCounts::default();
                if let Some((_, exchange)) = self.exchange.take() {
                    exchange.stop(None);
                }
            }
            RunEffect::Left => {
                if let Some(reply) = self.leaving.take() {
                    let _ = reply.send(());
                }
            }
        }
    }

    /// Passes an order of the run's core to the exchange's actor. If the order names a worker that the exchange does
    /// not know yet, the worker's handle goes with it.
    fn order(&self, order: ExchangeOrder) {
        let worker = match order.new_worker().map(|key| self.workers.get(&key)) {
            // The worker is gone, and the core will hear of it.
            Some(None) => return,
            Some(worker) => worker.cloned(),
            None => None,
        };
        self.tell_exchange(ExchangeMessage::Order { order, worker });
    }
}
