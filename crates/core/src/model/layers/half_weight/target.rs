//! Output location of a tile.

/// Outputs per panel.
pub const PANEL: usize = 32;

/// Rows of `stride` numbers, from a column on. Outputs past the end of a row are dropped.
pub struct Target<'a> {
    pub y: &'a mut [f32],
    pub stride: usize,
    pub column: usize,
}

impl Target<'_> {
    /// The location offset by `rows` and `outputs`.
    pub fn from(&mut self, rows: usize, outputs: usize) -> Target<'_> {
        Target { y: &mut self.y[rows * self.stride..], stride: self.stride, column: self.column + outputs }
    }

    #[inline(always)]
    pub fn write(&mut self, row: usize, offset: usize, values: &[f32]) {
        let from = (self.column + offset).min(self.stride);
        let to = (from + values.len()).min(self.stride);
        self.y[row * self.stride + from..row * self.stride + to].copy_from_slice(&values[..to - from]);
    }
}
