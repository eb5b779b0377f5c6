//! Prompt wording: a benchmark's templates, each replaceable by a file. Variables are documented in `docs/data.md`.

use std::ops::Range;
use std::path::Path;

use minijinja::{UndefinedBehavior, Value, context};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use palimpsest_core::digest::hex;
use palimpsest_core::text::TextError;
use palimpsest_core::text::sandbox::Sandbox;

use super::PromptError;
use crate::benchmarks::Benchmark;
use crate::case::Segment;
use crate::ground::text_file;
use crate::ground::words::capitalised;

const SYSTEM: &str = "system.j2";

/// Read by the judge; may be in the same folder.
pub const JUDGE_FILE: &str = "judge.j2";

/// Shared templates for memory systems.
const MEMORIES: [(&str, &str); 2] = [
    ("memory.j2", include_str!("templates/memory.j2")),
    ("context.j2", include_str!("templates/context.j2")),
];

#[derive(Debug, Clone)]
pub struct Templates {
    env: Sandbox,
    digest: String,
    files: Vec<&'static str>,
    question_first: bool,
    query_time: bool,
}

impl Templates {
    /// The benchmark's templates, overridden by files in `dir`. Unknown file names are errors, except hidden, judge and memory files.
    pub fn load(benchmark: &Benchmark, dir: Option<&Path>) -> Result<Self, PromptError> {
        let files: Vec<&'static str> = benchmark.templates.iter().map(|(name, _)| *name).collect();
        if let Some(dir) = dir {
            refuse_unknown_files(dir, &files)?;
        }
        // Strict: a misspelt variable in an override is an error.
        let mut env = Sandbox::new(UndefinedBehavior::Strict)?;
        let digest = add(&mut env, Sha256::new(), benchmark.templates, dir)?;
        let (question_first, query_time) = (benchmark.question_first, !benchmark.query_time_if_asked);
        Ok(Templates { env, digest, files, question_first, query_time })
    }

    /// Always shows the query time if the data has one; some benchmarks omit it ([`Benchmark::query_time_if_asked`]).
    #[must_use]
    pub fn with_query_time(self, told: bool) -> Self {
        Templates { query_time: self.query_time || told, ..self }
    }

    pub(super) fn query_time(&self) -> bool {
        self.query_time
    }

    /// Adds the memory templates, overridden by those of `dir`; changes the digest.
    pub fn with_memories(mut self, dir: Option<&Path>) -> Result<Self, PromptError> {
        let hasher = Sha256::new().chain_update(&self.digest);
        self.digest = add(&mut self.env, hasher, &MEMORIES, dir)?;
        self.files.extend(MEMORIES.map(|(name, _)| name));
        Ok(self)
    }

    /// SHA-256 (hex) over names and sources, in the order of [`Benchmark::templates`]. Part of the run identity.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// System message for this form, trimmed; empty if none is sent.
    pub(super) fn system(&self, form: &str) -> Result<String, PromptError> {
        Ok(self.env.render(SYSTEM, context! { form }, 0)?.trim().to_owned())
    }

    pub(super) fn question_first(&self) -> bool {
        self.question_first
    }

