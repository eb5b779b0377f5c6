use std::ops::Range;

use candle_core::{DType, Tensor};
use ndarray::{Array3, Array4};
use palimpsest_core::attention::{MassObserver, Masses, Observer, Point, Site, SpanError, run};
use palimpsest_core::span::Span;

use super::{Inputs, apart, sinks, site};

const TOLERANCE: f64 = 1e-5;

/// Key spans that tile, overlap, leave a gap, hold one token or are empty, over 700 tokens.
fn keys() -> Vec<Span> {
    [
        ("bos", 0..1),
        ("rest", 1..700),
        ("old", 100..250),
        ("overlap", 180..513),
        ("later", 600..690),
        ("nothing", 300..300),
        ("all", 0..700),
    ]
    .map(|(label, range)| Span::new(label, range))
    .to_vec()
}

/// Row spans that cross chunk borders, and one of a single row.
fn rows() -> Vec<Span> {
    [("new", 190..460), ("one", 512..513), ("query", 680..700)]
        .map(|(label, range)| Span::new(label, range))
        .to_vec()
}

/// Shows the observer the query rows `rows` in chunks of `chunk`.
fn observe(
    inputs: &Inputs,
    whole: &Site,
    chunk: usize,
    observer: &mut MassObserver,
    rows: Range<usize>,
    dtype: DType,
) {
    let [q, k, v] = inputs.tensors().map(|t| t.to_dtype(dtype).unwrap());
    for start in rows.clone().step_by(chunk) {
        let l = chunk.min(rows.end - start);
        let site = Site { offset: start, ..whole.clone() };
        let upto = |t: &Tensor| t.narrow(1, 0, start + l).unwrap();
        run(&q.narrow(0, start, l).unwrap(), &upto(&k), &upto(&v), &site, observer).unwrap();
    }
}

fn measured(inputs: &Inputs, site: &Site, chunk: usize) -> (Array4<f32>, Option<Array3<f32>>) {
    let mut observer = MassObserver::new(rows(), keys(), 700).unwrap();
    observe(inputs, site, chunk, &mut observer, 0..inputs.l, DType::F32);
    let Masses { layers, mass, sink, .. } = observer.finish().unwrap();
    assert_eq!(layers, [0]);
    assert_eq!(mass.shape(), [1, inputs.heads, 3, 7]);
    (mass, sink)
}

/// Reference: [heads][rows][keys], and the sinks' share [heads][rows].
fn defined(inputs: &Inputs, site: &Site) -> (Vec<f64>, Vec<f64>) {
    let (mut masses, mut shares) = (Vec::new(), Vec::new());
    for h in 0..inputs.heads {
        for row in rows() {
            let of_rows: Vec<_> = row.range().map(|i| inputs.weights(site, i, h)).collect();
            for key in keys() {
                let sum: f64 = of_rows.iter().map(|(w, _)| w[key.range()].iter().sum::<f64>()).sum();
                masses.push(sum / row.len() as f64);
            }
            shares.push(of_rows.iter().map(|(_, sink)| sink).sum::<f64>() / row.len() as f64);
        }
    }
    (masses, shares)
}

fn sites(heads: usize) -> Vec<Site> {
    let plain = site(0, 12);
    vec![
        plain.clone(),
        Site { window: Some(1), ..plain.clone() },
        Site { window: Some(90), softcap: Some(2.0), ..plain.clone() },
        Site { sinks: sinks(heads), ..plain.clone() },
        Site { sinks: sinks(heads), window: Some(512), ..plain },
    ]
}

#[test]
fn masses_equal_their_definition_and_sum_to_one_less_the_sinks_share_at_every_chunk_size() {
    let inputs = Inputs::new(700, 0, (9, 3), 12);
    for site in sites(9) {
        let (expected, shares) = defined(&inputs, &site);
        for chunk in [1, 7, 64, 191, 700] {
            let (mass, sink) = measured(&inputs, &site, chunk);
            let difference = apart(mass.as_slice().unwrap(), &expected);
            assert!(difference < TOLERANCE, "chunk {chunk}, {site:?}: off by {difference:e}");
            assert_eq!(sink.is_some(), site.sinks.is_some());
            if let Some(sink) = &sink {
                assert!(apart(sink.as_slice().unwrap(), &shares) < TOLERANCE);
            }
            for h in 0..9 {
                for r in 0..3 {
                    let all = mass[[0, h, r, 6]];
                    assert!(
                        (mass[[0, h, r, 0]] + mass[[0, h, r, 1]] - all).abs() < 1e-5,
                        "tiles sum to the whole"
                    );
                    let share = sink.as_ref().map_or(0.0, |s| s[[0, h, r]]);
                    assert!((all + share - 1.0).abs() < 1e-5, "head {h} row {r}: {all} + {share}");
                    assert_eq!(mass[[0, h, r, 5]], 0.0, "an empty span has no mass");
                }
            }
        }
    }
}

