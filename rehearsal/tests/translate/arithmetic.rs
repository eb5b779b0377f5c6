//! Arithmetic, logic and comparisons of every type.

use half::{bf16, f16};

use crate::exact::exact;
use crate::snippets::{Case, Random, Words, check, doubles, floats, integers, same_f32};

#[test]
fn integer_arithmetic_wraps_and_widens() {
    let cases: &[Case] = &[
        ("add.s16 %h0, %h1, %h2;", 'h', |w| w.h(1).wrapping_add(w.h(2)).into()),
        ("sub.s16 %h0, %h1, %h2;", 'h', |w| w.h(1).wrapping_sub(w.h(2)).into()),
        ("mul.lo.s16 %h0, %h1, %h2;", 'h', |w| w.h(1).wrapping_mul(w.h(2)).into()),
        ("mul.wide.u16 %r0, %h1, %h2;", 'r', |w| (u32::from(w.h(1)) * u32::from(w.h(2))).into()),
        ("mul.wide.s16 %r0, %h1, %h2;", 'r', |w| {
            ((i32::from(w.h(1) as i16) * i32::from(w.h(2) as i16)) as u32).into()
        }),
        ("add.s32 %r0, %r1, -5;", 'r', |w| w.r(1).wrapping_sub(5).into()),
        ("sub.s32 %r0, %r1, %r2;", 'r', |w| w.r(1).wrapping_sub(w.r(2)).into()),
        ("mad.lo.s32 %r0, %r1, %r2, %r3;", 'r', |w| w.r(1).wrapping_mul(w.r(2)).wrapping_add(w.r(3)).into()),
        ("mul.hi.u32 %r0, %r1, %r2;", 'r', |w| (u64::from(w.r(1)) * u64::from(w.r(2))) >> 32),
        ("mul.hi.s32 %r0, %r1, %r2;", 'r', |w| {
            (((i64::from(w.r(1) as i32) * i64::from(w.r(2) as i32)) >> 32) as u32).into()
        }),
        ("mad.wide.s32 %d0, %r1, %r2, %d3;", 'd', |w| {
            (i64::from(w.r(1) as i32) * i64::from(w.r(2) as i32)).wrapping_add(w.d(3) as i64) as u64
        }),
        ("mad.wide.u32 %d0, %r1, 24, %d3;", 'd', |w| (u64::from(w.r(1)) * 24).wrapping_add(w.d(3))),
        ("add.s64 %d0, %d1, %d2;", 'd', |w| w.d(1).wrapping_add(w.d(2))),
        ("mul.lo.s64 %d0, %d1, %d2;", 'd', |w| w.d(1).wrapping_mul(w.d(2))),
        ("mul.hi.u64 %d0, %d1, %d2;", 'd', |w| ((u128::from(w.d(1)) * u128::from(w.d(2))) >> 64) as u64),
        ("mul.hi.s64 %d0, %d1, %d2;", 'd', |w| {
            ((i128::from(w.d(1) as i64) * i128::from(w.d(2) as i64)) >> 64) as u64
        }),
        ("min.s32 %r0, %r1, %r2;", 'r', |w| ((w.r(1) as i32).min(w.r(2) as i32) as u32).into()),
        ("max.u64 %d0, %d1, %d2;", 'd', |w| w.d(1).max(w.d(2))),
        ("min.s64 %d0, %d1, 4;", 'd', |w| (w.d(1) as i64).min(4) as u64),
        ("neg.s32 %r0, %r1;", 'r', |w| w.r(1).wrapping_neg().into()),
        ("neg.s16 %h0, %h1;", 'h', |w| w.h(1).wrapping_neg().into()),
        ("abs.s64 %d0, %d1;", 'd', |w| (w.d(1) as i64).wrapping_abs() as u64),
        ("popc.b32 %r0, %r1;", 'r', |w| w.r(1).count_ones().into()),
        ("popc.b64 %r0, %d1;", 'r', |w| w.d(1).count_ones().into()),
        ("clz.b32 %r0, %r1;", 'r', |w| w.r(1).leading_zeros().into()),
        ("clz.b64 %r0, %d1;", 'r', |w| w.d(1).leading_zeros().into()),
        ("brev.b32 %r0, %r1;", 'r', |w| w.r(1).reverse_bits().into()),
        ("brev.b64 %d0, %d1;", 'd', |w| w.d(1).reverse_bits()),
    ];
    check(cases, &integers());
}

