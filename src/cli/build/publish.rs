//! `palimpsest build publish`: checks of a finished build, and the folder that is given to others.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use palimpsest_core::digest::sha256;
use palimpsest_core::files::write_atomically;
use serde_json::{Value, json};

use crate::benchmarks::SampleSpec;
use crate::benchmarks::dataset::Dataset;
use crate::benchmarks::reading::Report;
use crate::build::{BuildError, Spec};
use crate::builds::data_files::{digest, files};
use crate::builds::folder::{BuildFolder, DATA, HEADER, PROVENANCE, YIELD};
use crate::case::finding::by_check;
use crate::cli::{note, say};
use crate::ground::folder::{is_file, open, read};
use crate::ground::jsonl::read_rows;
use crate::ground::sheet::Format;
use crate::ground::words::counted;
use crate::results::table::{TableArgs, text};

const CARD: &str = "README.md";
/// A licence that a file does not state.
const UNKNOWN: &str = "unknown";

/// Check a finished build and write the folder to give to others: the data, a card, provenance, counts and licences.
///
/// Refused: data with problems by `palimpsest data check`, and sources whose licence the spec's `allow` does not name. Findings of the
/// check are counted in the card, as are the build's yields, models and reviews. The card ends with a canary, a text by which the data can
/// be found in training corpora.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  palimpsest build publish built --out public
  palimpsest build publish built --out public --run runs/blind --run runs/full")]
pub(super) struct Publish {
    /// The folder of the build.
    dir: PathBuf,
    /// The folder to write: a new or an empty one.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// A judged run of the data whose table joins the card, for example without the history: what can be answered blind. May be repeated.
    #[arg(long, value_name = "RUN")]
    run: Vec<PathBuf>,
}

pub(super) fn run(args: &Publish) -> anyhow::Result<()> {
    let folder = BuildFolder::read(&args.dir)?;
    let rows: Vec<Value> = read_rows(&folder.dir, PROVENANCE)?;
    let dir = args.dir.display();
    let is_whole = is_file(&folder.dir, PROVENANCE);
    ensure!(is_whole, "{dir} has no data yet; go on with its build until it says that they are written");
    ensure!(!rows.is_empty(), "{dir} has no row: all were rejected; {YIELD} counts the reasons");
    crate::cli::empty(&args.out)?;
    refuse_inside(&folder.dir, &args.out)?;
    let names = files(&folder.dir, DATA).with_context(|| dir.to_string())?;
    let is_as_built = rows[0]["data_digest"] == json!(digest(&folder.dir, DATA)?);
    ensure!(
        is_as_built,
        "a file in {dir}/{DATA} was changed, added or removed after the build, and {PROVENANCE} describes what was built; build the last \
         stage again with --from {}",
        folder.spec().stages.last().map_or("", |stage| &stage.name)
    );
    let spec = folder.spec();
    let licences = licences(spec, &rows);
    refuse_licences(spec, &licences)?;
    let data = folder.dir.join(DATA);
    let dataset = Dataset::open(dataset_in(&folder.dir, &names), SampleSpec::default(), |_| {})?;
    let report = dataset.check(|_| {}, &mut |problem| note(format_args!("{problem}")))?;
    let (place, problems) = (data.display(), counted(report.problem_count, "problem"));
    ensure!(report.is_sound(), "{place} has {problems}; nothing was written");
    let (dirs, format) = (args.run.clone(), Format::Md);
    let table = TableArgs { dirs, format, ..TableArgs::default() };
    let results = if args.run.is_empty() { None } else { Some(text(&table)?) };
    let card = card(&folder, &rows, &licences, &report, results)?;
    for name in &names {
        let inside = name.strip_prefix(DATA).unwrap_or(name).trim_start_matches('/');
        copy(&folder.dir, name, &args.out.join(inside))?;
    }
    for name in [PROVENANCE, YIELD, HEADER] {
        copy(&folder.dir, name, &args.out.join(name))?;
    }
    write_atomically(&args.out.join(CARD), card.as_bytes())?;
    for (licence, sources) in &licences {
        say(format_args!("licence {licence}: {}", counted(sources.len(), "source")))?;
    }
    let [rows, findings] =
        [(rows.len(), "row"), (report.findings.len(), "finding")].map(|(n, of)| counted(n, of));
    say(format_args!("wrote {}: {rows}, {findings}; read {CARD} first", args.out.display()))
}

/// Sources by licence.
type Licences = BTreeMap<String, BTreeSet<String>>;

/// Of the published rows' parts and of the spec's files.
fn licences(spec: &Spec, rows: &[Value]) -> Licences {
    let stated = |value: &Value| value.as_str().unwrap_or(UNKNOWN).to_owned();
    let parts = rows.iter().filter_map(|row| row["sources"].as_array()).flatten();
    let parts = parts.map(|part| (stated(&part["licence"]), stated(&part["source"])));
    let files = spec.sources.values();
    let files = files.map(|source| (source.licence.clone(), source.file.display().to_string()));
    let mut found = Licences::new();
    for (licence, source) in files.chain(parts) {
        found.entry(licence).or_default().insert(source);
    }
    found
}

