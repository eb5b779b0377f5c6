//! SubtleMemory (section 2.3 and appendix B of its paper): sets of related facts, told in sessions of long histories, with questions.
//!
//! The steps without a model: the plan of relations, drafts of sessions, trials of the ablation, merge, order and dates.

mod checks;
pub mod merge;
pub mod plan;
pub mod questions;
pub mod sessions;
pub mod spread;
mod write;

use super::kind::{Kind, Maker, write};

pub const KIND: Kind = Kind {
    name: "subtlememory",
    presets: &[("full", include_str!("presets/full.toml"))],
    makers: &[
        ("elements", Maker::Each(plan::elements)),
        ("canonical", Maker::Each(plan::canonical)),
        ("plan", Maker::Each(plan::plan)),
        ("select", Maker::Each(sessions::select)),
        ("drafts", Maker::Each(sessions::drafts)),
        ("trials", Maker::Each(questions::trials)),
        ("questions", Maker::Each(questions::questions)),
        ("merge", Maker::All(merge::merge)),
        ("spread", Maker::All(spread::spread)),
    ],
    checks: &[("told", checks::told)],
    settings: "below candidates days field from lengths most_facts offset relations sampled signals types unknown",
    write: |setting, rows, folder| write(setting, folder, write::data(setting, rows)),
};
