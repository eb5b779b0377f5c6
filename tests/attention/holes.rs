//! Hidden keys: every kernel leaves out exactly these.

use candle_core::{DType, Device, Tensor};
use palimpsest_core::attention::{
    Event, Hole, Holes, MassObserver, Masses, NO_KEY, NoObserver, Observer, Point, SPLIT_K, Site, TopKeys,
    Wanted, run,
};
use palimpsest_core::span::Span;
use proptest::prelude::*;

use super::{Inputs, apart, bits, numbers, run_branches, sinks, site};

const TOLERANCE: f64 = 1e-5;

/// Holes of every kind for rows `offset..offset + l`: for some rows, for all later rows, over whole and partial key blocks, overlapping,
/// without effect. The first key stays visible.
fn holes(l: usize, offset: usize) -> Vec<Hole> {
    let end = offset + l;
    vec![
        Hole { rows: offset + l / 2..end + 5, keys: 1..(end / 2).max(1) },
        Hole { rows: offset..usize::MAX, keys: (end / 3).max(1)..end / 3 + 40 },
        Hole { rows: offset + 1..offset + 2, keys: (end / 4).max(1)..end },
        Hole { rows: offset..end, keys: end + 3..end + 9 },
        Hole { rows: 0..offset, keys: 0..end },
        Hole { rows: offset..end, keys: 7..7 },
    ]
}

fn tensor(values: &[f32], shape: (usize, usize, usize)) -> Tensor {
    Tensor::from_slice(values, shape, &Device::Cpu).unwrap()
}

/// Checks the output, the prefill observer's sums over spans, and for one row also the decode kernel's, against the definition.
fn check(l: usize, offset: usize, heads: (usize, usize), d: usize, change: impl FnOnce(&mut Site)) {
    let inputs = Inputs::new(l, offset, heads, d);
    let (mut site, end) = (site(offset, d), offset + l);
    change(&mut site);
    let [q, k, v] = inputs.tensors();
    let at = format!("l {l}, heads {heads:?}, head_dim {d}, {site:?}");
    let out = run(&q, &k, &v, &site, &mut NoObserver).unwrap();
    let difference = apart(&numbers(&out), &inputs.output(&site));
    assert!(difference < TOLERANCE, "{at}: off by {difference:e}");

    let spans =
        [Span::new("a", 0..(end / 3 + 7).min(end)), Span::new("b", end / 4..end), Span::new("all", 0..end)];
    let mut observer = MassObserver::new(vec![Span::new("rows", offset..end)], spans.to_vec(), end).unwrap();
    let observed = run(&q, &k, &v, &site, &mut observer).unwrap();
    assert_eq!(bits(&observed), bits(&out), "{at}");
    let Masses { mass, sink, .. } = observer.finish().unwrap();
    for h in 0..heads.0 {
        let (mut paid, mut to_sink) = ([0.0; 3], 0.0);
        for i in 0..l {
            let (weights, sink) = inputs.weights(&site, i, h);
            for (paid, span) in paid.iter_mut().zip(&spans) {
                *paid += weights[span.range()].iter().sum::<f64>() / l as f64;
            }
            to_sink += sink / l as f64;
        }
        for (s, paid) in paid.iter().enumerate() {
            let found = f64::from(mass[[0, h, 0, s]]);
            assert!((found - paid).abs() < TOLERANCE, "{at}: head {h}, span {s} {found}, not {paid}");
        }
        if let Some(sink) = &sink {
            assert!((f64::from(sink[[0, h, 0]]) - to_sink).abs() < TOLERANCE, "{at}: sink of head {h}");
        }
    }
}

#[test]
fn hidden_keys_are_left_out_for_every_length_grouping_and_head_width() {
    for (l, offset) in
        [(2, 0), (5, 40), (64, 0), (193, 60), (700, 0), (1, 511), (1, 1300), (4, 2050), (64, 1000)]
    {
        for (heads, d) in [((1, 1), 8), ((9, 3), 12), ((8, 2), 64)] {
            check(l, offset, heads, d, |site| site.holes = Holes::new(holes(l, offset)));
        }
    }
}

