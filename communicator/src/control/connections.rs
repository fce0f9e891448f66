//! The connections of the control plane: a pure core, told what happens on them and what time it is.
//!
//! A connection has a proven name. It gets a time to become a session and another to say something, and is ended when
//! its peer sends what no honest process sends. A process that was banned is kept out for a while.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::identity::VerifiedPeer;
use super::pump::EndedBy;
use super::session_hello::{SessionHello, Token};
use super::session_stream::SessionStream;
use crate::timing::ControlTimes;

/// Maximum number of clients that are connected to this process at a time.
const CLIENTS_MAX: usize = 256;
/// Maximum number of connections with nodes at a time. A cluster has at most half as many nodes; for a moment two
/// connections may be open with one node.
const NODES_MAX: usize = 2048;
/// Maximum number of unanswered requests of one process. Honest processes have one at a time, or a few.
const QUESTIONS_MAX: usize = 64;
/// Number of protocol violations for which a process is banned.
const LIES_MAX: u32 = 3;
/// Maximum number of banned processes that are remembered, so that they stay kept out.
const BANNED_MAX: usize = 1024;
/// Maximum number of bytes of replies in flight to one process: queued, and not yet written to the network.
const UNDER_WAY_MAX: u64 = 2 << 20;
/// Maximum number of bytes of replies in flight to all processes together.
const ALL_UNDER_WAY_MAX: u64 = 32 << 20;

/// Sender of a control-plane message: its connection, its proven name and its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sender {
    /// Number of the connection on which the message came.
    pub(super) number: u64,
    /// Name that the sender has proven with its key.
    pub(super) peer: VerifiedPeer,
    pub(super) address: SocketAddr,
}

/// The way for messages to another process: its connection, and the token that it asks for.
#[derive(Clone, Debug)]
pub(super) struct SessionPath {
    /// Token that messages to the process must carry.
    pub(super) token: Token,
    pub(super) session_stream: Arc<SessionStream>,
}

/// Reason for which this process refuses or ends a connection, for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The peer sent what no honest process sends, and is banned.
    #[error("the peer sent invalid messages less than a minute ago and is still banned")]
    BannedSender,
    /// No further connection is admitted: the maximum number of nodes or clients is connected.
    #[error("the limit of open connections for peers of this kind (nodes or clients) is reached")]
    Full,
    /// The connection leads back to this process itself.
    #[error("the connection leads back to this process itself")]
    Oneself,
    /// A connection is ended because it did not become a session in time.
    #[error("the peer opened no session on its connection in time")]
    NotReady,
    /// A connection is ended because its peer has been silent for too long.
    #[error("the peer has been silent for too long")]
    Silent,
    /// A connection is ended because its peer sends requests and does not read the replies.
    #[error("the peer has too many unanswered requests, or does not read the replies")]
    Clogged,
    /// A request or reply is refused because its connection is closed already.
    #[error("the connection to the peer is already closed")]
    Gone,
}

#[derive(Debug)]
struct Connection {
    peer: VerifiedPeer,
    address: SocketAddr,
    hello: SessionHello,
    session_stream: Arc<SessionStream>,
    session: Option<u64>,
    ready: bool,
    /// Time at which the peer was last heard on the connection; before that, the time at which the connection was
    /// opened.
    heard: Duration,
    /// Number of requests of the peer that this process has not answered yet.
    questions: usize,
    violations: u32,
    /// Name for people of the node at the other end, as its first beat (periodic state message) gives it.
    name: Option<String>,
}

impl Connection {
    fn sender(&self, number: u64) -> Sender {
        Sender {
            number,
            peer: self.peer,
            address: self.address,
        }
    }
}

/// All connections of this process on the control plane.
#[derive(Debug)]
pub(super) struct Connections {
    me: VerifiedPeer,
    times: ControlTimes,
    next: u64,
    open: BTreeMap<u64, Connection>,
    tokens: HashMap<Token, u64>,
    sessions: HashMap<u64, u64>,
    /// Processes that were banned, and when.
    banned: Vec<(VerifiedPeer, Duration)>,
    /// Sessions whose connections the peer has ended, until the end of the session itself is reported.
    broken: HashSet<u64>,
}

