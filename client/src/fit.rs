//! What to leave out where space is short.

/// Which of these fit side by side in `width`, with a gap between neighbours. Each is given by its width and its rank;
/// those of the highest rank go first.
pub(crate) fn fitting(parts: &[(usize, u8)], gap: usize, width: usize) -> Vec<bool> {
    let mut kept = vec![true; parts.len()];
    let needed = |kept: &[bool]| {
        let widths = parts.iter().zip(kept).filter(|(_, kept)| **kept);
        widths
            .map(|((width, _), _)| width + gap)
            .sum::<usize>()
            .saturating_sub(gap)
    };
    while needed(&kept) > width {
        let last = (0..parts.len())
            .filter(|&part| kept[part])
            .max_by_key(|&part| parts[part].1);
        let Some(last) = last else { break };
        kept[last] = false;
    }
    kept
}

/// A text in at most so many characters. Where some are left out, an ellipsis tells.
pub(crate) fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.into();
    }
    let kept = text.chars().take(width.saturating_sub(1));
    kept.chain(std::iter::once('…')).take(width).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_ranks_are_left_out_first() {
        let parts = [(4, 1), (3, 2), (2, 0)];
        assert_eq!(fitting(&parts, 1, 11), [true, true, true]);
        assert_eq!(fitting(&parts, 1, 10), [true, false, true]);
        assert_eq!(fitting(&parts, 1, 6), [false, false, true]);
        assert_eq!(fitting(&parts, 1, 1), [false, false, false]);
        assert!(fitting(&[], 1, 0).is_empty());
    }

    #[test]
    fn what_is_cut_says_so() {
        assert_eq!(cut("dense 10", 8), "dense 10");
        assert_eq!(cut("dense 10", 7), "dense …");
        assert_eq!((cut("dense", 1), cut("dense", 0)), ("…".into(), String::new()));
    }
}