fn refuse_licences(spec: &Spec, found: &Licences) -> anyhow::Result<()> {
    let is_allowed =
        |licence: &String| licence != UNKNOWN && (spec.allow.contains(licence) || *licence == spec.licence);
    let list = found.iter().filter(|(licence, _)| !is_allowed(licence)).map(|(licence, sources)| {
        let first = sources.first().map(String::as_str).unwrap_or_default();
        format!("{licence} ({}, the first is {first})", counted(sources.len(), "source"))
    });
    let list: Vec<String> = list.collect();
    ensure!(
        list.is_empty(),
        "the spec does not allow what these licences cover: {}; add a licence to `allow` if you may publish under it, or build without these \
         sources",
        list.join("; ")
    );
    Ok(())
}

/// Refuses a folder to write that is or would be inside the build's.
fn refuse_inside(build: &Path, out: &Path) -> anyhow::Result<()> {
    let (build, place) = (build.canonicalize()?, std::path::absolute(out)?);
    // A path that does not exist yet is in the nearest folder that does.
    let known = place.ancestors().find_map(|path| path.canonicalize().ok()).unwrap_or_default();
    let out = out.display();
    ensure!(!known.starts_with(&build), "{out} is inside the folder of the build; give one outside it");
    Ok(())
}

/// The one file of rows in the data, or their folder where they have several.
fn dataset_in(dir: &Path, names: &[String]) -> PathBuf {
    let files: Vec<&String> = names.iter().filter(|name| !name.ends_with(".csv")).collect();
    match files.as_slice() {
        [one] if one.matches('/').count() == 1 => dir.join(one),
        _ => dir.join(DATA),
    }
}

/// Copies a file of the build's folder; follows no link.
fn copy(dir: &Path, name: &str, to: &Path) -> anyhow::Result<()> {
    let cannot = || format!("cannot copy {} to {}", dir.join(name).display(), to.display());
    if let Some(parent) = to.parent() {
        std::fs::create_dir_all(parent).with_context(cannot)?;
    }
    let mut from = open(dir, name).with_context(cannot)?.with_context(cannot)?;
    let mut new = std::fs::File::create_new(to).with_context(cannot)?;
    std::io::copy(&mut from, &mut new).map(drop).with_context(cannot)
}

/// The dataset card, with its front matter. The canary is a UUID's form of the build's digest.
fn card(
    folder: &BuildFolder,
    rows: &[Value],
    licences: &Licences,
    report: &Report,
    results: Option<String>,
) -> anyhow::Result<String> {
    let (header, Spec { kind, licence, seed, .. }) = (&folder.header, folder.spec());
    let build = sha256(json!(header.identity).to_string().as_bytes());
    let canary = [0..8, 8..12, 12..16, 16..20, 20..32].map(|part| &build[part]).join("-");
    let model = |(role, model): (&String, &Value)| {
        format!("- {role}: {}\n", model["name"].as_str().unwrap_or_default())
    };
    let yields = read(&folder.dir, YIELD).map_err(BuildError::io("read", &folder.dir.join(YIELD)))?;
    let count = |is: fn(&Value) -> bool| rows.iter().filter(|row| is(&row["review"])).count();
    let mut sources: String = licences
        .iter()
        .map(|(licence, sources)| format!("- {licence}: {}\n", counted(sources.len(), "source")))
        .collect();
    if sources.is_empty() {
        sources = "None: the spec alone.\n".to_owned();
    }
    let findings = by_check(&report.findings);
    let findings = findings.iter().map(|(check, of, _)| format!("- {}: {}\n", check.name, of.len()));
    let results = match results {
        Some(table) => format!("## Results\n\n{table}"),
        None => "Not measured: what a model answers without the history. `palimpsest run` under the condition of no \
                 history, judged, and given by --run, joins this card.\n"
            .to_owned(),
    };
    Ok(format!(
        "---\nlicense: {licence}\ntags: [palimpsest, {kind}]\n---\n\n\
         # {rows} rows of {kind}, made by palimpsest {version}\n\n\
         Build {build}, seed {seed}. build.json holds the whole spec, provenance.jsonl a line a row.\n\n\
         ## How it was made\n\n{models}\nRows by stage:\n\n```csv\n{yields}```\n\n\
         Reviewed by people: {reviewed} of {rows} rows, edited: {edited}.\n\n\
         ## Licences of the sources\n\n{sources}\n\
         ## Checks\n\n`palimpsest data check`: no problem, {found}.\n{findings}\n\
         {results}\n\
         ## Canary\n\nThese data are for tests, and should be in no training corpus: palimpsest canary {canary}\n",
        rows = rows.len(),
        version = header.identity.version,
        build = &build[..16],
        models = header.models.iter().map(model).collect::<String>(),
        yields = String::from_utf8_lossy(&yields.unwrap_or_default()),
        reviewed = count(|review| !review.is_null()),
        edited = count(|review| review["edits"].as_array().is_some_and(|edits| !edits.is_empty())),
        found = counted(report.findings.len(), "finding"),
        findings = findings.collect::<String>(),
    ))
}
