//! "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions" of halves with f32 sums. All threads of a warpgroup wait for each
//! other; the scheduler reads the factors and computes ([`crate::schedule`]). Registers in flight are checked by [`super::flight`].

use super::emitter::Emitter;
use super::matrix::fragment;
use super::operation::{Emit, Operation};
use super::step::{Code, GroupStep};
use crate::ptx::{Operand, Type};

/// Columns of B per step of the shapes.
const COLUMNS: usize = 8;
/// Shapes, `m64n8k16` to `m64n256k16`.
const SHAPES: usize = 32;

impl Emitter<'_> {
    pub(super) fn group(&mut self, op: &mut Operation<'_>) -> Emit<Code> {
        let what = op.take_first(&["mma_async", "fence", "commit_group", "wait_group"])?;
        op.take_first(&["sync"])?;
        op.take_first(&["aligned"])?;
        self.unit.groups = true;
        self.unit.copies = true; // `Multiplying` begins with `Copying`
        match what {
            "mma_async" => self.group_multiply(op),
            "fence" => {
                let [] = op.operands()?;
                self.group_op("GROUP_FENCE", "", String::new(), GroupStep::Fence)
            }
            "commit_group" => {
                let [] = op.operands()?;
                self.group_op("GROUP_COMMIT", "", String::new(), GroupStep::Commit)
            }
            _ => {
                let [Operand::Integer(left)] = op.operands()? else {
                    return Err("wgmma.wait_group of other than a number".to_owned());
                };
                let left = *left as u32;
                let given = format!("t->value = {left};");
                self.group_op("GROUP_WAIT", &given, String::new(), GroupStep::Wait(left))
            }
        }
    }

    /// `wgmma.mma_async.sync.aligned.m64nNk16.f32.T.T d, a, b, scale-d, imm-scale-a, imm-scale-b{, imm-trans-a}, imm-trans-b`: D = A B + D or
    /// A B; A has 64 rows and lies in registers or in shared memory, B has N columns.
    fn group_multiply(&mut self, op: &mut Operation<'_>) -> Emit<Code> {
        let shapes: Vec<String> = (1..=SHAPES).map(|n| format!("m64n{}k16", COLUMNS * n)).collect();
        let known: Vec<&str> = shapes.iter().map(String::as_str).collect();
        let shape = op.take_first(&known)?;
        let at = known.iter().position(|known| *known == shape).unwrap_or_default();
        let columns = COLUMNS * (at + 1);
        op.take_first(&["f32"])?;
        let of = op.take_first(&["f16", "bf16"])?;
        op.take_first(&[of])?;
        let all = op.all()?;
        let [d, a, b, adds, scales @ ..] = all else {
            return Err(format!("wgmma.mma_async with {} operands", all.len()));
        };
        let d = fragment(d, columns / 2)?;
        let immediates: Vec<i64> = scales.iter().map(immediate).collect::<Emit<_>>()?;
        let (scales, transposes) = immediates.split_at(immediates.len().min(2));
        let (a_registers, transposes) = match (a, transposes) {
            (Operand::Vector(_), [b]) => (fragment(a, 4)?, [0, *b]),
            (Operand::Register(_), [a, b]) => (&[][..], [*a, *b]),
            _ => {
                return Err(
                    "wgmma.mma_async with other immediates than its signs and transpositions".to_owned()
                );
            }
        };
        let [negates_a, negates_b] = [sign(scales, 0)?, sign(scales, 1)?];
        let adds = self.predicate(adds)?;
        let mut flags = format!("({adds} ? ADDS : 0)");
        for (flag, set) in [
            ("NEGATES_A", negates_a),
            ("NEGATES_B", negates_b),
            ("TRANSPOSES_A", is_set(transposes[0])?),
            ("TRANSPOSES_B", is_set(transposes[1])?),
            ("A_IN_REGISTERS", !a_registers.is_empty()),
        ] {
            if set {
                flags = format!("{flags} | {flag}");
            }
        }
        let mut given = "t->sums = sums_of(t); ".to_owned();
        for (index, d) in d.iter().enumerate() {
            let value = self.bits(d, 32)?;
            given = format!("{given}t->sums[{index}] = {value}; ");
        }
        for (index, a) in a_registers.iter().enumerate() {
            let value = self.bits(a, 32)?;
            given = format!("{given}t->fragment[{index}] = {value}; ");
        }
        let descriptors: &[(usize, &Operand)] =
            if a_registers.is_empty() { &[(4, a), (6, b)] } else { &[(6, b)] };
        for (from, descriptor) in descriptors {
            let value = self.bits(descriptor, 64)?;
            given = format!(
                "{given}t->fragment[{from}] = (uint32_t)({value}); t->fragment[{}] = (uint32_t)(({value}) >> 32); ",
                from + 1
            );
        }
        let is_brain = u8::from(of == "bf16");
        given = format!("{given}t->lane = {is_brain}; t->clamp = {columns}; t->value = {flags};");
        let mut then = String::new();
        for (index, d) in d.iter().enumerate() {
            then += &self.assign(d, Type::raw(32), &format!("t->sums[{index}]"))?;
            then.push(' ');
        }
        let step = GroupStep::Multiply {
            sums: registers(d),
            factor: registers(a_registers),
            columns: columns as u32,
        };
        self.group_op("GROUP_MMA", &given, then, step)
    }

    fn group_op(&mut self, name: &str, given: &str, then: String, step: GroupStep) -> Emit<Code> {
        let code = self.wait("AT_GROUP_OP", format!("t->op = {name}; {given}"), then)?;
        Ok(Code { group: Some(step), ..code })
    }
}

fn registers(operands: &[Operand]) -> Vec<usize> {
    let register = |operand: &Operand| match operand {
        Operand::Register(register) => Some(*register),
        _ => None,
    };
    operands.iter().filter_map(register).collect()
}

fn immediate(operand: &Operand) -> Emit<i64> {
    match operand {
        Operand::Integer(value) => Ok(*value as i64),
        _ => Err(format!("the immediate {operand:?} of wgmma.mma_async")),
    }
}

/// True for -1; 1 leaves a factor as it is.
fn sign(scales: &[i64], index: usize) -> Emit<bool> {
    match scales.get(index) {
        Some(1) => Ok(false),
        Some(-1) => Ok(true),
        other => Err(format!("the scale {other:?} of wgmma.mma_async, which takes 1 and -1")),
    }
}

fn is_set(transposes: i64) -> Emit<bool> {
    match transposes {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(format!("the transposition {other} of wgmma.mma_async")),
    }
}
