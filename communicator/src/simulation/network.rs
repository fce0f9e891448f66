//! The simulated network: messages and beats of the control plane, links of the data plane.

use std::collections::{BTreeMap, BTreeSet};

use protocol::ids::NodeId;
use protocol::wire::control::ControlMessage;
use protocol::wire::run_beat::RunBeat;

use super::node::{Open, TIMING};
use super::world::{Due, Link, World, pair};
use crate::planted::{Bug, planted};
use crate::run::{MemberChange, RunEvent};
use crate::run_exchange::RunExchangeEvent;
use protocol::wire::link::Message;

impl World {
    pub(super) fn tick_roster(&mut self, at: NodeId) {
        let now = self.time();
        let changes = self.nodes.get_mut(&at).unwrap().roster.tick(now);
        for change in changes {
            if let MemberChange::Silent(peer) | MemberChange::Left(peer) | MemberChange::Succeeded(peer) = change {
                self.close_session(at, peer);
            }
            self.changed(at, change);
        }
        self.dial_due(at);
    }

    pub(super) fn changed(&mut self, at: NodeId, change: MemberChange) {
        self.run(at, RunEvent::Member(change));
    }

    pub(super) fn known(&self, at: NodeId) -> BTreeSet<NodeId> {
        let node = &self.nodes[&at];
        let members = node.roster.members().map(|member| member.info.id);
        members.chain(node.seed).collect()
    }

    pub(super) fn beat(&mut self, at: NodeId) {
        let node = &self.nodes[&at];
        let members: Vec<NodeId> = node
            .roster
            .members()
            .filter(|member| member.alive)
            .map(|member| member.info.id)
            .collect();
        let runs = node.beats.clone();
        for to in self.known(at) {
            if self.reaches(at, to) {
                let delay = self.delay();
                let (members, runs) = (members.clone(), runs.clone());
                let number = self.numbers;
                self.after(
                    delay,
                    Due::Beat {
                        to,
                        from: at,
                        number,
                        members,
                        runs,
                    },
                );
            }
        }
    }

    pub(super) fn delay(&mut self) -> u64 {
        if self.slow && self.random.below(10) == 0 {
            return 1 + self.random.below(900);
        }
        1 + self.random.below(60)
    }

    pub(super) fn hear_beat(
        &mut self,
        at: NodeId,
        (from, number): (NodeId, u64),
        members: &[NodeId],
        runs: Vec<RunBeat>,
    ) {
        let now = self.time();
        let infos: Vec<_> = members
            .iter()
            .filter_map(|id| self.nodes.get(id))
            .map(|node| node.info.clone())
            .collect();
        let info = self.nodes[&from].info.clone();
        let node = self.nodes.get_mut(&at).unwrap();
        // A name belongs to one living node.
        if node.roster.namesake(&info).is_some() && !node.roster.has_met(from) {
            return;
        }
        let change = node.roster.beat(info, now);
        let own_name = node.info.name.clone();
        for info in infos.into_iter().filter(|info| info.name != own_name) {
            node.roster.heard_of(info, now);
        }
        self.note_session(at, from);
        if let Some(change) = change {
            self.changed(at, change);
        }
        self.run(at, RunEvent::Beat { from, number, runs });
    }

    pub(super) fn send(&mut self, from: NodeId, to: NodeId, message: ControlMessage) {
        if self.reaches(from, to) || from == to {
            let delay = self.delay();
            self.after(delay, Due::ControlMessage { to, from, message });
        }
    }

    /// Lets a node say good-bye and end.
    pub(super) fn leave(&mut self, at: NodeId) {
        self.leaving.remove(&at);
        if self.alive() == [at] {
            let id = self.add(None);
            self.say(&format!("{id} comes, as all others have gone"));
        }
        for to in self.known(at) {
            if self.reaches(at, to) {
                self.after(5, Due::Left { to, node: at });
            }
        }
        self.die(at);
    }

