//! Effects of sessions on answers through the thought before them: whole, direct, by sentences, and beside them two-hop attention.
//!
//! Effects are in nats per token. They are averaged over a role's sessions and a case's answers, then over cases; shares are ratios of these
//! means. Sentences are grouped by thirds of their thought.

use std::collections::BTreeMap;
use std::path::Path;

use super::{OTHERS, estimate, mean};
use crate::lens::band::{Estimate, Numbers};
use palimpsest_data::ground::jsonl::read_rows;
use palimpsest_data::ground::order::sorted_unique;
use palimpsest_data::ground::sheet::{Columns, Sheet};
use palimpsest_data::statistics::means;
use palimpsest_data::statistics::rank::spearman;
use palimpsest_run::runs::causes::rows::{CauseRows, ThoughtPath, ThoughtRow};
use palimpsest_run::runs::causes::two_hop::{ONE_HOP, ScoreRow, THOUGHT_SCORES, TWO_HOPS};
use palimpsest_run::runs::error::RunError;
use palimpsest_run::runs::rows::AnswerKey;

const THIRDS: [&str; 3] = ["first", "middle", "last"];

/// A session, or a sentence that was hidden from the answer.
#[derive(Debug, Clone, Default)]
struct Effects {
    case: String,
    role: String,
    whole: Option<f64>,
    direct: Option<f64>,
    /// By sentence: drop with the session hidden from its rows too.
    carried: BTreeMap<usize, f64>,
    sentences: usize,
    one_hop: Option<f64>,
    two_hops: Option<f64>,
}

impl Effects {
    fn through(&self) -> Option<f64> {
        Some(self.whole? - self.direct?)
    }

    /// Sum over the sentences of a third of what each carries beyond the direct effect; `None` unless all sentences were measured.
    fn carried(&self, third: usize) -> Option<f64> {
        let direct = self.direct.filter(|_| self.sentences > 0 && self.carried.len() == self.sentences)?;
        let of_third = self.carried.iter().filter(|(nth, _)| third_of(**nth, self.sentences) == third);
        Some(of_third.map(|(_, drop)| drop - direct).sum())
    }
}

fn third_of(sentence: usize, sentences: usize) -> usize {
    THIRDS.len() * sentence / sentences.max(1)
}

/// All answers with a measured thought.
#[derive(Debug, Clone, Default)]
pub struct Thoughts {
    answers: BTreeMap<AnswerKey, BTreeMap<String, Effects>>,
    /// Case, third, and drop without each sentence's keys.
    used: Vec<(String, usize, f64)>,
}

impl Thoughts {
    pub fn read(dir: &Path) -> Result<Self, RunError> {
        Ok(Thoughts::of(CauseRows::read(dir)?.thoughts, read_rows(dir, THOUGHT_SCORES)?))
    }

    fn of(rows: Vec<ThoughtRow>, scores: Vec<ScoreRow>) -> Self {
        let mut found = Thoughts::default();
        for ThoughtRow { answer, path, span, role, sentence, sentences, effect, .. } in rows {
            let (case, drop) = (answer.case.clone(), effect.log_p_drop);
            if path == ThoughtPath::Used {
                found.used.extend(sentence.map(|nth| (case, third_of(nth, sentences), drop)));
                continue;
            }
            let role = role.unwrap_or_else(|| OTHERS.to_owned());
            let new = || Effects { case, role, sentences, ..Effects::default() };
            let own = found.answers.entry(answer).or_default().entry(span).or_insert_with(new);
            match (path, sentence) {
                (ThoughtPath::Whole, _) => own.whole = Some(drop),
                (ThoughtPath::Direct, _) => own.direct = Some(drop),
                (ThoughtPath::Carried, Some(nth)) => _ = own.carried.insert(nth, drop),
                _ => {}
            }
        }
        for ScoreRow { answer, method, scores } in scores {
            let Some(own) = found.answers.get_mut(&answer) else { continue };
            for (span, effects) in own {
                let score = scores.get(span).copied();
                match &*method {
                    ONE_HOP => effects.one_hop = score,
                    TWO_HOPS => effects.two_hops = score,
                    _ => {}
                }
            }
        }
        found
    }

    /// Mean by case of each of N numbers, of a role's sessions that have all of them.
    fn by_case<const N: usize>(
        &self,
        role: &str,
        of: impl Fn(&Effects) -> Option<[f64; N]>,
    ) -> Vec<[f64; N]> {
        let mut cases: BTreeMap<&str, Vec<[f64; N]>> = BTreeMap::new();
        for one in self.answers.values().flat_map(BTreeMap::values).filter(|one| one.role == role) {
            cases.entry(&one.case).or_default().extend(of(one));
        }
        let cases = cases.into_values().filter(|all| !all.is_empty());
        cases
            .map(|all| {
                std::array::from_fn(|nth| all.iter().map(|one| one[nth]).sum::<f64>() / all.len() as f64)
            })
            .collect()
    }

