//! Nodes on other machines, over ssh: the steps of `tau up` and `tau down` on one host.

pub(crate) mod hosts;
mod remote;
mod scripts;

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use communicator::Timing;
use serde::Deserialize;

use hosts::Host;
pub(crate) use remote::RemoteFailure;
use remote::{Remote, RemoteCommand};
pub(crate) use scripts::quoted;
use scripts::{COPY, DOWN, LOOK, START, Said};

/// File name of the credentials on hosts.
const CREDENTIALS: &str = "cluster.pem";
/// File name of the program on hosts.
const PROGRAM: &str = "tau";
/// Folder in Tau's folder on a host that is the node's own: for its socket, models and checkpoints.
const NODE: &str = "node";
/// Number of times per second that a script on a host checks on a node while the script waits.
const LOOKS_A_SECOND: u64 = 5;
/// Time that a host may take to report its state. Stopping a node may take this much longer than the node's own limit.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);
/// Time that copying the program to a host may take.
const COPY_LIMIT: Duration = Duration::from_mins(10);
/// Time that a started node may take until it listens.
const START_LIMIT: Duration = Duration::from_mins(1);

/// Runs the steps of `tau up` and `tau down` on hosts.
pub(crate) struct Fleet {
    remote: Remote,
    /// Tau's folder on every host; a relative path starts in the user's home.
    dir: String,
}

/// State of a host: its system, and Tau's files and node on it.
#[derive(Clone, Debug, Default)]
pub(crate) struct SurveyedHost {
    /// Operating system and processor of a host, as `uname -sm` prints them.
    pub(crate) machine: String,
    /// SHA-256 of Tau's program in its folder on the host; `None` if the folder has no program.
    pub(crate) program: Option<String>,
    /// True if a node runs on the host.
    pub(crate) runs: bool,
    /// The node's `listening` event, if its log still has it.
    pub(crate) listening: Option<Listening>,
    /// The host's own address, as this machine's ssh connection reached it.
    pub(crate) reached: Option<String>,
    /// The last lines of the node's log.
    pub(crate) log: Vec<String>,
}

/// The event in which a node reports its address and name.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct Listening {
    pub(crate) address: SocketAddr,
    pub(crate) node: String,
}

/// Outcome of stopping a host's node and removing its files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoppedHost {
    /// Outcome of stopping a host's node: none if no node ran, true if the node had to be killed, false if it ended by
    /// itself.
    pub(crate) ran: Option<Killed>,
    /// True if files of Tau were on the host and have been removed.
    pub(crate) removed: bool,
    /// Tau's folder on the host with the files that are still in it, if any.
    pub(crate) kept: Option<String>,
}

/// True for a node that had to be killed.
pub(crate) type Killed = bool;

impl Fleet {
    /// Creates access to hosts by the command `ssh`, with Tau's folder `dir` on each. Refuses a folder that a program
    /// could take for a flag, and one with `.` or `..` in its path.
    pub(crate) fn new(ssh: &str, dir: &str) -> Result<Self, String> {
        let dir = dir.trim_end_matches('/');
        // As a shell expands a tilde.
        let dir = dir.strip_prefix("~/").unwrap_or(dir);
        let steps_out = dir.split('/').any(|part| part == ".." || part == ".");
        if dir.is_empty() || dir.starts_with(['-', '~']) || steps_out || dir.chars().any(char::is_control) {
            return Err(format!(
                "--dir '{dir}' cannot be the folder for Tau on a host: give a path such as tau-up, under the user's \
                 home, or /srv/tau"
            ));
        }
        if ssh.trim().is_empty() {
            return Err("--ssh is empty: give a command such as 'ssh -i key'".into());
        }
        Ok(Self {
            remote: Remote { ssh: ssh.into() },
            dir: dir.into(),
        })
    }

    /// Surveys a host: its system, and Tau's files and node on it.
    pub(crate) async fn look(&self, host: &Host) -> Result<SurveyedHost, RemoteFailure> {
        let errand = self.errand(LOOK, &[], ANSWER_LIMIT);
        Ok(SurveyedHost::of(&self.remote.run(host, errand).await?))
    }

    pub(crate) async fn copy_program(&self, host: &Host, file: &Path, sha256: &str) -> Result<(), RemoteFailure> {
        self.copy(host, file, PROGRAM, "700", sha256).await
    }

    /// Copies the credentials to a host, readable by their owner only.
    pub(crate) async fn copy_credentials(&self, host: &Host, file: &Path, sha256: &str) -> Result<(), RemoteFailure> {
        self.copy(host, file, CREDENTIALS, "600", sha256).await
    }

    async fn copy(&self, host: &Host, file: &Path, name: &str, mode: &str, sha256: &str) -> Result<(), RemoteFailure> {
        let arguments = [name, mode, sha256].map(String::from);
        let mut errand = self.errand(COPY, &arguments, COPY_LIMIT);
        errand.input = Some(file);
        self.remote.run(host, errand).await.map(drop)
    }

