//! Catches panics of third-party code that reads files from outside: they fail the one operation, not the process.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    /// True while this thread runs code whose panics [`without_panic`] catches.
    static IS_CAUGHT: Cell<bool> = const { Cell::new(false) };
}

/// Runs code that may panic. Returns `None` if it panics: the caller must then drop the values that the code used.
pub fn without_panic<T>(run: impl FnOnce() -> T) -> Option<T> {
    let before = IS_CAUGHT.replace(true);
    let ran = catch_unwind(AssertUnwindSafe(run));
    IS_CAUGHT.set(before);
    ran.ok()
}

/// True if a panic of this thread would be caught by [`without_panic`]. A panic hook that ends the process checks this
/// first.
pub fn is_caught() -> bool {
    IS_CAUGHT.get()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_caught_while_the_code_runs_and_not_after_it() {
        assert!(!is_caught());
        assert_eq!(without_panic(|| without_panic(is_caught)), Some(Some(true)));
        let panicked: Option<()> = without_panic(|| panic!("planted: caught is {}", is_caught()));
        assert_eq!(panicked, None);
        assert!(!is_caught());
    }
}
