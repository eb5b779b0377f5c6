//! A call of a kernel: one for each layer and chunk.

use candle_core::{Result, Tensor};

use super::site::Hidden;
use super::{Holes, Site};

/// Rows that attend, and the keys that they may see.
pub(super) struct Call<'a> {
    /// (tails * rows, heads, head_dim): the last positions of each tail.
    pub q: &'a Tensor,
    /// Keys and values that all see, (kv_heads, base, head_dim) each.
    pub prefix: Option<(&'a Tensor, &'a Tensor)>,
    /// Each sequence's own keys and values, (kv_heads, n, head_dim) each.
    pub tails: Vec<(&'a Tensor, &'a Tensor)>,
    /// Rows of a tail.
    pub rows: usize,
    /// `offset` is where the tails begin; `hidden` has the holes.
    pub site: Site,
    /// The position of each row.
    pub positions: Vec<usize>,
    pub hidden: Hidden,
    /// The borders of the segments that each tail's only row is asked to sum its weights over; no tail where nobody asks.
    pub borders: Vec<Option<Vec<usize>>>,
}

/// The output, (tails * rows, heads, head_dim), and the sums that tails were asked for, (heads, 1 + segments) each. A kernel that
/// hands out no weights gives none.
pub(super) type Attended = (Tensor, Vec<Option<Tensor>>);

impl<'a> Call<'a> {
    /// Of `rows` rows for each of the tails, which begin at position `site.offset`, each with its holes; nobody asks for sums.
    ///
    /// # Errors
    /// A row that would see nothing.
    pub fn new(
        q: &'a Tensor,
        prefix: Option<(&'a Tensor, &'a Tensor)>,
        tails: Vec<(&'a Tensor, &'a Tensor)>,
        rows: usize,
        site: &Site,
        holes: &[&Holes],
    ) -> Result<Self> {
        let mut positions = Vec::with_capacity(rows * tails.len());
        for (k, _) in &tails {
            let end = site.offset + k.dim(1)?;
            positions.extend(end - rows..end);
        }
        let hidden = Hidden::of(positions.iter().enumerate().map(|(row, at)| (holes[row / rows], *at)));
        for (row, position) in positions.iter().enumerate().filter(|_| !hidden.is_empty()) {
            site.check_row(*position, hidden.row(row))?;
        }
        let site = Site { holes: Holes::default(), ..site.clone() };
        Ok(Call { q, prefix, tails, rows, site, positions, hidden, borders: Vec::new() })
    }

    /// The same with positions counted from the first key: causality and windows depend on distances alone. Borders before it move
    /// onto it: segments there are outside every window, and get nothing.
    pub fn relative(mut self) -> Self {
        let first = self.site.first_key;
        if first > 0 {
            self.positions.iter_mut().for_each(|position| *position -= first);
            let borders = self.borders.iter_mut().flatten().flatten();
            borders.for_each(|border| *border = border.saturating_sub(first));
            self.hidden = self.hidden.counted_from(first);
            self.site = self.site.relative();
        }
        self
    }
}
