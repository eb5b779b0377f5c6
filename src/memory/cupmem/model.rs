//! The language model that CUPMem asks, and the steps that it is asked in.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::chat::endpoint::Endpoint;
use crate::chat::{ChatError, ChatModel, Message, Sampling};

/// A step of writing or reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Step {
    /// W1.
    #[serde(rename = "W1")]
    Spans,
    /// W2.
    #[serde(rename = "W2")]
    Candidates,
    /// W3.
    #[serde(rename = "W3")]
    LocalUpdate,
    /// W4.
    #[serde(rename = "W4")]
    Affected,
    /// W5.
    #[serde(rename = "W5")]
    Proposals,
    /// W6.
    #[serde(rename = "W6")]
    Adjudicate,
    /// W7, which asks no model.
    #[serde(rename = "W7")]
    Arbitrate,
    /// W8, which asks no model.
    #[serde(rename = "W8")]
    Apply,
    /// W9.
    #[serde(rename = "W9")]
    Links,
    /// R1.
    #[serde(rename = "R1")]
    Parse,
    /// R3.
    #[serde(rename = "R3")]
    Verify,
    /// R4.
    #[serde(rename = "R4")]
    Recover,
    /// R5.
    #[serde(rename = "R5")]
    VerifyAgain,
    /// R6.
    #[serde(rename = "R6")]
    Ground,
    /// R7.
    #[serde(rename = "R7")]
    Constraints,
    /// R8.
    #[serde(rename = "R8")]
    Answer,
}

impl Step {
    /// Steps that ask a model, in order.
    pub const ASKING: [Step; 14] = [
        Step::Spans,
        Step::Candidates,
        Step::LocalUpdate,
        Step::Affected,
        Step::Proposals,
        Step::Adjudicate,
        Step::Links,
        Step::Parse,
        Step::Verify,
        Step::Recover,
        Step::VerifyAgain,
        Step::Ground,
        Step::Constraints,
        Step::Answer,
    ];

    /// `W1` to `W9`, `R1` to `R8`.
    pub fn id(self) -> &'static str {
        match self {
            Step::Spans => "W1",
            Step::Candidates => "W2",
            Step::LocalUpdate => "W3",
            Step::Affected => "W4",
            Step::Proposals => "W5",
            Step::Adjudicate => "W6",
            Step::Arbitrate => "W7",
            Step::Apply => "W8",
            Step::Links => "W9",
            Step::Parse => "R1",
            Step::Verify => "R3",
            Step::Recover => "R4",
            Step::VerifyAgain => "R5",
            Step::Ground => "R6",
            Step::Constraints => "R7",
            Step::Answer => "R8",
        }
    }

    /// The temperature that it is asked at: proposals are drawn, all else is greedy.
    pub fn temperature(self) -> f64 {
        if self == Step::Proposals { 0.30 } else { 0.0 }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.id())
    }
}

/// A model that answers a step.
pub trait StepModel: Send {
    /// Its name, for the system's identity.
    fn name(&self) -> String;

    /// The reply to `messages`, a JSON object that should follow `schema`; `None` where replies are not to be held to one.
    fn complete(
        &mut self,
        step: Step,
        messages: &[Message],
        schema: Option<&Value>,
        sampling: &Sampling,
    ) -> Result<String, ChatError>;
}

/// A server is sent the schema as `response_format`, under the step's name.
impl StepModel for Endpoint {
    /// Without the address, which may change from run to run.
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
        self.hold_to(schema.map(|schema| (step.id(), schema)));
        self.reply(messages, sampling).map(|reply| reply.text)
    }
}
