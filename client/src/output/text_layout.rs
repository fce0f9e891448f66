//! Text layout: omits parts where the width is too small, cuts lines, and breaks lines between words.

/// Selects the parts of a line that fit side by side in `width` characters, with `gap` characters between neighbours.
/// Each part is given by its width and its rank; parts of the highest rank are omitted first.
pub(crate) fn visible_parts(parts: &[(usize, u8)], gap: usize, width: usize) -> Vec<bool> {
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

/// Cuts text to at most `width` characters, with an ellipsis at the end if any are cut off.
pub(crate) fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.into();
    }
    let kept = text.chars().take(width.saturating_sub(1));
    kept.chain(std::iter::once('…')).take(width).collect()
}

/// Breaks lines longer than `width` characters between words. A longer word stays whole.
pub(crate) fn wrapped(text: &str, width: usize) -> String {
    let mut out = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        let (mut used, mut words) = (0, 0);
        for word in line.split_inclusive(' ') {
            let length = word.trim_end().chars().count();
            if words > 0 && used + length > width {
                out.truncate(out.trim_end_matches(' ').len());
                out.push('\n');
                (used, words) = (0, 0);
            }
            out.push_str(word);
            used += word.chars().count();
            words += usize::from(length > 0);
        }
    }
    out
}

/// Returns text with its first letter in upper case.
pub(crate) fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().into_iter().flat_map(char::to_uppercase);
    first.chain(letters.as_str().chars()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_broken_between_words() {
        assert_eq!(wrapped("one two three\n", 8), "one two\nthree\n");
        assert_eq!(wrapped("one two\nthree", 80), "one two\nthree");
        assert_eq!(wrapped("a /path/longer/than/that b", 8), "a\n/path/longer/than/that\nb");
        assert_eq!(wrapped("  two and  more", 7), "  two\nand\nmore");
        for width in 0..30 {
            let text = "of workers' time: exchange 12 %,\n  orthogonal updates 20 %";
            let broken = wrapped(text, width);
            let words = |text: &str| text.split_whitespace().map(String::from).collect::<Vec<_>>();
            assert_eq!(words(&broken), words(text));
            let fits = |line: &str| line.chars().count() <= width || !line.trim().contains(' ');
            assert!(broken.lines().all(fits), "{width}: {broken}");
        }
    }

    #[test]
    fn the_highest_ranks_are_left_out_first() {
        let parts = [(4, 1), (3, 2), (2, 0)];
        assert_eq!(visible_parts(&parts, 1, 11), [true, true, true]);
        assert_eq!(visible_parts(&parts, 1, 10), [true, false, true]);
        assert_eq!(visible_parts(&parts, 1, 6), [false, false, true]);
        assert_eq!(visible_parts(&parts, 1, 1), [false, false, false]);
        assert!(visible_parts(&[], 1, 0).is_empty());
    }

    #[test]
    fn what_is_cut_says_so() {
        assert_eq!(cut("dense 10", 8), "dense 10");
        assert_eq!(cut("dense 10", 7), "dense …");
        assert_eq!((cut("dense", 1), cut("dense", 0)), ("…".into(), String::new()));
    }
}
