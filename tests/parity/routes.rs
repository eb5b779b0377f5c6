//! Information-flow routes against FlashTrace's own code (`tests/reference/flashtrace_reference.py`), and what layers show of themselves.

use candle_core::{DType, Device, Result, Tensor};
use palimpsest_core::attention::{self, Event, NoObserver, Observer, Point, RowWeights, Wanted};
use palimpsest_core::engine::{Branch, Engine, Observe, Request, RequestError, Task};
use safetensors::SafeTensors;

use super::{TINY, apart, engine, fixture, numbers, session};

/// Shares of `rows`, of a prompt that is read in chunks after the first `cut` tokens.
pub fn routes(
    engine: &Engine,
    tokens: &[u32],
    cut: usize,
    rows: RowWeights,
) -> std::result::Result<Vec<f64>, RequestError> {
    let observe = Observe { routes: Some(rows), softmax_only: true, ..Observe::default() };
    let branch =
        Branch { tokens: tokens[cut..].to_vec(), observe, tasks: vec![Task::Read], ..Branch::default() };
    let request = Request { prefix: tokens[..cut].into(), branches: vec![branch], ..Request::default() };
    let measured = session(engine, tokens.len() + 8, (1, 8)).answer(request, &mut |_| true)?;
    Ok(measured.routes.unwrap())
}

fn off(found: &[f64], expected: &Tensor) -> f32 {
    let found: Vec<f32> = found.iter().map(|x| *x as f32).collect();
    apart(&found, &numbers(expected))
}

#[test]
fn routes_from_answers_and_thoughts_are_those_of_flashtrace() {
    let path = fixture("flashtrace.safetensors");
    let bytes = std::fs::read(&path).unwrap();
    let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
    let metadata = header.metadata().clone().unwrap();
    let [prompt, thought] = ["prompt", "thought"].map(|key| metadata[key].parse::<usize>().unwrap());
    let tensors = candle_core::safetensors::load(&path, &Device::Cpu).unwrap();
    for name in ["llama-tiny", "qwen3-tiny", "qwen3-moe-tiny"] {
        let of = |key: &str| &tensors[&format!("{name}.{key}")];
        let tokens: Vec<u32> = of("tokens").to_vec1().unwrap();
        let left_out: Vec<u8> = of("left_out").to_vec1().unwrap();
        let counts: Vec<f64> = left_out.iter().map(|out| 1.0 - f64::from(*out)).collect();
        let counted = |shares: Vec<f64>| -> Vec<f64> {
            shares.iter().zip(&counts).map(|(share, counts)| share * counts).collect()
        };
        let answer = prompt + thought;
        for (chunk, cut) in [(512, 0), (10, 50)] {
            let engine = engine(&fixture(name), chunk);
            let all = |weights: &[f64], first| {
                routes(&engine, &tokens, cut, RowWeights { first, weights: weights.to_vec() }).unwrap()
            };
            let span = all(&vec![1.0; tokens.len() - answer], answer);
            let direct = counted(all(&counts[answer..], answer));
            let through = counted(all(&direct[prompt..], prompt));
            let passed = direct[prompt..].iter().sum::<f64>() / direct.iter().sum::<f64>();
            let scores: Vec<f64> = (0..prompt).map(|at| direct[at] + passed * through[at]).collect();
            let hop = |nth| of("hops").get(nth).unwrap();
            let worst = [
                off(&span, of("span")),
                off(&direct, &hop(0)),
                off(&through, &hop(1)),
                off(&scores, of("scores")),
            ];
            assert!(worst.iter().all(|off| *off < 1e-5), "{name}, chunks of {chunk}: off by {worst:?}");
            let earlier = all(&vec![1.0; tokens.len() - answer], answer - 1);
            assert!(off(&earlier, of("span")) > 1e-3 && off(&direct, &hop(1)) > 1e-3, "{name}");
        }
    }
}

/// Holds the residual stream after each layer's attention against that before it and what the heads write.
#[derive(Default)]
struct Sums {
    /// Output of the layer's attention, (l, heads, head_dim).
    out: Option<Tensor>,
    layers: usize,
    worst: f32,
}

impl Observer for Sums {
    fn wants(&self, point: Point<'_>) -> Wanted<'_> {
        Wanted { residual: true, ..Wanted::inputs(matches!(point, Point::Attention(_))) }
    }

    fn observe(&mut self, event: Event<'_>) -> Result<()> {
        match event {
            Event::Attention { site, q, k, v } => {
                self.out = Some(attention::run(q, k, v, site, &mut NoObserver)?.to_dtype(DType::F32)?);
            }
            Event::Residual(of) => {
                let out = self.out.take().unwrap().transpose(0, 1)?.contiguous()?;
                let mut written = out.matmul(of.outputs)?.sum(0)?;
                if let Some(scales) = of.scales {
                    written = (written * scales)?;
                }
                self.worst = self.worst.max(apart(&numbers(&(of.before + written)?), &numbers(of.after)));
                self.layers += 1;
            }
            _ => {}
        }
        Ok(())
    }
}

#[test]
fn what_heads_write_adds_up_to_the_residual_stream_after_attention() {
    // gpt-oss and the ungated LFM3 have a bias behind their heads, Qwen3.5 and LFM3 gate them.
    let other = ["gpt-oss", "qwen35", "qwen3-next", "lfm3"];
    let plain = TINY.iter().filter(|name| !other.iter().any(|it| name.contains(it)));
    for name in plain {
        let engine = engine(&fixture(name), 64);
        let mut cache = engine.decoder().cache(64).unwrap();
        let tokens: Vec<u32> = (0..60).map(|i| 3 + (i * 7919 % 61) as u32).collect();
        let mut sums = Sums::default();
        engine.fill_cache(&mut cache, &tokens, &mut sums, &mut |_| true).unwrap();
        let softmax = engine.decoder().spec().layers.iter().filter(|layer| layer.attention().is_some());
        assert_eq!(sums.layers, softmax.count(), "{name}");
        assert!(sums.worst < 1e-4, "{name}: off by {:e}", sums.worst);
    }
}

#[test]
fn routes_that_cannot_be_followed_are_refused_by_name() {
    let tokens: Vec<u32> = (3..40).collect();
    let rows = |first| RowWeights { first, weights: vec![1.0; 4] };
    let refused = |name: &str, first| {
        routes(&engine(&fixture(name), 64), &tokens, 0, rows(first)).unwrap_err().to_string()
    };
    assert!(refused("llama-tiny", 34).contains("34..38"));
    assert!(refused("qwen35-text-tiny", 30).contains("gated"));
}
