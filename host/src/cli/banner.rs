//! What runs where, and one line to try: printed once at the start.

use std::fmt::Write;

use crate::config::{AgentConfig, Config, Groups, PushAddress, ReportsConfig};
use crate::run::{Loadline, RunningRelay};
use crate::transport::Place;

pub(super) fn text(config: &Config, loadline: &Loadline) -> String {
    let mut lines = format!("loadline {}", env!("CARGO_PKG_VERSION"));
    if let Some(agent) = &config.agent {
        add(&mut lines, "agent", &agent_line(agent, &config.reports));
        if agent.push != PushAddress::Off {
            add(&mut lines, "push", &format!("on {}, /v1/metrics", agent.push));
        }
    }
    #[cfg(feature = "host")]
    if let (Some(host), Some(running)) = (&config.host, loadline.host()) {
        add_host(&mut lines, config, host, running);
    }
    if let Some(relay) = loadline.relay() {
        add_relay(&mut lines, config, relay);
    }
    lines
}

fn add(lines: &mut String, what: &str, text: &str) {
    write!(lines, "\n  {what:<8}{text}").expect("a string can be written to");
}

fn agent_line(agent: &AgentConfig, reports: &ReportsConfig) -> String {
    let names: Vec<_> = agent.metrics.iter().map(|metric| metric.name.as_str()).collect();
    let first = agent.first_report_after();
    format!(
        "machine {:?} reports {} every {:?} to {}, the first time in {first:?}",
        agent.machine,
        if names.is_empty() { "nothing but itself".to_owned() } else { names.join(", ") },
        agent.interval,
        destinations(reports),
    )
}

#[cfg(feature = "host")]
fn add_host(
    lines: &mut String,
    config: &Config,
    host: &crate::config::HostConfig,
    running: &crate::run::Host,
) {
    use crate::policy::Kind;

    if !config.machines.is_empty() {
        let names: Vec<_> = config.machines.iter().map(|machine| &*machine.name).collect();
        add(lines, "reads", &format!("{}: machines without an agent", names.join(", ")));
    }
    let on = interfaces(&running.joined());
    let groups = Groups { port: running.report_port(), ..config.reports.groups };
    add(
        lines,
        "host",
        &format!("hears {groups} on {on}; policies in {}/", host.policies.display()),
    );
    for pool in &*running.pools().all() {
        let policy = |kind| {
            let (name, status) = (pool.policy_name(kind), pool.status(kind));
            match (status.serving, status.trouble) {
                (None, Some(trouble)) => format!("{kind} {name} (not usable: {trouble})"),
                _ => format!("{kind} {name}"),
            }
        };
        let until = pool
            .schedule()
            .and_then(|standing| standing.next.as_ref().map(|next| standing.zone.show(next.ms)));
        let schedule =
            until.map_or_else(String::new, |until| format!(", by its schedule until {until}"));
        let policies = format!("{}, {}{schedule}", policy(Kind::Formula), policy(Kind::Strategy));
        add(lines, "pool", &format!("{}: {policies}", pool.name()));
    }
    add(lines, "try", &format!("curl -s http://{}/v1/target", running.http_address()));
}

/// Where reports go: the groups, and what stands in `send_to`.
fn destinations(reports: &ReportsConfig) -> String {
    let groups = Some(reports.groups).filter(|groups| !groups.is_empty());
    let groups = groups.iter().map(ToString::to_string);
    let all: Vec<_> = groups.chain(reports.send_to.iter().map(ToString::to_string)).collect();
    if all.is_empty() { "nowhere".to_owned() } else { all.join(", ") }
}

fn add_relay(lines: &mut String, config: &Config, running: &RunningRelay) {
    let groups = Groups { port: running.port(), ..config.reports.groups };
    add(lines, "relay", &format!("hears {groups} on {}", interfaces(&running.joined())));
    let relay = config.relay.clone().unwrap_or_default();
    add(lines, "sends", &format!("to {}", destinations(&relay.outgoing(&config.reports))));
}

fn interfaces(joined: &[Place]) -> String {
    let mut names: Vec<_> = joined.iter().map(|place| &*place.interface).collect();
    names.dedup();
    if names.is_empty() { "no interface (yet)".to_owned() } else { names.join(", ") }
}
