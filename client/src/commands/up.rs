//! `tau up`: starts a cluster on other machines over ssh. If one host fails, the nodes started on the others are
//! removed again.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Parser;
use communicator::transport::{Credentials, Security};
use protocol::wire::control::{Reply, Request, SILENT};
use sha2::{Digest, Sha256};
use tokio::task::JoinSet;

use super::access;
use crate::args::{Arguments, Command, FleetFlags, Seed, Up};
use crate::contact::Contact;
use crate::failure::Failure;
use crate::fleet::hosts::{self, Host};
use crate::fleet::{Fleet, Listening, RemoteFailure, SurveyedHost, quoted};
use crate::local::cluster;
use crate::output::text_layout::capitalised;
use crate::output::{self, notice};
use crate::run::interrupt;
use crate::runtime;

/// Default path of the credentials file.
const CREDENTIALS: &str = "cluster.pem";
/// Time that listening nodes may take to join the cluster and have a worker each.
const MEMBER_LIMIT: Duration = Duration::from_mins(1);
/// Interval at which `tau up` asks the cluster for its members; `LOOK_AGAIN` is that at which it asks hosts whether
/// their nodes still run.
const ASK_AGAIN: Duration = Duration::from_millis(200);
const LOOK_AGAIN: Duration = Duration::from_secs(3);

impl FleetFlags {
    pub(crate) fn read(&self) -> Result<(Vec<Host>, Fleet), Failure> {
        let hosts = hosts::parse(&self.hosts).map_err(Failure::BadInput)?;
        let fleet = Fleet::new(&self.ssh, &self.dir).map_err(Failure::input)?;
        Ok((hosts, fleet))
    }
}

/// A host on which `tau up` starts a node, or finds one running.
struct Member {
    host: Host,
    name: String,
    found: SurveyedHost,
    /// Address and name of the node on the host, once it listens.
    listening: Option<Listening>,
}

impl Member {
    /// Returns true if a node already ran on the host before `tau up` began.
    fn ran(&self) -> bool {
        self.found.runs
    }

    /// Describes a failure on the host for people, with the last lines of the node's log.
    fn says(&self, trouble: &RemoteFailure) -> String {
        let log = trouble.said.all("log").map(str::to_owned).collect::<Vec<_>>();
        with_log(format!("{}: {}", self.host, trouble.why), &log)
    }
}

/// Appends the last lines of a node's log to a sentence.
fn with_log(mut sentence: String, log: &[String]) -> String {
    if !log.is_empty() {
        sentence.push_str("; the last lines of the node's log:");
        for line in log {
            let _ = write!(sentence, "\n  | {line}");
        }
    }
    sentence
}

pub(crate) fn run(arguments: &Up) -> Result<(), Failure> {
    let (hosts, fleet) = arguments.fleet.read()?;
    check_node_flags(&arguments.node)?;
    let file = access::credentials(arguments.credentials.as_deref())?.unwrap_or_else(|| CREDENTIALS.into());
    if file.exists() {
        Credentials::read(&file).map_err(Failure::bad)?;
    }
    runtime::run_async(async {
        let fleet = Arc::new(fleet);
        let program = Program::own()?;
        let mut members = look(&fleet, hosts).await?;
        check(&members, &program)?;
        if !file.exists() {
            Credentials::create(&file).map_err(Failure::bad)?;
            notice::say(&format!("{} holds the new cluster's credentials", file.display()));
        }
        // Until here nothing was changed on any host: a signal ends the program at once.
        interrupt::watch()?;
        let brought_up = tokio::select! {
            result = bring_up(&fleet, &mut members, &program, &file, arguments) => result,
            () = interrupt::wait() => Err(vec!["interrupted".into()]),
        };
        match brought_up {
            Ok(()) => {
                tell(&members, &file, arguments);
                Ok(())
            }
            Err(reasons) => {
                let mut reasons = reasons;
                reasons.extend(take_down(&fleet, &members).await);
                Err(Failure::Refused(reasons))
            }
        }
    })
}

