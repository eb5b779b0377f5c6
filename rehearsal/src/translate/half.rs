//! "Half Precision Floating-Point Instructions": f16 and bf16, scalars and pairs. Rounding: see `kernel/half.h`.

use super::emitter::Emitter;
use super::float::special;
use super::operation::{Emit, Operation};
use crate::ptx::{Kind, Operand, Type};

impl Emitter<'_> {
    pub(super) fn half(&mut self, op: &mut Operation<'_>, of: Type) -> Emit {
        let one = if of.is_pair() { of.half_of_pair() } else { of };
        let rounds = matches!(op.name, "add" | "sub" | "mul" | "fma");
        if rounds {
            op.take("rn");
        }
        let relu = op.name == "fma" && op.take("relu");
        let saturate = rounds && one.kind == Kind::Float && op.take("sat");
        let nan = matches!(op.name, "min" | "max") && op.take("NaN");
        let operands = op.all()?;
        let inputs = match op.name {
            "neg" | "abs" => 1,
            "fma" => 3,
            "add" | "sub" | "mul" | "min" | "max" => 2,
            _ => return op.not_for(of),
        };
        if operands.len() != inputs + 1 {
            return op.not_for(of);
        }
        let mut words = Vec::new();
        for operand in &operands[1..] {
            words.push(self.bits(operand, of.bits)?);
        }
        let value = |words: &[String]| -> String {
            let bits = one_half(op.name, one, words, nan);
            let (read, keep) = names(one);
            match (relu, saturate) {
                (true, _) => format!("{keep}(relu({read}({bits})))"),
                (_, true) => format!("{keep}(saturate({read}({bits})))"),
                _ => bits,
            }
        };
        let value = if of.is_pair() {
            let half = |shift: u32| {
                words.iter().map(|word| format!("(uint16_t)({word} >> {shift})")).collect::<Vec<_>>()
            };
            format!("(uint32_t)(uint16_t)({}) << 16 | (uint16_t)({})", value(&half(16)), value(&half(0)))
        } else {
            value(&words)
        };
        self.assign(&operands[0], Type::raw(of.bits), &value)
    }

    pub(super) fn special_function_of_half(
        &mut self,
        op: &Operation<'_>,
        of: Type,
        d: &Operand,
        a: &Operand,
        flush: bool,
    ) -> Emit {
        // `.ftz` is part of ex2's bf16 name; for f16 it would flush, and no kernel uses it.
        if !matches!(op.name, "ex2" | "tanh") || flush != (op.name == "ex2" && of.kind == Kind::Brain) {
            return op.not_for(of);
        }
        let mut a = self.number(a, of)?;
        let keep = names(of).1;
        if flush {
            a = format!("flush({a})");
        }
        let value = special(op.name, &a);
        let value = if flush { format!("flush({value})") } else { value };
        self.assign(d, Type::raw(16), &format!("{keep}({value})"))
    }
}

/// C functions that convert from and to the bits of a half.
pub(super) fn names(of: Type) -> (&'static str, &'static str) {
    if of.kind == Kind::Brain { ("bf16", "to_bf16") } else { ("f16", "to_f16") }
}

fn one_half(name: &str, of: Type, words: &[String], nan: bool) -> String {
    let (read, keep) = names(of);
    let input = |index: usize| format!("{read}({})", words[index]);
    match name {
        "neg" => format!("{} ^ 0x8000", words[0]),
        "abs" => format!("{} & 0x7FFF", words[0]),
        "min" | "max" => {
            format!("{keep}({name}{}_f32({}, {}))", if nan { "_nan" } else { "" }, input(0), input(1))
        }
        // Sums of two halves, and products of f16, round in f32 such that rounding again changes nothing. Products of bf16 may be
        // subnormal in f32.
        "add" => format!("{keep}({} + {})", input(0), input(1)),
        "sub" => format!("{keep}({} - {})", input(0), input(1)),
        "mul" if of.kind == Kind::Brain => {
            format!("exact_to_bf16(exact_f64((double){} * {}))", input(0), input(1))
        }
        "mul" => format!("{keep}({} * {})", input(0), input(1)),
        _ => format!("fma_{read}({}, {}, {})", input(0), input(1), input(2)),
    }
}