impl Connections {
    pub(super) fn new(me: VerifiedPeer, times: ControlTimes) -> Self {
        Self {
            me,
            times,
            next: 0,
            open: BTreeMap::new(),
            tokens: HashMap::new(),
            sessions: HashMap::new(),
            banned: Vec::new(),
            broken: HashSet::new(),
        }
    }

    /// Adds a connection whose other end has proven its name. Returns the connection's number and session stream.
    pub(super) fn admit(
        &mut self,
        hello: SessionHello,
        address: SocketAddr,
        now: Duration,
    ) -> Result<(u64, Arc<SessionStream>), Refusal> {
        let peer = hello.peer;
        if peer == self.me {
            return Err(Refusal::Oneself);
        }
        self.banned
            .retain(|(_, since)| now.saturating_sub(*since) < self.times.banned_for);
        if self.banned.iter().any(|(banned, _)| *banned == peer) {
            return Err(Refusal::BannedSender);
        }
        let is_node = peer.node().is_some();
        let alike = |one: &&Connection| one.peer.node().is_some() == is_node;
        let max = if is_node { NODES_MAX } else { CLIENTS_MAX };
        if self.open.values().filter(alike).count() >= max {
            return Err(Refusal::Full);
        }
        let number = self.next;
        self.next += 1;
        let session_stream = Arc::new(SessionStream::default());
        self.tokens.insert(hello.ours, number);
        let connection = Connection {
            peer,
            address,
            hello,
            session_stream: Arc::clone(&session_stream),
            session: None,
            ready: false,
            heard: now,
            questions: 0,
            violations: 0,
            name: None,
        };
        self.open.insert(number, connection);
        Ok((number, session_stream))
    }

    /// Records that a session was opened on a connection. Returns false if the connection is gone.
    pub(super) fn opened(&mut self, session: u64, number: u64) -> bool {
        let Some(connection) = self.open.get_mut(&number) else {
            return false;
        };
        connection.session = Some(session);
        self.sessions.insert(session, number);
        true
    }

    /// Records that the session with this number is ready for messages. Returns the name of its peer.
    pub(super) fn ready(&mut self, session: u64, now: Duration) -> Option<VerifiedPeer> {
        let connection = self.open.get_mut(self.sessions.get(&session)?)?;
        connection.ready = true;
        connection.heard = now;
        Some(connection.peer)
    }

    /// Returns the session on a connection, once it is ready.
    pub(super) fn session_on(&self, number: u64) -> Option<u64> {
        self.open.get(&number).filter(|connection| connection.ready)?.session
    }

    /// Removes a connection that one of its sides has ended.
    pub(super) fn gone(&mut self, number: u64, by: EndedBy) {
        if let Some(connection) = self.open.remove(&number) {
            self.tokens.remove(&connection.hello.ours);
            if let Some(session) = connection.session {
                self.sessions.remove(&session);
                if by == EndedBy::VerifiedPeer {
                    self.broken.insert(session);
                }
            }
        }
    }

    /// Removes a session that is gone. Returns the side that ended its connection.
    pub(super) fn session_gone(&mut self, session: u64) -> EndedBy {
        if self.broken.remove(&session) {
            EndedBy::VerifiedPeer
        } else {
            EndedBy::Oneself
        }
    }

    /// Ends the connection of a session.
    pub(super) fn close(&self, session: u64) {
        if let Some(connection) = self.of_session(session) {
            connection.session_stream.close();
        }
    }

    fn of_session(&self, session: u64) -> Option<&Connection> {
        self.open.get(self.sessions.get(&session)?)
    }

