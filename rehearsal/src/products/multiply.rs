//! GEMM arithmetic. Host threads compute tiles of C; the summation order depends on the shapes alone, so the bits do not depend on the
//! number of threads. Operands are packed into f32 blocks and multiplied by a micro-kernel of plain loops, compiled with and without the
//! CPU's vectors and FMA. Sums run over [`DEPTH`] terms at a time and these partial sums are added, which keeps rounding errors as small
//! as a GPU's. Products with few columns (decode) skip packing: their matrix is read once. Doubles and f16 sums take a plain loop.

use std::sync::atomic::{AtomicUsize, Ordering};

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use super::{Element, Matrix, Product, Sums};

const ROWS: usize = 16;
const COLUMNS: usize = 4;
/// Rows and columns of a tile, and terms of a partial sum.
const TILE: usize = 128;
const DEPTH: usize = 256;
/// At most this many columns: computed row by row if the matrix's rows are contiguous.
const FEW: usize = 4;
const LANES: usize = 16;
/// Multiplications below which one thread suffices.
const WORTH_SHARING: usize = 1 << 21;

/// The ranges of the matrices were checked.
pub fn run(product: &Product, threads: usize) {
    let Product { m, n, k, batch, .. } = *product;
    let by_rows = n <= FEW && product.a.transposed;
    let plain = product.sums != Sums::F32;
    let tiles_of = |size: usize| size.div_ceil(TILE);
    let tiles = tiles_of(m) * if by_rows { 1 } else { tiles_of(n) };
    let next = AtomicUsize::new(0);
    let work = || {
        let mut blocks = Blocks::default();
        loop {
            let task = next.fetch_add(1, Ordering::Relaxed);
            if task >= tiles * batch {
                break;
            }
            let (number, tile) = (task / tiles, task % tiles);
            let rows = span(tile % tiles_of(m), m);
            let one = One::new(product, number);
            if by_rows && !plain {
                one.rows(rows, &mut blocks);
            } else {
                let columns = if by_rows { (0, n) } else { span(tile / tiles_of(m), n) };
                if plain { one.plainly(rows, columns) } else { one.tile(rows, columns, &mut blocks) }
            }
        }
    };
    let workers = if m * n * k.max(1) * batch < WORTH_SHARING { 1 } else { threads.min(tiles * batch) };
    std::thread::scope(|scope| {
        for _ in 1..workers {
            scope.spawn(work);
        }
        work();
    });
}

fn span(tile: usize, size: usize) -> (usize, usize) {
    (tile * TILE, TILE.min(size - tile * TILE))
}

#[derive(Default)]
struct Blocks {
    a: Vec<f32>,
    b: Vec<f32>,
    c: Vec<f32>,
}

/// One matrix of a batch; element (row, column) of A is at `row * down + column * across`.
#[derive(Clone, Copy)]
struct View {
    at: u64,
    element: Element,
    down: usize,
    across: usize,
}

impl View {
    fn new(matrix: &Matrix, number: usize) -> Self {
        let at = matrix.at.wrapping_add_signed(number as i64 * matrix.stride * matrix.element.bytes() as i64);
        let (down, across) = if matrix.transposed { (matrix.leading, 1) } else { (1, matrix.leading) };
        Self { at, element: matrix.element, down, across }
    }

    fn place(self, row: usize, column: usize) -> u64 {
        self.at + (row * self.down + column * self.across) as u64 * self.element.bytes()
    }

    fn get(self, row: usize, column: usize) -> f64 {
        let at = self.place(row, column);
        // SAFETY: the product's ranges were checked, and addresses are aligned to elements; see `product`.
        unsafe {
            match self.element {
                Element::F32 => f64::from(*(at as *const f32)),
                Element::F64 => *(at as *const f64),
                Element::F16 => f64::from((*(at as *const f16)).to_f32()),
                Element::Bf16 => f64::from((*(at as *const bf16)).to_f32()),
            }
        }
    }

    /// Sets one element, rounding once.
    fn set(self, row: usize, column: usize, value: f64) {
        let at = self.place(row, column);
        // SAFETY: as above; each element of C belongs to one tile, and so to one thread.
        unsafe {
            match self.element {
                Element::F32 => *(at as *mut f32) = value as f32,
                Element::F64 => *(at as *mut f64) = value,
                Element::F16 => *(at as *mut f16) = f16::from_f64(value),
                Element::Bf16 => *(at as *mut bf16) = bf16::from_f64(value),
            }
        }
    }

