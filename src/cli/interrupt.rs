//! Ctrl-C: the first stops gracefully, the second exits immediately.

use std::fmt::Display;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use anyhow::Context;

use crate::progress::note;

/// Exit code after Ctrl-C.
pub(super) const INTERRUPTED: u8 = 130;

static FLAG: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// True after the first Ctrl-C.
pub(super) fn is_set() -> bool {
    FLAG.get().is_some_and(|flag| flag.load(Ordering::Relaxed))
}

pub(super) fn end(says: impl Display) -> ! {
    note(says);
    std::process::exit(INTERRUPTED.into())
}

pub(super) fn end_resumable() -> anyhow::Result<()> {
    super::say("stopped; the same command resumes")?;
    std::process::exit(INTERRUPTED.into())
}

/// Flag set by Ctrl-C or SIGTERM, with the message of the first one. A second signal exits at once and loses the current step.
pub(super) fn flag(says: &'static str) -> anyhow::Result<Arc<AtomicBool>> {
    if let Some(flag) = FLAG.get() {
        return Ok(Arc::clone(flag));
    }
    let flag = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&flag);
    ctrlc::set_handler(move || {
        if seen.swap(true, Ordering::Relaxed) {
            end("stopped; the same command resumes");
        }
        note(format_args!("{says}; Ctrl-C again stops at once"));
    })
    .context("cannot watch for Ctrl-C")?;
    Ok(Arc::clone(FLAG.get_or_init(|| flag)))
}
