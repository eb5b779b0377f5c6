//! The self-test: device parity with the CPU, a smoke test of layers, memory against the plan, and timings of attention kernels.
//!
//! Needs no network or files: `shapes` makes random models from released configs. `parity` compares small models with the CPU under the
//! [`rule`] of the parity tests, and runs single layers at released widths (`trial`) with every kernel; `machine` measures memory,
//! `ceilings` the rates that kernels are held against; `report` prints. Agreement with transformers is tested in `tests/parity`. Called by
//! `palimpsest selftest` and `palimpsest model try`.

use std::time::Instant;

use anyhow::Context;
use candle_core::{DType, Device};

use crate::progress::Steps;
use palimpsest_core::attention::AttentionKernel;
use palimpsest_core::engine::DeviceName;

mod ceilings;
mod machine;
mod parity;
mod report;
pub mod rule;
mod shapes;
pub mod trial;

use ceilings::Ceilings;
pub use machine::card_peaks;
use machine::{DeviceFacts, Host};
use parity::{Exact, Parity};
pub use report::Report;
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

/// Parity splits layers over all devices; single layers run on the first. `kernel` is the attention kernel on CUDA. `done` gets the
/// unfinished report after every part. When `going` returns false, returns an error that [`is_interrupted`].
pub fn run(
    devices: &[Device],
    kernel: AttentionKernel,
    quick: bool,
    done: &mut dyn FnMut(&Report) -> anyhow::Result<()>,
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

    let mut report = Report {
        selftest: 1,
        finished: false,
        host: Host::here(),
        ceilings: facts.first().and_then(|facts| Ceilings::of(first, facts, dtype)),
        devices: facts,
        quick,
        seconds: 0.0,
        parity: Vec::new(),
        layers: Vec::new(),
        peak_resident: None,
    };
    for shape in &small {
        status.begin(shape.name, "comparing with the CPU");
        let (mut wrong, mut exact) = (Vec::new(), Exact::default());
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            let found = Parity::of(shape, dtype, &mut exact, (devices, kernel), going)?;
            if !found.sound {
                wrong.push(found.dtype);
            }
            report.parity.push(found);
        }
        report.seconds = start.elapsed().as_secs_f64();
        done(&report)?;
        let wrong = (!wrong.is_empty()).then(|| format!("not as it must be in {}", wrong.join(", ")));
        steps.step(shape.name, wrong.as_deref());
    }
    for shape in &single {
        let found = long.try_layer(shape, &status, going)?;
        steps.step(&shape.title(), found.error.as_deref());
        report.layers.push(found);
        report.seconds = start.elapsed().as_secs_f64();
        done(&report)?;
    }
    drop(steps);
    report.peak_resident = palimpsest_core::engine::peak_resident_bytes();
    report.finished = true;
    Ok(report)
}
