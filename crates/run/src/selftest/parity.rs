//! Compares random models on the devices under test with the CPU: small ones of every architecture, and single layers.
//!
//! The reference is one f32 pass over a short prompt on the CPU. The device runs the same pass, then reads the prompt in steps. In half
//! precision the tolerance derives from the CPU's own error in that dtype; on the CPU itself f32 compares prefill with single steps and
//! half precision only has to run. Layers at released widths also run a long prompt with recording and generation: masses must sum to 1,
//! memory is compared with the plan, and on cards every attention kernel is timed.

use candle_core::{DType, Device};
use serde::Serialize;

use super::rule::{self, Compared, Numbers};
use super::shapes::{self, Shape, has_experts};
use super::trial::{Measured, On, Setting, Subject, Trial, is_interrupted};
use crate::cards::Recording;
use crate::progress::Status;
use palimpsest_core::attention::AttentionKernel;
use palimpsest_core::engine::DeviceName;
use palimpsest_core::engine::memory_plan::DoesNotFit;
use palimpsest_core::model::DecoderSpec;

/// Prompt length; the last positions are compared.
const TOKENS: usize = 151;
const POSITIONS: usize = 16;
const CPU: On<'_> = (&[Device::Cpu], AttentionKernel::Auto);
const GREEDY: usize = 32;

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Parity {
    pub checkpoint: &'static str,
    pub architecture: &'static str,
    pub dtype: &'static str,
    pub compared: Vec<Compared>,
    /// Greedy tokens that match the f32 reference before the first mismatch.
    pub greedy: usize,
    pub greedy_of: usize,
    pub error: Option<String>,
    /// All comparisons hold; in f32 also the greedy tokens.
    pub sound: bool,
}

impl Parity {
    /// Errors are recorded in the result. `exact` is kept for the model's other dtypes.
    pub fn of(
        shape: &Shape,
        dtype: DType,
        exact: &mut Exact,
        on: On<'_>,
        going: &dyn Fn() -> bool,
    ) -> anyhow::Result<Self> {
        let (architecture, greedy_of) = (shape.spec.architecture, GREEDY);
        let mut parity = Parity {
            checkpoint: shape.name,
            architecture,
            dtype: dtype.as_str(),
            greedy_of,
            ..Parity::default()
        };
        match compare(&shape.spec, dtype, exact, on, going) {
            Err(error) if is_interrupted(&error) => return Err(error),
            Err(error) => parity.error = Some(error.to_string()),
            Ok((compared, greedy)) => (parity.compared, parity.greedy) = (compared, greedy),
        }
        Ok(parity.judged())
    }

    fn judged(self) -> Self {
        let greedy = self.dtype != DType::F32.as_str() || self.greedy == self.greedy_of;
        let compared = !self.compared.is_empty() && self.compared.iter().all(Compared::holds);
        Parity { sound: self.error.is_none() && greedy && compared, ..self }
    }
}

/// References on the CPU in f32, which take most of the test's time: once for all dtypes, twice where there are experts.
#[derive(Debug, Default)]
pub struct Exact(Option<(DecoderSpec, Measured)>);

impl Exact {
    fn of(&mut self, spec: &DecoderSpec, going: &dyn Fn() -> bool) -> anyhow::Result<&Measured> {
        let known = self.0.take().filter(|(of, _)| of == spec);
        let (spec, measured) = match known {
            Some(known) => known,
            None => (spec.clone(), read(&load(spec, DType::F32, false, GREEDY, CPU)?, &[TOKENS], going)?),
        };
        Ok(&self.0.insert((spec, measured)).1)
    }
}

/// The worst comparison per kind of number, and the minimum of matching greedy tokens.
fn compare(
    spec: &DecoderSpec,
    dtype: DType,
    exact: &mut Exact,
    on: On<'_>,
    going: &dyn Fn() -> bool,
) -> anyhow::Result<(Vec<Compared>, usize)> {
    let half = dtype != DType::F32;
    let spec = if half { shapes::to_all_experts(spec.clone()) } else { spec.clone() };
    let exact = exact.of(&spec, going)?;
    // Round hidden states as cards do; the CPU's bf16 keeps them in f32. Its tokens are not compared.
    let theirs = half.then(|| load(&spec, dtype, true, 1, CPU)).transpose()?;
    let subject = load(&spec, dtype, false, GREEDY, on)?;
    let (mut worst, mut greedy) = (Vec::new(), GREEDY);
    for ends in [vec![TOKENS], in_steps()] {
        let found = read(&subject, &ends, going)?;
        let same = found.greedy.iter().zip(&exact.greedy).take_while(|(a, b)| a == b).count();
        greedy = greedy.min(same);
        let compared = match &theirs {
            None => rule::in_f32(&found.numbers, &exact.numbers),
            // Same chunks: a single row is summed in a different order.
            Some(theirs) => {
                rule::in_half(&found.numbers, &exact.numbers, &read(theirs, &ends, going)?.numbers)
            }
        };
        take_worse(&mut worst, compared);
    }
    Ok((worst, greedy))
}