    /// Contiguous elements starting at (row, column), as f32.
    fn contiguous(self, row: usize, column: usize, out: &mut [f32]) {
        let at = self.place(row, column);
        // SAFETY: as above; the caller stays within a row or a column.
        unsafe {
            match self.element {
                Element::F32 => out.copy_from_slice(std::slice::from_raw_parts(at as *const f32, out.len())),
                Element::F16 => {
                    std::slice::from_raw_parts(at as *const f16, out.len()).convert_to_f32_slice(out)
                }
                Element::Bf16 => {
                    let halves = std::slice::from_raw_parts(at as *const u16, out.len());
                    for (out, half) in out.iter_mut().zip(halves) {
                        *out = f32::from_bits(u32::from(*half) << 16);
                    }
                }
                Element::F64 => {
                    let doubles = std::slice::from_raw_parts(at as *const f64, out.len());
                    for (out, double) in out.iter_mut().zip(doubles) {
                        *out = *double as f32;
                    }
                }
            }
        }
    }

    /// Packs `rows` × `columns` starting at (row, column) into panels of `width` rows; element (i, p) of a panel is at `p * width + i`.
    /// The last panel is padded with 0.
    fn pack(
        self,
        (row, rows): (usize, usize),
        (column, columns): (usize, usize),
        width: usize,
        out: &mut Vec<f32>,
    ) {
        let panels = rows.div_ceil(width);
        out.clear();
        out.resize(panels * width * columns, 0.0);
        let mut line = [0.0; DEPTH];
        if self.across == 1 {
            for i in 0..rows {
                let line = &mut line[..columns];
                self.contiguous(row + i, column, line);
                let panel = &mut out[i / width * width * columns..];
                for (p, value) in line.iter().enumerate() {
                    panel[p * width + i % width] = *value;
                }
            }
        } else {
            for p in 0..columns {
                let line = &mut line[..rows];
                self.contiguous(row, column + p, line);
                for (panel, values) in line.chunks(width).enumerate() {
                    out[(panel * columns + p) * width..][..values.len()].copy_from_slice(values);
                }
            }
        }
    }
}

struct One<'a> {
    product: &'a Product,
    a: View,
    b: View,
    c: View,
}

impl<'a> One<'a> {
    fn new(product: &'a Product, number: usize) -> Self {
        let [a, b, c] = [&product.a, &product.b, &product.c].map(|matrix| View::new(matrix, number));
        Self { product, a, b, c }
    }

    fn finish(&self, row: usize, column: usize, sum: f64) {
        let Product { alpha, beta, .. } = *self.product;
        // With beta 0 the old value, which may be NaN, is not read.
        let old = if beta == 0.0 { 0.0 } else { beta * self.c.get(row, column) };
        self.c.set(row, column, alpha * sum + old);
    }

    fn tile(&self, rows: (usize, usize), columns: (usize, usize), blocks: &mut Blocks) {
        let panels = (rows.1.div_ceil(ROWS), columns.1.div_ceil(COLUMNS));
        blocks.c.clear();
        blocks.c.resize(panels.0 * panels.1 * ROWS * COLUMNS, 0.0);
        let transposed = View { down: self.b.across, across: self.b.down, ..self.b };
        let mut start = 0;
        while start < self.product.k {
            let depth = DEPTH.min(self.product.k - start);
            self.a.pack(rows, (start, depth), ROWS, &mut blocks.a);
            transposed.pack(columns, (start, depth), COLUMNS, &mut blocks.b);
            for (j, b) in blocks.b.chunks_exact(COLUMNS * depth).enumerate() {
                for (i, a) in blocks.a.chunks_exact(ROWS * depth).enumerate() {
                    let c = &mut blocks.c[(j * panels.0 + i) * ROWS * COLUMNS..][..ROWS * COLUMNS];
                    multiply_panels(a, b, c);
                }
            }
            start += depth;
        }
        for j in 0..columns.1 {
            for i in 0..rows.1 {
                let panel = (j / COLUMNS * panels.0 + i / ROWS) * ROWS * COLUMNS;
                let sum = blocks.c[panel + j % COLUMNS * ROWS + i % ROWS];
                self.finish(rows.0 + i, columns.0 + j, f64::from(sum));
            }
        }
    }

