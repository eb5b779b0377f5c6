//! Error codes of CUDA, cuBLAS and cuRAND, and [`Refusal`], the error of a call. Use only codes that the caller's bindings know: they are
//! enums there.

use std::ffi::CStr;

/// A code with its name, and its name and description as C strings.
pub type Code = (i32, &'static str, &'static CStr, &'static CStr);

/// A C string literal; compilation fails unless its only zero byte is the last.
const fn c_text(text: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(text) => text,
        Err(_) => panic!("not one zero byte at the end"),
    }
}

macro_rules! codes {
    ($($name:ident = $value:literal, $meaning:literal;)*) => {
        $(#[doc = $meaning] pub const $name: i32 = $value;)*
        /// All codes.
        pub const ALL: &[super::Code] = &[$((
            $value,
            stringify!($name),
            super::c_text(concat!(stringify!($name), "\0")),
            super::c_text(concat!($meaning, "\0")),
        )),*];
    };
}

/// `CUresult`.
#[allow(missing_docs, reason = "each constant's meaning is its doc")]
pub mod cuda {
    codes! {
        CUDA_SUCCESS = 0, "no error";
        CUDA_ERROR_INVALID_VALUE = 1, "invalid argument";
        CUDA_ERROR_OUT_OF_MEMORY = 2, "out of memory";
        CUDA_ERROR_NOT_INITIALIZED = 3, "initialization error";
        CUDA_ERROR_DEINITIALIZED = 4, "driver shutting down";
        CUDA_ERROR_DEVICE_UNAVAILABLE = 46, "CUDA-capable device(s) is/are busy or unavailable";
        CUDA_ERROR_NO_DEVICE = 100, "no CUDA-capable device is detected";
        CUDA_ERROR_INVALID_DEVICE = 101, "invalid device ordinal";
        CUDA_ERROR_INVALID_IMAGE = 200, "device kernel image is invalid";
        CUDA_ERROR_INVALID_CONTEXT = 201, "invalid device context";
        CUDA_ERROR_NO_BINARY_FOR_GPU = 209, "no kernel image is available for execution on the device";
        CUDA_ERROR_ECC_UNCORRECTABLE = 214, "uncorrectable ECC error encountered";
        CUDA_ERROR_INVALID_PTX = 218, "a PTX JIT compilation failed";
        CUDA_ERROR_UNSUPPORTED_PTX_VERSION = 222, "the PTX is of an unsupported toolchain";
        CUDA_ERROR_FILE_NOT_FOUND = 301, "file not found";
        CUDA_ERROR_INVALID_HANDLE = 400, "invalid resource handle";
        CUDA_ERROR_NOT_FOUND = 500, "named symbol not found";
        CUDA_ERROR_NOT_READY = 600, "device not ready";
        CUDA_ERROR_ILLEGAL_ADDRESS = 700, "an illegal memory access was encountered";
        CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES = 701, "too many resources requested for launch";
        CUDA_ERROR_LAUNCH_TIMEOUT = 702, "the launch timed out and was terminated";
        CUDA_ERROR_CONTEXT_IS_DESTROYED = 709, "context is destroyed";
        CUDA_ERROR_MISALIGNED_ADDRESS = 716, "misaligned address";
        CUDA_ERROR_LAUNCH_FAILED = 719, "unspecified launch failure";
        CUDA_ERROR_NOT_SUPPORTED = 801, "operation not supported";
        CUDA_ERROR_UNKNOWN = 999, "unknown error";
    }
}

/// `cublasStatus_t`.
#[allow(missing_docs, reason = "each constant's meaning is its doc")]
pub mod cublas {
    codes! {
        CUBLAS_STATUS_SUCCESS = 0, "the operation completed successfully";
        CUBLAS_STATUS_NOT_INITIALIZED = 1, "the library was not initialized";
        CUBLAS_STATUS_ALLOC_FAILED = 3, "the resource allocation failed";
        CUBLAS_STATUS_INVALID_VALUE = 7, "an invalid value was used as an argument";
        CUBLAS_STATUS_ARCH_MISMATCH = 8, "an absent device architectural feature is required";
        CUBLAS_STATUS_EXECUTION_FAILED = 13, "the GPU program failed to execute";
        CUBLAS_STATUS_INTERNAL_ERROR = 14, "an internal operation failed";
        CUBLAS_STATUS_NOT_SUPPORTED = 15, "the functionality requested is not supported";
    }
}

/// `curandStatus_t`.
#[allow(missing_docs, reason = "each constant's meaning is its doc")]
pub mod curand {
    codes! {
        CURAND_STATUS_SUCCESS = 0, "no errors";
        CURAND_STATUS_NOT_INITIALIZED = 101, "generator not initialized";
        CURAND_STATUS_ALLOCATION_FAILED = 102, "memory allocation failed";
        CURAND_STATUS_TYPE_ERROR = 103, "generator is wrong type";
        CURAND_STATUS_OUT_OF_RANGE = 104, "argument out of range";
        CURAND_STATUS_LENGTH_NOT_MULTIPLE = 105, "length requested is not a multiple of dimension";
        CURAND_STATUS_LAUNCH_FAILURE = 201, "kernel launch failure";
        CURAND_STATUS_INITIALIZATION_FAILED = 203, "initialization of CUDA failed";
        CURAND_STATUS_INTERNAL_ERROR = 999, "internal library error";
    }
}

/// A CUDA library with its own error codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Library {
    /// The driver.
    Cuda,
    /// cuBLAS.
    Cublas,
    /// cuRAND.
    Curand,
}