#[test]
fn a_span_that_no_row_can_see_has_mass_zero_to_the_bit() {
    let inputs = Inputs::new(700, 0, (9, 3), 12);
    let (mass, _) = measured(&inputs, &Site { window: Some(100), ..site(0, 12) }, 64);
    for h in 0..9 {
        assert_eq!(mass[[0, h, 0, 4]].to_bits(), 0, "`later` lies after `new`");
        assert_eq!(mass[[0, h, 2, 2]].to_bits(), 0, "`old` lies outside the query's window");
        assert_eq!(mass[[0, h, 2, 0]].to_bits(), 0, "so does `bos`");
        assert!(mass[[0, h, 2, 4]] > 0.0, "`later` is within it");
    }
}

#[test]
fn masses_of_half_precision_inputs_equal_the_definition_on_those_inputs() {
    let mut inputs = Inputs::new(700, 0, (9, 3), 12);
    for site in sites(9) {
        for dtype in [DType::BF16, DType::F16] {
            let [q, k, _] =
                inputs.tensors().map(|t| t.to_dtype(dtype).unwrap().to_dtype(DType::F32).unwrap());
            (inputs.q, inputs.k) = (super::numbers(&q), super::numbers(&k));
            let mut observer = MassObserver::new(rows(), keys(), 700).unwrap();
            observe(&inputs, &site, 300, &mut observer, 0..inputs.l, dtype);
            let (expected, shares) = defined(&inputs, &site);
            let Masses { mass, sink, .. } = observer.finish().unwrap();
            let difference = apart(mass.as_slice().unwrap(), &expected);
            assert!(difference < TOLERANCE, "{dtype:?}, {site:?}: off by {difference:e}");
            if let Some(sink) = sink {
                assert!(apart(sink.as_slice().unwrap(), &shares) < TOLERANCE);
            }
        }
    }
}

#[test]
fn a_fork_after_a_shared_prefix_equals_an_observer_that_saw_everything() {
    // Two continuations of one prefix of 500 tokens, with different spans after it.
    let inputs = Inputs::new(700, 0, (9, 3), 12);
    let site = Site { sinks: sinks(9), ..site(0, 12) };
    let before = [Span::new("bos", 0..1), Span::new("old", 1..120), Span::new("new", 120..480)];
    let spans = |after: &[(&str, usize, usize)]| -> Vec<Span> {
        let after = after.iter().map(|&(label, start, end)| Span::new(label, start..end));
        before.iter().cloned().chain(after).collect()
    };
    let first = spans(&[("preamble", 480, 510), ("query", 510, 700)]);
    let second = spans(&[("preamble", 480, 530), ("query", 530, 650), ("template", 650, 700)]);
    let new = before[2].clone().with_role("new");

    let mut shared = MassObserver::new(vec![new.clone()], first.clone(), 700).unwrap();
    observe(&inputs, &site, 64, &mut shared, 0..500, DType::F32);
    for (keys, query) in [(first, 510..700), (second, 530..650)] {
        let rows = vec![new.clone(), Span::new("query", query)];
        let fresh = MassObserver::new(rows, keys, 700).unwrap();
        let mut whole = fresh.clone();
        observe(&inputs, &site, 64, &mut whole, 0..500, DType::F32);
        observe(&inputs, &site, 64, &mut whole, 500..700, DType::F32);
        let mut forked = shared.fork(&fresh, 500).expect("the spans before the border are the same");
        observe(&inputs, &site, 64, &mut forked, 500..700, DType::F32);
        assert_eq!(forked.finish().unwrap(), whole.finish().unwrap());
    }
}

/// Forks that request a subset of the measured rows and spans get the same values as observers of that subset alone.
#[test]
fn a_fork_takes_its_own_rows_and_spans_out_of_a_union() {
    let inputs = Inputs::new(400, 0, (6, 2), 12);
    let site = Site { sinks: sinks(6), ..site(0, 12) };
    let rows = [Span::new("a", 40..90), Span::new("b", 100..101), Span::new("c", 60..200)];
    let keys = |spans: &[(usize, usize)]| -> Vec<Span> {
        spans.iter().map(|&(a, b)| Span::new(format!("{a}-{b}"), a..b)).collect()
    };
    let tiles = [(0, 50), (50, 120), (120, 260), (260, 400)];
    let overlays = [(10, 20), (55, 56), (30, 130)];
    let mut shared =
        MassObserver::new(rows.to_vec(), keys(&[&tiles[..], &overlays[..]].concat()), 400).unwrap();
    observe(&inputs, &site, 32, &mut shared, 0..260, DType::F32);
    for (row, overlay) in rows.iter().zip(overlays) {
        let own = vec![row.clone(), Span::new("query", 300..400)];
        let fresh = MassObserver::new(own, keys(&[&tiles[..], &[overlay]].concat()), 400).unwrap();
        let mut alone = fresh.clone();
        observe(&inputs, &site, 32, &mut alone, 0..260, DType::F32);
        observe(&inputs, &site, 32, &mut alone, 260..400, DType::F32);
        let mut forked = shared.fork(&fresh, 260).expect("its rows and borders are among those measured");
        observe(&inputs, &site, 32, &mut forked, 260..400, DType::F32);
        let (ours, expected) = (forked.finish().unwrap(), alone.finish().unwrap());
        let apart = ours.mass.iter().zip(&expected.mass).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(apart < 1e-6, "{apart}");
        assert_eq!((&ours.rows, &ours.uniform), (&expected.rows, &expected.uniform));
    }
}

