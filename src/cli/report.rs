//! `palimpsest report`: the page of a run in one file, opened at its overview.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;

use super::lens::Analysis;
use crate::benchmarks::ALL;
use crate::figures::look::Size;
use crate::figures::{self, Look, Section, overview};
use crate::lens::causes::Causes;
use crate::lens::{Options, Study};
use crate::progress::note;
use crate::runs::condition::label;
use crate::runs::judged::say_which;
use crate::view::file::{self, Filter};
use crate::view::overview::{MakeOverview, Screen};
use crate::view::page::Parts;
use crate::view::state::{Runs, Shared};

/// Pictures for a phone, in CSS pixels: as wide as the text of a page on a screen of 390, with words of the page's small size.
const PHONE: Size = Size { width: 364.0, text: 12.0 };

/// About so many bytes at most; beyond that the last answers lack texts and attention.
const MOST: u64 = 30_000_000;

/// Write the page of a run as one file that needs no server, under all of its conditions or those that --condition names.
///
/// It opens at an overview: the finding, tables, figures and the run's settings. Then come the answers, each with its attention.
/// The overview needs no JavaScript and can be printed.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The run folder; the page is written there as report.html, with `--condition` as CONDITION-report.html.
    dir: PathBuf,
    #[command(flatten)]
    analysis: Analysis,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    let Args { dir, analysis } = args;
    let study = open(&dir, &analysis.options(), &analysis.conditions)?;
    say_which(&dir, study.judge.as_deref(), analysis.judge.as_deref());
    // Without attention there are still answers and verdicts to report.
    if study.measured().next().is_none() {
        let mut reasons = study.conditions.iter().filter_map(|condition| condition.without.as_deref());
        let reason = reasons.next().unwrap_or_default();
        super::say(format_args!("no attention in this run ({reason}): the page has no figures of it"))?;
    }
    let drawn = |screen| draw(&study, &analysis.conditions, screen);
    let (wide, phone) = (drawn(Screen::Wide)?, drawn(Screen::Phone)?);
    let runs = Shared::new(Runs::open(std::slice::from_ref(&dir), analysis.judge)?);
    let names = study.conditions.iter().map(|condition| label(&condition.name).to_owned());
    let mut filter = Filter::default();
    filter.push(&["condition"], &names.collect::<Vec<_>>());
    let parts = Parts::default();
    let overview: MakeOverview = Arc::new(move |_, screen| {
        Ok(match screen {
            Screen::Wide => wide.clone(),
            Screen::Phone => phone.clone(),
        })
    });
    let mut contents = file::contents(&runs, &parts, &filter, &overview)?;
    contents.limit(MOST);
    if contents.whole < contents.rows.len() {
        note(format_args!(
            "the file has texts and attention of the first {} of {} answers; palimpsest view {} has all",
            contents.whole,
            contents.rows.len(),
            dir.display()
        ));
    }
    let path = dir.join(format!("{}report.html", study.selection.prefix));
    palimpsest_core::files::write_atomically(&path, file::file(&runs, &parts, &contents)?.as_bytes())
        .with_context(|| format!("{} cannot be written", path.display()))?;
    super::say(format_args!("wrote {}; open it in any browser", path.display()))
}

fn open(dir: &Path, options: &Options, conditions: &[String]) -> anyhow::Result<Study> {
    Ok(match conditions {
        [] => Study::whole(&ALL, dir, options)?,
        _ => Study::read(&ALL, dir, conditions, options)?,
    })
}

/// The overview of a run folder under all conditions, as HTML for its page.
pub fn overview(dir: &Path, judge: Option<&str>, screen: Screen) -> anyhow::Result<String> {
    let options = Options { judge: judge.map(str::to_owned), ..Options::default() };
    draw(&open(dir, &options, &[])?, &[], screen)
}

fn draw(study: &Study, conditions: &[String], screen: Screen) -> anyhow::Result<String> {
    let size = match screen {
        Screen::Wide => None,
        Screen::Phone => Some(PHONE),
    };
    // Titles stand in the captions.
    let _look = Look { titles: false, size, ..Look::default() }.enter();
    let section = |heading: Option<&str>, figures| Section {
        heading: heading.map(str::to_owned),
        figures,
        ..Section::default()
    };
    let against = figures::draw_differences(study);
    let mut sections = vec![section(Some("Conditions against each other, question by question"), against)];
    sections.extend(figures::draw_sections(study));
    let counts =
        figures::charts(std::slice::from_ref(&study.folder.dir), study.judge.as_deref(), conditions)?;
    sections.push(section(study.selection.several.then_some("Counts of answers"), counts));
    Ok(overview::html(study, &sections, Causes::open(study)?.as_ref())?)
}
