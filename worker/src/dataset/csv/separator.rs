//! Detects the separator of a table from its first lines.

use protocol::job::data::Separator;

/// Number of lines at a table's beginning that are examined to find the separator.
const LINES: usize = 20;

/// Returns the separator of a text that begins like this: the first one that occurs equally often in every line, or
/// else a guess.
pub(super) fn find(start: &[u8]) -> Separator {
    let lines = lines(start);
    let found = Separator::ALL.into_iter().find(|separator| {
        let mut counts = lines.iter().map(|line| count(line, separator.byte()));
        counts
            .next()
            .is_some_and(|first| first > 0 && counts.all(|count| count == first))
    });
    found.unwrap_or_else(|| {
        // Lines of different lengths: reading on will report the error, with the separator that is most frequent in the
        // first line.
        let first = lines.first().copied().unwrap_or_default();
        let most = Separator::ALL
            .into_iter()
            .rev()
            .max_by_key(|separator| (count(first, separator.byte()), *separator == Separator::Comma));
        most.unwrap_or(Separator::Comma)
    })
}

/// Returns the first lines of a text's beginning that are complete and not blank.
fn lines(start: &[u8]) -> Vec<&[u8]> {
    let mut lines: Vec<&[u8]> = start.split(|&byte| byte == b'\n').collect();
    if lines.len() > 1 {
        // The last line may be cut off.
        lines.pop();
    }
    lines.retain(|line| !line.trim_ascii().is_empty());
    lines.truncate(LINES);
    lines
}

/// Number of occurrences of a byte in a line, outside of quotes.
fn count(line: &[u8], separator: u8) -> usize {
    let mut quoted = false;
    let outside = line.iter().filter(|&&byte| {
        quoted ^= byte == b'"';
        !quoted && byte == separator
    });
    outside.count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_separator_is_what_every_line_has_equally_often() {
        for (text, expected) in [
            ("a,b\n1,2\n", Separator::Comma),
            ("a;b\n1,5;2,5\n", Separator::Semicolon),
            ("a\tb c\n1\t2\n", Separator::Tab),
            ("a|b\n1|2\n", Separator::Bar),
            ("a,b\n\"x;y\",2\n\"x;z\",3\n", Separator::Comma),
            ("1,2\n3;4\n", Separator::Comma),
            ("1;2;3\n3;4\n", Separator::Semicolon),
            ("one\ntwo\n", Separator::Comma),
            ("", Separator::Comma),
            ("1;2", Separator::Semicolon),
        ] {
            assert_eq!(find(text.as_bytes()), expected, "{text}");
        }
    }
}
