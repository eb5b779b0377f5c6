//! Puts the checks of [`bounds`](super::bounds) into a parsed template.
//!
//! The engine has no hook on operators, so the syntax tree is copied with a filter around each expression whose result can be larger or
//! deeper than its operands, and with a tick at the start of each loop's and macro's body. Positions are kept: errors name the line of the
//! original. The names of the filters hold parentheses, which no template can write.

use minijinja::machinery::ast::{
    AutoEscape, BinOp, BinOpKind, Block, Call, CallArg, CallBlock, Compare, CompareOp, Const, Do, EmitExpr,
    EmitRaw, Expr, Filter, FilterBlock, ForLoop, GetAttr, GetItem, IfCond, IfExpr, List, Macro, Map, Set,
    SetBlock, Slice, Spanned, Stmt, Template, Test, Tuple, UnaryOp, UnaryOpKind, Var, WithBlock,
};
use minijinja::machinery::{Span, Token, tokenize};
use minijinja::syntax::SyntaxConfig;
use minijinja::{Error, ErrorKind, Value};

/// Filter that returns its value, or an error if it is too large, too deep or too late.
pub(super) const BOUNDED: &str = "(bounded)";

/// [`BOUNDED`], and no namespace: stored in another, it could contain itself.
pub(super) const STORED: &str = "(stored)";

/// Filter of a loop's or macro's raw bytes, which are written without another check; returns an empty text.
pub(super) const TICK: &str = "(tick)";

/// Maximum bytes of a template. The longest known chat template has 30 KB.
const LONGEST_SOURCE: usize = 1 << 20;

/// Maximum tokens of one tag: the parser and the compiler recurse on chains such as `a ~ b ~ c` and `a.b.c`.
const MOST_TOKENS: usize = 2000;

/// Maximum `elif`s of a template, on which they recurse too.
const MOST_ELIFS: usize = 200;

/// Maximum names that namespaces are given with `set`: each can hold a text of maximum length.
const MOST_FIELDS: usize = 64;

fn refused(line: u16, reason: String) -> (Option<usize>, String) {
    (Some(usize::from(line)), reason)
}

/// Refuses a source that the parser could not take in little stack; returns line and reason.
pub(super) fn check_source(source: &str, syntax: &SyntaxConfig) -> Result<(), (Option<usize>, String)> {
    if source.len() > LONGEST_SOURCE {
        return Err((
            None,
            format!("it has {} bytes, and at most {LONGEST_SOURCE} can be a template", source.len()),
        ));
    }
    let (mut tokens, mut elifs, mut fields) = (0, 0, std::collections::BTreeSet::new());
    let (mut is_set, mut after_dot) = (false, false);
    // A fault in the syntax is the parser's to tell.
    for (token, span) in tokenize(source, false, syntax.clone()).map_while(Result::ok) {
        match token {
            Token::VariableStart | Token::BlockStart => (tokens, is_set) = (0, false),
            Token::Ident("elif") => elifs += 1,
            Token::Ident("set") if tokens == 0 => is_set = true,
            Token::Ident(name) if is_set && after_dot => _ = fields.insert(name),
            Token::Assign => is_set = false,
            _ => {}
        }
        tokens += usize::from(!matches!(token, Token::VariableStart | Token::BlockStart));
        after_dot = matches!(token, Token::Dot);
        if tokens > MOST_TOKENS {
            return Err(refused(span.start_line, format!("a tag of more than {MOST_TOKENS} tokens")));
        }
        if elifs > MOST_ELIFS {
            return Err(refused(span.start_line, format!("more than {MOST_ELIFS} `elif`s")));
        }
        if fields.len() > MOST_FIELDS {
            let reason = format!("more than {MOST_FIELDS} names of fields are set");
            return Err(refused(span.start_line, reason));
        }
    }
    Ok(())
}

fn filter<'a>(name: &'a str, expr: Expr<'a>, span: Span) -> Expr<'a> {
    Expr::Filter(Spanned::new(Filter { name, expr: Some(expr), args: Vec::new() }, span))
}

