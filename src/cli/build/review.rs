//! `palimpsest build review`: rating sheets of rows, and what raters gave back.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, ensure};
use palimpsest_core::digest::sha256;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::agreement::ratings;
use crate::agreement::sheet::page;
use crate::build::pool::Pool;
use crate::build::rating::{self, Review};
use crate::build::review::{Agreement, Form, agreement};
use crate::build::{BuildError, Row, Setting};
use crate::builds::fault;
use crate::builds::folder::BuildFolder;
use crate::builds::models::LazyTokens;
use crate::builds::rows::text_of;
use crate::cli::{say, wrong};
use crate::ground::folder::write;
use crate::ground::jsonl::write_rows;
use crate::ground::text_file;
use crate::ground::words::counted;

/// Write the sheet on which people review a build's rows, or take back what they rated.
///
/// The spec's stage with `make = "review"` says which fields raters see and may edit, the labels, and the share of rows that a second
/// rater gets too. Without --ratings: DIR/review/sheet.html, and sheet-2.html for the second rater, pages that need no network. With it:
/// labels and edits join DIR/reviews.jsonl, in place of what the same rater said of a row before; the numbers of rows by label, Cohen's
/// kappa of the rows with two raters and the share of rows with edits are printed.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  palimpsest build review built
  palimpsest build review built --ratings anna.json --ratings ben.json
  palimpsest build review built --settle chair.json")]
pub(super) struct ReviewArgs {
    /// The folder of the build.
    dir: PathBuf,
    /// Ratings that a sheet saved; the file's name is the rater's. May be repeated.
    #[arg(long, value_name = "FILE")]
    ratings: Vec<PathBuf>,
    /// Ratings that decide where raters disagree.
    #[arg(long, value_name = "FILE")]
    settle: Vec<PathBuf>,
}

pub(super) fn run(args: &ReviewArgs) -> anyhow::Result<()> {
    let folder = BuildFolder::read(&args.dir)?;
    let mut stages = folder.spec().stages.iter();
    let Some(stage) = stages.find(|stage| stage.make.as_deref() == Some("review")) else {
        let dir = args.dir.display();
        return wrong(format!(
            "the spec of {dir} has no stage with make = \"review\"; add one and build into another folder"
        ));
    };
    let rows = folder.rows_of(stage)?;
    ensure!(!rows.is_empty(), "stage {} takes no row; there is nothing to review", stage.name);
    let tokens = LazyTokens::new("");
    let setting = Setting {
        spec: folder.spec(),
        stage: &stage.name,
        with: stage.with.clone(),
        pool: &Pool::default(),
        count: &tokens,
        embed: &|_| Ok(Vec::new()),
        reviews: &[],
    };
    let form = Form::of(&setting).map_err(|error| fault(stage, error))?;
    let mut reviews = folder.reviews()?;
    if args.ratings.is_empty() && args.settle.is_empty() {
        write_sheets(&folder.dir, &form, &setting, &rows)?;
    } else {
        let mut raters = BTreeSet::new();
        for path in args.ratings.iter().chain(&args.settle) {
            let (rater, place) = (rater_of(path), path.display());
            let why = "its name without ending is the rater's, and another file of the command has the same; rename one";
            ensure!(raters.insert(rater), "{place}: {why}");
        }
        let files = args.ratings.iter().map(|path| (path, false));
        for (path, settles) in files.chain(args.settle.iter().map(|path| (path, true))) {
            let given = read(path, settles, &form, &rows).with_context(|| path.display().to_string())?;
            let key = |review: &Review| (review.row.clone(), review.rater.clone(), review.settles);
            reviews.retain(|old| !given.iter().any(|new| key(new) == key(old)));
            reviews.extend(given);
        }
        write_rows(&args.dir, rating::FILE, &reviews)?;
        say(format_args!("wrote {}", args.dir.join(rating::FILE).display()))?;
    }
    tell(&agreement(&form, &rows, &reviews))?;
    if !reviews.is_empty() {
        let (kind, out, stage) = (&folder.spec().kind, args.dir.display(), &stage.name);
        say(format_args!(
            "next: palimpsest build {kind} SPEC --out {out} --from {stage} applies the reviews"
        ))?;
    }
    Ok(())
}

fn write_sheets(dir: &Path, form: &Form, setting: &Setting<'_>, rows: &[Row]) -> anyhow::Result<()> {
    let all: Vec<&Row> = rows.iter().collect();
    for (name, rows) in [("sheet.html", all), ("sheet-2.html", form.shared(setting, rows))] {
        if rows.is_empty() {
            continue;
        }
        let (name, page) = (format!("review/{name}"), html(form, setting, &rows)?);
        let path = dir.join(&name);
        write(dir, &name, page.as_bytes()).map_err(BuildError::io("write", &path))?;
        say(format_args!("wrote {}: {}", path.display(), counted(rows.len(), "row")))?;
    }
    say("raters open a sheet in a browser, save their ratings under their name, and give back the file")
}

