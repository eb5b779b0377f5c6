//! `palimpsest judge`: verdicts on the answers of a run.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::Context;

use super::{WrongUsage, wrong};
use crate::benchmarks::{Benchmark, LabelCheck, Rubric, rubric_named};
use crate::chat::endpoint::{KeyArgs, Patience};
use crate::ground::jsonl::RowLog;
use crate::ground::text_file;
use crate::judge::{
    Conduct, Instructions, Judge, JudgeOptions, JudgeSource, OpenJudge, REPLY_TOKENS, ReadSummary, Reasons,
    check_labels, judge_memories, label_instructions, memory_instructions, read_answers, run as judge_run,
};
use crate::models::{DeviceArgs, DtypeArgs};
use crate::prompt::JUDGE_FILE;
use crate::runs::error::RunError;
use crate::runs::judged::no_result;
use crate::runs::labels::LABELS;
use crate::runs::plan::unjudgeable;
use crate::runs::runner::Summary;
use crate::runs::setup::Thinking;
use crate::runs::store::{RunFolder, RunStore};

/// Default parallel endpoint calls: keeps a server busy without hitting rate limits.
const PARALLEL: usize = 4;

const EXAMPLES: &str = "\
Examples:
  palimpsest judge runs/first --judge local:Qwen/Qwen3-8B
  palimpsest judge runs/first --judge http://127.0.0.1:8000/v1#qwen3-8b
  palimpsest judge runs/first --judge http://127.0.0.1:8000/v1#qwen3-8b --rubric strict
  palimpsest judge runs/subtle --judge local:qwen3-8b --labels
  palimpsest judge runs/mem0 --judge local:qwen3-8b --memories
  palimpsest judge runs/first --judge local:./Qwen3-8B --device cuda --reasons first --prompts ./prompts
  palimpsest judge runs/first --judge local:./Qwen3-8B --device cuda --thinking on";

/// Judge the answers of a run.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The run folder.
    dir: PathBuf,
    /// `local:NAME` (whatever --model of `run` takes), or `http://host[:port]/v1#model`.
    ///
    /// A local judge is scored: the verdict is the likelier word. With --thinking on it thinks and writes JSON, as an endpoint does. An
    /// endpoint's key comes from the environment: see --key. A run can hold verdicts of several judges. Benchmarks whose answers
    /// name a choice are judged by rules, without --judge. A judge below 1 billion parameters cannot judge: its numbers are withheld.
    #[arg(long, help_heading = "Judge")]
    judge: Option<String>,
    /// Check the data's own labels instead of judging answers (subtlememory: relation).
    ///
    /// The judge sees the notes on each set, without the label, and gives a label. Its labels go to labels.jsonl; `palimpsest table` and
    /// `report` print their agreement with the data (Cohen's kappa).
    #[arg(long, requires = "judge", conflicts_with = "rubric", help_heading = "Judge")]
    labels: bool,
    /// Judge memories instead of answers, in a run of memory systems (stale): does each memory from the old or the new session state that
    /// session's fact?
    ///
    /// The judge sees one text of the memory and the fact; of a rewritten memory it sees each of its texts in turn. Verdicts go to
    /// memory/NAME/CASE/stated.jsonl; `palimpsest table --memory` then has rows by them (level 2).
    #[arg(long, requires = "judge", conflicts_with_all = ["rubric", "labels", "prompts", "no_exact_match"], help_heading = "Judge")]
    memories: bool,
    #[command(flatten)]
    settings: Settings,
}

