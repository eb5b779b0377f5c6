//! Ctrl-C: the first stops gracefully, the second exits immediately.

use std::fmt::Display;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use anyhow::Context;

use crate::progress::{flush_notes, note_later};

/// Exit code after Ctrl-C.
pub(super) const INTERRUPTED: u8 = 130;

static FLAG: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// True after the first Ctrl-C.
pub(super) fn is_set() -> bool {
    FLAG.get().is_some_and(|flag| flag.load(Ordering::Relaxed))
}

/// Files to remove before an exit that drops nothing.
static REMOVALS: Mutex<Vec<Box<dyn Fn() + Send>>> = Mutex::new(Vec::new());

/// Removes a file at [`exit`].
#[cfg(feature = "serve")]
pub(super) fn at_exit(removal: impl Fn() + Send + 'static) {
    REMOVALS.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(removal));
}

pub(super) fn remove_files() {
    REMOVALS.lock().unwrap_or_else(PoisonError::into_inner).iter().for_each(|remove| remove());
}

pub(super) fn exit(code: i32) -> ! {
    remove_files();
    std::process::exit(code)
}

pub(super) fn end(says: impl Display) -> ! {
    // An unread stderr must not keep the process.
    note_later(says);
    flush_notes();
    exit(INTERRUPTED.into())
}

pub(super) fn end_resumable() -> anyhow::Result<()> {
    super::say("stopped; the same command resumes")?;
    exit(INTERRUPTED.into())
}

/// Flag set by Ctrl-C or SIGTERM, with the message of the first one. A second signal exits at once and loses the current step.
pub(super) fn flag(says: &'static str) -> anyhow::Result<Arc<AtomicBool>> {
    watch(says, "stopped; the same command resumes")
}

/// Like [`flag`], for commands that cannot resume.
#[cfg(feature = "serve")]
pub(super) fn flag_of_server(says: &'static str) -> anyhow::Result<Arc<AtomicBool>> {
    watch(says, "stopped at once")
}

fn watch(says: &'static str, second: &'static str) -> anyhow::Result<Arc<AtomicBool>> {
    if let Some(flag) = FLAG.get() {
        return Ok(Arc::clone(flag));
    }
    let flag = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&flag);
    ctrlc::set_handler(move || {
        if seen.load(Ordering::Relaxed) {
            end(second);
        }
        // Said before the flag is set, which may end the process at once.
        note_later(format_args!("{says}; Ctrl-C again stops at once"));
        flush_notes();
        seen.store(true, Ordering::Relaxed);
    })
    .context("cannot watch for Ctrl-C")?;
    Ok(Arc::clone(FLAG.get_or_init(|| flag)))
}
