//! Progress on standard error: bars, spinners and notes; standard output is for results. Never fails, since a closed terminal must not stop
//! a job. Knows none of its callers.

use std::cell::{Cell, RefCell};
use std::fmt::Display;
use std::io::{IsTerminal, Write};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{HumanCount, HumanDuration, ProgressBar, ProgressState, ProgressStyle};

/// Minimum interval of status lines without a terminal.
const QUIET: Duration = Duration::from_secs(15);

/// Prints a line; unlike `eprintln!`, does not panic on a closed stderr.
pub fn note(message: impl Display) {
    let _ = writeln!(std::io::stderr(), "{message}");
}

/// With separators of thousands: `12,345`.
pub fn grouped(number: u64) -> String {
    HumanCount(number).to_string()
}

/// A bar over bytes. Bars and spinners draw nothing if stderr is not a terminal.
pub fn bytes(total: u64, message: &str) -> ProgressBar {
    bar(total, message, "{msg} [{wide_bar}] {bytes}/{total_bytes} {bytes_per_sec} {eta} left")
}

pub fn texts(total: u64, message: &str) -> ProgressBar {
    bar(total, message, "{msg} [{wide_bar}] {human_pos}/{human_len} {eta} left")
}

pub fn tokens(total: u64, message: &str) -> ProgressBar {
    bar(total, message, "{msg} [{wide_bar}] {human_pos}/{human_len} tokens {per_sec} {eta} left")
}

fn bar(total: u64, message: &str, template: &str) -> ProgressBar {
    let bar = ProgressBar::new(total).with_message(message.to_owned());
    bar.set_style(style(template));
    bar
}

/// An invalid template falls back to indicatif's default style.
fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template)
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .progress_chars("=> ")
}

/// A spinner with elapsed time.
pub fn spinner(message: &str) -> ProgressBar {
    let bar = ProgressBar::new_spinner().with_message(message.to_owned());
    if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} ({elapsed})") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(120));
    bar
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
    start: Instant,
    forecast: Forecast,
    /// Estimated end, read by the bar.
    end: Arc<Mutex<Option<Instant>>>,
    status: Rc<Status>,
}

impl Steps {
    pub fn new(what: &'static str, total: usize, show: bool) -> Self {
        let end = Arc::new(Mutex::new(None));
        let status = if !show || total == 0 {
            Status::silent()
        } else if std::io::stderr().is_terminal() {
            // The message has its own line: it is long and changes often.
            let bar = bar(total as u64, "", "{prefix} [{wide_bar}] {pos}/{len} {left}\n{msg}");
            let known = Arc::clone(&end);
            // Nothing to show before the first step.
            let style =
                bar.style().with_key("left", move |_: &ProgressState, out: &mut dyn std::fmt::Write| {
                    let end: Option<Instant> = *known.lock().unwrap_or_else(PoisonError::into_inner);
                    if let Some(end) = end {
                        let left = HumanDuration(end.saturating_duration_since(Instant::now()));
                        let _ = write!(out, "{left:#} left");
                    }
                });
            bar.set_style(style);
            bar.set_prefix(what);
            bar.enable_steady_tick(Duration::from_millis(500));
            Status::new(Out::Bar(bar))
        } else {
            Status::new(Out::Lines)
        };
        let forecast = Forecast { left: total, ..Forecast::default() };
        let (start, status) = (Instant::now(), Rc::new(status));
        Steps { what, done: 0, total, errors: 0, brief: false, start, forecast, end, status }
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
        self.forecast.begin_group(size);
    }

    pub fn step(&mut self, name: &str, error: Option<&str>) {
        self.measured_step(name, error, None);
    }

    /// Like `step`, with measured times; otherwise the time since the last step counts.
    pub fn measured_step(&mut self, name: &str, error: Option<&str>, took: Option<StepSeconds>) {
        self.done += 1;
        let now = self.start.elapsed().as_secs_f64();
        self.forecast.step(now, took);
        let seconds = self.forecast.seconds_left();
        let end =
            seconds.and_then(|left| Instant::now().checked_add(Duration::try_from_secs_f64(left).ok()?));
        *self.end.lock().unwrap_or_else(PoisonError::into_inner) = end;
        self.errors += usize::from(error.is_some());
        let outcome = error.map_or_else(String::new, |error| format!(": error: {error}"));
        let told = !self.brief || error.is_some() && self.errors <= ERRORS_TOLD;
        match &self.status.out {
            Out::Bar(bar) => {
                bar.set_message(name.to_owned());
                bar.inc(1);
                if told && error.is_some() {
                    bar.println(format!("{name}{outcome}"));
                }
            }
            Out::Lines => {
                let (what, done, total) = (self.what, self.done, self.total);
                let left = seconds.map_or_else(String::new, |left| format!(" (about {left:.0} s left)"));
                let is_due = self.status.said.get().elapsed() >= QUIET;
                if told {
                    note(format_args!("{what} {done}/{total}: {name}{outcome}{left}"));
                } else if is_due {
                    let errors =
                        if self.errors > 0 { format!(", {} errors", self.errors) } else { String::new() };
                    note(format_args!("{what} {done}/{total}{errors}{left}"));
                }
                if told || is_due {
                    self.status.said.set(Instant::now());
                }
            }
            Out::Silent => {}
        }
    }
}

