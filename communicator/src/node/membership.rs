//! The membership's actor: sessions, beats and dialling around the [`Roster`].

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use protocol::control::{Beat, NodeInfo, Phase, Reply, Word};
use protocol::ids::NodeId;
use protocol::run_beat::RunBeat;
use protocol::stats::NodeReport;
use ractor::{Actor, ActorProcessingErr, ActorRef, DerivedActorRef, RpcReplyPort};
use ractor_cluster::RactorMessage;
use tokio::sync::watch;

use super::roster::{Change, Roster};
use crate::control::{Gate, Payload, Peer, SessionEvent, Sessions};
use crate::timing::MembershipTimes;
use crate::transport::{Plane, Security, dial};

/// How this node stands with the cluster that it was to join.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Joined {
    /// It has heard of nobody.
    Alone,
    /// A member's beats come.
    Member,
    /// A member does not want it, for this reason.
    Refused(String),
}

/// What the membership is told.
#[derive(RactorMessage)]
pub(crate) enum MembershipMessage {
    /// Something happened to a session.
    Session(SessionEvent),
    /// A peer's beat.
    Beat(Box<Beat>),
    /// A peer's answer to a beat.
    Echo {
        /// Whose.
        from: NodeId,
        /// The beat's number.
        number: u64,
    },
    /// A peer leaves.
    Leaving(NodeId),
    /// A peer does not want this node.
    Unwelcome(String),
    /// An attempt to reach a node is over.
    Dialled(NodeId),
    /// Say good-bye to everybody; answered when all have heard it.
    Leave(RpcReplyPort<()>),
    /// Who is there?
    Nodes(RpcReplyPort<Payload<Reply>>),
    /// This node's own description has changed.
    Me(NodeInfo),
    /// This node's state in a run has changed: tell everybody now.
    Run(Vec<RunBeat>, Phase),
    /// A word to one peer.
    Send {
        /// To whom.
        to: NodeId,
        /// What.
        word: Box<Word>,
    },
    /// A word to all peers.
    Broadcast(Box<Word>),
    /// Some time has passed.
    Tick,
}

/// What the membership tells.
pub(crate) enum MembershipNotice {
    /// Another node tells how far its runs are.
    Beat {
        /// Which node.
        from: NodeId,
        /// Its number.
        number: u64,
        /// Its run, and the one before.
        runs: Vec<RunBeat>,
    },
    /// Somebody came or went.
    Changed(Change),
}

/// What the actor is started with.
pub(crate) struct MembershipArguments {
    /// This node.
    pub(crate) me: NodeInfo,
    /// Its sessions.
    pub(crate) sessions: Sessions,
    /// How it dials.
    pub(crate) security: Security,
    /// How often its clock ticks.
    pub(crate) tick: Duration,
    /// How long it waits for whom.
    pub(crate) times: MembershipTimes,
    /// Who wants to know who is alive.
    pub(crate) parent: DerivedActorRef<MembershipNotice>,
    /// Where it is told how this node stands.
    pub(crate) joining: watch::Sender<Joined>,
}

/// The actor.
pub(crate) struct MembershipActor;

/// The actor's state.
pub(crate) struct Membership {
    me: NodeInfo,
    sessions: Sessions,
    security: Security,
    times: MembershipTimes,
    parent: DerivedActorRef<MembershipNotice>,
    roster: Roster,
    /// The gates of peers, and the sessions that lead to them. Two nodes that dial each other have two for a moment; the
    /// newest is used.
    gates: BTreeMap<NodeId, Vec<(u64, Gate)>>,
    /// Sessions whose gates have not shown yet, with their nodes.
    gateless: Vec<(u64, NodeId, Duration)>,
    joining: watch::Sender<Joined>,
    /// How far this node's run is, and the one before.
    runs: Vec<RunBeat>,
    /// Who waits for all to have heard that this node leaves.
    leaving: Option<RpcReplyPort<()>>,
    state: &'static str,
    start: Instant,
    number: u64,
    /// When the newest beats were sent.
    sent: BTreeMap<u64, Instant>,
    next_beat: Duration,
}

impl Actor for MembershipActor {
    type Msg = MembershipMessage;
    type State = Membership;
    type Arguments = MembershipArguments;

