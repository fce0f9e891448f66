//! Derives the encodings of columns (categories, replacements for missing numbers) from the training rows.

use protocol::job::data::{Missing, TableOptions};

use super::Encoding;
use super::columns::Rule;
use super::table::Table;
use crate::dataset::{DatasetError, Scaling};

/// Learns the encodings of a table's columns from the training rows: the categories of texts, and replacements for
/// missing numbers and dates.
pub(super) fn learn(table: &Table, options: &TableOptions, train: &[u32]) -> Result<Vec<Encoding>, DatasetError> {
    let mut columns: Vec<Learned> = table.texts.iter().map(|texts| Learned::new(texts.len())).collect();
    let plain = |rule: &Rule| matches!(rule, Rule::Number { may_miss: false } | Rule::Hash(_) | Rule::Words(_));
    // If nothing needs to be learned, the table is not read again.
    if !table.rules.iter().all(plain) {
        let mut is_trained = vec![false; table.cells.rows()];
        for &row in train {
            is_trained[row as usize] = true;
        }
        let mut trained = is_trained.into_iter();
        table.cells.each(0..table.cells.rows(), |row| {
            if trained.next() == Some(true) {
                let cells = columns.iter_mut().zip(&table.rules).zip(row);
                cells.for_each(|((column, rule), &cell)| column.take(*rule, cell));
            }
        })?;
    }
    let learned = columns.iter().zip(&table.rules).zip(&table.texts);
    let fill = |column: &Learned| match options.missing {
        Missing::Error => None,
        Missing::Zero => Some(0.0),
        Missing::Mean => Some((column.sum / column.count.max(1) as f64) as f32),
    };
    let encodings = learned.map(|((column, rule), texts)| match rule {
        Rule::Number { .. } => Encoding::Number { fill: fill(column) },
        Rule::Date { .. } => Encoding::Date {
            fill: fill(column),
            time: column.fractions,
        },
        Rule::Hash(inputs) => Encoding::Hash { inputs: *inputs },
        Rule::Words(inputs) => Encoding::Words { inputs: *inputs },
        Rule::Category => {
            let met = texts.iter().zip(&column.met).filter(|&(_, &met)| met);
            let mut categories: Vec<String> = met.map(|(text, _)| text.clone()).collect();
            categories.sort();
            Encoding::OneHot { categories }
        }
    });
    Ok(encodings.collect())
}

/// Facts about one table column, learned from the training rows, from which the column's encoding is made.
struct Learned {
    /// Sum of the column's numbers that are not missing.
    sum: f64,
    count: u64,
    /// True if one of the column's numbers has a fraction.
    fractions: bool,
    /// One flag per text of the column: true if the text occurs in the training rows.
    met: Vec<bool>,
}

impl Learned {
    fn new(texts: usize) -> Self {
        Self {
            sum: 0.0,
            count: 0,
            fractions: false,
            met: vec![false; texts],
        }
    }

    fn take(&mut self, rule: Rule, cell: f32) {
        match rule {
            Rule::Category => self.met[cell as usize] = true,
            Rule::Number { .. } | Rule::Date { .. } if !cell.is_nan() => {
                self.fractions |= cell.fract() != 0.0;
                self.sum += f64::from(cell);
                self.count += 1;
            }
            _ => {}
        }
    }
}

/// Returns a model's encodings, with replacements for missing numbers from the options where the model has none.
pub(super) fn filled(encodings: &[Encoding], options: &TableOptions, scaling: Option<&Scaling>) -> Vec<Encoding> {
    let mut place = 0;
    let filled = encodings.iter().map(|encoding| {
        let at = place;
        place += encoding.width();
        // The days are the first of a date's inputs.
        let fill = match (options.missing, scaling) {
            (Missing::Zero, _) => Some(0.0),
            (Missing::Mean, Some(Scaling::Standard { mean, .. })) => mean.get(at).copied(),
            _ => None,
        };
        match *encoding {
            Encoding::Number { fill: None } => Encoding::Number { fill },
            Encoding::Date { fill: None, time } => Encoding::Date { fill, time },
            _ => encoding.clone(),
        }
    });
    filled.collect()
}

/// Replaces the scaling of columns of words: all inputs of a column are divided by the root of their mean square, and
/// not shifted. With its own deviation, a word that occurs in one of a thousand texts would count thirty times as much
/// as others.
pub(super) fn pooled(scaling: Scaling, encodings: &[Encoding]) -> Scaling {
    let Scaling::Standard {
        mut mean,
        mut deviation,
    } = scaling
    else {
        return scaling;
    };
    let mut place = 0;
    for encoding in encodings {
        let inputs = place..place + encoding.width();
        place = inputs.end;
        if !matches!(encoding, Encoding::Words { .. }) {
            continue;
        }
        let (mean, deviation) = (&mut mean[inputs.clone()], &mut deviation[inputs]);
        // A word that does not occur has a mean of 0, and a deviation of 1 that means nothing.
        let met = mean.iter().zip(&*deviation).filter(|&(&mean, _)| mean > 0.0);
        let squares: f64 = met
            .map(|(&mean, &deviation)| f64::from(mean).powi(2) + f64::from(deviation).powi(2))
            .sum();
        let root = (squares / mean.len().max(1) as f64).sqrt() as f32;
        mean.fill(0.0);
        deviation.fill(if root > 0.0 { root } else { 1.0 });
    }
    Scaling::Standard { mean, deviation }
}

/// Returns the encodings for a model to store: none if every column is a number that is never missing.
pub(super) fn kept(encodings: Vec<Encoding>) -> Vec<Encoding> {
    if encodings
        .iter()
        .all(|encoding| *encoding == Encoding::Number { fill: None })
    {
        return Vec::new();
    }
    encodings
}
