//! Where a service can be reached: what its machine reported and where the report came from in, an
//! address that others can use out.
//!
//! An address is `host[:port]`, or a URL with one; IPv6 stands in brackets. A host part that means
//! something else to everyone who reads it (unspecified, multicast, or loopback in a report from
//! another machine) is replaced by the address that the report came from; port and path stay.

use std::net::{IpAddr, Ipv6Addr};

/// The address to offer.
#[must_use]
pub fn offered(reported: &str, source: IpAddr) -> String {
    let (scheme, rest) = match reported.split_once("://") {
        Some((scheme, rest)) => (&reported[..scheme.len() + 3], rest),
        None => ("", reported),
    };
    let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let (host, port) = split(authority);
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    let host = match address {
        _ if host.is_empty() => in_authority(source),
        Ok(address) if means_nothing(address, source) => in_authority(source),
        Ok(address) => in_authority(address),
        Err(_) if host.eq_ignore_ascii_case("localhost") && !source.is_loopback() => {
            in_authority(source)
        }
        Err(_) => host.to_owned(),
    };
    format!("{scheme}{host}{port}{path}")
}

/// Host and `:port`; a bare IPv6 address has no port.
fn split(authority: &str) -> (&str, &str) {
    let is_bare = authority.parse::<Ipv6Addr>().is_ok();
    let colon = authority.rfind(':').filter(|_| !is_bare && !authority.ends_with(']'));
    authority.split_at(colon.unwrap_or(authority.len()))
}

fn means_nothing(address: IpAddr, source: IpAddr) -> bool {
    let address = address.to_canonical();
    let is_broadcast = matches!(address, IpAddr::V4(v4) if v4.is_broadcast());
    let is_elsewhere = address.is_loopback() && !source.is_loopback();
    address.is_unspecified() || address.is_multicast() || is_broadcast || is_elsewhere
}

/// An address as it stands in a URL.
fn in_authority(address: IpAddr) -> String {
    match address.to_canonical() {
        IpAddr::V4(v4) => v4.to_string(),
        IpAddr::V6(v6) => format!("[{v6}]"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(reported: &str, source: &str, expected: &str) {
        assert_eq!(offered(reported, source.parse().expect("an address")), expected);
    }

    #[test]
    fn what_can_be_reached_is_kept_and_the_source_stands_in_for_the_rest() {
        for (reported, expected) in [
            ("", "10.0.0.3"),
            (":80", "10.0.0.3:80"),
            ("10.0.0.9", "10.0.0.9"),
            ("web-1.example:8080", "web-1.example:8080"),
            ("https://web-1.example/a:b", "https://web-1.example/a:b"),
            ("0.0.0.0:80", "10.0.0.3:80"),
            ("http://[::]:80/x?y", "http://10.0.0.3:80/x?y"),
            ("127.0.0.1:80", "10.0.0.3:80"),
            ("LOCALHOST", "10.0.0.3"),
            ("[::1]", "10.0.0.3"),
            ("::1", "10.0.0.3"),
            ("[::ffff:127.0.0.1]:1", "10.0.0.3:1"),
            ("224.0.0.1", "10.0.0.3"),
            ("[ff02::1]:1", "10.0.0.3:1"),
            ("255.255.255.255:1", "10.0.0.3:1"),
            ("fd00::2", "[fd00::2]"),
            ("[fd00::2]:80", "[fd00::2]:80"),
            ("http://[fd00::2]/x", "http://[fd00::2]/x"),
        ] {
            check(reported, "10.0.0.3", expected);
        }
        check("", "fd00::3", "[fd00::3]");
        check("0.0.0.0:80", "fd00::3", "[fd00::3]:80");
        check("", "::ffff:10.0.0.4", "10.0.0.4");
    }

    #[test]
    fn loopback_is_kept_in_a_report_from_this_machine() {
        for reported in ["127.0.0.1:80", "localhost:80", "http://[::1]:80/"] {
            check(reported, "127.0.0.1", reported);
        }
    }
}