/// Flags of judging.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct Settings {
    /// The benchmark's rubric of this name [default: its first, STALE's and KnowMe-Bench's `released`]; a wrong name lists them.
    ///
    /// Verdict rows and tables name the rubric; one judge by two rubrics has two rows.
    #[arg(long, value_name = "NAME", conflicts_with = "prompts", help_heading = "Judge")]
    rubric: Option<String>,
    #[command(flatten)]
    on: DeviceArgs,
    #[command(flatten)]
    in_dtype: DtypeArgs,
    /// A folder whose judge.j2 replaces the benchmark's rubric (see docs/commands.md).
    ///
    /// Rows and tables call it `own-` and the beginning of its SHA-256; verdicts by another wording stay beside them. Other templates in
    /// the folder are for `palimpsest run --prompts`.
    #[arg(long, value_name = "DIR", help_heading = "Judge")]
    prompts: Option<PathBuf>,
    /// Whether the judge's reason comes before the verdict, which then rests on it, after the verdict, or not at all [default: first for a
    /// judge that writes JSON, last for a scored one].
    ///
    /// Verdicts with reasons in another place have rows of their own.
    #[arg(long, value_enum, help_heading = "Judge")]
    reasons: Option<Reasons>,
    /// Ask the judge about every answer, also if it equals a reference answer (subtlememory).
    ///
    /// Without this flag an answer that equals a right or a known wrong one, ignoring case and white space, gets its verdict without a call,
    /// as in the authors' code. Verdicts with and without this flag have rows of their own.
    #[arg(long, help_heading = "Judge")]
    no_exact_match: bool,
    /// The default since 0.2.0; old command lines name it.
    #[arg(long, hide = true, conflicts_with = "no_exact_match", help_heading = "Judge")]
    exact_match: bool,
    /// Endpoint: calls at once [default: 4]. Verdicts, and the order of their rows, are the same.
    #[arg(long, value_name = "N", value_parser = super::positive, help_heading = "Endpoint")]
    parallel: Option<usize>,
    /// Stop after N calls in a row without a readable verdict, each asked twice; 0 never stops.
    ///
    /// Verdicts so far are kept, and the same command resumes.
    #[arg(long, default_value_t = Conduct::GIVE_UP_AFTER, value_name = "N", help_heading = "Judge")]
    give_up_after: usize,
    /// Print a line for each verdict.
    #[arg(long, help_heading = "Output")]
    verbose: bool,
    /// Endpoint: most seconds to wait for one reply.
    #[arg(long, default_value_t = 600, value_name = "SECONDS", help_heading = "Endpoint")]
    timeout: u64,
    /// Endpoint: attempts after a failed first one.
    #[arg(long, default_value_t = 5, help_heading = "Endpoint")]
    retries: usize,
    #[command(flatten)]
    keys: KeyArgs,
    /// Endpoint, and local judge with --thinking on: most tokens of one reply, beside its thought.
    #[arg(long, default_value_t = REPLY_TOKENS, value_name = "TOKENS", value_parser = super::positive, help_heading = "Judge")]
    max_new_tokens: usize,
    #[command(flatten)]
    thinking: Thinking,
}

impl Settings {
    fn conduct(&self) -> Conduct {
        let give_up_after = Some(self.give_up_after).filter(|&calls| calls > 0);
        Conduct { show_progress: true, verbose: self.verbose, give_up_after }
    }

    fn options(&self, judge: &str) -> anyhow::Result<(JudgeOptions, bool)> {
        let source = JudgeSource::parse(judge).map_err(|e| WrongUsage(e.to_string()))?;
        let is_endpoint = matches!(source, JudgeSource::Endpoint(_));
        self.thinking.check(is_endpoint).map_err(|e| WrongUsage(e.to_string()))?;
        if is_endpoint && (!self.on.is_cpu() || self.in_dtype != DtypeArgs::default()) {
            return wrong(format!(
                "--device, --dtype and --cache-dtype are for local judges, and {judge} is an endpoint; drop them"
            ));
        }
        if let Some(calls) = self.parallel.filter(|_| !is_endpoint) {
            return wrong(format!(
                "--parallel {calls} is for endpoints, and {judge} is one model on this machine; drop it"
            ));
        }
        let replies = source.replies(&self.thinking);
        let of_replies = [
            ("--max-new-tokens", self.max_new_tokens != REPLY_TOKENS),
            ("--max-thinking", self.thinking.max_thinking.is_some()),
        ];
        if let Some((flag, _)) = of_replies.iter().find(|(_, given)| *given && !replies) {
            return wrong(format!(
                "{flag} is for judges that write a reply, and {judge} is scored; drop it, or add --thinking on"
            ));
        }
        let timeout = Duration::from_secs(self.timeout.max(1));
        let options = JudgeOptions {
            on: self.on.clone(),
            in_dtype: self.in_dtype.clone(),
            thinking: self.thinking.clone(),
            max_new_tokens: self.max_new_tokens,
            parallel: self.parallel.unwrap_or(PARALLEL),
            keys: self.keys.of([judge])?,
            patience: Patience { timeout, retries: self.retries, ..Patience::default() },
        };
        Ok((options, replies))
    }

