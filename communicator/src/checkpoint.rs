//! Checkpoints: a run as one node knows it, in a file, so that the run can go on after all nodes were killed.
//!
//! A file has a magic number, the header in postcard behind its length, a snapshot, and a CRC-32 over all of these. It
//! is written beside its place and renamed when it is whole. The state that only workers have (residual, optimiser
//! state) is in files of its own. The header names each with the batch after which it was written: it is of use only
//! with exactly that batch.

use std::ffi::OsStr;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use protocol::ids::{OriginId, RunId};
use protocol::job::data::DataInfo;
use protocol::job::model::Shape;
use protocol::job::target::TargetInfo;
use protocol::job::{Job, JobDraft};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use protocol::wire::snapshot::{self, Head, Snapshot};

/// First bytes of every checkpoint file that this release writes; the last byte is the version of the format.
const MAGIC: &[u8; 8] = b"TAUCKPT\x03";
/// First bytes of a checkpoint of version 2, which is read as well.
const MAGIC_2: &[u8; 8] = b"TAUCKPT\x02";
const LENGTH_BYTES: usize = 4;
const CRC_BYTES: usize = 4;
/// Number of bytes of a checkpoint's replica that are encoded and written at a time.
const PIECE_BYTES: usize = 1 << 20;

/// File name extension of checkpoints.
const SUFFIX: &str = "checkpoint";

/// Header of a checkpoint file: everything but the replica (the weights, and which batches they contain).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Header {
    pub run: RunId,
    #[serde(with = "protocol::job::as_text")]
    pub job: Box<Job>,
    pub data: StoredData,
    /// Number of slots among which the run's samples were divided; a slot is a worker's number in the run.
    pub slots: usize,
    /// Pipeline stage whose weights the checkpoint holds; 0 if it holds the whole model.
    pub stage: u8,
    /// Files with the residuals and optimiser states of this node's workers, which no other node has.
    pub states: Vec<State>,
}

/// Checkpoint header of format version 2, in which data had no validation rows and jobs had no trainers.
#[derive(Deserialize)]
struct Header2 {
    run: RunId,
    job: String,
    data: DataInfo2,
    slots: usize,
    stage: u8,
    states: Vec<State>,
}

/// Description of a run's data in a checkpoint, for people who look into the file. It is a type of its own, so that the
/// file format stays the same when [`DataInfo`] gets new fields.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StoredData {
    hash: [u8; 32],
    input: Shape,
    target: TargetInfo,
    train: u64,
    test: u64,
    validation: u64,
    most_frequent: u64,
}

impl From<DataInfo> for StoredData {
    fn from(data: DataInfo) -> Self {
        Self {
            hash: data.hash,
            input: data.input,
            target: data.target,
            train: data.train,
            test: data.test,
            validation: data.validation,
            most_frequent: data.most_frequent,
        }
    }
}

#[derive(Deserialize)]
struct DataInfo2 {
    hash: [u8; 32],
    input: Shape,
    target: TargetInfo,
    train: u64,
    test: u64,
    most_frequent: u64,
}

impl Header2 {
    /// Converts the header of format version 2 to the present version. Jobs of version 2 lack two settings, which get
    /// their effect of then: all workers trained, and the model was evaluated on the test rows.
    fn upgraded(self) -> Option<Header> {
        let then = JobDraft {
            trainers: Some("all".into()),
            validation: Some("test".into()),
            ..JobDraft::default()
        };
        let job = JobDraft::from_toml(&self.job).ok()?.or(then).resolve().ok()?;
        let DataInfo2 {
            hash,
            input,
            target,
            train,
            test,
            most_frequent,
        } = self.data;
        Some(Header {
            run: self.run,
            job: Box::new(job),
            data: StoredData {
                hash,
                input,
                target,
                train,
                test,
                validation: 0,
                most_frequent,
            },
            slots: self.slots,
            stage: self.stage,
            states: self.states,
        })
    }
}

/// A worker's own state (residual and optimiser state), which no other node has, in a file beside the checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    pub origin: OriginId,
    /// Number of the worker's last batch before its state was written.
    pub sequence: u64,
    pub path: PathBuf,
}

