//! A finished run whose prompts its own model reads again (`palimpsest causes` and `palimpsest why`).

use std::path::Path;

use anyhow::{Context, ensure};

use super::rows::AnswerRow;
use super::store::{RunFolder, RunStore};
use crate::models::{self, DeviceArgs, Opened, Weights};
use palimpsest_core::engine::memory_plan::ObservedSpans;
use palimpsest_core::engine::{self, ContextLength, LocalModel, LocalOptions};

/// Minimum tokens per chunk for a question and its instructions, besides the answer.
const QUESTION: usize = 512;

/// How the run's model is opened again.
#[derive(Debug, clap::Args)]
pub struct RereadArgs {
    /// The run's model, if its name no longer finds it
    #[arg(long, help_heading = "Model")]
    model: Option<String>,
    #[command(flatten)]
    pub on: DeviceArgs,
    /// Form of quantised weights on the CPU
    #[arg(long, value_enum, default_value_t, help_heading = "Model")]
    weights: Weights,
}

pub struct Reread {
    pub folder: RunFolder,
    /// The model's caches keep all keys of windowed layers.
    pub whole_windows: bool,
    /// Norms, attributions and routes of answers are measured.
    pub contributions: bool,
    _held: RunStore,
}

impl Reread {
    pub fn open(dir: &Path) -> anyhow::Result<Self> {
        let held = RunStore::open(dir)?;
        Ok(Reread { folder: RunFolder::read(dir)?, whole_windows: false, contributions: false, _held: held })
    }

    pub fn check_attention(&self) -> anyhow::Result<()> {
        ensure!(
            self.folder.header.identity.attention,
            "{} recorded no attention and no spans of its sessions; run it again without --no-attention",
            self.folder.dir.display()
        );
        Ok(())
    }

    /// Opens the run's model for the prompts and answers in `asked`, and for answers of `most_new` tokens after the same prompts.
    pub fn model(
        &self,
        asked: &[&AnswerRow],
        most_new: usize,
        RereadArgs { model, on, weights }: &RereadArgs,
    ) -> anyhow::Result<LocalModel> {
        let (place, identity) = (self.folder.dir.display(), &self.folder.header.identity);
        let lengths = || asked.iter().filter_map(|row| Some((row.prompt_tokens?, row.completion_tokens?)));
        let longest = lengths().map(|(prompt, answer)| prompt + answer.max(most_new)).max().unwrap_or(0);
        // A question and its answer fit one chunk.
        let chunk = lengths().map(|(_, answer)| answer + QUESTION).max().unwrap_or(0);
        let own = || models::pinned(&identity.model.name, identity.model_commit.as_deref());
        let name = &model.clone().unwrap_or_else(own);
        let options = LocalOptions {
            kernel: on.attention_kernel,
            devices: on.open()?,
            dtype: identity.dtype.as_deref().map(engine::parse_dtype).transpose()?,
            cache_dtype: identity.cache_dtype.as_deref().map(engine::parse_dtype).transpose()?,
            whole_windows: self.whole_windows,
            context: ContextLength::Exactly(longest),
            allow_longer: true,
            chunk: engine::DEFAULT_CHUNK.max(chunk),
            logits: engine::LOGITS_AT_ONCE,
            observed: ObservedSpans {
                rows: 0,
                keys: 0,
                generated: 0,
                selected: false,
                norms: self.contributions,
                attributed: self.contributions,
            },
            kept: (*weights).into(),
            hides_keys: true,
            ..LocalOptions::default()
        };
        let Opened { model, digest, .. } = models::open(name, &options)
            .with_context(|| format!("the model of {place}; name its folder or file with --model"))?;
        ensure!(
            digest == identity.model.digest,
            "{name} is not the model of {place}: its digest is {}, the run's {}; give that one with --model",
            digest,
            identity.model.digest
        );
        Ok(model)
    }
}