    /// Refuses flags that change what a model is asked, where rules read the answers.
    fn check_for_rules(&self, benchmark: &Benchmark) -> anyhow::Result<()> {
        let given = [
            ("--no-exact-match", self.no_exact_match),
            ("--exact-match", self.exact_match),
            ("--prompts", self.prompts.is_some()),
            ("--reasons", self.reasons.is_some()),
        ];
        match given.iter().find(|(_, given)| *given) {
            Some((flag, _)) => wrong(format!(
                "answers of {} are judged by rules, without a model; drop {flag}",
                benchmark.title
            )),
            None => Ok(()),
        }
    }
}

pub fn run(args: Args) -> anyhow::Result<()> {
    let Args { dir, judge, labels, memories, settings } = args;
    if let Some(judge) = &judge {
        settings.options(judge)?;
    }
    // Opens the folder before loading a model.
    let benchmark = RunFolder::read(&dir)?.benchmark()?;
    if labels && settings.no_exact_match {
        return wrong("--no-exact-match is for answers, and --labels judges none; drop one of them");
    }
    let judged_by = judge.clone();
    let (summary, what, file, next) = match judge {
        Some(judge) if labels => {
            let Some(check) = benchmark.label_check else {
                return wrong(format!(
                    "--labels: {} has no label that is checked; leave it out",
                    benchmark.title
                ));
            };
            let summary = check_folder(&dir, &judge, &settings, &check)?;
            (summary, "labels", "labels.jsonl", Some(format!("table {}", dir.display())))
        }
        Some(judge) if memories => {
            let summary = memories_of(&dir, benchmark, &judge, &settings)?;
            (summary, "memories", "the lines above", Some(format!("table {} --memory", dir.display())))
        }
        judge => {
            // Checks the rubric's name before loading a model.
            rubric_of(benchmark, &settings)?;
            let judge = match (judge, benchmark.readings) {
                (Some(judge), []) => judge,
                (None, []) => {
                    return wrong(
                        "--judge is missing: give local:NAME or http://host[:port]/v1#model; answers of this benchmark need a model as judge",
                    );
                }
                (None, _) => {
                    settings.check_for_rules(benchmark)?;
                    return read_folder(&dir, benchmark);
                }
                (Some(_), [_, ..]) => {
                    return wrong(format!(
                        "answers of {} are judged by rules, without a model; drop --judge",
                        benchmark.title
                    ));
                }
            };
            let summary = judge_folder(&dir, &judge, &settings)?;
            let next = (summary.errors == 0).then(|| format!("report {}", dir.display()));
            (summary, "verdicts", "verdicts.jsonl", next)
        }
    };
    super::conclude(&dir, what, file, &summary)?;
    if let Some(why) = judged_by.as_deref().and_then(no_result) {
        super::say(format_args!("no result: {why}"))?;
    }
    if let Some(next) = next {
        super::say(format_args!("next: palimpsest {next}"))?;
    }
    super::without_errors(what, file, &summary)
}

fn rubric_of(benchmark: &Benchmark, settings: &Settings) -> anyhow::Result<Rubric> {
    let Some(name) = &settings.rubric else { return Ok(benchmark.rubric()) };
    if !benchmark.readings.is_empty() {
        return wrong(format!(
            "answers of {} are judged by rules, without a rubric; drop --rubric",
            benchmark.title
        ));
    }
    Ok(rubric_named(benchmark, name).map_err(|unknown| WrongUsage(format!("--rubric: {unknown}")))?)
}

pub(super) fn own_template(folder: &Path) -> anyhow::Result<String> {
    let path = folder.join(JUDGE_FILE);
    text_file::read(&path).with_context(|| {
        format!("cannot read {}; --prompts names a folder that holds {JUDGE_FILE}", path.display())
    })
}

