//! Reviews of rows by people: labels, edits of texts, agreement of raters.

use palimpsest_core::digest::sha256;
use serde::Deserialize;
use serde_json::{Value, json};

use super::rating::Review;
use super::{Made, Row, RowError, Setting};
use crate::ground::order::unique;
use crate::statistics::kappa::{Weights, confusion, kappa};

/// Parameters of the maker `review`, among those of the spec.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Form {
    /// Fields that raters see, by path.
    #[serde(default)]
    pub show: Vec<String>,
    /// Fields that raters see and may edit: texts.
    pub edit: Vec<String>,
    /// Labels of rows that stay.
    pub keep: Vec<String>,
    /// Labels of rows that are dropped.
    #[serde(default)]
    pub drop: Vec<String>,
    pub flip: Option<Flip>,
    /// Instructions, which raters read first.
    #[serde(default)]
    pub instructions: String,
    /// Share of rows that a second rater gets too.
    #[serde(default)]
    pub share: f64,
    /// The build waits until every row has a review.
    #[serde(default)]
    pub required: bool,
}

/// A label that exchanges the two values of a field: a conflict of the other type.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Flip {
    pub label: String,
    pub field: String,
    pub values: [String; 2],
}

impl Form {
    /// Of a stage whose maker is `review`.
    pub fn of(setting: &Setting<'_>) -> Result<Self, RowError> {
        Form::deserialize(&Value::Object(setting.with.clone())).map_err(|error| {
            RowError::Fault(format!("{error}; write the fields of a review into the stage's `with`"))
        })
    }

    pub fn labels(&self) -> Vec<&str> {
        let flip = self.flip.iter().map(|flip| &flip.label);
        unique(self.keep.iter().chain(flip).chain(&self.drop).map(String::as_str))
    }

    /// 16 digits of a digest of what a review decides on: the texts to edit, and the field that a label flips.
    pub fn digest(&self, row: &Row) -> String {
        let flip = self.flip.iter().map(|flip| &flip.field);
        let values: Vec<_> = self.edit.iter().chain(flip).map(|path| (path, row.get(path))).collect();
        sha256(json!(values).to_string()).chars().take(16).collect()
    }

    /// Reviews of a row's present texts by name of rater, whatever the order in which they came; and how many are of other texts.
    fn reviews_of<'r>(&self, row: &Row, reviews: &'r [Review]) -> (Vec<&'r Review>, usize) {
        let (digest, of_row) = (self.digest(row), reviews.iter().filter(|review| review.row == row.id));
        let (mut present, old): (Vec<_>, Vec<_>) = of_row.partition(|review| review.of == digest);
        present.sort_by_key(|review| &review.rater);
        (present, old.len())
    }

    /// Rows that a second rater gets: a seeded share.
    pub fn shared<'r>(&self, setting: &Setting<'_>, rows: &'r [Row]) -> Vec<&'r Row> {
        let is_drawn = |row: &&Row| {
            (setting.draws(&row.id, 0).below(1_000_000) as f64) < self.share.clamp(0.0, 1.0) * 1e6
        };
        rows.iter().filter(is_drawn).collect()
    }
}

/// Drops, edits and keeps rows by their reviews. Rows without a review stay, unless reviews are `required`. Raters whose labels differ
/// decide nothing until a review settles it. Adds the field `review`: label, raters, edits with the texts before and after. A review of
/// other texts than the row's counts as none; the field `old_reviews` is their number.
pub(super) fn review(setting: &Setting<'_>, rows: &[Row]) -> Result<Vec<Made>, RowError> {
    let form = Form::of(setting)?;
    let all: Vec<_> = rows.iter().map(|row| form.reviews_of(row, setting.reviews)).collect();
    let waiting = all.iter().filter(|(reviews, _)| reviews.is_empty()).count();
    if form.required && waiting > 0 {
        return Err(RowError::Fault(format!(
            "{waiting} of {} rows wait for a review; write the sheet with `palimpsest build review DIR`, and give it back with \
             `palimpsest build review DIR --ratings FILE`",
            rows.len()
        )));
    }
    rows.iter().zip(all).map(|(row, (reviews, old))| reviewed(&form, row, &reviews, old)).collect()
}

fn reviewed(form: &Form, row: &Row, reviews: &[&Review], old: usize) -> Result<Made, RowError> {
    let mut row = row.copy();
    if old > 0 {
        row.fields.insert("old_reviews".to_owned(), old.into());
    }
    // Those that settle decide alone.
    let settling: Vec<&Review> = reviews.iter().copied().filter(|review| review.settles).collect();
    let deciding = if settling.is_empty() { reviews } else { settling.as_slice() };
    let Some(decision) = deciding.first() else { return Ok(Ok(row)) };
    if deciding.iter().any(|review| review.label != decision.label) {
        return Ok(Err((row.id, "raters disagree".to_owned())));
    }
    if form.drop.contains(&decision.label) {
        return Ok(Err((row.id, format!("review: {}", decision.label))));
    }
    let mut edits = Vec::new();
    for (field, after) in &decision.edits {
        let before = row.text(field)?.to_owned();
        if *after != before {
            row.set_text(field, after)?;
            edits.push(json!({"field": field, "before": before, "after": after, "rater": decision.rater}));
        }
    }
    if let Some(flip) = form.flip.as_ref().filter(|flip| flip.label == decision.label) {
        let [one, other] = &flip.values;
        let now = if row.text(&flip.field)? == one { other } else { one };
        row.set_text(&flip.field, now)?;
    }
    let raters = unique(reviews.iter().map(|review| review.rater.as_str()));
    let told = json!({"label": decision.label, "raters": raters, "edits": edits});
    row.fields.insert("review".to_owned(), told);
    Ok(Ok(row))
}

/// Agreement of raters, and the share of rows that they edit.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Agreement {
    pub rows: usize,
    /// Rows with a review of their present texts.
    pub reviewed: usize,
    /// Reviews of other texts, which count nowhere else.
    pub old: usize,
    pub edited: usize,
    /// Rows by label of their first rater by name, in the form's order.
    pub labels: Vec<(String, usize)>,
    /// Rows with reviews of two raters, of which these have the same label.
    pub twice: usize,
    pub same: usize,
    /// Cohen's kappa over the rows that two raters labelled.
    pub kappa: Option<f64>,
}

pub fn agreement(form: &Form, rows: &[Row], reviews: &[Review]) -> Agreement {
    let names = form.labels();
    let place = |review: &Review| names.iter().position(|name| *name == review.label);
    let mut found = Agreement { rows: rows.len(), ..Agreement::default() };
    let (mut counts, mut pairs) = (vec![0; names.len()], Vec::new());
    for row in rows {
        let (mut given, old) = form.reviews_of(row, reviews);
        found.old += old;
        given.retain(|review| !review.settles);
        let Some(first) = given.first() else { continue };
        found.reviewed += 1;
        let is_edit = |review: &&Review| review.edits.iter().any(|(at, text)| row.text(at) != Ok(text));
        found.edited += usize::from(given.iter().any(is_edit));
        if let Some(count) = place(first).and_then(|at| counts.get_mut(at)) {
            *count += 1;
        }
        let second = given.iter().find(|review| review.rater != first.rater);
        pairs.extend(second.and_then(|second| Some((place(first)?, place(second)?))));
    }
    found.twice = pairs.len();
    found.same = pairs.iter().filter(|(one, other)| one == other).count();
    found.kappa = kappa(&confusion(pairs, names.len()), Weights::Plain);
    found.labels = names.into_iter().map(str::to_owned).zip(counts).collect();
    found
}