#[test]
fn division_truncates_and_the_smallest_number_over_minus_one_is_itself() {
    let cases: &[Case] = &[
        (
            "or.b32 %r2, %r2, 1;
         div.u32 %r0, %r1, %r2;",
            'r',
            |w| (w.r(1) / (w.r(2) | 1)).into(),
        ),
        (
            "or.b32 %r2, %r2, 1;
         rem.s32 %r0, %r1, %r2;",
            'r',
            |w| ((w.r(1) as i32).wrapping_rem((w.r(2) | 1) as i32) as u32).into(),
        ),
        (
            "or.b64 %d2, %d2, 1;
         div.s64 %d0, %d1, %d2;",
            'd',
            |w| (w.d(1) as i64).wrapping_div((w.d(2) | 1) as i64) as u64,
        ),
        (
            "or.b64 %d2, %d2, 1;
         rem.u64 %d0, %d1, %d2;",
            'd',
            |w| w.d(1) % (w.d(2) | 1),
        ),
        (
            "mov.b32 %r2, 0x80000000;
         mov.b32 %r3, -1;
         div.s32 %r0, %r2, %r3;",
            'r',
            |_| 0x8000_0000,
        ),
        (
            "mov.b32 %r2, 0x80000000;
         mov.b32 %r3, -1;
         rem.s32 %r0, %r2, %r3;",
            'r',
            |_| 0,
        ),
        (
            "or.b16 %h2, %h2, 1;
         div.u16 %h0, %h1, %h2;",
            'h',
            |w| (w.h(1) / (w.h(2) | 1)).into(),
        ),
    ];
    check(cases, &integers());
}

#[test]
fn carries_run_through_chains() {
    let cases: &[Case] = &[
        // 96 bits, as two words and the carry.
        (
            "add.cc.u32 %r4, %r1, %r2;
             addc.cc.u32 %r5, %r2, %r3;
             addc.u32 %r6, 0, 0;
             mov.b64 %d4, {%r4, %r5};
             cvt.u64.u32 %d5, %r6;
             xor.b64 %d0, %d4, %d5;",
            'd',
            |w| {
                let pair = |low: usize, high: usize| u128::from(w.r(low)) | u128::from(w.r(high)) << 32;
                let sum = pair(1, 2) + pair(2, 3);
                sum as u64 ^ (sum >> 64) as u64
            },
        ),
        (
            "sub.cc.u32 %r4, %r1, %r2;
             subc.cc.u32 %r5, %r2, %r3;
             subc.u32 %r6, 0, 0;
             mov.b64 %d4, {%r4, %r5};
             cvt.s64.s32 %d5, %r6;
             xor.b64 %d0, %d4, %d5;",
            'd',
            |w| {
                let pair =
                    |low: usize, high: usize| i128::from(u64::from(w.r(low)) | u64::from(w.r(high)) << 32);
                let difference = pair(1, 2) - pair(2, 3);
                difference as u64 ^ (difference >> 64) as u64
            },
        ),
        // The upper words of a 64 by 64 bit product, as nvcc computes it.
        (
            "mul.lo.u32 %r4, %r1, %r2;
             mad.lo.cc.u32 %r5, %r1, %r3, %r4;
             madc.hi.cc.u32 %r6, %r1, %r3, %r2;
             addc.u32 %r7, 0, 0;
             mov.b64 %d4, {%r5, %r6};
             cvt.u64.u32 %d5, %r7;
             add.s64 %d0, %d4, %d5;",
            'd',
            |w| {
                let low = u64::from(w.r(1).wrapping_mul(w.r(3))) + u64::from(w.r(1).wrapping_mul(w.r(2)));
                let high = ((u64::from(w.r(1)) * u64::from(w.r(3))) >> 32) + u64::from(w.r(2)) + (low >> 32);
                (low & 0xFFFF_FFFF | high << 32).wrapping_add(high >> 32)
            },
        ),
        (
            "add.cc.u64 %d4, %d1, %d2;
         addc.u64 %d0, %d3, 0;",
            'd',
            |w| w.d(3).wrapping_add(u64::from(w.d(1).checked_add(w.d(2)).is_none())),
        ),
    ];
    check(cases, &integers());
}

