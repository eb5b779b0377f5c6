//! Launches this crate's kernels (feature `cuda`).

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use candle_core::cuda_backend::cudarc::driver::sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
use candle_core::cuda_backend::cudarc::driver::{
    CudaFunction, CudaModule, DevicePtr, DeviceRepr, LaunchConfig, PushKernelArg,
};
use candle_core::cuda_backend::cudarc::nvrtc::Ptx;
use candle_core::cuda_backend::{CudaDType, DeviceId, WrapErr};
use candle_core::{CudaDevice, CudaStorage, DType, Result, Shape, Storage, Tensor, WithDType};

pub(crate) struct Module {
    pub name: &'static str,
    /// PTX that ends with a NUL, or PTX and machine code for some cards, of which the driver chooses (`build.rs`).
    pub image: &'static [u8],
}

impl Module {
    /// A kernel of the module. Candle's loader takes text alone; modules are kept as long as it keeps its own.
    fn function(&self, device: &CudaDevice, name: &str) -> Result<CudaFunction> {
        static LOADED: LazyLock<Mutex<Loaded>> = LazyLock::new(Mutex::default);
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        let (stream, key) = (device.cuda_stream(), (device.id(), self.name));
        if !loaded.contains_key(&key) {
            let image = Ptx::from_binary(self.image.to_vec());
            loaded.insert(key, stream.context().load_module(image).w()?);
        }
        loaded[&key].load_function(name).w()
    }
}

/// Modules by device and name.
type Loaded = HashMap<(DeviceId, &'static str), Arc<CudaModule>>;

/// A kernel's pointer argument. The tensor must live until the launch; memory freed later is not reused before the kernel ends, since a
/// device has one stream.
#[derive(Clone, Copy)]
pub(crate) struct Pointer(u64);

impl Pointer {
    /// Null.
    pub const NOTHING: Pointer = Pointer(0);

    /// First element of a contiguous tensor of `T` on `device`.
    pub fn to<T: CudaDType + DeviceRepr + WithDType>(tensor: &Tensor, device: &CudaDevice) -> Result<Self> {
        if !tensor.is_contiguous() {
            candle_core::bail!(
                "This is a bug: a kernel was given a tensor of shape {:?} and strides {:?}",
                tensor.dims(),
                tensor.stride()
            );
        }
        Pointer::strided::<T>(tensor, device)
    }

    /// First element of a tensor of `T` on `device`; the kernel must know its strides.
    pub fn strided<T: CudaDType + DeviceRepr + WithDType>(
        tensor: &Tensor,
        device: &CudaDevice,
    ) -> Result<Self> {
        let (storage, layout) = tensor.storage_and_layout();
        match &*storage {
            Storage::Cuda(storage) if storage.device.id() == device.id() => {
                let slice = storage.as_cuda_slice::<T>()?.slice(layout.start_offset()..);
                let stream = device.cuda_stream();
                let (pointer, _) = slice.device_ptr(&stream);
                Ok(Pointer(pointer))
            }
            _ => candle_core::bail!(
                "This is a bug: a kernel for {:?} was given a tensor of shape {:?} on {:?}",
                device.id(),
                layout.dims(),
                storage.device().location()
            ),
        }
    }

    pub fn is_aligned(self, bytes: u64) -> bool {
        self.0.is_multiple_of(bytes)
    }
}

#[derive(Clone, Copy)]
pub(crate) enum Argument {
    Pointer(Pointer),
    Unsigned(u32),
    Long(i64),
    Int(i32),
    Float(f32),
}

impl From<Pointer> for Argument {
    fn from(pointer: Pointer) -> Self {
        Argument::Pointer(pointer)
    }
}

pub(crate) struct Grid {
    pub blocks: [usize; 3],
    pub threads: u32,
    /// Dynamic shared memory per block, in bytes.
    pub shared: u32,
}

/// An uninitialised tensor of `T`.
///
/// # Safety
/// The first launch on it must write everything that is read later.
pub(crate) unsafe fn unwritten<T: CudaDType + DeviceRepr + WithDType>(
    device: &CudaDevice,
    shape: impl Into<Shape>,
) -> Result<Tensor> {
    let shape = shape.into();
    // SAFETY: by the caller.
    let memory = unsafe { device.alloc::<T>(shape.elem_count())? };
    Ok(Tensor::from((Storage::Cuda(CudaStorage::wrap_cuda_slice(memory, device.clone())), shape)))
}

/// Launches kernel `name` of a module.
///
/// # Safety
/// The arguments must match the kernel and be valid for everything it reads and writes on that grid.
pub(crate) unsafe fn launch(
    device: &CudaDevice,
    module: &Module,
    name: &str,
    grid: &Grid,
    arguments: &[Argument],
) -> Result<()> {
    let [Ok(x), Ok(y), Ok(z)] = grid.blocks.map(u32::try_from) else {
        candle_core::bail!("{name}: {:?} blocks are more than a card counts", grid.blocks)
    };
    let function = module.function(device, name)?;
    // Larger sizes need an explicit attribute.
    if grid.shared > 48 << 10 {
        let attribute = CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        function.set_attribute(attribute, grid.shared as i32).w()?;
    }
    let stream = device.cuda_stream();
    let mut call = stream.launch_builder(&function);
    for argument in arguments {
        match argument {
            Argument::Pointer(Pointer(address)) => call.arg(address),
            Argument::Unsigned(x) => call.arg(x),
            Argument::Long(x) => call.arg(x),
            Argument::Int(x) => call.arg(x),
            Argument::Float(x) => call.arg(x),
        };
    }
    let config =
        LaunchConfig { grid_dim: (x, y, z), block_dim: (grid.threads, 1, 1), shared_mem_bytes: grid.shared };
    // SAFETY: by the caller.
    unsafe { call.launch(config) }.w()?;
    Ok(())
}

pub(crate) fn suffix(dtype: DType) -> Result<&'static str> {
    match dtype {
        DType::F32 => Ok("f32"),
        DType::F16 => Ok("f16"),
        DType::BF16 => Ok("bf16"),
        other => candle_core::bail!("there are kernels for f32, f16 and bf16, not for {other:?}"),
    }
}

/// Runs `$body` with `$t` as the Rust type of a dtype.
macro_rules! typed {
    ($dtype:expr, $t:ident => $body:expr) => {
        match $dtype {
            candle_core::DType::F32 => {
                type $t = f32;
                $body
            }
            candle_core::DType::F16 => {
                type $t = half::f16;
                $body
            }
            candle_core::DType::BF16 => {
                type $t = half::bf16;
                $body
            }
            other => candle_core::bail!("there are kernels for f32, f16 and bf16, not for {other:?}"),
        }
    };
}
pub(crate) use typed;
