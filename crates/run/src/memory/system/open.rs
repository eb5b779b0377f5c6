//! A command line becomes a memory system: CUPMem, a child process, or an address.

use std::path::Path;

use super::child::ChildProcess;
use super::http::Address;
use super::protocol::{HelloRequest, MemorySystem};
use super::wire::{Patience, WireSystem};
use crate::memory::cupmem;

/// The system that `command` names, called `name`: `cupmem` or `cupmem:SETTINGS`, `http://...`, or a command line. Nothing is started yet. A
/// process writes to `log`.
pub fn open(
    name: &str,
    command: &str,
    hello: HelloRequest,
    log: &Path,
    patience: Patience,
) -> Result<Box<dyn MemorySystem>, String> {
    if let Some(words) = cupmem::words(command) {
        return Ok(Box::new(cupmem::open(name, words, &hello)?));
    }
    if Address::is_one(command) {
        return Ok(Box::new(WireSystem::new(name, Address::new(command), hello, patience)));
    }
    let process = ChildProcess::new(command, log)?;
    Ok(Box::new(WireSystem::new(name, process, hello, patience)))
}
