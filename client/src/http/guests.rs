//! The open connections of the web server: a limited number, of which the oldest is closed for a new one.

use std::collections::VecDeque;
use std::future::Future;

use tokio::task::{AbortHandle, JoinSet};

/// Maximum number of open connections to the web server. Each serves one request, so a well-behaved client needs one
/// for a moment only.
const GUESTS_MAX: usize = 128;

/// The open connections to the web server. They are closed when this value is dropped.
#[derive(Default)]
pub(super) struct Guests {
    all: JoinSet<()>,
    /// Handles by which the connections to the web server can be closed, oldest first; some connections may have ended.
    oldest: VecDeque<AbortHandle>,
}

impl Guests {
    /// Adds a connection to the web server. If there are too many, the oldest one is closed.
    pub(super) fn admit(&mut self, guest: impl Future<Output = ()> + Send + 'static) {
        while self.all.try_join_next().is_some() {}
        self.oldest.retain(|guest| !guest.is_finished());
        while self.oldest.len() >= GUESTS_MAX {
            if let Some(oldest) = self.oldest.pop_front() {
                oldest.abort();
            }
        }
        let guest = self.all.spawn(guest);
        self.oldest.push_back(guest);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    struct Gone(Arc<AtomicUsize>);

    impl Drop for Gone {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[tokio::test]
    async fn the_oldest_go_for_the_newest() {
        let gone = Arc::new(AtomicUsize::new(0));
        let mut guests = Guests::default();
        for _ in 0..3 * GUESTS_MAX {
            let goes = Gone(Arc::clone(&gone));
            guests.admit(async move {
                let _goes = goes;
                std::future::pending::<()>().await;
            });
            tokio::task::yield_now().await;
        }
        // A quick connection ends by itself and leaves its place.
        guests.admit(async {});
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        assert_eq!(gone.load(Ordering::SeqCst), 2 * GUESTS_MAX + 1);
        drop(guests);
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        assert_eq!(gone.load(Ordering::SeqCst), 3 * GUESTS_MAX);
    }
}
