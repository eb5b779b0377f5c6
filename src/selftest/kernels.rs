//! Attention's kernels side by side: of each kind of layer with softmax attention, on a CUDA card, the attention alone by every
//! kernel that this build has and that serves the layer.
//!
//! Queries, keys and values are random and lie as in a cache; no linear map is in the seconds. Every choice is timed as a run
//! with that `--attention-kernel` would compute, so the rows of `flash` are summed by products. Devices without a choice of
//! kernels have none of this.

use std::time::{Duration, Instant};

use candle_core::{DType, Device, Result as TensorResult, Tensor};
use serde::Serialize;

use super::SelfTestError;
use super::arithmetic::Recording;
use super::layers::{Kind, Schedule};
use super::trial;
use super::yardsticks::best;
use palimpsest_core::attention::{
    self, AttentionKernel, Holes, MassObserver, NoObserver, Observer, Settled, Sinks, Site,
};
use palimpsest_core::model::AttentionSpec;

/// Kernels that can be chosen, the one that the others are held against first.
const KERNELS: [AttentionKernel; 3] =
    [AttentionKernel::Products, AttentionKernel::Fused, AttentionKernel::Flash];

/// The kernels at one layer and one length.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct KernelTrial {
    /// The kind of layer.
    pub layer: &'static str,
    /// Whose widths it has.
    pub of: &'static str,
    /// The dtype of queries, keys and values.
    pub dtype: &'static str,
    /// Tokens of the prompt.
    pub tokens: usize,
    /// What `auto` takes for this layer on this card.
    pub auto: Settled,
    /// The kernels that serve the layer.
    pub kernels: Vec<Timed>,
}

/// A kernel's seconds, of attention alone.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Timed {
    /// Which.
    pub kernel: AttentionKernel,
    /// The prompt, chunk by chunk.
    pub prefill_seconds: f64,
    /// The sums of its recorded rows over spans.
    pub recording_seconds: f64,
    /// One token after it.
    pub token_seconds: f64,
    /// One token after it whose row is recorded.
    pub recorded_token_seconds: f64,
}

/// Seconds of one of the things that are timed.
pub type Measure = fn(&Timed) -> f64;

impl Timed {
    /// What is compared, each with its name.
    pub const MEASURES: [(&'static str, Measure); 4] = [
        ("prefill", |timed| timed.prefill_seconds),
        ("recording", |timed| timed.recording_seconds),
        ("a token", |timed| timed.token_seconds),
        ("a recorded token", |timed| timed.recorded_token_seconds),
    ];
}

impl KernelTrial {
    /// The kernel of the least seconds by a measure.
    pub fn fastest(&self, of: Measure) -> Option<AttentionKernel> {
        self.kernels.iter().min_by(|a, b| of(a).total_cmp(&of(b))).map(|timed| timed.kernel)
    }
}

/// What was timed, and what was left out and why.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct KernelTimes {
    /// By layer, from the shortest prompt to the longest.
    pub trials: Vec<KernelTrial>,
    /// What was left out.
    pub notes: Vec<String>,
}

/// Times the kernels at every kind of layer with a choice of them, within `time`; `None` where there is no choice on `device`.
/// What fails is told in the notes. The choice of the process is the same afterwards.
///
/// # Errors
/// [`SelfTestError::Interrupted`] where `going` says so.
pub fn run(
    kinds: &[Kind],
    (device, dtype): (&Device, DType),
    schedule: &Schedule,
    time: Duration,
    going: &dyn Fn() -> bool,
) -> Result<Option<KernelTimes>, SelfTestError> {
    let start = Instant::now();
    let mut times = KernelTimes::default();
    for kind in kinds {
        let Some(spec) = kind.spec.layers.first().and_then(|layer| layer.attention()) else { continue };
        let Some(auto) = choosing(AttentionKernel::Auto, || attention::settle(device, &spec.shape(dtype)))?
        else {
            return Ok(None);
        };
        for &tokens in &schedule.lengths {
            let mut trial = KernelTrial {
                layer: kind.name,
                of: kind.of,
                dtype: dtype.as_str(),
                tokens,
                auto,
                kernels: Vec::new(),
            };
            let serving = KERNELS.into_iter().filter(|kernel| {
                let built = *kernel != AttentionKernel::Flash || cfg!(feature = "flash-attn");
                built && kernel.of_layer(&spec.shape(dtype)) == *kernel
            });
            for kernel in serving {
                if !going() {
                    return Err(SelfTestError::Interrupted);
                }
                let place = || format!("{kernel} at {} of {} over {tokens} tokens", kind.name, kind.of);
                if start.elapsed() > time {
                    times.notes.push(format!("{}: not timed, for want of time", place()));
                    continue;
                }
                match choosing(kernel, || Problem::new(spec, tokens, schedule, dtype, device)?.timed(kernel))
                {
                    Ok(timed) => trial.kernels.push(timed),
                    Err(error) => times.notes.push(format!("{}: {error}", place())),
                }
            }
            times.trials.push(trial);
        }
    }
    Ok(Some(times))
}

/// Does `work` with a choice of kernels, and goes back to the one before.
fn choosing<T>(kernel: AttentionKernel, work: impl FnOnce() -> TensorResult<T>) -> TensorResult<T> {
    let before = AttentionKernel::chosen();
    kernel.choose();
    let done = work();
    before.choose();
    done
}

/// What attention of a layer is given over a prompt.
struct Problem<'a> {
    spec: &'a AttentionSpec,
    tokens: usize,
    schedule: &'a Schedule,
    /// (chunk, heads, head_dim); every chunk has the same queries.
    q: Tensor,
    /// (kv_heads, tokens, head_dim)
    k: Tensor,
    v: Tensor,
    sinks: Option<Sinks>,
}

