//! Loads a random decoder on devices, runs it with recording and generation, times it and compares memory with the plan.
//!
//! `palimpsest model try` uses a released model's full shape, the self-test small models and single layers. Timers stop after the devices
//! are synchronised.

use std::time::{Duration, Instant};

use candle_core::{DType, Device, Result as TensorResult, Tensor};
use serde::Serialize;

use super::machine::Gauge;
pub use super::machine::Peak;
use super::rule::Numbers;
use super::shapes::FILL;
use crate::cards::{self, Kernel, LayerWork, Recording, Work};
use palimpsest_core::attention::{
    AttentionKernel, Event, MassObserver, Masses, NoObserver, Observer, Point, Wanted,
};
use palimpsest_core::engine::memory_plan::{self, MemoryPlan, MemoryRequest, available_bytes};
use palimpsest_core::engine::{self, DeviceName, Engine, EngineError, Sampling};
use palimpsest_core::model::{DecoderSpec, Fill, ModelDescription, OpenModel};
use palimpsest_core::span::Span;
use palimpsest_data::ground::order::entry;

/// True if a callback asked to stop.
pub fn is_interrupted(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(EngineError::Interrupted))
}

#[derive(Debug, Clone)]
pub struct Setting {
    pub dtype: DType,
    /// KV-cache dtype; `None` is `dtype`.
    pub cache: Option<DType>,
    /// Round hidden states to the dtype on the CPU, as on cards.
    pub rounds: bool,
    pub devices: Vec<Device>,
    pub kernel: AttentionKernel,
    /// Tokens per prefill chunk.
    pub chunk: usize,
    pub tokens: usize,
    pub generate: usize,
    pub recording: Recording,
    pub fill: Fill,
}

/// Devices to split the layers over, and the attention kernel.
pub type On<'a> = (&'a [Device], AttentionKernel);

impl Setting {
    pub fn new((devices, kernel): On<'_>, dtype: DType, tokens: usize) -> Self {
        Setting {
            dtype,
            cache: None,
            rounds: false,
            devices: devices.to_vec(),
            kernel,
            chunk: engine::DEFAULT_CHUNK,
            tokens,
            generate: 16,
            // As in a case of the benchmark.
            recording: Recording { rows: 500, spans: 500 },
            fill: FILL,
        }
    }

    fn request(&self, context: usize) -> MemoryRequest {
        let Setting { chunk, cache, kernel, .. } = *self;
        let devices = self.devices.iter().map(DeviceName::of).collect();
        MemoryRequest { chunk, cache, kernel, ..MemoryRequest::new(context, self.dtype, devices) }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Memory {
    pub device: String,
    pub planned: u64,
    pub peak: Option<Peak>,
}

/// Times exclude loading and end after synchronisation.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Trial {
    /// Absent if there is only one kernel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel: Option<AttentionKernel>,
    pub tokens: usize,
    pub chunk: usize,
    /// Recorded rows, at the end of the prompt.
    pub rows: usize,
    pub spans: usize,
    pub generated: usize,
    pub loading_seconds: f64,
    pub prefill_seconds: f64,
    pub recording_seconds: f64,
    pub token_seconds: f64,
    /// Counted work of the prefill, of recording, and per generated token.
    pub prefill: Work,
    pub recording: Work,
    pub token: Work,
    /// Maximum deviation from 1 of a row's masses with sinks, or of linear-attention shares.
    pub masses_off: f64,
    pub memory: Vec<Memory>,
}

/// A trial and the model's numbers: last logits, attention, greedy tokens.
#[derive(Debug)]
pub struct Measured {
    pub trial: Trial,
    pub numbers: Numbers,
    pub greedy: Vec<u32>,
}

#[derive(Debug)]
pub struct Subject {
    engine: Engine,
    setting: Setting,
    free: Vec<Option<u64>>,
    gauge: Gauge,
    loading: Duration,
}

impl Subject {
    /// Fails if the plan does not fit. `name` is for errors.
    pub fn load(name: &str, spec: DecoderSpec, setting: Setting) -> anyhow::Result<Self> {
        let description = ModelDescription::of(spec);
        let free: Vec<Option<u64>> = setting.devices.iter().map(available_bytes).collect();
        let request = setting.request(setting.tokens + setting.generate);
        let plan = memory_plan::check(name, &description, &request, &free)?;
        let places = plan.places.iter().filter_map(|&place| setting.devices.get(place).cloned()).collect();
        let gauge = Gauge::start(&setting.devices);
        let start = Instant::now();
        let model = OpenModel::weightless(description.spec, setting.fill).attending_by(setting.kernel);
        let model = model.caching_in(setting.cache).rounding_hidden_states(setting.rounds);
        let engine = Engine::new(model.load_split(places, setting.dtype)?, setting.chunk);
        synchronize(&setting.devices)?;
        gauge.forget();
        Ok(Subject { engine, setting, free, gauge, loading: start.elapsed() })
    }

