//! Single layers of random weights at the widths of released models: agreement with the CPU's f32, then speed over long
//! prompts beside what was counted.

use std::time::{Duration, Instant};

use candle_core::{DType, Device};
use serde::Serialize;

use super::SelfTestError;
use super::arithmetic::Recording;
use super::parity::{has_experts, interrupted, numbers};
use super::rule::{self, Compared, Measure, Numbers};
use super::trial::{Setting, Subject, Trial, made_up_tokens, observer};
use palimpsest_core::engine::{self, Engine};
use palimpsest_core::model::{
    AttentionSpec, DecoderSpec, DeltaNetSpec, FeedForwardSpec, Fill, LayerSpec, MixerSpec, MlpSpec,
    ModelDescription, ModelError,
};

/// Tokens of the comparison with the CPU, read so many at a time, and how many of the last positions are compared.
const AGREEMENT: (usize, usize, usize) = (160, 64, 32);
/// In half precision a layer's logits keep this cosine with f32's; with experts, [`rule::COSINE`].
const COSINE: f64 = 0.999;
/// How far masses may miss 1 by.
pub const MASSES_OFF: f64 = 1e-3;
/// The random weights' seed.
const FILL: Fill = Fill::Random { seed: 9 };
/// Rows of the embedding and the head: few, so that layers are what is measured.
const VOCAB: usize = 1024;
/// No prompt is cut below this to save time.
const SHORTEST: usize = 256;

/// A layer to be tried.
#[derive(Debug, Clone, PartialEq)]
pub struct Kind {
    /// What it is called.
    pub name: &'static str,
    /// Whose widths it has.
    pub of: &'static str,
    /// A decoder of that layer alone.
    pub spec: DecoderSpec,
}

/// What became of a layer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LayerResult {
    /// What it is called.
    pub name: &'static str,
    /// Whose widths it has.
    pub of: &'static str,
    /// Its parts in words.
    pub parts: String,
    /// Its parameters.
    pub parameters: u64,
    /// The dtype that it ran in.
    pub dtype: &'static str,
    /// The device that it ran on.
    pub device: String,
    /// Its logits and masses over a short prompt, compared with those of the CPU in f32 with the same weights.
    pub agreement: Vec<Compared>,
    /// Its trials, from the shortest prompt to the longest.
    pub trials: Vec<Trial>,
    /// What was left out or made shorter, and why.
    pub notes: Vec<String>,
    /// Why it could not be run.
    pub error: Option<String>,
    /// Whether it agrees and its masses are whole.
    pub sound: bool,
}

impl Kind {
    fn title(&self) -> String {
        format!("{} of {}", self.name, self.of)
    }
}

/// One of each kind of layer; in a quick test at reduced widths.
pub fn kinds(quick: bool) -> Result<Vec<Kind>, ModelError> {
    let released = |name: &str| {
        ModelDescription::released(name).unwrap_or_else(|| {
            Err(ModelError::UnknownArchitecture {
                found: name.to_owned(),
                known: "its own config".to_owned(),
            })
        })
    };
    let full = |layer: &LayerSpec| layer.attention().is_some_and(|a| a.window.is_none());
    let windowed = |layer: &LayerSpec| layer.attention().is_some_and(|a| a.window.is_some());
    let linear = |layer: &LayerSpec| layer.delta_net().is_some();
    let (qwen, llama) = (released("qwen3.5-9b")?.spec, released("llama-3.1-8b-instruct")?.spec);
    let (gpt_oss, gemma) = (released("gpt-oss-20b")?.spec, gemma_12b(released("gemma3-270m")?.spec));
    let all = [
        ("gated attention", "Qwen3.5-9B", alone(&qwen, full)),
        ("delta net", "Qwen3.5-9B", alone(&qwen, linear)),
        ("attention", "Llama-3.1-8B", alone(&llama, full)),
        ("window", "Gemma-3-12B", alone(&gemma, windowed)),
        ("experts, sinks", "gpt-oss-20b", alone(&gpt_oss, full)),
    ];
    let kind = |(name, of, spec)| Kind { name, of, spec: if quick { reduced(spec) } else { spec } };
    Ok(all.into_iter().map(kind).collect())
}

