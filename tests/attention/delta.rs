//! Implicit attention of the gated delta rule and of Mamba-2 against their definitions.

use std::ops::Range;

use candle_core::{DType, Device, Tensor};
use palimpsest_core::attention::{
    DeltaMasses, DeltaSite, Event, MassObserver, Masses, Observer, Point, Rule, run,
};
use palimpsest_core::span::Span;

use super::{Inputs, apart, numbers, site};

const TOLERANCE: f64 = 1e-5;
const KEY_HEADS: usize = 2;
const VALUE_HEADS: usize = 6;
const KEY_DIM: usize = 12;

/// Inputs that a linear-attention layer passes to an observer.
struct Layer {
    rule: Rule,
    /// (l, key_heads, key_dim), unnormalised
    q: Tensor,
    k: Tensor,
    /// (l, value_heads)
    g: Tensor,
    beta: Tensor,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    /// Realistic decays and strengths.
    Plain,
    /// No decay, full writes, and three tokens in four share a key.
    RepeatedKeys,
    /// Log decays from -30 to -1e-6, strengths near 0 and near 1.
    Extreme,
    /// As `Plain`, by Mamba-2's rule.
    Mamba2,
}

const KINDS: [Kind; 4] = [Kind::Plain, Kind::RepeatedKeys, Kind::Extreme, Kind::Mamba2];

impl Layer {
    fn new(kind: Kind, l: usize) -> Self {
        // Reuses the attention inputs: their q is (l, heads, d) as well.
        let qk = Inputs::new(l, 0, (2 * KEY_HEADS, 1), KEY_DIM);
        let gb = Inputs::new(l, 7, (2 * VALUE_HEADS, 1), 1);
        let width = KEY_HEADS * KEY_DIM;
        let (mut q, mut k) = (Vec::<f32>::new(), Vec::<f32>::new());
        for row in qk.q.chunks_exact(2 * width) {
            q.extend(&row[..width]);
            let repeated = kind == Kind::RepeatedKeys && k.len() / width % 4 != 3;
            k.extend(if repeated { &qk.q[width..2 * width] } else { &row[width..] });
        }
        // In [-1, 1].
        let (mut g, mut beta) = (Vec::<f32>::new(), Vec::<f32>::new());
        for row in gb.q.chunks_exact(2 * VALUE_HEADS) {
            g.extend(row[..VALUE_HEADS].iter().map(|x| x / 3.0));
            beta.extend(row[VALUE_HEADS..].iter().map(|x| x / 3.0));
        }
        let each = |x: Vec<f32>, f: fn(f32) -> f32| x.into_iter().map(f).collect::<Vec<f32>>();
        let (g, beta) = match kind {
            Kind::Plain | Kind::Mamba2 => (each(g, |x| -0.1 * (x + 1.0)), each(beta, |x| 0.5 + 0.5 * x)),
            Kind::RepeatedKeys => (each(g, |_| 0.0), each(beta, |_| 1.0)),
            Kind::Extreme => (
                each(g, |x| match () {
                    () if x > 0.9 => -30.0,
                    () if x > -0.7 => -1e-6,
                    () => -3.0 * (x + 1.0),
                }),
                each(beta, |x| if x > 0.0 { 1.0 - 1e-6 } else { 1e-6 }),
            ),
        };
        let device = &Device::Cpu;
        Layer {
            rule: if kind == Kind::Mamba2 { Rule::Mamba2 } else { Rule::Delta },
            q: Tensor::from_vec(q, (l, KEY_HEADS, KEY_DIM), device).unwrap(),
            k: Tensor::from_vec(k, (l, KEY_HEADS, KEY_DIM), device).unwrap(),
            g: Tensor::from_vec(g, (l, VALUE_HEADS), device).unwrap(),
            beta: Tensor::from_vec(beta, (l, VALUE_HEADS), device).unwrap(),
        }
    }

