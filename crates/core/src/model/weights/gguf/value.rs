//! GGUF metadata values and their conversions, which never wrap or round an integer.

/// A metadata value. Widths are folded, since writers choose different widths for the same key.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)] // the types that GGUF has
pub enum Value {
    Int(i128),
    Float(f64),
    Bool(bool),
    String(String),
    Array(Array),
}

/// An array, typed as a whole so that large vocabularies stay compact.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)] // the types that GGUF has
pub enum Array {
    Ints(Vec<i128>),
    Floats(Vec<f64>),
    Bools(Vec<bool>),
    Strings(Vec<String>),
    Arrays(Vec<Array>),
}

impl Array {
    fn len(&self) -> usize {
        match self {
            Self::Ints(items) => items.len(),
            Self::Floats(items) => items.len(),
            Self::Bools(items) => items.len(),
            Self::Strings(items) => items.len(),
            Self::Arrays(items) => items.len(),
        }
    }

    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Value {
    /// A short description for messages: the type, and the value if it is short.
    pub(super) fn describe(&self) -> String {
        match self {
            Self::Int(number) => format!("the integer {number}"),
            Self::Float(number) => format!("the float {number}"),
            Self::Bool(truth) => format!("the truth value {truth}"),
            Self::String(text) if text.len() <= 40 => format!("the text {text:?}"),
            Self::String(text) => format!("a text of {} bytes", text.len()),
            Self::Array(array) => format!("an array of {} elements", array.len()),
        }
    }
}

/// A type that a metadata value converts to.
pub trait FromValue<'a>: Sized {
    /// The type's name, for messages.
    const WANTED: &'static str;
    /// The value as this type; `None` if it has another type or is out of range.
    fn from_value(value: &'a Value) -> Option<Self>;
}

macro_rules! integers_from_value {
    ($($type:ty),*) => {$(
        impl FromValue<'_> for $type {
            const WANTED: &'static str = concat!("an integer in the range of ", stringify!($type));
            fn from_value(value: &Value) -> Option<Self> {
                match value {
                    Value::Int(number) => (*number).try_into().ok(),
                    _ => None,
                }
            }
        }
    )*};
}
integers_from_value!(u32, u64, usize, i32);

impl FromValue<'_> for Vec<i32> {
    const WANTED: &'static str = "an array of integers in the range of i32";
    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::Array(Array::Ints(items)) => items.iter().map(|&item| item.try_into().ok()).collect(),
            Value::Array(array) if array.is_empty() => Some(Vec::new()),
            _ => None,
        }
    }
}

impl FromValue<'_> for f64 {
    const WANTED: &'static str = "a number";
    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::Float(number) => Some(*number),
            Value::Int(number) => Some(*number as f64),
            _ => None,
        }
    }
}

impl FromValue<'_> for f32 {
    const WANTED: &'static str = "a number";
    fn from_value(value: &Value) -> Option<Self> {
        f64::from_value(value).map(|number| number as f32)
    }
}

impl FromValue<'_> for Vec<f32> {
    const WANTED: &'static str = "an array of floats";
    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::Array(Array::Floats(items)) => Some(items.iter().map(|&item| item as f32).collect()),
            Value::Array(array) if array.is_empty() => Some(Vec::new()),
            _ => None,
        }
    }
}

impl FromValue<'_> for Vec<bool> {
    const WANTED: &'static str = "an array of truth values";
    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::Array(Array::Bools(items)) => Some(items.clone()),
            Value::Array(array) if array.is_empty() => Some(Vec::new()),
            _ => None,
        }
    }
}

impl FromValue<'_> for bool {
    const WANTED: &'static str = "a truth value";
    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::Bool(truth) => Some(*truth),
            _ => None,
        }
    }
}

impl<'a> FromValue<'a> for &'a str {
    const WANTED: &'static str = "a text";
    fn from_value(value: &'a Value) -> Option<Self> {
        match value {
            Value::String(text) => Some(text),
            _ => None,
        }
    }
}

impl<'a> FromValue<'a> for &'a [String] {
    const WANTED: &'static str = "an array of texts";
    fn from_value(value: &'a Value) -> Option<Self> {
        match value {
            Value::Array(Array::Strings(items)) => Some(items),
            Value::Array(array) if array.is_empty() => Some(&[]),
            _ => None,
        }
    }
}
