//! KnowMe-Bench: what its build has of its own.
//!
//! ```text
//! text -> blocks -> segments (A) -> units (B) -> timeline (C) -> narrative (D) -> events -> questions -> assemble -> write
//! ```
//!
//! Models cut scenes, extract units, place them in time and tell them; makers and checks here hold them to the text. Makers alone ask for
//! facts, relations that do not hold, durations and orders (T1 to T3) of any events.

mod assemble;
mod events;
mod faithful;
mod fields;
mod life;
mod questions;
mod segments;
mod timeline;
mod units;
mod write;

use super::kind::Maker::{All, Each};
use super::kind::{Kind, write};

pub use faithful::diverges;
pub use segments::{borders, fault};
pub use timeline::{Operation, Placed, placed};

pub const KIND: Kind = Kind {
    name: "knowme",
    presets: &[("full", include_str!("presets/full.toml")), ("search", include_str!("presets/search.toml"))],
    makers: &[
        ("blocks", Each(segments::blocks)),
        ("segments", Each(segments::segments)),
        ("told", Each(units::told)),
        ("timeline", Each(timeline::timeline)),
        ("events", Each(events::events)),
        ("windows", Each(events::windows)),
        ("facts", Each(questions::facts)),
        ("exchanges", Each(questions::exchanges)),
        ("durations", Each(questions::durations)),
        ("orders", Each(questions::orders)),
        ("assemble", All(assemble::assemble)),
    ],
    checks: &[
        ("segments", segments::check),
        ("units", units::check),
        ("operation", timeline::check),
        ("narrative", faithful::check),
        ("cites", events::cites),
    ],
    settings: "abstention block_words divergence durations exchanges facts longest_hours name order orders questions tasks window",
    write: |setting, rows, folder| write(setting, folder, write::data(setting, rows)),
};
