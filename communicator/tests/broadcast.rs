//! Exchanges joined by real links, with TLS over loopback and connections that are cut in the middle: all replicas end
//! with the same weights.
//!
//! A node here is a few tasks without the product's actors: the exchange, an accept loop, and one task for reading and
//! one for writing of every link.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use communicator::exchange::{Effect, Event, Exchange, Limits};
use communicator::ledger::Ledger;
use communicator::link::{read_message, write_message};
use communicator::transport::{AcceptLimits, Acceptor, Credentials, Plane, Security, dial};
use protocol::ids::{NodeId, OriginId, RunId};
use protocol::log::batch::{Header, OriginStatus, Payload};
use protocol::rng::CounterRng;
use protocol::weights::changes::change;
use protocol::weights::digest::Digest;
use protocol::weights::lattice::Tau;
use protocol::wire::link::{Message, OriginInfo};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufWriter, split};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;

const RUN: RunId = RunId(1);
const WEIGHTS: usize = 1000;
const NODES: u64 = 3;
const BATCHES: u64 = 400;
const PATIENCE: Duration = Duration::from_mins(1);
const TICK: Duration = Duration::from_millis(20);

/// A node's progress: its applied batches, its digest and the number of links it has cut.
#[derive(Clone, Copy, Default)]
struct State {
    applied: u64,
    digest: Digest,
    cuts: usize,
}

/// A message to the task that runs a node's exchange.
enum Told {
    Event(Event),
    Link {
        peer: NodeId,
        writer: mpsc::Sender<Message>,
        tasks: [AbortHandle; 2],
    },
    Cut(NodeId),
}

/// Starts the reading and the writing task of a link whose ends know each other.
fn start_link(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    peer: NodeId,
    node: &mpsc::Sender<Told>,
) -> Told {
    let (mut reader, writer) = split(stream);
    let mut writer = BufWriter::new(writer);
    // Room for a full window of every origin, and more.
    let (sender, mut outbox) = mpsc::channel::<Message>(256);
    let inbox = node.clone();
    let reading = tokio::spawn(async move {
        while let Ok(Some((message, _))) = read_message(&mut reader).await {
            let event = Event::Received { from: peer, message };
            if inbox.send(Told::Event(event)).await.is_err() {
                return;
            }
        }
        let _ = inbox.send(Told::Cut(peer)).await;
    });
    let writing = tokio::spawn(async move {
        while let Some(message) = outbox.recv().await {
            let sent = write_message(&mut writer, &message).await;
            if sent.is_err() || writer.flush().await.is_err() {
                return;
            }
        }
    });
    Told::Link {
        peer,
        writer: sender,
        tasks: [reading.abort_handle(), writing.abort_handle()],
    }
}

/// Accepts connections and makes links of them. The first bytes of each connection are the peer's name as a number.
async fn accept_links(listener: TcpListener, security: Security, node: mpsc::Sender<Told>) {
    let (sender, mut accepted) = mpsc::channel(16);
    let acceptor = Acceptor::new(listener, &security, AcceptLimits::default()).unwrap();
    tokio::spawn(acceptor.run(sender));
    while let Some(mut connection) = accepted.recv().await {
        assert_eq!(connection.plane, Plane::Data);
        if let Ok(peer) = connection.stream.read_u64().await {
            let link = start_link(connection.stream, NodeId(peer), &node);
            let _ = node.send(link).await;
        }
    }
}

async fn dial_link(me: NodeId, peer: NodeId, address: SocketAddr, security: Security, node: mpsc::Sender<Told>) {
    let mut stream = dial(address, Plane::Data, &security, PATIENCE).await.unwrap();
    stream.write_u64(me.0).await.unwrap();
    stream.flush().await.unwrap();
    let link = start_link(stream, peer, &node);
    let _ = node.send(link).await;
}

struct Node {
    me: NodeId,
    exchange: Exchange,
    links: HashMap<NodeId, (mpsc::Sender<Message>, [AbortHandle; 2])>,
    addresses: HashMap<NodeId, SocketAddr>,
    security: Security,
    itself: mpsc::Sender<Told>,
    random: CounterRng,
    sequence: u64,
    cuts: usize,
}

