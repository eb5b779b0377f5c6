//! HTTP servers: the OpenAI-compatible API with attention by span ([`api`]), and the page over run folders ([`view`]).

pub mod api;
pub mod view;
