//! Loads, stores and addresses ("Data Movement and Conversion Instructions"). Every access is checked: bounds by the runtime (global,
//! generic), by `kernel/memory.h` (shared, local) or here (named parameters); and alignment, for vectors that of the whole vector.

use super::emitter::Emitter;
use super::operation::{Emit, Operation, c_type};
use crate::ptx::{Operand, Space, Type};

/// Modifiers without effect here: threads run one after the other and see all of memory.
fn is_hint(modifier: &str) -> bool {
    let caching = ["ca", "cg", "cs", "lu", "cv", "wb", "wt", "nc"];
    let levels = ["L1::", "L2::"];
    caching.contains(&modifier)
        || levels.iter().any(|level| modifier.starts_with(level)) && !modifier.ends_with("cache_hint")
}

/// Memory-order flags of an operation ("Memory Consistency Model") in C: some of `Orders`, or 0. `usual`: the flags without modifiers.
/// Volatile means relaxed at system scope; block scope orders nothing between blocks.
pub(super) fn take_orders(op: &mut Operation<'_>, usual: &'static str) -> Emit<String> {
    let order = op.take_any(&["weak", "volatile", "relaxed", "acquire", "release", "acq_rel", "sc"]);
    let scope = op.take_any(&["cta", "gpu", "gl", "sys"]);
    if op.take_any(&["cluster"]).is_some() {
        return Err("a scope of clusters".to_owned());
    }
    Ok(match (order.unwrap_or(usual), scope) {
        ("weak", _) | (_, Some("cta")) => "0",
        ("acquire", _) => "STRONG | ACQUIRES",
        ("release", _) => "STRONG | RELEASES",
        ("acq_rel" | "sc", _) => "STRONG | ACQUIRES | RELEASES",
        _ => "STRONG",
    }
    .to_owned())
}

/// State space of an access; default generic, which is checked like global.
pub(super) fn take_space(op: &mut Operation<'_>) -> Emit<Space> {
    let known = ["global", "shared", "shared::cta", "local", "const", "param", "param::entry", "param::func"];
    Ok(match op.take_any(&known) {
        None | Some("global" | "const") => Space::Global,
        Some("local") => Space::Local,
        Some("shared" | "shared::cta") => Space::Shared,
        Some(_) => Space::Param,
    })
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    Read,
    Write,
    /// Read and write, as atomics do.
    Update,
}

