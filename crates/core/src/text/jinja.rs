//! Jinja as run by transformers, where minijinja differs: filters on undefined values and mappings, Python string methods, JSON,
//! `raise_exception` and `generation` blocks. Reference: `render_jinja_template` of transformers 5.24 on Jinja 3.1: immutable sandbox,
//! `trim_blocks`, `lstrip_blocks`, loop controls.

use minijinja::value::{Kwargs, Rest, Tuple, ValueKind, from_args};
use minijinja::{Error, ErrorKind, Output, State, UndefinedBehavior, Value};
use minijinja_contrib::pycompat::unknown_method_callback;
use minijinja_contrib::{filters as contrib, globals};

use super::TextError;
use super::bounds::{charge, charge_printed, check_kept, check_method, longest};
use super::python_json::{JsonStyle, python_float};
use super::sandbox::{Raised, Sandbox};

pub(super) fn environment() -> Result<Sandbox, TextError> {
    let mut sandbox = Sandbox::new(UndefinedBehavior::Lenient)?;
    let env = sandbox.env();
    env.set_unknown_method_callback(method);
    env.set_formatter(format);
    env.add_filter("tojson", tojson);
    for (name, filter) in [("length", length as fn(&Value) -> Result<Value, Error>), ("count", length)] {
        env.add_filter(name, filter);
    }
    env.add_filter("first", first);
    env.add_filter("last", last);
    env.add_filter("reverse", reverse);
    env.add_filter("items", items);
    env.add_filter("int", int);
    env.add_filter("float", float);
    env.add_filter("wordcount", |value: &Value| value.to_string().split_whitespace().count());
    env.add_filter("center", |text: &str, width: Option<usize>| {
        let width = width.unwrap_or(80);
        charge(width).map(|()| centred(text, width, ' '))
    });
    env.add_filter("striptags", contrib::striptags);
    env.add_filter("filesizeformat", contrib::filesizeformat);
    env.add_function("cycler", |items: Rest<Value>| -> Result<Value, Error> {
        check_kept(&items)?;
        globals::cycler(items.0)
    });
    env.add_function("joiner", |by: Option<Value>| -> Result<Value, Error> {
        if by.as_ref().is_some_and(|by| by.kind() != ValueKind::String) {
            return Err(failed("joiner: what joins is not a text"));
        }
        check_kept(by.as_slice())?;
        Ok(globals::joiner(by))
    });
    env.add_function("raise_exception", |reason: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, reason).with_source(Raised))
    });
    // minijinja iterates none as empty; Jinja does not (Qwen 3 Coder tests its tools this way).
    env.add_test("iterable", |value: &Value| !value.is_none() && value.try_iter().is_ok());
    env.add_test("sequence", |value: &Value| {
        matches!(value.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::String | ValueKind::Undefined)
    });
    env.add_test("callable", |value: &Value| value.kind() == ValueKind::Plain);
    Ok(sandbox)
}

/// Replaces `{% generation %}`, unknown to minijinja, with a scoped block as in Jinja; white-space control and line numbers are kept.
pub(super) fn without_generation_tags(source: &str) -> String {
    let mut output = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at);
        output.push_str(before);
        let Some(end) = tag.find("%}") else {
            rest = tag;
            break;
        };
        let (tag, after) = tag.split_at(end);
        match tag.trim_start_matches(['{', '%', '-', '+']).trim_end_matches(['-', '+']).trim() {
            "generation" => output.push_str(&tag.replacen("generation", "with", 1)),
            "endgeneration" => output.push_str(&tag.replacen("endgeneration", "endwith", 1)),
            _ => output.push_str(tag),
        }
        rest = after;
    }
    output.push_str(rest);
    output
}

fn failed(reason: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, reason.into())
}

/// Prints floats as Python does.
fn format(output: &mut Output, state: &mut State, value: &Value) -> Result<(), Error> {
    charge_printed(value)?;
    match (value.kind(), value.is_integer()) {
        (ValueKind::Number, false) => {
            let number = f64::try_from(value.clone())?;
            output.write_str(&python_float(number)).map_err(Error::from)
        }
        _ => minijinja::escape_formatter(output, state, value),
    }
}

