//! Conversion of a table's columns to model inputs: numbers, one-hot categories, hashed texts or words, dates.

use serde::{Deserialize, Serialize};

use super::date;
use super::words::Bags;

/// Conversion of one column to model inputs. A model stores it, to convert other data in the same way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Encoding {
    /// A number becomes one input: the number itself.
    Number {
        /// Replacement for missing numbers; without one, missing numbers are an error.
        fill: Option<f32>,
    },
    /// A text becomes one input per category: 1 for the cell's own category and 0 for the others. For a category
    /// unknown from training all are 0.
    OneHot {
        /// The column's categories, in the order of the inputs.
        categories: Vec<String>,
    },
    /// A text sets one of the inputs to 1: that at the CRC-32 of the text modulo the number of inputs.
    Hash {
        /// Number of model inputs that the column becomes.
        inputs: u32,
    },
    /// Each word of a text is hashed to an input; an input is the square root of the number of the text's words that
    /// are hashed to it.
    Words {
        /// Number of model inputs that the column becomes.
        inputs: u32,
    },
    /// A date becomes the days since the beginning of 2000, and waves for the position in the year and in the week.
    Date {
        /// Days that replace a missing date; without them, missing dates are an error.
        fill: Option<f32>,
        /// True if the inputs of a date include periodic waves for the time of day.
        time: bool,
    },
}

impl Encoding {
    /// Returns the number of model inputs that the column becomes.
    #[must_use]
    pub fn width(&self) -> usize {
        match self {
            Self::Number { .. } => 1,
            Self::OneHot { categories } => categories.len(),
            Self::Hash { inputs } | Self::Words { inputs } => *inputs as usize,
            Self::Date { time: false, .. } => date::INPUTS,
            Self::Date { time: true, .. } => date::INPUTS_WITH_TIME,
        }
    }

    /// Returns the index of the input that a text is hashed to.
    pub(super) fn place(text: &str, inputs: u32) -> u32 {
        crc32fast::hash(text.as_bytes()) % inputs.max(1)
    }
}

/// Returns the number of model inputs of all columns; `None` if it overflows.
pub(crate) fn width(encodings: &[Encoding]) -> Option<usize> {
    encodings
        .iter()
        .try_fold(0usize, |sum, encoding| sum.checked_add(encoding.width()))
}

/// Converts rows of a table's cells to model inputs.
pub(super) struct Expander<'a>(Vec<Step<'a>>);

enum Step<'a> {
    Number {
        fill: f32,
    },
    /// Conversion of a text to one input per category; `places` maps each different text of the column to the index of
    /// its input, if it has one.
    OneHot {
        places: Vec<Option<u32>>,
        width: usize,
    },
    Hash {
        width: usize,
    },
    Words {
        bags: &'a Bags,
        width: usize,
    },
    Date {
        fill: f32,
        time: bool,
    },
}

impl<'a> Expander<'a> {
    /// Makes a converter for these encodings; `columns` are the different texts and the words of each column of the
    /// table.
    pub(super) fn new(encodings: &[Encoding], columns: impl Iterator<Item = (&'a [String], &'a Bags)>) -> Self {
        let steps = encodings
            .iter()
            .zip(columns)
            .map(|(encoding, (texts, bags))| match encoding {
                Encoding::Number { fill } => Step::Number {
                    fill: fill.unwrap_or_default(),
                },
                Encoding::OneHot { categories } => {
                    let known: std::collections::HashMap<&str, u32> =
                        categories.iter().map(String::as_str).zip(0..).collect();
                    Step::OneHot {
                        places: texts.iter().map(|text| known.get(text.as_str()).copied()).collect(),
                        width: categories.len(),
                    }
                }
                Encoding::Hash { inputs } => Step::Hash {
                    width: *inputs as usize,
                },
                Encoding::Words { inputs } => Step::Words {
                    bags,
                    width: *inputs as usize,
                },
                Encoding::Date { fill, time } => Step::Date {
                    fill: fill.unwrap_or_default(),
                    time: *time,
                },
            });
        Self(steps.collect())
    }

    /// Replaces `inputs` by the inputs made of the cells of row number `row`.
    pub(super) fn expand(&self, row: usize, cells: &[f32], inputs: &mut Vec<f32>) {
        inputs.clear();
        for (step, &cell) in self.0.iter().zip(cells) {
            let (place, width) = match step {
                Step::Number { fill } => {
                    inputs.push(if cell.is_nan() { *fill } else { cell });
                    continue;
                }
                Step::Date { fill, time } => {
                    date::expand(if cell.is_nan() { *fill } else { cell }, *time, inputs);
                    continue;
                }
                Step::Words { bags, width } => {
                    let start = inputs.len();
                    inputs.resize(start + width, 0.0);
                    bags.expand(row, &mut inputs[start..]);
                    continue;
                }
                Step::OneHot { places, width } => (places[cell as usize], *width),
                Step::Hash { width } => (Some(cell as u32), *width),
            };
            let start = inputs.len();
            inputs.resize(start + width, 0.0);
            if let Some(place) = place {
                inputs[start + place as usize] = 1.0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_become_inputs() {
        let owned = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect::<Vec<_>>();
        let encodings = [
            Encoding::Number { fill: Some(7.0) },
            Encoding::OneHot {
                categories: owned(&["blue", "red"]),
            },
            Encoding::Hash { inputs: 3 },
        ];
        assert_eq!(width(&encodings), Some(6));
        let texts = [owned(&[]), owned(&["red", "green", "blue"]), owned(&[])];
        let bags = [Bags::default(), Bags::default(), Bags::default()];
        let expander = Expander::new(&encodings, texts.iter().map(Vec::as_slice).zip(&bags));
        let mut inputs = Vec::new();
        for (cells, expected) in [
            ([1.5, 0.0, 2.0], [1.5, 0.0, 1.0, 0.0, 0.0, 1.0]),
            ([f32::NAN, 1.0, 0.0], [7.0, 0.0, 0.0, 1.0, 0.0, 0.0]),
            ([-1.0, 2.0, 1.0], [-1.0, 1.0, 0.0, 0.0, 1.0, 0.0]),
        ] {
            expander.expand(0, &cells, &mut inputs);
            assert_eq!(inputs, expected);
        }
        // The value of Python's zlib.crc32, so that other programs can make the same inputs.
        assert_eq!(Encoding::place("red", 32), 0xfa61_5f8f % 32);
    }
}
