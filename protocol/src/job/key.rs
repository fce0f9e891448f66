//! Kinds of job keys: how the value of one is written in a draft, checked, and written again.

use std::fmt::Display;
use std::marker::PhantomData;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;

/// A kind of value that a user writes for a job key.
pub trait KeyKind {
    /// The form in a [`JobDraft`](super::JobDraft), a flag and a TOML file.
    type Draft;
    /// The form in a [`Job`](super::Job).
    type Value;

    /// Checks a value. An error is a sentence.
    fn check(written: Self::Draft) -> Result<Self::Value, String>;

    /// Writes a value so that [`check`](Self::check) returns it again.
    fn write(value: &Self::Value) -> Self::Draft;
}

/// A text that its type parses.
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

/// A whole number from 1 to a highest one.
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

/// The range of a [`Number`].
pub trait Limits {
    /// All valid values. NaN lies in no range.
    const RANGE: RangeInclusive<f64>;
    /// The range in words.
    const WORDS: &str;
}

/// A number within limits.
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

/// A value of which every one is valid.
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

/// The path of a model file.
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

/// A key that a job may go without.
pub struct Optional<K>(PhantomData<K>);

/// A key of a job: its kind, and whether a job may go without it.
pub trait JobKey {
    /// The form in a draft, where every key may be missing.
    type Draft;
    /// The form in a job.
    type Value;

    /// Checks what a draft says, after defaults were filled in.
    fn check(written: Option<Self::Draft>) -> Result<Self::Value, String>;

    /// Writes a job's value.
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