impl Node {
    fn handle(&mut self, event: Event) {
        let mut effects = Vec::new();
        self.exchange.handle(event, &mut effects);
        for effect in effects {
            match effect {
                Effect::Send { to, message } => {
                    // A link whose queue is full is too slow: it is cut, and the next one resumes from the peer's
                    // frontier.
                    if self
                        .links
                        .get(&to)
                        .is_some_and(|(writer, _)| writer.try_send(message).is_err())
                    {
                        self.cut(to);
                    }
                }
                Effect::Reset(peer) => self.cut(peer),
                Effect::Deliver { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }

    fn cut(&mut self, peer: NodeId) {
        if let Some((_, tasks)) = self.links.remove(&peer) {
            tasks.iter().for_each(AbortHandle::abort);
            self.handle(Event::LinkDown(peer));
            self.redial(peer);
        }
    }

    /// Dials a peer again. Of two nodes, the one with the lower name dials.
    fn redial(&self, peer: NodeId) {
        if self.me < peer {
            let (me, address) = (self.me, self.addresses[&peer]);
            tokio::spawn(dial_link(me, peer, address, self.security.clone(), self.itself.clone()));
        }
    }

    fn train(&mut self) {
        self.sequence += 1;
        let changes: Vec<u32> = (0..WEIGHTS as u32)
            .filter(|_| self.random.below(50) == 0)
            .map(|index| change(index, index % 3 == 0))
            .collect();
        let tau = Tau::from_steps(1 + self.random.below(9) as u32).unwrap();
        let payload = Payload::Steps { tau, changes };
        let header = Header {
            run: RUN,
            origin: OriginId(self.me.0),
            sequence: self.sequence,
            seen: 0,
            digest: payload.digest(),
            cursors: Vec::new(),
            samples: 1,
            loss: 0.0,
            status: OriginStatus::default(),
        };
        let mut frame = Vec::new();
        header.encode(&payload, &mut frame).unwrap();
        self.handle(Event::Local(frame.into()));
    }

    async fn run(mut self, mut told: mpsc::Receiver<Told>, done: watch::Sender<State>) {
        let mut ticks = tokio::time::interval(TICK);
        let peers: Vec<NodeId> = self.addresses.keys().copied().filter(|&peer| peer != self.me).collect();
        for &peer in &peers {
            self.redial(peer);
        }
        // Training begins when all links are up, so that there are links to cut.
        let mut started = false;
        loop {
            started |= self.links.len() == peers.len();
            tokio::select! {
                Some(next) = told.recv() => match next {
                    Told::Event(event) => self.handle(event),
                    Told::Cut(peer) => self.cut(peer),
                    Told::Link { peer, writer, tasks } => {
                        self.links.insert(peer, (writer, tasks));
                        self.handle(Event::LinkUp(peer));
                    }
                },
                _ = ticks.tick() => self.handle(Event::Tick),
                () = tokio::task::yield_now(), if started && self.sequence < BATCHES && !self.exchange.should_pause() => {
                    self.train();
                    // Sometimes a link is cut.
                    if self.random.below(40) == 0 {
                        let peer = peers[self.random.below(peers.len() as u64) as usize];
                        self.cuts += usize::from(self.links.contains_key(&peer));
                        self.cut(peer);
                    }
                }
            }
            let ledger = self.exchange.ledger();
            let applied = ledger.frontier().iter().map(|(_, sequence)| sequence).sum();
            let _ = done.send(State {
                applied,
                digest: ledger.digest(),
                cuts: self.cuts,
            });
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_agree_over_real_links_that_break() {
    let folder = tempfile::tempdir().unwrap();
    let credentials = Credentials::create(&folder.path().join("cluster.pem")).unwrap();
    let security = Security::Credentials(Arc::new(credentials));
    let ids: Vec<NodeId> = (1..=NODES).map(NodeId).collect();
    let mut addresses = HashMap::new();
    let mut listeners = Vec::new();
    for &id in &ids {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        addresses.insert(id, listener.local_addr().unwrap());
        listeners.push(listener);
    }
    let mut results = Vec::new();
    for (&me, listener) in ids.iter().zip(listeners) {
        let mut exchange = Exchange::new(me, Ledger::new(RUN, vec![0; WEIGHTS]), Limits::for_weights(WEIGHTS));
        for &id in &ids {
            exchange.handle(Event::Founder(id), &mut Vec::new());
            exchange.handle(
                Event::Origin(OriginInfo {
                    origin: OriginId(id.0),
                    node: id,
                    slot: id.0 as u32 - 1,
                    ended: None,
                }),
                &mut Vec::new(),
            );
        }
        let (itself, told) = mpsc::channel(256);
        tokio::spawn(accept_links(listener, security.clone(), itself.clone()));
        let node = Node {
            me,
            exchange,
            links: HashMap::new(),
            addresses: addresses.clone(),
            security: security.clone(),
            itself,
            random: CounterRng::new(me.0, 0),
            sequence: 0,
            cuts: 0,
        };
        let (sender, result) = watch::channel(State::default());
        tokio::spawn(node.run(told, sender));
        results.push(result);
    }
    let mut digests = Vec::new();
    for result in &mut results {
        let all = result.wait_for(|state| state.applied == NODES * BATCHES);
        let found = tokio::time::timeout(PATIENCE, all)
            .await
            .expect("batches are missing")
            .unwrap();
        assert!(found.cuts > 0, "no link was ever cut");
        digests.push(found.digest);
    }
    assert!(digests.windows(2).all(|pair| pair[0] == pair[1]), "{digests:?}");
}
