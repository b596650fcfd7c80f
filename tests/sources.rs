//! What an agent measures, seen from outside: real pages, programs and files, and a real host.

mod crowd;
mod kernel;
mod kinds;
mod machines;
mod push;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use loadline::config::Config;
use loadline::report::{Keyring, Metrics, Service, wire};
use loadline::run::Loadline;

use crate::support::{Farm, PATIENCE};

/// A web server for one page.
pub(crate) struct Page {
    pub(crate) address: SocketAddr,
    asked: Arc<AtomicUsize>,
    up: Arc<AtomicBool>,
}

impl Page {
    /// Serves a body; `None`: accepts and says nothing.
    pub(crate) fn serve(body: Option<Vec<u8>>) -> Self {
        let answers = body.map(with_head);
        Self::start(move |_| answers.clone())
    }

    /// Serves each body once, and then says nothing.
    pub(crate) fn serve_in_turn(bodies: Vec<Vec<u8>>) -> Self {
        let answers: Vec<_> = bodies.into_iter().map(with_head).collect();
        Self::start(move |asked| answers.get(asked).cloned())
    }

    /// Serves these very bytes.
    pub(crate) fn answer(answer: Vec<u8>) -> Self {
        Self::start(move |_| Some(answer.clone()))
    }

    fn start(answer: impl Fn(usize) -> Option<Vec<u8>> + Send + 'static) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let (asked, up) = (Arc::<AtomicUsize>::default(), Arc::new(AtomicBool::new(true)));
        let (count, is_up) = (Arc::clone(&asked), Arc::clone(&up));
        std::thread::spawn(move || {
            let mut open = Vec::new();
            for mut client in listener.incoming().map_while(Result::ok) {
                if !is_up.load(Ordering::Relaxed) {
                    continue; // closed without a word
                }
                let Some(answer) = answer(count.fetch_add(1, Ordering::Relaxed)) else {
                    open.push(client);
                    continue;
                };
                let mut request = [0; 4_096];
                // A client that has gone away is its own matter.
                let _ = client.read(&mut request).and_then(|_| client.write_all(&answer));
            }
        });
        Self { address, asked, up }
    }

    pub(crate) fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }

    /// Closes every connection from now on, or serves again.
    pub(crate) fn switch(&self, up: bool) {
        self.up.store(up, Ordering::Relaxed);
    }
}

fn with_head(body: Vec<u8>) -> Vec<u8> {
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
    [head.into_bytes(), body].concat()
}

/// One report as it arrived.
struct Arrived {
    at: Instant,
    metrics: Vec<(String, f64)>,
    services: Vec<ServiceSaid>,
}

/// What a report says of a service.
struct ServiceSaid {
    name: String,
    metrics: Vec<(String, f64)>,
    counts: (u64, u64, u32),
    labels: Vec<(String, String)>,
}

impl Arrived {
    fn service(&self, name: &str) -> &ServiceSaid {
        self.services.iter().find(|service| service.name == name).unwrap()
    }

    /// Requests accepted, completed and in flight.
    fn counts(&self, service: &str) -> (u64, u64, u32) {
        self.service(service).counts
    }

    fn service_value(&self, service: &str, name: &str) -> Option<f64> {
        let (_, value) = self.service(service).metrics.iter().find(|(known, _)| known == name)?;
        Some(*value).filter(|value| value.is_finite())
    }

    fn value(&self, name: &str) -> Option<f64> {
        let (_, value) = self.metrics.iter().find(|(known, _)| known == name).unwrap();
        Some(*value).filter(|value| value.is_finite())
    }
}

/// Where an agent's reports go in a test.
pub(crate) struct Ear {
    socket: UdpSocket,
}

impl Ear {
    pub(crate) fn open() -> Self {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { socket }
    }

    /// The `[reports]` table that sends here.
    pub(crate) fn config(&self) -> String {
        let to = self.socket.local_addr().unwrap();
        format!("[reports]\ngroup = []\nsend_to = [\"udp://{to}\"]\n")
    }

