//! Who asks: the keys of requests, and what shall become of them.
//!
//! Draws from a stream of its own, the same for every strategy. Keys are numbers from 0 on, the
//! lowest ones the most frequent; a strategy sees their hashes, as from a host.

use super::setup::Setup;

/// Draws what a request brings beside its work.
pub(super) struct Clients {
    random: fastrand::Rng,
    /// Sums of the keys' frequencies; empty: requests carry none.
    sums: Vec<f64>,
    /// Where a key's last request went.
    last: Vec<Option<usize>>,
}

/// One request's client.
#[derive(Debug, Clone, Copy)]
pub(super) struct Client {
    /// Its number.
    key: Option<usize>,
    /// 0 to 1: below a server's share of failures the request fails there.
    pub(super) luck: f64,
}

impl Clients {
    pub(super) fn new(setup: &Setup, random: fastrand::Rng) -> Self {
        let mut sum = 0.0;
        let sums = (1..=setup.keys).map(|number| {
            sum += (number as f64).powf(-setup.key_skew);
            sum
        });
        Self { random, sums: sums.collect(), last: vec![None; setup.keys as usize] }
    }

    pub(super) fn next(&mut self) -> Client {
        let luck = self.random.f64();
        let key = self.sums.last().map(|all| {
            let drawn = self.random.f64() * all;
            self.sums.partition_point(|sum| *sum <= drawn).min(self.sums.len() - 1)
        });
        Client { key, luck }
    }

    /// The client's request goes to this server; whether that is another one than the last time.
    /// `None`: it has no key, or was never here.
    pub(super) fn place(&mut self, client: Client, server: usize) -> Option<bool> {
        let last = self.last.get_mut(client.key?)?.replace(server)?;
        Some(last != server)
    }
}

impl Client {
    /// The hash of its key, as a strategy sees it; 0: none.
    pub(super) fn hash(self) -> u64 {
        self.key.map_or(0, |key| mixed(key as u64 + 1).max(1))
    }
}

/// Every bit depends on every bit (`SplitMix64`, Steele, Lea and Flood 2014).
fn mixed(number: u64) -> u64 {
    let mut bits = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRAWS: usize = 200_000;

    /// How often each key comes in [`DRAWS`] requests.
    fn counts(keys: u64, key_skew: f64) -> Vec<usize> {
        let setup = Setup { keys, key_skew, ..Setup::default() };
        let mut clients = Clients::new(&setup, fastrand::Rng::with_seed(1));
        let mut counts = vec![0; keys as usize];
        (0..DRAWS).for_each(|_| counts[clients.next().key.expect("there are keys")] += 1);
        counts
    }

    #[test]
    fn keys_come_as_often_as_their_law_says() {
        let even = counts(10, 0.0);
        assert!(even.iter().all(|count| count.abs_diff(DRAWS / 10) < 700), "{even:?}");
        let zipf = counts(100, 1.0);
        let all: f64 = (1..=100).map(|number| 1.0 / f64::from(number)).sum();
        for place in [1, 2, 10, 100] {
            let expected = DRAWS as f64 / all / place as f64;
            let off = zipf[place - 1] as f64 - expected;
            assert!(off.abs() < 5.0 * expected.sqrt(), "{place}: {}", zipf[place - 1]);
        }
    }

    #[test]
    fn a_key_that_goes_elsewhere_is_seen() {
        let setup = Setup { keys: 1, ..Setup::default() };
        let mut clients = Clients::new(&setup, fastrand::Rng::with_seed(1));
        let client = clients.next();
        let places = [3, 3, 4, 3].map(|server| clients.place(client, server));
        assert_eq!(places, [None, Some(false), Some(true), Some(true)]);
        assert_ne!(client.hash(), 0);
        let mut without = Clients::new(&Setup::default(), fastrand::Rng::with_seed(1));
        let client = without.next();
        assert_eq!((client.hash(), without.place(client, 1)), (0, None));
    }
}
