//! One observed pass over a user's text, conversation or tokens with named spans.
//!
//! [`text`] tokenises, [`job`] validates the request, [`pass`] runs the model and exports tensors, [`hidden`] says what knock-outs hide,
//! [`compare`] runs with and without them, [`causes`] measures effects of spans on an answer, [`dump`] holds another engine's numbers
//! against ours, [`choices`] reads what indexers chose. Called by `palimpsest trace` and the Python package.

pub mod causes;
pub mod choices;
pub mod compare;
pub mod dump;
pub mod hidden;
pub mod job;
pub mod pass;
pub mod request;
pub mod text;

pub use choices::Choices;
pub use compare::{AnswerEffect, Compared};
pub use dump::{Difference, Dump, table as difference_table};
pub use hidden::Hidden;
pub use job::TraceJob;
pub use pass::{TraceTensors, Traced};
pub use request::{Measure, ObserveRequest, TokenName, TokenTarget};
pub use text::{NamedPrompt, NamedSpan, Source, TextTools, prompt};
