//! The keys that indexers chose in a pass.

use std::collections::BTreeMap;

use candle_core::Result;
use palimpsest_core::attention::{Event, Observer, Point, Wanted};
use palimpsest_core::engine::Engine;

/// The keys that rows saw at layers with a choice, by layer, row and key: 1 where the row's attention has the key.
#[derive(Debug, Default)]
pub struct Choices(BTreeMap<usize, Vec<Vec<bool>>>);

impl Choices {
    /// Of a pass over `tokens` in a cache of its own. Fails if the pass does.
    pub fn read(engine: &Engine, tokens: &[u32]) -> anyhow::Result<Self> {
        let mut choices = Choices::default();
        let mut cache = engine.decoder().cache(tokens.len())?;
        engine.fill_cache(&mut cache, tokens, &mut choices, &mut |_| true)?;
        Ok(choices)
    }

    /// The keys that the row at `row` saw at `layer`, if the layer has a choice.
    pub fn row(&self, layer: usize, row: usize) -> Option<&[bool]> {
        self.0.get(&layer)?.get(row).map(Vec::as_slice)
    }
}

impl Observer for Choices {
    fn wants(&self, point: Point<'_>) -> Wanted<'_> {
        Wanted::inputs(matches!(point, Point::Attention(site) if site.holes.unchosen().is_some()))
    }

    fn observe(&mut self, event: Event<'_>) -> Result<()> {
        if let Event::Attention { site, q, .. } = event
            && let Some(unchosen) = site.holes.unchosen()
        {
            let rows = self.0.entry(site.layer).or_default();
            for position in site.offset..site.offset + q.dim(0)? {
                let mut seen = vec![true; position + 1];
                unchosen.row(position).iter().for_each(|keys| seen[keys.clone()].fill(false));
                rows.push(seen);
            }
        }
        Ok(())
    }
}