impl Emitter<'_> {
    /// A checked pointer to `bytes` bytes.
    pub(super) fn pointer(&mut self, space: Space, address: &Operand, bytes: u32, access: Access) -> Emit {
        self.ordered_pointer(space, address, bytes, access, "0")
    }

    /// Same, with the flags of [`take_orders`]; shared memory has none.
    pub(super) fn ordered_pointer(
        &mut self,
        space: Space,
        address: &Operand,
        bytes: u32,
        access: Access,
        orders: &str,
    ) -> Emit {
        let Operand::Address(base, offset) = address else { return Err(format!("the address {address:?}")) };
        let at = self.at.clone();
        let write = access != Access::Read;
        let kind = match access {
            Access::Read => "READS",
            Access::Write => "WRITES",
            Access::Update => "UPDATES",
        };
        match space {
            Space::Global | Space::Const => {
                let address = self.sum(base, *offset, 64)?;
                let seen = self.unit.accesses;
                self.unit.accesses += 1;
                let kind = if orders == "0" { kind.to_owned() } else { format!("{kind} | {orders}") };
                Ok(format!("global(t, {address}, {bytes}, {kind}, {at}, seen + {seen})"))
            }
            Space::Shared | Space::Local => {
                let width = self.address_width(base);
                let address = self.sum(base, *offset, width)?;
                Ok(match space {
                    Space::Local => format!("local(t, {address}, {bytes}, {at})"),
                    _ => format!("shared(t, {address}, {bytes}, {kind}, {at})"),
                })
            }
            Space::Param => self.parameter(base, *offset, bytes, write),
        }
    }

    /// An unchecked address in a space.
    pub(super) fn address(&mut self, space: Space, address: &Operand) -> Emit {
        let Operand::Address(base, offset) = address else { return Err(format!("the address {address:?}")) };
        let width = if space == Space::Global { 64 } else { self.address_width(base) };
        self.sum(base, *offset, width)
    }

    fn address_width(&self, base: &Operand) -> u32 {
        match base {
            Operand::Register(register) if self.function.registers[*register].of.bits == 32 => 32,
            _ => 64,
        }
    }

    /// Address plus offset, in `width` bits.
    fn sum(&mut self, base: &Operand, offset: i64, width: u32) -> Emit {
        let base = self.bits(base, width)?;
        Ok(match (offset, width) {
            (0, _) => base,
            (_, 32) => format!("{base} + {:#x}u", offset as u32),
            _ if offset < 0 => format!("{base} - {}", offset.unsigned_abs()),
            _ => format!("{base} + {offset}"),
        })
    }

    /// A pointer into a parameter; named ones are checked here.
    fn parameter(&mut self, base: &Operand, offset: i64, bytes: u32, write: bool) -> Emit {
        let &Operand::Variable(index) = base else {
            if !self.function.is_entry || write {
                return Err("a parameter by address".to_owned());
            }
            let address = self.sum(base, offset, 64)?;
            return Ok(format!("param(t, {address}, {bytes}, {})", self.at));
        };
        let variable = &self.function.variables[index];
        let is_kernels = self.function.is_entry && self.function.params.contains(&index);
        let end = u32::try_from(offset).ok().and_then(|offset| offset.checked_add(bytes));
        if variable.space != Space::Param
            || end.is_none_or(|end| end > variable.bytes)
            || offset % i64::from(bytes) != 0
        {
            return Err(format!(
                "{bytes} bytes at byte {offset} of {} of {} bytes",
                variable.name, variable.bytes
            ));
        }
        if !is_kernels {
            return Ok(format!("({} + {offset})", self.buffer(index)?));
        }
        if write {
            return Err(format!("a store to the kernel's parameter {}", variable.name));
        }
        Ok(format!("(t->block->params + {})", i64::from(self.place_of(index)) + offset))
    }

    /// Elements of a load or store: one operand, or a vector's.
    fn elements<'o>(op: &mut Operation<'_>, operand: &'o Operand) -> Emit<&'o [Operand]> {
        let count = match op.take_any(&["v2", "v4"]) {
            Some("v2") => 2,
            Some(_) => 4,
            None => return Ok(std::slice::from_ref(operand)),
        };
        match operand {
            Operand::Vector(elements) if elements.len() == count => Ok(elements),
            _ => Err(format!("a vector of {count} elements")),
        }
    }

    /// Memory-order flags of a load or store. An ordered load observes.
    fn ordered(&mut self, op: &mut Operation<'_>) -> Emit {
        let is_volatile = op.has("volatile");
        let orders = take_orders(op, "weak")?;
        // Volatile accesses alone order nothing, so they do not make blocks communicate.
        self.unit.atomics |= orders != "0" && !is_volatile;
        Ok(if orders != "0" && op.name != "st" { format!("{orders} | OBSERVES") } else { orders })
    }

    /// `ld`, `ldu`. A wider register gets the value extended by its type.
    pub(super) fn load(&mut self, op: &mut Operation<'_>) -> Emit {
        let of = op.last_type()?;
        op.drop_hints(is_hint);
        let orders = self.ordered(op)?;
        let space = take_space(op)?;
        if op.operand_count() != 2 || of.bits < 8 || of.is_half() || of.is_pair() {
            return op.not_for(of);
        }
        let vector = op.operand(0)?;
        let elements = Emitter::elements(op, vector)?;
        let [_, address] = op.operands()?;
        let bytes = of.bytes() * elements.len() as u32;
        let pointer = self.ordered_pointer(space, address, bytes, Access::Read, &orders)?;
        let c = c_type(of);
        self.wider = true;
        if let [d] = elements {
            return self.assign(d, of, &format!("*({c} *){pointer}"));
        }
        // Read all elements before setting a register: one may hold the address.
        let mut text = format!("{{ const {c} *from = (const {c} *){pointer};");
        for (index, d) in elements.iter().enumerate() {
            text = format!("{text} {}", self.assign(d, of, &format!("from[{index}]"))?);
        }
        Ok(text + " }")
    }

    /// `st`. Stores the low part of a wider register.
    pub(super) fn store(&mut self, op: &mut Operation<'_>) -> Emit {
        let of = op.last_type()?;
        op.drop_hints(is_hint);
        let orders = self.ordered(op)?;
        let space = take_space(op)?;
        if op.operand_count() != 2 || of.bits < 8 || of.is_half() || of.is_pair() {
            return op.not_for(of);
        }
        let vector = op.operand(1)?;
        let elements = Emitter::elements(op, vector)?;
        let [address, _] = op.operands()?;
        let bytes = of.bytes() * elements.len() as u32;
        let pointer = self.ordered_pointer(space, address, bytes, Access::Write, &orders)?;
        let c = c_type(of);
        self.wider = true;
        let mut text = String::new();
        for (index, value) in elements.iter().enumerate() {
            let value = self.stored(value, of)?;
            if elements.len() == 1 {
                return Ok(format!("*({c} *){pointer} = {value};"));
            }
            text = format!("{text} to[{index}] = {value};");
        }
        Ok(format!("{{ {c} *to = ({c} *){pointer};{text} }}"))
    }

    fn stored(&mut self, value: &Operand, of: Type) -> Emit {
        if of.is_float() { self.number(value, of) } else { self.bits(value, of.bits) }
    }

    /// `cvta`: generic addresses are host addresses. Shared and local memory are offset by their bases.
    pub(super) fn convert_address(&mut self, op: &mut Operation<'_>) -> Emit {
        let of = op.last_type()?;
        let to = op.take("to");
        let space = op.take_first(&["global", "const", "shared", "shared::cta", "local"])?;
        let [d, a] = op.operands()?;
        if of.bits != 64 {
            return op.not_for(of);
        }
        let a = self.bits(a, 64)?;
        let base = match space {
            "global" | "const" => return self.assign(d, of, &a),
            "local" => "(uint64_t)t->local",
            _ => "(uint64_t)t->block->shared",
        };
        self.assign(d, of, &format!("{a} {} {base}", if to { '-' } else { '+' }))
    }

    pub(super) fn prefetch(&mut self, op: &mut Operation<'_>) -> Emit {
        op.drop_hints(|modifier| {
            matches!(modifier, "global" | "local" | "L1" | "L2") || modifier.starts_with("L2::")
        });
        let [_] = op.operands()?;
        Ok(";".to_owned())
    }
}
