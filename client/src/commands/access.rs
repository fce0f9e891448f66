//! Connects a command to its cluster: finds the addresses of nodes and the credentials, in flags, a token or the user's
//! configuration.

use std::net::{Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use communicator::transport::{Credentials, Security};

use crate::args::{CREDENTIALS_VARIABLE, Cluster, PORT, SecurityFlags};
use crate::contact::Contact;
use crate::failure::Failure;
use crate::settings::config_file::ConfigFile;
use crate::settings::token::Token;

/// Returns the security of connections that the flags ask for: credentials, or none with `--insecure`.
fn security(flags: &SecurityFlags) -> Result<Security, Failure> {
    if flags.insecure {
        let by_flag = |file: &PathBuf| std::env::var_os(CREDENTIALS_VARIABLE).is_none_or(|said| said != **file);
        return if flags.credentials.as_ref().is_some_and(by_flag) {
            Err(Failure::input("give either --credentials or --insecure, not both"))
        } else {
            Ok(Security::Insecure)
        };
    }
    let file = credentials(flags.credentials.as_deref())?.ok_or_else(|| {
        Failure::input(
            "give the cluster's credentials with --credentials FILE ('tau credentials new FILE' creates them), or \
             --insecure if all nodes run on this machine",
        )
    })?;
    let credentials = Credentials::read(&file).map_err(Failure::bad)?;
    Ok(Security::Credentials(Arc::new(credentials)))
}

/// Returns the path of the credentials file: the given one, else the one in the user's configuration.
pub(crate) fn credentials(given: Option<&Path>) -> Result<Option<PathBuf>, Failure> {
    match given {
        Some(file) => Ok(Some(file.to_owned())),
        None => Ok(ConfigFile::read()?.credentials),
    }
}

/// Returns the addresses of the cluster's nodes: the given ones, else those in the user's configuration.
pub(super) fn cluster_nodes(given: &[String]) -> Result<Vec<String>, Failure> {
    let nodes = match given {
        [] => ConfigFile::read()?.cluster,
        given => given.to_vec(),
    };
    if nodes.is_empty() {
        return Err(Failure::input(
            "give the address of a node with --cluster HOST:PORT, in TAU_CLUSTER or in your config.toml",
        ));
    }
    Ok(nodes)
}

/// Resolves addresses of nodes, whose hosts are names or IP addresses. Returns all addresses of a name, because a node
/// may listen on any of them.
pub(super) async fn resolve(texts: &[String]) -> Result<Vec<SocketAddr>, Failure> {
    let mut addresses = Vec::new();
    for text in texts {
        let text = with_port(text).ok_or_else(|| {
            Failure::input(format!(
                "'{text}' is no address: give HOST:PORT, for example 192.168.1.10:{PORT}"
            ))
        })?;
        let found: Vec<SocketAddr> = tokio::net::lookup_host(&text).await.into_iter().flatten().collect();
        if found.is_empty() {
            let host = text.rsplit_once(':').map_or(&*text, |(host, _)| host);
            return Err(Failure::input(format!(
                "the host name '{host}' cannot be resolved: correct it, or give the host's IP address"
            )));
        }
        addresses.extend(found);
    }
    Ok(addresses)
}

/// Adds the default port to an address that has none. Returns none if the text is not an address.
fn with_port(text: &str) -> Option<String> {
    if text.parse::<Ipv6Addr>().is_ok() {
        return Some(format!("[{text}]:{PORT}"));
    }
    // Colons within the brackets of an IPv6 address do not precede a port.
    let end = text.rfind(']').map_or(0, |end| end + 1);
    let (host, port) = match text[end..].split_once(':') {
        Some((name, port)) => (&text[..end + name.len()], port.parse().ok()?),
        None => (text, PORT),
    };
    let is_host = !host.is_empty() && !host.contains(char::is_whitespace) && !host.contains('/');
    is_host.then(|| format!("{host}:{port}"))
}

/// Returns the addresses of a cluster's nodes and the security of connections, from flags or from a token that holds
/// both.
pub(super) async fn access(nodes: &[String], flags: &SecurityFlags) -> Result<(Vec<SocketAddr>, Security), Failure> {
    let token = nodes.iter().find_map(|text| Token::of(text));
    match token.transpose().map_err(Failure::input)? {
        Some(_) if flags.insecure || nodes.len() > 1 => Err(Failure::input(
            "a token already holds the cluster's addresses and credentials: give it without other addresses and \
             without --insecure",
        )),
        Some(token) => {
            let addresses = resolve(&token.addresses).await?;
            Ok((addresses, Security::Credentials(Arc::new(token.credentials))))
        }
        None => {
            let security = security(flags)?;
            Ok((resolve(nodes).await?, security))
        }
    }
}

/// Creates the contact through which a command asks the nodes of a cluster.
pub(super) async fn contact(cluster: &Cluster) -> Result<Contact, Failure> {
    let (addresses, security) = access(&cluster_nodes(&cluster.cluster)?, &cluster.security).await?;
    Contact::new(addresses, security).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_without_a_port_has_the_usual_one() {
        for (text, expected) in [
            ("node-1", "node-1:7700"),
            ("node-1:80", "node-1:80"),
            ("192.0.2.1", "192.0.2.1:7700"),
            ("::1", "[::1]:7700"),
            ("[::1]", "[::1]:7700"),
            ("[::1]:80", "[::1]:80"),
        ] {
            assert_eq!(with_port(text).as_deref(), Some(expected), "{text}");
        }
        for text in [
            "",
            ":7700",
            "node-1:",
            "node-1:http",
            "node-1:70000",
            "a:b:c",
            "two words",
            "./file",
        ] {
            assert_eq!(with_port(text), None, "{text}");
        }
    }
}
