//! Reads one NumPy array: a header that is a Python dictionary, then the elements.

use std::io::Read;
use std::path::Path;

use super::NpzError;
use crate::dataset::DatasetError;
use crate::dataset::budget::{Budget, size};

/// First bytes of every NumPy array.
const MAGIC: &[u8] = b"\x93NUMPY";
/// Longest header of a NumPy array that is accepted, in bytes.
const HEADER_MAX: usize = 1 << 16;
/// Most elements of a NumPy array that are accepted.
const ELEMENTS_MAX: usize = 1 << 34;

/// An array of an NPZ file.
#[derive(Debug)]
pub(super) struct Array {
    /// Name of the array in the NPZ file.
    pub(super) name: String,
    /// Sizes of the array's dimensions; the first counts samples.
    pub(super) shape: Vec<usize>,
    pub(super) elements: Elements,
}

/// Elements of a NumPy array, converted to bytes or floats.
#[derive(Debug, PartialEq)]
pub(super) enum Elements {
    Bytes(Vec<u8>),
    Floats(Vec<f32>),
}

impl Elements {
    /// Returns the element at an index as text, for the name of a class.
    pub(super) fn text(&self, at: usize) -> String {
        match self {
            Self::Bytes(bytes) => bytes[at].to_string(),
            Self::Floats(floats) => floats[at].to_string(),
        }
    }
}

impl Array {
    /// Reads a NumPy array to its end. Memory grows only as elements actually arrive.
    pub(super) fn read(
        file: &Path,
        name: &str,
        mut from: impl Read,
        budget: &mut Budget,
    ) -> Result<Self, DatasetError> {
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
            return Err(wrong("is not a NumPy array".into()));
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
        let kind = kind.ok_or_else(|| wrong("has no element type in its header".into()))?;
        if entry(&header, "fortran_order").is_none_or(|order| order != "False") {
            return Err(wrong(
                "is stored in column-major (Fortran) order: save numpy.ascontiguousarray of it".into(),
            ));
        }
        let shape = shape(&header).ok_or_else(|| wrong("has no shape in its header".into()))?;
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
        // Elements take memory as stored and as held, and splitting copies them once more.
        let held = if width == 1 { 1 } else { size_of::<f32>() };
        let needed = (count as u64).saturating_mul((width.max(held) + held) as u64);
        budget.take(needed, file, || {
            format!("an array {name} of {}", size((count * width) as u64))
        })?;
        let mut bytes = Vec::new();
        // Asks for one byte more, to reach the end, where the archive verifies its checksum.
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

/// Converts the bytes of a NumPy array's elements of a known type.
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

/// Converts a half-precision number: a sign, 5 bits of exponent, 10 bits of fraction.
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

/// Returns the value of an entry of a NumPy array's header; the value must contain no comma.
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

    #[test]
    fn an_array_is_bounded_before_it_is_unpacked() {
        let array = |descr: &str, count: usize, bytes: usize| {
            let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({count},), }}\n");
            let length = (header.len() as u16).to_le_bytes();
            [MAGIC, &[1, 0], &length, header.as_bytes(), &vec![0; bytes]].concat()
        };
        let read = |bytes: &[u8], budget: &mut Budget| Array::read(Path::new("f.npz"), "x", bytes, budget).map(drop);
        // Elements of more than one byte are held in 4 bytes more and copied; bytes are held once and copied.
        for (descr, width, each) in [("<f8", 8, 12), ("<f4", 4, 8), ("<f2", 2, 8), ("|u1", 1, 2)] {
            let stored = array(descr, 1000, 1000 * width);
            let error = read(&stored, &mut Budget::of(1000 * each - 1)).unwrap_err().to_string();
            assert!(error.contains("holds an array x of 0.0 MB"), "{descr}: {error}");
            let mut budget = Budget::of(1000 * each);
            read(&stored, &mut budget).unwrap();
            assert!(
                read(&stored, &mut budget).is_err(),
                "the budget must count the memory of earlier arrays"
            );
        }
        // A false shape must not reserve more memory than the elements that arrive.
        let error = read(&array("<f8", 1 << 30, 100), &mut Budget::of(u64::MAX)).unwrap_err();
        assert!(error.to_string().contains("has 100 of"), "{error}");
    }
}
