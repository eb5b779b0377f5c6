//! Indexing kernels: select, gather, scatter, index_add.

use half::{bf16, f16};

use crate::Candle;
use crate::card::Param;
use crate::element::Element;
use crate::layout::Layout;

pub fn check(candle: &mut Candle) {
    all::<f32>(candle);
    all::<f16>(candle);
    all::<bf16>(candle);
    select::<u32>(candle);
    select::<u8>(candle);
}

/// Elements before the indexed dimension, in it (source, indices), and after it.
const SHAPES: [[usize; 4]; 4] = [[1, 5, 3, 1], [2, 7, 4, 3], [1, 300, 37, 33], [3, 4, 9, 2]];

fn name<T: Element>(candle: &mut Candle, kind: &str) -> String {
    let name = format!("{kind}_u32_{}", T::NAME);
    candle.load("indexing", &[&name]);
    name
}

fn ids(count: usize, below: usize) -> Vec<u32> {
    (0..count).map(|i| (i.wrapping_mul(0x9E37_79B9) >> 7) as u32 % below as u32).collect()
}

/// `index_select` from a contiguous source and from a transposed one.
fn select<T: Element>(candle: &mut Candle) {
    let name = name::<T>(candle, "is");
    for [left, source, indices, right] in SHAPES {
        let dims = [left, source, right];
        let transposed = Layout { dims: dims.to_vec(), strides: vec![source * right, 1, source], offset: 1 };
        for layout in [Layout::contiguous(&dims), transposed] {
            let (at, values) = layout.operand::<T>(candle, 5);
            let ids = ids(indices, source);
            let count = left * indices * right;
            let to = candle.empty::<T>(count);
            let params = [
                Param::from(count),
                Param::from(3_usize),
                layout.full_info(candle, &[]),
                Param::from(candle.upload(&ids, 0)),
                Param::from(at),
                Param::from(to),
                Param::from(left),
                Param::from(source),
                Param::from(indices),
                Param::from(right),
            ];
            candle.launch(&name, count, &params);
            let expected: Vec<_> = (0..count)
                .map(|i| {
                    let (before, id, after) =
                        (i / (indices * right), ids[i / right % indices] as usize, i % right);
                    values[(before * source + id) * right + after]
                })
                .collect();
            candle.expect::<T>(&name, to, &expected, 0.0);
        }
    }
}

fn all<T: Element>(candle: &mut Candle) {
    select::<T>(candle);
    let gather = name::<T>(candle, "gather");
    for [left, source, indices, right] in SHAPES {
        let (at, values) = Layout::contiguous(&[left * source * right]).operand::<T>(candle, 5);
        let count = left * indices * right;
        let ids = ids(count, source);
        let to = candle.empty::<T>(count);
        let ids_at = candle.upload(&ids, 0);
        let mut params = vec![Param::from(count), Param::from(ids_at), Param::from(at), Param::from(to)];
        params.extend([left, source, indices, right].map(Param::from));
        candle.launch(&gather, count, &params);
        let expected: Vec<_> = (0..count)
            .map(|i| values[(i / (indices * right) * source + ids[i] as usize) * right + i % right])
            .collect();
        candle.expect::<T>(&gather, to, &expected, 0.0);
    }
    for [left, target, sources, right] in SHAPES {
        into_rows::<T>(candle, left, target, sources, right);
    }
}

/// `index_add` (one index per row), `scatter` and `scatter_add` (one index per element).
fn into_rows<T: Element>(candle: &mut Candle, left: usize, target: usize, sources: usize, right: usize) {
    let count = left * sources * right;
    let (at, values) = Layout::contiguous(&[count]).operand::<T>(candle, 5);
    let before: Vec<T> = (0..left * target * right).map(|i| T::sample(i + 400)).collect();
    for kind in ["ia", "s", "sa"] {
        let name = name::<T>(candle, kind);
        let to = candle.upload(&before, 0);
        let ids = ids(if kind == "ia" { sources } else { count }, target);
        let ids_at = Param::from(candle.upload(&ids, 0));
        let mut params = vec![ids_at];
        if kind == "ia" {
            params.push(Param::from(sources));
        }
        params.extend([Param::from(at), Param::from(to)]);
        params.extend([left, sources, target, right].map(Param::from));
        candle.launch(&name, left * right, &params);
        let mut expected: Vec<f64> = before.iter().map(|value| value.value()).collect();
        for pre in 0..left {
            for post in 0..right {
                for j in 0..sources {
                    let from = (pre * sources + j) * right + post;
                    let id = ids[if kind == "ia" { j } else { from }] as usize;
                    let to = &mut expected[(pre * target + id) * right + post];
                    // Every partial sum is rounded to the dtype, in this order.
                    *to = if kind == "s" { values[from] } else { T::of(*to + values[from]).value() };
                }
            }
        }
        candle.expect::<T>(&name, to, &expected, 0.0);
    }
}
