//! Rows become `stale.json`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use jiff::civil::DateTime;
use serde_json::{Value, json};

use super::terms::{by_id, evidence};
use crate::benchmarks::stale::haystack::woven;
use crate::benchmarks::stale::{Pair, write_stale};
use crate::build::pool::PoolSession;
use crate::build::{BuildError, Published, Row, RowError, Setting};
use crate::case::Case;

const FILE: &str = "stale.json";
/// Labels that rows hand on.
const LABELS: [&str; 3] = ["category", "attribute", "time_gap"];

/// Writes STALE's format with `query_time`, and `category`, `attribute` and `time_gap` where rows have them. The uid is the row's field `uid`
/// or else its id; of rows with the same `uid`, both.
pub fn write(setting: &Setting<'_>, rows: &[Row], folder: &Path) -> Result<Vec<Published>, BuildError> {
    let path = folder.join(FILE);
    let fault = |why: String| BuildError::stage(setting.stage, why);
    let io = |error| BuildError::Io { action: "write", path: path.clone(), source: error };
    let known = by_id(setting);
    let mut file = BufWriter::new(File::create(&path).map_err(io)?);
    let (mut published, mut uids) = (Vec::new(), BTreeSet::new());
    file.write_all(b"[\n").map_err(io)?;
    for (nth, row) in rows.iter().enumerate() {
        let mut uid = row.text("uid").unwrap_or(&row.id).to_owned();
        if !uids.insert(uid.clone()) {
            uid = format!("{uid}-{}", row.id);
            uids.insert(uid.clone());
        }
        let (case, details) = case(row, &uid, &known).map_err(|error| match error {
            RowError::Rejected(why) | RowError::Fault(why) => fault(format!("row {}: {why}", row.id)),
        })?;
        let mut text = Vec::new();
        write_stale(&mut text, [&case]).map_err(|error| fault(error.to_string()))?;
        let line = text.trim_ascii();
        let line = line.strip_prefix(b"[").unwrap_or(line);
        let line = line.strip_suffix(b"]").unwrap_or(line).trim_ascii();
        let before: &[u8] = if nth == 0 { b"" } else { b",\n" };
        file.write_all(before).and_then(|()| file.write_all(line)).map_err(io)?;
        published.push(Published::new(uid, row, line, details));
    }
    file.write_all(b"\n]\n").and_then(|()| file.flush()).map_err(io)?;
    Ok(published)
}

type Known<'a> = BTreeMap<&'a str, &'a PoolSession>;

fn case(row: &Row, uid: &str, known: &Known<'_>) -> Result<(Case, Value), RowError> {
    let [old, new] = evidence(row)?;
    let places: [usize; 2] = row.read("layout.places")?;
    let times: Vec<String> = row.read("times")?;
    let time = |text: &str| text.parse::<DateTime>().map_err(RowError::fault);
    let times = times.iter().map(|text| time(text)).collect::<Result<Vec<_>, _>>()?;
    let ids: Vec<String> = row.read("fillers")?;
    let fillers: Vec<&PoolSession> = ids.iter().filter_map(|id| known.get(id.as_str()).copied()).collect();
    let ends = [(places[0], old.as_slice()), (places[1], new.as_slice())];
    let turns = woven(ends, times.len(), fillers.iter().map(|session| session.turns.as_slice()));
    let turns = turns.filter(|turns| turns.len() == fillers.len() + 2 && fillers.len() == ids.len());
    let misfit = "fillers and times do not fit together; give the distractors that the build began with";
    let turns = turns.ok_or_else(|| RowError::fault(misfit))?;
    let queries: BTreeMap<String, String> = row.read("probing_queries")?;
    let question = |field: &str| queries.get(field).cloned().unwrap_or_default();
    let pair = Pair {
        id: uid.to_owned(),
        is_upstream: row.text("type")? == "T2",
        old: row.text("M_old")?.to_owned(),
        new: row.text("M_new")?.to_owned(),
        explanation: row.text("explanation")?.to_owned(),
        sessions: times.into_iter().zip(turns).map(|(time, turns)| (time, turns.to_vec())).collect(),
        places,
        questions: ["dim1_query", "dim2_query", "dim3_query"].map(question),
        query_time: time(row.text("query_time")?)?,
    };
    let mut case = pair.case();
    let labels = LABELS.iter().filter_map(|name| Some(((*name).to_owned(), row.text(name).ok()?.to_owned())));
    case.labels.extend(labels);
    let slots = (0..case.history.segments.len()).filter(|slot| !places.contains(slot)).zip(&fillers);
    let sources =
        slots.map(|(slot, session)| json!({"slot": slot, "source": session.id, "licence": session.licence}));
    let mut details = json!({"sources": sources.collect::<Vec<_>>()});
    if let (Value::Object(details), Some(Value::Object(layout))) = (&mut details, row.get("layout")) {
        details.extend(layout.clone());
    }
    Ok((case, details))
}
