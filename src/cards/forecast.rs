//! Seconds that a run should take on a card: what [`super::work`] counts, by the card's published rates.
//!
//! It assumes the parts of the peaks of [`super::REACHED`] and [`LAUNCH`] seconds a kernel, and leaves out norms, activations,
//! gates, tokenising, files and the loading of the model.

use super::Peaks;
use super::work::{Kernel, LayerWork, Recording, Work, token_head};
use palimpsest_core::model::DecoderSpec;

/// Seconds of a kernel launch that nothing hides.
pub const LAUNCH: f64 = 5e-6;

/// One history, and what is asked about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CaseShape {
    pub shared: usize,
    pub own: Vec<usize>,
    pub answer: usize,
    /// Rows whose attention is recorded, and the spans that it is summed into; no rows where nothing is recorded.
    pub recording: Recording,
}

/// Expected seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Expected {
    pub prefill: f64,
    pub recording: f64,
    pub decoding: f64,
}

impl Expected {
    pub fn total(&self) -> f64 {
        self.prefill + self.recording + self.decoding
    }

    /// These, and others so many times.
    #[must_use]
    pub fn plus(self, other: Expected, times: f64) -> Expected {
        Expected {
            prefill: self.prefill + other.prefill * times,
            recording: self.recording + other.recording * times,
            decoding: self.decoding + other.decoding * times,
        }
    }
}

/// A decoder on a card.
#[derive(Debug, Clone, Copy)]
pub struct Forecast<'a> {
    pub spec: &'a DecoderSpec,
    pub peaks: Peaks,
    /// Bytes of a number: 2 in half precision, 4 in f32.
    pub size: usize,
    pub kernel: Kernel,
    /// Most answers that are decoded together.
    pub batch: usize,
}

impl Forecast<'_> {
    fn work(&self, of: impl Fn(&LayerWork) -> Work) -> Work {
        LayerWork::all(self.spec, self.size).map(|layer| of(&layer)).sum()
    }

    fn seconds(&self, work: Work) -> f64 {
        self.peaks.seconds(&work, self.size < 4)
    }

    /// Seconds of reading `tokens` after `before` others.
    pub fn prefill(&self, before: usize, tokens: usize) -> f64 {
        let upto = |end| self.seconds(self.work(|layer| layer.prefill(end, self.kernel)));
        // A few tokens are read no faster than the weights and the cache.
        (upto(before + tokens) - upto(before)).max(self.step(before, tokens, 1))
    }

    /// Seconds of recording rows that see `tokens`.
    pub fn recording(&self, tokens: usize, recording: Recording) -> f64 {
        self.seconds(self.work(|layer| layer.recorded(tokens, recording, self.kernel)))
    }

    /// Seconds of a step of `answers`, each after `own` tokens beyond the `shared` ones: of reading, or of launching kernels where
    /// that takes longer.
    pub fn step(&self, shared: usize, own: usize, answers: usize) -> f64 {
        let launches: f64 = LayerWork::all(self.spec, self.size).map(|layer| layer.launches()).sum();
        let read = self.work(|layer| layer.step(shared, own, answers, self.kernel));
        self.seconds(read + token_head(self.spec, self.size)).max(launches * LAUNCH)
    }

    /// Seconds of a case whose answers all have their full length.
    pub fn case(&self, case: &CaseShape) -> Expected {
        let longest = case.own.iter().copied().max().unwrap_or(0);
        let own: f64 = case.own.iter().map(|&own| self.prefill(case.shared, own)).sum();
        let steps = case.own.chunks(self.batch.max(1)).map(|answers| {
            // On the average half of the answer is there.
            case.answer as f64 * self.step(case.shared, longest + case.answer / 2, answers.len())
        });
        Expected {
            prefill: self.prefill(0, case.shared) + own,
            recording: self.recording(case.shared + longest, case.recording),
            decoding: steps.sum(),
        }
    }
}

/// `42 s`, `12 min`, `3.4 h`.
pub fn duration(seconds: f64) -> String {
    match seconds {
        0.0..10.0 => format!("{seconds:.1} s"),
        10.0..120.0 => format!("{seconds:.0} s"),
        120.0..7200.0 => format!("{:.0} min", seconds / 60.0),
        _ => format!("{:.1} h", seconds / 3600.0),
    }
}
