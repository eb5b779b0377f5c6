//! The view of the KV cache that a forward pass has: one sequence, or a branch for each row of a decoded batch.
//!
//! The decoder hands it down to the token mixers: attention appends keys and values and attends, linear attention advances its
//! state. All other layers work on rows and do not depend on the view.

use std::ops::Range;

use candle_core::{Result, Tensor};

use super::cache::DeltaState;
use super::{Branch, Cache};
use crate::attention::{self, DeltaSite, LayerHoles, NoObserver, Observer, Site};

/// Where the tokens of one forward pass are appended.
pub(super) enum KvView<'a> {
    /// They follow each other, after those in the cache.
    Sequence { cache: &'a mut Cache, observer: &'a mut dyn Observer },
    /// Each is the next one of another branch of the trunk. Observers are none, or one a branch.
    Branches { trunk: &'a Cache, branches: Vec<&'a mut Branch>, observers: Vec<&'a mut dyn Observer> },
    /// The same tokens follow those in the cache once for each of what is hidden from them, and none of them stays.
    Variants { cache: &'a mut Cache, holes: &'a [LayerHoles] },
}

/// The observer of a branch.
fn of_branch<'o>(
    observers: &'o mut [&mut dyn Observer],
    branch: usize,
    none: &'o mut NoObserver,
) -> &'o mut dyn Observer {
    match observers.get_mut(branch) {
        Some(observer) => *observer,
        None => none,
    }
}

