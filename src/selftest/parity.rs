//! The embedded checkpoints on the devices under test, against transformers.

use std::path::Path;

use candle_core::{DType, Device};
use serde::Serialize;

use super::SelfTestError;
use super::embedded::{Embedded, Prompt};
use super::rule::{self, Compared, Numbers};
use palimpsest_core::attention::{AttentionKernel, MassObserver, NoObserver};
use palimpsest_core::engine::memory_plan::{self, Branches, MemoryRequest, ObservedSpans};
use palimpsest_core::engine::{DeviceName, Engine, EngineError, Sampling};
use palimpsest_core::model::{DecoderSpec, FeedForwardSpec, LayerSpec, OpenModel};

/// Tokens that a prompt is read at a time: all of the 151, and some.
const CHUNKS: [usize; 2] = [151, 64];

/// A checkpoint in a dtype.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Parity {
    /// The checkpoint.
    pub checkpoint: &'static str,
    /// Its architecture.
    pub architecture: &'static str,
    /// How its weights are stored.
    pub layout: &'static str,
    /// The dtype that it ran in.
    pub dtype: &'static str,
    /// The worst comparison of each kind of number over all chunk sizes.
    pub compared: Vec<Compared>,
    /// How many of the reference's greedy tokens, which are those of f32, were generated before the first other one.
    pub greedy: usize,
    /// How many there are.
    pub greedy_of: usize,
    /// Why it could not be run.
    pub error: Option<String>,
    /// Whether all of it is as it must be: in f32 the greedy tokens too.
    pub sound: bool,
}

impl Parity {
    /// Runs `checkpoint`, below a folder for its files, in `dtype` on `devices`. What fails is told in the result; an error is
    /// what ends the whole test. `None` where the reference has nothing in that dtype.
    pub fn of(
        checkpoint: &Embedded,
        folder: &Path,
        dtype: DType,
        devices: &[Device],
        going: &dyn Fn() -> bool,
    ) -> Result<Option<Self>, SelfTestError> {
        let reference = checkpoint.reference()?;
        let (Some(exact), Some(theirs)) = (reference.numbers(DType::F32)?, reference.numbers(dtype)?) else {
            return Ok(None);
        };
        let expected = reference.greedy()?;
        let mut parity = Parity {
            checkpoint: checkpoint.name,
            architecture: checkpoint.architecture()?,
            layout: checkpoint.layout,
            dtype: dtype.as_str(),
            compared: Vec::new(),
            greedy: 0,
            greedy_of: expected.len(),
            error: None,
            sound: false,
        };
        let prompt = checkpoint.prompt()?;
        for chunk in CHUNKS {
            let ran = Ran::new(folder, (dtype, devices), chunk, &prompt, expected.len(), going);
            let Ran { spec, numbers, greedy } = match ran {
                Ok(ran) => ran,
                Err(SelfTestError::Interrupted) => return Err(SelfTestError::Interrupted),
                Err(error) => {
                    parity.error = Some(error.to_string());
                    return Ok(Some(parity));
                }
            };
            let compared = match dtype {
                DType::F32 => rule::in_f32(&numbers, &exact),
                _ => rule::in_half(&numbers, &exact, &theirs, has_experts(&spec).then_some(prompt.logits)),
            };
            let same = greedy.iter().zip(&expected).take_while(|(a, b)| a == b).count();
            parity.greedy = if parity.compared.is_empty() { same } else { same.min(parity.greedy) };
            parity.take_worse(compared);
        }
        parity.judge();
        Ok(Some(parity))
    }

    /// Keeps the worse of each comparison.
    fn take_worse(&mut self, compared: Vec<Compared>) {
        for new in compared {
            match self.compared.iter_mut().find(|old| old.what == new.what) {
                Some(old) if new.used() > old.used() => *old = new,
                Some(_) => {}
                None => self.compared.push(new),
            }
        }
    }

    /// Says whether it is sound.
    fn judge(&mut self) {
        let greedy = self.dtype != DType::F32.as_str() || self.greedy == self.greedy_of;
        let compared = !self.compared.is_empty() && self.compared.iter().all(Compared::holds);
        self.sound = self.error.is_none() && greedy && compared;
    }

    /// The comparison of the logits.
    pub fn logits(&self) -> Option<&Compared> {
        self.compared.iter().find(|c| c.what == "logits")
    }

    /// Of the comparisons of attention the one that used most of what is allowed.
    pub fn attention(&self) -> Option<&Compared> {
        let others = self.compared.iter().filter(|c| c.what != "logits");
        others.max_by(|a, b| a.used().total_cmp(&b.used()))
    }
}

/// Whether a layer sends tokens to experts.
pub fn has_experts(spec: &DecoderSpec) -> bool {
    let experts = |layer: &LayerSpec| matches!(layer.feed_forward, FeedForwardSpec::Experts(_));
    spec.layers.iter().any(experts)
}

/// What a checkpoint made of its prompt.
struct Ran {
    spec: DecoderSpec,
    numbers: Numbers,
    greedy: Vec<u32>,
}

