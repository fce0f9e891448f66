//! Parser for the option grammar that optimisers, schedules, exchange strategies, densities and pipelines share:
//! `name`, `name:value`, `name:value,key=value,flag`.

use std::fmt::Display;

/// Text such as `sgd:0.05,momentum=0.5`, split into its name and its options. Callers must take each option that they
/// know; [`TextOptions::finish`] refuses the remaining ones.
pub(crate) struct TextOptions<'a> {
    pub(crate) name: &'a str,
    rest: Vec<&'a str>,
}

impl<'a> TextOptions<'a> {
    pub(crate) fn parse(text: &'a str) -> Self {
        let (name, rest) = text.split_once(':').unwrap_or((text, ""));
        let rest = rest.split(',').map(str::trim).filter(|part| !part.is_empty());
        Self {
            name: name.trim(),
            rest: rest.collect(),
        }
    }

    /// Removes the number without a key, as in `sgd:0.05`, from the options, of which it must be the first; `None` if
    /// there is none.
    pub(crate) fn leading_number(&mut self) -> Result<Option<f64>, String> {
        match self.rest.first() {
            Some(first) if !first.contains('=') && first.starts_with(|c: char| !c.is_ascii_alphabetic()) => {
                number(self.rest.remove(0)).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Removes the option `key=number` from the options that are left, and returns its number; `None` if it was not
    /// given.
    pub(crate) fn number(&mut self, key: &str) -> Result<Option<f64>, String> {
        let position = self
            .rest
            .iter()
            .position(|part| part.split_once('=').is_some_and(|(name, _)| name.trim() == key));
        position
            .map(|at| {
                number(
                    self.rest
                        .remove(at)
                        .split_once('=')
                        .map_or("", |(_, value)| value.trim()),
                )
            })
            .transpose()
    }

    /// Removes the option `key=text` from the options that are left, and returns its text; `None` if it was not given.
    pub(crate) fn text(&mut self, key: &str) -> Option<&'a str> {
        let of = |part: &&'a str| part.split_once('=').filter(|(name, _)| name.trim() == key);
        let at = self.rest.iter().position(|part| of(part).is_some())?;
        of(&self.rest.remove(at)).map(|(_, value)| value.trim())
    }

    /// Removes the option that is just the word `key` from the options that are left. Returns `true` if it was given.
    pub(crate) fn flag(&mut self, key: &str) -> bool {
        let position = self.rest.iter().position(|part| *part == key);
        position.map(|at| self.rest.remove(at)).is_some()
    }

    pub(crate) fn finish(self, known: impl Display) -> Result<(), String> {
        match self.rest.first() {
            None => Ok(()),
            Some(unknown) => Err(format!("'{}' has no option '{unknown}'; it takes {known}", self.name)),
        }
    }
}

fn number(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() => Ok(value),
        _ => Err(format!("'{text}' is not a number")),
    }
}

/// Returns `value` if it is in the range, else the sentence that `name` must be in it; `says` is the range in words.
pub(crate) fn within(
    name: &str,
    value: f64,
    range: impl std::ops::RangeBounds<f64>,
    says: &str,
) -> Result<f64, String> {
    if range.contains(&value) {
        Ok(value)
    } else {
        Err(format!("{name} must be {says}, not {value}"))
    }
}

/// Implements `FromStr` and `Display` for a type each of whose values is written as one word. The second and third
/// arguments are the error type and the function that makes an error from an unknown word.
macro_rules! words {
    ($type:ty, $error:ty, $unknown:expr, $($word:literal => $value:path),+ $(,)?) => {
        impl std::str::FromStr for $type {
            type Err = $error;

            fn from_str(text: &str) -> Result<Self, $error> {
                match text {
                    $($word => Ok($value),)+
                    _ => Err($unknown(text.into())),
                }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(match self {
                    $($value => $word,)+
                })
            }
        }
    };
}
pub(crate) use words;

/// Implements serde for a type that is always written as its text: in TOML, in flags and on the wire.
macro_rules! serde_as_text {
    ($type:ty) => {
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = <String as serde::Deserialize>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}
pub(crate) use serde_as_text;
