use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_rustls::rustls::client::ResolvesClientCert;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::sign::CertifiedKey;
use tokio_rustls::rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio_rustls::{TlsConnector, rustls};

use super::{AcceptLimits, Accepted, Acceptor, Credentials, DialError, Plane, Security, dial};

/// Time within which anything that happens at all has happened, on any machine.
const PATIENCE: Duration = Duration::from_secs(30);

fn credentials() -> Credentials {
    let folder = tempfile::tempdir().unwrap();
    Credentials::create(&folder.path().join("cluster.pem")).unwrap()
}

fn security() -> Security {
    Security::Credentials(Arc::new(credentials()))
}

/// Returns the credentials of secure connections.
fn held(security: &Security) -> &Credentials {
    match security {
        Security::Credentials(credentials) => credentials,
        Security::Insecure => panic!("insecure connections have no credentials"),
    }
}

struct Node {
    address: SocketAddr,
    accepted: mpsc::Receiver<Accepted>,
}

impl Node {
    async fn start(security: &Security, limits: AcceptLimits) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, accepted) = mpsc::channel(16);
        tokio::spawn(Acceptor::new(listener, security, limits).unwrap().run(sender));
        Self { address, accepted }
    }

    async fn next(&mut self) -> Accepted {
        timeout(PATIENCE, self.accepted.recv())
            .await
            .expect("no connection was accepted in time")
            .unwrap()
    }

    /// Checks that a member of the cluster still gets in, and that its connection works both ways.
    async fn assert_open(&mut self, security: &Security) {
        for plane in [Plane::Data, Plane::Control] {
            let mut theirs = dial(self.address, plane, security, PATIENCE).await.unwrap();
            let mut ours = self.next().await;
            assert_eq!(ours.plane, plane);
            theirs.write_all(b"ping").await.unwrap();
            let mut bytes = [0; 4];
            ours.stream.read_exact(&mut bytes).await.unwrap();
            assert_eq!(&bytes, b"ping");
            ours.stream.write_all(b"pong").await.unwrap();
            ours.stream.flush().await.unwrap();
            theirs.read_exact(&mut bytes).await.unwrap();
            assert_eq!(&bytes, b"pong");
        }
    }
}

/// Waits until the other side has closed a connection.
async fn assert_closed(stream: &mut (impl AsyncReadExt + Unpin)) {
    let mut rest = Vec::new();
    // A read error is an end, too.
    let _ = timeout(PATIENCE, stream.read_to_end(&mut rest))
        .await
        .expect("the connection stays open");
}

#[tokio::test]
async fn members_meet_on_both_planes() {
    let security = security();
    let mut node = Node::start(&security, AcceptLimits::default()).await;
    node.assert_open(&security).await;
}

#[tokio::test]
async fn other_credentials_are_refused_by_both_sides() {
    let (ours, theirs) = (security(), security());
    let mut node = Node::start(&ours, AcceptLimits::default()).await;
    // The dialling side finds out first.
    let refused = dial(node.address, Plane::Data, &theirs, PATIENCE).await;
    assert!(matches!(refused, Err(DialError::Refused { .. })));
    node.assert_open(&ours).await;
    assert!(node.accepted.try_recv().is_err());
}

#[tokio::test]
async fn who_proves_nothing_is_turned_away() {
    let security = security();
    let mut node = Node::start(&security, AcceptLimits::default()).await;
    // A client that trusts the cluster's certificate but shows none.
    let mut roots = RootCertStore::empty();
    roots.add(held(&security).certificate().clone()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"tau-data/1".to_vec()];
    let stream = TcpStream::connect(node.address).await.unwrap();
    let name = super::credentials::SUBJECT.try_into().unwrap();
    if let Ok(mut stream) = TlsConnector::from(Arc::new(config)).connect(name, stream).await {
        // In TLS 1.3 the handshake is over for the dialling side first; the refusal follows.
        assert_closed(&mut stream).await;
    }
    node.assert_open(&security).await;
}

/// Verifier of an attacker's client, which accepts every server certificate.
#[derive(Debug)]
struct Gullible;

impl rustls::client::danger::ServerCertVerifier for Gullible {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        rustls::crypto::aws_lc_rs::default_provider()
            .signature_verification_algorithms
            .supported_schemes()
    }
}

/// Resolver of an attacker's client, which shows one certificate and signs with the key of another.
#[derive(Debug)]
struct Thief(Arc<CertifiedKey>);

impl ResolvesClientCert for Thief {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0))
    }

    fn has_certs(&self) -> bool {
        true
    }
}

