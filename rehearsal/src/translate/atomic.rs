//! `atom` and `red` ("Parallel Synchronization and Communication Instructions"). A thread runs alone, and a kernel with atomics runs one
//! block at a time, so read and write are two plain steps.

use super::emitter::Emitter;
use super::half::names;
use super::memory::{Access, take_orders, take_space};
use super::operation::{Emit, Operation, c_integer};
use crate::ptx::{Kind, Operand, Space, Type};

impl Emitter<'_> {
    pub(super) fn atomic(&mut self, op: &mut Operation<'_>) -> Emit {
        let of = op.last_type()?;
        let mut orders = take_orders(op, "relaxed")?;
        if op.name == "atom" && orders != "0" {
            orders.push_str(" | OBSERVES");
        }
        let space = take_space(op)?;
        if !matches!(space, Space::Global | Space::Shared) {
            return op.not_for(of);
        }
        let no_flush = of.is_half() && op.take("noftz");
        let known = ["add", "exch", "cas", "min", "max", "and", "or", "xor", "inc", "dec"];
        let what = op.take_first(&known)?;
        let all = op.all()?;
        let (d, rest) = match (op.name, all) {
            ("atom", [d, rest @ ..]) => (Some(d), rest),
            (_, rest) => (None, rest),
        };
        let [address, b, c @ ..] = rest else {
            return Err(format!("{} with {} operands", op.name, all.len()));
        };
        if c.len() != usize::from(what == "cas") || of.bits < 16 || of.is_pair() {
            return op.not_for(of);
        }
        let pointer = self.ordered_pointer(space, address, of.bytes(), Access::Update, &orders)?;
        let c_type = c_integer(of.bits, false);
        let new = match what {
            "cas" => {
                let (b, c) = (self.bits(b, of.bits)?, self.bits(&c[0], of.bits)?);
                if of.kind != Kind::Bits {
                    return op.not_for(of);
                }
                format!("old == {b} ? {c} : old")
            }
            "exch" => self.bits(b, of.bits)?,
            _ if of.is_float() => self.float_sum(op, of, b, what, space, no_flush)?,
            _ => self.integer_update(op, of, b, what)?,
        };
        self.unit.atomics = true;
        let keep = match d {
            Some(d) => self.assign(d, Type::raw(of.bits), "old")?,
            None => String::new(),
        };
        Ok(format!("{{ {c_type} *at = ({c_type} *){pointer}, old = *at; *at = {new}; {keep} }}"))
    }

    /// `add` of f32 flushes subnormals in global memory, as the manual says of current GPUs; elsewhere it does not.
    fn float_sum(
        &mut self,
        op: &Operation<'_>,
        of: Type,
        b: &Operand,
        what: &str,
        space: Space,
        no_flush: bool,
    ) -> Emit {
        if what != "add" || of.is_half() != no_flush {
            return op.not_for(of);
        }
        let b = self.number(b, of)?;
        Ok(match (of.bits, space) {
            (32, Space::Global) => format!("bits32(flush(flush(f32(old)) + flush({b})))"),
            (32, _) => format!("bits32(f32(old) + {b})"),
            (64, _) => format!("bits64(f64(old) + {b})"),
            _ => {
                let (read, keep) = names(of);
                format!("{keep}({read}(old) + {b})")
            }
        })
    }

    fn integer_update(&mut self, op: &Operation<'_>, of: Type, b: &Operand, what: &str) -> Emit {
        if of.bits < 32 {
            return op.not_for(of);
        }
        let b = self.integer(b, of)?;
        let old = format!("({})old", c_integer(of.bits, of.is_signed()));
        Ok(match (what, of.kind) {
            ("add", Kind::Unsigned | Kind::Signed) => format!("{old} + {b}"),
            ("min", Kind::Unsigned | Kind::Signed) => format!("{old} < {b} ? {old} : {b}"),
            ("max", Kind::Unsigned | Kind::Signed) => format!("{old} > {b} ? {old} : {b}"),
            ("and", Kind::Bits) => format!("old & {b}"),
            ("or", Kind::Bits) => format!("old | {b}"),
            ("xor", Kind::Bits) => format!("old ^ {b}"),
            // These wrap at b.
            ("inc", Kind::Unsigned) if of.bits == 32 => format!("old >= {b} ? 0 : old + 1"),
            ("dec", Kind::Unsigned) if of.bits == 32 => format!("old == 0 || old > {b} ? {b} : old - 1"),
            _ => return op.not_for(of),
        })
    }
}
