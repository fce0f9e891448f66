//! How a table is read: which columns are to be predicted, and what becomes of the others.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use super::DataSpecError;
use super::column::{Column, Listed, list};
use super::test_split::TestSplit;
use crate::text_options::words;

/// The places that texts are hashed to when nothing else was asked for.
const DEFAULT_BUCKETS: u32 = 32;
/// The inputs that the words of a text are hashed to when nothing else was asked for.
const DEFAULT_WORDS: u32 = 4096;
/// More would make a table wider than anybody means.
const BUCKETS_MAX: u32 = 1 << 16;

/// What is said of a table beside its file.
#[derive(Clone, Debug, PartialEq)]
pub struct TableOptions {
    /// The columns that are to be predicted, at least one: a class or a number in one, or a number in each.
    pub label: Vec<Column>,
    /// What is kept for testing.
    pub test_split: TestSplit,
    /// Whether the label is a class or a number; found out from what it holds where nothing is said.
    pub target: Option<TargetKind>,
    /// What becomes of numbers that are not there.
    pub missing: Missing,
    /// What becomes of columns of texts that have no rule of their own.
    pub text: Option<TextRule>,
    /// Columns whose texts are categories, each of which becomes an input.
    pub onehot: Vec<Column>,
    /// Columns whose texts are hashed, and to how many inputs.
    pub hash: Vec<(Column, u32)>,
    /// Columns whose texts are taken apart into words, and how many inputs those are hashed to.
    pub words: Vec<(Column, u32)>,
    /// Columns of dates.
    pub date: Vec<Column>,
    /// Columns that are not read.
    pub drop: Vec<Column>,
}

impl Default for TableOptions {
    fn default() -> Self {
        Self {
            label: vec![Column::LAST],
            test_split: TestSplit::default(),
            target: None,
            missing: Missing::Error,
            text: None,
            onehot: Vec::new(),
            hash: Vec::new(),
            words: Vec::new(),
            date: Vec::new(),
            drop: Vec::new(),
        }
    }
}

/// What a label is taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetKind {
    /// Each different text is a class.
    Class,
    /// It is a number.
    Number,
}

/// What becomes of numbers that are not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// The data is refused.
    Error,
    /// The mean of their column over the training part takes their place.
    Mean,
    /// 0 takes their place.
    Zero,
}

/// What becomes of a column of texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextRule {
    /// Each different text becomes an input that is 1 or 0.
    OneHot,
    /// Each text makes one of so many inputs 1.
    Hash(u32),
    /// It is not read.
    Drop,
}

words!(TargetKind, DataSpecError, DataSpecError::Target, "class" => Self::Class, "number" => Self::Number);
words!(Missing, DataSpecError, DataSpecError::Missing, "error" => Self::Error, "mean" => Self::Mean, "zero" => Self::Zero);

impl FromStr for TextRule {
    type Err = DataSpecError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once(':') {
            None if text == "onehot" => Ok(Self::OneHot),
            None if text == "drop" => Ok(Self::Drop),
            None if text == "hash" => Ok(Self::Hash(DEFAULT_BUCKETS)),
            Some(("hash", count)) => buckets(count).map(Self::Hash),
            _ => Err(DataSpecError::TextRule(text.to_owned())),
        }
    }
}

impl fmt::Display for TextRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OneHot => f.write_str("onehot"),
            Self::Hash(count) => write!(f, "hash:{count}"),
            Self::Drop => f.write_str("drop"),
        }
    }
}

fn buckets(text: &str) -> Result<u32, DataSpecError> {
    text.trim()
        .parse()
        .ok()
        .filter(|count| (2..=BUCKETS_MAX).contains(count))
        .ok_or_else(|| DataSpecError::Buckets(text.to_owned()))
}

/// Reads `colour:32,shape`. A name may hold a colon if a number of inputs follows it.
fn hashed(text: &str, default: u32) -> Result<Vec<(Column, u32)>, DataSpecError> {
    let one = |text: &str| match text.rsplit_once(':') {
        Some((column, count)) => Ok((column.parse()?, buckets(count)?)),
        None => Ok((text.parse()?, default)),
    };
    text.split(',').map(one).collect()
}

impl TableOptions {
    /// Takes an option; false if tables have none of this name.
    pub(super) fn take(&mut self, key: &str, value: &str) -> Result<bool, DataSpecError> {
        match key {
            "label" => self.label = list(value)?,
            "target" => self.target = Some(value.parse()?),
            "missing" => self.missing = value.parse()?,
            "text" => self.text = Some(value.parse()?),
            "onehot" => self.onehot = list(value)?,
            "hash" => self.hash = hashed(value, DEFAULT_BUCKETS)?,
            "words" => self.words = hashed(value, DEFAULT_WORDS)?,
            "date" => self.date = list(value)?,
            "drop" => self.drop = list(value)?,
            _ => return self.test_split.take(key, value),
        }
        Ok(true)
    }

    /// What is left when all options are taken.
    pub(super) fn check(self) -> Result<Self, DataSpecError> {
        if self.target == Some(TargetKind::Class) && self.label.len() > 1 {
            return Err(DataSpecError::SeveralClasses);
        }
        let hashed = self.hash.iter().chain(&self.words).map(|(column, _)| column);
        let listed = [&self.onehot, &self.date, &self.drop, &self.label];
        let mut named: Vec<&Column> = listed.into_iter().flatten().collect();
        named.extend(hashed);
        named.sort();
        match named.windows(2).find(|two| two[0] == two[1]) {
            Some(twice) => Err(DataSpecError::TwoRules(twice[0].to_string())),
            None => Ok(self),
        }
    }

    /// Files beside the table itself.
    pub(super) fn paths_mut(&mut self) -> Option<&mut PathBuf> {
        match &mut self.test_split {
            TestSplit::Share(_) => None,
            TestSplit::File(file) => Some(file),
        }
    }
}

/// Label and what is set aside are always written out, so that a text kept in a model file means the same should a default
/// ever change.
impl fmt::Display for TableOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "label={}&{}", Listed(&self.label), self.test_split)?;
        if let Some(target) = self.target {
            write!(f, "&target={target}")?;
        }
        if self.missing != Missing::Error {
            write!(f, "&missing={}", self.missing)?;
        }
        if let Some(text) = self.text {
            write!(f, "&text={text}")?;
        }
        for (key, columns) in [("onehot", &self.onehot), ("date", &self.date), ("drop", &self.drop)] {
            if !columns.is_empty() {
                write!(f, "&{key}={}", Listed(columns))?;
            }
        }
        for (key, columns) in [("hash", &self.hash), ("words", &self.words)] {
            for (place, (column, count)) in columns.iter().enumerate() {
                let lead = if place == 0 { format!("&{key}=") } else { ",".to_owned() };
                write!(f, "{lead}{column}:{count}")?;
            }
        }
        Ok(())
    }
}
