//! A decoder of made-up weights on devices: loaded, read with, recorded and generated from, timed, and its memory measured
//! beside the plan.
//!
//! `palimpsest model try` does this with a released model's whole shape, the self-test with single layers. Clocks stop after
//! the devices have done what they were asked for.

use std::cell::Cell;
use std::time::{Duration, Instant};

use candle_core::{DType, Device, Result as TensorResult, Tensor};
use serde::Serialize;

use super::SelfTestError;
use super::device::{Gauge, Peak};
use crate::cards::{self, Kernel, LayerWork, Recording, Work};
use palimpsest_core::attention::{
    AttentionKernel, DeltaSite, MassObserver, Masses, NoObserver, Observer, Site,
};
use palimpsest_core::engine::memory_plan::{
    self, Branches, MemoryPlan, MemoryRequest, ObservedSpans, available_bytes,
};
use palimpsest_core::engine::{DeviceName, Engine, Sampling};
use palimpsest_core::model::{DecoderSpec, Fill, ModelDescription, OpenModel};
use palimpsest_core::span::Span;

/// How a decoder is tried.
#[derive(Debug, Clone)]
pub struct Setting {
    /// Dtype of weights, activations and cache.
    pub dtype: DType,
    /// Where: one device, or several that share the layers out.
    pub devices: Vec<Device>,
    /// Tokens that a prefill reads at a time.
    pub chunk: usize,
    /// Tokens of the longest prompt.
    pub tokens: usize,
    /// Tokens to generate after it.
    pub generate: usize,
    /// What the weights hold.
    pub fill: Fill,
}

impl Setting {
    fn request(&self) -> MemoryRequest {
        MemoryRequest {
            context: self.tokens + self.generate,
            chunk: self.chunk,
            logits: 1,
            dtype: self.dtype,
            kernel: AttentionKernel::chosen(),
            devices: self.devices.iter().map(DeviceName::of).collect(),
            branches: Branches::default(),
            observed: ObservedSpans::default(),
            kept: None,
            beside: 0,
        }
    }
}

/// A plan's bytes beside the measured ones, on one device.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Memory {
    /// Which.
    pub device: String,
    /// What the plan foretold.
    pub planned: u64,
    /// What was measured, where the device tells.
    pub peak: Option<Peak>,
}

/// What a trial came to. Seconds are of the work alone, with the devices done.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Trial {
    /// Tokens that were read.
    pub tokens: usize,
    /// At a time.
    pub chunk: usize,
    /// Rows whose attention was recorded, the last ones.
    pub rows: usize,
    /// Key spans that it was summed into.
    pub spans: usize,
    /// Tokens that were generated.
    pub generated: usize,
    /// Seconds of making the weights.
    pub loading_seconds: f64,
    /// Seconds of the prefill, without recording.
    pub prefill_seconds: f64,
    /// Seconds of recording attention.
    pub recording_seconds: f64,
    /// Seconds of a generated token.
    pub token_seconds: f64,
    /// What the prefill was counted to be.
    pub prefill: Work,
    /// What recording was counted to be.
    pub recording: Work,
    /// What a generated token was counted to be.
    pub token: Work,
    /// How far the masses of a row, sinks included, are from 1 at most; so of the shares of linear attention.
    pub masses_off: f64,
    /// Memory by device.
    pub memory: Vec<Memory>,
}

/// A loaded decoder of made-up weights.
#[derive(Debug)]
pub struct Subject {
    engine: Engine,
    setting: Setting,
    /// What was free on each device before.
    free: Vec<Option<u64>>,
    gauge: Gauge,
    loading: Duration,
}

impl Subject {
    /// Makes the decoder `spec`, called `name` in errors, unless the plan says that it does not fit.
    pub fn load(name: &str, spec: DecoderSpec, setting: Setting) -> Result<Self, SelfTestError> {
        let (description, request) = (ModelDescription::of(spec), setting.request());
        let free: Vec<Option<u64>> = setting.devices.iter().map(available_bytes).collect();
        let plan = memory_plan::check(name, &description, &request, &free)?;
        let places = plan.places.iter().filter_map(|&place| setting.devices.get(place).cloned()).collect();
        let gauge = Gauge::start(&setting.devices);
        let start = Instant::now();
        let model = OpenModel::weightless(description.spec, setting.fill);
        let engine = Engine::new(model.load_split(places, setting.dtype)?, setting.chunk);
        synchronize(&setting.devices)?;
        gauge.forget();
        Ok(Subject { engine, setting, free, gauge, loading: start.elapsed() })
    }

    /// The engine.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// What it is made of.
    pub fn spec(&self) -> &DecoderSpec {
        self.engine.decoder().spec()
    }

