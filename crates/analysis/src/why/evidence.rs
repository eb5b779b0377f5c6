//! Evidence of both sides of a conflict ([`palimpsest_data::benchmarks::LensSpec::sides`]): its place in the context, or where it was lost.
//! For memory systems, [`crate::losses`] has the stages.

use palimpsest_core::attention::AttentionStore;
use palimpsest_core::span::Span;

use super::decide::Presence;
use crate::losses::fact::Known;
use crate::losses::trace::{FactTrace, Stage, Trace};
use palimpsest_data::benchmarks::{Benchmark, Side};
use palimpsest_data::ground::words::phrase;
use palimpsest_run::runs::causes::session_measures::sessions;
use palimpsest_run::runs::plan::{PlannedCase, PlannedProbe};
use palimpsest_run::runs::rows::AnswerRow;

pub fn roles(benchmark: &Benchmark, side: Side) -> Vec<&'static str> {
    let of_side = benchmark.lens.sides.iter().filter(|(_, known)| *known == side);
    of_side.map(|(role, _)| *role).collect()
}

pub fn spans<'a>(store: &'a AttentionStore, roles: &[&str]) -> Vec<&'a Span> {
    let plays = |span: &&Span| span.role.as_deref().is_some_and(|role| roles.contains(&role));
    sessions(store).filter(plays).collect()
}

/// A row's attention mass on a span, averaged over layers and heads.
pub fn mass(store: &AttentionStore, row: &str, span: &Span) -> Option<f64> {
    let row = store.rows.iter().position(|own| own.label == row || own.is(row))?;
    let key = store.keys.iter().position(|key| key.label == span.label)?;
    store.mass.slice(ndarray::s![.., .., row, key]).mean().map(f64::from)
}

pub struct Evidence<'a> {
    pub planned: (&'a PlannedCase, &'a PlannedProbe),
    pub row: &'a AnswerRow,
    pub store: Option<&'a AttentionStore>,
    /// Memory systems only: the stages of each fact.
    pub trace: Option<&'a Trace>,
}

impl Evidence<'_> {
    pub fn presence(&self, benchmark: &Benchmark, side: Side) -> Presence {
        let (case, probe) = self.planned;
        let roles = roles(benchmark, side);
        let planned: Vec<usize> = case
            .evidence_of(probe)
            .filter(|evidence| roles.contains(&evidence.role.as_str()))
            .map(|evidence| evidence.segment)
            .collect();
        if planned.is_empty() {
            return Presence::Absent;
        }
        let found = match self.row.memories {
            Some(_) => match self.trace.and_then(|trace| trace.facts.get(trace.side(side)?)) {
                Some(fact) => of_memory(fact),
                None => Presence::Unclear("the rows of its memory system are missing".to_owned()),
            },
            None => self.of_history(&planned),
        };
        let has_span = || self.store.is_none_or(|store| !spans(store, &roles).is_empty());
        match found {
            Presence::Shown if !has_span() => {
                let why = "no span of its prompt holds this evidence alone, so it cannot be hidden alone";
                Presence::Unclear(why.to_owned())
            }
            found => found,
        }
    }

    fn of_history(&self, planned: &[usize]) -> Presence {
        if planned.iter().any(|segment| self.row.shows(*segment)) {
            return Presence::Shown;
        }
        let retrieved = |context: &Vec<usize>| planned.iter().any(|segment| context.contains(segment));
        let why = match &self.row.context {
            Some(context) if !retrieved(context) => "the newer evidence was not retrieved",
            _ => "the newer evidence was dropped by truncation",
        };
        Presence::Lost(why.to_owned())
    }
}

