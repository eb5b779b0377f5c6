//! Attention: the entry point [`run`], its observers, and the store of their results.
//!
//! Decoders call [`run`] only. Pure capability functions select the kernel, which is logged once. No kernel stores a full
//! queries-by-keys matrix.

use std::sync::Once;

use candle_core::{DType, Device, Result, Tensor};

use crate::timing;

mod answer;
mod backends;
mod call;
mod contribution;
pub(crate) mod delta;
mod evicted;
mod kept;
mod kernel;
mod knockout;
mod mass;
mod masses;
mod observer;
mod routes;
mod row_masses;
mod selected;
mod share;
mod site;
mod store;
mod top_keys;
mod unchosen;

pub use answer::{AnswerRows, Step};
use backends::RowSums;
pub(crate) use backends::{OverRows, key_weights, settle};
use call::Call;
pub use contribution::{Attribution, Attributions, LengthObserver, Norms, Target, TargetError};
pub use delta::Rule;
pub use kept::{Kept, KeptHead, KeptShares};
pub use kernel::{AttentionKernel, AttentionShape, KernelError, Settled};
pub use knockout::{Knockout, KnockoutError, LayerHoles, LayerKind};
pub use mass::MassObserver;
pub use masses::{DeltaMasses, EachMasses, Masses, SpanError};
pub use observer::{DeltaSite, Event, NoObserver, Observer, Point, Residual, Term, Wanted};
pub use routes::{RouteObserver, RowWeights};
pub(crate) use row_masses::RowMasses;
pub use selected::{Selected, SelectedObserver};
pub use share::{Uniform, uniform_share};
pub use site::{Hole, Holes, SPLIT_K, Sinks, Site};
pub use store::{
    AttentionStore, NamedTensor, StoreError, Values, named_tensor, tensors_bytes, tensors_file, write_tensors,
};
pub use top_keys::{LargestKeys, NO_KEY, TopKeys};
pub use unchosen::Unchosen;

/// Causal attention of one chunk's queries over all keys so far.
///
/// `q`: (l, heads, head_dim), rotated; `k`, `v`: (kv_heads, offset + l - first_key, head_dim), `k` rotated, views of the cache. Keys before
/// `first_key` must be outside every query's window. `heads / kv_heads` consecutive query heads share a key/value head. Returns
/// (l, heads, head_dim) in `q`'s dtype; softmax and sums are f32. The observer reads `q`, `k`, `v` and, if requested, segment sums; it
/// cannot change the result. Mismatched tensors or settings are an error.
pub fn run(q: &Tensor, k: &Tensor, v: &Tensor, site: &Site, observer: &mut dyn Observer) -> Result<Tensor> {
    let _span = timing::attention();
    check(q, k, v, site)?;
    if observer.wants(Point::Attention(site)).inputs {
        observer.observe(Event::Attention { site, q, k, v })?;
    }
    let l = q.dim(0)?;
    let plain = |q: &Tensor, k: &Tensor, v: &Tensor, observer: &mut dyn Observer, holes: Holes| {
        let tail = Tail { k, v, holes, observer: Some(observer) };
        attend(q, None, &mut [tail], q.dim(0)?, &Site { offset: site.first_key, ..site.clone() })
    };
    let Some(kept) = site.holes.kept() else { return plain(q, k, v, observer, site.holes.clone()) };
    // Rows before the eviction see all keys.
    let before = kept.from.saturating_sub(site.offset).min(l);
    let mut outs = Vec::new();
    if before > 0 {
        let seen = |x: &Tensor| x.narrow(1, 0, site.offset + before);
        outs.push(plain(&q.narrow(0, 0, before)?, &seen(k)?, &seen(v)?, observer, Holes::default())?);
    }
    if before < l {
        let own = |x: &Tensor| x.narrow(1, kept.from, site.offset + l - kept.from);
        let rows = q.narrow(0, before, l - before)?;
        outs.push(kept.attend(&rows, [&own(k)?, &own(v)?], site, observer)?);
    }
    Tensor::cat(&outs, 0)
}

