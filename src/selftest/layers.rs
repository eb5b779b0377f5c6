//! A smoke test of single layers at the widths of released models: agreement with the CPU's f32 over a short prompt, then a long
//! prompt with recording and generation, whose masses must be whole and whose memory stands beside the plan.

use std::time::{Duration, Instant};

use candle_core::{DType, Device};
use serde::Serialize;

use super::SelfTestError;
use super::parity::{Reader, in_steps};
use super::rule::{self, Compared, Measure, Numbers};
use super::shapes::{FILL, Shape, has_experts};
use super::trial::{Setting, Subject, Trial};
use crate::cards::Recording;
use crate::progress::{Status, grouped};
use palimpsest_core::engine;

/// In half precision a layer's logits keep this cosine with f32's; with experts, between which a rounding error chooses, the
/// second.
const COSINES: [f64; 2] = [0.999, 0.99];
/// The masses of a row may miss 1 by this.
pub const MASSES_OFF: f64 = 1e-3;
/// No prompt is cut below this to save time.
const SHORTEST: usize = 256;

/// The outcome of a layer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LayerResult {
    /// The kind of layer.
    pub name: &'static str,
    /// The released model whose widths it has.
    pub of: &'static str,
    /// Its parameters.
    pub parameters: u64,
    /// The dtype that it ran in.
    pub dtype: &'static str,
    /// The device that it ran on.
    pub device: String,
    /// Its numbers over a short prompt, compared with those of the CPU in f32 with the same weights.
    pub agreement: Vec<Compared>,
    /// Its trial over a long prompt; none where it does not fit.
    pub trials: Vec<Trial>,
    /// What was left out or made shorter, and why.
    pub notes: Vec<String>,
    /// Why it could not be run.
    pub error: Option<String>,
    /// Whether it agrees and its masses are whole.
    pub sound: bool,
}

/// The long prompt of layers and kernels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule {
    /// Its tokens.
    pub tokens: usize,
    /// Tokens that are read at a time.
    pub chunk: usize,
    /// Tokens that are generated after it.
    pub generate: usize,
    /// What is recorded.
    pub recording: Recording,
}

impl Schedule {
    /// For a device of that kind.
    pub fn of(device: &Device, quick: bool) -> Self {
        if quick {
            let recording = Recording { rows: 40, spans: 16 };
            return Schedule { tokens: 256, chunk: 64, generate: 8, recording };
        }
        // As many rows and spans as a case of the benchmark has.
        let recording = Recording { rows: 500, spans: 500 };
        let tokens = if device.is_cpu() { 2048 } else { 32_768 };
        Schedule { tokens, chunk: engine::DEFAULT_CHUNK, generate: 16, recording }
    }
}

impl LayerResult {
    /// Tries a layer on `device` in `dtype`, within about `time`. What fails is told in the result.
    ///
    /// # Errors
    /// [`SelfTestError::Interrupted`] where `going` says so.
    pub fn of(
        shape: &Shape,
        (device, dtype): (&Device, DType),
        (schedule, time): (&Schedule, Duration),
        status: &Status,
        going: &dyn Fn() -> bool,
    ) -> Result<Self, SelfTestError> {
        let spec = &shape.spec;
        let mut result = LayerResult {
            name: shape.name,
            of: shape.of,
            parameters: spec.layers.iter().map(|layer| layer.parameters(spec.hidden) as u64).sum(),
            dtype: dtype.as_str(),
            device: engine::DeviceName::of(device).to_string(),
            agreement: Vec::new(),
            trials: Vec::new(),
            notes: Vec::new(),
            error: None,
            sound: false,
        };
        let begin = Instant::now();
        status.begin(&shape.title(), "comparing with the CPU in f32");
        // Their weights are large: one of the two at a time.
        let agreement = || -> Result<_, SelfTestError> {
            let read = |device: &Device, dtype| {
                Reader::load(spec, dtype, std::slice::from_ref(device))?.read(&in_steps(), 1, going)
            };
            let (expected, _) = read(&Device::Cpu, DType::F32)?;
            Ok(compare(&read(device, dtype)?.0, &expected, dtype, has_experts(spec)))
        };
        let done = agreement().map(|compared| result.agreement = compared);
        result.told("not compared", done)?;
        if result.error.is_none() {
            let left = time.saturating_sub(begin.elapsed());
            let done = result.try_long(shape, (device, dtype), (schedule, left), status, going);
            result.told("not timed", done)?;
        }
        result.judge();
        Ok(result)
    }

    /// What does not fit is a note, and what fails in another way the layer's error.
    fn told(&mut self, left_out: &str, done: Result<(), SelfTestError>) -> Result<(), SelfTestError> {
        match done {
            Err(SelfTestError::Interrupted) => return Err(SelfTestError::Interrupted),
            Err(SelfTestError::DoesNotFit(refusal)) => self.notes.push(format!("{left_out}: {refusal}")),
            Err(error) => self.error = Some(error.to_string()),
            Ok(()) => {}
        }
        Ok(())
    }

