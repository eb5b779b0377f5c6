//! Bounds on what a template makes while it is rendered: the size of each value, the sum of all sizes, depth and time.
//!
//! The engine's fuel counts steps, but one step can double a text. [`rewrite`](super::rewrite) calls [`bounded`] after each step whose
//! result can be larger than its operands; what can be larger by more than a factor is refused before it is made, by the filters and
//! methods here. Sizes count a value as often as it would be printed, so lists of lists cannot hide a large text.

use std::borrow::Cow;
use std::cell::RefCell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use minijinja::value::{Kwargs, Rest, StringInput, ValueKind, ValueOrKwargs, from_args};
use minijinja::{Environment, Error, ErrorKind, State, Value, filters};

use super::rewrite::{BOUNDED, STORED, TICK};

/// Maximum bytes of one text or list, beyond a multiple of the input.
const ALLOWANCE: usize = 4 << 20;

/// All values of one rendering, in multiples of the largest. A template that puts a chat of 2,000 messages together one by one makes 88
/// times the largest, of which it keeps one.
const VALUES: usize = 96;

/// All texts printed by one rendering, in multiples of its output: what a macro or a block captures is printed again.
const PRINTED: usize = 16;

/// Maximum depth of lists and mappings. JSON in requests has at most 128.
const DEPTH: usize = 160;

/// Maximum time of one rendering; a chat of 564 KB in 2,000 messages takes about 15 ms.
const LONGEST: Duration = Duration::from_secs(5);

/// Bytes that an entry of a list counts as.
const ENTRY: usize = 16;

/// Maximum characters to strip from a text's ends; each is sought at each place.
const MOST_STRIPPED: usize = 256;

/// Maximum bytes of the name of an attribute, which is split into its parts for each entry of a list.
const LONGEST_NAME: usize = 1024;

/// Maximum commas of such a name: `sort` makes a list of so many keys for each entry.
const MOST_COMMAS: usize = 16;

/// Maximum bytes of what a cycler or a joiner keeps; it is printed with it, so each of them counts as this many.
const MOST_KEPT: usize = 1024;

struct Budget {
    longest: usize,
    left: usize,
    /// Bytes that may still be printed.
    print: usize,
    until: Instant,
    calls: u32,
}

impl Budget {
    fn check_time(&self) -> Result<(), Error> {
        match Instant::now() > self.until {
            true => Err(failed(format!("it takes more than {} s", LONGEST.as_secs()))),
            false => Ok(()),
        }
    }
}

thread_local! {
    static BUDGET: RefCell<Option<Budget>> = const { RefCell::new(None) };
}

/// The budget of one rendering, on this thread until dropped.
pub(super) struct Rendering(Option<Budget>);

impl Rendering {
    /// `input_bytes`: size of the variables; `output`: maximum bytes of the output.
    pub fn start(input_bytes: usize, output: usize) -> Self {
        let longest = input_bytes.saturating_mul(4).saturating_add(ALLOWANCE);
        let left = longest.saturating_mul(VALUES);
        let print = output.saturating_mul(PRINTED);
        let budget = Budget { longest, left, print, until: Instant::now() + LONGEST, calls: 0 };
        Rendering(BUDGET.replace(Some(budget)))
    }
}

impl Drop for Rendering {
    fn drop(&mut self) {
        BUDGET.replace(self.0.take());
    }
}

fn failed(reason: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, reason.into())
}

/// Counts a value of so many bytes. Fails if it is too large, or too late.
pub(super) fn charge(bytes: usize) -> Result<(), Error> {
    BUDGET.with_borrow_mut(|budget| {
        let Some(budget) = budget else { return Ok(()) };
        if bytes > budget.longest {
            return Err(failed(format!("it makes a text or a list of more than {} bytes", budget.longest)));
        }
        budget.left = budget.left.checked_sub(bytes).ok_or_else(|| {
            failed(format!(
                "its texts and lists have more than {} bytes together",
                budget.longest.saturating_mul(VALUES)
            ))
        })?;
        budget.calls = budget.calls.wrapping_add(1);
        match bytes > 1 << 16 || budget.calls.is_multiple_of(64) {
            true => budget.check_time(),
            false => Ok(()),
        }
    })
}

fn check_time() -> Result<(), Error> {
    BUDGET.with_borrow(|budget| budget.as_ref().map_or(Ok(()), Budget::check_time))
}

