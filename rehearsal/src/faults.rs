//! Fault injection: `REHEARSAL_FAIL=cuMemAllocAsync:3` makes the third such call return an error instead of running.
//! [`crate::driver::call`] asks [`Faults::due`] before every call. The report prints its call counts, so a script can learn from one run
//! which calls to fail in the next.

use std::collections::BTreeMap;

use crate::codes::{self, Library};

/// Replaces text in a kernel's PTX, to simulate a wrong compiler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alteration {
    /// Kernel name.
    pub kernel: String,
    old: String,
    new: String,
}

impl Alteration {
    /// Reads `KERNEL: OLD => NEW`.
    pub fn parse(text: &str) -> Option<Self> {
        let (kernel, change) = text.split_once(':')?;
        let (old, new) = change.split_once("=>")?;
        let [kernel, old, new] = [kernel, old, new].map(|part| part.trim().to_owned());
        (!kernel.is_empty() && !old.is_empty()).then_some(Self { kernel, old, new })
    }

    /// Applies the replacement to a module's text. Returns an error if the kernel lacks the old text.
    pub fn of(&self, module: &str) -> Result<String, String> {
        let from = module.find(&format!(".entry {}(", self.kernel)).unwrap_or(module.len());
        let to = module[from..].find(".visible .entry").map_or(module.len(), |length| from + length);
        let body = &module[from..to];
        if !body.contains(&self.old) {
            return Err(format!("REHEARSAL_ALTER: {} has no `{}`", self.kernel, self.old));
        }
        Ok([&module[..from], &body.replace(&self.old, &self.new), &module[to..]].concat())
    }
}

/// One call that must fail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    call: String,
    nth: u64,
    code: i32,
}

impl Plan {
    /// Reads `CALL:N` or `CALL:N=ERROR`, several separated by commas.
    pub fn parse_all(text: &str) -> Result<Vec<Self>, String> {
        text.split(',').map(|one| Self::parse(one.trim())).collect()
    }

    fn parse(text: &str) -> Result<Self, String> {
        let (place, error) = text.split_once('=').map_or((text, None), |(place, error)| (place, Some(error)));
        let wrong = || format!("`{text}` is not CALL:N or CALL:N=ERROR, such as cuMemAllocAsync:3");
        let (call, nth) = place.split_once(':').ok_or_else(wrong)?;
        if !["cu", "cublas", "curand"].iter().any(|prefix| call.starts_with(prefix)) {
            return Err(wrong());
        }
        let nth = nth.parse().ok().filter(|nth| *nth > 0).ok_or_else(wrong)?;
        let library = Library::of(call);
        let code = match error {
            None => usual(call),
            Some(error) => {
                library.codes().iter().find(|entry| entry.1 == error && entry.0 != 0).map_or_else(
                    || {
                        let names: Vec<_> = library.codes()[1..].iter().map(|entry| entry.1).collect();
                        Err(format!("`{error}` is not one of {}", names.join(", ")))
                    },
                    |entry| Ok(entry.0),
                )?
            }
        };
        Ok(Self { call: call.to_string(), nth, code })
    }
}

