//! Prints a run's finding below the output of a command.

use std::path::Path;

use crate::finding::{Finding, cut_in_words};
use crate::lens::causes::Causes;
use crate::lens::{LensError, Options, Study};
use crate::progress::note;
use crate::runs::rows::AnswerRow;
use crate::runs::store::RunFolder;

/// More attention files take seconds to read.
const MOST_FILES: usize = 300;

/// The finding of a run that just ended; without attention, or with much to read, the cut answers and where the finding is.
pub(super) fn say_of_run(folder: &RunFolder) -> anyhow::Result<()> {
    let is_measured = |row: &&AnswerRow| row.error.is_none() && row.attention.is_some();
    let measured = folder.answers.iter().filter(is_measured).count();
    if (1..=MOST_FILES).contains(&measured) {
        return say_of(&folder.dir, &Options::default());
    }
    let limit = folder.header.identity.sampling.map(|sampling| sampling.max_new_tokens.to_string());
    if let Some(cut) = cut_in_words(&folder.answers, limit.as_deref()) {
        super::say(format_args!("\n{cut}"))?;
    }
    match measured {
        0 => Ok(()),
        _ => super::say(format_args!("\nthe finding: palimpsest lens {}", folder.dir.display())),
    }
}

/// Reads the run's attention and causes. A failure is a note: the command did its work.
pub(super) fn say_of(dir: &Path, options: &Options) -> anyhow::Result<()> {
    said(Study::open(dir, &[], options).and_then(|study| lines(&study)))
}

pub(super) fn say(study: &Study) -> anyhow::Result<()> {
    said(lines(study))
}

fn lines(study: &Study) -> Result<String, LensError> {
    let causes = Causes::open(study)?;
    Ok(Finding::of(study, causes.as_ref()).lines(super::terminal_width()))
}

fn said(lines: Result<String, LensError>) -> anyhow::Result<()> {
    match lines {
        Ok(lines) if lines.is_empty() => Ok(()),
        Ok(lines) => super::write_out(format!("\n{lines}").as_bytes()),
        Err(error) => {
            note(format_args!("note: no finding: {}", super::in_one_line(&error.into())));
            Ok(())
        }
    }
}
