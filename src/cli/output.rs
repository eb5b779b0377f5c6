//! Output of commands.

use std::fmt::Display;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde_json::{Map, json};

use crate::progress::note;
use crate::runs::runner::Summary;
use crate::selftest::card_peaks;
use crate::selftest::trial::Peak;
use palimpsest_core::engine::memory_plan::gigabytes;
use palimpsest_core::timing::Recorder;
use palimpsest_data::ground::folder;

pub(super) const WITH_ERRORS: u8 = 3;

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct EndedWithErrors(pub(super) String);

/// Prints a line. A closed pipe (`head`) is no error.
pub(super) fn say(line: impl Display) -> anyhow::Result<()> {
    write_out(format!("{line}\n").as_bytes())
}

pub(super) fn write_out(bytes: &[u8]) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => other.context("cannot write to standard output"),
    }
}

/// Terminal width for tables; 80 without a terminal.
pub(super) fn terminal_width() -> usize {
    const PAGE: usize = 80;
    const NARROWEST: usize = 40;
    let width = terminal_size::terminal_size_of(std::io::stdout()).map(|(width, _)| usize::from(width.0));
    width.map_or(PAGE, |width| width.max(NARROWEST))
}

/// Fails early if an output file's folder is missing or read-only.
pub(super) fn writable(path: &Path) -> anyhow::Result<()> {
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    tempfile::tempfile_in(folder)
        .map(drop)
        .with_context(|| format!("{} cannot be written: its folder {}", path.display(), folder.display()))
}

/// Refuses a folder with files, which would be read as data.
pub(super) fn empty(dir: &Path) -> anyhow::Result<()> {
    let taken = dir.exists() && dir.read_dir().map_or(true, |mut entries| entries.next().is_some());
    anyhow::ensure!(!taken, "{} is not an empty folder; give one that does not exist yet", dir.display());
    Ok(())
}

/// Makes the folder `name` in a run's folder. Refuses a link there, which would lead the files elsewhere.
pub(super) fn own_folder(run: &Path, name: &str) -> anyhow::Result<PathBuf> {
    let path = run.join(name);
    folder::make(run, name)
        .with_context(|| format!("{} cannot be made; give another folder with --out", path.display()))
}

pub(super) fn save(path: &Path, bytes: impl AsRef<[u8]>) -> anyhow::Result<()> {
    palimpsest_core::files::write_atomically(path, bytes.as_ref()).with_context(|| path.display().to_string())
}

pub(super) fn write_stats(path: &Path, stats: &Recorder) -> anyhow::Result<()> {
    let report = stats.report();
    let mut json = report.json();
    json.insert("peak_resident_bytes".to_owned(), json!(palimpsest_core::engine::peak_resident_bytes()));
    let (mut table, mut peaks) = (report.table(), Map::new());
    for Peak { device, bytes, how } in card_peaks(&stats.devices()) {
        table += &format!("\npeak of {device}: {}, loading included, {}", gigabytes(bytes), how.in_words());
        peaks.insert(device, json!(bytes));
    }
    json.insert("peak_device_bytes".to_owned(), peaks.into());
    note(table);
    save(path, format!("{:#}\n", serde_json::Value::from(json)))
}

/// Summarises a resumable job. Exits with the interrupt's code if stopped; fails if nothing was done.
pub(super) fn conclude(dir: &Path, what: &str, file: &str, summary: &Summary) -> anyhow::Result<()> {
    let Summary { planned, skipped, done, errors, stopped, cut, broken, settled, left_out } = *summary;
    let (dir, there) = (dir.display(), skipped + done);
    say(format_args!(
        "{dir}: {there} of {planned} {what} ({skipped} from before, {done} new, {errors} errors)"
    ))?;
    if settled > 0 {
        say(format_args!(
            "{settled} of the new ones by exact match with a reference answer, without asking the judge"
        ))?;
    }
    if left_out > 0 {
        say(format_args!(
            "{left_out} more are left out: their prompts lack a span that a knock-out names (left_out in plan.jsonl)"
        ))?;
    }
    if cut > 0 {
        say(format_args!(
            "{cut} more ended inside a thought before and stay errors, since a retry would give the same; --retry-cut tries them again"
        ))?;
    }
    if stopped {
        super::interrupt::end_resumable()?;
    }
    // Errors of broken rows remain until the file is fixed.
    if errors > broken && there == 0 {
        anyhow::bail!(
            "{dir}: all {errors} {what} failed; the reasons are in {file}; the same command tries the errors again"
        );
    }
    Ok(())
}

/// Fails if error rows are left, after all other output, for scripts; says which of them the same command would retry.
pub(super) fn without_errors(what: &str, file: &str, summary: &Summary) -> anyhow::Result<()> {
    let Summary { planned, errors, broken, cut, .. } = *summary;
    if errors + cut == 0 {
        return Ok(());
    }
    let mut said = format!("{} of {planned} {what} ended as errors; the reasons are in {file}", errors + cut);
    if broken > 0 {
        said += &format!("; {broken} are of broken rows of the data and stay until the data is mended");
    }
    if cut > 0 {
        said += &format!("; {cut} ended inside a thought before and are tried again with --retry-cut");
    }
    if errors > broken {
        said += "; the same command tries the ";
        said += if broken + cut > 0 { "others" } else { "errors" };
        said += " again";
    }
    Err(EndedWithErrors(said).into())
}

/// The error with its causes, without repeated messages.
pub fn in_one_line(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}
