//! Progress on standard error: bars, spinners and notes; standard output is for results. Without a terminal a bar is a plain line every ten
//! seconds. Never fails, since a closed terminal must not stop a job. Knows none of its callers.

use std::cell::{Cell, RefCell};
use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::rc::Rc;
use std::time::{Duration, Instant};

use indicatif::{HumanCount, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

mod forecast;
mod later;
mod lines;

use forecast::Clock;
pub use forecast::{StepSeconds, Work};
pub use later::{flush_notes, note_later};
use lines::{Lines, Said};

/// Seconds between two lines without a terminal, if not ten.
const SECONDS: &str = "PALIMPSEST_PROGRESS_SECONDS";

fn interval() -> Duration {
    let set = std::env::var(SECONDS).ok().and_then(|typed| typed.parse().ok());
    set.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()).unwrap_or(Duration::from_secs(10))
}

/// Prints a line; unlike `eprintln!`, does not panic on a closed stderr.
pub fn note(message: impl Display) {
    let _ = writeln!(io::stderr(), "{message}");
}

/// With separators of thousands: `12,345`.
pub fn grouped(number: u64) -> String {
    HumanCount(number).to_string()
}

/// A bar over bytes.
pub fn bytes(total: u64, message: &str) -> ProgressBar {
    counted(total, message, "{bytes}/{total_bytes}", " {bytes_per_sec}")
}

pub fn texts(total: u64, message: &str) -> ProgressBar {
    counted(total, message, "{human_pos}/{human_len}", "")
}

/// A bar over the items of a loop.
pub fn over<T>(all: impl ExactSizeIterator<Item = T>, message: &str) -> impl Iterator<Item = T> {
    texts(all.len() as u64, message).wrap_iter(all)
}

pub fn tokens(total: u64, message: &str) -> ProgressBar {
    counted(total, message, "{human_pos}/{human_len} tokens", " {per_sec}")
}

fn counted(total: u64, message: &str, count: &str, speed: &str) -> ProgressBar {
    let on_terminal = format!("{{msg}} [{{wide_bar}}] {count}{speed} {{eta}} left");
    let line = format!("{{msg}} {count} ({{percent}}%, {{eta}} left)");
    bar(Some(total), [&on_terminal, &line], &Said::default()).with_message(message.to_owned())
}

/// A spinner with elapsed time.
pub fn spinner(message: &str) -> ProgressBar {
    let templates = ["{spinner} {msg} ({elapsed})", "{msg} ({elapsed})"];
    let bar = bar(None, templates, &Said::default()).with_message(message.to_owned());
    if std::io::stderr().is_terminal() {
        bar.enable_steady_tick(Duration::from_millis(120));
    }
    bar
}

/// The templates are for a terminal, and for a line without one.
fn bar(total: Option<u64>, [on_terminal, line]: [&str; 2], said: &Said) -> ProgressBar {
    if io::stderr().is_terminal() {
        return ProgressBar::with_draw_target(total, ProgressDrawTarget::stderr())
            .with_style(style(on_terminal));
    }
    let every = interval();
    let lines = Lines::new(every, said, io::stderr());
    let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::term_like(Box::new(lines)));
    bar.set_style(style(line));
    bar.enable_steady_tick(every.min(Duration::from_secs(1)));
    bar
}

/// An invalid template falls back to indicatif's default style.
fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template)
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .progress_chars("=> ")
}

/// Errors printed individually in brief mode.
const ERRORS_TOLD: usize = 3;

/// Progress over long steps: a bar with the remaining time on a terminal, otherwise one line per step.
pub struct Steps {
    what: &'static str,
    done: usize,
    total: usize,
    errors: usize,
    /// Occasional lines instead of one per step.
    brief: bool,
    clock: Clock,
    said: Said,
    status: Rc<Status>,
}

impl Steps {
    pub fn new(what: &'static str, total: usize, show: bool) -> Self {
        let (clock, said) = (Clock::new(total), Said::default());
        let bar = match show && total > 0 {
            true => steps_bar(what, total, &clock, &said),
            false => ProgressBar::hidden(),
        };
        let status = Rc::new(Status::new(bar, clock.clone()));
        Steps { what, done: 0, total, errors: 0, brief: false, clock, said, status }
    }

    #[must_use]
    pub fn brief(mut self, brief: bool) -> Self {
        self.brief = brief;
        self
    }

    /// Reports progress within the current step.
    pub fn status(&self) -> Rc<Status> {
        Rc::clone(&self.status)
    }

    /// The next `size` steps share initial work, such as prefilling a history. Other steps form groups of one.
    pub fn begin_group(&mut self, size: usize) {
        self.clock.forecast().begin_group(size);
    }

    pub fn step(&mut self, name: &str, error: Option<&str>) {
        self.measured_step(name, error, None);
    }

