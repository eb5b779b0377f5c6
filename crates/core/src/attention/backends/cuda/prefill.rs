//! Attention of the rows of a prompt.

use candle_core::{Result, Tensor};

use super::super::super::Site;
use super::operands::{self, MODULE, Operand, int, pointer, rule, shared_bytes};
use crate::fused::launch::{self, Grid, suffix, typed};

/// Heads that the kernel is made for; narrower ones take the next wider.
const WIDTHS: [usize; 5] = [64, 80, 96, 128, 256];

/// See [`super::super::super::run`].
pub fn attention(q: &Tensor, k: &Tensor, v: &Tensor, site: &Site) -> Result<Tensor> {
    let device = q.device().as_cuda_device()?;
    let ((l, heads, d), (kv_heads, keys, _)) = (q.dims3()?, k.dims3()?);
    let width = operands::width(d, &WIDTHS)?;
    let threads = if width > 128 { 128 } else { 256 };
    let dtype = q.dtype();
    let q = Operand::new(q, false, device)?;
    let (k, v) = (Operand::new(k, true, device)?, Operand::new(v, true, device)?);
    let wide = d.is_multiple_of(8) && [&q, &k, &v].iter().all(|x| x.is_wide());
    // SAFETY: the kernel writes every row.
    let out = typed!(dtype, T => unsafe { launch::unwritten::<T>(device, (l, heads, d))? });
    let mut arguments = Vec::from(q.by_both());
    arguments.extend(k.by_first());
    arguments.extend(v.by_first());
    arguments.extend([d, heads / kv_heads, l, site.offset, site.first_key, keys].map(int));
    arguments.extend(rule(site));
    arguments.push(int(wide.into()));
    arguments.push(operands::sinks(site.sinks.as_ref(), device)?.into());
    arguments.push(pointer(&out, device)?.into());
    let name = format!("attention_prefill_{}_{width}", suffix(dtype)?);
    let blocks = [l.div_ceil(threads as usize / 2), heads, 1];
    let grid = Grid { blocks, threads, shared: shared_bytes(width, threads) };
    // SAFETY: `out` has the queries' rows, the keys are as many as the last query sees, and strides are those of the tensors.
    unsafe { launch::launch(device, &MODULE, &name, &grid, &arguments)? };
    Ok(out)
}
