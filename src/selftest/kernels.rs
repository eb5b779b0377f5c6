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
use super::layers::Schedule;
use super::shapes::Shape;
use super::trial;
use crate::cards::Recording;
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

impl Timed {
    /// All four.
    pub fn seconds(&self) -> [f64; 4] {
        [self.prefill_seconds, self.recording_seconds, self.token_seconds, self.recorded_token_seconds]
    }
}

/// All that was timed.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct KernelTimes {
    /// By layer.
    pub trials: Vec<KernelTrial>,
    /// What was left out, and why.
    pub notes: Vec<String>,
}

/// Times the kernels at every kind of layer with a choice of them, within `time`; `None` where there is no choice on `device`.
/// What fails is told in the notes. The choice of the process is the same afterwards.
///
/// # Errors
/// [`SelfTestError::Interrupted`] where `going` says so.
pub fn run(
    shapes: &[Shape],
    (device, dtype): (&Device, DType),
    schedule: &Schedule,
    time: Duration,
    going: &dyn Fn() -> bool,
) -> Result<Option<KernelTimes>, SelfTestError> {
    let start = Instant::now();
    let mut times = KernelTimes::default();
    for shape in shapes {
        let Some(spec) = shape.spec.layers.first().and_then(|layer| layer.attention()) else { continue };
        let of_layer = spec.shape(dtype);
        let Some(auto) = choosing(AttentionKernel::Auto, || attention::settle(device, &of_layer))? else {
            return Ok(None);
        };
        let (layer, of, tokens) = (shape.name, shape.of, schedule.tokens);
        let mut trial = KernelTrial { layer, of, dtype: dtype.as_str(), tokens, auto, kernels: Vec::new() };
        for kernel in KERNELS {
            let built = kernel != AttentionKernel::Flash || cfg!(feature = "flash-attn");
            if !built || kernel.of_layer(&of_layer) != kernel {
                continue;
            }
            if !going() {
                return Err(SelfTestError::Interrupted);
            }
            let timed = match start.elapsed() > time {
                true => Err("not timed, for want of time".to_owned()),
                false => choosing(kernel, || Problem::new(spec, schedule, dtype, device)?.timed(kernel))
                    .map_err(|error| error.to_string()),
            };
            match timed {
                Ok(timed) => trial.kernels.push(timed),
                Err(why) => times.notes.push(format!("{kernel} at {}: {why}", shape.title())),
            }
        }
        times.trials.push(trial);
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

/// The inputs of a layer's attention over a prompt.
struct Problem<'a> {
    spec: &'a AttentionSpec,
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
        schedule: &'a Schedule,
        dtype: DType,
        device: &Device,
    ) -> TensorResult<Self> {
        let AttentionSpec { heads, kv_heads, head_dim, .. } = *spec;
        let tokens = schedule.tokens;
        let random = |shape| Tensor::randn(0f32, 1.0, shape, device)?.to_dtype(dtype);
        let q = random((schedule.chunk.min(tokens), heads, head_dim))?;
        let (k, v) = (random((kv_heads, tokens, head_dim))?, random((kv_heads, tokens, head_dim))?);
        let sinks = spec.sinks.then(|| Sinks::new(vec![0.0; heads], device)).transpose()?;
        Ok(Problem { spec, schedule, q, k, v, sinks })
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
        let Schedule { tokens, chunk, .. } = *self.schedule;
        (0..tokens).step_by(chunk).map(move |offset| (offset, chunk.min(tokens - offset)))
    }

    fn timed(&self, kernel: AttentionKernel) -> TensorResult<Timed> {
        let device = self.q.device();
        let Schedule { tokens, recording, .. } = *self.schedule;
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
                trial::observer(tokens, recording).map_err(candle_core::Error::wrap)?;
            for (offset, l) in self.chunks() {
                let ([q, k, _], site) = self.rows(offset, l)?;
                if observer.wants(&site) {
                    observer.observe(&site, &q, &k)?;
                }
            }
            observer.finish().map(drop)
        };
        let Recording { spans, .. } = recording;
        let mut row = Row((0..=spans).map(|span| span * tokens / spans).collect());
        let last = tokens - 1;
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

/// Seconds of the fastest of a few runs, after one that is not counted.
fn best<T>(device: &Device, mut run: impl FnMut() -> TensorResult<T>) -> TensorResult<f64> {
    const RUNS: usize = 4;
    let mut best = f64::INFINITY;
    for i in 0..=RUNS {
        device.synchronize()?;
        let start = Instant::now();
        let made = run()?;
        device.synchronize()?;
        let seconds = start.elapsed().as_secs_f64();
        drop(made);
        if i > 0 {
            best = best.min(seconds);
        }
    }
    Ok(best)
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
    use crate::selftest::shapes;

    #[test]
    fn where_there_is_one_kernel_nothing_is_timed() -> Result<(), SelfTestError> {
        let schedule = Schedule::of(&Device::Cpu, true);
        let time = Duration::from_secs(60);
        let found = run(&shapes::layers(true)?, (&Device::Cpu, DType::F32), &schedule, time, &|| true)?;
        assert_eq!(found, None);
        Ok(())
    }

    #[test]
    fn every_kind_of_attention_is_timed_in_prefill_recording_and_tokens() -> Result<(), SelfTestError> {
        let schedule = Schedule { tokens: 200, ..Schedule::of(&Device::Cpu, true) };
        let mut seen = 0;
        for shape in shapes::layers(true)? {
            let Some(spec) = shape.spec.layers[0].attention() else { continue };
            let problem = Problem::new(spec, &schedule, DType::F32, &Device::Cpu)?;
            assert_eq!(problem.chunks().collect::<Vec<_>>(), [(0, 64), (64, 64), (128, 64), (192, 8)]);
            // A window's cache holds what the first row of the chunk still sees.
            let ([_, k, _], site) = problem.rows(128, 64)?;
            let first = spec.window.map_or(0, |window| 129 - window);
            assert_eq!((site.first_key, k.dim(1)?), (first, 192 - first));
            let timed = problem.timed(AttentionKernel::Products)?;
            for seconds in timed.seconds() {
                assert!(seconds > 0.0 && seconds.is_finite(), "{timed:?}");
            }
            seen += 1;
        }
        assert_eq!(seen, 4);
        Ok(())
    }
}
