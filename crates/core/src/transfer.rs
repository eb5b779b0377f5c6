//! Copies between the host and a device, and the choice of kernels for a device.
//!
//! A copy back to the host waits until the device has done all that it was asked for, so the decoder, attention and the
//! engine take everything back through [`fetch`] and [`fetch_all`], and send through [`upload`]: tests count the copies here, and
//! read the sources for others. Kernel launches are counted on the pretend device (`rehearsal/`).

use candle_core::{DType, Device, Result, Shape, Tensor, WithDType};

#[cfg(test)]
pub(crate) mod count;
#[cfg(test)]
mod tests;

/// True where tensors on `device` are worked on by the kernels on slices; else Candle's operations, which run anywhere, are.
pub(crate) fn cpu_kernels(device: &Device) -> bool {
    #[cfg(test)]
    if count::as_elsewhere() {
        return false;
    }
    device.is_cpu()
}

/// The elements of an f32 tensor of any shape, row-major: one copy.
pub(crate) fn fetch(tensor: &Tensor) -> Result<Vec<f32>> {
    #[cfg(test)]
    count::fetched();
    tensor.flatten_all()?.to_vec1()
}

/// The elements of f32 or f64 tensors of any shapes, row-major: one copy for each run of tensors of one device and dtype.
pub(crate) fn fetch_all(tensors: &[&Tensor]) -> Result<Vec<Vec<f64>>> {
    let mut all = Vec::with_capacity(tensors.len());
    let together = |a: &&Tensor, b: &&Tensor| a.dtype() == b.dtype() && a.device().same_device(b.device());
    for run in tensors.chunk_by(together) {
        let flat = run.iter().map(|t| t.flatten_all()).collect::<Result<Vec<_>>>()?;
        let joined = Tensor::cat(&flat, 0)?;
        #[cfg(test)]
        count::fetched();
        // To f64 on the host: not every device has it.
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
/// Every card works through its own stream, and a copy from one to the other goes through the second one's, which knows
/// nothing of what the first is doing. So the first is waited for before the copy, whose source it may still be writing, and
/// the second after it, since the first may free the source as soon as this returns.
pub(crate) fn moved(tensor: &Tensor, device: &Device) -> Result<Tensor> {
    if tensor.device().same_device(device) {
        return Ok(tensor.clone());
    }
    tensor.device().synchronize()?;
    let moved = tensor.to_device(device)?;
    device.synchronize()?;
    Ok(moved)
}

/// A tensor of `data` on `device`.
pub(crate) fn upload<D: WithDType>(data: Vec<D>, shape: impl Into<Shape>, device: &Device) -> Result<Tensor> {
    #[cfg(test)]
    count::uploaded();
    Tensor::from_vec(data, shape.into(), device)
}

/// While what this returns lives, the shapes and strides that Candle sends a card with a kernel over strided tensors, each with
/// an allocation of its own, stay there and are sent once. For steps whose shapes come again: what is sent is kept for good,
/// half a KiB a shape, and so must be no data either ([`upload`]).
pub(crate) fn keep_layouts(device: &Device) -> Option<impl Sized + use<>> {
    #[cfg(feature = "cuda")]
    return device.as_cuda_device().ok().map(|card| card.enable_cuda_graph_htod_cache());
    #[cfg(not(feature = "cuda"))]
    {
        let _ = device;
        None::<()>
    }
}
