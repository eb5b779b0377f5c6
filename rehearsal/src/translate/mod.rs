//! Translates one kernel of a PTX module to one C file, compiled against `kernel/kernel.h`. A register is a local variable, a branch a
//! `goto`, an instruction a statement. Memory instructions check their address first. A kernel with barriers or warp operations returns at
//! each of them, saves its live registers ([`liveness`]) after its `Thread`, and resumes there at the next call. Unsupported instructions,
//! modifiers and directives become a call that stops the program when reached, naming the kernel, the line and the text.
//!
//! Results that a GPU computes exactly are exact here. Exceptions: the approximate functions (`ex2.approx`, `rcp.approx` and so on) are
//! the host's, which are more accurate than a GPU's; and the bits of a NaN from f32 arithmetic are the host's (a GPU gives 0x7FFFFFFF).
//!
//! One file holds one group of instructions. Each function takes an [`operation::Operation`], removes the modifiers that it knows, and
//! rejects the rest.

mod atomic;
mod compare;
mod control;
mod convert;
mod copy;
mod emitter;
mod flight;
mod float;
mod group;
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

/// Translates a kernel to C; `None` if the module lacks it. Unsupported text stops the program where it is reached.
pub fn translate(module: &Module, entry: &str) -> Option<String> {
    let function = module.entry(entry)?;
    let mut unit = Unit { kernel: entry.to_owned(), ..Unit::default() };
    let mut emitter = Emitter::new(module, function, &mut unit);
    emitter.body();
    let code = emitter.finish();
    Some(file(module, function, &unit, &code))
}

#[derive(Default)]
struct Unit {
    kernel: String,
    /// Static shared memory used so far, in bytes.
    shared: u32,
    /// Local memory used so far, in bytes; no function is recursive, so each has a fixed place.
    local: u32,
    /// Alignment of dynamic shared memory, if used.
    dynamic: Option<u32>,
    /// Module variables in use, with their offset if in shared memory.
    globals: BTreeMap<usize, Option<u32>>,
    /// Memory instructions with a `Seen` so far.
    accesses: u32,
    /// Resume points so far.
    waits: u32,
    /// Blocks communicate through some operation.
    atomics: bool,
    copies: bool,
    groups: bool,
    /// Device functions by name: true if translated, false if in progress.
    functions: BTreeMap<String, bool>,
    callees: String,
}

impl Unit {
    /// Allocates an offset of that size and alignment in a space.
    fn place(used: &mut u32, bytes: u32, align: u32) -> u32 {
        let at = used.next_multiple_of(align);
        *used = at + bytes;
        at
    }
}

fn identifier(name: &str) -> String {
    name.trim_start_matches('%').replace(|letter: char| !letter.is_ascii_alphanumeric(), "_")
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

/// The C file: variables, device functions, the kernel and its description.
fn file(module: &Module, function: &Function, unit: &Unit, code: &str) -> String {
    let orders = if unit.atomics { "#define ORDERS\n" } else { "" };
    let groups = if unit.groups { "#define GROUPS\n" } else { "" };
    let mut out = format!("{orders}{groups}#include \"kernel.h\"\n");
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
  .name = {}, .waits = {}, .atomics = {}, .groups = {}, .thread_bytes = sizeof(State), .local_bytes = {},
  .shared_static = {shared}, .max_threads = {}, .accesses = {}, .params = {},
  .param_at = param_at, .param_bytes = param_bytes, .run = run,
}};",
        quoted(&function.name),
        i32::from(unit.waits > 0),
        i32::from(unit.atomics),
        i32::from(unit.groups),
        unit.local,
        function.max_threads,
        unit.accesses,
        at.len(),
    );
    out
}
