//! Arithmetic that gives the same bits in Wasm and natively.
//!
//! A strategy must choose the same target in both, and `f64::exp` and `f64::ln` are the platform's:
//! their last bit may differ. Here are only the IEEE operations that are exact everywhere. Also the
//! hash that leads a key to its target.

use crate::{Slot, Target};

/// e^-x for x >= 0, within 2^-21 x² relative to it: (1 + x / 2^20)^-2^20.
///
/// ```
/// assert!((loadline_sdk::math::exp_minus(1.0) - (-1.0_f64).exp()).abs() < 1e-6);
/// ```
#[must_use]
pub fn exp_minus(x: f64) -> f64 {
    const SQUARINGS: i32 = 20;
    let root = 1.0 / (1.0 + x / f64::from(1 << SQUARINGS));
    (0..SQUARINGS).fold(root, |power, _| power * power)
}

/// The natural logarithm of a positive normal number, within 1e-14 relative to it.
///
/// ```
/// assert!((loadline_sdk::math::ln(0.3) - 0.3_f64.ln()).abs() < 1e-15);
/// ```
#[must_use]
pub fn ln(x: f64) -> f64 {
    const MANTISSA: u64 = (1 << 52) - 1;
    let exponent = i32::try_from(x.to_bits() >> 52).unwrap_or(0) - 1023;
    let fraction = f64::from_bits(x.to_bits() & MANTISSA | 1.0_f64.to_bits());
    // Around 1, so that the logarithm of a number just below 1 is not a difference of two big ones.
    let is_high = fraction > std::f64::consts::SQRT_2;
    let (fraction, exponent) =
        if is_high { (fraction / 2.0, exponent + 1) } else { (fraction, exponent) };
    // ln f = 2 artanh((f - 1) / (f + 1)), whose series converges fast: |z| < 0.172.
    let z = (fraction - 1.0) / (fraction + 1.0);
    let terms = (0..11).rev().fold(0.0, |sum, k| sum * z * z + 1.0 / f64::from(2 * k + 1));
    f64::from(exponent) * std::f64::consts::LN_2 + 2.0 * z * terms
}

/// Spreads every bit of `bits` over all of them (the finaliser of SplitMix64; a bijection).
#[must_use]
pub fn mix(bits: u64) -> u64 {
    let bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// Independent draws from one, as SplitMix64 makes them (Steele, Lea and Flood 2014).
pub fn draws(seed: u64) -> impl Iterator<Item = u64> {
    const STEP: u64 = 0xd1b5_4a32_d192_ed03; // not SplitMix64's own: `seed` may come from it
    (1..).map(move |turn: u64| mix(seed.wrapping_add(turn.wrapping_mul(STEP))))
}

/// Random bits as two independent draws: the lower half and the upper one.
#[must_use]
#[expect(clippy::cast_possible_truncation, reason = "the two halves are the point")]
pub fn halves(bits: u64) -> (u32, u32) {
    (bits as u32, (bits >> 32) as u32)
}

/// Random bits as a number above 0 and below 1.
#[must_use]
pub fn unit(bits: u64) -> f64 {
    // 52 bits and a half: the sum has 53 significant bits and is exact.
    ((bits >> 12) as f64 + 0.5) / (1_u64 << 52) as f64
}

/// The target nearest to a key: highest random weight hashing (Thaler and Ravishankar 1998). The
/// distance is -ln(hash of both) / capacity, the logarithmic method (Schindelhauer and Schomaker
/// 2005). Of all keys a target is the nearest to those in proportion to its capacity, and one that
/// comes, goes or changes moves only keys to or from itself. Cost O(n).
#[must_use]
pub fn nearest(key: u64, targets: impl Iterator<Item = Target>) -> Option<Slot> {
    let key = mix(key);
    let mut nearest = (f64::INFINITY, None);
    for target in targets {
        let hash = unit(mix(key ^ mix(target.identity.wrapping_add(1).wrapping_mul(GOLDEN))));
        // 1 - x <= -ln x: few targets come near enough to need the logarithm.
        if (1.0 - hash) / target.capacity() <= nearest.0 {
            let distance = -ln(hash) / target.capacity();
            if nearest.1.is_none() || distance < nearest.0 {
                nearest = (distance, Some(target.slot));
            }
        }
    }
    nearest.1
}

/// 2^64 divided by the golden ratio: its multiples spread evenly over the 64-bit numbers.
pub const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logarithm_and_exponential_are_those_of_the_platform() {
        for random in draws(1).take(10_000) {
            let x = unit(random);
            let error = (ln(x) - x.ln()).abs() / x.ln().abs();
            assert!(error < 1e-14, "{x}: {error}");
            let error = (exp_minus(8.0 * x) / (-8.0 * x).exp() - 1.0).abs();
            assert!(error < 8.0 * 8.0 / 2e6, "{x}: {error}");
        }
        assert!(exp_minus(1e300) < 1e-300);
    }

    #[test]
    fn nearest_is_that_of_all_logarithms() {
        let target =
            |slot: u32| Target { weight: f64::from(1 + slot % 5), ..Target::new(Slot(slot), 0.0) };
        for key in draws(3).take(1_000) {
            let distance = |slot: u32| {
                let hash = mix(mix(key) ^ mix((u64::from(slot) + 1).wrapping_mul(GOLDEN)));
                -unit(hash).ln() / target(slot).weight
            };
            let expected = (0..50).min_by(|a, b| distance(*a).total_cmp(&distance(*b)));
            assert_eq!(nearest(key, (0..50).map(target)), expected.map(Slot));
        }
        let tiny = Target { weight: f64::MIN_POSITIVE, ..target(7) };
        assert_eq!(nearest(1, [tiny].into_iter()), Some(Slot(7)));
    }

    #[test]
    fn unit_leaves_out_both_ends() {
        assert!(unit(0) > 0.0 && ln(unit(0)).is_finite());
        assert!(unit(u64::MAX) < 1.0 && ln(unit(u64::MAX)) < 0.0);
    }
}
