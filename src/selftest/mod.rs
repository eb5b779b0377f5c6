//! The self-test: whether this build computes rightly on the devices at hand, and how fast.
//!
//! Needs no network and no files: [`embedded`] carries tiny checkpoints of every architecture with transformers' numbers, and
//! [`parity`] holds the devices to the [`rule`] of the parity tests. [`layers`] tries single layers at the widths of released
//! models with made-up weights ([`trial`]), and holds their times against what [`arithmetic`] counts, what [`cards`] says of
//! the card and what [`yardsticks`] measure; [`memory`] watches what they take. [`kernels`] times what attention can be computed
//! by on a card. [`forecast`] makes hours of a run of what [`arithmetic`] counts. [`report`] is all of it, as text, as JSON, and
//! in a verdict. Called by `palimpsest selftest` and `palimpsest model try`; it knows no prompts of people and no cases.

use std::time::{Duration, Instant};

use candle_core::{DType, Device};

use crate::progress::{Status, Steps};
use palimpsest_core::engine::DeviceName;

pub mod arithmetic;
pub mod cards;
mod cuda;
pub mod embedded;
mod error;
pub mod facts;
pub mod forecast;
pub mod kernels;
pub mod layers;
pub mod memory;
pub mod parity;
pub mod report;
pub mod rule;
pub mod trial;
pub mod yardsticks;

use embedded::CHECKPOINTS;
pub use error::SelfTestError;
use facts::{DeviceFacts, Host};
use layers::{Doing, LayerResult, Schedule};
use parity::Parity;
use report::Report;
use yardsticks::Yardsticks;

/// What to test, and how.
#[derive(Debug, Clone)]
pub struct Options {
    /// The devices: parity is tested with the layers split between all of them, single layers on the first.
    pub devices: Vec<Device>,
    /// Reduced widths and lengths.
    pub quick: bool,
    /// What all of it may take. Long prompts are cut to stay within it.
    pub time: Duration,
}

/// Time for everything unless told otherwise; beside it half a minute at least is for the kernels side by side, five minutes in all.
pub const TIME: Duration = Duration::from_secs(270);
/// Attention's kernels, which are timed last, get as much where nothing is left of it.
const TIME_FOR_KERNELS: Duration = Duration::from_secs(30);

/// The dtype that layers are tried in: the device's default, or f16 on cards that are too old for bf16.
fn dtype_for_layers(facts: &DeviceFacts, device: &Device) -> DType {
    let default = DeviceName::of(device).default_dtype();
    match facts.compute_capability {
        Some((major, _)) if major < 8 && default == DType::BF16 => DType::F16,
        _ => default,
    }
}

/// Runs the self-test. `going` is asked often, and ends it with [`SelfTestError::Interrupted`].
///
/// # Errors
/// What keeps it from running at all. What a device does wrong is told in the report.
pub fn run(options: &Options, going: &dyn Fn() -> bool) -> Result<Report, SelfTestError> {
    let start = Instant::now();
    let Some(first) = options.devices.first() else { return Err(SelfTestError::NoDevice) };
    let devices: Vec<DeviceFacts> = options.devices.iter().map(DeviceFacts::of).collect();
    let schedule = Schedule::of(first, options.quick);
    let kinds = layers::kinds(options.quick)?;
    let dtypes = [DType::F32, DType::BF16, DType::F16];
    let total = CHECKPOINTS.len() + 1 + kinds.len() + usize::from(first.is_cuda());
    let mut steps = Steps::new("selftest", total, true);
    let status = steps.status();

    // 1. Tiny checkpoints.
    let root = tempfile::tempdir()
        .map_err(|source| SelfTestError::Temporary { folder: std::env::temp_dir(), source })?;
    let mut parity = Vec::new();
    for checkpoint in &CHECKPOINTS {
        status.begin(checkpoint.name, "comparing with transformers");
        let folder = checkpoint.write(root.path())?;
        let mut wrong = Vec::new();
        for dtype in dtypes {
            let Some(found) = Parity::of(checkpoint, &folder, dtype, &options.devices, going)? else {
                continue;
            };
            if !found.sound {
                wrong.push(found.dtype);
            }
            parity.push(found);
        }
        let wrong = (!wrong.is_empty()).then(|| format!("not as it must be in {}", wrong.join(", ")));
        steps.step(checkpoint.name, wrong.as_deref());
    }

    // 2. What the device can do.
    status.begin("yardsticks", "a dense product and a large matrix");
    let dtype = devices.first().map_or(DType::F32, |facts| dtype_for_layers(facts, first));
    let yardsticks = Yardsticks::of(first, dtype, options.quick);
    let failed = yardsticks.as_ref().err().map(ToString::to_string);
    steps.step("yardsticks", failed.as_deref());

    // 3. Single layers, each with its part of the time that is left.
    let mut layers: Vec<LayerResult> = Vec::new();
    for (i, kind) in kinds.iter().enumerate() {
        let left = options.time.saturating_sub(start.elapsed());
        let share = left / (kinds.len() - i) as u32;
        let name = format!("{} of {}", kind.name, kind.of);
        let told = |doing: Doing| tell(&status, &name, doing) && going();
        let found = layers::run(kind, (first, dtype), &schedule, share, &told)?;
        steps.step(&name, found.error.as_deref());
        layers.push(found);
    }

    // 4. Where attention has several kernels, those beside each other, in what time is left.
    let mut attention_kernels = None;
    if first.is_cuda() {
        let name = "attention kernels";
        status.begin(name, "timing each");
        // Of a quick test nothing is left out, on a device however slow.
        let left = options.time.saturating_sub(start.elapsed()).max(TIME_FOR_KERNELS);
        let left = if options.quick { Duration::MAX } else { left };
        attention_kernels = kernels::run(&kinds, (first, dtype), &schedule, left, going)?;
        steps.step(name, None);
    }
    drop(steps);
    Ok(Report {
        selftest: 1,
        host: Host::here(),
        devices,
        quick: options.quick,
        seconds: start.elapsed().as_secs_f64(),
        parity,
        yardsticks: yardsticks.ok(),
        layers,
        attention_kernels,
        peak_resident: palimpsest_core::engine::peak_resident_bytes(),
    })
}

/// Says what is under way.
fn tell(status: &Status, name: &str, doing: Doing) -> bool {
    match doing {
        Doing::Something(what) => status.begin(name, what),
        Doing::Prefill(done, total) => status.prefill(done, total),
    }
    true
}
