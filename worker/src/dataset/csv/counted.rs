//! A file that counts the bytes read from it, for progress reports.

use std::fs::File;
use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A file that counts the bytes read from it, for progress reports.
pub(super) struct CountedFile {
    pub(super) file: File,
    pub(super) read: Arc<AtomicU64>,
}

impl Read for CountedFile {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read(to)?;
        self.read.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}
