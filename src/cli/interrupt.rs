//! Ctrl-C: the first one asks for an end, the second one makes it.

use std::fmt::Display;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use anyhow::Context;

use crate::progress::note;

/// The exit code of a command that was stopped by Ctrl-C.
const INTERRUPTED: i32 = 130;

/// Says that the command was stopped, and ends the process.
pub(super) fn end(says: impl Display) -> ! {
    note(says);
    std::process::exit(INTERRUPTED)
}

/// Ends a command that goes on when it is started again.
pub(super) fn end_resumable() -> anyhow::Result<()> {
    super::say("stopped; the same command goes on from here")?;
    std::process::exit(INTERRUPTED)
}

/// A flag that Ctrl-C (or a polite kill) sets: the `step` under way is finished. The second one ends the process at once, which
/// loses nothing but that step.
pub(super) fn flag(step: &'static str) -> anyhow::Result<Arc<AtomicBool>> {
    flag_with(move || format!("stopping after the {step} under way"))
}

/// The same where steps under way are not finished: `says` what becomes of them.
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
