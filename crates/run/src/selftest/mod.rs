//! The self-test: device parity with the CPU, a smoke test of layers, memory against the plan, and timings of attention kernels.
//!
//! Needs no network or files: `shapes` makes random models from released configs. `parity` compares small models with the CPU under the
//! [`rule`] of the parity tests, and runs single layers at released widths (`trial`) with every kernel; `machine` measures memory; `report`
//! prints. Agreement with transformers is tested in `tests/parity`. Called by `palimpsest selftest` and `palimpsest model try`.

use std::time::Instant;

use anyhow::Context;
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
use parity::Parity;
use report::Report;
use trial::Setting;
pub use trial::is_interrupted;

/// The device's default, or f16 on cards without bf16.
fn dtype_for_layers(facts: &DeviceFacts, device: &Device) -> DType {
    let default = DeviceName::of(device).default_dtype();
    match facts.compute_capability {
        Some((major, _)) if major < 8 && default == DType::BF16 => DType::F16,
        _ => default,
    }
}

/// Parity splits layers over all devices; single layers run on the first. `kernel` is the attention kernel on CUDA. When `going` returns
/// false, returns an error that [`is_interrupted`].
pub fn run(
    devices: &[Device],
    kernel: AttentionKernel,
    quick: bool,
    going: &dyn Fn() -> bool,
) -> anyhow::Result<Report> {
    let start = Instant::now();
    let first = devices.first().context("no device was named; name at least one, such as cpu or cuda:0")?;
    let facts: Vec<DeviceFacts> = devices.iter().map(DeviceFacts::of).collect();
    let dtype = facts.first().map_or(DType::F32, |facts| dtype_for_layers(facts, first));
    let long = Setting::long(first, dtype, kernel, quick);
    let (small, single) = (shapes::small()?, shapes::layers(quick)?);
    let mut steps = Steps::new("selftest", small.len() + single.len(), true);
    let status = steps.status();

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

    let mut layers = Vec::new();
    for shape in &single {
        let found = long.try_layer(shape, &status, going)?;
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