fn take_worse(worst: &mut Vec<Compared>, compared: Vec<Compared>) {
    for new in compared {
        match worst.iter_mut().find(|old| old.what == new.what) {
            Some(old) if new.used() > old.used() => *old = new,
            Some(_) => {}
            None => worst.push(new),
        }
    }
}

/// Chunk ends: chunks, then single positions as in decoding.
fn in_steps() -> Vec<usize> {
    let first = TOKENS - POSITIONS;
    (0..first).step_by(64).skip(1).chain(first..=TOKENS).collect()
}

/// `rounds` also rounds hidden states to the dtype on the CPU. `greedy` tokens are generated, of which the first needs no pass.
fn load(
    spec: &DecoderSpec,
    dtype: DType,
    rounds: bool,
    greedy: usize,
    on: On<'_>,
) -> anyhow::Result<Subject> {
    let recording = Recording { rows: 40, spans: 10 };
    let usual = Setting::new(on, dtype, TOKENS);
    let setting = Setting { rounds, chunk: TOKENS, generate: greedy - 1, recording, ..usual };
    Subject::load("a model of random weights", spec.clone(), setting)
}

fn read(subject: &Subject, ends: &[usize], going: &dyn Fn() -> bool) -> anyhow::Result<Measured> {
    subject.measure(ends, POSITIONS, &mut |_| going())
}

/// Maximum relative RMS of a layer's logits in half precision against f32: dense, and with experts, whose routing rounding can change.
const OFF: [f64; 2] = [0.045, 0.14];
/// Maximum deviation of a row's total mass from 1.
pub const MASSES_OFF: f64 = 1e-3;

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct LayerResult {
    pub name: &'static str,
    /// The released model with these widths.
    pub of: &'static str,
    pub parameters: u64,
    pub dtype: &'static str,
    pub device: String,
    /// Against the CPU in f32 with the same weights, over a short prompt.
    pub agreement: Vec<Compared>,
    /// Trials over a long prompt, chosen kernel first; empty if it does not fit.
    pub trials: Vec<Trial>,
    pub notes: Vec<String>,
    pub error: Option<String>,
    /// Agreement and complete masses. Parts skipped for lack of memory do not count.
    pub sound: bool,
}

impl Setting {
    /// The long prompt on the device under test.
    pub fn long(device: &Device, dtype: DType, kernel: AttentionKernel, quick: bool) -> Self {
        let tokens = match device {
            _ if quick => 256,
            Device::Cpu => 1024,
            _ => 32_768,
        };
        let usual = Setting::new((std::slice::from_ref(device), kernel), dtype, tokens);
        let recording = Recording { rows: 40, spans: 16 };
        if quick { Setting { chunk: 64, generate: 8, recording, ..usual } } else { usual }
    }

    /// Errors and skipped parts are recorded in the result.
    pub fn try_layer(
        &self,
        shape: &Shape,
        status: &Status,
        going: &dyn Fn() -> bool,
    ) -> anyhow::Result<LayerResult> {
        let Setting { devices, dtype, kernel, .. } = self;
        let spec = &shape.spec;
        let mut result = LayerResult {
            name: shape.name,
            of: shape.of,
            parameters: spec.layers.iter().map(|layer| layer.parameters(spec.hidden) as u64).sum(),
            dtype: dtype.as_str(),
            device: devices.first().map(|device| DeviceName::of(device).to_string()).unwrap_or_default(),
            ..LayerResult::default()
        };
        status.begin(&shape.title(), "comparing with the CPU in f32");
        let read = |on, dtype, ends: &[usize]| read(&load(spec, dtype, false, 1, on)?, ends, going);
        let done = read(CPU, DType::F32, &[TOKENS]).and_then(|expected| {
            let found = read((devices, *kernel), *dtype, &in_steps())?.numbers;
            result.agreement = of_layer(&found, &expected.numbers, *dtype, has_experts(spec));
            self.try_kernels(&mut result, shape, status, going)
        });
        match done {
            Err(error) if is_interrupted(&error) => return Err(error),
            Err(error) if error.is::<Box<DoesNotFit>>() => result.notes.push(error.to_string()),
            Err(error) => result.error = Some(error.to_string()),
            Ok(()) => {}
        }
        Ok(result.judged())
    }

