//! One observed pass over a user's text, conversation or tokens with named spans.
//!
//! [`text`] tokenises, [`job`] validates the request, [`pass`] runs the model and exports tensors, [`causes`] measures effects of spans on
//! an answer. Called by `palimpsest trace` and the Python package.

pub mod causes;
pub mod job;
pub mod pass;
pub mod request;
pub mod text;

pub use job::TraceJob;
pub use pass::{TraceTensors, Traced};
pub use request::{Measure, ObserveRequest, TokenName, TokenTarget};
pub use text::{NamedPrompt, NamedSpan, Source, TextTools, prompt};