    pub(super) fn file(&self, name: &str) -> Result<&'static str, PromptError> {
        let file = self.files.iter().find(|file| file.strip_suffix(".j2") == Some(name));
        file.copied().ok_or_else(|| PromptError::NoTemplate {
            name: format!("{name}.j2"),
            known: self.files.join(", "),
        })
    }

    /// `place` is among those shown. Starts with a non-space and ends with a blank line, so that tokens do not straddle segments.
    pub(super) fn segment(
        &self,
        segment: &Segment,
        place: usize,
        numbers: SegmentNumbers,
    ) -> Result<SegmentText, PromptError> {
        let name = self.file(&segment.kind)?;
        let turns: Vec<Value> = (segment.turns.iter())
            .map(|turn| context! { role => &turn.role, speaker => capitalised(&turn.role), content => &turn.content })
            .collect();
        let bytes = segment.turns.iter().map(|turn| turn.content.len()).sum();
        let written = |format| segment.time.map(|time| time.strftime(format).to_string());
        let (date, time) = (written("%Y-%m-%d %H:%M"), written("%Y-%m-%d %H:%M:%S"));
        let render = |number: Value| {
            let context = context! { number, date => &date, time => &time, turns => &turns };
            self.env.render(name, context, bytes)
        };
        let failed =
            |reason| TextError::Template { name: name.to_owned(), line: None, reason, raised: false };
        let rendered = match numbers.of(place, segment.index) {
            Some(number) => render(number.into())?,
            None => render(Value::UNDEFINED).map_err(|error| {
                // Retry with a number to find out whether it was the undefined variable.
                if render(1.into()).is_err() {
                    return error;
                }
                failed(format!(
                    "it shows `number`, which is left out (--session-numbers none); give a {name} in --prompts that does \
                     without it or asks {{% if number is defined %}}"
                ))
            })?,
        };
        let mut text = rendered.trim_start().to_owned();
        let (kind, index) = (&segment.kind, segment.index);
        if text.is_empty() {
            return Err(failed(format!("it renders {kind} {index} as nothing")).into());
        }
        // All content must appear, or missing words would be measured as shown.
        let mut turns = Vec::with_capacity(segment.turns.len());
        let mut reached = 0;
        for (place, turn) in segment.turns.iter().enumerate() {
            let content = turn.content.trim();
            let at = text.get(reached..).and_then(|rest| rest.find(content)).ok_or_else(|| {
                failed(format!(
                    "it leaves out or alters turn {} of {kind} {index}; put every turn's content in as it is, in order",
                    place + 1,
                ))
            })?;
            turns.push(reached + at..reached + at + content.len());
            reached += at + content.len();
        }
        while !text.ends_with("\n\n") {
            text.push('\n');
        }
        Ok(SegmentText { text, turns })
    }

    pub(super) fn framing(
        &self,
        form: &str,
        history: &str,
        query: &str,
        date: Option<&str>,
    ) -> Result<String, PromptError> {
        let bytes = history.len() + query.len();
        Ok(self.env.render(self.file(form)?, context! { history, query, date }, bytes)?)
    }
}

/// Adds templates, each overridden by a file of `dir`; returns the digest of all.
fn add(
    env: &mut Sandbox,
    mut hasher: Sha256,
    templates: &[(&'static str, &str)],
    dir: Option<&Path>,
) -> Result<String, PromptError> {
    for (name, embedded) in templates {
        let source = match dir.map(|dir| dir.join(name)) {
            Some(path) if path.exists() => {
                text_file::read(&path).map_err(|source| TextError::Read { path, source })?
            }
            _ => (*embedded).to_owned(),
        };
        for part in [*name, &source] {
            hasher.update((part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        env.add_template(name, source)?;
    }
    Ok(hex(&hasher.finalize()))
}

#[derive(Debug, Clone)]
pub(super) struct SegmentText {
    pub text: String,
    /// Byte ranges of each turn's trimmed content.
    pub turns: Vec<Range<usize>>,
}

fn refuse_unknown_files(dir: &Path, files: &[&str]) -> Result<(), PromptError> {
    let failed = |source| TextError::Read { path: dir.to_owned(), source };
    for entry in std::fs::read_dir(dir).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let others = MEMORIES.iter().map(|(name, _)| *name).chain([JUDGE_FILE]);
        if !(name.starts_with('.') || others.chain(files.iter().copied()).any(|known| known == name)) {
            let known = format!("{}, {JUDGE_FILE}", files.join(", "));
            return Err(PromptError::UnknownTemplateFile { path: entry.path(), known });
        }
    }
    Ok(())
}

/// The number that a segment's template gets. In a history that was not cut the first two are the same.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum SegmentNumbers {
    /// From 1 without gaps, which would point at what was left
    #[default]
    Consecutive,
    /// Those of the whole history
    Original,
    /// None; needs a session.j2 that does without (docs/data.md)
    None,
}

impl SegmentNumbers {
    /// `place`: zero-based among those shown; `index`: zero-based in the whole history.
    pub fn of(self, place: usize, index: usize) -> Option<usize> {
        match self {
            SegmentNumbers::Consecutive => Some(place + 1),
            SegmentNumbers::Original => Some(index + 1),
            SegmentNumbers::None => None,
        }
    }

    pub fn is_default(&self) -> bool {
        *self == SegmentNumbers::default()
    }
}
