//! Contents of an actor's message on the wire: postcard.

use ractor::BytesConvertable;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// A value, or that it could not be read. Decoding cannot fail where `ractor` decodes, so the failure travels along.
#[derive(Clone, Debug, PartialEq)]
pub struct Payload<T>(pub Result<T, Unreadable>);

/// The other side sent something that this release cannot read.
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

/// The bytes that a value takes on the wire.
pub(crate) fn encoded_length(value: &impl Serialize) -> usize {
    let size = postcard::ser_flavors::Size::default();
    // What cannot be written is not.
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
