//! Parses tokens into a [`Module`]. Unsupported text does not end the parse: it becomes an [`Unknown`] in place, so only a kernel that
//! reaches it stops. [`ParseError`] is for text without any structure.

use std::collections::HashMap;

use super::lexer::{Tok, Token, tokens};
use super::scope::Body;
use super::{Guard, Instruction, Module, Operand, ParseError, Space, Statement, Type, Unknown, Variable};

/// Parses a module.
pub fn parse(text: &str) -> Result<Module, ParseError> {
    let mut parser =
        Parser { text, tokens: tokens(text)?, at: 0, module: Module::default(), globals: HashMap::new() };
    while parser.at < parser.tokens.len() {
        let from = parser.at;
        if let Err(why) = parser.directive() {
            parser.at = from;
            let unknown = parser.skip_directive(why);
            parser.module.unknown.push(unknown);
        }
    }
    Ok(parser.module)
}

type Read<T> = Result<T, String>;

struct Parser<'a> {
    text: &'a str,
    tokens: Vec<Token<'a>>,
    at: usize,
    module: Module,
    globals: HashMap<String, usize>,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Option<Tok<'a>> {
        self.tokens.get(self.at).map(|token| token.is)
    }

    fn next(&mut self) -> Read<Tok<'a>> {
        let tok = self.peek().ok_or("the text ends too early")?;
        self.at += 1;
        Ok(tok)
    }

    fn eat(&mut self, mark: char) -> bool {
        let found = self.peek() == Some(Tok::Mark(mark));
        self.at += usize::from(found);
        found
    }

    fn eat_dotted(&mut self, name: &str) -> bool {
        let found = self.peek() == Some(Tok::Dotted(name));
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, mark: char) -> Read<()> {
        if self.eat(mark) { Ok(()) } else { Err(format!("`{mark}` is missing before {}", self.here())) }
    }

    fn here(&self) -> String {
        let token = self.tokens.get(self.at);
        token.map_or("the end of the text".to_owned(), |token| {
            format!("`{}`", &self.text[token.from..token.to])
        })
    }

    fn word(&mut self) -> Read<&'a str> {
        match self.peek() {
            Some(Tok::Word(name)) => {
                self.at += 1;
                Ok(name)
            }
            _ => Err(format!("a name is missing before {}", self.here())),
        }
    }

    fn count(&mut self) -> Read<u32> {
        match self.next()? {
            Tok::Integer(value) => u32::try_from(value).map_err(|_| format!("{value} is too large")),
            _ => Err("a number is missing".to_owned()),
        }
    }

    fn text_from(&self, from: usize) -> String {
        let (Some(first), Some(last)) = (self.tokens.get(from), self.tokens.get(self.at.max(from + 1) - 1))
        else {
            return String::new();
        };
        self.text[first.from..last.to].split_whitespace().collect::<Vec<_>>().join(" ")
    }

    fn line_at(&self, at: usize) -> u32 {
        self.tokens.get(at).or(self.tokens.last()).map_or(1, |token| token.line)
    }

    fn skip_line(&mut self) {
        let line = self.line_at(self.at);
        while self.tokens.get(self.at).is_some_and(|token| token.line == line) {
            self.at += 1;
        }
    }

    fn skip_directive(&mut self, why: String) -> Unknown {
        let from = self.at;
        let mut depth = 0_usize;
        while let Ok(tok) = self.next() {
            match tok {
                Tok::Mark('{') => depth += 1,
                Tok::Mark('}') => depth = depth.saturating_sub(1),
                Tok::Mark(';') => {}
                _ => continue,
            }
            if depth == 0 {
                break;
            }
        }
        let mut text = self.text_from(from);
        text.truncate(200);
        Unknown { line: self.line_at(from), text, why }
    }

    /// A module directive ("PTX Module Directives", "Linking Directives").
    fn directive(&mut self) -> Read<()> {
        let mut is_extern = false;
        loop {
            let Tok::Dotted(name) = self.next()? else { return Err("no directive".to_owned()) };
            match name {
                "extern" => is_extern = true,
                "visible" | "weak" => {}
                "version" | "target" | "file" => {
                    self.at -= 1;
                    self.skip_line();
                    return Ok(());
                }
                "address_size" if self.peek() == Some(Tok::Integer(64)) => {
                    self.at += 1;
                    return Ok(());
                }
                "entry" => return self.function(true),
                "func" => return self.function(false),
                "global" | "const" | "shared" => {
                    let space = match name {
                        "global" => Space::Global,
                        "const" => Space::Const,
                        _ => Space::Shared,
                    };
                    let variable = self.variable(space, is_extern)?;
                    self.expect(';')?;
                    self.globals.insert(variable.name.clone(), self.module.variables.len());
                    self.module.variables.push(variable);
                    return Ok(());
                }
                _ => return Err(format!("the directive .{name}")),
            }
        }
    }

    fn variable(&mut self, space: Space, is_extern: bool) -> Read<Variable> {
        let mut align = None;
        let mut vector = 1;
        let of = loop {
            let Tok::Dotted(name) = self.next()? else { return Err("a variable without a type".to_owned()) };
            match name {
                "align" => align = Some(self.count()?),
                "v2" => vector = 2,
                "v4" => vector = 4,
                _ => break Type::named(name).ok_or_else(|| format!("the type .{name}"))?,
            }
        };
        if space == Space::Param && self.eat_dotted("ptr") {
            // `.ptr .global .align 4` is a hint.
            while let Some(Tok::Dotted(name)) = self.peek() {
                self.at += 1;
                if name == "align" {
                    self.count()?;
                }
            }
        }
        let name = self.word()?.to_owned();
        let element = of.bytes() * vector;
        let mut bytes = u64::from(element);
        while self.eat('[') {
            let count = if self.peek() == Some(Tok::Mark(']')) { 0 } else { self.count()? };
            bytes *= u64::from(count);
            self.expect(']')?;
        }
        let bytes = u32::try_from(bytes).map_err(|_| format!("{name} is too large"))?;
        let mut init = Vec::new();
        if self.eat('=') {
            self.initial(of, &mut init)?;
            if init.len() > bytes as usize {
                return Err(format!("{name} has more initial values than elements"));
            }
        }
        let align = align.unwrap_or(element);
        if !align.is_power_of_two() {
            return Err(format!("{name} has the alignment {align}"));
        }
        Ok(Variable { name, space, align, bytes, init, is_extern })
    }

    fn initial(&mut self, of: Type, out: &mut Vec<u8>) -> Read<()> {
        if self.eat('{') {
            while !self.eat('}') {
                if self.peek() == Some(Tok::Mark('{')) {
                    return Err("initial values of several dimensions".to_owned());
                }
                self.initial(of, out)?;
                if !self.eat(',') && self.peek() != Some(Tok::Mark('}')) {
                    return Err(format!("an initial value {}", self.here()));
                }
            }
            return Ok(());
        }
        let negative = self.eat('-');
        let value = match self.next()? {
            Tok::Integer(value) if negative => value.wrapping_neg(),
            Tok::Integer(value) => value,
            Tok::Float32(bits) if of.bits == 32 && !negative => u64::from(bits),
            Tok::Float64(bits) if of.bits == 64 && !negative => bits,
            _ => return Err("an initial value that is no number of the variable's width".to_owned()),
        };
        out.extend_from_slice(&value.to_le_bytes()[..of.bytes() as usize]);
        Ok(())
    }

    /// `(.param ... a, .param ... b)`; adds them to the function's variables.
    fn signature(&mut self, body: &mut Body) -> Read<Vec<usize>> {
        let mut out = Vec::new();
        if !self.eat('(') {
            return Ok(out);
        }
        while !self.eat(')') {
            if !self.eat_dotted("param") {
                return Err(format!("a parameter that is no .param: {}", self.here()));
            }
            let variable = self.variable(Space::Param, false)?;
            out.push(body.declare(variable));
            if !self.eat(',') && self.peek() != Some(Tok::Mark(')')) {
                return Err(format!("`,` or `)` is missing before {}", self.here()));
            }
        }
        Ok(out)
    }

    /// Declaration after `.entry` or `.func` ("Kernel and Function Directives").
    fn function(&mut self, is_entry: bool) -> Read<()> {
        let line = self.line_at(self.at - 1);
        let mut body = Body::new(is_entry, line);
        if !is_entry {
            body.function.returns = self.signature(&mut body)?;
        }
        body.function.name = self.word()?.to_owned();
        body.function.params = self.signature(&mut body)?;
        let mut unknown = Vec::new();
        loop {
            if self.eat(';') {
                return Ok(()); // a declaration without a body
            }
            if self.eat('{') {
                break;
            }
            let Tok::Dotted(name) = self.next()? else {
                return Err(format!("no body before {}", self.here()));
            };
            match name {
                // "Performance-Tuning Directives": only the first limits a launch.
                "maxntid" => {
                    let mut most = self.count()?;
                    while self.eat(',') {
                        most = most.saturating_mul(self.count()?);
                    }
                    body.function.max_threads = most;
                }
                "minnctapersm" | "maxnreg" | "maxnctapersm" => drop(self.count()?),
                "noreturn" => {}
                "pragma" => {
                    self.next()?;
                    self.eat(';');
                }
                _ => {
                    let text = format!(".{name}");
                    unknown.push(Unknown {
                        line: self.line_at(self.at - 1),
                        text,
                        why: "a directive".to_owned(),
                    });
                    while !matches!(self.peek(), None | Some(Tok::Dotted(_) | Tok::Mark('{' | ';'))) {
                        self.at += 1;
                    }
                }
            }
        }
        for unknown in unknown {
            body.push(Statement::Unknown(unknown));
        }
        self.statements(&mut body)?;
        self.module.functions.push(body.finish());
        Ok(())
    }

    fn statements(&mut self, body: &mut Body) -> Read<()> {
        loop {
            let from = self.at;
            match self.peek().ok_or("a body without an end")? {
                Tok::Mark(';') => self.at += 1,
                Tok::Mark('{') => {
                    self.at += 1;
                    body.open();
                }
                Tok::Mark('}') => {
                    self.at += 1;
                    if !body.close() {
                        return Ok(());
                    }
                }
                Tok::Dotted("loc") => self.skip_line(),
                first => {
                    let read = if let Tok::Dotted(name) = first {
                        self.at += 1;
                        self.declaration(name, body)
                    } else {
                        self.instruction(body)
                    };
                    if let Err(why) = read {
                        self.at = from;
                        while !matches!(self.next()?, Tok::Mark(';')) {}
                        let text = self.text_from(from).trim_end_matches([' ', ';']).to_owned();
                        body.push(Statement::Unknown(Unknown { line: self.line_at(from), text, why }));
                    }
                }
            }
        }
    }

    fn declaration(&mut self, name: &str, body: &mut Body) -> Read<()> {
        let space = match name {
            "reg" => return self.registers(body),
            "pragma" => {
                self.next()?;
                return self.expect(';');
            }
            "local" => Space::Local,
            "shared" => Space::Shared,
            "param" => Space::Param,
            _ => return Err(format!("the directive .{name}")),
        };
        let variable = self.variable(space, false)?;
        self.expect(';')?;
        body.declare(variable);
        Ok(())
    }

    /// Declaration after `.reg`, including "Parameterized Variable Names".
    fn registers(&mut self, body: &mut Body) -> Read<()> {
        let Tok::Dotted(name) = self.next()? else { return Err("registers without a type".to_owned()) };
        let of = Type::named(name).ok_or_else(|| format!("the type .{name}"))?;
        loop {
            let name = self.word()?;
            if self.eat('<') {
                let count = self.count()?;
                self.expect('>')?;
                body.declare_registers(name, count, of);
            } else {
                body.declare_register(name, of);
            }
            if !self.eat(',') {
                return self.expect(';');
            }
        }
    }

    fn instruction(&mut self, body: &mut Body) -> Read<()> {
        let from = self.at;
        let mut guard = None;
        if self.eat('@') {
            let negated = self.eat('!');
            let name = self.word()?;
            let register = body.find_register(name).ok_or_else(|| format!("the predicate {name}"))?;
            guard = Some(Guard { register, negated });
        }
        let name = self.word()?;
        if guard.is_none() && self.eat(':') {
            if self.peek().is_some_and(|tok| {
                matches!(tok, Tok::Dotted("branchtargets" | "calltargets" | "callprototype"))
            }) {
                return Err("a list of targets".to_owned());
            }
            body.label(name);
            return Ok(());
        }
        let mut opcode = vec![name.to_owned()];
        while let Some(Tok::Dotted(part)) = self.peek() {
            opcode.push(part.to_owned());
            self.at += 1;
        }
        let mut operands = Vec::new();
        while self.peek() != Some(Tok::Mark(';')) {
            operands.push(self.operand(body)?);
            if !self.eat(',') && self.peek() != Some(Tok::Mark(';')) {
                return Err(format!("`,` or `;` is missing before {}", self.here()));
            }
        }
        let text = self.text_from(from);
        self.expect(';')?;
        let line = self.line_at(from);
        body.push(Statement::Instruction(Instruction { line, text, guard, opcode, operands }));
        Ok(())
    }

    fn operands_until(&mut self, end: char, body: &mut Body) -> Read<Vec<Operand>> {
        let mut out = Vec::new();
        while !self.eat(end) {
            out.push(self.operand(body)?);
            if !self.eat(',') && self.peek() != Some(Tok::Mark(end)) {
                return Err(format!("`,` or `{end}` is missing before {}", self.here()));
            }
        }
        Ok(out)
    }

    fn operand(&mut self, body: &mut Body) -> Read<Operand> {
        let first = match self.next()? {
            Tok::Mark('{') => return Ok(Operand::Vector(self.operands_until('}', body)?)),
            Tok::Mark('(') => return Ok(Operand::List(self.operands_until(')', body)?)),
            Tok::Mark('[') => {
                let base = self.operand(body)?;
                let mut offset = 0;
                if self.eat('+') || self.peek() == Some(Tok::Mark('-')) {
                    let negative = self.eat('-');
                    let Tok::Integer(value) = self.next()? else { return Err("an offset".to_owned()) };
                    offset = if negative { (value as i64).wrapping_neg() } else { value as i64 };
                }
                self.expect(']')?;
                return Ok(Operand::Address(Box::new(base), offset));
            }
            Tok::Mark('!') => return Ok(Operand::Not(Box::new(self.operand(body)?))),
            Tok::Mark('-') => match self.next()? {
                Tok::Integer(value) => Operand::Integer(value.wrapping_neg()),
                _ => return Err("a sign before what is no integer".to_owned()),
            },
            Tok::Integer(value) => Operand::Integer(value),
            Tok::Float32(bits) => Operand::Float32(bits),
            Tok::Float64(bits) => Operand::Float64(bits),
            Tok::Word(name) => {
                let mut name = name.to_owned();
                while let Some(Tok::Dotted(part)) = self.peek() {
                    name = format!("{name}.{part}");
                    self.at += 1;
                }
                self.named(name, body)
            }
            _ => {
                self.at -= 1;
                return Err(format!("an operand {}", self.here()));
            }
        };
        if self.eat('|') {
            return Ok(Operand::Pair(Box::new(first), Box::new(self.operand(body)?)));
        }
        Ok(first)
    }

    /// Operand by name. Labels are resolved at the end of the function.
    fn named(&self, name: String, body: &mut Body) -> Operand {
        if let Some(register) = body.find_register(&name) {
            return Operand::Register(register);
        }
        if let Some(variable) = body.find_variable(&name) {
            return Operand::Variable(variable);
        }
        self.globals.get(&name).map_or(Operand::Name(name), |&global| Operand::Global(global))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ptx::{Function, Kind};

    fn only(body: &str) -> Function {
        let text =
            format!(".version 9.0\n.entry k(.param .u64 p, .param .align 8 .b8 q[24])\n{{\n{body}\n}}");
        let mut module = parse(&text).expect("a module");
        assert!(module.unknown.is_empty(), "{:?}", module.unknown);
        module.functions.remove(0)
    }

    fn instructions(function: &Function) -> Vec<&Instruction> {
        let mut all = Vec::new();
        for statement in &function.body {
            if let Statement::Instruction(instruction) = statement {
                all.push(instruction);
            }
        }
        all
    }

    #[test]
    fn an_instruction_keeps_its_guard_its_parts_its_text_and_its_line() {
        let function =
            only(".reg .pred %p<2>;\n.reg .b64 %d<3>;\n@!%p1 ld.global.v2.u64 {%d1,  %d2},\n [%d1+-16];");
        let found = instructions(&function)[0];
        assert_eq!((found.line, found.text.as_str()), (6, "@!%p1 ld.global.v2.u64 {%d1, %d2}, [%d1+-16]"));
        assert_eq!(found.opcode, ["ld", "global", "v2", "u64"]);
        assert!(found.guard.is_some_and(|guard| guard.negated && guard.register == 0));
        let vector = Operand::Vector(vec![Operand::Register(1), Operand::Register(2)]);
        assert_eq!(found.operands, [vector, Operand::Address(Box::new(Operand::Register(1)), -16)]);
    }

    #[test]
    fn ranges_of_registers_end_where_they_say() {
        let function = only(".reg .f32 %f<3>;\nmov.f32 %f2, %f3;");
        let expected = [Operand::Register(0), Operand::Name("%f3".to_owned())];
        assert_eq!(instructions(&function)[0].operands, expected);
        assert_eq!(function.registers[0].of.kind, Kind::Float);
    }

    #[test]
    fn labels_are_found_before_they_are_declared_and_only_in_their_scope() {
        let function = only("bra X;\n{ bra X; X: bra X; }\nX: ret;\n{ Y: ret; }\nbra Y;");
        let targets: Vec<_> = instructions(&function).iter().flat_map(|found| &found.operands).collect();
        let (outer, inner, none) = (Operand::Label(1), Operand::Label(0), Operand::Name("Y".to_owned()));
        assert_eq!(targets, [&outer, &inner, &inner, &none]);
    }

    #[test]
    fn what_cannot_be_read_is_kept_at_its_place() {
        let function = only("ret;\n.weird 3;\nadd.f32 a, 1.5, b;\nret;");
        let unknown = |statement: &Statement| match statement {
            Statement::Unknown(unknown) => Some((unknown.line, unknown.text.clone())),
            _ => None,
        };
        let found: Vec<_> = function.body.iter().map(unknown).collect();
        let weird = Some((5, ".weird 3".to_owned()));
        let decimal = Some((6, "add.f32 a, 1.5, b".to_owned()));
        assert_eq!(found, [None, weird, decimal, None]);
        let module =
            parse(".version 9.0\n.alias f, g;\n.global .u32 x[2] = {1, -1};\n.section .debug { .b8 1 }");
        let module = module.expect("a module");
        assert_eq!(module.unknown.iter().map(|unknown| unknown.line).collect::<Vec<_>>(), [2, 4]);
        assert_eq!(module.variables[0].init, [1, 0, 0, 0, 255, 255, 255, 255]);
    }

    #[test]
    fn text_without_structure_is_an_error() {
        assert_eq!(parse("\n\"open").expect_err("an error").line, 2);
        // An unterminated body is one unsupported directive.
        assert_eq!(parse(".entry k() { ret;").expect("a module").unknown.len(), 1);
    }
}
