//! "Integer Arithmetic Instructions" and "Extended-Precision Integer Arithmetic Instructions".

use super::emitter::Emitter;
use super::operation::{Emit, Operation, c_integer};
use crate::ptx::Type;

impl Emitter<'_> {
    /// `add`, `sub`, with `.cc` and as `addc`, `subc`.
    pub(super) fn add(&mut self, op: &mut Operation<'_>) -> Emit {
        let of = op.last_type()?;
        let sets_carry = op.take("cc");
        let uses_carry = matches!(op.name, "addc" | "subc");
        let [d, a, b] = op.operands()?;
        let sign = if op.name.starts_with("add") { '+' } else { '-' };
        if !of.is_integer() || of.bits < 16 {
            return op.not_for(of);
        }
        let raw = Type::raw(of.bits);
        let (a, b) = (self.bits(a, of.bits)?, self.bits(b, of.bits)?);
        if !sets_carry && !uses_carry {
            return self.assign(d, raw, &format!("{a} {sign} {b}"));
        }
        let carry = if uses_carry { format!(" {sign} {}", self.carry(true)) } else { String::new() };
        self.with_carry(d, of, &format!("(unsigned __int128){a} {sign} {b}{carry}"), sets_carry)
    }

    /// Stores the low part of a sum, and the next bit as carry (borrow for a difference).
    fn with_carry(&mut self, d: &crate::ptx::Operand, of: Type, sum: &str, sets_carry: bool) -> Emit {
        let keep = self.assign(d, Type::raw(of.bits), "sum")?;
        let keep_carry = if sets_carry {
            format!(" {} = sum >> {} & 1;", self.carry(false), of.bits)
        } else {
            String::new()
        };
        Ok(format!("{{ unsigned __int128 sum = {sum}; {keep}{keep_carry} }}"))
    }

    /// `mul`, `mad` with `.lo`, `.hi` or `.wide`; `mad.cc` and `madc`.
    pub(super) fn multiply(&mut self, op: &mut Operation<'_>) -> Emit {
        let of = op.last_type()?;
        let part = op.take_first(&["lo", "hi", "wide"])?;
        let sets_carry = op.take("cc");
        let uses_carry = op.name == "madc";
        let operands = op.all()?;
        let adds = op.name != "mul";
        if !of.is_integer() || of.bits < 16 || operands.len() != if adds { 4 } else { 3 } {
            return op.not_for(of);
        }
        let width = of.bits;
        let (d, a, b) = (&operands[0], &operands[1], &operands[2]);
        let product = match part {
            "lo" => {
                let (a, b) = (self.bits(a, width)?, self.bits(b, width)?);
                // 16-bit operands would be promoted to int and overflow.
                if width == 16 { format!("(uint32_t){a} * (uint32_t){b}") } else { format!("{a} * {b}") }
            }
            _ => {
                let (a, b) = (self.integer(a, of)?, self.integer(b, of)?);
                let wide = if width == 64 {
                    if of.is_signed() { "__int128".to_owned() } else { "unsigned __int128".to_owned() }
                } else {
                    c_integer(2 * width, of.is_signed())
                };
                if part == "hi" {
                    format!("(({wide}){a} * ({wide}){b} >> {width})")
                } else {
                    format!("({wide}){a} * ({wide}){b}")
                }
            }
        };
        if part == "wide" {
            if width == 64 || sets_carry || uses_carry {
                return op.not_for(of);
            }
            let sum =
                if adds { format!("{product} + {}", self.bits(&operands[3], 2 * width)?) } else { product };
            return self.assign(d, Type::raw(2 * width), &sum);
        }
        if !adds {
            return self.assign(d, Type::raw(width), &product);
        }
        let c = self.bits(&operands[3], width)?;
        if !sets_carry && !uses_carry {
            return self.assign(d, Type::raw(width), &format!("{product} + {c}"));
        }
        let carry = if uses_carry { format!(" + {}", self.carry(true)) } else { String::new() };
        let cut = c_integer(width, false);
        self.with_carry(d, of, &format!("(unsigned __int128)({cut})({product}) + {c}{carry}"), sets_carry)
    }

    /// `div`, `rem`. Division by zero stops the program: PTX leaves the result undefined.
    pub(super) fn divide(&mut self, op: &mut Operation<'_>) -> Emit {
        let of = op.last_type()?;
        let [d, a, b] = op.operands()?;
        if !of.is_integer() || of.bits < 16 {
            return op.not_for(of);
        }
        let (a, b) = (self.integer(a, of)?, self.integer(b, of)?);
        let divisor = format!("DIVISOR({}, {b}, {})", c_integer(of.bits, of.is_signed()), self.at);
        let value = match (of.is_signed(), op.name == "div") {
            (true, true) => format!("divide({a}, {divisor})"),
            (true, false) => format!("remainder_of({a}, {divisor})"),
            (false, true) => format!("{a} / {divisor}"),
            (false, false) => format!("{a} % {divisor}"),
        };
        self.assign(d, Type::raw(of.bits), &value)
    }

    pub(super) fn integer_choice(&mut self, op: &mut Operation<'_>) -> Emit {
        let of = op.last_type()?;
        if !of.is_integer() || of.bits < 16 {
            return op.not_for(of);
        }
        let value = match op.name {
            "min" | "max" => {
                let [_, a, b] = op.operands()?;
                let (a, b) = (self.integer(a, of)?, self.integer(b, of)?);
                format!("{a} {} {b} ? {a} : {b}", if op.name == "min" { '<' } else { '>' })
            }
            _ => {
                let [_, a] = op.operands()?;
                let bits = self.bits(a, of.bits)?;
                let (zero, signed) = (c_integer(of.bits, false), c_integer(of.bits, true));
                if !of.is_signed() {
                    return op.not_for(of);
                }
                if op.name == "neg" {
                    format!("({zero})0 - {bits}")
                } else {
                    format!("({signed}){bits} < 0 ? ({zero})0 - {bits} : {bits}")
                }
            }
        };
        let d = &op.all()?[0];
        self.assign(d, Type::raw(of.bits), &value)
    }

    /// `dp4a`: dot product of four bytes, accumulated.
    pub(super) fn dp4a(&mut self, op: &mut Operation<'_>) -> Emit {
        let of_a = op.take_first(&["s32", "u32"])?;
        let of_b = op.take_first(&["s32", "u32"])?;
        let [d, a, b, c] = op.operands()?;
        let (a, b, c) = (self.bits(a, 32)?, self.bits(b, 32)?, self.bits(c, 32)?);
        self.assign(d, Type::raw(32), &format!("dp4a_{of_a}_{of_b}({a}, {b}, {c})"))
    }

    /// `popc`, `clz`, `brev`; `popc` and `clz` return 32 bits.
    pub(super) fn count_bits(&mut self, op: &mut Operation<'_>) -> Emit {
        let of = op.last_type()?;
        let [d, a] = op.operands()?;
        let a = self.bits(a, of.bits)?;
        let (value, bits) = match (op.name, of.bits) {
            ("popc", 32 | 64) => (format!("__builtin_popcountll({a})"), 32),
            ("clz", 32) => (format!("{a} ? __builtin_clz({a}) : 32"), 32),
            ("clz", 64) => (format!("{a} ? __builtin_clzll({a}) : 64"), 32),
            ("brev", 32 | 64) => (format!("reverse_bits({a}, {})", of.bits), of.bits),
            _ => return op.not_for(of),
        };
        self.assign(d, Type::raw(bits), &value)
    }

    pub(super) fn bit_field(&mut self, op: &mut Operation<'_>) -> Emit {
        let of = op.last_type()?;
        if !of.is_integer() || of.bits < 32 {
            return op.not_for(of);
        }
        let width = of.bits;
        let value = if op.name == "bfi" {
            let [_, a, b, at, length] = op.operands()?;
            let (a, b) = (self.bits(a, width)?, self.bits(b, width)?);
            let (at, length) = (self.bits(at, 32)?, self.bits(length, 32)?);
            format!("bit_field_insert({a}, {b}, {at}, {length}, {width})")
        } else {
            let [_, a, at, length] = op.operands()?;
            let (a, at, length) = (self.bits(a, width)?, self.bits(at, 32)?, self.bits(length, 32)?);
            let signed = if of.is_signed() { "_signed" } else { "" };
            format!("bit_field_extract{signed}({a}, {at}, {length}, {width})")
        };
        let d = &op.all()?[0];
        self.assign(d, Type::raw(width), &value)
    }
}
