//! State that both users of a control-plane connection share: its bytes in flight, and the signal that ends it.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Notify;

/// Byte counters of a control-plane connection, and the signal that ends it.
#[derive(Debug, Default)]
pub(super) struct SessionStream {
    /// Bytes handed to the session for sending, without the headers and pings that the session adds.
    sent: AtomicU64,
    /// Bytes of the connection that were written to the network.
    written: AtomicU64,
    close: Notify,
}

impl SessionStream {
    /// Counts bytes that are about to be sent. Returns the bytes in flight with these. The session's queue has no
    /// limit, so callers must check this number before they add to the queue.
    pub(super) fn send(&self, bytes: usize) -> u64 {
        let written = self.written.load(Ordering::Relaxed);
        // The session writes more than it is given: headers, and pings of its own. These must not count as room gained.
        let before = self.sent.fetch_max(written, Ordering::Relaxed).max(written);
        self.sent.fetch_add(bytes as u64, Ordering::Relaxed);
        before - written + bytes as u64
    }

    /// Subtracts bytes that were counted as sent, but were not sent after all.
    pub(super) fn unsend(&self, bytes: usize) {
        self.sent.fetch_sub(bytes as u64, Ordering::Relaxed);
    }

    /// Counts bytes that were written to the network.
    pub(super) fn wrote(&self, bytes: usize) {
        self.written.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Returns the number of bytes in flight: handed to the session, and not yet written to the network.
    pub(super) fn under_way(&self) -> u64 {
        let written = self.written.load(Ordering::Relaxed);
        self.sent.load(Ordering::Relaxed).saturating_sub(written)
    }

    /// Gives the signal that ends the connection.
    pub(super) fn close(&self) {
        self.close.notify_one();
    }

    /// Waits for the signal that the connection is to end.
    pub(super) async fn closed(&self) {
        self.close.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_written_is_under_way_and_headers_gain_no_room() {
        let session_stream = SessionStream::default();
        assert_eq!(session_stream.send(100), 100);
        assert_eq!(session_stream.send(50), 150);
        session_stream.wrote(120);
        assert_eq!(session_stream.under_way(), 30);
        // Headers: more than was known to be sent.
        session_stream.wrote(100);
        assert_eq!(session_stream.under_way(), 0);
        assert_eq!(session_stream.send(70), 70);
        session_stream.unsend(70);
        assert_eq!(session_stream.under_way(), 0);
    }

    #[tokio::test]
    async fn an_end_that_was_said_before_anybody_waited_is_heard() {
        let session_stream = SessionStream::default();
        session_stream.close();
        session_stream.closed().await;
    }
}