    pub fn spec(&self) -> &DecoderSpec {
        self.engine.decoder().spec()
    }

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

    /// Prefills in chunks ending at `ends`, keeps logits of the `last` positions, records the last rows, generates. `progress` receives
    /// tokens read.
    pub fn measure(
        &self,
        ends: &[usize],
        last: usize,
        progress: &mut dyn FnMut(usize) -> bool,
    ) -> anyhow::Result<Measured> {
        let Setting { devices, dtype, generate, chunk, recording, .. } = &self.setting;
        let tokens = ends.last().copied().unwrap_or(0);
        let (decoder, spec, recording) = (self.engine.decoder(), self.spec(), recording.within(tokens));
        let vocab = spec.vocab.max(1) as u64;
        // Aperiodic, so that no pattern matches a block or chunk length.
        let prompt: Vec<u32> =
            (0..tokens as u64).map(|i| ((i * 7919 + i / 7 * 31 + 11) % vocab) as u32).collect();
        let mut cache = decoder.cache(tokens + generate)?;
        let mut observer = Timed { inner: observer(tokens, recording)?, devices, spent: Duration::ZERO };

        // The recording timer runs inside the total.
        synchronize(devices)?;
        let start = Instant::now();
        let mut done = 0;
        let mut step = |read| {
            done += read;
            progress(done)
        };
        let mut logits = Vec::new();
        for (i, &end) in ends.iter().enumerate() {
            let part = &prompt[if i == 0 { 0 } else { ends[i - 1] }..end];
            let keep = last.min(part.len());
            logits.push(self.engine.prefill(&mut cache, part, keep, &mut observer, &mut step)?);
        }
        synchronize(devices)?;
        let prefill = start.elapsed().saturating_sub(observer.spent);
        let masses = observer.timed(|inner| inner.finish())?;
        let logits = Tensor::cat(&logits, 0)?;
        let logits = logits.narrow(0, logits.dim(0)? - last, last)?;

        let sampling = Sampling { temperature: 0.0, top_p: 1.0, seed: 0, max_new_tokens: generate + 1 };
        let start = Instant::now();
        let (first, mut on_token) = (logits.get(last - 1)?, |_| progress(tokens));
        let greedy =
            self.engine.decode(&mut cache, &first, (&sampling, &[]), &mut NoObserver, &mut on_token)?.tokens;
        synchronize(devices)?;
        let decode = start.elapsed();

        let of =
            |work: &dyn Fn((LayerWork, Kernel, Kernel)) -> Work| -> Work { self.layers().map(work).sum() };
        let steps = greedy.len().saturating_sub(1);
        let mut kernels = (0..spec.layers.len()).filter_map(|i| decoder.attention_kernel(i));
        let trial = Trial {
            kernel: kernels.next().map(|settled| settled.forward),
            tokens,
            chunk: *chunk,
            rows: recording.rows,
            spans: recording.spans,
            generated: steps,
            loading_seconds: self.loading.as_secs_f64(),
            prefill_seconds: prefill.as_secs_f64(),
            recording_seconds: observer.spent.as_secs_f64(),
            token_seconds: decode.as_secs_f64() / steps.max(1) as f64,
            prefill: of(&|(layer, kernel, _)| layer.prefill(tokens, kernel)) + cards::head(spec),
            recording: of(&|(layer, _, sums)| layer.recorded(tokens, recording, sums)),
            token: of(&|(layer, kernel, _)| layer.step(tokens, 0, 1, kernel))
                + cards::token_head(spec, dtype.size_in_bytes()),
            masses_off: off_from_1(&masses),
            memory: self.memory(tokens + generate),
        };
        Ok(Measured { trial, numbers: numbers(&logits, &masses)?, greedy })
    }

