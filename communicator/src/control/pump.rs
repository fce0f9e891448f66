//! The pump: copies bytes between the network and a session of `ractor_cluster`.
//!
//! That crate reads as fast as others send, and queues without limit the bytes that others do not read. So its sessions
//! read from and write to a pipe in memory. Here frames are checked, frames that come too fast have to wait, and a peer
//! that reads too slowly is given up.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream};
use tokio::time::{Instant, sleep, timeout};

use super::frames::{FRAME_BYTES_MAX, FrameError, FrameRules};
use super::session_stream::SessionStream;
use crate::meter::Meter;
use crate::timing::ControlTimes;
use crate::transport::Stream;

/// Capacity in bytes, in each direction, of the pipe in memory between a connection and its session.
const PIPE_BYTES: usize = 64 << 10;
/// Bytes that one peer may send per second. A node's state message has some kilobytes and comes twice a second.
const BYTES_A_SECOND: u32 = 1 << 20;
/// Bytes that one peer may send in a burst.
const BYTES_AT_ONCE: u32 = 4 << 20;
/// Bytes that are added to a frame's own when it counts against its sender's limit, for the work of decoding the frame
/// and passing it through several mailboxes.
const FRAME_COST: usize = 512;
/// Size of a frame's length field in bytes.
const LENGTH_BYTES: usize = 8;

/// Creates a pipe in memory between the pump of a connection, which copies to and from the network, and its session.
/// Returns the two ends in this order.
pub(super) fn pipe() -> (DuplexStream, DuplexStream) {
    tokio::io::duplex(PIPE_BYTES)
}

/// The side that ended a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndedBy {
    /// A connection ended because the peer's machine closed or reset it.
    VerifiedPeer,
    /// A connection ended because this process ended it.
    Oneself,
}

/// Copies bytes between a connection and its session until either ends or the session stream is closed. Calls
/// `ended_by` before the session can notice the end, and returns an error if the peer is to blame.
pub(super) async fn pump(
    stream: Stream,
    pipe: DuplexStream,
    session_stream: &SessionStream,
    rules: FrameRules,
    times: ControlTimes,
    ended_by: impl FnOnce(EndedBy),
) -> io::Result<()> {
    let (mut from_peer, mut to_peer) = tokio::io::split(stream);
    let (mut from_session, mut to_session) = tokio::io::split(pipe);
    let ended = tokio::select! {
        ended = inward(&mut from_peer, &mut to_session, rules, times.frame) => ended,
        ended = outward(&mut from_session, &mut to_peer, session_stream, times.stall) => ended,
        () = session_stream.closed() => Ok(EndedBy::Oneself),
    };
    ended_by(match &ended {
        Ok(by) => *by,
        Err(error) if is_broken(error) => EndedBy::VerifiedPeer,
        Err(_) => EndedBy::Oneself,
    });
    ended.map(drop)
}

/// Returns true if an error means that the other machine has closed or reset the connection.
fn is_broken(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    matches!(
        error.kind(),
        BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof
    )
}

async fn inward(
    mut from_peer: impl AsyncRead + Unpin,
    mut to_session: impl AsyncWrite + Unpin,
    mut rules: FrameRules,
    limit: Duration,
) -> io::Result<EndedBy> {
    let start = Instant::now();
    let mut meter = Meter::new(BYTES_A_SECOND, BYTES_AT_ONCE);
    let mut frame = Vec::new();
    loop {
        let mut length = [0; LENGTH_BYTES];
        // A peer may end the connection between two frames only.
        if from_peer.read(&mut length[..1]).await? == 0 {
            return Ok(EndedBy::VerifiedPeer);
        }
        let reading = read_frame(&mut from_peer, &mut length, &mut frame);
        timeout(limit, reading)
            .await
            .unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut)))?;
        rules.check(&frame, start.elapsed()).map_err(io::Error::other)?;
        let pause = meter.spend(FRAME_COST + frame.len(), start.elapsed());
        if !pause.is_zero() {
            sleep(pause).await;
        }
        // A write fails only if the session has ended.
        if to_session.write_all(&length).await.is_err() || to_session.write_all(&frame).await.is_err() {
            return Ok(EndedBy::Oneself);
        }
    }
}

/// Reads a frame whose first length byte was read already. Memory is taken only as bytes come, whatever length the peer
/// claims.
async fn read_frame(
    from_peer: &mut (impl AsyncRead + Unpin),
    length: &mut [u8; LENGTH_BYTES],
    frame: &mut Vec<u8>,
) -> io::Result<()> {
    from_peer.read_exact(&mut length[1..]).await?;
    let announced = u64::from_be_bytes(*length);
    if announced > FRAME_BYTES_MAX as u64 {
        return Err(io::Error::other(FrameError::TooLong));
    }
    frame.clear();
    frame.shrink_to(PIPE_BYTES);
    if from_peer.take(announced).read_to_end(frame).await? < announced as usize {
        return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
    }
    Ok(())
}

