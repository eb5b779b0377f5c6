//! Non-user sets join the histories of personas.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::build::{Made, Row, RowError, Setting};
use crate::ground::order::entry;

/// A history that sets are dealt to.
#[derive(Default)]
struct Persona {
    id: String,
    profile: Value,
    wanted: usize,
    /// Non-user sets dealt, by relation.
    dealt: BTreeMap<String, usize>,
}

/// Deals sets without a `persona` out to personas: as many as the persona's own, each of the relation that it has fewest of, none twice. A set
/// whose facts have a cosine of `below` or more to those of a set of any persona is left out.
pub(super) fn merge(setting: &Setting<'_>, rows: &[Row]) -> Result<Vec<Made>, RowError> {
    let below: f32 = setting.needed("below")?;
    let texts = rows.iter().map(|row| Ok(row.read::<Vec<String>>("facts")?.join(" ")));
    let texts: Vec<String> = texts.collect::<Result<_, RowError>>()?;
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let vectors = (setting.embed)(&texts).map_err(RowError::Fault)?;
    let (own, others): (Vec<_>, Vec<_>) =
        rows.iter().zip(&vectors).partition(|(row, _)| row.fields.contains_key("persona"));
    let mut personas: Vec<Persona> = Vec::new();
    for (row, _) in &own {
        let id = row.text("persona")?;
        let profile = || row.get("profile").cloned().unwrap_or_default();
        let new = || Persona { id: id.to_owned(), profile: profile(), ..Persona::default() };
        entry(&mut personas, |persona| persona.id == id, new).wanted += 1;
    }
    let cosine = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    let is_apart = |vector: &[f32]| own.iter().all(|(_, theirs)| cosine(vector, theirs) < below);
    let mut pool: Vec<&Row> =
        others.iter().filter(|(_, vector)| is_apart(vector)).map(|(row, _)| *row).collect();
    let apart: BTreeSet<&str> = pool.iter().map(|row| row.id.as_str()).collect();
    setting.draws("sets", 0).shuffle(&mut pool);
    let mut dealt: BTreeMap<&str, Row> = BTreeMap::new();
    // In rounds, so that where sets are short every persona goes short.
    for round in 0..personas.iter().map(|persona| persona.wanted).max().unwrap_or(0) {
        for persona in personas.iter_mut().filter(|persona| persona.wanted > round) {
            let has = |row: &Row| row.text("relation").ok().and_then(|relation| persona.dealt.get(relation));
            let Some(at) = (0..pool.len()).min_by_key(|at| has(pool[*at])) else { break };
            let from = pool.remove(at);
            *persona.dealt.entry(from.text("relation")?.to_owned()).or_default() += 1;
            let case = format!("unrelated-persona_{}-{}", persona.id, from.text("case_id")?);
            let of = json!({"case_id": case, "persona": persona.id, "profile": persona.profile});
            dealt.insert(&from.id, from.copy().with(of));
        }
    }
    let mut cases = BTreeSet::new();
    let made = |row: &Row| {
        let is_own = row.fields.contains_key("persona");
        let Some(made) = dealt.remove(row.id.as_str()).or_else(|| is_own.then(|| row.copy())) else {
            let is_apart = apart.contains(row.id.as_str());
            let why = if is_apart { "no history has room" } else { "near a user set" };
            return Ok(Err((row.id.clone(), why.to_owned())));
        };
        let case = made.text("case_id")?;
        if !cases.insert(case.to_owned()) {
            let what = format!("two sets have the case_id {case:?}; give their seeds ids of their own");
            return Err(RowError::Fault(what));
        }
        Ok(Ok(made))
    };
    rows.iter().map(made).collect()
}
