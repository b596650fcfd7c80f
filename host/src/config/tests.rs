//! Files and their problems.

use super::*;
use crate::report::{LABELS_MAX, METRICS_MAX, NAME_BYTES_MAX, SERVICES_MAX};

/// Problems as `key: what` lines.
#[track_caller]
fn problems(text: &str) -> Vec<String> {
    let error = Config::parse(text).expect_err("a bad configuration");
    error.to_string().lines().map(str::to_owned).collect()
}

#[test]
fn the_shipped_file_is_the_default() {
    assert_eq!(Config::parse(DEFAULT_FILE), Ok(Config::default()));
}

#[test]
fn what_is_printed_reads_back_as_the_same() {
    let text = r#"
        [agent]
        machine = "web-1"
        push = "unix:/run/loadline/push"
        labels = { zone = "a" }
        metric = []
        [[agent.service]]
        name = "web"
        address = "https://web-1.example/x"
        weight = 2
        labels = { rack = "7" }
        accepted = "push"
        in_flight = "nginx:http://127.0.0.1/status#active"
        [[agent.service.metric]]
        name = "queue"
        source = "prometheus:http://127.0.0.1/m#1 - a{b=\"c\"} / d"
        window = 3
        decay = 2
        capacity = 10
        expires = "1m"
        timeout = "300ms"
        [reports]
        interfaces = ["lo"]
        group = ["[ff05::7]:7"]
        ttl = 4
        tcp = false
        receive_buffer = 65536
        silence = "0s"
        send_to = ["udp://far:12000", "tcp://[fd00::2]:12000"]
        keys = [{ id = 1, secret_file = "s" }, { id = 2, secret_env = "S" }]
        max_skew = "5s"
        allow = [{ machines = "web-*", networks = ["10.0.0.0/8", "::1"] }]
        [host]
        listen = "0.0.0.0:80"
        insecure = true
        [[pool]]
        name = "web"
        formula_settings = { weights = { cpu = 0.3 } }
        [pool.shadow]
        policy = "next"
        share = 0.25
        promote = { picks = 5, p99 = "2ms" }
        [pool.health]
        max_ejected = 1
        slow_start = "0s"
    "#;
    for config in [Config::default(), Config::parse(text).expect("a good file")] {
        assert_eq!(Config::parse(&config.to_toml()).as_ref(), Ok(&config), "{}", config.to_toml());
    }
}

/// Something wrong in every table.
const WRONG: &str = r#"
        colour = "red"
        [agent]
        machine = ""
        interval = "2 parsecs"
        wieght = 1
        [[agent.metric]]
        source = "system:cpux"
        every = 5
        window = 0
        [[agent.metric]]
        name = "b"
        source = "push"
        [reports]
        group = "10.0.0.1:12000"
        send_to = ["http://x:1"]
        keys = [{ secret_file = "s" }]
        [host]
        listen = "everywhere"
        miss_limit = 1.5
        [[pool]]
        name = "web"
        formula = "../etc"
        strategy_settings = 3
        health = { max_ejected = 1.5, ejection_time = "10m", panic = 0, slow_start_min = 0 }
        [[pool]]
        name = "web"
    "#;

#[test]
fn every_problem_is_reported_at_once_with_its_key() {
    let expected = [
        "agent.machine: \"\" is not a name",
        "agent.interval: \"2 parsecs\" is not a duration like \"500ms\" or \"2s\"",
        "agent.metric[0].name: is missing",
        "agent.metric[0].source: there is no system:cpux, did you mean system:cpu?",
        "agent.metric[0].every: a whole number where a duration like \"2s\" belongs",
        "agent.metric[0].window: 0 is not a whole number from 1 to 3600",
        "agent.push: is off, and there are metrics or counters whose source is push",
        "agent.wieght: unknown key, did you mean weight?",
        "reports.group: \"10.0.0.1:12000\" is not a multicast address (224.0.0.0 to",
        "reports.send_to: \"http://x:1\" is not of the form",
        "reports.keys[0].id: is missing",
        "host.listen: \"everywhere\" is not an address and port",
        "host.miss_limit: 1.5 is not a whole number from 1 to 1000",
        "pool[0].formula: \"../etc\" is not a policy's name",
        "pool[0].strategy_settings: a whole number where a table belongs",
        "pool[0].health.ejection_time: \"10m\" is not between 10ms and 5m",
        "pool[0].health.max_ejected: 1.5 is not a number from 0 to 1",
        "pool[0].health.slow_start_min: 0 is not above 0",
        "pool[0].health.panic: unknown key",
        "colour: unknown key (known here: agent, reports, relay, host, machine, pool)",
        "pool: two pools are named \"web\"",
    ];
    let found = problems(WRONG);
    assert_eq!(found.len(), expected.len(), "{found:#?}");
    for (found, expected) in found.iter().zip(expected) {
        assert!(found.starts_with(expected), "{found}\n{expected}");
    }
}

