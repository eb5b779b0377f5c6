//! `palimpsest report`: the one-page report of a run.

use std::path::PathBuf;

use super::lens::Analysis;
use crate::benchmarks::ALL;
use crate::figures::{self, Section, report};
use crate::lens::Study;
use crate::lens::causes::Causes;
use crate::runs::judged::say_which;

/// The one-page report of a run, under all of its conditions or those that --condition names.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The run folder; the page is written there as report.html, with `--condition` as CONDITION-report.html.
    dir: PathBuf,
    #[command(flatten)]
    analysis: Analysis,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    let (options, asked) = (args.analysis.options(), &args.analysis.conditions);
    let study = match asked[..] {
        [] => Study::whole(&ALL, &args.dir, &options)?,
        _ => Study::read(&ALL, &args.dir, asked, &options)?,
    };
    say_which(&args.dir, study.judge.as_deref(), args.analysis.judge.as_deref());
    // Without attention there are still answers and verdicts to report.
    if study.measured().next().is_none() {
        let mut reasons = study.conditions.iter().filter_map(|condition| condition.without.as_deref());
        let reason = reasons.next().unwrap_or_default();
        super::say(format_args!("no attention in this run ({reason}): the page has no figures of it"))?;
    }
    let mut sections = figures::draw_sections(&study);
    let against = figures::draw_differences(&study);
    let heading = Some("Conditions against each other, question by question".to_owned());
    sections.insert(0, Section { heading, figures: against, ..Section::default() });
    let counts = figures::charts(std::slice::from_ref(&args.dir), study.judge.as_deref(), asked)?;
    let heading = study.selection.several.then(|| "Counts of answers".to_owned());
    sections.push(Section { heading, figures: counts, ..Section::default() });
    let causes = Causes::open(&study)?;
    let page = report::write_study(&study, &sections, causes.as_ref(), &args.dir)?;
    super::say(format_args!("wrote {}; open it in any browser", page.display()))
}
