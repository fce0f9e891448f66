//! A cluster's token: addresses of its nodes and its credentials as one line of text to paste.
//!
//! After `tau1.` the URL-safe base64 of these bytes follows: the length of the addresses, the addresses, the
//! credentials, and a checksum by which a line that was not copied whole is recognised.

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use communicator::transport::Credentials;

const PREFIX: &str = "tau1.";

/// Contents of a cluster's token: the addresses of its nodes and its credentials.
#[derive(Debug)]
pub(crate) struct Token {
    pub(crate) addresses: Vec<String>,
    pub(crate) credentials: Credentials,
}

impl Token {
    /// Encodes the addresses of a cluster's nodes and its credentials as a token, one line of text.
    pub(crate) fn text(addresses: &[String], credentials: &Credentials) -> String {
        let addresses = addresses.join(",");
        let length = u16::try_from(addresses.len()).unwrap_or(u16::MAX);
        let mut bytes = length.to_le_bytes().to_vec();
        bytes.extend(&addresses.as_bytes()[..usize::from(length)]);
        bytes.extend(credentials.to_bytes());
        bytes.extend(crc32fast::hash(&bytes).to_le_bytes());
        format!("{PREFIX}{}", BASE64_URL_SAFE_NO_PAD.encode(bytes))
    }

    /// Parses a cluster's token. Returns none if the text does not begin like one, and an error if it is damaged.
    pub(crate) fn of(text: &str) -> Option<Result<Self, String>> {
        let letters = text.strip_prefix(PREFIX)?;
        let broken =
            || "this is not a whole token: copy the line that 'tau token' prints from 'tau1.' to its end".into();
        Some(Self::decode(letters).ok_or_else(broken))
    }

    fn decode(letters: &str) -> Option<Self> {
        let bytes = BASE64_URL_SAFE_NO_PAD.decode(letters).ok()?;
        let (body, checksum) = bytes.split_last_chunk::<4>()?;
        if crc32fast::hash(body).to_le_bytes() != *checksum {
            return None;
        }
        let (length, rest) = body.split_first_chunk::<2>()?;
        let (addresses, credentials) = rest.split_at_checked(u16::from_le_bytes(*length).into())?;
        let addresses = str::from_utf8(addresses).ok()?;
        Some(Self {
            addresses: addresses.split(',').map(str::to_owned).collect(),
            credentials: Credentials::of_bytes(credentials)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_comes_back_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let credentials = Credentials::create(&folder.path().join("cluster.pem")).unwrap();
        let addresses = ["node-1:7700".to_owned(), "10.0.0.2:7700".to_owned()];
        let text = Token::text(&addresses, &credentials);
        assert!(text.is_ascii() && text.len() < 1000, "{} letters", text.len());
        let token = Token::of(&text).unwrap().unwrap();
        assert_eq!(token.addresses, addresses);
        assert_eq!(token.credentials.to_bytes(), credentials.to_bytes());
        assert!(Token::of("node-1:7700").is_none());
        for cut in [PREFIX.len(), PREFIX.len() + 3, text.len() / 2, text.len() - 1] {
            assert!(Token::of(&text[..cut]).unwrap().is_err(), "{cut}");
        }
        let mut damaged = text.into_bytes();
        let middle = damaged.len() / 2;
        damaged[middle] = if damaged[middle] == b'A' { b'B' } else { b'A' };
        let damaged = String::from_utf8(damaged).unwrap();
        assert!(Token::of(&damaged).unwrap().unwrap_err().contains("not a whole token"));
    }
}
