//! How far a long job is: a bar with the time left on a terminal, plain lines elsewhere. On stderr, so that stdout
//! stays for results.

use std::io::IsTerminal;
use std::time::Instant;

use indicatif::{ProgressBar, ProgressStyle};

/// Progress over a known number of steps.
pub(super) enum Progress {
    Bar(ProgressBar),
    Lines { what: &'static str, done: usize, total: usize, start: Instant },
    Silent,
}

impl Progress {
    /// `total` steps of `what` lie ahead.
    pub(super) fn new(what: &'static str, total: usize, show: bool) -> Self {
        if !show || total == 0 {
            return Progress::Silent;
        }
        if !std::io::stderr().is_terminal() {
            return Progress::Lines { what, done: 0, total, start: Instant::now() };
        }
        let bar = ProgressBar::new(total as u64);
        // A wrong template falls back to indicatif's own style: a bar's look is no reason to stop a run.
        if let Ok(style) = ProgressStyle::with_template("{prefix} {wide_bar} {pos}/{len}  {eta} left  {msg}")
        {
            bar.set_style(style);
        }
        bar.set_prefix(what);
        bar.enable_steady_tick(std::time::Duration::from_millis(500));
        Progress::Bar(bar)
    }

    /// A step is done.
    pub(super) fn step(&mut self, case: &str, probe: &str, error: bool) {
        let outcome = if error { " (error)" } else { "" };
        match self {
            Progress::Bar(bar) => {
                bar.set_message(format!("{case} {probe}{outcome}"));
                bar.inc(1);
            }
            Progress::Lines { what, done, total, start } => {
                *done += 1;
                let seconds =
                    start.elapsed().as_secs_f64() / *done as f64 * total.saturating_sub(*done) as f64;
                eprintln!("{what} {done}/{total}: {case} {probe}{outcome}, about {seconds:.0} s left");
            }
            Progress::Silent => {}
        }
    }

    /// Takes the bar away.
    pub(super) fn finish(&self) {
        if let Progress::Bar(bar) = self {
            bar.finish_and_clear();
        }
    }
}
