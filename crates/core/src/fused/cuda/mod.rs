//! Fused operations by custom kernels and cuBLAS (feature `cuda`). `build.rs` compiles `fused.cu`.

use candle_core::cuda_backend::CudaDType;
use candle_core::cuda_backend::cudarc::driver::DeviceRepr;
use candle_core::{CudaDevice, DType, Result, Shape, Tensor, WithDType};

use super::gate::Gate;
use super::launch::Argument::{self, Float, Int, Long, Unsigned};
use super::launch::{self, Grid, Module, Pointer, suffix, typed};
use super::online_softmax::OnlineSoftmax;

/// The widest heads that [`norm_rope`](super::norm_rope) serves.
pub(crate) const WIDEST: usize = 1024;

pub(super) mod cublas;
pub(crate) mod delta;

const MODULE: Module =
    Module { name: "palimpsest", image: include_bytes!(concat!(env!("OUT_DIR"), "/fused.image")) };
const NOTHING: Pointer = Pointer::NOTHING;

/// Maximum threads per block, supported by every GPU; `fused.cu` relies on it.
const THREADS: usize = 1024;

fn threads(n: usize) -> u32 {
    n.next_multiple_of(32).clamp(32, THREADS) as u32
}

/// Launches kernel `name` of `fused.cu` on `blocks` of `threads`. It writes a new tensor of `shape`, its last argument.
///
/// # Safety
/// `push` must give the kernel's other arguments, valid for that many blocks.
unsafe fn launch<T: CudaDType + DeviceRepr + WithDType>(
    device: &CudaDevice,
    name: &str,
    (blocks, threads): ((usize, usize), u32),
    shape: impl Into<Shape>,
    mut arguments: Vec<Argument>,
) -> Result<Tensor> {
    // SAFETY: the kernel writes every element; the rest is up to the caller.
    unsafe {
        let out = launch::unwritten::<T>(device, shape)?;
        arguments.push(Pointer::to::<T>(&out, device)?.into());
        let grid = Grid { blocks: [blocks.0, blocks.1, 1], threads, shared: 0 };
        launch::launch(device, &MODULE, name, &grid, &arguments)?;
        Ok(out)
    }
}

pub(super) struct Block<'a> {
    /// f32 (kv_heads, group * r, n).
    pub scores: &'a Tensor,
    /// u32 (2, r): start and end of the visible keys of each of the r rows; `None` if all see all.
    pub seen: Option<&'a Tensor>,
    pub first: usize,
    pub cap: Option<f32>,
}

impl Block<'_> {
    pub fn update(&self, earlier: Option<&OnlineSoftmax>, dtype: DType) -> Result<(Tensor, OnlineSoftmax)> {
        let device = self.scores.device().as_cuda_device()?;
        let (kv_heads, group_rows, n) = self.scores.dims3()?;
        let rows = kv_heads * group_rows;
        let (max_before, sum_before) = match earlier {
            Some(softmax) if softmax.max.elem_count() == rows && softmax.sum.elem_count() == rows => {
                (Pointer::to::<f32>(&softmax.max, device)?, Pointer::to::<f32>(&softmax.sum, device)?)
            }
            Some(softmax) => candle_core::bail!("sums of shape {:?} for {rows} rows", softmax.sum.dims()),
            None => (NOTHING, NOTHING),
        };
        let (seen, queries) = match self.seen {
            Some(seen) if seen.dims() == [2, seen.dim(1)?] && rows.is_multiple_of(seen.dim(1)?) => {
                (Pointer::to::<u32>(seen, device)?, seen.dim(1)?)
            }
            Some(seen) => candle_core::bail!("keys seen of shape {:?} for {rows} rows", seen.dims()),
            None => (NOTHING, 1),
        };
        let scores = Pointer::to::<f32>(self.scores, device)?;
        let common = || {
            let cap = self.cap.unwrap_or(0.0);
            [
                scores.into(),
                seen.into(),
                Unsigned(queries as u32),
                Long(self.first as i64),
                Long(n as i64),
                Float(cap),
            ]
        };
        let kinds = 2 + usize::from(earlier.is_some());
        let shape = (kinds, kv_heads, group_rows, 1);
        let arguments: Vec<Argument> =
            common().into_iter().chain([max_before.into(), sum_before.into()]).collect();
        // (2 or 3, kv_heads, group * r, 1): maxima, sums and, after the first block, rescale factors.
        // SAFETY: one block per row of `scores`; `seen` has two numbers per query, the rows are a multiple of the queries, and the earlier
        // state has one number per row.
        let ends =
            unsafe { launch::<f32>(device, "softmax_ends", ((rows, 1), threads(n)), shape, arguments)? };
        let rescale = if kinds > 2 { Some(ends.get(2)?) } else { None };
        let softmax = OnlineSoftmax { max: ends.get(0)?, sum: ends.get(1)?, rescale };
        let max = Pointer::to::<f32>(&softmax.max, device)?;
        let arguments: Vec<Argument> = common().into_iter().chain([max.into()]).collect();
        // About 8 elements per thread.
        let parts = n.div_ceil(8 * THREADS).clamp(1, 1 << 15);
        let (name, grid) =
            (format!("softmax_weights_{}", suffix(dtype)?), ((rows, parts), threads(n.div_ceil(8))));
        // SAFETY: as above; there are as many weights as scores, and one maximum per row.
        let weights =
            typed!(dtype, T => unsafe { launch::<T>(device, &name, grid, self.scores.shape(), arguments)? });
        Ok((weights, softmax))
    }
}

