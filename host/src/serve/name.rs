//! Names by which a client may ask: web pages under names that somebody else decides about may not.

use std::net::IpAddr;

/// An address, or `localhost`: a name that somebody else decides about leads nowhere else.
#[must_use]
pub fn is_own_name(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let name = name.trim_start_matches('[').trim_end_matches(']');
    name.is_empty() || name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_and_localhost_are_names_of_this_machine() {
        for host in
            ["localhost", "LocalHost:14100", "127.0.0.1", "127.0.0.1:14100", "[::1]:14100", "[::1]"]
        {
            assert!(is_own_name(host), "{host}");
        }
        for host in
            ["evil.example", "evil.example:14100", "localhost.evil.example", "?", "127.0.0.1.evil"]
        {
            assert!(!is_own_name(host), "{host}");
        }
    }
}
