//! CUPMem's variants, steps and ablation switches.
//!
//! [`Variant::Paper`] follows the paper, [`Variant::Code`] the public code. Numbers the paper omits are taken from the code (affected
//! domains, global lane) or left unlimited (confidence cuts, kept proposals).

use std::collections::BTreeSet;
use std::fmt;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Variant {
    /// Four outcomes for older states, no links; reads with R1 to R3 and R8.
    Paper,
    /// Adds weak items, links, recovery and action grounding.
    #[default]
    Code,
}

/// W7 and W8 ask no model; R2 is not a separate step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Step {
    #[serde(rename = "W1")]
    Spans,
    #[serde(rename = "W2")]
    Candidates,
    #[serde(rename = "W3")]
    LocalUpdate,
    #[serde(rename = "W4")]
    Affected,
    #[serde(rename = "W5")]
    Proposals,
    #[serde(rename = "W6")]
    Adjudicate,
    #[serde(rename = "W7")]
    Arbitrate,
    #[serde(rename = "W8")]
    Apply,
    #[serde(rename = "W9")]
    Links,
    #[serde(rename = "R1")]
    Parse,
    #[serde(rename = "R3")]
    Verify,
    #[serde(rename = "R4")]
    Recover,
    #[serde(rename = "R5")]
    VerifyAgain,
    #[serde(rename = "R6")]
    Ground,
    #[serde(rename = "R7")]
    Constraints,
    #[serde(rename = "R8")]
    Answer,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// A part that can be taken away, by the name that users type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, ValueEnum)]
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

impl fmt::Display for Switch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Settings {
    pub variant: Variant,
    pub without: BTreeSet<Switch>,
    pub seed: u64,
    /// Maximum tokens of a reply. The default fits two spans' candidates or three proposals with reasons.
    pub max_new_tokens: usize,
    /// Send JSON schemas to the server. Turn off for servers that reject them; the prompts state them anyway.
    pub json_schema: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            variant: Variant::default(),
            without: BTreeSet::new(),
            seed: 0,
            max_new_tokens: 1024,
            json_schema: true,
        }
    }
}

impl Settings {
    /// Parses `paper`, `code`, switch names and `no-schema`, separated by commas. Empty means `code`.
    pub fn parse(words: &str) -> Result<Self, String> {
        let mut settings = Settings::default();
        for word in words.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            match word {
                "paper" => settings.variant = Variant::Paper,
                "code" => settings.variant = Variant::Code,
                "no-schema" => settings.json_schema = false,
                _ => {
                    let known: Vec<String> = Switch::value_variants().iter().map(Switch::to_string).collect();
                    let switch = Switch::from_str(word, false).map_err(|_| {
                        format!(
                            "cupmem has no setting `{word}`; give paper or code, and of {}, no-schema as many as wanted",
                            known.join(", ")
                        )
                    })?;
                    settings.without.insert(switch);
                }
            }
        }
        Ok(settings)
    }

    pub fn lacks(&self, switch: Switch) -> bool {
        self.without.contains(&switch)
    }

    pub fn is_code(&self) -> bool {
        self.variant == Variant::Code
    }

    pub fn adjudicates(&self) -> bool {
        !self.lacks(Switch::ReadoutOnly)
    }

    pub fn links(&self) -> bool {
        self.is_code() && self.adjudicates() && !self.lacks(Switch::NoLinks)
    }

    /// Entries retrieved first per probe (R2).
    pub fn retrieved(&self) -> usize {
        if self.is_code() { 8 } else { 10 }
    }
}

impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_code() { "code" } else { "paper" })?;
        self.without.iter().try_for_each(|switch| write!(f, "-{switch}"))?;
        f.write_str(if self.json_schema { "" } else { "-no-schema" })
    }
}
