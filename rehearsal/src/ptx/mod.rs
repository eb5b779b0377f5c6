//! PTX syntax tree: functions with registers, variables and instructions. Names are resolved here (PTX scopes them by braces), so the
//! translator sees indices only. Syntax only: the translator decides whether an instruction exists and what it does. Section names in this
//! crate's comments are those of NVIDIA's "Parallel Thread Execution ISA".

mod lexer;
mod parser;
mod scope;
mod types;

pub use parser::parse;
pub use types::{Kind, Type};

use std::fmt;

/// A PTX module ("PTX Module Directives").
#[derive(Debug, Default)]
pub struct Module {
    /// Kernels and device functions with a body, in source order.
    pub functions: Vec<Function>,
    /// Module-scope variables.
    pub variables: Vec<Variable>,
    /// Unsupported module directives: no kernel of such a module may run.
    pub unknown: Vec<Unknown>,
}

impl Module {
    /// Kernel by name.
    pub fn entry(&self, name: &str) -> Option<&Function> {
        self.functions.iter().find(|function| function.is_entry && function.name == name)
    }
}

/// A kernel (`.entry`) or a device function (`.func`).
#[derive(Debug)]
pub struct Function {
    /// PTX name.
    pub name: String,
    /// True for a kernel.
    pub is_entry: bool,
    /// First line.
    pub line: u32,
    /// Return parameters: indices into `variables`.
    pub returns: Vec<usize>,
    /// Input parameters: indices into `variables`.
    pub params: Vec<usize>,
    /// Maximum threads per block (`.maxntid`), or 0.
    pub max_threads: u32,
    /// Registers of all its scopes.
    pub registers: Vec<Register>,
    /// Parameters, local and shared variables of all its scopes.
    pub variables: Vec<Variable>,
    /// Label names, for messages.
    pub labels: Vec<String>,
    /// Instructions and labels, braces removed.
    pub body: Vec<Statement>,
}

/// A register ("Register State Space").
#[derive(Debug, Clone)]
pub struct Register {
    /// PTX name; registers of two scopes may share it.
    pub name: String,
    /// Declared type.
    pub of: Type,
}

/// State space of a variable ("State Spaces").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Space {
    /// Device memory.
    Global,
    /// Read-only device memory.
    Const,
    /// Shared by a block.
    Shared,
    /// Private to a thread.
    Local,
    /// Parameters of kernels and functions.
    Param,
}

/// A variable ("Variable Declarations").
#[derive(Debug, Clone)]
pub struct Variable {
    /// PTX name.
    pub name: String,
    /// State space.
    pub space: Space,
    /// Alignment in bytes.
    pub align: u32,
    /// Size in bytes; 0 for an unsized array.
    pub bytes: u32,
    /// Initial bytes; the rest is zero.
    pub init: Vec<u8>,
    /// Defined by another module or by the launch.
    pub is_extern: bool,
}

/// A statement of a function's body.
#[derive(Debug)]
pub enum Statement {
    /// A label, by index.
    Label(usize),
    /// An instruction.
    Instruction(Instruction),
    /// Unsupported text.
    Unknown(Unknown),
}

/// Unsupported text.
#[derive(Debug, Clone)]
pub struct Unknown {
    /// Line in the module.
    pub line: u32,
    /// Text on one line.
    pub text: String,
    /// Reason.
    pub why: String,
}

/// An instruction ("Instruction Statements").
#[derive(Debug)]
pub struct Instruction {
    /// Line in the module.
    pub line: u32,
    /// Text on one line.
    pub text: String,
    /// Guard predicate ("Predicated Execution").
    pub guard: Option<Guard>,
    /// Opcode split at its dots: `["ld", "global", "u32"]`.
    pub opcode: Vec<String>,
    /// Operands.
    pub operands: Vec<Operand>,
}

/// `@p` or `@!p`.
#[derive(Debug, Clone, Copy)]
pub struct Guard {
    /// Predicate register.
    pub register: usize,
    /// True for `@!p`.
    pub negated: bool,
}

/// An instruction operand ("Instruction Operands").
#[derive(Debug, Clone, PartialEq)]
pub enum Operand {
    /// A register of the function.
    Register(usize),
    /// Address of a function-scope variable.
    Variable(usize),
    /// Address of a module-scope variable.
    Global(usize),
    /// A label of the function.
    Label(usize),
    /// Any other name: a special register, a function, `_`.
    Name(String),
    /// An integer constant, truncated to 64 bits.
    Integer(u64),
    /// An f32 constant in hex (`0f3F800000`).
    Float32(u32),
    /// An f64 constant in hex (`0d3FF0000000000000`).
    Float64(u64),
    /// `[base + offset]`.
    Address(Box<Operand>, i64),
    /// `{a, b}`.
    Vector(Vec<Operand>),
    /// `(a, b)`, of calls.
    List(Vec<Operand>),
    /// `p|q`: two destinations.
    Pair(Box<Operand>, Box<Operand>),
    /// `!p`.
    Not(Box<Operand>),
}

/// PTX syntax error.
#[derive(Debug, Clone)]
pub struct ParseError {
    /// Line.
    pub line: u32,
    /// Message.
    pub what: String,
}

impl fmt::Display for ParseError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "PTX, line {}: {}", self.line, self.what)
    }
}

impl std::error::Error for ParseError {}