/// Reads all answers by the benchmark's rules. Unreadable answers are reported and count as wrong, but are no failure.
pub(super) fn read_folder(dir: &Path, benchmark: &Benchmark) -> anyhow::Result<()> {
    let mut store = RunStore::open(dir)?;
    for summary in read_answers(&mut store, benchmark)? {
        let ReadSummary { reading, about, planned, read, unread, unanswered } = summary;
        let missing = match unanswered {
            0 => String::new(),
            some => format!(", {some} without an answer"),
        };
        super::say(format_args!(
            "{reading}: {read} of {planned} verdicts, {unread} unparsed{missing} ({about})"
        ))?;
    }
    super::say(format_args!("next: palimpsest table {}", dir.display()))
}

pub(super) fn judge_folder(dir: &Path, judge: &str, settings: &Settings) -> anyhow::Result<Summary> {
    with_judge(
        (dir, judge, settings),
        |store| {
            let benchmark = store.benchmark()?;
            if let (None, Some(why)) = (&settings.prompts, unjudgeable(store.plan(), benchmark)) {
                return wrong(format!(
                    "{why}, or judge without them by a {JUDGE_FILE} of your own (--prompts)"
                ));
            }
            let named =
                [("--no-exact-match", settings.no_exact_match), ("--exact-match", settings.exact_match)];
            if let (Some((flag, _)), None) = (named.iter().find(|(_, given)| *given), &benchmark.references) {
                return wrong(format!(
                    "{flag}: {} has no reference answers that settle a verdict; drop it",
                    benchmark.title
                ));
            }
            let instructions = Instructions::of(benchmark, &rubric_of(benchmark, settings)?);
            let references = instructions.references.filter(|_| !settings.no_exact_match);
            Ok(Instructions { references, ..instructions })
        },
        |store, judge, instructions, stop| judge_run(store, judge, instructions, stop, settings.conduct()),
    )
}

fn check_folder(dir: &Path, judge: &str, settings: &Settings, check: &LabelCheck) -> anyhow::Result<Summary> {
    with_judge(
        (dir, judge, settings),
        |_| Ok(label_instructions(check, Reasons::Last)),
        |store, judge, instructions, stop| {
            let plan = store.plan().to_vec();
            let mut log = RowLog::open(dir, LABELS)?;
            check_labels(&mut log, &plan, check, judge, &instructions, stop, settings.conduct())
        },
    )
}

fn memories_of(
    dir: &Path,
    benchmark: &'static Benchmark,
    judge: &str,
    settings: &Settings,
) -> anyhow::Result<Summary> {
    if benchmark.stated.is_empty() {
        return wrong(format!(
            "--memories: the data of {} has no text of the facts that its evidence states; leave it out",
            benchmark.title
        ));
    }
    if !dir.join("memory").is_dir() {
        return wrong(format!(
            "--memories: {} is no run of memory systems; run with --memory NAME=COMMAND first",
            dir.display()
        ));
    }
    with_judge(
        (dir, judge, settings),
        |_| Ok(memory_instructions(Reasons::Last)),
        |store, judge, instructions, stop| {
            let plan = store.plan().to_vec();
            judge_memories(dir, (&plan, benchmark), judge, &instructions, stop, settings.conduct())
        },
    )
}

/// Opens a run and a judge, and calls `work` with the instructions as changed by the command line.
fn with_judge(
    (dir, judge, settings): (&Path, &str, &Settings),
    instructions: impl FnOnce(&RunStore) -> anyhow::Result<Instructions>,
    work: impl FnOnce(&mut RunStore, &mut Judge<'_>, Instructions, &AtomicBool) -> Result<Summary, RunError>,
) -> anyhow::Result<Summary> {
    let (options, replies) = settings.options(judge)?;
    let mut store = RunStore::open(dir)?;
    let mut instructions = instructions(&store)?;
    if let Some(folder) = &settings.prompts {
        instructions = instructions.with_template(own_template(folder)?);
    }
    if replies {
        instructions.thinking = settings.thinking.of_judge();
    }
    let instructions = instructions.with_reasons(settings.reasons, replies)?;
    let stop = super::interrupt::flag("stopping after the calls under way")?;
    let mut judge = OpenJudge::open(judge, options)?;
    Ok(work(&mut store, &mut judge.judge(), instructions, &stop)?)
}
