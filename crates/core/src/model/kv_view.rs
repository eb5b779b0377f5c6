//! KV view of a forward pass: one sequence, or one branch per row of a decode batch.
//!
//! Branches of one trunk with the same start form a group, which reads the trunk's keys once; all rows share the reading of weights. The
//! decoder passes the view to the token mixers: attention appends keys and values and attends, recurrent mixers advance their state.

use std::ops::Range;
use std::sync::Arc;

use candle_core::{DType, Result, Tensor};

use super::cache::{LayerState, Seen, runs};
use super::{Branch, Cache};
use crate::attention::{
    self, DeltaSite, Event, Holes, LayerHoles, NoObserver, Observer, Point, Residual, Site, Tail, Term,
    Unchosen,
};
use crate::bfloat;

mod choice;

/// The keys that the rows of a pass do not choose at an indexer's layer, and at those after it that choose by its scores. These differ
/// where other keys are hidden.
#[derive(Debug, Default)]
pub(super) struct Choice {
    /// The indexer's layer.
    first: usize,
    /// One part for a sequence, else one per reading, run of rows, or branch; of each, the choice by layer.
    parts: Vec<Vec<Arc<Unchosen>>>,
}

impl Choice {
    /// The choice of each part at `layer`.
    pub fn at(&self, layer: usize) -> Result<Vec<Arc<Unchosen>>> {
        let of = |layers: &Vec<Arc<Unchosen>>| layers.get(layer.checked_sub(self.first)?).cloned();
        let of_parts: Option<Vec<_>> = self.parts.iter().map(of).collect();
        of_parts.ok_or_else(|| {
            candle_core::Error::msg(format!("This is a bug: no indexer has chosen keys for layer {layer}"))
        })
    }
}

/// Destination of a forward pass's tokens.
pub(super) enum KvView<'a> {
    /// Consecutive tokens after the cache.
    Sequence { cache: &'a mut Cache, pass: Pass<'a> },
    /// One token per branch, group by group.
    Branches { groups: Vec<Group<'a>> },
    /// The same tokens once per entry of `holes`; none stays in the cache.
    Variants { cache: &'a mut Cache, holes: &'a [LayerHoles] },
    /// Tokens at ascending positions of the cache, whose keys and values they replace.
    Rows { cache: &'a mut Cache, positions: &'a [usize] },
}

/// Attention settings of one forward pass; borrowed for its duration.
pub struct Pass<'a> {
    /// Read-only observer.
    pub observer: &'a mut dyn Observer,
    /// Knock-outs by layer.
    pub knockouts: Option<&'a LayerHoles>,
}

impl<'a> Pass<'a> {
    /// Hides keys.
    #[must_use]
    pub fn hiding(self, knockouts: &'a LayerHoles) -> Self {
        Pass { knockouts: Some(knockouts), ..self }
    }

    /// Reborrows it for another forward pass.
    pub fn again(&mut self) -> Pass<'_> {
        Pass { observer: &mut *self.observer, knockouts: self.knockouts }
    }

    fn holes(&self, layer: usize) -> Holes {
        self.knockouts.map(|knockouts| knockouts.of(layer)).unwrap_or_default()
    }
}

impl<'a, O: Observer> From<&'a mut O> for Pass<'a> {
    fn from(observer: &'a mut O) -> Self {
        Pass { observer, knockouts: None }
    }
}

impl<'a, 'o: 'a> From<&'a mut (dyn Observer + 'o)> for Pass<'a> {
    fn from(observer: &'a mut (dyn Observer + 'o)) -> Self {
        Pass { observer, knockouts: None }
    }
}

/// A branch to decode and its attention settings.
pub type Row<'a> = (&'a mut Branch, Pass<'a>);

/// A trunk and branches of it with the same start.
pub type Group<'a> = (&'a Cache, Vec<Row<'a>>);

