//! Row-wise kernels: reductions, softmax, norms, rotary embeddings, sorting.

use half::{bf16, f16};

use crate::Candle;
use crate::card::Param;
use crate::element::Element;
use crate::layout::Layout;

pub fn check(candle: &mut Candle) {
    all::<f32>(candle);
    all::<f16>(candle);
    all::<bf16>(candle);
}

fn all<T: Element>(candle: &mut Candle) {
    let names = ["fast_sum", "fast_sum_small", "fast_max", "fast_min", "fast_argmax", "fast_argmin"];
    let names = names.map(|name| format!("{name}_{}", T::NAME));
    candle.load("reduce", &names.iter().map(String::as_str).collect::<Vec<_>>());
    // Row lengths below and above a warp and a block, and not multiples of either.
    for (rows, length) in [(1, 33), (5, 100), (3, 1024), (2, 1500), (7, 40)] {
        // Contiguous rows, and rows that are columns of a matrix.
        let columns = Layout { dims: vec![rows, length], strides: vec![1, rows], offset: 1 };
        for layout in [Layout::contiguous(&[rows, length]), columns] {
            extremes_and_sums::<T>(candle, &names, &layout, rows, length);
        }
    }
    small_sums::<T>(candle, &names[1]);
    softmax::<T>(candle);
    norms::<T>(candle);
    rotary::<T>(candle);
    sort::<T>(candle);
}

fn extremes_and_sums<T: Element>(
    candle: &Candle,
    names: &[String],
    layout: &Layout,
    rows: usize,
    length: usize,
) {
    let (at, values) = layout.operand::<T>(candle, 11);
    let block = length.min(1024).next_power_of_two() as u32;
    let launch = |name: &str, to: u64| {
        let info = layout.full_info(candle, &[]);
        let params = [Param::from(rows * length), Param::from(length), Param::from(2_usize), info];
        let params: Vec<_> = params.into_iter().chain([Param::from(at), Param::from(to)]).collect();
        candle.launch_as(name, [rows as u32, 1, 1], [block, 1, 1], &params);
    };
    let by_row = |define: &dyn Fn(&[f64]) -> f64| values.chunks(length).map(define).collect::<Vec<_>>();
    let to = candle.empty::<T>(rows);
    launch(&names[0], to);
    // Partial sums have the dtype; the error grows with the number of terms.
    let sums = by_row(&|row| row.iter().sum());
    let sizes = by_row(&|row| row.iter().map(|value| value.abs()).sum());
    for ((got, sum), size) in candle.download::<T>(to, rows).iter().zip(&sums).zip(&sizes) {
        assert!((got.value() - sum).abs() <= 4.0 * T::UNIT * size, "{}: {} for {sum}", names[0], got.value());
    }
    let extremes: [fn(&[f64]) -> f64; 2] = [
        |row| row.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        |row| row.iter().copied().fold(f64::INFINITY, f64::min),
    ];
    for (define, (extreme, place)) in
        extremes.into_iter().zip([(&names[2], &names[4]), (&names[3], &names[5])])
    {
        let expected = by_row(&define);
        let to = candle.empty::<T>(rows);
        launch(extreme, to);
        candle.expect::<T>(extreme, to, &expected, 0.0);
        let to = candle.empty::<u32>(rows);
        launch(place, to);
        // Any index of equal values is valid.
        for (row, place_of) in candle.download::<u32>(to, rows).into_iter().enumerate() {
            assert_eq!(values[row * length + place_of as usize], expected[row], "{place}");
        }
    }
}