#[test]
fn who_may_report_is_checked() {
    let text = r#"
        [host]
        [reports]
        keys = [{ id = 2, secret_file = "s", secret_env = "S" }, { id = 3 }]
        max_skew = "1h"
        allow = [{ machines = "a", networks = ["10.0.0.1/8"] }, {}]
    "#;
    let expected = [
        "reports.keys[0].secret_file: write either secret_file or secret_env",
        "reports.keys[1].secret_file: write either secret_file or secret_env",
        "reports.max_skew: \"1h\" is not between 0s and 10m",
        "reports.allow[0].networks: \"10.0.0.1/8\" is not a network like \"10.0.0.0/8\"",
        "reports.allow[1].networks: is missing",
        "reports.allow[1].machines: is missing",
    ];
    assert_eq!(problems(text), expected);
}

#[track_caller]
fn check_problem(text: &str, start: &str) {
    let found = problems(text);
    assert!(found.len() == 1 && found[0].starts_with(start), "{found:#?}");
}

#[test]
fn problems_of_metrics_services_and_machines_are_named() {
    let text = r#"
        [agent]
        push = "10.0.0.1:14100"
        [[agent.metric]]
        name = "b"
        source = "system:cpu"
        decay = 0.5
        expires = "2days"
        [[agent.service]]
        name = "s"
        in_flight = "pull"
        preset = "vllm"
        [[machine]]
        name = "m"
        preset = "nginy"
        [[machine]]
        name = "m"
        address = "10.0.0.1:80"
        preset = "nginx"
        url = "https://10.0.0.1/status"
        [[machine.metric]]
        name = "cpu"
        source = "system:cpu"
    "#;
    let expected = [
        "agent.push: 10.0.0.1:14100 is not a loopback address",
        "agent.metric[0].decay: 0.5 is not a number from 1 to 1000000",
        "agent.metric[0].expires: \"2days\" is not between 0s and 1day",
        "agent.service[0].preset: needs an address, or the url of the page",
        "agent.service[0].in_flight: there is no source \"pull\", did you mean push?",
        "machine[0].address: is missing",
        "machine[0].preset: there is no preset \"nginy\", did you mean nginx?",
        "machine[1].url: https is not built into this program",
        "machine[1].metric: \"system:cpu\" can only be had by an agent on that machine",
        "machine: two machines are named \"m\"",
        "machine: machines without an agent are read by a host: write [host]",
    ];
    let found = problems(text);
    assert_eq!(found.len(), expected.len(), "{found:#?}");
    for (found, expected) in found.iter().zip(expected) {
        assert!(found.starts_with(expected), "{found}\n{expected}");
    }
}

