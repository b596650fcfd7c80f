//! By which names a server is asked: the host of a request in, whether it is one of this server's out.
//!
//! A web page under a name that somebody else decides about can be made to lead here (DNS rebinding),
//! and then its scripts ask by that name. An address leads nowhere else, nor do `localhost`, the name of
//! this machine, and those that an operator lists. No host at all is nobody's page: browsers name one.

use std::net::IpAddr;

use axum::extract::Request;
use axum::http::header;

use crate::config::{HostConfig, host_name};

/// The names of a server.
#[derive(Debug, Clone, Default)]
pub struct Names {
    listed: Vec<String>,
    /// Whoever asks by another one is answered, too.
    is_any: bool,
}

/// Why a request is not for this server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Misled {
    /// It asks by a name that is none of the server's.
    Name(String),
    /// It names more hosts than one.
    Twice,
}

impl Names {
    /// Addresses, `localhost`, and these.
    #[must_use]
    pub fn listed<'n>(names: impl IntoIterator<Item = &'n str>) -> Self {
        let listed = names.into_iter().map(|name| bare(name).to_owned()).collect();
        Self { listed, is_any: false }
    }

    /// Those of a host.
    #[must_use]
    pub fn of(config: &HostConfig) -> Self {
        let own = host_name();
        let listed = Self::listed(config.names.iter().chain([&own]).map(String::as_str));
        Self { is_any: config.takes_any_name(), ..listed }
    }

    /// Whether a host, with or without a port, is this server by one of its names.
    #[must_use]
    pub fn knows(&self, host: &str) -> bool {
        let name = bare(host);
        let is_listed = || self.listed.iter().any(|listed| listed.eq_ignore_ascii_case(name));
        name.is_empty() || name.eq_ignore_ascii_case("localhost") || is_address(name) || is_listed()
    }

    /// Whether a request is for this server.
    ///
    /// # Errors
    /// Why not.
    pub fn check(&self, request: &Request) -> Result<(), Misled> {
        let written = request.headers().get_all(header::HOST);
        let mut written = written.iter().map(|host| host.to_str().unwrap_or("?"));
        let (host, more) = (written.next(), written.next());
        if more.is_some() {
            return Err(Misled::Twice);
        }
        let of_target = request.uri().authority().map(|authority| authority.as_str());
        let mut hosts = host.into_iter().chain(of_target);
        match hosts.find(|host| !self.is_any && !self.knows(host)) {
            Some(host) => Err(Misled::Name(host.to_owned())),
            None => Ok(()),
        }
    }
}

/// A host without its port, its brackets and the dot that ends a full name.
fn bare(host: &str) -> &str {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let name = name.trim_start_matches('[').trim_end_matches(']');
    name.strip_suffix('.').unwrap_or(name)
}

/// An address, of IPv6 with or without the interface that it is on.
fn is_address(name: &str) -> bool {
    let address = name.split_once('%').map_or(name, |(address, _)| address);
    address.parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    #[test]
    fn addresses_localhost_and_what_is_listed_are_names_of_this_server() {
        let names = Names::listed(["web-1", "Loadline.Example."]);
        for host in [
            "localhost",
            "LocalHost:14100",
            "127.0.0.1",
            "127.0.0.1:14100",
            "[::1]:14100",
            "[::1]",
            "[fe80::1%25eth0]:1",
            "web-1:14000",
            "loadline.example",
            "loadline.example.:80",
        ] {
            assert!(names.knows(host), "{host}");
        }
        for host in [
            "evil.example",
            "evil.example:14100",
            "localhost.evil.example",
            "?",
            "127.0.0.1.evil",
            "web-1.evil.example",
        ] {
            assert!(!names.knows(host), "{host}");
        }
    }

    #[test]
    fn every_host_that_a_request_names_counts() {
        let names = Names::listed([]);
        let ask = |target: &str, hosts: &[&str]| {
            let request = hosts.iter().fold(Request::builder().uri(target), |request, host| {
                request.header(header::HOST, *host)
            });
            names.check(&request.body(Body::empty()).expect("a good request"))
        };
        let evil = || Err(Misled::Name("evil.example".to_owned()));
        assert_eq!(ask("/", &[]), Ok(()));
        assert_eq!(ask("/", &["127.0.0.1:1"]), Ok(()));
        assert_eq!(ask("/", &["evil.example"]), evil());
        assert_eq!(ask("http://evil.example/", &["localhost"]), evil());
        assert_eq!(ask("/", &["localhost", "localhost"]), Err(Misled::Twice));
        assert_eq!(ask("/", &["localhost", "evil.example"]), Err(Misled::Twice));
    }
}