/// Counts a value that is printed, which may be into a variable.
pub(super) fn charge_printed(value: &Value) -> Result<(), Error> {
    charge_output(match value.as_str() {
        Some(text) => text.len(),
        None => weight(value)?,
    })
}

fn charge_output(bytes: usize) -> Result<(), Error> {
    charge(bytes)?;
    BUDGET.with_borrow_mut(|budget| {
        let Some(budget) = budget else { return Ok(()) };
        let left = budget.print.checked_sub(bytes);
        budget.print = left.ok_or_else(|| failed("it prints too much"))?;
        Ok(())
    })
}

/// Maximum bytes of a text.
pub(super) fn longest() -> usize {
    BUDGET.with_borrow(|budget| budget.as_ref().map_or(usize::MAX, |budget| budget.longest))
}

fn is_namespace(value: &Value) -> bool {
    value.as_object().is_some_and(|object| object.type_name().ends_with("::Namespace"))
}

/// The size of a value, each part counted as often as it occurs.
#[derive(Default)]
struct Size {
    entries: usize,
    /// Bytes of its texts.
    texts: usize,
}

impl Size {
    fn bytes(&self) -> usize {
        self.entries.saturating_mul(ENTRY).saturating_add(self.texts)
    }
}

fn weigh(value: &Value, depth: usize, size: &mut Size, most: usize) -> Result<(), Error> {
    size.entries += 1;
    match value.kind() {
        ValueKind::String => size.texts = size.texts.saturating_add(value.as_str().map_or(0, str::len)),
        ValueKind::Bytes => size.texts = size.texts.saturating_add(value.as_bytes().map_or(0, <[u8]>::len)),
        ValueKind::Seq | ValueKind::Iterable | ValueKind::Map => {
            if depth > DEPTH {
                return Err(failed(format!("lists and mappings are nested more than {DEPTH} deep")));
            }
            if depth > 0 && is_namespace(value) {
                return Err(failed("a namespace is put into another value; put its fields there"));
            }
            let is_map = value.kind() == ValueKind::Map;
            for entry in value.try_iter()? {
                if is_map {
                    weigh(&value.get_item(&entry)?, depth + 1, size, most)?;
                }
                weigh(&entry, depth + 1, size, most)?;
            }
        }
        ValueKind::Plain => size.texts = size.texts.saturating_add(MOST_KEPT),
        _ => {}
    }
    match size.bytes() > most {
        true => Err(failed(format!("it makes a text or a list of more than {most} bytes"))),
        false => Ok(()),
    }
}

fn size(value: &Value) -> Result<Size, Error> {
    let mut size = Size::default();
    weigh(value, 0, &mut size, longest())?;
    Ok(size)
}

/// Bytes of a value when it is printed, but for signs. Fails if it is too large or too deep.
fn weight(value: &Value) -> Result<usize, Error> {
    size(value).map(|size| size.bytes())
}

/// Checks what a cycler or a joiner is to keep. No namespace is within it, which could contain it in turn, nor another of them: they are
/// printed with what they keep.
pub(super) fn check_kept(values: &[Value]) -> Result<(), Error> {
    let mut size = Size::default();
    values.iter().try_for_each(|value| weigh(value, 1, &mut size, MOST_KEPT))
}

/// Counts the entries of a list or mapping; it shares its texts with the values that it was made of.
fn charge_list(value: &Value) -> Result<(), Error> {
    charge(size(value)?.entries.saturating_mul(ENTRY))
}

/// A value within bounds. Iterators become lists: chains of them would nest.
pub(super) fn bounded(value: Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::String => charge(value.as_str().map_or(0, str::len))?,
        ValueKind::Bytes => charge(weight(&value)?)?,
        ValueKind::Seq | ValueKind::Map => charge_list(&value)?,
        ValueKind::Iterable => {
            let most = longest() / ENTRY;
            let items: Vec<Value> = value.try_iter()?.take(most.saturating_add(1)).collect();
            if items.len() > most {
                return Err(failed(format!("it makes a list of more than {most} entries")));
            }
            let value = Value::from(items);
            charge_list(&value)?;
            return Ok(value);
        }
        _ => charge(0)?,
    }
    Ok(value)
}

