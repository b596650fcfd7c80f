//! Several of one service on one machine, each with its own load, from a configuration to a pick.

use std::fs;

use serde_json::{Value, json};

use crate::process::Process;
use crate::support::{PATIENCE, get};

const HEAD: &str = "[agent]\nmachine = \"m\"\ninterval = \"50ms\"\n\
    [[agent.metric]]\nname = \"cpu\"\nsource = \"system:cpu\"\nevery = \"50ms\"\nwindow = 1\n\
    [reports]\ngroup = \"239.255.76.76:0\"\ninterfaces = [\"lo\"]\n\
    [host]\nlisten = \"127.0.0.1:0\"\n\
    [[pool]]\nname = \"llm\"\nformula = \"load\"\nstrategy = \"least-loaded\"\n";

/// A replica whose queue a program tells.
fn replica(name: &str, port: u16, queue: u32) -> String {
    format!(
        "[[agent.service]]\nname = \"llm\"\nreplica = \"{name}\"\naddress = \"10.0.0.7:{port}\"\n\
         [[agent.service.metric]]\nname = \"queue\"\nsource = \"command:/bin/echo {queue}\"\nevery = \"50ms\"\n"
    )
}

#[test]
fn replicas_on_one_machine_are_told_apart_and_one_that_is_taken_out_leaves() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("policies")).unwrap();
    fs::write(folder.path().join("policies/load.formula"), "queue").unwrap();
    let both = [HEAD, &replica("gpu0", 8000, 7), &replica("gpu1", 8001, 2)].concat();
    let mut process = Process::start(&folder, &both, &["--config", "loadline.toml"]);
    let line = process.until("try ");
    let url = line.split_whitespace().last().unwrap().replace("/v1/target", "");
    let ask = |path: &str| -> (u16, Value) {
        let (status, body) = get(&format!("{url}{path}"), "application/json");
        (status, serde_json::from_str(&body).unwrap_or_default())
    };
    let until = |what: &str, look: &dyn Fn() -> bool| {
        let begin = std::time::Instant::now();
        while !look() {
            assert!(begin.elapsed() < PATIENCE, "{what}: {:#}", ask("/v1/machines").1);
        }
    };
    let load = |name: &str| ask(&format!("/v1/machines/m:{name}")).1["targets"][0]["load"].clone();
    until("both loads", &|| (load("gpu0"), load("gpu1")) == (json!(7.0), json!(2.0)));
    let (_, machines) = ask("/v1/machines");
    let names: Vec<_> = machines.as_array().unwrap().iter().map(|one| &one["name"]).collect();
    assert_eq!(names, ["m:gpu0", "m:gpu1"], "the machine itself offers nothing");
    assert_eq!(machines[0]["labels"], json!({"machine": "m"}));
    let (_, first) = ask("/v1/target?pool=llm&n=2");
    assert_eq!((&first["machine"], &first["address"]), (&json!("m:gpu1"), &json!("10.0.0.7:8001")));
    assert_eq!(first["others"][0]["machine"], "m:gpu0");
    assert_eq!(ask("/v1/target?pool=llm&exclude=m:gpu1").1["machine"], "m:gpu0");
    assert_eq!(ask("/v1/target").0, 503, "no machine offers the service default");
    let one = [HEAD, &replica("gpu0", 8000, 7)].concat();
    fs::write(folder.path().join("new"), one).unwrap();
    fs::rename(folder.path().join("new"), folder.path().join("loadline.toml")).unwrap();
    until("gpu1 leaves", &|| ask("/v1/machines/m:gpu1").1["state"] == "leaving");
    assert_eq!(ask("/v1/target?pool=llm").1["machine"], "m:gpu0");
}
