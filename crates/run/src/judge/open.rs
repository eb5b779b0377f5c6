//! Opens a judge by name: `local:NAME`, or an endpoint `http://host[:port]/v1#model`. Called by `palimpsest judge`, and by `palimpsest why`
//! for regenerated answers ([`super::anew`]).

use anyhow::Context;

use super::{Judge, REPLY_TOKENS};
use crate::chat::endpoint::{Endpoint, Patience};
use crate::chat::{ChatModel, Sampling};
use crate::models::{self, DeviceArgs, DtypeArgs};
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
            None if text.starts_with("http://") || text.starts_with("https://") => {
                Ok(JudgeSource::Endpoint(text))
            }
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
        }
    }
}

pub struct OpenJudge {
    model: Model,
    sampling: Sampling,
}

enum Model {
    Scoring(Box<LocalModel>),
    Reply(Box<LocalModel>),
    Endpoint(Vec<Endpoint>),
}

impl OpenJudge {
    pub fn open(judge: &str, options: &JudgeOptions) -> anyhow::Result<Self> {
        let JudgeOptions { on, in_dtype, thinking, max_new_tokens, parallel, patience } = options;
        let source = JudgeSource::parse(judge)?;
        let replies = source.replies(thinking);
        let model = match source {
            JudgeSource::Local(name) => {
                let thought = if replies { thinking.local().max } else { 0 };
                let options = LocalOptions {
                    kernel: on.attention_kernel,
                    devices: on.open()?,
                    dtype: in_dtype.dtype()?,
                    cache_dtype: in_dtype.cache()?,
                    context: ContextLength::AtMost(JUDGE_CONTEXT.saturating_add(thought)),
                    thinking: thinking.local(),
                    ..LocalOptions::default()
                };
                let opened = models::open(name, &options).with_context(|| format!("judge `{judge}`"))?;
                let model = Box::new(opened.model);
                if replies { Model::Reply(model) } else { Model::Scoring(model) }
            }
            JudgeSource::Endpoint(address) => {
                let model = Endpoint::from_address(address, *patience)?.thinking(thinking.endpoint());
                model.check_reachable()?;
                Model::Endpoint(vec![model; *parallel])
            }
        };
        let sampling = Sampling { temperature: 0.0, top_p: 1.0, seed: 0, max_new_tokens: *max_new_tokens };
        Ok(OpenJudge { model, sampling })
    }

    pub fn judge(&mut self) -> Judge<'_> {
        let sampling = self.sampling;
        match &mut self.model {
            Model::Scoring(model) => Judge::Scoring(model.as_mut()),
            Model::Reply(model) => Judge::Reply { model: model.as_mut(), sampling },
            Model::Endpoint(models) => {
                let models = models.iter_mut().map(|model| model as &mut (dyn ChatModel + Send)).collect();
                Judge::Several { models, sampling }
            }
        }
    }
}