/// Sums of at most 32 elements, one thread per sum.
fn small_sums<T: Element>(candle: &Candle, name: &str) {
    for (rows, length) in [(1, 1), (300, 8), (7, 31)] {
        for layout in [
            Layout::contiguous(&[rows, length]),
            Layout { dims: vec![rows, length], strides: vec![1, rows], offset: 3 },
        ] {
            let (at, values) = layout.operand::<T>(candle, 2);
            let to = candle.empty::<T>(rows);
            let params = [
                Param::from(rows),
                Param::from(length),
                Param::from(2_usize),
                layout.full_info(candle, &[]),
                Param::from(at),
                Param::from(to),
            ];
            candle.launch_as(name, [rows.div_ceil(256) as u32, 1, 1], [256, 1, 1], &params);
            let sums: Vec<f64> = values.chunks(length).map(|row| row.iter().sum()).collect();
            for (got, (sum, row)) in
                candle.download::<T>(to, rows).iter().zip(sums.iter().zip(values.chunks(length)))
            {
                let size: f64 = row.iter().map(|value| value.abs()).sum();
                assert!(
                    (got.value() - sum).abs() <= 4.0 * T::UNIT * size,
                    "{name}: {} for {sum}",
                    got.value()
                );
            }
        }
    }
}

fn softmax<T: Element>(candle: &mut Candle) {
    let name = format!("softmax_{}", T::NAME);
    candle.load("reduce", &[&name]);
    for (rows, length) in [(1, 1), (3, 31), (2, 32), (5, 1000)] {
        let (at, values) =
            Layout { offset: 1, ..Layout::contiguous(&[rows * length]) }.operand::<T>(candle, 3);
        let to = candle.empty::<T>(rows * length);
        let params = [Param::from(at), Param::from(to), Param::from(length as i32)];
        candle.launch_as(&name, [rows as u32, 1, 1], [1, 32, 1], &params);
        let expected: Vec<f64> = values
            .chunks(length)
            .flat_map(|row| {
                let most = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let sum: f64 = row.iter().map(|x| (x - most).exp()).sum();
                row.iter().map(move |x| (x - most).exp() / sum).collect::<Vec<_>>()
            })
            .collect();
        candle.expect::<T>(&name, to, &expected, 4.0);
    }
}

fn norms<T: Element>(candle: &mut Candle) {
    let [rms, layer] = ["rmsnorm", "layernorm"].map(|name| format!("{name}_{}", T::NAME));
    candle.load("reduce", &[&rms, &layer]);
    for (rows, length) in [(1, 1), (3, 33), (2, 1000), (2, 1024), (3, 1536)] {
        let (at, values) = Layout::contiguous(&[rows * length]).operand::<T>(candle, 8);
        let (alpha_at, alpha) =
            Layout { offset: 1, ..Layout::contiguous(&[length]) }.operand::<T>(candle, 70);
        let (beta_at, beta) = Layout::contiguous(&[length]).operand::<T>(candle, 90);
        // One warp per row, or one block for long rows, as Candle chooses.
        let block = if length < 1024 { 32 } else { 1024_u32 };
        let eps = 1e-5_f32;
        let tail = || [Param::from(length as i32), Param::from(block as i32), Param::from(eps)];
        let row_of = |define: &dyn Fn(&[f64], usize) -> f64| {
            values
                .chunks(length)
                .flat_map(|row| (0..length).map(|i| define(row, i)).collect::<Vec<_>>())
                .collect::<Vec<_>>()
        };
        let n = length as f64;

        let to = candle.empty::<T>(rows * length);
        let params: Vec<_> = [at, to, alpha_at].map(Param::from).into_iter().chain(tail()).collect();
        candle.launch_as(&rms, [rows as u32, 1, 1], [block, 1, 1], &params);
        let scale = |row: &[f64]| 1.0 / (row.iter().map(|x| x * x).sum::<f64>() / n + f64::from(eps)).sqrt();
        candle.expect::<T>(&rms, to, &row_of(&|row, i| row[i] * scale(row) * alpha[i]), 8.0);

        let to = candle.empty::<T>(rows * length);
        let params: Vec<_> = [at, to, alpha_at, beta_at].map(Param::from).into_iter().chain(tail()).collect();
        candle.launch_as(&layer, [rows as u32, 1, 1], [block, 1, 1], &params);
        let normed = |row: &[f64], i: usize| {
            let mean = row.iter().sum::<f64>() / n;
            let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
            (row[i] - mean) / (variance + f64::from(eps)).sqrt() * alpha[i] + beta[i]
        };
        candle.expect_of_size::<T>(&layer, to, &row_of(&normed), 2.0, 4.0);
    }
}

