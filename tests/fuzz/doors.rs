//! Handshake targets of the fuzzer: strangers that connect to a node, and strangers that answer when a node dials.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use communicator::transport::{
    AcceptLimits, Accepted, Acceptor, Credentials, DialError, Plane, Security, Stream, dial as dial_node,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::engine::Check;

/// Time limit of a connection, longer than any handshake takes.
const PATIENCE: Duration = Duration::from_secs(30);
/// Number of strangers after which a member connects, to check that the node still accepts one.
const STRANGERS: u32 = 25;
/// First byte of a TLS record that continues the handshake; a record that ends the handshake is an alert.
const HANDSHAKE: u8 = 0x16;

/// A node's listening socket, with its acceptor on this thread.
pub(crate) struct Door {
    pub(crate) runtime: Runtime,
    pub(crate) address: SocketAddr,
    pub(crate) security: Security,
    accepted: mpsc::Receiver<Accepted>,
    strangers: u32,
}

impl Door {
    pub(crate) fn open() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let credentials = Credentials::create(&folder.path().join("cluster.pem")).unwrap();
        let security = Security::Credentials(Arc::new(credentials));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, accepted) = mpsc::channel(4);
        let acceptor = Acceptor::new(listener, &security, AcceptLimits::default()).unwrap();
        runtime.spawn(acceptor.run(sender));
        Self {
            runtime,
            address,
            security,
            accepted,
            strangers: 0,
        }
    }

    /// Connects as a stranger, sends these bytes, and returns the node's answer.
    pub(crate) fn knock(&mut self, bytes: &[u8]) -> Vec<u8> {
        let answer = self.runtime.block_on(async {
            let mut stream = TcpStream::connect(self.address).await.unwrap();
            // The node may refuse the stranger before all bytes are written.
            let _ = stream.write_all(bytes).await;
            let _ = stream.shutdown().await;
            let mut answer = Vec::new();
            // A reset ends the connection too.
            let read = timeout(PATIENCE, stream.read_to_end(&mut answer)).await;
            let _ = read.expect("a stranger's connection stays open");
            answer
        });
        assert!(self.accepted.try_recv().is_err(), "a stranger was let in");
        self.strangers += 1;
        if self.strangers.is_multiple_of(STRANGERS) {
            self.let_members_in();
        }
        answer
    }

    /// Checks that a member can still connect and use its connection.
    fn let_members_in(&mut self) {
        let Self {
            runtime,
            address,
            security,
            accepted,
            ..
        } = self;
        runtime.block_on(async {
            for plane in [Plane::Control, Plane::Data] {
                let mut theirs = dial_node(*address, plane, security, PATIENCE).await.unwrap();
                let ours = timeout(PATIENCE, accepted.recv()).await.expect("a member waits");
                let mut ours = ours.unwrap();
                assert_eq!(ours.plane, plane);
                theirs.write_all(b"ping").await.unwrap();
                theirs.flush().await.unwrap();
                let mut bytes = [0; 4];
                ours.stream.read_exact(&mut bytes).await.unwrap();
                assert_eq!(&bytes, b"ping");
            }
        });
    }
}

/// A listener without credentials that members dial by mistake.
struct Stranger {
    runtime: Runtime,
    listener: TcpListener,
    security: Security,
}

impl Stranger {
    fn open() -> Self {
        let Door { runtime, security, .. } = Door::open();
        Self {
            listener: runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap(),
            runtime,
            security,
        }
    }

    /// Returns the result of a member's attempt to dial a stranger that answers with these bytes.
    fn answer(&self, bytes: &[u8]) -> Result<Stream, DialError> {
        self.runtime.block_on(async {
            let address = self.listener.local_addr().unwrap();
            let answering = async {
                let (mut stream, _) = self.listener.accept().await.unwrap();
                let _ = stream.write_all(bytes).await;
                let _ = stream.shutdown().await;
                // The member's bytes are not read, but the connection stays open until the member has decided.
                std::future::pending::<()>().await;
            };
            tokio::select! {
                dialled = dial_node(address, Plane::Data, &self.security, PATIENCE) => dialled,
                () = answering => unreachable!("it waits for ever"),
            }
        })
    }
}

thread_local! {
    static DOOR: RefCell<Door> = RefCell::new(Door::open());
    static STRANGER: Stranger = Stranger::open();
}

/// Sends bytes to a listening node. Accepted means that the node answered with a handshake record: without the key no
/// stranger gets further.
pub(crate) fn accept(bytes: &[u8]) -> Option<Check> {
    let answer = DOOR.with_borrow_mut(|door| door.knock(bytes));
    (answer.first() == Some(&HANDSHAKE)).then(|| Box::new(|| {}) as Check)
}

/// Answers a dialling node with these bytes. No such stranger is taken for a member, and dialling ends at once.
pub(crate) fn dial(bytes: &[u8]) -> Option<Check> {
    let dialled = STRANGER.with(|stranger| stranger.answer(bytes));
    assert!(
        matches!(dialled, Err(DialError::Refused { .. } | DialError::Ended { .. })),
        "{dialled:?}"
    );
    None
}
