//! Outcomes of probes, as counted by the benchmarks' tables.

use std::collections::BTreeMap;

use super::setting::Context;
use crate::ground::numbers::percent;
use crate::ground::sheet::{Column, Format, Sheet};
use crate::ground::words::of_counted;

/// A planned probe under one condition, run and judge. Includes probes without a clean verdict, which count as wrong.
#[derive(Debug, Clone, Copy)]
pub struct Graded<'a> {
    pub run: &'a str,
    pub model: &'a str,
    pub dataset: &'a str,
    /// Judge and rubric in brackets; `None` without a verdict.
    pub judge: Option<&'a str>,
    /// Empty for the plain setting.
    pub condition: &'a str,
    pub context: Context,
    pub memory: Option<GradedMemory<'a>>,
    pub repetition: u32,
    pub case: &'a str,
    pub probe: &'a str,
    pub labels: &'a BTreeMap<String, String>,
    pub facets: &'a BTreeMap<String, String>,
    pub answered: bool,
    pub answer: Option<&'a str>,
    /// False if the prompt exceeded the context; there is no answer then.
    pub fits: bool,
    pub shown: ShownSegments<'a>,
    pub cut: bool,
    pub correct: Option<bool>,
    pub score: Option<f64>,
    pub choice: Option<&'a str>,
    /// History tokens cut to fit; `None` if nothing was cut or there is no answer.
    pub history_cut: Option<HistoryCut>,
}

impl<'a> Graded<'a> {
    pub fn facet(&self, name: &str) -> Option<&'a str> {
        self.facets.get(name).map(String::as_str)
    }

    pub fn is_right(&self) -> bool {
        self.correct == Some(true)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GradedMemory<'a> {
    pub system: &'a str,
    /// Condition without the system's name: empty (first k of a search), `k5`, `perfect`, `native` or `answer`.
    pub shown: &'a str,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HistoryCut {
    pub dropped: usize,
    /// Total tokens; 0 if unknown.
    pub of: usize,
}

impl HistoryCut {
    pub fn shown(self) -> Option<f64> {
        (self.of > 0).then(|| self.of.saturating_sub(self.dropped) as f64 / self.of as f64)
    }
}

/// Marks numbers based on truncated histories.
pub const CUT_MARK: &str = "\u{2020}";

#[derive(Debug, Clone, Default, PartialEq)]
pub struct CutCount {
    answers: usize,
    cut: usize,
    shown: Vec<f64>,
}

impl CutCount {
    pub fn of(answers: impl Iterator<Item = Option<HistoryCut>>) -> Self {
        let mut count = CutCount::default();
        answers.for_each(|cut| count.add(cut));
        count
    }

    pub fn add(&mut self, cut: Option<HistoryCut>) {
        self.answers += 1;
        self.cut += usize::from(cut.is_some());
        self.shown.extend(cut.and_then(HistoryCut::shown));
    }

    pub fn extend(&mut self, others: &CutCount) {
        self.answers += others.answers;
        self.cut += others.cut;
        self.shown.extend(&others.shown);
    }

    pub fn mark(&self) -> &'static str {
        if self.cut > 0 { CUT_MARK } else { "" }
    }

    pub fn note(&self, name: &str) -> Option<String> {
        if self.cut == 0 {
            return None;
        }
        let (cut, answers, n) = (self.cut, self.answers, self.shown.len());
        let how_much = match n {
            0 => "by how much the run does not say".to_owned(),
            _ => {
                let mean = self.shown.iter().sum::<f64>() / n as f64;
                let least = self.shown.iter().copied().fold(f64::INFINITY, f64::min);
                let most = self.shown.iter().copied().fold(0.0, f64::max);
                format!(
                    "on average {}% of the tokens were shown ({}% to {}%)",
                    percent(mean),
                    percent(least),
                    percent(most)
                )
            }
        };
        let cut = of_counted(cut, answers, "answer", ["was", "were"]);
        Some(format!("{CUT_MARK} {name}: {cut} given to cut histories, {how_much}"))
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ShownSegments<'a> {
    /// Original indices selected by the setting; `None` is the whole history.
    pub context: Option<&'a [usize]>,
    pub dropped: &'a [usize],
    /// Ids of memories shown instead; `None` without a memory system.
    pub memories: Option<&'a [String]>,
}

impl ShownSegments<'_> {
    pub fn same(self, other: Self) -> bool {
        if self.memories.is_some() || other.memories.is_some() {
            return self.memories == other.memories;
        }
        let kept =
            |shown: Self| shown.context.map(|all| all.iter().filter(move |at| !shown.dropped.contains(at)));
        match (kept(self), kept(other)) {
            (None, None) => self.dropped == other.dropped,
            (Some(ours), Some(theirs)) => ours.eq(theirs),
            _ => false,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// File and JSON key: `waterfall`.
    pub key: String,
    pub title: String,
    pub sheet: Sheet,
}

impl Table {
    pub fn written(&self, format: Format) -> Result<String, csv::Error> {
        Ok(format!("{}\n{}", format.title(&self.title), format.of(&self.sheet)?))
    }

    pub fn new(
        key: impl Into<String>,
        title: impl Into<String>,
        columns: Vec<Column>,
        rows: Vec<Vec<Vec<String>>>,
        notes: Vec<String>,
    ) -> Self {
        Table { key: key.into(), title: title.into(), sheet: Sheet { columns, rows, notes } }
    }
}
