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

macro_rules! from_value {
    ($($type:ty: $wanted:expr, $($pattern:pat $(if $guard:expr)? => $made:expr),+;)*) => {$(
        impl<'a> FromValue<'a> for $type {
            const WANTED: &'static str = $wanted;
            fn from_value(value: &'a Value) -> Option<Self> {
                match value {
                    $($pattern $(if $guard)? => $made,)+
                    _ => None,
                }
            }
        }
    )*};
}

macro_rules! integers_from_value {
    ($($type:ty),*) => {
        from_value! {$(
            $type: concat!("an integer in the range of ", stringify!($type)),
                Value::Int(number) => (*number).try_into().ok();
            Vec<$type>: concat!("an array of integers in the range of ", stringify!($type)),
                Value::Array(Array::Ints(items)) => items.iter().map(|&item| item.try_into().ok()).collect(),
                Value::Array(array) if array.is_empty() => Some(Vec::new());
        )*}
    };
}

integers_from_value!(u32, u64, usize, i32);
from_value! {
    f64: "a number",
        Value::Float(number) => Some(*number),
        Value::Int(number) => Some(*number as f64);
    f32: "a number",
        Value::Float(number) => Some(*number as f32),
        Value::Int(number) => Some(*number as f64 as f32);
    Vec<f32>: "an array of floats",
        Value::Array(Array::Floats(items)) => Some(items.iter().map(|&item| item as f32).collect()),
        Value::Array(array) if array.is_empty() => Some(Vec::new());
    bool: "a truth value",
        Value::Bool(truth) => Some(*truth);
    Vec<bool>: "an array of truth values",
        Value::Array(Array::Bools(items)) => Some(items.clone()),
        Value::Array(array) if array.is_empty() => Some(Vec::new());
    &'a str: "a text",
        Value::String(text) => Some(text);
    &'a [String]: "an array of texts",
        Value::Array(Array::Strings(items)) => Some(items),
        Value::Array(array) if array.is_empty() => Some(&[]);
}
