//! The one door to attention, the observers that read it, and the store of what they saw.
//!
//! Decoders call [`run`] and nothing else. Which backend does the work is decided here by pure capability functions
//! and logged once. Nothing behind this door ever holds a matrix of all queries by all keys.

use std::sync::Once;

use candle_core::{Device, Result, Tensor};

use crate::timing;

mod answer;
mod backends;
mod contribution;
pub(crate) mod delta;
mod kernel;
mod knockout;
mod mass;
mod observer;
mod share;
mod site;
mod store;
mod top_keys;

pub use answer::{AnswerRows, Step};
pub use contribution::{Attribution, Attributions, LengthObserver, Norms, Target, TargetError};
pub use kernel::{AttentionKernel, AttentionShape, KernelError, Settled};
pub use knockout::{Knockout, KnockoutError, LayerHoles, LayerKind};
pub use mass::{DeltaMasses, EachMasses, MassObserver, Masses, SpanError};
pub use observer::{DeltaSite, Event, NoObserver, Observer, Point, Term, Wanted};
pub use share::{Uniform, uniform_share};
use site::Hidden;
pub use site::{Hole, Holes, Sinks, Site};
pub use store::{AttentionStore, StoreError, Values, write_tensors};
pub use top_keys::{LargestKeys, NO_KEY, TopKeys};

/// Keys of a split-K block in decoding: the keys of few queries are cut into blocks at multiples of this many, counted from the
/// first key, each block is summed by itself, and the blocks are joined. What is copied out of a sequence at such a border is
/// summed as in the sequence.
pub const SPLIT_K: usize = 256;

/// What computes attention of layers of this shape on a device: `None` where there is no choice, which is everywhere but on CUDA.
/// Where [`AttentionKernel::Auto`] would take our own kernels they are first tried on the card, with a small problem of that
/// shape, once a process; where they do not agree with products there, products it is. Called when a model is loaded, so that
/// no later call waits for it.
///
/// # Errors
/// Where the device is lost. Kernels that cannot be run are none: products take their place.
pub fn settle(kernel: AttentionKernel, device: &Device, shape: &AttentionShape) -> Result<Option<Settled>> {
    backends::settle(kernel, device, shape)
}

/// Causal attention of the queries of one chunk over all keys so far.
///
/// `q`: (l, heads, head_dim), rotated; `k`, `v`: (kv_heads, offset + l - first_key, head_dim), `k` rotated, views of the
/// cache; keys before `first_key` must be outside the window of every query. Every
/// `heads / kv_heads` consecutive query heads share a key/value head. Returns (l, heads, head_dim) in `q`'s dtype; the
/// softmax and all sums are in f32. The observer is shown `q` and `k` first, gets the sums of a single row's weights if it asks
/// for them, and cannot change the result. Tensors and settings that do not fit together are an error.
pub fn run(q: &Tensor, k: &Tensor, v: &Tensor, site: &Site, observer: &mut dyn Observer) -> Result<Tensor> {
    let _span = timing::attention();
    check(q, k, v, site)?;
    let wanted = observer.wants(Point::Attention(site));
    let segments = wanted.segments.map(<[usize]>::to_vec);
    if wanted.inputs {
        observer.observe(Event::Attention { site, q, k, v })?;
    }
    let borders = segments.as_deref().map(|borders| site.borders(borders));
    let at = site;
    let site = &site.relative();
    static LOGGED: Once = Once::new();
    let backend = backends::choose_forward(q, k.dim(0)?, site)?;
    LOGGED.call_once(|| tracing::info!(%backend, device = ?q.device().location(), "attention"));
    let single = q.dim(0)? == 1;
    let (out, sums) = match backend {
        backends::Backend::Cpu => {
            backends::cpu::attention(q, k, v, site, borders.as_deref().filter(|_| single))?
        }
        backends::Backend::Chunked if single => {
            backends::chunked::decode(q, k, v, site, borders.as_deref(), backends::chunked::BLOCKS)?
        }
        backends::Backend::Chunked => {
            (backends::chunked::attention(q, k, v, site, backends::chunked::BLOCKS)?, None)
        }
        // These count positions as the sequence does, so that its parts are the same wherever the cache begins.
        #[cfg(feature = "cuda")]
        backends::Backend::Fused if single => backends::cuda::decode(q, k, v, at, segments.as_deref())?,
        #[cfg(feature = "cuda")]
        backends::Backend::Fused => (backends::cuda::attention(q, k, v, at)?, None),
        #[cfg(feature = "flash-attn")]
        backends::Backend::Flash => (backends::flash::attention(q, k, v, site)?, None),
    };
    match (borders, sums) {
        (None, _) => {}
        (Some(_), Some(sums)) => observer.observe(Event::Weights { site: at, sums: &sums })?,
        // A kernel that hands out no weights, or a chunk of rows: a pass of their own.
        (Some(borders), None) => {
            for row in 0..q.dim(0)? {
                let sums = backends::segment_sums(q, k, site, row..row + 1, &borders)?;
                let site = &Site { offset: at.offset + row, ..at.clone() };
                observer.observe(Event::Weights { site, sums: &sums })?;
            }
        }
    }
    Ok(out)
}