async fn outward(
    mut from_session: impl AsyncRead + Unpin,
    mut to_peer: impl AsyncWrite + Unpin,
    session_stream: &SessionStream,
    limit: Duration,
) -> io::Result<EndedBy> {
    let mut piece = vec![0; PIPE_BYTES];
    loop {
        let length = from_session.read(&mut piece).await?;
        if length == 0 {
            return Ok(EndedBy::Oneself);
        }
        let writing = async {
            to_peer.write_all(&piece[..length]).await?;
            to_peer.flush().await
        };
        timeout(limit, writing)
            .await
            .unwrap_or_else(|_| Err(io::Error::other("the peer does not read from its connection")))?;
        session_stream.wrote(length);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use protocol::ids::NodeId;

    use super::super::identity::VerifiedPeer;
    use super::*;
    use crate::timing::Timing;

    /// Task of a pump, which copies bytes between a connection and its session. It returns the side that ended the
    /// connection, and the result.
    type Pumping = tokio::task::JoinHandle<(EndedBy, io::Result<()>)>;

    /// Starts a pump, which copies bytes between a connection and its session. Returns the peer's end, the session's
    /// end, the counters of the connection, and the task.
    fn pumped() -> (DuplexStream, DuplexStream, Arc<SessionStream>, Pumping) {
        let (theirs, ours) = tokio::io::duplex(1 << 10);
        let (inner, session) = pipe();
        let session_stream = Arc::new(SessionStream::default());
        let held = Arc::clone(&session_stream);
        let rules = FrameRules::new(VerifiedPeer::Node(NodeId(7)));
        let pumping = tokio::spawn(async move {
            let mut by = EndedBy::Oneself;
            let note = |side| by = side;
            let ended = pump(Box::new(ours), inner, &held, rules, Timing::DEFAULT.control, note).await;
            (by, ended)
        });
        (theirs, session, session_stream, pumping)
    }

    fn message(content: usize) -> Vec<u8> {
        // The field of messages, with a length that takes three bytes.
        let mut frame = vec![
            0x12,
            content as u8 | 0x80,
            (content >> 7) as u8 | 0x80,
            (content >> 14) as u8,
        ];
        frame.resize(frame.len() + content, 7);
        [&(frame.len() as u64).to_be_bytes()[..], &frame].concat()
    }

    #[tokio::test]
    async fn frames_and_answers_pass_unchanged() {
        let (mut peer, mut session, session_stream, pumping) = pumped();
        let sent = message(20_000);
        let mut got = vec![0; sent.len()];
        let (written, read) = tokio::join!(peer.write_all(&sent), session.read_exact(&mut got));
        written.unwrap();
        read.unwrap();
        assert_eq!(got, sent);
        session_stream.send(5);
        session.write_all(b"reply").await.unwrap();
        let mut reply = [0; 5];
        peer.read_exact(&mut reply).await.unwrap();
        assert_eq!(&reply, b"reply");
        drop(peer);
        assert!(matches!(pumping.await.unwrap(), (EndedBy::VerifiedPeer, Ok(()))));
        assert_eq!(session_stream.under_way(), 0);
    }

    #[tokio::test]
    async fn a_frame_that_is_too_long_or_out_of_place_ends_it() {
        let (mut peer, _session, _line, pumping) = pumped();
        peer.write_all(&(FRAME_BYTES_MAX as u64 + 1).to_be_bytes())
            .await
            .unwrap();
        assert!(matches!(pumping.await.unwrap(), (EndedBy::Oneself, Err(_))));
        let (mut peer, mut session, _line, pumping) = pumped();
        peer.write_all(&[0, 0, 0, 0, 0, 0, 0, 2, 0x1a, 0]).await.unwrap();
        assert!(matches!(pumping.await.unwrap(), (EndedBy::Oneself, Err(_))));
        let mut passed = Vec::new();
        session.read_to_end(&mut passed).await.unwrap();
        assert!(passed.is_empty());
    }

    #[tokio::test]
    async fn a_line_that_is_to_end_ends() {
        let (_peer, _session, session_stream, pumping) = pumped();
        session_stream.close();
        assert!(matches!(pumping.await.unwrap(), (EndedBy::Oneself, Ok(()))));
    }
}
