//! The edge of the HTTP API: what clients send that nobody should, and names in every spelling.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use crate::support::{Farm, PATIENCE, get, pool};

/// A host that listens at this address and goes by these names.
async fn farm_of(listen: &str, names: &[&str]) -> Farm {
    let pools = vec![pool("default", "weighted", "p2c")];
    let farm = Farm::with_host(pools, &[], |host| {
        host.listen = listen.parse().unwrap();
        host.names = names.iter().map(|name| (*name).to_owned()).collect();
    });
    reported(farm.await).await
}

async fn reported(mut farm: Farm) -> Farm {
    farm.report(&["a"], &[("cpu", 0.5), ("memory", 0.5)]);
    farm.eligible(1).await;
    farm
}

/// The whole answer to these bytes; empty where the connection was closed without one.
fn raw(farm: &Farm, request: &[u8]) -> String {
    let port = farm.host().http_address().port();
    let mut stream = TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], port))).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut answer = Vec::new();
    // Who is refused early may find the connection closed while it writes; the answer is there.
    let _ = stream.write_all(request);
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

fn status(answer: &str) -> u16 {
    let status = answer.split(' ').nth(1).unwrap_or_else(|| panic!("no answer: {answer:?}"));
    status.parse().unwrap()
}

/// The status of a request with these header lines.
fn ask(farm: &Farm, start: &str, headers: &[&str]) -> u16 {
    let headers: String = headers.iter().map(|line| format!("{line}\r\n")).collect();
    let request = format!("{start} HTTP/1.1\r\n{headers}connection: close\r\n\r\n");
    status(&raw(farm, request.as_bytes()))
}

/// O-E12: a name that somebody else decides about may be made to lead here.
#[tokio::test(flavor = "multi_thread")]
async fn host_on_loopback_goes_by_its_own_names() {
    let mut farm = farm_of("127.0.0.1:0", &["loadline.example"]).await;
    let get = |farm: &Farm, host: &str| ask(farm, "GET /v1/machines", &[&format!("host: {host}")]);
    for host in ["localhost", "127.0.0.1:14000", "[::1]:14000", "LoadLine.Example:80"] {
        assert_eq!(get(&farm, host), 200, "{host}");
    }
    for path in ["/v1/target", "/v1/machines", "/metrics", "/healthz", "/nowhere"] {
        let got = ask(&farm, &format!("GET {path}"), &["host: evil.example"]);
        assert_eq!(got, 403, "{path}");
    }
    assert_eq!(ask(&farm, "GET http://evil.example/v1/machines", &["host: localhost"]), 403);
    let answer =
        raw(&farm, b"GET /v1/target HTTP/1.1\r\nhost: evil.example\r\nconnection: close\r\n\r\n");
    for words in ["other_name", "host.names", "evil.example"] {
        assert!(answer.contains(words), "{words}: {answer}");
    }
    // Programs that check health name none.
    assert_eq!(ask(&farm, "GET /healthz", &[]), 200);
    assert_eq!(ask(&farm, "GET /v1/machines", &["host: localhost", "host: localhost"]), 400);
    assert_eq!(farm.apply(|config| config.host.as_mut().unwrap().names.clear()).await, [""; 0]);
    assert_eq!(get(&farm, "loadline.example"), 403, "a change counts at once");
    let any = vec!["*".to_owned()];
    assert_eq!(farm.apply(|config| config.host.as_mut().unwrap().names = any).await, [""; 0]);
    assert_eq!(get(&farm, "evil.example"), 200);
    farm.stop().await;
}

/// Other machines ask by whatever name the network gives it, unless names are listed.
#[tokio::test(flavor = "multi_thread")]
async fn host_that_others_reach_goes_by_any_name_until_some_are_listed() {
    let mut farm = farm_of("0.0.0.0:0", &[]).await;
    let get = |farm: &Farm, host: &str| ask(farm, "GET /v1/target", &[&format!("host: {host}")]);
    assert_eq!(get(&farm, "balancer.internal:14000"), 200);
    let listed = vec!["balancer.internal".to_owned()];
    assert_eq!(farm.apply(|config| config.host.as_mut().unwrap().names = listed).await, [""; 0]);
    assert_eq!(get(&farm, "balancer.internal:14000"), 200);
    assert_eq!(get(&farm, "evil.example"), 403);
    farm.stop().await;
}

