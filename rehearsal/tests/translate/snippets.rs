//! Single-instruction tests: runs a PTX snippet for many inputs, one per thread, and compares with a definition.

use crate::machine::{Shape, launch};

/// Inputs of one run: three words, available as `%d1` to `%d3`, their low parts as `%r1` and `%h1`, the same bits as `%f1` (low half) and
/// `%g1`, and their lowest bits as `%p1`.
#[derive(Clone, Copy, Debug)]
pub struct Words(pub [u64; 3]);

impl Words {
    pub fn d(&self, n: usize) -> u64 {
        self.0[n - 1]
    }
    pub fn r(&self, n: usize) -> u32 {
        self.d(n) as u32
    }
    pub fn h(&self, n: usize) -> u16 {
        self.d(n) as u16
    }
    pub fn f(&self, n: usize) -> f32 {
        f32::from_bits(self.r(n))
    }
    pub fn g(&self, n: usize) -> f64 {
        f64::from_bits(self.d(n))
    }
    pub fn p(&self, n: usize) -> bool {
        self.d(n) & 1 == 1
    }
}

/// A snippet, the kind of its output register 0 (`d`, `r`, `h`, `f`, `g` or `p`), and the expected value.
pub type Case = (&'static str, char, fn(&Words) -> u64);

pub fn same_f32(x: f32) -> u64 {
    u64::from(x.to_bits())
}

pub fn module(parameters: usize, before: &str, body: &str) -> String {
    let list: Vec<String> = (0..parameters).map(|n| format!(".param .u64 param{n}")).collect();
    format!(
        ".version 9.0
.target sm_90
.address_size 64
{before}
.visible .entry test({})
{{
.reg .pred %p<9>;
.reg .b16 %h<9>;
.reg .b32 %r<9>;
.reg .b64 %d<9>;
.reg .f32 %f<9>;
.reg .f64 %g<9>;
.reg .b64 %a<9>;
.reg .b32 %i<9>;
{body}
ret;
}}
",
        list.join(", ")
    )
}

pub fn check(cases: &[Case], inputs: &[Words]) {
    let mut body = format!(
        "ld.param.u64 %a1, [param0];
        ld.param.u64 %a2, [param1];
        mov.u32 %i1, %tid.x;
        mov.u32 %i2, %ctaid.x;
        mov.u32 %i3, %ntid.x;
        mad.lo.s32 %i1, %i2, %i3, %i1;
        mad.wide.u32 %a1, %i1, 24, %a1;
        mad.wide.u32 %a2, %i1, {}, %a2;\n",
        8 * cases.len()
    );
    for (index, (snippet, result, _)) in cases.iter().enumerate() {
        for n in 1..=3 {
            body += &format!(
                "ld.global.u64 %d{n}, [%a1+{}];
                cvt.u32.u64 %r{n}, %d{n};
                cvt.u16.u64 %h{n}, %d{n};
                mov.b32 %f{n}, %r{n};
                mov.b64 %g{n}, %d{n};
                and.b32 %i4, %r{n}, 1;
                setp.ne.u32 %p{n}, %i4, 0;\n",
                8 * (n - 1)
            );
        }
        let keep = match result {
            'd' => "",
            'r' => "cvt.u64.u32 %d0, %r0;",
            'h' => "cvt.u64.u16 %d0, %h0;",
            'f' => "mov.b32 %r0, %f0;\ncvt.u64.u32 %d0, %r0;",
            'g' => "mov.b64 %d0, %g0;",
            _ => "selp.u64 %d0, 1, 0, %p0;",
        };
        body += &format!("{{\n{snippet}\n{keep}\n}}\nst.global.u64 [%a2+{}], %d0;\n", 8 * index);
    }
    let threads = 32;
    assert_eq!(inputs.len() % threads, 0, "whole blocks");
    let split = |word: u64| [word as u32, (word >> 32) as u32];
    let given: Vec<u32> = inputs.iter().flat_map(|words| words.0).flat_map(split).collect();
    let mut buffers = [given, vec![0; 2 * inputs.len() * cases.len()]];
    let shape = Shape { blocks: (inputs.len() / threads) as u32, threads: threads as u32, dynamic: 0 };
    launch(&module(2, "", &body), shape, &mut buffers).unwrap_or_else(|(what, at)| panic!("{what}: {at}"));
    let mut words = buffers[1].chunks(2).map(|pair| u64::from(pair[0]) | u64::from(pair[1]) << 32);
    for input in inputs {
        for (snippet, result, expected) in cases {
            let (found, expected) = (words.next().expect("a result"), expected(input));
            let is_nan = |bits: u64| match result {
                'f' => f32::from_bits(bits as u32).is_nan(),
                'g' => f64::from_bits(bits).is_nan(),
                _ => false,
            };
            let same = found == expected || is_nan(found) && is_nan(expected);
            assert!(same, "{snippet} of {:#x?}: {found:#x}, not {expected:#x}", input.0);
        }
    }
}

pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut x = self.0;
        x = (x ^ x >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^ x >> 31
    }
}

/// Random bits, and special integers.
pub fn integers() -> Vec<Words> {
    let special = [
        0,
        1,
        2,
        7,
        31,
        32,
        33,
        63,
        64,
        65,
        255,
        0x7FFF,
        0x8000,
        0x7FFF_FFFF,
        0x8000_0000,
        u64::MAX,
        1 << 63,
    ];
    from(&special, |random| random.next())
}

/// f32 in the low half of each word, special and random.
pub fn floats() -> Vec<Words> {
    let special = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        1.5,
        2.5,
        -2.5,
        1e-40,
        -1e-40,
        3e38,
        -3e38,
        65504.0,
        65519.9,
        65520.0,
        1e-8,
        2147483648.0,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        f32::MIN_POSITIVE,
        1.0 + f32::EPSILON,
        4294967296.0,
        0.1,
        -100.7,
    ]
    .map(|x| u64::from(x.to_bits()));
    from(&special, |random| {
        let bits = random.next() as u32;
        // Half of them near 1, so that results are neither 0 nor infinite.
        u64::from(if random.next() & 1 == 0 { bits } else { bits & 0x81FF_FFFF | 0x3E00_0000 })
    })
}

/// f64, special and random.
pub fn doubles() -> Vec<Words> {
    let special = [
        0.0,
        -0.0,
        1.0,
        -1.5,
        2.5,
        5e-324,
        1e308,
        -1e308,
        f64::INFINITY,
        f64::NEG_INFINITY,
        f64::NAN,
        4294967295.5,
        -2147483649.0,
        9.3e18,
        1.9e19,
        65520.0,
        1e-7,
        3.4e38,
        0.1,
        255.5,
    ]
    .map(f64::to_bits);
    from(&special, |random| {
        let bits = random.next();
        if random.next() & 1 == 0 { bits } else { bits & 0x801F_FFFF_FFFF_FFFF | 0x3FE0_0000_0000_0000 }
    })
}

fn from(special: &[u64], mut any: impl FnMut(&mut Random) -> u64) -> Vec<Words> {
    let mut random = Random(7);
    let mut pick = |_| {
        let chosen = random.next();
        if chosen & 3 == 0 { special[(chosen >> 8) as usize % special.len()] } else { any(&mut random) }
    };
    (0..2048).map(|_| Words([0, 1, 2].map(&mut pick))).collect()
}
