//! Reports failures of the CUDA driver as errors of a command.
//!
//! A failed call leaves the card unusable, and `cudarc` (used by Candle) then panics in places instead of returning the error. Such panics
//! become a one-line error here.

use std::any::Any;
use std::panic::{self, AssertUnwindSafe, PanicHookInfo};

/// Runs a command. Panics of the driver bindings become errors; others continue.
pub fn guarded(command: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<()> {
    let told = panic::take_hook();
    panic::set_hook(Box::new(move |info: &PanicHookInfo| {
        if driver_error(info.payload()).is_none() {
            told(info);
        }
    }));
    // Unwind-safe: the process ends here, so partial state is never read.
    let done = panic::catch_unwind(AssertUnwindSafe(command));
    done.unwrap_or_else(|payload| match driver_error(&*payload) {
        Some(what) => Err(anyhow::anyhow!(
            "the CUDA driver failed: {what}. The card is unusable in this process; finished work is kept. Start again, and if \
             it fails again, look at the card with `nvidia-smi` and `dmesg`"
        )),
        None => panic::resume_unwind(payload),
    })
}

/// Extracts the driver error from a panic, such as `CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure"`.
fn driver_error(payload: &(dyn Any + Send)) -> Option<String> {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    let (_, what) = text.or_else(|| payload.downcast_ref::<&str>().copied())?.split_once("DriverError(")?;
    Some(what.trim_end_matches(')').replace('"', ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_of_the_driver_s_bindings_is_an_error_and_any_other_stays_a_panic() {
        let failed = "DriverError(CUDA_ERROR_LAUNCH_FAILED, \"unspecified\")";
        let said = guarded(|| panic!("called `Result::unwrap()` on an `Err` value: {failed}"));
        let said = said.map_err(|error| error.to_string());
        assert!(said.is_err_and(|s| s.contains("failed: CUDA_ERROR_LAUNCH_FAILED, unspecified. The card")));
        let other = panic::catch_unwind(|| guarded(|| panic!("another")));
        assert!(other.is_err_and(|payload| payload.downcast_ref::<&str>() == Some(&"another")));
        assert!(guarded(|| Ok(())).is_ok());
    }
}