    /// Shows the observer `tokens` in chunks of `chunk`, if it wants the layer.
    fn show(&self, layer: usize, chunk: usize, observer: &mut MassObserver, tokens: Range<usize>) {
        for start in tokens.clone().step_by(chunk) {
            let part = |x: &Tensor| x.narrow(0, start, chunk.min(tokens.end - start)).unwrap();
            let site = DeltaSite { layer, offset: start };
            if observer.wants(Point::LinearAttention(&site)).inputs {
                let [q, k, g, beta] = &[&self.q, &self.k, &self.g, &self.beta].map(part);
                observer
                    .observe(Event::LinearAttention { site: &site, rule: self.rule, q, k, g, beta })
                    .unwrap();
            }
        }
    }

    /// Reference: per value head and row of `rows`, the weights a_ts for s = 0..=t, in f64.
    fn weights(&self, rows: &Span) -> Vec<Vec<Vec<f64>>> {
        if self.rule == Rule::Mamba2 {
            return self.weights_of_mamba(rows);
        }
        let unit = |x: &Tensor| -> Vec<Vec<f64>> {
            let unit = |x: &[f32]| {
                let norm = (x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() + 1e-6).sqrt();
                x.iter().map(|x| f64::from(*x) / norm).collect()
            };
            numbers(x).chunks_exact(KEY_DIM).map(unit).collect()
        };
        let (q, k, g, beta) = (unit(&self.q), unit(&self.k), numbers(&self.g), numbers(&self.beta));
        let row = |h: usize, t: usize| {
            let kh = h / (VALUE_HEADS / KEY_HEADS);
            let scale = (KEY_DIM as f64).sqrt();
            let mut w: Vec<f64> = q[t * KEY_HEADS + kh].iter().map(|x| x / scale).collect();
            let mut weights = vec![0.0; t + 1];
            for s in (0..=t).rev() {
                let k = &k[s * KEY_HEADS + kh];
                let [g, b] = [&g, &beta].map(|x| f64::from(x[s * VALUE_HEADS + h]));
                weights[s] = b * k.iter().zip(&w).map(|(k, w)| k * w).sum::<f64>();
                for (w, k) in w.iter_mut().zip(k) {
                    *w = g.exp() * (*w - weights[s] * k);
                }
            }
            weights
        };
        (0..VALUE_HEADS).map(|h| rows.range().map(|t| row(h, t)).collect()).collect()
    }

    /// [`Layer::weights`] of Mamba-2: a_ts = b_s (k_s . q_t) e^(sum of g over s + 1..=t).
    fn weights_of_mamba(&self, rows: &Span) -> Vec<Vec<Vec<f64>>> {
        let [q, k, g, beta] = [&self.q, &self.k, &self.g, &self.beta].map(numbers);
        let weight = |h: usize, t: usize, s: usize| {
            let at = |token: usize| (token * KEY_HEADS + h / (VALUE_HEADS / KEY_HEADS)) * KEY_DIM;
            let (q, k) = (&q[at(t)..][..KEY_DIM], &k[at(s)..][..KEY_DIM]);
            let read: f64 = q.iter().zip(k).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum();
            let decay: f64 = (s + 1..=t).map(|m| f64::from(g[m * VALUE_HEADS + h])).sum();
            f64::from(beta[s * VALUE_HEADS + h]) * read * decay.exp()
        };
        let row = |h: usize, t: usize| (0..=t).map(|s| weight(h, t, s)).collect();
        (0..VALUE_HEADS).map(|h| rows.range().map(|t| row(h, t)).collect()).collect()
    }

    /// Reference signed sums and shares, each [heads][rows][keys].
    fn defined(&self, rows: &[Span], keys: &[Span]) -> (Vec<f64>, Vec<f64>) {
        let (mut signed, mut shares) = (Vec::new(), Vec::new());
        let of_all: Vec<_> = rows.iter().map(|row| self.weights(row)).collect();
        for h in 0..VALUE_HEADS {
            for (row, of_heads) in rows.iter().zip(&of_all) {
                let of_rows = &of_heads[h];
                for key in keys {
                    let within = |w: &[f64], f: fn(f64) -> f64| -> f64 {
                        w.iter()
                            .enumerate()
                            .filter(|(s, _)| key.range().contains(s))
                            .map(|(_, x)| f(*x))
                            .sum()
                    };
                    let mean = |f: &dyn Fn(&[f64]) -> f64| {
                        of_rows.iter().map(|w| f(w)).sum::<f64>() / row.len() as f64
                    };
                    signed.push(mean(&|w| within(w, |x| x)));
                    shares.push(mean(&|w| {
                        let total: f64 = w.iter().map(|x| x.abs()).sum();
                        if total == 0.0 { 0.0 } else { within(w, f64::abs) / total }
                    }));
                }
            }
        }
        (signed, shares)
    }
}

