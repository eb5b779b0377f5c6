//! The released files: `input/NAME.json`, `question/TASK_questions.json`, `answer/TASK_answers.json`.

use serde_json::{Value, json};

use super::events::id;
use super::fields::taken;
use super::life::FIELDS;
use crate::benchmarks::knowme::task::TASKS;
use crate::build::kind::{Data, file_name};
use crate::build::row::object;
use crate::build::{Published, Row, RowError, Setting};

/// The setting `name` names the data; with `order = "time"` events are sorted by their time, else they stay as they are told.
pub(super) fn data(setting: &Setting<'_>, rows: &[Row]) -> Result<Data, RowError> {
    let (name, order): (String, Option<String>) = (setting.needed("name")?, setting.given("order")?);
    let name = file_name("the setting `name`", &name)?;
    let (questions, mut events): (Vec<&Row>, Vec<&Row>) =
        rows.iter().partition(|row| row.fields.contains_key("question"));
    if order.is_some_and(|order| order == "time") {
        events.sort_by_key(|row| row.text("timestamp").unwrap_or_default());
    }
    let sources = setting
        .spec
        .sources
        .iter()
        .map(|(slot, source)| json!({"slot": slot, "source": source.file, "licence": source.licence}));
    let sources: Vec<Value> = sources.collect();
    let (mut files, mut published, mut lines) = (Vec::new(), Vec::new(), Vec::new());
    for row in &events {
        let names = ["id", "timestamp", "location"].into_iter().chain(FIELDS);
        let shown = names.map(|name| (name.to_owned(), row.get(name).cloned().unwrap_or_default()));
        let line = Value::Object(shown.collect()).to_string();
        let mut details = object(json!({"sources": sources}));
        details.extend(object(row.get("made_of").cloned().unwrap_or_default()));
        let uid = format!("event-{}", row.get("id").map(id).unwrap_or_default());
        published.push(Published::new(uid, row, &line, details.into()));
        lines.push(line);
    }
    files.push((format!("input/{name}.json"), list(&lines)));
    let place = |cited: &Value| events.iter().position(|row| row.get("id").map(id) == Some(id(cited)));
    for task in &TASKS {
        let of_task = |row: &&&Row| row.text("task") == Ok(task.id);
        let (mut asked, mut told) = (Vec::new(), Vec::new());
        for (nth, row) in (1..).zip(questions.iter().filter(of_task)) {
            let with = |names: &[&str]| {
                let mut fields = object(json!({"id": nth}));
                fields.extend(taken(&row.fields, names));
                Value::Object(fields).to_string()
            };
            let question = with(&["question"]);
            let answer = with(&["type", "answer", "evidence", "strategy", "entity_type", "reasoning"]);
            let places: Vec<usize> =
                row.list("evidence").unwrap_or_default().iter().filter_map(place).collect();
            let after = places.iter().max().map_or(0, |last| events.len() - last - 1);
            let details = json!({"sources": sources, "places": places, "events_after": after});
            let (uid, written) = (format!("{}{nth}", task.prefix), format!("{question}\n{answer}"));
            published.push(Published::new(uid, row, written, details));
            asked.push(question);
            told.push(answer);
        }
        if !asked.is_empty() {
            files.push((format!("question/{}_questions.json", task.title), list(&asked)));
            files.push((format!("answer/{}_answers.json", task.title), list(&told)));
        }
    }
    Ok((files, published))
}

/// A JSON list, an element a line.
fn list(lines: &[String]) -> Vec<u8> {
    format!("[\n{}\n]\n", lines.join(",\n")).into_bytes()
}
