//! Counters of the bytes that this process has moved over sockets: as the kernel carried them, with encryption and
//! handshakes.
//!
//! The counters are for the whole process, as processor time and memory are.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

static IN: AtomicU64 = AtomicU64::new(0);
static OUT: AtomicU64 = AtomicU64::new(0);

/// Returns the bytes received over sockets since the process started, and the bytes sent.
pub(crate) fn bytes() -> (u64, u64) {
    (IN.load(Ordering::Relaxed), OUT.load(Ordering::Relaxed))
}

/// A TCP socket whose bytes are counted.
#[derive(Debug)]
pub(super) struct CountedStream(pub(super) TcpStream);

impl CountedStream {
    fn sent(written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(bytes)) = written {
            OUT.fetch_add(bytes as u64, Ordering::Relaxed);
        }
        written
    }
}

impl AsyncRead for CountedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.0).poll_read(context, buffer);
        IN.fetch_add((buffer.filled().len() - before) as u64, Ordering::Relaxed);
        read
    }
}

impl AsyncWrite for CountedStream {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Self::sent(Pin::new(&mut self.0).poll_write(context, bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Self::sent(Pin::new(&mut self.0).poll_write_vectored(context, slices))
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