    fn mean(&self, role: &str, of: impl Fn(&Effects) -> Option<f64>) -> Option<Estimate> {
        let values = self.by_case(role, |one| Some([of(one)?])).into_iter().map(|[value]| value);
        estimate(&values.collect::<Vec<_>>(), Numbers::Signed)
    }

    fn share(&self, role: &str, of: impl Fn(&Effects) -> Option<[f64; 2]>) -> Option<Estimate> {
        let pairs = self.by_case(role, of).into_iter().map(|[over, under]| (over, under));
        Some(Estimate::ratio(pairs, means::signed_ratio)).filter(|share| share.n > 0)
    }

    /// Spearman's correlation of a score with the whole effect within each answer; mean by case.
    fn ranks(&self, of: impl Fn(&Effects) -> Option<f64>) -> Option<Estimate> {
        let mut cases: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
        for (answer, sessions) in &self.answers {
            let pairs = sessions.values().filter_map(|one| Some((of(one)?, one.whole?)));
            let (scores, effects): (Vec<f64>, Vec<f64>) = pairs.unzip();
            cases.entry(&answer.case).or_default().extend(spearman(&scores, &effects));
        }
        let means: Vec<f64> = cases.into_values().filter_map(|all| mean(all.into_iter())).collect();
        estimate(&means, Numbers::Correlation)
    }

    /// Role, name and estimate of each number.
    fn numbers(&self) -> Vec<(&str, String, Estimate)> {
        let mut all: Vec<(&str, String, Option<Estimate>)> = Vec::new();
        let roles = self.answers.values().flat_map(BTreeMap::values).map(|one| one.role.as_str());
        for role in sorted_unique(roles) {
            let mut add = |name: &str, found| all.push((role, name.to_owned(), found));
            add("whole", self.mean(role, |one| one.whole));
            add("direct", self.mean(role, |one| one.direct));
            add("through the thought", self.mean(role, Effects::through));
            add("through / whole", self.share(role, |one| Some([one.through()?, one.whole?])));
            for (nth, third) in THIRDS.iter().enumerate() {
                let share = self.share(role, |one| Some([one.carried(nth)?, one.through()?]));
                add(
                    &format!("carried by the {third} third of sentences"),
                    self.mean(role, |one| one.carried(nth)),
                );
                add(&format!("carried by the {third} third / through"), share);
            }
            add(TWO_HOPS, self.mean(role, |one| one.two_hops));
            let share = |one: &Effects| Some([one.two_hops? - one.one_hop?, one.two_hops?]);
            add("through / whole by two-hop attention", self.share(role, share));
        }
        let mut add = |name: String, found| all.push(("", name, found));
        for (name, of) in
            [(ONE_HOP, (|one| one.one_hop) as fn(&Effects) -> _), (TWO_HOPS, |one| one.two_hops)]
        {
            add(format!("rank correlation of {name} with whole"), self.ranks(of));
        }
        for (nth, third) in THIRDS.iter().enumerate() {
            let mut cases: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
            for (case, _, drop) in self.used.iter().filter(|(_, at, _)| *at == nth) {
                cases.entry(case).or_default().push(*drop);
            }
            let means: Vec<f64> = cases.into_values().filter_map(|all| mean(all.into_iter())).collect();
            let name = format!("a sentence of the {third} third hidden from the answer");
            add(name, estimate(&means, Numbers::Signed));
        }
        all.into_iter().filter_map(|(role, name, found)| Some((role, name, found?))).collect()
    }

    fn sheet(&self) -> Sheet {
        let signed = |value: f64| format!("{value:+.4}");
        Columns::of(&self.numbers())
            .text("session", |(role, ..)| *role)
            .text("number", |(_, name, _)| &**name)
            .number("cases", |(.., found)| found.n)
            .number("value", |(.., found)| found.value.map_or("-".to_owned(), signed))
            .number("95% interval", |(.., found)| {
                found
                    .band
                    .map_or("-".to_owned(), |(low, high)| format!("[{}, {}]", signed(low), signed(high)))
            })
            .sheet(Vec::new())
    }

    pub fn text(&self) -> String {
        let about = "effects in nats per token of the answer, with the thought's text as it was; / is a ratio of means over cases";
        format!("{}\n{about}", self.sheet().text().trim_end())
    }
}
