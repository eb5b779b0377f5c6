//! Opens a memory system from a command line: CUPMem, a child process, or a URL.

use std::path::Path;

use super::child::ChildProcess;
use super::http::Address;
use super::protocol::{HelloRequest, MemorySystem};
use super::wire::{Patience, WireSystem};
use crate::memory::cupmem;

/// `command` is `cupmem`, `cupmem:SETTINGS`, `http://...`, or a shell command whose stderr goes to `log`. Nothing is started yet.
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
