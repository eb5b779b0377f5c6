//! The sentence on answers: how many are right, or why that is not known, and how many were cut. Each count names its total.

use crate::lens::{Condition, Study};
use crate::records::{Record, join};
use crate::results::outcomes::Outcomes;
use palimpsest_data::ground::numbers::percent;
use palimpsest_data::ground::words::of_counted;
use palimpsest_run::runs::judge_name::short_judge;
use palimpsest_run::runs::rows::AnswerRow;

/// Answered questions, and all that are asked under the condition.
pub(super) fn answered(condition: &Condition) -> (usize, usize) {
    let records = records(condition);
    (records.iter().filter(|record| record.answer().is_some()).count(), records.len())
}

fn records(condition: &Condition) -> Vec<Record<'_>> {
    let run = &condition.run;
    let verdicts = condition.verdicts();
    join(run.cases(), run.condition(), run.answers(), verdicts.iter().flat_map(|known| known.rows()))
}

/// Clauses on verdicts and on cut answers.
pub(super) fn answers(study: &Study, condition: &Condition) -> String {
    let limit = condition.run.header_text("/identity/sampling/max_new_tokens");
    let cut = cut_in_words(condition.run.answers(), limit.as_deref());
    [Some(right(study, condition)), cut].into_iter().flatten().collect::<Vec<_>>().join("; ")
}

/// `7 of 24 answers were cut at the limit of 64 new tokens`; `None` if none was.
pub fn cut_in_words(rows: &[AnswerRow], limit: Option<&str>) -> Option<String> {
    let answered = rows.iter().filter(|row| row.error.is_none() && row.answer.is_some()).count();
    let cut = rows.iter().filter(|row| row.reached_limit()).count();
    let limit = limit.map(|limit| format!("{limit} ")).unwrap_or_default();
    let were = of_counted(cut, answered, "answer", ["was", "were"]);
    (cut > 0).then(|| format!("{were} cut at the limit of {limit}new tokens"))
}

/// Clause on the verdicts; counts are those of `palimpsest table`.
fn right(study: &Study, condition: &Condition) -> String {
    let unknown = |why: &str| format!("whether the answers are right is not known: {why}");
    let Some(verdicts) = condition.verdicts() else { return unknown("they are not judged") };
    let name = verdicts.name;
    if study.no_result.is_some() {
        return unknown(&format!("{} cannot judge", without_scheme(short_judge(&name.judge))));
    }
    let outcomes = Outcomes::of(study.benchmark, &records(condition), &name.judge);
    let all = outcomes.total();
    let label = name.short_label();
    let judge = without_scheme(&label);
    if all.judged == 0 {
        return unknown(&format!("{judge} gave no verdict"));
    }
    let (right, asked) = (all.correct, all.expected);
    let judged = if all.judged < asked { format!(" ({} judged)", all.judged) } else { String::new() };
    match outcomes.most {
        Some(_) => {
            format!("{asked} answers get {}% of the best score by {judge}{judged}", percent(all.accuracy()))
        }
        None if judged.is_empty() => format!("{right} of {asked} answers are right by {judge}"),
        None => format!("{right} of {asked} questions are answered right by {judge}{judged}"),
    }
}

/// `local:qwen3-8b` gives `qwen3-8b`.
fn without_scheme(judge: &str) -> &str {
    judge.strip_prefix("local:").unwrap_or(judge)
}
