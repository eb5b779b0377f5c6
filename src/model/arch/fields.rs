//! Typed access to the fields of a config.json, with errors that name file, field and value.

use serde_json::Value;

use super::ModelError;

/// The fields of a config object.
pub struct Fields<'a> {
    object: &'a serde_json::Map<String, Value>,
    place: String,
}

impl<'a> Fields<'a> {
    /// The fields of `config`, which must be an object. `place` is the file's name for errors.
    pub fn new(config: &'a Value, place: &str) -> Result<Self, ModelError> {
        match config {
            Value::Object(object) => Ok(Fields { object, place: place.to_owned() }),
            other => Err(ModelError::Config {
                place: place.to_owned(),
                field: "config".to_owned(),
                problem: format!("is {other}, not an object of fields"),
            }),
        }
    }

    /// The value of a field; null counts as absent.
    pub fn get(&self, field: &str) -> Option<&'a Value> {
        self.object.get(field).filter(|v| !v.is_null())
    }

    /// An object-valued field.
    pub fn object(&self, field: &str) -> Result<Option<Fields<'a>>, ModelError> {
        self.get(field).map(|v| Fields::new(v, &format!("{}: `{field}`", self.place))).transpose()
    }

    /// An error about a field.
    pub fn refuse(&self, field: &str, problem: impl Into<String>) -> ModelError {
        ModelError::Config { place: self.place.clone(), field: field.to_owned(), problem: problem.into() }
    }

    fn typed<T>(
        &self,
        field: &str,
        wanted: &str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, ModelError> {
        match self.get(field) {
            None => Ok(None),
            Some(value) => match read(value) {
                Some(found) => Ok(Some(found)),
                None => Err(self.refuse(field, format!("is {value}, not {wanted}"))),
            },
        }
    }

    fn required<T>(&self, field: &str, found: Option<T>) -> Result<T, ModelError> {
        found.ok_or_else(|| self.refuse(field, "is missing"))
    }

    /// A required string.
    pub fn text(&self, field: &str) -> Result<&'a str, ModelError> {
        let found = self.typed(field, "a string", Value::as_str)?;
        self.required(field, found)
    }

    /// A required positive count of at most 2^24 (2^32 would already be no size of a model, and sizes are multiplied).
    pub fn count(&self, field: &str) -> Result<usize, ModelError> {
        let found = self.optional_count(field)?;
        self.required(field, found)
    }

    /// An optional positive count of at most 2^24.
    pub fn optional_count(&self, field: &str) -> Result<Option<usize>, ModelError> {
        self.typed(field, "a whole number from 1 to 16777216", |v| {
            v.as_u64().filter(|n| (1..=1 << 24).contains(n)).map(|n| n as usize)
        })
    }

    /// A required finite number above 0.
    pub fn positive(&self, field: &str) -> Result<f64, ModelError> {
        let found = self.optional_positive(field)?;
        self.required(field, found)
    }

    /// An optional finite number above 0.
    pub fn optional_positive(&self, field: &str) -> Result<Option<f64>, ModelError> {
        self.typed(field, "a number above 0", |v| v.as_f64().filter(|x| x.is_finite() && *x > 0.0))
    }

    /// An optional truth value.
    pub fn flag(&self, field: &str, default: bool) -> Result<bool, ModelError> {
        Ok(self.typed(field, "true or false", Value::as_bool)?.unwrap_or(default))
    }
}
