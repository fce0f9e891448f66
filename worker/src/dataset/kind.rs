//! Recognises the kind of a file by its first bytes, for error messages with advice.

/// A file format, with advice for a user who gave such a file where another format was expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kind {
    /// Name of the file format with an article, for messages.
    pub(super) name: &'static str,
    /// Advice to a user who gave a file of this format where another format was expected.
    pub(super) instead: &'static str,
}

/// First bytes of files, and the file format that has them.
const KINDS: [(&[u8], Kind); 17] = [
    (b"PAR1", kind("a Parquet file", "write parquet:FILE")),
    (
        b"\x93NUMPY",
        kind(
            "a NumPy array",
            "save inputs and labels in one file by numpy.savez('data.npz', x=x, y=y), and write npz:data.npz",
        ),
    ),
    (b"\x89PNG", IMAGE),
    (b"\xff\xd8\xff", IMAGE),
    (b"GIF8", IMAGE),
    (b"BM", IMAGE),
    (b"\x1f\x8b", kind("a gzip file", "unpack it")),
    (b"BZh", kind("a bzip2 file", "unpack it")),
    (b"\xfd7zXZ", kind("an xz file", "unpack it")),
    (b"\x28\xb5\x2f\xfd", kind("a Zstandard file", "unpack it")),
    (b"7z\xbc\xaf", kind("a 7-Zip archive", "unpack it")),
    (b"%PDF", kind("a PDF document", "save its data as CSV")),
    (
        b"SQLite format 3\0",
        kind("an SQLite database", "export its table as CSV"),
    ),
    (
        b"\x89HDF",
        kind("an HDF5 file", "save its arrays as .npz, and write npz:FILE"),
    ),
    (b"ARROW1", kind("an Arrow file", "save it as Parquet or CSV")),
    (
        b"\x80\x04\x95",
        kind("a Python pickle", "save its arrays as .npz, and write npz:FILE"),
    ),
    (b"\x00\x00\x08", kind("an IDX file", "write idx:DIR with its folder")),
];

const IMAGE: Kind = kind(
    "an image",
    "put images into a folder for each class, and write images:DIR with the folder above",
);

const fn kind(name: &'static str, instead: &'static str) -> Kind {
    Kind { name, instead }
}

/// First bytes of a ZIP archive.
const ZIP: &[u8] = b"PK\x03\x04";
/// Offset in a ZIP archive of the name of the archive's first file.
const ZIP_NAME: usize = 30;

/// Returns the format of a file with these first bytes; `None` if the file may be a table of text.
pub(super) fn of(first: &[u8]) -> Option<Kind> {
    if first.starts_with(ZIP) {
        return Some(zip(first));
    }
    let found = KINDS.iter().find(|(start, _)| first.starts_with(start))?;
    // Two letters may as well begin the name of a column.
    let sure = found.0.len() > 2
        || first[2..].iter().take(16).any(|byte| *byte == 0)
        || found.0[0] > 0x7f
        || found.0[0] < b' ';
    sure.then_some(found.1)
}

fn zip(first: &[u8]) -> Kind {
    let length = match first.get(26..28) {
        Some(&[low, high]) => usize::from(u16::from_le_bytes([low, high])),
        _ => 0,
    };
    let name = first.get(ZIP_NAME..ZIP_NAME + length).unwrap_or_default();
    if name.ends_with(b".npy") {
        kind("an NPZ file", "write npz:FILE")
    } else if name.starts_with(b"[Content_Types]") || name.starts_with(b"xl/") {
        kind("an Excel workbook", "save its sheet as CSV")
    } else {
        kind("a ZIP archive", "unpack it")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_told_by_their_first_bytes() {
        for (first, name) in [
            (&b"PAR1\x15"[..], Some("a Parquet file")),
            (b"\x89PNG\r\n\x1a\n", Some("an image")),
            (b"\xff\xd8\xff\xe0", Some("an image")),
            (b"\x1f\x8b\x08", Some("a gzip file")),
            (b"\x93NUMPY\x01", Some("a NumPy array")),
            (b"BM,b\n1,2\n", None),
            (b"BM\x36\x00\x00\x00", Some("an image")),
            (b"PK\x03\x04", Some("a ZIP archive")),
            (b"a,b\n", None),
            (b"", None),
            (b"B", None),
            (b"PAR", None),
        ] {
            assert_eq!(of(first).map(|kind| kind.name), name, "{first:?}");
        }
        let zip = |name: &[u8]| {
            let mut bytes = ZIP.to_vec();
            bytes.resize(ZIP_NAME, 0);
            bytes[26] = name.len() as u8;
            bytes.extend_from_slice(name);
            bytes
        };
        assert_eq!(of(&zip(b"x_train.npy")).map(|kind| kind.name), Some("an NPZ file"));
        assert_eq!(
            of(&zip(b"[Content_Types].xml")).map(|kind| kind.name),
            Some("an Excel workbook")
        );
    }
}
