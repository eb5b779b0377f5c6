//! Rows that a stage takes: read from files and tables, then grouped, spread, copied and set.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::Context;
use serde_json::{Map, Value};

use palimpsest_core::digest::sha256;
use palimpsest_data::build::kind::Maker;
use palimpsest_data::build::spec::Source;
use palimpsest_data::build::{BuildError, Row, Spec, Stage, table};
use palimpsest_data::ground::{json, text_file};

/// Rows of tables, sources and stages, by name.
pub type Known = BTreeMap<String, Vec<Row>>;

/// Rows of the spec's tables and sources, and digests of the sources' files. Relative paths are relative to `base`.
pub fn read(spec: &Spec, base: &Path) -> anyhow::Result<(Known, BTreeMap<String, String>)> {
    let mut known: Known =
        spec.tables.iter().map(|(name, table)| (name.clone(), numbered(table.iter().cloned()))).collect();
    let mut digests = BTreeMap::new();
    for (name, Source { file, .. }) in &spec.sources {
        let path = base.join(file);
        let bytes = text_file::bounded(&path)
            .with_context(|| format!("source {name}: cannot read {}", path.display()))?;
        digests.insert(name.clone(), sha256(&bytes));
        let ending = path.extension().map(|ending| ending.to_string_lossy().to_lowercase());
        let rows = rows_of(bytes, ending.as_deref())
            .with_context(|| format!("source {name}: {}", path.display()))?;
        known.insert(name.clone(), numbered(rows.into_iter()));
    }
    Ok((known, digests))
}

/// JSON Lines (.jsonl), a JSON list of objects (.json), or the text as one row.
fn rows_of(bytes: Vec<u8>, ending: Option<&str>) -> anyhow::Result<Vec<Map<String, Value>>> {
    let text = text_file::text(bytes)?;
    match ending {
        Some("jsonl") => {
            let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
            let row = |(nth, line): (usize, &str)| sound(line).with_context(|| format!("line {}", nth + 1));
            lines.map(row).collect()
        }
        Some("json") => sound(&text),
        _ => Ok(vec![Map::from_iter([("text".to_owned(), text.into())])]),
    }
}

fn sound<T: serde::de::DeserializeOwned>(text: &str) -> anyhow::Result<T> {
    let (value, faults) = json::read(text.as_bytes())?;
    match faults.first() {
        Some(json::Fault { field, found, remedy }) => anyhow::bail!("{field}: {found}: {remedy}"),
        None => Ok(value),
    }
}

/// A row's id is its field `id`, else `name`, else its number.
fn numbered(rows: impl Iterator<Item = Map<String, Value>>) -> Vec<Row> {
    let row = |(nth, fields): (usize, Map<String, Value>)| {
        let named = ["id", "name"].iter().find_map(|field| fields.get(*field));
        let named = named.filter(|value| value.is_string() || value.is_number()).map(text_of);
        Row { id: named.unwrap_or_else(|| nth.to_string()), parents: Vec::new(), fields }
    };
    rows.enumerate().map(row).collect()
}