impl<'a> Problem<'a> {
    fn new(
        spec: &'a AttentionSpec,
        tokens: usize,
        schedule: &'a Schedule,
        dtype: DType,
        device: &Device,
    ) -> TensorResult<Self> {
        let AttentionSpec { heads, kv_heads, head_dim, .. } = *spec;
        let random = |shape| Tensor::randn(0f32, 1.0, shape, device)?.to_dtype(dtype);
        let q = random((schedule.chunk.min(tokens), heads, head_dim))?;
        let (k, v) = (random((kv_heads, tokens, head_dim))?, random((kv_heads, tokens, head_dim))?);
        let sinks = spec.sinks.then(|| Sinks::new(vec![0.0; heads], device)).transpose()?;
        Ok(Problem { spec, tokens, schedule, q, k, v, sinks })
    }

    /// The `l` rows from `offset` on: queries, the keys and values that a cache holds for them, and the site.
    fn rows(&self, offset: usize, l: usize) -> TensorResult<([Tensor; 3], Site)> {
        let window = self.spec.window;
        let first_key = window.map_or(0, |window| (offset + 1).saturating_sub(window));
        let held = |x: &Tensor| x.narrow(1, first_key, offset + l - first_key);
        let site = Site {
            layer: 0,
            offset,
            first_key,
            scale: self.spec.scale,
            window,
            softcap: None,
            sinks: self.sinks.clone(),
            holes: Holes::default(),
        };
        Ok(([self.q.narrow(0, 0, l)?, held(&self.k)?, held(&self.v)?], site))
    }

    fn chunks(&self) -> impl Iterator<Item = (usize, usize)> {
        let (tokens, chunk) = (self.tokens, self.schedule.chunk);
        (0..tokens).step_by(chunk).map(move |offset| (offset, chunk.min(tokens - offset)))
    }

    fn timed(&self, kernel: AttentionKernel) -> TensorResult<Timed> {
        let device = self.q.device();
        let Recording { rows, spans } = self.schedule.recording;
        let recording = Recording { rows: rows.min(self.tokens), spans: spans.min(self.tokens) };
        let attend = |offset, l, observer: &mut dyn Observer| {
            let ([q, k, v], site) = self.rows(offset, l)?;
            attention::run(&q, &k, &v, &site, observer)
        };
        let prefill = || {
            self.chunks()
                .map(|(offset, l)| attend(offset, l, &mut NoObserver))
                .try_for_each(|out| out.map(drop))
        };
        let record = || -> TensorResult<()> {
            let mut observer: MassObserver =
                trial::observer(self.tokens, recording).map_err(candle_core::Error::wrap)?;
            for (offset, l) in self.chunks() {
                let ([q, k, _], site) = self.rows(offset, l)?;
                if observer.wants(&site) {
                    observer.observe(&site, &q, &k)?;
                }
            }
            observer.finish().map(drop)
        };
        let border = |span: usize| span * self.tokens / recording.spans;
        let mut row = Row((0..=recording.spans).map(border).collect());
        let last = self.tokens - 1;
        let recorded_token = best(device, || attend(last, 1, &mut row))?;
        Ok(Timed {
            kernel,
            prefill_seconds: best(device, prefill)?,
            recording_seconds: best(device, record)?,
            token_seconds: best(device, || attend(last, 1, &mut NoObserver))?,
            recorded_token_seconds: recorded_token,
        })
    }
}

/// Asks for a single row's sums over segments with these borders.
struct Row(Vec<usize>);

impl Observer for Row {
    fn wants(&self, _site: &Site) -> bool {
        false
    }

    fn observe(&mut self, _site: &Site, _q: &Tensor, _k: &Tensor) -> TensorResult<()> {
        Ok(())
    }

    fn segments(&self, _site: &Site) -> Option<&[usize]> {
        Some(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::selftest::layers::kinds;

    #[test]
    fn where_there_is_one_kernel_nothing_is_timed() -> Result<(), Box<dyn std::error::Error>> {
        let schedule = Schedule::of(&Device::Cpu, true);
        let time = Duration::from_secs(60);
        let found = run(&kinds(true)?, (&Device::Cpu, DType::F32), &schedule, time, &|| true)?;
        assert_eq!(found, None);
        Ok(())
    }

    #[test]
    fn every_kind_of_attention_is_timed_in_prefill_recording_and_tokens()
    -> Result<(), Box<dyn std::error::Error>> {
        let schedule = Schedule::of(&Device::Cpu, true);
        let mut seen = 0;
        for kind in kinds(true)? {
            let Some(spec) = kind.spec.layers[0].attention() else { continue };
            let problem = Problem::new(spec, 200, &schedule, DType::F32, &Device::Cpu)?;
            assert_eq!(problem.chunks().collect::<Vec<_>>(), [(0, 64), (64, 64), (128, 64), (192, 8)]);
            // A window's cache holds what the first row of the chunk still sees.
            let ([_, k, _], site) = problem.rows(128, 64)?;
            let first = spec.window.map_or(0, |window| 129 - window);
            assert_eq!((site.first_key, k.dim(1)?), (first, 192 - first));
            let timed = problem.timed(AttentionKernel::Products)?;
            for (name, of) in Timed::MEASURES {
                assert!(of(&timed) > 0.0 && of(&timed).is_finite(), "{name}: {timed:?}");
            }
            seen += 1;
        }
        assert_eq!(seen, 4);
        Ok(())
    }
}
