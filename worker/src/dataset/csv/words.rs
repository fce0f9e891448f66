//! Texts as bags of words: the number of occurrences of each word, without their order.

use super::Encoding;

/// The words of every row of a column, as the inputs that they are hashed to.
#[derive(Default)]
pub(super) struct Bags {
    /// For each word of the column, row after row, the index of the input that it is hashed to.
    places: Vec<u32>,
    /// For each row, the index in `places` just after the row's last word, where the next row's words begin.
    ends: Vec<usize>,
}

impl Bags {
    /// Adds the text of the next row. A text's words are its runs of letters and digits, in lower case. Returns the
    /// bytes of memory that were taken for the text, with room for growth.
    pub(super) fn push(&mut self, text: &str, inputs: u32) -> u64 {
        let before = self.places.len();
        let small = text.to_lowercase();
        let words = small.split(|letter: char| !letter.is_alphanumeric());
        let words = words.filter(|word| !word.is_empty());
        self.places.extend(words.map(|word| Encoding::place(word, inputs)));
        self.ends.push(self.places.len());
        let added = size_of::<u32>() * (self.places.len() - before) + size_of::<usize>();
        2 * added as u64
    }

    /// Adds the inputs of a row's words: the square root of the number of occurrences. Roots have the same bits on all
    /// machines, logarithms do not.
    pub(super) fn expand(&self, row: usize, inputs: &mut [f32]) {
        let start = row.checked_sub(1).map_or(0, |before| self.ends[before]);
        let words = &self.places[start..self.ends[row]];
        for &place in words {
            inputs[place as usize] += 1.0;
        }
        for input in inputs {
            *input = input.sqrt();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_counted_whatever_their_case_and_order() {
        let mut bags = Bags::default();
        for text in ["Good, GOOD good: good!", "", "the good, the bad", "bad the good the"] {
            bags.push(text, 64);
        }
        let of = |row| {
            let mut inputs = [0.0; 64];
            bags.expand(row, &mut inputs);
            inputs
        };
        let place = |word| Encoding::place(word, 64) as usize;
        assert_ne!(place("good"), place("bad"));
        assert_eq!((of(0)[place("good")], of(0).iter().sum::<f32>()), (2.0, 2.0));
        assert_eq!(of(1), [0.0; 64]);
        assert_eq!(of(2), of(3));
        assert_eq!((of(2)[place("the")], of(2)[place("bad")]), (2.0f32.sqrt(), 1.0));
    }
}
