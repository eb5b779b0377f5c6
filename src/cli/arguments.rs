//! Values of flags, and why they are refused.

pub(super) use crate::run::setup::{WrongUsage, WrongValue, positive};

/// The flags of `T` where only `typed` are given.
pub(super) fn defaults<T: clap::Args>(typed: &[&str]) -> anyhow::Result<T> {
    let command = T::augment_args(clap::Command::new("defaults").no_binary_name(true));
    Ok(T::from_arg_matches(&command.try_get_matches_from(typed)?)?)
}

/// Refuses a context longer than the model was made for, unless told to go on.
pub(super) fn check_context(tokens: usize, model_limit: usize, allow_longer: bool) -> anyhow::Result<()> {
    anyhow::ensure!(
        tokens <= model_limit || allow_longer,
        "{tokens} tokens are more than the model's context length of {model_limit}; cut the input, use a model with a longer context, or pass --allow-longer to see what it does beyond"
    );
    Ok(())
}
