//! An instruction while it is being understood: its opcode, the modifiers that nobody has taken yet, its
//! operands.

use crate::ptx::{Instruction, Operand, Type};

/// A piece of C, or why there is none.
pub(super) type Emit<T = String> = Result<T, String>;

/// See the module.
pub(super) struct Operation<'i> {
    /// The first part of the opcode: `ld`.
    pub name: &'i str,
    modifiers: Vec<&'i str>,
    operands: &'i [Operand],
}

impl<'i> Operation<'i> {
    pub(super) fn new(instruction: &'i Instruction) -> Operation<'i> {
        let mut parts = instruction.opcode.iter().map(String::as_str);
        let name = parts.next().unwrap_or_default();
        Operation { name, modifiers: parts.collect(), operands: &instruction.operands }
    }

    /// Removes a modifier; whether it was there.
    pub(super) fn take(&mut self, modifier: &str) -> bool {
        self.take_any(&[modifier]).is_some()
    }

    /// Whether a modifier is there.
    pub(super) fn has(&self, modifier: &str) -> bool {
        self.modifiers.contains(&modifier)
    }

    /// Removes the first modifier that is one of `known`.
    pub(super) fn take_any(&mut self, known: &[&str]) -> Option<&'i str> {
        let at = self.modifiers.iter().position(|modifier| known.contains(modifier))?;
        Some(self.modifiers.remove(at))
    }

    /// Removes the first modifier, which must be one of `known`.
    pub(super) fn take_first(&mut self, known: &[&str]) -> Emit<&'i str> {
        match self.modifiers.first().copied() {
            Some(first) if known.contains(&first) => Ok(self.modifiers.remove(0)),
            _ => Err(format!("{} is not followed by any of .{}", self.name, known.join(" ."))),
        }
    }

    /// Removes all modifiers that `hints` accepts: those that change nothing that can be seen here.
    pub(super) fn drop_hints(&mut self, hints: impl Fn(&str) -> bool) {
        self.modifiers.retain(|modifier| !hints(modifier));
    }

    /// Removes the last modifier, which must be a type.
    pub(super) fn last_type(&mut self) -> Emit<Type> {
        let last = self.modifiers.pop().ok_or_else(|| format!("{} without a type", self.name))?;
        Type::named(last).ok_or_else(|| format!("the type .{last}"))
    }

    /// The last modifier as a type, left where it is.
    pub(super) fn peek_type(&self) -> Option<Type> {
        self.modifiers.last().and_then(|last| Type::named(last))
    }

    /// All operands, once no modifier is left.
    pub(super) fn all(&self) -> Emit<&'i [Operand]> {
        match self.modifiers.first() {
            Some(left) => Err(format!("the modifier .{left} of {}", self.name)),
            None => Ok(self.operands),
        }
    }

    /// As many operands as asked for, once no modifier is left.
    pub(super) fn operands<const N: usize>(&self) -> Emit<&'i [Operand; N]> {
        let all = self.all()?;
        all.try_into().map_err(|_| format!("{} with {} operands", self.name, all.len()))
    }

    /// One operand, whatever modifiers are left.
    pub(super) fn operand(&self, index: usize) -> Emit<&'i Operand> {
        self.operands.get(index).ok_or_else(|| format!("{} with {} operands", self.name, self.operands.len()))
    }

    /// How many operands there are.
    pub(super) fn operand_count(&self) -> usize {
        self.operands.len()
    }

    /// Why this operation is refused for a type.
    pub(super) fn not_for<T>(&self, of: Type) -> Emit<T> {
        Err(format!("{} of {:?} with {} bits", self.name, of.kind, of.bits))
    }
}

/// The C type of integers of that width.
pub(super) fn c_integer(bits: u32, signed: bool) -> String {
    format!("{}int{bits}_t", if signed { "" } else { "u" })
}

/// The C type of a value in memory.
pub(super) fn c_type(of: Type) -> String {
    match (of.is_float(), of.bits) {
        (true, 32) => "float".to_owned(),
        (true, 64) => "double".to_owned(),
        _ => c_integer(of.bits, of.is_signed()),
    }
}