/// [`run`] for one new token of each of several sequences that share their beginning: each key of it is read once for all.
///
/// `q`: (branches, heads, head_dim), rotated; `k`, `v`: (kv_heads, base, head_dim), what all see, from position
/// `site.first_key` on, where `base` may be 0; `tails`: each branch's own keys and values, both (kv_heads, tail, head_dim),
/// from position `site.offset` on, which is `site.first_key + base`, the last of them the new token's. So the query of a
/// branch is at position `site.offset + tail - 1`. `base` should be a multiple of [`SPLIT_K`]: then branches get the same
/// bits as sequences of their own. `holes` are none, or a branch's each, in the place of the site's. Returns (branches, heads, head_dim)
/// in `q`'s dtype. `observers` are none, or one a branch,
/// which are only asked for [`Wanted::segments`]. Tensors and settings that do not fit together are an error.
pub fn run_branches(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    tails: &[(Tensor, Tensor)],
    site: &Site,
    holes: &[Holes],
    observers: &mut [&mut dyn Observer],
) -> Result<Tensor> {
    let _span = timing::attention();
    check_branches(q, k, v, tails, site)?;
    for (what, count) in [("observers", observers.len()), ("sets of holes", holes.len())] {
        if count > 0 && count != tails.len() {
            candle_core::bail!("attention: {count} {what} of {} branches", tails.len());
        }
    }
    let at = |(branch, tail): (usize, &(Tensor, Tensor))| {
        let holes = holes.get(branch).unwrap_or(&site.holes).clone();
        let site = Site { offset: site.offset + tail.0.dim(1)? - 1, holes, ..site.clone() };
        if !site.holes.is_empty() {
            site.check_row(site.offset)?;
        }
        Ok(site)
    };
    let sites = tails.iter().enumerate().map(at).collect::<Result<Vec<_>>>()?;
    let asked = observers.iter().zip(&sites).map(|(observer, at)| {
        observer.wants(Point::Attention(at)).segments.map(|borders| site.borders(borders))
    });
    let borders: Vec<Option<Vec<usize>>> = asked.collect();
    let site = &site.relative();
    let relative: Vec<Site> = match sites.iter().all(|site| site.holes.is_empty()) {
        true => Vec::new(),
        false => sites.iter().map(Site::relative).collect(),
    };
    let hidden = Hidden::of(relative.iter().map(|site| (&site.holes, site.offset)));
    let asked = OfBranches { borders: &borders, hidden: &hidden };
    let backend = match hidden.is_empty() {
        true => backends::choose_branches(q, k.dim(0)?, site)?,
        false => backends::choose(q.device(), q.dtype()),
    };
    let (out, sums) = match backend {
        backends::Backend::Cpu => backends::cpu::branches(q, k, v, tails, site, &asked)?,
        #[cfg(feature = "cuda")]
        backends::Backend::Fused => backends::cuda::branches(q, k, v, tails, site, &borders)?,
        _ => backends::chunked::branches(q, k, v, tails, site, &asked, backends::chunked::BLOCKS)?,
    };
    for ((observer, site), sums) in observers.iter_mut().zip(&sites).zip(sums) {
        if let Some(sums) = sums {
            observer.observe(Event::Weights { site, sums: &sums })?;
        }
    }
    Ok(out)
}

