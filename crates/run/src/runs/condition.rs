//! Conditions: variants under which a run asks each probe.

use serde::{Deserialize, Serialize};

use crate::memory::system::{MemoryContext, Show};
use crate::memory::{Memory, View};
use palimpsest_core::attention::Knockout;
use palimpsest_core::evict::{Evict, Keep};
use palimpsest_data::benchmarks::{Benchmark, Context, Retriever, Setting};
use palimpsest_data::case::{Case, Probe};

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Condition {
    /// Letters, digits and hyphens; empty for the plain condition.
    pub name: String,
    /// Zero-based repetition; each has its own sampling stream.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub repetition: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub setting: Option<String>,
    #[serde(default, skip_serializing_if = "is_whole")]
    pub context: Context,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryContext>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub knockout: Option<Knockout>,
    /// Keys that are evicted from the cache before the question.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evict: Option<Evict>,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

fn is_whole(context: &Context) -> bool {
    *context == Context::Whole
}

impl Condition {
    pub const PLAIN: Condition = Condition {
        name: String::new(),
        repetition: 0,
        setting: None,
        context: Context::Whole,
        memory: None,
        knockout: None,
        evict: None,
    };

    pub fn of_setting(setting: &Setting) -> Self {
        Condition {
            name: setting.name.to_owned(),
            setting: Some(setting.name.to_owned()),
            context: setting.context,
            ..Condition::PLAIN
        }
    }

    /// Crosses each of `all` as it is, with each of `knockouts` and with each of `evictions`, with `count` repetitions
    /// (`SETTING-knockout-query-old-repeat-2`).
    pub fn beside(
        all: &[Condition],
        (knockouts, evictions): (&[Knockout], &[Evict]),
        count: u32,
    ) -> Vec<Self> {
        let beside = |one: &Condition, end: String| {
            if one.name.is_empty() { end } else { format!("{}-{end}", one.name) }
        };
        let mut crossed = Vec::new();
        for open in all {
            // No local model answers here, so nothing can be blocked or evicted.
            let (knockouts, evictions) =
                if open.is_answered_by_memory() { (&[][..], &[][..]) } else { (knockouts, evictions) };
            let blocked = |knockout: &Knockout| Condition {
                name: beside(open, knockout.name()),
                knockout: Some(knockout.clone()),
                ..open.clone()
            };
            let evicting = |evict: &Evict| Condition {
                name: beside(open, evict.name()),
                evict: Some(evict.clone()),
                ..open.clone()
            };
            let open = std::iter::once(open.clone());
            for one in open.chain(knockouts.iter().map(blocked)).chain(evictions.iter().map(evicting)) {
                let repeated = |repetition: u32| {
                    let name = beside(&one, format!("repeat-{}", repetition + 1));
                    Condition { name, repetition, ..one.clone() }
                };
                let again: Vec<Condition> = (1..count).map(repeated).collect();
                crossed.push(one);
                crossed.extend(again);
            }
        }
        crossed
    }

    /// A memory system answers by itself, so there is no local model.
    pub fn is_answered_by_memory(&self) -> bool {
        self.memory.as_ref().is_some_and(|memory| memory.show == Show::Answer)
    }

    /// The model sees all of its prompt: nothing is blocked or evicted.
    pub fn is_open(&self) -> bool {
        self.knockout.is_none() && self.evict.is_none()
    }

    pub fn views(&self, memory: &mut Memory, case: &Case) -> Vec<View> {
        memory.views(case, self.setting.as_deref(), self.context, self.memory.as_ref())
    }

    pub fn retrieves_by(&self, retriever: Retriever) -> bool {
        matches!(self.context, Context::Retrieved { by, .. } if by == retriever)
    }

    pub fn segment(&self, benchmark: &Benchmark) -> &'static str {
        if self.memory.is_some() { crate::memory::shown::MEMORY } else { benchmark.segment }
    }

    pub fn shows_as(&self, other: &Condition) -> bool {
        (&self.setting, self.context, &self.memory) == (&other.setting, other.context, &other.memory)
    }

    pub fn label(&self) -> &str {
        label(&self.name)
    }

    /// Clause for captions and pages: setting, context, knock-out, eviction or repetition.
    pub fn in_words(&self, benchmark: &Benchmark) -> String {
        if self.repetition > 0 {
            return format!(
                "the same as {} once more (time {}), with random numbers of its own",
                label(self.base()),
                self.repetition + 1
            );
        }
        let segment = benchmark.segment;
        let about =
            |name: &String| benchmark.all_settings().find(|one| one.name == name).map(|one| one.about);
        let setting = self.setting.as_ref().map(|name| about(name).unwrap_or(name).to_owned());
        let shown = match self.context {
            Context::Whole => "shown the whole history, cut to the context".to_owned(),
            Context::Evidence => format!("shown its evidence and no other {segment}"),
            Context::Nothing => format!("shown no {segment}: the question alone"),
            Context::Retrieved { by, most } => {
                format!("shown no {segment} but the up to {most} that {} finds for it", by.name())
            }
        };
        let shown = match &self.memory {
            None => shown,
            Some(MemoryContext { system, k, show }) => match show {
                Show::Ranked => format!("shown the up to {k} memories that {system} finds for it"),
                Show::Perfect => format!("shown all memories that {system} wrote from its evidence"),
                Show::Native => {
                    format!(
                        "shown the memories that {system} finds for it (k {k}), in {system}'s own wording"
                    )
                }
                Show::Answer => format!("answered by {system} itself"),
            },
        };
        let hidden = self.knockout.as_ref().map(blocked).or_else(|| self.evict.as_ref().map(evicted));
        let parts = match (setting, hidden) {
            (Some(setting), None) => vec![setting, shown],
            (Some(setting), Some(hidden)) => vec![setting, shown, hidden],
            (None, Some(hidden)) => vec![hidden],
            (None, None) => vec![format!("each question {shown}"), "nothing blocked".to_owned()],
        };
        parts.join("; ")
    }

    /// Name of the repeated condition: `repeat-2` gives the plain one, `x-repeat-2` gives `x`.
    pub fn base(&self) -> &str {
        if self.repetition == 0 {
            return &self.name;
        }
        let end = format!("repeat-{}", self.repetition + 1);
        self.name.strip_suffix(&end).map_or(&self.name, |base| base.trim_end_matches('-'))
    }
}

