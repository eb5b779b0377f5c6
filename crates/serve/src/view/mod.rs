//! A page over run folders, on which to find out why an answer is as it is.
//!
//! `palimpsest view` serves it on this machine alone, also while a run is being written; or one file holds it with what it shows. The files of
//! a run are its whole truth: rows are read by their places, attention a file at a time, numbers are the lens'. Called by the command `view`;
//! it changes nothing but `trials.jsonl`, to which trials are appended.
//!
//! - [`state`]: the runs, looked at again. [`folder`]: one run. [`follow`]: a file that grows. [`ranks`]: what a file an answer tells.
//! - [`runs`], [`table`], [`search`], [`case`], [`maps`], [`compare`]: what the page asks for. [`sessions`], [`strip`], [`roles`]: parts of a case.
//!   [`fields`]: their objects.
//! - [`take`], [`snippets`], `picture`, [`mod@file`]: what one takes away. [`trials`]: answers asked again, by [`ask`] and [`reading`].
//! - [`replies`]: addresses and what they answer. `http`: the server. [`page`]: the page.

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
