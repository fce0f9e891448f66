//! The release of this program.

/// Version of this program: its release, and the commit that it was built from, if that is known.
pub(crate) const VERSION: &str = env!("TAU_VERSION");

/// Returns the name of this program's release. Tests set `TAU_PRETEND_VERSION` to check that a process of another
/// release is refused.
pub(crate) fn version() -> String {
    std::env::var("TAU_PRETEND_VERSION").unwrap_or_else(|_| VERSION.into())
}
