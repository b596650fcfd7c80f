//! Machines without an agent, scraped by a real host; presets against pages of the real form.

use std::path::Path;
use std::time::Duration;

use loadline::config::Config;
use loadline::run::{Host, Loadline};
use serde_json::Value;

use super::{Page, start};
use crate::support::{PATIENCE, get};

/// A host that reads these machines.
struct Reader {
    loadline: Loadline,
    policies: tempfile::TempDir,
}

fn config(policies: &Path, rest: &str) -> String {
    format!(
        "[host]\nlisten = \"127.0.0.1:0\"\npolicies = {policies:?}\n\
         [reports]\ninterfaces = [\"lo\"]\ngroup = \"239.255.76.76:0\"\n{rest}"
    )
}

impl Reader {
    async fn start(rest: &str, policies: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in policies {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        Self { loadline: start(&config(folder.path(), rest)).await, policies: folder }
    }

    /// Another configuration.
    async fn apply(&mut self, rest: &str) {
        let config = Config::parse(&config(self.policies.path(), rest)).unwrap();
        assert_eq!(self.loadline.apply(&config).await, []);
    }

    fn host(&self) -> &Host {
        self.loadline.host().unwrap()
    }

    fn get(&self, path: &str) -> Option<Value> {
        let url = format!("http://{}{path}", self.host().http_address());
        let (status, body) = get(&url, "application/json");
        (status == 200).then(|| serde_json::from_str(&body).unwrap())
    }

    /// Waits, change by change, until `look` finds what it wants.
    async fn until<T>(&self, what: &str, look: impl Fn(&Self) -> Option<T>) -> T {
        let mut changes = self.host().changes();
        let waited = tokio::time::timeout(PATIENCE, async {
            loop {
                changes.borrow_and_update();
                if let Some(found) = look(self) {
                    return found;
                }
                changes.changed().await.unwrap();
            }
        });
        waited.await.unwrap_or_else(|_| panic!("{what} did not happen"))
    }

    fn is_alive(&self, machine: &str) -> Option<bool> {
        self.get(&format!("/v1/machines/{machine}"))?["alive"].as_bool()
    }

    fn metric(&self, machine: &str, name: &str) -> Option<f64> {
        self.get(&format!("/v1/machines/{machine}"))?["metrics"][name].as_f64()
    }
}

/// A page as its software writes it.
fn captured(name: &str) -> String {
    let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("data").join(name);
    std::fs::read_to_string(file).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_inference_server_joins_a_pool_with_three_lines_and_leaves_when_it_is_silent() {
    let busy = captured("vllm.txt");
    let idle = busy.replace(" 6.0", " 0.0").replace(" 2.0", " 0.0").replace(" 3.0\n", " 0.0\n");
    let idle = idle.replace(" 0.75", " 0.0").replace(" 0.25", " 0.0");
    let [busy, idle] = [busy, idle].map(|page| Page::serve(Some(page.into_bytes())));
    let machine = |name: &str, page: &Page| {
        format!(
            "[[machine]]\nname = \"{name}\"\naddress = \"{}\"\npreset = \"vllm\"\n\
             interval = \"100ms\"\nevery = \"50ms\"\n",
            page.address
        )
    };
    let formula = include_str!("../../config/presets/vllm.formula");
    let pools = "[[pool]]\nname = \"default\"\nformula = \"vllm\"\nstrategy = \"least-loaded\"\n";
    let machines = format!("{pools}{}{}", machine("busy", &busy), machine("idle", &idle));
    let reader = Reader::start(&machines, &[("vllm.formula", formula)]).await;

    let both =
        |reader: &Reader| (reader.host().pools().get("").unwrap().eligible() == 2).then_some(());
    reader.until("both are there", both).await;
    let load = |reader: &Reader| reader.get("/v1/machines/busy")?["targets"][0]["load"].as_f64();
    let load = reader.until("a load", load).await;
    assert!((load - (3.0 + 0.8 + 0.75)).abs() < 1e-9, "{load}");
    let picked = reader.get("/v1/target").unwrap();
    assert_eq!(picked["machine"], "idle");
    assert_eq!(picked["address"], idle.address.to_string());

    idle.switch(false);
    reader
        .until("it is gone", |reader| (reader.is_alive("idle") == Some(false)).then_some(()))
        .await;
    assert_eq!(reader.get("/v1/target").unwrap()["machine"], "busy");
    idle.switch(true);
    reader
        .until("it is back", |reader| (reader.is_alive("idle") == Some(true)).then_some(()))
        .await;
    reader.loadline.stop().await;
}

/// A series that its page does not have says nothing, least of all that nothing is open.
#[tokio::test(flavor = "multi_thread")]
async fn a_machine_whose_open_requests_are_unknown_is_not_the_least_busy() {
    let page = Page::serve(Some(b"open 50\n".to_vec()));
    let machine = |name: &str, series: &str| {
        format!(
            "[[machine]]\nname = \"{name}\"\naddress = \"10.0.0.1:80\"\ninterval = \"1h\"\n\
             in_flight = \"prometheus:http://{}/#{series}\"\n",
            page.address
        )
    };
    let pools = "[[pool]]\nname = \"default\"\nstrategy = \"fewest-clients\"\n";
    let machines = format!("{pools}{}{}", machine("busy", "open"), machine("unknown", "opem"));
    let reader = Reader::start(&machines, &[]).await;
    let both =
        |reader: &Reader| (reader.host().pools().get("").unwrap().eligible() == 2).then_some(());
    reader.until("both are there", both).await;
    let picked = (0..40).map(|_| reader.get("/v1/target").unwrap()["machine"].clone());
    let unknown = picked.filter(|machine| machine == "unknown").count();
    assert!(unknown <= 1, "{unknown} of 40 picks");
    reader.loadline.stop().await;
}

/// What a preset makes of a page that is followed by another; `None`: a rate, some number above 0.
async fn check_preset(preset: &str, pages: [String; 2], expected: &[(&str, Option<f64>)]) {
    let page = Page::serve_in_turn(pages.map(String::into_bytes).to_vec());
    let machine = format!(
        "[[machine]]\nname = \"m\"\naddress = \"10.0.0.1:80\"\npreset = \"{preset}\"\n\
         url = \"http://{}/page\"\ninterval = \"100ms\"\nevery = \"100ms\"\n",
        page.address
    );
    let reader = Reader::start(&machine, &[]).await;
    for (name, expected) in expected {
        let what = format!("{preset}: {name}");
        let value =
            reader.until(&what, |reader| reader.metric("m", name).filter(|v| *v != 0.0)).await;
        match expected {
            Some(expected) => assert!((value - expected).abs() < 1e-9, "{what}: {value}"),
            None => assert!(value > 0.0, "{what}: {value}"),
        }
    }
    let shown = reader.get("/v1/machines/m").unwrap();
    assert_eq!(shown["metrics"].as_object().unwrap().len(), expected.len(), "{shown}");
    reader.loadline.stop().await;
}

/// The page and a later one, with these numbers instead of those.
fn later(page: &str, changes: &[(&str, &str)]) -> [String; 2] {
    let change = |page: String, (old, new): &(&str, &str)| {
        assert!(page.contains(old), "{old}");
        page.replace(old, new)
    };
    [page.to_owned(), changes.iter().fold(page.to_owned(), change)]
}

#[tokio::test(flavor = "multi_thread")]
async fn preset_node_exporter() {
    let pages = later(
        &captured("node_exporter.txt"),
        &[
            ("18500.5", "18502.0"),
            ("900.75", "901.25"),
            ("cpu=\"0\",mode=\"steal\"} 0.5", "cpu=\"0\",mode=\"steal\"} 2.5"),
            ("221.25", "221.375"),
        ],
    );
    let expected =
        [("cpu", Some(0.125)), ("memory", Some(0.75)), ("load1", Some(0.75)), ("disk.busy", None)];
    check_preset("node_exporter", pages, &expected).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn preset_nginx() {
    let pages = later(&captured("nginx.txt"), &[("31070465", "31070500")]);
    let expected =
        [("nginx.active", Some(291.0)), ("nginx.writing", Some(179.0)), ("nginx.requests", None)];
    check_preset("nginx", pages, &expected).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn preset_haproxy() {
    let pages = later(&captured("haproxy.txt"), &[("1234567", "1234600")]);
    let expected = [
        ("haproxy.full", Some(0.25)),
        ("haproxy.queue", Some(7.0)),
        ("haproxy.server_queue", Some(2.0)),
        ("haproxy.idle", Some(0.85)),
        ("haproxy.requests", None),
    ];
    check_preset("haproxy", pages, &expected).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn preset_postgres_exporter() {
    let pages = later(&captured("postgres_exporter.txt"), &[("98765", "98800")]);
    let expected = [
        ("postgres.up", Some(1.0)),
        ("postgres.active", Some(8.0)),
        ("postgres.full", Some(0.21)),
        ("postgres.lag", Some(0.5)),
        ("postgres.commits", None),
    ];
    check_preset("postgres_exporter", pages, &expected).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_without_pages_is_always_there() {
    let reader = Reader::start("[[machine]]\nname = \"m\"\naddress = \"10.0.0.1:80\"\n", &[]).await;
    reader.until("it is there", |reader| reader.is_alive("m").filter(|alive| *alive)).await;
    tokio::time::timeout(Duration::from_secs(30), reader.loadline.stop()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_machine_is_there_until_its_new_pages_answer() {
    let [one, two] = ["x 1\n", "x 2\n"].map(|page| Page::serve(Some(page.into())));
    let silent = Page::serve(None);
    let machine = |page: &Page| {
        format!(
            "[[machine]]\nname = \"m\"\naddress = \"10.0.0.1:80\"\ninterval = \"50ms\"\n\
             every = \"50ms\"\ntimeout = \"200ms\"\n[[machine.metric]]\nname = \"x\"\n\
             source = \"prometheus:http://{}/#x\"\n",
            page.address
        )
    };
    let mut reader = Reader::start(&machine(&one), &[]).await;
    let is = |wanted: f64| {
        move |reader: &Reader| reader.metric("m", "x").filter(|x| x.to_bits() == wanted.to_bits())
    };
    reader.until("it is there", is(1.0)).await;
    reader.apply(&machine(&silent)).await;
    // More looks than a machine may miss.
    let asked = one.asked() + 10;
    reader
        .until("it is asked on", |reader| {
            assert_eq!(reader.is_alive("m"), Some(true));
            (one.asked() >= asked).then_some(())
        })
        .await;
    assert_eq!(reader.metric("m", "x"), Some(1.0));
    reader.apply(&machine(&two)).await;
    reader.until("the new page counts", is(2.0)).await;
    reader.loadline.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_and_networks_of_reports_are_not_for_machines_that_are_read_here() {
    let secret = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(secret.path(), "a secret of reports, long enough").unwrap();
    let rest = format!(
        "keys = [{{ id = 1, secret_file = {:?} }}]\n\
         allow = [{{ machines = \"*\", networks = [\"10.9.0.0/16\"] }}]\n\
         [[machine]]\nname = \"m\"\naddress = \"m.example:80\"\n",
        secret.path()
    );
    let reader = Reader::start(&rest, &[]).await;
    reader.until("it is there", |reader| reader.is_alive("m").filter(|alive| *alive)).await;
    reader.loadline.stop().await;
}