#[test]
fn what_no_report_can_carry_is_refused() {
    let many =
        |max: usize, form: &dyn Fn(usize) -> String| -> String { (0..=max).map(form).collect() };
    let labels = many(LABELS_MAX, &|number| format!("l{number} = \"\"\n"));
    let metrics = |table: &str| {
        many(METRICS_MAX, &|number| {
            format!("[[{table}.metric]]\nname = \"m{number}\"\nsource = \"command:true\"\n")
        })
    };
    let service = "[[agent.service]]\nname = \"web\"\n";
    let machine = "[host]\n[[machine]]\nname = \"m\"\naddress = \"10.0.0.1:80\"\n";
    let services =
        many(SERVICES_MAX, &|number| format!("[[agent.service]]\nname = \"s{number}\"\n"));
    for (head, key) in
        [("[agent]\n", "agent"), (service, "agent.service[0]"), (machine, "machine[0]")]
    {
        let table = key.trim_end_matches("[0]");
        let labels = format!("{head}[{table}.labels]\n{labels}");
        check_problem(&labels, &format!("{key}.labels: 65 are more than a report can carry, 64"));
        let metrics = format!("{head}{}", metrics(table));
        check_problem(
            &metrics,
            &format!("{key}.metric: 257 are more than a report can carry, 256"),
        );
        let long = format!("{head}labels = {{ a = \"{}\" }}\n", "x".repeat(NAME_BYTES_MAX + 1));
        check_problem(&long, &format!("{key}.labels: \"xxx"));
        let control = format!("{head}labels = {{ a = \"b\\u0007\" }}\n");
        check_problem(
            &control,
            &format!("{key}.labels: \"b\\u{{7}}\" is not the value of a label"),
        );
        let unnamed = format!("{head}labels = {{ \"\" = \"b\" }}\n");
        check_problem(&unnamed, &format!("{key}.labels: \"\" is not a label's name"));
        let own = format!("{head}labels = {{ \"loadline.x\" = \"b\" }}\n");
        check_problem(
            &own,
            &format!("{key}.labels: \"loadline.x\" is one of the names that agents"),
        );
    }
    check_problem(&services, "agent.service: 257 are more than a report can carry, 256");
    let fitting =
        format!("[agent]\nlabels = {{ a = \"\", b = \"{}\" }}", "x".repeat(NAME_BYTES_MAX));
    assert!(Config::parse(&fitting).is_ok());
}

#[test]
fn every_preset_is_a_good_machine_and_a_good_service() {
    for (name, _) in PRESETS {
        let table = |table: &str| {
            let address = "address = \"10.0.0.7:8000\"";
            format!("[host]\n[agent]\n[[{table}]]\nname = \"m\"\n{address}\npreset = \"{name}\"\n")
        };
        let config = Config::parse(&table("machine")).unwrap_or_else(|error| panic!("{error}"));
        assert!(config.machines[0].offer.metrics.len() > 2, "{name}");
        assert_eq!(Config::parse(&config.to_toml()).as_ref(), Ok(&config), "{name}");
        let config = Config::parse(&table("agent.service")).unwrap_or_else(|e| panic!("{e}"));
        let service = &config.agent.as_ref().expect("an agent").services[0];
        let source = service.offer.metrics[0].source.to_string();
        assert!(source.contains(":http://10.0.0.7:"), "{source}");
    }
}

#[test]
fn what_is_written_beside_a_preset_hides_what_it_says() {
    let text = r#"
        [host]
        [[machine]]
        name = "m"
        address = "10.0.0.7:8000"
        preset = "vllm"
        every = "5s"
        [[machine.metric]]
        name = "vllm.running"
        source = "prometheus:http://10.0.0.8/m#busy"
    "#;
    let metrics = &Config::parse(text).expect("a good file").machines[0].offer.metrics;
    let sources: Vec<_> = metrics.iter().map(|metric| metric.source.to_string()).collect();
    assert_eq!(
        sources,
        [
            "prometheus:http://10.0.0.7:8000/metrics#vllm:num_requests_waiting",
            "prometheus:http://10.0.0.7:8000/metrics#max(vllm:kv_cache_usage_perc)",
            "prometheus:http://10.0.0.8/m#busy",
        ]
    );
    assert!(metrics.iter().all(|metric| metric.every == Duration::from_secs(5)));
}

#[test]
fn keys_of_the_wrong_shape_are_named() {
    check_problem("agent = 1\n[host]", "agent: a whole number where a table [agent] belongs");
    check_problem(
        "[host]\n[pool]\nname = 1",
        "pool: write each one as a table of its own, [[pool]]",
    );
    check_problem("[host]\ninsecure = \"yes\"", "host.insecure: a string where true or false");
    check_problem("[host]\nlisten = 14000", "host.listen: a whole number where a string");
    check_problem(
        "[agent]\ninterval = \"2h\"",
        "agent.interval: \"2h\" is not between 10ms and 1h",
    );
    check_problem("[agent]\nlabels = { a = 1 }", "agent.labels: must be a table of strings");
    check_problem("[agent]\nweight = -1", "agent.weight: -1 is not a number above 0");
}

#[test]
fn an_address_that_others_reach_must_be_meant() {
    check_problem(
        "[host]\nlisten = \"0.0.0.0:14000\"",
        "host.listen: 0.0.0.0:14000 can be reached",
    );
    assert!(Config::parse("[host]\nlisten = \"0.0.0.0:14000\"\ninsecure = true").is_ok());
    assert!(Config::parse("[host]\nlisten = \"[::1]:14000\"").is_ok());
}

