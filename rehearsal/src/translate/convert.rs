//! `cvt` ("Data Movement and Conversion Instructions").

use super::emitter::Emitter;
use super::half::names;
use super::operation::{Emit, Operation, c_integer};
use crate::ptx::{Kind, Type};

impl Emitter<'_> {
    pub(super) fn convert(&mut self, op: &mut Operation<'_>) -> Emit {
        self.wider = true;
        let from = op.last_type()?;
        let to = op.last_type()?;
        let to_whole = op.take_any(&["rni", "rzi", "rmi", "rpi"]);
        let rounding = op.take_any(&["rn", "rz", "rm", "rp"]);
        let (flush, saturate) = (op.take("ftz"), op.take("sat"));
        if flush && !(from.is_float() && from.bits == 32) && !(to.is_float() && to.bits == 32) {
            return op.not_for(to);
        }
        if to.is_pair() {
            return self.convert_to_pair(op, to, from, rounding, flush || saturate || to_whole.is_some());
        }
        let relu = to.is_half() && op.take("relu");
        let [d, a] = op.operands()?;
        if matches!(from.kind, Kind::Bits | Kind::Predicate)
            || matches!(to.kind, Kind::Bits | Kind::Predicate)
        {
            return op.not_for(to);
        }
        if !from.is_float() {
            let a = self.integer(a, from)?;
            let value = match (to.is_float(), saturate) {
                (true, false) if to_whole.is_none() => integer_to_float(op, &a, from, to, rounding)?,
                (false, true) if rounding.or(to_whole).is_none() => clamp(&a, from, to),
                (false, false) if rounding.or(to_whole).is_none() => a,
                _ => return op.not_for(to),
            };
            return self.assign(d, kept(to), &value);
        }
        let mut a = self.number(a, from)?;
        if flush && from.bits == 32 {
            a = format!("flush({a})");
        }
        if let Some(to_whole) = to_whole {
            // For f32 and f64; a half is a float here.
            let name = match to_whole {
                "rni" => "rint",
                "rzi" => "trunc",
                "rmi" => "floor",
                _ => "ceil",
            };
            let suffix = if from.bits == 64 { "" } else { "f" };
            a = format!("__builtin_{name}{suffix}({a})");
        }
        if !to.is_float() {
            if to_whole.is_none() || rounding.is_some() {
                return op.not_for(to);
            }
            // Out-of-range values saturate with or without `.sat`.
            let wide = from.bits == 64 || to.bits == 64;
            let nan = if wide { format!("{:#x}", 1_u64 << (to.bits - 1)) } else { "0".to_owned() };
            let name = if to.is_signed() { "to_signed" } else { "to_unsigned" };
            return self.assign(d, to, &format!("{name}({a}, {}, {nan}u)", to.bits));
        }
        let mut value = float_to_float(op, &a, from, to, rounding, to_whole.is_some())?;
        if flush && to.bits == 32 {
            value = format!("flush({value})");
        }
        let (read, keep) = names(to);
        value = match (to.bits, saturate, relu) {
            (_, false, false) => value,
            (16, true, false) => format!("{keep}(saturate({read}({value})))"),
            (16, false, true) => format!("{keep}(relu({read}({value})))"),
            (32, true, false) => format!("saturate({value})"),
            (64, true, false) => format!("saturate_f64({value})"),
            _ => return op.not_for(to),
        };
        self.assign(d, kept(to), &value)
    }

    /// Two f32 to a pair; the first becomes the upper half.
    fn convert_to_pair(
        &mut self,
        op: &mut Operation<'_>,
        to: Type,
        from: Type,
        rounding: Option<&str>,
        odd: bool,
    ) -> Emit {
        let relu = op.take("relu");
        let [d, a, b] = op.operands()?;
        if rounding != Some("rn") || odd || !from.is_float() || from.bits != 32 {
            return op.not_for(to);
        }
        let keep = names(to.half_of_pair()).1;
        let mut half = |operand| {
            let value = self.number(operand, from)?;
            Emit::Ok(if relu { format!("{keep}(relu({value}))") } else { format!("{keep}({value})") })
        };
        let (a, b) = (half(a)?, half(b)?);
        self.assign(d, Type::raw(32), &format!("(uint32_t){a} << 16 | {b}"))
    }
}

/// Type of the stored result: halves as bits.
fn kept(of: Type) -> Type {
    if of.is_half() { Type::raw(16) } else { of }
}

fn mode(rounding: Option<&str>) -> &'static str {
    match rounding {
        Some("rz") => "ZERO",
        Some("rm") => "DOWN",
        Some("rp") => "UP",
        _ => "NEAREST",
    }
}

fn integer_to_float(op: &Operation<'_>, a: &str, from: Type, to: Type, rounding: Option<&str>) -> Emit {
    let exact = format!("exact_{}64({a})", if from.is_signed() { 'i' } else { 'u' });
    Ok(match (to.kind, to.bits, rounding) {
        (_, _, None) => return Err("cvt of an integer to a float without a rounding".to_owned()),
        (Kind::Float, 32, Some("rn")) => format!("(float){a}"),
        (Kind::Float, 32, _) => format!("round_f32({exact}, {})", mode(rounding)),
        (Kind::Float, 64, Some("rn")) => format!("(double){a}"),
        (Kind::Float, 64, _) if from.bits <= 32 => format!("(double){a}"), // exact
        (Kind::Float, 16, Some("rn")) => format!("exact_to_f16({exact})"),
        (Kind::Brain, 16, Some("rn")) => format!("exact_to_bf16({exact})"),
        _ => return op.not_for(to),
    })
}

/// `whole`: the value was rounded to an integer, and the types are equal.
fn float_to_float(
    op: &Operation<'_>,
    a: &str,
    from: Type,
    to: Type,
    rounding: Option<&str>,
    whole: bool,
) -> Emit {
    let same = from == to;
    // Widening is exact.
    let widens = !same && from.bits < to.bits;
    if same || widens {
        if rounding.is_some() || (whole && !same) {
            return op.not_for(to);
        }
        return Ok(match to.bits {
            16 => format!("{}({a})", names(to).1),
            32 => a.to_owned(),
            _ => format!("(double){a}"),
        });
    }
    if whole || rounding.is_none() || from.bits == to.bits {
        return op.not_for(to);
    }
    Ok(match (to.kind, to.bits, from.bits, rounding) {
        (_, 32, _, Some("rn")) => format!("(float){a}"),
        (_, 32, _, _) => format!("round_f32(exact_f64({a}), {})", mode(rounding)),
        (_, 16, 32, Some("rn")) => format!("{}({a})", names(to).1),
        (Kind::Brain, 16, _, Some("rn")) => format!("exact_to_bf16(exact_f64({a}))"),
        (_, 16, _, Some("rn")) => format!("exact_to_f16(exact_f64({a}))"),
        _ => return op.not_for(to),
    })
}

/// `.sat` between integers: clamps to the range of the new type.
fn clamp(a: &str, from: Type, to: Type) -> String {
    let wide = if from.is_signed() || to.is_signed() { "__int128" } else { "unsigned __int128" };
    let (low, high) = if to.is_signed() {
        let high = i64::MAX >> (64 - to.bits);
        (format!("(-{high}ll - 1)"), format!("{high}ll"))
    } else {
        ("0".to_owned(), format!("{}ull", u64::MAX >> (64 - to.bits)))
    };
    let cut = c_integer(to.bits, to.is_signed());
    format!("({{ {wide} wide = {a}; ({cut})(wide < {low} ? {low} : wide > {high} ? {high} : wide); }})")
}