fn stored(value: Value) -> Result<Value, Error> {
    if is_namespace(&value) {
        return Err(failed("a namespace is put into another; put its fields there"));
    }
    charge_list(&value)?;
    // To weigh a large value takes time, and its texts cost nothing.
    check_time()?;
    Ok(value)
}

fn tick(bytes: usize) -> Result<&'static str, Error> {
    charge_output(bytes).map(|()| "")
}

/// Registers the checks, and the engine's filters whose results can exceed their operands by more than a factor.
pub(super) fn add(env: &mut Environment<'static>) {
    env.add_filter(BOUNDED, bounded);
    env.add_filter(STORED, stored);
    env.add_filter(TICK, tick);
    // It prints all variables.
    env.remove_global("debug");
    env.add_test("in", is_in);
    env.add_filter("map", map);
    env.add_filter("chain", chain);
    env.add_filter("split", split);
    env.add_filter("lines", lines);
    env.add_filter("selectattr", selectattr);
    env.add_filter("rejectattr", rejectattr);
    env.add_filter("groupby", |values: Value, attribute: Option<&str>, kwargs: Kwargs| {
        check_names(attribute, &kwargs)?;
        filters::groupby(values, attribute, kwargs)
    });
    type ByAttribute = fn(&State, Value, Kwargs) -> Result<Value, Error>;
    let by_attribute: [(_, ByAttribute); 4] =
        [("sort", filters::sort), ("unique", filters::unique), ("min", filters::min), ("max", filters::max)];
    for (name, filter) in by_attribute {
        env.add_filter(name, move |state: &State, values: Value, kwargs: Kwargs| {
            check_names(None, &kwargs)?;
            filter(state, values, kwargs)
        });
    }
    env.add_filter("replace", replace);
    env.add_filter("join", join);
    env.add_filter("indent", indent);
    env.add_filter("batch", |state: &State, value: Value, count: usize, fill: Option<Value>| {
        charge_entries(if fill.is_some() { count } else { 0 }, fill.as_ref())?;
        filters::batch(state, value, count, fill)
    });
    env.add_filter("slice", |state: &State, value: Value, count: usize, fill: Option<Value>| {
        charge_entries(count, fill.as_ref())?;
        filters::slice(state, value, count, fill)
    });
    env.add_filter("format", |state: &mut State, text: &Value, args: Rest<ValueOrKwargs>| {
        let args = args.into_values();
        check_format(text.as_str().unwrap_or_default(), &args)?;
        let all: Vec<Value> = std::iter::once(text.clone()).chain(args).collect();
        let (text, args) = from_args(&all)?;
        filters::format(state, text, args)
    });
    env.add_filter(
        "sum",
        |state: &State, values: Value, attribute: Option<&str>, start: Option<Value>, kwargs: Kwargs| {
            check_names(attribute, &kwargs)?;
            let given = start.clone().or(kwargs.get::<Option<Value>>("start")?);
            match given {
                Some(start) if start.kind() == ValueKind::Seq => joined_lists(start, &values, attribute),
                Some(start) if !start.is_number() => {
                    Err(failed("sum: `start` is neither a number nor a list; use `join` for texts"))
                }
                _ => filters::sum(state, values, attribute, start, kwargs),
            }
        },
    );
    env.add_filter("trim", |value: StringInput<'_>, chars: Option<Cow<'_, str>>| {
        check_stripped(chars.as_deref())?;
        Ok(filters::trim(value, chars))
    });
}

/// `sum` of lists. The engine's own nests a view in a view for each.
fn joined_lists(start: Value, lists: &Value, attribute: Option<&str>) -> Result<Value, Error> {
    let mut joined: Vec<Value> = start.try_iter()?.collect();
    for list in lists.try_iter()? {
        let list = attribute.map_or(Ok(list.clone()), |name| list.get_attr(name))?;
        if !matches!(list.kind(), ValueKind::Seq | ValueKind::Iterable) {
            return Err(failed(format!("sum: {} cannot be added to a list", list.kind())));
        }
        extend(&mut joined, &list)?;
    }
    Ok(Value::from(joined))
}