fn spans(ranges: &[(&str, Range<usize>)]) -> Vec<Span> {
    ranges.iter().map(|(label, range)| Span::new(*label, range.clone())).collect()
}

/// Key spans that tile, overlap, leave a gap, hold one token or are empty, over 300 tokens.
fn keys() -> Vec<Span> {
    spans(&[
        ("bos", 0..1),
        ("rest", 1..300),
        ("old", 40..101),
        ("overlap", 64..213),
        ("later", 250..290),
        ("nothing", 130..130),
        ("all", 0..300),
    ])
}

/// Row spans that overlap, cross chunk and block borders, start at the first token, and one single row.
fn rows() -> Vec<Span> {
    spans(&[("first", 0..5), ("new", 90..200), ("within", 120..131), ("one", 192..193), ("query", 280..300)])
}

fn measured(observer: &MassObserver) -> DeltaMasses {
    let Masses { delta, .. } = observer.finish().unwrap();
    delta.expect("a linear-attention layer was shown")
}

#[test]
fn implicit_attention_equals_its_backward_definition_at_every_chunk_size() {
    for kind in KINDS {
        let layer = Layer::new(kind, 300);
        let (signed, shares) = layer.defined(&rows(), &keys());
        // Mamba-2's weights are not bounded by 1: relative to the largest sum where that is above 1.
        let scale = signed.iter().fold(1.0f64, |most, sum| most.max(sum.abs()));
        for chunk in [1, 37, 64, 300] {
            let mut observer = MassObserver::new(rows(), keys(), 300).unwrap();
            layer.show(2, chunk, &mut observer, 0..300);
            let found = measured(&observer);
            assert_eq!(found.layers, [2]);
            assert_eq!(found.signed.shape(), [1, VALUE_HEADS, 5, 7]);
            let signed = apart(found.signed.as_slice().unwrap(), &signed) / scale;
            let share = apart(found.share.as_slice().unwrap(), &shares);
            assert!(
                signed < TOLERANCE && share < TOLERANCE,
                "{kind:?}, chunk {chunk}: off by {signed:e}, {share:e}"
            );
        }
    }
}

#[test]
fn the_cut_into_chunks_changes_no_bit() {
    let layer = Layer::new(Kind::Plain, 300);
    let [first, others @ ..] = [300, 1, 37, 128].map(|chunk| {
        let mut observer = MassObserver::new(rows(), keys(), 300).unwrap();
        layer.show(0, chunk, &mut observer, 0..300);
        measured(&observer)
    });
    assert!(others.iter().all(|other| *other == first));
}

#[test]
fn many_rows_and_many_keys_are_walked_in_parts_that_make_the_whole() {
    // More rows and keys than one block holds.
    let layer = Layer::new(Kind::Plain, 1700);
    let rows = spans(&[("rows", 1020..1690)]);
    let keys = spans(&[("a", 0..600), ("b", 600..1100), ("c", 1100..1700)]);
    let mut observer = MassObserver::new(rows.clone(), keys.clone(), 1700).unwrap();
    layer.show(0, 512, &mut observer, 0..1700);
    let found = measured(&observer);
    let (signed, shares) = layer.defined(&rows, &keys);
    assert!(apart(found.signed.as_slice().unwrap(), &signed) < TOLERANCE);
    assert!(apart(found.share.as_slice().unwrap(), &shares) < TOLERANCE);
}

