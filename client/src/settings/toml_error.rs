//! Describes an error in a TOML file in one sentence.

/// Describes an error in a TOML text for people, by its line number and cause.
pub(crate) fn sentence(text: &str, error: &toml::de::Error) -> String {
    let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
    let line = before.matches('\n').count() + 1;
    format!("line {line}: {}", error.message().trim().replace('\n', "; "))
}
