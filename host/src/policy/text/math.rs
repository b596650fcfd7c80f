//! Functions that WebAssembly has no instruction for: `exp`, `ln`, `pow` and the remainder.
//!
//! `exp` and `ln` reduce their argument to a small interval (Cody and Waite 1980) and sum a series
//! there; their relative error is below 1e-15. `pow` multiplies for whole exponents up to 64 and is
//! `exp(y ln x)` otherwise, with a relative error of about `|y ln x|` times that.

use std::f64::consts::{LOG2_E, SQRT_2};

use wasm_encoder::{BlockType, Function, InstructionSink, ValType};

/// Upper part of ln 2, with so few digits that a product with an exponent is exact.
const LN_2_HIGH: f64 = 0.693_147_180_369_123_8;
/// The rest of ln 2.
const LN_2_LOW: f64 = 1.908_214_929_270_587_7e-10;
/// Terms of the series: the next one is below half a unit in the last place.
const EXP_TERMS: u32 = 13;
const LN_TERMS: u32 = 12;
/// Whole exponents up to here are multiplied out, and so exact where the result is.
const WHOLE_EXPONENT_MAX: f64 = 64.0;
const F64: BlockType = BlockType::Result(ValType::F64);

/// `(x) -> e^x`
pub(super) fn exp() -> Function {
    let (x, k, r, half) = (0, 1, 2, 3);
    let mut function = Function::new([(2, ValType::F64), (1, ValType::I64)]);
    let mut code = function.instructions();
    // Beyond these the result is infinite or 0; NaN falls through and stays NaN.
    code.local_get(x).f64_const(709.782_712_893_384.into()).f64_gt();
    code.if_(BlockType::Empty).f64_const(f64::INFINITY.into()).return_().end();
    code.local_get(x).f64_const((-745.133_219_101_941_1).into()).f64_lt();
    code.if_(BlockType::Empty).f64_const(0.0.into()).return_().end();
    // x = k ln 2 + r, |r| <= ln 2 / 2
    code.local_get(x).f64_const(LOG2_E.into()).f64_mul().f64_nearest().local_set(k);
    code.local_get(x);
    code.local_get(k).f64_const(LN_2_HIGH.into()).f64_mul().f64_sub();
    code.local_get(k).f64_const(LN_2_LOW.into()).f64_mul().f64_sub();
    code.local_set(r);
    // Horner: 1 + r (1 + r/2 (1 + r/3 (…)))
    code.f64_const(1.0.into());
    for term in (1..=EXP_TERMS).rev() {
        code.local_get(r).f64_mul().f64_const(f64::from(term).into()).f64_div();
        code.f64_const(1.0.into()).f64_add();
    }
    // times 2^k in two steps, so that the ends of the range are reached
    code.local_get(k).i64_trunc_sat_f64_s().i64_const(1).i64_shr_s().local_set(half);
    power_of_two(&mut code, |code| {
        code.local_get(half);
    });
    code.f64_mul();
    power_of_two(&mut code, |code| {
        code.local_get(k).i64_trunc_sat_f64_s().local_get(half).i64_sub();
    });
    code.f64_mul().end();
    function
}

/// Pushes 2^n for an `i64` n that `exponent` pushes, -1022 <= n <= 1023.
fn power_of_two(code: &mut InstructionSink<'_>, exponent: impl FnOnce(&mut InstructionSink<'_>)) {
    exponent(code);
    code.i64_const(1_023).i64_add().i64_const(52).i64_shl().f64_reinterpret_i64();
}