#[test]
fn shifts_and_fields_end_at_the_width() {
    let cases: &[Case] = &[
        ("shl.b32 %r0, %r1, %r2;", 'r', |w| w.r(1).checked_shl(w.r(2)).unwrap_or(0).into()),
        ("shl.b32 %r0, %r1, 32;", 'r', |_| 0),
        ("shl.b16 %h0, %h1, 3;", 'h', |w| (w.h(1) << 3).into()),
        ("shl.b64 %d0, %d1, %r2;", 'd', |w| w.d(1).checked_shl(w.r(2)).unwrap_or(0)),
        ("shr.u16 %h0, %h1, %r2;", 'h', |w| if w.r(2) > 15 { 0 } else { (w.h(1) >> w.r(2)).into() }),
        ("shr.s32 %r0, %r1, %r2;", 'r', |w| ((w.r(1) as i32 >> w.r(2).min(31)) as u32).into()),
        ("shr.u32 %r0, %r1, %r2;", 'r', |w| w.r(1).checked_shr(w.r(2)).unwrap_or(0).into()),
        ("shr.s64 %d0, %d1, %r2;", 'd', |w| (w.d(1) as i64 >> w.r(2).min(63)) as u64),
        ("shf.l.wrap.b32 %r0, %r1, %r2, %r3;", 'r', |w| {
            ((u64::from(w.r(2)) << 32 | u64::from(w.r(1))) << (w.r(3) & 31)) >> 32
        }),
        ("shf.r.clamp.b32 %r0, %r1, %r2, %r3;", 'r', |w| {
            u64::from(((u64::from(w.r(2)) << 32 | u64::from(w.r(1))) >> w.r(3).min(32)) as u32)
        }),
        ("bfe.u32 %r0, %r1, %r2, %r3;", 'r', |w| field(w.r(1).into(), w.r(2), w.r(3), 32, false)),
        ("bfe.s32 %r0, %r1, %r2, %r3;", 'r', |w| field(w.r(1).into(), w.r(2), w.r(3), 32, true)),
        ("bfe.s64 %d0, %d1, %r2, %r3;", 'd', |w| field(w.d(1), w.r(2), w.r(3), 64, true)),
        ("bfi.b32 %r0, %r1, %r2, %r3, 7;", 'r', |w| {
            let (mut out, at) = (w.r(2), w.r(3) & 255);
            for i in 0..7_u32 {
                if at + i < 32 {
                    out = out & !(1 << (at + i)) | (w.r(1) >> i & 1) << (at + i);
                }
            }
            out.into()
        }),
        ("lop3.b32 %r0, %r1, %r2, %r3, 0x1B;", 'r', |w| {
            let bit = |n: usize, i: u32| w.r(n) >> i & 1;
            let row = |i: u32| bit(1, i) << 2 | bit(2, i) << 1 | bit(3, i);
            (0..32).fold(0, |out, i| out | u64::from(0x1B_u32 >> row(i) & 1) << i)
        }),
        ("prmt.b32 %r0, %r1, %r2, %r3;", 'r', |w| {
            let bytes: Vec<u8> = [w.r(1), w.r(2)].iter().flat_map(|word| word.to_le_bytes()).collect();
            let pick = |i: usize| {
                let nibble = w.r(3) >> (4 * i) & 15;
                let byte = bytes[(nibble & 7) as usize];
                if nibble & 8 == 0 { byte } else { ((byte as i8) >> 7) as u8 }
            };
            u32::from_le_bytes([0, 1, 2, 3].map(pick)).into()
        }),
        ("dp4a.s32.s32 %r0, %r1, %r2, %r3;", 'r', |w| {
            let pairs = w.r(1).to_le_bytes().into_iter().zip(w.r(2).to_le_bytes());
            (pairs
                .fold(w.r(3) as i32, |sum, (a, b)| sum.wrapping_add(i32::from(a as i8) * i32::from(b as i8)))
                as u32)
                .into()
        }),
        ("dp4a.u32.s32 %r0, %r1, %r2, %r3;", 'r', |w| {
            let pairs = w.r(1).to_le_bytes().into_iter().zip(w.r(2).to_le_bytes());
            (pairs.fold(w.r(3) as i32, |sum, (a, b)| sum.wrapping_add(i32::from(a) * i32::from(b as i8)))
                as u32)
                .into()
        }),
        (
            "and.b32 %r4, %r1, %r2;
             or.b32 %r5, %r4, %r3;
             not.b32 %r6, %r5;
             xor.b32 %r0, %r6, %r1;",
            'r',
            |w| (!(w.r(1) & w.r(2) | w.r(3)) ^ w.r(1)).into(),
        ),
        ("cnot.b32 %r0, %r1;", 'r', |w| u64::from(w.r(1) == 0)),
        (
            "mov.b32 {%h4, %h5}, %r1;
         mov.b32 %r0, {%h5, %h4};",
            'r',
            |w| w.r(1).rotate_left(16).into(),
        ),
        (
            "mov.b64 {%r4, %r5}, %d1;
         mov.b64 %d0, {%r5, %r4};",
            'd',
            |w| w.d(1).rotate_left(32),
        ),
    ];
    check(cases, &integers());
}

