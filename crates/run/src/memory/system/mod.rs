//! Memory systems: they ingest a history and are searched for memories, behind one protocol.
//!
//! [`protocol`] defines the operations, [`wire`] their messages, [`transport`] how they are sent; CUPMem (STALE paper) is built in. A
//! process gets the variables of [`environment`] and ends with this one ([`supervisor`]).
//! [`history`] drives a system through a run's cases and writes the files of [`rows`], [`case_rows`] reads them; [`sources`] attributes
//! memories to sessions. Model calls of systems pass through [`proxy`]. [`check`] is the conformance test, on [`scripted_model`].

pub mod case_rows;
pub mod check;
mod driver;
pub mod environment;
pub mod history;
pub mod http_server;
pub mod local_server;
pub mod protocol;
pub mod proxy;
pub mod record;
pub mod rows;
pub mod scripted_model;
pub mod sources;
pub mod supervisor;
pub mod transport;
pub mod wire;

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::cupmem;
use crate::chat::endpoint::is_address;
use environment::Environment;
use protocol::{HelloRequest, MemorySystem};
use transport::{Address, ChildProcess};
use wire::{Patience, WireSystem};

/// Opens a memory system. `command` is `cupmem`, `cupmem:SETTINGS`, `http://...`, or a shell command that gets `environment` and whose
/// stderr goes to `log`. Nothing is started yet.
pub fn open(
    name: &str,
    command: &str,
    hello: HelloRequest,
    (log, environment): (&Path, &Environment),
    patience: Patience,
) -> Result<Box<dyn MemorySystem>, String> {
    if let Some(words) = cupmem::words(command) {
        return Ok(Box::new(cupmem::open(name, words, &hello, patience.session)?));
    }
    if is_address(command) {
        return Ok(Box::new(WireSystem::new(name, Address::new(command), hello, patience)));
    }
    let process = ChildProcess::new(command, log, environment.clone())?;
    Ok(Box::new(WireSystem::new(name, process, hello, patience)))
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemoryContext {
    pub system: String,
    pub k: usize,
    #[serde(default, skip_serializing_if = "Show::is_ranked")]
    pub show: Show,
}

/// The part of a memory system that a probe is shown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Show {
    /// The memories found, by rank, in the run's own wording
    #[default]
    Ranked,
    /// All memories written from the question's evidence: perfect retrieval
    Perfect,
    /// The memories found, in the system's own wording
    Native,
    /// None: the system answers by itself
    Answer,
}

impl Show {
    fn is_ranked(&self) -> bool {
        *self == Show::Ranked
    }

    /// Suffix of the condition's name; empty for [`Show::Ranked`].
    pub fn suffix(self) -> &'static str {
        match self {
            Show::Ranked => "",
            Show::Perfect => "-perfect",
            Show::Native => "-native",
            Show::Answer => "-answer",
        }
    }
}
