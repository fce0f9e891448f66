//! The processor time of this thread: the cost of a step, independent of other load on the machine.

use std::time::Duration;

/// Measures this thread's processor time since the timer was started.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ThreadTimer(Duration);

impl ThreadTimer {
    pub(crate) fn start() -> Self {
        Self(thread_time())
    }

    pub(crate) fn elapsed(self) -> Duration {
        thread_time().saturating_sub(self.0)
    }
}

#[cfg(unix)]
fn thread_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `clock_gettime` writes only into `time`, which is valid and exclusively borrowed for the call.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Returns the time since this function's first call. It stands in for the thread's processor time, which systems other
/// than Unix do not offer here.
#[cfg(not(unix))]
fn thread_time() -> Duration {
    use std::sync::OnceLock;
    use std::time::Instant;
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed()
}
