//! One connection of the control plane as both its ends here see it: what is on its way out, and whether it is to end.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Notify;

/// A connection's counters and its end.
#[derive(Debug, Default)]
pub(super) struct SessionStream {
    /// Bytes handed to the session, as far as they are known, and bytes written to the network.
    sent: AtomicU64,
    written: AtomicU64,
    close: Notify,
}

impl SessionStream {
    /// Counts what is about to be sent; how much is on its way then. The session's queue knows no limit, so whoever adds to
    /// it looks here first.
    pub(super) fn send(&self, bytes: usize) -> u64 {
        let written = self.written.load(Ordering::Relaxed);
        // The session writes more than it is given: headers, and pings of its own. They do not count as room gained.
        let before = self.sent.fetch_max(written, Ordering::Relaxed).max(written);
        self.sent.fetch_add(bytes as u64, Ordering::Relaxed);
        before - written + bytes as u64
    }

    /// Takes back what was counted and then not sent.
    pub(super) fn unsend(&self, bytes: usize) {
        self.sent.fetch_sub(bytes as u64, Ordering::Relaxed);
    }

    /// So much has been written to the network.
    pub(super) fn wrote(&self, bytes: usize) {
        self.written.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// What is on its way.
    pub(super) fn under_way(&self) -> u64 {
        let written = self.written.load(Ordering::Relaxed);
        self.sent.load(Ordering::Relaxed).saturating_sub(written)
    }

    /// Ends the connection.
    pub(super) fn close(&self) {
        self.close.notify_one();
    }

    /// Waits until the connection is to end.
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