fn extend(joined: &mut Vec<Value>, list: &Value) -> Result<(), Error> {
    let (before, most) = (joined.len(), longest() / ENTRY);
    joined.extend(list.try_iter()?.take(most.saturating_add(1)));
    charge((joined.len() - before).saturating_mul(ENTRY))?;
    match joined.len() > most {
        true => Err(failed(format!("it makes a list of more than {most} entries"))),
        false => Ok(()),
    }
}

/// `chain` as a list, or as a mapping in which the last value of a key counts. The engine's own looks into each of its parts whenever it is
/// read, so one that is chained with itself again and again is read without end.
fn chain(value: Value, others: Rest<Value>) -> Result<Value, Error> {
    let all: Vec<Value> = std::iter::once(value).chain(others.0).collect();
    if all.iter().any(|value| value.kind() != ValueKind::Map) {
        let mut joined = Vec::new();
        all.iter().try_for_each(|list| extend(&mut joined, list))?;
        return Ok(Value::from(joined));
    }
    let (mut pairs, most) = (Vec::new(), longest() / ENTRY);
    for map in &all {
        // Keys are compared and hashed with their texts.
        charge(weight(map)?)?;
        for key in map.try_iter()? {
            let value = map.get_item(&key)?;
            pairs.push((key, value));
        }
        if pairs.len() > most {
            return Err(failed(format!("it makes a mapping of more than {most} entries")));
        }
    }
    Ok(Value::from_pairs(pairs))
}

/// `map`, where what a filter makes is counted entry by entry, before there is too much of it. Attributes are shared, not made.
fn map(state: &mut State, value: Value, args: Rest<ValueOrKwargs>) -> Result<Vec<Value>, Error> {
    let args = args.into_values();
    let (given, kwargs): (&[Value], Kwargs) = from_args(&args)?;
    check_names(None, &kwargs)?;
    let is_attribute = kwargs.get::<Option<Value>>("attribute")?.is_some();
    let name = given.first().and_then(Value::as_str).filter(|_| !is_attribute && !value.is_undefined());
    let Some(name) = name else {
        return filters::map(state, value, Rest(args.iter().cloned().map(ValueOrKwargs::from).collect()));
    };
    let mut made = Vec::new();
    for item in value.try_iter()?.checked() {
        let mut call = vec![item?];
        call.extend(given.iter().skip(1).cloned());
        made.push(bounded(state.apply_filter(name, &call)?)?);
    }
    Ok(made)
}

/// The parts are copies.
fn split(value: &Value, by: Option<Arc<str>>, most: Option<i64>) -> Result<Value, Error> {
    charge(value.as_str().map_or(0, str::len))?;
    filters::split(value, by, most)
}

fn lines(value: &Value) -> Result<Value, Error> {
    charge(value.as_str().map_or(0, str::len))?;
    filters::lines(value)
}

fn selectattr(
    state: &mut State,
    values: Value,
    attribute: Cow<'_, str>,
    test: Option<Cow<'_, str>>,
    args: Rest<ValueOrKwargs>,
) -> Result<Vec<Value>, Error> {
    check_name(&attribute)?;
    filters::selectattr(state, values, attribute, test, args)
}

fn rejectattr(
    state: &mut State,
    values: Value,
    attribute: Cow<'_, str>,
    test: Option<Cow<'_, str>>,
    args: Rest<ValueOrKwargs>,
) -> Result<Vec<Value>, Error> {
    check_name(&attribute)?;
    filters::rejectattr(state, values, attribute, test, args)
}

fn check_name(name: &str) -> Result<(), Error> {
    match name.len() > LONGEST_NAME || name.matches(',').count() > MOST_COMMAS {
        true => Err(failed(format!(
            "the name of an attribute has more than {LONGEST_NAME} bytes or {MOST_COMMAS} commas"
        ))),
        false => Ok(()),
    }
}

/// Checks the name of an attribute, given by place or by `attribute=`. It is a text or a number.
fn check_names(attribute: Option<&str>, kwargs: &Kwargs) -> Result<(), Error> {
    attribute.map_or(Ok(()), check_name)?;
    let Some(named) = kwargs.get::<Option<Value>>("attribute")? else { return Ok(()) };
    match (named.as_str(), named.kind()) {
        (Some(name), _) => check_name(name),
        (None, kind @ (ValueKind::Bytes | ValueKind::Seq | ValueKind::Map | ValueKind::Iterable)) => {
            Err(failed(format!("the name of an attribute is a {kind}")))
        }
        _ => Ok(()),
    }
}

