//! Named numbers: further measurements of a model that the user's code makes and names, such as a perplexity.

use std::fmt;

use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use thiserror::Error;

use crate::bounded::{NAME_BYTES_MAX, Name};

/// Numbers with distinct names, in the order in which they were given. In JSON they are an object; a number that is
/// not finite is null there, and is read as NaN.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NamedNumbers(Vec<(Name, f64)>);

/// Reason why numbers that the user's code has measured are refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NamedNumbersError {
    /// The code gave more numbers than an evaluation can have.
    #[error("an evaluation has more than {} named numbers: give fewer", NamedNumbers::MAX)]
    TooMany,
    /// A number has no name, or a name that is too long.
    #[error("'{0}' cannot name a number: a name has 1 to {NAME_BYTES_MAX} bytes")]
    Name(String),
}

impl NamedNumbers {
    /// Maximum number of named numbers of one evaluation.
    pub const MAX: usize = 16;
    /// No numbers. It is a constant because other constants use it, which cannot call `default`.
    pub const NONE: Self = Self(Vec::new());

    /// Creates named numbers. If a name is given twice, its last number is kept. Infinite numbers become NaN.
    pub fn new<N: AsRef<str>>(numbers: impl IntoIterator<Item = (N, f64)>) -> Result<Self, NamedNumbersError> {
        let mut all = Self::default();
        for (name, number) in numbers {
            let name = name.as_ref();
            if !(1..=NAME_BYTES_MAX).contains(&name.len()) {
                return Err(NamedNumbersError::Name(name.chars().take(NAME_BYTES_MAX).collect()));
            }
            all.set(name.into(), number);
            if all.0.len() > Self::MAX {
                return Err(NamedNumbersError::TooMany);
            }
        }
        Ok(all)
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the names and their numbers, in the order in which they were given.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, f64)> {
        self.0.iter().map(|(name, number)| (&**name, *number))
    }

    /// Returns the number of this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<f64> {
        self.iter().find(|(known, _)| *known == name).map(|(_, number)| number)
    }

    /// Returns the number of bytes that the names and numbers take in a message, without length prefixes.
    pub(super) fn bytes(&self) -> usize {
        self.iter().map(|(name, _)| name.len() + size_of::<f64>()).sum()
    }

    fn set(&mut self, name: Name, number: f64) {
        let number = if number.is_finite() { number } else { f64::NAN };
        match self.0.iter_mut().find(|(known, _)| *known == name) {
            Some((_, known)) => *known = number,
            None => self.0.push((name, number)),
        }
    }
}

impl Serialize for NamedNumbers {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

impl<'de> Deserialize<'de> for NamedNumbers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let has_null = deserializer.is_human_readable();
        deserializer.deserialize_map(Numbers { has_null })
    }
}

/// Serde visitor that reads named numbers one by one, and fails at the first one above the maximum.
struct Numbers {
    /// True if the format has null in place of a number that is not finite.
    has_null: bool,
}

impl<'de> Visitor<'de> for Numbers {
    type Value = NamedNumbers;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at most {} named numbers", NamedNumbers::MAX)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut all = NamedNumbers::default();
        while let Some(name) = map.next_key::<Name>()? {
            let number = if self.has_null {
                map.next_value::<Option<f64>>()?.unwrap_or(f64::NAN)
            } else {
                map.next_value()?
            };
            all.set(name, number);
            if all.0.len() > NamedNumbers::MAX {
                return Err(A::Error::custom("too many named numbers"));
            }
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn many(count: usize) -> Vec<(String, f64)> {
        (0..count).map(|number| (format!("n{number}"), 1.0)).collect()
    }

    #[test]
    fn numbers_come_back_from_json_and_from_the_wire_in_their_order() {
        let numbers = NamedNumbers::new([("perplexity", 7.25), ("bleu", 0.5)]).unwrap();
        let text = serde_json::to_string(&numbers).unwrap();
        assert_eq!(text, r#"{"perplexity":7.25,"bleu":0.5}"#);
        assert_eq!(serde_json::from_str::<NamedNumbers>(&text).unwrap(), numbers);
        let bytes = postcard::to_stdvec(&numbers).unwrap();
        assert_eq!(postcard::from_bytes::<NamedNumbers>(&bytes).unwrap(), numbers);
        assert_eq!((numbers.get("bleu"), numbers.get("loss")), (Some(0.5), None));
    }

    #[test]
    fn what_is_not_finite_is_no_number() {
        let numbers = NamedNumbers::new([("a", f64::NAN), ("b", f64::INFINITY)]).unwrap();
        let text = serde_json::to_string(&numbers).unwrap();
        assert_eq!(text, r#"{"a":null,"b":null}"#);
        let back: NamedNumbers = serde_json::from_str(&text).unwrap();
        assert!(back.iter().len() == 2 && back.iter().all(|(_, number)| number.is_nan()));
        let bytes = postcard::to_stdvec(&vec![("a", f64::INFINITY)]).unwrap();
        let back: NamedNumbers = postcard::from_bytes(&bytes).unwrap();
        assert!(back.get("a").unwrap().is_nan());
    }

    #[test]
    fn numbers_and_names_are_bounded() {
        assert_eq!(NamedNumbers::new(many(16)).unwrap().iter().len(), 16);
        assert_eq!(NamedNumbers::new(many(17)), Err(NamedNumbersError::TooMany));
        let twice = NamedNumbers::new([("a", 1.0), ("a", 2.0)]).unwrap();
        assert_eq!(twice.iter().collect::<Vec<_>>(), [("a", 2.0)]);
        let error = NamedNumbers::new([("x".repeat(65), 1.0)]).unwrap_err();
        assert!(error.to_string().contains("a name has 1 to 64 bytes"), "{error}");
        assert!(NamedNumbers::new([("", 1.0)]).is_err());
        let read = |numbers: &Vec<(String, f64)>| {
            let bytes = postcard::to_stdvec(numbers).unwrap();
            postcard::from_bytes::<NamedNumbers>(&bytes).is_ok()
        };
        assert!(read(&many(16)) && !read(&many(17)));
        assert!(read(&vec![("x".repeat(64), 1.0)]) && !read(&vec![("x".repeat(65), 1.0)]));
    }
}