impl KvView<'_> {
    /// The positions of `l` new tokens.
    pub fn positions(&self, l: usize) -> Vec<usize> {
        match self {
            KvView::Sequence { cache, .. } => (cache.len()..cache.len() + l).collect(),
            KvView::Branches { branches, .. } => branches.iter().map(|branch| branch.tokens()).collect(),
            KvView::Variants { cache, holes } => {
                let own = cache.len()..cache.len() + l / holes.len().max(1);
                holes.iter().flat_map(|_| own.clone()).collect()
            }
        }
    }

    /// Begins a forward of `l` tokens. Every layer then takes them once, and [`KvView::advance`] ends it.
    pub fn begin(&mut self, l: usize) -> Result<()> {
        match self {
            KvView::Sequence { cache, .. } => cache.begin(),
            KvView::Variants { cache, holes } if holes.is_empty() || !l.is_multiple_of(holes.len()) => {
                candle_core::bail!(
                    "This is a bug: {l} tokens for {} readings after {}",
                    holes.len(),
                    cache.len()
                )
            }
            KvView::Variants { cache, .. } => cache.begin(),
            KvView::Branches { branches, trunk, .. } => {
                let start = branches.first().map_or(0, |branch| branch.start());
                if branches.len() != l || trunk.len() < start || branches.iter().any(|b| b.start() != start) {
                    candle_core::bail!(
                        "This is a bug: {l} tokens for {} branches of a trunk of {} tokens",
                        branches.len(),
                        trunk.len()
                    );
                }
                branches.iter_mut().try_for_each(|branch| branch.own().begin())
            }
        }
    }

    /// Ends a forward of `l` tokens.
    pub fn advance(&mut self, l: usize) {
        match self {
            KvView::Sequence { cache, .. } => cache.advance(l),
            KvView::Variants { cache, .. } => cache.advance(0),
            KvView::Branches { branches, .. } => {
                branches.iter_mut().for_each(|branch| branch.own().advance(1));
            }
        }
    }

    /// Appends a layer's keys and values, both (l, kv_heads, head_dim), and attends to what their queries `q`
    /// (l, heads, head_dim) see: (l, heads, head_dim). The positions of `site` are filled in here.
    pub fn attend(&mut self, q: &Tensor, k: &Tensor, v: &Tensor, site: Site) -> Result<Tensor> {
        // The caches are laid out (kv_heads, position, head_dim).
        let (k, v) = (k.transpose(0, 1)?, v.transpose(0, 1)?);
        match self {
            KvView::Sequence { cache, observer } => {
                let offset = cache.len();
                let seen = cache.append(site.layer, &k, &v)?;
                let site = Site { offset, first_key: seen.first, holes: cache.holes(site.layer), ..site };
                attention::run(q, &seen.k, &seen.v, &site, *observer)
            }
            KvView::Variants { cache, holes } => {
                let (layer, offset, l) = (site.layer, cache.len(), q.dim(0)? / holes.len());
                let rows = holes.iter().enumerate().map(|(nth, holes)| {
                    let (k, v) = (k.narrow(1, nth * l, l)?, v.narrow(1, nth * l, l)?);
                    // Each takes the place of the one before.
                    cache.append_for(layer, &k, &v, |seen| {
                        let site =
                            Site { offset, first_key: seen.first, holes: holes.of(layer), ..site.clone() };
                        attention::run(&q.narrow(0, nth * l, l)?, &seen.k, &seen.v, &site, &mut NoObserver)
                    })
                });
                Tensor::cat(&rows.collect::<Result<Vec<_>>>()?, 0)
            }
            KvView::Branches { trunk, branches, observers } => {
                let seen = branches.iter_mut().enumerate().map(|(row, branch)| {
                    branch.own().append(site.layer, &k.narrow(1, row, 1)?, &v.narrow(1, row, 1)?)
                });
                let seen = seen.collect::<Result<Vec<_>>>()?;
                let start = branches.first().map_or(0, |branch| branch.start());
                let holes: Vec<_> =
                    branches.iter_mut().map(|branch| branch.own().holes(site.layer)).collect();
                if let Some((k, v)) = trunk.before(site.layer, start)? {
                    let tails: Vec<_> = seen.into_iter().map(|seen| (seen.k, seen.v)).collect();
                    return attention::run_branches(
                        q,
                        &k,
                        &v,
                        &tails,
                        &Site { offset: start, first_key: 0, ..site },
                        &holes,
                        observers,
                    );
                }
                let rows = seen.iter().zip(branches).zip(holes).enumerate();
                let rows = rows.map(|(row, ((seen, branch), holes))| {
                    let site = Site { offset: branch.tokens(), first_key: seen.first, holes, ..site.clone() };
                    let mut none = NoObserver;
                    let observer = of_branch(observers, row, &mut none);
                    attention::run(&q.narrow(0, row, 1)?, &seen.k, &seen.v, &site, observer)
                });
                Tensor::cat(&rows.collect::<Result<Vec<_>>>()?, 0)
            }
        }
    }

    /// Brings the states of a linear-attention layer over `l` new tokens: `read` is called with every run of rows that
    /// follow each other, their place, the state before them, and who observes; it returns their outputs and the state
    /// after them. Returns the outputs of all rows.
    pub fn advance_states(
        &mut self,
        layer: usize,
        l: usize,
        mut read: impl FnMut(
            Range<usize>,
            &DeltaSite,
            &DeltaState,
            &mut dyn Observer,
        ) -> Result<(Tensor, DeltaState)>,
    ) -> Result<Tensor> {
        let mut over = |rows, cache: &mut Cache, observer: &mut dyn Observer| {
            let site = DeltaSite { layer, offset: cache.len(), holes: cache.holes(layer) };
            let (out, state) = read(rows, &site, &cache.delta(layer)?, observer)?;
            cache.set_delta(layer, state)?;
            Ok(out)
        };
        match self {
            KvView::Sequence { cache, observer } => over(0..l, cache, *observer),
            KvView::Variants { cache, holes } => {
                let own = l / holes.len();
                let state = cache.delta(layer)?;
                let rows = holes.iter().enumerate().map(|(nth, holes)| {
                    let site = DeltaSite { layer, offset: cache.len(), holes: holes.of(layer) };
                    let (out, _) = read(nth * own..(nth + 1) * own, &site, &state, &mut NoObserver)?;
                    Ok(out)
                });
                Tensor::cat(&rows.collect::<Result<Vec<_>>>()?, 0)
            }
            KvView::Branches { branches, observers, .. } => {
                let rows = branches.iter_mut().enumerate();
                let rows = rows.map(|(row, branch)| {
                    over(row..row + 1, branch.own(), of_branch(observers, row, &mut NoObserver))
                });
                Tensor::cat(&rows.collect::<Result<Vec<_>>>()?, 0)
            }
        }
    }
}
