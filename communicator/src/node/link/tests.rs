//! Tests of the link's actor over real sockets, with short times.

use std::net::SocketAddr;

use protocol::ids::{NodeId, RunId};
use protocol::wire::run_plan::Participant;
use tokio::net::TcpListener;
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::time::timeout;

use super::*;
use crate::link::{read_hello, write_hello};
use crate::node::ear::{Heard, listen};
use crate::timing::{LinkTimes, Timing};
use crate::transport::{AcceptLimits, Accepted, Acceptor, Security};

const RUN: RunId = RunId(3);
const PATIENCE: Duration = Duration::from_secs(30);

/// Opens the peer's side: a port on which the data plane is spoken.
async fn peer() -> (SocketAddr, mpsc::Receiver<Accepted>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let acceptor = Acceptor::new(listener, &Security::Insecure, AcceptLimits::default()).unwrap();
    let (sender, accepted) = mpsc::channel(4);
    tokio::spawn(acceptor.run(sender));
    (address, accepted)
}

/// Answers a call for a link as the peer with this id.
async fn answer(accepted: &mut mpsc::Receiver<Accepted>, name: NodeId) -> (Hello, Stream) {
    let mut stream = timeout(PATIENCE, accepted.recv()).await.unwrap().unwrap().stream;
    let hello = read_hello(&mut stream).await.unwrap();
    write_hello(&mut stream, &Hello::Accepted { from: name }).await.unwrap();
    (hello, stream)
}

/// Starts the link of node `me` to node 5 at an address.
async fn link(me: u64, address: SocketAddr, times: LinkTimes) -> (ActorRef<LinkMessage>, UnboundedReceiver<Heard>) {
    let (parent, heard) = listen().await;
    let arguments = LinkArguments {
        me: NodeId(me),
        version: "1".into(),
        run: RUN,
        peer: Participant {
            node: NodeId(5),
            name: "n5".into(),
            address,
            workers: 1,
            guest: false,
            lacks_first_weights: false,
            takes: None,
            life: 0,
        },
        security: Security::Insecure,
        times,
        traffic: Arc::default(),
        parent: parent.get_derived(),
    };
    (Actor::spawn(None, LinkActor, arguments).await.unwrap().0, heard)
}

async fn next(heard: &mut UnboundedReceiver<Heard>) -> LinkNotice {
    match timeout(PATIENCE, heard.recv()).await.unwrap() {
        Some(Heard::Link(notice)) => notice,
        _ => panic!("expected a notice from the link"),
    }
}

#[tokio::test]
async fn a_link_that_is_cut_is_made_again_even_by_the_node_that_should_wait() {
    let (address, mut accepted) = peer().await;
    // The node with the higher id leaves dialling to the other side, which never dials here.
    let (actor, mut heard) = link(9, address, Timing::DEFAULT.faster(100).link).await;
    for expected in 1..=3 {
        let (hello, stream) = answer(&mut accepted, NodeId(5)).await;
        assert!(matches!(
            hello,
            Hello::Link {
                run: RUN,
                from: NodeId(9),
                to: NodeId(5),
                ..
            }
        ));
        let LinkNotice::Up { generation, .. } = next(&mut heard).await else {
            panic!("expected the link to come up");
        };
        assert_eq!(generation, expected);
        // The peer closes the connection, or the exchange wants another one.
        if expected == 1 {
            drop(stream);
        } else {
            actor.cast(LinkMessage::Cut).unwrap();
        }
        assert!(matches!(next(&mut heard).await, LinkNotice::Down { generation, .. } if generation == expected));
    }
    actor.stop_and_wait(None, None).await.unwrap();
}

#[tokio::test]
async fn a_call_that_another_node_answers_makes_no_link() {
    let (address, mut accepted) = peer().await;
    let (actor, mut heard) = link(1, address, Timing::DEFAULT.faster(100).link).await;
    let _stranger = answer(&mut accepted, NodeId(6)).await;
    // The next attempt comes after a pause, and the right peer answers it.
    let _peer = answer(&mut accepted, NodeId(5)).await;
    assert!(matches!(next(&mut heard).await, LinkNotice::Up { generation: 1, .. }));
    actor.stop_and_wait(None, None).await.unwrap();
}
