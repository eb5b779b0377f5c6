//! Small random models on the devices under test, against the CPU.
//!
//! The reference is one pass over the prompt on the CPU in f32. The device makes it too, and then reads the prompt in steps. In half
//! precision it may be off by as much as the CPU is in that dtype, and a little more. So on the CPU itself f32 compares a prefill
//! with single steps, and half precision shows no more than that it runs.

use candle_core::{DType, Device};
use serde::Serialize;

use super::SelfTestError;
use super::rule::{self, Compared};
use super::shapes::{self, Shape};
use super::trial::{Measured, On, Setting, Subject};
use crate::cards::Recording;
use palimpsest_core::attention::AttentionKernel;
use palimpsest_core::model::DecoderSpec;

/// Tokens of the prompt, of which the last positions are compared.
pub const TOKENS: usize = 151;
const POSITIONS: usize = 16;
/// The reference.
pub const CPU: On<'_> = (&[Device::Cpu], AttentionKernel::Auto);
/// Tokens that are generated after the prompt.
const GREEDY: usize = 32;

/// A model in a dtype.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Parity {
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
    /// True if all of it is as it must be: in f32 the greedy tokens too.
    pub sound: bool,
}

impl Parity {
    /// Compares a model in `dtype` on devices with the CPU. Failures are told in the result.
    pub fn of(
        shape: &Shape,
        dtype: DType,
        on: On<'_>,
        going: &dyn Fn() -> bool,
    ) -> Result<Self, SelfTestError> {
        let (compared, greedy, error) = match compare(&shape.spec, dtype, on, going) {
            Err(SelfTestError::Interrupted) => return Err(SelfTestError::Interrupted),
            Err(error) => (Vec::new(), 0, Some(error.to_string())),
            Ok((compared, greedy)) => (compared, greedy, None),
        };
        let parity = Parity {
            checkpoint: shape.name,
            architecture: shape.spec.architecture,
            dtype: dtype.as_str(),
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
    on: On<'_>,
    going: &dyn Fn() -> bool,
) -> Result<(Vec<Compared>, usize), SelfTestError> {
    let half = dtype != DType::F32;
    let spec = if half { shapes::to_all_experts(spec.clone()) } else { spec.clone() };
    let exact = read(&load(&spec, DType::F32, false, CPU)?, &[TOKENS], going)?;
    // With hidden states rounded as cards round them; the CPU's own bf16 keeps them in f32.
    let theirs = half.then(|| load(&spec, dtype, true, CPU)).transpose()?;
    let subject = load(&spec, dtype, false, on)?;
    let (mut worst, mut greedy) = (Vec::new(), GREEDY);
    for ends in [vec![TOKENS], in_steps()] {
        let found = read(&subject, &ends, going)?;
        let same = found.greedy.iter().zip(&exact.greedy).take_while(|(a, b)| a == b).count();
        greedy = greedy.min(same);
        let compared = match &theirs {
            None => rule::in_f32(&found.numbers, &exact.numbers),
            // Over the same parts: a single row is summed in another order than many.
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

/// Ends of the prompt's parts: chunks, and then the last positions one by one, as tokens are decoded.
pub fn in_steps() -> Vec<usize> {
    let first = TOKENS - POSITIONS;
    (0..first).step_by(64).skip(1).chain(first..=TOKENS).collect()
}

/// Loads a model of random weights for the prompt. `rounds` asks for hidden states in the dtype on the CPU too.
pub fn load(spec: &DecoderSpec, dtype: DType, rounds: bool, on: On<'_>) -> Result<Subject, SelfTestError> {
    let setting = Setting { rounds, chunk: TOKENS, generate: GREEDY - 1, ..Setting::new(on, dtype, TOKENS) };
    Subject::load("a model of random weights", spec.clone(), setting)
}

/// Reads the prompt in parts, and generates.
pub fn read(subject: &Subject, ends: &[usize], going: &dyn Fn() -> bool) -> Result<Measured, SelfTestError> {
    subject.measure(ends, POSITIONS, Recording { rows: 40, spans: 10 }, &mut |_| going())
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
        let sound = Parity::of(&shape, DType::F32, CPU, &|| true)?;
        assert!(sound.sound && sound.greedy == GREEDY, "{sound:?}");
        let numbers = |spec: &DecoderSpec| read(&load(spec, DType::F32, false, CPU)?, &in_steps(), &|| true);
        let mut other = shape.spec.clone();
        other.layers.truncate(1);
        let compared = rule::in_f32(&numbers(&other)?.numbers, &numbers(&shape.spec)?.numbers);
        assert!(!compared.iter().any(Compared::holds), "{compared:?}");
        let stopped = Parity::of(&shape, DType::F32, CPU, &|| false);
        assert!(matches!(stopped, Err(SelfTestError::Interrupted)));
        Ok(())
    }
}