#[test]
fn a_file_runs_only_the_roles_it_names() {
    let config = Config::parse("[agent]").expect("a good file");
    assert!(config.host.is_none() && config.agent.is_some());
    assert_eq!(config.pools, [PoolConfig::new("default")]);
    check_problem("[reports]", "nothing to do: write [agent], [host] or both");
}

#[test]
fn wrong_toml_names_its_line() {
    let error = Config::parse("[host]\nlisten = ").expect_err("no TOML");
    assert_eq!(error.problems[0].place, Some(Place::Line(2)));
    assert!(error.to_string().contains("(column 10)"), "{error}");
}

#[test]
fn secrets_come_from_files_and_are_named_when_they_do_not() {
    let text = "[host]\n[reports]\nkeys = [{ id = 1, secret_file = \"/nowhere/secret\" }]";
    let reports = Config::parse(text).expect("a good file").reports;
    let error = reports.keyring().expect_err("no such file").to_string();
    assert!(
        error.starts_with("reports.keys[0]: cannot read secret_file /nowhere/secret"),
        "{error}"
    );
}

#[test]
fn secrets_of_the_environment_are_handed_in_and_never_printed() {
    let text = "[host]\n[reports]\nkeys = [{ id = 1, secret_env = \"A\" }, { id = 2, secret_env = \"B\" }]";
    let mut config = Config::parse(text).expect("a good file");
    let missing = config.reports.keyring().expect_err("not looked at").to_string();
    assert!(missing.contains("reports.keys[1]: the environment has no variable B"), "{missing}");
    config.reports.take_secrets(|name| (name == "A").then(|| "  0123456789abcdef\n".to_owned()));
    assert_eq!(config.reports.keyring().expect_err("one is not set").problems.len(), 1);
    config.reports.take_secrets(|_| Some("0123456789abcdef".to_owned()));
    assert_eq!(config.reports.keyring().expect("both").signing_id(), 1);
    let printed = format!("{}{config:?}", config.to_toml());
    assert!(printed.contains("secret_env = \"B\"") && !printed.contains("0123456789"), "{printed}");
}

#[test]
fn secrets_that_others_can_read_and_reports_without_keys_are_warned_of() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("secret");
    std::fs::write(&file, "0123456789abcdef").expect("written");
    let text = format!("[host]\n[reports]\nkeys = [{{ id = 1, secret_file = {file:?} }}]");
    let reports = Config::parse(&text).expect("a good file").reports;
    let warnings = |mode| {
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).expect("set");
        reports.warnings(true)
    };
    assert!(warnings(0o600).is_empty() && warnings(0o640).is_empty());
    assert!(warnings(0o644)[0].contains("(mode 644): chmod 600 "));
    let unsigned = |text| Config::parse(text).expect("a good file").reports.warnings(true);
    assert!(unsigned("[host]")[0].starts_with("reports are not signed"));
    assert!(unsigned("[host]\n[reports]\ninterfaces = [\"lo\"]").is_empty());
}

#[track_caller]
fn check_groups(written: &str, expected: &str, port: u16) {
    let config = Config::parse(&format!("[host]\n[reports]\n{written}")).expect("a good file");
    let groups = config.reports.groups;
    assert_eq!((groups.to_string().as_str(), groups.port), (expected, port), "{written}");
}

#[test]
fn groups_are_one_or_two_and_share_a_port_with_unicast() {
    check_groups("", "239.255.76.76:12000 or [ff15::4c4c]:12000", 12_000);
    check_groups("port = 5", "239.255.76.76:5 or [ff15::4c4c]:5", 5);
    check_groups("group = \"224.0.0.7:0\"", "224.0.0.7:0", 0);
    check_groups("group = [\"[ff02::1:2]:9\"]\nport = 9", "[ff02::1:2]:9", 9);
    check_groups("group = []", "no group", 12_000);
    check_groups("group = []\nport = 7", "no group", 7);
    for (written, problem) in [
        ("group = [\"239.0.0.1:1\", \"[ff15::1]:2\"]", "\"[ff15::1]:2\" has another port"),
        ("group = \"239.0.0.1:1\"\nport = 2", "\"239.0.0.1:1\" has another port"),
        ("group = [\"239.0.0.1:1\", \"239.0.0.2:1\"]", "\"239.0.0.2:1\" a second group"),
        ("group = 5", "\"\" is not a multicast address and port"),
    ] {
        let text = format!("[host]\n[reports]\n{written}");
        check_problem(&text, &format!("reports.group: {problem}"));
    }
    for ttl in ["-1", "256"] {
        let text = format!("[host]\n[reports]\nttl = {ttl}");
        check_problem(&text, &format!("reports.ttl: {ttl} is not a whole number from 0 to 255"));
    }
    check_problem(
        "[host]\n[reports]\nsend_to = [\"udp://fd00::2:12000\"]",
        "reports.send_to: \"udp://fd00::2:12000\" is not of the form \"udp://host:12000\" or \"tcp://host",
    );
    check_problem("[host]\n[reports]\nport = 65536", "reports.port: 65536 is not a whole number");
}

