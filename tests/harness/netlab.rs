//! Virtual hosts on this machine whose network links can be slowed down, cut or blocked, through the script
//! `tests/netlab`.

// This wraps the whole script, whichever parts the tests use at present.
#![allow(dead_code)]

use std::ffi::OsStr;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use super::{CANNOT, skip};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/netlab");

/// A lab of virtual hosts with a name of its own, so that tests can run in parallel. On drop it is removed with all
/// processes on its hosts.
pub(crate) struct Netlab {
    name: String,
}

impl Netlab {
    /// Creates hosts 1 to `hosts` with links of this rate, such as `100mbit` or `none`. Returns `None`, after a visible
    /// message, if this machine cannot create a lab.
    pub(crate) fn up(hosts: usize, rate: &str) -> Option<Self> {
        static LABS: AtomicU32 = AtomicU32::new(0);
        let count = LABS.fetch_add(1, Ordering::Relaxed);
        let lab = Self {
            name: format!("test{}_{count}", std::process::id()),
        };
        let output = lab.output(&["up", &hosts.to_string(), rate]);
        if output.status.code() == Some(CANNOT) {
            let why = String::from_utf8_lossy(&output.stderr);
            let why = why.lines().last().unwrap_or_default();
            skip(&format!("it needs root and iproute2: {why}"));
            return None;
        }
        check(&output);
        Some(lab)
    }

    pub(crate) fn address(host: usize) -> String {
        format!("10.77.0.{host}")
    }

    /// Returns a command that runs on a host. The command keeps the id of the started process.
    pub(crate) fn command(&self, host: usize, program: impl AsRef<OsStr>) -> Command {
        let mut command = self.netlab(&["exec", &host.to_string()]);
        command.arg(program);
        command
    }

    pub(crate) fn rate(&self, host: usize, rate: &str) {
        self.run(&["rate", &host.to_string(), rate]);
    }

    pub(crate) fn cut(&self, host: usize) {
        self.run(&["cut", &host.to_string()]);
    }

    pub(crate) fn mend(&self, host: usize) {
        self.run(&["mend", &host.to_string()]);
    }

    pub(crate) fn block(&self, one: usize, other: usize) {
        self.run(&["block", &one.to_string(), &other.to_string()]);
    }

    /// Drops the packets that `other` sends to `one`.
    pub(crate) fn deafen(&self, one: usize, other: usize) {
        self.run(&["deafen", &one.to_string(), &other.to_string()]);
    }

    pub(crate) fn unblock(&self, one: usize, other: usize) {
        self.run(&["unblock", &one.to_string(), &other.to_string()]);
    }

    /// Returns the bytes that the host has sent and received so far.
    pub(crate) fn bytes(&self, host: usize) -> (u64, u64) {
        let text = self.run(&["bytes", &host.to_string()]);
        let (sent, received) = text.trim().split_once(' ').unwrap();
        (sent.parse().unwrap(), received.parse().unwrap())
    }

    fn netlab(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(SCRIPT);
        command.args(arguments).env("NETLAB", &self.name).stdin(Stdio::null());
        command
    }

    fn output(&self, arguments: &[&str]) -> Output {
        self.netlab(arguments).output().unwrap()
    }

    fn run(&self, arguments: &[&str]) -> String {
        let output = self.output(arguments);
        check(&output);
        String::from_utf8(output.stdout).unwrap()
    }
}

impl Drop for Netlab {
    fn drop(&mut self) {
        // A failure is ignored: a panic while a test unwinds would hide the test's failure.
        let _ = self.output(&["down"]);
    }
}

fn check(output: &Output) {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
