//! Our CUDA attention kernels through the dispatcher: on a GPU, or on the pretend device with `scripts/kernels_check.sh`, which can also
//! compile kernels wrongly on purpose.

use std::path::{Path, PathBuf};
use std::process::Command;

use candle_core::{DType, Device, Result, Tensor};
use palimpsest_core::attention::{AttentionKernel, Event, Observer, Point, Sinks, Site, Wanted};

use super::{Inputs, apart, numbers, run_branches, sinks, site};

/// Weights and results are rounded once each, relative to values of at most 1.7; sums are in f32.
fn tolerance(dtype: DType) -> f64 {
    2.0 * 1.7 * if dtype == DType::BF16 { 2f64.powi(-9) } else { 2f64.powi(-12) } + 1e-4
}

/// Weights are not rounded to the dtype before they are summed.
const MASSES: f64 = 2e-5;

/// Requests the sums of a branch between borders, and keeps them.
struct Asks {
    borders: Option<Vec<usize>>,
    /// (heads, 1 + segments)
    found: Option<Vec<f32>>,
}

impl Observer for Asks {
    fn wants(&self, _: Point<'_>) -> Wanted<'_> {
        Wanted { segments: self.borders.as_deref(), ..Wanted::default() }
    }

    fn observe(&mut self, event: Event<'_>) -> Result<()> {
        let Event::Weights { sums, .. } = event else { panic!("{event:?} was not wanted") };
        self.found = Some(numbers(&sums.to_device(&Device::Cpu)?.to_dtype(DType::F32)?));
        Ok(())
    }
}

/// One query per branch, with tails of these lengths after `base` shared keys, rounded to `dtype`; one reference sequence per branch.
fn branches(base: usize, tails: &[usize], heads: (usize, usize), d: usize, dtype: DType) -> Vec<Inputs> {
    let rounded =
        |numbers_of: &Tensor| numbers(&numbers_of.to_dtype(dtype).unwrap().to_dtype(DType::F32).unwrap());
    let mut shared: Option<[Vec<f32>; 2]> = None;
    let branch = |tail: &usize| {
        let mut inputs = Inputs::new(1, base + tail - 1, heads, d);
        [inputs.q, inputs.k, inputs.v] = inputs.tensors().map(|tensor| rounded(&tensor));
        let of_heads = |all: &mut Vec<f32>, first: &[f32]| {
            let (to, from) = ((base + tail) * d, first.len() / heads.1);
            for (head, shared) in all.chunks_exact_mut(to).zip(first.chunks_exact(from)) {
                head[..base * d].copy_from_slice(&shared[..base * d]);
            }
        };
        if let Some([k, v]) = &shared {
            of_heads(&mut inputs.k, k);
            of_heads(&mut inputs.v, v);
        } else {
            shared = Some([inputs.k.clone(), inputs.v.clone()]);
        }
        inputs
    };
    tails.iter().map(branch).collect()
}

#[test]
fn branches_with_borders_and_windows_equal_the_definition() -> Result<()> {
    let device = &Device::new_cuda_with_stream(0)?;
    let (heads, kv_heads) = (6, 2);
    for (dtype, d, base, tails) in [
        (DType::F16, 20, 512, vec![1, 70, 300]),
        (DType::BF16, 128, 256, vec![40, 2]),
        (DType::F16, 256, 768, vec![257]),
    ] {
        let all = branches(base, &tails, (heads, kv_heads), d, dtype);
        let on_device = |values: &[f32], shape: (usize, usize, usize)| {
            Tensor::from_slice(values, shape, &Device::Cpu)?.to_dtype(dtype)?.to_device(device)
        };
        let queries: Vec<f32> = all.iter().flat_map(|inputs| inputs.q.iter().copied()).collect();
        let q = on_device(&queries, (tails.len(), heads, d))?;
        let keys = |values: &[f32], tail: usize| on_device(values, (kv_heads, base + tail, d));
        let first = [keys(&all[0].k, tails[0])?, keys(&all[0].v, tails[0])?];
        let (k, v) = (first[0].narrow(1, 0, base)?, first[1].narrow(1, 0, base)?);
        let own = all.iter().zip(&tails).map(|(inputs, tail)| {
            let tail_of = |values: &[f32]| keys(values, *tail)?.narrow(1, base, *tail);
            Ok((tail_of(&inputs.k)?, tail_of(&inputs.v)?))
        });
        let own = own.collect::<Result<Vec<_>>>()?;
        for (window, softcap, with_sinks) in [
            (None, None, false),
            (Some(30), None, true),
            (Some(260), Some(4.0), false),
            (Some(base), None, true),
        ] {
            let at = |offset| Site {
                window,
                softcap,
                sinks: if with_sinks { sinks(heads) } else { None },
                ..site(offset, d)
            };
            let sinks =
                at(base).sinks.map(|sinks| Sinks::new(sinks.logits().to_vec(), device)).transpose()?;
            let place = Site { sinks, kernel: AttentionKernel::Fused, ..at(base) };
            // The second branch requests nothing; borders lie before, within and after the window, and in the tail.
            let asks = |row: usize| Asks {
                borders: (row != 1).then(|| {
                    let end = base + tails[row];
                    let mut borders = vec![0, 3, base / 2, base - 20, base - 1, base, end - 1, end];
                    borders.dedup();
                    borders
                }),
                found: None,
            };
            let mut observers: Vec<Asks> = (0..tails.len()).map(asks).collect();
            let mut asked: Vec<&mut dyn Observer> =
                observers.iter_mut().map(|one| one as &mut dyn Observer).collect();
            let out = run_branches(&q, &k, &v, &own, &place, &[], &mut asked)?;
            let out = numbers(&out.to_device(&Device::Cpu)?.to_dtype(DType::F32)?);
            for (row, (inputs, observer)) in all.iter().zip(&observers).enumerate() {
                let at = at(base + tails[row] - 1);
                let what = format!("{dtype:?}, {d} wide, {base} + {}, {at:?}", tails[row]);
                let found = &out[row * heads * d..][..heads * d];
                let by = apart(found, &inputs.output(&at));
                assert!(by < tolerance(dtype), "{what}: off by {by:e}");
                let (Some(borders), Some(found)) = (&observer.borders, &observer.found) else {
                    assert!(row == 1 && observer.found.is_none(), "{what}: sums {:?}", observer.found);
                    continue;
                };
                let mut expected = Vec::new();
                for head in 0..heads {
                    let (weights, sink) = inputs.weights(&at, 0, head);
                    expected.push(sink);
                    expected.extend(borders.windows(2).map(|b| weights[b[0]..b[1]].iter().sum::<f64>()));
                }
                let by = apart(found, &expected);
                assert!(by < MASSES, "{what}: masses off by {by:e}");
            }
        }
    }
    Ok(())
}

/// Output and log of a `trace` run on the device.
fn traced(model: &str, kernel: &str, alter: Option<&str>, name: &str) -> (Vec<u8>, String) {
    traced_on(None, model, kernel, alter, name)
}

/// As [`traced`], on a pretend device of another compute capability.
fn traced_on(
    capability: Option<&str>,
    model: &str,
    kernel: &str,
    alter: Option<&str>,
    name: &str,
) -> (Vec<u8>, String) {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(model);
    let out = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("fused-{name}.safetensors"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_palimpsest"));
    command.args(["trace", "--device", "cuda:0", "--dtype", "f16", "--chunk", "64", "--generate", "4"]);
    command.arg("--model").arg(&fixture).arg("--tokens").arg(fixture.join("tokens.json"));
    command.arg("--out").arg(&out).args(["--attention-kernel", kernel]);
    command.env("RUST_LOG", "palimpsest=info").env("NO_COLOR", "1");
    if let Some(alter) = alter {
        command.env("REHEARSAL_ALTER", alter);
    }
    if let Some(capability) = capability {
        command.env("REHEARSAL_COMPUTE_CAP", capability);
    }
    let done = command.output().unwrap();
    let log = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(done.status.success(), "{model}, {kernel}, {alter:?}: {log}");
    (std::fs::read(&out).unwrap(), log)
}

const AGREE: &str = "attention kernels: agreement with products";
const DISAGREE: &str = "attention kernels: no agreement with products; products are used";

#[test]
fn a_wrong_kernel_is_found_before_it_is_used() {
    if std::env::var_os("REHEARSAL_CACHE").is_none() {
        eprintln!("skipped: only the pretend device compiles kernels wrongly; run scripts/kernels_check.sh");
        return;
    }
    let model = "gpt-oss-tiny";
    let (right, _) = traced(model, "products", None, "products");
    let (_, log) = traced(model, "auto", None, "auto");
    assert!(log.contains(AGREE) && !log.contains(DISAGREE), "{log}");
    for alter in [
        "attention_prefill_f16_64: ex2.approx.ftz.f32 => neg.ftz.f32",
        "attention_split_f16_64: ex2.approx.ftz.f32 => neg.ftz.f32",
        "attention_join_f16: ex2.approx.ftz.f32 => neg.ftz.f32",
        "rows_many_f16: ex2.approx.ftz.f32 => neg.ftz.f32",
        "rows_few_f16: ex2.approx.ftz.f32 => neg.ftz.f32",
        "rows_shares: ex2.approx.ftz.f32 => neg.ftz.f32",
        // Replaces log2(e) in the sinks' term with 1.
        "attention_prefill_f16_64: 0f3FB8AA3B => 0f3F800000",
        "attention_join_f16: 0f3FB8AA3B => 0f3F800000",
    ] {
        let (found, log) = traced(model, "auto", Some(alter), "altered");
        assert!(log.contains(DISAGREE), "{alter}: {log}");
        assert!(found == right, "{alter}: other results than by products");
    }
    // The unchecked kernel is used as it is, so the fault shows.
    let (found, _) =
        traced(model, "fused", Some("attention_prefill_f16_64: 0f3FB8AA3B => 0f3F800000"), "unchecked");
    assert!(found != right);
}

const HOPPER_AGREES: &str = "the attention kernel for Hopper: agreement with products";
const HOPPER_DISAGREES: &str =
    "the attention kernel for Hopper: no agreement with products; the fused kernels are used";
const HOPPER_CANNOT: &str = "the attention kernel for Hopper cannot be used; the fused kernels are";

#[test]
fn the_fused_kernels_take_the_place_of_the_one_for_hopper_where_it_fails() {
    if std::env::var_os("REHEARSAL_CACHE").is_none() {
        eprintln!("skipped: only the pretend device compiles kernels wrongly; run scripts/kernels_check.sh");
        return;
    }
    let model = "gpt-oss-tiny";
    let on = |capability, kernel, alter, name| traced_on(Some(capability), model, kernel, alter, name);
    let (fused, log) = on("9.0", "fused", None, "without-hopper");
    assert!(!log.contains("for Hopper"), "{log}");
    let (_, log) = on("9.0", "hopper", None, "hopper");
    assert!(log.contains(HOPPER_AGREES) && !log.contains(HOPPER_DISAGREES), "{log}");
    let alter = "attention_hopper_f16_64: ex2.approx.ftz.f32 => neg.ftz.f32";
    let (found, log) = on("9.0", "hopper", Some(alter), "hopper-altered");
    assert!(log.contains(HOPPER_DISAGREES), "{log}");
    assert!(found == fused, "other results than by the fused kernels");
    // Cards of other architectures refuse its module.
    let (_, log) = on("8.0", "hopper", None, "hopper-elsewhere");
    assert!(log.contains(HOPPER_CANNOT), "{log}");
}
