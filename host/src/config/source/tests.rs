//! Sources as they are written, and what is said of the wrong ones.

use super::*;

#[track_caller]
fn check_refused(text: &str, words: &str) {
    let error = text.parse::<MetricSource>().expect_err("a bad source");
    assert!(error.contains(words), "{text}: {error}");
}

#[test]
fn good_sources_are_printed_as_they_were_written() {
    for text in [
        "system:cpu",
        "system:disk.space:/var/lib",
        "system:process.cpu:nginx",
        "push",
        "prometheus:http://[::1]:9100/metrics?x=1#node_load1",
        "prometheus:http://h/m#1 - rate(cpu_total{mode=\"idle\",x!~\"a|b\"}) / rate(cpu_total)",
        "http-json:http://h:8080/status#/queue/0/length",
        "nginx:http://127.0.0.1/stub_status#requests",
        "orca:http://h/health#named_metrics.kv",
        "command:/usr/bin/queue --name 'two words'",
    ] {
        let source = text.parse::<MetricSource>().unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(source.to_string(), text);
    }
    let words = "command:/bin/q --name 'two words'".parse::<MetricSource>().map(|s| s.kind);
    let expected = ["/bin/q", "--name", "two words"].map(str::to_owned).to_vec();
    assert_eq!(words, Ok(SourceKind::Command(expected)));
}

#[test]
fn bad_sources_say_what_would_be_right() {
    check_refused("sytem:cpu", "there is no source \"sytem\", did you mean system?");
    check_refused("carrier pigeon", "write \"system:cpu\", \"push\"");
    check_refused("system:cpux", "there is no system:cpux, did you mean system:cpu?");
    check_refused("system:weather", "it is one of cpu, cpu.max");
    check_refused("system:cpu:0", "nothing may follow system:cpu");
    check_refused("system:process.cpu", "name a process, system:process.cpu:NAME");
    check_refused("system:disk.space:var", "begins with /");
    check_refused("push:x", "push takes nothing");
    check_refused("prometheus:http://h/m", "name a series after the URL");
    check_refused("prometheus:h/m#x", "not a URL of the form http://host:port/path");
    check_refused("prometheus:https://h/m#x", "https is not built in");
    for url in
        ["http://", "http:///m", "http://:80/m", "http://h<>/m", "http://fd00::7/m", "http://a b/"]
    {
        check_refused(&format!("prometheus:{url}#x"), "is not a URL of the form http://host:port");
    }
    for url in ["http://h:99999/m", "http://h:port/m", "http://[::1]:0/m"] {
        check_refused(&format!("orca:{url}#eps"), "is not a port from 1 to 65535");
    }
    let long = format!("http-json:http://h/{}#/a", "x".repeat(70_000));
    check_refused(&long, "a URL of 70009 bytes: servers take 8000 at most");
    check_refused(
        "prometheus:http://h/m#x{a=1}",
        "a value in double quotes belongs at character 5",
    );
    check_refused("prometheus:http://h/m#mean(x)", "it is one of sum, max, min, avg, rate, value");
    check_refused("prometheus:http://h/m#x{a=~\"b.*\"}", "regular expressions are not understood");
    check_refused("prometheus:http://h/m#x y", "belongs at character 3, where \"y\" stands");
    check_refused("http-json:http://h/s#queue", "begin with /");
    check_refused("nginx:http://h/s#actve", "is not one of active, accepts");
    check_refused("orca:http://h/s#cpu_utilisation", "did you mean cpu_utilization?");
    check_refused("command:", "name the program");
    check_refused("command:/bin/x 'y", "a quote is not closed");
}

#[test]
fn every_source_of_this_machine_stands_in_the_table_for_people() {
    let table = include_str!("../../../../config/METRICS.md");
    for (name, _, of, unit) in SystemMetric::ALL {
        let of = match of {
            Of::Nothing => String::new(),
            Of::May(thing) => format!("`, `:{}", placeholder(thing)),
            Of::Must(thing) => format!(":{}", placeholder(thing)),
        };
        let row = format!("| `system:{name}{of}` | {unit} |");
        assert!(table.contains(&row), "no row {row}");
    }
}

/// `a path` is written as `PATH`.
fn placeholder(thing: &str) -> String {
    thing.split(' ').next_back().unwrap_or_default().to_uppercase()
}
