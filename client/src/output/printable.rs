//! Escapes control characters in text from elsewhere (labels, names of columns and files, messages of nodes) before
//! people see it: a control character could move the cursor, colour the terminal or set its title. Machine formats
//! carry such text unchanged.

use std::borrow::Cow;

/// Returns text as one line, with every control character as its escape, such as `\u{1b}`.
pub(crate) fn line(text: &str) -> Cow<'_, str> {
    escaped(text, |_| false)
}

/// Returns text that may have several lines: line ends and tabs stay, every other control character becomes its escape.
pub(crate) fn text(text: &str) -> Cow<'_, str> {
    escaped(text, |character| matches!(character, '\n' | '\t'))
}

fn escaped(text: &str, stays: impl Fn(char) -> bool) -> Cow<'_, str> {
    let is_escaped = |character: char| character.is_control() && !stays(character);
    if !text.contains(is_escaped) {
        return text.into();
    }
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        if is_escaped(character) {
            escaped.extend(character.escape_default());
        } else {
            escaped.push(character);
        }
    }
    escaped.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_written_as_escapes() {
        assert_eq!(line("Straße 10 °C"), "Straße 10 °C");
        assert_eq!(
            line("\x1b[31mred\x07\n\u{9b}m\x7f"),
            "\\u{1b}[31mred\\u{7}\\n\\u{9b}m\\u{7f}"
        );
        assert_eq!(text("a\tb\r\n\x1bc\n"), "a\tb\\r\n\\u{1b}c\n");
    }
}