    pub(super) fn die(&mut self, at: NodeId) {
        self.nodes.get_mut(&at).unwrap().alive = false;
        for other in self.alive() {
            self.cut(at, other, 0);
            // The end of a session is noticed only if the nodes reach each other.
            if !self.blocked.contains(&pair(at, other)) {
                self.reset_sessions(at, other);
            }
        }
    }

    /// Sets up links between simulated nodes whose exchanges of the same run expect each other.
    pub(super) fn make_links(&mut self) {
        let ids: Vec<NodeId> = self.alive().into_iter().filter(|id| self.nodes[id].runs()).collect();
        for &low in &ids {
            for &high in ids.iter().filter(|&&high| high > low) {
                let wants = |a: NodeId, b: NodeId| {
                    let open = self.nodes[&a].exchange.as_ref();
                    let links = |open: &Open| {
                        let is_linked = open.topology().are_linked(a, b) && !open.core.plan().is_succeeded(b);
                        is_linked && self.nodes[&a].core.expects(open.run, b)
                    };
                    open.is_some_and(links).then(|| open.unwrap().run)
                };
                let key = (low, high);
                let both = wants(low, high).is_some() && wants(low, high) == wants(high, low);
                let up = self.links.get(&key).is_some_and(|link| !link.up.is_empty());
                if !both || up || !self.reaches(low, high) {
                    if up || !both {
                        self.apart.remove(&key);
                    }
                    continue;
                }
                let since = *self.apart.entry(key).or_insert(self.now);
                let patient = self.now - since > TIMING.link.patience.as_millis() as u64 && !planted(Bug::OneSideDials);
                let dialled = !self.undialable.contains(&high) || patient && !self.undialable.contains(&low);
                if dialled {
                    self.apart.remove(&key);
                    let number = self.number();
                    let link = Link {
                        number,
                        up: BTreeSet::from([low, high]),
                        arrival: BTreeMap::new(),
                        broken: false,
                    };
                    self.links.insert(key, link);
                    for (at, other) in [(low, high), (high, low)] {
                        self.exchange(at, RunExchangeEvent::LinkUp(other));
                    }
                }
            }
        }
    }

    /// Cuts a link; each side notices after a random time within this many milliseconds.
    pub(super) fn cut(&mut self, a: NodeId, b: NodeId, within: u64) {
        let Some(link) = self.links.get(&pair(a, b)) else {
            return;
        };
        let (link, sides) = (link.number, link.up.clone());
        for at in sides {
            let later = if within == 0 { 0 } else { self.random.below(within) };
            let from = if at == a { b } else { a };
            self.after(later, Due::Unlinked { at, from, link });
        }
    }

    pub(super) fn unlinked(&mut self, at: NodeId, from: NodeId, number: u64) {
        let gone = self
            .links
            .get_mut(&pair(at, from))
            .is_some_and(|link| link.number == number && link.up.remove(&at));
        if gone {
            self.exchange(at, RunExchangeEvent::LinkDown(from));
            // The other side notices, unless it is out of reach.
            if self.reaches(at, from) {
                self.after(
                    20,
                    Due::Unlinked {
                        at: from,
                        from: at,
                        link: number,
                    },
                );
            }
        }
    }

    pub(super) fn transmit(&mut self, from: NodeId, to: NodeId, message: Message) {
        let reaches = self.reaches(from, to);
        let delay = self.delay();
        let now = self.now;
        let Some(link) = self
            .links
            .get_mut(&pair(from, to))
            .filter(|link| link.up.contains(&from))
        else {
            return;
        };
        link.broken |= !reaches;
        if link.broken {
            return;
        }
        let last = link.arrival.entry(to).or_insert(0);
        let at = (now + delay).max(*last + 1);
        *last = at;
        let number = link.number;
        self.after(
            at - now,
            Due::Message {
                to,
                from,
                link: number,
                message,
            },
        );
    }
}