#[test]
fn a_fork_is_refused_where_the_shared_part_was_not_measured_the_same_way() {
    let observer = |rows: &[(usize, usize)], keys: &[(usize, usize)]| {
        let spans = |s: &[(usize, usize)]| s.iter().map(|&(a, b)| Span::new(format!("{a}"), a..b)).collect();
        MassObserver::new(spans(rows), spans(keys), 100).unwrap()
    };
    let shared = observer(&[(10, 20)], &[(0, 10), (10, 40), (40, 100)]);
    let keys = [(0, 10), (10, 40), (40, 100)];
    assert!(shared.fork(&observer(&[(10, 20), (60, 90)], &keys), 50).is_some());
    assert!(
        shared.fork(&observer(&[(10, 20), (45, 60)], &keys), 50).is_none(),
        "a row span straddles the border"
    );
    assert!(shared.fork(&observer(&[(10, 21), (60, 90)], &keys), 50).is_none(), "another row span before it");
    // Unrequested rows are dropped.
    assert!(shared.fork(&observer(&[(60, 90)], &keys), 50).is_some(), "a measured row span is not asked for");
    assert!(shared.fork(&observer(&[(60, 90)], &[(0, 40), (40, 100)]), 50).is_some(), "wider key spans");
    let other = [(0, 11), (11, 40), (40, 100)];
    assert!(shared.fork(&observer(&[(10, 20), (60, 90)], &other), 50).is_none(), "other key spans before it");
}

#[test]
fn spans_that_cannot_be_observed_are_refused_by_name() {
    let new = |rows: Vec<Span>, keys: Vec<Span>| MassObserver::new(rows, keys, 10).unwrap_err();
    let error = new(vec![Span::new("query", 8..11)], vec![]);
    assert_eq!(error, SpanError::OutOfRange { label: "query".into(), start: 8, end: 11, tokens: 10 });
    let error = new(vec![], vec![Span { end: 2, ..Span::new("old", 5..6) }]);
    assert_eq!(error, SpanError::OutOfRange { label: "old".into(), start: 5, end: 2, tokens: 10 });
    let error = new(vec![Span::new("new", 4..4)], vec![]);
    assert_eq!(error, SpanError::EmptyRows { label: "new".into() });
}

#[test]
fn without_key_spans_there_are_no_masses_but_the_sinks_share_and_without_rows_nothing_is_wanted() {
    let inputs = Inputs::new(20, 0, (2, 1), 8);
    let site = Site { sinks: sinks(2), ..site(0, 8) };
    for keys in [vec![], vec![Span::new("nothing", 3..3)]] {
        for dtype in [DType::F32, DType::BF16] {
            let mut observer = MassObserver::new(vec![Span::new("r", 0..20)], keys.clone(), 20).unwrap();
            observe(&inputs, &site, 7, &mut observer, 0..inputs.l, dtype);
            let Masses { mass, sink, .. } = observer.finish().unwrap();
            assert_eq!(mass.shape(), [1, 2, 1, keys.len()]);
            assert!(mass.iter().all(|&m| m == 0.0));
            assert!(sink.unwrap().iter().all(|&s| s > 0.0 && s < 1.0));
        }
    }
    assert!(!MassObserver::new(vec![], vec![], 20).unwrap().wants(Point::Attention(&site)).inputs);
}

#[test]
fn layers_with_other_numbers_of_heads_cannot_be_put_into_one_array() {
    let mut observer = MassObserver::new(vec![Span::new("r", 0..5)], vec![Span::new("k", 0..5)], 5).unwrap();
    for (layer, heads) in [(0, (2, 1)), (1, (4, 2))] {
        let inputs = Inputs::new(5, 0, heads, 8);
        observe(&inputs, &Site { layer, ..site(0, 8) }, 5, &mut observer, 0..inputs.l, DType::F32);
    }
    let message = observer.finish().unwrap_err().to_string();
    assert!(message.contains("layer 1 has 4 heads where others have 2"), "{message}");
}
