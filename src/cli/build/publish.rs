//! `palimpsest build publish`: checks of a finished build, and the folder that is given to others.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use palimpsest_core::digest::sha256;
use palimpsest_core::files::write_atomically;
use serde_json::{Value, json};

use crate::benchmarks::SampleSpec;
use crate::benchmarks::dataset::Dataset;
use crate::benchmarks::reading::Report;
use crate::build::Spec;
use crate::builds::folder::{BuildFolder, DATA, HEADER, PROVENANCE, YIELD};
use crate::case::finding::by_check;
use crate::cli::{note, say};
use crate::ground::folder::is_file;
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
    let spec = folder.spec();
    let licences = licences(spec, &rows);
    refuse_licences(spec, &licences)?;
    let data = folder.dir.join(DATA);
    let dataset = Dataset::open(dataset_in(&data)?, SampleSpec::default(), |_| {})?;
    let report = dataset.check(|_| {}, &mut |problem| note(format_args!("{problem}")))?;
    ensure!(
        report.is_sound(),
        "{} has {}; nothing was written",
        data.display(),
        counted(report.problem_count, "problem")
    );
    let results = match args.run.is_empty() {
        true => None,
        false => Some(text(&TableArgs {
            dirs: args.run.clone(),
            format: Format::Md,
            judge: None,
            rubric: None,
            condition: Vec::new(),
            repeats: false,
            intervals: Default::default(),
            compare: false,
            common: false,
        })?),
    };
    let card = Card { folder: &folder, rows: &rows, licences: &licences, report: &report, results }.text()?;
    copy(&data, &args.out)?;
    for name in [PROVENANCE, YIELD, HEADER] {
        let (from, to) = (folder.dir.join(name), args.out.join(name));
        std::fs::copy(&from, &to)
            .with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))?;
    }
    write_atomically(&args.out.join(CARD), card.as_bytes())?;
    for (licence, sources) in &licences {
        say(format_args!("licence {licence}: {}", counted(sources.len(), "source")))?;
    }
    let findings = counted(report.findings.len(), "finding");
    say(format_args!(
        "wrote {}: {}, {findings}; read {CARD} first",
        args.out.display(),
        counted(rows.len(), "row")
    ))
}

/// Sources by licence.
type Licences = BTreeMap<String, BTreeMap<String, usize>>;

/// Of the published rows' parts and of the spec's files.
fn licences(spec: &Spec, rows: &[Value]) -> Licences {
    let mut found = Licences::new();
    let mut add = |licence: &str, source: &str| {
        *found.entry(licence.to_owned()).or_default().entry(source.to_owned()).or_default() += 1;
    };
    for source in spec.sources.values() {
        add(&source.licence, &source.file.display().to_string());
    }
    for part in rows.iter().filter_map(|row| row["sources"].as_array()).flatten() {
        add(part["licence"].as_str().unwrap_or(UNKNOWN), part["source"].as_str().unwrap_or(UNKNOWN));
    }
    found
}

fn refuse_licences(spec: &Spec, found: &Licences) -> anyhow::Result<()> {
    let is_allowed =
        |licence: &String| licence != UNKNOWN && (spec.allow.contains(licence) || *licence == spec.licence);
    let refused = found.iter().filter(|(licence, _)| !is_allowed(licence));
    let list: Vec<String> = refused
        .map(|(licence, sources)| {
            let first = sources.keys().next().map(String::as_str).unwrap_or_default();
            format!("{licence} ({}, the first is {first})", counted(sources.len(), "source"))
        })
        .collect();
    ensure!(
        list.is_empty(),
        "the spec does not allow what these licences cover: {}; add a licence to `allow` if you may publish under it, or build without these \
         sources",
        list.join("; ")
    );
    Ok(())
}

