//! Elementwise kernels: unary and binary functions, selection, casts, copies and fills.

use half::{bf16, f16};

use crate::Candle;
use crate::card::Param;
use crate::element::{Element, Scalar};
use crate::layout::{Layout, layouts};

pub fn check(candle: &mut Candle) {
    functions::<f32>(candle);
    functions::<f16>(candle);
    functions::<bf16>(candle);
    moves::<f32>(candle);
    moves::<f16>(candle);
    moves::<bf16>(candle);
    moves::<u32>(candle);
    moves::<u8>(candle);
    moves::<i64>(candle);
    integers::<u32>(candle);
    integers::<u8>(candle);
    casts(candle);
}

/// Unary functions: name, definition, needs positive values.
type Unary = (&'static str, fn(f64) -> f64, bool);

const UNARY: [Unary; 17] = [
    ("ucopy", |x| x, false),
    ("uneg", |x| -x, false),
    ("urecip", |x| 1.0 / x, true),
    ("uexp", f64::exp, false),
    ("ulog", f64::ln, true),
    ("usin", f64::sin, false),
    ("ucos", f64::cos, false),
    ("utanh", f64::tanh, false),
    ("uabs", f64::abs, false),
    ("usqr", |x| x * x, false),
    ("usqrt", f64::sqrt, true),
    ("ufloor", f64::floor, false),
    ("urelu", |x| x.max(0.0), false),
    ("usilu", |x| x / (1.0 + (-x).exp()), false),
    ("usigmoid", |x| 1.0 / (1.0 + (-x).exp()), false),
    ("ugelu", gelu, false),
    ("usign", |x| f64::from(i8::from(x > 0.0) - i8::from(x < 0.0)), false),
];

fn gelu(x: f64) -> f64 {
    0.5 * x * (1.0 + (std::f64::consts::FRAC_2_PI.sqrt() * (x + 0.044_715 * x.powi(3))).tanh())
}

type Binary = (&'static str, fn(f64, f64) -> f64);

const BINARY: [Binary; 6] = [
    ("badd", |x, y| x + y),
    ("bsub", |x, y| x - y),
    ("bmul", |x, y| x * y),
    ("bdiv", |x, y| x / y),
    ("bmaximum", f64::max),
    ("bminimum", f64::min),
];

type Comparison = (&'static str, fn(f64, f64) -> bool);

const COMPARISONS: [Comparison; 6] = [
    ("eq", |x, y| x == y),
    ("ne", |x, y| x != y),
    ("lt", |x, y| x < y),
    ("le", |x, y| x <= y),
    ("gt", |x, y| x > y),
    ("ge", |x, y| x >= y),
];

/// Loads these kernels for a dtype; returns the full names.
fn load<T: Element>(candle: &mut Candle, module: &str, names: &[&str]) -> Vec<String> {
    let full: Vec<String> = names.iter().map(|name| format!("{name}_{}", T::NAME)).collect();
    candle.load(module, &full.iter().map(String::as_str).collect::<Vec<_>>());
    full
}

/// Leading parameters of elementwise kernels: count, rank, layout.
fn head(candle: &Candle, layout: &Layout, others: &[&Layout]) -> Vec<Param> {
    vec![Param::from(layout.count()), Param::from(layout.dims.len()), layout.info(candle, others)]
}

/// Half types round intermediate results, a few times in the longer definitions.
const FEW: f64 = 6.0;

fn functions<T: Element>(candle: &mut Candle) {
    let names = load::<T>(candle, "unary", &UNARY.map(|(name, ..)| name));
    for ((_, define, positive), name) in UNARY.into_iter().zip(&names) {
        for layout in layouts() {
            let sample =
                |place| if positive { T::of(T::sample(place).value().abs() + 0.1) } else { T::sample(place) };
            let (at, values) = layout.operand_of(candle, sample);
            let to = candle.empty::<T>(values.len());
            let mut params = head(candle, &layout, &[]);
            params.extend([Param::from(at), Param::from(to)]);
            candle.launch(name, values.len(), &params);
            candle.expect::<T>(name, to, &values.into_iter().map(define).collect::<Vec<_>>(), FEW);
        }
    }
    let names = load::<T>(candle, "unary", &["upowf", "uelu"]);
    let with_parameter: [fn(f64, f64) -> f64; 2] =
        [f64::powf, |x, a| if x > 0.0 { x } else { a * x.exp_m1() }];
    for (name, define) in names.iter().zip(with_parameter) {
        for layout in layouts() {
            let (at, values) = layout.operand_of(candle, |place| T::of(T::sample(place).value().abs() + 0.1));
            let to = candle.empty::<T>(values.len());
            let parameter = T::of(1.5);
            let mut params = head(candle, &layout, &[]);
            params.extend([parameter.into().0, Param::from(at), Param::from(to)]);
            candle.launch(name, values.len(), &params);
            let expected: Vec<_> = values.into_iter().map(|x| define(x, parameter.value())).collect();
            candle.expect::<T>(name, to, &expected, FEW);
        }
    }
    affine::<T>(candle);
    binary::<T>(candle);
}

fn affine<T: Element>(candle: &mut Candle) {
    let name = load::<T>(candle, "affine", &["affine"]).remove(0);
    for layout in layouts() {
        let (at, values) = layout.operand_of(candle, |place| T::of(T::sample(place).value() % 13.0));
        let to = candle.empty::<T>(values.len());
        let (mul, add) = (T::of(3.0), T::of(2.0));
        let mut params = head(candle, &layout, &[]);
        params.extend([Param::from(at), Param::from(to), mul.into().0, add.into().0]);
        candle.launch(&name, values.len(), &params);
        let expected: Vec<_> = values.iter().map(|x| 3.0 * x + 2.0).collect();
        candle.expect_of_size::<T>(&name, to, &expected, 2.0, 1.0);
    }
}

fn binary<T: Element>(candle: &mut Candle) {
    let names = load::<T>(candle, "binary", &BINARY.map(|(name, _)| name));
    let comparisons = load::<T>(candle, "binary", &COMPARISONS.map(|(name, _)| name));
    for left in layouts() {
        // Each layout against a contiguous one of its shape, on either side, and against itself.
        let right = Layout::contiguous(&left.dims);
        for (x, y) in [(&left, &right), (&right, &left), (&left, &left)] {
            let ((x_at, xs), (y_at, ys)) = (x.operand::<T>(candle, 1), y.operand::<T>(candle, 500));
            let pairs: Vec<_> = xs.into_iter().zip(ys).collect();
            let launch = |name: &str, to: u64| {
                let mut params = head(candle, x, &[y]);
                params.extend([Param::from(x_at), Param::from(y_at), Param::from(to)]);
                candle.launch(name, pairs.len(), &params);
            };
            for ((_, define), name) in BINARY.iter().zip(&names) {
                let to = candle.empty::<T>(pairs.len());
                launch(name, to);
                candle.expect::<T>(
                    name,
                    to,
                    &pairs.iter().map(|(x, y)| define(*x, *y)).collect::<Vec<_>>(),
                    1.0,
                );
            }
            for ((_, define), name) in COMPARISONS.iter().zip(&comparisons) {
                let to = candle.empty::<u8>(pairs.len());
                launch(name, to);
                let expected: Vec<_> =
                    pairs.iter().map(|(x, y)| f64::from(u8::from(define(*x, *y)))).collect();
                candle.expect::<u8>(name, to, &expected, 0.0);
            }
        }
    }
}

/// Functions that also support integers; values are small, so that no product overflows.
fn integers<T: Element>(candle: &mut Candle) {
    let names = load::<T>(candle, "binary", &["badd", "bmul", "eq", "lt", "le", "gt", "ge"]);
    for layout in layouts() {
        let other = Layout::contiguous(&layout.dims);
        let small = |seed: usize| move |place| T::of(T::sample(seed + place).value() % 13.0);
        let ((x_at, xs), (y_at, ys)) =
            (layout.operand_of(candle, small(1)), other.operand_of(candle, small(500)));
        for (i, name) in names.iter().enumerate() {
            let to = candle.empty::<T>(xs.len());
            let mut params = head(candle, &layout, &[&other]);
            params.extend([Param::from(x_at), Param::from(y_at), Param::from(to)]);
            candle.launch(name, xs.len(), &params);
            let define = |(x, y): (&f64, &f64)| match i {
                0 => x + y,
                1 => x * y,
                2 => f64::from(u8::from(x == y)),
                3 => f64::from(u8::from(x < y)),
                4 => f64::from(u8::from(x <= y)),
                5 => f64::from(u8::from(x > y)),
                _ => f64::from(u8::from(x >= y)),
            };
            let expected: Vec<_> = xs.iter().zip(&ys).map(define).collect();
            if i < 2 {
                candle.expect::<T>(name, to, &expected, 0.0)
            } else {
                candle.expect::<u8>(name, to, &expected, 0.0)
            }
        }
    }
    affine::<T>(candle);
}

/// Copies, fills and selection: no arithmetic, so no tolerance.
fn moves<T: Element>(candle: &mut Candle) {
    let ucopy = load::<T>(candle, "unary", &["ucopy"]).remove(0);
    let [fill, const_set, copy2d] =
        <[String; 3]>::try_from(load::<T>(candle, "fill", &["fill", "const_set", "copy2d"]))
            .unwrap_or_else(|_| unreachable!("three names were asked for"));
    let where_u8 = load::<T>(candle, "ternary", &["where_u8"]).remove(0);
    for layout in layouts() {
        let (at, values) = layout.operand::<T>(candle, 3);
        let to = candle.empty::<T>(values.len());
        let mut params = head(candle, &layout, &[]);
        params.extend([Param::from(at), Param::from(to)]);
        candle.launch(&ucopy, values.len(), &params);
        candle.expect::<T>(&ucopy, to, &values, 0.0);

        let value = T::sample(77);
        let to = candle.empty::<T>(values.len());
        let value_param = |value: T| -> Param {
            let Scalar(param) = value.into();
            param
        };
        candle.launch(&fill, values.len(), &[Param::from(to), value_param(value), Param::from(values.len())]);
        candle.expect::<T>(&fill, to, &vec![value.value(); values.len()], 0.0);

        // Writes only the layout's elements, not the gaps.
        let zeros = vec![T::of(0.0); layout.extent()];
        let to = candle.upload(&zeros, layout.offset);
        let mut params = head(candle, &layout, &[]);
        params.extend([value_param(value), Param::from(to)]);
        candle.launch(&const_set, values.len(), &params);
        let mut expected = vec![0.0; layout.extent()];
        (0..layout.count()).for_each(|i| expected[layout.place(i)] = value.value());
        candle.expect::<T>(&const_set, to, &expected, 0.0);

        let other = Layout::contiguous(&layout.dims);
        let (ids_at, ids) = other.operand_of::<u8>(candle, |place| u8::from(place % 3 == 0));
        let (f_at, f) = other.operand::<T>(candle, 900);
        let to = candle.empty::<T>(values.len());
        let params = [
            Param::from(values.len()),
            Param::from(layout.dims.len()),
            other.full_info(candle, &[&layout, &other]),
            Param::from(ids_at),
            Param::from(at),
            Param::from(f_at),
            Param::from(to),
        ];
        candle.launch(&where_u8, values.len(), &params);
        let choose = |i: usize| if ids[i] != 0.0 { values[i] } else { f[i] };
        candle.expect::<T>(&where_u8, to, &(0..values.len()).map(choose).collect::<Vec<_>>(), 0.0);
    }
    for (rows, columns, from_stride, to_stride) in
        [(1, 1, 1, 1), (3, 5, 7, 5), (33, 31, 31, 64), (2, 600, 601, 600)]
    {
        let from: Vec<T> = (0..rows * from_stride).map(T::sample).collect();
        let to = candle.upload(&vec![T::of(0.0); rows * to_stride], 0);
        let at = candle.upload(&from, 1);
        let sizes = [rows, columns, from_stride, to_stride].map(|n| Param::from(n as u32));
        let params: Vec<_> = [Param::from(at), Param::from(to)].into_iter().chain(sizes).collect();
        candle.launch(&copy2d, rows * columns, &params);
        let mut expected = vec![0.0; rows * to_stride];
        for row in 0..rows {
            (0..columns).for_each(|i| expected[row * to_stride + i] = from[row * from_stride + i].value());
        }
        candle.expect::<T>(&copy2d, to, &expected, 0.0);
    }
}

fn casts(candle: &mut Candle) {
    macro_rules! casts {
        ($($from:ty => $($to:ty),*;)*) => {$($(cast::<$from, $to>(candle);)*)*};
    }
    casts! {
        f32 => f32, f16, bf16, f64, u32, u8, i64;
        f16 => f32, f16, bf16, u32, u8;
        bf16 => f32, f16, bf16, u32, u8;
        f64 => f32, f16, bf16;
        u32 => f32, f16, bf16, u8, i64, u32;
        u8 => f32, f16, bf16, u32, i64;
        i64 => f32, f64, u32, u8;
    }
}

fn cast<S: Element, T: Element>(candle: &mut Candle) {
    let name = format!("cast_{}_{}", S::NAME, T::NAME);
    candle.load("cast", &[&name]);
    for layout in layouts() {
        // Positive if the dtype is unsigned.
        let sample = |place| {
            if T::UNIT == 0.0 { S::of(S::sample(place).value().abs() * 2.0) } else { S::sample(place) }
        };
        let (at, values) = layout.operand_of(candle, sample);
        let to = candle.empty::<T>(values.len());
        let mut params = head(candle, &layout, &[]);
        params.extend([Param::from(at), Param::from(to)]);
        candle.launch(&name, values.len(), &params);
        candle.expect::<T>(&name, to, &values, 0.0);
    }
}
