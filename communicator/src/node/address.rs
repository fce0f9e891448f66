//! A node's default name, and the addresses at which other nodes and its workers find it.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};

use protocol::ids::NodeId;
use protocol::wire::bounds::node_name;

use super::error::{NodeError, SOCKET_PATH_MAX};

/// Returns the path of the socket to which this node's workers attach. Two nodes of one folder have two sockets,
/// whatever their names are.
pub(super) fn socket_path(dir: &Path, id: NodeId) -> Result<PathBuf, NodeError> {
    let path = dir.join(format!("{}.sock", name(id)));
    if path.as_os_str().len() > SOCKET_PATH_MAX {
        return Err(NodeError::SocketPath { path });
    }
    Ok(path)
}

/// Returns the address that other nodes are told: `advertise` if it is given, or else the bound one, with this
/// machine's outward address if the node listens on all addresses.
pub(super) fn advertised(bound: SocketAddr, advertise: Option<SocketAddr>) -> Result<SocketAddr, NodeError> {
    match advertise {
        Some(address) if address.port() == 0 => Ok(SocketAddr::new(address.ip(), bound.port())),
        Some(address) => Ok(address),
        None if bound.ip().is_unspecified() => {
            let ip = outward_ip().ok_or(NodeError::NoAddress(bound))?;
            Ok(SocketAddr::new(ip, bound.port()))
        }
        None => Ok(bound),
    }
}

/// Returns this machine's own address on the way to the internet. Nothing is sent: the system only looks up the route.
fn outward_ip() -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?;
    let ip = socket.local_addr().ok()?.ip();
    (!ip.is_unspecified()).then_some(ip)
}

/// Returns a node's default name for people, made of the host's name and the node's id.
pub(super) fn name(id: NodeId) -> String {
    node_name(
        &std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default(),
        id,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_node_is_reached_where_it_listens_unless_it_says_otherwise() {
        let bound = address("127.0.0.1:4000");
        assert_eq!(advertised(bound, None).unwrap(), bound);
        let elsewhere = address("192.0.2.7:9");
        assert_eq!(advertised(bound, Some(elsewhere)).unwrap(), elsewhere);
        let same_port = advertised(bound, Some(address("192.0.2.7:0"))).unwrap();
        assert_eq!(
            same_port,
            address("192.0.2.7:4000"),
            "port 0 stands for the port that the node listens on"
        );
    }

    #[test]
    fn nobody_is_told_to_call_all_addresses_of_a_machine() {
        let everywhere = address("0.0.0.0:4000");
        match advertised(everywhere, None) {
            Ok(told) => assert!(!told.ip().is_unspecified() && told.port() == 4000, "{told}"),
            // This machine has no network.
            Err(error) => assert!(matches!(error, NodeError::NoAddress(bound) if bound == everywhere)),
        }
    }

    #[test]
    fn a_path_that_no_socket_can_have_is_refused() {
        let id = NodeId(7);
        let short = socket_path(Path::new("/tmp"), id).unwrap();
        assert_eq!(short.extension().unwrap(), "sock");
        let room = SOCKET_PATH_MAX - short.file_name().unwrap().len() - 2;
        let path = |letters: usize| socket_path(Path::new(&format!("/{}", "d".repeat(letters))), id);
        assert_eq!(path(room).unwrap().as_os_str().len(), SOCKET_PATH_MAX);
        assert!(matches!(path(room + 1), Err(NodeError::SocketPath { .. })));
    }
}
