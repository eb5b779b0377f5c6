//! Attention over the keys that a cache eviction kept.
//!
//! Each key/value head has kept keys of its own, so each is a call of its own, with its kept keys as the prefix of the later ones. Kernels
//! see consecutive keys: causality holds because every kept key is before every row, and layers that evict have no window.

use std::ops::Range;

use candle_core::{Result, Tensor};

use super::backends::{self, RowSums};
use super::call::Call;
use super::kept::Kept;
use super::{Event, Holes, Observer, Point, Sinks, Site};

/// Segment sums of rows, some of which may come after an eviction; others see all keys.
pub(super) fn segment_sums(q: &Tensor, k: &Tensor, of: &RowSums<'_>) -> Result<Tensor> {
    let Some(kept) = of.site.holes.kept() else { return backends::segment_sums(q, k, of) };
    let open = Site { holes: Holes::default(), ..of.site.clone() };
    let plain =
        |rows: Range<usize>| backends::segment_sums(q, k, &RowSums { site: &open, rows, bounds: of.bounds });
    let border = kept.from.saturating_sub(of.site.offset).clamp(of.rows.start, of.rows.end);
    let later = RowSums { rows: border..of.rows.end, ..*of };
    match (border > of.rows.start, border < of.rows.end) {
        (true, true) => plain(of.rows.start..border)? + kept.segment_sums(q, k, &later)?,
        (true, false) => plain(of.rows.clone()),
        (false, _) => kept.segment_sums(q, k, &later),
    }
}

impl Kept {
    /// The part of a call that head `head` answers: its query heads, and its settings, by which the first row is the `rows`th to last of
    /// the kept keys and `own` later ones.
    fn of_head(&self, head: usize, q: &Tensor, site: &Site, own: usize) -> Result<(Tensor, Site)> {
        let (rows, heads, _) = q.dims3()?;
        if !heads.is_multiple_of(self.heads.len().max(1)) || site.window.is_some() || site.first_key > 0 {
            candle_core::bail!(
                "This is a bug: an eviction from {} heads at layer {}, which has {heads} query heads and window {:?}",
                self.heads.len(),
                site.layer,
                site.window
            );
        }
        let group = heads / self.heads.len();
        let sinks = site.sinks.as_ref().map(|sinks| {
            let logits = sinks.logits().get(head * group..(head + 1) * group).unwrap_or_default();
            Sinks::new(logits.to_vec(), q.device())
        });
        let offset = self.heads[head].positions.len() + own - rows;
        let site = Site { offset, holes: Holes::default(), sinks: sinks.transpose()?, ..site.clone() };
        Ok((q.narrow(1, head * group, group)?.contiguous()?, site))
    }

    /// [`super::run`] for rows that are all from [`Kept::from`] on. `own`: the keys and values from there on, each
    /// (kv_heads, n, head_dim); the rows are the last ones.
    pub(crate) fn attend(
        &self,
        q: &Tensor,
        own: [&Tensor; 2],
        site: &Site,
        observer: &mut dyn Observer,
    ) -> Result<Tensor> {
        let (rows, n) = (q.dim(0)?, own[0].dim(1)?);
        let row = Site { offset: self.from + n - rows, ..site.clone() };
        let asked =
            observer.wants(Point::Attention(&row)).segments.filter(|_| rows == 1).map(<[usize]>::to_vec);
        let (mut outs, mut sums) = (Vec::new(), Vec::new());
        for (nth, head) in self.heads.iter().enumerate() {
            let (q, site) = self.of_head(nth, q, site, n)?;
            let borders = asked.as_ref().map(|asked| head.borders(asked, self.from));
            let tail = |own: &Tensor| own.narrow(0, nth, 1)?.contiguous();
            let together = rows > 1 && !backends::plain(q.device(), q.dtype()).takes_rows_after_prefix();
            let (prefix, [k, v], begin) = match together {
                true => (None, [head.with(&head.k, own[0], nth)?, head.with(&head.v, own[1], nth)?], 0),
                false => (Some((&head.k, &head.v)), [tail(own[0])?, tail(own[1])?], head.positions.len()),
            };
            let tails = Site { offset: begin, ..site.clone() };
            let mut call = Call::new(&q, prefix, vec![(&k, &v)], rows, &tails, &[&Holes::default()])?;
            if borders.is_some() {
                call.borders = vec![borders.clone()];
            }
            let (out, mut weights) = backends::of_forward(&call)?.attend(call)?;
            outs.push(out);
            if let Some(borders) = borders {
                sums.push(match weights.pop().flatten() {
                    Some(weights) => weights,
                    // The kernel exposes no weights.
                    None => {
                        let k = head.with(&head.k, own[0], nth)?;
                        backends::segment_sums(
                            &q,
                            &k,
                            &RowSums { site: &site, rows: 0..1, bounds: &borders },
                        )?
                    }
                });
            }
        }
        if !sums.is_empty() {
            observer.observe(Event::Weights { site: &row, sums: &Tensor::cat(&sums, 0)? })?;
        }
        Tensor::cat(&outs, 1)
    }