impl KvView<'_> {
    pub fn positions(&self, l: usize) -> Vec<usize> {
        match self {
            KvView::Sequence { cache, .. } => (cache.len()..cache.len() + l).collect(),
            KvView::Rows { positions, .. } => positions.to_vec(),
            KvView::Variants { cache, holes } => {
                let own = cache.len()..cache.len() + l / holes.len().max(1);
                holes.iter().flat_map(|_| own.clone()).collect()
            }
            KvView::Branches { groups } => {
                groups.iter().flat_map(|(_, rows)| rows).map(|(branch, _)| branch.tokens()).collect()
            }
        }
    }

    fn cache_dtype(&self) -> Option<DType> {
        match self {
            KvView::Sequence { cache, .. } | KvView::Variants { cache, .. } | KvView::Rows { cache, .. } => {
                Some(cache.dtype())
            }
            KvView::Branches { groups } => groups.first().map(|(trunk, _)| trunk.dtype()),
        }
    }

    /// Begins a forward pass of `l` tokens: every layer takes them once, and [`KvView::advance`] ends it.
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
            KvView::Rows { cache, positions } => {
                let ascend = positions.is_sorted_by(|a, b| a < b);
                let inside = positions.last().is_some_and(|last| *last < cache.len());
                if positions.len() != l || !ascend || !inside || !cache.sees_all() {
                    candle_core::bail!(
                        "This is a bug: {l} tokens for {} rows of a cache of {} tokens, or layers that do not keep all keys",
                        positions.len(),
                        cache.len()
                    );
                }
                cache.begin()
            }
            KvView::Branches { groups } => {
                let count: usize = groups.iter().map(|(_, rows)| rows.len()).sum();
                let apart = groups.iter().find(|(trunk, rows)| {
                    let start = rows.first().map_or(0, |(branch, _)| branch.start());
                    trunk.len() < start || rows.iter().any(|(branch, _)| branch.start() != start)
                });
                if count != l || apart.is_some() {
                    let trunk = apart.map_or(0, |(trunk, _)| trunk.len());
                    candle_core::bail!(
                        "This is a bug: {l} tokens for {count} branches, of a trunk of {trunk} tokens"
                    );
                }
                let mut rows = groups.iter_mut().flat_map(|(_, rows)| rows);
                rows.try_for_each(|(branch, _)| branch.own().begin())
            }
        }
    }

    pub fn advance(&mut self, l: usize) {
        match self {
            KvView::Sequence { cache, .. } => cache.advance(l),
            KvView::Variants { cache, .. } | KvView::Rows { cache, .. } => cache.advance(0),
            KvView::Branches { groups } => {
                let rows = groups.iter_mut().flat_map(|(_, rows)| rows);
                rows.for_each(|(branch, _)| branch.own().advance(1));
            }
        }
    }

    /// Shows the observer a layer's head gates, (l, heads * head_dim). Sequences only.
    pub fn show_gate(&mut self, gate: &Tensor) -> Result<()> {
        match self {
            KvView::Sequence { pass, .. } => pass.observer.observe(Event::Gate(gate)),
            KvView::Branches { .. } | KvView::Variants { .. } | KvView::Rows { .. } => Ok(()),
        }
    }

    /// Rows of `l` new tokens whose terms are observed. Sequences only.
    pub fn targets(&self, l: usize) -> Vec<usize> {
        match self {
            KvView::Sequence { cache, pass } => {
                pass.observer.wants(Point::Residual { offset: cache.len(), l }).targets
            }
            KvView::Branches { .. } | KvView::Variants { .. } | KvView::Rows { .. } => Vec::new(),
        }
    }

    /// True if the residual stream around attention is observed at some of `l` new tokens. Sequences only.
    pub fn shows_residual(&self, l: usize) -> bool {
        match self {
            KvView::Sequence { cache, pass } => {
                pass.observer.wants(Point::Residual { offset: cache.len(), l }).residual
            }
            KvView::Branches { .. } | KvView::Variants { .. } | KvView::Rows { .. } => false,
        }
    }

    /// Shows the observer the residual stream around a layer's attention. Sequences only.
    pub fn show_residual(&mut self, of: Residual<'_>) -> Result<()> {
        match self {
            KvView::Sequence { pass, .. } => pass.observer.observe(Event::Residual(of)),
            KvView::Branches { .. } | KvView::Variants { .. } | KvView::Rows { .. } => Ok(()),
        }
    }

    /// Shows the observer a term of its targets. Sequences only.
    pub fn show_term(&mut self, term: Term<'_>) -> Result<()> {
        match self {
            KvView::Sequence { cache, pass } => pass.observer.observe(Event::Term(cache.len(), term)),
            KvView::Branches { .. } | KvView::Variants { .. } | KvView::Rows { .. } => Ok(()),
        }
    }

    /// Appends a layer's keys and values, both (l, kv_heads, head_dim), and attends with its queries `q` (l, heads, head_dim). Sets the
    /// positions of `site`. Returns (l, heads, head_dim).
    pub fn attend(&mut self, q: &Tensor, k: &Tensor, v: &Tensor, site: Site) -> Result<Tensor> {
        self.attend_chosen([q, k, v], site, &[])
    }

    /// [`KvView::attend`] of rows that see the keys of a choice ([`Choice::at`]), or all if it is empty.
    pub fn attend_chosen(
        &mut self,
        [q, k, v]: [&Tensor; 3],
        site: Site,
        choice: &[Arc<Unchosen>],
    ) -> Result<Tensor> {
        // Cache layout: (kv_heads, position, head_dim), in the cache's dtype.
        let dtype = self.cache_dtype();
        let kept = |x: &Tensor| bfloat::to_dtype(&x.transpose(0, 1)?, dtype.unwrap_or(x.dtype()));
        let (k, v) = (kept(k)?, kept(v)?);
        match self {
            KvView::Sequence { cache, pass } => {
                let offset = cache.len();
                let seen = cache.append(site.layer, &k, &v)?;
                let holes = narrowed(pass.holes(site.layer), choice, 0);
                let site = Site { offset, first_key: seen.first, holes, ..site };
                attention::run(q, &seen.k, &seen.v, &site, pass.observer)
            }
            KvView::Variants { cache, holes } => {
                let (layer, offset, l) = (site.layer, cache.len(), q.dim(0)? / holes.len());
                // If the layer keeps all keys, all readings share one pass over them.
                let evicted = holes.iter().any(|holes| holes.of(layer).kept().is_some());
                let shares = offset > 0 && !evicted && attention::shares_prefix(q.device(), q.dtype());
                let before = match shares {
                    true => cache.before(layer, offset)?,
                    false => None,
                };
                if let Some((before_k, before_v)) = before {
                    let (k, v) = (k.contiguous()?, v.contiguous()?);
                    let own =
                        (0..holes.len()).map(|nth| Ok((k.narrow(1, nth * l, l)?, v.narrow(1, nth * l, l)?)));
                    let own = own.collect::<Result<Vec<_>>>()?;
                    let tails = own.iter().zip(*holes).enumerate().map(|(nth, ((k, v), holes))| Tail {
                        k,
                        v,
                        holes: narrowed(holes.of(layer), choice, nth),
                        observer: None,
                    });
                    let site = Site { offset, first_key: 0, ..site };
                    let mut tails: Vec<Tail<'_>> = tails.collect();
                    return attention::run_after(q, (&before_k, &before_v), &mut tails, l, &site);
                }
                let rows = holes.iter().enumerate().map(|(nth, holes)| {
                    let (k, v) = (k.narrow(1, nth * l, l)?, v.narrow(1, nth * l, l)?);
                    // Each reading overwrites the previous one.
                    cache.append_for(layer, &k, &v, |seen| {
                        let holes = narrowed(holes.of(layer), choice, nth);
                        let site = Site { offset, first_key: seen.first, holes, ..site.clone() };
                        attention::run(&q.narrow(0, nth * l, l)?, &seen.k, &seen.v, &site, &mut NoObserver)
                    })
                });
                Tensor::cat(&rows.collect::<Result<Vec<_>>>()?, 0)
            }
            KvView::Rows { cache, positions } => {
                // All of the pass's rows first: later ones see them.
                cache.write_rows(site.layer, positions, &k, &v)?;
                let mut first = 0;
                let out = runs(positions).into_iter().enumerate().map(|(nth, run)| {
                    let Some((k, v)) = cache.before(site.layer, run.end)? else {
                        candle_core::bail!("This is a bug: layer {} does not keep all keys", site.layer)
                    };
                    let q = q.narrow(0, first, run.len())?;
                    first += run.len();
                    let holes = narrowed(Holes::default(), choice, nth);
                    let site = Site { offset: run.start, first_key: 0, holes, ..site.clone() };
                    attention::run(&q, &k, &v, &site, &mut NoObserver)
                });
                Tensor::cat(&out.collect::<Result<Vec<_>>>()?, 0)
            }
            KvView::Branches { groups } => {
                let mut out = Vec::with_capacity(groups.len());
                let mut first = 0;
                for group in groups {
                    let rows = group.1.len();
                    let part = |x: &Tensor, dim| x.narrow(dim, first, rows);
                    let choice = choice.get(first..first + rows).unwrap_or_default();
                    let parts = [part(q, 0)?, part(&k, 1)?, part(&v, 1)?];
                    out.push(attend_group(group, parts.each_ref(), &site, choice)?);
                    first += rows;
                }
                Tensor::cat(&out, 0)
            }
        }
    }

    /// Advances a recurrent layer by `l` tokens. `read` gets each run of consecutive rows, its site, the state before it and the
    /// observer, and returns outputs and the new state. Returns the outputs of all rows.
    pub fn advance_states(
        &mut self,
        layer: usize,
        l: usize,
        mut read: impl FnMut(
            Range<usize>,
            &DeltaSite,
            &LayerState,
            &mut dyn Observer,
        ) -> Result<(Tensor, LayerState)>,
    ) -> Result<Tensor> {
        let mut over = |rows, cache: &mut Cache, pass: &mut Pass<'_>| {
            let site = DeltaSite { layer, offset: cache.len() };
            let (out, state) = read(rows, &site, &cache.state(layer)?, pass.observer)?;
            cache.set_state(layer, state)?;
            Ok(out)
        };
        match self {
            KvView::Sequence { cache, pass } => over(0..l, cache, pass),
            KvView::Rows { .. } => candle_core::bail!("This is a bug: layer {layer} keeps no keys"),
            KvView::Variants { cache, holes } => {
                let own = l / holes.len();
                let state = cache.state(layer)?;
                let rows = (0..holes.len()).map(|nth| {
                    let site = DeltaSite { layer, offset: cache.len() };
                    let (out, _) = read(nth * own..(nth + 1) * own, &site, &state, &mut NoObserver)?;
                    Ok(out)
                });
                Tensor::cat(&rows.collect::<Result<Vec<_>>>()?, 0)
            }
            KvView::Branches { groups } => {
                let rows = groups.iter_mut().flat_map(|(_, rows)| rows).enumerate();
                let rows = rows.map(|(row, (branch, pass))| over(row..row + 1, branch.own(), pass));
                Tensor::cat(&rows.collect::<Result<Vec<_>>>()?, 0)
            }
        }
    }
}

