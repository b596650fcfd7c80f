//! Clients that are slow, many or deaf, over real sockets.

use std::time::Instant;

use axum::body::Bytes;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::routing::{get, post};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixListener, UnixStream};

use super::*;

/// A test that waits longer has failed.
const PATIENCE: Duration = Duration::from_secs(30);
/// More than the kernel holds for one connection.
const LARGE: usize = 64 << 20;

fn router() -> Router {
    Router::new()
        .route("/", get(|| async { "here" }))
        .route("/large", get(|| async { vec![b'x'; LARGE] }))
        .route("/body", post(|_: Bytes| async { "read" }))
}

fn too_slow(_: Duration) -> Response {
    (StatusCode::REQUEST_TIMEOUT, "too slow").into_response()
}

/// A server with these limits, and its address.
fn server(limits: Limits) -> (Server, SocketAddr) {
    let listener = bind(SocketAddr::from(([127, 0, 0, 1], 0)), None).expect("a free port");
    let address = listener.local_addr().expect("bound");
    (Server::start(listener, router(), limits, too_slow), address)
}

async fn connect(address: SocketAddr, request: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    stream.write_all(request.as_bytes()).await.expect("it is open");
    stream
}

/// What the server says until it closes the connection.
async fn read(mut stream: TcpStream) -> String {
    let mut answer = String::new();
    let read = timeout(PATIENCE, stream.read_to_string(&mut answer)).await;
    read.expect("it is closed in time").expect("text");
    answer
}

const GET: &str = "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";

#[tokio::test]
async fn head_that_does_not_come_ends_its_connection_alone() {
    let limits = Limits { head: Duration::from_millis(300), ..Limits::default() };
    let (server, address) = server(limits);
    let slow = connect(address, "GET / HTTP/1.1\r\nHos").await;
    assert!(read(connect(address, GET).await).await.ends_with("here"));
    assert!(!read(slow).await.contains("200"));
    server.close(PATIENCE).await;
}

#[tokio::test]
async fn body_that_does_not_come_is_answered_with_408() {
    let limits = Limits { answer: Duration::from_millis(300), ..Limits::default() };
    let (server, address) = server(limits);
    let head =
        "POST /body HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\nConnection: close\r\n\r\nhalf";
    let answer = read(connect(address, head).await).await;
    assert!(answer.starts_with("HTTP/1.1 408") && answer.ends_with("too slow"), "{answer}");
    server.close(PATIENCE).await;
}

#[tokio::test]
async fn connection_beyond_the_limit_waits_for_one_that_is_answered() {
    let (server, address) = server(Limits { connections: 1, ..Limits::default() });
    let body = "POST /body HTTP/1.1\r\nHost: x\r\nConnection: close\r\n";
    let expect = format!("{body}Expect: 100-continue\r\nContent-Length: 4\r\n\r\n");
    let mut first = connect(address, &expect).await;
    let mut go_on = [0; 25];
    first.read_exact(&mut go_on).await.expect("its body is waited for");
    let second = tokio::spawn(read(connect(address, GET).await));
    first.write_all(b"body").await.expect("it is open");
    assert!(read(first).await.ends_with("read"));
    assert!(second.await.expect("no panic").ends_with("here"));
    server.close(PATIENCE).await;
}

#[tokio::test]
async fn quiet_and_slow_connections_make_room_for_new_ones() {
    let (server, address) = server(Limits { connections: 4, ..Limits::default() });
    let mut used = connect(address, "GET / HTTP/1.1\r\nHost: x\r\n\r\n").await;
    let mut answer = [0; 9];
    used.read_exact(&mut answer).await.expect("an answer");
    // Twice as many as there are places: silent ones, and heads that come byte by byte.
    let mut others = Vec::new();
    for number in 0..8 {
        others.push(connect(address, ["", "GET / HT"][number % 2]).await);
        assert!(read(connect(address, GET).await).await.ends_with("here"));
    }
    // Who has been quiet for longest has gone, long before the time for its head is over.
    for gone in std::iter::once(used).chain(others.drain(..4)) {
        assert!(!read(gone).await.contains("408"), "closed for its place");
    }
    drop(others);
    server.close(PATIENCE).await;
}

#[tokio::test]
async fn client_that_does_not_read_is_given_up() {
    let limits = Limits { write: Duration::from_millis(300), ..Limits::default() };
    let (server, address) = server(limits);
    let deaf = connect(address, "GET /large HTTP/1.1\r\nHost: x\r\n\r\n").await;
    deaf.readable().await.expect("an answer begins");
    let begin = Instant::now();
    server.close(PATIENCE).await; // waits for open answers
    assert!(begin.elapsed() < PATIENCE / 2, "{:?}", begin.elapsed());
    drop(deaf);
}

#[tokio::test]
async fn idle_connection_does_not_hold_up_the_end() {
    let (server, address) = server(Limits::default());
    let mut idle = connect(address, "GET / HTTP/1.1\r\nHost: x\r\n\r\n").await;
    let mut answer = [0; 9];
    idle.read_exact(&mut answer).await.expect("an answer");
    let begin = Instant::now();
    server.close(PATIENCE).await;
    assert!(begin.elapsed() < PATIENCE / 2, "{:?}", begin.elapsed());
}

#[tokio::test]
async fn unix_sockets_are_served_with_the_same_limits() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("socket");
    let listener = UnixListener::bind(&path).expect("a new file");
    let limits = Limits { write: Duration::from_millis(300), connections: 2, ..Limits::default() };
    let server = Server::start(listener, router(), limits, too_slow);
    let ask = async |request: &str| {
        let mut stream = UnixStream::connect(&path).await.expect("it listens");
        stream.write_all(request.as_bytes()).await.expect("it is open");
        stream
    };
    let deaf = ask("GET /large HTTP/1.1\r\nHost: x\r\n\r\n").await;
    deaf.readable().await.expect("an answer begins");
    let _silent = ask("").await;
    let mut answer = String::new();
    let mut good = ask(GET).await;
    let read = timeout(PATIENCE, good.read_to_string(&mut answer)).await;
    read.expect("in time").expect("text");
    assert!(answer.ends_with("here"), "{answer}");
    let begin = Instant::now();
    server.close(PATIENCE).await; // waits for open answers
    assert!(begin.elapsed() < PATIENCE / 2, "{:?}", begin.elapsed());
    drop(deaf);
}