    /// Segment sums of rows that are all from [`Kept::from`] on, over `k` (kv_heads, keys, head_dim) from position 0 on.
    fn segment_sums(&self, q: &Tensor, k: &Tensor, of: &RowSums<'_>) -> Result<Tensor> {
        let (rows, end) = (of.rows.len(), of.site.offset + of.rows.end);
        let q = q.narrow(0, of.rows.start, rows)?;
        let own = k.narrow(1, self.from, end - self.from)?;
        let sums = self.heads.iter().enumerate().map(|(nth, head)| {
            let (q, site) = self.of_head(nth, &q, of.site, end - self.from)?;
            let bounds = head.borders(of.bounds, self.from);
            let k = head.with(&head.k, &own, nth)?;
            backends::segment_sums(&q, &k, &RowSums { site: &site, rows: 0..rows, bounds: &bounds })
        });
        Tensor::cat(&sums.collect::<Result<Vec<_>>>()?, 0)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use candle_core::{DType, Device};

    use super::*;
    use crate::attention::{KeptHead, Wanted, run};

    const FROM: usize = 40;
    const HEADS: usize = 6;
    const D: usize = 16;
    /// Segments that begin and end among evicted, kept and later keys.
    const BORDERS: [usize; 5] = [0, 7, 21, 43, 46];

    #[derive(Default)]
    struct Sums(Option<Tensor>);

    impl Observer for Sums {
        fn wants(&self, _: Point<'_>) -> Wanted<'_> {
            Wanted { segments: Some(&BORDERS), ..Wanted::default() }
        }

        fn observe(&mut self, event: Event<'_>) -> Result<()> {
            if let Event::Weights { sums, .. } = event {
                self.0 = Some(sums.clone());
            }
            Ok(())
        }
    }

    fn numbers(x: &Tensor) -> Vec<f64> {
        x.to_dtype(DType::F64).and_then(|x| x.flatten_all()?.to_vec1()).unwrap()
    }

    /// Outputs [row][head][d] and weights on sink and segments [row][head][1 + segments], by the definition.
    fn plain(
        [q, k, v]: [&Tensor; 3],
        site: &Site,
        kept: &Kept,
        rows: std::ops::Range<usize>,
    ) -> (Vec<f64>, Vec<f64>) {
        let [q, k, v] = [q, k, v].map(numbers);
        let keys = k.len() / D / kept.heads.len();
        let (mut out, mut sums) = (Vec::new(), Vec::new());
        for row in rows {
            for head in 0..HEADS {
                let kv = head / (HEADS / kept.heads.len());
                let sees = |key: &usize| {
                    let known = kept.heads[kv].positions.contains(&(*key as u32));
                    *key <= row && (row < kept.from || *key >= kept.from || known)
                };
                let seen: Vec<usize> = (0..keys).filter(sees).collect();
                let at = ((row - site.offset) * HEADS + head) * D;
                let score = |key: usize| -> f64 {
                    let pairs = q[at..at + D].iter().zip(&k[(kv * keys + key) * D..]);
                    f64::from(site.scale) * pairs.map(|(a, b)| a * b).sum::<f64>()
                };
                let sink = site.sinks.as_ref().map_or(0.0, |sinks| f64::from(sinks.logits()[head]).exp());
                let sum: f64 = sink + seen.iter().map(|&key| score(key).exp()).sum::<f64>();
                let weight = |key: &usize| score(*key).exp() / sum;
                for i in 0..D {
                    out.push(seen.iter().map(|key| weight(key) * v[(kv * keys + key) * D + i]).sum());
                }
                sums.push(sink / sum);
                for pair in BORDERS.windows(2) {
                    let inside = seen.iter().filter(|key| (pair[0]..pair[1]).contains(*key));
                    sums.push(inside.map(weight).sum());
                }
            }
        }
        (out, sums)
    }

    fn agree(found: &[f64], expected: &[f64]) {
        assert_eq!(found.len(), expected.len());
        let worst = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(worst < 1e-5, "off by {worst:e}");
    }

    #[test]
    fn rows_see_the_kept_keys_of_their_head_and_later_ones_by_the_definition() -> Result<()> {
        let device = &Device::Cpu;
        for kv_heads in [1, 2, 3] {
            for (offset, l, sinks) in
                [(0, 46, false), (36, 10, true), (40, 6, true), (45, 1, true), (41, 1, false)]
            {
                let keys = offset + l;
                let random = |shape: (usize, usize, usize)| Tensor::randn(0f32, 1.0, shape, device);
                let q = random((l, HEADS, D))?;
                let (k, v) = (random((kv_heads, keys, D))?, random((kv_heads, keys, D))?);
                let head = |nth: usize| {
                    let positions: Vec<u32> = (0..FROM as u32)
                        .filter(|p| (p * 7 + nth as u32).is_multiple_of(2 + nth as u32))
                        .collect();
                    let places = Tensor::new(positions.as_slice(), device)?;
                    let of = |x: &Tensor| x.narrow(0, nth, 1)?.contiguous()?.index_select(&places, 1);
                    Ok(KeptHead { k: of(&k)?, v: of(&v)?, positions })
                };
                let heads = (0..kv_heads).map(head).collect::<Result<Vec<_>>>()?;
                let kept = Arc::new(Kept { from: FROM, heads });
                let logits = (0..HEADS).map(|head| head as f32 - 3.0).collect();
                let site = Site {
                    offset,
                    scale: 0.3,
                    sinks: if sinks { Some(Sinks::new(logits, device)?) } else { None },
                    holes: Holes::of_kept(Arc::clone(&kept)),
                    ..Site::default()
                };
                let mut observer = Sums::default();
                let found = run(&q, &k, &v, &site, &mut observer)?;
                let (out, sums) = plain([&q, &k, &v], &site, &kept, offset..keys);
                agree(&numbers(&found), &out);
                if l == 1 {
                    agree(&numbers(&observer.0.unwrap()), &sums);
                }
                // The rows' own pass sums over rows.
                let of = RowSums { site: &site, rows: 0..l, bounds: &BORDERS };
                let mut by_row = vec![0.0; HEADS * BORDERS.len()];
                for row in sums.chunks(by_row.len()) {
                    by_row.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
                }
                agree(&numbers(&segment_sums(&q, &k, &of)?), &by_row);
            }
        }
        Ok(())
    }
}
