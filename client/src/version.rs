//! Which release this is.

/// The release's name. Tests give a process another one, to see that it is turned away.
pub(crate) fn version() -> String {
    std::env::var("TAU_PRETEND_VERSION").unwrap_or_else(|_| env!("CARGO_PKG_VERSION").into())
}
