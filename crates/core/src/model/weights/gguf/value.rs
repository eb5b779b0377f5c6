//! GGUF metadata values and their conversions, which never wrap or round an integer.

/// A metadata value. Widths are folded, since writers choose different widths for the same key.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Any unsigned integer.
    Uint(u64),
    /// Any signed integer.
    Int(i64),
    /// A 32- or 64-bit float.
    Float(f64),
    /// A boolean.
    Bool(bool),
    /// UTF-8 text.
    String(String),
    /// An array of one element type.
    Array(Array),
}

/// An array, typed as a whole so that large vocabularies stay compact.
#[derive(Debug, Clone, PartialEq)]
pub enum Array {
    /// Unsigned integers.
    Uints(Vec<u64>),
    /// Signed integers.
    Ints(Vec<i64>),
    /// Floats.
    Floats(Vec<f64>),
    /// Booleans.
    Bools(Vec<bool>),
    /// Strings.
    Strings(Vec<String>),
    /// Nested arrays.
    Arrays(Vec<Array>),
}

impl Array {
    /// Number of elements.
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

    /// True if empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Value {
    /// A short description for messages: the type, and the value if it is short.
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