    /// Returns the connection and the token for messages to the other end of a session.
    pub(super) fn path(&self, session: u64) -> Option<SessionPath> {
        let connection = self.of_session(session)?;
        Some(SessionPath {
            token: connection.hello.theirs,
            session_stream: Arc::clone(&connection.session_stream),
        })
    }

    /// Returns the sender to which this token was given.
    pub(super) fn sender(&self, token: Token) -> Option<Sender> {
        let &number = self.tokens.get(&token)?;
        self.open.get(&number).map(|connection| connection.sender(number))
    }

    /// Records that a valid message came on a connection, so that the connection is not ended for silence.
    pub(super) fn heard(&mut self, number: u64, now: Duration) {
        if let Some(connection) = self.open.get_mut(&number) {
            connection.heard = now;
        }
    }

    /// Records the name for people that a node's state message gives. Returns false if the node has given another name
    /// before, on any of its present connections.
    pub(super) fn named(&mut self, number: u64, name: &str) -> bool {
        let known = self.is_called(number, name);
        if known.is_none()
            && let Some(connection) = self.open.get_mut(&number)
        {
            connection.name = Some(name.into());
        }
        known.unwrap_or(true)
    }

    /// Returns true if the node at the other end of a connection goes by this name for people; `None` if the node has
    /// not told its name yet, or the connection is gone.
    pub(super) fn is_called(&self, number: u64, name: &str) -> Option<bool> {
        let peer = self.open.get(&number)?.peer;
        let mut told = self.open.values().filter(|one| one.peer == peer);
        told.find_map(|one| Some(one.name.as_deref()? == name))
    }

    /// Counts a request of a process; refuses it if too many are unanswered.
    pub(super) fn asked(&mut self, number: u64, now: Duration) -> Result<(), Refusal> {
        let Some(connection) = self.open.get_mut(&number) else {
            return Err(Refusal::Gone);
        };
        connection.heard = now;
        if connection.questions >= QUESTIONS_MAX {
            return Err(Refusal::Clogged);
        }
        connection.questions += 1;
        Ok(())
    }

    /// Counts a reply of this many bytes, or of none for a dropped request. Refuses it if too many bytes are in flight
    /// to the process, or to all processes.
    pub(super) fn answered(&mut self, number: u64, bytes: usize, now: Duration) -> Result<(), Refusal> {
        let all: u64 = self.open.values().map(|one| one.session_stream.under_way()).sum();
        let Some(connection) = self.open.get_mut(&number) else {
            return Err(Refusal::Gone);
        };
        connection.questions = connection.questions.saturating_sub(1);
        connection.heard = now;
        let own = connection.session_stream.send(bytes);
        if own > UNDER_WAY_MAX || all + bytes as u64 > ALL_UNDER_WAY_MAX {
            connection.session_stream.unsend(bytes);
            return Err(Refusal::Clogged);
        }
        Ok(())
    }

    /// Counts a protocol violation of a process. Returns true if the process is banned for it.
    pub(super) fn violated(&mut self, number: u64, now: Duration) -> bool {
        let Some(connection) = self.open.get_mut(&number) else {
            return false;
        };
        connection.violations += 1;
        let away = connection.violations >= LIES_MAX;
        if away {
            let banned = connection.peer;
            self.send_away(number);
            if self.banned.len() == BANNED_MAX {
                self.banned.remove(0);
            }
            self.banned.push((banned, now));
        }
        away
    }

    /// Ends a connection, and ignores all further messages on it.
    pub(super) fn send_away(&mut self, number: u64) {
        if let Some(connection) = self.open.get(&number) {
            connection.session_stream.close();
            self.tokens.remove(&connection.hello.ours);
        }
    }

