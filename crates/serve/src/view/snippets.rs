//! The view of an answer as a shell command and as Python.

use std::path::Path;

use serde_json::{Value, json};

use palimpsest_data::ground::file_stem::file_stem;
use palimpsest_run::runs::rows::AnswerKey;

pub fn snippets(dir: &Path, AnswerKey { case, probe, condition }: AnswerKey<&str>, attention: bool) -> Value {
    let dir = dir.display().to_string();
    let mut names = vec![format!("--case {}", shell(case)), format!("--probe {}", shell(probe))];
    if !condition.is_empty() {
        names.push(format!("--condition {}", shell(condition)));
    }
    let html = format!("palimpsest view {} {} --html {}.html", shell(&dir), names.join(" "), file_stem(case));
    let mut python = format!("import palimpsest\n\nrun = palimpsest.Run.open({})\n", text(&dir));
    if attention {
        let mut arguments = vec![text(case), text(probe)];
        if !condition.is_empty() {
            arguments.push(format!("condition={}", text(condition)));
        }
        python += &format!("trace = run.trace({})\n", arguments.join(", "));
        python += "trace.plot()              # layers by spans\ntrace.to_frame()          # a line for each layer, head, row and span\n";
    }
    python += &format!(
        "answers = run.answers.to_frame()\nanswers[(answers.case == {}) & (answers.probe == {})]\n",
        text(case),
        text(probe)
    );
    json!({"command": format!("palimpsest view {}", shell(&dir)), "file": html, "python": python})
}

/// Quotes a shell word.
fn shell(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@%+,".contains(c);
    match !text.is_empty() && text.chars().all(plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}

/// Python string literal; JSON escapes are valid Python.
fn text(text: &str) -> String {
    Value::String(text.to_owned()).to_string()
}
