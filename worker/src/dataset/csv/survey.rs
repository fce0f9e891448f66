//! Surveys the columns of a table, so that one message reports all problems and suggests options that solve them.

use std::collections::HashSet;
use std::path::Path;

use protocol::job::data::{Column, Missing, TableOptions};

use super::cell::{Cell, has_decimal_comma};
use super::columns::{Columns, Rule};
use super::{CsvError, date};

/// Most categories (different texts) of a column; more would make a table wider than users intend.
pub(super) const CATEGORIES_MAX: usize = 1000;
/// A column of different texts is taken for identifiers from this many texts on.
const IDS_MIN: u64 = 20;
/// A column is taken for prose from this many words per text and this many different texts on.
const LONG_WORDS: u64 = 4;
const LONG_TEXTS: usize = 20;
/// Suggested numbers of inputs for hashed texts and for hashed words.
const HASH_INPUTS: u32 = 64;
const WORDS_INPUTS: u32 = 4096;
/// Most problems of columns that a message lists: messages from other machines are cut after 1,024 bytes.
const LISTED_MAX: usize = 8;
/// Number of letters of a cell that a message shows.
const CELL_LETTERS: usize = 24;

/// Summary of a column's cells, from which messages about the column are made.
#[derive(Default)]
pub(super) struct Profile {
    cells: u64,
    numbers: u64,
    /// Number of the column's cells that are neither numbers nor missing; `commas` of them are numbers with a decimal
    /// comma, `dates` are dates.
    texts: u64,
    commas: u64,
    dates: u64,
    /// Number of words in all of the column's texts.
    words: u64,
    first_text: Option<Example>,
    first_missing: Option<Example>,
    /// Different texts of the column, up to one more than the allowed number of categories.
    different: HashSet<String>,
    /// True if a text occurs twice in the column.
    repeats: bool,
}

/// A cell and its line, which a message shows as an example.
#[derive(Clone)]
struct Example {
    line: u64,
    cell: String,
}

impl Profile {
    /// Adds the column's next cell to the profile. Returns the bytes of memory that were taken for it.
    pub(super) fn push(&mut self, cell: &str, line: u64) -> u64 {
        self.cells += 1;
        let kept = (cell.len() + 2 * size_of::<String>()) as u64;
        let mut bytes = 0;
        let example = || Example {
            line,
            cell: cell.to_owned(),
        };
        match Cell::read(cell) {
            Cell::Number(_) => self.numbers += 1,
            Cell::Missing => {
                self.first_missing.get_or_insert_with(example);
            }
            Cell::Text => {
                self.texts += 1;
                self.commas += u64::from(has_decimal_comma(cell));
                self.dates += u64::from(date::read(cell).is_some());
                self.words += cell.split_whitespace().count() as u64;
                self.first_text.get_or_insert_with(example);
                if self.different.len() <= CATEGORIES_MAX {
                    let is_new = self.different.insert(cell.to_owned());
                    self.repeats |= !is_new;
                    bytes = if is_new { kept } else { 0 };
                }
            }
        }
        bytes
    }

    pub(super) fn holds_text(&self) -> bool {
        self.texts > 0
    }

    /// True if most of the column's cells are numbers with a decimal comma.
    pub(super) fn holds_decimal_commas(&self) -> bool {
        2 * self.commas > self.cells
    }

    /// Returns the kind of the column's texts, which decides the advice to the user.
    fn kind(&self) -> Kind {
        if 2 * self.commas > self.texts {
            Kind::DecimalCommas
        } else if 10 * self.dates >= 9 * self.texts {
            Kind::Dates
        } else if self.numbers > self.texts {
            Kind::Slip
        } else if self.words >= LONG_WORDS * self.texts && self.different.len() > LONG_TEXTS {
            Kind::LongTexts
        } else if !self.repeats && self.texts >= IDS_MIN {
            Kind::Ids
        } else if self.different.len() > CATEGORIES_MAX {
            Kind::ManyTexts
        } else {
            Kind::Categories
        }
    }

