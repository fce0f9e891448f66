//! The beginning: the exchange is started, links are made, workers are seated.

use std::time::{Duration, Instant};

use protocol::control::{Begin, Phase};
use protocol::ids::{NodeId, OriginId};
use ractor::Actor;

use super::{Attached, Context, Current};
use crate::checkpoint::Checkpoint;
use crate::ledger::Ledger;
use crate::node::exchange::{ExchangeActor, ExchangeArguments, ExchangeMessage};
use crate::node::run::seat::Seat;
use crate::node::run::{RunMessage, finding, rand_u64};
use crate::node::workers::{WorkerHandle, WorkerKey};
use crate::transport::Stream;

/// How long training waits for links: what is learned without them is learned apart.
const LINKS_LIMIT: Duration = Duration::from_secs(3);

impl Current {
    pub(in crate::node::run) async fn begin(&mut self, mut begin: Begin, context: &Context, attached: &Attached) {
        if self.begin.is_some() {
            self.admit(&begin, context);
            return;
        }
        if begin.participant(context.me.id).is_none() {
            match self.guest(&begin, context) {
                Some(guest) => drop(begin.admit(guest)),
                None if self.answered => return self.withdraw("its data is not the run's", context, attached),
                // Its workers are still at it.
                None => {
                    self.joins = Some(begin);
                    return;
                }
            }
        }
        let Some(mut ledger) = self.ledger.take() else {
            return;
        };
        let mut states = Vec::new();
        if let Some(resumed) = begin.resumed
            && let Some(Checkpoint { header, mut snapshot }) = finding::newest(&context.dir, resumed.run).await
        {
            states = header.states;
            snapshot.head.run = self.run;
            let chosen = snapshot.head.samples == resumed.samples;
            // Others than the chosen one come to it as latecomers do.
            match Ledger::restored(snapshot, self.run, ledger.initial()) {
                Ok(restored) if chosen && restored.digest() == resumed.digest => ledger = restored,
                Ok(_) => tracing::info!("another node's checkpoint has come further than this one's"),
                Err(error) => tracing::error!(%error, "this node's checkpoint is of no use"),
            }
        }
        let started = Actor::spawn_linked(
            None,
            ExchangeActor,
            ExchangeArguments {
                me: context.me.id,
                version: context.me.version.clone(),
                run: self.run,
                begin: begin.clone(),
                ledger,
                states,
                security: context.security.clone(),
                run_actor: context.myself.clone(),
            },
            context.myself.get_cell(),
        );
        match started.await {
            Ok((exchange, _)) => {
                tracing::info!(nodes = begin.participants.len(), "a run begins");
                self.exchange = Some(exchange);
                self.seats = begin
                    .slots_of(context.me.id)
                    .map(|slot| (slot, Seat::default()))
                    .collect();
                self.evaluate_at = self.evaluation_interval(begin.data.train);
                self.begin = Some(begin);
                self.phase = Phase::Training;
                let run = self.run;
                // A guest begins when it has what the others have, and so does who has to get a checkpoint from them.
                let resumes = self.begin.as_ref().is_some_and(|begin| begin.resumed.is_some());
                if !self.is_guest(context) && !resumes {
                    context
                        .myself
                        .send_after(LINKS_LIMIT, move || RunMessage::LinksWaited(run));
                }
                self.tell_live();
                self.publish(context);
            }
            Err(error) => self.fail(format!("the exchange could not be started: {error}"), context, attached),
        }
    }

    pub(super) fn is_guest(&self, context: &Context) -> bool {
        self.begin.as_ref().is_some_and(|begin| begin.is_guest(context.me.id))
    }

    /// Others know of guests that this node does not know.
    fn admit(&mut self, theirs: &Begin, context: &Context) {
        let (Some(begin), Some(exchange)) = (&mut self.begin, &self.exchange) else {
            return;
        };
        if self.phase > Phase::Settling {
            return;
        }
        let mut news = false;
        for guest in theirs.participants.iter().filter(|one| one.guest) {
            if begin.admit(guest.clone()) {
                news = true;
                let _ = exchange.cast(ExchangeMessage::Joined(guest.clone()));
            }
        }
        if news {
            self.tell_live();
            self.publish(context);
        }
    }

    /// Puts workers to work, when links are there or were waited for.
    pub(in crate::node::run) fn seat_workers(&mut self, attached: &Attached) {
        if self.phase != Phase::Training || self.seated.is_some() {
            return;
        }
        self.seated = Some(Instant::now());
        let ready: Vec<WorkerKey> = self.prepared.keys().copied().collect();
        for worker in ready.iter().filter_map(|key| attached.get(key)) {
            self.seat(worker);
        }
        // Workers that came after this node had answered are in time too.
        for worker in attached.values().filter(|worker| !ready.contains(&worker.key)) {
            self.ask(worker);
        }
        if self.stop.is_some() {
            self.stop_workers();
        }
    }

    pub(super) fn seat(&mut self, worker: &WorkerHandle) {
        if self.seat_of(worker.key).is_some() {
            return;
        }
        let vacant = self.seats.iter_mut().find(|(_, seat)| seat.worker.is_none());
        if let (Some((&slot, seat)), Some(exchange)) = (vacant, &self.exchange) {
            seat.take(worker.key);
            let _ = exchange.cast(ExchangeMessage::Seat {
                worker: worker.clone(),
                slot,
                origin: OriginId(rand_u64()),
            });
        }
    }

    /// Whether a node's call for a link would be taken.
    pub(in crate::node::run) fn expects(&self, from: NodeId) -> bool {
        let participant = self.begin.as_ref().and_then(|begin| begin.participant(from));
        self.exchange.is_some() && participant.is_some()
    }

    pub(in crate::node::run) fn link(&self, from: NodeId, stream: Stream) {
        if let Some(exchange) = &self.exchange {
            let _ = exchange.cast(ExchangeMessage::Accepted { from, stream });
        }
    }
}