    /// Like `step`, with measured times; otherwise the time since the last step counts.
    pub fn measured_step(&mut self, name: &str, error: Option<&str>, took: Option<StepSeconds>) {
        self.done += 1;
        let (now, bar) = (self.clock.seconds(), &self.status.bar);
        let mut forecast = self.clock.forecast();
        let is_first = !forecast.knows_steps();
        forecast.step(now, took);
        let left = forecast.left_at(now);
        drop(forecast);
        self.errors += usize::from(error.is_some());
        let outcome = error.map_or_else(String::new, |error| format!(": error: {error}"));
        let is_told = !self.brief || error.is_some() && self.errors <= ERRORS_TOLD;
        if io::stderr().is_terminal() {
            if is_told && error.is_some() {
                bar.println(format!("{name}{outcome}"));
            }
        } else if is_told && !bar.is_hidden() {
            let (what, done, total) = (self.what, self.done, self.total);
            let left = left.map_or_else(String::new, |left| format!(" (about {} left)", in_words(left)));
            note(format_args!("{what} {done}/{total}: {name}{outcome}{left}"));
            self.said.set(Some(Instant::now()));
        } else if is_first && left.is_some_and(|left| left >= interval().as_secs_f64()) {
            // The first estimate is told at once where there is something to wait for.
            self.said.set(None);
        }
        bar.inc(1);
        if self.brief && self.errors > 0 {
            let many = if self.errors == 1 { "error" } else { "errors" };
            bar.set_prefix(format!("{} ({} {many})", self.what, self.errors));
        }
        bar.set_message(name.to_owned());
    }
}

impl Drop for Steps {
    fn drop(&mut self) {
        self.status.bar.finish_and_clear();
    }
}

fn steps_bar(what: &'static str, total: usize, clock: &Clock, said: &Said) -> ProgressBar {
    // On a terminal the message has its own line: it is long and changes often.
    let templates = ["{prefix} [{wide_bar}] {pos}/{len} {left}\n{msg}", "{prefix} {pos}/{len}{ahead}: {msg}"];
    let bar = bar(Some(total as u64), templates, said);
    let (left, ahead) = (clock.clone(), clock.clone());
    // Both show nothing before there is an estimate.
    let style = bar.style().with_key("left", move |_: &ProgressState, out: &mut dyn std::fmt::Write| {
        if let Some((_, left)) = left.ahead() {
            let _ = write!(out, "{} left", in_words(left));
        }
    });
    bar.set_style(style.with_key("ahead", move |_: &ProgressState, out: &mut dyn std::fmt::Write| {
        if let Some((done, left)) = ahead.ahead() {
            let _ = write!(out, " ({:.0}%, about {} left)", 100.0 * done, in_words(left));
        }
    }));
    bar.set_prefix(what);
    bar.set_message("starting");
    if io::stderr().is_terminal() {
        bar.enable_steady_tick(Duration::from_millis(500));
    }
    bar
}

/// `41 s`, `12 min`, `3.4 h`.
fn in_words(seconds: f64) -> String {
    match seconds {
        ..120.0 => format!("{seconds:.0} s"),
        ..7200.0 => format!("{:.0} min", seconds / 60.0),
        _ => format!("{:.1} h", seconds / 3600.0),
    }
}

/// Progress of the current step. Cheap: a terminal is redrawn a few times a second, otherwise a line is printed now and then.
#[derive(Debug)]
pub struct Status {
    bar: ProgressBar,
    clock: Clock,
    step: RefCell<String>,
    /// Steps cut off by a stop.
    lost: Cell<usize>,
}

impl Status {
    fn new(bar: ProgressBar, clock: Clock) -> Self {
        Status { bar, clock, step: RefCell::default(), lost: Cell::new(0) }
    }

    pub fn silent() -> Self {
        Status::new(ProgressBar::hidden(), Clock::new(0))
    }

    /// `doing` is work of unknown length.
    pub fn begin(&self, name: &str, doing: &str) {
        name.clone_into(&mut self.step.borrow_mut());
        self.doing(|| doing.to_owned());
    }

    /// Tokens that are still to be computed, from which the time left follows.
    pub fn expect(&self, histories: usize, answers: usize) {
        self.clock.forecast().expect(histories, answers);
    }

    /// Computed tokens of those that were expected.
    pub fn did(&self, work: Work, tokens: usize) {
        let now = self.clock.seconds();
        self.clock.forecast().did(now, work, tokens);
    }

    /// Prompt tokens in the cache.
    pub fn prefill(&self, done: usize, total: usize) {
        self.doing(|| format!("prefill, {} of {} tokens", grouped(done as u64), grouped(total as u64)));
    }

    pub fn decode(&self, tokens: usize) {
        self.doing(|| format!("decode, {tokens} token{}", if tokens == 1 { "" } else { "s" }));
    }

    pub fn lose(&self, steps: usize) {
        self.lost.set(steps);
    }

    pub fn lost(&self) -> usize {
        self.lost.get()
    }

    pub fn doing(&self, doing: impl FnOnce() -> String) {
        if !self.bar.is_hidden() {
            self.bar.set_message(format!("{}: {}", self.step.borrow(), doing()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_says_what_it_is_told_on_the_bar() {
        assert_eq!(
            [0, 999, 1000, 12288, 1_500_000].map(grouped),
            ["0", "999", "1,000", "12,288", "1,500,000"]
        );
        let lines = Lines::new(Duration::MAX, &Said::default(), io::sink());
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::term_like(Box::new(lines)));
        let status = Status::new(bar.clone(), Clock::new(1));
        status.begin("case SR", "waiting");
        assert_eq!(bar.message(), "case SR: waiting");
        status.prefill(12_288, 150_000);
        assert_eq!(bar.message(), "case SR: prefill, 12,288 of 150,000 tokens");
        status.decode(1);
        assert_eq!(bar.message(), "case SR: decode, 1 token");
        assert_eq!([41.4, 119.0, 130.0, 12_240.0].map(in_words), ["41 s", "119 s", "2 min", "3.4 h"]);
    }
}
