//! Operands in C: reads registers, constants and addresses as the instruction's type, and stores results. All register reads and writes go
//! through here, which gives liveness its input.

use super::Unit;
use super::emitter::{Emitter, global_name};
use super::operation::{Emit, c_integer};
use crate::ptx::{Kind, Operand, Space, Type};

impl Emitter<'_> {
    fn read(&mut self, register: usize) -> (&str, Type) {
        self.reads.push(register);
        (&self.names[register], self.function.registers[register].of)
    }

    /// The carry register of extended-precision instructions ("CC.CF").
    pub(super) fn carry(&mut self, read: bool) -> &'static str {
        let index = self.names.len() - 1;
        if read { &mut self.reads } else { &mut self.writes }.push(index);
        "carry"
    }

    pub(super) fn bits(&mut self, operand: &Operand, width: u32) -> Emit {
        match operand {
            &Operand::Register(register) => {
                let wider = self.wider;
                let (name, of) = self.read(register);
                let text = match (of.is_float(), of.bits) {
                    (true, 32) => format!("bits32({name})"),
                    (true, 64) => format!("bits64({name})"),
                    (_, 1) => return Err(format!("the predicate {name} as a number")),
                    _ => name.to_owned(),
                };
                match of.bits {
                    bits if bits == width => Ok(text),
                    bits if bits > width && wider => Ok(format!("({}){text}", c_integer(width, false))),
                    bits => Err(format!("{name} has {bits} bits, not {width}")),
                }
            }
            Operand::Integer(value) => Ok(match width {
                64 => format!("{value:#x}ull"),
                32 => format!("{:#x}u", *value as u32),
                _ => format!("{:#x}u", value & ((1 << width) - 1)),
            }),
            Operand::Float32(bits) if width == 32 => Ok(format!("{bits:#x}u")),
            Operand::Float64(bits) if width == 64 => Ok(format!("{bits:#x}ull")),
            Operand::Variable(_) | Operand::Global(_) if width >= 32 => self.address_of(operand),
            Operand::Name(name) if width == 32 => special_register(name),
            _ => Err(format!("the operand {operand:?} with {width} bits")),
        }
    }

    pub(super) fn integer(&mut self, operand: &Operand, of: Type) -> Emit {
        let bits = self.bits(operand, of.bits)?;
        Ok(if of.is_signed() { format!("(int{}_t){bits}", of.bits) } else { bits })
    }

    /// An operand as a C number: f16 and bf16 become floats.
    pub(super) fn number(&mut self, operand: &Operand, of: Type) -> Emit {
        if of.is_half() {
            let name = if of.kind == Kind::Brain { "bf16" } else { "f16" };
            return Ok(format!("{name}({})", self.bits(operand, 16)?));
        }
        match *operand {
            Operand::Register(register) => {
                let (name, found) = self.read(register);
                match found.kind {
                    _ if found.bits != of.bits => {
                        Err(format!("{name} has {} bits, not {}", found.bits, of.bits))
                    }
                    Kind::Float => Ok(name.to_owned()),
                    _ => Ok(format!("f{}({name})", of.bits)),
                }
            }
            Operand::Float32(bits) if of.bits == 32 => {
                let value = f32::from_bits(bits);
                Ok(if value.is_finite() { format!("{value:?}f") } else { format!("f32({bits:#x}u)") })
            }
            Operand::Float64(bits) if of.bits == 64 => {
                let value = f64::from_bits(bits);
                Ok(if value.is_finite() { format!("{value:?}") } else { format!("f64({bits:#x}ull)") })
            }
            _ => Err(format!("the operand {operand:?} as a float of {} bits", of.bits)),
        }
    }

    pub(super) fn predicate(&mut self, operand: &Operand) -> Emit {
        match operand {
            &Operand::Register(register) => {
                let (name, of) = self.read(register);
                if of.kind == Kind::Predicate {
                    Ok(name.to_owned())
                } else {
                    Err(format!("{name} is no predicate"))
                }
            }
            Operand::Not(inner) => Ok(format!("!{}", self.predicate(inner)?)),
            Operand::Integer(value) => Ok(u32::from(*value != 0).to_string()),
            _ => Err(format!("the operand {operand:?} as a predicate")),
        }
    }

    /// Address of a variable: generic for device memory, an offset for other spaces.
    pub(super) fn address_of(&mut self, operand: &Operand) -> Emit {
        match *operand {
            Operand::Variable(index) => {
                let variable = &self.function.variables[index];
                match variable.space {
                    Space::Local | Space::Shared => Ok(self.places[index].to_string()),
                    Space::Param if self.function.is_entry && self.function.params.contains(&index) => {
                        Ok(self.places[index].to_string())
                    }
                    _ => Err(format!("the address of {}", variable.name)),
                }
            }
            Operand::Global(index) => {
                let variable = &self.module.variables[index];
                let (bytes, align) = (variable.bytes, variable.align);
                if variable.space == Space::Shared && variable.is_extern {
                    self.unit.dynamic = Some(self.unit.dynamic.unwrap_or(16).max(align));
                    return Ok("DYNAMIC_SHARED".to_owned());
                }
                if variable.is_extern {
                    return Err(format!("{} lies in another module", variable.name));
                }
                if variable.space == Space::Shared {
                    let place = match self.unit.globals.get(&index) {
                        Some(Some(place)) => *place,
                        _ => Unit::place(&mut self.unit.shared, bytes, align),
                    };
                    self.unit.globals.insert(index, Some(place));
                    return Ok(place.to_string());
                }
                self.unit.globals.insert(index, None);
                Ok(format!("(uint64_t){}", global_name(self.module, index)))
            }
            _ => Err(format!("the address of {operand:?}")),
        }
    }

    /// C array of a device function's parameter, or of a call's argument.
    pub(super) fn buffer(&self, index: usize) -> Emit {
        let variable = &self.function.variables[index];
        let is_kernels = self.function.is_entry && self.function.params.contains(&index);
        if variable.space != Space::Param || is_kernels {
            return Err(format!("{} is not what a function is called with", variable.name));
        }
        Ok(format!("buffer{index}"))
    }

    pub(super) fn place_of(&self, index: usize) -> u32 {
        self.places[index]
    }

    /// Stores a C expression in a register: an integer for integers and halves, a float for f32 and f64, 0 or 1 for predicates. A wider
    /// expression is truncated.
    pub(super) fn assign(&mut self, to: &Operand, of: Type, value: &str) -> Emit {
        let register = match to {
            Operand::Register(register) => *register,
            Operand::Name(name) if name == "_" => return Ok(format!("(void)({value});")),
            _ => return Err(format!("the destination {to:?}")),
        };
        self.writes.push(register);
        let (name, has) = (&self.names[register], self.function.registers[register].of);
        if (has.kind == Kind::Predicate) != (of.kind == Kind::Predicate) {
            return Err(format!("{name} and a predicate"));
        }
        let value_is_float = of.is_float() && of.bits >= 32;
        let register_is_float = has.is_float() && has.bits >= 32;
        if has.bits == of.bits {
            return Ok(match (register_is_float, value_is_float) {
                (true, false) => format!("{name} = f{}({value});", of.bits),
                (false, true) => format!("{name} = bits{}({value});", of.bits),
                _ => format!("{name} = {value};"),
            });
        }
        if has.bits < of.bits || register_is_float || value_is_float || !self.wider {
            return Err(format!("{name} has {} bits, not {}", has.bits, of.bits));
        }
        let narrow = c_integer(of.bits, of.is_signed());
        Ok(if of.is_signed() {
            format!("{name} = (int{}_t)({narrow})({value});", has.bits)
        } else {
            format!("{name} = ({narrow})({value});")
        })
    }
}

/// "Special Registers", as far as supported.
fn special_register(name: &str) -> Emit {
    for (prefix, field) in [
        ("%tid.", "t->tid"),
        ("%ntid.", "t->block->ntid"),
        ("%ctaid.", "t->block->ctaid"),
        ("%nctaid.", "t->block->nctaid"),
    ] {
        if let Some(axis) =
            name.strip_prefix(prefix).and_then(|axis| ["x", "y", "z"].iter().position(|&a| a == axis))
        {
            return Ok(format!("{field}[{axis}]"));
        }
    }
    Ok(match name {
        "WARP_SZ" => "32u",
        "%laneid" => "(t->linear & 31)",
        "%lanemask_eq" => "(1u << (t->linear & 31))",
        "%lanemask_lt" => "((1u << (t->linear & 31)) - 1)",
        "%lanemask_le" => "((2u << (t->linear & 31)) - 1)",
        "%lanemask_gt" => "(~((2u << (t->linear & 31)) - 1))",
        "%lanemask_ge" => "(~((1u << (t->linear & 31)) - 1))",
        _ => return Err(format!("the name {name}")),
    }
    .to_owned())
}
