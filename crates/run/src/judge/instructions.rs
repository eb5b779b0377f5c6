//! Instructions of a judge: a benchmark's rubric, with a template and a place for reasons of the caller's choice.
//!
//! Owns the rendering of the judge's prompt and the digest that verdicts carry. A verdict counts for the instructions that it was
//! given by, and for no others.

use std::borrow::Cow;

use minijinja::value::Serde;
use minijinja::{Environment, UndefinedBehavior, context};

use super::{Exchange, JudgeError};
use crate::runs::plan::PlannedCase;
use crate::runs::rows::RubricRow;
use crate::runs::setup::WrongUsage;
use palimpsest_core::digest::sha256;
use palimpsest_core::text::sandbox;
use palimpsest_data::benchmarks::{Benchmark, JudgeUnit, References, Rubric, VerdictKind};
use palimpsest_data::ground::words::folded;
use palimpsest_data::prompt::JUDGE_FILE;

/// Where a judge's reason stands: of reason and verdict the later one is conditioned on the earlier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Reasons {
    /// Before the verdict, which is then conditioned on it
    First,
    /// After the verdict, which is then free of it
    #[default]
    Last,
    /// Nowhere
    None,
}

impl Reasons {
    pub fn name(self) -> &'static str {
        match self {
            Reasons::First => "first",
            Reasons::Last => "last",
            Reasons::None => "none",
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Instructions {
    /// The rubric's name ([`Rubric::name`]); of a template of the caller's own [`Instructions::with_template`]. No part of the digest.
    pub name: Cow<'static, str>,
    /// Template of the judge's prompt: the variables of [`Rubric::template`], and `reasons` (`first`, `last` or `none`).
    pub template: Cow<'static, str>,
    pub unit: JudgeUnit,
    pub verdict: VerdictKind,
    pub reasons: Reasons,
    /// Thinking settings in a canonical text; `None` where the judge is told nothing or is read by scoring.
    pub thinking: Option<String>,
    /// The reference answers that settle a verdict without a call; `None` where the judge decides all.
    pub references: Option<References>,
}

impl From<&Rubric> for Instructions {
    /// The rubric alone, with reasons after the verdicts: the judge decides all.
    fn from(rubric: &Rubric) -> Self {
        let Rubric { name, template, unit, verdict, .. } = *rubric;
        Instructions {
            name: name.into(),
            template: template.into(),
            unit,
            verdict,
            reasons: Reasons::default(),
            thinking: None,
            references: None,
        }
    }
}

impl Instructions {
    /// A rubric of a benchmark, with the benchmark's reference answers.
    pub fn of(benchmark: &Benchmark, rubric: &Rubric) -> Self {
        Instructions { references: benchmark.references, ..Instructions::from(rubric) }
    }

    /// Instructions to choose one of these words for each probe.
    pub(super) fn of_choice(
        name: &'static str,
        template: &'static str,
        words: &'static [&'static str],
        reasons: Reasons,
    ) -> Self {
        Instructions {
            name: name.into(),
            template: template.into(),
            unit: JudgeUnit::Probe,
            verdict: VerdictKind::Choice { of: words },
            reasons,
            thinking: None,
            references: None,
        }
    }

    /// The same with a template of the caller's own, named `own-` and the beginning of its SHA-256.
    #[must_use]
    pub fn with_template(self, template: String) -> Self {
        let digest = sha256(&template);
        let name = format!("own-{}", digest.get(..8).unwrap_or(&digest)).into();
        // Which scores another text gives to which probes is not known.
        let verdict = match self.verdict {
            VerdictKind::Score { most, .. } => VerdictKind::Score { most, grades: &[] },
            verdict => verdict,
        };
        Instructions { name, template: template.into(), verdict, ..self }
    }

    /// SHA-256 (lower-case hexadecimal) of what people who rate the same answers must share with the judge.
    pub fn criteria(&self) -> String {
        let Instructions { template, verdict, .. } = self;
        sha256(format!("palimpsest criteria 1\n{verdict:?}\n{template}"))
    }

    pub fn row(&self) -> RubricRow {
        RubricRow {
            rubric: self.digest(),
            name: self.name.clone().into_owned(),
            criteria: self.criteria(),
            reasons: self.reasons.name().to_owned(),
            thinking: self.thinking.clone(),
            accepted: self.references.map(|references| references.right.to_owned()),
            rejected: self.references.map(|references| references.wrong.to_owned()),
            template: self.template.clone().into_owned(),
        }
    }

    /// SHA-256 (lower-case hexadecimal) of everything that decides a verdict, with a version of this code.
    pub fn digest(&self) -> String {
        let Instructions { name: _, template, unit, verdict, reasons, thinking, references } = self;
        let of_references = |References { right, wrong }| format!("folded equals {right} or {wrong}\n");
        let references = references.map(of_references).unwrap_or_default();
        let thinking = thinking.as_ref().map(|thinking| format!("thinking {thinking}\n")).unwrap_or_default();
        sha256(format!(
            "palimpsest rubric 2\n{unit:?}\n{verdict:?}\n{reasons:?}\n{thinking}{references}{template}"
        ))
    }

    /// The verdict on an answer that equals a reference answer, letter case and white space aside: right where it equals a right one, else
    /// wrong where it equals a known wrong one. `None` of others, which the judge decides.
    pub fn settled(&self, exchange: &Exchange) -> Option<bool> {
        let References { right, wrong } = self.references?;
        let answer = folded(exchange.answer.as_deref()?);
        let equals_one_of = |note: &str| {
            let references = exchange.probe.judge.get(note).and_then(serde_json::Value::as_array);
            let mut texts = references.into_iter().flatten().filter_map(serde_json::Value::as_str);
            !answer.is_empty() && texts.any(|text| folded(text) == answer)
        };
        if equals_one_of(right) { Some(true) } else { equals_one_of(wrong).then_some(false) }
    }

    /// The same with reasons where they are asked for, or else where a judge gives them: first in a reply, last where it is read by scoring.
    pub fn with_reasons(self, asked: Option<Reasons>, replies: bool) -> anyhow::Result<Self> {
        // The reply of a judge that is read by scoring is written for it; in any other the order of keys is what the template asks for.
        let by_template = replies && !self.says_where_reasons_stand()?;
        let reasons = match asked {
            Some(_) if by_template => {
                let why = format!(
                    "--reasons has no effect: the judge's template does not use the variable `reasons`; use it in {JUDGE_FILE} \
                     (see docs/prompts.md), or drop the flag"
                );
                return Err(WrongUsage(why).into());
            }
            Some(reasons) => reasons,
            None if replies && !by_template => Reasons::First,
            None => Reasons::Last,
        };
        Ok(Instructions { reasons, ..self })
    }

    /// True if the template says where reasons stand. One that does not asks for the same reply whatever `reasons` is.
    pub fn says_where_reasons_stand(&self) -> Result<bool, JudgeError> {
        let environment = self.compiled()?;
        let template = environment.get_template(JUDGE_FILE);
        Ok(template.is_ok_and(|template| template.undeclared_variables(false).contains("reasons")))
    }

    fn compiled(&self) -> Result<Environment<'static>, JudgeError> {
        let failed = |error| JudgeError::Template(format!("{error}"));
        let mut environment = sandbox::environment(UndefinedBehavior::Strict).map_err(failed)?;
        let template = self.template.clone().into_owned();
        sandbox::add_template(&mut environment, JUDGE_FILE, template).map_err(failed)?;
        Ok(environment)
    }