#[tokio::test]
async fn a_node_checks_certificate_and_key_of_who_dials() {
    let (ours, theirs) = (security(), security());
    let mut node = Node::start(&ours, AcceptLimits::default()).await;
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let their_key = provider
        .key_provider
        .load_private_key(held(&theirs).key().clone_key())
        .unwrap();
    // The strangers' own certificate; then the cluster's, which is no secret, with a key that does not belong to it.
    for certificate in [held(&theirs).certificate(), held(&ours).certificate()] {
        let key = CertifiedKey::new(vec![certificate.clone()], Arc::clone(&their_key));
        let mut config = ClientConfig::builder_with_provider(Arc::new(provider.clone()))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Gullible))
            .with_client_cert_resolver(Arc::new(Thief(Arc::new(key))));
        config.alpn_protocols = vec![b"tau-data/1".to_vec()];
        let stream = TcpStream::connect(node.address).await.unwrap();
        let name = super::credentials::SUBJECT.try_into().unwrap();
        if let Ok(mut stream) = TlsConnector::from(Arc::new(config)).connect(name, stream).await {
            assert_closed(&mut stream).await;
        }
        assert!(node.accepted.try_recv().is_err());
    }
    node.assert_open(&ours).await;
}

#[tokio::test]
async fn garbage_and_plaintext_are_turned_away() {
    let security = security();
    let mut node = Node::start(&security, AcceptLimits::default()).await;
    let long = vec![0x16; 100_000];
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 64], &[0xff; 4096], &long] {
        let mut stream = TcpStream::connect(node.address).await.unwrap();
        // The other side may have closed before all is written.
        let _ = stream.write_all(bytes).await;
        assert_closed(&mut stream).await;
    }
    node.assert_open(&security).await;
}

#[tokio::test]
async fn a_handshake_that_takes_too_long_is_ended() {
    let security = security();
    let limits = AcceptLimits {
        handshake: Duration::from_millis(200),
        ..AcceptLimits::default()
    };
    let node = Node::start(&security, limits).await;
    let mut silent = TcpStream::connect(node.address).await.unwrap();
    assert_closed(&mut silent).await;
    // A handshake that comes byte by byte fares no better: the time limit is for all of it.
    let mut slow = TcpStream::connect(node.address).await.unwrap();
    slow.write_all(&[0x16, 0x03, 0x01, 0x3f, 0xff, 0x01]).await.unwrap();
    let drip = async {
        let mut byte = [0];
        let pause = Duration::from_millis(20);
        while slow.write_all(&[0]).await.is_ok() {
            if let Ok(Ok(0) | Err(_)) = timeout(pause, slow.read(&mut byte)).await {
                return;
            }
        }
    };
    timeout(PATIENCE, drip)
        .await
        .expect("single bytes must not extend the deadline of the handshake");
}

/// Returns all bytes that a member sends to a node, as a process between the two hears them.
async fn overheard(node: &mut Node, security: &Security) -> Vec<u8> {
    let between = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (there, here) = (node.address, between.local_addr().unwrap());
    let listening = tokio::spawn(async move {
        let (member, _) = between.accept().await.unwrap();
        let (mut from_member, mut to_member) = member.into_split();
        let (mut from_node, mut to_node) = TcpStream::connect(there).await.unwrap().into_split();
        tokio::spawn(async move { tokio::io::copy(&mut from_node, &mut to_member).await });
        let (mut heard, mut piece) = (Vec::new(), [0; 1024]);
        while let Ok(length @ 1..) = from_member.read(&mut piece).await {
            heard.extend_from_slice(&piece[..length]);
            to_node.write_all(&piece[..length]).await.unwrap();
        }
        heard
    });
    let mut theirs = dial(here, Plane::Data, security, PATIENCE).await.unwrap();
    let mut ours = node.next().await;
    theirs.write_all(b"ping").await.unwrap();
    ours.stream.read_exact(&mut [0; 4]).await.unwrap();
    drop((theirs, ours));
    timeout(PATIENCE, listening).await.unwrap().unwrap()
}

#[tokio::test]
async fn what_was_overheard_opens_no_door() {
    let security = security();
    let mut node = Node::start(&security, AcceptLimits::default()).await;
    let heard = overheard(&mut node, &security).await;
    assert!(heard.len() > 500, "a handshake is longer than {} bytes", heard.len());
    let mut stranger = TcpStream::connect(node.address).await.unwrap();
    // The node may have closed before all is written.
    let _ = stranger.write_all(&heard).await;
    assert_closed(&mut stranger).await;
    assert!(node.accepted.try_recv().is_err());
    node.assert_open(&security).await;
}