    /// Reads and generates a little, so that kernels are loaded and memory is mapped before clocks run. Returns the seconds
    /// of reading.
    pub fn warm_up(&self, tokens: usize, going: &dyn Fn() -> bool) -> Result<f64, SelfTestError> {
        let tokens = made_up_tokens(tokens.min(self.setting.tokens), self.spec().vocab);
        let mut cache = self.engine.decoder().cache(tokens.len() + 2)?;
        let mut observer = observer(tokens.len(), Recording { rows: 4, spans: 2 })?;
        let start = Instant::now();
        let mut step = |_| going();
        let logits = self.engine.prefill(&mut cache, &tokens, 1, &mut observer, &mut step)?;
        synchronize(&self.setting.devices)?;
        let seconds = start.elapsed().as_secs_f64();
        observer.finish()?;
        let sampling = Sampling { temperature: 0.0, top_p: 1.0, seed: 0, max_new_tokens: 2 };
        self.engine
            .decode(&mut cache, &logits.get(0)?, (&sampling, &[]), &mut NoObserver, &mut |_| going())?;
        Ok(seconds)
    }

    /// Every layer's work, and how its attention is computed: its forward, and the sums of its rows.
    fn layers(&self) -> impl Iterator<Item = (LayerWork<'_>, Kernel, Kernel)> {
        let Setting { dtype, devices, .. } = &self.setting;
        let streams = devices.iter().all(Device::is_cpu) && *dtype == DType::F32;
        let decoder = self.engine.decoder();
        LayerWork::all(decoder.spec(), dtype.size_in_bytes()).enumerate().map(move |(i, work)| {
            let of =
                |kernel| if kernel == AttentionKernel::Products { Kernel::Blocks } else { Kernel::Fused };
            match decoder.attention_kernel(i) {
                Some(settled) => (work, of(settled.forward), of(settled.sums)),
                None if streams => (work, Kernel::Fused, Kernel::Fused),
                None => (work, Kernel::Blocks, Kernel::Blocks),
            }
        })
    }

