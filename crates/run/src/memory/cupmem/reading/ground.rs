//! R6 and R7: decide whether to proceed with a plan, and constrain its answer.
//!
//! R6 may name items that are usable or were recovered by R4, but not blocked or historical ones. Proceeding without any ground becomes
//! BLOCK if the premise is unsafe, otherwise a question. If nothing can ground a plan, no model is asked.

use serde::Deserialize;
use serde_json::{Value, json};

use super::probe::Reading;
use super::retrieve::{Entry, Hit};
use super::verify::{Premise, Verdict};
use crate::memory::cupmem::asking::Stop;
use crate::memory::cupmem::model::Step;
use palimpsest_data::ground::order::unique;
use palimpsest_data::ground::words::folded;

/// Limits on decisive, blocking and supporting items, and on facts.
const DECISIVE: usize = 2;
const BLOCKING: usize = 2;
const SUPPORTING: usize = 1;
const FACTS: usize = 4;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Course {
    Proceed,
    Adjust,
    Block,
    #[default]
    Ask,
}

impl Course {
    pub fn words(self) -> &'static str {
        match self {
            Course::Proceed => "go ahead as asked",
            Course::Adjust => "go ahead with changes",
            Course::Block => "do not go ahead",
            Course::Ask => "ask the user first",
        }
    }
}

#[derive(Default, Deserialize)]
pub struct Grounding {
    pub decision: Course,
    decisive: Vec<String>,
    blocking: Vec<String>,
    supporting: Vec<String>,
    pub facts: Vec<String>,
}

#[derive(Deserialize)]
pub struct Constraints {
    pub must: Vec<String>,
    pub must_not: Vec<String>,
    pub open: Vec<String>,
}

impl Reading<'_, '_> {
    pub fn ground(&mut self, verdict: &Verdict, recovered: &[Hit<'_>]) -> Result<Grounding, Stop> {
        let store = self.store;
        if verdict.usable.is_empty() && recovered.is_empty() && verdict.unknown_slots.is_empty() {
            return Ok(Grounding::default());
        }
        let explains = |hit: &Hit<'_>| match hit.entry {
            Entry::Item(item) if !verdict.usable.contains(&item.id) => Some(item.id.clone()),
            _ => None,
        };
        let explaining: Vec<String> = recovered.iter().filter_map(explains).collect();
        let mut data = self.basis(verdict, &explaining);
        data["goal"] = json!(self.parsed.goal);
        data["options"] = json!(self.parsed.options);
        let mut grounding: Grounding = self.asker.ask(Step::Ground, &data)?;
        let refused = |id: &String| verdict.blocked.contains(id) || verdict.historical.contains(id);
        let Grounding { decision, decisive, blocking, supporting, facts } = &mut grounding;
        for (list, most) in
            [(&mut *decisive, DECISIVE), (&mut *blocking, BLOCKING), (&mut *supporting, SUPPORTING)]
        {
            *list = unique(list.drain(..));
            list.retain(|id| (verdict.usable.contains(id) || explaining.contains(id)) && !refused(id));
            list.truncate(most);
        }
        let refused = verdict.blocked.iter().chain(&verdict.historical).filter_map(|id| store.item(id));
        let refused: Vec<String> = refused.map(|item| folded(&item.value)).collect();
        let repeats = |fact: &String| {
            let fact = folded(fact);
            refused.iter().any(|old| fact.contains(old) || old.contains(&fact))
        };
        facts.retain(|fact| !fact.trim().is_empty() && !repeats(fact));
        facts.truncate(FACTS);
        let groundless = [&*decisive, blocking, supporting, facts].iter().all(|list| list.is_empty());
        if groundless && matches!(decision, Course::Proceed | Course::Adjust) {
            let unsafe_premise = verdict.status == Premise::Outdated || !verdict.premise_safe;
            *decision = if unsafe_premise { Course::Block } else { Course::Ask };
        }
        Ok(grounding)
    }

    pub fn constrain(
        &mut self,
        verdict: &Verdict,
        grounding: Option<&Grounding>,
    ) -> Result<Constraints, Stop> {
        let mut data = self.basis(verdict, &[]);
        data["course"] = json!(grounding.map(|grounding| grounding.decision.words()));
        self.asker.ask(Step::Constraints, &data)
    }

    fn basis(&self, verdict: &Verdict, explaining: &[String]) -> Value {
        let items = |lists: &[&[String]]| -> Value {
            let items = lists.iter().copied().flatten().filter_map(|id| self.store.item(id));
            items.map(|item| json!({ "id": item.id, "value": item.value })).collect()
        };
        json!({
            "query": self.query.text,
            "premise_safe": verdict.premise_safe,
            "usable": items(&[&verdict.usable]),
            "not_current": items(&[&verdict.outdated, &verdict.blocked, &verdict.historical, explaining]),
            "facts": verdict.facts.iter().map(|fact| &fact.text).collect::<Vec<_>>(),
            "unknown": verdict.unknown_slots,
        })
    }
}