impl Library {
    /// The library that exports this function.
    pub fn of(call: &str) -> Self {
        match call {
            _ if call.starts_with("cublas") => Self::Cublas,
            _ if call.starts_with("curand") => Self::Curand,
            _ => Self::Cuda,
        }
    }

    /// All codes of the library.
    pub fn codes(self) -> &'static [Code] {
        match self {
            Self::Cuda => cuda::ALL,
            Self::Cublas => cublas::ALL,
            Self::Curand => curand::ALL,
        }
    }

    /// The name of a code.
    pub fn name(self, code: i32) -> &'static str {
        self.codes().iter().find(|entry| entry.0 == code).map_or("an unknown code", |entry| entry.1)
    }

    /// The error that this library returns after a device failure.
    pub fn after_failure(self, code: i32) -> i32 {
        match self {
            Self::Cuda => code,
            Self::Cublas => cublas::CUBLAS_STATUS_EXECUTION_FAILED,
            Self::Curand => curand::CURAND_STATUS_LAUNCH_FAILURE,
        }
    }
}

/// True if the device is lost after this CUDA error, so that every later call returns it too.
pub fn is_sticky(code: i32) -> bool {
    use cuda::*;
    [
        CUDA_ERROR_ECC_UNCORRECTABLE,
        CUDA_ERROR_ILLEGAL_ADDRESS,
        CUDA_ERROR_LAUNCH_TIMEOUT,
        CUDA_ERROR_MISALIGNED_ADDRESS,
        CUDA_ERROR_LAUNCH_FAILED,
    ]
    .contains(&code)
}

/// The error of a call: a code and a message.
pub struct Refusal {
    /// Code returned to the caller.
    pub code: i32,
    /// Message.
    pub why: String,
    /// True for errors that correct programs handle (out of memory, event not ready): traced, not reported.
    pub expected: bool,
}

impl Refusal {
    /// An error that a correct program never causes.
    pub fn new(code: i32, why: impl Into<String>) -> Self {
        Self { code, why: why.into(), expected: false }
    }

    /// An error that correct programs handle.
    pub fn expected(code: i32, why: impl Into<String>) -> Self {
        Self { code, why: why.into(), expected: true }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_named_by_their_library() {
        assert_eq!(Library::of("cuMemAlloc_v2"), Library::Cuda);
        assert_eq!(Library::of("cublasGemmEx").name(13), "CUBLAS_STATUS_EXECUTION_FAILED");
        assert_eq!(Library::of("curandGenerateUniform").name(201), "CURAND_STATUS_LAUNCH_FAILURE");
        assert_eq!(
            cuda::ALL.iter().find(|entry| entry.0 == 2).unwrap().2.to_str().unwrap(),
            "CUDA_ERROR_OUT_OF_MEMORY"
        );
    }
}
