//! How far long work is, told to the person who waits: bars, spinners and notes on standard error, so that standard
//! output stays for results. Every room with long work uses it; it knows none of them. Nothing here fails: a terminal that
//! went away is no reason to stop a job.

use std::cell::{Cell, RefCell};
use std::fmt::Display;
use std::io::{IsTerminal, Write};
use std::rc::Rc;
use std::time::{Duration, Instant};

use indicatif::{HumanDuration, ProgressBar, ProgressState, ProgressStyle};

/// Without a terminal, a step under way is heard of at most once in this time.
const QUIET: Duration = Duration::from_secs(15);

/// A line for the person who waits. Unlike `eprintln!` it does not panic where nobody reads.
pub(crate) fn note(message: impl Display) {
    let _ = writeln!(std::io::stderr(), "{message}");
}

/// `12,288`.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A bar over a known number of bytes. Bars and spinners draw nothing where stderr is no terminal.
pub(crate) fn bytes(total: u64, message: &str) -> ProgressBar {
    bar(total, message, "{msg} [{wide_bar}] {bytes}/{total_bytes} {bytes_per_sec} {eta} left")
}

/// A bar over a known number of texts.
pub(crate) fn texts(total: u64, message: &str) -> ProgressBar {
    bar(total, message, "{msg} [{wide_bar}] {human_pos}/{human_len} {eta} left")
}

/// A bar over a known number of tokens.
pub(crate) fn tokens(total: u64, message: &str) -> ProgressBar {
    bar(total, message, "{msg} [{wide_bar}] {human_pos}/{human_len} tokens {per_sec} {eta} left")
}

fn bar(total: u64, message: &str, template: &str) -> ProgressBar {
    let bar = ProgressBar::new(total).with_message(message.to_owned());
    bar.set_style(style(template));
    bar
}

/// A wrong template falls back to indicatif's own style: a bar's look is no reason to stop.
fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template)
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .progress_chars("=> ")
}

/// A spinner with the elapsed time, for work whose length is unknown.
pub(crate) fn spinner(message: &str) -> ProgressBar {
    let bar = ProgressBar::new_spinner().with_message(message.to_owned());
    if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} ({elapsed})") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(120));
    bar
}

/// Progress over a known number of steps that take long each: a bar with the time left on a terminal, a line a step
/// elsewhere.
pub(crate) struct Steps {
    what: &'static str,
    done: usize,
    total: usize,
    start: Instant,
    status: Rc<Status>,
}

impl Steps {
    /// `total` steps of `what` lie ahead.
    pub(crate) fn new(what: &'static str, total: usize, show: bool) -> Self {
        let out = if !show || total == 0 {
            Out::Silent
        } else if std::io::stderr().is_terminal() {
            // The message has a line of its own: it is long, and changes while the bar stands still.
            let bar = bar(total as u64, "", "{prefix} [{wide_bar}] {pos}/{len} {left}\n{msg}");
            // Nothing can be said before the first step is done.
            let style =
                bar.style().with_key("left", |state: &ProgressState, out: &mut dyn std::fmt::Write| {
                    if state.pos() > 0 {
                        let _ = write!(out, "{:#} left", HumanDuration(state.eta()));
                    }
                });
            bar.set_style(style);
            bar.set_prefix(what);
            bar.enable_steady_tick(Duration::from_millis(500));
            Out::Bar(bar)
        } else {
            Out::Lines
        };
        Steps { what, done: 0, total, start: Instant::now(), status: Rc::new(Status::new(out)) }
    }

    /// What says how far the step under way is.
    pub(crate) fn status(&self) -> Rc<Status> {
        Rc::clone(&self.status)
    }

    /// The step called `name` is done, or failed for a reason.
    pub(crate) fn step(&mut self, name: &str, error: Option<&str>) {
        self.done += 1;
        match &self.status.out {
            Out::Bar(bar) => {
                bar.set_message(name.to_owned());
                bar.inc(1);
                if let Some(error) = error {
                    bar.println(format!("{name}: error: {error}"));
                }
            }
            Out::Lines => {
                let left = self.total.saturating_sub(self.done);
                let seconds = self.start.elapsed().as_secs_f64() / self.done as f64 * left as f64;
                let outcome = error.map_or_else(String::new, |error| format!(": error: {error}"));
                let (what, done, total) = (self.what, self.done, self.total);
                self.status.said.set(Instant::now());
                note(format_args!("{what} {done}/{total}: {name}{outcome} (about {seconds:.0} s left)"));
            }
            Out::Silent => {}
        }
    }
}

impl Drop for Steps {
    /// Takes the bar away.
    fn drop(&mut self) {
        if let Out::Bar(bar) = &self.status.out {
            bar.finish_and_clear();
        }
    }
}

/// How far a step under way is. Cheap to tell: a terminal is redrawn a few times a second at most, and elsewhere a line
/// comes only after fifteen quiet seconds.
#[derive(Debug)]
pub struct Status {
    out: Out,
    step: RefCell<String>,
    /// When the last line came, where there are lines.
    said: Cell<Instant>,
}

#[derive(Debug)]
enum Out {
    Bar(ProgressBar),
    Lines,
    Silent,
}

impl Status {
    fn new(out: Out) -> Self {
        Status { out, step: RefCell::new(String::new()), said: Cell::new(Instant::now()) }
    }

    /// A status that nobody sees.
    pub fn silent() -> Self {
        Status::new(Out::Silent)
    }

    /// The step called `name` begins; it is `doing` something of unknown length.
    pub fn begin(&self, name: &str, doing: &str) {
        name.clone_into(&mut self.step.borrow_mut());
        self.tell(|| doing.to_owned());
    }

    /// `done` of the prompt's `total` tokens are in the cache.
    pub fn prefill(&self, done: usize, total: usize) {
        self.tell(|| format!("prefill, {} of {} tokens", grouped(done as u64), grouped(total as u64)));
    }

    /// `tokens` of the answer are generated.
    pub fn decode(&self, tokens: usize) {
        self.tell(|| format!("decode, {tokens} token{}", if tokens == 1 { "" } else { "s" }));
    }

    fn tell(&self, doing: impl FnOnce() -> String) {
        match &self.out {
            Out::Bar(bar) => bar.set_message(format!("{}: {}", self.step.borrow(), doing())),
            Out::Lines if self.said.get().elapsed() >= QUIET => {
                self.said.set(Instant::now());
                note(format_args!("  {}: {}", self.step.borrow(), doing()));
            }
            Out::Lines | Out::Silent => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_by_thousands() {
        assert_eq!(
            [0, 999, 1000, 12288, 1_500_000].map(grouped),
            ["0", "999", "1,000", "12,288", "1,500,000"]
        );
    }

    #[test]
    fn a_status_says_what_it_is_told_on_the_bar() {
        let bar = ProgressBar::hidden();
        let status = Status::new(Out::Bar(bar.clone()));
        status.begin("case SR", "waiting");
        assert_eq!(bar.message(), "case SR: waiting");
        status.prefill(12_288, 150_000);
        assert_eq!(bar.message(), "case SR: prefill, 12,288 of 150,000 tokens");
        status.decode(1);
        assert_eq!(bar.message(), "case SR: decode, 1 token");
    }
}
