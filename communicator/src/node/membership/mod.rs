//! The membership's actor: sessions, beats and dialling around the [`Roster`].

mod endpoints;
mod messages;
mod names;
mod reports;
mod round_trips;

use protocol::reasons::Unwelcome;
use std::time::{Duration, Instant};

use protocol::ids::NodeId;
use protocol::wire::control::{Beat, ControlMessage, NodeInfo, Phase, Reply};
use protocol::wire::run_beat::RunBeat;
use ractor::{Actor, ActorProcessingErr, ActorRef, DerivedActorRef, RpcReplyPort};
use tokio::sync::watch;

use super::roster::{DialOutcome, DueDial, Roster};
use crate::control::{Endpoint, OpenError, SessionEvent, Sessions, VerifiedPeer};
use crate::log_context::NEWS;
use crate::run::{MemberChange, RunEvent};
use crate::timing::MembershipTimes;
use crate::transport::{Plane, Security, dial};
use endpoints::Endpoints;
pub(crate) use messages::{JoinState, MembershipArguments, MembershipMessage};
use names::Names;
use round_trips::RoundTrips;

pub(crate) struct MembershipActor;

pub(crate) struct Membership {
    me: NodeInfo,
    sessions: Sessions,
    security: Security,
    times: MembershipTimes,
    parent: DerivedActorRef<RunEvent>,
    roster: Roster,
    endpoints: Endpoints<Endpoint>,
    joining: watch::Sender<JoinState>,
    names: Names,
    /// State of this node's run, and of the one before, which this node's beats carry.
    runs: Vec<RunBeat>,
    /// Port for the reply to the request that this node leave the cluster; `None` if it does not leave. The reply is
    /// sent when all nodes have heard of it.
    leaving: Option<RpcReplyPort<()>>,
    state: &'static str,
    start: Instant,
    round_trips: RoundTrips,
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
            endpoints: Endpoints::new(times.endpoint),
            joining,
            names: Names::new(times),
            runs: Vec::new(),
            leaving: None,
            state: "idle",
            start: Instant::now(),
            round_trips: RoundTrips::default(),
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
                if let Some(rtt) = state.round_trips.answered(number, now) {
                    state.roster.answered(from, rtt);
                }
            }
            MembershipMessage::Leaving(node) => {
                let change = state.roster.leaves(node);
                state.changed(change);
                // The closed connection tells the node that its good-bye was heard.
                state.close(node);
            }
            // A node that one member has accepted is not sent away by another.
            MembershipMessage::Unwelcome(reason) if !state.is_member() => {
                tracing::error!(
                    event = "join_refused",
                    %reason,
                    "a node refused to let this node join the cluster"
                );
                state.joining.send_replace(JoinState::Refused(reason));
            }
            MembershipMessage::Unwelcome(reason) => tracing::warn!(
                event = "membership_disputed",
                %reason,
                "a node rejects this node, which is already a member of the cluster"
            ),
            MembershipMessage::Dialled(node, outcome) => {
                let change = state.roster.was_dialled(node, outcome, now);
                state.changed(change);
            }
            MembershipMessage::Leave(reply) => {
                state.broadcast(&ControlMessage::Leaving(state.me.id));
                state.leaving = Some(reply);
                state.check_left();
            }
            MembershipMessage::Nodes(reply) => {
                let _ = reply.send(Reply::Nodes(reports::reports(&state.me, state.state, &state.roster)).into());
            }
            MembershipMessage::Me(info) => state.me = info,
            MembershipMessage::Run(runs, phase) => {
                let going = runs
                    .first()
                    .filter(|_| phase != Phase::Ended)
                    .and_then(|beat| beat.plan.as_ref());
                let going = going.into_iter();
                let participants = going.flat_map(|plan| &plan.participants).map(|one| one.node);
                state.roster.take_part(participants.collect());
                state.runs = runs;
                state.state = phase.text();
                state.beat_all(now);
            }
            MembershipMessage::Send { to, message } => state.send(to, *message),
            MembershipMessage::Broadcast(message) => state.broadcast(&message),
            MembershipMessage::Tick => state.tick(&myself, now),
        }
        Ok(())
    }
}

