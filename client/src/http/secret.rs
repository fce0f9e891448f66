//! The token that the web server requires.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;

use crate::failure::Failure;

/// Length of the access token of web pages in bytes, too long to be guessed.
const BYTES: usize = 16;
/// Name of the file with the access token of web pages, in a node's folder.
const FILE: &str = "page-token";

/// Access token of web pages, as URL-safe base64.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Secret(String);

impl Secret {
    /// Generates a new random access token.
    pub(crate) fn draw() -> Result<Self, Failure> {
        let bytes: [u8; BYTES] = communicator::entropy::secret().map_err(Failure::work)?;
        Ok(Self(BASE64_URL_SAFE_NO_PAD.encode(bytes)))
    }

    /// Reads the access token in this folder, or generates one and writes it there. URLs and the settings of metric
    /// collectors stay valid when a node is restarted.
    pub(crate) fn kept_in(folder: &Path) -> Result<Self, Failure> {
        let path = folder.join(FILE);
        match std::fs::read_to_string(&path) {
            Ok(text) if Self::is_one(text.trim()) => Ok(Self(text.trim().into())),
            Ok(_) => Err(Failure::input(format!(
                "{} does not hold a token: remove the file, and the next start writes a new token",
                path.display()
            ))),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let secret = Self::draw()?;
                let write = || {
                    std::fs::create_dir_all(folder)?;
                    let mut options = std::fs::OpenOptions::new();
                    let mut file = options.write(true).create_new(true).mode(0o600).open(&path)?;
                    // A partly written token would make the next start fail, so it is removed.
                    writeln!(file, "{}", secret.0).inspect_err(|_| drop(std::fs::remove_file(&path)))
                };
                write().map_err(|error| {
                    Failure::Failed(format!("cannot write the token file {}: {error}", path.display()))
                })?;
                Ok(secret)
            }
            Err(error) => Err(Failure::Failed(format!(
                "cannot read the token file {}: {error}",
                path.display()
            ))),
        }
    }

    fn is_one(text: &str) -> bool {
        BASE64_URL_SAFE_NO_PAD
            .decode(text)
            .is_ok_and(|bytes| bytes.len() == BYTES)
    }

    /// Returns true if the text is this access token. Compares all letters, so the time taken does not tell which one
    /// is wrong.
    pub(crate) fn is(&self, text: &str) -> bool {
        let differences = self.0.bytes().zip(text.bytes()).map(|(one, other)| one ^ other);
        self.0.len() == text.len() && differences.fold(0, |all, one| all | one) == 0
    }

    pub(crate) fn letters(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn only_the_whole_token_is_it() {
        let secret = Secret::draw().unwrap();
        let letters = secret.letters().to_owned();
        assert!(secret.is(&letters) && Secret::is_one(&letters));
        assert!(!secret.is("") && !secret.is(&letters[1..]) && !secret.is(&format!("{letters}A")));
        assert!(!Secret::draw().unwrap().is(&letters));
    }

    #[test]
    fn a_kept_token_stays_and_only_its_owner_reads_it() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("node");
        let first = Secret::kept_in(&inner).unwrap();
        assert_eq!(Secret::kept_in(&inner).unwrap(), first);
        let file = inner.join(FILE);
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        std::fs::write(&file, "short\n").unwrap();
        assert!(Secret::kept_in(&inner).is_err());
    }
}