/// The first layer that `wanted` takes, as a decoder of its own with few tokens.
fn alone(spec: &DecoderSpec, wanted: impl Fn(&LayerSpec) -> bool) -> DecoderSpec {
    let layers = spec.layers.iter().find(|layer| wanted(layer)).cloned().into_iter().collect();
    DecoderSpec { vocab: VOCAB, tied: false, layers, ..spec.clone() }
}

/// Gemma 3 270M with the widths of 12B (its config.json: `google/gemma-3-12b-it`), whose own config is not compiled in.
fn gemma_12b(small: DecoderSpec) -> DecoderSpec {
    let widened = |layer: &LayerSpec| {
        let mut layer = layer.clone();
        if let MixerSpec::Attention(a) = &mut layer.mixer {
            (a.heads, a.kv_heads) = (16, 8);
            a.window = a.window.map(|_| 1024);
        }
        if let FeedForwardSpec::Dense(mlp) = &mut layer.feed_forward {
            mlp.intermediate = 15_360;
        }
        layer
    };
    let layers = small.layers.iter().map(widened).collect();
    DecoderSpec { hidden: 3840, embedding_scale: Some(3840f64.sqrt()), layers, ..small }
}

/// The same kinds of parts, narrow: for a quick test, and for devices that are pretended.
fn reduced(spec: DecoderSpec) -> DecoderSpec {
    const HIDDEN: usize = 128;
    const HEAD: usize = 32;
    let mlp = |mlp: &MlpSpec, intermediate| MlpSpec { intermediate, ..*mlp };
    let narrowed = |layer: LayerSpec| {
        let mixer = match layer.mixer {
            MixerSpec::Attention(a) => {
                let group = (a.heads / a.kv_heads.max(1)).clamp(1, 4);
                let mut rope = a.rope.clone();
                rope.dims = (rope.dims * HEAD / a.head_dim.max(1)).next_multiple_of(2);
                MixerSpec::Attention(AttentionSpec {
                    heads: 2 * group,
                    kv_heads: 2,
                    head_dim: HEAD,
                    scale: (HEAD as f32).powf(-0.5),
                    window: a.window.map(|window| window.min(64)),
                    rope,
                    ..a
                })
            }
            MixerSpec::DeltaNet(d) => MixerSpec::DeltaNet(DeltaNetSpec {
                key_heads: 2,
                value_heads: 4,
                key_dim: HEAD,
                value_dim: HEAD,
                ..d
            }),
        };
        let feed_forward = match layer.feed_forward {
            FeedForwardSpec::Dense(dense) => FeedForwardSpec::Dense(mlp(&dense, 2 * HIDDEN)),
            FeedForwardSpec::Experts(mut e) => {
                e.experts = 8;
                e.per_token = e.per_token.min(2);
                e.expert = mlp(&e.expert, HIDDEN / 2);
                e.shared = e.shared.map(|shared| mlp(&shared, HIDDEN / 2));
                FeedForwardSpec::Experts(e)
            }
        };
        LayerSpec { mixer, feed_forward, ..layer }
    };
    let layers = spec.layers.into_iter().map(narrowed).collect();
    let embedding_scale = spec.embedding_scale.map(|_| (HIDDEN as f64).sqrt());
    DecoderSpec { hidden: HIDDEN, vocab: 256, embedding_scale, layers, ..spec }
}

/// How layers are tried on a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule {
    /// Prompts, from the shortest to the longest.
    pub lengths: Vec<usize>,
    /// Tokens that are read at a time.
    pub chunk: usize,
    /// Tokens that are generated after each.
    pub generate: usize,
    /// What is recorded.
    pub recording: Recording,
}

impl Schedule {
    /// Of a device of that kind.
    pub fn of(device: &Device, quick: bool) -> Self {
        // As many rows and spans as a case of the benchmark has.
        let recording = Recording { rows: 500, spans: 500 };
        let long = |lengths: [usize; 2]| Schedule {
            lengths: lengths.to_vec(),
            chunk: engine::DEFAULT_CHUNK,
            generate: 16,
            recording,
        };
        match (quick, device.is_cpu()) {
            (true, _) => Schedule {
                lengths: vec![256],
                chunk: 64,
                generate: 8,
                recording: Recording { rows: 40, spans: 16 },
            },
            (false, true) => long([2048, 8192]),
            (false, false) => long([8192, 32_768]),
        }
    }
}

