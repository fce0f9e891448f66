//! Runs scripts on hosts with the system's ssh.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::process::Command;

use super::hosts::Host;
use super::scripts::{Said, command};

/// Exit code of ssh's own failures.
const SSH_FAILED: i32 = 255;

/// Runs scripts on hosts with an ssh command, given in shell syntax.
#[derive(Clone, Debug)]
pub(crate) struct Remote {
    pub(crate) ssh: String,
}

/// A script to run on a host, with its arguments and limits.
pub(crate) struct RemoteCommand<'a> {
    pub(crate) script: &'static str,
    pub(crate) arguments: Vec<String>,
    /// File that the script on a host reads as its standard input.
    pub(crate) input: Option<&'a Path>,
    /// Time that the script may take on a host.
    pub(crate) limit: Duration,
}

/// Failure of a script on a host, or of the connection to the host.
#[derive(Clone, Debug)]
pub(crate) struct RemoteFailure {
    /// Reason why a script on a host failed, as one sentence.
    pub(crate) why: String,
    /// Output of the script on a host before it failed.
    pub(crate) said: Said,
}

impl From<String> for RemoteFailure {
    fn from(why: String) -> Self {
        Self {
            why,
            said: Said::default(),
        }
    }
}

impl Remote {
    /// Runs a script on a host within its time limit. Ssh must not ask for a password, because there is no user to
    /// answer.
    pub(crate) async fn run(&self, host: &Host, errand: RemoteCommand<'_>) -> Result<Said, RemoteFailure> {
        let limit = errand.limit;
        let ran = tokio::time::timeout(limit, self.run_at_leisure(host, errand)).await;
        ran.unwrap_or_else(|_| {
            let seconds = limit.as_secs();
            Err(RemoteFailure::from(format!(
                "the host did not answer within {seconds} seconds"
            )))
        })
    }

    async fn run_at_leisure(&self, host: &Host, errand: RemoteCommand<'_>) -> Result<Said, RemoteFailure> {
        let mut ssh = Command::new("sh");
        ssh.args(["-c", &format!("exec {} \"$@\"", self.ssh), "ssh"]);
        ssh.args(["-o", "BatchMode=yes", "-o", "ConnectTimeout=10"]);
        if let Some(port) = host.port {
            ssh.args(["-p", &port.to_string()]);
        }
        ssh.args(["--", &host.destination(), &command(errand.script, &errand.arguments)]);
        let input = match errand.input {
            Some(file) => {
                let opened = std::fs::File::open(file);
                opened
                    .map_err(|error| format!("{} could not be read: {error}", file.display()))?
                    .into()
            }
            None => Stdio::null(),
        };
        ssh.stdin(input)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let not_run = |error: std::io::Error| format!("'{}' could not be run: {error}", self.ssh);
        let mut child = ssh.spawn().map_err(not_run)?;
        let (mut output, mut errors) = (String::new(), String::new());
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        tokio::join!(read(stdout, &mut output), read(stderr, &mut errors));
        let status = child.wait().await.map_err(not_run)?;
        let said = Said::parse(&output);
        if status.success() {
            return Ok(said);
        }
        let last = errors.lines().rev().map(str::trim).find(|line| !line.is_empty());
        let last = last.unwrap_or("there was no error message");
        let why = if status.code() == Some(SSH_FAILED) {
            let port = host.port.map_or(String::new(), |port| format!(" -p {port}"));
            format!(
                "the host could not be reached ({last}): check that '{}{port} {} true' works without asking for a \
                 password",
                self.ssh,
                host.destination()
            )
        } else {
            last.to_owned()
        };
        Err(RemoteFailure { why, said })
    }
}

/// Reads a stream to its end. Bytes that are not UTF-8 are replaced.
async fn read(from: Option<impl tokio::io::AsyncRead + Unpin>, to: &mut String) {
    let mut bytes = Vec::new();
    if let Some(mut from) = from {
        let _ = from.read_to_end(&mut bytes).await;
    }
    *to = String::from_utf8_lossy(&bytes).into_owned();
}