    fn try_long(
        &mut self,
        shape: &Shape,
        (device, dtype): (&Device, DType),
        (schedule, time): (&Schedule, Duration),
        status: &Status,
        going: &dyn Fn() -> bool,
    ) -> Result<(), SelfTestError> {
        let begin = Instant::now();
        let Schedule { tokens, chunk, generate, recording } = *schedule;
        let setting = Setting { dtype, devices: vec![device.clone()], chunk, tokens, generate, fill: FILL };
        status.begin(&shape.title(), "making weights");
        let subject = Subject::load(&shape.title(), shape.spec.clone(), setting)?;
        status.begin(&shape.title(), "warming up");
        // Twice: the first time loads kernels and takes memory from the system.
        subject.warm_up(SHORTEST, going)?;
        let seconds = subject.warm_up(SHORTEST, going)?;
        let left = time.saturating_sub(begin.elapsed()).as_secs_f64();
        let fitting = ((SHORTEST as f64 * left / seconds) as usize).clamp(SHORTEST.min(tokens), tokens);
        if fitting < tokens {
            self.notes.push(format!(
                "{}: {} tokens would take about {:.0} s here, so {} were read",
                shape.title(),
                grouped(tokens as u64),
                seconds * tokens as f64 / SHORTEST as f64,
                grouped(fitting as u64)
            ));
        }
        let trial = subject.measure(fitting, recording, &mut |done| {
            status.prefill(done, fitting);
            going()
        })?;
        self.trials.push(trial);
        Ok(())
    }

    /// What was left out for want of memory, which the notes tell, is not held against it.
    fn judge(&mut self) {
        let agrees = self.agreement.iter().all(Compared::holds);
        let whole = self.trials.iter().all(|trial| trial.masses_off <= MASSES_OFF);
        self.sound = self.error.is_none() && agrees && whole;
    }
}

/// In f32 by the rule of the small models; in half precision, where no other implementation says what is usual, by direction.
fn compare(found: &Numbers, expected: &Numbers, dtype: DType, experts: bool) -> Vec<Compared> {
    if dtype == DType::F32 {
        return rule::in_f32(found, expected);
    }
    let logits = found.get("logits").zip(expected.get("logits"));
    let found = logits.map_or(f64::NEG_INFINITY, |(found, expected)| rule::cosine(found, expected));
    vec![Compared { what: "logits", measure: Measure::Cosine, found, allowed: COSINES[usize::from(experts)] }]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::selftest::shapes;

    fn of(
        shape: &Shape,
        dtype: DType,
        schedule: &Schedule,
        time: u64,
        going: bool,
    ) -> Result<LayerResult, SelfTestError> {
        let time = Duration::from_secs(time);
        LayerResult::of(shape, (&Device::Cpu, dtype), (schedule, time), &Status::silent(), &|| going)
    }

    #[test]
    fn every_kind_of_layer_agrees_with_f32_in_half_precision_by_the_kernels_of_cards()
    -> Result<(), SelfTestError> {
        let schedule = Schedule::of(&Device::Cpu, true);
        for dtype in [DType::BF16, DType::F16] {
            for shape in shapes::layers(true)? {
                let result = of(&shape, dtype, &schedule, 600, true)?;
                assert!(result.sound && result.trials.len() == 1, "{result:?}");
            }
        }
        Ok(())
    }

    #[test]
    fn a_layer_whose_logits_or_masses_are_off_is_not_sound() -> Result<(), SelfTestError> {
        let numbers = |logit: f32, mass: f32| {
            Numbers::from([("logits", vec![1.0, -2.0, logit]), ("mass", vec![0.5, mass])])
        };
        let off = |found: &Numbers, dtype| {
            compare(found, &numbers(0.5, 0.5), dtype, false).iter().filter(|c| !c.holds()).count()
        };
        assert_eq!(off(&numbers(0.5, 0.5), DType::F32), 0);
        assert_eq!(off(&numbers(0.502, 0.5002), DType::F32), 2);
        assert_eq!(off(&numbers(0.502, 0.9), DType::BF16), 0, "direction alone");
        assert_eq!(off(&numbers(0.7, 0.5), DType::BF16), 1);

        let shape = shapes::layers(true)?.remove(1);
        let schedule = Schedule::of(&Device::Cpu, true);
        let mut result = of(&shape, DType::F32, &schedule, 60, true)?;
        assert!(result.sound && result.notes.is_empty(), "{result:?}");
        let trial = &result.trials[0];
        assert_eq!((trial.tokens, trial.generated, trial.rows, trial.spans), (256, 8, 40, 16));
        assert!(trial.prefill_seconds > 0.0 && trial.recording_seconds > 0.0 && trial.token_seconds > 0.0);
        result.trials[0].masses_off = 2.0 * MASSES_OFF;
        result.judge();
        assert!(!result.sound);

        // Without time the prompt is cut, and that is said.
        let cut = of(&shape, DType::F32, &Schedule { tokens: 1024, ..schedule.clone() }, 0, true)?;
        assert_eq!(cut.trials[0].tokens, SHORTEST);
        assert!(cut.notes[0].contains("1,024 tokens would take"), "{:?}", cut.notes);
        let stopped = of(&shape, DType::F32, &schedule, 60, false);
        assert!(matches!(stopped, Err(SelfTestError::Interrupted)));
        Ok(())
    }
}
