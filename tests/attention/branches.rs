//! Attention over branches: rejected calls, and independence of the branches.

use candle_core::{DType, Device, Tensor};
use palimpsest_core::attention::{NoObserver, SPLIT_K, Site, run};

use super::{numbers, run_branches, sinks_of, site};

const D: usize = 16;
const HEADS: (usize, usize) = (4, 2);

fn some(seed: f32, shape: (usize, usize, usize)) -> Tensor {
    let count = shape.0 * shape.1 * shape.2;
    let values: Vec<f32> = (0..count).map(|i| ((i as f32 + seed) * 12.9898).sin()).collect();
    Tensor::from_vec(values, shape, &Device::Cpu).unwrap()
}

/// Queries, shared keys and values, and per-branch tails of these lengths.
fn call(base: usize, tails: &[usize]) -> (Tensor, Tensor, Tensor, Vec<(Tensor, Tensor)>) {
    let own = |(i, &l): (usize, &usize)| {
        let seed = 100.0 * i as f32;
        (some(seed + 3.0, (HEADS.1, l, D)), some(seed + 4.0, (HEADS.1, l, D)))
    };
    let shared = |seed| match base {
        0 => Tensor::zeros((HEADS.1, 0, D), DType::F32, &Device::Cpu).unwrap(),
        _ => some(seed, (HEADS.1, base, D)),
    };
    (
        some(0.0, (tails.len(), HEADS.0, D)),
        shared(1.0),
        shared(2.0),
        tails.iter().enumerate().map(own).collect(),
    )
}

#[test]
fn a_branch_sees_the_shared_keys_and_its_own_as_one_sequence() {
    for (base, tails) in [(0, vec![3, 1]), (SPLIT_K, vec![1, 40, 300]), (3 * SPLIT_K, vec![257])] {
        for (first_key, window) in [(0, None), (0, Some(30)), (11, Some(base + 400))] {
            let (q, k, v, own) = call(base, &tails);
            let site = Site { first_key, window, ..site(first_key + base, D) };
            // A late `first_key` is valid only if no row sees earlier keys.
            if first_key > 0 && base + tails.iter().min().unwrap() < base + 400 {
                assert!(run_branches(&q, &k, &v, &own, &site, &[], &mut []).is_err());
                continue;
            }
            let found = run_branches(&q, &k, &v, &own, &site, &[], &mut []).unwrap();
            for (row, (own_k, own_v)) in own.iter().enumerate() {
                let k = Tensor::cat(&[&k, own_k], 1).unwrap();
                let v = Tensor::cat(&[&v, own_v], 1).unwrap();
                let site = Site { offset: site.offset + tails[row] - 1, ..site.clone() };
                let alone = run(&q.narrow(0, row, 1).unwrap(), &k, &v, &site, &mut NoObserver).unwrap();
                let (found, alone) = (numbers(&found.get(row).unwrap()), numbers(&alone));
                let apart = found.iter().zip(&alone).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                assert!(apart < 1e-5, "{base} + {tails:?}, {row}: off by {apart:e}");
            }
        }
    }
}

#[test]
fn a_branch_alone_and_in_company_differs_by_no_more_than_rounding_and_nan_stays_in_its_branch() {
    let (q, k, v, mut own) = call(SPLIT_K, &[20, 30]);
    let site = site(SPLIT_K, D);
    let together = run_branches(&q, &k, &v, &own, &site, &[], &mut []).unwrap();
    let alone = run_branches(&q.narrow(0, 1, 1).unwrap(), &k, &v, &own[1..], &site, &[], &mut []).unwrap();
    let second = numbers(&together.get(1).unwrap());
    let apart = second.iter().zip(numbers(&alone)).map(|(a, b)| (a - b).abs());
    assert!(apart.fold(0.0, f32::max) < 1e-6);

    own[0].1 = (&own[0].1 * f64::NAN).unwrap();
    let broken = run_branches(&q, &k, &v, &own, &site, &[], &mut []).unwrap();
    assert!(numbers(&broken.get(0).unwrap()).iter().all(|x| x.is_nan()));
    assert_eq!(numbers(&broken.get(1).unwrap()), numbers(&together.get(1).unwrap()));
}

#[test]
fn branches_that_do_not_fit_together_are_refused_with_their_numbers() {
    let (q, k, v, own) = call(SPLIT_K, &[2, 3]);
    let refused = |q: &Tensor, k: &Tensor, own: &[(Tensor, Tensor)], site: &Site| {
        run_branches(q, k, &v, own, site, &[], &mut []).unwrap_err().to_string()
    };
    let fits = site(SPLIT_K, D);
    assert!(run_branches(&q, &k, &v, &own, &fits, &[], &mut []).is_ok());
    assert!(refused(&q, &k, &own[..1], &fits).contains("queries of 2 branches, but 1 tails"));
    assert!(refused(&q, &k, &own, &site(SPLIT_K - 1, D)).contains("tails that begin at position 255"));
    let short = k.narrow(1, 0, 9).unwrap();
    assert!(refused(&q, &short, &own, &fits).contains("[2, 9, 16]"));
    let narrow: Vec<_> = own.iter().map(|(k, v)| (k.narrow(2, 0, 8).unwrap(), v.clone())).collect();
    assert!(refused(&q, &k, &narrow, &fits).contains("[2, 2, 8]"));
    let empty: Vec<_> =
        own.iter().map(|(k, v)| (k.narrow(1, 0, 0).unwrap(), v.narrow(1, 0, 0).unwrap())).collect();
    assert!(refused(&q, &k, &empty, &fits).contains("or is empty"));
    assert!(refused(&q, &k, &own, &Site { window: Some(0), ..fits.clone() }).contains("window of 0"));
    assert!(refused(&q, &k, &own, &Site { sinks: sinks_of(vec![0.0]), ..fits }).contains("1 sinks"));
}
