//! Bounds on what a template makes while it is rendered: the size of each value, the sum of all sizes, depth and time.
//!
//! The engine's fuel counts steps, but one step can double a text. [`rewrite`](super::rewrite) calls [`bounded`] after each step whose
//! result can be larger than its operands; what can be larger by more than a factor is refused before it is made, by the filters and
//! methods here. Sizes count a value as often as it would be printed, so lists of lists cannot hide a large text.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use minijinja::value::{Kwargs, Rest, StringInput, ValueKind, ValueOrKwargs, from_args};
use minijinja::{Environment, Error, ErrorKind, State, Value, filters};

use super::rewrite::{BOUNDED, STORED, TICK};

/// Maximum bytes of one text or list, beyond a multiple of the input.
const ALLOWANCE: usize = 4 << 20;

/// All values of one rendering, in multiples of the largest.
const VALUES: usize = 64;

/// All texts printed by one rendering, in multiples of its output: what a macro or a block captures is printed again.
const PRINTED: usize = 16;

/// Maximum depth of lists and mappings. JSON in requests has at most 128.
const DEPTH: usize = 160;

/// Maximum time of one rendering; a chat of 150,000 tokens takes some 50 ms.
const LONGEST: Duration = Duration::from_secs(10);

/// Bytes that an entry of a list counts as.
const ENTRY: usize = 16;

/// Maximum characters to strip from a text's ends; each is sought at each place.
const MOST_STRIPPED: usize = 256;

struct Budget {
    longest: usize,
    left: usize,
    /// Bytes that may still be printed.
    print: usize,
    until: Instant,
    calls: u32,
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
        if (bytes > 1 << 16 || budget.calls.is_multiple_of(64)) && Instant::now() > budget.until {
            return Err(failed(format!("it takes more than {} s", LONGEST.as_secs())));
        }
        Ok(())
    })
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
    weight(&value)?;
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
    env.add_filter("trim", |value: StringInput<'_>, chars: Option<std::borrow::Cow<'_, str>>| {
        check_stripped(chars.as_deref())?;
        Ok(filters::trim(value, chars))
    });
}

/// `sum` of lists. The engine's own nests a view in a view for each.
fn joined_lists(start: Value, lists: &Value, attribute: Option<&str>) -> Result<Value, Error> {
    let mut joined: Vec<Value> = start.try_iter()?.collect();
    let most = longest() / ENTRY;
    for list in lists.try_iter()? {
        let list = attribute.map_or(Ok(list.clone()), |name| list.get_attr(name))?;
        if !matches!(list.kind(), ValueKind::Seq | ValueKind::Iterable) {
            return Err(failed(format!("sum: {} cannot be added to a list", list.kind())));
        }
        let before = joined.len();
        joined.extend(list.try_iter()?.take(most.saturating_add(1)));
        charge((joined.len() - before).saturating_mul(ENTRY))?;
        if joined.len() > most {
            return Err(failed(format!("it makes a list of more than {most} entries")));
        }
    }
    Ok(Value::from(joined))
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
        "strip" | "lstrip" | "rstrip" => check_stripped(texts().next()),
        "format" => check_format(text, args),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
