//! Flag values and usage errors.

pub(super) use crate::runs::setup::{WrongUsage, WrongValue, positive, wrong};

/// Refuses a context above the model's limit, unless allowed.
pub(super) fn check_context(tokens: usize, model_limit: usize, allow_longer: bool) -> anyhow::Result<()> {
    anyhow::ensure!(
        tokens <= model_limit || allow_longer,
        "{tokens} tokens are more than the model's context length of {model_limit}; cut the input, use a model with a longer context, or pass --allow-longer to try it beyond"
    );
    Ok(())
}