/// Rotary embeddings: split halves, interleaved pairs, and (l, heads, d) layout.
fn rotary<T: Element>(candle: &mut Candle) {
    let [rope, rope_i, rope_thd] = ["rope", "rope_i", "rope_thd"].map(|name| format!("{name}_{}", T::NAME));
    candle.load("reduce", &[&rope, &rope_i, &rope_thd]);
    for (batch, heads, tokens, width) in [(1, 1, 1, 2), (2, 3, 5, 8), (1, 4, 33, 64)] {
        let count = batch * heads * tokens * width;
        let (at, x) = Layout { offset: 1, ..Layout::contiguous(&[count]) }.operand::<T>(candle, 4);
        let half = width / 2;
        let (cos_at, cos) = Layout::contiguous(&[tokens * half]).operand::<T>(candle, 40);
        let (sin_at, sin) = Layout::contiguous(&[tokens * half]).operand::<T>(candle, 60);
        let base = |to: u64| [at, cos_at, sin_at, to].map(Param::from);
        let sizes = |sizes: &[usize]| sizes.iter().map(|n| Param::from(*n as u32)).collect::<Vec<_>>();
        let run = |name: &str, rest: &[usize], places: &dyn Fn(usize) -> (usize, usize, usize)| {
            let to = candle.empty::<T>(count);
            let params: Vec<_> = base(to).into_iter().chain(sizes(rest)).collect();
            candle.launch(name, count / 2, &params);
            let mut expected = vec![0.0; count];
            for pair in 0..count / 2 {
                let (one, two, angle) = places(pair);
                expected[one] = x[one] * cos[angle] - x[two] * sin[angle];
                expected[two] = x[one] * sin[angle] + x[two] * cos[angle];
            }
            candle.expect_of_size::<T>(name, to, &expected, 2.0, 2.0);
        };
        let (bh, td) = (batch * heads, tokens * width);
        run(&rope, &[bh, td, width, 0], &|pair| {
            let (row, i) = (pair / half, pair % half);
            (row * width + i, row * width + i + half, row % tokens * half + i)
        });
        run(&rope_i, &[bh, td, 0], &|pair| (2 * pair, 2 * pair + 1, pair % (tokens * half)));
        run(&rope_thd, &[batch, tokens, heads, width, 0], &|pair| {
            let (row, i) = (pair / half, pair % half);
            (row * width + i, row * width + i + half, row / heads % tokens * half + i)
        });
    }
}

/// argsort of rows; rows are padded to a power of two in shared memory.
fn sort<T: Element>(candle: &mut Candle) {
    let names = ["asort_asc", "asort_desc"].map(|name| format!("{name}_{}", T::NAME));
    candle.load("sort", &[&names[0], &names[1]]);
    for (rows, length) in [(1, 1), (3, 6), (2, 128), (2, 1500)] {
        let (at, values) = Layout::contiguous(&[rows * length]).operand::<T>(candle, 9);
        let padded = length.next_power_of_two();
        for (name, ascending) in names.iter().zip([true, false]) {
            let to = candle.empty::<u32>(rows * length);
            let params = [
                Param::from(at),
                Param::from(to),
                Param::from(length as i32),
                Param::from(padded as i32),
                Param::shared(padded as u32 * 4),
            ];
            candle.launch_as(name, [rows as u32, 1, 1], [padded.min(1024) as u32, 1, 1], &params);
            for (order, row) in
                candle.download::<u32>(to, rows * length).chunks(length).zip(values.chunks(length))
            {
                let mut sorted = row.to_vec();
                sorted.sort_by(|a, b| if ascending { a.total_cmp(b) } else { b.total_cmp(a) });
                let got: Vec<_> = order.iter().map(|i| row[*i as usize]).collect();
                assert_eq!(got, sorted, "{name}");
                let mut places = order.to_vec();
                places.sort_unstable();
                assert!(
                    places.iter().enumerate().all(|(i, place)| i == *place as usize),
                    "{name}: {order:?}"
                );
            }
        }
    }
}