pub(super) fn normalise(
    out: &Tensor,
    softmax: &OnlineSoftmax,
    sinks: Option<&Tensor>,
    heads: usize,
    dtype: DType,
) -> Result<Tensor> {
    let device = out.device().as_cuda_device()?;
    let (kv_heads, group_rows, d) = out.dims3()?;
    let rows = kv_heads * group_rows;
    if !rows.is_multiple_of(heads)
        || [&softmax.max, &softmax.sum].iter().any(|t| t.elem_count() != rows)
        || sinks.is_some_and(|s| s.elem_count() != heads)
    {
        candle_core::bail!(
            "values of shape {:?} with sums of shape {:?} for {heads} heads",
            out.dims(),
            softmax.sum.dims()
        );
    }
    let queries = rows / heads;
    let sinks = sinks.map_or(Ok(NOTHING), |sinks| Pointer::to::<f32>(sinks, device))?;
    let arguments = vec![
        Pointer::to::<f32>(out, device)?.into(),
        Pointer::to::<f32>(&softmax.max, device)?.into(),
        Pointer::to::<f32>(&softmax.sum, device)?.into(),
        sinks.into(),
        Unsigned(queries as u32),
        Unsigned(d as u32),
    ];
    let name = format!("softmax_close_{}", suffix(dtype)?);
    let (grid, shape) = (((rows, 1), threads(d)), (queries, heads, d));
    // SAFETY: one block per row of `out`, one number per row in `softmax`, and one sink per head.
    typed!(dtype, T => unsafe { launch::<T>(device, &name, grid, shape, arguments) })
}

pub(super) fn rms_norm(x: &Tensor, factor: &Tensor, eps: f32) -> Result<Tensor> {
    let device = x.device().as_cuda_device()?;
    let (dtype, width) = (x.dtype(), x.dim(candle_core::D::Minus1)?);
    if factor.dims() != [width] || width == 0 {
        candle_core::bail!("a norm of shape {:?} by factors of shape {:?}", x.dims(), factor.dims());
    }
    let name = format!("rms_norm_{}", suffix(dtype)?);
    let grid = ((x.elem_count() / width, 1), threads(width));
    let at = typed!(dtype, T => Pointer::to::<T>(x, device)?);
    let by = Pointer::to::<f32>(factor, device)?;
    let arguments = vec![at.into(), by.into(), Unsigned(width as u32), Float(eps)];
    // SAFETY: one block per row of `x`, as wide as `factor`.
    typed!(dtype, T => unsafe { launch::<T>(device, &name, grid, x.shape(), arguments) })
}

/// Rows of `gate` and `up` that lie equally far apart are not copied.
pub(super) fn gated(kind: Gate, gate: &Tensor, up: &Tensor) -> Result<Tensor> {
    let device = gate.device().as_cuda_device()?;
    let columns = gate.dim(candle_core::D::Minus1)?;
    if gate.dims() != up.dims() || gate.dtype() != up.dtype() || columns == 0 {
        candle_core::bail!("a gate of shape {:?} for values of shape {:?}", gate.dims(), up.dims());
    }
    let (kind, alpha, limit) = match kind {
        Gate::Silu => (0, 0.0, 0.0),
        Gate::GeluTanh => (1, 0.0, 0.0),
        Gate::Clamped { alpha, limit } => (2, alpha, limit),
    };
    let rows = gate.elem_count() / columns;
    let apart = |x: &Tensor| x.dims().len() == 2 && x.stride()[1] == 1 && x.stride()[0] == gate.stride()[0];
    let (gate, up, stride) = match apart(gate) && apart(up) {
        true => (gate.clone(), up.clone(), gate.stride()[0]),
        false => (gate.contiguous()?, up.contiguous()?, columns),
    };
    let name = format!("gated_{}", suffix(gate.dtype())?);
    let (gate_at, up_at) = typed!(gate.dtype(), T => (Pointer::strided::<T>(&gate, device)?, Pointer::strided::<T>(&up, device)?));
    let arguments = vec![
        gate_at.into(),
        up_at.into(),
        Unsigned(columns as u32),
        Unsigned(rows as u32),
        Long(stride as i64),
        Int(kind),
        Float(alpha),
        Float(limit),
    ];
    let grid = ((columns.div_ceil(256), rows.clamp(1, 65535)), 256);
    // SAFETY: `gate` and `up` have `rows` rows of `columns` elements each, `stride` apart, of the dtype in the kernel's name.
    typed!(gate.dtype(), T => unsafe { launch::<T>(device, &name, grid, gate.shape(), arguments) })
}

