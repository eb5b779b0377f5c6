//! CPU kernels against the definition.

use candle_core::{DType, Device, Tensor};
use palimpsest_core::attention::{Hole, Holes, MassObserver, Masses, NoObserver, Site, run};
use palimpsest_core::span::Span;
use proptest::prelude::*;

use super::{Inputs, apart, bits, numbers, sinks, sinks_of, site};

/// 16 f32 roundings of values of order 1.
const TOLERANCE: f64 = 1e-5;

fn check(l: usize, offset: usize, heads: (usize, usize), d: usize, change: impl FnOnce(&mut Site)) {
    check_within(TOLERANCE, l, offset, heads, d, change);
}

fn check_within(
    tolerance: f64,
    l: usize,
    offset: usize,
    heads: (usize, usize),
    d: usize,
    change: impl FnOnce(&mut Site),
) {
    let inputs = Inputs::new(l, offset, heads, d);
    let mut site = site(offset, d);
    change(&mut site);
    let [q, k, v] = inputs.tensors();
    let out = numbers(&run(&q, &k, &v, &site, &mut NoObserver).unwrap());
    let difference = apart(&out, &inputs.output(&site));
    assert!(difference < tolerance, "l {l}, heads {heads:?}, head_dim {d}, {site:?}: off by {difference:e}");
}

#[test]
fn attention_equals_its_definition_for_every_length_grouping_and_head_width() {
    let lengths =
        [(1, 0), (2, 0), (5, 0), (64, 0), (193, 0), (700, 0), (1, 511), (1, 512), (5, 600), (64, 1000)];
    let shapes = [((1, 1), 8), ((3, 1), 64), ((9, 3), 12), ((8, 2), 80)];
    for (l, offset) in lengths {
        for (heads, d) in shapes {
            check(l, offset, heads, d, |_| {});
        }
    }
}

#[test]
fn long_contexts_span_many_key_blocks_and_key_splits() {
    for (l, offset) in [(1, 3071), (1, 3072), (2, 2047), (4, 4200), (5, 3500), (200, 2900)] {
        check(l, offset, (9, 3), 64, |_| {});
        check(l, offset, (8, 2), 12, |site| site.window = Some(1500));
    }
}

#[test]
fn windows_shorter_and_longer_than_the_prompt_are_exact() {
    for window in [1, 7, 512, 100_000] {
        for (l, offset) in [(1, 0), (5, 0), (193, 0), (700, 0), (1, 2500), (3, 1030), (64, 1400)] {
            check(l, offset, (9, 3), 12, |site| site.window = Some(window));
        }
    }
}

#[test]
fn soft_caps_and_sinks_are_exact_alone_and_together() {
    for (l, offset) in [(1, 0), (193, 0), (2, 1400), (64, 700)] {
        check(l, offset, (8, 2), 12, |site| site.softcap = Some(1.5));
        check(l, offset, (8, 2), 12, |site| site.sinks = sinks(8));
        check(l, offset, (8, 2), 12, |site| {
            site.softcap = Some(30.0);
            site.sinks = sinks(8);
            site.window = Some(7);
        });
    }
}

#[test]
fn a_sink_far_above_or_below_all_scores_takes_all_or_nothing() {
    check(5, 3, (2, 1), 8, |site| site.sinks = sinks_of(vec![200.0, -200.0]));
}

