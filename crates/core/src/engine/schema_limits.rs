//! Limits of JSON schemas: what the compiler of grammars could not prepare in its time and stack is refused before it gets there.
//!
//! The compiler recurses through subschemas and, once each, through the targets of references; it compares the options of `oneOf`, and
//! patterns of names, pair by pair.

use std::collections::BTreeSet;

use serde_json::{Number, Value};

/// Maximum values in a schema, each name, number, list and object counted.
const MOST_VALUES: usize = 100_000;

/// Maximum depth, with the depths of all targets of references, which can lead one into the next.
const MOST_LEVELS: usize = 2000;

/// Maximum subschemas of one `allOf` or `oneOf`.
const MOST_COMBINED: usize = 500;

/// Maximum patterns of one `patternProperties`.
const MOST_PATTERNS: usize = 64;

/// Maximum bytes of a `pattern`.
const LONGEST_PATTERN: usize = 8192;

/// Maximum digits of a `multipleOf` as a number, and of the least common multiple of all where they may be combined: the automaton has
/// that many states.
const MOST_MULTIPLE: u128 = 10_000;

/// Digits of a number without its point, and how many of them are decimals; `None` for an exponent.
fn digits(number: &Number) -> Option<(u128, u32)> {
    let text = number.to_string();
    let (whole, decimals) = text.trim_start_matches('-').split_once('.').unwrap_or((&text, ""));
    let decimals = decimals.trim_end_matches('0');
    let digits = format!("{}{decimals}", whole.trim_start_matches('-')).parse().ok()?;
    Some((digits, u32::try_from(decimals.len()).ok()?))
}

/// Least common multiple of numbers, in units of their smallest decimal; `None` if it is too large to count.
fn common_multiple(numbers: &[(u128, u32)]) -> Option<u128> {
    let decimals = numbers.iter().map(|(_, decimals)| *decimals).max()?;
    numbers.iter().try_fold(1, |sum: u128, (digits, own)| {
        let number = digits.checked_mul(10_u128.checked_pow(decimals - own)?)?.max(1);
        let (mut a, mut b) = (sum, number);
        while b > 0 {
            (a, b) = (b, a % b);
        }
        (sum / a).checked_mul(number)
    })
}

/// A name as a segment of a JSON pointer.
pub fn escaped(segment: &str) -> String {
    segment.replace('~', "~0").replace('/', "~1")
}

/// The first limit that a schema exceeds, if any. `targets`: pointers of its references' targets, each once.
pub fn exceeded(schema: &Value, targets: &BTreeSet<String>) -> Option<String> {
    let (mut values, mut next) = (0, vec![(schema, String::new())]);
    let (mut multiples, mut combines) = (Vec::new(), false);
    while let Some((value, place)) = next.pop() {
        values += 1;
        let below = |key: &str| format!("{place}/{}", escaped(key));
        match value {
            Value::Object(fields) => {
                for (key, value) in fields {
                    combines |= matches!(key.as_str(), "allOf" | "$ref");
                    let most = match (key.as_str(), value) {
                        ("allOf" | "oneOf", Value::Array(list)) if list.len() > MOST_COMBINED => {
                            Some(format!("{} subschemas, and at most {MOST_COMBINED}", list.len()))
                        }
                        ("patternProperties", Value::Object(named)) if named.len() > MOST_PATTERNS => {
                            Some(format!("{} patterns, and at most {MOST_PATTERNS}", named.len()))
                        }
                        ("pattern", Value::String(pattern)) if pattern.len() > LONGEST_PATTERN => {
                            Some(format!("{} bytes, and at most {LONGEST_PATTERN}", pattern.len()))
                        }
                        ("multipleOf", Value::Number(number)) => match digits(number) {
                            Some(of) if of.0 <= MOST_MULTIPLE => {
                                multiples.push(of);
                                None
                            }
                            _ => Some(format!("{number}, and multiples of at most {MOST_MULTIPLE}")),
                        },
                        _ => None,
                    };
                    if let Some(most) = most {
                        return Some(format!("has at `{}` {most} can be enforced", below(key)));
                    }
                    next.push((value, below(key)));
                }
            }
            Value::Array(list) => {
                next.extend(list.iter().enumerate().map(|(i, value)| (value, format!("{place}/{i}"))));
            }
            _ => {}
        }
    }
    if values > MOST_VALUES {
        return Some(format!("has {values} values, and at most {MOST_VALUES} can be enforced"));
    }
    if combines && !multiples.is_empty() && common_multiple(&multiples).is_none_or(|all| all > MOST_MULTIPLE)
    {
        return Some(format!("has `multipleOf`s whose least common multiple exceeds {MOST_MULTIPLE}"));
    }
    let referred = targets.iter().filter_map(|target| schema.pointer(target));
    let levels = std::iter::once(schema).chain(referred).map(depth).sum::<usize>();
    (levels > MOST_LEVELS).then(|| {
        format!(
            "is {levels} levels deep with the targets of its references, and at most {MOST_LEVELS} can be enforced"
        )
    })
}

/// Levels of lists and objects; a request's JSON has at most 128.
fn depth(value: &Value) -> usize {
    let deepest = match value {
        Value::Object(fields) => fields.values().map(depth).max(),
        Value::Array(list) => list.iter().map(depth).max(),
        _ => return 0,
    };
    deepest.unwrap_or(0) + 1
}
