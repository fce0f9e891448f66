//! Describes an error in a TOML file in one sentence.

/// Returns the line number of the error in the text, and its cause.
pub(crate) fn sentence(text: &str, error: &toml::de::Error) -> String {
    let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
    let line = before.matches('\n').count() + 1;
    format!("line {line}: {}", error.message().trim().replace('\n', "; "))
}
