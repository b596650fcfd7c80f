//! Frames over a TCP connection: the sending side, and the form of the stream.
//!
//! Each frame is preceded by its length, a big-endian u32. A connection that breaks, or whose other
//! side does not read for [`WRITE_LIMIT`], is given up and made anew after a pause that doubles, with
//! jitter, so that a host that returns is not met by all agents at once, and one that closes what it
//! takes is tried ever less often. It is made anew at once when this machine has lost the address that
//! it came from, and tried again at once when there is another address. Frames of that time are
//! overtaken by newer ones.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until, timeout};

use super::changes::Changes;
use super::frames::Frames;
use super::interface::addresses;
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
/// Time after its first frame in which a host that does not want it closes a connection.
const PROOF: Duration = Duration::from_secs(1);
/// A connection that held so long was a good one: pauses begin anew.
const HELD: Duration = PAUSE_MAX;
/// Silence after which the kernel asks whether the other machine is still there, three times.
const KEEPALIVE: Duration = Duration::from_secs(10);

/// The addresses of this machine.
struct Own {
    changes: Changes,
    addresses: Vec<IpAddr>,
}

impl Own {
    fn new() -> Self {
        Self { changes: Changes::new(), addresses: addresses().unwrap_or_default() }
    }

    /// Waits until they are others.
    async fn changed(&mut self) {
        loop {
            self.changes.next().await;
            // Where they cannot be listed nothing is known of them.
            let Ok(now) = addresses() else { continue };
            if now != self.addresses {
                self.addresses = now;
                return;
            }
        }
    }
}

/// The pauses between attempts.
#[derive(Debug)]
struct Pauses(Duration);

impl Pauses {
    fn new() -> Self {
        Self(PAUSE)
    }

    /// The next one: half to the whole of what has doubled each time.
    fn next(&mut self) -> Duration {
        let pause = self.0.mul_f64(0.5 + fastrand::f64() / 2.0);
        self.0 = (self.0 * 2).min(PAUSE_MAX);
        pause
    }
}

pub(super) async fn send_stream(to: &Destination, mut frames: Frames) {
    let mut names = Names::new(&to.authority);
    let mut troubles = Troubles::default();
    let mut pauses = Pauses::new();
    let mut own = Own::new();
    loop {
        let error = match connect(&mut names).await {
            Ok(stream) => {
                let since = Instant::now();
                let proven = || {
                    if troubles.end("") {
                        tracing::info!(%to, "connected again");
                    }
                };
                let Some(error) = feed(stream, &mut frames, &mut own, proven).await else {
                    return;
                };
                // The network of this machine is another: that is no fault of the host's.
                let has_moved = error.kind() == io::ErrorKind::AddrNotAvailable;
                if since.elapsed() >= HELD || has_moved {
                    pauses = Pauses::new();
                }
                error
            }
            Err(error) => error,
        };
        if troubles.begin("") {
            tracing::warn!(%to, %error, "no connection: reports are lost until there is one");
        }
        names.forget();
        tokio::select! {
            is_over = frames.is_over_within(pauses.next()) => if is_over { return },
            () = own.changed() => {}
        }
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

/// Writes frames until there are no more, or the connection breaks: why. Reads too, to notice at once
/// that it did. Calls `proven` when a frame was taken and the connection has outlived it.
async fn feed(
    mut stream: TcpStream,
    frames: &mut Frames,
    own: &mut Own,
    proven: impl FnOnce(),
) -> Option<io::Error> {
    let from = stream.local_addr().map(|from| from.ip()).ok();
    let mut unasked = [0; 64];
    let (mut proven, mut proof) = (Some(proven), None);
    loop {
        let is_proof = async {
            match proof {
                Some(at) => sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            frame = frames.next() => {
                let frame = frame?;
                match timeout(WRITE_LIMIT, write(&mut stream, &frame)).await {
                    Ok(Ok(())) => proof = proof.or_else(|| proven.is_some().then(|| Instant::now() + PROOF)),
                    Ok(Err(error)) => return Some(error),
                    Err(_) => {
                        let what = "the other side does not read";
                        return Some(io::Error::new(io::ErrorKind::TimedOut, what));
                    }
                }
            }
            read = stream.read(&mut unasked) => match read {
                Ok(0) => {
                    let what = "closed by the other side, whose log says why";
                    return Some(io::Error::new(io::ErrorKind::ConnectionReset, what));
                }
                Ok(_) => {} // a host says nothing: whatever this is, it is no reason to stop
                Err(error) => return Some(error),
            },
            () = is_proof => {
                proof = None;
                if let Some(proven) = proven.take() {
                    proven();
                }
            }
            () = own.changed() => if from.is_some_and(|from| !own.addresses.contains(&from)) {
                let what = "this machine has its address no more";
                return Some(io::Error::new(io::ErrorKind::AddrNotAvailable, what));
            },
        }
    }
}

async fn write(stream: &mut TcpStream, frame: &[u8]) -> io::Result<()> {
    let len = u32::try_from(frame.len()).map_err(io::Error::other)?;
    let message = [&len.to_be_bytes(), frame].concat();
    stream.write_all(&message).await
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;
    use tokio::time::interval;

    use super::super::frames::Spread;
    use super::super::log::Log;
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    #[test]
    fn pauses_double_to_the_longest_and_differ_from_agent_to_agent() {
        let mut whole = PAUSE;
        let mut agents: Vec<_> = (0..100).map(|_| Pauses::new()).collect();
        for _ in 0..20 {
            let pauses: Vec<_> = agents.iter_mut().map(Pauses::next).collect();
            let (first, last) = (pauses.iter().min(), pauses.iter().max());
            let (first, last) = first.zip(last).expect("some agents");
            assert!(*first >= whole / 2 && *last <= whole, "{first:?} to {last:?} of {whole:?}");
            assert!(*last - *first > whole / 4, "they come at once: {first:?} to {last:?}");
            whole = (whole * 2).min(PAUSE_MAX);
        }
        assert_eq!(whole, PAUSE_MAX);
    }

    /// One that the host closes, because it does not want these reports, is not called good.
    #[tokio::test]
    async fn connection_is_called_good_when_it_has_outlived_a_frame() {
        let (log, _guard) = Log::here();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let to = format!("tcp://{}", listener.local_addr().unwrap());
        let to = Destination::parse(&to).expect("a destination");
        let mut spread = Spread::new(1);
        let frames = spread.subscribe();
        let sending = tokio::spawn(async move { send_stream(&to, frames).await });
        let taken = async || {
            let (stream, _) = listener.accept().await.unwrap();
            // One that was written to the connection before is lost.
            loop {
                spread.send(b"frame");
                if timeout(Duration::from_millis(5), stream.readable()).await.is_ok() {
                    return stream;
                }
            }
        };
        for _ in 0..3 {
            drop(taken().await);
        }
        let _stream = taken().await;
        let text = log.text();
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(text.contains("WARN") && text.contains("no connection"), "{text}");
        let (begin, mut looks) = (Instant::now(), interval(Duration::from_millis(5)));
        while !log.text().contains("connected again") {
            looks.tick().await;
            assert!(begin.elapsed() < PATIENCE, "{}", log.text());
        }
        drop(spread);
        sending.await.unwrap();
        assert_eq!(log.text().lines().count(), 2, "{}", log.text());
    }
}
