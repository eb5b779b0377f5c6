//! Host-device copies, and kernel selection by device.
//!
//! A device-to-host copy synchronises, so the decoder, attention and the engine copy only through [`fetch`], [`fetch_all`] and
//! [`upload`]; tests count these and scan sources for others. Kernel launches are counted on the mock device (`rehearsal/`).

use candle_core::{DType, Device, Result, Shape, Tensor, WithDType};

#[cfg(test)]
pub(crate) mod count;
#[cfg(test)]
mod tests;

/// True if the slice kernels serve tensors on `device`; else Candle's operations do.
pub(crate) fn cpu_kernels(device: &Device) -> bool {
    #[cfg(test)]
    if count::as_elsewhere() {
        return false;
    }
    device.is_cpu()
}

/// Elements of an f32 tensor, row-major, in one copy.
pub(crate) fn fetch(tensor: &Tensor) -> Result<Vec<f32>> {
    #[cfg(test)]
    count::fetched();
    tensor.flatten_all()?.to_vec1()
}

/// Elements of f32 or f64 tensors, row-major: one copy per run of tensors of the same device and dtype.
pub(crate) fn fetch_all(tensors: &[&Tensor]) -> Result<Vec<Vec<f64>>> {
    let mut all = Vec::with_capacity(tensors.len());
    let together = |a: &&Tensor, b: &&Tensor| a.dtype() == b.dtype() && a.device().same_device(b.device());
    for run in tensors.chunk_by(together) {
        let flat = run.iter().map(|t| t.flatten_all()).collect::<Result<Vec<_>>>()?;
        let joined = Tensor::cat(&flat, 0)?;
        #[cfg(test)]
        count::fetched();
        // Converted on the host, since not every device supports f64.
        let numbers = joined.to_device(&Device::Cpu)?.to_dtype(DType::F64)?.to_vec1::<f64>()?;
        let mut rest = numbers.as_slice();
        for tensor in run {
            let (own, others) = rest.split_at(tensor.elem_count());
            all.push(own.to_vec());
            rest = others;
        }
    }
    Ok(all)
}

/// A tensor on another device of the same kind.
///
/// Each GPU has its own stream, and the copy runs on the target's. So the source is synchronised before the copy, since it may still be
/// writing, and the target after it, since the caller may free the source.
pub(crate) fn moved(tensor: &Tensor, device: &Device) -> Result<Tensor> {
    if tensor.device().same_device(device) {
        return Ok(tensor.clone());
    }
    tensor.device().synchronize()?;
    let moved = tensor.to_device(device)?;
    device.synchronize()?;
    Ok(moved)
}

pub(crate) fn upload<D: WithDType>(data: Vec<D>, shape: impl Into<Shape>, device: &Device) -> Result<Tensor> {
    #[cfg(test)]
    count::uploaded();
    Tensor::from_vec(data, shape.into(), device)
}

/// While the returned guard lives, the shapes and strides that Candle uploads for kernels on strided tensors are uploaded once and kept for
/// good: half a KiB per shape. For steps with repeating shapes; must not be used with data uploads ([`upload`]).
pub(crate) fn keep_layouts(device: &Device) -> Option<impl Sized + use<>> {
    #[cfg(feature = "cuda")]
    return device.as_cuda_device().ok().map(|card| card.enable_cuda_graph_htod_cache());
    #[cfg(not(feature = "cuda"))]
    {
        let _ = device;
        None::<()>
    }
}
