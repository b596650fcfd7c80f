//! Where a service can be reached: what its machine reported and where the report came from in, an
//! address that others can use out.
//!
//! An address is `host[:port]`, or a URL with one; IPv6 stands in brackets. A host part that means
//! something else to everyone who reads it (unspecified, multicast, or loopback in a report from
//! another machine; in whatever way it is written) is replaced by the address that the report came
//! from; port and path stay. An address of one link (`fe80::`) is nothing without its zone, which is
//! another one on each machine: it is offered only where nothing else is known.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Names that mean the machine itself, as hosts files have them.
const LOCAL_NAMES: [&str; 7] = [
    "localhost",
    "localhost.localdomain",
    "localhost4",
    "localhost6",
    "localhost6.localdomain6",
    "ip6-localhost",
    "ip6-loopback",
];

/// The address to offer.
#[must_use]
pub fn offered(reported: &str, source: IpAddr) -> String {
    let (scheme, rest) = match reported.split_once("://") {
        Some((scheme, rest)) => (&reported[..scheme.len() + 3], rest),
        None => ("", reported),
    };
    let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let (user, authority) = authority.split_at(authority.rfind('@').map_or(0, |at| at + 1));
    let (host, port) = split(authority);
    let host = match address(host) {
        _ if host.is_empty() => in_authority(source),
        Some(address) if means_nothing(address, source) => in_authority(source),
        Some(address) => in_authority(address),
        None if is_local_name(host) && !source.is_loopback() => in_authority(source),
        None => host.to_owned(),
    };
    format!("{scheme}{user}{host}{port}{path}")
}

/// Host and `:port`; a bare IPv6 address has no port.
fn split(authority: &str) -> (&str, &str) {
    let is_bare = authority.parse::<Ipv6Addr>().is_ok();
    let colon = authority.rfind(':').filter(|_| !is_bare && !authority.ends_with(']'));
    authority.split_at(colon.unwrap_or(authority.len()))
}

/// The address that a host part is, however it is written.
fn address(host: &str) -> Option<IpAddr> {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let host = host.split_once('%').map_or(host, |(address, _zone)| address);
    let host = host.strip_suffix('.').unwrap_or(host);
    host.parse().ok().or_else(|| classic(host).map(IpAddr::V4))
}

/// `127.1`, `2130706433`, `0x7f.0.0.1`: what inet_aton(3), and with it most programs, take for an address.
fn classic(host: &str) -> Option<Ipv4Addr> {
    let parts = host.split('.').map(number).collect::<Option<Vec<_>>>()?;
    let (last, first) = parts.split_last()?;
    let bits_left = 32_u32.checked_sub(8 * u32::try_from(first.len()).ok()?)?;
    if bits_left == 0 || u64::from(*last) >> bits_left != 0 || first.iter().any(|part| *part > 255)
    {
        return None;
    }
    let high = first.iter().fold(0_u64, |sum, part| (sum << 8) | u64::from(*part));
    let whole = (high << bits_left) | u64::from(*last);
    u32::try_from(whole).ok().map(Ipv4Addr::from_bits)
}

fn number(text: &str) -> Option<u32> {
    let (digits, radix) = match text.as_bytes() {
        [b'0', b'x' | b'X', ..] => (&text[2..], 16),
        [b'0', _, ..] => (&text[1..], 8),
        _ => (text, 10),
    };
    // A sign is no digit.
    let are_digits = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    are_digits.then(|| u32::from_str_radix(digits, radix).ok()).flatten()
}

fn is_local_name(host: &str) -> bool {
    let host = host.strip_suffix('.').unwrap_or(host);
    let is_below = host.len() > LOCALHOST.len()
        && host
            .get(host.len() - LOCALHOST.len()..)
            .is_some_and(|end| end.eq_ignore_ascii_case(LOCALHOST));
    is_below || LOCAL_NAMES.iter().any(|name| host.eq_ignore_ascii_case(name))
}

/// Everything below is loopback, too (RFC 6761).
const LOCALHOST: &str = ".localhost";

fn means_nothing(address: IpAddr, source: IpAddr) -> bool {
    let address = address.to_canonical();
    let is_nobodys = matches!(address, IpAddr::V4(v4) if v4.is_broadcast() || v4.octets()[0] == 0);
    let is_elsewhere = address.is_loopback() && !source.is_loopback();
    let is_worse = is_of_link(address) && !is_of_link(source);
    address.is_unspecified() || address.is_multicast() || is_nobodys || is_elsewhere || is_worse
}

/// Whether it means nothing without a zone.
#[must_use]
pub fn is_of_link(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local())
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
            ("127.1", "10.0.0.3"),
            ("127.0.1:80", "10.0.0.3:80"),
            ("0", "10.0.0.3"),
            ("0:80", "10.0.0.3:80"),
            ("http://2130706433/x", "http://10.0.0.3/x"),
            ("0x7f000001:1", "10.0.0.3:1"),
            ("0X7F.1", "10.0.0.3"),
            ("0177.0.0.1", "10.0.0.3"),
            ("127.0.0.1.", "10.0.0.3"),
            ("0.0.0.80", "10.0.0.3"),
            ("167772169:80", "10.0.0.9:80"),
            ("10.9", "10.0.0.9"),
            ("4294967296", "4294967296"),
            ("127.0.0.0.1", "127.0.0.0.1"),
            ("256.1.1.1", "256.1.1.1"),
            ("1.2.3.+4", "1.2.3.+4"),
            ("localhost.:80", "10.0.0.3:80"),
            ("ip6-localhost", "10.0.0.3"),
            ("IP6-Loopback:80", "10.0.0.3:80"),
            ("localhost.localdomain", "10.0.0.3"),
            ("web.localhost:80", "10.0.0.3:80"),
            ("localhost.example:80", "localhost.example:80"),
            ("mylocalhost", "mylocalhost"),
            ("user@127.0.0.1:80", "user@10.0.0.3:80"),
            ("http://user:word@localhost/x", "http://user:word@10.0.0.3/x"),
            ("user@web-1.example:80", "user@web-1.example:80"),
            ("fe80::2", "10.0.0.3"),
            ("[fe80::2]:80", "10.0.0.3:80"),
            ("[fe80::2%eth0]:80", "10.0.0.3:80"),
            ("[fd00::2%eth0]:80", "[fd00::2]:80"),
            ("[::1%lo]:80", "10.0.0.3:80"),
        ] {
            check(reported, "10.0.0.3", expected);
        }
        check("", "fd00::3", "[fd00::3]");
        check("0.0.0.0:80", "fd00::3", "[fd00::3]:80");
        check("", "::ffff:10.0.0.4", "10.0.0.4");
        // Nothing else is known.
        check("", "fe80::3", "[fe80::3]");
        check("127.0.0.1:80", "fe80::3", "[fe80::3]:80");
        check("[fe80::2]:80", "fe80::3", "[fe80::2]:80");
        check("[fd00::2]:80", "fe80::3", "[fd00::2]:80");
    }

    #[test]
    fn loopback_is_kept_in_a_report_from_this_machine() {
        for reported in
            ["127.0.0.1:80", "localhost:80", "http://[::1]:80/", "ip6-localhost", "a.localhost"]
        {
            check(reported, "127.0.0.1", reported);
        }
    }
}
