//! `palimpsest why`: labels each answer of a run, with the measurements behind it.

use std::path::PathBuf;

use anyhow::{Context, bail, ensure};

use super::EndedWithErrors;
use crate::chat::endpoint::{KeyArgs, is_address};
use crate::ground::sheet::Format;
use crate::ground::table::wrapped;
use crate::heads::HeadScores;
use crate::judge::{AnewJudge, anew_instructions};
use crate::lens::Options;
use crate::models::ModelStore;
use crate::progress::note;
use crate::runs::judge_name::JudgeChoice;
use crate::runs::judged::say_which;
use crate::runs::reread::{Reread, RereadArgs};
use crate::runs::rows::AnswerRow;
use crate::runs::why_rows::{WHY, WhySettings};
use crate::why::{self, Measured, controls, labels, signals};

const EXAMPLES: &str = "\
Examples:
  palimpsest why runs/slots
  palimpsest why runs/slots --judge exact
  palimpsest why runs/slots --readings 40 --controls 39
  palimpsest why runs/qwen3 --model ./qwen3-8b --device cuda";

/// Label each answer of a run by interventions: right, misjudged, not shown, no effect, overridden, carried or undecided.
///
/// DIR is the folder of a run that recorded attention and was judged, of a benchmark with newer evidence that replaces older evidence.
/// Verdicts of a judge that cannot judge (below 1 billion parameters by its name) are refused.
/// A wrong answer is `not shown` if the newer evidence was not in the prompt (dropped, not retrieved, lost in writing); `no effect` if
/// hiding the newer evidence changes no more than hiding random text of its size; `overridden` if hiding the older evidence turns the
/// answer; `carried` if hiding the older evidence changes nothing and removing it turns the answer, since later sessions hold it.
///
/// An answer turns if the contrast of its question's values (dose) changes its sign. Where a question names no values, --anew generates a
/// new answer and judges it; without --anew such an answer is undecided.
///
/// Each label has a certificate: the smallest set of sessions, then the narrowest window of layers, whose hiding turns the answer, beside
/// random sets of equal size. Rows go to DIR/why.jsonl; after a stop the same command resumes. docs/why.md says what a label can claim.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The folder of a judged run
    dir: PathBuf,
    /// Explain the verdicts of this judge, with or without its address, and its rubric in brackets [default: the last that could be read]
    #[arg(long, value_name = "NAME")]
    judge: Option<String>,
    /// Explain the verdicts by this rubric
    #[arg(long, value_name = "NAME")]
    rubric: Option<String>,
    /// Where a question names no values, generate a new answer under each change and ask the judge of the verdicts, once per change: a
    /// judge on this machine by scoring, an endpoint by a request, if --judge has its whole address or --key its host
    #[arg(long)]
    anew: bool,
    /// Most forward passes of the search for a certificate, over sessions and layers
    #[arg(long, value_name = "N", default_value_t = 24, value_parser = super::positive, help_heading = "Forward passes")]
    readings: usize,
    /// Random sets of equal size that each effect is compared with; with fewer than 19 no effect differs from random text
    #[arg(long, value_name = "N", default_value_t = controls::CONTROLS, help_heading = "Forward passes")]
    controls: usize,
    /// Seed of the random sets
    #[arg(long, default_value_t = 0, help_heading = "Forward passes")]
    seed: u64,
    /// Also print how well masses, value norms and attributions predict each label, cross-validated over cases
    #[arg(long)]
    signals: bool,
    #[command(flatten)]
    keys: KeyArgs,
    #[command(flatten)]
    by: RereadArgs,
}

/// An endpoint that a run folder names is asked only if the command line names it too: a stranger's folder would get the texts, and a key.
fn check_named(judge: &str, args: &Args) -> anyhow::Result<()> {
    let named = args.judge.as_deref().and_then(|name| name.strip_prefix(judge));
    let is_named = named.is_some_and(|rest| rest.is_empty() || rest.starts_with(" ("));
    ensure!(
        !is_address(judge) || is_named || args.keys.names(judge),
        "the run folder names {judge} as its judge, and --anew would send it texts; if it may have them, give its whole address, --judge \
         {judge}, or its host in --key HOST=VARIABLE"
    );
    Ok(())
}