/// `holes`, and the keys that the rows of part `part` of a pass do not choose, where their layer has a choice.
fn narrowed(holes: Holes, choice: &[Arc<Unchosen>], part: usize) -> Holes {
    match choice.get(part) {
        Some(unchosen) => holes.choosing(Arc::clone(unchosen)),
        None => holes,
    }
}

/// [`KvView::attend_chosen`] for a group: `q` (branches, heads, head_dim), `k` and `v` (kv_heads, branches, head_dim).
fn attend_group(
    (trunk, rows): &mut Group<'_>,
    [q, k, v]: [&Tensor; 3],
    site: &Site,
    choice: &[Arc<Unchosen>],
) -> Result<Tensor> {
    let seen = rows.iter_mut().enumerate().map(|(row, (branch, _))| {
        branch.own().append(site.layer, &k.narrow(1, row, 1)?, &v.narrow(1, row, 1)?)
    });
    let seen = seen.collect::<Result<Vec<_>>>()?;
    let start = rows.first().map_or(0, |(branch, _)| branch.start());
    if let Some((k, v)) = trunk.before(site.layer, start)? {
        for (row, (seen, (branch, pass))) in seen.iter().zip(rows.iter_mut()).enumerate() {
            let holes = narrowed(pass.holes(site.layer), choice, row);
            let site = Site { offset: branch.tokens(), holes, ..site.clone() };
            show_whole([&k, &v], seen, &q.narrow(0, row, 1)?, &site, pass.observer)?;
        }
        if rows.iter().any(|(_, pass)| pass.holes(site.layer).kept().is_some()) {
            let outs = seen.iter().zip(rows).enumerate().map(|(row, (seen, (_, pass)))| {
                attend_evicted([&k, &v], seen, (&q.narrow(0, row, 1)?, pass), site)
            });
            return Tensor::cat(&outs.collect::<Result<Vec<_>>>()?, 0);
        }
        let tails = seen.iter().zip(rows).enumerate().map(|(row, (seen, (_, pass)))| {
            let holes = narrowed(pass.holes(site.layer), choice, row);
            Tail { k: &seen.k, v: &seen.v, holes, observer: Some(&mut *pass.observer) }
        });
        let mut tails: Vec<Tail<'_>> = tails.collect();
        let site = Site { offset: start, first_key: 0, ..site.clone() };
        return attention::run_after(q, (&k, &v), &mut tails, 1, &site);
    }
    let out = seen.iter().zip(rows).enumerate().map(|(row, (seen, (branch, pass)))| {
        let holes = pass.holes(site.layer);
        let site = Site { offset: branch.tokens(), first_key: seen.first, holes, ..site.clone() };
        attention::run(&q.narrow(0, row, 1)?, &seen.k, &seen.v, &site, pass.observer)
    });
    Tensor::cat(&out.collect::<Result<Vec<_>>>()?, 0)
}

