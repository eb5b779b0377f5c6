//! Rows become `stale.json`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use jiff::civil::DateTime;
use palimpsest_core::digest::sha256;
use serde_json::{Map, Value, json};

use super::super::error::{BuildError, RowError};
use super::super::kind::Published;
use super::super::pool::PoolSession;
use super::super::row::Row;
use super::super::setting::Setting;
use super::terms::{SIDES, pool};
use crate::benchmarks::stale::haystack::woven;
use crate::benchmarks::stale::{Pair, write_stale};
use crate::case::{Case, Turn};

const FILE: &str = "stale.json";
/// Labels that rows hand on.
const LABELS: [&str; 3] = ["category", "attribute", "time_gap"];

/// Writes STALE's format with `query_time`, and `category`, `attribute` and `time_gap` where rows have them. The uid is the row's field `uid`
/// or else its id; of rows with the same `uid`, both.
pub fn write(setting: &Setting<'_>, rows: &[Row], folder: &Path) -> Result<Vec<Published>, BuildError> {
    let path = folder.join(FILE);
    let fault = |why: String| BuildError::stage(setting.stage, why);
    let io = |error| BuildError::Io { action: "write", path: path.clone(), source: error };
    let known: BTreeMap<&str, &PoolSession> =
        pool(setting).sessions.iter().map(|session| (session.id.as_str(), session)).collect();
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
        file.write_all(if nth == 0 { b"" } else { b",\n" })
            .and_then(|()| file.write_all(line))
            .map_err(io)?;
        published.push(Published { uid, row: row.id.clone(), digest: sha256(line), details });
    }
    file.write_all(b"\n]\n").and_then(|()| file.flush()).map_err(io)?;
    Ok(published)
}

fn case(
    row: &Row,
    uid: &str,
    known: &BTreeMap<&str, &PoolSession>,
) -> Result<(Case, Map<String, Value>), RowError> {
    let [old, new] = SIDES.map(|side| row.read::<Vec<Turn>>(side));
    let (old, new) = (old?, new?);
    let places: [usize; 2] = row.read("layout.places")?;
    let times: Vec<String> = row.read("times")?;
    let time = |text: &str| text.parse::<DateTime>().map_err(|error| RowError::Fault(error.to_string()));
    let times = times.iter().map(|text| time(text)).collect::<Result<Vec<_>, _>>()?;
    let ids: Vec<String> = row.read("fillers")?;
    let fillers: Vec<&PoolSession> = ids.iter().filter_map(|id| known.get(id.as_str()).copied()).collect();
    let ends = [(places[0], old.as_slice()), (places[1], new.as_slice())];
    let turns = woven(ends, times.len(), fillers.iter().map(|session| session.turns.as_slice()));
    let turns = turns
        .filter(|turns| turns.len() == fillers.len() + 2 && fillers.len() == ids.len())
        .ok_or_else(|| {
            RowError::Fault(
                "fillers and times do not fit together; give the distractors that the build began with"
                    .to_owned(),
            )
        })?;
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
    let mut details = Map::from_iter([("sources".to_owned(), sources.collect())]);
    if let Some(Value::Object(layout)) = row.get("layout") {
        details.extend(layout.clone());
    }
    Ok((case, details))
}