/// Reference `bfe`, bit by bit as in the manual.
fn field(a: u64, at: u32, length: u32, width: u32, signed: bool) -> u64 {
    let (at, length, last) = (at & 255, length & 255, width - 1);
    let sign = if signed && length > 0 { a >> (at + length - 1).min(last) & 1 } else { 0 };
    (0..width).fold(0, |out, i| {
        let bit = if i < length && at + i <= last { a >> (at + i) & 1 } else { sign };
        out | bit << i
    })
}

#[test]
fn f32_arithmetic_rounds_once_and_contracts_only_fma() {
    let cases: &[Case] = &[
        (
            "mul.f32 %f4, %f1, %f2;
         add.f32 %f0, %f4, %f3;",
            'f',
            |w| same_f32(w.f(1) * w.f(2) + w.f(3)),
        ),
        ("fma.rn.f32 %f0, %f1, %f2, %f3;", 'f', |w| same_f32(w.f(1).mul_add(w.f(2), w.f(3)))),
        ("sub.rn.f32 %f0, %f1, %f2;", 'f', |w| same_f32(w.f(1) - w.f(2))),
        ("div.rn.f32 %f0, %f1, %f2;", 'f', |w| same_f32(w.f(1) / w.f(2))),
        ("sqrt.rn.f32 %f0, %f1;", 'f', |w| same_f32(w.f(1).sqrt())),
        ("rcp.rn.f32 %f0, %f1;", 'f', |w| same_f32(1.0 / w.f(1))),
        ("add.ftz.f32 %f0, %f1, %f2;", 'f', |w| same_f32(flushed(flushed(w.f(1)) + flushed(w.f(2))))),
        ("mul.ftz.f32 %f0, %f1, %f2;", 'f', |w| same_f32(flushed(flushed(w.f(1)) * flushed(w.f(2))))),
        ("add.sat.f32 %f0, %f1, %f2;", 'f', |w| {
            let sum = w.f(1) + w.f(2);
            same_f32(if sum > 0.0 { sum.min(1.0) } else { 0.0 })
        }),
        ("neg.f32 %f0, %f1;", 'f', |w| same_f32(-w.f(1))),
        ("abs.f32 %f0, %f1;", 'f', |w| same_f32(w.f(1).abs())),
        ("min.f32 %f0, %f1, %f2;", 'f', |w| same_f32(least(w.f(1).into(), w.f(2).into()) as f32)),
        ("max.f32 %f0, %f1, %f2;", 'f', |w| same_f32(-least(-f64::from(w.f(1)), -f64::from(w.f(2))) as f32)),
        ("max.NaN.f32 %f0, %f1, %f2;", 'f', |w| {
            let nan = w.f(1).is_nan() || w.f(2).is_nan();
            same_f32(if nan { f32::NAN } else { -least(-f64::from(w.f(1)), -f64::from(w.f(2))) as f32 })
        }),
        ("copysign.f32 %f0, %f1, %f2;", 'f', |w| same_f32(w.f(2).copysign(w.f(1)))),
        ("rcp.approx.ftz.f32 %f0, %f1;", 'f', |w| same_f32(flushed(1.0 / flushed(w.f(1))))),
        ("testp.subnormal.f32 %p0, %f1;", 'p', |w| w.f(1).is_subnormal().into()),
        ("testp.finite.f32 %p0, %f1;", 'p', |w| w.f(1).is_finite().into()),
    ];
    check(cases, &floats());
}

