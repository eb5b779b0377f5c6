//! Values of flags, and why they are refused.

pub(super) use crate::runs::setup::{WrongUsage, WrongValue, positive};

/// A refusal of what was typed.
pub(super) fn wrong<T>(why: impl Into<String>) -> anyhow::Result<T> {
    Err(WrongUsage(why.into()).into())
}

/// Refuses a context longer than the model was made for, unless told to go on.
pub(super) fn check_context(tokens: usize, model_limit: usize, allow_longer: bool) -> anyhow::Result<()> {
    anyhow::ensure!(
        tokens <= model_limit || allow_longer,
        "{tokens} tokens are more than the model's context length of {model_limit}; cut the input, use a model with a longer context, or pass --allow-longer to see what it does beyond"
    );
    Ok(())
}
