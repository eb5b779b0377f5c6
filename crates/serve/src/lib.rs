//! HTTP: the OpenAI-compatible server with attention by span ([`serve`]), and the page over run folders ([`view`]).

pub mod api;
pub mod view;
