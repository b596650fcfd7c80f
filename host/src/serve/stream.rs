//! Listeners by TCP and Unix socket, and what they accept: streams whose other side has to read.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::time::{Sleep, sleep};

use super::places::Place;

/// Where clients connect.
#[derive(Debug)]
pub enum Listener {
    /// By address.
    Tcp(TcpListener),
    /// By a file of this machine.
    Unix(UnixListener),
}

/// What a client sends and reads.
pub(super) type Stream = Box<dyn Duplex>;
pub(super) trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Duplex for S {}

impl Listener {
    /// The one by TCP.
    pub(super) fn tcp(&self) -> Option<&TcpListener> {
        match self {
            Self::Tcp(listener) => Some(listener),
            Self::Unix(_) => None,
        }
    }

    pub(super) async fn accept(&self) -> io::Result<Stream> {
        match self {
            Self::Tcp(listener) => listener.accept().await.map(|(stream, _)| prompt(stream)),
            Self::Unix(listener) => {
                listener.accept().await.map(|(stream, _)| Box::new(stream) as Stream)
            }
        }
    }

    /// The next of those that are connected already.
    pub(super) fn accept_now(&self) -> io::Result<Stream> {
        let socket = match self {
            Self::Tcp(listener) => SockRef::from(listener).accept(),
            Self::Unix(listener) => SockRef::from(listener).accept(),
        };
        let (socket, _) = socket?;
        socket.set_nonblocking(true)?;
        Ok(match self {
            Self::Tcp(_) => prompt(TcpStream::from_std(socket.into())?),
            Self::Unix(_) => Box::new(UnixStream::from_std(socket.into())?),
        })
    }
}

impl From<TcpListener> for Listener {
    fn from(listener: TcpListener) -> Self {
        Self::Tcp(listener)
    }
}

impl From<UnixListener> for Listener {
    fn from(listener: UnixListener) -> Self {
        Self::Unix(listener)
    }
}

/// Answers are whole: none waits to be sent with the next one.
fn prompt(stream: TcpStream) -> Stream {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "a connection's options");
    }
    Box::new(stream)
}

/// A stream that fails when its other side reads nothing for so long.
pub(super) struct Written {
    stream: Stream,
    limit: Duration,
    /// Runs while something waits to be read.
    due: Option<Pin<Box<Sleep>>>,
    place: Arc<Place>,
}

impl Written {
    pub(super) fn new(stream: Stream, limit: Duration, place: Arc<Place>) -> Self {
        Self { stream, limit, due: None, place }
    }

    fn wait<T>(&mut self, done: Poll<io::Result<T>>, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        if done.is_ready() {
            self.due = None;
            self.place.note();
            return done;
        }
        let due = self.due.get_or_insert_with(|| Box::pin(sleep(self.limit)));
        ready!(due.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read")))
    }
}

impl AsyncRead for Written {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Written {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let done = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.wait(done, cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let done = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.wait(done, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
