//! Presets: the name of a piece of software in, the sources for it out, as if they had been written.
//!
//! A preset is a TOML file of `config/presets` with the keys of `[[machine]]` or `[[agent.service]]`. In
//! its texts `{address}` is the address's `host:port`, `{host}` its host, `{url}` the page's URL, which the key
//! `url` of the configuration replaces. What is written beside the preset hides what it says.

use std::net::Ipv6Addr;

use toml::{Table, Value};

use super::nearest;
use super::read::Section;
use super::source::check_url;

/// The presets by name.
pub const PRESETS: [(&str, &str); 5] = [
    ("haproxy", include_str!("../../../config/presets/haproxy.toml")),
    ("nginx", include_str!("../../../config/presets/nginx.toml")),
    ("node_exporter", include_str!("../../../config/presets/node_exporter.toml")),
    ("postgres_exporter", include_str!("../../../config/presets/postgres_exporter.toml")),
    ("vllm", include_str!("../../../config/presets/vllm.toml")),
];

/// Fills in what the section's preset says, if it names one.
pub(super) fn fill(section: &mut Section<'_>, address: &str) {
    let Some(name) = section.string("preset") else { return };
    let url = section.string("url");
    let Some((_, text)) = PRESETS.iter().find(|(known, _)| *known == name) else {
        let names = PRESETS.map(|(name, _)| name);
        let hint = match nearest(&name, names.into_iter()) {
            Some(near) => format!("did you mean {near}?"),
            None => format!("it is one of {}", names.join(", ")),
        };
        return section.wrong("preset", &format!("there is no preset {name:?}, {hint}"));
    };
    if let Some(Err(what)) = url.as_deref().map(check_url) {
        return section.wrong("url", &what);
    }
    let authority = authority(address);
    if authority.is_empty() && url.is_none() {
        return section
            .wrong("preset", "needs an address, or the url of the page with the metrics");
    }
    let mut table: Table = text.parse().unwrap_or_default(); // a test: each one is good TOML
    let usual = table.remove("url");
    let usual = usual.as_ref().and_then(Value::as_str).unwrap_or_default();
    let url = url.unwrap_or_else(|| {
        usual.replace("{address}", &authority).replace("{host}", host(&authority))
    });
    for (_, value) in &mut table {
        put_in(value, &url);
    }
    section.fill(table);
}

/// The `host:port` of an address that may be a URL; one of IPv6 in brackets.
fn authority(address: &str) -> String {
    let rest = address.split_once("://").map_or(address, |(_, rest)| rest);
    let written = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let bare = written.parse::<Ipv6Addr>();
    bare.map_or_else(|_| written.to_owned(), |address| format!("[{address}]"))
}

fn host(authority: &str) -> &str {
    match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|c| c.is_ascii_digit()) => host,
        _ => authority,
    }
}

/// The URL in every text.
fn put_in(value: &mut Value, url: &str) {
    match value {
        Value::String(text) => *text = text.replace("{url}", url),
        Value::Array(values) => values.iter_mut().for_each(|value| put_in(value, url)),
        Value::Table(table) => table.iter_mut().for_each(|(_, value)| put_in(value, url)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_and_ports_are_told_apart() {
        for (address, wanted, of) in [
            ("10.0.0.7:8000", "10.0.0.7:8000", "10.0.0.7"),
            ("http://web-1:80/x?y", "web-1:80", "web-1"),
            ("web-1", "web-1", "web-1"),
            ("[::1]:80", "[::1]:80", "[::1]"),
            ("fd00::7", "[fd00::7]", "[fd00::7]"),
        ] {
            let authority = authority(address);
            assert_eq!((&*authority, host(&authority)), (wanted, of));
        }
    }
}
