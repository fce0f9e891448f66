//! Contents of an actor's message on the wire, in postcard.

use ractor::BytesConvertable;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// A decoded value, or the error that its bytes could not be decoded. `ractor` has no way to report an error while it
/// decodes a message, so the receiver finds the error here.
#[derive(Clone, Debug, PartialEq)]
pub struct Payload<T>(pub Result<T, Unreadable>);

/// The other side sent bytes that this release cannot decode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a message could not be read: bring all nodes and clients to the same release")]
pub struct Unreadable;

impl<T> From<T> for Payload<T> {
    fn from(value: T) -> Self {
        Self(Ok(value))
    }
}

impl<T: Serialize + DeserializeOwned> BytesConvertable for Payload<T> {
    fn into_bytes(self) -> Vec<u8> {
        let value = self.0.ok();
        value
            .and_then(|value| postcard::to_stdvec(&value).ok())
            .unwrap_or_default()
    }

    fn from_bytes(bytes: Vec<u8>) -> Self {
        Self(match postcard::take_from_bytes(&bytes) {
            Ok((value, [])) => Ok(value),
            _ => Err(Unreadable),
        })
    }
}

/// Returns the number of bytes that a value takes on the wire.
pub(crate) fn encoded_length(value: &impl Serialize) -> usize {
    let size = postcard::ser_flavors::Size::default();
    // A value that cannot be encoded is not sent.
    postcard::serialize_with_flavor(value, size).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_come_back_and_garbage_is_said_so() {
        let bytes = Payload::from((7u32, "seven".to_string())).into_bytes();
        assert_eq!(
            Payload::<(u32, String)>::from_bytes(bytes.clone()).0,
            Ok((7, "seven".into()))
        );
        assert_eq!(
            Payload::<(u32, String)>::from_bytes(bytes[1..].to_vec()).0,
            Err(Unreadable)
        );
        assert_eq!(Payload::<u8>::from_bytes(vec![1, 2]).0, Err(Unreadable));
        assert_eq!(encoded_length(&(7u32, "seven")), bytes.len());
    }
}