#[test]
fn shares_of_key_spans_that_tile_sum_to_one_and_those_of_unseen_ones_are_zero_to_the_bit() {
    for kind in KINDS {
        let layer = Layer::new(kind, 300);
        let mut observer = MassObserver::new(rows(), keys(), 300).unwrap();
        layer.show(0, 100, &mut observer, 0..300);
        let DeltaMasses { signed, share, .. } = measured(&observer);
        for h in 0..VALUE_HEADS {
            for r in 0..5 {
                let whole = share[[0, h, r, 6]];
                assert!((whole - 1.0).abs() < 1e-5, "{kind:?}: {whole}");
                assert!((share[[0, h, r, 0]] + share[[0, h, r, 1]] - 1.0).abs() < 1e-5);
                assert_eq!(share[[0, h, r, 5]].to_bits(), 0, "an empty span");
            }
            for r in 0..4 {
                assert_eq!(share[[0, h, r, 4]].to_bits(), 0, "`later` lies after these rows");
                assert_eq!(signed[[0, h, r, 4]].to_bits(), 0);
            }
            assert!(share[[0, h, 4, 4]] > 0.0);
        }
    }
}

#[test]
fn spans_that_leave_tokens_out_have_shares_of_the_whole_all_the_same() {
    let layer = Layer::new(Kind::Plain, 150);
    let rows = spans(&[("query", 100..150)]);
    let keys = spans(&[("a", 10..20), ("b", 70..90)]);
    let mut observer = MassObserver::new(rows.clone(), keys.clone(), 150).unwrap();
    layer.show(0, 64, &mut observer, 0..150);
    let (_, shares) = layer.defined(&rows, &keys);
    assert!(shares.iter().all(|s| *s < 0.9), "most of it lies elsewhere");
    assert!(apart(measured(&observer).share.as_slice().unwrap(), &shares) < TOLERANCE);
}

#[test]
fn rows_without_any_weight_have_share_zero() {
    let mut layer = Layer::new(Kind::Plain, 70);
    layer.beta = layer.beta.zeros_like().unwrap();
    let mut observer = MassObserver::new(spans(&[("r", 60..70)]), spans(&[("k", 0..70)]), 70).unwrap();
    layer.show(0, 70, &mut observer, 0..70);
    let DeltaMasses { signed, share, .. } = measured(&observer);
    assert!(signed.iter().chain(&share).all(|x| *x == 0.0));
}

#[test]
fn keys_of_half_precision_models_are_kept_without_loss() {
    for dtype in [DType::BF16, DType::F16] {
        let mut layer = Layer::new(Kind::Plain, 300);
        let half = |x: &Tensor| x.to_dtype(dtype).unwrap();
        let (q, k) = (half(&layer.q), half(&layer.k));
        let full = |x: &Tensor| x.to_dtype(DType::F32).unwrap();
        (layer.q, layer.k) = (full(&q), full(&k));
        let (signed, shares) = layer.defined(&rows(), &keys());
        (layer.q, layer.k) = (q, k);
        let mut observer = MassObserver::new(rows(), keys(), 300).unwrap();
        layer.show(0, 100, &mut observer, 0..300);
        let found = measured(&observer);
        assert!(apart(found.signed.as_slice().unwrap(), &signed) < TOLERANCE, "{dtype:?}");
        assert!(apart(found.share.as_slice().unwrap(), &shares) < TOLERANCE, "{dtype:?}");
    }
}

/// Row spans and key spans of an observer.
type RowsAndKeys = (Vec<Span>, Vec<Span>);

/// Two continuations of one prefix of 200 tokens: key spans, rows of each, and rows shared in the prefix.
fn continuations() -> (Vec<Span>, [RowsAndKeys; 2]) {
    let before = spans(&[("bos", 0..1), ("old", 1..120), ("new", 120..190)]);
    let new = before[2].clone().with_role("new");
    let with = |after: &[(&str, Range<usize>)], query: Range<usize>| {
        let keys = before.iter().cloned().chain(spans(after)).collect();
        (vec![new.clone(), Span::new("query", query)], keys)
    };
    (
        vec![new.clone()],
        [
            with(&[("preamble", 190..210), ("query", 210..300)], 210..300),
            with(&[("preamble", 190..230), ("query", 230..280), ("template", 280..300)], 230..280),
        ],
    )
}

