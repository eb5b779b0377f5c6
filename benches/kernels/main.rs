//! Kernel benchmarks in GFLOP/s: linear layers, attention, the observer, and a dense product as peak. Filter with `cargo bench -- REGEX`.

mod flops;
mod shapes;

use std::hint::black_box;
use std::time::Duration;

use candle_core::{DType, Device, Result, Tensor};
use criterion::{BenchmarkGroup, Criterion, SamplingMode, Throughput};
use palimpsest_core::attention::{
    self, AttentionKernel, Event, MassObserver, NoObserver, Observer, Point, Site, Wanted,
};
use palimpsest_core::model::weights::BlockType;
use palimpsest_core::model::{PackedWeight, Phase, Projection};
use palimpsest_core::span::Span;

use flops::Flops;
use shapes::{
    ATTENTION, AttentionShape, KEYS, LINEAR, LINEAR_TOKENS, OBSERVED_ROWS, OBSERVED_SPANS, PEAK, QUERIES,
};

fn main() -> Result<()> {
    let mut criterion = Criterion::default()
        .with_measurement(Flops)
        .without_plots()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
        .configure_from_args();
    peak(&mut criterion)?;
    linear(&mut criterion)?;
    attention(&mut criterion)?;
    observer(&mut criterion)?;
    recording(&mut criterion)?;
    criterion.final_summary();
    Ok(())
}

fn peak(criterion: &mut Criterion<Flops>) -> Result<()> {
    let (a, b) = (random(&[PEAK, PEAK])?, random(&[PEAK, PEAK])?);
    let mut group = group(criterion, "peak");
    bench(&mut group, &format!("{PEAK} cubed"), 2 * (PEAK as u64).pow(3), || done(a.matmul(&b)));
    Ok(())
}

/// Operand dtypes of matrix products.
const FORMATS: [(&str, DType); 2] = [("", DType::F32), (" in bf16", DType::BF16)];

fn linear(criterion: &mut Criterion<Flops>) -> Result<()> {
    for (shapes, (in_dtype, dtype)) in LINEAR.iter().flat_map(|shapes| FORMATS.map(|format| (shapes, format)))
    {
        let mut group = group(criterion, &format!("linear{in_dtype}/{}", shapes.model));
        for tokens in LINEAR_TOKENS {
            let mut layer = Vec::new();
            let mut layer_flop = 0;
            for &(name, inputs, outputs, times) in shapes.products {
                let flop = 2 * (tokens * inputs * outputs) as u64;
                let (x, map) = (random(&[tokens, inputs])?, LinearMap::new(inputs, outputs, dtype)?);
                let name = format!("{name} {inputs} to {outputs}, {tokens} tokens");
                bench(&mut group, &name, flop, || map.forward(&x));
                layer_flop += times as u64 * flop;
                for _ in 0..times {
                    layer.push((x.clone(), LinearMap::new(inputs, outputs, dtype)?));
                }
            }
            bench(&mut group, &format!("whole layer, {tokens} tokens"), layer_flop, || {
                for (x, map) in &layer {
                    black_box(map.forward(x));
                }
            });
        }
    }
    Ok(())
}

/// A Q4_1 projection as in the decoder: prefill multiplies dequantised weights, decode reads packed ones.
struct LinearMap(Projection);

impl LinearMap {
    fn new(inputs: usize, outputs: usize, dtype: DType) -> Result<Self> {
        let half = dtype == DType::BF16;
        // Weights are arbitrary: blocks of 32 with scale 2^-7, minimum -2^-5 and quants 0 to 15.
        let blocks = BlockType::Q4_1;
        let block = |b: usize| {
            let quants = (0..16).map(move |i| ((b * 16 + i) as u8).wrapping_mul(37));
            [0x00, 0x20, 0x00, 0xa8].into_iter().chain(quants)
        };
        let bytes: Vec<u8> = (0..inputs * outputs / blocks.columns()).flat_map(block).collect();
        let packed = PackedWeight::from_blocks(blocks, &bytes, outputs, inputs)
            .ok_or_else(|| candle_core::Error::msg(format!("{inputs} columns are no whole blocks")))?;
        Ok(LinearMap(Projection::quantised(packed, None, true, half)?))
    }

    /// (l, in) -> (l, out)
    fn forward(&self, x: &Tensor) -> Tensor {
        let phase = if x.dims()[0] == 1 { Phase::Decode } else { Phase::Prefill };
        done(self.0.forward(x, phase))
    }
}

