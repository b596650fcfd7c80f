//! How reports travel, as written in `[reports]`: groups with their port, and unicast destinations.
//!
//! One port serves the groups, unicast and TCP. A group without a family is simply not used; without
//! any group reports travel by `send_to` alone.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};
use toml::Value;

use super::read::{Section, told};
use crate::report::is_name;

/// The port of reports, where nothing else is written.
pub const PORT: u16 = 12_000;

/// The multicast groups of reports, at most one a family, and the port of every kind of report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Groups {
    /// The IPv4 group; `None`: IPv4 is not multicast.
    pub v4: Option<Ipv4Addr>,
    /// The IPv6 group; used on interfaces without an IPv4 address where there is an IPv4 group.
    pub v6: Option<Ipv6Addr>,
    /// The port of the groups, of unicast and of TCP; 0: any free one (of a host).
    pub port: u16,
}

impl Groups {
    /// The groups with the port.
    pub fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        let all = [self.v4.map(IpAddr::V4), self.v6.map(IpAddr::V6)];
        let port = self.port;
        all.into_iter().flatten().map(move |group| SocketAddr::new(group, port))
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.v4.is_none() && self.v6.is_none()
    }

    fn add(&mut self, group: IpAddr) -> Result<(), &'static str> {
        let known = match group {
            IpAddr::V4(group) => self.v4.replace(group).is_some(),
            IpAddr::V6(group) => self.v6.replace(group).is_some(),
        };
        if known {
            Err("a second group of one family: there is at most one of each")
        } else {
            Ok(())
        }
    }
}

impl Default for Groups {
    fn default() -> Self {
        Self {
            v4: Some(Ipv4Addr::new(239, 255, 76, 76)),
            v6: Some(Ipv6Addr::new(0xff15, 0, 0, 0, 0, 0, 0, 0x4c4c)),
            port: PORT,
        }
    }
}

/// `239.255.76.76:12000 or [ff15::4c4c]:12000`, for people.
impl fmt::Display for Groups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("no group");
        }
        let texts: Vec<_> = self.addresses().map(|address| address.to_string()).collect();
        f.write_str(&texts.join(" or "))
    }
}

/// The two keys `group` and `port`.
impl Serialize for Groups {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut keys = serializer.serialize_struct("Groups", 2)?;
        let groups: Vec<_> = self.addresses().map(|address| address.to_string()).collect();
        keys.serialize_field("group", &groups)?;
        keys.serialize_field("port", &self.port)?;
        keys.end()
    }
}

/// What carries reports to one destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Carrier {
    /// A datagram a frame.
    Udp,
    /// One connection, kept.
    Tcp,
}

/// A unicast destination of reports, `udp://host:port` or `tcp://host:port`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Destination {
    /// How.
    pub carrier: Carrier,
    /// Host name or address (IPv6 in brackets), and port.
    pub authority: String,
}

impl Destination {
    /// As it is written.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let schemes = [("udp://", Carrier::Udp), ("tcp://", Carrier::Tcp)];
        schemes.into_iter().find_map(|(scheme, carrier)| {
            let authority = text.strip_prefix(scheme).filter(|rest| is_authority(rest))?.to_owned();
            Some(Self { carrier, authority })
        })
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match self.carrier {
            Carrier::Udp => "udp",
            Carrier::Tcp => "tcp",
        };
        write!(f, "{scheme}://{}", self.authority)
    }
}

impl Serialize for Destination {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Section<'_> {
    /// The keys `group` (a string or a list of them) and `port`.
    pub(super) fn groups(&mut self, default: Groups) -> Groups {
        let written = match self.take("group") {
            None => None,
            Some(Value::String(text)) => Some(vec![text]),
            Some(Value::Array(values)) => {
                values.into_iter().map(|value| value.as_str().map(str::to_owned)).collect()
            }
            Some(_) => Some(vec![String::new()]),
        };
        let port = self.optional_port();
        let Some(written) = written else {
            return Groups { port: port.unwrap_or(default.port), ..default };
        };
        let mut groups = Groups { v4: None, v6: None, port: port.unwrap_or(default.port) };
        let mut first = port;
        for text in &written {
            let problem = match text.parse::<SocketAddr>() {
                Ok(address) if !address.ip().is_multicast() => {
                    "is not a multicast address (224.0.0.0 to 239.255.255.255, or ff00::/8)"
                }
                Ok(address) if *first.get_or_insert(address.port()) != address.port() => {
                    "has another port: the groups, unicast and TCP share one"
                }
                Ok(address) => {
                    groups.port = address.port();
                    match groups.add(address.ip()) {
                        Ok(()) => continue,
                        Err(problem) => problem,
                    }
                }
                Err(_) => {
                    "is not a multicast address and port, \"239.255.76.76:12000\" or \
                     \"[ff15::4c4c]:12000\", or a list of one of each"
                }
            };
            self.wrong("group", &format!("{text:?} {problem}"));
        }
        groups
    }

    fn optional_port(&mut self) -> Option<u16> {
        let value = self.take("port")?;
        let port = value.as_integer().and_then(|port| u16::try_from(port).ok());
        if port.is_none() {
            self.wrong("port", &format!("{} is not a whole number from 0 to 65535", told(&value)));
        }
        port
    }

    pub(super) fn destinations(&mut self, key: &'static str) -> Vec<Destination> {
        let mut destinations = Vec::new();
        for text in self.strings(key) {
            match Destination::parse(&text) {
                Some(destination) => destinations.push(destination),
                None => {
                    let wanted = "\"udp://host:12000\" or \"tcp://host:12000\" (IPv6 in brackets)";
                    self.wrong(key, &format!("{text:?} is not of the form {wanted}"));
                }
            }
        }
        destinations
    }
}

fn is_authority(text: &str) -> bool {
    text.rsplit_once(':').is_some_and(|(host, port)| {
        let inner = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        let is_host = match inner {
            Some(address) => address.parse::<Ipv6Addr>().is_ok(),
            None => is_name(host) && !host.contains(['/', ' ', ':', '[', ']']),
        };
        is_host && port.parse::<u16>().is_ok_and(|port| port > 0)
    })
}
