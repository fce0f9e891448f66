//! State files: a worker's own state, from which its successor continues.
//!
//! ```text
//! magic | version | header's length | header | arrays, little-endian | CRC-32 of all before
//! ```
//!
//! The header, in postcard, gives the number of arrays and the numbers in each, so a file has one right length.

use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use crc32fast::Hasher;
use protocol::ids::OriginId;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::trainer::{Numbers, StateError, TrainerState};
use crate::training::State;

const MAGIC: [u8; 8] = *b"tau-work";
const VERSION: u8 = 2;
const CRC_BYTES: usize = 4;
/// Length in bytes of a state file's beginning: magic, version and the header's length, which is a `u16`.
const PREFIX_BYTES: usize = MAGIC.len() + 1 + 2;
/// Largest length in bytes of a state file's header, which has a dozen numbers.
const HEADER_BYTES_MAX: usize = 256;
/// Largest number of arrays in the state file of a worker.
const ARRAYS_MAX: u8 = 8;
/// Number of bytes of a state file that are converted from or to numbers at a time.
const CHUNK_BYTES: usize = 1 << 16;

/// Header of the file in which a worker saves its residual and optimiser state; precedes the arrays.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Header {
    origin: OriginId,
    sequence: u64,
    steps: u64,
    emission: Vec<f64>,
    numbers: Numbers,
    weights: u64,
    arrays: u8,
}

impl Header {
    /// Returns the length of a state file whose header takes `header_bytes` bytes; `None` if it overflows.
    fn file_bytes(&self, header_bytes: usize) -> Option<u64> {
        let arrays = self
            .weights
            .checked_mul(u64::from(self.arrays))?
            .checked_mul(size_of::<f32>() as u64)?;
        arrays.checked_add((PREFIX_BYTES + header_bytes + CRC_BYTES) as u64)
    }
}

#[derive(Debug, Error)]
pub enum StateFileError {
    /// Reason why a worker's state file is not used: the system refused to read it.
    #[error("{file} could not be read")]
    Read { file: PathBuf, source: io::Error },
    /// Reason why a worker's state file was not written: the system refused.
    #[error("{file} could not be written: make room for it, or choose a folder that can hold it")]
    Write { file: PathBuf, source: io::Error },
    /// Reason why a worker's state file is not used: it is not such a file.
    #[error("{file} is not a state file of a worker: {why}")]
    NotAState { file: PathBuf, why: String },
    /// Reason why a worker's state file is not used: it is damaged.
    #[error("{file} is damaged: {why}")]
    Damaged {
        file: PathBuf,
        /// Sign of the damage to the state file, for the error message.
        why: String,
    },
    /// Reason why a worker's state file is not used: it is of another model or optimiser.
    #[error("{file} is the state of a worker with another model or optimiser")]
    Unfit {
        file: PathBuf,
        /// Mismatch between saved state and trainer.
        source: StateError,
    },
}

/// Writes a worker's own state (residual and optimiser state) to a file, which appears whole or not at all.
pub fn save(path: &Path, state: &State) -> Result<(), StateFileError> {
    let made = whole_file::make_folder_of(path);
    let written = made.and_then(|()| whole_file::write(path, |file| encode(state, file)));
    written.map_err(|source| StateFileError::Write {
        file: path.into(),
        source,
    })
}

/// Reads the state of a worker whose model has this many weights, and checks that it is whole.
pub fn load(path: &Path, weights: usize) -> Result<State, StateFileError> {
    let opened = std::fs::File::open(path).and_then(|file| Ok((file.metadata()?.len(), file)));
    let (length, file) = opened.map_err(|source| StateFileError::Read {
        file: path.into(),
        source,
    })?;
    decode(path, file, length, weights)
}

/// Writes a worker's state in the format of its file, followed by a checksum (CRC).
fn encode(state: &State, out: &mut impl Write) -> io::Result<()> {
    let TrainerState { numbers, arrays } = &state.trainer;
    let header = Header {
        origin: state.origin,
        sequence: state.sequence,
        steps: state.steps,
        emission: state.emission.clone(),
        numbers: *numbers,
        weights: arrays.first().map_or(0, Vec::len) as u64,
        arrays: arrays.len() as u8,
    };
    let even = arrays.iter().all(|array| array.len() as u64 == header.weights);
    if !even || arrays.len() > usize::from(ARRAYS_MAX) {
        return Err(io::Error::other(
            "a state has too many arrays, or arrays of different lengths",
        ));
    }
    let header = postcard::to_stdvec(&header).map_err(io::Error::other)?;
    let mut hasher = Hasher::new();
    let mut put = |bytes: &[u8]| {
        hasher.update(bytes);
        out.write_all(bytes)
    };
    put(&MAGIC)?;
    put(&[VERSION])?;
    put(&(header.len() as u16).to_le_bytes())?;
    put(&header)?;
    let mut bytes = Vec::with_capacity(CHUNK_BYTES);
    for chunk in arrays
        .iter()
        .flat_map(|array| array.chunks(CHUNK_BYTES / size_of::<f32>()))
    {
        bytes.clear();
        bytes.extend(chunk.iter().flat_map(|number| number.to_le_bytes()));
        put(&bytes)?;
    }
    out.write_all(&hasher.finalize().to_le_bytes())
}

