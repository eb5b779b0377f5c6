//! "Logic and Shift Instructions", and `mov` and `prmt` of "Data Movement and Conversion Instructions".

use super::emitter::Emitter;
use super::operation::{Emit, Operation, c_integer};
use crate::ptx::{Kind, Operand, Type};

impl Emitter<'_> {
    pub(super) fn logic(&mut self, op: &mut Operation<'_>) -> Emit {
        let of = op.last_type()?;
        let is_predicate = of.kind == Kind::Predicate;
        if !is_predicate && (of.kind != Kind::Bits || of.bits < 16) {
            return op.not_for(of);
        }
        let mut read = |operand: &Operand| {
            if is_predicate { self.predicate(operand) } else { self.bits(operand, of.bits) }
        };
        let value = match op.name {
            "not" | "cnot" => {
                let [_, a] = op.operands()?;
                let not = if is_predicate || op.name == "cnot" { '!' } else { '~' };
                format!("{not}{}", read(a)?)
            }
            name => {
                let [_, a, b] = op.operands()?;
                let sign = match name {
                    "and" => '&',
                    "or" => '|',
                    _ => '^',
                };
                format!("{} {sign} {}", read(a)?, read(b)?)
            }
        };
        let d = &op.all()?[0];
        self.assign(d, of, &value)
    }

    /// `shl`, `shr`: the 32-bit amount is clamped to the width.
    pub(super) fn shift(&mut self, op: &mut Operation<'_>) -> Emit {
        let of = op.last_type()?;
        let [d, a, by] = op.operands()?;
        if !of.is_integer() || of.bits < 16 || (op.name == "shl" && of.kind != Kind::Bits) {
            return op.not_for(of);
        }
        let a = self.integer(a, of)?;
        let by_constant = matches!(by, Operand::Integer(by) if *by < u64::from(of.bits));
        let by = self.bits(by, 32)?;
        let value = match (op.name, of.is_signed()) {
            ("shl", _) if by_constant => format!("{a} << {by}"),
            (_, _) if by_constant => format!("{a} >> {by}"),
            ("shl", _) => format!("shift_left({a}, {by}, {})", of.bits),
            (_, true) => format!("shift_right_signed({a}, {by}, {})", of.bits),
            (_, false) => format!("shift_right({a}, {by}, {})", of.bits),
        };
        self.assign(d, Type::raw(of.bits), &value)
    }

    pub(super) fn funnel_shift(&mut self, op: &mut Operation<'_>) -> Emit {
        let side = op.take_first(&["l", "r"])?;
        let mode = op.take_first(&["clamp", "wrap"])?;
        op.take_first(&["b32"])?;
        let [d, a, b, c] = op.operands()?;
        let (a, b, c) = (self.bits(a, 32)?, self.bits(b, 32)?, self.bits(c, 32)?);
        let name = if side == "l" { "funnel_left" } else { "funnel_right" };
        let value = match mode {
            "wrap" => format!("{name}({a}, {b}, {c} & 31)"),
            _ => format!("{name}_clamp({a}, {b}, {c})"),
        };
        self.assign(d, Type::raw(32), &value)
    }

    /// `lop3`: any function of three bits, emitted as the OR of its minterms.
    pub(super) fn lop3(&mut self, op: &mut Operation<'_>) -> Emit {
        op.take_first(&["b32"])?;
        let [d, a, b, c, table] = op.operands()?;
        let Operand::Integer(table) = table else { return Err("lop3 without a constant table".to_owned()) };
        let inputs = [(self.bits(a, 32)?, 4), (self.bits(b, 32)?, 2), (self.bits(c, 32)?, 1)];
        let terms = (0..8_u64).filter(|row| table >> row & 1 == 1).map(|row| {
            let factors = inputs
                .iter()
                .map(|(input, bit)| if row & bit == 0 { format!("~{input}") } else { input.clone() });
            format!("({})", factors.collect::<Vec<_>>().join(" & "))
        });
        let value = terms.collect::<Vec<_>>().join(" | ");
        self.assign(d, Type::raw(32), if value.is_empty() { "0" } else { &value })
    }

    /// `prmt` in default mode.
    pub(super) fn prmt(&mut self, op: &mut Operation<'_>) -> Emit {
        op.take_first(&["b32"])?;
        let [d, a, b, c] = op.operands()?;
        let (a, b, c) = (self.bits(a, 32)?, self.bits(b, 32)?, self.bits(c, 32)?);
        self.assign(d, Type::raw(32), &format!("permute({a}, {b}, {c})"))
    }

    /// `mov`, including packing and unpacking vectors.
    pub(super) fn mov(&mut self, op: &mut Operation<'_>) -> Emit {
        let of = op.last_type()?;
        let [d, a] = op.operands()?;
        if of.kind == Kind::Predicate {
            let a = self.predicate(a)?;
            return self.assign(d, of, &a);
        }
        if of.bits < 16 || of.is_pair() {
            return op.not_for(of);
        }
        let raw = Type::raw(of.bits);
        match (d, a) {
            (Operand::Vector(parts), whole) => {
                let part = part(of, parts.len())?;
                let whole = self.bits(whole, of.bits)?;
                let mut text = format!("{{ {} whole = {whole};", c_integer(of.bits, false));
                for (index, d) in parts.iter().enumerate() {
                    let value = format!("({})(whole >> {})", c_integer(part, false), index * part as usize);
                    text = format!("{text} {}", self.assign(d, Type::raw(part), &value)?);
                }
                Ok(text + " }")
            }
            (whole, Operand::Vector(parts)) => {
                let part = part(of, parts.len())?;
                let mut pieces = Vec::new();
                for (index, a) in parts.iter().enumerate() {
                    let a = self.bits(a, part)?;
                    pieces.push(format!("({}){a} << {}", c_integer(of.bits, false), index * part as usize));
                }
                self.assign(whole, raw, &pieces.join(" | "))
            }
            _ if of.is_float() && of.bits >= 32 => {
                let a = self.number(a, of)?;
                self.assign(d, of, &a)
            }
            _ => {
                let a = self.bits(a, of.bits)?;
                self.assign(d, raw, &a)
            }
        }
    }
}

/// Width of each part in bits.
fn part(whole: Type, parts: usize) -> Emit<u32> {
    match (whole.bits, parts) {
        (16 | 32 | 64, 2) | (32 | 64, 4) => Ok(whole.bits / parts as u32),
        _ => Err(format!("{} bits in {parts} parts", whole.bits)),
    }
}