/// O-E12, O-E14: a page from elsewhere, or under a name that was made to lead here, changes nothing;
/// one of this host, by any name that is listed, may.
#[tokio::test(flavor = "multi_thread")]
async fn web_pages_from_elsewhere_change_nothing() {
    let farm = farm_of("127.0.0.1:0", &["loadline.example"]).await;
    let ours = farm.host().http_address().to_string();
    let outcome = r#"{"target": "a", "latency_us": 5, "ok": false}"#;
    let post = |host: &str, origin: &str| {
        let length = outcome.len();
        let request = format!(
            "POST /v1/outcomes HTTP/1.1\r\nhost: {host}\r\norigin: {origin}\r\nconnection: close\r\n\
             content-length: {length}\r\n\r\n{outcome}"
        );
        status(&raw(&farm, request.as_bytes()))
    };
    assert_eq!(post(&ours, "http://evil.example"), 403);
    assert_eq!(post("evil.example", "http://evil.example"), 403);
    assert_eq!(post(&ours, "null"), 403);
    assert_eq!(post(&ours, "http://127.0.0.1:1"), 403);
    assert_eq!(post("loadline.example", "http://evil.example"), 403);
    assert_eq!(post(&ours, &format!("http://{ours}")), 204);
    assert_eq!(post("loadline.example", "http://loadline.example"), 204);
    farm.stop().await;
}

/// O-E20: no page from elsewhere is told that it may read.
#[tokio::test(flavor = "multi_thread")]
async fn no_answer_allows_pages_from_elsewhere_to_read_it() {
    let farm = farm_of("0.0.0.0:0", &[]).await;
    let paths = [
        "/v1/target",
        "/v1/machines",
        "/v1/machines/a",
        "/v1/pools",
        "/v1/policies",
        "/v1/policies/p2c",
        "/v1/decisions",
        "/v1/refused",
        "/v1/config",
        "/metrics",
        "/healthz",
        "/readyz",
        "/",
        "/nowhere",
    ];
    let preflight =
        "access-control-request-method: POST\r\naccess-control-request-headers: content-type\r\n";
    for path in paths.into_iter().chain(["/v1/outcomes", "/v1/leases/1"]) {
        for (method, headers) in [("GET", ""), ("HEAD", ""), ("OPTIONS", preflight), ("POST", "")] {
            let request = format!(
                "{method} {path} HTTP/1.1\r\nhost: h\r\norigin: http://evil.example\r\n{headers}\
                 cookie: a=b\r\nconnection: close\r\n\r\n"
            );
            let answer = raw(&farm, request.as_bytes()).to_ascii_lowercase();
            let (head, _) = answer.split_once("\r\n\r\n").unwrap();
            assert!(!head.contains("access-control-"), "{method} {path}: {head}");
            let is_refused = status(head) >= 400;
            assert!(is_refused || matches!(method, "GET" | "HEAD"), "{method} {path}: {head}");
        }
    }
    farm.stop().await;
}

/// O-E09: who asks is nobody's word for it: such headers open nothing.
#[tokio::test(flavor = "multi_thread")]
async fn forwarded_addresses_open_nothing() {
    let farm = farm_of("127.0.0.1:0", &[]).await;
    for header in ["x-forwarded-for: 127.0.0.1", "x-real-ip: ::1", "forwarded: for=127.0.0.1"] {
        let headers = ["host: localhost", header, "content-length: 0"];
        assert_eq!(ask(&farm, "POST /v1/policies/p2c/rollback", &headers), 403, "{header}");
        assert_eq!(ask(&farm, "GET /v1/target", &["host: evil.example", header]), 403, "{header}");
    }
    farm.stop().await;
}

