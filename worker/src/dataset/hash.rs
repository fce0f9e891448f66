//! A hash of a dataset's contents, by which nodes notice before training that they hold different data.

use std::fmt;

use protocol::job::model::Shape;
use sha2::{Digest, Sha256};

use super::samples::Values;
use super::{Answers, ColumnNames, DatasetError, Encoding, Samples, Target};

/// Prefix of every hash, so that it differs from hashes of the same bytes for other purposes. The number changes with
/// the layout of the hashed bytes.
const DOMAIN: &[u8] = b"tau dataset 2";

/// Number of 32-bit words that are converted to bytes and hashed at once: enough to make few calls, few enough for a
/// small buffer.
const WORDS: usize = 4096;

/// SHA-256 over a dataset: its shape, column names, target, and training and test samples.
///
/// Everything of variable length is preceded by its length, so no two datasets feed the same bytes to the hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ContentHash([u8; 32]);

impl ContentHash {
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Hashes a dataset, given its training samples and then its test samples.
    pub(super) fn of(
        input: Shape,
        columns: Option<&ColumnNames>,
        encodings: &[Encoding],
        target: &Target,
        parts: [&Samples; 2],
    ) -> Result<Self, DatasetError> {
        let mut hasher = Hasher(Sha256::new());
        hasher.bytes(DOMAIN);
        hasher.shape(input);
        hasher.texts(columns.map_or(&[], |columns| &columns.features));
        hasher.texts(columns.map_or(&[], |columns| &columns.labels));
        hasher.encodings(encodings);
        hasher.target(target);
        for part in parts {
            match part.answers() {
                Answers::Labels(labels) => hasher.words(labels, u32::to_le_bytes),
                Answers::Numbers { values, .. } => hasher.words(values, f32::to_le_bytes),
            }
            match part.values() {
                Values::Bytes(bytes) => {
                    hasher.number(1);
                    hasher.bytes(bytes);
                }
                Values::Floats(floats) => {
                    hasher.number(2);
                    hasher.words(floats, f32::to_le_bytes);
                }
                // Hashed like numbers in memory: nodes may store the same data differently.
                Values::Scratch(floats) => {
                    hasher.number(2);
                    hasher.number(floats.len());
                    floats.each_piece(WORDS, |piece| hasher.piece(piece, f32::to_le_bytes))?;
                }
            }
        }
        Ok(Self(hasher.0.finalize().into()))
    }
}

impl From<[u8; 32]> for ContentHash {
    /// Takes the hash of data that a module reads, which its code has computed.
    fn from(hash: [u8; 32]) -> Self {
        Self(hash)
    }
}

impl fmt::Display for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// SHA-256 of a sequence of values, each preceded by its length if that varies.
struct Hasher(Sha256);

impl Hasher {
    /// Hashes a whole number as eight bytes on every platform.
    fn number(&mut self, number: usize) {
        self.0.update((number as u64).to_le_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len());
        self.0.update(bytes);
    }

    fn texts(&mut self, texts: &[String]) {
        self.number(texts.len());
        for text in texts {
            self.bytes(text.as_bytes());
        }
    }

    fn words<T: Copy>(&mut self, words: &[T], to_bytes: impl Fn(T) -> [u8; 4]) {
        self.number(words.len());
        words.chunks(WORDS).for_each(|piece| self.piece(piece, &to_bytes));
    }

    /// Hashes 32-bit numbers as little-endian bytes.
    fn piece<T: Copy>(&mut self, words: &[T], to_bytes: impl Fn(T) -> [u8; 4]) {
        let bytes: Vec<u8> = words.iter().flat_map(|&word| to_bytes(word)).collect();
        self.0.update(&bytes);
    }

    fn encodings(&mut self, encodings: &[Encoding]) {
        // Data without encodings adds nothing, so its hash is the same as before encodings existed.
        for encoding in encodings {
            match encoding {
                Encoding::Number { fill } => {
                    self.number(1);
                    self.words(fill.as_slice(), f32::to_le_bytes);
                }
                Encoding::OneHot { categories } => {
                    self.number(2);
                    self.texts(categories);
                }
                Encoding::Hash { inputs } => [3, *inputs as usize].iter().for_each(|&n| self.number(n)),
                Encoding::Words { inputs } => [5, *inputs as usize].iter().for_each(|&n| self.number(n)),
                Encoding::Date { fill, time } => {
                    self.number(4);
                    self.number(usize::from(*time));
                    self.words(fill.as_slice(), f32::to_le_bytes);
                }
            }
        }
    }

