//! Uniqueness of the members' names. A pure core.
//!
//! No two living members have the same name. A node that joins compares its own name with those in the beats of
//! members, and gives way by itself. It waits for some seconds first, in which a node that was killed is still taken
//! for alive: the node that joins may be that one, started again.

use std::time::Duration;

use protocol::reasons::Unwelcome;
use protocol::wire::control::NodeInfo;

use crate::timing::MembershipTimes;

/// State of a joining node's own name: free, or held by another node.
#[derive(Debug)]
pub(super) struct Names {
    patience: Duration,
    /// Time since which another node has this node's name.
    since: Option<Duration>,
    /// Address of the other node that has this node's name.
    bearer: String,
}

impl Names {
    pub(super) fn new(times: MembershipTimes) -> Self {
        Self {
            // Long enough for all nodes to notice that the other one is silent.
            patience: times.away_after * 2,
            since: None,
            bearer: String::new(),
        }
    }

    /// Records that another node has this node's name. Returns the reason for which this node waits.
    pub(super) fn wait(&mut self, bearer: &NodeInfo, now: Duration) -> String {
        self.since.get_or_insert(now);
        self.bearer = bearer.address.to_string();
        format!("a node at {} is already called '{}'", self.bearer, bearer.name)
    }

    /// Returns the reason for which this node cannot be a member, once it has waited in vain for its name.
    pub(super) fn refusal(&self, me: &NodeInfo, now: Duration) -> Option<Unwelcome> {
        let waited = now.saturating_sub(self.since?);
        (waited > self.patience).then(|| Unwelcome::NameTaken {
            bearer: self.bearer.as_str().into(),
            name: me.name.as_str().into(),
        })
    }
}

/// Returns the living node that has this node's name: the sender of a state message, or a member that the message
/// lists.
pub(super) fn taken<'a>(me: &NodeInfo, from: &'a NodeInfo, members: &'a [NodeInfo]) -> Option<&'a NodeInfo> {
    std::iter::once(from)
        .chain(members)
        .find(|other| other.name == me.name && other.id != me.id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::small_plan::small_node;
    use crate::timing::Timing;

    const SECOND: Duration = Duration::from_secs(1);

    fn info(id: u64, name: &str) -> NodeInfo {
        NodeInfo {
            name: name.into(),
            ..small_node(id)
        }
    }

    #[test]
    fn the_later_bearer_of_a_name_waits_and_then_gives_way() {
        let mut names = Names::new(Timing::DEFAULT.membership);
        let (me, other) = (info(1, "desk"), info(2, "lab"));
        assert_eq!(taken(&me, &other, &[info(3, "shed"), me.clone()]), None);
        assert_eq!(names.refusal(&me, 100 * SECOND), None);
        let same = info(4, "desk");
        assert_eq!(taken(&me, &same, &[]), Some(&same));
        let members = [other.clone(), same.clone()];
        assert_eq!(taken(&me, &other, &members), Some(&same));
        assert!(names.wait(&same, SECOND).contains("'desk'"));
        names.wait(&same, 5 * SECOND);
        assert_eq!(
            names.refusal(&me, 5 * SECOND),
            None,
            "the other node may be dead, so this node still waits for the name"
        );
        let taken = Unwelcome::NameTaken {
            bearer: "127.0.0.1:1".into(),
            name: "desk".into(),
        };
        assert_eq!(names.refusal(&me, 7 * SECOND), Some(taken));
    }
}
