//! "Control Flow Instructions", and fences. Fences order nothing here, since a thread runs alone until it waits, but are recorded for race
//! detection.

use super::emitter::{Emitter, function_name};
use super::memory::take_orders;
use super::operation::{Emit, Operation};
use super::step::{Code, Flow};
use crate::ptx::Operand;

impl Emitter<'_> {
    pub(super) fn branch(&mut self, op: &mut Operation<'_>) -> Emit<Code> {
        let of_entry = self.function.is_entry;
        if matches!(op.name, "bra" | "ret") {
            op.take("uni");
        }
        if op.name == "bra" {
            let [Operand::Label(label)] = op.operands()? else {
                return Err("a branch to what is no label".to_owned());
            };
            let text = format!("goto {};", self.label(*label));
            return Ok(Code { text, flow: Flow::Jump(*label), ..Code::default() });
        }
        let [] = op.operands()?;
        let text = match op.name {
            "trap" => format!("stop(\"the kernel trapped\", {});", self.at),
            "exit" if !of_entry => return Err("exit in a device function".to_owned()),
            _ if of_entry => "return DONE;".to_owned(),
            _ => "return;".to_owned(),
        };
        Ok(Code { text, flow: Flow::End, ..Code::default() })
    }

    /// `call` of a function by name, with parameters in `.param` variables ("Abstracting the ABI").
    pub(super) fn call(&mut self, op: &mut Operation<'_>) -> Emit {
        op.take("uni");
        let (returns, name, arguments): (&[Operand], _, &[Operand]) = match op.all()? {
            [Operand::Name(name)] => (&[], name, &[]),
            [Operand::Name(name), Operand::List(arguments)] => (&[], name, arguments),
            [Operand::List(returns), Operand::Name(name)] => (returns, name, &[]),
            [Operand::List(returns), Operand::Name(name), Operand::List(arguments)] => {
                (returns, name, arguments)
            }
            _ => return Err("a call of what is no function's name".to_owned()),
        };
        let mut buffers = Vec::new();
        for operand in returns.iter().chain(arguments) {
            let Operand::Variable(index) = operand else {
                return Err("an argument that is no .param variable".to_owned());
            };
            buffers.push(self.buffer(*index)?);
        }
        let bytes = |operand: &Operand, of: &crate::ptx::Function| match operand {
            Operand::Variable(index) => of.variables[*index].bytes,
            _ => 0,
        };
        if name == "__assertfail" {
            // `assertfail(message, file, line, function, char size)` of the CUDA C++ runtime.
            let sizes: Vec<u32> = arguments.iter().map(|argument| bytes(argument, self.function)).collect();
            if sizes != [8, 8, 4, 8, 8] || !returns.is_empty() {
                return Err("a call of __assertfail with other parameters".to_owned());
            }
            return Ok(format!("assert_fail({}, {});", buffers[..4].join(", "), self.at));
        }
        let callee =
            self.module.functions.iter().find(|function| !function.is_entry && function.name == *name);
        let callee = callee.ok_or_else(|| format!("a call of {name}, which the module does not have"))?;
        let takes =
            |list: &[usize]| list.iter().map(|&index| callee.variables[index].bytes).collect::<Vec<_>>();
        let gives =
            |list: &[Operand]| list.iter().map(|operand| bytes(operand, self.function)).collect::<Vec<_>>();
        if takes(&callee.returns) != gives(returns) || takes(&callee.params) != gives(arguments) {
            return Err(format!("a call of {name} with other parameters than it has"));
        }
        match self.unit.functions.get(name) {
            Some(true) => {}
            Some(false) => return Err(format!("{name} calls itself")),
            None => {
                self.unit.functions.insert(name.clone(), false);
                let mut emitter = Emitter::new(self.module, callee, self.unit);
                emitter.body();
                let code = emitter.finish();
                self.unit.callees.push_str(&code);
                self.unit.functions.insert(name.clone(), true);
            }
        }
        let list: String = buffers.iter().map(|buffer| format!(", {buffer}")).collect();
        Ok(format!("{}(t{list});", function_name(name)))
    }

    /// `membar`, `fence` ("Parallel Synchronization and Communication Instructions"); `fence.proxy.async` counts for warpgroup products.
    pub(super) fn fence(&mut self, op: &mut Operation<'_>) -> Emit {
        if op.take("proxy") {
            op.take_first(&["async"])?;
            op.take_any(&["shared::cta", "shared::cluster"]);
            let [] = op.operands()?;
            return Ok("t->fences++;".to_owned());
        }
        let orders = take_orders(op, "acq_rel")?;
        let [] = op.operands()?;
        if orders == "0" {
            return Ok(";".to_owned());
        }
        self.unit.atomics = true;
        Ok(format!("note(t, 0, 0, FENCES | {orders}, {});", self.at))
    }
}