/// One sequence's own keys and values after a shared prefix.
pub struct Tail<'a> {
    /// (kv_heads, n, head_dim), rotated.
    pub k: &'a Tensor,
    /// As `k`.
    pub v: &'a Tensor,
    /// Keys hidden from its rows.
    pub holes: Holes,
    /// Only asked for [`Wanted::segments`].
    pub observer: Option<&'a mut dyn Observer>,
}

/// [`run`] for the last `rows` tokens of several sequences with a shared prefix, whose keys are read once for all.
///
/// `q`: (tails * rows, heads, head_dim), rotated, by sequence. `prefix`: shared keys and values, (kv_heads, base, head_dim), from
/// position `site.first_key` on; `base` may be 0. `tails`: each sequence's own, from position `site.offset` = `site.first_key + base` on.
/// The queries of a tail of n keys are its last positions, up to `site.offset + n - 1`. A tail's holes replace the site's. If `rows` is
/// 1 and `base` a multiple of [`SPLIT_K`], results are bit-equal to those of each sequence alone. Returns (tails * rows, heads,
/// head_dim) in `q`'s dtype. Mismatched tensors or settings are an error, as are several rows where [`shares_prefix`] is false.
pub fn run_after(
    q: &Tensor,
    prefix: (&Tensor, &Tensor),
    tails: &mut [Tail<'_>],
    rows: usize,
    site: &Site,
) -> Result<Tensor> {
    let _span = timing::attention();
    check_tails(q, prefix, tails, rows, site)?;
    attend(q, Some(prefix), tails, rows, site)
}

/// True if [`run_after`] supports tails of several rows.
pub fn shares_prefix(device: &Device, dtype: DType) -> bool {
    backends::plain(device, dtype).takes_rows_after_prefix()
}

/// The common number of heads of `(layer, heads)` pairs, 0 without layers; an error if they differ.
fn same_heads(mut layers: impl Iterator<Item = (usize, usize)>, kind: &str) -> Result<usize> {
    let heads = layers.next().map_or(0, |(_, heads)| heads);
    match layers.find(|(_, other)| *other != heads) {
        None => Ok(heads),
        Some((layer, other)) => candle_core::bail!(
            "layer {layer} has {other} {kind} where others have {heads}: one array cannot hold both"
        ),
    }
}

fn attend(
    q: &Tensor,
    prefix: Option<(&Tensor, &Tensor)>,
    tails: &mut [Tail<'_>],
    rows: usize,
    site: &Site,
) -> Result<Tensor> {
    let (own, holes) = tails.iter().map(|tail| ((tail.k, tail.v), &tail.holes)).unzip::<_, _, _, Vec<_>>();
    let mut call = Call::new(q, prefix, own, rows, site, &holes)?;
    let site = |(nth, tail): (usize, &Tail<'_>)| Site {
        offset: call.positions[nth * rows],
        holes: tail.holes.clone(),
        ..site.clone()
    };
    let sites: Vec<Site> = tails.iter().enumerate().map(site).collect();
    let asked = tails.iter().zip(&sites).map(|(tail, site)| -> Option<Vec<usize>> {
        tail.observer.as_ref()?.wants(Point::Attention(site)).segments.map(<[usize]>::to_vec)
    });
    let asked: Vec<Option<Vec<usize>>> = asked.collect();
    if rows == 1 && asked.iter().any(Option::is_some) {
        call.borders.clone_from(&asked);
    }
    let kernel = backends::of_forward(&call)?;
    static LOGGED: Once = Once::new();
    LOGGED
        .call_once(|| tracing::info!(backend = kernel.name(), device = ?q.device().location(), "attention"));
    let (out, mut sums) = kernel.attend(call)?;
    sums.resize(tails.len(), None);
    for (((tail, site), sums), borders) in tails.iter_mut().zip(&sites).zip(sums).zip(asked) {
        match (&mut tail.observer, sums, borders) {
            (Some(observer), Some(sums), _) => observer.observe(Event::Weights { site, sums: &sums })?,
            // The kernel exposes no weights, or the chunk has several rows: sum in a separate pass.
            (Some(observer), None, Some(borders)) => {
                let (borders, at) = (site.borders(&borders), &site.relative());
                for row in 0..rows {
                    let sums = backends::segment_sums(
                        q,
                        tail.k,
                        &RowSums { site: at, rows: row..row + 1, bounds: &borders },
                    )?;
                    let site = &Site { offset: site.offset + row, ..site.clone() };
                    observer.observe(Event::Weights { site, sums: &sums })?;
                }
            }
            _ => {}
        }
    }
    Ok(out)
}

fn check_tails(
    q: &Tensor,
    (k, v): (&Tensor, &Tensor),
    tails: &[Tail<'_>],
    rows: usize,
    site: &Site,
) -> Result<()> {
    let (all, heads, d) = q.dims3()?;
    let (kv_heads, base, _) = k.dims3()?;
    if all == 0 || rows * tails.len() != all {
        candle_core::bail!("attention: queries of {} branches, but {} tails", all / rows.max(1), tails.len());
    }
    if rows > 1 && !shares_prefix(q.device(), q.dtype()) {
        candle_core::bail!(
            "This is a bug: no kernel takes {rows} rows for each of {} tails here",
            tails.len()
        );
    }
    if k.dims() != v.dims() || k.dim(2)? != d || site.first_key.checked_add(base) != Some(site.offset) {
        candle_core::bail!(
            "attention: shared keys of shape {:?} and values of shape {:?} from position {} do not fit queries of shape \
             {:?} and tails that begin at position {}",
            k.dims(),
            v.dims(),
            site.first_key,
            q.dims(),
            site.offset
        );
    }
    for Tail { k, v, .. } in tails {
        if k.dims() != [kv_heads, k.dim(1)?.max(rows), d] || v.dims() != k.dims() {
            candle_core::bail!(
                "attention: a tail of keys of shape {:?} and values of shape {:?} does not fit {kv_heads} key/value heads \
                 of {d}, or is empty",
                k.dims(),
                v.dims()
            );
        }
        check_site(heads, kv_heads, site.offset + k.dim(1)? - rows, site)?;
    }
    Ok(())
}

/// Rejects shapes with which kernels would read past the end or compute wrong results.
fn check(q: &Tensor, k: &Tensor, v: &Tensor, site: &Site) -> Result<()> {
    let (l, heads, d) = q.dims3()?;
    let (kv_heads, keys, _) = k.dims3()?;
    if l == 0 || heads == 0 || d == 0 {
        candle_core::bail!("attention: queries of shape {:?} hold no rows", q.dims());
    }
    if k.dims() != v.dims() || k.dim(2)? != d {
        candle_core::bail!(
            "attention: keys of shape {:?} and values of shape {:?} do not fit queries of shape {:?}",
            k.dims(),
            v.dims(),
            q.dims()
        );
    }
    let expected = site.offset.checked_add(l).and_then(|end| end.checked_sub(site.first_key));
    if expected != Some(keys) || site.first_key > site.offset {
        candle_core::bail!(
            "attention: {l} queries at offset {} see {} keys, but there are {keys} from position {}",
            site.offset,
            site.offset.saturating_add(l),
            site.first_key
        );
    }
    check_site(heads, kv_heads, site.offset, site)
}

/// Rejects settings that do not fit the heads, and a query at `position` that would see keys before the first.
fn check_site(heads: usize, kv_heads: usize, position: usize, site: &Site) -> Result<()> {
    if kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
        candle_core::bail!("attention: {heads} query heads are no multiple of {kv_heads} key/value heads");
    }
    if site.first_key > site.visible(position).start {
        candle_core::bail!(
            "attention: the query at position {position} sees keys before the first, at position {}",
            site.first_key
        );
    }
    if site.window == Some(0) {
        candle_core::bail!("attention: a window of 0 sees nothing; the smallest is 1, a token itself");
    }
    match &site.sinks {
        Some(sinks) if sinks.logits().len() != heads => {
            candle_core::bail!("attention: {} sinks for {heads} query heads", sinks.logits().len())
        }
        _ => Ok(()),
    }
}