/// Reads a state from a file of a known length; `path` is for messages only. Allocates no memory before the length has
/// proven to match the header.
pub fn decode(path: &Path, file: impl Read, length: u64, weights: usize) -> Result<State, StateFileError> {
    let not_a_state = |why: &str| StateFileError::NotAState {
        file: path.into(),
        why: why.into(),
    };
    let damaged = |why: String| StateFileError::Damaged { file: path.into(), why };
    let read = |source: io::Error| match source.kind() {
        io::ErrorKind::UnexpectedEof => damaged("the file ends too early".into()),
        _ => StateFileError::Read {
            file: path.into(),
            source,
        },
    };
    let mut file = Summed {
        file,
        hasher: Hasher::new(),
    };

    let mut prefix = [0; PREFIX_BYTES];
    file.fill(&mut prefix).map_err(read)?;
    let [magic @ .., version, low, high] = prefix;
    if magic != MAGIC {
        return Err(not_a_state("the file does not begin with 'tau-work'"));
    }
    if version != VERSION {
        return Err(not_a_state("another release of Tau wrote the file"));
    }
    let mut header_bytes = [0; HEADER_BYTES_MAX];
    let header_bytes = header_bytes
        .get_mut(..usize::from(u16::from_le_bytes([low, high])))
        .ok_or_else(|| damaged("the header is too long".into()))?;
    file.fill(header_bytes).map_err(read)?;
    let (header, rest) =
        postcard::take_from_bytes::<Header>(header_bytes).map_err(|_| damaged("the header is not valid".into()))?;
    if !rest.is_empty() || header.arrays > ARRAYS_MAX {
        return Err(damaged("the header is not valid".into()));
    }
    if header.file_bytes(header_bytes.len()) != Some(length) {
        return Err(damaged(format!(
            "the file has {length} bytes, which does not match its header"
        )));
    }
    if header.weights != weights as u64 {
        return Err(not_a_state(&format!(
            "the state belongs to a model of {} weights, not {weights}",
            header.weights
        )));
    }

    let mut arrays = Vec::new();
    for _ in 0..header.arrays {
        arrays.push(file.array(weights).map_err(read)?);
    }
    let expected = file.hasher.finalize();
    let mut crc = [0; CRC_BYTES];
    file.file.read_exact(&mut crc).map_err(read)?;
    if u32::from_le_bytes(crc) != expected {
        return Err(damaged("the checksum is wrong".into()));
    }
    Ok(State {
        origin: header.origin,
        sequence: header.sequence,
        steps: header.steps,
        emission: header.emission,
        trainer: TrainerState {
            numbers: header.numbers,
            arrays,
        },
    })
}

/// Reader that computes the checksum (CRC) of all bytes read from a file.
struct Summed<R> {
    file: R,
    hasher: Hasher,
}

impl<R: Read> Summed<R> {
    fn fill(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        self.file.read_exact(bytes)?;
        self.hasher.update(bytes);
        Ok(())
    }

    fn array(&mut self, len: usize) -> io::Result<Vec<f32>> {
        let mut array = Vec::with_capacity(len);
        let mut bytes = vec![0; CHUNK_BYTES.min(len * size_of::<f32>())];
        while array.len() < len {
            let wanted = bytes.len().min((len - array.len()) * size_of::<f32>());
            self.fill(&mut bytes[..wanted])?;
            let (numbers, _) = bytes[..wanted].as_chunks::<4>();
            array.extend(numbers.iter().map(|&number| f32::from_le_bytes(number)));
        }
        Ok(array)
    }
}

#[cfg(test)]
mod tests {

    use super::*;

    const WEIGHTS: usize = 5;

    fn state(arrays: usize, weights: usize) -> State {
        let number = |array: usize, at: usize| (array * 1000 + at) as f32 / 7.0 - 3.0;
        State {
            origin: OriginId(0xfeed_f00d),
            sequence: 300,
            steps: 1_000_000,
            emission: vec![0.01, 0.1, 0.3],
            trainer: TrainerState {
                numbers: Numbers { ahead: 0.2, turns: 77 },
                arrays: (0..arrays)
                    .map(|array| (0..weights).map(|at| number(array, at)).collect())
                    .collect(),
            },
        }
    }

    fn bytes(state: &State) -> Vec<u8> {
        let mut bytes = Vec::new();
        encode(state, &mut bytes).unwrap();
        bytes
    }

    fn read(bytes: &[u8], weights: usize) -> Result<State, StateFileError> {
        decode(Path::new("some/state"), bytes, bytes.len() as u64, weights)
    }