    fn try_kernels(
        &self,
        result: &mut LayerResult,
        shape: &Shape,
        status: &Status,
        going: &dyn Fn() -> bool,
    ) -> anyhow::Result<()> {
        use AttentionKernel::{Flash, Fused, Hopper, Products};
        let trial = self.try_long(self.kernel, shape, status, going)?;
        let taken = trial.kernel;
        result.trials.push(trial);
        let attention = shape.spec.layers.first().and_then(|layer| layer.attention());
        let (Some(taken), Some(attention)) = (taken, attention) else { return Ok(()) };
        let serves = |kernel: &AttentionKernel| {
            let built = *kernel != Flash || cfg!(feature = "flash-attn");
            let runs = built && self.devices.iter().all(|device| kernel.runs_on(device));
            runs && *kernel != taken && kernel.of_layer(&attention.shape(self.dtype)) == *kernel
        };
        for kernel in [Products, Fused, Hopper, Flash].into_iter().filter(serves) {
            match self.try_long(kernel, shape, status, going) {
                Err(error) if is_interrupted(&error) => return Err(error),
                Err(error) => result.notes.push(format!("{}, by {kernel}: {error}", shape.title())),
                Ok(trial) => result.trials.push(trial),
            }
        }
        Ok(())
    }

    fn try_long(
        &self,
        kernel: AttentionKernel,
        shape: &Shape,
        status: &Status,
        going: &dyn Fn() -> bool,
    ) -> anyhow::Result<Trial> {
        let (setting, title) = (Setting { kernel, ..self.clone() }, shape.title());
        let (tokens, chunk) = (setting.tokens, setting.chunk);
        status.begin(&title, "making weights");
        let subject = Subject::load(&title, shape.spec.clone(), setting)?;
        status.begin(&title, "warming up");
        // Warm-up: loads kernels and allocates memory before timing.
        subject.measure(&[tokens.min(chunk)], 1, &mut |_| going())?;
        let measured = subject.measure(&[tokens], 1, &mut |done| {
            status.prefill(done, tokens);
            going()
        })?;
        Ok(measured.trial)
    }
}

impl LayerResult {
    fn judged(self) -> Self {
        let agrees = self.agreement.iter().all(Compared::holds);
        let whole = self.trials.iter().all(|trial| trial.masses_off <= MASSES_OFF);
        LayerResult { sound: self.error.is_none() && agrees && whole, ..self }
    }
}