impl Membership {
    fn session(&mut self, event: &SessionEvent, now: Duration) {
        match *event {
            SessionEvent::Ready { session, peer } => {
                // Any other peer is a client, which asks and is not asked.
                if let Some(id) = peer.node() {
                    self.endpoints.expect(session, id, now);
                    self.find_endpoints(now);
                }
            }
            SessionEvent::Closed { session, by_peer } => {
                if let Some(id) = self.endpoints.closed(session) {
                    self.roster.unlinked(id, by_peer, now);
                }
                self.check_left();
            }
        }
    }

    /// Looks for the endpoints of peers whose sessions are new, which may become known a moment after the sessions are
    /// ready. Greets the peers that are found, and closes the sessions that took too long.
    fn find_endpoints(&mut self, now: Duration) {
        let found = self.endpoints.find(now, |session| self.sessions.endpoint(session));
        for id in found.ready {
            self.roster.linked(id, now);
            let message = self.next_word(now);
            self.send(id, message);
        }
        for session in found.late {
            self.sessions.close(session);
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
            let reason = Unwelcome::OtherRelease {
                member: self.me.name.as_str().into(),
                release: self.me.version.clone(),
                node: from.name.as_str().into(),
                other: from.version,
            };
            self.send(id, ControlMessage::Unwelcome(reason));
            return;
        }
        if let Some(bearer) = names::taken(&self.me, &from, &members)
            && !self.is_member()
        {
            let reason = self.names.wait(bearer, now);
            self.joining.send_replace(JoinState::Waits(reason));
            return;
        }
        if from.name == self.me.name {
            return;
        }
        if self.roster.namesake(&from).is_some() && !self.roster.has_met(id) {
            // A node that is no member yet sees this for itself. One that was a member has to be told.
            if self.roster.has_left(id) {
                let reason = Unwelcome::Succeeded(from.name.as_str().into());
                self.send(id, ControlMessage::Unwelcome(reason));
            }
            return;
        }
        if !self.is_member() {
            self.joining.send_replace(JoinState::Member);
        }
        let phase = runs.first().map_or(Phase::Ended, |run| run.phase_of(id));
        let change = self.roster.beat(from, now);
        self.changed(change);
        self.roster.does(id, phase);
        for info in members.into_iter().filter(|info| info.name != self.me.name) {
            self.roster.heard_of(info, now);
        }
        self.send(
            id,
            ControlMessage::Echo {
                from: self.me.id,
                number,
            },
        );
        let _ = self.parent.send_message(RunEvent::Beat { from: id, number, runs });
    }

    fn changed(&self, change: Option<MemberChange>) {
        if let Some(change) = change {
            match &change {
                MemberChange::Alive(info) => tracing::info!(
                    target: NEWS, event = "node_alive", peer = info.name,
                    "a node is alive"
                ),
                MemberChange::Silent(id) => {
                    let peer = self.name(*id);
                    tracing::warn!(
                        event = "node_silent",
                        peer,
                        "a node has fallen silent: no beats arrive from it"
                    );
                }
                MemberChange::Dead(id) => {
                    let peer = self.name(*id);
                    tracing::warn!(target: NEWS, peer, event = "node_dead", "the process of a node has ended");
                }
                MemberChange::Left(id) | MemberChange::Succeeded(id) => {
                    tracing::info!(event = "node_left", peer = %id, "a node has left the cluster");
                }
            }
            let _ = self.parent.send_message(RunEvent::Member(change));
        }
    }

    /// Returns the name of a member; its id if the name is not known.
    fn name(&self, id: NodeId) -> String {
        let member = self.roster.members().find(|member| member.info.id == id);
        member.map_or_else(|| id.to_string(), |member| member.info.name.clone())
    }

