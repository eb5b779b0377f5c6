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
        // Rows that see keys outside their window: holes take the window's place.
        let lifted = site.window.filter(|_| holes.iter().any(|holes| holes.shows()));
        if lifted.is_some() && site.first_key > 0 {
            candle_core::bail!(
                "This is a bug: layer {} shows keys outside its window, and its cache begins at {}",
                site.layer,
                site.first_key
            );
        }
        let window = site.window.filter(|_| lifted.is_none());
        let site = Site { window, holes: Holes::default(), ..site.clone() };
        let of_rows = positions.iter().enumerate().map(|(row, at)| (holes[row / rows], *at));
        let hidden = Hidden::of(of_rows, lifted);
        for (row, position) in positions.iter().enumerate().filter(|_| !hidden.is_empty()) {
            site.check_row(*position, hidden.row(row))?;
        }
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

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};

    use super::super::{Hole, NoObserver, Sinks, Tail, run, run_after};
    use super::*;

    const HEADS: usize = 4;
    const D: usize = 8;

    fn numbers(x: &Tensor) -> Vec<f64> {
        x.to_dtype(DType::F64).and_then(|x| x.flatten_all()?.to_vec1()).unwrap()
    }

    /// Rows see what is shown beside their window; a hole hides some of both.
    fn sees(row: usize, key: usize, window: usize) -> bool {
        let shown = row >= 20 && ((2..6).contains(&key) || (4..9).contains(&key) || (25..27).contains(&key));
        let hidden = row >= 24 && (5..7).contains(&key);
        key <= row && (row - key < window || shown) && !hidden
    }

    #[test]
    fn rows_see_shown_keys_beside_their_window_by_the_definition() -> Result<()> {
        let device = &Device::Cpu;
        let keys = 30;
        let random = |shape: (usize, usize, usize)| Tensor::randn(0f32, 1.0, shape, device);
        let (q, k, v) = (random((keys, HEADS, D))?, random((2, keys, D))?, random((2, keys, D))?);
        let shown = |keys| Hole { rows: 20..usize::MAX, keys };
        let holes = Holes::of_shown(vec![shown(4..9), shown(2..6), shown(25..27)])
            .joined(&Holes::new(vec![Hole { rows: 24..usize::MAX, keys: 5..7 }]));
        assert_eq!((holes.first_row(), holes.before_row(20).is_empty()), (Some(20), true));
        for (window, sinks) in [(7, false), (7, true), (1, false), (40, false)] {
            let logits = (0..HEADS).map(|head| head as f32 - 1.0).collect();
            let sinks = if sinks { Some(Sinks::new(logits, device)?) } else { None };
            let site = Site { scale: 0.4, window: Some(window), sinks, ..Site::default() };
            let mut expected = Vec::new();
            let [of_q, of_k, of_v] = [&q, &k, &v].map(numbers);
            for row in 0..keys {
                for head in 0..HEADS {
                    let at = |key: usize| ((head / 2) * keys + key) * D;
                    let seen: Vec<usize> = (0..keys).filter(|key| sees(row, *key, window)).collect();
                    let score = |key: usize| -> f64 {
                        let pairs = of_q[(row * HEADS + head) * D..][..D].iter().zip(&of_k[at(key)..]);
                        (f64::from(site.scale) * pairs.map(|(a, b)| a * b).sum::<f64>()).exp()
                    };
                    let sink = site.sinks.as_ref().map_or(0.0, |sinks| f64::from(sinks.logits()[head]).exp());
                    let total = sink + seen.iter().map(|key| score(*key)).sum::<f64>();
                    for i in 0..D {
                        expected.push(
                            seen.iter().map(|key| score(*key) / total * of_v[at(*key) + i]).sum::<f64>(),
                        );
                    }
                }
            }
            let agree = |found: &Tensor, first: usize| {
                let pairs = numbers(found).into_iter().zip(&expected[first * HEADS * D..]);
                let worst = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
                assert!(worst < 1e-5, "window {window}, from row {first}: off by {worst:e}");
            };
            for first in [0, 17, 29] {
                let site = Site { offset: first, holes: holes.clone(), ..site.clone() };
                agree(&run(&q.narrow(0, first, keys - first)?, &k, &v, &site, &mut NoObserver)?, first);
            }
            // The last rows of a sequence behind a prefix.
            let (tail_k, tail_v) = (k.narrow(1, 18, 12)?, v.narrow(1, 18, 12)?);
            let (base_k, base_v) = (k.narrow(1, 0, 18)?, v.narrow(1, 0, 18)?);
            let mut tail = [Tail { k: &tail_k, v: &tail_v, holes: holes.clone(), observer: None }];
            let site = Site { offset: 18, ..site };
            agree(&run_after(&q.narrow(0, 26, 4)?, (&base_k, &base_v), &mut tail, 4, &site)?, 26);
            // A cache that dropped keys cannot show them.
            let site =
                Site { offset: 29, first_key: 29, window: Some(1), holes: holes.clone(), ..Site::default() };
            let (own_k, own_v) = (k.narrow(1, 29, 1)?, v.narrow(1, 29, 1)?);
            let refused = run(&q.narrow(0, 29, 1)?, &own_k, &own_v, &site, &mut NoObserver);
            assert!(refused.unwrap_err().to_string().contains("its cache begins at 29"));
        }
        Ok(())
    }

    #[test]
    fn a_window_that_holds_all_gives_the_bits_of_what_shows_all() -> Result<()> {
        let device = &Device::Cpu;
        let random = |shape: (usize, usize, usize)| Tensor::randn(0f32, 1.0, shape, device);
        let (q, k, v) = (random((600, HEADS, D))?, random((2, 600, D))?, random((2, 600, D))?);
        let plain = Site { scale: 0.4, window: Some(600), ..Site::default() };
        let shown = Holes::of_shown(vec![Hole { rows: 500..usize::MAX, keys: 0..550 }]);
        let showing = Site { holes: shown, ..plain.clone() };
        let bits = |site: &Site| -> Result<Vec<u32>> {
            let out = run(&q, &k, &v, site, &mut NoObserver)?.flatten_all()?.to_vec1::<f32>()?;
            Ok(out.into_iter().map(f32::to_bits).collect())
        };
        assert_eq!(bits(&plain)?, bits(&showing)?);
        Ok(())
    }
}
