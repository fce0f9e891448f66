//! Parses hosts as users write them: `host`, `user@host`, `host:ssh-port`, or `@FILE` with one on each line. Pure,
//! except that it reads that file.

use std::fmt;

use protocol::wire::bounds::chosen_name;

/// Maximum number of letters of a node's name.
const NAME_MAX: usize = 32;

/// A host that is reached over ssh.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Host {
    user: Option<String>,
    address: String,
    pub(crate) port: Option<u16>,
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let user = self.user.as_ref().map_or(String::new(), |user| format!("{user}@"));
        match self.port {
            Some(port) if self.address.contains(':') => write!(f, "{user}[{}]:{port}", self.address),
            Some(port) => write!(f, "{user}{}:{port}", self.address),
            None => write!(f, "{user}{}", self.address),
        }
    }
}

impl Host {
    /// Parses a host. Texts that ssh could take for a flag, or that mean something to a shell, are refused.
    fn parse(text: &str) -> Option<Self> {
        let (user, rest) = match text.split_once('@') {
            Some((user, rest)) => (Some(user), rest),
            None => (None, text),
        };
        let (host, port) = match rest.strip_prefix('[') {
            Some(rest) => {
                let (host, behind) = rest.split_once(']')?;
                let port = match behind {
                    "" => None,
                    behind => Some(behind.strip_prefix(':')?),
                };
                (host, port)
            }
            // A text with several colons is an IPv6 address without a port.
            None => match rest.split_once(':') {
                Some((host, port)) if !port.contains(':') => (host, Some(port)),
                _ => (rest, None),
            },
        };
        let ordinary = |text: &str, more: &str| {
            let fits = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c) || more.contains(c);
            !text.is_empty() && !text.starts_with('-') && text.chars().all(fits)
        };
        if !ordinary(host, ":%") || !user.is_none_or(|user| ordinary(user, "")) {
            return None;
        }
        let port = match port {
            Some(port) => Some(port.parse().ok().filter(|port| *port > 0)?),
            None => None,
        };
        Some(Self {
            user: user.map(str::to_owned),
            address: host.to_owned(),
            port,
        })
    }

    /// Returns `user@address` for ssh's command line. The port is passed as a flag.
    pub(crate) fn destination(&self) -> String {
        match &self.user {
            Some(user) => format!("{user}@{}", self.address),
            None => self.address.clone(),
        }
    }
}

/// Parses a list of hosts. Fails with a sentence for each text that is not a host.
pub(crate) fn parse(texts: &[String]) -> Result<Vec<Host>, Vec<String>> {
    let mut wrong = Vec::new();
    let mut hosts: Vec<Host> = Vec::new();
    for (text, place) in listed(texts, &mut wrong) {
        match Host::parse(&text) {
            Some(host) if hosts.contains(&host) => wrong.push(format!("{place}host {text} is listed twice")),
            Some(host) => hosts.push(host),
            None => wrong.push(format!(
                "{place}'{text}' is no host: give HOST, USER@HOST or HOST:SSH-PORT, or @FILE with one on each line"
            )),
        }
    }
    if wrong.is_empty() && hosts.is_empty() {
        wrong.push("no host is named: give HOST, USER@HOST or HOST:SSH-PORT".into());
    }
    if wrong.is_empty() { Ok(hosts) } else { Err(wrong) }
}

/// Returns every host of the user's list, and of the files that the list names, with its place in a file for error
/// messages.
fn listed(texts: &[String], wrong: &mut Vec<String>) -> Vec<(String, String)> {
    let mut listed = Vec::new();
    for text in texts {
        let Some(file) = text.strip_prefix('@') else {
            listed.push((text.clone(), String::new()));
            continue;
        };
        match std::fs::read_to_string(file) {
            Ok(lines) => {
                let lines = lines
                    .lines()
                    .map(|line| line.split('#').next().unwrap_or_default().trim());
                let lines = lines.enumerate().filter(|(_, line)| !line.is_empty());
                listed.extend(lines.map(|(at, line)| (line.to_owned(), format!("{file}, line {}: ", at + 1))));
            }
            Err(error) => wrong.push(format!(
                "{file} could not be read: {error}; give a file with a host on each line"
            )),
        }
    }
    listed
}

