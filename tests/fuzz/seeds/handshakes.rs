//! First bytes on a connection, for the corpus.

use communicator::transport::{Plane, dial};
use std::time::Duration;

use crate::doors::Door;
use crate::engine::add_to_corpus;

/// Writes the first bytes of a member that connects and of the node's answer. Both differ each time because half of
/// them are random.
pub(super) fn handshakes() {
    let mut door = Door::open();
    for (name, plane) in [("control", Plane::Control), ("data", Plane::Data)] {
        let Door { runtime, security, .. } = &door;
        let hello = runtime.block_on(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let listening = async {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut bytes = vec![0; 4 << 10];
                let length = tokio::io::AsyncReadExt::read(&mut stream, &mut bytes).await.unwrap();
                bytes.truncate(length);
                bytes
            };
            let (_, hello) = tokio::join!(dial(address, plane, security, Duration::from_secs(5)), listening);
            hello
        });
        add_to_corpus("accept", name, &hello);
        // No dialling node has sent this hello, so each refuses the answer.
        add_to_corpus("dial", &format!("refused-{name}"), &door.knock(&hello));
    }
}