    async fn pre_start(
        &self,
        myself: ActorRef<MembershipMessage>,
        arguments: MembershipArguments,
    ) -> Result<Membership, ActorProcessingErr> {
        let MembershipArguments {
            me,
            sessions,
            security,
            tick,
            times,
            parent,
            joining,
        } = arguments;
        myself.send_interval(tick, || MembershipMessage::Tick);
        Ok(Membership {
            roster: Roster::new(me.id, times),
            me,
            sessions,
            security,
            times,
            parent,
            gates: BTreeMap::new(),
            gateless: Vec::new(),
            joining,
            runs: Vec::new(),
            leaving: None,
            state: "idle",
            start: Instant::now(),
            number: 0,
            sent: BTreeMap::new(),
            next_beat: Duration::ZERO,
        })
    }

    async fn handle(
        &self,
        myself: ActorRef<MembershipMessage>,
        message: MembershipMessage,
        state: &mut Membership,
    ) -> Result<(), ActorProcessingErr> {
        let now = state.start.elapsed();
        match message {
            MembershipMessage::Session(event) => state.session(&event, now),
            MembershipMessage::Beat(beat) => state.beat(*beat, now),
            MembershipMessage::Echo { from, number } => {
                if let Some(sent) = state.sent.get(&number) {
                    state.roster.answered(from, sent.elapsed());
                }
            }
            MembershipMessage::Leaving(node) => {
                let change = state.roster.leaves(node);
                state.changed(change);
                // That its connection is closed tells it that it was heard.
                state.close(node);
            }
            // Who has been taken by one node is not sent away by another.
            MembershipMessage::Unwelcome(reason) if *state.joining.borrow() == Joined::Alone => {
                tracing::error!(reason, "a node does not want this one");
                state.joining.send_replace(Joined::Refused(reason));
            }
            MembershipMessage::Unwelcome(reason) => tracing::warn!(reason, "a node does not want this one"),
            MembershipMessage::Dialled(node) => state.roster.was_dialled(node),
            MembershipMessage::Leave(reply) => {
                state.broadcast(&Word::Leaving(state.me.id));
                state.leaving = Some(reply);
                state.check_left();
            }
            MembershipMessage::Nodes(reply) => {
                let _ = reply.send(Reply::Nodes(state.reports()).into());
            }
            MembershipMessage::Me(info) => state.me = info,
            MembershipMessage::Run(runs, phase) => {
                let going = runs
                    .first()
                    .filter(|_| phase != Phase::Ended)
                    .and_then(|beat| beat.begin.as_ref());
                let going = going.into_iter();
                let participants = going.flat_map(|begin| &begin.participants).map(|one| one.node);
                state.roster.take_part(participants.collect());
                state.runs = runs;
                state.state = phase.text();
                state.beat_all(now);
            }
            MembershipMessage::Send { to, word } => state.send(to, *word),
            MembershipMessage::Broadcast(word) => state.broadcast(&word),
            MembershipMessage::Tick => state.tick(&myself, now),
        }
        Ok(())
    }
}

impl Membership {
    fn session(&mut self, event: &SessionEvent, now: Duration) {
        match *event {
            SessionEvent::Ready { session, peer } => {
                // Anybody else is a client, which asks and is not asked.
                if let Some(id) = peer.node() {
                    self.gateless.push((session, id, now));
                    self.find_gates(now);
                }
            }
            SessionEvent::Closed { session } => {
                self.gateless.retain(|(waiting, ..)| *waiting != session);
                self.gates.retain(|&id, gates| {
                    gates.retain(|(one, _)| *one != session);
                    if gates.is_empty() {
                        self.roster.unlinked(id, now);
                    }
                    !gates.is_empty()
                });
                self.check_left();
            }
        }
    }

    /// Looks for the gates of new sessions: they may show a moment after the session is ready.
    fn find_gates(&mut self, now: Duration) {
        for (session, id, since) in std::mem::take(&mut self.gateless) {
            if let Some(gate) = self.sessions.gate(session) {
                self.gates.entry(id).or_default().push((session, gate));
                self.roster.linked(id);
                self.beat_one(id);
            } else if now.saturating_sub(since) < self.times.gate {
                self.gateless.push((session, id, since));
            } else {
                self.sessions.close(session);
            }
        }
    }

    fn beat(&mut self, beat: Beat, now: Duration) {
        let Beat {
            from,
            number,
            members,
            runs,
        } = beat;
        let id = from.id;
        if from.version != self.me.version {
            let reason = format!(
                "{} runs Tau {}, but {} runs {}: bring all nodes to the same release",
                self.me.name, self.me.version, from.name, from.version
            );
            self.send(id, Word::Unwelcome(reason));
            return;
        }
        self.joining.send_if_modified(|joined| {
            let alone = *joined == Joined::Alone;
            if alone {
                *joined = Joined::Member;
            }
            alone
        });
        let change = self.roster.beat(from, now);
        self.changed(change);
        for info in members {
            self.roster.heard_of(info, now);
        }
        self.send(
            id,
            Word::Echo {
                from: self.me.id,
                number,
            },
        );
        let _ = self
            .parent
            .send_message(MembershipNotice::Beat { from: id, number, runs });
    }