fn blocked(knockout: &Knockout) -> String {
    let Knockout { rows, keys, layers, only } = knockout;
    let who = match only {
        true => format!("the tokens of \u{201c}{rows}\u{201d} and no others,"),
        false => format!("every token from the first of \u{201c}{rows}\u{201d} on, generated ones too,"),
    };
    let layers = match layers {
        None => "at all layers".to_owned(),
        Some(layers) if layers.len() == 1 => format!("only at layer {}", layers.start),
        Some(layers) => format!("only at layers {} to {}", layers.start, layers.end - 1),
    };
    format!("\u{201c}{keys}\u{201d} is hidden from {who} {layers}; the softmax is over the remaining keys")
}

fn evicted(Evict { policy, keep, question }: &Evict) -> String {
    let keep = match keep {
        Keep::Share(share) => format!("{}% of its keys", (share * 1e6).round() / 1e4),
        Keep::Tokens(1) => "1 key".to_owned(),
        Keep::Tokens(tokens) => format!("{tokens} keys"),
    };
    let seen = if *question { "the history and the question" } else { "the history alone" };
    format!(
        "before the question is answered, each key/value head of the layers with full attention keeps {keep} of the history, which the \
         policy {policy} chooses by {seen}, and evicts the others"
    )
}

/// Display name: `plain` for the empty stored name.
pub fn label(name: &str) -> &str {
    if name.is_empty() { "plain" } else { name }
}

/// Inverse of [`label`].
pub fn stored(label: &str) -> &str {
    if label == "plain" { "" } else { label }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Question<'a> {
    pub probe: &'a Probe,
    pub condition: &'a Condition,
}

impl std::fmt::Display for Question<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&named(&self.probe.id, &self.condition.name))
    }
}

/// `SR`, or `SR repeat-2`.
pub fn named(probe: &str, condition: &str) -> String {
    if condition.is_empty() { probe.to_owned() } else { format!("{probe} {condition}") }
}
