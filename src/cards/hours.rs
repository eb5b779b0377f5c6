//! The hours of a run on a named card, as `model plan --card` and `run --estimate --card` print them: an estimate, by published rates.

use std::fmt::Write as _;

use serde_json::json;

use super::{CaseShape, Expected, Forecast, Kernel, LAUNCH, NamedCard, REACHED, duration};
use palimpsest_core::attention::AttentionKernel;
use palimpsest_core::engine::DeviceName;
use palimpsest_core::engine::memory_plan::{MemoryPlan, MemoryRequest};
use palimpsest_core::model::{DecoderSpec, ModelDescription};

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
