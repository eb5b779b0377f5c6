//! Scores of sessions by any method, and their files: JSON lines, one answer by one method each.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

use anyhow::{Context, bail};
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::exact::ExactAnswer;
use super::{CHANCE, EXACT, Run};
use palimpsest_run::runs::causes::rows::Ablation;
use palimpsest_run::runs::condition::{label, stored};
use palimpsest_run::runs::rows::AnswerKey;

/// Faults of a file that are named at once.
const NAMED: usize = 8;

/// Random subsets that scores were fitted to: ablation, seed and number.
pub type Fitted = Option<(Ablation, u64, usize)>;

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Scored {
    pub method: String,
    pub key: AnswerKey,
    /// Forward passes over question and answer that the scores took; `None` if not told.
    pub readings: Option<f64>,
    pub scores: BTreeMap<String, f64>,
    pub fitted: Fitted,
}

impl Scored {
    /// Scores in the order of the answer's sessions, without -0; `None` if one has no finite score.
    pub fn of(&self, answer: &ExactAnswer) -> Option<Vec<f64>> {
        let score =
            |span: &String| self.scores.get(span).map(|score| score + 0.0).filter(|score| score.is_finite());
        answer.sessions.iter().map(|session| score(&session.span)).collect()
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    #[serde(default)]
    run: Option<String>,
    case: String,
    probe: String,
    #[serde(default)]
    condition: String,
    method: String,
    #[serde(default)]
    readings: Option<f64>,
    #[serde(default)]
    fitted: Fitted,
    scores: Pairs,
}

/// A JSON object whose doubled keys are seen.
struct Pairs(Vec<(String, f64)>);

impl<'de> Deserialize<'de> for Pairs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Pairs;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of numbers by span")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Pairs(pairs))
            }
        }
        deserializer.deserialize_map(Object)
    }
}

/// Adds a file's scores to the runs that they are of.
pub(super) fn read(path: &Path, runs: &mut [Run]) -> anyhow::Result<()> {
    let text = palimpsest_data::ground::text_file::read(path).with_context(|| path.display().to_string())?;
    let known: BTreeSet<String> =
        runs.iter().flat_map(|run| &run.scored).map(|scored| scored.method.clone()).collect();
    let mut seen = BTreeSet::new();
    let mut faults = Vec::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let found = scored(line, runs).and_then(|(at, scored)| {
            if known.contains(&scored.method) || [EXACT, CHANCE].contains(&&*scored.method) {
                return Err(format!(
                    "the method `{}` is there already; give these scores another name",
                    scored.method
                ));
            }
            match seen.insert((at, scored.key.clone(), scored.method.clone())) {
                true => Ok((at, scored)),
                false => Err(format!("`{}` has scored this answer before", scored.method)),
            }
        });
        match found {
            Ok((at, scored)) => runs[at].scored.push(scored),
            Err(fault) => faults.push(format!("{} line {}: {fault}", path.display(), number + 1)),
        }
    }
    if faults.is_empty() {
        return Ok(());
    }
    let more = faults.len().saturating_sub(NAMED);
    faults.truncate(NAMED);
    let more = if more > 0 { format!("; and {more} faults more") } else { String::new() };
    bail!("{}{more}", faults.join("; "))
}

fn scored(line: &str, runs: &[Run]) -> Result<(usize, Scored), String> {
    let Line { run, case, probe, condition, method, readings, fitted, scores: Pairs(pairs) } =
        serde_json::from_str(line).map_err(|error| {
            let no_number = line.contains("NaN") || line.contains("Infinity");
            let why =
                if no_number { " (NaN and Infinity are no numbers of JSON, and no scores)" } else { "" };
            format!("{error}{why}")
        })?;
    let key = AnswerKey { case, probe, condition: stored(&condition).to_owned() };
    let has = |run: &Run| run.answers.iter().any(|answer| answer.key == key);
    let mut places = (0..runs.len()).filter(|&at| match &run {
        Some(name) => runs[at].name == *name,
        None => has(&runs[at]),
    });
    let Some(at) = places.next() else {
        return Err(match &run {
            Some(name) => {
                let names: Vec<&str> = runs.iter().map(|run| &*run.name).collect();
                format!("no run is called `{name}`; there are {}", names.join(", "))
            }
            None => unknown(&key, runs),
        });
    };
    if places.next().is_some() {
        return Err("several runs have this answer; name one with \"run\"".to_owned());
    }
    let Some(answer) = runs[at].answers.iter().find(|answer| answer.key == key) else {
        return Err(unknown(&key, &runs[at..=at]));
    };
    let mut scores = BTreeMap::new();
    for (span, score) in pairs {
        if !answer.sessions.iter().any(|session| session.span == span) {
            return Err(format!("`{span}` is no session of {} {}", key.case, key.probe));
        }
        if scores.insert(span.clone(), score).is_some() {
            return Err(format!("`{span}` is scored twice"));
        }
    }
    if readings.is_some_and(|readings| readings < 0.0) {
        return Err("readings are below 0".to_owned());
    }
    Ok((at, Scored { method, key, readings, scores, fitted }))
}

/// Names the first of case, probe and condition that no answer has.
fn unknown(AnswerKey { case, probe, condition }: &AnswerKey, runs: &[Run]) -> String {
    let keys = || runs.iter().flat_map(|run| &run.answers).map(|answer| &answer.key);
    if !keys().any(|key| key.case == *case) {
        return format!("no exact effects of a case `{case}`");
    }
    if !keys().any(|key| key.case == *case && key.probe == *probe) {
        return format!("case `{case}` has no exact effects of a probe `{probe}`");
    }
    format!("{case} {probe} has no exact effects under a condition `{}`", label(condition))
}