    fn next(&self) -> Arrived {
        let mut frame = vec![0; 65_536];
        let (len, _) = self.socket.recv_from(&mut frame).unwrap();
        let at = Instant::now();
        let reports = wire::decode(&frame[..len], &Keyring::default()).unwrap();
        let pairs = |metrics: &Metrics<'_>| {
            let names = metrics.names.iter().map(|name| (*name).to_owned());
            names.zip(metrics.values.iter().copied()).collect()
        };
        let service = |service: &Service<'_>| ServiceSaid {
            name: service.name.to_owned(),
            metrics: pairs(&service.metrics),
            counts: (service.accepted, service.completed, service.in_flight),
            labels: {
                let owned = |(k, v): &(&str, &str)| ((*k).to_owned(), (*v).to_owned());
                service.labels.iter().map(owned).collect()
            },
        };
        Arrived {
            at,
            metrics: pairs(&reports[0].metrics),
            services: reports[0].services.iter().map(service).collect(),
        }
    }

    /// The first report that is as wanted.
    fn until(&self, what: &str, wanted: impl Fn(&Arrived) -> bool) -> Arrived {
        let begin = Instant::now();
        loop {
            let arrived = self.next();
            if wanted(&arrived) {
                return arrived;
            }
            assert!(begin.elapsed() < PATIENCE, "no report with {what}: {:?}", arrived.metrics);
        }
    }
}

pub(crate) async fn start(config: &str) -> Loadline {
    let config = Config::parse(config).unwrap_or_else(|error| panic!("{error}\n{config}"));
    Loadline::start(config).await.unwrap()
}

#[test]
fn what_hangs_or_is_garbage_delays_no_report_and_spoils_no_other_value() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(check_that_nothing_is_delayed());
    runtime.shutdown_background(); // one still waits for a page
}