    /// Starts a node on a host, detached from the ssh session, and waits until it listens.
    pub(crate) async fn start(&self, host: &Host, node: &[String]) -> Result<Listening, RemoteFailure> {
        let Self { dir, .. } = self;
        let (begins, rest) = node.split_at(
            node.iter()
                .position(|word| word.starts_with("--"))
                .unwrap_or(node.len()),
        );
        let mut arguments = vec![(START_LIMIT.as_secs() * LOOKS_A_SECOND).to_string()];
        arguments.extend_from_slice(begins);
        arguments.extend(["--credentials".into(), format!("{dir}/{CREDENTIALS}")]);
        arguments.extend(["--dir".into(), format!("{dir}/{NODE}"), "--json".into()]);
        arguments.extend_from_slice(rest);
        let errand = self.errand(START, &arguments, START_LIMIT + ANSWER_LIMIT);
        let said = self.remote.run(host, errand).await?;
        listening(&said).ok_or_else(|| {
            RemoteFailure::from("the node has started, but its log does not contain its address".to_owned())
        })
    }

    /// Stops the node on a host and removes the copied files; with `purge` also the models and checkpoints.
    pub(crate) async fn down(&self, host: &Host, purge: bool) -> Result<StoppedHost, RemoteFailure> {
        let patience = Timing::DEFAULT.stop_limit();
        let looks = patience.as_secs() * LOOKS_A_SECOND;
        let arguments = [looks.to_string(), u8::from(purge).to_string()];
        let errand = self.errand(DOWN, &arguments, 2 * patience + ANSWER_LIMIT);
        let said = self.remote.run(host, errand).await?;
        Ok(StoppedHost {
            ran: said.of("killed").map(|_| true).or(said.of("ended").map(|_| false)),
            removed: said.of("removed").is_some(),
            kept: said.of("kept").map(str::to_owned),
        })
    }

    fn errand(&self, script: &'static str, more: &[String], limit: Duration) -> RemoteCommand<'static> {
        let mut arguments = vec![self.dir.clone()];
        arguments.extend_from_slice(more);
        RemoteCommand {
            script,
            arguments,
            input: None,
            limit,
        }
    }
}

impl SurveyedHost {
    fn of(said: &Said) -> Self {
        // The fields are: the client's address, its port, the host's address, its port.
        let reached = said.of("reached").and_then(|text| text.split(' ').nth(2));
        Self {
            machine: said.of("machine").unwrap_or_default().into(),
            program: said.of("binary").filter(|sum| !sum.is_empty()).map(str::to_owned),
            runs: said.of("running").is_some(),
            listening: listening(said),
            reached: reached.map(str::to_owned),
            log: said.all("log").map(str::to_owned).collect(),
        }
    }

    /// Returns the address that a node on this host should advertise, if this machine knows a useful one: a loopback
    /// address would lead other machines to themselves.
    pub(crate) fn advertised(&self) -> Option<String> {
        let ip: std::net::IpAddr = self.reached.as_deref()?.split('%').next()?.parse().ok()?;
        let port = 0;
        (!ip.is_loopback()).then(|| SocketAddr::new(ip, port).to_string())
    }
}

fn listening(said: &Said) -> Option<Listening> {
    serde_json::from_str(said.of("listening")?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_found_is_read_from_what_the_host_says() {
        let text = "tau: machine Linux x86_64\ntau: reached 10.0.0.9 5000 10.0.0.1 22\ntau: binary \ntau: running 7\n\
                    tau: listening {\"event\":\"listening\",\"address\":\"10.0.0.1:7700\",\"node\":\"a\"}\ntau: log x\n";
        let found = SurveyedHost::of(&Said::parse(text));
        assert_eq!((found.machine.as_str(), found.program.as_ref()), ("Linux x86_64", None));
        assert_eq!(found.listening.as_ref().unwrap().node, "a");
        assert_eq!(found.advertised().as_deref(), Some("10.0.0.1:0"));
        assert_eq!(found.log, ["x"]);
        let reached = |text: &str| SurveyedHost::of(&Said::parse(text)).advertised();
        assert_eq!(reached("tau: reached ::1 1 ::1 22"), None);
        assert_eq!(reached("tau: reached "), None);
        assert_eq!(
            reached("tau: reached fe80::2 1 fe80::1 22").as_deref(),
            Some("[fe80::1]:0")
        );
    }

    #[test]
    fn a_folder_is_one_of_its_own() {
        for good in ["tau-up", "a/b", "/srv/tau", "with space", "~/x/"] {
            assert!(Fleet::new("ssh", good).is_ok(), "{good}");
        }
        for bad in ["", "/", ".", "..", "a/..", "~", "~root/x", "-rf", "a\nb"] {
            assert!(Fleet::new("ssh", bad).is_err(), "{bad:?}");
        }
        assert!(Fleet::new(" ", "a").is_err());
    }
}
