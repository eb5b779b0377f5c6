//! "Floating-Point Instructions" of f32 and f64. Halves are in [`super::half`].

use super::emitter::Emitter;
use super::operation::{Emit, Operation};
use crate::ptx::{Kind, Type};

impl Emitter<'_> {
    pub(super) fn float(&mut self, op: &mut Operation<'_>) -> Emit {
        let of = op.last_type()?;
        if of.is_pair() || of.is_half() {
            return self.half(op, of);
        }
        match op.name {
            "min" | "max" => self.float_choice(op, of),
            "neg" | "abs" => {
                let flush = op.take("ftz");
                let [d, a] = op.operands()?;
                let a = self.number(a, of)?;
                let suffix = if of.bits == 32 { "f" } else { "" };
                let value =
                    if op.name == "neg" { format!("-({a})") } else { format!("__builtin_fabs{suffix}({a})") };
                let value = flushed(op, of, flush, &value)?;
                self.assign(d, of, &value)
            }
            _ => self.arithmetic(op, of),
        }
    }

    fn float_choice(&mut self, op: &mut Operation<'_>, of: Type) -> Emit {
        let flush = op.take("ftz");
        let nan = if op.take("NaN") { "_nan" } else { "" };
        let [d, a, b] = op.operands()?;
        if of.bits == 64 && !nan.is_empty() {
            return op.not_for(of);
        }
        let (a, b) = (self.number(a, of)?, self.number(b, of)?);
        let (a, b) = (flushed(op, of, flush, &a)?, flushed(op, of, flush, &b)?);
        self.assign(d, of, &format!("{}{nan}_f{}({a}, {b})", op.name, of.bits))
    }

    fn arithmetic(&mut self, op: &mut Operation<'_>, of: Type) -> Emit {
        let rounding = op.take_any(&["rn", "rz", "rm", "rp"]).unwrap_or("rn");
        // Approximate division is computed exactly.
        let approximate = op.name == "div" && op.take_any(&["approx", "full"]).is_some();
        let (flush, saturate) = (op.take("ftz"), op.take("sat"));
        let operands = op.all()?;
        let ternary = matches!(op.name, "fma" | "mad");
        if operands.len() != if ternary { 4 } else { 3 } || (of.bits == 64 && (saturate || approximate)) {
            return op.not_for(of);
        }
        let mut inputs = Vec::new();
        for operand in &operands[1..] {
            let input = self.number(operand, of)?;
            inputs.push(flushed(op, of, flush, &input)?);
        }
        let (a, b) = (&inputs[0], &inputs[1]);
        let value = if rounding == "rn" {
            match op.name {
                "add" => format!("{a} + {b}"),
                "sub" => format!("{a} - {b}"),
                "mul" => format!("{a} * {b}"),
                "div" => format!("{a} / {b}"),
                _ if of.bits == 32 => format!("__builtin_fmaf({a}, {b}, {})", inputs[2]),
                _ => format!("__builtin_fma({a}, {b}, {})", inputs[2]),
            }
        } else {
            let mode = match rounding {
                "rz" => "ZERO",
                "rm" => "DOWN",
                _ => "UP",
            };
            match (op.name, of.bits) {
                ("add", bits) => format!("add_f{bits}({a}, {b}, {mode})"),
                ("sub", bits) => format!("add_f{bits}({a}, -({b}), {mode})"),
                ("mul", 32) => format!("mul_f32({a}, {b}, {mode})"),
                ("fma" | "mad", 32) => format!("fma_f32({a}, {b}, {}, {mode})", inputs[2]),
                _ => return Err(format!("the rounding .{rounding} of {} with {} bits", op.name, of.bits)),
            }
        };
        let value = flushed(op, of, flush, &value)?;
        self.assign(&operands[0], of, &if saturate { format!("saturate({value})") } else { value })
    }

    /// Roots, reciprocals and transcendental functions. The host's library computes the approximate ones.
    pub(super) fn special_function(&mut self, op: &mut Operation<'_>) -> Emit {
        let of = op.last_type()?;
        let exact = op.take("rn");
        let approximate = op.take("approx");
        let flush = op.take("ftz");
        let [d, a] = op.operands()?;
        let has_exact = matches!(op.name, "sqrt" | "rcp");
        if exact == approximate || (exact && !has_exact) || !of.is_float() {
            return op.not_for(of);
        }
        if of.is_half() {
            return self.special_function_of_half(op, of, d, a, flush);
        }
        let a = self.number(a, of)?;
        if of.bits == 64 {
            let value = match (op.name, exact, flush) {
                ("sqrt", true, false) => format!("__builtin_sqrt({a})"),
                ("rcp", true, false) => format!("1 / {a}"),
                ("rcp", false, true) => format!("rcp_approx_f64({a})"),
                ("rsqrt", false, _) => format!("rsqrt_approx_f64({a})"),
                _ => return op.not_for(of),
            };
            return self.assign(d, of, &value);
        }
        let a = flushed(op, of, flush, &a)?;
        let value = flushed(op, of, flush, &special(op.name, &a))?;
        self.assign(d, of, &value)
    }

    /// `copysign`: the sign of the first operand, the rest of the second.
    pub(super) fn copysign(&mut self, op: &mut Operation<'_>) -> Emit {
        let of = op.last_type()?;
        let [d, a, b] = op.operands()?;
        if of.kind != Kind::Float || of.bits < 32 {
            return op.not_for(of);
        }
        let (a, b) = (self.number(a, of)?, self.number(b, of)?);
        let suffix = if of.bits == 32 { "f" } else { "" };
        self.assign(d, of, &format!("__builtin_copysign{suffix}({b}, {a})"))
    }

    pub(super) fn testp(&mut self, op: &mut Operation<'_>) -> Emit {
        let of = op.last_type()?;
        let what = op.take_first(&["finite", "infinite", "number", "notanumber", "normal", "subnormal"])?;
        let [d, a] = op.operands()?;
        if of.kind != Kind::Float || of.bits < 32 {
            return op.not_for(of);
        }
        let a = self.number(a, of)?;
        let value = match what {
            "finite" => format!("!!__builtin_isfinite({a})"),
            "infinite" => format!("!!__builtin_isinf({a})"),
            "number" => format!("{a} == {a}"),
            "notanumber" => format!("{a} != {a}"),
            "normal" => format!("!!__builtin_isnormal({a})"),
            _ => format!("__builtin_isfinite({a}) && {a} != 0 && !__builtin_isnormal({a})"),
        };
        self.assign(d, Type { kind: Kind::Predicate, bits: 1 }, &value)
    }
}

fn flushed(op: &Operation<'_>, of: Type, flush: bool, value: &str) -> Emit {
    match (flush, of.bits) {
        (false, _) => Ok(value.to_owned()),
        (true, 32) => Ok(format!("flush({value})")),
        _ => op.not_for(of),
    }
}

pub(super) fn special(name: &str, a: &str) -> String {
    match name {
        "sqrt" => format!("__builtin_sqrtf({a})"),
        "rsqrt" => format!("(float)(1 / __builtin_sqrt({a}))"),
        "rcp" => format!("1 / {a}"),
        "ex2" => format!("__builtin_exp2f({a})"),
        "lg2" => format!("__builtin_log2f({a})"),
        name => format!("__builtin_{name}f({a})"),
    }
}