/// Checks the flags for nodes before any host is changed: 'tau seed' must accept them, and 'tau up' must not set them
/// itself.
fn check_node_flags(flags: &[String]) -> Result<(), Failure> {
    let words = ["tau", "seed"]
        .map(String::from)
        .into_iter()
        .chain(flags.iter().cloned());
    let parsed = Arguments::try_parse_from(words).map_err(|error| {
        let text = error.to_string();
        let first = text.lines().next().unwrap_or_default().trim_start_matches("error: ");
        Failure::input(format!("flags after '--' must be flags of 'tau seed': {first}"))
    })?;
    let has = |flag: &str| {
        flags
            .iter()
            .any(|given| given == flag || given.starts_with(&format!("{flag}=")))
    };
    let own = |seed: &Seed| {
        seed.node.name.is_some() || seed.node.dir.is_some() || seed.node.security.insecure || has("--credentials")
    };
    match parsed.command {
        Command::Seed(seed) if !own(&seed) => Ok(()),
        _ => Err(Failure::input(
            "'tau up' itself gives every node its --name, --dir and --credentials: leave them out after '--', and \
             --insecure as well",
        )),
    }
}

/// The executable file of this program, which is copied to hosts.
struct Program {
    path: PathBuf,
    sha256: String,
}

impl Program {
    fn own() -> Result<Self, Failure> {
        let path = cluster::program()?;
        let sha256 = sha256(&path)?;
        Ok(Self { path, sha256 })
    }
}

/// Returns the SHA-256 of a file in hexadecimal, as `sha256sum` prints it.
fn sha256(path: &Path) -> Result<String, Failure> {
    let bytes = std::fs::read(path)
        .map_err(|error| Failure::Failed(format!("{} could not be read: {error}", path.display())))?;
    let digest = Sha256::digest(&bytes);
    Ok(digest.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    }))
}

/// Surveys all hosts at once. Fails with a sentence for each host that cannot be surveyed.
async fn look(fleet: &Arc<Fleet>, hosts: Vec<Host>) -> Result<Vec<Member>, Failure> {
    let names = hosts::names(&hosts);
    let mut looking = JoinSet::new();
    for (place, host) in hosts.iter().cloned().enumerate() {
        let fleet = Arc::clone(fleet);
        looking.spawn(async move { (place, fleet.look(&host).await) });
    }
    let mut looked: BTreeMap<usize, Result<SurveyedHost, RemoteFailure>> =
        looking.join_all().await.into_iter().collect();
    let (mut members, mut wrong) = (Vec::new(), Vec::new());
    for (place, (host, name)) in hosts.into_iter().zip(names).enumerate() {
        match looked.remove(&place) {
            Some(Ok(found)) => {
                let listening = found.listening.clone().filter(|_| found.runs);
                members.push(Member {
                    host,
                    name,
                    found,
                    listening,
                });
            }
            Some(Err(trouble)) => wrong.push(format!("{host}: {}", trouble.why)),
            None => {}
        }
    }
    if wrong.is_empty() {
        return Ok(members);
    }
    wrong.push("nothing was changed on any host".into());
    Err(Failure::Refused(wrong))
}

/// Checks that this program can run on all hosts, and that nodes already running there are of the same build.
fn check(members: &[Member], program: &Program) -> Result<(), Failure> {
    let own = format!("{} {}", capitalised(std::env::consts::OS), std::env::consts::ARCH);
    let wrong = |member: &Member| {
        let (host, found) = (&member.host, &member.found);
        if found.machine != own {
            return Some(format!(
                "{host}: the host is '{}', but this program is built for '{own}'",
                found.machine
            ));
        }
        match &found.listening {
            _ if !found.runs => None,
            _ if found.program.as_ref() != Some(&program.sha256) => Some(format!(
                "{host}: a node of another build of Tau runs there: stop it with 'tau down {host}' first"
            )),
            None => Some(format!(
                "{host}: a node runs there, but its log does not contain its address: stop the node with 'tau down \
                 {host}' first"
            )),
            Some(_) => None,
        }
    };
    let mut wrong: Vec<String> = members.iter().filter_map(wrong).collect();
    if wrong.is_empty() {
        return Ok(());
    }
    wrong.push("nothing was changed on any host".into());
    Err(Failure::Refused(wrong))
}

