//! PTX as data: one module's text becomes functions with their registers, variables and instructions. Names
//! are resolved here (PTX scopes them by braces), so that the translator meets numbers of registers,
//! variables and labels only. It knows syntax, not meaning: whether an instruction exists and what it does is
//! the translator's part.
//!
//! Section names in the comments of this crate are those of NVIDIA's "Parallel Thread Execution ISA".

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
    /// Kernels and device functions that have a body, in the order of the text.
    pub functions: Vec<Function>,
    /// Variables outside of functions.
    pub variables: Vec<Variable>,
    /// Directives of the module that nothing here understands: no kernel of such a module may run.
    pub unknown: Vec<Unknown>,
}

impl Module {
    /// The kernel of that name.
    pub fn entry(&self, name: &str) -> Option<&Function> {
        self.functions.iter().find(|function| function.is_entry && function.name == name)
    }
}

/// A kernel (`.entry`) or a device function (`.func`).
#[derive(Debug)]
pub struct Function {
    /// Its name in PTX.
    pub name: String,
    /// Whether it is a kernel.
    pub is_entry: bool,
    /// Where it begins.
    pub line: u32,
    /// What it returns: indices into `variables`.
    pub returns: Vec<usize>,
    /// What it is given: indices into `variables`.
    pub params: Vec<usize>,
    /// The most threads a block may have (`.maxntid`), or 0.
    pub max_threads: u32,
    /// Registers of all its scopes.
    pub registers: Vec<Register>,
    /// Parameters, local and shared variables of all its scopes.
    pub variables: Vec<Variable>,
    /// Names of the labels, for messages.
    pub labels: Vec<String>,
    /// Its instructions and labels, braces removed.
    pub body: Vec<Statement>,
}

/// A register ("Register State Space").
#[derive(Debug, Clone)]
pub struct Register {
    /// Its name in PTX; registers of two scopes may share it.
    pub name: String,
    /// Its declared type.
    pub of: Type,
}

/// Where a variable lives ("State Spaces").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Space {
    /// Device memory.
    Global,
    /// Read-only device memory.
    Const,
    /// Memory of a block.
    Shared,
    /// Memory of a thread.
    Local,
    /// Parameters of kernels and functions.
    Param,
}

/// A variable ("Variable Declarations").
#[derive(Debug, Clone)]
pub struct Variable {
    /// Its name in PTX.
    pub name: String,
    /// Where it lives.
    pub space: Space,
    /// Its alignment in bytes.
    pub align: u32,
    /// Its size in bytes; 0 for an array without one.
    pub bytes: u32,
    /// Its first bytes, where it is initialised; the rest is zero.
    pub init: Vec<u8>,
    /// Whether another module, or the launch, provides it.
    pub is_extern: bool,
}

/// One piece of a function's body.
#[derive(Debug)]
pub enum Statement {
    /// A label, by its number.
    Label(usize),
    /// An instruction.
    Instruction(Instruction),
    /// What could not be read.
    Unknown(Unknown),
}

/// A piece of text that could not be read.
#[derive(Debug, Clone)]
pub struct Unknown {
    /// Its line in the module.
    pub line: u32,
    /// The text, on one line.
    pub text: String,
    /// The fault.
    pub why: String,
}

/// An instruction ("Instruction Statements").
#[derive(Debug)]
pub struct Instruction {
    /// Its line in the module.
    pub line: u32,
    /// Its text, on one line.
    pub text: String,
    /// The predicate that it runs under ("Predicated Execution").
    pub guard: Option<Guard>,
    /// The opcode cut at its points: `["ld", "global", "u32"]`.
    pub opcode: Vec<String>,
    /// What it works on.
    pub operands: Vec<Operand>,
}

/// `@p` or `@!p`.
#[derive(Debug, Clone, Copy)]
pub struct Guard {
    /// The predicate's register.
    pub register: usize,
    /// Whether the instruction runs where the predicate is false.
    pub negated: bool,
}

/// What an instruction works on ("Instruction Operands").
#[derive(Debug, Clone, PartialEq)]
pub enum Operand {
    /// A register of the function.
    Register(usize),
    /// A variable of the function: its address.
    Variable(usize),
    /// A variable of the module: its address.
    Global(usize),
    /// A label of the function.
    Label(usize),
    /// Any other name: a special register, a function, `_`.
    Name(String),
    /// An integer constant, cut to 64 bits.
    Integer(u64),
    /// A constant written as the bits of an f32 (`0f3F800000`).
    Float32(u32),
    /// A constant written as the bits of an f64 (`0d3FF0000000000000`).
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

/// Text that is no PTX module.
#[derive(Debug, Clone)]
pub struct ParseError {
    /// The line.
    pub line: u32,
    /// What is wrong there.
    pub what: String,
}

impl fmt::Display for ParseError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "PTX, line {}: {}", self.line, self.what)
    }
}

impl std::error::Error for ParseError {}