#[test]
fn scores_of_thousands_do_not_overflow() {
    // Scores are up to about 2,000, where f32 rounds by 1e-4, which changes a weight by as much.
    check_within(1e-3, 70, 600, (3, 1), 64, |site| site.scale = 40.0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn attention_equals_its_definition_for_random_shapes(
        l in 1usize..80,
        offset in prop_oneof![Just(0usize), 1usize..1300],
        group in 1usize..5,
        kv_heads in 1usize..4,
        half in 1usize..40,
        window in prop::option::of(1usize..900),
        softcap in prop::option::of(0.5f32..60.0),
        with_sinks: bool,
    ) {
        let heads = group * kv_heads;
        check(l, offset, (heads, kv_heads), 2 * half, |site| {
            site.window = window;
            site.softcap = softcap;
            site.sinks = if with_sinks { sinks(heads) } else { None };
        });
    }
}

#[test]
fn half_precision_is_within_its_own_rounding() {
    for (dtype, tolerance) in [(DType::BF16, 4e-2), (DType::F16, 5e-3)] {
        for (l, offset) in [(1, 40), (64, 0), (600, 100)] {
            let mut inputs = Inputs::new(l, offset, (9, 3), 64);
            let [q, k, v] = inputs.tensors().map(|t| t.to_dtype(dtype).unwrap());
            let mut site = site(offset, 64);
            site.window = Some(300);
            site.sinks = sinks(9);
            let out = run(&q, &k, &v, &site, &mut NoObserver).unwrap();
            assert_eq!(out.dtype(), dtype);
            // The definition gets the same rounded inputs as the kernel.
            let rounded = |t: &Tensor| numbers(&t.to_dtype(DType::F32).unwrap());
            (inputs.q, inputs.k, inputs.v) = (rounded(&q), rounded(&k), rounded(&v));
            let difference = apart(&rounded(&out), &inputs.output(&site));
            assert!(difference < tolerance, "{dtype:?} {l} {offset}: off by {difference:e}");
        }
    }
}

#[test]
fn views_of_a_larger_cache_give_the_same_bits_as_tensors_of_their_own() {
    let inputs = Inputs::new(30, 200, (9, 3), 12);
    let [q, k, v] = inputs.tensors();
    let in_cache = |t: &Tensor| {
        let cache = Tensor::full(f32::NAN, (3, 500, 12), &Device::Cpu).unwrap();
        cache.slice_set(t, 1, 0).unwrap();
        cache.narrow(1, 0, 230).unwrap()
    };
    let site = site(200, 12);
    let own = run(&q, &k, &v, &site, &mut NoObserver).unwrap();
    let viewed = run(&q, &in_cache(&k), &in_cache(&v), &site, &mut NoObserver).unwrap();
    assert_eq!(bits(&own), bits(&viewed));
}

#[test]
fn one_thread_equals_two_bit_for_bit_and_so_does_an_observer_or_none() {
    let pool = |n| rayon::ThreadPoolBuilder::new().num_threads(n).build().unwrap();
    let (one, two) = (pool(1), pool(2));
    for (l, offset) in [(1, 3000), (4, 2048), (300, 700)] {
        let inputs = Inputs::new(l, offset, (9, 3), 64);
        let [q, k, v] = inputs.tensors();
        let mut site = site(offset, 64);
        site.sinks = sinks(9);
        let span = Span::new("all", 0..offset + l);
        let observed = || {
            let rows = Span::new("rows", offset..offset + l);
            let mut observer = MassObserver::new(vec![rows], vec![span.clone()], offset + l).unwrap();
            let out = run(&q, &k, &v, &site, &mut observer).unwrap();
            let Masses { mass, sink, .. } = observer.finish().unwrap();
            let masses: Vec<u32> = mass.iter().chain(sink.iter().flatten()).map(|x| x.to_bits()).collect();
            (bits(&out), masses)
        };
        let (with_one, with_two) = (one.install(observed), two.install(observed));
        assert_eq!(with_one, with_two, "{l} after {offset}");
        let unobserved = two.install(|| run(&q, &k, &v, &site, &mut NoObserver).unwrap());
        assert_eq!(bits(&unobserved), with_one.0, "{l} after {offset}");
    }
}

#[test]
fn nan_in_queries_or_keys_reaches_every_row_that_sees_it_and_no_other() {
    let (l, offset, heads, d) = (70, 1100, 4, 8);
    for at in [offset + 3, 513, 0] {
        let mut inputs = Inputs::new(l, offset, (heads, 2), d);
        // Key `at` of the second KV head, which heads 2 and 3 read.
        inputs.k[(offset + l + at) * d] = f32::NAN;
        let [q, k, v] = inputs.tensors();
        let out = numbers(&run(&q, &k, &v, &site(offset, d), &mut NoObserver).unwrap());
        for (i, row) in out.chunks_exact(heads * d).enumerate() {
            for (h, head) in row.chunks_exact(d).enumerate() {
                let sees = h >= 2 && offset + i >= at;
                assert!(head.iter().all(|x| x.is_nan() == sees), "key {at}, row {i}, head {h}: {head:?}");
            }
        }
    }
    let mut inputs = Inputs::new(l, offset, (heads, 2), d);
    inputs.q[(5 * heads + 1) * d + 2] = f32::NAN;
    let [q, k, v] = inputs.tensors();
    let out = numbers(&run(&q, &k, &v, &site(offset, d), &mut NoObserver).unwrap());
    for (at, head) in out.chunks_exact(d).enumerate() {
        assert!(head.iter().all(|x| x.is_nan() == (at == 5 * heads + 1)), "row {at}");
    }
}

#[test]
fn tensors_and_settings_that_do_not_fit_together_are_refused_with_their_numbers() {
    let inputs = Inputs::new(4, 6, (6, 2), 8);
    let [q, k, v] = inputs.tensors();
    let refusal = |q: &Tensor, k: &Tensor, v: &Tensor, change: &dyn Fn(&mut Site)| {
        let mut site = site(6, 8);
        change(&mut site);
        run(q, k, v, &site, &mut NoObserver).unwrap_err().to_string()
    };
    let message = refusal(&q, &k, &v, &|site| site.offset = 7);
    assert!(message.contains("10") && message.contains("11"), "{message}");
    let message = refusal(&q, &k, &v, &|site| site.sinks = sinks_of(vec![0.0; 5]));
    assert!(message.contains("5 sinks") && message.contains('6'), "{message}");
    let holes = || vec![Hole { rows: 7..9, keys: 3..20 }, Hole { rows: 8..9, keys: 0..3 }];
    let message = refusal(&q, &k, &v, &|site| site.holes = Holes::new(holes()));
    assert!(message.contains("row 8") && message.contains("layer 0 (0..9)"), "{message}");
    let message = refusal(&q, &k, &v, &|site| site.window = Some(0));
    assert!(message.contains("window"), "{message}");
    let narrow = k.narrow(2, 0, 4).unwrap().contiguous().unwrap();
    let message = refusal(&q, &narrow, &v, &|_| {});
    assert!(message.contains('8') && message.contains('4'), "{message}");
    let message = refusal(&q, &k, &v.narrow(1, 0, 9).unwrap(), &|_| {});
    assert!(message.contains('9'), "{message}");
    let four = q.narrow(1, 0, 5).unwrap();
    let message = refusal(&four, &k, &v, &|_| {});
    assert!(message.contains("5 query heads"), "{message}");
    let none = q.narrow(0, 0, 0).unwrap();
    let message = refusal(&none, &k.narrow(1, 0, 6).unwrap(), &v.narrow(1, 0, 6).unwrap(), &|_| {});
    assert!(message.contains("no rows"), "{message}");
}
