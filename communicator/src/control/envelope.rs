//! The envelope of a message to an endpoint: the token of the connection that the message is sent over, and the
//! contents in postcard.

use ractor::BytesConvertable;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::payload::{Payload, Unreadable};
use super::session_hello::Token;

/// Maximum length in bytes of the contents of a message to an endpoint. A beat (a node's state message) about a
/// thousand members and their run is half as long.
pub(super) const CONTENT_BYTES_MAX: usize = 256 << 10;

/// A message to an endpoint, with the token that shows who sent it.
#[derive(Clone, Debug, PartialEq)]
pub struct Envelope<T> {
    /// Token that the receiver gave to the sender; `None` if the message was too short to hold one.
    pub(super) token: Option<Token>,
    pub(super) content: Result<T, Unreadable>,
}

impl<T> Envelope<T> {
    /// Wraps a message in an envelope for the process that gave this token to this one.
    pub(super) fn new(token: Token, content: T) -> Self {
        Self {
            token: Some(token),
            content: Ok(content),
        }
    }
}

impl<T: Serialize + DeserializeOwned> BytesConvertable for Envelope<T> {
    fn into_bytes(self) -> Vec<u8> {
        let mut bytes = self.token.map_or_else(Vec::new, |token| token.bytes().to_vec());
        bytes.extend(Payload(self.content).into_bytes());
        bytes
    }

    fn from_bytes(bytes: Vec<u8>) -> Self {
        let Some((token, content)) = bytes.split_first_chunk::<{ Token::BYTES }>() else {
            return Self {
                token: None,
                content: Err(Unreadable),
            };
        };
        Self {
            token: Some(Token::of_bytes(*token)),
            content: if content.len() > CONTENT_BYTES_MAX {
                Err(Unreadable)
            } else {
                Payload::from_bytes(content.to_vec()).0
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_is_known_though_the_contents_are_not() {
        let token = Token::of_bytes([7; Token::BYTES]);
        let bytes = Envelope::new(token, "message".to_string()).into_bytes();
        let back = Envelope::<String>::from_bytes(bytes.clone());
        assert_eq!((back.token, back.content), (Some(token), Ok("message".into())));
        let cut = Envelope::<String>::from_bytes(bytes[..bytes.len() - 1].to_vec());
        assert_eq!((cut.token, cut.content), (Some(token), Err(Unreadable)));
        for length in 0..Token::BYTES {
            let short = Envelope::<String>::from_bytes(bytes[..length].to_vec());
            assert_eq!((short.token, short.content), (None, Err(Unreadable)));
        }
    }

    #[test]
    fn what_is_too_long_is_not_even_read() {
        let token = Token::of_bytes([7; Token::BYTES]);
        let long = "x".repeat(CONTENT_BYTES_MAX);
        let back = Envelope::<String>::from_bytes(Envelope::new(token, long).into_bytes());
        assert_eq!(back.content, Err(Unreadable));
    }
}
