//! Panics of other people's code that is given files from outside: they fail what was being done, not the process.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    /// This thread is in a call whose panics are caught.
    static IS_CAUGHT: Cell<bool> = const { Cell::new(false) };
}

/// Runs code that may panic. Returns `None` if it does: what it was given is to be dropped then.
pub fn without_panic<T>(run: impl FnOnce() -> T) -> Option<T> {
    let before = IS_CAUGHT.replace(true);
    let ran = catch_unwind(AssertUnwindSafe(run));
    IS_CAUGHT.set(before);
    ran.ok()
}

/// Whether a panic of this thread is caught: a hook for panics that ends the process asks that.
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
