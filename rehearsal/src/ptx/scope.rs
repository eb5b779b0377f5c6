//! A function during parsing: resolves register, variable and label names in brace scopes.

use std::collections::HashMap;

use super::{Function, Operand, Register, Statement, Type, Variable};

#[derive(Default)]
struct Scope {
    registers: HashMap<String, usize>,
    /// `%r<5>`: prefix, count, type.
    ranges: Vec<(String, u64, Type)>,
    variables: HashMap<String, usize>,
    labels: HashMap<String, usize>,
    parent: Option<usize>,
}

pub(super) struct Body {
    pub function: Function,
    /// All scopes so far. None is dropped: labels may be used before their declaration.
    scopes: Vec<Scope>,
    scope: usize,
    scope_of: Vec<usize>,
}

impl Body {
    pub(super) fn new(is_entry: bool, line: u32) -> Body {
        let function = Function {
            name: String::new(),
            is_entry,
            line,
            returns: Vec::new(),
            params: Vec::new(),
            max_threads: 0,
            registers: Vec::new(),
            variables: Vec::new(),
            labels: Vec::new(),
            body: Vec::new(),
        };
        Body { function, scopes: vec![Scope::default()], scope: 0, scope_of: Vec::new() }
    }

    pub(super) fn push(&mut self, statement: Statement) {
        self.function.body.push(statement);
        self.scope_of.push(self.scope);
    }

    pub(super) fn open(&mut self) {
        self.scopes.push(Scope { parent: Some(self.scope), ..Scope::default() });
        self.scope = self.scopes.len() - 1;
    }

    /// Closes a scope; false if it was the outermost.
    pub(super) fn close(&mut self) -> bool {
        let parent = self.scopes[self.scope].parent;
        self.scope = parent.unwrap_or(0);
        parent.is_some()
    }

    pub(super) fn declare(&mut self, variable: Variable) -> usize {
        let index = self.function.variables.len();
        self.scopes[self.scope].variables.insert(variable.name.clone(), index);
        self.function.variables.push(variable);
        index
    }

    pub(super) fn declare_register(&mut self, name: &str, of: Type) {
        let register = self.register(name, of);
        self.scopes[self.scope].registers.insert(name.to_owned(), register);
    }

    /// `%r<5>`: registers `%r0` to `%r4`.
    pub(super) fn declare_registers(&mut self, prefix: &str, count: u32, of: Type) {
        self.scopes[self.scope].ranges.push((prefix.to_owned(), u64::from(count), of));
    }

    pub(super) fn find_variable(&self, name: &str) -> Option<usize> {
        self.find_from(self.scope, |scope| scope.variables.get(name).copied())
    }

    fn register(&mut self, name: &str, of: Type) -> usize {
        self.function.registers.push(Register { name: name.to_owned(), of });
        self.function.registers.len() - 1
    }

    pub(super) fn label(&mut self, name: &str) {
        let label = self.function.labels.len();
        self.function.labels.push(name.to_owned());
        self.scopes[self.scope].labels.insert(name.to_owned(), label);
        self.push(Statement::Label(label));
    }

    /// First match from a scope outwards.
    fn find_from<T>(&self, scope: usize, ask: impl Fn(&Scope) -> Option<T>) -> Option<T> {
        let mut scope = Some(scope);
        while let Some(index) = scope {
            if let Some(found) = ask(&self.scopes[index]) {
                return Some(found);
            }
            scope = self.scopes[index].parent;
        }
        None
    }

    /// Register by name; one of a range is created at first use.
    pub(super) fn find_register(&mut self, name: &str) -> Option<usize> {
        let mut scope = Some(self.scope);
        let prefix = name.trim_end_matches(|letter: char| letter.is_ascii_digit());
        let number: Option<u64> = name[prefix.len()..].parse().ok();
        while let Some(index) = scope {
            if let Some(&register) = self.scopes[index].registers.get(name) {
                return Some(register);
            }
            let ranges = &self.scopes[index].ranges;
            let range = ranges
                .iter()
                .find(|range| range.0 == prefix && number.is_some_and(|number| number < range.1));
            if let Some(&(_, _, of)) = range {
                let register = self.register(name, of);
                self.scopes[index].registers.insert(name.to_owned(), register);
                return Some(register);
            }
            scope = self.scopes[index].parent;
        }
        None
    }

    pub(super) fn finish(mut self) -> Function {
        let mut body = std::mem::take(&mut self.function.body);
        for (statement, &scope) in body.iter_mut().zip(&self.scope_of) {
            let Statement::Instruction(instruction) = statement else { continue };
            for operand in &mut instruction.operands {
                if let Operand::Name(name) = operand
                    && let Some(label) = self.find_from(scope, |scope| scope.labels.get(name).copied())
                {
                    *operand = Operand::Label(label);
                }
            }
        }
        self.function.body = body;
        self.function
    }
}
