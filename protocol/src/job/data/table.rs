//! Options for reading a table: the columns to be predicted, and the treatment of all other columns.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use super::DataSpecError;
use super::column::{Column, Listed, list};
use super::test_split::TestSplit;
use crate::text_options::words;

/// Number of model inputs that the texts of a table's column are hashed to by default.
const DEFAULT_BUCKETS: u32 = 32;
/// Number of model inputs that the words of a table's texts are hashed to by default.
const DEFAULT_WORDS: u32 = 4096;
/// Most model inputs that a table's column can be hashed to: more would make the table too wide to be meant.
const BUCKETS_MAX: u32 = 1 << 16;

/// Options for reading a table.
#[derive(Clone, Debug, PartialEq)]
pub struct TableOptions {
    /// Columns of a table to be predicted, at least one: a class or a number if there is one column, a number each if
    /// there are several.
    pub label: Vec<Column>,
    /// Choice of the test rows: a share of the rows, or another file.
    pub test_split: TestSplit,
    /// Kind of the label, class or number. `None`: the kind is inferred from its values.
    pub target: Option<TargetKind>,
    /// Treatment of missing numbers in a table.
    pub missing: Missing,
    /// Treatment of text columns that have no rule of their own, if one is given.
    pub text: Option<TextRule>,
    /// Text columns of a table whose texts are categories. Each category becomes an input.
    pub onehot: Vec<Column>,
    /// Text columns whose texts are hashed, each with the number of inputs that they are hashed to.
    pub hash: Vec<(Column, u32)>,
    /// Text columns of a table that are split into words, each with the number of inputs that the words are hashed to.
    pub words: Vec<(Column, u32)>,
    /// Columns of dates or times in a table.
    pub date: Vec<Column>,
    /// Columns of a table that are not read.
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

/// Kind of a label in a table: a class or a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetKind {
    /// Kind of label: a class. Each different text is a class of its own.
    Class,
    /// Kind of label: a number to be predicted.
    Number,
}

/// Treatment of missing numbers in a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// Missing numbers in a table: the table is refused.
    Error,
    /// Missing numbers in a table: each is replaced by the mean of its column over the training rows.
    Mean,
    /// Missing numbers in a table: each is replaced by 0.
    Zero,
}

/// Treatment of a table's column of texts, which a model cannot take as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextRule {
    /// Treatment of a text column: each different text becomes an input that is 1 or 0.
    OneHot,
    /// Treatment of a text column: each text is hashed to one of this number of inputs, which is then 1.
    Hash(u32),
    /// Treatment of a text column: it is not read.
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

/// Reads a list of hashed columns such as `colour:32,shape`; `default` is the number of inputs where none is given. A
/// column's name may hold a colon if a number of inputs follows it.
fn hashed(text: &str, default: u32) -> Result<Vec<(Column, u32)>, DataSpecError> {
    let one = |text: &str| match text.rsplit_once(':') {
        Some((column, count)) => Ok((column.parse()?, buckets(count)?)),
        None => Ok((text.parse()?, default)),
    };
    text.split(',').map(one).collect()
}

impl TableOptions {
    /// Sets the option `key` of a table. Returns `false` if tables have no option of this name.
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

    /// Checks that the options fit together, when all of them have been set.
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

    /// Returns the path of the file of test rows, so that the caller can change it; `None` if there is no such file.
    pub(super) fn paths_mut(&mut self) -> Option<&mut PathBuf> {
        match &mut self.test_split {
            TestSplit::Share(_) => None,
            TestSplit::File(file) => Some(file),
        }
    }
}

/// Writes the options of a table. The label and the choice of test rows are always included, so that a text in a model
/// file keeps its meaning if a default changes.
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
