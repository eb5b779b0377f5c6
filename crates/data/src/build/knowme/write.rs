//! The released files: `input/NAME.json`, `question/TASK_questions.json`, `answer/TASK_answers.json`.

use std::path::Path;

use palimpsest_core::digest::sha256;
use palimpsest_core::files::write_atomically;
use serde_json::{Map, Value, json};

use super::events::id;
use super::life::FIELDS;
use crate::benchmarks::knowme::task::TASKS;
use crate::build::error::{BuildError, RowError};
use crate::build::kind::Published;
use crate::build::row::Row;
use crate::build::setting::Setting;

/// The setting `name` names the data; with `order = "time"` events are sorted by their time, else they stay as they are told.
pub(super) fn write(setting: &Setting<'_>, rows: &[Row], dir: &Path) -> Result<Vec<Published>, BuildError> {
    let stage = |error: RowError| {
        let (RowError::Rejected(message) | RowError::Fault(message)) = error;
        BuildError::stage(setting.stage, message)
    };
    let name: String = setting.needed("name").map_err(stage)?;
    let order: Option<String> = setting.given("order").map_err(stage)?;
    let (questions, mut events): (Vec<&Row>, Vec<&Row>) =
        rows.iter().partition(|row| row.fields.contains_key("question"));
    if order.is_some_and(|order| order == "time") {
        events.sort_by_key(|row| row.get("timestamp").and_then(Value::as_str).unwrap_or_default());
    }
    let sources: Vec<Value> = setting
        .spec
        .sources
        .iter()
        .map(|(slot, source)| json!({"slot": slot, "source": source.file, "licence": source.licence}))
        .collect();
    let details = || Map::from_iter([("sources".to_owned(), json!(sources))]);

    let mut published = Vec::with_capacity(rows.len());
    let mut lines = Vec::with_capacity(events.len());
    for row in &events {
        let names = ["id", "timestamp", "location"].into_iter().chain(FIELDS);
        let shown = names.map(|name| (name.to_owned(), row.get(name).cloned().unwrap_or_default()));
        let line = json!(shown.collect::<Map<_, _>>()).to_string();
        let mut details = details();
        details.extend(row.get("made_of").and_then(Value::as_object).cloned().unwrap_or_default());
        let uid = format!("event-{}", row.get("id").map(id).unwrap_or_default());
        published.push(Published { uid, row: row.id.clone(), digest: sha256(&line), details });
        lines.push(line);
    }
    file(&dir.join("input").join(format!("{name}.json")), &lines)?;
    let place = |cited: &Value| events.iter().position(|row| row.get("id").map(id) == Some(id(cited)));
    for task in &TASKS {
        let of_task = |row: &&&Row| row.get("task").and_then(Value::as_str) == Some(task.id);
        let (mut asked, mut told) = (Vec::new(), Vec::new());
        for (nth, row) in (1..).zip(questions.iter().filter(of_task)) {
            let field = |name: &str| Some((name.to_owned(), row.get(name)?.clone()));
            let with = |names: &[&str]| {
                let fields = names.iter().filter_map(|name| field(name));
                json!(std::iter::once(("id".to_owned(), json!(nth))).chain(fields).collect::<Map<_, _>>())
                    .to_string()
            };
            let question = with(&["question"]);
            let answer = with(&["type", "answer", "evidence", "strategy", "entity_type", "reasoning"]);
            let mut details = details();
            let cited = row.get("evidence").and_then(Value::as_array).into_iter().flatten();
            let places: Vec<usize> = cited.filter_map(place).collect();
            let after = places.iter().max().map_or(0, |last| events.len() - last - 1);
            details.extend([("places".to_owned(), json!(places)), ("events_after".to_owned(), json!(after))]);
            let (uid, digest) = (format!("{}{nth}", task.prefix), sha256(format!("{question}\n{answer}")));
            published.push(Published { uid, row: row.id.clone(), digest, details });
            asked.push(question);
            told.push(answer);
        }
        if !asked.is_empty() {
            file(&dir.join("question").join(format!("{}_questions.json", task.title)), &asked)?;
            file(&dir.join("answer").join(format!("{}_answers.json", task.title)), &told)?;
        }
    }
    Ok(published)
}

/// A JSON list, an element a line.
fn file(path: &Path, lines: &[String]) -> Result<(), BuildError> {
    let folder = path.parent().unwrap_or(path);
    std::fs::create_dir_all(folder).map_err(BuildError::io("create", folder))?;
    let text = format!("[\n{}\n]\n", lines.join(",\n"));
    write_atomically(path, text.as_bytes()).map_err(BuildError::io("write", path))
}