    /// Returns the error message with which the bytes of a state file are refused.
    fn refusal(bytes: &[u8]) -> String {
        let error = read(bytes, WEIGHTS).unwrap_err().to_string();
        assert!(error.starts_with("some/state ") && !error.contains('\n'), "{error}");
        error
    }

    /// Returns a state file with a changed body and a correct checksum.
    fn forged(change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut bytes = bytes(&state(3, WEIGHTS));
        bytes.truncate(bytes.len() - CRC_BYTES);
        change(&mut bytes);
        let crc = crc32fast::hash(&bytes);
        bytes.extend(crc.to_le_bytes());
        bytes
    }

    #[test]
    fn a_state_comes_back_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        // Arrays of more than one chunk, and empty ones.
        for (arrays, weights) in [(3, WEIGHTS), (2, CHUNK_BYTES / 4 * 2 + 3), (1, 0)] {
            let state = state(arrays, weights);
            save(&path, &state).unwrap();
            assert_eq!(load(&path, weights).unwrap(), state);
            let left = std::fs::read_dir(folder.path()).unwrap().count();
            assert_eq!(left, 1, "a temporary file was left behind");
        }
        let unknown = State {
            emission: Vec::new(),
            ..state(1, WEIGHTS)
        };
        save(&path, &unknown).unwrap();
        assert_eq!(load(&path, WEIGHTS).unwrap(), unknown);
    }

    #[test]
    fn a_torn_file_is_refused_wherever_it_ends() {
        let whole = bytes(&state(3, WEIGHTS));
        assert_eq!(read(&whole, WEIGHTS).unwrap(), state(3, WEIGHTS));
        for length in 0..whole.len() {
            assert!(refusal(&whole[..length]).contains("damaged"), "{length} bytes");
            // Also if its length was read before it was torn.
            let torn = decode(Path::new("state"), &whole[..length], whole.len() as u64, WEIGHTS);
            assert!(matches!(torn, Err(StateFileError::Damaged { .. })), "{length} bytes");
        }
        refusal(&[whole, vec![0]].concat());
    }

    #[test]
    fn a_flipped_bit_is_found_wherever_it_is() {
        let whole = bytes(&state(3, WEIGHTS));
        for at in 0..8 * whole.len() {
            let mut flipped = whole.clone();
            flipped[at / 8] ^= 1 << (at % 8);
            refusal(&flipped);
        }
    }

    #[test]
    fn what_is_something_else_is_refused() {
        assert!(refusal(b"hello, I am a file of some length").contains("does not begin with"));
        assert!(refusal(&forged(|bytes| bytes[0] ^= 1)).contains("does not begin with"));
        assert!(refusal(&forged(|bytes| bytes[MAGIC.len()] += 1)).contains("another release"));
        assert!(refusal(&forged(|bytes| bytes.push(0))).contains("does not match its header"));
        assert!(refusal(&bytes(&state(3, WEIGHTS + 1))).contains("6 weights, not 5"));
        let folder = tempfile::tempdir().unwrap();
        let missing = load(&folder.path().join("none"), WEIGHTS);
        assert!(missing.unwrap_err().to_string().ends_with("could not be read"));
        assert!(load(folder.path(), WEIGHTS).is_err());
    }

    #[test]
    fn a_header_that_claims_too_much_gets_no_memory() {
        let with = |header: &Header, weights: usize| {
            let header = postcard::to_stdvec(header).unwrap();
            let forged = forged(|bytes| {
                bytes.truncate(MAGIC.len() + 1);
                bytes.extend((header.len() as u16).to_le_bytes());
                bytes.extend(&header);
            });
            read(&forged, weights).unwrap_err().to_string()
        };
        let header = Header {
            origin: OriginId(1),
            sequence: 1,
            steps: 1,
            emission: Vec::new(),
            numbers: Numbers::default(),
            weights: 1 << 40,
            arrays: 3,
        };
        // Also if the caller expects that many weights, for which there is no memory.
        for weights in [1 << 40, u64::MAX, u64::MAX / 12] {
            let error = with(
                &Header {
                    weights,
                    ..header.clone()
                },
                weights as usize,
            );
            assert!(error.contains("does not match its header"), "{error}");
        }
        let error = with(&Header { arrays: 255, ..header }, 1 << 40);
        assert!(error.contains("not valid"), "{error}");
        let long = forged(|bytes| bytes[MAGIC.len() + 1..][..2].fill(255));
        assert!(refusal(&long).contains("too long"));
    }

    #[test]
    fn nothing_is_left_where_nothing_can_be_written() {
        let error = save(Path::new("/dev/null/state"), &state(3, WEIGHTS)).unwrap_err();
        assert!(error.to_string().contains("could not be written"), "{error}");
        let folder = tempfile::tempdir().unwrap();
        let mut uneven = state(3, WEIGHTS);
        uneven.trainer.arrays[1].pop();
        assert!(save(&folder.path().join("state"), &uneven).is_err());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