    /// Ends the connections that took too long or were silent for too long. Returns their senders and the reasons.
    pub(super) fn sweep(&mut self, now: Duration) -> Vec<(Sender, Refusal)> {
        // A client hears nothing from nodes but replies, so it does not mind their silence.
        let (is_node, times) = (self.me.node().is_some(), self.times);
        let judge = |connection: &Connection| {
            let silence = now.saturating_sub(connection.heard);
            match connection.peer {
                _ if !connection.ready => (silence > times.ready).then_some(Refusal::NotReady),
                VerifiedPeer::Node(_) => (is_node && silence > times.node_silence).then_some(Refusal::Silent),
                VerifiedPeer::Client(_) => {
                    (connection.questions == 0 && silence > times.client_silence).then_some(Refusal::Silent)
                }
            }
        };
        let late = self.open.iter().filter_map(|(&number, connection)| {
            let refusal = judge(connection)?;
            Some((connection.sender(number), refusal))
        });
        let late: Vec<_> = late.collect();
        for (sender, _) in &late {
            self.send_away(sender.number);
        }
        late
    }
}

#[cfg(test)]
mod tests {
    use protocol::ids::NodeId;

    use super::*;
    use crate::timing::Timing;

    const SECOND: Duration = Duration::from_secs(1);

    fn hello(peer: VerifiedPeer, token: u8) -> SessionHello {
        SessionHello {
            peer,
            ours: Token::of_bytes([token; Token::BYTES]),
            theirs: Token::of_bytes([!token; Token::BYTES]),
        }
    }

    fn node(id: u64) -> VerifiedPeer {
        VerifiedPeer::Node(NodeId(id))
    }

    fn address() -> SocketAddr {
        "192.0.2.1:7".parse().unwrap()
    }

    fn connections() -> Connections {
        Connections::new(node(1), Timing::DEFAULT.control)
    }

    fn admit(all: &mut Connections, peer: VerifiedPeer, token: u8) -> u64 {
        all.admit(hello(peer, token), address(), Duration::ZERO).unwrap().0
    }

    #[test]
    fn a_node_keeps_the_name_that_it_has_told() {
        let mut all = connections();
        let (one, two) = (admit(&mut all, node(7), 1), admit(&mut all, node(7), 2));
        assert_eq!(all.is_called(two, "desk"), None);
        assert!(all.named(one, "desk") && all.named(two, "desk") && !all.named(two, "lab"));
        assert_eq!(
            (all.is_called(two, "desk"), all.is_called(two, "lab")),
            (Some(true), Some(false))
        );
    }

    #[test]
    fn a_token_tells_who_speaks_until_the_connection_is_gone() {
        let mut all = connections();
        let (one, two) = (admit(&mut all, node(7), 1), admit(&mut all, node(8), 2));
        let said_by = |all: &Connections, token: u8| {
            let sender = all.sender(Token::of_bytes([token; Token::BYTES]));
            sender.map(|sender| (sender.number, sender.peer))
        };
        assert_eq!(said_by(&all, 1), Some((one, node(7))));
        assert_eq!(said_by(&all, 2), Some((two, node(8))));
        assert_eq!(
            said_by(&all, !1),
            None,
            "the token that this node sends to a peer must not identify a sender here"
        );
        all.gone(one, EndedBy::Oneself);
        assert_eq!((said_by(&all, 1), said_by(&all, 2)), (None, Some((two, node(8)))));
    }

    #[test]
    fn sessions_lead_to_their_connections() {
        let mut all = connections();
        let number = admit(&mut all, node(7), 1);
        assert!(all.path(40).is_none() && all.ready(40, SECOND).is_none());
        assert!(all.opened(40, number) && !all.opened(41, number + 1));
        assert_eq!(all.ready(40, SECOND), Some(node(7)));
        assert_eq!(all.path(40).unwrap().token, hello(node(7), 1).theirs);
        all.gone(number, EndedBy::VerifiedPeer);
        assert!(all.path(40).is_none());
        assert_eq!(
            [40, 40].map(|session| all.session_gone(session)),
            [EndedBy::VerifiedPeer, EndedBy::Oneself]
        );
    }

