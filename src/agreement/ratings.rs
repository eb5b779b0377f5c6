//! Ratings, as the page saves them and as a spreadsheet does.
//!
//! ```text
//! ratings.json   {"format", "sheet", "ratings": [{"item", "rating", "comment"?}]}
//! sheet.csv      columns `item` and `rating`, and any others
//! ```

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::AgreementError;
use super::key::Key;
use crate::ground::text_file;

/// The format of the page's JSON.
pub const FORMAT: &str = "palimpsest ratings 1";

/// Rating of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rating {
    /// 1 where it is right and 0 where it is wrong, or its score.
    Given(usize),
    /// The rater could not say.
    Unsure,
}

#[derive(Debug, thiserror::Error)]
enum NoRating {
    #[error("rating `{0}`: give correct, incorrect or unsure, or leave it empty")]
    Word(String),
    #[error("rating `{text}`: give a whole number from 0 to {most}, or unsure, or leave it empty")]
    Score { text: String, most: u32 },
}

#[derive(Debug, thiserror::Error)]
enum NoTable {
    #[error("it does not parse: {0}")]
    Csv(#[from] csv::Error),
    #[error("it has no column `{0}`; give the sheet.csv with its ratings, or what the page saved")]
    Column(&'static str),
}

impl Rating {
    /// Reads a word or its first letter, in any case, or a score up to `most` where there is one; `None` of an empty text.
    fn parse(text: &str, most: Option<u32>) -> Result<Option<Rating>, NoRating> {
        let text = text.trim();
        let score = |most: u32| text.parse::<u32>().ok().filter(|score| *score <= most);
        match (text.to_lowercase().as_str(), most) {
            ("", _) => Ok(None),
            ("unsure" | "u", _) => Ok(Some(Rating::Unsure)),
            ("correct" | "c", None) => Ok(Some(Rating::Given(1))),
            ("incorrect" | "i", None) => Ok(Some(Rating::Given(0))),
            (_, None) => Err(NoRating::Word(text.to_owned())),
            (_, Some(most)) => match score(most) {
                Some(score) => Ok(Some(Rating::Given(score as usize))),
                None => Err(NoRating::Score { text: text.to_owned(), most }),
            },
        }
    }

    /// Its category; absent for unsure.
    pub fn given(self) -> Option<usize> {
        match self {
            Rating::Given(rating) => Some(rating),
            Rating::Unsure => None,
        }
    }
}

/// The ratings of one rater.
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

impl Ratings {
    /// Reads a file of ratings of the sheet of `key`, JSON or CSV by its content.
    pub fn read(path: &Path, key: &Key) -> Result<Ratings, AgreementError> {
        let bytes = std::fs::read(path).map_err(AgreementError::io(path))?;
        let broken = |reason: String| AgreementError::Broken { path: path.to_owned(), reason };
        let text = text_file::text(bytes)
            .map_err(|error| broken(format!("{error}; a spreadsheet saves it as CSV UTF-8")))?;
        let text = text.as_str();
        let entries = if text.trim_start().starts_with('{') {
            let file: File = serde_json::from_str(text)
                .map_err(|e| broken(format!("it does not parse: {e}; save it from the page again")))?;
            if file.format != FORMAT {
                return Err(broken(format!(
                    "its format is \"{}\", and this version reads \"{FORMAT}\"",
                    file.format
                )));
            }
            if file.sheet != key.sheet {
                let (of, key) = (file.sheet, &key.sheet);
                return Err(broken(format!(
                    "it rates the sheet {of}, and the key is of {key}; give its own folder"
                )));
            }
            let numbered = file.ratings.into_iter().enumerate();
            numbered.map(|(at, e)| (format!("ratings[{at}]"), e.item, e.rating)).collect()
        } else {
            table(text).map_err(|error| broken(error.to_string()))?
        };
        let wrong = |place: &str, reason: String| {
            let place = place.to_owned();
            AgreementError::Rating { path: path.to_owned(), place, reason }
        };
        let known: HashSet<&str> = key.items.iter().map(|item| item.item.as_str()).collect();
        let (mut of, mut places) = (HashMap::new(), HashMap::new());
        for (place, item, rating) in entries {
            let item = item.trim().to_owned();
            if !known.contains(item.as_str()) {
                let sheet = &key.sheet;
                let reason =
                    format!("item `{item}` is not in the sheet {sheet}; give the ratings of this sheet");
                return Err(wrong(&place, reason));
            }
            if let Some(before) = places.insert(item.clone(), place.clone()) {
                return Err(wrong(&place, format!("item `{item}` stands at {before} too; keep one of them")));
            }
            if let Some(rating) =
                Rating::parse(&rating, key.most).map_err(|error| wrong(&place, error.to_string()))?
            {
                of.insert(item, rating);
            }
        }
        Ok(Ratings { rater: rater(path), of })
    }

    /// The rating of an item, where it has one.
    pub fn get(&self, item: &str) -> Option<Rating> {
        self.of.get(item).copied()
    }
}

fn rater(path: &Path) -> String {
    PathBuf::from(path.file_name().unwrap_or(path.as_os_str())).display().to_string()
}

/// The rows of a table: place, item, rating. Spreadsheets save with commas, semicolons or tabs, as the country has it.
fn table(text: &str) -> Result<Vec<(String, String, String)>, NoTable> {
    let head = text.lines().next().unwrap_or_default();
    let separators = [b',', b';', b'\t'];
    let separator = separators.into_iter().max_by_key(|s| head.bytes().filter(|b| b == s).count());
    let mut reader = csv::ReaderBuilder::new()
        .delimiter(separator.unwrap_or(b','))
        .flexible(true)
        .from_reader(text.as_bytes());
    let heads = reader.headers()?.clone();
    let column = |name| {
        let found = heads.iter().position(|head| head.trim().eq_ignore_ascii_case(name));
        found.ok_or(NoTable::Column(name))
    };
    let (item, rating) = (column("item")?, column("rating")?);
    let mut rows = Vec::new();
    for record in reader.records() {
        let record = record?;
        let line = record.position().map_or(0, csv::Position::line);
        // Spreadsheets append empty rows.
        if record.iter().all(|cell| cell.trim().is_empty()) {
            continue;
        }
        let cell = |at: usize| record.get(at).unwrap_or_default().to_owned();
        rows.push((format!("line {line}"), cell(item), cell(rating)));
    }
    Ok(rows)
}