/// See [`super::norm_rope`].
pub(super) fn norm_rope(
    [q, k]: [&Tensor; 2],
    [q_norm, k_norm]: [(&Tensor, f32); 2],
    [cos, sin]: [&Tensor; 2],
) -> Result<[Tensor; 2]> {
    let device = q.device().as_cuda_device()?;
    let ((l, heads, width), (_, kv_heads, _), dtype) = (q.dims3()?, k.dims3()?, q.dtype());
    let (rows, half) = cos.dims2()?;
    let sound = k.dims() == [l, kv_heads, width]
        && [q_norm.0, k_norm.0].iter().all(|x| x.dims() == [width])
        && sin.dims() == cos.dims()
        && [k, cos, sin].iter().all(|x| x.dtype() == dtype)
        && rows >= l
        && (1..=WIDEST).contains(&width)
        && (2..=width).contains(&(2 * half));
    if !sound {
        candle_core::bail!(
            "a norm and rotation of queries of shape {:?} and keys of shape {:?} by angles of shape {:?}",
            q.dims(),
            k.dims(),
            cos.dims()
        );
    }
    let name = format!("norm_rope_{}", suffix(dtype)?);
    // Rows must be dense; heads and tokens may lie apart.
    let dense = |x: &Tensor| if x.stride()[2] == 1 { Ok(x.clone()) } else { x.contiguous() };
    let (q, k) = (dense(q)?, dense(k)?);
    let strided = |x: &Tensor| {
        let at = typed!(dtype, T => Pointer::strided::<T>(x, device)?);
        Ok::<_, candle_core::Error>([at.into(), Long(x.stride()[0] as i64), Long(x.stride()[1] as i64)])
    };
    let plain = |x: &Tensor| {
        Ok::<Argument, candle_core::Error>(typed!(x.dtype(), T => Pointer::to::<T>(x, device)?).into())
    };
    typed!(dtype, T => {
        // SAFETY: the kernel writes both, a thread block per token and head, as wide as the factors; there are angles for each token.
        unsafe {
            let q_out = launch::unwritten::<T>(device, (l, heads, width))?;
            let k_out = launch::unwritten::<T>(device, (l, kv_heads, width))?;
            let mut arguments = Vec::new();
            for (x, (factor, eps), out) in [(&q, q_norm, &q_out), (&k, k_norm, &k_out)] {
                arguments.extend(strided(x)?);
                let factor = Pointer::to::<f32>(factor, device)?.into();
                arguments.extend([factor, Float(eps), plain(out)?]);
            }
            arguments.extend([plain(cos)?, plain(sin)?]);
            arguments.extend([heads, width, 2 * half].map(|n| Unsigned(n as u32)));
            let grid = Grid { blocks: [l, heads + kv_heads, 1], threads: threads(width), shared: 0 };
            launch::launch(device, &MODULE, &name, &grid, &arguments)?;
            Ok([q_out, k_out])
        }
    })
}

pub(super) fn gated_norm(x: &Tensor, factor: &Tensor, eps: f32, z: &Tensor) -> Result<Tensor> {
    let device = x.device().as_cuda_device()?;
    let width = x.dim(candle_core::D::Minus1)?;
    if factor.dims() != [width] || width == 0 || x.dims() != z.dims() {
        candle_core::bail!(
            "a norm of shape {:?} by factors of shape {:?} and a gate of shape {:?}",
            x.dims(),
            factor.dims(),
            z.dims()
        );
    }
    let name = format!("gated_norm_{}", suffix(z.dtype())?);
    let grid = ((x.elem_count() / width, 1), threads(width));
    let z_at = typed!(z.dtype(), T => Pointer::to::<T>(z, device)?);
    let (x_at, factor) = (Pointer::to::<f32>(x, device)?, Pointer::to::<f32>(factor, device)?);
    let arguments = vec![x_at.into(), factor.into(), z_at.into(), Unsigned(width as u32), Float(eps)];
    // SAFETY: one block per row of `x` and `z`, as wide as `factor`; `z` has the dtype in the kernel's name.
    typed!(z.dtype(), T => unsafe { launch::<T>(device, &name, grid, x.shape(), arguments) })
}

pub(super) fn decay(x: &Tensor, bias: &Tensor, rate: &Tensor) -> Result<Tensor> {
    let device = x.device().as_cuda_device()?;
    let (columns, n) = (x.dim(candle_core::D::Minus1)?, x.elem_count());
    if bias.dims() != [columns] || rate.dims() != [columns] || n == 0 {
        candle_core::bail!(
            "decays of shape {:?} with {:?} biases and {:?} rates",
            x.dims(),
            bias.dims(),
            rate.dims()
        );
    }
    let at = typed!(x.dtype(), T => Pointer::to::<T>(x, device)?);
    let (bias, rate) = (Pointer::to::<f32>(bias, device)?, Pointer::to::<f32>(rate, device)?);
    let arguments = vec![at.into(), bias.into(), rate.into(), Unsigned(columns as u32), Long(n as i64)];
    let name = format!("decay_{}", suffix(x.dtype())?);
    let grid = ((n.div_ceil(256), 1), 256);
    // SAFETY: one thread per element of `n`; one bias and rate per column.
    unsafe { launch::<f32>(device, &name, grid, x.shape(), arguments) }
}