    #[test]
    fn a_liar_is_sent_away_and_kept_out_for_a_minute() {
        let mut all = connections();
        let number = admit(&mut all, node(7), 1);
        assert!(!all.violated(number, SECOND) && !all.violated(number, SECOND));
        assert!(all.violated(number, SECOND));
        assert!(
            all.sender(hello(node(7), 1).ours).is_none(),
            "the token of a banned peer must no longer be accepted"
        );
        all.gone(number, EndedBy::Oneself);
        let again = |all: &mut Connections, at| all.admit(hello(node(7), 2), address(), at).map(|_| ());
        assert_eq!(again(&mut all, 30 * SECOND), Err(Refusal::BannedSender));
        assert!(all.admit(hello(node(8), 3), address(), 30 * SECOND).is_ok());
        assert_eq!(again(&mut all, 62 * SECOND), Ok(()));
    }

    #[test]
    fn nobody_stays_without_a_word() {
        let mut all = connections();
        let mute = admit(&mut all, node(7), 1);
        let (silent, beating) = (admit(&mut all, node(8), 2), admit(&mut all, node(9), 3));
        let (idle, waiting) = (
            admit(&mut all, VerifiedPeer::Client(1), 4),
            admit(&mut all, VerifiedPeer::Client(2), 5),
        );
        for (session, number) in [(1, silent), (2, beating), (3, idle), (4, waiting)] {
            all.opened(session, number);
            all.ready(session, Duration::ZERO);
        }
        all.asked(waiting, Duration::ZERO).unwrap();
        let mut ended = Vec::new();
        for second in 0..100 {
            all.heard(beating, second * SECOND);
            for (sender, refusal) in all.sweep(second * SECOND) {
                all.gone(sender.number, EndedBy::Oneself);
                ended.push((sender.number, refusal, second));
            }
        }
        let expected = [
            (mute, Refusal::NotReady, 6),
            (silent, Refusal::Silent, 11),
            (idle, Refusal::Silent, 61),
        ];
        assert_eq!(ended, expected);
    }

    #[test]
    fn clients_are_as_many_as_there_is_room_for_and_keep_no_node_out() {
        let mut all = connections();
        for client in 0..CLIENTS_MAX {
            all.admit(
                hello(VerifiedPeer::Client(client as u64), client as u8),
                address(),
                SECOND,
            )
            .unwrap();
        }
        let one_more = all.admit(hello(VerifiedPeer::Client(9999), 1), address(), SECOND);
        assert_eq!(one_more.unwrap_err(), Refusal::Full);
        assert!(all.admit(hello(node(7), 1), address(), SECOND).is_ok());
        let oneself = all.admit(hello(node(1), 1), address(), SECOND);
        assert_eq!(oneself.unwrap_err(), Refusal::Oneself);
    }

    #[test]
    fn questions_and_answers_are_bounded_for_each_and_for_all() {
        let mut all = connections();
        let number = admit(&mut all, VerifiedPeer::Client(1), 1);
        for _ in 0..QUESTIONS_MAX {
            all.asked(number, SECOND).unwrap();
        }
        assert_eq!(all.asked(number, SECOND), Err(Refusal::Clogged));
        let half = UNDER_WAY_MAX as usize / 2;
        assert_eq!(all.answered(number, half, SECOND), Ok(()));
        assert_eq!(all.answered(number, half, SECOND), Ok(()));
        assert_eq!(all.answered(number, 1, SECOND), Err(Refusal::Clogged));
        // A peer that reads gets further replies.
        all.open[&number].session_stream.wrote(half);
        assert_eq!(all.answered(number, half, SECOND), Ok(()));
        let others = (2..=ALL_UNDER_WAY_MAX / UNDER_WAY_MAX).map(|client| {
            let other = admit(&mut all, VerifiedPeer::Client(client), client as u8);
            all.asked(other, SECOND).unwrap();
            all.answered(other, 2 * half, SECOND)
        });
        assert!(others.collect::<Vec<_>>().iter().all(Result::is_ok));
        let last = admit(&mut all, VerifiedPeer::Client(99), 99);
        assert_eq!(all.answered(last, 1, SECOND), Err(Refusal::Clogged));
    }
}
