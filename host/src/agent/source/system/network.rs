//! Network interfaces: /proc/net/dev in, bytes a second out.
//!
//! All together means the hardware's: what passes a bridge, bond or VLAN passes an interface with
//! hardware too and is not counted twice. Where there is none (in a container), all but loopback.

use std::collections::HashSet;

use tokio::time::Instant;

use super::super::Reading;
use super::device::Rates;
use super::{M, Roots};

/// The interfaces.
#[derive(Debug, Default)]
pub(super) struct Network {
    received: Rates,
    sent: Rates,
    counted: HashSet<Box<str>>,
    trouble: Option<String>,
}

impl Network {
    /// Takes /proc/net/dev, or why it cannot be read.
    pub(super) fn take(&mut self, roots: &Roots, dev: Result<String, String>, now: Instant) {
        let (dev, trouble) = match dev {
            Ok(dev) => (dev, None),
            Err(why) => (String::new(), Some(why)),
        };
        self.trouble = trouble;
        let lines: Vec<_> = dev.lines().filter_map(interface).collect();
        self.received.take(lines.iter().map(|(name, received, _)| (*name, *received)), now);
        self.sent.take(lines.iter().map(|(name, _, sent)| (*name, *sent)), now);
        let names = || lines.iter().map(|(name, ..)| *name).filter(|name| *name != "lo");
        let is_hardware =
            |name: &&str| roots.sys.join("class/net").join(name).join("device").exists();
        let hardware: HashSet<_> = names().filter(is_hardware).map(Box::from).collect();
        self.counted =
            if hardware.is_empty() { names().map(Box::from).collect() } else { hardware };
    }

    pub(super) fn reading(&self, what: M, of: Option<&str>) -> Reading {
        if let Some(why) = &self.trouble {
            return Reading::Useless(why.clone());
        }
        let rates = if what == M::NetworkIn { &self.received } else { &self.sent };
        match of {
            Some(interface) => rates.of(interface),
            None if self.counted.is_empty() => {
                Reading::Useless("this machine has no interface but loopback".to_owned())
            }
            None => rates.all(|name| self.counted.contains(name), |total, rate| total + rate),
        }
    }
}

/// An interface with the bytes that it received and sent.
fn interface(line: &str) -> Option<(&str, f64, f64)> {
    let (name, counts) = line.split_once(':')?;
    let counts: Vec<f64> = counts.split_ascii_whitespace().map_while(|c| c.parse().ok()).collect();
    Some((name.trim(), *counts.first()?, *counts.get(8)?))
}
