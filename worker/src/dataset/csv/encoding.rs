//! What becomes of a column: a number, an input for each category, inputs that texts are hashed to, or those of a date.

use serde::{Deserialize, Serialize};

use super::date;
use super::words::Bags;

/// How the cells of a column become inputs. A model keeps it, to make the same of other data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Encoding {
    /// The number itself.
    Number {
        /// What takes the place of one that is missing; where there is nothing, none may be.
        fill: Option<f32>,
    },
    /// An input for each category, 1 for a cell's own and 0 for the others. One that training has not met has none.
    OneHot {
        /// The categories, in the order of the inputs.
        categories: Vec<String>,
    },
    /// The CRC-32 of a text modulo so many is the place of its input.
    Hash {
        /// How many inputs there are.
        inputs: u32,
    },
    /// The words of a text, each hashed as a whole text is: the square root of how often it occurs.
    Words {
        /// The number of inputs.
        inputs: u32,
    },
    /// Days since the beginning of 2000, and waves for the place in the year and in the week.
    Date {
        /// The days that take the place of a missing date; where there are none, none may be missing.
        fill: Option<f32>,
        /// Whether there are also waves for the time of day.
        time: bool,
    },
}

impl Encoding {
    /// The inputs that it makes.
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

    /// The place of a text among the inputs that texts are hashed to.
    pub(super) fn place(text: &str, inputs: u32) -> u32 {
        crc32fast::hash(text.as_bytes()) % inputs.max(1)
    }
}

/// The inputs that some columns make; none if that cannot be counted.
pub(crate) fn width(encodings: &[Encoding]) -> Option<usize> {
    encodings
        .iter()
        .try_fold(0usize, |sum, encoding| sum.checked_add(encoding.width()))
}

/// Makes inputs of the cells of rows.
pub(super) struct Expander<'a>(Vec<Step<'a>>);

enum Step<'a> {
    Number {
        fill: f32,
    },
    /// The input of each text of the table, by its place there.
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
    /// For these encodings, and for a table of these texts and words in each column.
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

    /// Replaces `inputs` by what is made of the cells of the row of this number.
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
        // What Python's zlib.crc32 says, so that others can make the same inputs.
        assert_eq!(Encoding::place("red", 32), 0xfa61_5f8f % 32);
    }
}
