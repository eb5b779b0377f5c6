//! Translates one function: its registers and variables in C, and the output text. Instruction groups are `impl` blocks of [`Emitter`] in
//! the sibling files.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::operation::{Emit, Operation, c_integer};
use super::step::{Code, Flow, Step, Wait};
use super::{Unit, flight, identifier, liveness, quoted};
use crate::ptx::{Function, Instruction, Kind, Module, Operand, Space, Statement, Unknown};

pub(super) struct Emitter<'m> {
    pub(super) module: &'m Module,
    pub(super) function: &'m Function,
    pub(super) unit: &'m mut Unit,
    /// C name of each register.
    pub(super) names: Vec<String>,
    /// Offset of each variable in its space; 0 for C arrays.
    pub(super) places: Vec<u32>,
    steps: Vec<Step>,
    /// Registers of the current statement.
    pub(super) reads: Vec<usize>,
    pub(super) writes: Vec<usize>,
    /// The current instruction as a C string.
    pub(super) at: String,
    /// A wider register may hold the current operand ("Operand Size Exceeding Instruction-Type Size").
    pub(super) wider: bool,
}

/// Offset and size of each kernel parameter, and the total size ("Kernel Function Parameters").
pub(super) fn parameter_layout(function: &Function) -> (Vec<u32>, Vec<u32>, u32) {
    let mut used = 0;
    let params = function.params.iter().map(|&index| &function.variables[index]);
    let (at, bytes) =
        params.map(|param| (Unit::place(&mut used, param.bytes, param.align), param.bytes)).unzip();
    (at, bytes, used)
}

pub(super) fn global_name(module: &Module, index: usize) -> String {
    format!("var{index}_{}", identifier(&module.variables[index].name))
}

pub(super) fn function_name(name: &str) -> String {
    format!("fn_{}", identifier(name))
}