/// Copies files to hosts, starts nodes there and waits until the nodes are members of the cluster. Fails with a
/// sentence for each host where that failed.
async fn bring_up(
    fleet: &Arc<Fleet>,
    members: &mut [Member],
    program: &Program,
    file: &Path,
    arguments: &Up,
) -> Result<(), Vec<String>> {
    let failed = |failure: Failure| failure.reasons();
    let credentials = sha256(file).map_err(failed)?;
    for member in members.iter().filter(|member| member.ran()) {
        notice::say(&format!(
            "{}: a node is already running there and is left as it is",
            member.host
        ));
    }
    let mut copying = JoinSet::new();
    for member in members.iter().filter(|member| !member.ran()) {
        let (fleet, host) = (Arc::clone(fleet), member.host.clone());
        let same = member.found.program.as_ref() == Some(&program.sha256);
        let program = (!same).then(|| (program.path.clone(), program.sha256.clone()));
        let (file, credentials) = (file.to_owned(), credentials.clone());
        copying.spawn(async move {
            let copied = async {
                if let Some((path, sha256)) = &program {
                    fleet.copy_program(&host, path, sha256).await?;
                    notice::say(&format!("{host}: the program is copied"));
                }
                fleet.copy_credentials(&host, &file, &credentials).await
            };
            copied
                .await
                .map_err(|trouble: RemoteFailure| format!("{host}: {}", trouble.why))
        });
    }
    let wrong: Vec<String> = copying.join_all().await.into_iter().filter_map(Result::err).collect();
    if !wrong.is_empty() {
        return Err(wrong);
    }
    start(fleet, members, arguments).await?;
    wait(fleet, members, file).await
}

/// Starts the nodes that do not run yet. If no host runs one, the first node founds the cluster; the others join it.
async fn start(fleet: &Arc<Fleet>, members: &mut [Member], arguments: &Up) -> Result<(), Vec<String>> {
    if members.iter().all(|member| !member.ran())
        && let Some(first) = members.first_mut()
    {
        let words = node_arguments(first, &[], arguments);
        let started = fleet.start(&first.host, &words).await;
        first.listening = Some(started.map_err(|trouble| vec![first.says(&trouble)])?);
        say_started(first);
    }
    let there: Vec<String> = members
        .iter()
        .filter_map(|member| Some(member.listening.as_ref()?.address.to_string()))
        .collect();
    let mut starting = JoinSet::new();
    for (place, member) in members
        .iter()
        .enumerate()
        .filter(|(_, member)| member.listening.is_none())
    {
        let (fleet, host) = (Arc::clone(fleet), member.host.clone());
        let words = node_arguments(member, &there, arguments);
        starting.spawn(async move { (place, fleet.start(&host, &words).await) });
    }
    let mut wrong = Vec::new();
    for (place, started) in starting.join_all().await {
        match started {
            Ok(listening) => {
                members[place].listening = Some(listening);
                say_started(&members[place]);
            }
            Err(trouble) => wrong.push(members[place].says(&trouble)),
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong) }
}

fn say_started(member: &Member) {
    if let Some(Listening { address, node }) = &member.listening {
        notice::say(&format!("{}: the node {node} listens on {address}", member.host));
    }
}

/// Returns the command-line arguments of a node. The user's own flags stand last and so override the others.
fn node_arguments(member: &Member, seeds: &[String], arguments: &Up) -> Vec<String> {
    let mut words = match seeds {
        [] => vec!["seed".to_owned()],
        seeds => vec!["join".to_owned(), seeds.join(",")],
    };
    words.extend(["--name".into(), member.name.clone()]);
    words.extend(["--listen".into(), format!(":{}", arguments.port)]);
    if let Some(address) = member.found.advertised() {
        words.extend(["--advertise".into(), address]);
    }
    words.extend_from_slice(&arguments.node);
    words
}