#[test]
fn windows_soft_caps_and_sinks_hold_for_what_is_not_hidden() {
    for (l, offset) in [(5, 40), (193, 60), (1, 1300), (64, 1000)] {
        let holes = || Holes::new(holes(l, offset));
        // A window may leave a row with hidden keys only, so these cases have a sink.
        for window in [None, Some(9), Some(300)] {
            check(l, offset, (8, 2), 12, |site| {
                (site.holes, site.sinks, site.window) = (holes(), sinks(8), window);
            });
        }
        check(l, offset, (4, 1), 12, |site| (site.holes, site.softcap) = (holes(), Some(1.5)));
    }
}

#[test]
fn rows_that_see_nothing_but_a_sink_pay_it_everything() {
    for dtype in [DType::F32, DType::BF16] {
        for (l, offset) in [(1, 600), (6, 300)] {
            let inputs = Inputs::new(l, offset, (4, 2), 8);
            let mut site = site(offset, 8);
            (site.sinks, site.holes) =
                (sinks(4), Holes::new(vec![Hole { rows: 0..usize::MAX, keys: 0..9999 }]));
            let [q, k, v] = inputs.tensors().map(|t| t.to_dtype(dtype).unwrap());
            let spans = vec![Span::new("all", 0..offset + l)];
            let rows = vec![Span::new("rows", offset..offset + l)];
            let mut observer = MassObserver::new(rows, spans, offset + l).unwrap();
            let out = run(&q, &k, &v, &site, &mut observer).unwrap().to_dtype(DType::F32).unwrap();
            assert!(numbers(&out).iter().all(|x| *x == 0.0), "{dtype:?} {l}");
            let Masses { mass, sink, .. } = observer.finish().unwrap();
            assert!(
                mass.iter().all(|x| *x == 0.0) && sink.unwrap().iter().all(|x| *x == 1.0),
                "{dtype:?} {l}"
            );
        }
    }
}

#[test]
fn holes_without_effect_change_no_bit() {
    for (l, offset) in [(1, 900), (64, 300)] {
        let [q, k, v] = Inputs::new(l, offset, (9, 3), 12).tensors();
        let plain = site(offset, 12);
        let end = offset + l;
        let idle = vec![
            Hole { rows: 0..offset, keys: 0..end },
            Hole { rows: offset..end, keys: end..end + 50 },
            Hole { rows: end..usize::MAX, keys: 0..5 },
        ];
        let idle = Site { holes: Holes::new(idle), ..plain.clone() };
        let of = |site: &Site| bits(&run(&q, &k, &v, site, &mut NoObserver).unwrap());
        assert_eq!(of(&plain), of(&idle), "{l} after {offset}");
    }
}

#[test]
fn half_precision_leaves_hidden_keys_out_too() {
    for (l, offset) in [(1, 40), (64, 0), (600, 100)] {
        let mut inputs = Inputs::new(l, offset, (9, 3), 64);
        let [q, k, v] = inputs.tensors().map(|t| t.to_dtype(DType::F16).unwrap());
        let mut site = site(offset, 64);
        (site.window, site.sinks, site.holes) = (Some(300), sinks(9), Holes::new(holes(l, offset)));
        let out = run(&q, &k, &v, &site, &mut NoObserver).unwrap();
        let rounded = |t: &Tensor| numbers(&t.to_dtype(DType::F32).unwrap());
        (inputs.q, inputs.k, inputs.v) = (rounded(&q), rounded(&k), rounded(&v));
        let difference = apart(&rounded(&out), &inputs.output(&site));
        assert!(difference < 5e-3, "{l} {offset}: off by {difference:e}");
    }
}

/// Keeps the sums of one row's weights.
struct Sums(Vec<usize>, Option<Vec<f64>>);

