//! What the run's core decides, carried out.

use std::path::PathBuf;

use protocol::ids::OriginId;
use protocol::wire::attach::ToWorker;
use protocol::wire::control::Phase;

use super::first_counts::FirstCounts;
use super::{RunMessage, RunState, checkpoint_search, offer};
use crate::node::exchange::ExchangeMessage;
use crate::node::membership::MembershipMessage;
use crate::run::{ExchangeOrder, RunEffect, RunEvent, RunPeerMessage};
use crate::{entropy, log_context};

impl RunState {
    pub(super) fn carry_out(&mut self, effect: RunEffect) {
        match effect {
            RunEffect::Publish { beats, phase } => {
                log_context::set_run(beats.first().filter(|_| phase != Phase::Ended).map(|beat| beat.run));
                self.tell_membership(MembershipMessage::Run(beats, phase));
            }
            RunEffect::Send { to, message } if to == self.me.id => {
                if let Some(message) = RunPeerMessage::of(message) {
                    let _ = self.myself.cast(RunMessage::ControlMessage { from: to, message });
                }
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
                    let offered = offer::make(run, &job, counts, data, workers);
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
            RunEffect::Keep => {
                if let Some((run, _)) = self.exchange {
                    self.tell_exchange(ExchangeMessage::Keep(self.files.checkpoint(run)));
                }
            }
        }
    }

    fn order(&mut self, order: ExchangeOrder) {
        let message = match order {
            ExchangeOrder::Joined(participant) => ExchangeMessage::Joined(participant),
            ExchangeOrder::Liveness(liveness) => ExchangeMessage::Live(liveness),
            ExchangeOrder::Seat { worker, slot } => {
                let Some(worker) = self.workers.get(&worker).cloned() else {
                    return;
                };
                let origin = OriginId(entropy::number());
                ExchangeMessage::Seat { worker, slot, origin }
            }
            ExchangeOrder::Reseat { worker, slot } => {
                let Some(worker) = self.workers.get(&worker).cloned() else {
                    return;
                };
                ExchangeMessage::Reseat { worker, slot }
            }
            ExchangeOrder::Unseat(worker) => ExchangeMessage::Unseat(worker),
            ExchangeOrder::StopWorkers { stands_by } => ExchangeMessage::Stop { stands_by },
            ExchangeOrder::LeaveWorkers => ExchangeMessage::Leave,
            ExchangeOrder::TakeOver(slots) => ExchangeMessage::TakeOver(slots),
            ExchangeOrder::GoBack(key) => ExchangeMessage::GoBack(key),
            ExchangeOrder::Evaluate => ExchangeMessage::Evaluate,
            ExchangeOrder::Checkpoint => {
                let Some((run, _)) = self.exchange else {
                    return;
                };
                ExchangeMessage::Checkpoint(self.files.checkpoint(run))
            }
            ExchangeOrder::Freeze { number, fingerprint } => ExchangeMessage::Freeze { number, fingerprint },
            ExchangeOrder::Thaw => ExchangeMessage::Thaw,
            ExchangeOrder::Settle => ExchangeMessage::Settle,
            ExchangeOrder::Finish { worker: key, save } => ExchangeMessage::Finish {
                key,
                save: save.and_then(|saving| Some((self.model_path(saving.spare)?, saving.measures_pipeline))),
            },
            ExchangeOrder::Measure { worker, spare } => {
                let Some((worker, path)) = self.workers.get(&worker).cloned().zip(self.model_path(spare)) else {
                    return;
                };
                ExchangeMessage::Measure { worker, path }
            }
        };
        self.tell_exchange(message);
    }

    /// The file that this run's model is saved to: in its own place, or in a spare one.
    fn model_path(&self, spare: bool) -> Option<PathBuf> {
        let (run, _) = *self.exchange.as_ref()?;
        Some(if spare {
            self.files.spare_model(run)
        } else {
            self.files.model(run)
        })
    }
}
