//! The language model interface of CUPMem, and its steps.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::chat::endpoint::Endpoint;
use crate::chat::{ChatError, ChatModel, Message, Sampling};

/// W7 and W8 ask no model; R2 is not a separate step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Step {
    #[serde(rename = "W1")]
    Spans,
    #[serde(rename = "W2")]
    Candidates,
    #[serde(rename = "W3")]
    LocalUpdate,
    #[serde(rename = "W4")]
    Affected,
    #[serde(rename = "W5")]
    Proposals,
    #[serde(rename = "W6")]
    Adjudicate,
    #[serde(rename = "W7")]
    Arbitrate,
    #[serde(rename = "W8")]
    Apply,
    #[serde(rename = "W9")]
    Links,
    #[serde(rename = "R1")]
    Parse,
    #[serde(rename = "R3")]
    Verify,
    #[serde(rename = "R4")]
    Recover,
    #[serde(rename = "R5")]
    VerifyAgain,
    #[serde(rename = "R6")]
    Ground,
    #[serde(rename = "R7")]
    Constraints,
    #[serde(rename = "R8")]
    Answer,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

pub trait StepModel: Send {
    fn name(&self) -> String;

    /// Replies to `messages` with a JSON object of `schema`; `None` leaves the reply unconstrained.
    fn complete(
        &mut self,
        step: Step,
        messages: &[Message],
        schema: Option<&Value>,
        sampling: &Sampling,
    ) -> Result<String, ChatError>;
}

/// The schema is sent as `response_format`, named after the step.
impl StepModel for Endpoint {
    /// Excludes the address, which may change between runs.
    fn name(&self) -> String {
        self.model().to_owned()
    }

    fn complete(
        &mut self,
        step: Step,
        messages: &[Message],
        schema: Option<&Value>,
        sampling: &Sampling,
    ) -> Result<String, ChatError> {
        let name = step.to_string();
        self.hold_to(schema.map(|schema| (name.as_str(), schema)));
        self.reply(messages, sampling).map(|reply| reply.text)
    }
}