impl Observer for Sums {
    fn wants(&self, _point: Point<'_>) -> Wanted<'_> {
        Wanted { segments: Some(&self.0), ..Wanted::default() }
    }

    fn observe(&mut self, event: Event<'_>) -> candle_core::Result<()> {
        let Event::Weights { sums, .. } = event else { panic!("{event:?} was not wanted") };
        self.1 = Some(sums.to_dtype(DType::F64)?.flatten_all()?.to_vec1()?);
        Ok(())
    }
}

#[test]
fn a_decoded_rows_sums_and_each_branchs_leave_out_what_is_hidden_from_it() {
    let ((heads, kv_heads), d) = ((4, 2), 16);
    for dtype in [DType::F32, DType::BF16] {
        let (out_off, sums_off) = if dtype == DType::F32 { (TOLERANCE, 1e-5) } else { (6e-2, 2e-3) };
        for (base, tails) in
            [(0, vec![3, 1, 9]), (SPLIT_K, vec![1, 40, 300]), (3 * SPLIT_K, vec![257, 2, 30])]
        {
            for (window, with_sinks) in [(None, false), (Some(290), true), (None, true)] {
                // One sequence per branch; all share a prefix.
                let longest = base + 300;
                let mut all = Inputs::new(tails.len(), longest, (heads, kv_heads), d);
                let round = |x: &mut Vec<f32>| {
                    let t = Tensor::from_slice(x, x.len(), &Device::Cpu).unwrap().to_dtype(dtype).unwrap();
                    *x = numbers(&t.to_dtype(DType::F32).unwrap());
                };
                [&mut all.q, &mut all.k, &mut all.v].into_iter().for_each(round);
                let mut plain = site(base, d);
                (plain.window, plain.sinks) = (window, if with_sinks { sinks(heads) } else { None });
                let of_branch = |nth: usize, l: usize| {
                    let position = base + l - 1;
                    Holes::new(match nth {
                        // A hole across the border of shared and own keys; none; several, one over the row itself.
                        0 => vec![Hole { rows: position..usize::MAX, keys: 1..base + l / 2 }],
                        1 => vec![Hole { rows: 0..position, keys: 0..9 }],
                        _ => vec![
                            Hole { rows: position..position + 1, keys: base.max(2)..position + 1 },
                            Hole { rows: 0..position + 1, keys: base / 2..base / 2 + 1 },
                        ],
                    })
                };
                // Part (kv_heads, from..to, d) of the whole; each branch has its own values after the prefix.
                let part = |x: &[f32], from: usize, l: usize| -> Vec<f32> {
                    let keys = longest + tails.len();
                    (0..kv_heads).flat_map(|h| x[(h * keys + from) * d..][..l * d].to_vec()).collect()
                };
                let keys = |x: &[f32], from: usize, l: usize| {
                    let shape = (kv_heads, l, d);
                    if l == 0 {
                        Tensor::zeros(shape, dtype, &Device::Cpu).unwrap()
                    } else {
                        tensor(&part(x, from, l), shape).to_dtype(dtype).unwrap()
                    }
                };
                let q = tensor(&all.q, (tails.len(), heads, d)).to_dtype(dtype).unwrap();
                let (k, v) = (keys(&all.k, 0, base), keys(&all.v, 0, base));
                let from = |nth: usize| base + nth;
                let own: Vec<_> = tails
                    .iter()
                    .enumerate()
                    .map(|(nth, &l)| (keys(&all.k, from(nth), l), keys(&all.v, from(nth), l)))
                    .collect();
                let holes: Vec<Holes> = tails.iter().enumerate().map(|(nth, &l)| of_branch(nth, l)).collect();
                let borders = |l: usize| {
                    let mut borders = [0, base / 2, base / 2 + 1, base + l / 2, base + l];
                    borders.sort_unstable();
                    borders.to_vec()
                };
                let mut sums: Vec<Sums> = tails.iter().map(|&l| Sums(borders(l), None)).collect();
                let observers: Vec<&mut dyn Observer> =
                    sums.iter_mut().map(|s| s as &mut dyn Observer).collect();
                let mut observers = observers;
                let found = run_branches(&q, &k, &v, &own, &plain, &holes, &mut observers).unwrap();
                for (nth, &l) in tails.iter().enumerate() {
                    let site = Site { offset: base + l - 1, holes: holes[nth].clone(), ..plain.clone() };
                    let join = |x: &[f32]| -> Vec<f32> {
                        let (a, b) = (part(x, 0, base), part(x, from(nth), l));
                        let of_head =
                            |h: usize| [&a[h * base * d..][..base * d], &b[h * l * d..][..l * d]].concat();
                        (0..kv_heads).flat_map(of_head).collect()
                    };
                    let mut alone = Inputs::new(1, base + l - 1, (heads, kv_heads), d);
                    alone.q = all.q[nth * heads * d..][..heads * d].to_vec();
                    (alone.k, alone.v) = (join(&all.k), join(&all.v));
                    let at = format!("{dtype:?}, {base} + {tails:?}, branch {nth}, {site:?}");
                    let of_row = numbers(&found.get(nth).unwrap().to_dtype(DType::F32).unwrap());
                    let off = apart(&of_row, &alone.output(&site));
                    assert!(off < out_off, "{at}: off by {off:e}");
                    let [q, k, v] = alone.tensors().map(|t| t.to_dtype(dtype).unwrap());
                    let mut single = Sums(borders(l), None);
                    run(&q, &k, &v, &site, &mut single).unwrap();
                    for (who, sums) in [("branches", &sums[nth]), ("one row", &single)] {
                        let sums = sums.1.as_ref().unwrap();
                        for h in 0..heads {
                            let (weights, sink) = alone.weights(&site, 0, h);
                            let row = &sums[h * borders(l).len()..][..borders(l).len()];
                            assert!((row[0] - sink).abs() < sums_off, "{at}, {who}: sink of head {h}");
                            for (s, ends) in borders(l).windows(2).enumerate() {
                                let paid: f64 = weights[ends[0]..ends[1]].iter().sum();
                                assert!(
                                    (row[1 + s] - paid).abs() < sums_off,
                                    "{at}, {who}: head {h}, segment {s}"
                                );
                            }
                        }
                    }
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn whatever_is_hidden_the_kernels_follow_the_definition(
        l in 1usize..80,
        offset in prop_oneof![Just(0usize), 1usize..900],
        group in 1usize..5,
        kv_heads in 1usize..4,
        half in 1usize..20,
        window in prop::option::of(1usize..900),
        softcap in prop::option::of(0.5f32..60.0),
        holes in prop::collection::vec((0usize..1000, 1usize..500, 0usize..1000, 1usize..700), 0..6),
    ) {
        let heads = group * kv_heads;
        check(l, offset, (heads, kv_heads), 2 * half, |site| {
            let hole = |(rows, r, keys, k): &(usize, usize, usize, usize)| {
                let (rows, keys) = (rows % (offset + l + 20), keys % (offset + l + 20));
                Hole { rows: rows..rows + r, keys: keys..keys + k }
            };
            site.holes = Holes::new(holes.iter().map(hole).collect());
            (site.window, site.softcap, site.sinks) = (window, softcap, sinks(heads));
        });
    }
}

#[test]
fn the_largest_keys_are_those_of_the_definition_and_none_where_a_row_sees_fewer() {
    const K: usize = 5;
    for (l, offset, window) in [(6, 0, None), (9, 70, Some(4)), (3, 400, None)] {
        let inputs = Inputs::new(l, offset, (6, 2), 8);
        let mut site = site(offset, 8);
        (site.window, site.sinks) = (window, sinks(6));
        site.holes = Holes::new(vec![Hole { rows: offset + 1..usize::MAX, keys: offset / 2..offset + 2 }]);
        let [q, k, v] = inputs.tensors();
        let rows = vec![offset + l - 1, offset, offset + 1];
        let mut top = TopKeys::new(K, rows.clone());
        run(&q, &k, &v, &site, &mut top).unwrap();
        let found = top.finish().unwrap();
        assert_eq!((found.shape, &found.layers), ([1, 6, 3, K], &vec![0]));
        let mut missing = 0;
        for h in 0..6 {
            for (nth, row) in rows.iter().enumerate() {
                let (weights, _) = inputs.weights(&site, row - offset, h);
                let mut order: Vec<usize> = (0..weights.len()).filter(|j| weights[*j] > 0.0).collect();
                order.sort_by(|a, b| weights[*b].total_cmp(&weights[*a]));
                for i in 0..K {
                    let at = (h * 3 + nth) * K + i;
                    let (key, weight) = (found.keys[at], f64::from(found.weights[at]));
                    match order.get(i) {
                        Some(&best) => {
                            assert_eq!(key as usize, best, "head {h}, row {row}, {i}");
                            assert!((weight - weights[best]).abs() < 1e-6);
                        }
                        None => {
                            assert_eq!((key, weight), (NO_KEY, 0.0));
                            missing += 1;
                        }
                    }
                }
            }
        }
        assert!(missing > 0 || offset == 400);
    }
}
