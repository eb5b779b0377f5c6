//! `cvt`: rounding, saturation, NaN, sign extension.

use half::{bf16, f16};

use crate::exact::exact;
use crate::snippets::{Case, check, doubles, floats, integers, same_f32};

#[test]
fn integers_are_cut_extended_and_saturated() {
    let cases: &[Case] = &[
        ("cvt.u16.u32 %h0, %r1;", 'h', |w| w.r(1) as u16 as u64),
        ("cvt.s64.s32 %d0, %r1;", 'd', |w| w.r(1) as i32 as i64 as u64),
        ("cvt.s32.s8 %r0, %r1;", 'r', |w| (w.r(1) as i8 as i32 as u32).into()),
        ("cvt.s16.s8 %h0, %h1;", 'h', |w| (w.h(1) as i8 as i16 as u16).into()),
        ("cvt.u32.u8 %r0, %r1;", 'r', |w| u64::from(w.r(1) as u8)),
        ("cvt.u32.u16 %r0, %h1;", 'r', |w| w.h(1).into()),
        ("cvt.sat.s8.s32 %r0, %r1;", 'r', |w| ((w.r(1) as i32).clamp(-128, 127) as u32).into()),
        ("cvt.sat.u8.s32 %r0, %r1;", 'r', |w| ((w.r(1) as i32).clamp(0, 255) as u32).into()),
        ("cvt.sat.u32.s64 %r0, %d1;", 'r', |w| (w.d(1) as i64).clamp(0, u32::MAX.into()) as u64),
        ("cvt.sat.s32.u64 %r0, %d1;", 'r', |w| w.d(1).min(i32::MAX as u64)),
    ];
    check(cases, &integers());
}

#[test]
fn integers_become_floats_in_every_rounding() {
    fn to_f32(x: f64, mode: &str) -> u64 {
        same_f32(exact(x).round(24, -149, mode) as f32)
    }
    let cases: &[Case] = &[
        ("cvt.rn.f32.s32 %f0, %r1;", 'f', |w| same_f32(w.r(1) as i32 as f32)),
        ("cvt.rz.f32.s32 %f0, %r1;", 'f', |w| to_f32((w.r(1) as i32).into(), "rz")),
        ("cvt.rm.f32.s32 %f0, %r1;", 'f', |w| to_f32((w.r(1) as i32).into(), "rm")),
        ("cvt.rp.f32.u32 %f0, %r1;", 'f', |w| to_f32(w.r(1).into(), "rp")),
        ("cvt.rn.f32.u64 %f0, %d1;", 'f', |w| same_f32(w.d(1) as f32)),
        ("cvt.rn.f32.s64 %f0, %d1;", 'f', |w| same_f32(w.d(1) as i64 as f32)),
        ("cvt.rz.f32.u64 %f0, %d1;", 'f', |w| {
            let cut = if w.d(1) >> 24 == 0 { 0 } else { 64 - w.d(1).leading_zeros() - 24 };
            same_f32((w.d(1) >> cut << cut) as f32)
        }),
        ("cvt.rn.f64.s64 %g0, %d1;", 'g', |w| (w.d(1) as i64 as f64).to_bits()),
        ("cvt.rn.f64.u32 %g0, %r1;", 'g', |w| f64::from(w.r(1)).to_bits()),
        ("cvt.rn.f16.s32 %h0, %r1;", 'h', |w| {
            f16::from_f64(exact(f64::from(w.r(1) as i32)).round(11, -24, "rn")).to_bits().into()
        }),
        ("cvt.rn.bf16.u32 %h0, %r1;", 'h', |w| {
            bf16::from_f64(exact(w.r(1).into()).round(8, -133, "rn")).to_bits().into()
        }),
    ];
    check(cases, &integers());
}

#[test]
fn floats_become_integers_at_the_nearest_end_and_nan_as_the_manual_says() {
    let cases: &[Case] = &[
        ("cvt.rzi.s32.f32 %r0, %f1;", 'r', |w| (w.f(1) as i32 as u32).into()),
        ("cvt.rzi.u32.f32 %r0, %f1;", 'r', |w| (w.f(1) as u32).into()),
        ("cvt.rni.s32.f32 %r0, %f1;", 'r', |w| (w.f(1).round_ties_even() as i32 as u32).into()),
        ("cvt.rmi.s32.f32 %r0, %f1;", 'r', |w| (w.f(1).floor() as i32 as u32).into()),
        ("cvt.rpi.u32.f32 %r0, %f1;", 'r', |w| (w.f(1).ceil() as u32).into()),
        ("cvt.rzi.s64.f32 %d0, %f1;", 'd', |w| if w.f(1).is_nan() { 1 << 63 } else { w.f(1) as i64 as u64 }),
        ("cvt.rzi.u8.f32 %r0, %f1;", 'r', |w| u64::from(w.f(1) as u8)),
        ("cvt.rzi.s16.f32 %h0, %f1;", 'h', |w| u64::from(w.f(1) as i16 as u16)),
        ("cvt.rni.f32.f32 %f0, %f1;", 'f', |w| same_f32(w.f(1).round_ties_even())),
        ("cvt.rzi.f32.f32 %f0, %f1;", 'f', |w| same_f32(w.f(1).trunc())),
        ("cvt.rmi.f32.f32 %f0, %f1;", 'f', |w| same_f32(w.f(1).floor())),
        ("cvt.rpi.f32.f32 %f0, %f1;", 'f', |w| same_f32(w.f(1).ceil())),
        ("cvt.rzi.ftz.s32.f32 %r0, %f1;", 'r', |w| (w.f(1) as i32 as u32).into()),
        ("cvt.rzi.u32.f16 %r0, %h1;", 'r', |w| (f16::from_bits(w.h(1)).to_f32() as u32).into()),
    ];
    check(cases, &floats());
    let cases: &[Case] =
        &[
            ("cvt.rzi.s32.f64 %r0, %g1;", 'r', |w| {
                if w.g(1).is_nan() { 1 << 31 } else { (w.g(1) as i32 as u32).into() }
            }),
            ("cvt.rzi.u32.f64 %r0, %g1;", 'r', |w| {
                if w.g(1).is_nan() { 1 << 31 } else { (w.g(1) as u32).into() }
            }),
            ("cvt.rzi.u64.f64 %d0, %g1;", 'd', |w| if w.g(1).is_nan() { 1 << 63 } else { w.g(1) as u64 }),
            ("cvt.rni.s64.f64 %d0, %g1;", 'd', |w| {
                if w.g(1).is_nan() { 1 << 63 } else { w.g(1).round_ties_even() as i64 as u64 }
            }),
            ("cvt.rmi.f64.f64 %g0, %g1;", 'g', |w| w.g(1).floor().to_bits()),
        ];
    check(cases, &doubles());
}

