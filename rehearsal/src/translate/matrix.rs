//! "Warp Level Matrix Instructions": `mma` of halves with f32 sums, and `ldmatrix`. Lanes pass their fragments in `Thread`; the scheduler
//! computes ([`crate::schedule`]).

use super::emitter::Emitter;
use super::memory::Access;
use super::operation::{Emit, Operation};
use super::step::Code;
use crate::ptx::{Operand, Space, Type};

const ALL: &str = "0xffffffffu";

impl Emitter<'_> {
    /// `mma.sync.aligned.m16n8kK.row.col.f32.T.T.f32`: D = A B + C; A has 16 rows, B has 8 columns, T is f16 or bf16.
    pub(super) fn mma(&mut self, op: &mut Operation<'_>) -> Emit<Code> {
        op.take_first(&["sync"])?;
        op.take_first(&["aligned"])?;
        let (inner, registers) = match op.take_first(&["m16n8k8", "m16n8k16"])? {
            "m16n8k8" => (8, [2, 1]),
            _ => (16, [4, 2]),
        };
        op.take_first(&["row"])?;
        op.take_first(&["col"])?;
        op.take_first(&["f32"])?;
        let of = op.take_first(&["f16", "bf16"])?;
        op.take_first(&[of])?;
        op.take_first(&["f32"])?;
        let [d, a, b, c] = op.operands()?;
        let (d, c) = (fragment(d, 4)?, fragment(c, 4)?);
        let (a, b) = (fragment(a, registers[0])?, fragment(b, registers[1])?);
        let mut given = String::new();
        // A starts at register 0, B at 4, C at 6, for every shape.
        for (from, operands) in [(0, a), (4, b), (6, c)] {
            for (index, operand) in operands.iter().enumerate() {
                let value = self.bits(operand, 32)?;
                given = format!("{given}t->fragment[{}] = {value}; ", from + index);
            }
        }
        let is_brain = u8::from(of == "bf16");
        let given = format!("{given}t->lane = {is_brain}; t->clamp = {inner}; ");
        let then = self.results(d)?;
        self.warp_op("MMA", &given, ALL, then)
    }

    /// `ldmatrix.sync.aligned.m8n8.xN{.trans}.shared.b16`: N matrices of 8 rows of 16 bytes; eight lanes hold the row addresses of each.
    pub(super) fn load_matrix(&mut self, op: &mut Operation<'_>) -> Emit<Code> {
        op.take_first(&["sync"])?;
        op.take_first(&["aligned"])?;
        op.take_first(&["m8n8"])?;
        let count = match op.take_first(&["x1", "x2", "x4"])? {
            "x1" => 1,
            "x2" => 2,
            _ => 4,
        };
        let transposed = u8::from(op.take("trans"));
        op.take_first(&["shared", "shared::cta"])?;
        op.take_first(&["b16"])?;
        let [d, address] = op.operands()?;
        let d = fragment(d, count)?;
        let row = self.address(Space::Shared, address)?;
        let check = self.pointer(Space::Shared, address, 16, Access::Read)?;
        let given = format!(
            "t->value = (uint32_t)({row}); t->lane = {transposed}; t->clamp = {count}; \
             if ((t->linear & 31) < {}) {check}; ",
            8 * count
        );
        let then = self.results(d)?;
        self.warp_op("LDMATRIX", &given, ALL, then)
    }

    fn results(&mut self, d: &[Operand]) -> Emit {
        let mut then = String::new();
        for (index, d) in d.iter().enumerate() {
            then += &self.assign(d, Type::raw(32), &format!("t->fragment[{index}]"))?;
            then.push(' ');
        }
        Ok(then)
    }
}

pub(super) fn fragment(operand: &Operand, count: usize) -> Emit<&[Operand]> {
    match operand {
        Operand::Vector(registers) if registers.len() == count => Ok(registers),
        _ => Err(format!("a fragment of other than {count} registers")),
    }
}