    fn changed(&self, change: Option<Change>) {
        if let Some(change) = change {
            match &change {
                Change::Alive(info) => tracing::info!(peer = info.name, "a node is here"),
                Change::Away(id) => tracing::warn!(peer = %id, "a node is silent"),
                Change::Left(id) => tracing::info!(peer = %id, "a node has left"),
            }
            let _ = self.parent.send_message(MembershipNotice::Changed(change));
        }
    }

    /// Ends all sessions with a node.
    fn close(&self, node: NodeId) {
        for (session, _) in self.gates.get(&node).into_iter().flatten() {
            self.sessions.close(*session);
        }
    }

    /// Tells that all have heard that this node leaves, once they have.
    fn check_left(&mut self) {
        if self.gates.is_empty()
            && let Some(reply) = self.leaving.take()
        {
            let _ = reply.send(());
        }
    }

    fn tick(&mut self, myself: &ActorRef<MembershipMessage>, now: Duration) {
        if self.leaving.is_some() {
            return;
        }
        self.find_gates(now);
        for change in self.roster.tick(now) {
            // A session that hangs would keep a new one from being made.
            if let Change::Away(id) | Change::Left(id) = change
                && let Some(gates) = self.gates.remove(&id)
            {
                self.roster.unlinked(id, now);
                for (session, _) in gates {
                    self.sessions.close(session);
                }
            }
            self.changed(Some(change));
        }
        for info in self.roster.take_due(now) {
            let (sessions, security, myself) = (self.sessions.clone(), self.security.clone(), myself.clone());
            let limit = self.times.dial;
            tokio::spawn(async move {
                match dial(info.address, Plane::Control, &security, limit).await {
                    Ok(stream) => {
                        let wanted = Some(Peer::Node(info.id));
                        if let Err(error) = sessions.open(stream, info.address, wanted).await {
                            tracing::debug!(%error, peer = info.name, "a node is reached in vain");
                        }
                    }
                    Err(error) => tracing::debug!(%error, peer = info.name, "a node is not reached"),
                }
                let _ = myself.cast(MembershipMessage::Dialled(info.id));
            });
        }
        if now >= self.next_beat {
            self.beat_all(now);
        }
    }

    fn next_word(&mut self) -> Word {
        /// Beats whose answers are still counted.
        const SENT_MAX: usize = 64;
        self.number += 1;
        self.sent.insert(self.number, Instant::now());
        while self.sent.len() > SENT_MAX {
            self.sent.pop_first();
        }
        Word::Beat(Box::new(Beat {
            from: self.me.clone(),
            number: self.number,
            // Rumours of the silent would keep everybody from forgetting them.
            members: self
                .roster
                .members()
                .filter(|member| member.alive)
                .map(|member| member.info.clone())
                .collect(),
            runs: self.runs.clone(),
        }))
    }

    fn beat_all(&mut self, now: Duration) {
        self.next_beat = now + self.times.beat_every;
        let word = self.next_word();
        self.broadcast(&word);
    }

    fn beat_one(&mut self, id: NodeId) {
        let word = self.next_word();
        self.send(id, word);
    }

    fn send(&self, to: NodeId, word: Word) {
        if let Some((_, gate)) = self.gates.get(&to).and_then(|gates| gates.last()) {
            // A session that has just gone will be told as gone.
            gate.tell(word);
        }
    }

    fn broadcast(&self, word: &Word) {
        for &to in self.gates.keys() {
            self.send(to, word.clone());
        }
    }

    fn reports(&self) -> Vec<NodeReport> {
        let report = |info: &NodeInfo, state: &str, rtt: Option<Duration>| NodeReport {
            node: info.name.clone(),
            address: info.address.to_string(),
            state: state.into(),
            device: info.device.clone(),
            workers: info.workers,
            since: info.since as f64 / 1e3,
            rtt_ms: rtt.map(|rtt| rtt.as_secs_f64() * 1e3),
        };
        let mut reports = vec![report(&self.me, self.state, None)];
        reports.extend(self.roster.members().map(|member| {
            let state = if member.alive { "alive" } else { "away" };
            report(member.info, state, member.rtt)
        }));
        reports.sort_by(|a, b| a.node.cmp(&b.node));
        reports
    }
}
