//! "Comparison and Selection Instructions".

use super::emitter::Emitter;
use super::operation::{Emit, Operation};
use crate::ptx::{Kind, Operand, Type};

const COMPARISONS: [&str; 18] = [
    "eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs", "equ", "neu", "ltu", "leu", "gtu", "geu",
    "num", "nan",
];

impl Emitter<'_> {
    /// `a comparison b` as 0 or 1. Plain float comparisons are false for NaN, those with `u` are true.
    fn comparison(&mut self, name: &str, of: Type, flush: bool, a: &Operand, b: &Operand) -> Emit {
        if of.is_float() {
            let (mut a, mut b) = (self.number(a, of)?, self.number(b, of)?);
            if flush {
                if of.bits != 32 {
                    return Err("a comparison with .ftz that is not of .f32".to_owned());
                }
                (a, b) = (format!("flush({a})"), format!("flush({b})"));
            }
            return Ok(match name {
                "eq" => format!("({a} == {b})"),
                "ne" => format!("({a} < {b} || {a} > {b})"),
                "lt" => format!("({a} < {b})"),
                "le" => format!("({a} <= {b})"),
                "gt" => format!("({a} > {b})"),
                "ge" => format!("({a} >= {b})"),
                "equ" => format!("!({a} < {b} || {a} > {b})"),
                "neu" => format!("({a} != {b})"),
                "ltu" => format!("!({a} >= {b})"),
                "leu" => format!("!({a} > {b})"),
                "gtu" => format!("!({a} <= {b})"),
                "geu" => format!("!({a} < {b})"),
                "num" => format!("({a} == {a} && {b} == {b})"),
                "nan" => format!("({a} != {a} || {b} != {b})"),
                _ => return Err(format!("the comparison .{name} of floats")),
            });
        }
        if !of.is_integer() || of.bits < 16 || flush {
            return Err(format!("a comparison of {:?} with {} bits", of.kind, of.bits));
        }
        let sign = match (name, of.kind) {
            ("eq", _) => "==",
            ("ne", _) => "!=",
            ("lt", Kind::Signed | Kind::Unsigned) | ("lo", Kind::Unsigned) => "<",
            ("le", Kind::Signed | Kind::Unsigned) | ("ls", Kind::Unsigned) => "<=",
            ("gt", Kind::Signed | Kind::Unsigned) | ("hi", Kind::Unsigned) => ">",
            ("ge", Kind::Signed | Kind::Unsigned) | ("hs", Kind::Unsigned) => ">=",
            _ => return Err(format!("the comparison .{name} of {:?}", of.kind)),
        };
        let (a, b) = (self.integer(a, of)?, self.integer(b, of)?);
        Ok(format!("({a} {sign} {b})"))
    }

    /// `setp`: one or two predicates, optionally combined with a third.
    pub(super) fn setp(&mut self, op: &mut Operation<'_>) -> Emit {
        let of = op.last_type()?;
        let name = op.take_first(&COMPARISONS)?;
        let join = op.take_any(&["and", "or", "xor"]);
        let flush = op.take("ftz");
        let operands = op.all()?;
        let (d, a, b, with) = match (operands, join) {
            ([d, a, b], None) => (d, a, b, None),
            ([d, a, b, c], Some(join)) => (d, a, b, Some((join, c))),
            _ => return Err(format!("setp with {} operands", operands.len())),
        };
        let test = self.comparison(name, of, flush, a, b)?;
        let joined = |with: Option<(&str, &str)>, test: &str| match with {
            Some(("and", c)) => format!("{test} & {c}"),
            Some(("or", c)) => format!("{test} | {c}"),
            Some((_, c)) => format!("{test} ^ {c}"),
            None => test.to_owned(),
        };
        let with = match with {
            Some((join, c)) => Some((join, self.predicate(c)?)),
            None => None,
        };
        let with = with.as_ref().map(|(join, c)| (*join, c.as_str()));
        let predicate = Type { kind: Kind::Predicate, bits: 1 };
        match d {
            Operand::Pair(p, q) => {
                let p = self.assign(p, predicate, &joined(with, "test"))?;
                let q = self.assign(q, predicate, "other")?;
                let other = joined(with, "!test");
                Ok(format!("{{ uint8_t test = {test}, other = {other}; {p} {q} }}"))
            }
            d => self.assign(d, predicate, &joined(with, &test)),
        }
    }

    /// `set`: the comparison as all ones or 1.0.
    pub(super) fn set(&mut self, op: &mut Operation<'_>) -> Emit {
        let of = op.last_type()?;
        let to = op.last_type()?;
        let name = op.take_first(&COMPARISONS)?;
        let flush = op.take("ftz");
        let [d, a, b] = op.operands()?;
        let test = self.comparison(name, of, flush, a, b)?;
        let value = match (to.kind, to.bits) {
            (Kind::Float, 32) => return self.assign(d, to, &format!("(float){test}")),
            (Kind::Float, 16) => format!("{test} ? 0x3C00 : 0"),
            (Kind::Brain, 16) => format!("{test} ? 0x3F80 : 0"),
            (Kind::Unsigned | Kind::Signed, 16 | 32) => format!("{test} ? -1 : 0"),
            _ => return op.not_for(to),
        };
        self.assign(d, Type::raw(to.bits), &value)
    }

    pub(super) fn select(&mut self, op: &mut Operation<'_>) -> Emit {
        let by = if op.name == "slct" { Some(op.last_type()?) } else { None };
        let of = op.last_type()?;
        let flush = by.is_some() && op.take("ftz");
        let [d, a, b, c] = op.operands()?;
        if of.bits < 16 || of.is_half() || of.is_pair() {
            return op.not_for(of);
        }
        let test = match by {
            None => self.predicate(c)?,
            Some(by) if by.kind == Kind::Signed && by.bits == 32 && !flush => {
                format!("{} >= 0", self.integer(c, by)?)
            }
            Some(by) if by.kind == Kind::Float && by.bits == 32 => {
                let c = self.number(c, by)?;
                // NaN counts as negative, and -0 as 0.
                if flush { format!("flush({c}) >= 0") } else { format!("{c} >= 0") }
            }
            Some(by) => return op.not_for(by),
        };
        let (a, b, keep) = if of.is_float() {
            (self.number(a, of)?, self.number(b, of)?, of)
        } else {
            (self.bits(a, of.bits)?, self.bits(b, of.bits)?, Type::raw(of.bits))
        };
        self.assign(d, keep, &format!("{test} ? {a} : {b}"))
    }
}
