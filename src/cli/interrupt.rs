//! Ctrl-C: the first stops gracefully, the second exits immediately.

use std::fmt::Display;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use anyhow::Context;

use crate::progress::note;

/// Exit code after Ctrl-C.
const INTERRUPTED: i32 = 130;

pub(super) fn end(says: impl Display) -> ! {
    note(says);
    std::process::exit(INTERRUPTED)
}

pub(super) fn end_resumable() -> anyhow::Result<()> {
    super::say("stopped; the same command goes on from here")?;
    std::process::exit(INTERRUPTED)
}

/// Flag set by Ctrl-C or SIGTERM; the current `step` is finished. A second signal exits at once and loses only that step.
pub(super) fn flag(step: &'static str) -> anyhow::Result<Arc<AtomicBool>> {
    flag_with(move || format!("stopping after the {step} under way"))
}

/// [`flag`] with a custom message, for steps that are not finished.
pub(super) fn flag_saying(says: &'static str) -> anyhow::Result<Arc<AtomicBool>> {
    flag_with(move || says.to_owned())
}

fn flag_with(says: impl Fn() -> String + Send + 'static) -> anyhow::Result<Arc<AtomicBool>> {
    static FLAG: OnceLock<Arc<AtomicBool>> = OnceLock::new();
    if let Some(flag) = FLAG.get() {
        return Ok(Arc::clone(flag));
    }
    let flag = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&flag);
    ctrlc::set_handler(move || {
        if seen.swap(true, Ordering::Relaxed) {
            end("stopped; the same command goes on from here");
        }
        note(format_args!("{}; press Ctrl-C again to stop at once", says()));
    })
    .context("cannot watch for Ctrl-C")?;
    Ok(Arc::clone(FLAG.get_or_init(|| flag)))
}
