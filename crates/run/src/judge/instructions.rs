//! Instructions of a judge: a benchmark's rubric with a template and the position of reasons. Owns the rendered prompt and the digest that
//! verdicts carry; a verdict is valid only for its instructions.

use std::borrow::Cow;

use minijinja::value::Serde;
use minijinja::{UndefinedBehavior, context};

use super::{Exchange, JudgeError};
use crate::runs::plan::PlannedCase;
use crate::runs::rows::RubricRow;
use crate::runs::setup::WrongUsage;
use palimpsest_core::digest::sha256;
use palimpsest_core::text::sandbox::Sandbox;
use palimpsest_data::benchmarks::{Benchmark, JudgeUnit, References, Rubric, VerdictKind};
use palimpsest_data::ground::words::folded;
use palimpsest_data::prompt::JUDGE_FILE;

/// Where a judge's reason stands: of reason and verdict the later one is conditioned on the earlier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Reasons {
    /// Before the verdict, which then rests on it
    First,
    /// After the verdict, which does not rest on it
    #[default]
    Last,
    /// No reason
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
    /// [`Rubric::name`], or the name of [`Instructions::with_template`]. Not in the digest.
    pub name: Cow<'static, str>,
    /// Prompt template, with the variables of [`Rubric::template`] and `reasons` (`first`, `last` or `none`).
    pub template: Cow<'static, str>,
    pub unit: JudgeUnit,
    pub verdict: VerdictKind,
    pub reasons: Reasons,
    /// Canonical thinking settings; `None` by default and for scoring.
    pub thinking: Option<String>,
    /// Reference answers that settle verdicts without a call.
    pub references: Option<References>,
}

impl From<&Rubric> for Instructions {
    fn from(rubric: &Rubric) -> Self {
        let Rubric { name, template, unit, verdict, .. } = *rubric;
        let (name, template, reasons) = (name.into(), template.into(), Reasons::default());
        Instructions { name, template, unit, verdict, reasons, thinking: None, references: None }
    }
}

impl Instructions {
    pub fn of(benchmark: &Benchmark, rubric: &Rubric) -> Self {
        Instructions { references: benchmark.references, ..Instructions::from(rubric) }
    }

    /// Instructions to choose one of these words per probe.
    pub(super) fn of_choice(
        name: &'static str,
        template: &'static str,
        words: &'static [&'static str],
        reasons: Reasons,
    ) -> Self {
        let (unit, verdict) = (JudgeUnit::Probe, VerdictKind::Choice { of: words });
        let (name, template) = (name.into(), template.into());
        Instructions { name, template, unit, verdict, reasons, thinking: None, references: None }
    }

    /// Replaces the template; the name becomes `own-` and the start of its SHA-256.
    #[must_use]
    pub fn with_template(self, template: String) -> Self {
        let digest = sha256(&template);
        let name = format!("own-{}", digest.get(..8).unwrap_or(&digest)).into();
        // A custom template may assign scores to probes differently.
        let verdict = match self.verdict {
            VerdictKind::Score { most, .. } => VerdictKind::Score { most, grades: &[] },
            verdict => verdict,
        };
        Instructions { name, template: template.into(), verdict, ..self }
    }

    /// SHA-256 (lower-case hex) of what human raters must share with the judge.
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

    /// SHA-256 (lower-case hex) of everything that determines a verdict, including a code version.
    pub fn digest(&self) -> String {
        let Instructions { name: _, template, unit, verdict, reasons, thinking, references } = self;
        let of_references = |References { right, wrong }| format!("folded equals {right} or {wrong}\n");
        let references = references.map(of_references).unwrap_or_default();
        let thinking = thinking.as_ref().map(|thinking| format!("thinking {thinking}\n")).unwrap_or_default();
        sha256(format!(
            "palimpsest rubric 2\n{unit:?}\n{verdict:?}\n{reasons:?}\n{thinking}{references}{template}"
        ))
    }

    /// True if the answer equals a right reference, false if it equals a known wrong one, ignoring case and white space; otherwise `None`.
    pub fn settled(&self, exchange: &Exchange) -> Option<bool> {
        let References { right, wrong } = self.references?;
        let answer = Some(folded(exchange.answer.as_deref()?)).filter(|answer| !answer.is_empty())?;
        let equals_one_of = |note: &str| {
            let references = exchange.probe.judge.get(note).and_then(serde_json::Value::as_array);
            let mut texts = references.into_iter().flatten().filter_map(serde_json::Value::as_str);
            texts.any(|text| folded(text) == answer)
        };
        let both = [(right, true), (wrong, false)];
        both.into_iter().find(|(note, _)| equals_one_of(note)).map(|(_, is_right)| is_right)
    }

    /// Defaults: reasons first in a reply, last by scoring.
    pub fn with_reasons(self, asked: Option<Reasons>, replies: bool) -> anyhow::Result<Self> {
        // Scoring writes the reply itself; otherwise the template fixes the key order.
        let by_template = replies && !self.says_where_reasons_stand()?;
        let reasons = match asked {
            Some(_) if by_template => {
                let why = format!(
                    "--reasons has no effect: the judge's template does not use the variable `reasons`; use it in {JUDGE_FILE} \
                     (see docs/commands.md), or drop the flag"
                );
                return Err(WrongUsage(why).into());
            }
            Some(reasons) => reasons,
            None if replies && !by_template => Reasons::First,
            None => Reasons::Last,
        };
        Ok(Instructions { reasons, ..self })
    }

    /// False if the template ignores `reasons`.
    pub fn says_where_reasons_stand(&self) -> Result<bool, JudgeError> {
        Ok(self.compiled()?.reads(JUDGE_FILE, "reasons"))
    }

    fn compiled(&self) -> Result<Sandbox, JudgeError> {
        let failed = |error| JudgeError::Template(format!("{error}"));
        let mut sandbox = Sandbox::new(UndefinedBehavior::Strict).map_err(failed)?;
        sandbox.add_template(JUDGE_FILE, self.template.clone().into_owned()).map_err(failed)?;
        Ok(sandbox)
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
        self.compiled()?.render(JUDGE_FILE, context, bytes).map_err(|error| {
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