/// Copies a template's tree with checks.
pub(super) fn statement<'a>(stmt: &Stmt<'a>) -> Result<Stmt<'a>, Error> {
    Ok(match stmt {
        Stmt::Template(s) => {
            Stmt::Template(Spanned::new(Template { children: body(&s.children)? }, s.span()))
        }
        Stmt::EmitExpr(s) => {
            // The engine tells `loop(..)`, `super()` and `self.name()` by their place; what is printed is checked by the formatter.
            let expr = match &s.expr {
                Expr::Call(c) => Expr::Call(Spanned::new(call(c)?, c.span())),
                other => expression(other)?,
            };
            Stmt::EmitExpr(Spanned::new(EmitExpr { expr }, s.span()))
        }
        Stmt::EmitRaw(s) => Stmt::EmitRaw(Spanned::new(EmitRaw { raw: s.raw }, s.span())),
        Stmt::ForLoop(s) => {
            let filter_expr = s.filter_expr.as_ref().map(expression).transpose()?;
            let (target, iter) = (target(&s.target)?, expression(&s.iter)?);
            let (body, else_body) = (ticking(&s.body, s.span())?, body(&s.else_body)?);
            let recursive = s.recursive;
            let of = ForLoop { target, iter, filter_expr, recursive, body, else_body };
            Stmt::ForLoop(Spanned::new(of, s.span()))
        }
        Stmt::IfCond(s) => {
            let expr = expression(&s.expr)?;
            let of = IfCond { expr, true_body: body(&s.true_body)?, false_body: body(&s.false_body)? };
            Stmt::IfCond(Spanned::new(of, s.span()))
        }
        Stmt::WithBlock(s) => {
            let assign = |(to, of): &(Expr<'a>, Expr<'a>)| Ok((target(to)?, expression(of)?));
            let assignments = s.assignments.iter().map(assign).collect::<Result<_, Error>>()?;
            Stmt::WithBlock(Spanned::new(WithBlock { assignments, body: body(&s.body)? }, s.span()))
        }
        Stmt::Set(s) => {
            let mut expr = expression(&s.expr)?;
            if !matches!(s.target, Expr::Var(_)) {
                expr = filter(STORED, expr, s.expr.span());
            }
            Stmt::Set(Spanned::new(Set { target: target(&s.target)?, expr }, s.span()))
        }
        Stmt::SetBlock(s) => {
            let filter = s.filter.as_ref().map(expression).transpose()?;
            let of = SetBlock { target: target(&s.target)?, filter, body: body(&s.body)? };
            Stmt::SetBlock(Spanned::new(of, s.span()))
        }
        Stmt::AutoEscape(s) => {
            let of = AutoEscape { enabled: expression(&s.enabled)?, body: body(&s.body)? };
            Stmt::AutoEscape(Spanned::new(of, s.span()))
        }
        Stmt::FilterBlock(s) => {
            let of = FilterBlock { filter: expression(&s.filter)?, body: body(&s.body)? };
            Stmt::FilterBlock(Spanned::new(of, s.span()))
        }
        Stmt::Block(s) => {
            let of = Block { name: s.name, required: s.required, body: ticking(&s.body, s.span())? };
            Stmt::Block(Spanned::new(of, s.span()))
        }
        Stmt::Macro(s) => Stmt::Macro(Spanned::new(macro_of(s)?, s.span())),
        Stmt::CallBlock(s) => {
            let called = Spanned::new(call(&s.call)?, s.call.span());
            let macro_decl = Spanned::new(macro_of(&s.macro_decl)?, s.macro_decl.span());
            Stmt::CallBlock(Spanned::new(CallBlock { call: called, macro_decl }, s.span()))
        }
        Stmt::Continue(s) => Stmt::Continue(Spanned::new(minijinja::machinery::ast::Continue, s.span())),
        Stmt::Break(s) => Stmt::Break(Spanned::new(minijinja::machinery::ast::Break, s.span())),
        Stmt::Do(s) => {
            let called = Spanned::new(call(&s.call)?, s.call.span());
            Stmt::Do(Spanned::new(Do { call: called }, s.span()))
        }
        Stmt::Import(s) => return Err(other_template(s.span())),
        Stmt::FromImport(s) => return Err(other_template(s.span())),
        Stmt::Extends(s) => return Err(other_template(s.span())),
        Stmt::Include(s) => return Err(other_template(s.span())),
    })
}

fn other_template(span: Span) -> Error {
    let line = span.start_line;
    Error::new(ErrorKind::TemplateNotFound, format!("line {line} wants another template, and there is none"))
}