impl<'m> Emitter<'m> {
    pub(super) fn new(module: &'m Module, function: &'m Function, unit: &'m mut Unit) -> Emitter<'m> {
        let mut names: Vec<String> = Vec::with_capacity(function.registers.len() + 1);
        let mut taken = std::collections::HashSet::new();
        for (index, register) in function.registers.iter().enumerate() {
            let mut name = format!("_{}", identifier(&register.name));
            if !taken.insert(name.clone()) {
                name = format!("{name}_scope{index}");
                taken.insert(name.clone());
            }
            names.push(name);
        }
        names.push("carry".to_owned());
        let mut places = vec![0; function.variables.len()];
        if function.is_entry {
            let (at, _, _) = parameter_layout(function);
            for (&index, at) in function.params.iter().zip(at) {
                places[index] = at;
            }
        }
        for (variable, place) in function.variables.iter().zip(&mut places) {
            match variable.space {
                Space::Local => *place = Unit::place(&mut unit.local, variable.bytes, variable.align),
                Space::Shared => *place = Unit::place(&mut unit.shared, variable.bytes, variable.align),
                _ => {}
            }
        }
        Emitter {
            module,
            function,
            unit,
            names,
            places,
            steps: Vec::new(),
            reads: Vec::new(),
            writes: Vec::new(),
            at: String::new(),
            wider: false,
        }
    }

    pub(super) fn body(&mut self) {
        for unknown in &self.module.unknown {
            self.stop(unknown, None); // no kernel of such a module may run
        }
        for statement in &self.function.body {
            match statement {
                Statement::Label(label) => self.steps.push(Step { label: Some(*label), ..Step::default() }),
                Statement::Unknown(unknown) => self.stop(unknown, None),
                Statement::Instruction(instruction) => self.statement(instruction),
            }
        }
    }

    fn place_in_text(&self, line: u32, text: &str) -> String {
        quoted(&format!("{}, line {line}: {text}", self.unit.kernel))
    }

    fn stop(&mut self, unknown: &Unknown, guard: Option<String>) {
        let what = quoted(&format!("not understood: {}", unknown.why));
        let at = self.place_in_text(unknown.line, &unknown.text);
        let text = format!("stop({what}, {at});");
        let reads = std::mem::take(&mut self.reads);
        self.steps.push(Step {
            guard,
            reads,
            code: Code { text, flow: Flow::End, ..Code::default() },
            at,
            ..Step::default()
        });
    }

    fn statement(&mut self, instruction: &Instruction) {
        self.at = self.place_in_text(instruction.line, &instruction.text);
        self.reads.clear();
        self.writes.clear();
        self.wider = false;
        let code = self.instruction(&mut Operation::new(instruction));
        if code.is_err() {
            self.reads.clear();
            self.writes.clear();
        }
        let guard = match instruction
            .guard
            .map(|guard| (guard, self.predicate(&Operand::Register(guard.register))))
        {
            Some((guard, Ok(name))) => Some(if guard.negated { format!("!{name}") } else { name }),
            Some((_, Err(why))) => return self.refuse(instruction, why, None),
            None => None,
        };
        match code {
            Ok(code) => {
                let (reads, writes) = (std::mem::take(&mut self.reads), std::mem::take(&mut self.writes));
                self.steps.push(Step { label: None, reads, writes, guard, code, at: self.at.clone() });
            }
            Err(why) => self.refuse(instruction, why, guard),
        }
    }

    fn refuse(&mut self, instruction: &Instruction, why: String, guard: Option<String>) {
        let unknown = Unknown { line: instruction.line, text: instruction.text.clone(), why };
        self.stop(&unknown, guard);
    }

    fn instruction(&mut self, op: &mut Operation<'_>) -> Emit<Code> {
        let float = op.peek_type().is_some_and(|of| of.is_float() || of.is_pair());
        let text = match op.name {
            "add" | "sub" | "mul" | "fma" | "mad" | "div" | "min" | "max" | "neg" | "abs" if float => {
                self.float(op)?
            }
            "sqrt" | "rsqrt" | "rcp" | "ex2" | "lg2" | "sin" | "cos" | "tanh" => self.special_function(op)?,
            "copysign" => self.copysign(op)?,
            "testp" => self.testp(op)?,
            "add" | "sub" | "addc" | "subc" => self.add(op)?,
            "mul" | "mad" | "madc" => self.multiply(op)?,
            "div" | "rem" => self.divide(op)?,
            "min" | "max" | "neg" | "abs" => self.integer_choice(op)?,
            "dp4a" => self.dp4a(op)?,
            "and" | "or" | "xor" | "not" | "cnot" => self.logic(op)?,
            "shl" | "shr" => self.shift(op)?,
            "shf" => self.funnel_shift(op)?,
            "lop3" => self.lop3(op)?,
            "prmt" => self.prmt(op)?,
            "bfi" | "bfe" => self.bit_field(op)?,
            "popc" | "clz" | "brev" => self.count_bits(op)?,
            "setp" => self.setp(op)?,
            "set" => self.set(op)?,
            "selp" | "slct" => self.select(op)?,
            "cvt" => self.convert(op)?,
            "mov" => self.mov(op)?,
            "ld" | "ldu" => self.load(op)?,
            "st" => self.store(op)?,
            "cvta" => self.convert_address(op)?,
            "prefetch" | "prefetchu" => self.prefetch(op)?,
            "cp" => self.copy(op)?,
            "atom" | "red" => self.atomic(op)?,
            "bra" | "ret" | "exit" | "trap" => return self.branch(op),
            "call" => self.call(op)?,
            "bar" | "barrier" => return self.barrier(op),
            "membar" | "fence" => self.fence(op)?,
            "shfl" => return self.shuffle(op),
            "vote" => return self.vote(op),
            "redux" => return self.reduce(op),
            "activemask" => return self.active_mask(op),
            "mma" => return self.mma(op),
            "ldmatrix" => return self.load_matrix(op),
            "wgmma" => return self.group(op),
            name => return Err(format!("the instruction {name}")),
        };
        Ok(Code::from(text))
    }

    /// The function in C; callers add device functions to the unit.
    pub(super) fn finish(self) -> String {
        let waits = self.steps.iter().any(|step| step.code.wait.is_some());
        let alive =
            if waits { liveness::at_waits(&self.steps, self.function.labels.len()) } else { Vec::new() };
        let misuses = flight::misuses(&self.steps, self.function.labels.len(), self.names.len());
        let mut saved: Vec<usize> = alive.iter().flatten().copied().collect();
        saved.sort_unstable();
        saved.dedup();
        let mut out = String::new();
        let entry = self.function.is_entry;
        if entry {
            let base = match (self.unit.groups, self.unit.copies) {
                (true, _) => "Multiplying",
                (false, true) => "Copying",
                (false, false) => "Thread",
            };
            let _ = writeln!(out, "typedef struct State {{\n  {base} thread;");
            for &register in &saved {
                let _ = writeln!(out, "  {} {};", self.c_of(register), self.names[register]);
            }
            out.push_str("} State;\nstatic int32_t run(Thread *t) {\n  Seen *const seen = t->block->seen;\n");
        } else {
            let list = self.function.returns.iter().chain(&self.function.params);
            let list: String = list.map(|index| format!(", uint8_t *buffer{index}")).collect();
            let name = function_name(&self.function.name);
            let _ =
                writeln!(out, "static void {name}(Thread *t{list}) {{\n  Seen *const seen = t->block->seen;");
        }
        if waits {
            out.push_str("  State *const state = (State *)t;\n");
        }
        self.declare_registers(&mut out);
        for (index, variable) in self.function.variables.iter().enumerate() {
            let given = self.function.params.contains(&index) || self.function.returns.contains(&index);
            if variable.space == Space::Param && !given {
                let bytes = variable.bytes.max(1);
                let _ = writeln!(out, "  uint8_t buffer{index}[{bytes}] __attribute__((aligned(16)));");
            }
        }
        if waits {
            out.push_str("  switch (t->resume) { case 0:;\n");
        }
        if entry && self.unit.copies {
            out.push_str("  copies_begin(t);\n");
        }
        for (index, step) in self.steps.iter().enumerate() {
            let misuse = misuses.get(index).copied().flatten();
            self.write(step, alive.get(index).map_or(&[], Vec::as_slice), misuse, &mut out);
        }
        if waits {
            out.push_str("  }\n");
        }
        out.push_str(if entry { "  return DONE;\n}\n" } else { "}\n" });
        out
    }

    /// Declares the registers in C, one line per type. PTX leaves their initial values undefined; here they are zero.
    fn declare_registers(&self, out: &mut String) {
        let mut by_type: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (index, name) in self.names.iter().enumerate() {
            by_type.entry(self.c_of(index)).or_default().push(format!("{name} = 0"));
        }
        for (c, names) in by_type {
            let _ = writeln!(out, "  {c} {};", names.join(", "));
        }
    }

    fn c_of(&self, register: usize) -> String {
        match self.function.registers.get(register).map(|register| register.of) {
            Some(of) if of.kind == Kind::Predicate => "uint8_t".to_owned(),
            Some(of) => match (of.is_float(), of.bits) {
                (true, 32) => "float".to_owned(),
                (true, 64) => "double".to_owned(),
                _ => c_integer(of.bits, false),
            },
            None => "uint32_t".to_owned(), // the carry
        }
    }

    fn write(&self, step: &Step, alive: &[usize], misuse: Option<flight::Misuse>, out: &mut String) {
        if let Some(label) = step.label {
            let _ = writeln!(out, "label{label}_{}:;", identifier(&self.function.labels[label]));
            return;
        }
        out.push_str("  ");
        if let Some(guard) = &step.guard {
            let _ = write!(out, "if ({guard}) {{ ");
        }
        if let Some(misuse) = misuse {
            let what = misuse
                .text(|at| self.function.registers.get(at).map_or_else(String::new, |r| r.name.clone()));
            let _ = write!(out, "stop({}, {}); ", quoted(&what), step.at);
        }
        out.push_str(&step.code.text);
        if let Some(Wait { what, number, then }) = &step.code.wait {
            for &register in alive {
                let _ = write!(out, " state->{0} = {0};", self.names[register]);
            }
            let _ = write!(out, " t->resume = {number}; return {what}; case {number}:;");
            for &register in alive {
                let _ = write!(out, " {0} = state->{0};", self.names[register]);
            }
            out.push(' ');
            out.push_str(then);
        }
        out.push_str(if step.guard.is_some() { " }\n" } else { "\n" });
    }

    pub(super) fn label(&self, label: usize) -> String {
        format!("label{label}_{}", identifier(&self.function.labels[label]))
    }
}