/// A text as it is, any other value as JSON.
pub fn text_of(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// The part of the first stage's rows that is built: a limit, then a shard.
#[derive(Debug, Clone, Copy, Default)]
pub struct Part {
    pub limit: Option<usize>,
    pub shard: Option<(usize, usize)>,
}

/// Refuses a shard of a build in which a maker of all rows would see the shard's alone, in a stage up to `until`. Tables, sources and what
/// is made of them alone are whole in every shard, and a review decides on each row by itself.
pub fn check_shard(spec: &Spec, until: Option<&str>) -> Result<(), BuildError> {
    let of_all =
        |name: &&str| matches!(table::maker(&spec.kind, name), Some(Maker::All(_))) && *name != "review";
    let (mut parted, mut before) = (Vec::new(), None);
    for stage in &spec.stages {
        if parted.is_empty() || stage.rows.iter().any(|name| parted.contains(&name)) {
            if let Some(maker) = stage.make.as_deref().filter(of_all) {
                let end = before.map(|before| format!(", or end before it by --until {before}"));
                let why = format!(
                    "its maker {maker} looks at all rows at once, and a shard has a part of them; leave out --shard{}",
                    end.unwrap_or_default()
                );
                return Err(BuildError::stage(&stage.name, why));
            }
            parted.push(&stage.name);
        }
        if until == Some(&stage.name) {
            break;
        }
        before = Some(&stage.name);
    }
    Ok(())
}

/// Forms the rows of a stage from the rows that it names.
pub fn form(stage: &Stage, known: &Known, part: Part) -> Result<Vec<Row>, BuildError> {
    let named = stage.rows.iter().filter_map(|name| known.get(name)).flatten();
    let chosen = |(nth, _): &(usize, &Row)| part.shard.is_none_or(|(index, count)| nth % count == index);
    let rows = named.take(part.limit.unwrap_or(usize::MAX)).enumerate().filter(chosen);
    let mut rows: Vec<Row> =
        rows.map(|(_, row)| Row { parents: vec![row.id.clone()], ..row.clone() }).collect();
    if !stage.group.is_empty() {
        rows = grouped(stage, &rows)?;
    }
    if let Some(field) = &stage.each {
        let spread = rows.iter().map(|row| spread(stage, row, field));
        rows = spread.collect::<Result<Vec<_>, _>>()?.concat();
    }
    if stage.times > 1 {
        let copy = |row, n: usize| part_of(row, n, [("copy".to_owned(), n.into())]);
        rows = rows.iter().flat_map(|row| (0..stage.times).map(move |n| copy(row, n))).collect();
    }
    let mut ids = BTreeSet::new();
    for row in &mut rows {
        row.fields.extend(stage.set.clone());
        if !ids.insert(row.id.clone()) {
            let id = &row.id;
            let why =
                format!("two rows have the id {id:?}; give the rows ids of their own in the field `id`");
            return Err(BuildError::stage(&stage.name, why));
        }
    }
    Ok(rows)
}

fn part_of(row: &Row, nth: usize, fields: impl IntoIterator<Item = (String, Value)>) -> Row {
    let mut part = Row { id: format!("{}.{nth}", row.id), ..row.clone() };
    part.fields.extend(fields);
    part
}

/// A group's id is its values with slashes between; of groups whose values differ and whose ids would be equal, later ones get `-2` and so
/// on.
fn grouped(stage: &Stage, rows: &[Row]) -> Result<Vec<Row>, BuildError> {
    let names: Vec<&str> = stage.group.iter().map(|path| path.rsplit('.').next().unwrap_or(path)).collect();
    if let Some(twice) = names.iter().enumerate().find(|(nth, name)| names[..*nth].contains(name)) {
        let why =
            format!("group: two fields have the last name `{}`, and a group has one field of it", twice.1);
        return Err(BuildError::stage(&stage.name, why));
    }
    let (mut groups, mut places): (Vec<(Row, Vec<Value>)>, _) = (Vec::new(), BTreeMap::new());
    let mut ids = BTreeSet::new();
    for row in rows {
        let mut values = Map::new();
        for (path, name) in stage.group.iter().zip(&names) {
            let value = row.get(path).ok_or_else(|| lacks(stage, row, path, "a value to group by"))?;
            values.insert((*name).to_owned(), value.clone());
        }
        // The texts "1" and 1 differ as JSON.
        let key = values.values().map(Value::to_string).collect::<Vec<_>>();
        let place = *places.entry(key).or_insert(groups.len());
        if place == groups.len() {
            let plain = values.values().map(text_of).collect::<Vec<_>>().join("/");
            let numbered = (2..).map(|nth| format!("{plain}-{nth}"));
            let mut free = std::iter::once(plain.clone()).chain(numbered);
            let id = free.find(|id| ids.insert(id.clone())).unwrap_or_default();
            groups.push((Row { id, parents: Vec::new(), fields: values }, Vec::new()));
        }
        let (group, rows) = &mut groups[place];
        group.parents.extend(row.parents.iter().cloned());
        let mut fields = row.fields.clone();
        fields.entry("id").or_insert_with(|| row.id.clone().into());
        rows.push(fields.into());
    }
    let whole = |(mut group, rows): (Row, Vec<Value>)| {
        group.fields.insert("rows".to_owned(), rows.into());
        group
    };
    Ok(groups.into_iter().map(whole).collect())
}

fn spread(stage: &Stage, row: &Row, field: &str) -> Result<Vec<Row>, BuildError> {
    let list = row.get(field).and_then(Value::as_array).ok_or_else(|| lacks(stage, row, field, "a list"))?;
    let element = |(nth, element): (usize, &Value)| match element {
        Value::Object(fields) => part_of(row, nth, fields.clone()),
        other => part_of(row, nth, [("item".to_owned(), other.clone())]),
    };
    Ok(list.iter().enumerate().map(element).collect())
}

fn lacks(stage: &Stage, row: &Row, field: &str, what: &str) -> BuildError {
    let id = &row.id;
    let why =
        format!("row {id} has no field `{field}` that is {what}; an earlier stage or the table gives it");
    BuildError::stage(&stage.name, why)
}