/// Attention of the same l tokens read once for each of `holes` after the keys `k` and values `v` of one prefix, both (kv_heads, n,
/// head_dim), where n is `site.offset`: `q` (readings * l, heads, head_dim), `own` their keys and values, (kv_heads, readings * l,
/// head_dim). The same as [`run`] for each of them, up to rounding. `None` where no kernel takes them together.
pub fn run_variants(
    q: &Tensor,
    (k, v): (&Tensor, &Tensor),
    own: (&Tensor, &Tensor),
    site: &Site,
    holes: &[Holes],
) -> Result<Option<Tensor>> {
    let (rows, base) = (q.dim(0)?, k.dim(1)?);
    if backends::choose(q.device(), q.dtype()) != backends::Backend::Cpu || base == 0 {
        return Ok(None);
    }
    let _span = timing::attention();
    let (heads, d, kv_heads) = (q.dim(1)?, q.dim(2)?, k.dim(0)?);
    let fits = |x: &Tensor, n: usize| x.dims() == [kv_heads, n, d];
    let l = rows / holes.len().max(1);
    if l * holes.len() != rows || l == 0 || base != site.offset || site.first_key != 0 {
        candle_core::bail!(
            "attention: {rows} queries of {} readings after {base} keys, at offset {} of keys from {}",
            holes.len(),
            site.offset,
            site.first_key
        );
    }
    if !fits(v, base) || !fits(k, base) || !fits(own.0, rows) || !fits(own.1, rows) {
        candle_core::bail!(
            "attention: keys {:?}, values {:?} and own ones {:?}, {:?} do not fit queries of shape {:?}",
            k.dims(),
            v.dims(),
            own.0.dims(),
            own.1.dims(),
            q.dims()
        );
    }
    check_site(heads, kv_heads, base, site)?;
    for holes in holes {
        let site = Site { holes: holes.clone(), ..site.clone() };
        (base..base + l).try_for_each(|position| site.check_row(position))?;
    }
    backends::cpu::variants(q, (k, v), own, site, holes).map(Some)
}

/// What differs between branches: what the weights of each are summed over, if anything, and what is hidden from it.
#[derive(Clone, Copy)]
struct OfBranches<'a> {
    /// None, or a branch's each.
    borders: &'a [Option<Vec<usize>>],
    hidden: &'a Hidden,
}

/// [`check`] of each branch, with the keys of prefix and tail as one sequence.
fn check_branches(q: &Tensor, k: &Tensor, v: &Tensor, tails: &[(Tensor, Tensor)], site: &Site) -> Result<()> {
    let (branches, heads, d) = q.dims3()?;
    let (kv_heads, base, _) = k.dims3()?;
    if branches != tails.len() {
        candle_core::bail!("attention: queries of {branches} branches, but {} tails", tails.len());
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
    for (k, v) in tails {
        if k.dims() != [kv_heads, k.dim(1)?.max(1), d] || v.dims() != k.dims() {
            candle_core::bail!(
                "attention: a tail of keys of shape {:?} and values of shape {:?} does not fit {kv_heads} key/value heads \
                 of {d}, or is empty",
                k.dims(),
                v.dims()
            );
        }
        check_site(heads, kv_heads, site.offset + k.dim(1)? - 1, site)?;
    }
    Ok(())
}

/// Refuses what the kernels would read past the end for, or quietly read wrongly.
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
    check_site(heads, kv_heads, site.offset, site)?;
    if !site.holes.is_empty() {
        (site.offset..site.offset + l).try_for_each(|position| site.check_row(position))?;
    }
    Ok(())
}

/// Refuses settings that do not fit the heads, and a query at `position` that would see keys before the first.
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