fn body<'a>(stmts: &[Stmt<'a>]) -> Result<Vec<Stmt<'a>>, Error> {
    stmts.iter().map(statement).collect()
}

/// A body that is run more than once.
fn ticking<'a>(stmts: &[Stmt<'a>], span: Span) -> Result<Vec<Stmt<'a>>, Error> {
    let value = Value::from(raw_bytes(stmts));
    let expr = filter(TICK, Expr::Const(Spanned::new(Const { value }, span)), span);
    let tick = Stmt::EmitExpr(Spanned::new(EmitExpr { expr }, span));
    std::iter::once(Ok(tick)).chain(stmts.iter().map(statement)).collect()
}

/// Bytes of text in a body, inner loops excluded.
fn raw_bytes(stmts: &[Stmt<'_>]) -> usize {
    let of = |stmt: &Stmt<'_>| match stmt {
        Stmt::EmitRaw(s) => s.raw.len(),
        Stmt::IfCond(s) => raw_bytes(&s.true_body).max(raw_bytes(&s.false_body)),
        Stmt::ForLoop(s) => raw_bytes(&s.else_body),
        Stmt::WithBlock(s) => raw_bytes(&s.body),
        Stmt::SetBlock(s) => raw_bytes(&s.body),
        Stmt::AutoEscape(s) => raw_bytes(&s.body),
        Stmt::FilterBlock(s) => raw_bytes(&s.body),
        _ => 0,
    };
    stmts.iter().map(of).sum()
}

fn macro_of<'a>(of: &Macro<'a>) -> Result<Macro<'a>, Error> {
    let span = of.body.first().map_or_else(Span::default, span_of);
    let args = of.args.iter().map(target).collect::<Result<_, _>>()?;
    Ok(Macro { name: of.name, args, defaults: expressions(&of.defaults)?, body: ticking(&of.body, span)? })
}

fn span_of(stmt: &Stmt<'_>) -> Span {
    match stmt {
        Stmt::EmitExpr(s) => s.span(),
        Stmt::EmitRaw(s) => s.span(),
        Stmt::ForLoop(s) => s.span(),
        Stmt::IfCond(s) => s.span(),
        Stmt::Set(s) => s.span(),
        _ => Span::default(),
    }
}

/// The left side of an assignment, which is written and not evaluated.
fn target<'a>(expr: &Expr<'a>) -> Result<Expr<'a>, Error> {
    Ok(match expr {
        Expr::GetAttr(e) => {
            Expr::GetAttr(Spanned::new(GetAttr { expr: target(&e.expr)?, name: e.name }, e.span()))
        }
        Expr::List(e) => {
            let items = e.items.iter().map(target).collect::<Result<_, _>>()?;
            Expr::List(Spanned::new(List { items }, e.span()))
        }
        other => expression(other)?,
    })
}

fn expressions<'a>(exprs: &[Expr<'a>]) -> Result<Vec<Expr<'a>>, Error> {
    exprs.iter().map(expression).collect()
}

fn optional<'a>(expr: Option<&Expr<'a>>) -> Result<Option<Expr<'a>>, Error> {
    expr.map(expression).transpose()
}

fn arguments<'a>(args: &[CallArg<'a>]) -> Result<Vec<CallArg<'a>>, Error> {
    let of = |arg: &CallArg<'a>| {
        Ok(match arg {
            CallArg::Pos(e) => CallArg::Pos(expression(e)?),
            CallArg::Kwarg(name, e) => CallArg::Kwarg(name, expression(e)?),
            CallArg::PosSplat(e) => CallArg::PosSplat(expression(e)?),
            CallArg::KwargSplat(e) => CallArg::KwargSplat(expression(e)?),
        })
    };
    args.iter().map(of).collect()
}

fn call<'a>(of: &Call<'a>) -> Result<Call<'a>, Error> {
    // The engine tells functions and methods by their form.
    let expr = match &of.expr {
        Expr::GetAttr(e) => {
            Expr::GetAttr(Spanned::new(GetAttr { expr: expression(&e.expr)?, name: e.name }, e.span()))
        }
        other => expression(other)?,
    };
    Ok(Call { expr, args: arguments(&of.args)? })
}

