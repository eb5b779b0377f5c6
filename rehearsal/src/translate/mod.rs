//! One kernel of a PTX module to one file of C, which is compiled against `kernel/kernel.h`.
//!
//! The C is PTX written another way: a register is a local variable of its width, a branch is a `goto`, an
//! instruction is a statement. Two things are not in PTX. Memory instructions check their address first. And
//! a kernel with barriers or warp operations leaves its function at each of them, keeping the registers that
//! are alive there ([`liveness`]) behind its `Thread`, and goes on at the same place when it is called again.
//!
//! Nothing is guessed: an instruction, a modifier or a directive that is not understood becomes a call that
//! stops the program, naming the kernel, the line and the text, where and when it would be executed.
//!
//! What a card computes exactly is computed exactly. Not so: the approximate functions (`ex2.approx`,
//! `rcp.approx` and so on) are the host's, which are nearer to the truth than a card's; and the bits of a NaN
//! that f32 arithmetic makes are the host's (a card makes 0x7FFFFFFF).
//!
//! One file holds one group of instructions. Each function of these takes an [`operation::Operation`],
//! removes the modifiers that it knows, and refuses what is left.

mod atomic;
mod compare;
mod control;
mod convert;
mod copy;
mod emitter;
mod float;
mod half;
mod integer;
mod liveness;
mod logic;
mod matrix;
mod memory;
mod operand;
mod operation;
mod step;
mod warp;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::ptx::{Function, Module, Space};
use emitter::Emitter;

/// The kernel of that name as a file in C, if the module has it. What is not understood ends the program where it is reached.
pub fn translate(module: &Module, entry: &str) -> Option<String> {
    let function = module.entry(entry)?;
    let mut unit = Unit { kernel: entry.to_owned(), ..Unit::default() };
    let mut emitter = Emitter::new(module, function, &mut unit);
    emitter.body();
    let code = emitter.finish();
    Some(file(module, function, &unit, &code))
}

/// What a kernel and the functions that it calls share.
#[derive(Default)]
struct Unit {
    /// The kernel's name.
    kernel: String,
    /// Bytes of static shared memory placed so far.
    shared: u32,
    /// Bytes of local memory placed so far; every function has a place of its own, as none is recursive.
    local: u32,
    /// The alignment of dynamic shared memory, if it is used.
    dynamic: Option<u32>,
    /// Variables of the module that are used, with their place if they lie in shared memory.
    globals: BTreeMap<usize, Option<u32>>,
    /// Memory instructions with a `Seen` so far.
    accesses: u32,
    /// Places to go on at so far.
    waits: u32,
    /// Whether there are operations by which blocks tell each other something.
    atomics: bool,
    /// Whether there are asynchronous copies.
    copies: bool,
    /// Device functions by name: whether their translation is done, or under way.
    functions: BTreeMap<String, bool>,
    /// The C of device functions, callees first.
    callees: String,
}

impl Unit {
    /// A place of that size and alignment in a space that is filled from 0 on.
    fn place(used: &mut u32, bytes: u32, align: u32) -> u32 {
        let at = used.next_multiple_of(align);
        *used = at + bytes;
        at
    }
}

/// A name as C can have it.
fn identifier(name: &str) -> String {
    name.trim_start_matches('%').replace(|letter: char| !letter.is_ascii_alphanumeric(), "_")
}

/// A string of C.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

/// The file: variables, device functions, the kernel, and its description.
fn file(module: &Module, function: &Function, unit: &Unit, code: &str) -> String {
    let orders = if unit.atomics { "#define ORDERS\n" } else { "" };
    let mut out = format!("{orders}#include \"kernel.h\"\n");
    let mut own = String::new();
    for &index in unit.globals.keys() {
        let variable = &module.variables[index];
        if variable.space == Space::Shared {
            continue;
        }
        let name = emitter::global_name(module, index);
        let init: Vec<String> = variable.init.iter().map(u8::to_string).collect();
        let (align, bytes) = (variable.align.max(16), variable.bytes);
        let init = if init.is_empty() { String::new() } else { format!(" = {{{}}}", init.join(",")) };
        let _ = writeln!(out, "static uint8_t {name}[{bytes}] __attribute__((aligned({align}))){init};");
        let _ = writeln!(own, "  if (is_in(address, bytes, {name}, {bytes}, seen)) return 1;");
    }
    let _ = writeln!(
        out,
        "static int own_variable(uint64_t address, uint32_t bytes, Seen *seen) {{\n{own}  return 0;\n}}"
    );
    let shared = unit.dynamic.map_or(unit.shared, |align| unit.shared.next_multiple_of(align));
    if unit.dynamic.is_some() {
        let _ = writeln!(out, "#define DYNAMIC_SHARED {shared}");
    }
    out.push_str(&unit.callees);
    out.push_str(code);
    let (at, bytes, total) = emitter::parameter_layout(function);
    let list = |values: &[u32]| {
        if values.is_empty() {
            return "0".to_owned();
        }
        values.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
    };
    let _ = writeln!(
        out,
        "_Static_assert({total} <= PARAM_BYTES, \"parameters\");\n\
         static const uint32_t param_at[] = {{{}}}, param_bytes[] = {{{}}};",
        list(&at),
        list(&bytes)
    );
    let _ = writeln!(
        out,
        "__attribute__((visibility(\"default\"))) const Kernel kernel = {{
  .name = {}, .waits = {}, .atomics = {}, .thread_bytes = sizeof(State), .local_bytes = {},
  .shared_static = {shared}, .max_threads = {}, .accesses = {}, .params = {},
  .param_at = param_at, .param_bytes = param_bytes, .run = run,
}};",
        quoted(&function.name),
        i32::from(unit.waits > 0),
        i32::from(unit.atomics),
        unit.local,
        function.max_threads,
        unit.accesses,
        at.len(),
    );
    out
}
