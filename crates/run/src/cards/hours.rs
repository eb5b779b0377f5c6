//! Estimated seconds of a run on a named card: the counts of [`super::work`] by published rates, for `model plan --card` and
//! `run --estimate --card`. Assumes [`REACHED`], [`LAUNCH`], [`GAP`] and [`ROW`]; omits tokenising, files and model loading.

use std::fmt::Write as _;

use serde_json::json;

use super::work::{Kernel, LayerWork, Recording, Work, token_head};
use super::{MEASURED, NAMED, NamedCard, Peaks, REACHED};
use palimpsest_core::attention::AttentionKernel;
use palimpsest_core::engine::DeviceName;
use palimpsest_core::engine::memory_plan::{MemoryPlan, MemoryRequest};
use palimpsest_core::model::{DecoderSpec, ModelDescription};

/// Seconds of an exposed kernel launch, which bound a model that is read faster than its kernels start. Assumed.
pub const LAUNCH: f64 = 5e-6;
/// Seconds between two kernels of a decode step, as on the card of [`MEASURED`].
pub const GAP: f64 = 1.6e-6;
/// Seconds of the host per recorded row and head, as there. It then looked for a row's spans in every head, which it does once now: an
/// upper bound.
pub const ROW: f64 = 1.2e-7;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CaseShape {
    pub shared: usize,
    pub own: Vec<usize>,
    pub answer: usize,
    /// No rows if nothing is recorded.
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
    /// Bytes per number: 2 in half precision, 4 in f32.
    pub size: usize,
    pub kernel: Kernel,
    pub batch: usize,
}

impl Forecast<'_> {
    fn work(&self, of: impl Fn(&LayerWork) -> Work) -> Work {
        LayerWork::all(self.spec, self.size).map(|layer| of(&layer)).sum()
    }

    fn seconds(&self, work: Work) -> f64 {
        self.peaks.seconds(&work, self.size < 4)
    }

    /// Seconds of prefilling `tokens` after `before` others.
    pub fn prefill(&self, before: usize, tokens: usize) -> f64 {
        let upto = |end| self.seconds(self.work(|layer| layer.prefill(end, self.kernel)));
        // At least one read of the weights and the cache.
        (upto(before + tokens) - upto(before)).max(self.step(before, tokens, 1))
    }

    /// Seconds of recording rows that attend to `tokens`.
    pub fn recording(&self, tokens: usize, recording: Recording) -> f64 {
        let heads: usize = self.spec.layers.iter().filter_map(|layer| Some(layer.attention()?.heads)).sum();
        self.seconds(self.work(|layer| layer.recorded(tokens, recording, self.kernel)))
            + (recording.rows * heads) as f64 * ROW
    }

    /// Seconds of a decode step of `answers`, each with `own` tokens after `shared` ones: memory reads and the gaps between kernels, or
    /// kernel launches, whichever takes longer.
    pub fn step(&self, shared: usize, own: usize, answers: usize) -> f64 {
        let launches: f64 = LayerWork::all(self.spec, self.size).map(|layer| layer.launches()).sum();
        let read = self.work(|layer| layer.step(shared, own, answers, self.kernel));
        (self.seconds(read + token_head(self.spec, self.size)) + launches * GAP).max(launches * LAUNCH)
    }

    pub fn case(&self, case: &CaseShape) -> Expected {
        let longest = case.own.iter().copied().max().unwrap_or(0);
        let own: f64 = case.own.iter().map(|&own| self.prefill(case.shared, own)).sum();
        let steps = case.own.chunks(self.batch.max(1)).map(|answers| {
            // On average half of the answer is in the cache.
            case.answer as f64 * self.step(case.shared, longest + case.answer / 2, answers.len())
        });
        Expected {
            prefill: self.prefill(0, case.shared) + own,
            recording: self.recording(case.shared + longest, case.recording),
            decoding: steps.sum(),
        }
    }
}

/// Layers are split over 1, 2, 4 or 8 cards.
const MOST_CARDS: usize = 8;
/// Numbers of shards listed.
const PARTS: [usize; 3] = [2, 4, 8];

/// The fewest cards with `usable` bytes each that hold the request (or the maximum), and the plan. Sets the request's devices.
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

/// Seconds on one card, or on the few that hold the model, which work in turn.
#[derive(Debug, Clone, Copy)]
pub struct Hours {
    card: NamedCard,
    half: bool,
    all: Expected,
    cases: f64,
}

impl Hours {
    /// `cases`: shapes with the number of cases each represents.
    pub fn new(
        spec: &DecoderSpec,
        request: &MemoryRequest,
        card: NamedCard,
        cases: &[(CaseShape, f64)],
    ) -> Self {
        let size = request.dtype.size_in_bytes();
        let kernel = match request.kernel {
            AttentionKernel::Products => Kernel::Blocks,
            // The fused kernels exist in half precision only.
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

    /// One line for `asked`, one for shards, one for the assumptions.
    pub fn text(&self, asked: &str, cards: usize) -> String {
        let Hours { card, all, .. } = self;
        let on = match cards {
            1 => format!("one {}", card.title),
            _ => format!("{cards} x {}, which take turns", card.title),
        };
        let mut text = format!(
            "An estimate; nothing was measured here.\n\
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
        let peaks = self.card.peaks;
        let percent = |part: f64| (part * 1000.0).round() / 10.0;
        let tera = |rate: f64| (rate / 1e11).round() / 10.0;
        let products = match self.half {
            true => format!(
                "of {} TFLOP/s: {}% for linear maps, {}% for attention, {}% for recorded rows",
                tera(peaks.half),
                percent(REACHED.linear),
                percent(REACHED.attention),
                percent(REACHED.rows),
            ),
            false => format!("{}% of {} TFLOP/s in f32 for products", percent(REACHED.f32), tera(peaks.f32)),
        };
        let [card, day, _] = MEASURED;
        let there = NAMED.iter().find(|named| named.name == card).map_or(card, |named| named.title);
        let here = if self.card.name == card { "" } else { "; assumed of this card, which was not measured" };
        format!(
            "  assumed {products};\n  of {} GB/s: {}% for decoding; {} operations of experts, {} of delta rules a byte of it;\n  {:.1} us between \
             kernels; rates by the {}.\n  As measured on one {there} on {day}{here}.\n  `palimpsest selftest` on the card measures.\n",
            (peaks.bandwidth / 1e9).round(),
            percent(REACHED.bandwidth),
            REACHED.experts,
            REACHED.rule,
            GAP * 1e6,
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

pub fn duration(seconds: f64) -> String {
    match seconds {
        0.0..10.0 => format!("{seconds:.1} s"),
        10.0..120.0 => format!("{seconds:.0} s"),
        120.0..7200.0 => format!("{:.0} min", seconds / 60.0),
        _ => format!("{:.1} h", seconds / 3600.0),
    }
}
