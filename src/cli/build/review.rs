//! `palimpsest build review`: rating sheets of rows, and what raters gave back.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail, ensure};
use palimpsest_core::digest::sha256;
use palimpsest_core::files::write_atomically;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::agreement::ratings;
use crate::agreement::sheet::page;
use crate::build::pool::Pool;
use crate::build::rating::{self, Review};
use crate::build::review::{Agreement, Form, agreement};
use crate::build::{Row, RowError, Setting, Stage};
use crate::builds::folder::BuildFolder;
use crate::builds::models::LazyTokens;
use crate::cli::{say, wrong};
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
    let Some(stage) = folder.spec().stages.iter().find(|stage| stage.make.as_deref() == Some("review"))
    else {
        return wrong(format!(
            "the spec of {} has no stage with make = \"review\"; add one and build into another folder",
            args.dir.display()
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
    let form = Form::of(&setting).map_err(|error| broken(stage, error))?;
    let mut reviews = folder.reviews()?;
    if args.ratings.is_empty() && args.settle.is_empty() {
        write_sheets(&folder, stage, &form, &setting, &rows)?;
    } else {
        let files = args.ratings.iter().map(|path| (path, false));
        for (path, settles) in files.chain(args.settle.iter().map(|path| (path, true))) {
            let given = read(path, settles, &form, &rows).with_context(|| path.display().to_string())?;
            let is_again = |old: &Review| {
                given
                    .iter()
                    .any(|new| new.row == old.row && new.rater == old.rater && new.settles == old.settles)
            };
            reviews.retain(|old| !is_again(old));
            reviews.extend(given);
        }
        write_rows(&args.dir, rating::FILE, &reviews)?;
        say(format_args!("wrote {}", args.dir.join(rating::FILE).display()))?;
    }
    tell(&agreement(&form, &rows, &reviews))?;
    if !reviews.is_empty() {
        let kind = &folder.spec().kind;
        say(format_args!(
            "next: palimpsest build {kind} SPEC --out {} --from {} applies the reviews",
            args.dir.display(),
            stage.name
        ))?;
    }
    Ok(())
}

fn broken(stage: &Stage, error: RowError) -> anyhow::Error {
    let (RowError::Fault(message) | RowError::Rejected(message)) = error;
    anyhow!("stage {}: {message}", stage.name)
}

fn write_sheets(
    folder: &BuildFolder,
    stage: &Stage,
    form: &Form,
    setting: &Setting<'_>,
    rows: &[Row],
) -> anyhow::Result<()> {
    let dir = folder.dir.join("review");
    std::fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let all: Vec<&Row> = rows.iter().collect();
    for (name, rows) in [("sheet.html", all), ("sheet-2.html", form.shared(setting, rows))] {
        if rows.is_empty() {
            continue;
        }
        let path = dir.join(name);
        write_atomically(&path, html(folder, stage, form, &rows)?.as_bytes())?;
        say(format_args!("wrote {}: {}", path.display(), counted(rows.len(), "row")))?;
    }
    say("raters open a sheet in a browser, save their ratings under their name, and give back the file")
}

fn html(folder: &BuildFolder, stage: &Stage, form: &Form, rows: &[&Row]) -> anyhow::Result<String> {
    let kind_of = |word: &str| match form.drop.iter().any(|drop| drop == word) {
        true => "bad",
        false if form.keep.first().is_some_and(|first| first == word) => "good",
        false => "open",
    };
    let labels: Vec<Value> =
        form.labels().into_iter().map(|word| json!({"word": word, "kind": kind_of(word)})).collect();
    let text = |row: &Row, path: &str| -> anyhow::Result<String> {
        let value = row
            .get(path)
            .with_context(|| format!("stage {}: row {} has no field {path}", stage.name, row.id))?;
        Ok(value.as_str().map_or_else(|| value.to_string(), str::to_owned))
    };
    let item = |row: &&Row| -> anyhow::Result<Value> {
        let notes = form.show.iter().map(|path| Ok((path, text(row, path)?)));
        let fields = form.edit.iter().map(|path| Ok(json!({"field": path, "text": text(row, path)?})));
        Ok(json!({
            "item": row.id,
            "notes": notes.collect::<anyhow::Result<Vec<_>>>()?,
            "fields": fields.collect::<anyhow::Result<Vec<_>>>()?,
            "rubric": form.instructions,
        }))
    };
    let items: Vec<Value> = rows.iter().map(item).collect::<anyhow::Result<_>>()?;
    let sheet = name(form, rows);
    let title = format!("{} of {}: {}", stage.name, folder.spec().kind, counted(rows.len(), "row"));
    Ok(page(&json!({"sheet": sheet, "title": title, "most": null, "labels": labels, "items": items})))
}

/// The sheet's name: a digest of its rows and fields.
fn name(form: &Form, rows: &[&Row]) -> String {
    let texts: Vec<Vec<Option<&Value>>> =
        rows.iter().map(|row| form.edit.iter().map(|path| row.get(path)).collect()).collect();
    let ids: Vec<&str> = rows.iter().map(|row| row.id.as_str()).collect();
    sha256(json!([ids, texts]).to_string().as_bytes())[..12].to_owned()
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
    rating: String,
    #[serde(default)]
    comment: String,
    #[serde(default)]
    edits: BTreeMap<String, String>,
}

/// Reviews of a file that a sheet saved. Every fault is named.
fn read(path: &Path, settles: bool, form: &Form, rows: &[Row]) -> anyhow::Result<Vec<Review>> {
    let text = text_file::read(path)?;
    let File { format, ratings, .. } = serde_json::from_str(&text)
        .map_err(|error| anyhow!("it does not parse: {error}; save it from the sheet again"))?;
    ensure!(
        format == ratings::FORMAT,
        "its format is {format:?}, and this version reads {:?}",
        ratings::FORMAT
    );
    let rater = path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    let (labels, mut faults) = (form.labels(), Vec::new());
    let mut known: BTreeMap<&str, Map<String, Value>> = BTreeMap::new();
    known.extend(rows.iter().map(|row| (row.id.as_str(), row.fields.clone())));
    let mut reviews = Vec::new();
    for (nth, Entry { item, rating, comment, edits }) in ratings.into_iter().enumerate() {
        let fault = match (known.remove(item.as_str()), edits.keys().find(|field| !form.edit.contains(field)))
        {
            (None, _) => Some("no row of the sheet has this id, or it stands there twice".to_owned()),
            (_, Some(field)) => Some(format!("the field `{field}` may not be edited")),
            _ if !rating.is_empty() && !labels.contains(&rating.as_str()) => {
                Some(format!("`{rating}` is no label; the labels are {}", labels.join(", ")))
            }
            _ if rating.is_empty() && !edits.is_empty() => Some("it has edits and no label".to_owned()),
            _ => None,
        };
        faults.extend(fault.map(|fault| format!("ratings[{nth}], row {item}: {fault}")));
        if !rating.is_empty() {
            let rater = rater.clone();
            reviews.push(Review { row: item, rater, label: rating, edits, comment, settles });
        }
    }
    if !faults.is_empty() {
        bail!("{}", text_file::refused(path, &faults, "a part of the ratings would be another review"));
    }
    Ok(reviews)
}

fn tell(found: &Agreement) -> anyhow::Result<()> {
    let Agreement { rows, reviewed, edited, labels, twice, same, kappa } = found;
    let share = |part: usize, of: usize| if of == 0 { 0.0 } else { 100.0 * part as f64 / of as f64 };
    say(format_args!("reviewed {reviewed} of {}", counted(*rows, "row")))?;
    if *reviewed == 0 {
        return Ok(());
    }
    let labels: Vec<String> = labels.iter().map(|(label, rows)| format!("{label} {rows}")).collect();
    say(format_args!("labels: {}", labels.join(", ")))?;
    say(format_args!("edited: {edited} of {reviewed}, {:.1}%", share(*edited, *reviewed)))?;
    let kappa = kappa.map_or("not defined".to_owned(), |kappa| format!("{kappa:.3}"));
    say(format_args!(
        "two raters: {twice}, the same label {same} ({:.1}%), kappa {kappa}",
        share(*same, *twice)
    ))
}
