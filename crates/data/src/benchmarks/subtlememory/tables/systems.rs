//! Groups graded probes by answering system and setting.

use std::collections::{BTreeMap, BTreeSet};

use super::super::settings::{self, SOFT};
use crate::benchmarks::{Context, CutCount, Graded};
use crate::ground::order::entry;

pub(super) type Question<'a> = (&'a str, &'a str);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Group<'a> {
    pub(super) dataset: &'a str,
    pub(super) model: &'a str,
    pub(super) judge: Option<&'a str>,
    pub(super) soft: bool,
}

/// A run, setting and judge: a row of table 1.
#[derive(Debug, Clone)]
pub(super) struct System<'a> {
    pub(super) group: Group<'a>,
    pub(super) run: &'a str,
    /// `None` for the benchmark's own settings.
    pub(super) memory: Option<&'a str>,
    /// Without the wording. For memory systems: [`settings::DEFAULT`] (first k of the search), [`settings::PERFECT`] or another display.
    pub(super) setting: &'a str,
    context: Context,
    pub(super) repetition: u32,
    pub(super) outcomes: BTreeMap<Question<'a>, Graded<'a>>,
}

pub(super) fn systems<'a>(graded: &[Graded<'a>]) -> Vec<System<'a>> {
    let mut systems: Vec<System<'a>> = Vec::new();
    for row in graded {
        let named = row.memory.map_or(row.condition, |memory| memory.shown);
        let (setting, soft) = match named.strip_suffix(SOFT) {
            Some(setting) => (setting, true),
            None => (named, false),
        };
        let memory = row.memory.map(|memory| memory.system);
        let setting = if memory.is_some() && setting.is_empty() { settings::DEFAULT } else { setting };
        let group = Group { dataset: row.dataset, model: row.model, judge: row.judge, soft };
        let same = |system: &System<'_>| {
            system.group == group
                && system.run == row.run
                && system.memory == memory
                && system.setting == setting
                && system.repetition == row.repetition
        };
        let Graded { run, context, repetition, .. } = *row;
        let new = || System { group, run, memory, setting, context, repetition, outcomes: BTreeMap::new() };
        let system = entry(&mut systems, same, new);
        system.outcomes.insert((row.case, row.probe), *row);
    }
    systems
}

impl<'a> System<'a> {
    pub(super) fn questions(&self, holds: impl Fn(&Graded<'_>) -> bool) -> BTreeSet<Question<'a>> {
        self.outcomes.iter().filter(|(_, outcome)| holds(outcome)).map(|(question, _)| *question).collect()
    }

    pub(super) fn cuts(&self, holds: impl Fn(&Graded<'_>) -> bool) -> CutCount {
        let answered = self.outcomes.values().filter(|outcome| outcome.answered && holds(outcome));
        CutCount::of(answered.map(|outcome| outcome.history_cut))
    }

    pub(super) fn cut_note(&self) -> Option<String> {
        self.cuts(|_| true).note(&format!("{} {}", self.run, self.setting()))
    }

    pub(super) fn right(&self) -> BTreeSet<Question<'a>> {
        self.questions(|outcome| outcome.is_right())
    }

    pub(super) fn named(&self) -> &'a str {
        self.memory.unwrap_or(self.run)
    }

    pub(super) fn setting(&self) -> String {
        let mut text = match self.setting {
            settings::DEFAULT if self.memory.is_some() => String::new(),
            "" => "plain".to_owned(),
            settings::FULL => format!("{} (ours)", settings::FULL),
            setting => self.context.named(setting),
        };
        if let Some(memory) = self.memory {
            text = format!("{memory} {text}").trim_end().to_owned();
        }
        if self.group.soft {
            text += ", soft";
        }
        if self.repetition > 0 {
            text += &format!(", repeat {}", self.repetition + 1);
        }
        text
    }

    /// Neither oracle nor perfect.
    pub(super) fn is_system(&self) -> bool {
        !matches!(self.setting, settings::ORACLE | settings::PERFECT)
    }

    /// A system in the paper's sense: answers from a memory, not the full history.
    pub(super) fn is_memory(&self) -> bool {
        self.is_system() && self.setting != settings::FULL
    }

    pub(super) fn repeats(&self, other: &System<'_>) -> bool {
        self.group == other.group
            && (self.run, self.memory, self.setting) == (other.run, other.memory, other.setting)
    }

    /// Questions with an outcome in only one system; empty if they can be paired.
    pub(super) fn unpaired(&self, other: &System<'a>) -> Vec<Question<'a>> {
        let lacks = |of: &System<'a>, question: &Question<'a>| !of.outcomes.contains_key(question);
        let mine = self.outcomes.keys().filter(|question| lacks(other, question));
        let theirs = other.outcomes.keys().filter(|question| lacks(self, question));
        mine.chain(theirs).copied().collect()
    }
}