async fn check_that_nothing_is_delayed() {
    let silent = Page::serve(None);
    let mut odd = b"# TYPE good gauge\r\ngood 0.25\r\nbad NaN\r\nworse 1e400\r\n".to_vec();
    odd.extend([0xfe; 100]);
    odd.extend(b"\r\nlast 3");
    let odd = Page::serve(Some(odd));
    let mut long = vec![b'x'; 10 << 20];
    long.extend(b"\nfar 4\n");
    let long = Page::serve(Some(long));
    let broken = Page::answer(b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\ngood 1\n".to_vec());
    let around =
        Page::answer(b"HTTP/1.1 302 F\r\nlocation: /\r\ncontent-length: 0\r\n\r\n".to_vec());
    let ear = Ear::open();
    let metric = |name: &str, source: String| {
        format!(
            "[[agent.metric]]\nname = \"{name}\"\nsource = '{source}'\nevery = \"50ms\"\nwindow = 1\ntimeout = \"1m\"\n"
        )
    };
    let page = |page: &Page, series: &str| format!("prometheus:http://{}/m#{series}", page.address);
    let config = [
        "[agent]\nmachine = \"m\"\ninterval = \"100ms\"\n".to_owned(),
        metric("cpu", "system:cpu".to_owned()),
        metric("hangs", "command:/bin/sleep 1000".to_owned()),
        metric("silent", page(&silent, "x")),
        metric("good", page(&odd, "good")),
        metric("last", page(&odd, "last")),
        metric("bad", page(&odd, "bad")),
        metric("worse", page(&odd, "worse")),
        metric("far", page(&long, "far")),
        metric("broken", page(&broken, "good")),
        metric("around", page(&around, "good")),
        metric("refused", "http-json:http://127.0.0.1:1/x#/a".to_owned()),
        ear.config(),
    ];
    let agent = start(&config.concat()).await;
    let ear = tokio::task::spawn_blocking(move || {
        let all = ear.until("cpu, good, last and far", |report| {
            ["cpu", "good", "last", "far"].iter().all(|name| report.value(name).is_some())
        });
        for name in ["hangs", "silent", "bad", "worse", "broken", "around", "refused"] {
            assert_eq!(all.value(name), None, "{name}");
        }
        assert_eq!([all.value("good"), all.value("last")], [Some(0.25), Some(3.0)]);
        assert_eq!(all.value("far"), Some(4.0));
        // Thirty more leave long before what hangs has had its minute.
        let last = (0..30).fold(None, |_, _| Some(ear.next())).unwrap();
        assert!(last.at - all.at < Duration::from_secs(30), "{:?}", last.at - all.at);
        ear
    });
    let _ear = ear.await.unwrap();
    assert!(silent.asked() == 1, "one question at a time");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_of_one_page_share_its_fetches() {
    let page = Page::serve(Some(b"a 1\nb 2\nc 3\n".to_vec()));
    let ear = Ear::open();
    let metric = |name: &str| {
        format!(
            "[[agent.metric]]\nname = \"{name}\"\nsource = 'prometheus:http://{}/m#{name}'\nevery = \"1h\"\n",
            page.address
        )
    };
    let config = format!(
        "[agent]\ninterval = \"50ms\"\n{}{}{}{}",
        metric("a"),
        metric("b"),
        metric("c"),
        ear.config()
    );
    let agent = start(&config).await;
    let report = tokio::task::spawn_blocking(move || {
        ear.until("all three", |report| report.value("c").is_some())
    });
    let report = report.await.unwrap();
    assert_eq!([report.value("a"), report.value("b")], [Some(1.0), Some(2.0)]);
    assert_eq!(page.asked(), 1);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_load_report_is_read_from_the_header_of_an_answer() {
    let text = "TEXT cpu_utilization=0.25, named_metrics.kv_cache=0.5, rps_fractional=NaN";
    let answer =
        format!("HTTP/1.1 200 OK\r\nendpoint-load-metrics: {text}\r\ncontent-length: 2\r\n\r\nOK");
    let page = Page::answer(answer.into_bytes());
    let ear = Ear::open();
    let metric = |name: &str, field: &str| {
        format!(
            "[[agent.metric]]\nname = \"{name}\"\nsource = 'orca:http://{}/health#{field}'\n",
            page.address
        )
    };
    let config = format!(
        "[agent]\ninterval = \"50ms\"\n{}{}{}{}",
        metric("cpu", "cpu_utilization"),
        metric("cache", "named_metrics.kv_cache"),
        metric("rps", "rps_fractional"),
        ear.config()
    );
    let agent = start(&config).await;
    let report = tokio::task::spawn_blocking(move || {
        ear.until("the report", |report| report.value("cpu").is_some())
    });
    let report = report.await.unwrap();
    assert_eq!([report.value("cpu"), report.value("cache")], [Some(0.25), Some(0.5)]);
    assert_eq!(report.value("rps"), None);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fresh_agent_on_a_busy_machine_is_never_the_least_loaded() {
    for window in [4, 1] {
        let mut farm = Farm::new("weighted", "least-loaded").await;
        farm.report(&["half"], &[("cpu", 0.5), ("memory", 0.5)]);
        farm.eligible(1).await;
        // As busy as can be; its first sample is a difference of nothing and is none.
        let busy = Page::serve(Some(b"# TYPE busy_total counter\nbusy_total 7\nfull 1\n".to_vec()));
        let metric = |name: &str, query: &str| {
            format!(
                "[[agent.metric]]\nname = \"{name}\"\nsource = 'prometheus:http://{}/#{query}'\n\
                 every = \"100ms\"\nwindow = {window}\n",
                busy.address
            )
        };
        let config = format!(
            "[agent]\nmachine = \"fresh\"\ninterval = \"50ms\"\n{}{}[reports]\ninterfaces = [\"lo\"]\n\
             group = \"239.255.76.76:{}\"\n",
            metric("cpu", "1 - rate(busy_total)"),
            metric("memory", "full"),
            farm.host().report_port(),
        );
        let agent = start(&config).await;
        let has_load = |farm: &Farm| {
            let machines = farm.get("/v1/machines");
            let mut machines = machines.as_array().unwrap().iter();
            let fresh = machines.find(|machine| machine["name"] == "fresh");
            fresh.is_some_and(|fresh| fresh["targets"][0]["load"].is_number())
        };
        let begin = Instant::now();
        while !has_load(&farm) {
            assert_ne!(farm.target(""), "fresh", "before its load is known");
            assert!(begin.elapsed() < PATIENCE, "it never reports");
        }
        for _ in 0..20 {
            assert_eq!(farm.target(""), "half");
        }
        agent.stop().await;
        farm.stop().await;
    }
}
