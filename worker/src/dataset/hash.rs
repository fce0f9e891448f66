//! A fingerprint of a dataset, so that nodes find out before training that they hold different data.

use std::fmt;

use protocol::model::Shape;
use sha2::{Digest, Sha256};

use super::samples::Values;
use super::{ColumnNames, Samples};

/// Starts every hash, so that it equals no hash of the same bytes taken for another purpose. The number changes with
/// the layout of what is hashed.
const DOMAIN: &[u8] = b"tau dataset 2";

/// SHA-256 over the shape, the names of columns, the classes, and the labels and features of both parts of a dataset.
///
/// Everything of variable length is preceded by its length, so no two datasets feed the hash the same bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ContentHash([u8; 32]);

impl ContentHash {
    /// The hash itself.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Hashes a dataset, given its training samples and then its test samples.
    pub(super) fn of(
        (input, columns): (Shape, Option<&ColumnNames>),
        classes: &[String],
        parts: [&Samples; 2],
    ) -> Self {
        let mut hasher = Hasher(Sha256::new());
        hasher.bytes(DOMAIN);
        hasher.shape(input);
        hasher.texts(columns.map_or(&[], |columns| &columns.features));
        hasher.texts(columns.map_or(&[], |columns| std::slice::from_ref(&columns.label)));
        hasher.texts(classes);
        for part in parts {
            hasher.words(part.labels(), u32::to_le_bytes);
            match part.values() {
                Values::Bytes(bytes) => {
                    hasher.number(1);
                    hasher.bytes(bytes);
                }
                Values::Floats(floats) => {
                    hasher.number(2);
                    hasher.words(floats, f32::to_le_bytes);
                }
            }
        }
        Self(hasher.0.finalize().into())
    }
}

impl fmt::Display for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// SHA-256 of a sequence of values, each written so that its end can be told.
struct Hasher(Sha256);

impl Hasher {
    /// A number takes eight bytes on every platform.
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

    /// Little-endian words, in pieces that keep both the buffer small and the calls few.
    fn words<T: Copy>(&mut self, words: &[T], to_bytes: impl Fn(T) -> [u8; 4]) {
        self.number(words.len());
        let mut buffer = Vec::new();
        for piece in words.chunks(4096) {
            buffer.clear();
            buffer.extend(piece.iter().flat_map(|&word| to_bytes(word)));
            self.0.update(&buffer);
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

    fn bytes(values: &[u8], labels: &[u32]) -> Samples {
        Samples::new(1, Values::Bytes(values.to_vec()), labels.to_vec())
    }

    fn classes(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn the_hash_of_known_data_never_changes() {
        // Nodes of different builds compare hashes: a change here needs a new number in DOMAIN.
        let (train, test) = (bytes(&[1, 2], &[0, 1]), bytes(&[3], &[1]));
        let hash = ContentHash::of((Shape::Flat(1), None), &classes(&["a", "b"]), [&train, &test]);
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
            features: classes(&["width"]),
            label: "kind".into(),
        };
        let floats = Samples::new(1, Values::Floats(vec![3.0]), vec![1]);
        let hashes = [
            ContentHash::of((flat, None), &names, [&train, &test]),
            ContentHash::of((image, None), &names, [&train, &test]),
            ContentHash::of((flat, None), &classes(&["ab", ""]), [&train, &test]),
            ContentHash::of((flat, Some(&columns)), &names, [&train, &test]),
            ContentHash::of((flat, None), &names, [&test, &train]),
            ContentHash::of((flat, None), &names, [&bytes(&[1], &[0]), &bytes(&[2, 3], &[1, 1])]),
            ContentHash::of((flat, None), &names, [&bytes(&[1, 2], &[1, 1]), &test]),
            ContentHash::of((flat, None), &names, [&bytes(&[1, 3], &[0, 1]), &test]),
            ContentHash::of((flat, None), &names, [&train, &floats]),
        ];
        for (index, hash) in hashes.iter().enumerate() {
            assert!(!hashes[..index].contains(hash), "{index}");
        }
    }
}
