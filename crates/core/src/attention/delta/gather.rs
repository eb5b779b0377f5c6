//! Segment sums for the CPU kernel.

use std::ops::Range;

#[derive(Debug, Clone)]
pub(super) struct HeadSums {
    signed: Vec<f64>,
    /// `[segment][row]`
    sizes: Vec<f64>,
    /// Per row: summed |weight| over all keys, inside segments or not.
    totals: Vec<f64>,
    /// `[segment][row]`: the terms of `signed`. Empty unless requested by row.
    signed_by_row: Vec<f64>,
}

impl HeadSums {
    pub fn new(segments: usize, rows: usize, by_row: bool) -> Self {
        HeadSums {
            signed: vec![0.0; segments],
            sizes: vec![0.0; segments * rows],
            totals: vec![0.0; rows],
            signed_by_row: vec![0.0; if by_row { segments * rows } else { 0 }],
        }
    }

    pub fn rows(&self) -> usize {
        self.totals.len()
    }

    pub fn add_one(&mut self, segment: Option<usize>, row: usize, signed: f32, size: f32) {
        let rows = self.rows();
        self.totals[row] += f64::from(size);
        if let Some(segment) = segment {
            self.signed[segment] += f64::from(signed);
            if let Some(sum) = self.signed_by_row.get_mut(segment * rows + row) {
                *sum += f64::from(signed);
            }
            self.sizes[segment * rows + row] += f64::from(size);
        }
    }

    /// Adds the weights (rows, m), row-major, of the rows from `first` on over the keys `at..at + m`.
    pub fn add(&mut self, weights: &[f32], m: usize, at: usize, first: usize, bounds: &[usize]) {
        for (segment, keys) in pieces(bounds, at..at + m) {
            for (row, weights) in weights.chunks_exact(m).enumerate() {
                let (signed, size) = sums(&weights[keys.start - at..keys.end - at]);
                self.add_one(segment, first + row, signed, size);
            }
        }
    }

    pub fn signed(&self, segment: usize) -> f64 {
        self.signed[segment]
    }

    /// Segment share summed over rows; 0 for rows whose weights are all 0.
    pub fn share(&self, segment: usize) -> f64 {
        (0..self.rows()).map(|row| self.share_of(segment, row)).sum()
    }

    pub fn share_of(&self, segment: usize, row: usize) -> f64 {
        let (size, total) = (self.sizes[segment * self.rows() + row], self.totals[row]);
        if total == 0.0 { 0.0 } else { size / total }
    }

    pub fn signed_of(&self, segment: usize, row: usize) -> f64 {
        self.signed_by_row.get(segment * self.rows() + row).copied().unwrap_or(0.0)
    }
}

/// Splits the keys `range` at the ascending segment borders `bounds`; last piece first.
pub(super) fn pieces(bounds: &[usize], range: Range<usize>) -> Vec<(Option<usize>, Range<usize>)> {
    let mut pieces = Vec::new();
    let mut end = range.end;
    while end > range.start {
        let border = bounds.partition_point(|&b| b < end);
        let segment = border.checked_sub(1).filter(|s| s + 1 < bounds.len());
        let start = border.checked_sub(1).map_or(range.start, |b| bounds[b].max(range.start));
        pieces.push((segment, start..end));
        end = start;
    }
    pieces
}

/// Sum and sum of absolute values, in 16 lanes each.
fn sums(values: &[f32]) -> (f32, f32) {
    const LANES: usize = 16;
    let (mut signed, mut sizes) = ([0f32; LANES], [0f32; LANES]);
    let (chunks, rest) = values.as_chunks::<LANES>();
    for chunk in chunks {
        for i in 0..LANES {
            signed[i] += chunk[i];
            sizes[i] += chunk[i].abs();
        }
    }
    for (i, x) in rest.iter().enumerate() {
        signed[i] += x;
        sizes[i] += x.abs();
    }
    (signed.iter().sum(), sizes.iter().sum())
}
