//! Opens a judge by name: `local:NAME`, or an endpoint `http://host[:port]/v1#model`. Called by `palimpsest judge`, and by `palimpsest why`
//! for regenerated answers ([`super::anew`]).

use anyhow::Context;

use super::{Judge, REPLY_TOKENS};
use crate::chat::endpoint::{Endpoint, Keys, Patience, is_address};
use crate::chat::{ChatModel, Sampling};
use crate::models::{self, DeviceArgs, DtypeArgs, ModelArgs, Weights};
use crate::runs::setup::Thinking;
use palimpsest_core::engine::{ContextLength, LocalModel, LocalOptions};
use palimpsest_core::text::ThinkingMode;

const LOCAL: &str = "local:";

/// Context of a local judge, tokens; ample for notes, three queries and long answers.
const JUDGE_CONTEXT: usize = 16_384;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JudgeSource<'a> {
    Local(&'a str),
    Endpoint(&'a str),
}

impl<'a> JudgeSource<'a> {
    pub fn parse(text: &'a str) -> anyhow::Result<Self> {
        match text.strip_prefix(LOCAL) {
            Some("") => anyhow::bail!(
                "judge `local:` names no model; give local:NAME, for example local:smollm2-135m"
            ),
            Some(name) => Ok(JudgeSource::Local(name)),
            None if is_address(text) => Ok(JudgeSource::Endpoint(text)),
            None => anyhow::bail!("judge `{text}` is neither local:NAME nor http://host[:port]/v1#model"),
        }
    }

    /// True if the judge writes its verdicts; scoring cannot think first.
    pub fn replies(self, thinking: &Thinking) -> bool {
        matches!(self, JudgeSource::Endpoint(_)) || thinking.thinking == ThinkingMode::On
    }
}

#[derive(Debug, Clone)]
pub struct JudgeOptions {
    pub on: DeviceArgs,
    pub in_dtype: DtypeArgs,
    pub thinking: Thinking,
    pub max_new_tokens: usize,
    pub parallel: usize,
    pub patience: Patience,
    pub keys: Keys,
}

impl JudgeOptions {
    /// Defaults of `palimpsest judge`, with one call at a time.
    pub fn on(on: DeviceArgs) -> Self {
        JudgeOptions {
            on,
            in_dtype: DtypeArgs::default(),
            thinking: Thinking::default(),
            max_new_tokens: REPLY_TOKENS,
            parallel: 1,
            patience: Patience::default(),
            keys: Keys::default(),
        }
    }
}

/// The models of a [`Judge`].
pub enum OpenJudge {
    Scoring(Box<LocalModel>),
    Reply { models: Vec<Box<dyn ChatModel + Send>>, sampling: Sampling },
}

impl OpenJudge {
    pub fn open(judge: &str, options: JudgeOptions) -> anyhow::Result<Self> {
        let JudgeOptions { on, in_dtype, thinking, max_new_tokens, parallel, patience, keys } = options;
        let source = JudgeSource::parse(judge)?;
        let replies = source.replies(&thinking);
        let models: Vec<Box<dyn ChatModel + Send>> = match source {
            JudgeSource::Local(name) => {
                let thought = if replies { thinking.local().max } else { 0 };
                let options = LocalOptions {
                    context: ContextLength::AtMost(JUDGE_CONTEXT.saturating_add(thought)),
                    thinking: thinking.local(),
                    ..ModelArgs { on, in_dtype, weights: Weights::default() }.options()?
                };
                let opened = models::open(name, &options).with_context(|| format!("judge `{judge}`"))?;
                if !replies {
                    return Ok(OpenJudge::Scoring(Box::new(opened.model)));
                }
                vec![Box::new(opened.model)]
            }
            JudgeSource::Endpoint(address) => {
                let model = Endpoint::from_address(address, &keys, patience)?.thinking(thinking.endpoint());
                model.check_reachable()?;
                (0..parallel).map(|_| Box::new(model.clone()) as Box<_>).collect()
            }
        };
        let sampling = Sampling { temperature: 0.0, top_p: 1.0, seed: 0, max_new_tokens };
        Ok(OpenJudge::Reply { models, sampling })
    }

    pub fn judge(&mut self) -> Judge<'_> {
        match self {
            OpenJudge::Scoring(model) => Judge::Scoring(model.as_mut()),
            OpenJudge::Reply { models, sampling } => {
                let models = models.iter_mut().map(|model| model.as_mut() as _).collect();
                Judge::Reply { models, sampling: *sampling }
            }
        }
    }
}
