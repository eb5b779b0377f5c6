//! CUPMem, the memory system that the STALE paper proposes (section 5, appendix F): a typed store of the user's states, in which later evidence ends
//! earlier states when it is written, not when it is asked for.
//!
//! - Writing ([`writing`]), a session at a time: W1 spans, W2 candidates, W3 the update of a candidate's own slot, W4 affected domains, W5 proposals
//!   of older items that may have ended, W6 a verdict on each, W7 arbitration, W8 application, W9 links.
//! - Reading ([`reading`]), a probe at a time: R1 parsing, R2 retrieval, R3 verification of the premise, R4 recovery of a missing basis, R5 a second
//!   verification, R6 grounding of plans, R7 bounds, R8 the answer.
//! - [`store`]: items, markers, links, records of sessions. Nothing is ever deleted, and an item ends only by something later; in the code's variant
//!   rarely by its own session.
//! - [`settings`]: the variants `paper` and `code`, and the switches that take parts away.
//! - [`cost`]: calls and tokens before it begins. [`show`]: a store in words. [`system`]: the protocol. [`open()`]: from a command line.
//!
//! The variant `code` follows the public code's rules, and docs/memory.md lists where it does not. The prompts' wording is our own. Where the paper is silent, the choice stands at the head of the file that makes it; those that span
//! files are these. Replies are JSON, held to a schema where the server can; temperature 0, .30 in W5. A reply that cannot be read is asked for
//! again three times. A step of writing that stays without a reply is left out and told as an event; one of reading fails the probe. An item's
//! date of first sight is that of its creation. In the paper's variant the date of a session, since when states hold, and the time of a question are told; in
//! the code's they are not.

mod asking;
pub mod cost;
pub mod model;
mod open;
mod prompts;
mod reading;
pub mod schema;
pub mod settings;
mod shapes;
mod show;
pub mod similar;
pub mod store;
pub mod system;
mod writing;

pub use open::{open, words};
pub use settings::{Settings, Switch, Variant};
pub use show::show;
pub use store::Store;
pub use system::CupMem;
