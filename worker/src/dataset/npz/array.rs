//! One array of `NumPy`'s: a header that is a Python dictionary, then the elements.

use std::io::Read;
use std::path::Path;

use super::NpzError;
use crate::dataset::{DatasetError, source};
use crate::memory;

/// How every array begins.
const MAGIC: &[u8] = b"\x93NUMPY";
/// The longest header that is believed.
const HEADER_MAX: usize = 1 << 16;
/// The most elements that are believed.
const ELEMENTS_MAX: usize = 1 << 34;

/// An array, and where it came from.
#[derive(Debug)]
pub(super) struct Array {
    /// Its name in the file.
    pub(super) name: String,
    /// Samples first.
    pub(super) shape: Vec<usize>,
    pub(super) elements: Elements,
}

/// What an array holds.
#[derive(Debug, PartialEq)]
pub(super) enum Elements {
    Bytes(Vec<u8>),
    Floats(Vec<f32>),
}

impl Elements {
    /// The element at a place, as text that a class can be named by.
    pub(super) fn text(&self, at: usize) -> String {
        match self {
            Self::Bytes(bytes) => bytes[at].to_string(),
            Self::Floats(floats) => floats[at].to_string(),
        }
    }
}

impl Array {
    /// Reads an array to its end. Memory grows only as elements really arrive.
    pub(super) fn read(file: &Path, name: &str, mut from: impl Read) -> Result<Self, DatasetError> {
        let wrong = |why: String| {
            DatasetError::Npz(NpzError::Array {
                file: file.to_owned(),
                name: name.to_owned(),
                why,
            })
        };
        let cut = |_| wrong("is cut short".into());
        let mut start = [0; 8];
        from.read_exact(&mut start).map_err(cut)?;
        if !start.starts_with(MAGIC) {
            return Err(wrong("is not an array of NumPy's".into()));
        }
        let mut length = [0; 4];
        let bytes = if start[6] >= 2 { 4 } else { 2 };
        from.read_exact(&mut length[..bytes]).map_err(cut)?;
        let length = u32::from_le_bytes(length) as usize;
        if length > HEADER_MAX {
            return Err(wrong("has a header that is too long".into()));
        }
        let mut header = vec![0; length];
        from.read_exact(&mut header).map_err(cut)?;
        let header = String::from_utf8_lossy(&header);
        let kind = entry(&header, "descr").map(|text| text.trim_matches(['\'', '"']).to_owned());
        let kind = kind.ok_or_else(|| wrong("does not say what its elements are".into()))?;
        if entry(&header, "fortran_order").is_none_or(|order| order != "False") {
            return Err(wrong("is stored by columns: save numpy.ascontiguousarray of it".into()));
        }
        let shape = shape(&header).ok_or_else(|| wrong("does not say what shape it has".into()))?;
        let width = match kind.as_str() {
            "|u1" | "|b1" => 1,
            "<f2" => 2,
            "<f4" | "<i4" => 4,
            "<f8" | "<i8" => 8,
            _ => {
                return Err(wrong(format!(
                    "holds elements of type '{kind}': convert them to uint8, float16, float32, float64, int32 or int64"
                )));
            }
        };
        let product = shape
            .iter()
            .try_fold(1usize, |product, &side| product.checked_mul(side));
        let Some(count) = product.filter(|&count| count <= ELEMENTS_MAX) else {
            return Err(wrong(format!("claims the shape {shape:?}, which is too much to load")));
        };
        source::check_size(file, (count * width) as u64, memory::available())?;
        let mut bytes = Vec::new();
        // One byte more is asked for, to see the end, where the archive checks its sum.
        let read = from.take((count * width) as u64 + 1).read_to_end(&mut bytes);
        read.map_err(|error| wrong(format!("is damaged ({error})")))?;
        if bytes.len() != count * width {
            return Err(wrong(format!("has {} of {} bytes", bytes.len(), count * width)));
        }
        let elements = elements(&kind, bytes);
        if let Elements::Floats(floats) = &elements
            && floats.iter().any(|number| !number.is_finite())
        {
            return Err(wrong("holds a number that is not finite".into()));
        }
        Ok(Self {
            name: name.to_owned(),
            shape,
            elements,
        })
    }
}

/// Elements of a known kind.
fn elements(kind: &str, bytes: Vec<u8>) -> Elements {
    let (halves, _) = bytes.as_chunks::<2>();
    let (words, _) = bytes.as_chunks::<4>();
    let (doubles, _) = bytes.as_chunks::<8>();
    Elements::Floats(match kind {
        "<f2" => halves
            .iter()
            .map(|&half| half_as_float(u16::from_le_bytes(half)))
            .collect(),
        "<f4" => words.iter().map(|&word| f32::from_le_bytes(word)).collect(),
        "<i4" => words.iter().map(|&word| i32::from_le_bytes(word) as f32).collect(),
        "<f8" => doubles.iter().map(|&word| f64::from_le_bytes(word) as f32).collect(),
        "<i8" => doubles.iter().map(|&word| i64::from_le_bytes(word) as f32).collect(),
        _ => return Elements::Bytes(bytes),
    })
}

/// A number of 16 bits: a sign, 5 bits of exponent, 10 of fraction.
fn half_as_float(bits: u16) -> f32 {
    let (exponent, fraction) = (i32::from(bits >> 10 & 0x1f), f32::from(bits & 0x3ff));
    let size = match exponent {
        0 => fraction * 2f32.powi(-24),
        0x1f if fraction == 0.0 => f32::INFINITY,
        0x1f => f32::NAN,
        _ => (1024.0 + fraction) * 2f32.powi(exponent - 25),
    };
    if bits >> 15 == 1 { -size } else { size }
}

/// The value of an entry that holds no comma.
fn entry<'a>(header: &'a str, key: &str) -> Option<&'a str> {
    let (_, rest) = header.split_once(&format!("'{key}':"))?;
    let end = rest.find([',', '}'])?;
    Some(rest[..end].trim())
}

fn shape(header: &str) -> Option<Vec<usize>> {
    let (_, rest) = header.split_once("'shape':")?;
    let (_, rest) = rest.split_once('(')?;
    let (inside, _) = rest.split_once(')')?;
    let sides = inside.split(',').map(str::trim).filter(|side| !side.is_empty());
    sides.map(|side| side.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_are_numbers() {
        for (bits, number) in [
            (0x0000, 0.0),
            (0x3c00, 1.0),
            (0xc000, -2.0),
            (0x3555, 0.333_251_95),
            (0x7bff, 65504.0),
            (0x0001, 5.960_464_5e-8),
            (0x7c00, f32::INFINITY),
        ] {
            assert_eq!(half_as_float(bits), number, "{bits:x}");
        }
        assert!(half_as_float(0x7e00).is_nan());
    }
}
