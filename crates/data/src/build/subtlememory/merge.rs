//! Non-user sets join the histories of personas.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::build::error::RowError;
use crate::build::kind::Made;
use crate::build::row::Row;
use crate::build::setting::Setting;
use crate::ground::order::entry;

/// A history that sets are dealt to.
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
        let new = || Persona { id: id.to_owned(), profile: profile(), wanted: 0, dealt: BTreeMap::new() };
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
            let mut row = from.clone();
            let case = format!("unrelated-persona_{}-{}", persona.id, from.text("case_id")?);
            row.fields.insert("case_id".to_owned(), case.into());
            row.fields.insert("persona".to_owned(), persona.id.clone().into());
            row.fields.insert("profile".to_owned(), persona.profile.clone());
            dealt.insert(&from.id, row);
        }
    }
    let mut cases = BTreeSet::new();
    let made = |row: &Row| {
        let made = match dealt.remove(row.id.as_str()) {
            Some(made) => made,
            None if row.fields.contains_key("persona") => row.clone(),
            None if apart.contains(row.id.as_str()) => {
                return Ok(Err((row.id.clone(), "no history has room".to_owned())));
            }
            None => return Ok(Err((row.id.clone(), "near a user set".to_owned()))),
        };
        let case = made.text("case_id")?;
        if !cases.insert(case.to_owned()) {
            let what = format!("two sets have the case_id {case:?}; give their seeds ids of their own");
            return Err(RowError::Fault(what));
        }
        let parents = vec![row.id.clone()];
        Ok(Ok(Row { parents, ..made }))
    };
    rows.iter().map(made).collect()
}
