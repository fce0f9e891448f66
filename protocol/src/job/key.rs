//! Kinds of job keys: for each kind, the form of its value in a draft, its check and its form in a complete job.

use std::fmt::Display;
use std::marker::PhantomData;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;

/// Kind of value that a user writes for a job key: its form, its check and its conversion.
pub trait KeyKind {
    /// Form of a key's value as written, in a [`JobDraft`](super::JobDraft), a flag and a TOML file.
    type Draft;
    /// Form of a key's value after the check, in a [`Job`](super::Job).
    type Value;

    /// Checks the value of a job key and converts it to its form in a job. An error is one sentence for people.
    fn check(written: Self::Draft) -> Result<Self::Value, String>;

    /// Converts a key's value in a job back to its form in a draft, for which [`check`](Self::check) returns the same
    /// value.
    fn write(value: &Self::Value) -> Self::Draft;
}

/// Kind of key whose value is a text that `T` parses.
pub struct Text<T>(PhantomData<T>);

impl<T: FromStr<Err: Display> + Display> KeyKind for Text<T> {
    type Draft = String;
    type Value = T;

    fn check(written: String) -> Result<T, String> {
        written.parse().map_err(|error: T::Err| error.to_string())
    }

    fn write(value: &T) -> String {
        value.to_string()
    }
}

/// Kind of key whose value is a whole number from 1 to `MAX`.
pub struct Whole<const MAX: u32>;

impl<const MAX: u32> KeyKind for Whole<MAX> {
    type Draft = u32;
    type Value = u32;

    fn check(written: u32) -> Result<u32, String> {
        if (1..=MAX).contains(&written) {
            return Ok(written);
        }
        Err(format!(
            "the value must be a whole number from 1 to {MAX}, not {written}"
        ))
    }

    fn write(&value: &u32) -> u32 {
        value
    }
}

/// Range of valid values of a [`Number`] key.
pub trait Limits {
    /// All valid values of a number in a job. NaN lies in no range.
    const RANGE: RangeInclusive<f64>;
    /// Range of valid values in words, for error messages.
    const WORDS: &str;
}

/// Kind of key whose value is a number within the limits `L`.
pub struct Number<L>(PhantomData<L>);

impl<L: Limits> KeyKind for Number<L> {
    type Draft = f64;
    type Value = f64;

    fn check(written: f64) -> Result<f64, String> {
        if L::RANGE.contains(&written) {
            return Ok(written);
        }
        Err(format!("the value must be {}, not {written}", L::WORDS))
    }

    fn write(&value: &f64) -> f64 {
        value
    }
}

/// Kind of key of which every value of type `T` is valid.
pub struct Any<T>(PhantomData<T>);

impl<T: Copy> KeyKind for Any<T> {
    type Draft = T;
    type Value = T;

    fn check(written: T) -> Result<T, String> {
        Ok(written)
    }

    fn write(&value: &T) -> T {
        value
    }
}

/// Kind of key whose value is the path of a model file.
pub struct ModelPath;

impl KeyKind for ModelPath {
    type Draft = String;
    type Value = PathBuf;

    fn check(written: String) -> Result<PathBuf, String> {
        if written.is_empty() {
            return Err("the value must be the path of a model file".into());
        }
        Ok(written.into())
    }

    fn write(value: &PathBuf) -> String {
        value.display().to_string()
    }
}

/// Key of kind `K` that a job may leave out.
pub struct Optional<K>(PhantomData<K>);

/// Key of a job: a [`KeyKind`], which a job must have, or an [`Optional`] one, which it may leave out.
pub trait JobKey {
    /// Form of the key's value in a job draft, where every key may be missing.
    type Draft;
    /// Form of a key's value in a complete job.
    type Value;

    /// Checks a key's value in a draft, after defaults have been filled in.
    fn check(written: Option<Self::Draft>) -> Result<Self::Value, String>;

    /// Converts a key's value in a job back to its form in a draft.
    fn write(value: &Self::Value) -> Option<Self::Draft>;
}

impl<K: KeyKind> JobKey for Optional<K> {
    type Draft = K::Draft;
    type Value = Option<K::Value>;

    fn check(written: Option<K::Draft>) -> Result<Self::Value, String> {
        written.map(K::check).transpose()
    }

    fn write(value: &Self::Value) -> Option<K::Draft> {
        value.as_ref().map(K::write)
    }
}

impl<K: KeyKind> JobKey for K {
    type Draft = K::Draft;
    type Value = K::Value;

    fn check(written: Option<K::Draft>) -> Result<Self::Value, String> {
        K::check(written.ok_or("a value is needed")?)
    }

    fn write(value: &Self::Value) -> Option<K::Draft> {
        Some(K::write(value))
    }
}
