//! Specs of dataset builds and all of a build that needs no model: rows, checks, makers, pools of fillers, the files that are published.
//!
//! ```text
//! Spec -> stages: rows -> (maker | ask, checks, judges) -> rows -> data files, provenance
//! ```
//!
//! A spec names its stages in order. Each takes rows of a table of the spec, of a file, or of an earlier stage, and makes rows of them: by a
//! maker of [`table::makers`], or by asking a model (`palimpsest_run::build` asks). Which benchmark is built is known to its row of
//! [`table::KINDS`] and to its makers only.

pub mod checks;
pub mod error;
pub mod expression;
pub mod kind;
pub mod knowme;
pub mod makers;
pub mod memrewardbench;
pub mod pool;
pub mod rating;
pub mod review;
pub mod row;
pub mod setting;
pub mod spec;
mod spec_check;
pub mod stale;
pub mod subtlememory;
pub mod table;

pub use error::{BuildError, RowError};
pub use kind::{Found, Made, Published, Rows, With};
pub use row::Row;
pub use setting::Setting;
pub use spec::{Ask, Role, Spec, Stage};
