//! The time of day.

use std::time::{SystemTime, UNIX_EPOCH};

/// Returns the seconds since 1970.
pub(crate) fn now() -> f64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default().as_secs_f64()
}