fn html(form: &Form, setting: &Setting<'_>, rows: &[&Row]) -> anyhow::Result<String> {
    let kind_of = |word: &str| match form.drop.iter().any(|drop| drop == word) {
        true => "bad",
        false if form.keep.first().is_some_and(|first| first == word) => "good",
        false => "open",
    };
    let labels: Vec<Value> =
        form.labels().into_iter().map(|word| json!({"word": word, "kind": kind_of(word)})).collect();
    let text = |row: &Row, path: &str| -> anyhow::Result<String> {
        let lacks = || format!("stage {}: row {} has no field {path}", setting.stage, row.id);
        row.get(path).map(text_of).with_context(lacks)
    };
    let item = |row: &&Row| -> anyhow::Result<Value> {
        let notes = form.show.iter().map(|path| Ok((path, text(row, path)?)));
        let fields = form.edit.iter().map(|path| Ok(json!({"field": path, "text": text(row, path)?})));
        Ok(json!({
            "item": row.id,
            "of": form.digest(row),
            "notes": notes.collect::<anyhow::Result<Vec<_>>>()?,
            "fields": fields.collect::<anyhow::Result<Vec<_>>>()?,
            "rubric": form.instructions,
        }))
    };
    let items: Vec<Value> = rows.iter().map(item).collect::<anyhow::Result<_>>()?;
    // The sheet's name is a digest of its rows and what is decided of them.
    let texts: Vec<_> = rows.iter().map(|row| (&row.id, form.digest(row))).collect();
    let digest = sha256(json!(texts).to_string().as_bytes());
    let title =
        format!("{}, stage {}: {} to review", setting.spec.kind, setting.stage, counted(rows.len(), "row"));
    Ok(page(&json!({
        "sheet": &digest[..12], "title": title, "most": null, "labels": labels, "items": items
    })))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    format: String,
    #[serde(rename = "sheet")]
    _sheet: String,
    ratings: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    item: String,
    /// Digest of the texts that the rater saw.
    #[serde(default)]
    of: String,
    rating: String,
    #[serde(default)]
    comment: String,
    #[serde(default)]
    edits: BTreeMap<String, String>,
}

fn rater_of(path: &Path) -> String {
    path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

/// Reviews of a file that a sheet saved. Every fault is named.
fn read(path: &Path, settles: bool, form: &Form, rows: &[Row]) -> anyhow::Result<Vec<Review>> {
    let text = text_file::read(path)?;
    let File { format, ratings, .. } = serde_json::from_str(&text)
        .map_err(|error| anyhow!("it does not parse: {error}; save it from the sheet again"))?;
    let known = ratings::FORMAT;
    ensure!(format == known, "its format is {format:?}, and this version reads {known:?}");
    let rater = rater_of(path);
    let (labels, mut faults, mut reviews) = (form.labels(), Vec::new(), Vec::new());
    let mut left: BTreeSet<&str> = rows.iter().map(|row| row.id.as_str()).collect();
    for (nth, Entry { item, of, rating, comment, edits }) in ratings.into_iter().enumerate() {
        let fault = match edits.keys().find(|field| !form.edit.contains(field)) {
            _ if !left.remove(item.as_str()) => {
                Some("no row of the sheet has this id, or it stands there twice".to_owned())
            }
            Some(field) => Some(format!("the field `{field}` may not be edited")),
            None if of.is_empty() => Some(
                "it has no digest of the text that was rated (`of`); write the sheet again with `palimpsest build review DIR`, and \
                 rate on it"
                    .to_owned(),
            ),
            None if rating.is_empty() => (!edits.is_empty()).then(|| "it has edits and no label".to_owned()),
            None if labels.contains(&rating.as_str()) => None,
            None => Some(format!("`{rating}` is no label; the labels are {}", labels.join(", "))),
        };
        faults.extend(fault.map(|fault| format!("ratings[{nth}], row {item}: {fault}")));
        if !rating.is_empty() {
            let rater = rater.clone();
            reviews.push(Review { row: item, of, rater, label: rating, edits, comment, settles });
        }
    }
    let why = "a part of the ratings would be another review";
    ensure!(faults.is_empty(), text_file::refused(path, &faults, why));
    Ok(reviews)
}

fn tell(found: &Agreement) -> anyhow::Result<()> {
    let Agreement { rows, reviewed, old, edited, labels, twice, same, kappa } = found;
    let share = |part: usize, of: usize| if of == 0 { 0.0 } else { 100.0 * part as f64 / of as f64 };
    say(format_args!("reviewed {reviewed} of {}", counted(*rows, "row")))?;
    if *old > 0 {
        let old = counted(*old, "review");
        say(format_args!("not applied: {old} of other texts than the rows have now; rate these rows again"))?;
    }
    if *reviewed == 0 {
        return Ok(());
    }
    let labels: Vec<String> = labels.iter().map(|(label, rows)| format!("{label} {rows}")).collect();
    say(format_args!("labels: {}", labels.join(", ")))?;
    say(format_args!("edited: {edited} of {reviewed}, {:.1}%", share(*edited, *reviewed)))?;
    let kappa = kappa.map_or("not defined".to_owned(), |kappa| format!("{kappa:.3}"));
    let share = share(*same, *twice);
    say(format_args!("two raters: {twice}, the same label {same} ({share:.1}%), kappa {kappa}"))
}
