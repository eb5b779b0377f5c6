//! Ratings, as the page saves them and as a spreadsheet does.
//!
//! ```text
//! ratings.json   {"format", "sheet", "ratings": [{"item", "rating", "comment"?}]}
//! sheet.csv      columns `item` and `rating`, and any others
//! ```

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use anyhow::{anyhow, bail, ensure};
use serde::Deserialize;

use super::key::Key;
use palimpsest_data::ground::text_file;

pub const FORMAT: &str = "palimpsest ratings 1";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rating {
    /// 1 if right, 0 if wrong; or the score.
    Given(usize),
    Unsure,
}

impl Rating {
    /// Parses a word or its first letter, in any case, or a score up to `most`. Returns `None` for an empty text.
    fn parse(text: &str, most: Option<u32>) -> anyhow::Result<Option<Rating>> {
        let text = text.trim();
        let score = |most: u32| text.parse::<u32>().ok().filter(|score| *score <= most);
        Ok(Some(match (text.to_lowercase().as_str(), most) {
            ("", _) => return Ok(None),
            ("unsure" | "u", _) => Rating::Unsure,
            ("correct" | "c", None) => Rating::Given(1),
            ("incorrect" | "i", None) => Rating::Given(0),
            (_, None) => bail!("rating `{text}`: give correct, incorrect or unsure, or leave it empty"),
            (_, Some(most)) => match score(most) {
                Some(score) => Rating::Given(score as usize),
                None => {
                    bail!(
                        "rating `{text}`: give a whole number from 0 to {most}, or unsure, or leave it empty"
                    )
                }
            },
        }))
    }

    pub fn given(self) -> Option<usize> {
        match self {
            Rating::Given(rating) => Some(rating),
            Rating::Unsure => None,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ratings {
    pub rater: String,
    of: HashMap<String, Rating>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    format: String,
    sheet: String,
    ratings: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    item: String,
    rating: String,
    #[serde(default, rename = "comment")]
    _comment: String,
}

/// Position, item, rating.
type Placed = (String, String, String);

impl Ratings {
    /// Reads ratings as JSON or CSV, detected from the content.
    pub fn read(path: &Path, key: &Key) -> anyhow::Result<Ratings> {
        let bytes = std::fs::read(path).map_err(super::io(path))?;
        let broken = |reason: anyhow::Error| anyhow!("{}: {reason}", path.display());
        let text = text_file::text(bytes)
            .map_err(|error| broken(anyhow!("{error}; a spreadsheet saves it as CSV UTF-8")))?;
        let is_json = text.trim_start().starts_with('{');
        let entries = if is_json { saved(&text, key) } else { table(&text) }.map_err(broken)?;
        let mut faults: Vec<String> = Vec::new();
        let known: HashSet<&str> = key.items.iter().map(|item| item.item.as_str()).collect();
        let (mut of, mut places) = (HashMap::new(), HashMap::new());
        for (place, item, rating) in entries {
            let item = item.trim().to_owned();
            if !known.contains(item.as_str()) {
                let sheet = &key.sheet;
                faults.push(format!(
                    "{place}: item `{item}` is not in the sheet {sheet}; give the ratings of this sheet"
                ));
            } else if let Some(before) = places.insert(item.clone(), place.clone()) {
                faults.push(format!("{place}: item `{item}` stands at {before} too; keep one of them"));
            } else {
                match Rating::parse(&rating, key.most) {
                    Ok(rating) => of.extend(rating.map(|rating| (item, rating))),
                    Err(error) => faults.push(format!("{place}: {error}")),
                }
            }
        }
        let why = "agreement without some of the ratings would be another number";
        ensure!(faults.is_empty(), text_file::refused(path, &faults, why));
        let rater = PathBuf::from(path.file_name().unwrap_or(path.as_os_str())).display().to_string();
        Ok(Ratings { rater, of })
    }

    pub fn get(&self, item: &str) -> Option<Rating> {
        self.of.get(item).copied()
    }
}

fn saved(text: &str, key: &Key) -> anyhow::Result<Vec<Placed>> {
    let File { format, sheet, ratings } = serde_json::from_str(text)
        .map_err(|error| anyhow!("it does not parse: {error}; save it from the page again"))?;
    ensure!(format == FORMAT, "its format is \"{format}\", and this version reads \"{FORMAT}\"");
    ensure!(
        sheet == key.sheet,
        "it rates the sheet {sheet}, and the key is of {}; give its own folder",
        key.sheet
    );
    let numbered = ratings.into_iter().enumerate();
    Ok(numbered.map(|(at, entry)| (format!("ratings[{at}]"), entry.item, entry.rating)).collect())
}

/// CSV rows; the delimiter is a comma, semicolon or tab, depending on the spreadsheet's locale.
fn table(text: &str) -> anyhow::Result<Vec<Placed>> {
    let unparsed = |error: csv::Error| anyhow!("it does not parse: {error}");
    let head = text.lines().next().unwrap_or_default();
    let separators = [b',', b';', b'\t'];
    let separator = separators.into_iter().max_by_key(|s| head.bytes().filter(|b| b == s).count());
    let mut reader = csv::ReaderBuilder::new()
        .delimiter(separator.unwrap_or(b','))
        .flexible(true)
        .from_reader(text.as_bytes());
    let heads = reader.headers().map_err(unparsed)?.clone();
    let column = |name: &str| {
        let found = heads.iter().position(|head| head.trim().eq_ignore_ascii_case(name));
        found.ok_or_else(|| {
            anyhow!("it has no column `{name}`; give the sheet.csv with its ratings, or what the page saved")
        })
    };
    let (item, rating) = (column("item")?, column("rating")?);
    let mut rows = Vec::new();
    for record in reader.records() {
        let record = record.map_err(unparsed)?;
        // Spreadsheets append empty rows.
        if record.iter().any(|cell| !cell.trim().is_empty()) {
            let line = record.position().map_or(0, csv::Position::line);
            let cell = |at: usize| record.get(at).unwrap_or_default().to_owned();
            rows.push((format!("line {line}"), cell(item), cell(rating)));
        }
    }
    Ok(rows)
}
