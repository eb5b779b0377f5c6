mod agree;
mod broken;
mod checks;
mod counts;
mod measures;
mod prompts;
mod published;
mod reader;
mod retrieval;

use palimpsest::benchmarks::SampleSpec;
use palimpsest::benchmarks::dataset::cases_in_memory;
use palimpsest::benchmarks::knowme::KNOWME;
use palimpsest::benchmarks::reading::ReadError;
use palimpsest::case::{Case, Evidence, Probe};
use serde_json::{Value, json};

/// Files of a folder.
type Folder = Vec<(String, Vec<u8>)>;

fn sample() -> Folder {
    (KNOWME.sample)(SampleSpec::default()).unwrap()
}

fn read(folder: Folder) -> Vec<Result<Case, ReadError>> {
    cases_in_memory(&KNOWME, folder)
}

/// The single case of a valid folder.
fn case(folder: Folder) -> Case {
    let mut cases: Vec<Case> = read(folder).into_iter().collect::<Result<_, _>>().unwrap();
    assert_eq!(cases.len(), 1);
    cases.remove(0)
}

fn probe<'a>(case: &'a Case, id: &str) -> &'a Probe {
    case.probes.iter().find(|probe| probe.id == id).unwrap_or_else(|| panic!("no {id}"))
}

/// Segments of a probe's whole-segment evidence with this role.
fn segments(probe: &Probe, role: &str) -> Vec<usize> {
    let of_role = |e: &&Evidence| e.role == role && e.place.is_segment();
    probe.evidence.iter().filter(of_role).map(|e| e.place.segment).collect()
}

/// A small data set: six events and, by task, questions with answers (`{"id", "question", "answer", ...}`).
fn small(name: &str, tasks: &[(&str, Value)]) -> Folder {
    let event = |id: u64, time: &str, action: Value, thought: Value| {
        json!({
            "id": id, "timestamp": time, "location": null, "action": action, "dialogue": null, "environment": "",
            "background": "It had been so.", "inner_thought": thought,
        })
    };
    let events = json!([
        event(0, "1990-01-01 08:00:00", json!("I rose."), Value::Null),
        event(2, "1990-01-01 08:00:10", json!("I washed."), json!("I thought of water.")),
        event(4, "", Value::Null, json!("I only thought.")),
        event(5, "1989-01-01 08:00:00", json!("I was a child."), Value::Null),
        event(7, "1990-01-02 09:00:00", json!("I left."), json!("I was light.")),
        event(9, "1990-01-01 23:00:00", json!("I came back."), Value::Null),
    ]);
    let mut files = vec![(format!("{name}/input/{name}.json"), text(&events))];
    for (task, rows) in tasks {
        let rows = rows.as_array().unwrap();
        let part = |keep: &dyn Fn(&str) -> bool| -> Value {
            let of = |row: &Value| -> Value {
                let fields = row.as_object().unwrap().iter().filter(|(key, _)| *key == "id" || keep(key));
                fields
                    .map(|(key, value)| (key.clone(), value.clone()))
                    .collect::<serde_json::Map<_, _>>()
                    .into()
            };
            rows.iter().map(of).collect()
        };
        let (questions, answers) = (part(&|key| key == "question"), part(&|key| key != "question"));
        files.push((format!("{name}/question/{task}_questions.json"), text(&questions)));
        files.push((format!("{name}/answer/{task}_answers.json"), text(&answers)));
    }
    files.sort();
    files
}

fn text(value: &Value) -> Vec<u8> {
    serde_json::to_vec_pretty(value).unwrap()
}

/// Edits a file of a folder.
fn edited(mut folder: Folder, name: &str, change: impl FnOnce(&mut Value)) -> Folder {
    let file = folder.iter_mut().find(|(other, _)| other.ends_with(name)).unwrap();
    let mut value: Value = serde_json::from_slice(&file.1).unwrap();
    change(&mut value);
    file.1 = text(&value);
    folder
}
