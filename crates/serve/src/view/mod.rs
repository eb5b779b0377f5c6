//! A page over run folders: why is an answer as it is?
//!
//! Served by `palimpsest view` on loopback, also while a run is in progress, or exported as one file. Reads run folders on demand and
//! writes only `trials.jsonl`. Numbers use the lens' definitions.
//!
//! - State: [`state`] (all runs), [`folder`] (one run), [`follow`] (a growing file), [`ranks`] (per-answer files).
//! - Replies: [`replies`], [`runs`], [`table`], [`search`], [`maps`], [`compare`], [`case`] with [`sessions`], [`strip`], [`attention`], [`fields`];
//!   [`mod@overview`], which a maker given to the server writes.
//! - Export: [`mod@file`]. Trials: [`ask`], [`reading`]. Serving: `http`, [`access`], [`page`].

pub mod access;
pub mod ask;
pub mod attention;
pub mod case;
pub mod compare;
pub mod fields;
pub mod file;
pub mod folder;
pub mod follow;
mod http;
pub mod maps;
pub mod overview;
pub mod page;
pub mod ranks;
pub mod reading;
pub mod replies;
pub mod runs;
pub mod search;
pub mod sessions;
pub mod state;
pub mod strip;
pub mod table;

pub use http::{ModelSlot, NotLocal, Server};