/// Tries a layer on `device` in `dtype`, within `time`. What fails is told in the result; an error is what ends the whole
/// test. `told` hears what is under way and says whether to go on.
pub fn run(
    kind: &Kind,
    (device, dtype): (&Device, DType),
    schedule: &Schedule,
    time: Duration,
    told: &dyn Fn(Doing) -> bool,
) -> Result<LayerResult, SelfTestError> {
    let mut result = LayerResult {
        name: kind.name,
        of: kind.of,
        parts: kind.spec.layers.first().map(describe).unwrap_or_default(),
        parameters: kind.spec.layers.iter().map(|layer| layer.parameters(kind.spec.hidden) as u64).sum(),
        dtype: dtype.as_str(),
        device: engine::DeviceName::of(device).to_string(),
        agreement: Vec::new(),
        trials: Vec::new(),
        notes: Vec::new(),
        error: None,
        sound: false,
    };
    match fill(&mut result, kind, (device, dtype), schedule, time, told) {
        Err(SelfTestError::Interrupted) => return Err(SelfTestError::Interrupted),
        Err(error) => result.error = Some(error.to_string()),
        Ok(()) => {}
    }
    result.judge();
    Ok(result)
}

/// What is under way of a layer.
#[derive(Debug, Clone, Copy)]
pub enum Doing {
    /// Something of unknown length.
    Something(&'static str),
    /// So many of so many tokens are read.
    Prefill(usize, usize),
}

fn fill(
    result: &mut LayerResult,
    kind: &Kind,
    (device, dtype): (&Device, DType),
    schedule: &Schedule,
    time: Duration,
    told: &dyn Fn(Doing) -> bool,
) -> Result<(), SelfTestError> {
    let start = Instant::now();
    match agreement(kind, device, dtype, told) {
        Ok(compared) => result.agreement = compared,
        Err(SelfTestError::DoesNotFit(refusal)) => result.notes.push(format!("not compared: {refusal}")),
        Err(error) => return Err(error),
    }

    let longest = schedule.lengths.iter().copied().max().unwrap_or(SHORTEST);
    let setting = Setting {
        dtype,
        devices: vec![device.clone()],
        chunk: schedule.chunk,
        tokens: longest,
        generate: schedule.generate,
        fill: FILL,
    };
    going(told(Doing::Something("making weights")))?;
    let mut subject = match Subject::load(&kind.title(), kind.spec.clone(), setting) {
        Ok(subject) => subject,
        Err(SelfTestError::DoesNotFit(refusal)) => {
            result.notes.push(format!("not timed: {refusal}"));
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    // Twice: the first time loads kernels and takes memory from the system.
    let warm = SHORTEST.min(longest);
    subject.warm_up(warm, &|| told(Doing::Something("warming up")))?;
    let seconds = subject.warm_up(warm, &|| told(Doing::Something("warming up")))?;
    let mut rate = subject.prefill_work(warm).operations() / seconds;
    for &asked in &schedule.lengths {
        let left = time.saturating_sub(start.elapsed()).as_secs_f64();
        let needed = |tokens: usize| subject.prefill_work(tokens).operations() / rate;
        let tokens = fitting(asked, left, &needed);
        if tokens < asked {
            let cut = format!(
                "{}: {} tokens would take about {:.0} s here, so {} were read",
                kind.title(),
                crate::progress::grouped(asked as u64),
                needed(asked),
                crate::progress::grouped(tokens as u64)
            );
            result.notes.push(cut);
        }
        if result.trials.iter().any(|trial| trial.tokens >= tokens) {
            continue;
        }
        let trial =
            subject.measure(tokens, schedule.recording, &mut |done| told(Doing::Prefill(done, tokens)))?;
        rate = trial.prefill.operations() / (trial.prefill_seconds + trial.recording_seconds);
        result.trials.push(trial);
    }
    Ok(())
}

/// The longest prompt of `asked` tokens, halved as often as need be, that takes no longer than the time left.
fn fitting(asked: usize, left: f64, needed: &dyn Fn(usize) -> f64) -> usize {
    let mut tokens = asked;
    while tokens > SHORTEST && needed(tokens) > left {
        tokens = (tokens / 2).max(SHORTEST);
    }
    tokens
}

fn going(on: bool) -> Result<(), SelfTestError> {
    if on { Ok(()) } else { Err(SelfTestError::Interrupted) }
}

/// Compares a layer on `device` in `dtype`, read in chunks, with the CPU in f32, read at once, over a short prompt.
fn agreement(
    kind: &Kind,
    device: &Device,
    dtype: DType,
    told: &dyn Fn(Doing) -> bool,
) -> Result<Vec<Compared>, SelfTestError> {
    let (tokens, chunk, _) = AGREEMENT;
    let numbers = |device: &Device, dtype, chunk| {
        let devices = vec![device.clone()];
        let setting = Setting { dtype, devices, chunk, tokens, generate: 0, fill: FILL };
        let subject = Subject::load(&kind.title(), kind.spec.clone(), setting)?;
        short(subject.engine(), told)
    };
    // Their weights are large: one of the two at a time.
    going(told(Doing::Something("computing on the CPU in f32")))?;
    let expected = numbers(&Device::Cpu, DType::F32, tokens)?;
    going(told(Doing::Something("comparing with the CPU in f32")))?;
    let found = numbers(device, dtype, chunk)?;
    Ok(compare(&found, &expected, dtype, has_experts(&kind.spec)))
}

/// In f32 by the rule of the checkpoints; in half precision, where no other implementation says what is usual, by direction.
fn compare(found: &Numbers, expected: &Numbers, dtype: DType, experts: bool) -> Vec<Compared> {
    if dtype == DType::F32 {
        return rule::in_f32(found, expected);
    }
    let allowed = if experts { rule::COSINE } else { COSINE };
    let logits = found.get("logits").zip(expected.get("logits"));
    let found = logits.map_or(f64::NEG_INFINITY, |(found, expected)| rule::cosine(found, expected));
    vec![Compared { what: "logits", measure: Measure::Cosine, found, allowed }]
}

/// Logits and masses of the short prompt.
fn short(engine: &Engine, told: &dyn Fn(Doing) -> bool) -> Result<Numbers, SelfTestError> {
    let (tokens, _, keep) = AGREEMENT;
    let prompt = made_up_tokens(tokens, engine.decoder().spec().vocab);
    let mut observer = observer(tokens, Recording { rows: 20, spans: 10 })?;
    let mut cache = engine.decoder().cache(tokens)?;
    let mut step = |_| told(Doing::Something("comparing"));
    let logits = engine.prefill(&mut cache, &prompt, keep, &mut observer, &mut step).map_err(interrupted)?;
    numbers(&logits, &observer)
}

impl LayerResult {
    /// What was left out for want of memory, which the notes tell, is not held against it.
    fn judge(&mut self) {
        let agrees = self.agreement.iter().all(Compared::holds);
        let whole = self.trials.iter().all(|trial| trial.masses_off <= MASSES_OFF);
        self.sound = self.error.is_none() && agrees && whole;
    }
}

/// The parts of a layer in words.
fn describe(layer: &LayerSpec) -> String {
    let mixer = match &layer.mixer {
        MixerSpec::Attention(a) => {
            let mut words = format!("{} heads on {} of {}", a.heads, a.kv_heads, a.head_dim);
            if a.gated {
                words += ", gated";
            }
            if let Some(window) = a.window {
                words += &format!(", window {window}");
            }
            if a.sinks {
                words += ", sinks";
            }
            words
        }
        MixerSpec::DeltaNet(d) => {
            format!("delta net, {} heads on {} of {}", d.value_heads, d.key_heads, d.key_dim)
        }
    };
    match &layer.feed_forward {
        FeedForwardSpec::Dense(mlp) => format!("{mixer}; dense, {}", mlp.intermediate),
        FeedForwardSpec::Experts(e) => {
            format!("{mixer}; {} of {} experts, {}", e.per_token, e.experts, e.expert.intermediate)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_layer_is_there_at_the_widths_of_9b_models_and_reduced() -> Result<(), ModelError> {
        let (wide, quick) = (kinds(false)?, kinds(true)?);
        assert_eq!(wide.len(), quick.len());
        for (wide, quick) in wide.iter().zip(&quick) {
            let ([layer], [narrow]) = (wide.spec.layers.as_slice(), quick.spec.layers.as_slice()) else {
                panic!("{}: one layer", wide.name)
            };
            let millions = layer.parameters(wide.spec.hidden) / 1_000_000;
            assert!((150..1000).contains(&millions), "{}: {millions}M", wide.name);
            assert!(narrow.parameters(quick.spec.hidden) < 400_000, "{}", wide.name);
            assert_eq!(layer.delta_net().is_some(), narrow.delta_net().is_some());
            assert_eq!(has_experts(&wide.spec), has_experts(&quick.spec));
            assert_eq!(quick.spec.contradiction(), None, "{}", wide.name);
        }
        let has = |part: &str| wide.iter().any(|kind| describe(&kind.spec.layers[0]).contains(part));
        for part in [
            "gated",
            "delta net, 32 heads",
            "32 heads on 8 of 128",
            "window 1024",
            "sinks",
            "4 of 32 experts",
        ] {
            assert!(has(part), "{part}");
        }
        Ok(())
    }

    #[test]
    fn prompts_are_halved_until_they_fit_the_time_and_never_below_the_shortest() {
        let needed = |tokens: usize| tokens as f64 / 100.0;
        assert_eq!(fitting(8192, 100.0, &needed), 8192);
        assert_eq!(fitting(8192, 25.0, &needed), 2048);
        assert_eq!(fitting(8192, 0.0, &needed), SHORTEST);
        assert_eq!(fitting(64, 0.0, &needed), 64);
    }

    #[test]
    fn every_kind_of_layer_agrees_with_f32_in_half_precision_by_the_kernels_of_cards()
    -> Result<(), Box<dyn std::error::Error>> {
        let schedule = Schedule::of(&Device::Cpu, true);
        for dtype in [DType::BF16, DType::F16] {
            for kind in kinds(true)? {
                let time = Duration::from_secs(600);
                let result = run(&kind, (&Device::Cpu, dtype), &schedule, time, &|_| true)?;
                assert!(result.sound && result.trials.len() == 1, "{result:?}");
                println!("{} in {}: {:?}", kind.name, result.dtype, result.agreement);
            }
        }
        Ok(())
    }

    #[test]
    fn a_layer_whose_logits_or_masses_are_off_is_not_sound() -> Result<(), Box<dyn std::error::Error>> {
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

        let kind = kinds(true)?.remove(1);
        let schedule = Schedule::of(&Device::Cpu, true);
        let time = Duration::from_secs(60);
        let mut result = run(&kind, (&Device::Cpu, DType::F32), &schedule, time, &|_| true)?;
        assert!(result.sound && result.notes.is_empty(), "{result:?}");
        let trial = &result.trials[0];
        assert_eq!((trial.tokens, trial.generated, trial.rows, trial.spans), (256, 8, 40, 16));
        assert!(trial.prefill_seconds > 0.0 && trial.recording_seconds > 0.0 && trial.token_seconds > 0.0);
        result.trials[0].masses_off = 2.0 * MASSES_OFF;
        result.judge();
        assert!(!result.sound);

        // Without time the prompt is cut, and that is said.
        let long = Schedule { lengths: vec![1024], ..schedule.clone() };
        let cut = run(&kind, (&Device::Cpu, DType::F32), &long, Duration::ZERO, &|_| true)?;
        assert_eq!(cut.trials[0].tokens, SHORTEST);
        assert!(cut.notes[0].contains("1,024 tokens would take"), "{:?}", cut.notes);
        let stopped = run(&kind, (&Device::Cpu, DType::F32), &schedule, time, &|_| false);
        assert!(matches!(stopped, Err(SelfTestError::Interrupted)));
        Ok(())
    }
}
