//! `tau down`: stops the nodes that `tau up` started, and removes the files that it copied.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::task::JoinSet;

use crate::args::Down;
use crate::failure::Failure;
use crate::fleet::{RemoteFailure, StoppedHost};
use crate::output::notice;
use crate::runtime;

pub(crate) fn run(arguments: &Down) -> Result<(), Failure> {
    let (hosts, fleet) = arguments.fleet.read()?;
    let purge = arguments.purge;
    runtime::run_async(async {
        let fleet = Arc::new(fleet);
        let mut ending = JoinSet::new();
        for (place, host) in hosts.iter().cloned().enumerate() {
            let fleet = Arc::clone(&fleet);
            ending.spawn(async move { (place, fleet.down(&host, purge).await) });
        }
        let ended: BTreeMap<usize, Result<StoppedHost, RemoteFailure>> = ending.join_all().await.into_iter().collect();
        let mut wrong = Vec::new();
        for (place, ended) in ended {
            let host = &hosts[place];
            match ended {
                Ok(ended) => notice::say(&format!("{host}: {}", sentence(&ended))),
                Err(trouble) => wrong.push(format!("{host}: {}", trouble.why)),
            }
        }
        if wrong.is_empty() {
            Ok(())
        } else {
            Err(Failure::Refused(wrong))
        }
    })
}

/// Describes for people what `tau down` did on one host: how its node ended, and which files are left.
fn sentence(ended: &StoppedHost) -> String {
    let node = match ended.ran {
        Some(true) => "the node had to be killed",
        Some(false) => "the node has ended",
        None if ended.removed => "no node was running",
        None => return "no node and no files of Tau were found".into(),
    };
    match &ended.kept {
        Some(kept) => format!("{node}; kept: {kept}"),
        None => format!("{node}; all files were removed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_became_of_a_host_is_said() {
        let said = |ran, removed, kept: Option<&str>| {
            sentence(&StoppedHost {
                ran,
                removed,
                kept: kept.map(str::to_owned),
            })
        };
        assert_eq!(
            said(Some(false), true, None),
            "the node has ended; all files were removed"
        );
        assert_eq!(
            said(Some(true), true, Some("d/node")),
            "the node had to be killed; kept: d/node"
        );
        assert_eq!(said(None, true, None), "no node was running; all files were removed");
        assert_eq!(said(None, false, None), "no node and no files of Tau were found");
    }
}