fn flushed(x: f32) -> f32 {
    if x.is_subnormal() { 0_f32.copysign(x) } else { x }
}

/// Minimum that prefers a number to NaN, and -0 to +0.
fn least(a: f64, b: f64) -> f64 {
    match (a.is_nan(), b.is_nan()) {
        (true, _) => b,
        (_, true) => a,
        _ if a == b => {
            if a.is_sign_negative() {
                a
            } else {
                b
            }
        }
        _ => a.min(b),
    }
}

#[test]
fn f64_arithmetic_rounds_once() {
    let cases: &[Case] = &[
        (
            "mul.f64 %g4, %g1, %g2;
         add.f64 %g0, %g4, %g3;",
            'g',
            |w| (w.g(1) * w.g(2) + w.g(3)).to_bits(),
        ),
        ("fma.rn.f64 %g0, %g1, %g2, %g3;", 'g', |w| w.g(1).mul_add(w.g(2), w.g(3)).to_bits()),
        ("div.rn.f64 %g0, %g1, %g2;", 'g', |w| (w.g(1) / w.g(2)).to_bits()),
        ("sqrt.rn.f64 %g0, %g1;", 'g', |w| w.g(1).sqrt().to_bits()),
        ("min.f64 %g0, %g1, %g2;", 'g', |w| least(w.g(1), w.g(2)).to_bits()),
        ("max.f64 %g0, %g1, %g2;", 'g', |w| (-least(-w.g(1), -w.g(2))).to_bits()),
        (
            "neg.f64 %g4, %g1;
         abs.f64 %g0, %g4;",
            'g',
            |w| w.g(1).abs().to_bits(),
        ),
        ("setp.ltu.f64 %p0, %g1, %g2;", 'p', |w| {
            w.g(1).partial_cmp(&w.g(2)).is_none_or(|order| order.is_lt()).into()
        }),
    ];
    check(cases, &doubles());
}

