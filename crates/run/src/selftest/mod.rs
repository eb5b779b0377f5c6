//! The self-test: parity of devices with the CPU, a smoke test of layers, memory against the plan, and attention's kernels timed.
//!
//! Needs no network and no files: `shapes` makes models of random weights from released configs. `parity` compares small ones of
//! every architecture on the devices with the CPU, within the [`rule`] of the parity tests, and tries single layers at
//! released widths (`trial`) with every kernel of attention that there is; `machine` measures their memory. `report` is all of it,
//! as text, as JSON, and in a verdict. That the engine agrees with transformers is shown by `tests/parity`, on checkpoints as they
//! are stored. Called by `palimpsest selftest` and `palimpsest model try`; it knows no prompts of people and no cases.

use std::time::Instant;

use candle_core::{DType, Device};

use crate::progress::Steps;
use palimpsest_core::attention::AttentionKernel;
use palimpsest_core::engine::DeviceName;

mod machine;
mod parity;
mod report;
pub mod rule;
mod shapes;
pub mod trial;

use machine::{DeviceFacts, Host};
use parity::{Parity, Schedule};
use report::Report;
pub use trial::SelfTestError;

/// The dtype that layers are tried in: the device's default, or f16 on cards that are too old for bf16.
fn dtype_for_layers(facts: &DeviceFacts, device: &Device) -> DType {
    let default = DeviceName::of(device).default_dtype();
    match facts.compute_capability {
        Some((major, _)) if major < 8 && default == DType::BF16 => DType::F16,
        _ => default,
    }
}

/// Runs the self-test. Parity is tested with the layers split between all devices, single layers on the first; `kernel` computes
/// attention on CUDA. `going` is asked often, and ends it with [`SelfTestError::Interrupted`].
pub fn run(
    devices: &[Device],
    kernel: AttentionKernel,
    quick: bool,
    going: &dyn Fn() -> bool,
) -> Result<Report, SelfTestError> {
    let start = Instant::now();
    let first = devices.first().ok_or(SelfTestError::NoDevice)?;
    let facts: Vec<DeviceFacts> = devices.iter().map(DeviceFacts::of).collect();
    let dtype = facts.first().map_or(DType::F32, |facts| dtype_for_layers(facts, first));
    let schedule = Schedule::of(first, dtype, kernel, quick);
    let (small, single) = (shapes::small()?, shapes::layers(quick)?);
    let mut steps = Steps::new("selftest", small.len() + single.len(), true);
    let status = steps.status();

    // 1. Small models of every architecture.
    let mut parity = Vec::new();
    for shape in &small {
        status.begin(shape.name, "comparing with the CPU");
        let mut wrong = Vec::new();
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            let found = Parity::of(shape, dtype, (devices, kernel), going)?;
            if !found.sound {
                wrong.push(found.dtype);
            }
            parity.push(found);
        }
        let wrong = (!wrong.is_empty()).then(|| format!("not as it must be in {}", wrong.join(", ")));
        steps.step(shape.name, wrong.as_deref());
    }

    // 2. Single layers.
    let mut layers = Vec::new();
    for shape in &single {
        let found = schedule.try_layer(shape, &status, going)?;
        steps.step(&shape.title(), found.error.as_deref());
        layers.push(found);
    }
    drop(steps);
    Ok(Report {
        selftest: 1,
        host: Host::here(),
        devices: facts,
        quick,
        seconds: start.elapsed().as_secs_f64(),
        parity,
        layers,
        peak_resident: palimpsest_core::engine::peak_resident_bytes(),
    })
}
