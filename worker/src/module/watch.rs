//! Watches for calls of a module's code that do not return: the code waits for a lock or a dead disk, or computes for
//! ever, while the process looks alive.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::ModuleHost;

/// Time after which a call of a module's code is logged.
const LONG: Duration = Duration::from_mins(1);

/// Watchdog for the calls that a host has under way.
#[derive(Debug)]
pub struct CallWatch {
    host: Arc<dyn ModuleHost>,
    /// Duration after which a call is taken for hung.
    limit: Duration,
    /// Place in the code of the longest call, once it is known.
    place: Arc<Mutex<Option<String>>>,
    /// True if the longest call has been logged.
    is_logged: bool,
}

impl CallWatch {
    /// Makes a watchdog that takes calls for hung after `limit`.
    #[must_use]
    pub fn new(host: Arc<dyn ModuleHost>, limit: Duration) -> Self {
        Self {
            host,
            limit,
            place: Arc::default(),
            is_logged: false,
        }
    }

    /// Looks at the longest call under way. Returns a sentence if it is taken for hung; logs its place some time before.
    pub fn look(&mut self) -> Option<String> {
        let long = LONG.min(self.limit / 2);
        let Some(lasts) = self.host.longest_call().filter(|lasts| *lasts >= long) else {
            self.is_logged = false;
            return None;
        };
        if !std::mem::replace(&mut self.is_logged, true) {
            self.log_place(lasts);
        }
        (lasts >= self.limit).then(|| {
            let place = self.place.lock().unwrap_or_else(PoisonError::into_inner);
            let place = place.as_deref().unwrap_or("native code");
            format!(
                "the model's code has not returned for {} s, in {place}: let no step take that long, or set \
                 TAU_CODE_LIMIT to more seconds on this node",
                lasts.as_secs()
            )
        })
    }

    /// Finds the place of a call and logs it, on a thread of its own: a host whose interpreter hangs does not answer.
    fn log_place(&self, lasts: Duration) {
        let (host, known) = (Arc::clone(&self.host), Arc::clone(&self.place));
        *known.lock().unwrap_or_else(PoisonError::into_inner) = None;
        let find = move || {
            let place = host.whereabouts();
            tracing::warn!(
                event = "code_slow",
                "the model's code has been in one call for {} s, in {}",
                lasts.as_secs(),
                place.as_deref().unwrap_or("native code")
            );
            *known.lock().unwrap_or_else(PoisonError::into_inner) = place;
        };
        // Without a thread the place stays unknown.
        let _ = std::thread::Builder::new().name("whereabouts".into()).spawn(find);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Module, ModuleFailure, ModuleSource};
    use super::*;

    /// Host with one call under way, whose duration the test sets.
    #[derive(Debug, Default)]
    struct Clock(Mutex<Option<Duration>>);

    impl ModuleHost for Clock {
        fn load(&self, _: &ModuleSource) -> Result<Arc<dyn Module>, ModuleFailure> {
            unreachable!()
        }
        fn longest_call(&self) -> Option<Duration> {
            *self.0.lock().unwrap()
        }
        fn whereabouts(&self) -> Option<String> {
            Some("net.py:7 in loss".into())
        }
    }

    #[test]
    fn a_call_is_hung_after_the_limit_and_not_before() {
        let clock = Arc::new(Clock::default());
        let mut watch = CallWatch::new(Arc::clone(&clock) as Arc<dyn ModuleHost>, Duration::from_mins(10));
        let mut look = |seconds: Option<u64>| {
            *clock.0.lock().unwrap() = seconds.map(Duration::from_secs);
            watch.look()
        };
        assert_eq!((look(None), look(Some(59)), look(Some(599))), (None, None, None));
        let said = look(Some(600)).unwrap();
        assert!(said.contains("has not returned for 600 s"), "{said}");
        assert_eq!(look(Some(1)), None);
    }
}