    /// Returns the problems of reading the column at position `at` by this rule, each with an example cell; empty if
    /// the column can be read.
    fn problems(&self, at: usize, rule: Rule) -> Vec<Problem> {
        let problem = |kind, example: &Option<Example>| {
            let Example { line, cell } = example.clone()?;
            Some(Problem { at, line, cell, kind })
        };
        let text = |kind| problem(kind, &self.first_text);
        let missing = || problem(Kind::Missing, &self.first_missing);
        let found = match rule {
            Rule::Number { may_miss } => {
                let kind = self.holds_text().then(|| self.kind());
                let fills = matches!(kind, None | Some(Kind::Dates | Kind::Slip)) && !may_miss;
                [kind.and_then(text), fills.then(missing).flatten()]
            }
            Rule::Category if self.holds_decimal_commas() => [text(Kind::DecimalCommas), None],
            Rule::Category if self.different.len() > CATEGORIES_MAX => [text(self.kind()), None],
            Rule::Date { may_miss: false } => [missing(), None],
            Rule::Category | Rule::Hash(_) | Rule::Words(_) | Rule::Date { .. } => [None, None],
        };
        found.into_iter().flatten().collect()
    }
}

/// Reason why a column cannot be read: the kind of its texts, or missing numbers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    DecimalCommas,
    Dates,
    /// The column has numbers with a text here and there, probably a typing error.
    Slip,
    LongTexts,
    /// The column has a different text in every row, such as an identifier.
    Ids,
    ManyTexts,
    Categories,
    Missing,
}

/// A column that cannot be read, with an example cell.
struct Problem {
    at: usize,
    line: u64,
    cell: String,
    kind: Kind,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::DecimalCommas => "decimal commas",
            Self::Dates => "dates",
            Self::Slip => "a text among numbers",
            Self::LongTexts => "longer texts",
            Self::Ids => "a different text in every row",
            Self::ManyTexts => "more than 1,000 different texts",
            Self::Categories => "texts",
            Self::Missing => "missing numbers",
        }
    }

    /// Returns the option or action that solves the problem of the column, in few words.
    fn cure(self, column: &str) -> String {
        match self {
            Self::DecimalCommas => "write numbers with a decimal point".into(),
            Self::Dates => format!("date={column}"),
            Self::Slip => "correct the cell".into(),
            Self::LongTexts => format!("words={column}"),
            Self::Ids => format!("drop={column}"),
            Self::ManyTexts => format!("hash={column}:{HASH_INPUTS}"),
            Self::Categories => format!("onehot={column}"),
            Self::Missing => "missing=mean".into(),
        }
    }

    /// Returns the solution of the column's problem as a sentence, for a table with a single problem.
    fn advice(self, column: &str) -> String {
        match self {
            Self::Dates => format!("use date={column} to turn its dates into numbers, or drop={column}"),
            Self::Slip => {
                format!("correct the cell, or use onehot={column} or drop={column} if the column holds texts")
            }
            Self::LongTexts => format!("use words={column} to turn its words into inputs, or drop={column}"),
            Self::Ids => format!(
                "no two rows have the same text: use drop={column}, or hash={column}:{HASH_INPUTS} if the text is not \
                 an identifier of the row"
            ),
            Self::ManyTexts => format!("use hash={column}:{HASH_INPUTS} or drop={column}"),
            Self::DecimalCommas | Self::Categories | Self::Missing => format!(
                "use onehot={column}, hash={column}:32 or drop={column} if the column holds texts (text=onehot for \
                 all such columns)"
            ),
        }
    }

    /// Adds to the table's options the one by which the column can be read, such as `drop=` for identifiers; nothing if
    /// its cells must be corrected.
    fn apply(self, column: Column, options: &mut TableOptions) {
        match self {
            Self::DecimalCommas | Self::Slip => {}
            Self::Dates => options.date.push(column),
            Self::LongTexts => options.words.push((column, WORDS_INPUTS)),
            Self::Ids => options.drop.push(column),
            Self::ManyTexts => options.hash.push((column, HASH_INPUTS)),
            Self::Categories => options.onehot.push(column),
            Self::Missing => options.missing = Missing::Mean,
        }
    }
}

