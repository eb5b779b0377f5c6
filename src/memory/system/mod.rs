//! Memory systems: they are told of a history and asked for memories, behind one protocol.
//!
//! [`protocol`] has the operations, [`rows`] the files that a run keeps of them. Systems live in processes of their own, [`child`] or
//! behind an address, [`http`]; [`wire`] speaks to either. CUPMem, of the STALE paper, is built in. [`history`] drives a system through a
//! run's cases and keeps the files; [`sources`] finds out which session a memory came from. A system's own calls to models pass through [`proxy`].

pub mod calls;
pub mod child;
pub mod history;
pub mod http;
pub mod http_server;
pub mod local_server;
pub mod protocol;
pub mod proxy;
pub mod record;
pub mod rows;
pub mod sources;
pub mod wire;
