//! Metadata values of a GGUF file, and what they can be read as.
//!
//! Filled by [`header`](super::header), read through [`GgufFile::get`](super::GgufFile::get) and
//! [`require`](super::GgufFile::require). A conversion never wraps or rounds an integer: out of range is not that type.

/// A metadata value. Integer and float widths are folded: writers differ in the width they pick for one key, and
/// readers ask for a number.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Any unsigned integer.
    Uint(u64),
    /// Any signed integer.
    Int(i64),
    /// A 32- or 64-bit float.
    Float(f64),
    /// A truth value.
    Bool(bool),
    /// UTF-8 text.
    String(String),
    /// A list of one element type.
    Array(Array),
}

/// An array of a metadata value, typed as a whole so that a large vocabulary stays compact.
#[derive(Debug, Clone, PartialEq)]
pub enum Array {
    /// Unsigned integers.
    Uints(Vec<u64>),
    /// Signed integers.
    Ints(Vec<i64>),
    /// Floats.
    Floats(Vec<f64>),
    /// Truth values.
    Bools(Vec<bool>),
    /// Texts.
    Strings(Vec<String>),
    /// Arrays.
    Arrays(Vec<Array>),
}

impl Array {
    /// The number of elements.
    pub fn len(&self) -> usize {
        match self {
            Self::Uints(items) => items.len(),
            Self::Ints(items) => items.len(),
            Self::Floats(items) => items.len(),
            Self::Bools(items) => items.len(),
            Self::Strings(items) => items.len(),
            Self::Arrays(items) => items.len(),
        }
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Value {
    /// The value in a few words, for messages: its type, and itself where it is short.
    pub fn describe(&self) -> String {
        match self {
            Self::Uint(number) => format!("the integer {number}"),
            Self::Int(number) => format!("the integer {number}"),
            Self::Float(number) => format!("the float {number}"),
            Self::Bool(truth) => format!("the truth value {truth}"),
            Self::String(text) if text.len() <= 40 => format!("the text {text:?}"),
            Self::String(text) => format!("a text of {} bytes", text.len()),
            Self::Array(array) => format!("an array of {} elements", array.len()),
        }
    }
}

/// A type that a metadata value can be read as.
pub trait FromValue<'a>: Sized {
    /// The type's name, for messages.
    const WANTED: &'static str;
    /// The value as this type, or `None` where it is another type or out of range.
    fn from_value(value: &'a Value) -> Option<Self>;
}

macro_rules! integers_from_value {
    ($($type:ty),*) => {$(
        impl FromValue<'_> for $type {
            const WANTED: &'static str = concat!("an integer in the range of ", stringify!($type));
            fn from_value(value: &Value) -> Option<Self> {
                match value {
                    Value::Uint(number) => (*number).try_into().ok(),
                    Value::Int(number) => (*number).try_into().ok(),
                    _ => None,
                }
            }
        }

        impl FromValue<'_> for Vec<$type> {
            const WANTED: &'static str = concat!("an array of integers in the range of ", stringify!($type));
            fn from_value(value: &Value) -> Option<Self> {
                match value {
                    Value::Array(Array::Uints(items)) => items.iter().map(|&item| item.try_into().ok()).collect(),
                    Value::Array(Array::Ints(items)) => items.iter().map(|&item| item.try_into().ok()).collect(),
                    Value::Array(array) if array.is_empty() => Some(Vec::new()),
                    _ => None,
                }
            }
        }
    )*};
}
integers_from_value!(u32, u64, usize, i32, i64);

impl FromValue<'_> for f64 {
    const WANTED: &'static str = "a number";
    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::Float(number) => Some(*number),
            Value::Uint(number) => Some(*number as f64),
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
