//! Command-line flags for opening a local model.

use candle_core::{DType, Device};
use palimpsest_core::attention::AttentionKernel;
use palimpsest_core::engine::memory_plan::MemoryRequest;
use palimpsest_core::engine::{self, DeviceError, DeviceName, LocalOptions};
use palimpsest_core::model::Kept;

/// Where a model runs.
#[derive(Debug, Clone, PartialEq, clap::Args)]
#[command(next_help_heading = "Model")]
pub struct DeviceArgs {
    /// cpu, cuda, cuda:N, metal, or several with commas (cuda:0,cuda:1) to split the layers
    #[arg(long, default_value = CPU)]
    pub device: String,
    /// What computes attention on CUDA: auto (flash where built in, else fused once a check on the card holds), products, fused
    /// (our own kernels, unchecked), flash or hopper (fused with a prefill kernel for the H100, checked); products take what the others
    /// do not serve
    #[arg(long, default_value_t, value_name = "KERNEL")]
    pub attention_kernel: AttentionKernel,
}

const CPU: &str = "cpu";

impl DeviceArgs {
    pub fn open(&self) -> Result<Vec<Device>, DeviceError> {
        engine::parse_devices(&self.device)
    }

    pub fn is_cpu(&self) -> bool {
        self.device == CPU
    }
}

/// In which number formats a model runs.
#[derive(Debug, Clone, Default, PartialEq, clap::Args)]
#[command(next_help_heading = "Model")]
pub struct DtypeArgs {
    /// f32, bf16 or f16 [default: f32 on the CPU, bf16 elsewhere]
    #[arg(long)]
    pub dtype: Option<String>,
    /// Keys and values in the cache on the CPU: f32, bf16 or f16, half of the memory [default: as --dtype]
    #[arg(long, value_name = "DTYPE")]
    pub cache_dtype: Option<String>,
}

impl DtypeArgs {
    pub fn dtype(&self) -> Result<Option<DType>, DeviceError> {
        self.dtype.as_deref().map(engine::parse_dtype).transpose()
    }

    pub fn cache(&self) -> Result<Option<DType>, DeviceError> {
        self.cache_dtype.as_deref().map(engine::parse_dtype).transpose()
    }
}

/// Where a model runs, and in which form its weights are held.
#[derive(Debug, Clone, PartialEq, clap::Args)]
#[command(next_help_heading = "Model")]
pub struct ModelArgs {
    #[command(flatten)]
    pub on: DeviceArgs,
    #[command(flatten)]
    pub in_dtype: DtypeArgs,
    /// What to keep of quantised weights on the CPU
    #[arg(long, value_enum, default_value_t)]
    pub weights: Weights,
}

impl ModelArgs {
    /// Opens the devices; other options keep their defaults.
    pub fn options(&self) -> Result<LocalOptions, DeviceError> {
        Ok(LocalOptions {
            devices: self.on.open()?,
            dtype: self.in_dtype.dtype()?,
            cache_dtype: self.in_dtype.cache()?,
            kernel: self.on.attention_kernel,
            kept: self.weights.into(),
            ..LocalOptions::default()
        })
    }

    /// Memory request for a context; `usual` is the default device.
    pub fn request(
        &self,
        context: usize,
        usual: DType,
        devices: Vec<DeviceName>,
    ) -> Result<MemoryRequest, DeviceError> {
        Ok(MemoryRequest {
            cache: self.in_dtype.cache()?,
            kernel: self.on.attention_kernel,
            kept: self.weights.into(),
            ..MemoryRequest::new(context, self.in_dtype.dtype()?.unwrap_or(usual), devices)
        })
    }
}

/// Form of quantised weights in memory on the CPU. Answers are the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Weights {
    /// `dense` where memory allows, else `quantised`
    #[default]
    Auto,
    /// The quantised weights and the dequantised ones in --dtype: the fastest
    Dense,
    /// The quantised bits alone: the least memory
    Quantised,
}

impl From<Weights> for Option<Kept> {
    fn from(weights: Weights) -> Self {
        match weights {
            Weights::Auto => None,
            Weights::Dense => Some(Kept::Dense),
            Weights::Quantised => Some(Kept::Quantised),
        }
    }
}
