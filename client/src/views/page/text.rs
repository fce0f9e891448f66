//! The page's HTML, style and scripts, put together into one file.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use sha2::{Digest, Sha256};

use crate::http::Answer;

const HTML: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
/// Scripts of the web page, each after those that it uses.
const SCRIPTS: [&str; 4] = [
    include_str!("words.js"),
    include_str!("chart.js"),
    include_str!("show.js"),
    include_str!("page.js"),
];

/// Marker in the page's HTML for a report's content security policy, which a server sends as a header instead;
/// `DATA_PLACE` is the marker for a report's data.
const POLICY_PLACE: &str = "<!-- policy -->";
const DATA_PLACE: &str = "<!-- data -->";

/// The web page's HTML, and the content security policy that it needs.
pub(super) struct Text {
    text: String,
    policy: String,
}

impl Text {
    pub(super) fn new() -> Self {
        let script = SCRIPTS.concat();
        // The browser runs only the script with this hash, and no script in the name of a node or in a label.
        let hash = |text: &str| BASE64_STANDARD.encode(Sha256::digest(text));
        Self {
            text: HTML.replace("{style}", STYLE).replace("{script}", &script),
            policy: format!(
                "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; img-src data:; base-uri 'none'; \
                 form-action 'none'",
                hash(&script),
                hash(STYLE)
            ),
        }
    }

    pub(super) fn answer(&self) -> Answer {
        let policy = format!("{}; connect-src 'self'; frame-ancestors 'none'", self.policy);
        Answer::page(self.text.clone(), &policy)
    }

    /// Returns the page as a file that needs no server, with its data as JSON in it.
    pub(super) fn with_data(&self, json: &str) -> String {
        let policy = format!(
            "<meta http-equiv=\"Content-Security-Policy\" content=\"{}\">",
            self.policy
        );
        // In JSON `<` occurs in strings only, where it may be escaped; without it no text can end the element.
        let json = json.replace('<', "\\u003c");
        let data = format!("<script type=\"application/json\" id=\"data\">{json}</script>");
        // The data comes last, so that a marker inside the data stays as it is.
        self.text
            .replacen(POLICY_PLACE, &policy, 1)
            .replacen(DATA_PLACE, &data, 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_whole_and_has_nothing_from_outside() {
        let page = Text::new();
        assert!(!page.text.contains("{style}") && !page.text.contains("{script}"));
        for outside in ["http:", "https:", "src=", "@import", "url("] {
            let own = page.text.replace("http://www.w3.org/2000/svg", "");
            assert!(!own.contains(outside), "{outside}");
        }
        // Texts from the network must not become markup.
        for unsafe_call in [
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
        ] {
            assert!(!page.text.contains(unsafe_call), "{unsafe_call}");
        }
        for place in [POLICY_PLACE, DATA_PLACE] {
            assert_eq!(page.text.matches(place).count(), 1, "{place}");
        }
    }
}
