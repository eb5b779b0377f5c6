//! A config and weights become a decoder.
//!
//! Here is everything between a name on the command line and a model in memory: which models are known
//! ([`manifest`]), how their files are fetched, verified and found ([`fetch`]), how the files are read
//! ([`weights`]), and what can be said about a model without loading it ([`info`]).

pub mod fetch;
pub mod info;
pub mod manifest;
pub mod weights;