/// `json.dumps` with transformers' defaults.
fn tojson(value: &Value, args: Rest<Value>, options: Kwargs) -> Result<String, Error> {
    if value.is_undefined() {
        return Err(failed("tojson: the value is undefined"));
    }
    let mut given = args.iter().cloned();
    let mut option = |name: &str| -> Result<Option<Value>, Error> {
        let named = match options.has(name) {
            true => Some(options.get::<Value>(name)?),
            false => None,
        };
        Ok(given.next().or(named).filter(|value| !value.is_none()))
    };
    let ascii = option("ensure_ascii")?.is_some_and(|value| value.is_true());
    let indent = match option("indent")? {
        None => None,
        Some(indent) => Some(match indent.as_str() {
            Some(text) => text.to_owned(),
            None => " ".repeat(i64::try_from(indent)?.clamp(0, 64) as usize),
        }),
    };
    let separators = match option("separators")? {
        None => None,
        Some(pair) => {
            let pair: Vec<String> = pair.try_iter()?.map(|part| part.to_string()).collect();
            let pair: [String; 2] =
                pair.try_into().map_err(|_| failed("tojson: `separators` are two texts"))?;
            Some(pair)
        }
    };
    let sort_keys = option("sort_keys")?.is_some_and(|value| value.is_true());
    options.assert_all_used()?;
    let [item, key] = separators.unwrap_or_else(|| {
        let item = if indent.is_some() { "," } else { ", " };
        [item.to_owned(), ": ".to_owned()]
    });
    let text = JsonStyle { ascii, indent, item, key, sort_keys }
        .write(value, longest())
        .map_err(|error| failed(format!("tojson: {error}")))?;
    charge(text.len())?;
    Ok(text)
}

fn length(value: &Value) -> Result<Value, Error> {
    if value.is_undefined() { Ok(0.into()) } else { minijinja::filters::length(value).map(Value::from) }
}

fn first(value: &Value) -> Result<Value, Error> {
    if value.is_undefined() { Ok(Value::UNDEFINED) } else { minijinja::filters::first(value) }
}

fn last(value: &Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::Undefined => Ok(Value::UNDEFINED),
        ValueKind::Map => Ok(value.try_iter()?.last().unwrap_or(Value::UNDEFINED)),
        _ => minijinja::filters::last(value.clone()),
    }
}

fn reverse(value: &Value) -> Result<Value, Error> {
    if value.kind() != ValueKind::Map {
        return minijinja::filters::reverse(value);
    }
    let mut keys: Vec<Value> = value.try_iter()?.collect();
    keys.reverse();
    Ok(keys.into())
}

fn items(value: &Value) -> Result<Value, Error> {
    if value.is_undefined() { Ok(Vec::<Value>::new().into()) } else { minijinja::filters::items(value) }
}

fn int(value: &Value, default: Option<Value>, base: Option<u32>) -> Value {
    let of_text = |text: &str| {
        let (text, base) = (text.trim().replace('_', ""), base.unwrap_or(10));
        let digits = match base {
            16 => text.trim_start_matches("0x").trim_start_matches("0X"),
            8 => text.trim_start_matches("0o").trim_start_matches("0O"),
            2 => text.trim_start_matches("0b").trim_start_matches("0B"),
            _ => text.as_str(),
        };
        let whole = i64::from_str_radix(digits, base.clamp(2, 36)).ok();
        whole.or_else(|| {
            text.parse::<f64>().ok().filter(|number| number.is_finite()).map(|number| number as i64)
        })
    };
    let whole = match (value.kind(), value.as_str()) {
        (ValueKind::String, Some(text)) => of_text(text).map(Value::from),
        (ValueKind::Number, _) if value.is_integer() => Some(value.clone()),
        (ValueKind::Number, _) => f64::try_from(value.clone()).ok().map(|number| (number as i64).into()),
        (ValueKind::Bool, _) => Some(i64::from(value.is_true()).into()),
        _ => None,
    };
    whole.or(default).unwrap_or_else(|| 0.into())
}

fn float(value: &Value, default: Option<Value>) -> Value {
    let number = match (value.kind(), value.as_str()) {
        (ValueKind::String, Some(text)) => text.trim().parse::<f64>().ok(),
        (ValueKind::Bool, _) => Some(f64::from(u8::from(value.is_true()))),
        _ => f64::try_from(value.clone()).ok(),
    };
    number.map(Value::from).or(default).unwrap_or_else(|| 0.0.into())
}

/// Python methods that minijinja's compatibility layer lacks.
fn method(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    let known = match value.kind() {
        ValueKind::String => {
            let text = value.as_str().unwrap_or_default();
            check_method(text, name, args)?;
            text_method(text, name, args)?
        }
        ValueKind::Map if name == "copy" => Some(value.clone()),
        ValueKind::Seq if name == "index" => {
            let (of,): (&Value,) = from_args(args)?;
            let at = value.try_iter()?.position(|one| one == *of);
            Some(at.ok_or_else(|| failed("index: the value is not in the list"))?.into())
        }
        _ => None,
    };
    match known {
        Some(value) => Ok(value),
        None => unknown_method_callback(state, value, name, args),
    }
}

