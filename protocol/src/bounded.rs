//! Texts and lists whose maximum length is part of their type. Decoding stops with an error when the maximum is
//! exceeded.

use std::borrow::Borrow;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

/// Largest count (of samples, bytes or batches) that is accepted from outside; `f64` holds every integer up to it.
pub const COUNT_MAX: u64 = 1 << 53;
/// Largest length in bytes of a name, release, device or address.
pub const NAME_BYTES_MAX: usize = 64;
/// Largest length in bytes of a [`Sentence`] for people.
pub const SENTENCE_BYTES_MAX: usize = 1 << 10;

/// Name of a node, a release or a device, or a network address.
pub type Name = BoundedText<NAME_BYTES_MAX>;
/// Sentence for people that a worker, the operating system or a library has written.
pub type Sentence = BoundedText<SENTENCE_BYTES_MAX>;

/// Text of at most `MAX` bytes. A longer text is cut short when a program creates it, and refused when it is decoded.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct BoundedText<const MAX: usize>(Box<str>);

impl<const MAX: usize> From<String> for BoundedText<MAX> {
    fn from(mut text: String) -> Self {
        if text.len() > MAX {
            text.truncate(text.floor_char_boundary(MAX - "…".len()));
            text.push('…');
        }
        Self(text.into())
    }
}

impl<const MAX: usize> From<&str> for BoundedText<MAX> {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

impl<const MAX: usize> Deref for BoundedText<MAX> {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl<const MAX: usize> Borrow<str> for BoundedText<MAX> {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl<const MAX: usize> fmt::Display for BoundedText<MAX> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<'de, const MAX: usize> Deserialize<'de> for BoundedText<MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Box::<str>::deserialize(deserializer)?;
        if text.len() > MAX {
            return Err(D::Error::custom("a text is too long"));
        }
        Ok(Self(text))
    }
}

/// List of at most `MAX` entries. Further entries are dropped when a program collects the list; a longer list is
/// refused when it is decoded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct BoundedVec<T, const MAX: usize>(Vec<T>);

impl<T, const MAX: usize> BoundedVec<T, MAX> {
    pub fn into_vec(self) -> Vec<T> {
        self.0
    }
}

impl<T, const MAX: usize> Default for BoundedVec<T, MAX> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T, const MAX: usize> FromIterator<T> for BoundedVec<T, MAX> {
    fn from_iter<I: IntoIterator<Item = T>>(entries: I) -> Self {
        Self(entries.into_iter().take(MAX).collect())
    }
}

impl<T, const MAX: usize> From<Vec<T>> for BoundedVec<T, MAX> {
    fn from(mut entries: Vec<T>) -> Self {
        entries.truncate(MAX);
        Self(entries)
    }
}

impl<T, const MAX: usize> Deref for BoundedVec<T, MAX> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<'de, T: Deserialize<'de>, const MAX: usize> Deserialize<'de> for BoundedVec<T, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(Entries(PhantomData))
    }
}

/// Serde visitor that reads a [`BoundedVec`] entry by entry and stops at its maximum length.
struct Entries<T, const MAX: usize>(PhantomData<T>);

impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for Entries<T, MAX> {
    type Value = BoundedVec<T, MAX>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of at most {MAX} entries")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = list.next_element()? {
            if entries.len() == MAX {
                return Err(A::Error::custom("a list is too long"));
            }
            entries.push(entry);
        }
        Ok(BoundedVec(entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{decode, encode};

    #[test]
    fn a_text_is_cut_when_it_is_made_and_refused_when_it_is_read() {
        type Short = BoundedText<8>;
        assert_eq!(&*Short::from("12345678"), "12345678");
        assert_eq!(&*Short::from("123456789"), "12345…");
        assert_eq!(&*Short::from("éééééé"), "éé…");
        assert_eq!(decode::<Short>(&encode(&"12345678").unwrap()), Ok("12345678".into()));
        assert!(decode::<Short>(&encode(&"123456789").unwrap()).is_err());
        assert!(serde_json::from_str::<Short>(r#""12345678""#).is_ok());
        assert!(serde_json::from_str::<Short>(r#""123456789""#).is_err());
    }

    #[test]
    fn a_list_is_cut_when_it_is_made_and_refused_when_it_is_read() {
        type Short = BoundedVec<u8, 3>;
        assert_eq!(*(0..9).collect::<Short>(), [0, 1, 2]);
        assert_eq!(*Short::from(vec![0; 9]), [0; 3]);
        assert_eq!(decode::<Short>(&encode(&vec![7u8; 3]).unwrap()), Ok(vec![7; 3].into()));
        assert!(decode::<Short>(&encode(&vec![7u8; 4]).unwrap()).is_err());
    }
}