/// The most common error of a call on a real GPU.
fn usual(call: &str) -> i32 {
    use codes::{cublas::*, cuda::*, curand::*};
    match call {
        "cublasCreate_v2" => CUBLAS_STATUS_NOT_INITIALIZED,
        "curandCreateGenerator" => CURAND_STATUS_INITIALIZATION_FAILED,
        _ if call.starts_with("cublas") => CUBLAS_STATUS_EXECUTION_FAILED,
        _ if call.starts_with("curand") => CURAND_STATUS_LAUNCH_FAILURE,
        "cuInit" | "cuDeviceGetCount" => CUDA_ERROR_NO_DEVICE,
        "cuDevicePrimaryCtxRetain" => CUDA_ERROR_DEVICE_UNAVAILABLE,
        "cuModuleLoadData" | "cuModuleLoadDataEx" => CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
        "cuModuleGetFunction" => CUDA_ERROR_NOT_FOUND,
        "cuLaunchKernel" => CUDA_ERROR_LAUNCH_FAILED,
        "cuMemGetInfo_v2" | "cuStreamCreate" | "cuStreamCreateWithPriority" | "cuEventCreate" => {
            CUDA_ERROR_OUT_OF_MEMORY
        }
        _ if call.contains("Alloc") => CUDA_ERROR_OUT_OF_MEMORY,
        _ if call.starts_with("cuDevice") => CUDA_ERROR_INVALID_DEVICE,
        _ if call.starts_with("cuCtx") && !call.contains("Synchronize") => CUDA_ERROR_INVALID_CONTEXT,
        // Copies, memsets, frees and waits report an earlier kernel's crash.
        _ => CUDA_ERROR_ILLEGAL_ADDRESS,
    }
}

/// Call counts and pending failures.
#[derive(Default)]
pub struct Faults {
    plans: Vec<Plan>,
    /// Call counts by name.
    pub calls: BTreeMap<&'static str, u64>,
    /// Injected failures, in order.
    pub made: Vec<String>,
}

impl Faults {
    /// With these plans.
    pub fn new(plans: Vec<Plan>) -> Self {
        Self { plans, ..Self::default() }
    }

    /// Counts a call; returns the error it must fail with, if any.
    pub fn due(&mut self, call: &'static str) -> Option<i32> {
        let count = self.calls.entry(call).or_default();
        *count += 1;
        let count = *count;
        let plan = self.plans.iter().find(|plan| plan.call == call && plan.nth == count)?;
        self.made.push(format!("{call}:{count}={}", Library::of(call).name(plan.code)));
        Some(plan.code)
    }

    /// Plans whose call was not made often enough.
    pub fn unmet(&self) -> Vec<String> {
        let made = |plan: &&Plan| self.calls.get(plan.call.as_str()).is_none_or(|count| *count < plan.nth);
        self.plans.iter().filter(made).map(|plan| format!("{}:{}", plan.call, plan.nth)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use codes::{cublas, cuda};

    #[test]
    fn the_nth_call_fails_with_the_error_that_is_named_or_usual() {
        let plans =
            Plan::parse_all("cuMemAllocAsync:2,cuLaunchKernel:1=CUDA_ERROR_LAUNCH_TIMEOUT, cublasGemmEx:1")
                .unwrap();
        let mut faults = Faults::new(plans);
        assert_eq!(faults.due("cuMemAllocAsync"), None);
        assert_eq!(faults.due("cuMemAllocAsync"), Some(cuda::CUDA_ERROR_OUT_OF_MEMORY));
        assert_eq!(faults.due("cuMemAllocAsync"), None);
        assert_eq!(faults.due("cuLaunchKernel"), Some(cuda::CUDA_ERROR_LAUNCH_TIMEOUT));
        assert_eq!(faults.unmet(), ["cublasGemmEx:1"]);
        assert_eq!(faults.due("cublasGemmEx"), Some(cublas::CUBLAS_STATUS_EXECUTION_FAILED));
        assert!(faults.unmet().is_empty());
        assert_eq!(faults.calls["cuMemAllocAsync"], 3);
    }

    #[test]
    fn a_plan_that_cannot_be_read_is_refused() {
        for text in [
            "",
            "cuMemAllocAsync",
            "cuMemAllocAsync:0",
            "cuMemAllocAsync:x",
            "malloc:1",
            "cuInit:1=CUDA_SUCCESS",
        ] {
            assert!(Plan::parse_all(text).is_err(), "{text}");
        }
        assert!(
            Plan::parse_all("cuInit:1=CUBLAS_STATUS_EXECUTION_FAILED")
                .unwrap_err()
                .contains("CUDA_ERROR_NO_DEVICE")
        );
    }
}