impl Drop for Steps {
    fn drop(&mut self) {
        if let Out::Bar(bar) = &self.status.out {
            bar.finish_and_clear();
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepSeconds {
    /// Before its own work; for the first step of a group, includes the shared work.
    pub before: f64,
    pub own: f64,
}

#[derive(Debug, Clone, Copy, Default)]
struct Mean {
    sum: f64,
    count: usize,
}

impl Mean {
    fn push(&mut self, value: f64) {
        self.sum += value;
        self.count += 1;
    }

    fn value(self) -> Option<f64> {
        (self.count > 0).then(|| self.sum / self.count as f64)
    }
}

/// Estimates the remaining time of grouped steps. Shared work (prefilling a history) and own work are averaged separately, so that the
/// first step of a group does not stand for all; answers decoded as one batch end together.
#[derive(Debug, Default)]
struct Forecast {
    left: usize,
    /// Groups begun, and their total steps.
    groups: (usize, usize),
    /// Remaining steps of the current group.
    in_group: usize,
    is_first: bool,
    /// Seconds before own work: first steps of groups, other steps.
    before: (Mean, Mean),
    own: Mean,
    /// Sum of measured seconds.
    measured: f64,
    /// Wall-clock per measured second over finished groups: above 1 with work between steps, below 1 with parallel steps.
    pace: Option<f64>,
    last: f64,
    /// Intervals of unmeasured steps; used only without any measured step, since rejected steps take no time.
    unmeasured: Mean,
}

impl Forecast {
    fn begin_group(&mut self, size: usize) {
        self.groups.0 += 1;
        self.groups.1 += size;
        self.in_group = size;
        self.is_first = true;
    }

    /// `now`: seconds since the start.
    fn step(&mut self, now: f64, took: Option<StepSeconds>) {
        if self.in_group == 0 {
            self.begin_group(1);
        }
        self.left = self.left.saturating_sub(1);
        self.in_group -= 1;
        match took {
            Some(StepSeconds { before, own }) => {
                if self.is_first { &mut self.before.0 } else { &mut self.before.1 }.push(before);
                self.own.push(own);
                self.measured += before + own;
                self.is_first = false;
            }
            None => self.unmeasured.push((now - self.last).max(0.0)),
        }
        self.last = now;
        if self.in_group == 0 && self.measured > 0.0 {
            self.pace = Some(now / self.measured);
        }
    }

    /// `None` before any data.
    fn seconds_left(&self) -> Option<f64> {
        if self.left == 0 {
            return Some(0.0);
        }
        let Some(own) = self.own.value() else {
            return self.unmeasured.value().map(|mean| mean * self.left as f64);
        };
        let (groups, sizes) = self.groups;
        let in_group = self.in_group.min(self.left);
        let beyond = (self.left - in_group) as f64;
        // Assume future groups of average size.
        let to_come = beyond * groups as f64 / sizes.max(1) as f64;
        let firsts = to_come + if self.is_first && in_group > 0 { 1.0 } else { 0.0 };
        let others = (self.left as f64 - firsts).max(0.0);
        let mean = |mean: Mean| mean.value().unwrap_or(0.0);
        let seconds = firsts * mean(self.before.0) + others * mean(self.before.1) + self.left as f64 * own;
        Some(seconds * self.pace.unwrap_or(1.0))
    }
}

/// Progress of the current step. Cheap: a terminal is redrawn a few times a second, otherwise a line is printed after fifteen quiet
/// seconds.
#[derive(Debug)]
pub struct Status {
    out: Out,
    step: RefCell<String>,
    said: Cell<Instant>,
    /// Steps cut off by a stop.
    lost: Cell<usize>,
}

#[derive(Debug)]
enum Out {
    Bar(ProgressBar),
    Lines,
    Silent,
}

impl Status {
    fn new(out: Out) -> Self {
        let (step, said, lost) = (RefCell::new(String::new()), Cell::new(Instant::now()), Cell::new(0));
        Status { out, step, said, lost }
    }

    pub fn silent() -> Self {
        Status::new(Out::Silent)
    }

    /// `doing` is work of unknown length.
    pub fn begin(&self, name: &str, doing: &str) {
        name.clone_into(&mut self.step.borrow_mut());
        self.tell(|| doing.to_owned());
    }

    /// Prompt tokens in the cache.
    pub fn prefill(&self, done: usize, total: usize) {
        self.tell(|| format!("prefill, {} of {} tokens", grouped(done as u64), grouped(total as u64)));
    }

    pub fn decode(&self, tokens: usize) {
        self.tell(|| format!("decode, {tokens} token{}", if tokens == 1 { "" } else { "s" }));
    }

    pub fn lose(&self, steps: usize) {
        self.lost.set(steps);
    }

    pub fn lost(&self) -> usize {
        self.lost.get()
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
    fn a_status_says_what_it_is_told_on_the_bar() {
        assert_eq!(
            [0, 999, 1000, 12288, 1_500_000].map(grouped),
            ["0", "999", "1,000", "12,288", "1,500,000"]
        );
        let bar = ProgressBar::hidden();
        let status = Status::new(Out::Bar(bar.clone()));
        status.begin("case SR", "waiting");
        assert_eq!(bar.message(), "case SR: waiting");
        status.prefill(12_288, 150_000);
        assert_eq!(bar.message(), "case SR: prefill, 12,288 of 150,000 tokens");
        status.decode(1);
        assert_eq!(bar.message(), "case SR: decode, 1 token");
    }

    fn of(left: usize) -> Forecast {
        Forecast { left, ..Forecast::default() }
    }

    const fn took(before: f64, own: f64) -> Option<StepSeconds> {
        Some(StepSeconds { before, own })
    }

    /// Two histories of six answers each: 30 s of prefill, then six answers as one batch in 6 s.
    #[test]
    fn the_first_answer_of_a_batch_does_not_stand_for_all() {
        let mut forecast = of(12);
        assert_eq!(forecast.seconds_left(), None);
        forecast.begin_group(6);
        forecast.step(36.0, took(30.0, 1.0));
        // Five more at 1 s, then a prefill and six answers. A mean over steps would give 36 x 11 = 396 s.
        assert_eq!(forecast.seconds_left(), Some(5.0 + 36.0));
        for _ in 1..6 {
            forecast.step(36.0, took(0.0, 1.0));
        }
        assert_eq!(forecast.seconds_left(), Some(36.0));
        forecast.begin_group(6);
        forecast.step(72.0, took(30.0, 1.0));
        assert_eq!(forecast.seconds_left(), Some(5.0));
        for _ in 1..6 {
            forecast.step(72.0, took(0.0, 1.0));
        }
        assert_eq!(forecast.seconds_left(), Some(0.0));
    }

    #[test]
    fn reading_and_answering_have_speeds_of_their_own_and_the_clock_decides() {
        let mut forecast = of(8);
        forecast.begin_group(2);
        forecast.step(11.0, took(10.0, 1.0));
        forecast.step(16.0, took(2.0, 3.0));
        // Three groups of 10 + 2 s of prefill and 2 x 2 s of answers; all time was measured.
        assert_eq!(forecast.seconds_left(), Some(3.0 * 16.0));
        forecast.begin_group(2);
        forecast.step(27.0, took(10.0, 1.0));
        forecast.step(64.0, took(2.0, 3.0));
        // Half of the wall-clock time was unmeasured; assume it continues.
        assert_eq!(forecast.seconds_left(), Some(2.0 * 16.0 * 2.0));
    }

    #[test]
    fn calls_that_run_at_once_take_a_share_of_the_clock_each() {
        let mut forecast = of(40);
        for call in 0..8 {
            // Four at once, 2 s each.
            forecast.step(f64::from(call / 4 + 1) * 2.0, took(0.0, 2.0));
        }
        assert_eq!(forecast.seconds_left(), Some(32.0 / 4.0 * 2.0));
    }

    #[test]
    fn steps_without_a_measure_are_averaged_and_refused_ones_do_not_count_beside_measured_ones() {
        let mut plain = of(4);
        plain.step(2.0, None);
        plain.step(6.0, None);
        assert_eq!(plain.seconds_left(), Some(6.0));
        let mut mixed = of(4);
        mixed.step(0.0, None);
        mixed.step(10.0, took(0.0, 10.0));
        assert_eq!(mixed.seconds_left(), Some(20.0));
    }
}