/// True if a comparison with it takes no time.
fn is_short(expr: &Expr<'_>) -> bool {
    match expr {
        Expr::Const(_) => true,
        Expr::List(e) => e.items.iter().all(is_short),
        Expr::Tuple(e) => e.items.iter().all(is_short),
        _ => false,
    }
}

fn expression<'a>(expr: &Expr<'a>) -> Result<Expr<'a>, Error> {
    let span = expr.span();
    let checked = |of: Expr<'a>| filter(BOUNDED, of, span);
    Ok(match expr {
        Expr::Var(e) => Expr::Var(Spanned::new(Var { id: e.id }, span)),
        Expr::Const(e) => Expr::Const(Spanned::new(Const { value: e.value.clone() }, span)),
        Expr::GetAttr(e) => {
            Expr::GetAttr(Spanned::new(GetAttr { expr: expression(&e.expr)?, name: e.name }, span))
        }
        Expr::GetItem(e) => {
            let (expr, subscript_expr) = (expression(&e.expr)?, expression(&e.subscript_expr)?);
            Expr::GetItem(Spanned::new(GetItem { expr, subscript_expr }, span))
        }
        Expr::UnaryOp(e) => {
            // The kind can neither be copied nor moved out of its node.
            let is_not = matches!(e.op, UnaryOpKind::Not);
            let op = if is_not { UnaryOpKind::Not } else { UnaryOpKind::Neg };
            Expr::UnaryOp(Spanned::new(UnaryOp { op, expr: expression(&e.expr)? }, span))
        }
        Expr::BinOp(e) => {
            let (left, right) = (expression(&e.left)?, expression(&e.right)?);
            let of = Expr::BinOp(Spanned::new(BinOp { op: e.op, left, right }, span));
            let is_short = match e.op {
                BinOpKind::Add | BinOpKind::Mul | BinOpKind::Concat => false,
                BinOpKind::In => is_short(&e.right),
                BinOpKind::Eq
                | BinOpKind::Ne
                | BinOpKind::Lt
                | BinOpKind::Lte
                | BinOpKind::Gt
                | BinOpKind::Gte => is_short(&e.left) || is_short(&e.right),
                _ => true,
            };
            if is_short { of } else { checked(of) }
        }
        Expr::Compare(e) => {
            let of = |one: &CompareOp<'a>| Ok(CompareOp { op: one.op, expr: expression(&one.expr)? });
            let ops = e.ops.iter().map(of).collect::<Result<_, Error>>()?;
            checked(Expr::Compare(Spanned::new(Compare { expr: expression(&e.expr)?, ops }, span)))
        }
        Expr::IfExpr(e) => {
            let (test_expr, true_expr) = (expression(&e.test_expr)?, expression(&e.true_expr)?);
            let false_expr = optional(e.false_expr.as_ref())?;
            Expr::IfExpr(Spanned::new(IfExpr { test_expr, true_expr, false_expr }, span))
        }
        Expr::Slice(e) => {
            let [start, stop, step] = [&e.start, &e.stop, &e.step].map(|part| optional(part.as_ref()));
            let of = Slice { expr: expression(&e.expr)?, start: start?, stop: stop?, step: step? };
            checked(Expr::Slice(Spanned::new(of, span)))
        }
        Expr::Filter(e) => {
            let of = Filter { name: e.name, expr: optional(e.expr.as_ref())?, args: arguments(&e.args)? };
            checked(Expr::Filter(Spanned::new(of, span)))
        }
        Expr::Test(e) => {
            let of = Test { name: e.name, expr: expression(&e.expr)?, args: arguments(&e.args)? };
            let of = Expr::Test(Spanned::new(of, span));
            if e.args.is_empty() { of } else { checked(of) }
        }
        Expr::Call(e) => checked(Expr::Call(Spanned::new(call(e)?, span))),
        Expr::List(e) if e.items.iter().all(is_short) => {
            Expr::List(Spanned::new(List { items: expressions(&e.items)? }, span))
        }
        Expr::List(e) => checked(Expr::List(Spanned::new(List { items: expressions(&e.items)? }, span))),
        Expr::Tuple(e) => checked(Expr::Tuple(Spanned::new(Tuple { items: expressions(&e.items)? }, span))),
        Expr::Map(e) => {
            let (keys, values) = (expressions(&e.keys)?, expressions(&e.values)?);
            checked(Expr::Map(Spanned::new(Map { keys, values }, span)))
        }
    })
}
