//! The view of the KV cache that a forward pass has: one sequence, or a branch for each row of a decoded batch.
//!
//! Rows of a batch come in groups: branches of one trunk whose own keys begin at the same place read what is before it once for
//! all of them. Branches of other trunks, or with other beginnings, are groups of their own; all rows share the reading of weights.
//! The decoder hands it down to the token mixers: attention appends keys and values and attends, linear attention advances its
//! state. All other layers work on rows and do not depend on the view.

use std::ops::Range;

use candle_core::{Result, Tensor};

use super::cache::DeltaState;
use super::{Branch, Cache};
use crate::attention::{self, DeltaSite, Holes, LayerHoles, NoObserver, Observer, Site, Term};

/// Where the tokens of one forward pass are appended.
pub(super) enum KvView<'a> {
    /// They follow each other, after those in the cache.
    Sequence { cache: &'a mut Cache, observer: &'a mut dyn Observer },
    /// Each is the next one of another branch, group by group. Observers are none, or one a branch.
    Branches { groups: Vec<Group<'a>>, observers: Vec<&'a mut dyn Observer> },
    /// The same tokens follow those in the cache once for each of what is hidden from them, and none of them stays.
    Variants { cache: &'a mut Cache, holes: &'a [LayerHoles] },
}

/// A trunk and branches of it, whose own keys begin at the same position.
pub type Group<'a> = (&'a Cache, Vec<&'a mut Branch>);

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
            KvView::Variants { cache, holes } => {
                let own = cache.len()..cache.len() + l / holes.len().max(1);
                holes.iter().flat_map(|_| own.clone()).collect()
            }
            KvView::Branches { groups, .. } => {
                groups.iter().flat_map(|(_, branches)| branches).map(|branch| branch.tokens()).collect()
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
            KvView::Branches { groups, .. } => {
                let count: usize = groups.iter().map(|(_, branches)| branches.len()).sum();
                let apart = groups.iter().find(|(trunk, branches)| {
                    let start = branches.first().map_or(0, |branch| branch.start());
                    trunk.len() < start || branches.iter().any(|branch| branch.start() != start)
                });
                if count != l || apart.is_some() {
                    let trunk = apart.map_or(0, |(trunk, _)| trunk.len());
                    candle_core::bail!(
                        "This is a bug: {l} tokens for {count} branches, of a trunk of {trunk} tokens"
                    );
                }
                let mut branches = groups.iter_mut().flat_map(|(_, branches)| branches);
                branches.try_for_each(|branch| branch.own().begin())
            }
        }
    }

    /// Ends a forward of `l` tokens.
    pub fn advance(&mut self, l: usize) {
        match self {
            KvView::Sequence { cache, .. } => cache.advance(l),
            KvView::Variants { cache, .. } => cache.advance(0),
            KvView::Branches { groups, .. } => {
                let branches = groups.iter_mut().flat_map(|(_, branches)| branches);
                branches.for_each(|branch| branch.own().advance(1));
            }
        }
    }

    /// Shows the observer of a sequence the gates of a layer's heads, (l, heads * head_dim).
    pub fn show_gate(&mut self, layer: usize, gate: &Tensor) -> Result<()> {
        match self {
            KvView::Sequence { observer, .. } => observer.observe_gate(layer, gate),
            KvView::Branches { .. } | KvView::Variants { .. } => Ok(()),
        }
    }

    /// The rows of `l` new tokens of a sequence whose terms are observed.
    pub fn targets(&self, l: usize) -> Vec<usize> {
        match self {
            KvView::Sequence { cache, observer } => observer.targets(cache.len(), l),
            KvView::Branches { .. } | KvView::Variants { .. } => Vec::new(),
        }
    }

    /// Shows the observer of a sequence a term of its targets.
    pub fn show_term(&mut self, term: Term<'_>) -> Result<()> {
        match self {
            KvView::Sequence { cache, observer } => observer.observe_term(cache.len(), term),
            KvView::Branches { .. } | KvView::Variants { .. } => Ok(()),
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
                // Where the layer keeps all keys, all readings go over them at once.
                if let Some((before_k, before_v)) = cache.before(layer, offset)? {
                    let of_layer: Vec<Holes> = holes.iter().map(|holes| holes.of(layer)).collect();
                    let site = Site { offset, first_key: 0, ..site.clone() };
                    let (before, own) = ((&before_k, &before_v), (&k, &v));
                    if let Some(out) = attention::run_variants(q, before, own, &site, &of_layer)? {
                        return Ok(out);
                    }
                }
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
            KvView::Branches { groups, observers } => {
                let mut observers: &mut [&mut dyn Observer] = observers;
                let mut out = Vec::with_capacity(groups.len());
                let mut first = 0;
                for group in groups {
                    let rows = group.1.len();
                    let at = rows.min(observers.len());
                    let (own, others) = std::mem::take(&mut observers).split_at_mut(at);
                    observers = others;
                    let part = |x: &Tensor, dim| x.narrow(dim, first, rows);
                    out.push(attend_group(group, own, &part(q, 0)?, &part(&k, 1)?, &part(&v, 1)?, &site)?);
                    first += rows;
                }
                Tensor::cat(&out, 0)
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
            KvView::Branches { groups, observers } => {
                let rows = groups.iter_mut().flat_map(|(_, branches)| branches).enumerate();
                let rows = rows.map(|(row, branch)| {
                    over(row..row + 1, branch.own(), of_branch(observers, row, &mut NoObserver))
                });
                Tensor::cat(&rows.collect::<Result<Vec<_>>>()?, 0)
            }
        }
    }
}

/// [`KvView::attend`] of a group: `q` (branches, heads, head_dim), `k` and `v` (kv_heads, branches, head_dim).
fn attend_group(
    (trunk, branches): &mut Group<'_>,
    observers: &mut [&mut dyn Observer],
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    site: &Site,
) -> Result<Tensor> {
    let seen = branches
        .iter_mut()
        .enumerate()
        .map(|(row, branch)| branch.own().append(site.layer, &k.narrow(1, row, 1)?, &v.narrow(1, row, 1)?));
    let seen = seen.collect::<Result<Vec<_>>>()?;
    let start = branches.first().map_or(0, |branch| branch.start());
    let holes: Vec<_> = branches.iter_mut().map(|branch| branch.own().holes(site.layer)).collect();
    if let Some((k, v)) = trunk.before(site.layer, start)? {
        let tails: Vec<_> = seen.into_iter().map(|seen| (seen.k, seen.v)).collect();
        let site = Site { offset: start, first_key: 0, ..site.clone() };
        return attention::run_branches(q, &k, &v, &tails, &site, &holes, observers);
    }
    let rows = seen.iter().zip(branches).zip(holes).enumerate().map(|(row, ((seen, branch), holes))| {
        let site = Site { offset: branch.tokens(), first_key: seen.first, holes, ..site.clone() };
        let mut none = NoObserver;
        let observer = of_branch(observers, row, &mut none);
        attention::run(&q.narrow(0, row, 1)?, &seen.k, &seen.v, &site, observer)
    });
    Tensor::cat(&rows.collect::<Result<Vec<_>>>()?, 0)
}