    fn rows(&self, (row, rows): (usize, usize), blocks: &mut Blocks) {
        let Product { n, k, .. } = *self.product;
        blocks.b.resize(n * k, 0.0);
        for j in 0..n {
            let column = &mut blocks.b[j * k..][..k];
            if self.b.down == 1 {
                self.b.contiguous(0, j, column);
            } else {
                for (p, value) in column.iter_mut().enumerate() {
                    *value = self.b.get(p, j) as f32;
                }
            }
        }
        blocks.a.resize(DEPTH, 0.0);
        for i in row..row + rows {
            let mut sums = [0.0; FEW];
            let mut start = 0;
            while start < k {
                let depth = DEPTH.min(k - start);
                let a = &mut blocks.a[..depth];
                self.a.contiguous(i, start, a);
                for (j, sum) in sums[..n].iter_mut().enumerate() {
                    *sum += dot(a, &blocks.b[j * k + start..][..depth]);
                }
                start += depth;
            }
            for (j, sum) in sums[..n].iter().enumerate() {
                self.finish(i, j, f64::from(*sum));
            }
        }
    }

    fn plainly(&self, (row, rows): (usize, usize), (column, columns): (usize, usize)) {
        for j in column..column + columns {
            for i in row..row + rows {
                let terms = (0..self.product.k).map(|p| self.a.get(i, p) * self.b.get(p, j));
                let sum = match self.product.sums {
                    // A product of two f16 is exact in f64; the sum is rounded once, to f16.
                    Sums::F16 => terms.fold(0.0, |sum, term| f16::from_f64(sum + term).to_f64()),
                    Sums::F32 | Sums::F64 => terms.sum(),
                };
                self.finish(i, j, sum);
            }
        }
    }
}

fn multiply_panels(a: &[f32], b: &[f32], c: &mut [f32]) {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2,fma")]
        fn fused(a: &[f32], b: &[f32], c: &mut [f32]) {
            panels(a, b, c, |x, y, sum| x.mul_add(y, sum));
        }
        if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma") {
            // SAFETY: the processor has both.
            return unsafe { fused(a, b, c) };
        }
    }
    panels(a, b, c, |x, y, sum| x * y + sum);
}

#[inline(always)]
fn panels(a: &[f32], b: &[f32], c: &mut [f32], multiply_add: impl Fn(f32, f32, f32) -> f32) {
    let mut sums = [[0.0_f32; ROWS]; COLUMNS];
    for (a, b) in a.chunks_exact(ROWS).zip(b.chunks_exact(COLUMNS)) {
        for (sums, y) in sums.iter_mut().zip(b) {
            for (sum, x) in sums.iter_mut().zip(a) {
                *sum = multiply_add(*x, *y, *sum);
            }
        }
    }
    for (c, sum) in c.iter_mut().zip(sums.iter().flatten()) {
        *c += sum;
    }
}

/// Lanes are added in a fixed order.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2,fma")]
        fn fused(a: &[f32], b: &[f32]) -> f32 {
            lanes(a, b, |x, y, sum| x.mul_add(y, sum))
        }
        if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma") {
            // SAFETY: the processor has both.
            return unsafe { fused(a, b) };
        }
    }
    lanes(a, b, |x, y, sum| x * y + sum)
}

