//! Prefill attention.

use candle_core::cuda_backend::WrapErr;
use candle_core::cuda_backend::cudarc::driver::sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;
use candle_core::{CudaDevice, DType, Result, Tensor};

use super::super::super::Site;
use super::operands::{self, HOPPER, MODULE, Operand, int, pointer, rule, shared_bytes};
use crate::fused::launch::{self, Grid, Module, suffix, typed};

struct Prefill {
    width: usize,
    kind: &'static str,
    threads: u32,
    queries: usize,
    /// Queries kept in shared memory: the whole block, or none.
    kept: usize,
}

/// Narrowest first, and per width the largest shared memory first: the first that fits is the fastest.
const KERNELS: [Prefill; 7] = [
    Prefill { width: 64, kind: "", threads: 256, queries: 128, kept: 0 },
    Prefill { width: 80, kind: "", threads: 256, queries: 128, kept: 0 },
    Prefill { width: 96, kind: "", threads: 128, queries: 128, kept: 128 },
    Prefill { width: 128, kind: "", threads: 256, queries: 256, kept: 256 },
    Prefill { width: 128, kind: "_small", threads: 256, queries: 128, kept: 0 },
    Prefill { width: 256, kind: "", threads: 256, queries: 128, kept: 128 },
    Prefill { width: 256, kind: "_small", threads: 128, queries: 64, kept: 64 },
];

/// Kernels by Hopper's warpgroup products: head width, and keys of a block.
const BY_GROUPS: [(usize, usize); 3] = [(64, 128), (128, 128), (256, 64)];
/// Their queries and threads per block.
const QUERIES_OF_GROUPS: usize = 128;
const THREADS_OF_GROUPS: u32 = 256;

/// A kernel, its module and how it is launched.
struct Chosen {
    module: &'static Module,
    name: String,
    threads: u32,
    queries: usize,
    shared: u32,
}

impl Chosen {
    fn of(d: usize, dtype: DType, device: &CudaDevice) -> Result<Self> {
        let kernel = Prefill::of(d, device)?;
        Ok(Chosen {
            module: &MODULE,
            name: format!("attention_prefill_{}_{}{}", suffix(dtype)?, kernel.width, kernel.kind),
            threads: kernel.threads,
            queries: kernel.queries,
            shared: kernel.shared(),
        })
    }

    fn of_groups(d: usize, dtype: DType) -> Result<Self> {
        let Some((width, keys)) = BY_GROUPS.iter().find(|(width, _)| d <= *width) else {
            candle_core::bail!("This is a bug: there is no attention kernel for heads of {d}")
        };
        Ok(Chosen {
            module: &HOPPER,
            name: format!("attention_hopper_{}_{width}", suffix(dtype)?),
            threads: THREADS_OF_GROUPS,
            queries: QUERIES_OF_GROUPS,
            // Queries, keys and values twice, and the way to a multiple of 1,024 bytes.
            shared: (1024 + 2 * width * (QUERIES_OF_GROUPS + 4 * keys)) as u32,
        })
    }
}

impl Prefill {
    fn of(d: usize, device: &CudaDevice) -> Result<&'static Prefill> {
        let context = device.cuda_stream().context().clone();
        let most = context.attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN).w()?;
        let fits = |kernel: &&Prefill| d <= kernel.width && kernel.shared() <= most.unsigned_abs();
        match KERNELS.iter().find(fits) {
            Some(kernel) => Ok(kernel),
            None => candle_core::bail!("This is a bug: there is no attention kernel for heads of {d}"),
        }
    }

    fn shared(&self) -> u32 {
        shared_bytes(self.width, if self.width > 128 { 32 } else { 64 }, self.kept)
    }
}

/// `hopper`: by Hopper's warpgroup products.
pub fn attention(q: &Tensor, k: &Tensor, v: &Tensor, site: &Site, hopper: bool) -> Result<Tensor> {
    let device = q.device().as_cuda_device()?;
    let ((l, heads, d), (kv_heads, keys, _)) = (q.dims3()?, k.dims3()?);
    let dtype = q.dtype();
    let q = Operand::new(q, false, device)?;
    let (k, v) = (Operand::new(k, true, device)?, Operand::new(v, true, device)?);
    let wide = d.is_multiple_of(8) && [&q, &k, &v].iter().all(|x| x.is_wide());
    let kernel = if hopper { Chosen::of_groups(d, dtype)? } else { Chosen::of(d, dtype, device)? };
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
    let blocks = [l.div_ceil(kernel.queries), heads, 1];
    let grid = Grid { blocks, threads: kernel.threads, shared: kernel.shared };
    // SAFETY: `out` has the queries' rows, the keys reach the last visible one, and the strides are the tensors'.
    unsafe { launch::launch(device, kernel.module, &kernel.name, &grid, &arguments)? };
    Ok(out)
}

/// True for compute capability 9.0: later cards lack the instructions, too.
pub fn is_hopper(card: &CudaDevice) -> bool {
    card.cuda_stream().context().compute_capability().is_ok_and(|found| found == (9, 0))
}
