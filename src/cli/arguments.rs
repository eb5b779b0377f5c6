//! What several commands take, and why it is refused.

use palimpsest_core::model::Kept;

/// Flags that make no sense, alone or together: exit code 2, as for those that clap refuses.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct WrongUsage(pub String);

/// What is kept in memory of quantised weights on the CPU in f32. Answers are the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Weights {
    /// `dense` where memory allows, else `quantised`
    #[default]
    Auto,
    /// The quantised weights and the dequantised ones in f32: the fastest
    Dense,
    /// The quantised bits alone: the least memory
    Quantised,
}

impl From<Weights> for Option<Kept> {
    fn from(weights: Weights) -> Self {
        match weights {
            Weights::Auto => None,
            Weights::Dense => Some(Kept::Dense),
            Weights::Quantised => Some(Kept::Quantised),
        }
    }
}

/// Parses a whole number above 0.
pub(super) fn positive(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n) if n > 0 => Ok(n),
        _ => Err("give a whole number above 0".to_owned()),
    }
}

/// Refuses a context longer than the model was made for, unless told to go on.
pub(super) fn check_context(tokens: usize, model_limit: usize, allow_longer: bool) -> anyhow::Result<()> {
    anyhow::ensure!(
        tokens <= model_limit || allow_longer,
        "{tokens} tokens are more than the model's context length of {model_limit}; cut the input, use a model with a longer context, or pass --allow-longer to see what it does beyond"
    );
    Ok(())
}
