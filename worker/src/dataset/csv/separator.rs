//! Finds what stands between the cells of a file, by its first lines.

use protocol::job::data::Separator;

/// Lines that are looked at.
const LINES: usize = 20;

/// What separates the cells of a text that begins so: whatever is there equally often in every line. Comma, if nothing is.
pub(super) fn find(start: &[u8]) -> Separator {
    let lines = lines(start);
    let found = Separator::ALL.into_iter().find(|separator| {
        let mut counts = lines.iter().map(|line| count(line, separator.byte()));
        counts
            .next()
            .is_some_and(|first| first > 0 && counts.all(|count| count == first))
    });
    found.unwrap_or_else(|| {
        // Lines of several lengths: the mistake is told by who reads on, with what the first line has most of.
        let first = lines.first().copied().unwrap_or_default();
        let most = Separator::ALL
            .into_iter()
            .rev()
            .max_by_key(|separator| (count(first, separator.byte()), *separator == Separator::Comma));
        most.unwrap_or(Separator::Comma)
    })
}

/// The first lines that are whole and not blank.
fn lines(start: &[u8]) -> Vec<&[u8]> {
    let mut lines: Vec<&[u8]> = start.split(|&byte| byte == b'\n').collect();
    if lines.len() > 1 {
        // The last one may be cut off.
        lines.pop();
    }
    lines.retain(|line| !line.trim_ascii().is_empty());
    lines.truncate(LINES);
    lines
}

/// How often a byte stands in a line, outside of quotes.
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