/// f32: the rule of small models. Half precision: logits only, relative RMS.
fn of_layer(found: &Numbers, expected: &Numbers, dtype: DType, experts: bool) -> Vec<Compared> {
    if dtype == DType::F32 {
        return rule::in_f32(found, expected);
    }
    let logits = |numbers: &Numbers| numbers.get("logits").cloned().unwrap_or_default();
    let (found, expected) = (logits(found), logits(expected));
    let size = rule::root_mean_square(&expected, &vec![0.0; expected.len()]);
    let found = rule::root_mean_square(&found, &expected);
    let allowed = OFF[usize::from(experts)] * size;
    vec![Compared { what: "logits", measure: "root_mean_square", found, allowed }]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planted(dtype: &'static str, greedy: usize, found: &[(&'static str, f64)]) -> Parity {
        let compared = |&(what, found)| Compared { what, measure: "largest", found, allowed: 1e-3 };
        let mut worst = Vec::new();
        take_worse(&mut worst, found.iter().map(compared).collect());
        Parity { dtype, compared: worst, greedy, greedy_of: GREEDY, ..Parity::default() }.judged()
    }

    #[test]
    fn a_planted_wrong_number_a_wrong_token_and_no_number_at_all_are_each_found() {
        let fine = [("logits", 1e-5), ("mass", 1e-5)];
        assert!(planted("f32", GREEDY, &fine).sound);
        assert!(!planted("f32", GREEDY - 1, &fine).sound, "a wrong token");
        assert!(planted("bf16", 20, &fine).sound, "tokens decide in f32 alone");
        assert!(!planted("f32", GREEDY, &[]).sound, "nothing was compared");
        let parity = planted("f32", GREEDY, &[fine[0], fine[1], ("logits", 2e-3), ("mass", 1e-6)]);
        assert!(!parity.sound);
        assert_eq!(parity.compared.iter().map(|c| c.found).collect::<Vec<_>>(), [2e-3, 1e-5]);
    }

    #[test]
    fn a_model_is_sound_here_and_another_model_s_numbers_are_not_its_own() -> anyhow::Result<()> {
        let shape = shapes::small()?.remove(1);
        let sound = Parity::of(&shape, DType::F32, &mut Exact::default(), CPU, &|| true)?;
        assert!(sound.sound && sound.greedy == GREEDY, "{sound:?}");
        let numbers =
            |spec: &DecoderSpec| read(&load(spec, DType::F32, false, GREEDY, CPU)?, &in_steps(), &|| true);
        let mut other = shape.spec.clone();
        other.layers.truncate(1);
        let compared = rule::in_f32(&numbers(&other)?.numbers, &numbers(&shape.spec)?.numbers);
        assert!(!compared.iter().any(Compared::holds), "{compared:?}");
        // Another model's numbers are not taken for this one's, and this one's are computed once.
        let mut exact = Exact::default();
        let logits =
            |exact: &mut Exact, spec| anyhow::Ok(exact.of(spec, &|| true)?.numbers["logits"].clone());
        let (theirs, ours) = (logits(&mut exact, &other)?, logits(&mut exact, &shape.spec)?);
        assert_ne!(theirs, ours);
        let kept = exact.of(&shape.spec, &|| false)?;
        assert_eq!(kept.numbers["logits"], ours, "nothing runs that could be stopped");
        let stopped = Parity::of(&shape, DType::F32, &mut Exact::default(), CPU, &|| false);
        assert!(stopped.is_err_and(|error| is_interrupted(&error)));
        Ok(())
    }

    #[test]
    fn every_kind_of_layer_agrees_with_f32_in_half_precision_by_the_kernels_of_cards() -> anyhow::Result<()> {
        for dtype in [DType::BF16, DType::F16] {
            let setting = Setting::long(&Device::Cpu, dtype, AttentionKernel::Auto, true);
            for shape in shapes::layers(true)? {
                let result = setting.try_layer(&shape, &Status::silent(), &|| true)?;
                assert!(result.sound && result.trials.len() == 1, "{result:?}");
            }
        }
        Ok(())
    }

    #[test]
    fn a_layer_whose_logits_or_masses_are_off_is_not_sound() -> anyhow::Result<()> {
        let numbers = |logit: f32, mass: f32| {
            Numbers::from([("logits", vec![1.0, -2.0, logit]), ("mass", vec![0.5, mass])])
        };
        for (logit, mass, dtype, off) in [
            (0.5, 0.5, DType::F32, 0),
            (0.502, 0.5002, DType::F32, 2),
            (0.502, 0.9, DType::BF16, 0), // logits alone
            (0.7, 0.5, DType::BF16, 1),
        ] {
            let compared = of_layer(&numbers(logit, mass), &numbers(0.5, 0.5), dtype, false);
            assert_eq!(compared.iter().filter(|c| !c.holds()).count(), off, "{logit} {mass} {dtype:?}");
        }
        let shape = shapes::layers(true)?.remove(1);
        let setting = Setting::long(&Device::Cpu, DType::F32, AttentionKernel::Auto, true);
        let mut result = setting.try_layer(&shape, &Status::silent(), &|| true)?;
        assert!(result.sound && result.notes.is_empty(), "{result:?}");
        let trial = &mut result.trials[0];
        assert_eq!((trial.rows, trial.spans), (40, 16));
        trial.masses_off = 2.0 * MASSES_OFF;
        assert!(!result.judged().sound);
        let stopped = setting.try_layer(&shape, &Status::silent(), &|| false);
        assert!(stopped.is_err_and(|error| is_interrupted(&error)));
        Ok(())
    }
}
