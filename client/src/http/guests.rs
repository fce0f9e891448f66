//! Those who are connected: so many at a time, and the newest are let in.

use std::collections::VecDeque;
use std::future::Future;

use tokio::task::{AbortHandle, JoinSet};

/// Connections at a time. Each is for one question, so that who is quick needs one for a moment.
const GUESTS_MAX: usize = 128;

/// All that are connected. They go when this is dropped.
#[derive(Default)]
pub(super) struct Guests {
    all: JoinSet<()>,
    /// From the oldest on; some have gone by themselves.
    oldest: VecDeque<AbortHandle>,
}

impl Guests {
    /// Lets one more in; the oldest has to go for it where there are too many.
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
        // One that is quick leaves its place by itself.
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
