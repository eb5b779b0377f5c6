//! Element dtypes of Candle's kernels, as f64 values.

use half::{bf16, f16};

use crate::card::Param;

pub trait Element: Copy + Default + PartialEq + Into<Scalar> {
    /// Name in kernel names.
    const NAME: &'static str;
    /// One ulp for values near 1; 0 for integers.
    const UNIT: f64;
    /// Smaller values are compared with the tolerance of this magnitude.
    const LEAST: f64;
    fn of(value: f64) -> Self;
    fn value(self) -> f64;
    /// A seed-dependent test value: either sign if the dtype has one, magnitude up to 2.
    fn sample(seed: usize) -> Self {
        let bits = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
        let positive = bits as f64 / f64::from(1 << 24);
        Self::of(if Self::UNIT == 0.0 { (positive * 100.0).floor() } else { positive * 4.0 - 2.0 })
    }
}

pub struct Scalar(pub Param);

macro_rules! elements {
    ($($type:ty, $name:literal, $unit:expr, $least:expr, $of:expr, $value:expr;)*) => {$(
        impl Element for $type {
            const NAME: &'static str = $name;
            const UNIT: f64 = $unit;
            const LEAST: f64 = $least;
            fn of(value: f64) -> Self {
                $of(value)
            }
            fn value(self) -> f64 {
                $value(self)
            }
        }
        impl From<$type> for Scalar {
            fn from(value: $type) -> Self {
                Self(Param::bytes(&value.to_ne_bytes()))
            }
        }
    )*};
}

elements! {
    f32, "f32", 1.0 / (1 << 23) as f64, 0.1, |value| value as f32, f64::from;
    f64, "f64", f64::EPSILON, 0.1, |value| value, |value| value;
    f16, "f16", 1.0 / 1024.0, 0.1, f16::from_f64, f16::to_f64;
    bf16, "bf16", 1.0 / 128.0, 0.1, bf16::from_f64, bf16::to_f64;
    u8, "u8", 0.0, 0.0, |value| value as u8, f64::from;
    u32, "u32", 0.0, 0.0, |value| value as u32, f64::from;
    i64, "i64", 0.0, 0.0, |value| value as i64, |value| value as f64;
}