fn attention(criterion: &mut Criterion<Flops>) -> Result<()> {
    for (shape, (in_dtype, dtype)) in ATTENTION.iter().flat_map(|shape| FORMATS.map(|format| (shape, format)))
    {
        let mut group = group(criterion, &format!("attention{in_dtype}/{}", shape.model));
        for queries in QUERIES {
            for keys in KEYS {
                let Inputs { q, k, v, site } = Inputs::new(shape, queries, keys)?;
                let (q, k, v) = (q.to_dtype(dtype)?, k.to_dtype(dtype)?, v.to_dtype(dtype)?);
                bench(&mut group, &format!("{queries} of {keys}"), shape.flop(queries, keys), || {
                    done(attention::run(&q, &k, &v, &site, &mut NoObserver))
                });
            }
        }
    }
    Ok(())
}

/// Masses of a question's rows. Half of attention's operations: no product with values.
fn observer(criterion: &mut Criterion<Flops>) -> Result<()> {
    for shape in &ATTENTION {
        let mut group = group(criterion, &format!("observer/{}", shape.model));
        for keys in KEYS {
            let Inputs { q, k, site, .. } = Inputs::new(shape, OBSERVED_ROWS, keys)?;
            let spans = (0..OBSERVED_SPANS).map(|i| {
                let border = |i| i * keys / OBSERVED_SPANS;
                Span::new(format!("session[{i}]"), border(i)..border(i + 1))
            });
            let rows = vec![Span::new("query", keys - OBSERVED_ROWS..keys)];
            let mut observer = done(MassObserver::new(rows, spans.collect(), keys));
            let flop = shape.flop(OBSERVED_ROWS, keys) / 2;
            bench(&mut group, &format!("{OBSERVED_ROWS} of {keys}"), flop, || {
                done(observer.observe(Event::Attention { site: &site, q: &q, k: &k, v: &k }));
            });
        }
    }
    Ok(())
}

/// One decode query, with and without segment sums: the cost of recording a generated token.
fn recording(criterion: &mut Criterion<Flops>) -> Result<()> {
    for shape in &ATTENTION {
        let mut group = group(criterion, &format!("recording/{}", shape.model));
        for keys in KEYS {
            let Inputs { q, k, v, site } = Inputs::new(shape, 1, keys)?;
            let borders = (0..=OBSERVED_SPANS).map(|i| i * keys / OBSERVED_SPANS).collect();
            let mut recorded = Borders(borders);
            let flop = shape.flop(1, keys);
            bench(&mut group, &format!("plain, 1 of {keys}"), flop, || {
                done(attention::run(&q, &k, &v, &site, &mut NoObserver))
            });
            bench(&mut group, &format!("recorded, 1 of {keys}"), flop, || {
                done(attention::run(&q, &k, &v, &site, &mut recorded))
            });
        }
    }
    Ok(())
}

struct Borders(Vec<usize>);

impl Observer for Borders {
    fn wants(&self, _point: Point<'_>) -> Wanted<'_> {
        Wanted { segments: Some(&self.0), ..Wanted::default() }
    }

    fn observe(&mut self, _event: Event<'_>) -> Result<()> {
        Ok(())
    }
}

/// Inputs of the last `queries` of `keys` positions, with the cached keys.
struct Inputs {
    /// (queries, heads, head_dim)
    q: Tensor,
    /// (kv_heads, keys kept, head_dim)
    k: Tensor,
    v: Tensor,
    site: Site,
}

impl Inputs {
    fn new(shape: &AttentionShape, queries: usize, keys: usize) -> Result<Self> {
        let &AttentionShape { heads, kv_heads, head_dim, window, .. } = shape;
        let first_key = shape.first_key(queries, keys);
        Ok(Inputs {
            q: random(&[queries, heads, head_dim])?,
            k: random(&[kv_heads, keys - first_key, head_dim])?,
            v: random(&[kv_heads, keys - first_key, head_dim])?,
            site: Site {
                layer: 0,
                offset: keys - queries,
                first_key,
                scale: (head_dim as f32).powf(-0.5),
                window,
                softcap: None,
                sinks: None,
                holes: Default::default(),
                kernel: AttentionKernel::Auto,
            },
        })
    }
}

fn group<'a>(criterion: &'a mut Criterion<Flops>, name: &str) -> BenchmarkGroup<'a, Flops> {
    let mut group = criterion.benchmark_group(name);
    // Equal iterations per sample: slow shapes are not run 55 times.
    group.sampling_mode(SamplingMode::Flat);
    group
}

fn bench<T>(group: &mut BenchmarkGroup<'_, Flops>, name: &str, flop: u64, mut run: impl FnMut() -> T) {
    group.throughput(Throughput::Elements(flop));
    group.bench_function(name, |b| b.iter(&mut run));
}

fn random(shape: &[usize]) -> Result<Tensor> {
    Tensor::randn(0f32, 1f32, shape, &Device::Cpu)
}

fn done<T, E: std::fmt::Display>(result: std::result::Result<T, E>) -> T {
    result.unwrap_or_else(|error| panic!("{error}"))
}