impl Ran {
    fn new(
        folder: &Path,
        (dtype, devices): (DType, &[Device]),
        chunk: usize,
        prompt: &Prompt,
        generate: usize,
        going: &dyn Fn() -> bool,
    ) -> Result<Self, SelfTestError> {
        let model = OpenModel::open(&[folder.to_owned()])?;
        let context = prompt.tokens.len() + generate;
        let request = MemoryRequest {
            context,
            chunk,
            logits: prompt.logits,
            dtype,
            kernel: AttentionKernel::chosen(),
            devices: devices.iter().map(DeviceName::of).collect(),
            branches: Branches::default(),
            observed: ObservedSpans::default(),
            kept: None,
            beside: 0,
        };
        let placed = memory_plan::place("a tiny checkpoint", &model.description(), &request, devices)?;
        let engine = Engine::new(model.load_split(placed.devices, dtype)?, chunk);
        let mut observer = prompt.observer()?;
        let mut cache = engine.decoder().cache(context)?;
        let logits = engine
            .prefill(&mut cache, &prompt.tokens, prompt.logits, &mut observer, &mut |_| going())
            .map_err(interrupted)?;
        let numbers = numbers(&logits, &observer)?;
        let sampling = Sampling { temperature: 0.0, top_p: 1.0, seed: 0, max_new_tokens: generate };
        let last = logits.get(logits.dim(0)? - 1)?;
        let greedy = engine
            .decode(&mut cache, &last, (&sampling, &[]), &mut NoObserver, &mut |_| going())
            .map_err(interrupted)?
            .tokens;
        Ok(Ran { spec: engine.decoder().spec().clone(), numbers, greedy })
    }
}

/// An interruption is no failure of the model.
pub fn interrupted(error: EngineError) -> SelfTestError {
    match error {
        EngineError::Interrupted => SelfTestError::Interrupted,
        other => SelfTestError::Engine(other),
    }
}

/// Logits and what an observer measured, by the reference's names.
pub fn numbers(logits: &candle_core::Tensor, observer: &MassObserver) -> Result<Numbers, SelfTestError> {
    let masses = observer.finish()?;
    let logits = logits.to_device(&Device::Cpu)?.flatten_all()?.to_vec1()?;
    let mut numbers = Numbers::from([("logits", logits), ("mass", masses.mass.iter().copied().collect())]);
    if let Some(sink) = &masses.sink {
        numbers.insert("sink", sink.iter().copied().collect());
    }
    if let Some(delta) = &masses.delta {
        numbers.insert("delta_signed", delta.signed.iter().copied().collect());
        numbers.insert("delta_share", delta.share.iter().copied().collect());
    }
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::selftest::embedded::CHECKPOINTS;
    use crate::selftest::rule::Measure;

    fn compared(what: &'static str, found: f64) -> Compared {
        Compared { what, measure: Measure::Largest, found, allowed: 1e-3 }
    }

    fn planted(dtype: &'static str, greedy: usize, found: &[Compared]) -> Parity {
        let mut parity = Parity {
            checkpoint: "planted",
            architecture: "llama",
            layout: "bf16",
            dtype,
            compared: Vec::new(),
            greedy,
            greedy_of: 64,
            error: None,
            sound: false,
        };
        parity.take_worse(found.to_vec());
        parity.judge();
        parity
    }

    #[test]
    fn a_planted_wrong_number_a_wrong_token_and_no_number_at_all_are_each_found() {
        let fine = [compared("logits", 1e-5), compared("mass", 1e-5)];
        assert!(planted("f32", 64, &fine).sound);
        assert!(!planted("f32", 63, &fine).sound, "a wrong token");
        assert!(planted("bf16", 20, &fine).sound, "tokens decide in f32 alone");
        assert!(!planted("f32", 64, &[]).sound, "nothing was compared");
        let worse = [fine[0], fine[1], compared("logits", 2e-3), compared("mass", 1e-6)];
        let parity = planted("f32", 64, &worse);
        assert!(!parity.sound);
        assert_eq!(parity.logits().map(|c| c.found), Some(2e-3), "the worse of two chunk sizes");
        assert_eq!(parity.attention().map(|c| c.found), Some(1e-5));
    }

    #[test]
    fn a_checkpoint_is_sound_here_and_no_longer_so_with_another_prompt_s_reference()
    -> Result<(), SelfTestError> {
        let root = tempfile::tempdir()
            .map_err(|source| SelfTestError::Temporary { folder: std::env::temp_dir(), source })?;
        let [llama, qwen2] = [&CHECKPOINTS[0], &CHECKPOINTS[1]];
        let folders = [llama.write(root.path())?, qwen2.write(root.path())?];
        let of = |folder: &Path| Parity::of(llama, folder, DType::F32, &[Device::Cpu], &|| true);
        let sound = of(&folders[0])?;
        assert!(sound.as_ref().is_some_and(|p| p.sound && p.greedy == 64), "{sound:?}");
        // The weights of another model in its place.
        let wrong = of(&folders[1])?;
        assert!(wrong.as_ref().is_some_and(|p| !p.sound && p.error.is_none()), "{wrong:?}");
        let broken = of(root.path())?;
        assert!(broken.as_ref().is_some_and(|p| !p.sound && p.error.is_some()), "{broken:?}");
        let stopped = Parity::of(llama, &folders[0], DType::F32, &[Device::Cpu], &|| false);
        assert!(matches!(stopped, Err(SelfTestError::Interrupted)));
        Ok(())
    }
}
