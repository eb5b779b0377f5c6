//! STALE: what its build has of its own. Rows have the fields of STALE's own rows (`type`, `M_old`, `M_new`, `explanation`,
//! `probing_queries`), `category` and `attribute`, `old_session` and `new_session`.
//!
//! ```text
//! rounds -> dialogue | candidates -> place -> haystack -> times -> write
//! ```

mod fillers;
mod haystack;
mod sessions;
mod terms;
mod write;

use super::kind::{Kind, Maker};

pub const KIND: Kind = Kind {
    name: "stale",
    presets: &[
        ("stale", include_str!("presets/stale.toml")),
        ("haystack", include_str!("presets/haystack.toml")),
    ],
    makers: &[
        ("scenario", Maker::Each(sessions::scenario)),
        ("rounds", Maker::Each(sessions::rounds)),
        ("dialogue", Maker::Each(sessions::dialogue)),
        ("candidates", Maker::Each(fillers::candidates)),
        ("place", Maker::Each(haystack::place)),
        ("haystack", Maker::Each(haystack::haystack)),
        ("times", Maker::Each(haystack::times)),
    ],
    checks: &[("told", sessions::told)],
    settings: "distance from offer positions quotas sessions tail texts tokens values",
    write: write::write,
};
