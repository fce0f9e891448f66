//! For tests of single actors: a parent that only listens.

use ractor::{Actor, ActorProcessingErr, ActorRef};
use ractor_cluster::RactorMessage;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::link::LinkNotice;
use super::mailbox::notice;
use super::workers::WorkersNotice;

/// What children tell their parents.
#[derive(RactorMessage)]
pub(super) enum Heard {
    Link(LinkNotice),
    Workers(WorkersNotice),
}

notice!(Heard::Link(LinkNotice));
notice!(Heard::Workers(WorkersNotice));

/// Passes everything that it is told to the test.
struct Ear(UnboundedSender<Heard>);

impl Actor for Ear {
    type Msg = Heard;
    type State = ();
    type Arguments = ();

    async fn pre_start(&self, _myself: ActorRef<Heard>, (): ()) -> Result<(), ActorProcessingErr> {
        Ok(())
    }

    async fn handle(&self, _myself: ActorRef<Heard>, message: Heard, (): &mut ()) -> Result<(), ActorProcessingErr> {
        // A test that is over hears nothing more.
        let _ = self.0.send(message);
        Ok(())
    }
}

/// An actor that can be named as a parent, and what it is told.
pub(super) async fn listen() -> (ActorRef<Heard>, UnboundedReceiver<Heard>) {
    let (sender, told) = unbounded_channel();
    let (actor, _) = Actor::spawn(None, Ear(sender), ()).await.unwrap();
    (actor, told)
}
