//! Reads the header of a Parquet page, for the sizes that it claims. The Parquet library reads the same header only
//! when it unpacks the page.
//!
//! The header is a structure in Thrift's compact protocol; three of its numbers are used, and everything else is
//! skipped.

use std::io::{self, Read};

/// Most levels of nested structures in a page header that are read; headers have three.
const DEPTH_MAX: u32 = 8;

/// Sizes that the header of a Parquet page claims.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PageHeader {
    /// Bytes of the Parquet page after unpacking.
    pub(super) unpacked: u64,
    /// Bytes of the Parquet page in the file, without the page's header.
    pub(super) packed: u64,
    /// Number of values in a dictionary page; 0 for other pages.
    pub(super) dictionary_values: u64,
    /// Length of the page header itself, in bytes.
    pub(super) length: u64,
}

impl PageHeader {
    pub(super) fn read(from: impl Read) -> io::Result<Self> {
        let mut compact = Compact { from, read: 0 };
        let mut header = Self::default();
        compact.each_field(|compact, id, kind| {
            match (id, kind) {
                (2, I32) => header.unpacked = compact.size()?,
                (3, I32) => header.packed = compact.size()?,
                (7, STRUCT) => compact.each_field(|compact, id, kind| {
                    if (id, kind) == (1, I32) {
                        header.dictionary_values = compact.size()?;
                        return Ok(());
                    }
                    compact.skip(kind, DEPTH_MAX)
                })?,
                _ => compact.skip(kind, DEPTH_MAX)?,
            }
            Ok(())
        })?;
        header.length = compact.read;
        Ok(header)
    }
}

/// Code of the field type `true` in Thrift's compact protocol; the next constants are the codes of the other types.
const TRUE: u8 = 1;
const FALSE: u8 = 2;
const BYTE: u8 = 3;
const I16: u8 = 4;
const I32: u8 = 5;
const I64: u8 = 6;
const DOUBLE: u8 = 7;
const BINARY: u8 = 8;
const LIST: u8 = 9;
const SET: u8 = 10;
const STRUCT: u8 = 12;

/// A reader of Thrift's compact protocol that counts its bytes.
struct Compact<R> {
    from: R,
    read: u64,
}

fn broken() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "a Parquet page has a broken header")
}

impl<R: Read> Compact<R> {
    fn byte(&mut self) -> io::Result<u8> {
        let mut byte = [0];
        self.from.read_exact(&mut byte)?;
        self.read += 1;
        Ok(byte[0])
    }

    fn number(&mut self) -> io::Result<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(broken())
    }

    /// Reads a size: a signed number that must not be negative.
    fn size(&mut self) -> io::Result<u64> {
        let zigzag = self.number()?;
        if zigzag & 1 == 1 {
            Err(broken())
        } else {
            Ok(zigzag >> 1)
        }
    }

    fn each_field(&mut self, mut take: impl FnMut(&mut Self, u64, u8) -> io::Result<()>) -> io::Result<()> {
        let mut id = 0;
        loop {
            let head = self.byte()?;
            let (step, kind) = (u64::from(head >> 4), head & 0xf);
            if kind == 0 {
                return Ok(());
            }
            id = if step == 0 { self.size()? } else { id + step };
            take(self, id, kind)?;
        }
    }

    fn skip_bytes(&mut self, count: u64) -> io::Result<()> {
        let skipped = io::copy(&mut (&mut self.from).take(count), &mut io::sink())?;
        self.read += skipped;
        if skipped == count { Ok(()) } else { Err(broken()) }
    }

    /// Skips the value of a field of this type.
    fn skip(&mut self, kind: u8, depth: u32) -> io::Result<()> {
        let depth = depth.checked_sub(1).ok_or_else(broken)?;
        match kind {
            TRUE | FALSE => Ok(()),
            BYTE => self.skip_bytes(1),
            I16 | I32 | I64 => self.number().map(drop),
            DOUBLE => self.skip_bytes(8),
            BINARY => {
                let length = self.number()?;
                self.skip_bytes(length)
            }
            LIST | SET => {
                let head = self.byte()?;
                let count = if head >> 4 == 0xf {
                    self.number()?
                } else {
                    (head >> 4).into()
                };
                for _ in 0..count {
                    match head & 0xf {
                        TRUE | FALSE => self.skip_bytes(1)?,
                        kind => self.skip(kind, depth)?,
                    }
                }
                Ok(())
            }
            STRUCT => self.each_field(|compact, _, kind| compact.skip(kind, depth)),
            _ => Err(broken()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_everything_else_is_skipped() {
        // A page of type 2 with 100 bytes that unpack to 300, a checksum, a dictionary of 3 sorted values, and an
        // unknown structure.
        let header = [
            0x15, 0x04, 0x15, 0xd8, 0x04, 0x15, 0xc8, 0x01, 0x15, 0x07, 0x3c, 0x15, 0x06, 0x15, 0x00, 0x11, 0x00, 0x2c,
            0x18, 0x02, b'h', b'i', 0x19, 0x21, 0x01, 0x02, 0x00, 0x00,
        ];
        let read = PageHeader::read(&header[..]).unwrap();
        let expected = PageHeader {
            unpacked: 300,
            packed: 100,
            dictionary_values: 3,
            length: header.len() as u64,
        };
        assert_eq!(read, expected);
        for length in 0..header.len() {
            assert!(PageHeader::read(&header[..length]).is_err(), "{length}");
        }
        assert!(
            PageHeader::read(&[0x15, 0x04, 0x15, 0x01, 0x00][..]).is_err(),
            "a negative page size must be refused"
        );
        assert!(
            PageHeader::read(&[0x1c; 100][..]).is_err(),
            "a header that is nested too deeply must be refused"
        );
        assert!(PageHeader::read(&[0x18, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f][..]).is_err());
    }
}
