//! Thinking flags shared by runs and judges.

use anyhow::ensure;
use serde_json::{Map, Value};

use super::{WrongValue, positive};
use crate::chat::endpoint::EndpointThinking;
use crate::runs::header::ThinkingPolicy;
use palimpsest_core::engine::{DEFAULT_MAX_THINKING, LocalModel, ThinkingOptions};
use palimpsest_core::text::{ReasoningEffort, ThinkingMode};

/// Thinking flags of a model.
#[derive(Debug, Clone, Default, PartialEq, clap::Args)]
#[command(next_help_heading = "Thinking")]
pub struct Thinking {
    /// Whether the model thinks before it answers; thoughts are kept apart from answers and shown to no judge. `auto` tells an endpoint
    /// nothing; `on` and `off` send `chat_template_kwargs: {"enable_thinking": ...}`
    #[arg(long, value_enum, default_value_t)]
    pub thinking: ThinkingMode,
    /// Most tokens of a thought, beside those of the answer, if the model thinks [default: 4096; endpoints: with --thinking on]
    #[arg(long, value_name = "TOKENS", value_parser = positive)]
    pub max_thinking: Option<usize>,
    /// The `reasoning_effort`, for chat templates and endpoints that have it
    #[arg(long, value_enum, value_name = "EFFORT")]
    pub reasoning_effort: Option<ReasoningEffort>,
    /// Endpoints: variables for the server's chat template, as a JSON object
    #[arg(long, value_name = "JSON", value_parser = object, help_heading = "Endpoint")]
    pub chat_template_kwargs: Option<Map<String, Value>>,
}

fn object(text: &str) -> Result<Map<String, Value>, WrongValue> {
    match serde_json::from_str(text) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => {
            let why = "it is no JSON object; give one, for example {\"enable_thinking\": false}";
            Err(WrongValue(why.to_owned()))
        }
        Err(error) => Err(WrongValue(format!("it is no JSON: {error}"))),
    }
}

/// Template variable of most servers.
const SWITCH: &str = "enable_thinking";

impl Thinking {
    pub fn check(&self, endpoint: bool) -> anyhow::Result<()> {
        let off = self.thinking == ThinkingMode::Off;
        ensure!(
            !(off && self.max_thinking.is_some()),
            "--max-thinking is for thoughts, and --thinking off has none; drop one of the two"
        );
        ensure!(
            !(off && self.reasoning_effort.is_some()),
            "--reasoning-effort is for thoughts, and --thinking off has none; drop one of the two"
        );
        let Some(kwargs) = &self.chat_template_kwargs else { return Ok(()) };
        ensure!(
            endpoint,
            "--chat-template-kwargs is for endpoints; a local model's template is set by --thinking and --reasoning-effort"
        );
        ensure!(
            self.thinking == ThinkingMode::Auto || !kwargs.contains_key(SWITCH),
            "--thinking and the {SWITCH} of --chat-template-kwargs say the same; drop one of the two"
        );
        Ok(())
    }

    pub fn local(&self) -> ThinkingOptions {
        ThinkingOptions {
            mode: self.thinking,
            effort: self.reasoning_effort,
            max: self.max_thinking.unwrap_or(DEFAULT_MAX_THINKING),
        }
    }

    pub fn endpoint(&self) -> EndpointThinking {
        let mut kwargs = self.chat_template_kwargs.clone().unwrap_or_default();
        let default = match self.thinking {
            ThinkingMode::Auto | ThinkingMode::Off => 0,
            ThinkingMode::On => DEFAULT_MAX_THINKING,
        };
        if self.thinking != ThinkingMode::Auto {
            kwargs.insert(SWITCH.to_owned(), (self.thinking == ThinkingMode::On).into());
        }
        EndpointThinking {
            on: kwargs.get(SWITCH) == Some(&Value::Bool(true)),
            chat_template_kwargs: kwargs,
            reasoning_effort: self.reasoning_effort,
            max_tokens: self.max_thinking.unwrap_or(default),
        }
    }

    /// For the run's identity; `None` if the model has no thoughts.
    pub fn local_policy(&self, model: &LocalModel) -> Option<ThinkingPolicy> {
        let on = model.text().thoughts?.on;
        Some(ThinkingPolicy {
            mode: Some(if on { ThinkingMode::On } else { ThinkingMode::Off }),
            max_tokens: on.then(|| model.max_thinking()),
            reasoning_effort: self.reasoning_effort,
            chat_template_kwargs: None,
        })
    }

    /// Thinking settings for the digest of a judge's verdicts. Excludes the token limit: raising it does not change existing verdicts.
    pub fn of_judge(&self) -> Option<String> {
        let policy = ThinkingPolicy { max_tokens: None, ..self.endpoint_policy()? };
        (policy != ThinkingPolicy::default()).then(|| serde_json::to_string(&policy).ok())?
    }

    /// For the run's identity; `None` if the endpoint is told nothing.
    pub fn endpoint_policy(&self) -> Option<ThinkingPolicy> {
        let EndpointThinking { max_tokens, .. } = self.endpoint();
        let kwargs = self.chat_template_kwargs.clone().filter(|kwargs| !kwargs.is_empty());
        let policy = ThinkingPolicy {
            mode: Some(self.thinking).filter(|mode| *mode != ThinkingMode::Auto),
            max_tokens: Some(max_tokens).filter(|tokens| *tokens > 0),
            reasoning_effort: self.reasoning_effort,
            chat_template_kwargs: kwargs.map(Value::Object),
        };
        Some(policy).filter(|policy| *policy != ThinkingPolicy::default())
    }
}
