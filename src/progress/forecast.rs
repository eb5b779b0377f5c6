//! How much time is left of steps of which some, in groups, share the work that the first of them begins with: the answers to a case
//! share the reading of its history, and come all at once where they are decoded as one batch.
//!
//! Seconds of the shared work and of each step's own are averaged apart, so that the first step of a group does not stand for all.

/// What a step took, as its doer measured it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct StepSeconds {
    /// Before its own work: of the first step of a group what the group shares too.
    pub before: f64,
    pub own: f64,
}

/// The mean of what was seen.
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

/// What is known of the steps so far.
#[derive(Debug, Default)]
pub(crate) struct Forecast {
    left: usize,
    /// Groups that were begun, and how many steps they have.
    groups: (usize, usize),
    /// Steps of the group under way that are to come.
    in_group: usize,
    /// Whether the next step is the first of its group.
    is_first: bool,
    /// What steps took before their own work: the first of a group, and the others.
    before: (Mean, Mean),
    own: Mean,
    /// Seconds that steps say they took.
    measured: f64,
    /// Seconds of the clock for a second that is measured, over the groups that have ended: more where work is done between steps, less
    /// where several are under way at once.
    pace: Option<f64>,
    last: f64,
    /// Seconds from step to step of those that were not measured; they count only where none was, since what is refused takes none.
    unmeasured: Mean,
}

impl Forecast {
    /// Of so many steps.
    pub fn new(total: usize) -> Self {
        Forecast { left: total, ..Forecast::default() }
    }

    /// The next `size` steps share what the first of them begins with.
    pub fn begin_group(&mut self, size: usize) {
        self.groups.0 += 1;
        self.groups.1 += size;
        self.in_group = size;
        self.is_first = true;
    }

    /// A step has ended `now` seconds after the beginning of all.
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

    /// Seconds left; `None` before anything is known.
    pub fn seconds_left(&self) -> Option<f64> {
        if self.left == 0 {
            return Some(0.0);
        }
        let Some(own) = self.own.value() else {
            return self.unmeasured.value().map(|mean| mean * self.left as f64);
        };
        let (groups, sizes) = self.groups;
        let in_group = self.in_group.min(self.left);
        let beyond = (self.left - in_group) as f64;
        // Groups to come are taken to be as large as those so far.
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

    const fn took(before: f64, own: f64) -> Option<StepSeconds> {
        Some(StepSeconds { before, own })
    }

    /// Two histories of six answers each: 30 s of reading, then six answers as one batch in 6 s.
    #[test]
    fn the_first_answer_of_a_batch_does_not_stand_for_all() {
        let mut forecast = Forecast::new(12);
        assert_eq!(forecast.seconds_left(), None);
        forecast.begin_group(6);
        forecast.step(36.0, took(30.0, 1.0));
        // Five more at 1 s, then a reading and six answers. A mean over steps would say 36 x 11 = 396 s.
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
        let mut forecast = Forecast::new(8);
        forecast.begin_group(2);
        forecast.step(11.0, took(10.0, 1.0));
        forecast.step(16.0, took(2.0, 3.0));
        // Three groups of 10 + 2 s of reading and 2 x 2 s of answering; all of the clock was measured.
        assert_eq!(forecast.seconds_left(), Some(3.0 * 16.0));
        forecast.begin_group(2);
        forecast.step(27.0, took(10.0, 1.0));
        forecast.step(64.0, took(2.0, 3.0));
        // Half of the clock's time went into other things, as it is taken to go on.
        assert_eq!(forecast.seconds_left(), Some(2.0 * 16.0 * 2.0));
    }

    #[test]
    fn calls_that_run_at_once_take_a_share_of_the_clock_each() {
        let mut forecast = Forecast::new(40);
        for call in 0..8 {
            // Four at once, 2 s each.
            forecast.step(f64::from(call / 4 + 1) * 2.0, took(0.0, 2.0));
        }
        assert_eq!(forecast.seconds_left(), Some(32.0 / 4.0 * 2.0));
    }

    #[test]
    fn steps_without_a_measure_are_averaged_and_refused_ones_do_not_count_beside_measured_ones() {
        let mut plain = Forecast::new(4);
        plain.step(2.0, None);
        plain.step(6.0, None);
        assert_eq!(plain.seconds_left(), Some(6.0));
        let mut mixed = Forecast::new(4);
        mixed.step(0.0, None);
        mixed.step(10.0, took(0.0, 10.0));
        assert_eq!(mixed.seconds_left(), Some(20.0));
    }
}
