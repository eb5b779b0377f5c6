//! Variants of CUPMem and the switches that take parts of it away.
//!
//! [`Variant::Paper`] is the method as the paper describes it, [`Variant::Code`] as its public code has it. Where the paper gives no number, the
//! constants of the code stand (affected domains, the global lane), or none (cuts by confidence, proposals kept).

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

/// Whose CUPMem it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Variant {
    /// The paper's text: four outcomes for older states, no links, a readout of R1 to R3 and R8.
    Paper,
    /// The public code's: weak items, links, recovery, grounding of actions.
    #[default]
    Code,
}

impl Variant {
    /// Entries that a probe retrieves first (R2).
    pub fn retrieved(self) -> usize {
        match self {
            Variant::Paper => 10,
            Variant::Code => 8,
        }
    }
}

/// A part that can be taken away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Switch {
    /// No W4: proposals come from the domains touched directly and from the global lane.
    NoAffected,
    /// No global lane in W5.
    NoGlobal,
    NoUnknown,
    /// No W9.
    NoLinks,
    /// No R3 and no R5: retrieved active items are usable, retrieved stale ones are not.
    NoVerifier,
    /// No R4.
    NoRecovery,
    /// An append-only store: W1 and W2, then every candidate is added. Reading is whole.
    ReadoutOnly,
    /// CUPMem's store; a search gives its active items by similarity, and no model is asked in reading.
    StoreOnly,
}

impl Switch {
    /// All of them.
    pub const ALL: [Switch; 8] = [
        Switch::NoAffected,
        Switch::NoGlobal,
        Switch::NoUnknown,
        Switch::NoLinks,
        Switch::NoVerifier,
        Switch::NoRecovery,
        Switch::ReadoutOnly,
        Switch::StoreOnly,
    ];

    /// As users type it.
    pub fn name(self) -> &'static str {
        match self {
            Switch::NoAffected => "no-affected",
            Switch::NoGlobal => "no-global",
            Switch::NoUnknown => "no-unknown",
            Switch::NoLinks => "no-links",
            Switch::NoVerifier => "no-verifier",
            Switch::NoRecovery => "no-recovery",
            Switch::ReadoutOnly => "readout-only",
            Switch::StoreOnly => "store-only",
        }
    }
}

/// A CUPMem.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    pub variant: Variant,
    #[serde(default)]
    pub without: BTreeSet<Switch>,
    /// Of the model's sampler, which only W5 draws from.
    #[serde(default)]
    pub seed: u64,
    /// Most tokens of a reply.
    #[serde(default = "max_new_tokens")]
    pub max_new_tokens: usize,
    /// Are replies held to JSON schemas by the server? Where it refuses schemas, say no: the prompts state them all the same.
    #[serde(default = "yes")]
    pub json_schema: bool,
}

/// Enough for two spans' candidates or three proposals with their reasons; a reply that needs more has run away.
fn max_new_tokens() -> usize {
    1024
}

fn yes() -> bool {
    true
}

impl Default for Settings {
    fn default() -> Self {
        Settings::new(Variant::default())
    }
}

impl Settings {
    /// A variant, whole.
    pub fn new(variant: Variant) -> Self {
        Settings {
            variant,
            without: BTreeSet::new(),
            seed: 0,
            max_new_tokens: max_new_tokens(),
            json_schema: true,
        }
    }

    /// From words as users type them: `paper`, `code`, the switches' names, `no-schema`; separated by commas. Nothing is `code`, whole.
    pub fn parse(words: &str) -> Result<Self, String> {
        let mut settings = Settings::default();
        for word in words.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            match word {
                "paper" => settings.variant = Variant::Paper,
                "code" => settings.variant = Variant::Code,
                "no-schema" => settings.json_schema = false,
                _ => {
                    let switch = Switch::ALL.into_iter().find(|switch| switch.name() == word);
                    let known = Switch::ALL.map(Switch::name).join(", ");
                    settings.without.insert(switch.ok_or_else(|| {
                        format!(
                            "cupmem has no setting `{word}`; give paper or code, and of {known}, no-schema as many as wanted"
                        )
                    })?);
                }
            }
        }
        Ok(settings)
    }

    /// The same without a part.
    #[must_use]
    pub fn without(mut self, switch: Switch) -> Self {
        self.without.insert(switch);
        self
    }

    /// Is the switch thrown?
    pub fn lacks(&self, switch: Switch) -> bool {
        self.without.contains(&switch)
    }

    /// Is it the code's variant?
    pub fn is_code(&self) -> bool {
        self.variant == Variant::Code
    }

    /// Are older items adjudicated at all?
    pub fn adjudicates(&self) -> bool {
        !self.lacks(Switch::ReadoutOnly)
    }

    /// Are updates linked to stale items (W9)?
    pub fn links(&self) -> bool {
        self.is_code() && self.adjudicates() && !self.lacks(Switch::NoLinks)
    }
}

impl fmt::Display for Settings {
    /// `code`, `paper-no-global`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_code() { "code" } else { "paper" })?;
        self.without.iter().try_for_each(|switch| write!(f, "-{}", switch.name()))?;
        f.write_str(if self.json_schema { "" } else { "-no-schema" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_as_they_are_typed_and_a_wrong_word_is_named() {
        let settings = Settings::parse("paper, no-global,store-only").unwrap();
        assert_eq!(settings.to_string(), "paper-no-global-store-only");
        assert_eq!(Settings::parse("").unwrap(), Settings::new(Variant::Code));
        assert!(Settings::parse("no-sense").unwrap_err().contains("`no-sense`"));
        for switch in Switch::ALL {
            assert!(Settings::parse(switch.name()).unwrap().lacks(switch));
            assert_eq!(serde_json::to_value(switch).unwrap(), switch.name());
        }
    }
}