/// The one file of rows in a folder, or the folder where the data have several.
fn dataset_in(data: &Path) -> anyhow::Result<PathBuf> {
    let mut files = Vec::new();
    let entries = std::fs::read_dir(data).with_context(|| format!("cannot read {}", data.display()))?;
    for entry in entries {
        let path = entry?.path();
        let is_table = path.extension().is_some_and(|kind| kind == "csv");
        files.extend((!is_table).then_some(path));
    }
    Ok(match files.as_slice() {
        [one] if one.is_file() => one.clone(),
        _ => data.to_owned(),
    })
}

fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(to).with_context(|| format!("cannot make {}", to.display()))?;
    for entry in std::fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))? {
        let entry = entry?;
        let (path, to) = (entry.path(), to.join(entry.file_name()));
        if entry.file_type()?.is_dir() {
            copy(&path, &to)?;
        } else {
            std::fs::copy(&path, &to)
                .with_context(|| format!("cannot copy {} to {}", path.display(), to.display()))?;
        }
    }
    Ok(())
}

struct Card<'a> {
    folder: &'a BuildFolder,
    rows: &'a [Value],
    licences: &'a Licences,
    report: &'a Report,
    results: Option<String>,
}

impl Card<'_> {
    /// With the front matter of dataset cards.
    fn text(&self) -> anyhow::Result<String> {
        let Card { folder, rows, licences, report, results } = self;
        let (header, spec) = (&folder.header, folder.spec());
        let build = sha256(json!(header.identity).to_string().as_bytes());
        let mut text = format!(
            "---\nlicense: {}\ntags: [palimpsest, {}]\n---\n\n# {} rows of {}, made by palimpsest {}\n\n",
            spec.licence,
            spec.kind,
            rows.len(),
            spec.kind,
            header.identity.version
        );
        writeln!(
            text,
            "Build {}, seed {}. build.json holds the whole spec, provenance.jsonl a line a row.\n",
            &build[..16],
            spec.seed
        )?;
        text += "## How it was made\n\n";
        for (role, model) in &header.models {
            writeln!(text, "- {role}: {}", model["name"].as_str().unwrap_or_default())?;
        }
        text += "\nRows by stage:\n\n```csv\n";
        text += &String::from_utf8_lossy(&std::fs::read(folder.dir.join(YIELD))?);
        text += "```\n\n";
        let reviewed =
            rows.iter().filter(|row| row.get("review").is_some_and(|review| !review.is_null())).count();
        let edited = rows
            .iter()
            .filter(|row| row["review"]["edits"].as_array().is_some_and(|edits| !edits.is_empty()));
        writeln!(
            text,
            "Reviewed by people: {reviewed} of {} rows, edited: {}.\n",
            rows.len(),
            edited.count()
        )?;
        text += "## Licences of the sources\n\n";
        if licences.is_empty() {
            text += "None: the spec alone.\n";
        }
        for (licence, sources) in *licences {
            writeln!(text, "- {licence}: {}", counted(sources.len(), "source"))?;
        }
        text += "\n## Checks\n\n";
        writeln!(
            text,
            "`palimpsest data check`: no problem, {}.",
            counted(report.findings.len(), "finding")
        )?;
        for (check, of, _) in by_check(&report.findings) {
            writeln!(text, "- {}: {}", check.name, of.len())?;
        }
        match results {
            Some(table) => write!(text, "\n## Results\n\n{table}")?,
            None => {
                text += "\nNot measured: what a model answers without the history. `palimpsest run` under the condition of no \
                             history, judged, and given by --run, joins this card.\n";
            }
        }
        write!(
            text,
            "\n## Canary\n\nThese data are for tests, and should be in no training corpus: palimpsest canary {}\n",
            canary(&build)
        )?;
        Ok(text)
    }
}

/// A UUID's form of a build's digest.
fn canary(build: &str) -> String {
    let part = |from: usize, to: usize| build.get(from..to).unwrap_or_default();
    [part(0, 8), part(8, 12), part(12, 16), part(16, 20), part(20, 32)].join("-")
}
