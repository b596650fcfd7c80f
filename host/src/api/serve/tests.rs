//! Clients that are slow, many or deaf, over real sockets.

use std::time::Instant;

use axum::body::Bytes;
use axum::routing::{get, post};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;

/// A test that waits longer has failed.
const PATIENCE: Duration = Duration::from_secs(30);
/// More than the kernel holds for one connection.
const LARGE: usize = 64 << 20;

/// A server with these limits, and its address.
fn server(limits: Limits) -> (Server, SocketAddr) {
    let router = Router::new()
        .route("/", get(|| async { "here" }))
        .route("/large", get(|| async { vec![b'x'; LARGE] }))
        .route("/body", post(|_: Bytes| async { "read" }));
    let listener = bind(SocketAddr::from(([127, 0, 0, 1], 0)), None).expect("a free port");
    let address = listener.local_addr().expect("bound");
    (Server::start(listener, router, limits), address)
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
    assert!(answer.starts_with("HTTP/1.1 408") && answer.contains("too_slow"), "{answer}");
    server.close(PATIENCE).await;
}

#[tokio::test]
async fn connection_beyond_the_limit_waits_for_its_turn() {
    let (server, address) = server(Limits { connections: 1, ..Limits::default() });
    let first = connect(address, "GET / HTTP/1.1\r\nHost: x\r\n").await;
    let second = tokio::spawn(read(connect(address, GET).await));
    let mut first = first;
    first.write_all(b"Connection: close\r\n\r\n").await.expect("it is open");
    assert!(read(first).await.ends_with("here"));
    assert!(second.await.expect("no panic").ends_with("here"));
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