/// A checkpoint that was read from a file.
#[derive(Clone, Debug, PartialEq)]
pub struct Checkpoint {
    pub header: Header,
    /// The node's replica at the checkpoint: its weights, and which batches they contain.
    pub snapshot: Snapshot,
}

/// Reason for which a file is not a usable checkpoint.
#[derive(Debug, Error)]
pub enum CheckpointError {
    /// The checkpoint file could not be read.
    #[error("{path} could not be read: {source}")]
    Io { path: PathBuf, source: io::Error },
    /// The file is no checkpoint, or a checkpoint of another release.
    #[error("{0} is not a checkpoint file of this Tau release")]
    Foreign(PathBuf),
    /// The checkpoint file is truncated or changed: its checksum does not match.
    #[error("{0} is damaged: its checksum does not match")]
    Damaged(PathBuf),
}

/// Returns the path of a node's checkpoint of a run, in that run's folder.
#[must_use]
pub fn path(folder: &Path, node: &str) -> PathBuf {
    folder.join(format!("{node}.{SUFFIX}"))
}

/// Writes a checkpoint file whole or not at all, so that a crash leaves the earlier one.
pub fn write(path: &Path, header: &Header, head: Head, counts: Arc<[i32]>) -> io::Result<()> {
    whole_file::write(path, |file| encode(file, header, head, counts))
}

fn encode(file: &mut impl Write, header: &Header, head: Head, counts: Arc<[i32]>) -> io::Result<()> {
    let header = postcard::to_stdvec(header).map_err(io::Error::other)?;
    let mut crc = crc32fast::Hasher::new();
    let mut append = |bytes: &[u8]| {
        crc.update(bytes);
        file.write_all(bytes)
    };
    append(MAGIC)?;
    append(&(header.len() as u32).to_le_bytes())?;
    append(&header)?;
    let mut snapshot = snapshot::encode(head, counts, &[]);
    loop {
        let piece = snapshot.next(PIECE_BYTES);
        if piece.is_empty() {
            break;
        }
        append(&piece)?;
    }
    let crc = crc.finalize();
    file.write_all(&crc.to_le_bytes())
}

pub fn read(path: &Path) -> Result<Checkpoint, CheckpointError> {
    let bytes = std::fs::read(path).map_err(|source| CheckpointError::Io {
        path: path.into(),
        source,
    })?;
    decode(&bytes, path)
}

/// Decodes a checkpoint from the bytes of a file. Nothing in them is believed before the checksum is verified.
pub fn decode(bytes: &[u8], path: &Path) -> Result<Checkpoint, CheckpointError> {
    let foreign = || CheckpointError::Foreign(path.into());
    let (magic, rest) = bytes.split_first_chunk().ok_or_else(foreign)?;
    if magic != MAGIC && magic != MAGIC_2 {
        return Err(foreign());
    }
    let damaged = || CheckpointError::Damaged(path.into());
    let (rest, crc) = rest.split_last_chunk::<CRC_BYTES>().ok_or_else(damaged)?;
    if crc32fast::hash(&bytes[..bytes.len() - CRC_BYTES]) != u32::from_le_bytes(*crc) {
        return Err(damaged());
    }
    let (length, rest) = rest.split_first_chunk::<LENGTH_BYTES>().ok_or_else(foreign)?;
    let (header, snapshot) = rest
        .split_at_checked(u32::from_le_bytes(*length) as usize)
        .ok_or_else(foreign)?;
    let header = if magic == MAGIC {
        postcard::from_bytes(header).ok()
    } else {
        postcard::from_bytes::<Header2>(header).ok().and_then(Header2::upgraded)
    };
    let header = header.ok_or_else(foreign)?;
    let weights = snapshot::weights(snapshot).ok_or_else(foreign)?;
    let snapshot = snapshot::decode(snapshot, weights).ok_or_else(foreign)?;
    Ok(Checkpoint { header, snapshot })
}