#[test]
fn comparisons_treat_nan_as_their_name_says() {
    let cases: &[Case] = &[
        ("setp.eq.f32 %p0, %f1, %f2;", 'p', |w| (w.f(1) == w.f(2)).into()),
        ("setp.ne.f32 %p0, %f1, %f2;", 'p', |w| (w.f(1) < w.f(2) || w.f(1) > w.f(2)).into()),
        ("setp.neu.f32 %p0, %f1, %f2;", 'p', |w| (w.f(1) != w.f(2)).into()),
        ("setp.geu.f32 %p0, %f1, %f2;", 'p', |w| {
            w.f(1).partial_cmp(&w.f(2)).is_none_or(|order| order.is_ge()).into()
        }),
        ("setp.gt.f32 %p0, %f1, %f2;", 'p', |w| (w.f(1) > w.f(2)).into()),
        ("setp.num.f32 %p0, %f1, %f2;", 'p', |w| (!w.f(1).is_nan() && !w.f(2).is_nan()).into()),
        ("setp.lt.and.f32 %p0, %f1, %f2, !%p3;", 'p', |w| (w.f(1) < w.f(2) && !w.p(3)).into()),
        ("setp.eq.ftz.f32 %p0, %f1, %f2;", 'p', |w| (flushed(w.f(1)) == flushed(w.f(2))).into()),
        ("set.le.f32.f32 %f0, %f1, %f2;", 'f', |w| same_f32(if w.f(1) <= w.f(2) { 1.0 } else { 0.0 })),
        ("set.gt.u32.f32 %r0, %f1, %f2;", 'r', |w| if w.f(1) > w.f(2) { 0xFFFF_FFFF } else { 0 }),
        ("selp.f32 %f0, %f1, %f2, %p3;", 'f', |w| same_f32(if w.p(3) { w.f(1) } else { w.f(2) })),
        ("slct.f32.s32 %f0, %f1, %f2, %r3;", 'f', |w| {
            same_f32(if w.r(3) as i32 >= 0 { w.f(1) } else { w.f(2) })
        }),
    ];
    check(cases, &floats());
    let cases: &[Case] = &[
        ("setp.lt.s32 %p0, %r1, %r2;", 'p', |w| ((w.r(1) as i32) < w.r(2) as i32).into()),
        ("setp.hi.u32 %p0, %r1, %r2;", 'p', |w| (w.r(1) > w.r(2)).into()),
        ("setp.ge.s64 %p0, %d1, %d2;", 'p', |w| (w.d(1) as i64 >= w.d(2) as i64).into()),
        ("setp.le.u16 %p0, %h1, %h2;", 'p', |w| (w.h(1) <= w.h(2)).into()),
        ("setp.lt.s16 %p0, %h1, 0;", 'p', |w| ((w.h(1) as i16) < 0).into()),
        (
            "setp.lt.xor.u32 %p0|%p4, %r1, %r2, %p3;
             selp.b32 %r4, 2, 0, %p4;
             selp.b32 %r0, 1, 0, %p0;
             or.b32 %r0, %r0, %r4;",
            'r',
            |w| {
                let less = w.r(1) < w.r(2);
                u64::from(less ^ w.p(3)) | u64::from(!less ^ w.p(3)) << 1
            },
        ),
        (
            "and.pred %p4, %p1, %p2;
             or.pred %p5, %p4, %p3;
             xor.pred %p6, %p5, %p1;
             not.pred %p0, %p6;",
            'p',
            |w| (!((w.p(1) && w.p(2) || w.p(3)) ^ w.p(1))).into(),
        ),
        (
            "mov.u32 %r0, 1;
         @%p1 mov.u32 %r0, 2;
         @!%p2 add.s32 %r0, %r0, 8;",
            'r',
            |w| (if w.p(1) { 2 } else { 1 }) + (if w.p(2) { 0 } else { 8 }),
        ),
    ];
    check(cases, &integers());
}