/// O-E08: what stands in a path or a query is decoded once.
#[tokio::test(flavor = "multi_thread")]
async fn names_are_decoded_exactly_once() {
    let mut farm = Farm::with_pools(vec![pool("a b", "weighted", "least-loaded")]).await;
    let names = ["a b", "a/b", "%41", "日本", "A"];
    farm.report(&names, &[("cpu", 0.5), ("memory", 0.5)]);
    farm.until("all report", |farm| {
        (farm.get("/v1/machines").as_array().unwrap().len() == names.len()).then_some(())
    })
    .await;
    for (written, name) in [
        ("a%20b", "a b"),
        ("a%2Fb", "a/b"),
        ("a%2fb", "a/b"),
        ("%2541", "%41"),
        ("%25%34%31", "%41"),
        ("%41", "A"),
        ("%E6%97%A5%E6%9C%AC", "日本"),
    ] {
        assert_eq!(farm.get(&format!("/v1/machines/{written}"))["name"], *name, "{written}");
    }
    for bad in ["%80%81", "a%ff"] {
        let error = farm.get_error(&format!("/v1/machines/{bad}"));
        assert_eq!(error, (400, "bad_parameter".to_owned()), "{bad}");
        let error = farm.get_error(&format!("/v1/target?pool={bad}"));
        assert_eq!(error, (400, "bad_parameter".to_owned()), "{bad}");
    }
    // No service "a b" is offered, but both spellings name that pool.
    for pool in ["a%20b", "a+b"] {
        let error = farm.get_error(&format!("/v1/target?pool={pool}"));
        assert_eq!(error, (503, "nobody_eligible".to_owned()), "{pool}");
    }
    assert_eq!(farm.get_error("/v1/target?pool=a%2520b").0, 404);
    farm.stop().await;
}

/// O-E11: what clients write becomes no label.
#[tokio::test(flavor = "multi_thread")]
async fn metrics_do_not_grow_with_what_clients_write() {
    let farm = farm_of("0.0.0.0:0", &[]).await;
    let series = |farm: &Farm| -> Vec<String> {
        let page = get(&farm.url("/metrics"), "").1;
        let series = page.lines().filter_map(|line| line.rsplit_once(' '));
        series.map(|(series, _)| series.to_owned()).collect()
    };
    let ask_all = |numbers: std::ops::Range<u32>| {
        let mut requests = String::new();
        for number in numbers.clone() {
            for path in ["/x", "/v1/machines/x", "/v1/target?pool=x", "/v1/target?key=x"] {
                requests += &format!("GET {path}{number} HTTP/1.1\r\nhost: h{number}\r\n\r\n");
            }
        }
        requests += "GET /healthz HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n";
        let answers = raw(&farm, requests.as_bytes());
        assert_eq!(answers.matches("HTTP/1.1 ").count(), 4 * numbers.len() + 1);
    };
    ask_all(0..10);
    let before = series(&farm);
    (1..200).for_each(|chunk| ask_all(10 * chunk..10 * chunk + 10));
    assert_eq!(series(&farm), before);
    farm.stop().await;
}

/// O-E18: a request that is too long gets an answer, or its connection is closed; nothing else suffers.
#[tokio::test(flavor = "multi_thread")]
async fn long_requests_are_answered_or_refused() {
    let farm = farm_of("127.0.0.1:0", &[]).await;
    for (bytes, expected) in [
        (1_000, &[200][..]),
        (8_000, &[200]),
        (65_534 - "/v1/target?key=".len(), &[200, 414, 431]), // the longest that is a target at all
        (65_535, &[414, 431]),
        (1 << 20, &[414, 431]),
    ] {
        let key = "k".repeat(bytes);
        let request = format!(
            "GET /v1/target?key={key} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
        );
        let answer = raw(&farm, request.as_bytes());
        // Closed while it was still being written: the answer may be lost with that.
        let is_lost = answer.is_empty() && bytes > 60_000;
        assert!(is_lost || expected.contains(&status(&answer)), "{bytes}: {answer:.100}");
        assert_eq!(ask(&farm, "GET /healthz", &["host: localhost"]), 200);
    }
    farm.stop().await;
}
