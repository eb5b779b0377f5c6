//! Prompt templates of the steps: instructions (system message, constant, so that servers can cache the prefix) and data (user message).
//!
//! The wording is ours. The reply's JSON schema follows the instructions, for servers that do not enforce it.

use std::sync::LazyLock;

use minijinja::value::Serde;
use minijinja::{Environment, UndefinedBehavior};
use palimpsest_core::digest::sha256;
use palimpsest_core::text::sandbox;
use serde_json::{Value, json};

use super::model::Step;
use super::schema::LISTING;
use super::settings::{Settings, Switch};
use crate::chat::{Message, MessageRole};

const BORDER: &str = "\n=====\n";

/// R5 uses R3's template.
const FILES: [(Step, &str); 13] = [
    (Step::Spans, include_str!("prompts/W1-spans.j2")),
    (Step::Candidates, include_str!("prompts/W2-candidates.j2")),
    (Step::LocalUpdate, include_str!("prompts/W3-local-update.j2")),
    (Step::Affected, include_str!("prompts/W4-affected.j2")),
    (Step::Proposals, include_str!("prompts/W5-proposals.j2")),
    (Step::Adjudicate, include_str!("prompts/W6-adjudicate.j2")),
    (Step::Links, include_str!("prompts/W9-links.j2")),
    (Step::Parse, include_str!("prompts/R1-parse.j2")),
    (Step::Verify, include_str!("prompts/R3-verify.j2")),
    (Step::Recover, include_str!("prompts/R4-recover.j2")),
    (Step::Ground, include_str!("prompts/R6-ground.j2")),
    (Step::Constraints, include_str!("prompts/R7-constraints.j2")),
    (Step::Answer, include_str!("prompts/R8-answer.j2")),
];

const REPLY: &str = "\n\nReply with one JSON object and nothing else. It follows this JSON schema:\n";

static TEMPLATES: LazyLock<Result<Environment<'static>, String>> = LazyLock::new(|| {
    // Strict: an undefined variable is an error.
    let mut env = sandbox::environment(UndefinedBehavior::Strict).map_err(|error| error.to_string())?;
    for (step, source) in FILES {
        let (instructions, data) = source
            .split_once(BORDER)
            .ok_or_else(|| format!("the template of {step} has no part for data"))?;
        for (part, source) in [("instructions", instructions), ("data", data)] {
            sandbox::add_template(&mut env, &format!("{step}.{part}"), source.to_owned())
                .map_err(|error| error.to_string())?;
        }
    }
    Ok(env)
});

pub fn instructions(step: Step, settings: &Settings, shape: &Value) -> Result<String, String> {
    let of = json!({
        "code": settings.is_code(),
        "may_be_unknown": !settings.lacks(Switch::NoUnknown),
        "schema": LISTING,
    });
    Ok(format!("{}{REPLY}{shape}", render(step, "instructions", &of)?))
}

pub fn messages(
    step: Step,
    settings: &Settings,
    data: &Value,
    shape: &Value,
) -> Result<Vec<Message>, String> {
    let system = instructions(step, settings, shape)?;
    let user = render(step, "data", data)?;
    Ok(vec![
        Message { role: MessageRole::System, content: system },
        Message { role: MessageRole::User, content: user },
    ])
}

fn render(step: Step, part: &str, values: &Value) -> Result<String, String> {
    let step = if step == Step::VerifyAgain { Step::Verify } else { step };
    let env = TEMPLATES.as_ref().map_err(Clone::clone)?;
    let bytes = values.to_string().len();
    let values = minijinja::Value::from(Serde(values));
    let text = sandbox::render(env, &format!("{step}.{part}"), values, bytes);
    text.map(|text| text.trim().to_owned()).map_err(|error| error.to_string())
}

pub fn digest() -> String {
    let all: Vec<&str> = FILES.iter().map(|(_, source)| *source).chain([REPLY]).collect();
    sha256(all.join("\n"))
}