#[test]
fn floats_become_narrower_with_one_rounding() {
    fn directed(x: f64, mode: &str) -> u64 {
        let rounded = if x.is_finite() { exact(x).round(24, -149, mode) } else { x };
        // Beyond the largest number, rounding towards zero saturates.
        let inward = mode == "rz" || mode == "rm" && x > 0.0 || mode == "rp" && x < 0.0;
        let is_over = x.is_finite() && rounded.abs() > f64::from(f32::MAX) && inward;
        same_f32(
            if is_over {
                f32::MAX.copysign(x as f32)
            } else if x == 0.0 {
                x as f32
            } else {
                rounded as f32
            }
            .copysign(x as f32),
        )
    }
    let cases: &[Case] = &[
        ("cvt.rn.f32.f64 %f0, %g1;", 'f', |w| same_f32(w.g(1) as f32)),
        ("cvt.rz.f32.f64 %f0, %g1;", 'f', |w| directed(w.g(1), "rz")),
        ("cvt.rm.f32.f64 %f0, %g1;", 'f', |w| directed(w.g(1), "rm")),
        ("cvt.rp.f32.f64 %f0, %g1;", 'f', |w| directed(w.g(1), "rp")),
        ("cvt.sat.f64.f64 %g0, %g1;", 'g', |w| (if w.g(1) > 0.0 { w.g(1).min(1.0) } else { 0.0 }).to_bits()),
        ("cvt.rn.f16.f64 %h0, %g1;", 'h', |w| {
            let x = w.g(1);
            let rounded = if x.is_finite() && x.abs() < 1e6 && x.abs() > 1e-20 {
                exact(x).round(11, -24, "rn")
            } else {
                x
            };
            f16_bits(rounded as f32)
        }),
        ("cvt.rn.bf16.f64 %h0, %g1;", 'h', |w| {
            let x = w.g(1);
            let rounded = if x.is_finite() && x.abs() < 1e38 && x.abs() > 1e-20 {
                exact(x).round(8, -133, "rn")
            } else {
                x
            };
            bf16_bits(rounded as f32)
        }),
    ];
    check(cases, &doubles());
    let cases: &[Case] = &[
        ("cvt.rn.f16.f32 %h0, %f1;", 'h', |w| f16_bits(w.f(1))),
        ("cvt.rn.bf16.f32 %h0, %f1;", 'h', |w| bf16_bits(w.f(1))),
        ("cvt.rn.relu.bf16.f32 %h0, %f1;", 'h', |w| {
            bf16_bits(if w.f(1) < 0.0 { 0.0 } else { w.f(1) }) & 0x7FFF
        }),
        ("cvt.f32.f16 %f0, %h1;", 'f', |w| same_f32(f16::from_bits(w.h(1)).to_f32())),
        ("cvt.f32.bf16 %f0, %h1;", 'f', |w| same_f32(bf16::from_bits(w.h(1)).to_f32())),
        ("cvt.f64.f32 %g0, %f1;", 'g', |w| f64::from(w.f(1)).to_bits()),
        ("cvt.sat.f32.f32 %f0, %f1;", 'f', |w| same_f32(if w.f(1) > 0.0 { w.f(1).min(1.0) } else { 0.0 })),
        ("cvt.rn.bf16x2.f32 %r0, %f1, %f2;", 'r', |w| bf16_bits(w.f(1)) << 16 | bf16_bits(w.f(2))),
        ("cvt.rn.f16x2.f32 %r0, %f1, %f2;", 'r', |w| f16_bits(w.f(1)) << 16 | f16_bits(w.f(2))),
    ];
    check(cases, &floats());
}

/// NaN is 0x7FFF on a GPU, whatever its sign.
fn f16_bits(x: f32) -> u64 {
    if x.is_nan() { 0x7FFF } else { f16::from_f32(x).to_bits().into() }
}

fn bf16_bits(x: f32) -> u64 {
    if x.is_nan() { 0x7FFF } else { bf16::from_f32(x).to_bits().into() }
}