fn of_memory(fact: &FactTrace) -> Presence {
    let stage = |stage: Stage| {
        let at = Stage::ALL.iter().position(|known| *known == stage);
        at.and_then(|at| fact.stages.get(at)).copied().unwrap_or_default()
    };
    let lost = |why: &str| Presence::Lost(why.to_owned());
    match stage(Stage::Shown) {
        Known::Yes => Presence::Shown,
        Known::Unknown => Presence::Unclear("the sources of its memories are not known".to_owned()),
        Known::No if stage(Stage::Written) == Known::No => {
            lost("the newer evidence was lost in writing: no memory was ever made of it")
        }
        Known::No if stage(Stage::Kept) == Known::No => {
            lost("the newer evidence was lost in writing: no memory of the final store holds it")
        }
        Known::No if stage(Stage::Retrieved) == Known::No => lost("the newer evidence was not retrieved"),
        Known::No => lost("the newer evidence was retrieved and did not fit the context"),
    }
}

/// True if the answer names only the current value, ignoring case and punctuation.
pub fn names_current(row: &AnswerRow) -> bool {
    let (Some(answer), Some(contrast)) = (&row.answer, &row.contrast) else { return false };
    let said = phrase(answer);
    let names = |value: &str| {
        let value = phrase(value);
        !value.trim().is_empty() && said.contains(&value)
    };
    let others = contrast.values().filter(|value| value.text != contrast.current.text);
    names(&contrast.current.text) && !others.into_iter().any(|value| names(&value.text))
}

/// True if the planned question has no evidence on either side, so no certificate exists.
pub fn has_no_evidence(benchmark: &Benchmark, case: &PlannedCase, probe: &PlannedProbe) -> bool {
    let known: Vec<&str> =
        [Side::Newer, Side::Older].into_iter().flat_map(|side| roles(benchmark, side)).collect();
    !case.evidence_of(probe).any(|evidence| known.contains(&evidence.role.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use palimpsest_run::runs::rows::{Contrast, ValueLogP};

    #[test]
    fn an_answer_names_the_current_value_where_it_names_no_other() {
        let value = |text: &str| ValueLogP { text: text.to_owned(), ..ValueLogP::default() };
        let row = |answer: &str| AnswerRow {
            answer: Some(answer.to_owned()),
            contrast: Some(Contrast {
                current: value(" New York"),
                stale: Some(value(" Rome")),
                absent: Some(value(" Oslo")),
                ..Contrast::default()
            }),
            ..AnswerRow::default()
        };
        for (answer, named) in [
            ("It is now new york.", true),
            ("New York, no longer Rome", false),
            ("Newyork", false),
            ("York", false),
            ("", false),
        ] {
            assert_eq!(names_current(&row(answer)), named, "{answer}");
        }
        assert!(!names_current(&AnswerRow { contrast: None, ..row("New York") }));
        assert!(!names_current(&AnswerRow { answer: None, ..row("New York") }));
    }

    #[test]
    fn the_stage_at_which_a_memory_was_lost_is_named() {
        let fact = |stages: [Known; 4]| FactTrace {
            role: String::new(),
            side: Some(Side::Newer),
            sessions: [3].into(),
            writing: Default::default(),
            overwriting: None,
            stages: {
                let [written, kept, retrieved, shown] = stages;
                let open = Known::Unknown;
                [written, kept, retrieved, shown, open, open, open, Known::No]
            },
        };
        use Known::{No, Unknown, Yes};
        assert_eq!(of_memory(&fact([Yes, Yes, Yes, Yes])), Presence::Shown);
        assert!(matches!(of_memory(&fact([Yes, Yes, Yes, Unknown])), Presence::Unclear(_)));
        for (stages, word) in [
            ([No, No, No, No], "ever made"),
            ([Yes, No, No, No], "final store"),
            ([Yes, Yes, No, No], "not retrieved"),
            ([Unknown, Unknown, No, No], "not retrieved"),
            ([Yes, Yes, Yes, No], "did not fit"),
        ] {
            let Presence::Lost(why) = of_memory(&fact(stages)) else { panic!("{stages:?}") };
            assert!(why.contains(word), "{why}");
        }
    }
}