    /// Returns true if this node is a member: state messages of a member have come, and no other node has its name.
    fn is_member(&self) -> bool {
        *self.joining.borrow() == JoinState::Member
    }

    /// Ends all sessions with a node.
    fn close(&self, node: NodeId) {
        for session in self.endpoints.sessions(node) {
            self.sessions.close(session);
        }
    }

    /// Answers the request to leave the cluster, once all nodes have heard that this node leaves.
    fn check_left(&mut self) {
        if self.endpoints.is_empty()
            && let Some(reply) = self.leaving.take()
        {
            let _ = reply.send(());
        }
    }

    fn tick(&mut self, myself: &ActorRef<MembershipMessage>, now: Duration) {
        if self.leaving.is_some() {
            return;
        }
        self.find_endpoints(now);
        if !self.is_member()
            && let Some(reason) = self.names.refusal(&self.me, now)
        {
            self.joining.send_replace(JoinState::Refused(reason));
        }
        for change in self.roster.tick(now) {
            // A session that hangs would keep a new one from being made.
            if let MemberChange::Silent(id) | MemberChange::Left(id) | MemberChange::Succeeded(id) = change
                && let Some(sessions) = self.endpoints.take(id)
            {
                self.roster.unlinked(id, false, now);
                for session in sessions {
                    self.sessions.close(session);
                }
            }
            self.changed(Some(change));
        }
        for due in self.roster.take_due(now) {
            self.dial(due, myself.clone());
        }
        if now >= self.next_beat {
            self.beat_all(now);
        }
    }

    /// Tries to reach a member's address in a task of its own.
    fn dial(&self, due: DueDial, myself: ActorRef<MembershipMessage>) {
        let (sessions, security, limit) = (self.sessions.clone(), self.security.clone(), self.times.dial);
        tokio::spawn(async move {
            let DueDial { info, is_probe } = due;
            let outcome = match dial(info.address, Plane::Control, &security, limit).await {
                Ok(stream) => {
                    let wanted = VerifiedPeer::Node(info.id);
                    let reached = if is_probe {
                        sessions.probe(stream, wanted).await
                    } else {
                        sessions.open(stream, info.address, Some(wanted)).await.map(drop)
                    };
                    if let Err(error) = &reached {
                        tracing::debug!(
                            event = "session_open_failed", %error, peer = info.name,
                            "connected to a node, but could not open a session; retrying"
                        );
                    }
                    match reached {
                        Ok(()) => DialOutcome::Reached,
                        Err(OpenError::Another(VerifiedPeer::Node(_))) => DialOutcome::AnotherKey,
                        Err(_) => DialOutcome::Failed,
                    }
                }
                Err(error) => {
                    tracing::debug!(
                        event = "node_dial_failed", %error, peer = info.name,
                        "cannot connect to a node; retrying"
                    );
                    if error.is_refused() {
                        DialOutcome::Refused
                    } else {
                        DialOutcome::Failed
                    }
                }
            };
            let _ = myself.cast(MembershipMessage::Dialled(info.id, outcome));
        });
    }

    fn next_word(&mut self, now: Duration) -> ControlMessage {
        ControlMessage::Beat(Box::new(Beat {
            from: self.me.clone(),
            number: self.round_trips.send(now),
            // Rumours of silent nodes would keep all nodes from forgetting them.
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
        let message = self.next_word(now);
        self.broadcast(&message);
    }

    fn send(&self, to: NodeId, message: ControlMessage) {
        if let Some(endpoint) = self.endpoints.of(to) {
            // A session that is just gone will be reported as gone.
            endpoint.tell(message);
        }
    }

    fn broadcast(&self, message: &ControlMessage) {
        for endpoint in self.endpoints.all() {
            endpoint.tell(message.clone());
        }
    }
}