/// The test `in`, which `select` can run for each entry of a list.
fn is_in(state: &State, value: &Value, of: &Value) -> Result<bool, Error> {
    charge(match of.as_str() {
        Some(text) => text.len(),
        None => of.len().unwrap_or(0).saturating_mul(ENTRY),
    })?;
    minijinja::tests::is_in(state, value, of)
}

fn charge_entries(count: usize, fill: Option<&Value>) -> Result<(), Error> {
    let each = fill.map(weight).transpose()?.unwrap_or(0).saturating_add(ENTRY);
    charge(count.saturating_mul(each))
}

fn check_stripped(chars: Option<&str>) -> Result<(), Error> {
    match chars.is_some_and(|chars| chars.len() > MOST_STRIPPED) {
        true => Err(failed(format!("more than {MOST_STRIPPED} bytes of characters are to be stripped"))),
        false => Ok(()),
    }
}

fn charge_replaced(text: &str, from: &str, to: &str) -> Result<(), Error> {
    charge(text.matches(from).count().saturating_mul(to.len()).saturating_add(text.len()))
}

fn replace(
    state: &mut State,
    value: StringInput<'_>,
    from: StringInput<'_>,
    to: StringInput<'_>,
) -> Result<Value, Error> {
    charge_replaced(value.as_str(), from.as_str(), to.as_str())?;
    filters::replace(state, value, from, to)
}

fn join(
    state: &mut State,
    value: &Value,
    joiner: Option<StringInput<'_>>,
    attribute: Option<&str>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    check_names(attribute, &kwargs)?;
    let named = kwargs.get::<Option<StringInput<'_>>>("d")?;
    charge_joined(joiner.as_ref().or(named.as_ref()).map_or("", StringInput::as_str), value)?;
    filters::join(state, value, joiner, attribute, kwargs)
}

fn charge_joined(joiner: &str, value: &Value) -> Result<(), Error> {
    let count = value.len().unwrap_or_else(|| longest() / ENTRY);
    let items = if joiner.is_empty() { 0 } else { count.saturating_mul(joiner.len()) };
    charge(items)
}

fn indent(
    value: StringInput<'_>,
    width: Option<usize>,
    first: Option<bool>,
    blank: Option<bool>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    let wide = width.or(kwargs.get::<Option<usize>>("width")?).unwrap_or(4);
    let lines = value.as_str().matches('\n').count() + 1;
    charge(lines.saturating_mul(wide).saturating_add(value.as_str().len()))?;
    filters::indent(value, width, first, blank, kwargs)
}

/// Bounds a format by its fields, each as wide as the widest number in the text or argument, and as long as the longest argument.
fn check_format(text: &str, args: &[Value]) -> Result<(), Error> {
    let fields = text.matches(['%', '{']).count();
    let digits = text.split(|c: char| !c.is_ascii_digit()).filter(|digits| !digits.is_empty());
    let widest = digits.map(|digits| digits.parse().unwrap_or(usize::MAX)).max().unwrap_or(0);
    let mut longest = widest;
    for arg in args {
        let wide = if text.contains('*') { arg.as_usize().unwrap_or(0) } else { 0 };
        longest = longest.max(weight(arg)?).max(wide);
    }
    charge(fields.saturating_mul(longest).saturating_add(text.len()))
}

/// Checks a call of a text's method before it is made.
pub(super) fn check_method(text: &str, name: &str, args: &[Value]) -> Result<(), Error> {
    let texts = || args.iter().map(|arg| arg.as_str().unwrap_or_default());
    match name {
        "replace" => {
            let mut texts = texts();
            charge_replaced(text, texts.next().unwrap_or_default(), texts.next().unwrap_or_default())
        }
        "join" => args.first().map_or(Ok(()), |value| charge_joined(text, value)),
        "ljust" | "rjust" | "center" | "zfill" => {
            let width = args.first().and_then(Value::as_usize).unwrap_or(0);
            charge(width.saturating_mul(texts().map(str::len).max().unwrap_or(0).max(1)))
        }
        // The parts are copies.
        "split" | "rsplit" | "splitlines" | "partition" | "rpartition" => charge(text.len()),
        "strip" | "lstrip" | "rstrip" => check_stripped(texts().next()),
        "format" => check_format(text, args),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
