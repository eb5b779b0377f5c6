//! `cp.async` ("Data Movement and Conversion Instructions: Asynchronous copy"): see `kernel/copy.h`.

use super::emitter::Emitter;
use super::operation::{Emit, Operation};
use crate::ptx::{Operand, Space};

impl Emitter<'_> {
    pub(super) fn copy(&mut self, op: &mut Operation<'_>) -> Emit {
        op.take_first(&["async"])?;
        self.unit.copies = true;
        match op.take_first(&["ca", "cg", "commit_group", "wait_group", "wait_all"])? {
            "commit_group" => {
                let [] = op.operands()?;
                Ok("copies_commit(t);".to_owned())
            }
            "wait_group" => match op.operands()? {
                [Operand::Integer(left)] => Ok(format!("copies_wait(t, {}, {});", *left as u32, self.at)),
                _ => Err("cp.async.wait_group of other than a number".to_owned()),
            },
            "wait_all" => {
                let [] = op.operands()?;
                Ok(format!("copies_wait_all(t, {});", self.at))
            }
            cache => self.copy_bytes(op, cache == "cg"),
        }
    }

    /// `cp.async.ca.shared.global [to], [from], bytes{, given}`; `cg` (past L1) allows 16 bytes only.
    fn copy_bytes(&mut self, op: &mut Operation<'_>, only_16: bool) -> Emit {
        op.take_first(&["shared", "shared::cta"])?;
        op.take_first(&["global"])?;
        op.drop_hints(|modifier| matches!(modifier, "L2::64B" | "L2::128B" | "L2::256B"));
        let (to, from, bytes, given) = match op.all()? {
            [to, from, Operand::Integer(bytes)] => (to, from, *bytes as u32, None),
            [to, from, Operand::Integer(bytes), given] => (to, from, *bytes as u32, Some(given)),
            _ => return Err("cp.async with other operands than two addresses and sizes".to_owned()),
        };
        if !(bytes == 16 || (matches!(bytes, 4 | 8) && !only_16)) {
            return Err(format!("cp.async of {bytes} bytes"));
        }
        let to = self.address(Space::Shared, to)?;
        let from = self.address(Space::Global, from)?;
        let given = match given {
            Some(given) => self.bits(given, 32)?,
            None => bytes.to_string(),
        };
        let seen = self.unit.accesses;
        self.unit.accesses += 1;
        Ok(format!("copy(t, {to}, {from}, {bytes}, {given}, {}, seen + {seen});", self.at))
    }
}