#[test]
fn directed_sums_and_products_are_the_exact_ones_rounded_once() {
    let cases: &[Case] = &[
        ("add.rz.f32 %f0, %f1, %f2;", 'f', |w| sum(w, "rz")),
        ("add.rm.f32 %f0, %f1, %f2;", 'f', |w| sum(w, "rm")),
        ("add.rp.f32 %f0, %f1, %f2;", 'f', |w| sum(w, "rp")),
        ("mul.rz.f32 %f0, %f1, %f2;", 'f', |w| product(w, "rz")),
        ("mul.rp.f32 %f0, %f1, %f2;", 'f', |w| product(w, "rp")),
        ("fma.rm.f32 %f0, %f1, %f2, %f3;", 'f', |w| fused(w, "rm")),
        ("fma.rz.f32 %f0, %f1, %f2, %f3;", 'f', |w| fused(w, "rz")),
        ("fma.rn.f32 %f0, %f1, %f2, %f3;", 'f', |w| fused(w, "rn")),
        (
            "cvt.f64.f32 %g1, %f1;
             cvt.f64.f32 %g2, %f2;
             mul.f64 %g1, %g1, 0d3D50000000000001;
             add.rz.f64 %g0, %g1, %g2;",
            'g',
            |w| {
                let scaled = f64::from(w.f(1)) * f64::from_bits(0x3D50_0000_0000_0001);
                exact(scaled).plus(exact(w.f(2).into())).round(53, -1074, "rz").to_bits()
            },
        ),
    ];
    // Exponents that keep exact results within 128 bits.
    let mut random = Random(3);
    let mut near = |_| {
        let bits = random.next() as u32;
        u64::from(bits & 0x807F_FFFF | (115 + random.next() as u32 % 24) << 23)
    };
    let inputs: Vec<Words> = (0..4096).map(|_| Words([0, 1, 2].map(&mut near))).collect();
    check(cases, &inputs);
    let zeros: &[Case] = &[
        (
            "neg.f32 %f4, %f1;
         add.rm.f32 %f0, %f1, %f4;",
            'f',
            |_| same_f32(-0.0),
        ),
        (
            "neg.f32 %f4, %f1;
         add.rz.f32 %f0, %f1, %f4;",
            'f',
            |_| same_f32(0.0),
        ),
        (
            "mov.f32 %f4, 0f7F7FFFFF;
         add.rz.f32 %f0, %f4, %f4;",
            'f',
            |_| same_f32(f32::MAX),
        ),
        (
            "mov.f32 %f4, 0f7F7FFFFF;
         add.rp.f32 %f0, %f4, %f4;",
            'f',
            |_| same_f32(f32::INFINITY),
        ),
        (
            "mov.f32 %f4, 0f00000001;
         mul.rp.f32 %f0, %f4, %f4;",
            'f',
            |_| same_f32(f32::from_bits(1)),
        ),
        (
            "mov.f32 %f4, 0f00000001;
         mul.rz.f32 %f0, %f4, %f4;",
            'f',
            |_| same_f32(0.0),
        ),
    ];
    check(zeros, &inputs[..32]);
}

fn at(w: &Words, n: usize) -> crate::exact::Exact {
    exact(w.f(n).into())
}

fn sum(w: &Words, mode: &str) -> u64 {
    same_f32(at(w, 1).plus(at(w, 2)).round(24, -149, mode) as f32)
}

fn product(w: &Words, mode: &str) -> u64 {
    same_f32(at(w, 1).times(at(w, 2)).round(24, -149, mode) as f32)
}

fn fused(w: &Words, mode: &str) -> u64 {
    same_f32(at(w, 1).times(at(w, 2)).plus(at(w, 3)).round(24, -149, mode) as f32)
}

/// Halves with exponents within `span` of 1 in the low part of each word.
fn halves(fraction_bits: u32, bias: u32, span: u32) -> Vec<Words> {
    let mut random = Random(11);
    let mut near = |_| {
        let bits = random.next();
        let exponent = bias - span + (bits >> 32) as u32 % (2 * span);
        bits & 0x8000 | u64::from(exponent << fraction_bits) | bits & ((1 << fraction_bits) - 1)
    };
    (0..4096).map(|_| Words([0, 1, 2].map(&mut near))).collect()
}

