//! Seconds that a run should take on a named card: what [`super::work`] counts, by the card's published rates, as `model plan --card`
//! and `run --estimate --card` print them.
//!
//! It assumes the parts of the peaks of [`REACHED`] and [`LAUNCH`] seconds a kernel, and leaves out norms, activations,
//! gates, tokenising, files and the loading of the model.

use std::fmt::Write as _;

use serde_json::json;

use super::work::{Kernel, LayerWork, Recording, Work, token_head};
use super::{NamedCard, Peaks, REACHED};
use palimpsest_core::attention::AttentionKernel;
use palimpsest_core::engine::DeviceName;
use palimpsest_core::engine::memory_plan::{MemoryPlan, MemoryRequest};
use palimpsest_core::model::{DecoderSpec, ModelDescription};

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

/// Layers are split between 1, 2, 4 or at most so many cards.
const MOST_CARDS: usize = 8;
/// Parts of a run that are spelt out.
const PARTS: [usize; 3] = [2, 4, 8];

/// The fewest cards with so many usable bytes that hold what is asked for, or the most that are tried, and the plan on them, which
/// says whether it fits. The request is left with these devices.
pub fn fewest_cards(
    description: &ModelDescription,
    request: &mut MemoryRequest,
    usable: u64,
) -> (usize, MemoryPlan) {
    let mut cards = 1;
    loop {
        request.devices = (0..cards).map(DeviceName::Cuda).collect();
        let free = vec![Some(usable); cards];
        let plan = MemoryPlan::new(description, request, &free);
        if cards == MOST_CARDS || plan.fits(&free) == Some(true) {
            return (cards, plan);
        }
        cards *= 2;
    }
}

/// Expected seconds of a run on one card, or on the few that hold the model: these take turns.
#[derive(Debug, Clone, Copy)]
pub struct Hours {
    card: NamedCard,
    half: bool,
    all: Expected,
    /// Cases, which parts of a run are whole numbers of.
    cases: f64,
}

impl Hours {
    /// Of cases, each with how many of the run it stands for.
    pub fn new(
        spec: &DecoderSpec,
        request: &MemoryRequest,
        card: NamedCard,
        cases: &[(CaseShape, f64)],
    ) -> Self {
        let size = request.dtype.size_in_bytes();
        let kernel = match request.kernel {
            AttentionKernel::Products => Kernel::Blocks,
            // Half precision alone has kernels of ours.
            _ if size < 4 => Kernel::Fused,
            _ => Kernel::Blocks,
        };
        let forecast =
            Forecast { spec, peaks: card.peaks, size, kernel, batch: request.branches.count.max(1) };
        let all = cases
            .iter()
            .fold(Expected::default(), |all, (case, times)| all.plus(forecast.case(case), *times));
        Hours { card, half: size < 4, all, cases: cases.iter().map(|(_, times)| times).sum() }
    }

    /// A line for all of `asked` on one card or as many as hold the model, one for its parts, and what was assumed.
    pub fn text(&self, asked: &str, cards: usize) -> String {
        let Hours { card, all, .. } = self;
        let on = match cards {
            1 => format!("one {}", card.title),
            _ => format!("{cards} x {}, which take turns", card.title),
        };
        let mut text = format!(
            "An estimate from published rates; nothing was measured.\n\
             {asked}: {} on {on}\n  prefill {}, recording attention {}, decoding {} at most\n",
            duration(all.total()),
            duration(all.prefill),
            duration(all.recording),
            duration(all.decoding),
        );
        for parts in PARTS.into_iter().filter(|parts| *parts as f64 <= self.cases) {
            let _ = writeln!(
                text,
                "  {parts} parts with --shard 0/{parts} to {}/{parts}: {} on {} cards",
                parts - 1,
                duration(all.total() / parts as f64),
                parts * cards
            );
        }
        text + &self.assumed()
    }

    fn assumed(&self) -> String {
        let (peaks, percent) = (self.card.peaks, |part: f64| (part * 100.0).round());
        let tera = |rate: f64| (rate / 1e11).round() / 10.0;
        let products = match self.half {
            true => format!("{}% of {} TFLOP/s", percent(REACHED.half), tera(peaks.half)),
            false => format!("{}% of {} TFLOP/s in f32", percent(REACHED.f32), tera(peaks.f32)),
        };
        format!(
            "  assumed: {products} for products, {}% of {} TFLOP/s (f32) for recorded attention,\n  {}% of {} GB/s for decoding, {} us a \
             kernel launch; rates by the {}.\n  An H100 took 1.3 to 1.7 times as long, and to record delta-net layers 12 times: `palimpsest selftest` on the card measures.\n",
            percent(REACHED.f32),
            tera(peaks.f32),
            percent(REACHED.bandwidth),
            (peaks.bandwidth / 1e9).round(),
            LAUNCH * 1e6,
            self.card.source,
        )
    }

    pub fn json(&self, cards: usize) -> serde_json::Value {
        let Hours { card, all, .. } = self;
        json!({
            "card": card.name,
            "cards": cards,
            "usable_bytes_of_a_card": card.usable(),
            "prefill_seconds": all.prefill,
            "recording_seconds": all.recording,
            "decoding_seconds": all.decoding,
            "seconds": all.total(),
            "measured": false,
        })
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
