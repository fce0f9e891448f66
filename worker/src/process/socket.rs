//! The worker's end of the socket to its node: framed messages, blocking.

use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};

use protocol::wire;
use protocol::wire::attach::{FromWorker, ToWorker};
use protocol::wire::frame::{self, CHUNK_BYTES, Decoder, Kind};

/// What comes from the node.
#[derive(Debug)]
pub(super) enum Received {
    Word(ToWorker),
    /// Another origin's batch, still encoded.
    Batch(Vec<u8>),
    Bundle(Vec<u8>),
    Prefix(Vec<u8>),
    /// From another worker of the pipeline.
    Flow(Vec<u8>),
}

/// The reading end.
#[derive(Debug)]
pub(super) struct Reader(BufReader<UnixStream>);

/// The writing end; several threads have it.
#[derive(Clone, Debug)]
pub(super) struct Writer(Arc<Mutex<BufWriter<UnixStream>>>);

/// Both ends of a connected socket.
pub(super) fn ends(stream: UnixStream) -> io::Result<(Reader, Writer)> {
    let writer = stream.try_clone()?;
    Ok((
        Reader(BufReader::with_capacity(CHUNK_BYTES, stream)),
        Writer(Arc::new(Mutex::new(BufWriter::with_capacity(CHUNK_BYTES, writer)))),
    ))
}

fn invalid(error: impl std::error::Error + Send + Sync + 'static) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

/// Reads the next frame; `None` where the stream ends between two.
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

impl Reader {
    /// The next message; `None` when the node has closed the socket.
    pub(super) fn next(&mut self) -> io::Result<Option<Received>> {
        let Some((kind, contents)) = read_frame(&mut self.0)? else {
            return Ok(None);
        };
        match kind {
            Kind::Batch => Ok(Some(Received::Batch(contents))),
            Kind::Bundle => Ok(Some(Received::Bundle(contents))),
            Kind::Prefix => Ok(Some(Received::Prefix(contents))),
            Kind::Flow => Ok(Some(Received::Flow(contents))),
            Kind::Message => wire::decode(&contents)
                .map(|message| Some(Received::Word(message)))
                .map_err(invalid),
            Kind::Have | Kind::Origin | Kind::Hello | Kind::Piece | Kind::Note | Kind::Part => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the node sent a kind of message that workers do not accept",
            )),
        }
    }
}

impl Writer {
    pub(super) fn message(&self, message: &FromWorker) -> io::Result<()> {
        self.write(Kind::Message, &wire::encode(message).map_err(invalid)?)
    }

    pub(super) fn prefix(&self, contents: &[u8]) -> io::Result<()> {
        self.write(Kind::Prefix, contents)
    }

    pub(super) fn flow(&self, contents: &[u8]) -> io::Result<()> {
        self.write(Kind::Flow, contents)
    }

    pub(super) fn batch(&self, bytes: &[u8]) -> io::Result<()> {
        self.write(Kind::Batch, bytes)
    }

    fn write(&self, kind: Kind, contents: &[u8]) -> io::Result<()> {
        // Whoever panicked while it held the lock has broken a message: the node will notice and start a new worker.
        let mut stream = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        stream.write_all(&frame::header(kind, contents.len()).map_err(invalid)?)?;
        stream.write_all(contents)?;
        stream.flush()
    }
}