#[test]
fn f16_rounds_once_even_when_fused() {
    fn x(w: &Words, n: usize) -> crate::exact::Exact {
        exact(f16::from_bits(w.h(n)).to_f64())
    }
    fn keep(x: crate::exact::Exact) -> u64 {
        f16::from_f64(x.round(11, -24, "rn")).to_bits().into()
    }
    let cases: &[Case] = &[
        ("add.f16 %h0, %h1, %h2;", 'h', |w| keep(x(w, 1).plus(x(w, 2)))),
        ("sub.rn.f16 %h0, %h1, %h2;", 'h', |w| keep(x(w, 1).plus(exact(-f16::from_bits(w.h(2)).to_f64())))),
        ("mul.f16 %h0, %h1, %h2;", 'h', |w| keep(x(w, 1).times(x(w, 2)))),
        ("fma.rn.f16 %h0, %h1, %h2, %h3;", 'h', |w| keep(x(w, 1).times(x(w, 2)).plus(x(w, 3)))),
        ("neg.f16 %h0, %h1;", 'h', |w| (w.h(1) ^ 0x8000).into()),
        ("max.f16 %h0, %h1, %h2;", 'h', |w| {
            f16::from_bits(w.h(1)).max(f16::from_bits(w.h(2))).to_bits().into()
        }),
        ("set.gt.f16.f16 %h0, %h1, %h2;", 'h', |w| {
            if f16::from_bits(w.h(1)) > f16::from_bits(w.h(2)) { 0x3C00 } else { 0 }
        }),
        (
            "mov.b32 %r1, {%h1, %h2};
             mov.b32 %r2, {%h2, %h3};
             mov.b32 %r3, {%h3, %h1};
             fma.rn.f16x2 %r0, %r1, %r2, %r3;",
            'r',
            |w| keep(x(w, 1).times(x(w, 2)).plus(x(w, 3))) | keep(x(w, 2).times(x(w, 3)).plus(x(w, 1))) << 16,
        ),
    ];
    check(cases, &halves(10, 15, 14));
    // Ties that an f32 cannot distinguish from their neighbours: 1.0009765625 times 1.5 minus the smallest number, and a result just below
    // 513.5 times that number.
    let tie = Words([0x3C01, 0x3E00, 0x8001]);
    let small = Words([0x0C01, 0x07FE, 0x0201]);
    let inputs: Vec<Words> = (0..16).flat_map(|_| [tie, small]).collect();
    let case: Case =
        ("fma.rn.f16 %h0, %h1, %h2, %h3;", 'h', |w| if w.h(3) == 0x8001 { 0x3E01 } else { 0x0201 });
    check(&[case], &inputs);
}

#[test]
fn bf16_rounds_once_even_when_fused() {
    fn x(w: &Words, n: usize) -> crate::exact::Exact {
        exact(bf16::from_bits(w.h(n)).to_f64())
    }
    fn keep(x: crate::exact::Exact) -> u64 {
        bf16::from_f64(x.round(8, -133, "rn")).to_bits().into()
    }
    let cases: &[Case] = &[
        ("add.bf16 %h0, %h1, %h2;", 'h', |w| keep(x(w, 1).plus(x(w, 2)))),
        ("mul.bf16 %h0, %h1, %h2;", 'h', |w| keep(x(w, 1).times(x(w, 2)))),
        ("fma.rn.bf16 %h0, %h1, %h2, %h3;", 'h', |w| keep(x(w, 1).times(x(w, 2)).plus(x(w, 3)))),
        (
            "mov.b32 %r1, {%h1, %h2};
         mov.b32 %r2, {%h2, %h3};
         mul.bf16x2 %r0, %r1, %r2;",
            'r',
            |w| keep(x(w, 1).times(x(w, 2))) | keep(x(w, 2).times(x(w, 3))) << 16,
        ),
        ("abs.bf16 %h0, %h1;", 'h', |w| (w.h(1) & 0x7FFF).into()),
    ];
    // Far apart: an addend may break a tie of a product 2^60 above it.
    check(cases, &halves(7, 127, 30));
    // A tie of the product (1.0078125 times 1.5), broken by the smallest number: a double cannot hold both.
    let tie = Words([0x3F81, 0x3FC0, 0x0001]);
    let below = Words([0x3F81, 0x3FC0, 0x8001]);
    let inputs: Vec<Words> = (0..16).flat_map(|_| [tie, below]).collect();
    let case: Case = ("fma.rn.bf16 %h0, %h1, %h2, %h3;", 'h', |w| if w.h(3) == 1 { 0x3FC2 } else { 0x3FC1 });
    check(&[case], &inputs);
}
