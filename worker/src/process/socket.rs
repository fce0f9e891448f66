//! The worker's end of the socket to its node: framed messages, with blocking I/O.

use std::error::Error;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};

use protocol::wire;
use protocol::wire::attach::FromWorker;
use protocol::wire::frame::{self, CHUNK_BYTES, Decoder, Kind};

/// Writing end of the socket to the worker's node, shared by several threads.
#[derive(Clone, Debug)]
pub(super) struct Writer(Arc<Mutex<BufWriter<UnixStream>>>);

/// Returns the reading and the writing end of a connected socket.
pub(super) fn ends(stream: UnixStream) -> io::Result<(BufReader<UnixStream>, Writer)> {
    let writer = stream.try_clone()?;
    Ok((
        BufReader::with_capacity(CHUNK_BYTES, stream),
        Writer(Arc::new(Mutex::new(BufWriter::with_capacity(CHUNK_BYTES, writer)))),
    ))
}

pub(super) fn invalid(error: impl Into<Box<dyn Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

/// Reads the next message from the socket between node and worker; `None` if the stream ends between two messages.
pub fn read_frame(stream: &mut impl Read) -> io::Result<Option<(Kind, Vec<u8>)>> {
    let mut decoder = Decoder::default();
    loop {
        let bytes = match stream.read(decoder.room()) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            bytes => bytes?,
        };
        if bytes == 0 && decoder.is_between_frames() {
            return Ok(None);
        }
        if bytes == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if let Some(frame) = decoder.advance(bytes).map_err(invalid)? {
            return Ok(Some(frame));
        }
    }
}

impl Writer {
    pub(super) fn message(&self, message: &FromWorker) -> io::Result<()> {
        self.write(Kind::Message, &wire::encode(message).map_err(invalid)?)
    }

    pub(super) fn write(&self, kind: Kind, contents: &[u8]) -> io::Result<()> {
        // A thread that panicked with the lock has broken a message: the node notices and starts a new worker.
        let mut stream = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        stream.write_all(&frame::header(kind, contents.len()).map_err(invalid)?)?;
        stream.write_all(contents)?;
        stream.flush()
    }
}
