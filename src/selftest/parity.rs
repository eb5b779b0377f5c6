//! Small random models on the devices under test, against the CPU.
//!
//! The reference reads the prompt at once on the CPU: in f32, and in half precision in that dtype too, whose own error is what
//! is allowed. On the CPU itself this compares its prefill with its single steps.

use std::ops::Range;

use candle_core::{DType, Device, Tensor};
use serde::Serialize;

use super::SelfTestError;
use super::rule::{self, Compared, Numbers};
use super::shapes::{self, Shape};
use super::trial::{self, Setting, Subject};
use crate::cards::Recording;
use palimpsest_core::engine::Sampling;
use palimpsest_core::model::DecoderSpec;

/// Tokens of the prompt, of which the last positions are compared.
const TOKENS: usize = 151;
const POSITIONS: usize = 16;
/// Tokens that are generated after it.
const GREEDY: usize = 32;

/// A model in a dtype.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Parity {
    /// The released model that was narrowed.
    pub checkpoint: &'static str,
    pub architecture: &'static str,
    pub dtype: &'static str,
    /// The worst comparison of each kind of number.
    pub compared: Vec<Compared>,
    /// The reference's greedy tokens, which are those of f32, that were generated before the first other one.
    pub greedy: usize,
    pub greedy_of: usize,
    /// Why it could not be run.
    pub error: Option<String>,
    /// Whether all of it is as it must be: in f32 the greedy tokens too.
    pub sound: bool,
}

impl Parity {
    /// Compares a model in `dtype` on `devices` with the CPU. What fails is told in the result.
    ///
    /// # Errors
    /// [`SelfTestError::Interrupted`] where `going` says so.
    pub fn of(
        shape: &Shape,
        dtype: DType,
        devices: &[Device],
        going: &dyn Fn() -> bool,
    ) -> Result<Self, SelfTestError> {
        let (checkpoint, architecture, dtype_name) = (shape.name, shape.spec.architecture, dtype.as_str());
        let (compared, greedy, error) = match compare(&shape.spec, dtype, devices, going) {
            Err(SelfTestError::Interrupted) => return Err(SelfTestError::Interrupted),
            Err(error) => (Vec::new(), 0, Some(error.to_string())),
            Ok((compared, greedy)) => (compared, greedy, None),
        };
        let parity = Parity {
            checkpoint,
            architecture,
            dtype: dtype_name,
            compared,
            greedy,
            greedy_of: GREEDY,
            error,
            sound: false,
        };
        Ok(parity.judged())
    }

    fn judged(self) -> Self {
        let greedy = self.dtype != DType::F32.as_str() || self.greedy == self.greedy_of;
        let compared = !self.compared.is_empty() && self.compared.iter().all(Compared::holds);
        Parity { sound: self.error.is_none() && greedy && compared, ..self }
    }
}

