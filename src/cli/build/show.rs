//! `palimpsest build show`: the life of a row.

use std::path::PathBuf;

use palimpsest_core::text::{Message, MessageRole};
use serde_json::Value;

use crate::builds::folder::BuildFolder;
use crate::builds::show::{Passed, life_of};
use crate::builds::stage_file::{Asked, Attempt, Ending};
use crate::cli::write_out;

/// Show a row's way through the stages: every attempt with its prompt, reply, checks and judges, and what became of it.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  palimpsest build show built tea.0\n  palimpsest build show built stale-0007 | less"
)]
pub(super) struct Show {
    /// The folder of the build.
    dir: PathBuf,
    /// The id of a row of a stage, or the uid of a row of the data.
    id: String,
}

pub(super) fn run(args: &Show) -> anyhow::Result<()> {
    let folder = BuildFolder::read(&args.dir)?;
    let mut text = String::new();
    for passed in life_of(&folder, &args.id)? {
        show(&passed, &mut text);
    }
    write_out(text.as_bytes())
}

fn show(Passed { stage, outcome, attempts }: &Passed, text: &mut String) {
    *text += &format!("== {stage}: row {}, of {}\n", outcome.id, outcome.parents.join(", "));
    for (attempt, prompts) in attempts {
        show_attempt(attempt, prompts, text);
    }
    for row in &outcome.made {
        *text += &format!("made {}:\n", row.id);
        for (name, value) in &row.fields {
            *text += &indented(&format!("{name}: {}", plain(value)));
        }
    }
    for rejected in &outcome.rejected {
        *text += &format!("rejected {}: {}\n", rejected.id, rejected.reason);
    }
    *text += "\n";
}

fn show_attempt(attempt: &Attempt, prompts: &[Option<Vec<Message>>], text: &mut String) {
    let step = attempt.step.map(|step| format!(", step {step}")).unwrap_or_default();
    *text += &format!("-- attempt {}{step} at {}: {}\n", attempt.attempt, attempt.row, attempt.verdict);
    let mut prompts = prompts.iter();
    let mut question = |name: &str, asked: &Asked, text: &mut String| {
        match prompts.next().and_then(Option::as_ref) {
            Some(messages) => {
                for message in messages {
                    *text += &format!("{name}, {}:\n{}", role(message.role), indented(&message.content));
                }
            }
            None => *text += &format!("{name}: the prompt cannot be rendered again\n"),
        }
        let ending = match asked.ending {
            Ending::Turn => "reply",
            Ending::Cut => "reply, cut",
            Ending::Refused => "refusal",
            Ending::Scored => "scores",
        };
        *text += &match &asked.error {
            Some(error) => format!("error:\n{}", indented(error)),
            None => format!("{ending}:\n{}", indented(&asked.reply)),
        };
    };
    if let Some(asked) = &attempt.asked {
        question("prompt", asked, text);
    }
    for check in &attempt.checks {
        let found = check.found.as_deref().unwrap_or("passed");
        *text += &format!("check {}: {found}\n", check.name);
    }
    for judge in &attempt.judges {
        question(&format!("judge {}", judge.name), &judge.asked, text);
        *text += if judge.pass { "accepted\n" } else { "not accepted\n" };
    }
    if !attempt.why.is_empty() {
        *text += &format!("why: {}\n", attempt.why);
    }
}

fn role(role: MessageRole) -> &'static str {
    match role {
        MessageRole::System => "system",
        MessageRole::User => "user",
        MessageRole::Assistant => "assistant",
    }
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("    {line}\n")).collect()
}