#[inline(always)]
fn lanes(a: &[f32], b: &[f32], multiply_add: impl Fn(f32, f32, f32) -> f32) -> f32 {
    let mut sums = [0.0_f32; LANES];
    let (whole_a, rest_a) = a.as_chunks::<LANES>();
    let (whole_b, rest_b) = b.as_chunks::<LANES>();
    for (a, b) in whole_a.iter().zip(whole_b) {
        for ((sum, x), y) in sums.iter_mut().zip(a).zip(b) {
            *sum = multiply_add(*x, *y, *sum);
        }
    }
    for ((sum, x), y) in sums.iter_mut().zip(rest_a).zip(rest_b) {
        *sum = multiply_add(*x, *y, *sum);
    }
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            sums[lane] += sums[lane + width];
        }
        width /= 2;
    }
    sums[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(seed: usize) -> f64 {
        // Few bits, so that f16 and bf16 hold it exactly.
        ((seed.wrapping_mul(2_654_435_761) >> 7) % 63) as f64 / 16.0 - 2.0
    }

    /// A column-major matrix whose leading dimension exceeds its rows.
    fn matrix(
        element: Element,
        rows: usize,
        columns: usize,
        transposed: bool,
        batch: usize,
    ) -> (Vec<u64>, Matrix) {
        let (stored, lines) = if transposed { (columns, rows) } else { (rows, columns) };
        let leading = stored + 3;
        let stride = leading * lines + 5;
        let mut memory = vec![0_u64; (stride * batch * 8).div_ceil(8)];
        let matrix =
            Matrix { at: memory.as_mut_ptr() as u64, element, transposed, leading, stride: stride as i64 };
        for number in 0..batch {
            let view = View::new(&matrix, number);
            for row in 0..rows {
                for column in 0..columns {
                    view.set(row, column, value(number * 7919 + row * 131 + column));
                }
            }
        }
        (memory, matrix)
    }

    fn check(element: Element, sums: Sums, sizes: [usize; 4], transposed: [bool; 2], tolerance: f64) {
        let [m, n, k, batch] = sizes;
        let (_a, a) = matrix(element, m, k, transposed[0], batch);
        let (_b, b) = matrix(element, k, n, transposed[1], batch);
        let mut results = Vec::new();
        for threads in [1, 3] {
            let (memory, c) = matrix(element, m, n, false, batch);
            run(&Product { m, n, k, batch, alpha: 0.5, beta: 2.0, a, b, c, sums }, threads);
            for number in 0..batch {
                let [a, b, c] = [&a, &b, &c].map(|matrix| View::new(matrix, number));
                for i in 0..m {
                    for j in 0..n {
                        let sum: f64 = (0..k).map(|p| a.get(i, p) * b.get(p, j)).sum();
                        let size: f64 = (0..k).map(|p| (a.get(i, p) * b.get(p, j)).abs()).sum();
                        let expected = 0.5 * sum + 2.0 * value(number * 7919 + i * 131 + j);
                        let got = c.get(i, j);
                        let allowed = tolerance * (1.0 + size + expected.abs());
                        assert!(
                            (got - expected).abs() <= allowed,
                            "{sizes:?} {transposed:?} {i} {j}: {got} {expected}"
                        );
                    }
                }
            }
            results.push(memory);
        }
        assert_eq!(results[0], results[1], "{sizes:?}: bits depend on the number of threads");
    }

    #[test]
    fn products_agree_with_their_definition_for_ragged_shapes_and_any_number_of_threads() {
        for transposed in [[false, false], [true, false], [false, true], [true, true]] {
            for sizes in [
                [1, 1, 1, 1],
                [5, 3, 7, 2],
                [17, 1, 300, 1],
                [130, 4, 259, 1],
                [131, 133, 7, 2],
                [9, 130, 270, 1],
                [3, 2, 0, 1],
            ] {
                check(Element::F32, Sums::F32, sizes, transposed, 1e-6);
                check(Element::Bf16, Sums::F32, sizes, transposed, 4e-3);
                check(Element::F16, Sums::F32, sizes, transposed, 5e-4);
            }
            for sizes in [[5, 3, 7, 2], [131, 2, 40, 1]] {
                check(Element::F64, Sums::F64, sizes, transposed, 1e-14);
                check(Element::F16, Sums::F16, sizes, transposed, 0.2);
            }
        }
    }

    #[test]
    fn what_beta_zero_overwrites_may_be_nan() {
        let (_a, a) = matrix(Element::F32, 2, 2, false, 1);
        let (_c, c) = matrix(Element::F32, 2, 2, false, 1);
        View::new(&c, 0).set(1, 1, f64::NAN);
        run(&Product { m: 2, n: 2, k: 2, batch: 1, alpha: 1.0, beta: 0.0, a, b: a, c, sums: Sums::F32 }, 1);
        assert!(View::new(&c, 0).get(1, 1).is_finite());
    }

    #[test]
    fn sums_in_f16_lose_what_f16_loses() {
        // 2048 + 1 is 2048 in f16: each 1 is lost, though their sum would not be.
        let mut ones = [f16::from_f32(1.0); 9];
        ones[0] = f16::from_f32(2048.0);
        let mut c = f16::from_f32(0.0);
        let of = |at: u64| Matrix { at, element: Element::F16, transposed: false, leading: 1, stride: 0 };
        let unit = [f16::from_f32(1.0); 9];
        let a = of(ones.as_ptr() as u64);
        let b = Matrix { leading: 9, ..of(unit.as_ptr() as u64) };
        let mut product = Product {
            m: 1,
            n: 1,
            k: 9,
            batch: 1,
            alpha: 1.0,
            beta: 0.0,
            a,
            b,
            c: of(&raw mut c as u64),
            sums: Sums::F16,
        };
        run(&product, 1);
        assert_eq!(c.to_f32(), 2048.0);
        product.sums = Sums::F32;
        run(&product, 1);
        assert_eq!(c.to_f32(), 2056.0);
    }
}
