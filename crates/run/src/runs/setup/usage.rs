//! Usage errors.

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct WrongUsage(pub String);

pub fn wrong<T>(why: impl Into<String>) -> anyhow::Result<T> {
    Err(WrongUsage(why.into()).into())
}

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct WrongValue(pub String);

pub fn positive(text: &str) -> Result<usize, WrongValue> {
    let number = text.parse().ok().filter(|n| *n > 0);
    number.ok_or_else(|| WrongValue("give a whole number above 0".to_owned()))
}