/// Returns an error that describes all problems of a table's columns; `None` if all can be read.
pub(super) fn diagnose(
    file: &Path,
    columns: &Columns,
    profiles: &[Profile],
    options: &TableOptions,
) -> Option<CsvError> {
    let features = columns.features.iter();
    let problems: Vec<(Problem, Rule)> = features
        .flat_map(|&(at, rule)| {
            let problems = profiles[at].problems(at, rule).into_iter();
            problems.map(move |problem| (problem, rule))
        })
        .collect();
    match problems.as_slice() {
        [] => None,
        [(only, rule)] => Some(only.error(file, columns, *rule)),
        several => {
            let shown = several.iter().take(LISTED_MAX);
            let mut lines: Vec<String> = shown.map(|(problem, _)| problem.line(columns)).collect();
            if let Some(more @ 1..) = several.len().checked_sub(LISTED_MAX) {
                lines.push(format!("and {more} more"));
            }
            Some(CsvError::Columns {
                file: file.to_owned(),
                problems: lines.join("\n  "),
                cure: Box::new(cured(columns, several.iter().map(|(problem, _)| problem), options)),
                instead: String::new(),
            })
        }
    }
}

impl Problem {
    fn line(&self, columns: &Columns) -> String {
        let name = &columns.names[self.at];
        let mut cell: String = self.cell.chars().take(CELL_LETTERS).collect();
        if cell.len() < self.cell.len() {
            cell.push('…');
        }
        let (kind, cure) = (self.kind.name(), self.kind.cure(&column(columns, self.at).to_string()));
        format!("{name} (line {}: '{cell}'): {kind}: {cure}", self.line)
    }

    fn error(&self, file: &Path, columns: &Columns, rule: Rule) -> CsvError {
        let (file, line, cell) = (file.to_owned(), self.line, self.cell.clone());
        let advice = self.kind.advice(&column(columns, self.at).to_string());
        let column = columns.names[self.at].clone();
        match (self.kind, rule) {
            (Kind::DecimalCommas, _) => CsvError::DecimalComma {
                file,
                line,
                column,
                cell,
            },
            (Kind::Missing, _) => CsvError::MissingNumber {
                file,
                line,
                column,
                cell,
            },
            (_, Rule::Category) => CsvError::TooManyCategories {
                file,
                column,
                most: CATEGORIES_MAX,
                advice,
            },
            _ => CsvError::NotANumber {
                file,
                line,
                column,
                cell,
                advice,
            },
        }
    }
}

/// Returns the name by which an option can refer to a column: its name if that is unambiguous, else its position.
fn column(columns: &Columns, at: usize) -> Column {
    let name = &columns.names[at];
    let is_plain = columns.has_header
        && !name.contains(['&', ','])
        && columns.names.iter().filter(|&one| one == name).count() == 1;
    let parsed = name
        .parse()
        .ok()
        .filter(|parsed| is_plain && matches!(parsed, Column::Name(_)));
    parsed.unwrap_or(Column::Position(at as i64))
}

/// Returns options with which the columns can be read, except those that need corrections of their cells.
fn cured<'a>(columns: &Columns, problems: impl Iterator<Item = &'a Problem>, options: &TableOptions) -> TableOptions {
    let mut cured = options.clone();
    if cured.label == [Column::LAST] {
        cured.label = columns.labels.iter().map(|&at| column(columns, at)).collect();
    }
    for problem in problems {
        // The present rule does not read the column.
        cured.onehot.retain(|column| columns.place(column) != Some(problem.at));
        problem.kind.apply(column(columns, problem.at), &mut cured);
    }
    cured
}
