//! `palimpsest model parity`: another engine's numbers of a prompt, held against ours.

use std::path::PathBuf;

use anyhow::Context;
use palimpsest_core::engine::{self, Reuse};

use super::trace_load::{Loading, load};
use crate::models::{ModelArgs, ModelStore};
use crate::observe::{Dump, difference_table};

/// Hold another engine's logits and choices of keys for one prompt against ours.
///
/// FILE is a safetensors file with `tokens` u32, i32 or i64 [n], the prompt; `rows` likewise [rows], the positions that the other tensors
/// are of (without it the last ones); and `logits` f32, bf16 or f16 [rows, vocab], or `selected.LAYER` u8 or bool [rows, n], not 0 where
/// the row's attention at that layer has the key, or both. Printed are each tensor's largest difference, where it is, and the first row that
/// is further off than --tolerance; the exit code is then 1. For references of f32, give --dtype f32.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// A model's name, a model folder, or a .gguf file
    model: String,
    /// The other engine's numbers
    #[arg(long, value_name = "FILE")]
    against: PathBuf,
    /// The largest difference allowed; one key more or less in a choice counts 1
    #[arg(long, value_name = "X", default_value_t = crate::selftest::rule::LOGITS, value_parser = tolerance)]
    tolerance: f64,
    #[command(flatten)]
    loaded: ModelArgs,
}

fn tolerance(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| number.is_finite() && *number >= 0.0);
    number.ok_or_else(|| format!("{text} is no difference; give a number of 0 or more, such as 1e-3"))
}

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let place = args.against.display().to_string();
    let dump = Dump::read(&args.against)?;
    let job = dump.job(&place)?;
    let loading = Loading {
        name: &args.model,
        args: &args.loaded,
        chunk: engine::DEFAULT_CHUNK,
        allow_longer: true,
        compare: false,
    };
    let mut session = load(&loading, &[&job], || ModelStore::open()?.resolve_to_run(&args.model), None)?;
    let vocabulary = session.engine().decoder().spec().vocab;
    if let Some(token) = dump.tokens.iter().find(|token| **token as usize >= vocabulary) {
        anyhow::bail!(
            "{place}: `tokens` has {token}, and the model's ids are 0 to {}; dump the tokens of this model's tokenizer",
            vocabulary.saturating_sub(1)
        );
    }
    let traced = job.read(&mut session, Reuse::default(), job.greedily(), &mut |_| true)?;
    let found = dump.differences(&traced.measured.logits, session.engine(), args.tolerance).context(place)?;
    super::write_out(difference_table(&found, args.tolerance).as_bytes())?;
    if found.iter().any(|one| one.first.is_some()) {
        std::process::exit(1);
    }
    Ok(())
}
