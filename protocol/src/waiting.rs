//! What a run waits for, as people are told: each is what follows "waiting for".

/// Whether a run still waits for the same. What only counts on, as the seconds of a silence do, is no change.
#[must_use]
pub fn is_the_same(before: &[String], now: &[String]) -> bool {
    before.len() == now.len() && before.iter().zip(now).all(|(one, other)| is_one(one, other))
}

fn is_one(one: &str, other: &str) -> bool {
    let is_number = |word: &str| word.bytes().all(|byte| byte.is_ascii_digit());
    let (mut one, mut other) = (one.split(' '), other.split(' '));
    loop {
        match (one.next(), other.next()) {
            (None, None) => return true,
            (Some(one), Some(other)) if one == other || is_number(one) && is_number(other) => {}
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_may_count_on_and_names_may_not_change() {
        let same = |one: &str, other: &str| is_the_same(&[one.into()], &[other.into()]);
        let silent = "vm-1, silent for 12 s, given up at 30 s";
        assert!(same(silent, silent));
        assert!(same(silent, "vm-1, silent for 13 s, given up at 30 s"));
        assert!(!same(silent, "vm-2, silent for 12 s, given up at 30 s"));
        assert!(!same(silent, "vm-1 to report its digest"));
        assert!(!same("a", "a b"));
        assert!(!is_the_same(&[], &["a".into()]));
        assert!(is_the_same(&[], &[]));
    }
}