/// Shows an observer that asks for it a branch's row, whose keys and values kernels read apart from those of `trunk`.
fn show_whole(
    trunk: [&Tensor; 2],
    seen: &Seen,
    q: &Tensor,
    site: &Site,
    observer: &mut dyn Observer,
) -> Result<()> {
    if !observer.wants(Point::Attention(site)).inputs {
        return Ok(());
    }
    let (k, v) = (Tensor::cat(&[trunk[0], &seen.k], 1)?, Tensor::cat(&[trunk[1], &seen.v], 1)?);
    observer.observe(Event::Attention { site, q, k: &k, v: &v })
}

/// One branch of a group of which some were evicted from: `trunk` holds the keys and values before the branch's own.
fn attend_evicted(
    trunk: [&Tensor; 2],
    seen: &Seen,
    (q, pass): (&Tensor, &mut Pass<'_>),
    site: &Site,
) -> Result<Tensor> {
    let start = seen.first;
    let holes = pass.holes(site.layer);
    let Some(kept) = holes.kept().cloned() else {
        let mut tail = [Tail { k: &seen.k, v: &seen.v, holes, observer: Some(&mut *pass.observer) }];
        let site = Site { offset: start, first_key: 0, ..site.clone() };
        return attention::run_after(q, (trunk[0], trunk[1]), &mut tail, 1, &site);
    };
    let own = |trunk: &Tensor, own: &Tensor| match start.checked_sub(kept.from) {
        Some(0) => Ok(own.clone()),
        Some(between) => Tensor::cat(&[&trunk.narrow(1, kept.from, between)?, own], 1),
        None => own.narrow(1, kept.from - start, own.dim(1)? - (kept.from - start)),
    };
    let (k, v) = (own(trunk[0], &seen.k)?, own(trunk[1], &seen.v)?);
    let site = Site { first_key: 0, holes, ..site.clone() };
    kept.attend(q, [&k, &v], &site, pass.observer)
}
