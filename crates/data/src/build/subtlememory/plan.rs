//! Topics of preferences, and the relations that are planned for them.

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::build::{Row, RowError, Rows, Setting};

type Fields = Map<String, Value>;

/// The objects of the list at `field`, one row each, without the fields of their row.
pub(super) fn elements(setting: &Setting<'_>, row: &Row) -> Rows {
    Ok(of_elements(row, row.read(&setting.needed::<String>("field")?)?))
}

fn of_elements(row: &Row, elements: Vec<Fields>) -> Vec<Row> {
    elements.into_iter().enumerate().map(|(nth, fields)| row.part(nth, fields)).collect()
}

/// The rows of `rows` with the `canonical` topic that `topics` has for theirs, its only `source`.
pub(super) fn canonical(_: &Setting<'_>, row: &Row) -> Rows {
    #[derive(Deserialize)]
    struct Merged {
        source: String,
        canonical: String,
    }
    let (mut rows, topics): (Vec<Fields>, Vec<Merged>) = (row.read("rows")?, row.read("topics")?);
    for fields in &mut rows {
        let mut of = topics.iter().filter(|merged| fields.get("topic").is_some_and(|t| *t == merged.source));
        let (Some(one), None) = (of.next(), of.next()) else {
            return Err(RowError::rejected("a topic is not mapped exactly once"));
        };
        fields.insert("topic".to_owned(), one.canonical.clone().into());
    }
    Ok(of_elements(row, rows))
}

/// A relation with its subtypes.
#[derive(Debug, Clone, Deserialize)]
pub struct Relation {
    pub relation: String,
    pub subtypes: Vec<String>,
}

/// Rows that a subtype gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quota {
    pub relation: String,
    pub subtype: String,
    pub rows: usize,
}

/// Shares `n` rows out evenly among relations, then each relation's among its subtypes. Remainders go to those that are named first.
pub fn quotas(n: usize, relations: &[Relation]) -> Vec<Quota> {
    let share = |n: usize, parts: usize, at: usize| n / parts + usize::from(at < n % parts);
    let of_relation = |(at, of): (usize, &Relation)| {
        let all = share(n, relations.len(), at);
        let quota = |(at, subtype): (usize, &String)| Quota {
            relation: of.relation.clone(),
            subtype: subtype.clone(),
            rows: share(all, of.subtypes.len(), at),
        };
        of.subtypes.iter().enumerate().map(quota).collect::<Vec<_>>()
    };
    relations.iter().enumerate().flat_map(of_relation).collect()
}

/// `number` is the row's, from 1.
#[derive(Deserialize)]
struct Proposal {
    number: usize,
    relation: String,
    subtype: String,
}

/// Gives each of a persona's `rows` a relation and a subtype by exact [`quotas`]. Proposals are kept while their quota has room, then their
/// relation alone; the rest is drawn. Rows without proposals are drawn altogether.
pub(super) fn plan(setting: &Setting<'_>, row: &Row) -> Rows {
    let mut rows: Vec<Fields> = row.read("rows")?;
    let proposals: Vec<Proposal> = row.given("proposals")?.unwrap_or_default();
    let mut quotas = quotas(rows.len(), &setting.needed::<Vec<Relation>>("relations")?);
    let mut planned: Vec<Option<(String, String)>> = vec![None; rows.len()];
    for exact in [true, false] {
        for Proposal { number, relation, subtype } in &proposals {
            let Some(place @ None) = planned.get_mut(number.wrapping_sub(1)) else { continue };
            let fits = |of: &&mut Quota| {
                of.rows > 0 && of.relation == *relation && (!exact || of.subtype == *subtype)
            };
            if let Some(quota) = quotas.iter_mut().find(fits) {
                quota.rows -= 1;
                *place = Some((quota.relation.clone(), quota.subtype.clone()));
            }
        }
    }
    let left = quotas.into_iter().flat_map(|of| std::iter::repeat_n((of.relation, of.subtype), of.rows));
    let mut left: Vec<(String, String)> = left.collect();
    setting.draws(&row.id, 0).shuffle(&mut left);
    for (nth, (fields, planned)) in rows.iter_mut().zip(planned).enumerate() {
        let Some((relation, subtype)) = planned.or_else(|| left.pop()) else {
            let what = "`relations` names no relation, or one without subtypes; name both under [settings]";
            return Err(RowError::fault(what));
        };
        let case = format!("related-persona_{}-{:02}", row.text("persona")?, nth + 1);
        for (name, value) in [("relation", relation), ("subtype", subtype), ("case_id", case)] {
            fields.insert(name.to_owned(), value.into());
        }
    }
    Ok(of_elements(row, rows))
}
