//! The outputs of a tile, wherever they lie.

/// Outputs of a panel.
pub const PANEL: usize = 32;

/// The place of a tile's outputs: rows of `stride` numbers, from a column on. Outputs that a row has not are left out.
pub struct Target<'a> {
    pub y: &'a mut [f32],
    pub stride: usize,
    pub column: usize,
}

impl Target<'_> {
    /// The place so many rows below and so many outputs after this one.
    pub fn from(&mut self, rows: usize, outputs: usize) -> Target<'_> {
        Target { y: &mut self.y[rows * self.stride..], stride: self.stride, column: self.column + outputs }
    }

    /// Writes outputs of a row from `offset` outputs after the column on.
    #[inline(always)]
    pub fn write(&mut self, row: usize, offset: usize, values: &[f32]) {
        let from = (self.column + offset).min(self.stride);
        let to = (from + values.len()).min(self.stride);
        self.y[row * self.stride + from..row * self.stride + to].copy_from_slice(&values[..to - from]);
    }
}