    fn memory(&self, context: usize) -> Vec<Memory> {
        let description = ModelDescription::of(self.spec().clone());
        let plan = MemoryPlan::new(&description, &self.setting.request(context), &self.free);
        let peaks = self.gauge.peaks();
        let mut memory: Vec<Memory> = Vec::new();
        for share in &plan.shares {
            let device = share.device.to_string();
            let peak = || peaks.iter().find(|peak| peak.device == device).cloned();
            let new = || Memory { device: device.clone(), planned: 0, peak: peak() };
            entry(&mut memory, |memory| memory.device == device, new).planned += share.total();
        }
        memory
    }
}

fn synchronize(devices: &[Device]) -> TensorResult<()> {
    devices.iter().try_for_each(Device::synchronize)
}

/// Records the last rows, four fifths as a segment and the rest as a question, over spans that tile the prompt.
fn observer(tokens: usize, Recording { rows, spans }: Recording) -> anyhow::Result<MassObserver> {
    let question = (rows / 5).max(1);
    let mut row_spans = vec![Span::new("question", tokens - question..tokens)];
    if rows > question {
        row_spans.insert(0, Span::new("segment", tokens - rows..tokens - question));
    }
    let border = |i: usize| i * tokens / spans;
    let keys = (0..spans).map(|i| Span::new(i.to_string(), border(i)..border(i + 1))).collect();
    Ok(MassObserver::new(row_spans, keys, tokens)?)
}

fn numbers(logits: &Tensor, masses: &Masses) -> TensorResult<Numbers> {
    let logits = logits.to_device(&Device::Cpu)?.flatten_all()?.to_vec1()?;
    let mut numbers = Numbers::from([("logits", logits), ("mass", masses.mass.iter().copied().collect())]);
    numbers.extend(masses.sink.iter().map(|sink| ("sink", sink.iter().copied().collect())));
    if let Some(delta) = &masses.delta {
        numbers.insert("delta_signed", delta.signed.iter().copied().collect());
        numbers.insert("delta_share", delta.share.iter().copied().collect());
    }
    Ok(numbers)
}

/// Maximum deviation from 1 of a row's masses or of linear-attention shares; infinite for NaN.
fn off_from_1(masses: &Masses) -> f64 {
    let sum = |row: ndarray::ArrayView1<f32>| row.iter().map(|x| f64::from(*x)).sum::<f64>();
    let sinks = masses.sink.iter().flat_map(|sink| sink.iter().copied()).chain(std::iter::repeat(0.0));
    let rows = masses.mass.rows().into_iter().zip(sinks).map(|(row, sink)| sum(row) + f64::from(sink));
    let shares = masses.delta.iter().flat_map(|delta| delta.share.rows()).map(sum);
    let off = rows.chain(shares).map(|sum| (sum - 1.0).abs());
    off.fold(0.0, |most, x| if x.is_nan() { f64::INFINITY } else { x.max(most) })
}

/// A mass observer with a timer; synchronises the devices before and after.
struct Timed<'a> {
    inner: MassObserver,
    devices: &'a [Device],
    spent: Duration,
}

impl Timed<'_> {
    fn timed<T>(&mut self, work: impl FnOnce(&mut MassObserver) -> TensorResult<T>) -> TensorResult<T> {
        synchronize(self.devices)?;
        let start = Instant::now();
        let done = work(&mut self.inner)?;
        synchronize(self.devices)?;
        self.spent += start.elapsed();
        Ok(done)
    }
}

impl Observer for Timed<'_> {
    fn wants(&self, point: Point<'_>) -> Wanted<'_> {
        self.inner.wants(point)
    }

    fn observe(&mut self, event: Event<'_>) -> TensorResult<()> {
        self.timed(|inner| inner.observe(event))
    }
}
