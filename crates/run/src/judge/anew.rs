//! Judges regenerated answers with a run's judge and rubric, for `palimpsest why --anew`.

use anyhow::{Context, bail, ensure};

use super::open::{JudgeOptions, JudgeSource, OpenJudge};
use super::{Exchange, Instructions, Judge, Said, ask_judge};
use crate::chat::endpoint::Keys;
use crate::models::DeviceArgs;
use crate::runs::judge_name::JudgeName;
use crate::runs::plan::PlannedProbe;
use crate::runs::rows::{AnswerKey, AnswerRow};
use crate::runs::setup::Thinking;
use crate::runs::store::RunFolder;
use palimpsest_data::benchmarks::{JudgeUnit, rubric_named};

pub struct AnewJudge {
    judge: OpenJudge,
    instructions: Instructions,
}

pub fn anew_instructions(folder: &RunFolder, name: &JudgeName) -> anyhow::Result<Instructions> {
    let benchmark = folder.benchmark()?;
    let greedy = folder.header.identity.sampling.is_some_and(|sampling| sampling.temperature == 0.0);
    ensure!(
        greedy,
        "--anew needs a run of greedy answers, so that only the change can change them; run it with --temperature 0"
    );
    let rubric = name.rubric.as_deref().map(|rubric| rubric_named(benchmark, rubric)).transpose()?;
    let replies = JudgeSource::parse(&name.judge).is_ok_and(|source| source.replies(&Thinking::default()));
    let instructions = Instructions::of(benchmark, &rubric.unwrap_or_else(|| benchmark.rubric()));
    let instructions = instructions.with_reasons(None, replies)?;
    ensure!(
        name.digest.as_ref().is_none_or(|digest| *digest == instructions.digest()),
        "the verdicts of {} were given by another wording or order than the benchmark's own rubric; judge again without --prompts, \
         --reasons, --thinking and --no-exact-match",
        name.label
    );
    Ok(instructions)
}

impl AnewJudge {
    pub fn open(
        (on, keys): (&DeviceArgs, Keys),
        judge: &str,
        instructions: Instructions,
    ) -> anyhow::Result<Self> {
        let options = JudgeOptions { keys, ..JudgeOptions::on(on.clone()) };
        Ok(AnewJudge { judge: OpenJudge::open(judge, options)?, instructions })
    }

    /// Judges `text` in place of an answer of the run; the case's other answers are shown unchanged.
    pub fn verdict(&mut self, folder: &RunFolder, row: &AnswerRow, text: &str) -> anyhow::Result<bool> {
        let AnewJudge { judge, instructions } = self;
        let case =
            folder.plan.iter().find(|case| case.case == row.case).context("the plan lacks the case")?;
        let answer = |probe: &str| match probe == row.probe {
            true => Some(text.to_owned()),
            false => {
                let key = AnswerKey::of(&row.case, probe, &row.condition);
                folder.answers.iter().find(|other| other.key() == key)?.answer.clone()
            }
        };
        let shown = case.probes.iter().filter(|probe| match instructions.unit {
            JudgeUnit::Case => probe.is_asked_under(&row.condition),
            JudgeUnit::Probe => probe.id == row.probe,
        });
        let exchange =
            |probe: &PlannedProbe| Exchange { probe: probe.clone(), answer: answer(&probe.id), cut: false };
        let mut exchanges: Vec<Exchange> = shown.map(exchange).collect();
        let asked = exchanges.iter().find(|one| one.probe.id == row.probe);
        if let Some(right) = asked.and_then(|one| instructions.settled(one)) {
            return Ok(right);
        }
        let content = instructions.prompt(case, &exchanges)?;
        let mut judge = judge.judge();
        // A reply holds all verdicts of a case; scoring reads only the requested one.
        if matches!(judge, Judge::Scoring(_)) {
            exchanges.retain(|one| one.probe.id == row.probe);
        }
        let own = exchanges.iter().position(|one| one.probe.id == row.probe);
        let judged = ask_judge(&mut judge, content, &exchanges, instructions)?;
        match own.and_then(|at| judged.verdicts.into_iter().nth(at)).context("no verdict")??.said {
            Said::Correct(correct) => Ok(correct),
            other => {
                bail!("--anew is for verdicts of right and wrong, and the judge said {other}; leave it out")
            }
        }
    }
}
