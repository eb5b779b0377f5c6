//! Barriers and warp operations ("Parallel Synchronization and Communication Instructions"). The thread stores its operands in `Thread`
//! and returns; the scheduler runs the operation and calls again. Matrix operations ([`super::matrix`]) wait likewise.

use super::emitter::Emitter;
use super::operation::{Emit, Operation};
use super::step::{Code, Wait};
use crate::ptx::{Kind, Operand, Type};

const PREDICATE: Type = Type { kind: Kind::Predicate, bits: 1 };

impl Emitter<'_> {
    /// Returns after `text` until the runtime has done `what`.
    pub(super) fn wait(&mut self, what: &'static str, text: String, then: String) -> Emit<Code> {
        if !self.function.is_entry {
            return Err("a barrier or a warp operation in a device function".to_owned());
        }
        self.unit.waits += 1;
        let text = format!("{text} t->at = {};", self.at);
        Ok(Code { text, wait: Some(Wait { what, number: self.unit.waits, then }), ..Code::default() })
    }

    /// A warp operation, by its name in `WarpOp`.
    pub(super) fn warp_op(&mut self, name: &str, given: &str, mask: &str, then: String) -> Emit<Code> {
        self.wait("AT_WARP_OP", format!("t->op = {name}; {given}t->mask = {mask};"), then)
    }

    /// `bar.sync 0`, `barrier.sync 0`, `bar.warp.sync`. Other barriers, and barriers of part of a block, are not supported.
    pub(super) fn barrier(&mut self, op: &mut Operation<'_>) -> Emit<Code> {
        if op.name == "bar" && op.take("warp") {
            op.take_first(&["sync"])?;
            let [mask] = op.operands()?;
            let mask = self.bits(mask, 32)?;
            return self.warp_op("WARP_SYNC", "", &mask, String::new());
        }
        op.take("cta");
        op.take_first(&["sync"])?;
        if op.name == "barrier" {
            op.take("aligned");
        }
        match op.operands()? {
            [Operand::Integer(0)] => self.wait("AT_BARRIER", String::new(), String::new()),
            _ => Err("a barrier other than number 0".to_owned()),
        }
    }

    pub(super) fn shuffle(&mut self, op: &mut Operation<'_>) -> Emit<Code> {
        op.take_first(&["sync"])?;
        let name = match op.take_first(&["up", "down", "bfly", "idx"])? {
            "up" => "SHFL_UP",
            "down" => "SHFL_DOWN",
            "bfly" => "SHFL_BFLY",
            _ => "SHFL_IDX",
        };
        op.take_first(&["b32"])?;
        let [d, a, b, c, mask] = op.operands()?;
        let (a, b, c) = (self.bits(a, 32)?, self.bits(b, 32)?, self.bits(c, 32)?);
        let mask = self.bits(mask, 32)?;
        let raw = Type::raw(32);
        let then = match d {
            Operand::Pair(d, p) => {
                format!(
                    "{} {}",
                    self.assign(d, raw, "t->result")?,
                    self.assign(p, PREDICATE, "t->predicate != 0")?
                )
            }
            d => self.assign(d, raw, "t->result")?,
        };
        self.warp_op(name, &format!("t->value = {a}; t->lane = {b}; t->clamp = {c}; "), &mask, then)
    }

    pub(super) fn vote(&mut self, op: &mut Operation<'_>) -> Emit<Code> {
        op.take_first(&["sync"])?;
        let mode = op.take_first(&["all", "any", "uni", "ballot"])?;
        op.take_first(&[if mode == "ballot" { "b32" } else { "pred" }])?;
        let [d, a, mask] = op.operands()?;
        let (a, mask) = (self.predicate(a)?, self.bits(mask, 32)?);
        let then = if mode == "ballot" {
            self.assign(d, Type::raw(32), "t->result")?
        } else {
            self.assign(d, PREDICATE, "t->predicate != 0")?
        };
        self.warp_op(&format!("VOTE_{}", mode.to_uppercase()), &format!("t->value = {a}; "), &mask, then)
    }

    /// `redux.sync` of integers.
    pub(super) fn reduce(&mut self, op: &mut Operation<'_>) -> Emit<Code> {
        op.take_first(&["sync"])?;
        let what = op.take_first(&["add", "min", "max", "and", "or", "xor"])?;
        let of = op.last_type()?;
        let name = match (what, of.kind) {
            ("min", Kind::Unsigned) => "REDUX_UMIN",
            ("max", Kind::Unsigned) => "REDUX_UMAX",
            ("min", Kind::Signed) => "REDUX_MIN",
            ("max", Kind::Signed) => "REDUX_MAX",
            ("add", Kind::Unsigned | Kind::Signed) => "REDUX_ADD",
            ("and", Kind::Bits) => "REDUX_AND",
            ("or", Kind::Bits) => "REDUX_OR",
            ("xor", Kind::Bits) => "REDUX_XOR",
            _ => return op.not_for(of),
        };
        let [d, a, mask] = op.operands()?;
        if of.bits != 32 {
            return op.not_for(of);
        }
        let (a, mask) = (self.bits(a, 32)?, self.bits(mask, 32)?);
        let then = self.assign(d, Type::raw(32), "t->result")?;
        self.warp_op(name, &format!("t->value = {a}; "), &mask, then)
    }

    /// `activemask`: the lanes that arrived together, as far as a scheduler of single threads can tell.
    pub(super) fn active_mask(&mut self, op: &mut Operation<'_>) -> Emit<Code> {
        op.take_first(&["b32"])?;
        let [d] = op.operands()?;
        let then = self.assign(d, Type::raw(32), "t->result")?;
        self.warp_op("ACTIVE_MASK", "", "0", then)
    }
}
