//! The wording of the prompts: embedded templates, each of which a file in a folder can replace.
//!
//! Owns the text around history and query, and nothing of a model's own format (that is the chat template's). Variables
//! are documented at the head of each file and in `docs/prompts.md`.

use std::path::Path;

use minijinja::{Environment, UndefinedBehavior, Value, context};
use sha2::{Digest, Sha256};

use super::{PromptError, sandbox};
use crate::data::{ProbeForm, Role, Session};

/// The files a folder of templates may hold, in the order in which they are digested.
pub const TEMPLATE_FILES: [&str; 4] = ["system.j2", "session.j2", "question.j2", "request.j2"];

/// The judge's template may lie in the same folder; it is read by the judge, not here.
const JUDGE_FILE: &str = "judge.j2";

const EMBEDDED: [&str; 4] = [
    include_str!("templates/system.j2"),
    include_str!("templates/session.j2"),
    include_str!("templates/question.j2"),
    include_str!("templates/request.j2"),
];

/// The prompt templates of a run.
#[derive(Debug, Clone)]
pub struct Templates {
    env: Environment<'static>,
    digest: String,
}

impl Templates {
    /// The embedded templates; where `dir` is given, each file in it replaces the embedded one of the same name. A file
    /// of any other name is refused (hidden files and `judge.j2`, which belongs to the judge, are passed over).
    pub fn load(dir: Option<&Path>) -> Result<Self, PromptError> {
        if let Some(dir) = dir {
            refuse_unknown_files(dir)?;
        }
        // Strict: a misspelt variable in an override is an error, not a silent gap in every prompt.
        let mut env = sandbox::environment(UndefinedBehavior::Strict)?;
        let mut hasher = Sha256::new();
        for (name, embedded) in TEMPLATE_FILES.into_iter().zip(EMBEDDED) {
            let source = match dir.map(|dir| dir.join(name)) {
                Some(path) if path.exists() => {
                    std::fs::read_to_string(&path).map_err(|source| PromptError::Read { path, source })?
                }
                _ => embedded.to_owned(),
            };
            for part in [name, &source] {
                hasher.update((part.len() as u64).to_le_bytes());
                hasher.update(part);
            }
            sandbox::add_template(&mut env, name, source)?;
        }
        let digest = hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Templates { env, digest })
    }

    /// SHA-256 (hexadecimal) over names and sources in the order of [`TEMPLATE_FILES`]. Part of a run's identity.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// The system message, trimmed; empty means that none is sent.
    pub(super) fn system(&self) -> Result<String, PromptError> {
        Ok(sandbox::render(&self.env, "system.j2", context! {}, 0)?.trim().to_owned())
    }

    /// One session. Begins with a non-space character and ends with a blank line, so that no
    /// token of a usual vocabulary straddles the border between two sessions.
    pub(super) fn session(&self, session: &Session) -> Result<String, PromptError> {
        let turns: Vec<Value> = (session.turns.iter())
            .map(|turn| {
                let (role, speaker) = match turn.role {
                    Role::User => ("user", "User"),
                    Role::Assistant => ("assistant", "Assistant"),
                };
                context! { role, speaker, content => &turn.content }
            })
            .collect();
        let bytes = session.turns.iter().map(|turn| turn.content.len()).sum();
        let date = session.time.strftime("%Y-%m-%d %H:%M").to_string();
        let context = context! { number => session.index + 1, date, turns };
        let mut text = sandbox::render(&self.env, "session.j2", context, bytes)?.trim_start().to_owned();
        let failed = |reason| PromptError::Template { name: "session.j2".to_owned(), line: None, reason };
        if text.is_empty() {
            return Err(failed(format!("it renders session {} as nothing", session.index)));
        }
        // A session whose words are not all there would be measured as if they were.
        let mut rest = text.as_str();
        for (place, turn) in session.turns.iter().enumerate() {
            rest = rest.split_once(turn.content.trim()).map(|(_, after)| after).ok_or_else(|| {
                failed(format!(
                    "it leaves out or alters turn {} of session {}; put every turn's content in as it is, in order",
                    place + 1,
                    session.index
                ))
            })?;
        }
        while !text.ends_with("\n\n") {
            text.push('\n');
        }
        Ok(text)
    }

    /// The file that frames a probe.
    pub(super) fn framing_file(form: ProbeForm) -> &'static str {
        match form {
            ProbeForm::Question => "question.j2",
            ProbeForm::Request => "request.j2",
        }
    }

    /// The user message around `history` and `query`, untrimmed.
    pub(super) fn framing(
        &self,
        form: ProbeForm,
        history: &str,
        query: &str,
        date: Option<&str>,
    ) -> Result<String, PromptError> {
        let bytes = history.len() + query.len();
        sandbox::render(&self.env, Self::framing_file(form), context! { history, query, date }, bytes)
    }
}

fn refuse_unknown_files(dir: &Path) -> Result<(), PromptError> {
    let failed = |source| PromptError::Read { path: dir.to_owned(), source };
    for entry in std::fs::read_dir(dir).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if !(name.starts_with('.') || name == JUDGE_FILE || TEMPLATE_FILES.contains(&name.as_ref())) {
            let known = format!("{}, {JUDGE_FILE}", TEMPLATE_FILES.join(", "));
            return Err(PromptError::UnknownTemplateFile { path: entry.path(), known });
        }
    }
    Ok(())
}
