//! How columns are to become inputs, as the rows to train on tell.

use protocol::job::data::{Missing, TableOptions};

use super::Encoding;
use super::columns::Rule;
use super::table::Table;
use crate::dataset::{DatasetError, Scaling};

/// Finds categories, and what takes the place of missing numbers, in the rows to train on.
pub(super) fn learn(table: &Table, options: &TableOptions, train: &[u32]) -> Result<Vec<Encoding>, DatasetError> {
    let mut columns: Vec<Learned> = table.texts.iter().map(|texts| Learned::new(texts.len())).collect();
    let plain = |rule: &Rule| matches!(rule, Rule::Number { may_miss: false } | Rule::Hash(_) | Rule::Words(_));
    // Where nothing is to be learned, the table need not be read again.
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

/// What is learned of a column.
struct Learned {
    /// Of the numbers that are there.
    sum: f64,
    count: u64,
    /// Whether one of them has a fraction.
    fractions: bool,
    /// Which of the texts occur.
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

/// A model's encodings, with what takes the place of missing numbers if the model does not know but somebody says.
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

/// The same scaling, except that all words of a column are divided by one number, the root of their mean square, and not
/// shifted. By its own deviation a word that is met once in a thousand texts would count thirty times as much as others.
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
        // A word that is not met has a mean of 0, and a deviation that stands for none.
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

/// What a model keeps: nothing where every column is a number that is always there.
pub(super) fn kept(encodings: Vec<Encoding>) -> Vec<Encoding> {
    if encodings
        .iter()
        .all(|encoding| *encoding == Encoding::Number { fill: None })
    {
        return Vec::new();
    }
    encodings
}
