//! Arguments of one kernel call, per layer and chunk.

use candle_core::{Result, Tensor};

use super::site::Hidden;
use super::{Holes, Site};

pub(super) struct Call<'a> {
    /// (tails * rows, heads, head_dim): the last positions of each tail.
    pub q: &'a Tensor,
    /// Keys and values shared by all tails, each (kv_heads, base, head_dim).
    pub prefix: Option<(&'a Tensor, &'a Tensor)>,
    /// Each sequence's own keys and values, each (kv_heads, n, head_dim).
    pub tails: Vec<(&'a Tensor, &'a Tensor)>,
    pub rows: usize,
    /// `offset`: where the tails begin. Holes are in `hidden`.
    pub site: Site,
    pub positions: Vec<usize>,
    pub hidden: Hidden,
    /// Per tail: borders of the segments over which its only row sums its weights. Empty if no tail asks.
    pub borders: Vec<Option<Vec<usize>>>,
}

/// (tails * rows, heads, head_dim), and the requested segment sums per tail, (heads, 1 + segments). Kernels that do not expose
/// weights return no sums.
pub(super) type Attended = (Tensor, Vec<Option<Tensor>>);

impl<'a> Call<'a> {
    /// `rows` rows per tail, without segment sums; tails begin at position `site.offset`. Returns an error if a row sees no key.
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

    /// Makes positions relative to the first key; causality and windows depend on distances alone. Earlier borders move onto the first
    /// key: segments before it are outside every window and sum to 0.
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