fn text_method(text: &str, name: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    let part = || from_args::<(&str,)>(args).map(|(part,)| part);
    let padded = |side: fn(usize) -> [usize; 2]| -> Result<Value, Error> {
        let (width, fill): (usize, Option<&str>) = from_args(args)?;
        let [left, right] = side(width.saturating_sub(text.chars().count()));
        let fill = fill.unwrap_or(" ");
        Ok(format!("{}{text}{}", fill.repeat(left), fill.repeat(right)).into())
    };
    Ok(Some(match name {
        "removeprefix" => text.strip_prefix(part()?).unwrap_or(text).into(),
        "removesuffix" => text.strip_suffix(part()?).unwrap_or(text).into(),
        "partition" => {
            let by = part()?;
            let (before, after) = text.split_once(by).map_or((text, None), |(a, b)| (a, Some(b)));
            three(before, after.map_or("", |_| by), after.unwrap_or_default())
        }
        "rpartition" => {
            let by = part()?;
            let (before, after) = text.rsplit_once(by).map_or((None, text), |(a, b)| (Some(a), b));
            three(before.unwrap_or_default(), before.map_or("", |_| by), after)
        }
        "rsplit" => {
            let (by, most): (Option<&str>, Option<i64>) = from_args(args)?;
            let most = most.and_then(|most| usize::try_from(most).ok()).map_or(usize::MAX, |most| most + 1);
            let mut parts: Vec<&str> = match by {
                Some(by) => text.rsplitn(most, by).collect(),
                None => words_from_the_end(text, most),
            };
            parts.reverse();
            parts.into_iter().map(Value::from).collect()
        }
        "index" => {
            let at = text.find(part()?).ok_or_else(|| failed("index: the text does not hold it"))?;
            text.get(..at).unwrap_or_default().chars().count().into()
        }
        "startswith" | "endswith" if args.len() > 1 => {
            let (part, from, to): (&str, usize, Option<usize>) = from_args(args)?;
            let to = to.unwrap_or(usize::MAX).saturating_sub(from);
            let cut: String = text.chars().skip(from).take(to).collect();
            (if name == "startswith" { cut.starts_with(part) } else { cut.ends_with(part) }).into()
        }
        "ljust" => padded(|space| [0, space])?,
        "rjust" => padded(|space| [space, 0])?,
        "center" => {
            let (width, fill): (usize, Option<char>) = from_args(args)?;
            centred(text, width, fill.unwrap_or(' ')).into()
        }
        "zfill" => {
            let (width,): (usize,) = from_args(args)?;
            let zeros = "0".repeat(width.saturating_sub(text.chars().count()));
            let digits = text.trim_start_matches(['+', '-']);
            let sign =
                text.get(..text.len() - digits.len()).filter(|sign| sign.len() == 1).unwrap_or_default();
            format!("{sign}{zeros}{}", text.get(sign.len()..).unwrap_or_default()).into()
        }
        "title" => {
            let mut inside = false;
            let titled = text.chars().map(|c| {
                let written =
                    if inside { c.to_lowercase().to_string() } else { c.to_uppercase().to_string() };
                inside = c.is_alphabetic();
                written
            });
            titled.collect::<String>().into()
        }
        "swapcase" => {
            let swapped = text.chars().map(|c| match c.is_uppercase() {
                true => c.to_lowercase().to_string(),
                false => c.to_uppercase().to_string(),
            });
            swapped.collect::<String>().into()
        }
        "casefold" => text.to_lowercase().replace('ß', "ss").into(),
        "isdecimal" => (!text.is_empty() && text.chars().all(|c| c.is_ascii_digit())).into(),
        _ => return Ok(None),
    }))
}

fn three(before: &str, by: &str, after: &str) -> Value {
    Value::from(Tuple::from([before, by, after].map(Value::from)))
}

/// `rsplit(None, most - 1)`, last word first.
fn words_from_the_end(text: &str, most: usize) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = text.trim_end();
    while !rest.is_empty() {
        match rest.rsplit_once(char::is_whitespace).filter(|_| parts.len() + 1 < most) {
            Some((before, word)) => {
                parts.push(word);
                rest = before.trim_end();
            }
            None => {
                parts.push(rest);
                break;
            }
        }
    }
    parts
}

/// Python puts the odd space on the left if the width is odd.
fn centred(text: &str, width: usize, fill: char) -> String {
    let space = width.saturating_sub(text.chars().count());
    let left = space / 2 + (space & width & 1);
    let fill = |count: usize| std::iter::repeat_n(fill, count).collect::<String>();
    format!("{}{text}{}", fill(left), fill(space - left))
}