#[test]
fn relay_reads_back_and_must_not_send_where_it_hears() {
    let text = "[relay]\nsend_to = [\"tcp://far:12000\"]\nevery = \"0s\"\nhops = 2";
    let config = Config::parse(text).expect("a good file");
    assert_eq!(Config::parse(&config.to_toml()), Ok(config));
    let circle = "[relay]\ngroup = \"239.255.76.76:12000\"";
    check_problem(circle, "relay.group: the relay would send to the group that it hears");
    check_problem("[relay]\nhops = 0", "relay.hops: 0 is not a whole number from 1 to 16");
    let apart = format!("[reports]\ninterfaces = [\"a\"]\n{circle}\ninterfaces = [\"b\"]");
    assert!(Config::parse(&apart).is_ok());
}

#[test]
fn names_that_would_look_like_others_are_refused_wherever_they_stand() {
    let text = "[agent]\nmachine = \"web\u{202e}1\"\nlabels = { zone = \"a\u{200b}\", \"b\u{2066}\" = \"c\" }\n\
                [[agent.service]]\nname = \"a\u{200f}\"\naddress = \"h\u{feff}:80\"\n\
                [reports]\nfarm = \"\u{61c}x\"\n[[pool]]\nname = \"p\u{2028}\"\n";
    let error = Config::parse(text).expect_err("names that deceive").to_string();
    for words in [
        "agent.machine: \"web\\u{202e}1\" is not a name: 1 to 253 bytes without control characters, \
         direction marks or other invisible ones",
        "agent.labels: \"a\\u{200b}\" is not the value of a label",
        "agent.labels: \"b\\u{2066}\" is not a label's name",
        "agent.service[0].name: \"a\\u{200f}\" is not a name",
        "agent.service[0].address: \"h\\u{feff}:80\" is not \"host:port\" or a URL",
        "reports.farm: \"\\u{61c}x\" is not a name",
        "pool[0].name: \"p\\u{2028}\" is not a name",
    ] {
        assert!(error.contains(words), "{words}: {error}");
    }
}

#[test]
fn shadow_is_a_name_or_a_table() {
    let pool = |text: &str| format!("[host]\n[[pool]]\nname = \"default\"\n{text}");
    let shadow =
        |text: &str| Config::parse(&pool(text)).expect("a good file").pools.swap_remove(0).shadow;
    assert_eq!(shadow("shadow = \"\""), None);
    assert_eq!(shadow("shadow = \"next\""), Some(ShadowConfig::new("next")));
    let promote = Some(PromoteConfig { faults: 2, ..PromoteConfig::default() });
    let expected = ShadowConfig { share: 0.5, promote, ..ShadowConfig::new("next") };
    let table = "shadow = { policy = \"next\", share = 0.5, promote = { faults = 2 } }";
    assert_eq!(shadow(table), Some(expected));
    for (text, expected) in [
        ("shadow = \"../x\"", "pool[0].shadow: \"../x\" is not a policy's name"),
        ("shadow = 3", "pool[0].shadow: a whole number where a table [shadow] belongs"),
        ("shadow = { share = 0.5 }", "pool[0].shadow.policy: is missing"),
        ("shadow = { policy = \"p\", share = 0 }", "pool[0].shadow.share: 0 is not above 0"),
        (
            "shadow = { policy = \"p\", promote = { p99 = \"1s\" } }",
            "pool[0].shadow.promote.p99: \"1s\" is not between 1us and 50ms",
        ),
    ] {
        let found = problems(&pool(text));
        assert!(found.len() == 1 && found[0].starts_with(expected), "{found:?}");
    }
}
