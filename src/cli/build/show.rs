//! `palimpsest build show`: the life of a row.

use std::path::PathBuf;

use serde_json::json;

use crate::builds::folder::BuildFolder;
use crate::builds::rows::text_of;
use crate::builds::show::{Way, way_of};
use crate::builds::stage_file::{Asked, Attempt, Ending, Passed};
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
    let way = way_of(&BuildFolder::read(&args.dir)?, &args.id)?;
    let mut text = String::new();
    for (stage, Passed { attempts, outcome }) in &way.passed {
        let (id, parents) = (line(&outcome.id), line(&outcome.parents.join(", ")));
        text += &format!("== {}: row {id}, of {parents}\n", line(stage));
        for attempt in attempts {
            text += &shown(attempt, &way);
        }
        for row in &outcome.made {
            text += &format!("made {}:\n", line(&row.id));
            for (name, value) in &row.fields {
                text += &indented(&format!("{name}: {}", text_of(value)));
            }
        }
        for rejected in &outcome.rejected {
            text += &format!("rejected {}: {}\n", line(&rejected.id), line(&rejected.reason));
        }
        text += "\n";
    }
    write_out(text.as_bytes())
}

fn shown(Attempt { row, attempt, step, asked, checks, judges, verdict, why }: &Attempt, way: &Way) -> String {
    let step = step.map(|step| format!(", step {step}")).unwrap_or_default();
    let (row, verdict) = (line(row), line(verdict));
    let mut text = format!("-- attempt {attempt}{step} at {row}: {verdict}\n");
    if let Some(asked) = asked {
        text += &question("prompt", asked, way);
    }
    for check in checks {
        let found = check.found.as_deref().map_or("passed".to_owned(), line);
        text += &format!("check {}: {found}\n", line(&check.name));
    }
    for judge in judges {
        text += &question(&format!("judge {}", line(&judge.name)), &judge.asked, way);
        text += if judge.pass { "accepted\n" } else { "not accepted\n" };
    }
    if !why.is_empty() {
        text += &format!("why: {}\n", line(why));
    }
    text
}

fn question(name: &str, Asked { prompt, reply, ending, error, .. }: &Asked, way: &Way) -> String {
    let (said, reply) = match (error, ending) {
        (Some(error), _) => ("error", error),
        (None, Ending::Turn) => ("reply", reply),
        (None, Ending::Cut) => ("reply, cut", reply),
        (None, Ending::Refused) => ("refusal", reply),
        (None, Ending::Scored) => ("scores", reply),
    };
    let prompt = match way.prompts.get(prompt) {
        Some(messages) => messages
            .iter()
            .map(|one| format!("{name}, {}:\n{}", text_of(&json!(one.role)), indented(&one.content)))
            .collect(),
        None => format!("{name}: the prompt cannot be rendered again\n"),
    };
    format!("{prompt}{said}:\n{}", indented(reply))
}

fn indented(text: &str) -> String {
    text.lines().map(|part| format!("    {}\n", line(part))).collect()
}

/// One line, with control characters but tabs as escapes: a terminal would obey them.
fn line(text: &str) -> String {
    let shown = |c: char| match c.is_control() && c != '\t' {
        true => c.escape_default().to_string(),
        false => c.to_string(),
    };
    text.chars().map(shown).collect()
}