#[tokio::test]
async fn a_flood_displaces_itself_and_members_get_through() {
    let security = security();
    // No handshake times out before the test does.
    let limits = AcceptLimits {
        half_open_max: 8,
        handshake: 10 * PATIENCE,
    };
    let mut node = Node::start(&security, limits).await;
    let mut flood = Vec::new();
    for _ in 0..100 {
        flood.push(TcpStream::connect(node.address).await.unwrap());
    }
    node.assert_open(&security).await;
    // All but the newest few were closed, long before they would have timed out.
    for stream in &mut flood[..80] {
        assert_closed(stream).await;
    }
}

/// Dials a node over a slow network, and returns true if that succeeds.
async fn dial_from_afar(node: SocketAddr, security: &Security, delay: Duration) -> bool {
    let near = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = near.local_addr().unwrap();
    let relaying = tokio::spawn(async move {
        let (member, _) = near.accept().await.unwrap();
        // The member has another address than the flood.
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.2:0".parse().unwrap()).unwrap();
        let far = socket.connect(node).await.unwrap();
        let (from_member, to_member) = member.into_split();
        let (from_node, to_node) = far.into_split();
        tokio::join!(late(from_member, to_node, delay), late(from_node, to_member, delay));
    });
    let dialled = dial(address, Plane::Data, security, PATIENCE).await;
    let in_time = match dialled {
        Ok(mut stream) => {
            // The last message of a handshake is the node's: it shows at the first byte.
            stream.write_all(b"ping").await.is_ok() && stream.read_exact(&mut [0; 4]).await.is_ok()
        }
        Err(_) => false,
    };
    relaying.abort();
    in_time
}

/// Passes bytes from one stream to another with a delay, like a slow network.
async fn late(mut from: impl AsyncReadExt + Unpin, mut to: impl AsyncWriteExt + Unpin, delay: Duration) {
    let mut piece = vec![0; 1 << 14];
    while let Ok(length @ 1..) = from.read(&mut piece).await {
        tokio::time::sleep(delay).await;
        if to.write_all(&piece[..length]).await.is_err() {
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_from_one_address_keeps_no_member_with_a_long_way_out() {
    const DELAY: Duration = Duration::from_millis(100);
    let security = security();
    let limits = AcceptLimits {
        half_open_max: 32,
        handshake: PATIENCE,
    };
    let mut node = Node::start(&security, limits).await;
    let address = node.address;
    let answering = tokio::spawn(async move {
        while let Some(mut accepted) = node.accepted.recv().await {
            tokio::spawn(async move {
                let mut message = [0; 4];
                if accepted.stream.read_exact(&mut message).await.is_ok() {
                    let _ = accepted.stream.write_all(b"pong").await;
                    let _ = accepted.stream.flush().await;
                }
            });
        }
    });
    // Far more connections than a whole table come within a member's handshake, all of the time.
    let flood = tokio::spawn(async move {
        let mut held = std::collections::VecDeque::new();
        loop {
            held.extend(TcpStream::connect(address).await);
            if held.len() > 256 {
                held.pop_front();
            }
        }
    });
    for attempt in 0..3 {
        let got_in = timeout(PATIENCE, dial_from_afar(address, &security, DELAY)).await;
        assert_eq!(got_in, Ok(true), "attempt {attempt}");
    }
    assert!(!flood.is_finished());
    flood.abort();
    answering.abort();
}

#[test]
fn strangers_get_a_quarter_of_few_descriptors() {
    let half_open = |descriptors| AcceptLimits::within(descriptors).half_open_max;
    assert_eq!([0, 64, 1024, 1 << 20].map(half_open), [1, 16, 256, 256]);
}

#[tokio::test]
async fn nobody_at_an_address_is_said_so() {
    let security = security();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let error = dial(address, Plane::Control, &security, PATIENCE).await.unwrap_err();
    assert!(matches!(error, DialError::Unreachable { .. }), "{error}");
    // A process that accepts the connection and says nothing.
    let mute = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = mute.local_addr().unwrap();
    let error = dial(address, Plane::Control, &security, Duration::from_millis(100))
        .await
        .unwrap_err();
    assert!(matches!(error, DialError::TimedOut { .. }), "{error}");
}

#[tokio::test]
async fn plain_text_stays_within_the_machine() {
    let mut node = Node::start(&Security::Insecure, AcceptLimits::default()).await;
    node.assert_open(&Security::Insecure).await;
    let elsewhere = "192.0.2.1:7700".parse().unwrap();
    let refused = dial(elsewhere, Plane::Data, &Security::Insecure, PATIENCE).await;
    assert!(matches!(refused, Err(DialError::NotLoopback(_))));
    // A TLS hello names no plane in plain text, and gets no answer.
    let refused = dial(node.address, Plane::Data, &security(), PATIENCE).await;
    assert!(refused.is_err());
    node.assert_open(&Security::Insecure).await;
}