    /// Reads `tokens` tokens, of which the last rows are recorded, and generates; `progress` is told how many are read.
    pub fn measure(
        &self,
        tokens: usize,
        recording: Recording,
        progress: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Trial, SelfTestError> {
        let Setting { devices, dtype, generate, chunk, .. } = self.setting.clone();
        let recording = Recording { rows: recording.rows.min(tokens), spans: recording.spans.min(tokens) };
        let prompt = made_up_tokens(tokens, self.spec().vocab);
        let mut cache = self.engine.decoder().cache(tokens + generate)?;
        let mut observer = Timed::new(observer(tokens, recording)?);

        // 1. Read, with the clock of the recording inside that of the whole.
        synchronize(&devices)?;
        let start = Instant::now();
        let mut done = 0;
        let mut step = |read| {
            done += read;
            progress(done)
        };
        let logits = self.engine.prefill(&mut cache, &prompt, 1, &mut observer, &mut step)?;
        synchronize(&devices)?;
        let prefill = start.elapsed();
        let recorded = observer.spent.get();
        let masses = observer.finish()?;

        // 2. Generate. The last token chosen is one too many: it is chosen for the sake of the step before it.
        let sampling = Sampling { temperature: 0.0, top_p: 1.0, seed: 0, max_new_tokens: generate + 1 };
        let start = Instant::now();
        let mut on_token = |_| progress(tokens);
        let generated = self.engine.decode(
            &mut cache,
            &logits.get(0)?,
            (&sampling, &[]),
            &mut NoObserver,
            &mut on_token,
        )?;
        synchronize(&devices)?;
        let decode = start.elapsed();

        // 3. What was counted, and what was taken.
        let (spec, size) = (self.spec(), dtype.size_in_bytes());
        let prefill_work: Work = self.layers().map(|(work, kernel, _)| work.prefill(tokens, kernel)).sum();
        let token: Work = self.layers().map(|(work, kernel, _)| work.step(tokens, 0, 1, kernel)).sum();
        let steps = generated.tokens.len().saturating_sub(1);
        Ok(Trial {
            tokens,
            chunk,
            rows: recording.rows,
            spans: recording.spans,
            generated: steps,
            loading_seconds: self.loading.as_secs_f64(),
            prefill_seconds: prefill.saturating_sub(recorded).as_secs_f64(),
            recording_seconds: observer.spent.get().as_secs_f64(),
            token_seconds: decode.as_secs_f64() / steps.max(1) as f64,
            prefill: prefill_work + cards::head(spec),
            recording: self.layers().map(|(work, _, sums)| work.recorded(tokens, recording, sums)).sum(),
            token: token + cards::token_head(spec, size),
            masses_off: off_from_1(&masses),
            memory: self.memory(tokens + generate),
        })
    }

    /// The plan for `context` tokens beside what was measured.
    fn memory(&self, context: usize) -> Vec<Memory> {
        let request = MemoryRequest { context, ..self.setting.request() };
        let plan = MemoryPlan::new(&ModelDescription::of(self.spec().clone()), &request, &self.free);
        let peaks = self.gauge.peaks();
        let mut memory: Vec<Memory> = Vec::new();
        for share in &plan.shares {
            let (device, planned) = (share.device.to_string(), share.total());
            match memory.iter_mut().find(|m| m.device == device) {
                Some(same) => same.planned += planned,
                None => {
                    let peak = peaks.iter().find(|peak| peak.device == device).cloned();
                    memory.push(Memory { device, planned, peak });
                }
            }
        }
        memory
    }
}

/// Waits until all devices have done what they were asked for.
pub fn synchronize(devices: &[Device]) -> TensorResult<()> {
    devices.iter().try_for_each(Device::synchronize)
}

/// Tokens that follow no pattern of a block's or chunk's length.
pub fn made_up_tokens(count: usize, vocab: usize) -> Vec<u32> {
    let vocab = vocab.max(1) as u64;
    (0..count as u64).map(|i| ((i * 7919 + i / 7 * 31 + 11) % vocab) as u32).collect()
}

/// Measures the last rows, four fifths of them as a segment and the rest as a question, over spans that tile the prompt.
pub fn observer(tokens: usize, Recording { rows, spans }: Recording) -> Result<MassObserver, SelfTestError> {
    let (rows, spans) = (rows.clamp(1, tokens.max(1)), spans.clamp(1, tokens.max(1)));
    let question = (rows / 5).max(1);
    let mut row_spans = vec![Span::new("question", tokens - question..tokens)];
    if rows > question {
        row_spans.insert(0, Span::new("segment", tokens - rows..tokens - question));
    }
    let border = |i: usize| i * tokens / spans;
    let keys = (0..spans).map(|i| Span::new(i.to_string(), border(i)..border(i + 1))).collect();
    Ok(MassObserver::new(row_spans, keys, tokens)?)
}

/// The most that the masses of a row, or the shares of linear attention, miss 1 by. Infinite where one is no number.
fn off_from_1(masses: &Masses) -> f64 {
    let mut sums: Vec<f64> = Vec::new();
    let sum = |row: ndarray::ArrayView1<f32>| row.iter().map(|x| f64::from(*x)).sum::<f64>();
    let rows = masses.mass.rows();
    let sinks = masses.sink.iter().flat_map(|sink| sink.iter().copied()).chain(std::iter::repeat(0.0));
    sums.extend(rows.into_iter().zip(sinks).map(|(row, sink)| sum(row) + f64::from(sink)));
    if let Some(delta) = &masses.delta {
        sums.extend(delta.share.rows().into_iter().map(sum));
    }
    let off = sums.into_iter().map(|sum| (sum - 1.0).abs());
    off.fold(0.0, |most, x| if x.is_nan() { f64::INFINITY } else { x.max(most) })
}

/// A mass observer with a clock that runs while it works, and waits for the device on either side.
struct Timed {
    inner: MassObserver,
    spent: Cell<Duration>,
}

impl Timed {
    fn new(inner: MassObserver) -> Self {
        Timed { inner, spent: Cell::default() }
    }

    fn timed(
        &mut self,
        device: &Device,
        work: impl FnOnce(&mut MassObserver) -> TensorResult<()>,
    ) -> TensorResult<()> {
        device.synchronize()?;
        let start = Instant::now();
        work(&mut self.inner)?;
        device.synchronize()?;
        self.spent.set(self.spent.get() + start.elapsed());
        Ok(())
    }

    fn finish(&self) -> TensorResult<Masses> {
        let start = Instant::now();
        let masses = self.inner.finish()?;
        self.spent.set(self.spent.get() + start.elapsed());
        Ok(masses)
    }
}

impl Observer for Timed {
    fn wants(&self, site: &Site) -> bool {
        self.inner.wants(site)
    }

    fn observe(&mut self, site: &Site, q: &Tensor, k: &Tensor) -> TensorResult<()> {
        self.timed(q.device(), |inner| inner.observe(site, q, k))
    }

    fn wants_delta(&self, site: &DeltaSite) -> bool {
        self.inner.wants_delta(site)
    }

    fn observe_delta(
        &mut self,
        site: &DeltaSite,
        q: &Tensor,
        k: &Tensor,
        g: &Tensor,
        beta: &Tensor,
    ) -> TensorResult<()> {
        self.timed(q.device(), |inner| inner.observe_delta(site, q, k, g, beta))
    }
}
