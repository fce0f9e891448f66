//! Which release this is.

/// The release, and the commit that it was built from where that is known.
pub(crate) const VERSION: &str = env!("TAU_VERSION");

/// The release's name. Tests give a process another one, to see that it is turned away.
pub(crate) fn version() -> String {
    std::env::var("TAU_PRETEND_VERSION").unwrap_or_else(|_| VERSION.into())
}
