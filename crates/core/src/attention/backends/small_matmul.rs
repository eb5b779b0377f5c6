//! Single-threaded products of small strided f32 matrices by the `gemm` crate, for the delta rule's CPU kernel.

pub struct Matrix<'a> {
    pub data: &'a [f32],
    pub row_stride: usize,
    pub col_stride: usize,
}

impl Matrix<'_> {
    /// True if a (rows, cols) matrix fits the slice.
    fn holds(&self, rows: usize, cols: usize) -> bool {
        rows == 0
            || cols == 0
            || (rows - 1) * self.row_stride + (cols - 1) * self.col_stride < self.data.len()
    }
}

/// `out` (m, n), row-major, = (or += if `add`) `a` (m, k) times `b` (k, n).
pub fn product(out: &mut [f32], (m, n, k): (usize, usize, usize), a: &Matrix<'_>, b: &Matrix<'_>, add: bool) {
    assert!(
        out.len() >= m * n && a.holds(m, k) && b.holds(k, n),
        "This is a bug: a matrix product of ({m}, {n}, {k}) reaches outside its slices"
    );
    // SAFETY: the assertion above keeps every element that gemm touches (rows < m, n, k of the given strides) inside
    // the three slices, `out` is borrowed mutably and so overlaps neither input, and f32 is the type of all three.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            out.as_mut_ptr(),
            1,
            n as isize,
            add,
            a.data.as_ptr(),
            a.col_stride as isize,
            a.row_stride as isize,
            b.data.as_ptr(),
            b.col_stride as isize,
            b.row_stride as isize,
            1.0,
            1.0,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
}
