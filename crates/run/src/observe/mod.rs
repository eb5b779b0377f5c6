//! One pass over a prompt of one's own: a text, a conversation or tokens, with spans that are named by their texts.
//!
//! [`text`] makes tokens and spans of what the user wrote, [`job`] checks what is asked of them, [`pass`] has a model read them and lays
//! the measurements out as tensors, and [`causes`] measures what an answer owes to each span. Called by `palimpsest trace` and by the
//! Python package.

pub mod causes;
pub mod job;
pub mod pass;
pub mod request;
pub mod text;

pub use job::TraceJob;
pub use pass::{TraceTensors, Traced};
pub use request::{Measure, ObserveRequest, TokenName, TokenTarget};
pub use text::{NamedPrompt, NamedSpan, Source, TextTools, prompt};
