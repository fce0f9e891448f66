//! Tests of strangers that connect to a node's port: with any bytes and any number of connections, members train on and
//! memory stays bounded.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use crate::harness::cluster::{Cluster, job};
use crate::harness::memory::resident;
use crate::harness::watching::stop;

/// Number of connections that the test opens; a node handles 256 at a time.
const STRANGERS: usize = 1000;
/// Bytes that every second stranger sends.
const GARBAGE_BYTES: usize = 32 << 10;
/// Largest growth of the node's memory, in bytes.
const GROWTH_MAX: u64 = 64 << 20;

/// Returns the bytes that a stranger sends: none, noise, text, or the start of a handshake that claims to be long.
fn first_bytes(stranger: usize) -> Vec<u8> {
    match stranger % 4 {
        0 => Vec::new(),
        1 => (0..GARBAGE_BYTES).map(|i| (i * 31 + stranger) as u8).collect(),
        2 => b"GET / HTTP/1.1\r\nHost: tau\r\n\r\n".repeat(GARBAGE_BYTES / 30),
        _ => vec![0x16, 0x03, 0x01, 0x40, 0x00, 0x01, 0x00, 0xff, 0xff],
    }
}

#[test]
#[cfg(target_os = "linux")]
fn strangers_neither_stop_a_run_nor_fill_the_memory() {
    let cluster = Cluster::of(2);
    cluster.must("start", &job("1000000", &["--detach"]));
    let node = &cluster.nodes[0];
    let before = resident(node.process.pid());

    let mut strangers = Vec::new();
    for stranger in 0..STRANGERS {
        let mut stream = TcpStream::connect(&node.address).unwrap();
        stream.set_write_timeout(Some(Duration::from_secs(10))).unwrap();
        // The node may close the connection during the write.
        let _ = stream.write_all(&first_bytes(stranger));
        strangers.push(stream);
    }
    // Members can still connect while all strangers are connected.
    assert_eq!(cluster.listed().len(), 2);
    let during = resident(node.process.pid());
    assert!(
        during < before + GROWTH_MAX,
        "{STRANGERS} strangers took the memory from {before} to {during} bytes"
    );

    // An unauthenticated stranger gets no more than an alert, and its connection is closed.
    for mut stream in strangers {
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let _ = stream.shutdown(Shutdown::Write);
        let mut answer = Vec::new();
        // A reset also counts as an end; a timeout does not.
        if let Err(error) = stream.read_to_end(&mut answer) {
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}");
        }
        assert!(answer.len() < 100, "{} bytes were told to a stranger", answer.len());
    }

    stop(&cluster).finished(2);
}