/// Waits until all nodes are members of the cluster and have a worker.
async fn wait(fleet: &Arc<Fleet>, members: &[Member], file: &Path) -> Result<(), Vec<String>> {
    let failed = |failure: Failure| failure.reasons();
    let credentials = Credentials::read(file).map_err(|error| failed(Failure::bad(error)))?;
    let addresses: Vec<SocketAddr> = members
        .iter()
        .filter_map(|member| Some(member.listening.as_ref()?.address))
        .collect();
    let contact = Contact::new(addresses, Security::Credentials(Arc::new(credentials)))
        .await
        .map_err(failed)?;
    let mut missing: Vec<&Member> = members.iter().collect();
    let (started, mut looked) = (Instant::now(), Instant::now());
    while !missing.is_empty() {
        let answer = tokio::time::timeout(LOOK_AGAIN, contact.ask(Request::Nodes)).await;
        // A node that takes longer than this to answer is asked again.
        let answer = answer.ok().transpose().map_err(failed)?;
        if let Some(Reply::Nodes(nodes)) = answer {
            missing.retain(|member| {
                let own = |listening: &Listening| {
                    let mut ready = nodes.iter().filter(|node| node.state != SILENT && node.workers > 0);
                    ready.find(|node| node.node == listening.node && node.address == listening.address.to_string())
                };
                let node = member.listening.as_ref().and_then(own);
                if let Some(node) = node {
                    notice::say(&format!(
                        "{}: node {} has joined the cluster ({}, {})",
                        member.host, node.node, node.device, node.state
                    ));
                }
                node.is_none()
            });
        }
        let late = started.elapsed() > MEMBER_LIMIT;
        if !missing.is_empty() && (late || looked.elapsed() > LOOK_AGAIN) {
            looked = Instant::now();
            let wrong = look_after(fleet, &missing, late).await;
            if !wrong.is_empty() {
                return Err(wrong);
            }
        }
        tokio::time::sleep(ASK_AGAIN).await;
    }
    Ok(())
}

/// Surveys the hosts of nodes that have not joined the cluster with a worker yet. Returns a sentence for each node that
/// has exited or, if their time is up (`late`), for every one of these nodes.
async fn look_after(fleet: &Arc<Fleet>, missing: &[&Member], late: bool) -> Vec<String> {
    let mut looking = JoinSet::new();
    for member in missing {
        let (fleet, host) = (Arc::clone(fleet), member.host.clone());
        looking.spawn(async move {
            match fleet.look(&host).await {
                Ok(found) if !found.runs => Some(with_log(format!("{host}: the node has exited"), &found.log)),
                Ok(found) if late => {
                    let seconds = MEMBER_LIMIT.as_secs();
                    let why = format!(
                        "{host}: the node did not join the cluster with a worker within {seconds} \
                                       seconds"
                    );
                    Some(with_log(why, &found.log))
                }
                Ok(_) => None,
                Err(trouble) => late.then(|| format!("{host}: {}", trouble.why)),
            }
        });
    }
    looking.join_all().await.into_iter().flatten().collect()
}

/// Stops and removes the nodes that `tau up` started, after `tau up` has failed. Returns a sentence for each host on
/// which they could not be removed.
async fn take_down(fleet: &Arc<Fleet>, members: &[Member]) -> Vec<String> {
    let mut ending = JoinSet::new();
    for member in members.iter().filter(|member| !member.ran()) {
        let (fleet, host) = (Arc::clone(fleet), member.host.clone());
        ending.spawn(async move {
            let ended = fleet.down(&host, false).await;
            ended.err().map(|trouble| {
                format!(
                    "{host}: the node started there could not be removed again: {}",
                    trouble.why
                )
            })
        });
    }
    let left: Vec<String> = ending.join_all().await.into_iter().flatten().collect();
    if left.is_empty() {
        notice::say("the nodes that this command started were stopped and removed again");
    }
    left
}

/// Prints the addresses of the nodes that `tau up` has started, the command that starts a run on them and the command
/// that stops them.
fn tell(members: &[Member], file: &Path, arguments: &Up) {
    let addresses: Vec<String> = members
        .iter()
        .filter_map(|member| Some(member.listening.as_ref()?.address.to_string()))
        .collect();
    let hosts: Vec<String> = members.iter().map(|member| member.host.to_string()).collect();
    let (cluster, file) = (addresses.join(","), file.display());
    let unless = |flag: &str, value: &str, usual: &str| {
        let said = (value != usual).then(|| format!(" {flag} {}", quoted(value)));
        said.unwrap_or_default()
    };
    let reached = unless("--ssh", &arguments.fleet.ssh, "ssh") + &unless("--dir", &arguments.fleet.dir, "tau-up");
    output::text(&format!(
        "{} nodes are up: {cluster}\nstart a run:    tau start --cluster {cluster} --credentials {file}\nstop the \
         nodes: tau down {}{reached}\n",
        members.len(),
        hosts.join(" "),
    ));
}