/// Returns the checkpoint in a run's folder that has the most samples. Unusable files are skipped with a line in the
/// log: a node that was killed while it wrote leaves its last complete checkpoint.
#[must_use]
pub fn newest(folder: &Path) -> Option<Checkpoint> {
    let mut newest: Option<Checkpoint> = None;
    for entry in std::fs::read_dir(folder).ok()?.flatten() {
        let path = entry.path();
        if path.extension() != Some(OsStr::new(SUFFIX)) {
            continue;
        }
        match read(&path) {
            Ok(found) => {
                let further = |known: &Checkpoint| found.snapshot.head.samples > known.snapshot.head.samples;
                if newest.as_ref().is_none_or(further) {
                    newest = Some(found);
                }
            }
            Err(error) => tracing::warn!(
                event = "checkpoint_unusable", %error,
                "skipped a checkpoint file that cannot be used"
            ),
        }
    }
    newest
}

#[cfg(test)]
mod tests {
    use protocol::log::cursor::Cursors;

    use super::*;

    fn header() -> Header {
        Header {
            run: RunId(7),
            job: Box::new(JobDraft::default().resolve().unwrap()),
            data: StoredData {
                hash: [3; 32],
                input: Shape::Flat(4),
                target: TargetInfo::Classes(2),
                train: 100,
                test: 20,
                validation: 0,
                most_frequent: 1,
            },
            slots: 3,
            stage: 0,
            states: vec![State {
                origin: OriginId(5),
                sequence: 9,
                path: "a.state".into(),
            }],
        }
    }

    fn head(samples: u64) -> Head {
        Head {
            run: RunId(7),
            applied: Vec::new(),
            cursors: Cursors::default(),
            samples,
            weights: 3,
        }
    }

    #[test]
    fn what_is_written_is_read_and_the_furthest_is_found() {
        let folder = tempfile::tempdir().unwrap();
        for (name, samples) in [("one", 10), ("two", 30), ("three", 20)] {
            let path = path(folder.path(), name);
            write(&path, &header(), head(samples), vec![1, -2, 3].into()).unwrap();
            let found = read(&path).unwrap();
            assert_eq!((found.header, found.snapshot.head.samples), (header(), samples));
            assert_eq!(found.snapshot.counts, [1, -2, 3]);
        }
        assert_eq!(newest(folder.path()).unwrap().snapshot.head.samples, 30);
        let files = std::fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(files, 3, "no temporary .part file is left");
        assert!(newest(&folder.path().join("nowhere")).is_none());
    }

    #[cfg(unix)]
    #[test]
    fn planted_symlinks_are_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let precious = folder.path().join("precious");
        std::fs::write(&precious, "precious").unwrap();
        let path = path(folder.path(), "one");
        for name in [path.with_extension("part"), path.clone()] {
            std::os::unix::fs::symlink(&precious, name).unwrap();
        }
        write(&path, &header(), head(10), vec![1, -2, 3].into()).unwrap();
        assert!(read(&path).is_ok());
        assert_eq!(std::fs::read_to_string(&precious).unwrap(), "precious");
        assert!(std::fs::symlink_metadata(&path).unwrap().is_file());
    }

    #[test]
    fn torn_and_foreign_files_are_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = path(folder.path(), "one");
        write(&path, &header(), head(10), vec![1, -2, 3].into()).unwrap();
        let whole = std::fs::read(&path).unwrap();
        for end in 0..whole.len() {
            std::fs::write(&path, &whole[..end]).unwrap();
            let error = read(&path).unwrap_err().to_string();
            assert!(error.contains("one.checkpoint"), "{error}");
            assert!(newest(folder.path()).is_none(), "cut at {end}");
        }
        for position in 0..whole.len() {
            let mut changed = whole.clone();
            changed[position] ^= 4;
            std::fs::write(&path, &changed).unwrap();
            assert!(read(&path).is_err(), "byte {position} changed");
        }
    }

    #[test]
    fn a_folder_that_is_not_there_is_an_error_and_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let nowhere = folder.path().join("nowhere").join("one.checkpoint");
        assert!(write(&nowhere, &header(), head(1), vec![1, 2, 3].into()).is_err());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
