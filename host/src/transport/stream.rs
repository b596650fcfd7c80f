//! Frames over a TCP connection: the sending side, and the form of the stream.
//!
//! Each frame is preceded by its length, a big-endian u32. A connection that breaks, or whose other
//! side does not read for [`WRITE_LIMIT`], is given up and made anew after a pause that doubles, with
//! jitter, so that a host that returns is not met by all agents at once. Frames of that time are
//! overtaken by newer ones.

use std::io;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::frames::Frames;
use super::status::Troubles;
use super::unicast::Names;
use crate::config::Destination;

/// How long a connection may take to be made.
const CONNECT_LIMIT: Duration = Duration::from_secs(3);
/// How long the other side may leave a frame unread, once the kernel's buffers are full.
const WRITE_LIMIT: Duration = Duration::from_secs(3);
/// How long data may wait for the other machine's acknowledgement.
const ACKNOWLEDGE_LIMIT: Duration = Duration::from_secs(10);
/// Pause before the second attempt; doubles up to [`PAUSE_MAX`].
const PAUSE: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// Silence after which the kernel asks whether the other machine is still there, three times.
const KEEPALIVE: Duration = Duration::from_secs(10);

/// Why a connection ended.
enum End {
    /// There are no more frames.
    Done,
    /// It broke; whether a frame was written before.
    Broken { error: io::Error, was_used: bool },
}

pub(super) async fn send_stream(to: &Destination, mut frames: Frames) {
    let mut names = Names::new(&to.authority);
    let mut troubles = Troubles::default();
    let mut pause = PAUSE;
    loop {
        let error = match connect(&mut names).await {
            Ok(stream) => {
                if troubles.end("") {
                    tracing::info!(%to, "connected again");
                }
                match feed(stream, &mut frames).await {
                    End::Done => return,
                    End::Broken { error, was_used } => {
                        if was_used {
                            pause = PAUSE;
                        }
                        error
                    }
                }
            }
            Err(error) => error,
        };
        if troubles.begin("") {
            tracing::warn!(%to, %error, "no connection: reports are lost until there is one");
        }
        names.forget();
        if frames.is_over_within(jittered(pause)).await {
            return;
        }
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

async fn connect(names: &mut Names) -> io::Result<TcpStream> {
    let addresses = names.addresses().await?;
    let late = || io::Error::new(io::ErrorKind::TimedOut, "no answer");
    let stream =
        timeout(CONNECT_LIMIT, TcpStream::connect(addresses)).await.map_err(|_| late())??;
    stream.set_nodelay(true)?;
    keep_alive(&stream)?;
    SockRef::from(&stream).set_tcp_user_timeout(Some(ACKNOWLEDGE_LIMIT))?;
    Ok(stream)
}

/// Has the kernel find out that the other machine has vanished.
pub(super) fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    let often =
        TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE / 2).with_retries(3);
    SockRef::from(stream).set_tcp_keepalive(&often)
}

/// Writes frames until the connection breaks; reads too, to notice at once that it did.
async fn feed(mut stream: TcpStream, frames: &mut Frames) -> End {
    let mut was_used = false;
    let mut unasked = [0; 64];
    loop {
        let error = tokio::select! {
            frame = frames.next() => match frame {
                None => return End::Done,
                Some(frame) => match timeout(WRITE_LIMIT, write(&mut stream, &frame)).await {
                    Ok(Ok(())) => { was_used = true; continue }
                    Ok(Err(error)) => error,
                    Err(_) => io::Error::new(io::ErrorKind::TimedOut, "the other side does not read"),
                },
            },
            read = stream.read(&mut unasked) => match read {
                Ok(0) => io::Error::new(io::ErrorKind::ConnectionReset, "closed by the other side"),
                Ok(_) => continue, // a host says nothing: whatever this is, it is no reason to stop
                Err(error) => error,
            },
        };
        return End::Broken { error, was_used };
    }
}

async fn write(stream: &mut TcpStream, frame: &[u8]) -> io::Result<()> {
    let len = u32::try_from(frame.len()).map_err(io::Error::other)?;
    let message = [&len.to_be_bytes(), frame].concat();
    stream.write_all(&message).await
}

/// Half to the whole of it.
fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(0.5 + fastrand::f64() / 2.0)
}
