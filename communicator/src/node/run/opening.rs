//! Starts the exchange of a run.

use protocol::ids::RunId;
use protocol::reasons::Excluded;
use protocol::wire::run_plan::RunPlan;
use ractor::{Actor, ActorRef};

use super::recording::pids;
use super::{RunMessage, RunState, checkpoint_search};
use crate::node::exchange::{ExchangeActor, ExchangeArguments, ExchangeMessage};
use crate::run::RunEvent;
use crate::run_exchange::RunExchangeArguments;

impl RunState {
    /// Starts the exchange of a run, from this node's checkpoint if the run resumes from one.
    pub(super) fn open(&mut self, run: RunId, plan: RunPlan) {
        let Some((_, ledger)) = self.ledger.take_if(|(name, _)| *name == run) else {
            return self.event(RunEvent::Opened {
                run,
                opened: Err(Excluded::NoLedger),
            });
        };
        let (me, security, timing, files, myself) = (
            self.me.clone(),
            self.security.clone(),
            self.timing,
            self.files.clone(),
            self.myself.clone(),
        );
        let (dir, keeps_runs) = (files.dir().to_path_buf(), self.keeps_runs);
        tokio::spawn(async move {
            let node = me.id;
            let restored = tokio::task::spawn_blocking(move || {
                let ledger = ledger.at_beginning(&plan, node);
                let (ledger, states) = match plan.resumed_by(node) {
                    Some(&resumed) => checkpoint_search::restore(&dir, run, resumed, ledger),
                    None => (ledger, Vec::new()),
                };
                (plan, ledger, states)
            });
            let opened = match restored.await {
                Ok((plan, ledger, states)) => {
                    let core = RunExchangeArguments {
                        me: me.id,
                        run,
                        plan,
                        ledger,
                        states,
                        files,
                        keeps_runs,
                        clocks: timing.clocks,
                    };
                    let arguments = ExchangeArguments {
                        core,
                        version: me.version.to_string(),
                        security,
                        timing,
                        parent: myself.get_derived(),
                    };
                    let started = Actor::spawn_linked(None, ExchangeActor, arguments, myself.get_cell()).await;
                    started.map(|(exchange, _)| exchange).map_err(|error| error.to_string())
                }
                Err(error) => Err(error.to_string()),
            };
            let opened = opened.map_err(|error: String| Excluded::ExchangeNotStarted(error.into()));
            let _ = myself.cast(RunMessage::Opened { run, opened });
        });
    }

    pub(super) fn opened(&mut self, run: RunId, opened: Result<ActorRef<ExchangeMessage>, Excluded>) {
        let opened = opened.map(|exchange| {
            if self.core.is_opening(run) {
                self.exchange = Some((run, exchange));
                self.usage.begin(pids(&self.workers));
            } else {
                // The run has ended meanwhile.
                exchange.stop(None);
            }
        });
        self.event(RunEvent::Opened { run, opened });
    }
}