/// The worst comparison of each kind of number, and the fewest greedy tokens that agree.
fn compare(
    spec: &DecoderSpec,
    dtype: DType,
    devices: &[Device],
    going: &dyn Fn() -> bool,
) -> Result<(Vec<Compared>, usize), SelfTestError> {
    let half = dtype != DType::F32;
    let spec = if half { shapes::to_all_experts(spec.clone()) } else { spec.clone() };
    let at_once = std::slice::from_ref(&(0..TOKENS));
    let on_cpu = |dtype| Reader::load(&spec, dtype, &[Device::Cpu])?.read(at_once, going);
    let (exact, expected) = on_cpu(DType::F32)?;
    let theirs = half.then(|| on_cpu(dtype)).transpose()?;
    let reader = Reader::load(&spec, dtype, devices)?;
    let (mut worst, mut greedy) = (Vec::new(), GREEDY);
    for parts in [at_once, &in_steps()] {
        let (found, tokens) = reader.read(parts, going)?;
        greedy = greedy.min(tokens.iter().zip(&expected).take_while(|(a, b)| a == b).count());
        let compared = match &theirs {
            None => rule::in_f32(&found, &exact),
            Some((theirs, _)) => rule::in_half(&found, &exact, theirs),
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

/// The prompt in chunks, and its last positions one by one, as tokens are decoded.
pub fn in_steps() -> Vec<Range<usize>> {
    const CHUNK: usize = 64;
    let first = TOKENS - POSITIONS;
    let chunks = (0..first).step_by(CHUNK).map(|at| at..(at + CHUNK).min(first));
    chunks.chain((first..TOKENS).map(|at| at..at + 1)).collect()
}

/// A model of random weights that reads the prompt.
pub struct Reader(Subject);

impl Reader {
    /// Loads it onto `devices`, between which its layers are split.
    pub fn load(spec: &DecoderSpec, dtype: DType, devices: &[Device]) -> Result<Self, SelfTestError> {
        let (devices, fill) = (devices.to_vec(), shapes::FILL);
        let setting = Setting { dtype, devices, chunk: TOKENS, tokens: TOKENS, generate: GREEDY, fill };
        Ok(Reader(Subject::load("a model of random weights", spec.clone(), setting)?))
    }

    /// Reads the prompt part by part, and generates: logits of the last positions, attention of the last rows, greedy tokens.
    pub fn read(
        &self,
        parts: &[Range<usize>],
        going: &dyn Fn() -> bool,
    ) -> Result<(Numbers, Vec<u32>), SelfTestError> {
        let engine = self.0.engine();
        let prompt = trial::made_up_tokens(TOKENS, engine.decoder().spec().vocab);
        let mut observer = trial::observer(TOKENS, Recording { rows: 40, spans: 10 })?;
        let mut cache = engine.decoder().cache(TOKENS + GREEDY)?;
        let mut logits = Vec::new();
        for part in parts {
            let tokens = &prompt[part.clone()];
            let keep = POSITIONS.min(tokens.len());
            logits.push(engine.prefill(&mut cache, tokens, keep, &mut observer, &mut |_| going())?);
        }
        let logits = Tensor::cat(&logits, 0)?;
        let logits = logits.narrow(0, logits.dim(0)? - POSITIONS, POSITIONS)?;
        let sampling = Sampling { temperature: 0.0, top_p: 1.0, seed: 0, max_new_tokens: GREEDY };
        let last = logits.get(POSITIONS - 1)?;
        let greedy = engine.decode(&mut cache, &last, &sampling, &[], &mut |_| going())?.tokens;

        let masses = observer.finish()?;
        let logits = logits.to_device(&Device::Cpu)?.flatten_all()?.to_vec1()?;
        let mut numbers =
            Numbers::from([("logits", logits), ("mass", masses.mass.iter().copied().collect())]);
        numbers.extend(masses.sink.iter().map(|sink| ("sink", sink.iter().copied().collect())));
        if let Some(delta) = &masses.delta {
            numbers.insert("delta_signed", delta.signed.iter().copied().collect());
            numbers.insert("delta_share", delta.share.iter().copied().collect());
        }
        Ok((numbers, greedy))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planted(dtype: &'static str, greedy: usize, found: &[(&'static str, f64)]) -> Parity {
        let (checkpoint, architecture, greedy_of, error) = ("planted", "llama", GREEDY, None);
        let compared = |&(what, found)| Compared { what, measure: "largest", found, allowed: 1e-3 };
        let mut worst = Vec::new();
        take_worse(&mut worst, found.iter().map(compared).collect());
        Parity { checkpoint, architecture, dtype, compared: worst, greedy, greedy_of, error, sound: false }
            .judged()
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
    fn a_model_is_sound_here_and_another_model_s_numbers_are_not_its_own() -> Result<(), SelfTestError> {
        let shape = shapes::small()?.remove(1);
        let sound = Parity::of(&shape, DType::F32, &[Device::Cpu], &|| true)?;
        assert!(sound.sound && sound.greedy == GREEDY, "{sound:?}");
        let read =
            |spec: &DecoderSpec| Reader::load(spec, DType::F32, &[Device::Cpu])?.read(&in_steps(), &|| true);
        let mut other = shape.spec.clone();
        other.layers.truncate(1);
        let compared = rule::in_f32(&read(&other)?.0, &read(&shape.spec)?.0);
        assert!(!compared.iter().any(Compared::holds), "{compared:?}");
        let stopped = Parity::of(&shape, DType::F32, &[Device::Cpu], &|| false);
        assert!(matches!(stopped, Err(SelfTestError::Interrupted)));
        Ok(())
    }
}
