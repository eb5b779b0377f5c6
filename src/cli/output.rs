//! What commands print and write.

use std::fmt::Display;
use std::io::Write;
use std::path::Path;

use anyhow::Context;
use serde_json::json;

use super::interrupt::INTERRUPTED;
use crate::progress::note;
use crate::run::runner::Summary;
use crate::stats::Recorder;

/// Writes a line to standard output. A reader that left early, such as `head`, is no error.
pub(super) fn say(line: impl Display) -> anyhow::Result<()> {
    write_out(format!("{line}\n").as_bytes())
}

/// Writes to standard output, as [`say`] does.
pub(super) fn write_out(bytes: &[u8]) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => other.context("cannot write to standard output"),
    }
}

/// Refuses, before any work, an output file whose folder is missing or cannot be written to.
pub(super) fn writable(path: &Path) -> anyhow::Result<()> {
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    tempfile::tempfile_in(folder)
        .map(drop)
        .with_context(|| format!("{} cannot be written: its folder {}", path.display(), folder.display()))
}

/// Writes what `--stats` asks for to its file, and as a table to stderr.
pub(super) fn write_stats(path: &Path, stats: &Recorder) -> anyhow::Result<()> {
    let report = stats.report();
    let mut json = report.json();
    json.insert("peak_resident_bytes".to_owned(), json!(crate::engine::peak_resident_bytes()));
    note(report.table());
    let text = format!("{:#}\n", serde_json::Value::from(json));
    crate::ground::files::write_atomically(path, text.as_bytes())
        .with_context(|| format!("{}", path.display()))
}

/// Says what a job that can be resumed came to. Ends the process with the interrupt's exit code where it was stopped, and
/// is an error where nothing came of it at all.
pub(super) fn conclude(dir: &Path, what: &str, file: &str, summary: &Summary) -> anyhow::Result<()> {
    let Summary { planned, skipped, done, errors, stopped, cut, broken } = *summary;
    let (dir, there) = (dir.display(), skipped + done);
    say(format_args!(
        "{dir}: {there} of {planned} {what} ({skipped} from before, {done} new, {errors} errors)"
    ))?;
    if cut > 0 {
        say(format_args!(
            "{cut} more ended inside a thought before and are left as errors, since the same would come again; --retry-cut tries \
             them again"
        ))?;
    }
    if stopped {
        say("stopped; the same command goes on from here")?;
        std::process::exit(INTERRUPTED);
    }
    // Those of broken rows stay until the file is mended.
    if errors > broken {
        say(format_args!("the reasons are in {file}; the same command tries the errors again"))?;
        anyhow::ensure!(there > 0, "{dir}: all {errors} {what} failed");
    }
    Ok(())
}
