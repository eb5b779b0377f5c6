//! PTX types ("Fundamental Types", "Alternate Floating-Point Data Formats", "Packed Data Types").

/// Interpretation of the bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `.b8` to `.b64`: untyped.
    Bits,
    /// `.u8` to `.u64`.
    Unsigned,
    /// `.s8` to `.s64`.
    Signed,
    /// `.f16`, `.f32`, `.f64`.
    Float,
    /// `.bf16`.
    Brain,
    /// `.f16x2`.
    FloatPair,
    /// `.bf16x2`.
    BrainPair,
    /// `.pred`.
    Predicate,
}

/// Kind and width.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Type {
    /// Interpretation.
    pub kind: Kind,
    /// Width in bits; 1 for a predicate.
    pub bits: u32,
}

impl Type {
    /// Parses a type name without its dot; `None` if unsupported.
    pub fn named(name: &str) -> Option<Type> {
        let (kind, bits) = match name {
            "pred" => (Kind::Predicate, 1),
            "bf16" => (Kind::Brain, 16),
            "f16x2" => (Kind::FloatPair, 32),
            "bf16x2" => (Kind::BrainPair, 32),
            _ => {
                let kind = match name.as_bytes().first()? {
                    b'b' => Kind::Bits,
                    b'u' => Kind::Unsigned,
                    b's' => Kind::Signed,
                    b'f' => Kind::Float,
                    _ => return None,
                };
                let bits = match &name[1..] {
                    "8" if kind != Kind::Float => 8,
                    "16" => 16,
                    "32" => 32,
                    "64" => 64,
                    _ => return None,
                };
                (kind, bits)
            }
        };
        Some(Type { kind, bits })
    }

    /// `.b8` to `.b64`.
    pub const fn raw(bits: u32) -> Type {
        Type { kind: Kind::Bits, bits }
    }

    /// `.u8` to `.u64`.
    pub const fn unsigned(bits: u32) -> Type {
        Type { kind: Kind::Unsigned, bits }
    }

    /// Size in memory, in bytes.
    pub fn bytes(self) -> u32 {
        self.bits.div_ceil(8)
    }

    /// `.f16`, `.bf16`, `.f32` or `.f64`.
    pub fn is_float(self) -> bool {
        matches!(self.kind, Kind::Float | Kind::Brain)
    }

    /// `.f16` or `.bf16`.
    pub fn is_half(self) -> bool {
        self.is_float() && self.bits == 16
    }

    /// `.f16x2` or `.bf16x2`.
    pub fn is_pair(self) -> bool {
        matches!(self.kind, Kind::FloatPair | Kind::BrainPair)
    }

    /// Element type of a pair.
    pub fn half_of_pair(self) -> Type {
        let kind = if self.kind == Kind::BrainPair { Kind::Brain } else { Kind::Float };
        Type { kind, bits: 16 }
    }

    /// Integer or untyped.
    pub fn is_integer(self) -> bool {
        matches!(self.kind, Kind::Bits | Kind::Unsigned | Kind::Signed)
    }

    /// `.s8` to `.s64`.
    pub fn is_signed(self) -> bool {
        self.kind == Kind::Signed
    }
}