/// Derives the name of the node on each host from the host's address. The same list always gives the same names.
pub(crate) fn names(hosts: &[Host]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for host in hosts {
        let plain = plain(&host.address);
        let with = |more: &str| {
            let room = NAME_MAX.saturating_sub(more.len());
            format!("{}{more}", &plain[..plain.len().min(room)])
        };
        let by_port = host.port.map(|port| with(&format!("-{port}")));
        let by_place = (2..).map(|place| with(&format!("-{place}")));
        let mut candidates = std::iter::once(with("")).chain(by_port).chain(by_place);
        names.extend(candidates.find(|name| !names.contains(name)));
    }
    names
}

/// Replaces the letters of a host's address that a node's name cannot contain.
fn plain(host: &str) -> String {
    let letters = host.chars().map(|c| {
        if c.is_ascii_alphanumeric() || ".-_".contains(c) {
            c
        } else {
            '-'
        }
    });
    let name: String = letters
        .skip_while(|c| !c.is_ascii_alphanumeric())
        .take(NAME_MAX)
        .collect();
    chosen_name(&name).unwrap_or_else(|_| "host".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|&text| text.to_owned()).collect()
    }

    #[test]
    fn hosts_have_users_and_ports() {
        let given = ["a", "u@b.example", "10.0.0.1:2222", "u@[::1]:22", "fe80::1", "[::2]"];
        let hosts = parse(&texts(&given)).unwrap();
        let seen: Vec<_> = hosts.iter().map(|host| (host.destination(), host.port)).collect();
        let expected = [
            ("a", None),
            ("u@b.example", None),
            ("10.0.0.1", Some(2222)),
            ("u@::1", Some(22)),
            ("fe80::1", None),
            ("::2", None),
        ];
        assert_eq!(seen, expected.map(|(host, port)| (host.to_owned(), port)));
        assert_eq!(hosts[3].to_string(), "u@[::1]:22");
        assert_eq!(hosts[2].to_string(), "10.0.0.1:2222");
    }

    #[test]
    fn what_is_no_host_is_named_and_nothing_reaches_a_shell() {
        for bad in [
            "",
            "-oProxyCommand=x",
            "u@-x",
            "-u@x",
            "a b",
            "a;b",
            "a$(b)",
            "a`b`",
            "a'b",
            "a\"b",
            "a\nb",
            "a:0",
            "a:x",
            "a:99999",
            "@",
            "u@",
            "[::1",
            "[::1]x",
            "a/b",
            "é",
        ] {
            assert!(parse(&texts(&[bad])).is_err(), "{bad:?}");
        }
        assert_eq!(parse(&texts(&["a", "b", "a"])).unwrap_err(), ["host a is listed twice"]);
    }

    #[test]
    fn a_file_has_a_host_on_each_line() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "# two\nu@a:22\n\n  b # the other\n").unwrap();
        let at = format!("@{}", file.path().display());
        let hosts = parse(&texts(&["c", &at])).unwrap();
        assert_eq!(
            hosts.iter().map(Host::to_string).collect::<Vec<_>>(),
            ["c", "u@a:22", "b"]
        );
        std::fs::write(file.path(), "a\n@b\n").unwrap();
        let wrong = parse(&[at]).unwrap_err();
        assert!(wrong[0].contains("line 2"), "{wrong:?}");
        assert!(parse(&texts(&["@/nowhere/hosts"])).unwrap_err()[0].contains("/nowhere/hosts"));
    }

    #[test]
    fn names_are_valid_and_differ() {
        let long = "x".repeat(60);
        let given = ["a", "u@a", "a:22", "v@a:22", "::1", "%x", &long, &format!("u@{long}")];
        let names = names(&parse(&texts(&given)).unwrap());
        assert_eq!(names[..6], ["a", "a-2", "a-22", "a-3", "1", "x"].map(String::from));
        let mut distinct = names.clone();
        distinct.sort();
        distinct.dedup();
        assert_eq!(distinct.len(), given.len());
        for name in names {
            assert_eq!(chosen_name(&name).as_ref(), Ok(&name));
        }
    }
}