#[test]
fn a_fork_after_a_shared_prefix_equals_an_observer_that_saw_everything_bit_for_bit() {
    let layers = [Layer::new(Kind::Plain, 300), Layer::new(Kind::Extreme, 300)];
    let show = |observer: &mut MassObserver, tokens: Range<usize>| {
        for (i, layer) in layers.iter().enumerate() {
            layer.show(i, 64, observer, tokens.clone());
        }
    };
    let (before, probes) = continuations();
    let mut shared = MassObserver::new(before, probes[0].1.clone(), 300).unwrap().keeping(200);
    show(&mut shared, 0..200);
    for (rows, keys) in probes {
        let fresh = MassObserver::new(rows, keys, 300).unwrap();
        let mut whole = fresh.clone();
        show(&mut whole, 0..200);
        show(&mut whole, 200..300);
        let mut forked = shared.fork(&fresh, 200).expect("the spans before the border are the same");
        show(&mut forked, 200..300);
        assert_eq!(forked.finish().unwrap(), whole.finish().unwrap());
        assert_eq!(measured(&forked).layers, [0, 1]);
    }
}

#[test]
fn a_fork_that_needs_keys_that_were_not_kept_is_refused() {
    let layer = Layer::new(Kind::Plain, 300);
    let (before, [(rows, keys), _]) = continuations();
    let mut shared = MassObserver::new(before.clone(), keys.clone(), 300).unwrap();
    layer.show(0, 64, &mut shared, 0..200);
    let after = MassObserver::new(rows, keys.clone(), 300).unwrap();
    assert!(shared.fork(&after, 200).is_none());
    let nothing_after = MassObserver::new(before, keys, 300).unwrap();
    assert_eq!(shared.fork(&nothing_after, 200).unwrap().finish().unwrap(), shared.finish().unwrap());

    // An observer that starts in the middle of a prompt reports it.
    let mut late = after;
    let part = |x: &Tensor| x.narrow(0, 64, 64).unwrap();
    let site = DeltaSite { layer: 3, offset: 64 };
    let [q, k, g, beta] = &[&layer.q, &layer.k, &layer.g, &layer.beta].map(part);
    let error =
        late.observe(Event::LinearAttention { site: &site, rule: layer.rule, q, k, g, beta }).unwrap_err();
    assert!(error.to_string().contains("layer 3"), "{error}");
}

#[test]
fn nothing_is_wanted_after_the_last_row_and_what_is_wanted_ends_there() {
    let observer = MassObserver::new(spans(&[("r", 3..10)]), vec![], 300).unwrap();
    let wants = |observer: &MassObserver, offset| {
        observer.wants(Point::LinearAttention(&DeltaSite { offset, ..DeltaSite::default() })).inputs
    };
    assert!(wants(&observer, 0) && wants(&observer, 9) && !wants(&observer, 10));
    assert!(wants(&observer.keeping(20), 19));
    assert!(!wants(&MassObserver::new(vec![], vec![], 300).unwrap(), 0));
    // A chunk may extend past the last row.
    let mut whole = MassObserver::new(rows()[..2].to_vec(), keys(), 300).unwrap();
    let mut cut = whole.clone();
    let layer = Layer::new(Kind::Plain, 300);
    layer.show(0, 300, &mut whole, 0..300);
    layer.show(0, 10, &mut cut, 0..200);
    assert_eq!(whole.finish().unwrap(), cut.finish().unwrap());
}

#[test]
fn softmax_and_linear_layers_are_measured_side_by_side_and_either_may_be_missing() {
    let layer = Layer::new(Kind::Plain, 300);
    let mut observer = MassObserver::new(rows(), keys(), 300).unwrap();
    layer.show(0, 300, &mut observer, 0..300);
    let only_linear = observer.finish().unwrap();
    assert!(only_linear.layers.is_empty() && only_linear.mass.is_empty());

    let inputs = Inputs::new(300, 0, (4, 2), 8);
    let [q, k, v] = inputs.tensors();
    let at = palimpsest_core::attention::Site { layer: 1, ..site(0, 8) };
    run(&q, &k, &v, &at, &mut observer).unwrap();
    let both = observer.finish().unwrap();
    assert_eq!(both.layers, [1]);
    assert_eq!(both.delta, only_linear.delta);

    let mut observer = MassObserver::new(rows(), keys(), 300).unwrap();
    run(&q, &k, &v, &at, &mut observer).unwrap();
    let only_softmax = observer.finish().unwrap();
    assert_eq!((only_softmax.mass, only_softmax.delta), (both.mass, None));
}
