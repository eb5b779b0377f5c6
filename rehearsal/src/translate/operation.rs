//! An instruction during translation: its opcode, its remaining modifiers, its operands.

use crate::ptx::{Instruction, Operand, Type};

/// C text, or an error message.
pub(super) type Emit<T = String> = Result<T, String>;

pub(super) struct Operation<'i> {
    /// First part of the opcode: `ld`.
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

    /// Removes a modifier; true if present.
    pub(super) fn take(&mut self, modifier: &str) -> bool {
        self.take_any(&[modifier]).is_some()
    }

    pub(super) fn has(&self, modifier: &str) -> bool {
        self.modifiers.contains(&modifier)
    }

    /// Removes the first modifier in `known`.
    pub(super) fn take_any(&mut self, known: &[&str]) -> Option<&'i str> {
        let at = self.modifiers.iter().position(|modifier| known.contains(modifier))?;
        Some(self.modifiers.remove(at))
    }

    /// Removes the first modifier, which must be in `known`.
    pub(super) fn take_first(&mut self, known: &[&str]) -> Emit<&'i str> {
        match self.modifiers.first().copied() {
            Some(first) if known.contains(&first) => Ok(self.modifiers.remove(0)),
            _ => Err(format!("{} is not followed by any of .{}", self.name, known.join(" ."))),
        }
    }

    /// Removes all modifiers that `hints` accepts, which have no effect here.
    pub(super) fn drop_hints(&mut self, hints: impl Fn(&str) -> bool) {
        self.modifiers.retain(|modifier| !hints(modifier));
    }

    /// Removes the last modifier, which must be a type.
    pub(super) fn last_type(&mut self) -> Emit<Type> {
        let last = self.modifiers.pop().ok_or_else(|| format!("{} without a type", self.name))?;
        Type::named(last).ok_or_else(|| format!("the type .{last}"))
    }

    /// The last modifier as a type; does not remove it.
    pub(super) fn peek_type(&self) -> Option<Type> {
        self.modifiers.last().and_then(|last| Type::named(last))
    }

    /// All operands; an error if a modifier is left.
    pub(super) fn all(&self) -> Emit<&'i [Operand]> {
        match self.modifiers.first() {
            Some(left) => Err(format!("the modifier .{left} of {}", self.name)),
            None => Ok(self.operands),
        }
    }

    /// Exactly `N` operands; an error if a modifier is left.
    pub(super) fn operands<const N: usize>(&self) -> Emit<&'i [Operand; N]> {
        let all = self.all()?;
        all.try_into().map_err(|_| format!("{} with {} operands", self.name, all.len()))
    }

    /// One operand; ignores modifiers.
    pub(super) fn operand(&self, index: usize) -> Emit<&'i Operand> {
        self.operands.get(index).ok_or_else(|| format!("{} with {} operands", self.name, self.operands.len()))
    }

    pub(super) fn operand_count(&self) -> usize {
        self.operands.len()
    }

    pub(super) fn not_for<T>(&self, of: Type) -> Emit<T> {
        Err(format!("{} of {:?} with {} bits", self.name, of.kind, of.bits))
    }
}

pub(super) fn c_integer(bits: u32, signed: bool) -> String {
    format!("{}int{bits}_t", if signed { "" } else { "u" })
}

/// C type of a value in memory.
pub(super) fn c_type(of: Type) -> String {
    match (of.is_float(), of.bits) {
        (true, 32) => "float".to_owned(),
        (true, 64) => "double".to_owned(),
        _ => c_integer(of.bits, of.is_signed()),
    }
}