pub fn run(args: Args) -> anyhow::Result<()> {
    // Fail early, before opening the model. The folder is locked.
    let place = args.dir.display();
    let run = Reread::open(&args.dir)?;
    let folder = &run.folder;
    let identity = &folder.header.identity;
    why::check_sides(folder.benchmark()?)?;
    run.check_attention()?;
    let choice = JudgeChoice { judge: args.judge.as_deref(), rubric: args.rubric.as_deref() };
    let judged = why::verdicts(folder, choice)?;
    say_which(&args.dir, Some(&judged.name.label), args.judge.as_deref());
    if let Some(why) = judged.no_result() {
        bail!(
            "labels explain verdicts, and these verdicts are no result: {why}; judge the run by a judge that can (`palimpsest judge {place} \
             --judge JUDGE`), or name another one that has judged it with --judge"
        );
    }
    let asked = why::asked(folder);
    ensure!(!asked.is_empty(), "{place} has no answers that could be labelled; finish the run first");
    // A regenerated answer may be as long as the run allows.
    let most = identity.sampling.filter(|_| args.anew).map_or(0, |sampling| sampling.max_new_tokens);
    if args.anew {
        check_named(&judged.name.judge, &args)?;
    }
    let instructions = args.anew.then(|| anew_instructions(folder, judged.name)).transpose()?;

    let keys = args.keys.of(instructions.iter().map(|_| &*judged.name.judge))?;

    let mut model = run.model(&asked, most, &args.by)?;

    let Args { seed, controls, readings, anew, .. } = args;
    let settings = WhySettings { seed, controls, readings, anew };
    let open = |instructions| AnewJudge::open((&args.by.on, keys), &judged.name.judge, instructions);
    let mut judge = instructions.map(open).transpose()?;
    let mut judge =
        judge.as_mut().map(|judge| |row: &AnswerRow, text: &str| judge.verdict(folder, row, text));
    let stop = super::interrupt::flag("stopping after the forward pass under way")?;
    let Measured { skipped, done, readings, unjudged, stopped } = why::measure(
        folder,
        &mut model,
        choice,
        (settings, judge.as_mut().map(|judge| judge as _)),
        &stop,
        true,
    )
    .with_context(|| format!("{place}"))?;
    let file = args.dir.join(WHY);
    note(format_args!(
        "{done} rows added to {} by {readings} forward passes, {skipped} were there",
        file.display()
    ));
    if stopped {
        super::interrupt::end_resumable()?;
    }
    let all_judged = match unjudged {
        0 => Ok(()),
        some => Err(EndedWithErrors(format!(
            "{some} answers have no label: the judge gave no verdict on a new answer; the same command asks again"
        ))),
    };
    let Some(labels) = labels::Labels::open(folder)? else { return Ok(all_judged?) };
    let mut tables = Vec::from_iter(labels.table(&args.dir.display().to_string()));
    if args.signals {
        let kept = HeadScores::kept_at(ModelStore::open()?.home(), &identity.model.digest);
        let heads = kept.is_file().then(|| HeadScores::load(&kept)).transpose()?;
        if heads.is_none() {
            note(
                "the model's retrieval heads are not known here; `palimpsest heads` finds them and adds them as signals",
            );
        }
        let retrieving = heads.and_then(|heads| heads.retrieving());
        let found = signals::table(folder, &labels, retrieving.as_deref())?;
        if found.is_none() {
            note("no label has enough answers to be predicted");
        }
        tables.extend(found);
    }
    let mut texts = tables.iter().map(|table| table.written(Format::Text)).collect::<Result<Vec<_>, _>>()?;
    let width = super::terminal_width();
    texts.push(labels.counts_in_words().iter().map(|said| wrapped(said, width) + "\n").collect());
    super::write_out(texts.join("\n").as_bytes())?;
    let options = Options { judge: Some(judged.name.label.clone()), ..Options::default() };
    super::finding::say_of(&args.dir, &options)?;
    Ok(all_judged?)
}
