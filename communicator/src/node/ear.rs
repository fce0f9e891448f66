//! For tests of single actors: a parent actor that only listens.

use ractor::{Actor, ActorProcessingErr, ActorRef};
use ractor_cluster::RactorMessage;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::link::LinkNotice;
use super::mailbox::notice;
use super::workers::WorkersNotice;

/// Notices that actors under test send to their parent.
#[derive(RactorMessage)]
pub(super) enum Heard {
    Link(LinkNotice),
    Workers(WorkersNotice),
}

notice!(Heard::Link(LinkNotice));
notice!(Heard::Workers(WorkersNotice));

/// Parent actor in a test, which passes every notice to the test.
struct Ear(UnboundedSender<Heard>);

impl Actor for Ear {
    type Msg = Heard;
    type State = ();
    type Arguments = ();

    async fn pre_start(&self, _myself: ActorRef<Heard>, (): ()) -> Result<(), ActorProcessingErr> {
        Ok(())
    }

    async fn handle(&self, _myself: ActorRef<Heard>, message: Heard, (): &mut ()) -> Result<(), ActorProcessingErr> {
        // The receiver is gone when the test is over.
        let _ = self.0.send(message);
        Ok(())
    }
}

/// Starts an actor that can be named as a parent. Returns it with the channel of the notices that it gets.
pub(super) async fn listen() -> (ActorRef<Heard>, UnboundedReceiver<Heard>) {
    let (sender, told) = unbounded_channel();
    let (actor, _) = Actor::spawn(None, Ear(sender), ()).await.unwrap();
    (actor, told)
}