/// `(x) -> ln x`
pub(super) fn ln() -> Function {
    let (x, bits, exponent, s, z) = (0, 1, 2, 3, 4);
    let mut function = Function::new([(1, ValType::I64), (3, ValType::F64)]);
    let mut code = function.instructions();
    code.local_get(x).f64_const(0.0.into()).f64_eq();
    code.if_(BlockType::Empty).f64_const(f64::NEG_INFINITY.into()).return_().end();
    code.local_get(x).f64_const(0.0.into()).f64_lt();
    code.if_(BlockType::Empty).f64_const(f64::NAN.into()).return_().end();
    code.local_get(x).f64_const(f64::INFINITY.into()).f64_lt().i32_eqz();
    code.if_(BlockType::Empty).local_get(x).return_().end(); // infinity or NaN
    // Subnormal numbers are scaled up first.
    code.local_get(x).f64_const(f64::MIN_POSITIVE.into()).f64_lt();
    code.if_(BlockType::Empty);
    code.local_get(x).f64_const(18_014_398_509_481_984.0.into()).f64_mul().local_set(x); // 2^54
    code.f64_const((-54.0).into()).local_set(exponent).end();
    // x = 2^exponent m, 1 <= m < 2
    code.local_get(x).i64_reinterpret_f64().local_set(bits);
    code.local_get(bits).i64_const(52).i64_shr_u().i64_const(1_023).i64_sub();
    code.f64_convert_i64_s().local_get(exponent).f64_add().local_set(exponent);
    code.local_get(bits).i64_const(0x000f_ffff_ffff_ffff).i64_and();
    code.i64_const(0x3ff0_0000_0000_0000).i64_or().f64_reinterpret_i64().local_set(x);
    code.local_get(x).f64_const(SQRT_2.into()).f64_gt();
    code.if_(BlockType::Empty);
    code.local_get(x).f64_const(0.5.into()).f64_mul().local_set(x);
    code.local_get(exponent).f64_const(1.0.into()).f64_add().local_set(exponent).end();
    // s = (m - 1) / (m + 1); ln m = 2 s (1 + s^2/3 + s^4/5 + …)
    code.local_get(x).f64_const(1.0.into()).f64_sub();
    code.local_get(x).f64_const(1.0.into()).f64_add().f64_div().local_set(s);
    code.local_get(s).local_get(s).f64_mul().local_set(z);
    code.local_get(exponent).f64_const(LN_2_HIGH.into()).f64_mul();
    code.f64_const(0.0.into());
    for term in (0..LN_TERMS).rev() {
        code.local_get(z).f64_mul();
        code.f64_const((1.0 / f64::from(2 * term + 1)).into()).f64_add();
    }
    code.local_get(s).f64_mul().f64_const(2.0.into()).f64_mul();
    code.local_get(exponent).f64_const(LN_2_LOW.into()).f64_mul().f64_add();
    code.f64_add().end();
    function
}

/// `(x, y) -> x^y`
pub(super) fn pow(exp: u32, ln: u32) -> Function {
    let (x, y, result, count) = (0, 1, 2, 3);
    let mut function = Function::new([(1, ValType::F64), (1, ValType::I32)]);
    let mut code = function.instructions();
    // A small whole exponent: by squaring, for any base.
    code.local_get(y).f64_trunc().local_get(y).f64_eq();
    code.local_get(y).f64_abs().f64_const(WHOLE_EXPONENT_MAX.into()).f64_le().i32_and();
    code.if_(BlockType::Empty);
    code.local_get(y).f64_abs().i32_trunc_sat_f64_u().local_set(count);
    code.f64_const(1.0.into()).local_set(result);
    code.block(BlockType::Empty).loop_(BlockType::Empty);
    code.local_get(count).i32_eqz().br_if(1);
    code.local_get(count).i32_const(1).i32_and().if_(BlockType::Empty);
    code.local_get(result).local_get(x).f64_mul().local_set(result).end();
    code.local_get(x).local_get(x).f64_mul().local_set(x);
    code.local_get(count).i32_const(1).i32_shr_u().local_set(count).br(0).end().end();
    code.f64_const(1.0.into()).local_get(result).f64_div().local_get(result);
    code.local_get(y).f64_const(0.0.into()).f64_lt().select().return_().end();
    // exp(y ln |x|), negative for a negative base with an odd exponent, NaN with a broken one
    code.local_get(y).local_get(x).f64_abs().call(ln).f64_mul().call(exp).local_set(result);
    code.local_get(x).f64_const(0.0.into()).f64_lt().if_(F64);
    code.local_get(y).f64_trunc().local_get(y).f64_eq().if_(F64);
    code.local_get(result).f64_neg().local_get(result);
    code.local_get(y).f64_const(0.5.into()).f64_mul().f64_trunc().f64_const(2.0.into()).f64_mul();
    code.local_get(y).f64_ne().select();
    code.else_().f64_const(f64::NAN.into()).end();
    code.else_().local_get(result).end().end();
    function
}

/// `(x, y) -> x - y trunc(x / y)`, the remainder with the sign of x
pub(super) fn remainder() -> Function {
    let mut function = Function::new([]);
    let mut code = function.instructions();
    code.local_get(0).local_get(1).local_get(0).local_get(1).f64_div().f64_trunc().f64_mul();
    code.f64_sub().end();
    function
}
