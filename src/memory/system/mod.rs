//! Memory systems: they are told of a history and asked for memories, behind one protocol.
//!
//! [`protocol`] has the operations, [`rows`] the files that a run keeps of them. Systems live in processes of their own; CUPMem, of the STALE
//! paper, is built in.

pub mod protocol;
pub mod rows;