    pub fn prompt(&self, case: &PlannedCase, exchanges: &[Exchange]) -> Result<String, JudgeError> {
        let probe = |Exchange { probe, answer, cut }: &Exchange| {
            context! {
                id => probe.id.as_str(),
                query => probe.query.as_str(),
                answer => answer.as_deref().unwrap_or(""),
                cut => cut,
                values => self.verdict.values(&probe.facets),
                facets => &probe.facets,
                ..minijinja::Value::from(Serde(&probe.judge))
            }
        };
        let probes: Vec<minijinja::Value> = exchanges.iter().map(probe).collect();
        let context = context! {
            probes => probes,
            labels => &case.labels,
            reasons => self.reasons.name(),
            ..minijinja::Value::from(Serde(&case.judge))
        };
        let notes: usize = case.judge.values().map(|note| note.to_string().len()).sum();
        let of_exchange = |Exchange { probe, answer, .. }: &Exchange| {
            let notes: usize = probe.judge.values().map(|note| note.to_string().len()).sum();
            probe.query.len() + answer.as_deref().map_or(0, str::len) + notes
        };
        let bytes = notes + exchanges.iter().map(of_exchange).sum::<usize>();
        sandbox::render(&self.compiled()?, JUDGE_FILE, context, bytes).map_err(|error| {
            let notes = case.judge.keys().map(String::as_str);
            let known: Vec<&str> = ["probes", "labels", "reasons"].into_iter().chain(notes).collect();
            JudgeError::Template(format!(
                "{error} (case {}); the variables of {JUDGE_FILE} are {}",
                case.case,
                known.join(", ")
            ))
        })
    }
}
