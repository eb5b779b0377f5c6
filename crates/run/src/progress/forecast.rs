//! Time left of a job: of steps of about equal cost, of groups of steps that share work, or of tokens.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// A forecast, and the instant that its seconds count from.
#[derive(Debug, Clone)]
pub(super) struct Clock {
    start: Instant,
    forecast: Arc<Mutex<Forecast>>,
}

impl Clock {
    pub fn new(steps: usize) -> Self {
        let forecast = Forecast { left: steps, ..Forecast::default() };
        Clock { start: Instant::now(), forecast: Arc::new(Mutex::new(forecast)) }
    }

    pub fn forecast(&self) -> MutexGuard<'_, Forecast> {
        self.forecast.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn seconds(&self) -> f64 {
        self.start.elapsed().as_secs_f64()
    }

    /// Fraction of the time that has passed, and seconds left.
    pub fn ahead(&self) -> Option<(f64, f64)> {
        let now = self.seconds();
        let left = self.forecast().left_at(now)?;
        Some((now / (now + left).max(f64::MIN_POSITIVE), left))
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
pub(super) struct Forecast {
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
    /// By [`Work`]; where some is expected, it decides, not the steps.
    work: [Amount; 2],
    /// Time of the last work.
    worked: f64,
}

/// Kinds of tokens that are computed at different speeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// Prefill, chunk by chunk.
    History,
    /// Questions and answers, with logits, in batches.
    Answer,
}

#[derive(Debug, Clone, Copy, Default)]
struct Amount {
    done: usize,
    left: usize,
    seconds: f64,
}

impl Forecast {
    pub fn begin_group(&mut self, size: usize) {
        self.groups.0 += 1;
        self.groups.1 += size;
        self.in_group = size;
        self.is_first = true;
    }

    /// `now`: seconds since the start.
    pub fn step(&mut self, now: f64, took: Option<StepSeconds>) {
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

    /// Tokens still to be computed.
    pub fn expect(&mut self, histories: usize, answers: usize) {
        self.work[Work::History as usize].left = histories;
        self.work[Work::Answer as usize].left = answers;
    }

    pub fn did(&mut self, now: f64, work: Work, tokens: usize) {
        let amount = &mut self.work[work as usize];
        amount.done += tokens;
        amount.left = amount.left.saturating_sub(tokens);
        amount.seconds += now - self.worked;
        self.worked = now;
    }

    fn expects_work(&self) -> bool {
        self.work.iter().any(|amount| amount.done + amount.left > 0)
    }

    pub fn knows_steps(&self) -> bool {
        self.own.count + self.unmeasured.count > 0
    }

    /// Seconds left at `now`, some time after the last step or work.
    pub fn left_at(&self, now: f64) -> Option<f64> {
        let seconds = self.seconds_left()?;
        let (since, least) = match self.expects_work() {
            // Work that takes longer than expected is not about to end.
            true => (self.worked, seconds / 2.0),
            // The current step may take longer than the others, which are still to come.
            false => (self.last, seconds * (1.0 - 1.0 / self.left.max(1) as f64)),
        };
        Some((seconds - (now - since)).max(least))
    }

    /// Each kind of work at its own speed so far; histories, which are faster, at most at that of answers. `None` before any answer.
    fn work_left(&self) -> Option<f64> {
        let [histories, answers] = self.work;
        let pace = |amount: Amount| (amount.done > 0).then(|| amount.seconds / amount.done as f64);
        let of_answers = pace(answers).or((answers.left == 0).then_some(0.0))?;
        let of_histories = pace(histories).unwrap_or(of_answers);
        Some(histories.left as f64 * of_histories + answers.left as f64 * of_answers)
    }

    /// As of the last step or work; `None` before any data.
    fn seconds_left(&self) -> Option<f64> {
        if self.left == 0 {
            return Some(0.0);
        }
        if self.expects_work() {
            return self.work_left();
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

#[cfg(test)]
mod tests {
    use super::*;

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

    /// Two cases of 1,000 tokens of history at 100 a second, each with 10 forward passes over 50 tokens in batches of 5, at 25 a second.
    #[test]
    fn histories_and_answers_have_speeds_of_their_own() {
        let mut forecast = of(2);
        forecast.expect(2000, 1000);
        assert_eq!(forecast.left_at(3.0), None, "nothing was computed yet");
        forecast.did(5.0, Work::History, 500);
        assert_eq!(forecast.left_at(5.0), None, "the speed of answers is not known");
        forecast.did(10.0, Work::History, 500);
        forecast.did(20.0, Work::Answer, 250);
        assert_eq!(forecast.left_at(20.0), Some(10.0 + 30.0));
        assert_eq!(forecast.left_at(24.0), Some(36.0), "the clock runs between two batches");
        assert_eq!(forecast.left_at(90.0), Some(20.0), "a slow batch does not end the job");
        forecast.did(30.0, Work::Answer, 250);
        forecast.step(30.0, None);
        assert_eq!(forecast.left_at(30.0), Some(10.0 + 20.0), "the second case takes as long as the first");
        forecast.did(40.0, Work::History, 1000);
        forecast.did(60.0, Work::Answer, 500);
        forecast.step(60.0, None);
        assert_eq!(forecast.left_at(61.0), Some(0.0));
    }

    #[test]
    fn time_left_falls_between_two_steps_and_not_below_the_steps_to_come() {
        let mut forecast = of(5);
        forecast.step(10.0, None);
        assert_eq!(forecast.left_at(10.0), Some(40.0));
        assert_eq!(forecast.left_at(14.0), Some(36.0));
        assert_eq!(forecast.left_at(50.0), Some(30.0), "three more after a slow second one");
    }
}