    fn target(&mut self, target: &Target) {
        match target {
            Target::Classes(classes) => self.texts(classes),
            Target::Numbers(numbers) => {
                // A marker that no list of classes has as its length.
                self.number(usize::MAX);
                self.number(numbers.len());
                for number in numbers {
                    self.bytes(number.name.as_bytes());
                    self.words(&[number.mean, number.deviation], f32::to_le_bytes);
                }
            }
            // A module's code hashes its own data.
            Target::Module => {}
        }
    }

    fn shape(&mut self, shape: Shape) {
        match shape {
            Shape::Flat(features) => [1, features].iter().for_each(|&n| self.number(n)),
            Shape::Image {
                channels,
                height,
                width,
            } => [3, channels, height, width].iter().for_each(|&n| self.number(n)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::NumberTarget;

    fn bytes(values: &[u8], labels: &[u32]) -> Samples {
        Samples::new(1, Values::Bytes(values.to_vec()), Answers::Labels(labels.to_vec()))
    }

    fn of(form: (Shape, Option<&ColumnNames>, &[Encoding]), target: &Target, parts: [&Samples; 2]) -> ContentHash {
        ContentHash::of(form.0, form.1, form.2, target, parts).unwrap()
    }

    fn texts(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    fn classes(names: &[&str]) -> Target {
        Target::Classes(texts(names))
    }

    #[test]
    fn the_hash_of_known_data_never_changes() {
        // Nodes of different builds compare hashes: if this value changes, DOMAIN needs a new number.
        let (train, test) = (bytes(&[1, 2], &[0, 1]), bytes(&[3], &[1]));
        let hash = of((Shape::Flat(1), None, &[]), &classes(&["a", "b"]), [&train, &test]);
        assert_eq!(
            hash.to_string(),
            "44bac6017eac96bd18bb8b84be196333b00a727c25bcabfddb111e152be9f8ea"
        );
        assert_eq!(hash.as_bytes().len(), 32);
    }

    #[test]
    fn every_part_counts() {
        let (train, test) = (bytes(&[1, 2], &[0, 1]), bytes(&[3], &[1]));
        let names = classes(&["a", "b"]);
        let flat = Shape::Flat(1);
        let image = Shape::Image {
            channels: 1,
            height: 1,
            width: 1,
        };
        let columns = ColumnNames {
            features: texts(&["width"]),
            labels: texts(&["kind"]),
        };
        let floats = Samples::new(1, Values::Floats(vec![3.0]), Answers::Labels(vec![1]));
        let numbers = |deviation| {
            let number = NumberTarget {
                name: "price".into(),
                mean: 0.0,
                deviation,
            };
            Target::Numbers(vec![number])
        };
        let answers = Answers::Numbers {
            width: 1,
            values: vec![0.5],
        };
        let number = Samples::new(1, Values::Floats(vec![3.0]), answers);
        let hashes = [
            of((flat, None, &[]), &names, [&train, &test]),
            of((image, None, &[]), &names, [&train, &test]),
            of((flat, None, &[]), &classes(&["ab", ""]), [&train, &test]),
            of((flat, Some(&columns), &[]), &names, [&train, &test]),
            of((flat, None, &[]), &names, [&test, &train]),
            of(
                (flat, None, &[]),
                &names,
                [&bytes(&[1], &[0]), &bytes(&[2, 3], &[1, 1])],
            ),
            of((flat, None, &[]), &names, [&bytes(&[1, 2], &[1, 1]), &test]),
            of((flat, None, &[]), &names, [&bytes(&[1, 3], &[0, 1]), &test]),
            of((flat, None, &[]), &names, [&train, &floats]),
            of((flat, None, &[Encoding::Hash { inputs: 2 }]), &names, [&train, &test]),
            of((flat, None, &[Encoding::Hash { inputs: 3 }]), &names, [&train, &test]),
            of((flat, None, &[]), &numbers(1.0), [&number, &number]),
            of((flat, None, &[]), &numbers(2.0), [&number, &number]),
        ];
        for (index, hash) in hashes.iter().enumerate() {
            assert!(!hashes[..index].contains(hash), "{index}");
        }
    }
}
