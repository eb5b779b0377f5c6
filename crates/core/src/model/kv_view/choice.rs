//! The choice of keys by an indexer, for its layer and those that share it.

use std::ops::Range;

use candle_core::{Result, Tensor};

use super::super::cache::runs;
use super::super::layers::Indexed;
use super::{Choice, KvView};
use crate::attention::Holes;
use crate::bfloat;

impl KvView<'_> {
    /// Appends an indexer's keys, (l, width), to the cache of the first of `layers` and chooses among all for each row and layer.
    pub fn choose(&mut self, layers: &Range<usize>, indexed: &Indexed, keys: &Tensor) -> Result<Choice> {
        let (layer, dtype, l) = (layers.start, self.cache_dtype(), indexed.rows()?);
        // Cache layout: (1, position, width), in the cache's dtype.
        let keys = bfloat::to_dtype(keys, dtype.unwrap_or(keys.dtype()))?.unsqueeze(0)?;
        let of = |rows: Range<usize>, offset: usize, keys: &Tensor, holes: &dyn Fn(usize) -> Holes| {
            indexed.unchosen(rows, offset, keys, &layers.clone().map(holes).collect::<Vec<_>>())
        };
        let parts = match self {
            KvView::Sequence { cache, pass } => {
                let seen = cache.append_index(layer, &keys)?;
                vec![of(0..l, cache.len(), &seen, &|layer| pass.holes(layer))?]
            }
            KvView::Variants { cache, holes } => {
                let own = l / holes.len();
                let readings = holes.iter().enumerate().map(|(nth, holes)| {
                    // Each reading overwrites the previous one.
                    let seen = cache.append_index(layer, &keys.narrow(1, nth * own, own)?)?;
                    of(nth * own..(nth + 1) * own, cache.len(), &seen, &|layer| holes.of(layer))
                });
                readings.collect::<Result<_>>()?
            }
            KvView::Rows { cache, positions } => {
                // All of the pass's rows first: later ones see them.
                cache.write_index_rows(layer, positions, &keys)?;
                let mut first = 0;
                let runs = runs(positions).into_iter().map(|run| {
                    let rows = first..first + run.len();
                    first = rows.end;
                    of(rows, run.start, &cache.index_before(layer, run.end)?, &|_| Holes::default())
                });
                runs.collect::<Result<_>>()?
            }
            KvView::Branches { groups } => {
                let mut parts = Vec::with_capacity(l);
                for (trunk, rows) in groups {
                    for (branch, pass) in rows {
                        let (row, offset, start) = (parts.len(), branch.tokens(), branch.start());
                        let own = branch.own().append_index(layer, &keys.narrow(1, row, 1)?)?;
                        let seen = match start {
                            // Devices have no empty allocations.
                            0 => own,
                            _ => Tensor::cat(&[&trunk.index_before(layer, start)?, &own], 1)?,
                        };
                        parts.push(of(row..row + 1, offset, &seen, &|layer| pass.holes(layer))?);
                    }
                }
                parts
            }
        };
        Ok(Choice { first: layer, parts })
    }
}
