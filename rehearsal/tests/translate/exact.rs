//! Exact integer arithmetic with one rounding at the end: the reference for fused and directed results.

/// An integer times a power of two.
#[derive(Clone, Copy, Debug)]
pub struct Exact {
    pub value: i128,
    pub power: i32,
}

/// A finite f64; also f32 and halves.
pub fn exact(x: f64) -> Exact {
    let bits = x.to_bits();
    let exponent = (bits >> 52 & 0x7FF) as i32;
    let fraction = (bits & ((1 << 52) - 1)) as i128 | i128::from(exponent != 0) << 52;
    let value = if x.is_sign_negative() { -fraction } else { fraction };
    let zeros = if value == 0 { 0 } else { value.trailing_zeros() };
    Exact { value: value >> zeros, power: exponent.max(1) - 1075 + zeros as i32 }
}

impl Exact {
    pub fn times(self, other: Exact) -> Exact {
        Exact { value: self.value * other.value, power: self.power + other.power }
    }

    /// Operands must be close in magnitude.
    pub fn plus(self, other: Exact) -> Exact {
        if self.value == 0 || other.value == 0 {
            return if self.value == 0 { other } else { self };
        }
        let power = self.power.min(other.power);
        let lifted = |x: Exact| x.value.checked_mul(1 << (x.power - power)).expect("numbers of like size");
        Exact { value: lifted(self) + lifted(other), power }
    }

    /// Rounds to `bits` bits with smallest number 2^smallest; `mode` as in PTX.
    pub fn round(self, bits: i32, smallest: i32, mode: &str) -> f64 {
        let size = 128 - self.value.unsigned_abs().leading_zeros() as i32;
        let quantum = (size + self.power - bits).max(smallest);
        let shift = quantum - self.power;
        if shift <= 0 {
            return self.value as f64 * 2_f64.powi(self.power);
        }
        let (magnitude, negative) = (self.value.unsigned_abs(), self.value < 0);
        let (kept, rest) =
            if shift >= 128 { (0, magnitude) } else { (magnitude >> shift, magnitude & ((1 << shift) - 1)) };
        let half = if shift >= 128 { u128::MAX } else { 1 << (shift - 1) };
        let up = match mode {
            "rn" => rest > half || rest == half && kept & 1 == 1,
            "rz" => false,
            "rm" => negative && rest != 0,
            _ => !negative && rest != 0,
        };
        let rounded = (kept + u128::from(up)) as f64 * 2_f64.powi(quantum);
        if negative { -rounded } else { rounded }
    }
}

#[test]
fn rounding_follows_the_mode_at_ties_and_between() {
    let third = |mode| exact(5.0).round(2, -100, mode); // between 4 and 6
    assert_eq!(["rn", "rz", "rm", "rp"].map(third), [4.0, 4.0, 4.0, 6.0]);
    let negative = |mode| exact(-7.0).round(2, -100, mode); // between -8 and -6
    assert_eq!(["rn", "rz", "rm", "rp"].map(negative), [-8.0, -6.0, -8.0, -6.0]);
    assert_eq!(exact(3.0 / 8.0).round(11, -1, "rp"), 0.5);
}
