//! A page over run folders: why is an answer as it is?
//!
//! Served by `palimpsest view` on loopback, also while a run is in progress, or exported as one file. Reads run folders on demand and
//! writes only `trials.jsonl`. Numbers use the lens' definitions.
//!
//! - State: [`state`] (all runs), [`folder`] (one run), [`follow`] (a growing file), [`ranks`] (per-answer files).
//! - Replies: [`replies`], [`runs`], [`table`], [`search`], [`maps`], [`compare`], [`case`] with [`sessions`], [`strip`], [`roles`], [`fields`].
//! - Export: [`take`], [`snippets`], `picture`, [`mod@file`]. Trials: [`trials`], [`ask`], [`reading`]. Serving: `http`, [`page`].

pub mod ask;
pub mod case;
pub mod compare;
pub mod fields;
pub mod file;
pub mod folder;
pub mod follow;
mod http;
pub mod maps;
pub mod page;
#[cfg(feature = "figures")]
pub mod picture;
pub mod ranks;
pub mod reading;
pub mod replies;
pub mod roles;
pub mod runs;
pub mod search;
pub mod sessions;
pub mod snippets;
pub mod state;
pub mod strip;
pub mod table;
pub mod take;
pub mod trials;

pub use http::{NotLocal, Server};
