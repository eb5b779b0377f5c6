//! `palimpsest selftest`: whether this build computes rightly on a device, and how fast.

use std::path::PathBuf;

use std::sync::atomic::Ordering;

use anyhow::Context;

use super::interrupt::{self, INTERRUPTED};
use crate::progress::note;
use crate::selftest::{self, Options, SelfTestError};
use palimpsest_core::attention::AttentionKernel;
use palimpsest_core::engine;

const EXAMPLES: &str = "\
Examples:
  palimpsest selftest
  palimpsest selftest --device cuda:0 --json selftest.json
  palimpsest selftest --device cuda:0,cuda:1 --quick

Exit codes: 0 sound, 1 not sound or failed, 130 stopped by Ctrl-C.";

/// Whether this build computes rightly on a device, and how fast: without network and files, in less than five minutes.
///
/// Tiny models of every architecture, which the program carries, are compared with transformers in f32 and in half precision.
/// Then single layers at the widths of Qwen3.5-9B, Llama-3.1-8B, Gemma-3-12B and gpt-oss-20b, of random weights, are compared
/// with the CPU in f32, and timed over prompts of 8,192 and 32,768 tokens (on the CPU 2,048 and 8,192, shorter where that
/// would take too long): prefill, recording of attention, generated tokens, memory. The last paragraph says whether the
/// device can be used.
///
/// OF PRODUCT is the speed of a prefill beside that of a large dense product on the same device, OF READING that of a
/// generated token beside reading a large matrix once. For cards whose data sheet is known, OF PEAK is the share of its
/// figures, and RECKONED what benches/README.md expects by them. AGREES is the largest difference from the CPU, or the cosine.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// cpu, cuda, cuda:N, metal, or several with commas: tiny models are split between them, layers run on the first
    #[arg(long, default_value = "cpu")]
    device: String,
    /// What computes attention on CUDA: auto (flash where built in, else fused once a check on the card holds), products, fused
    /// (our own kernels, unchecked) or flash; products take what the others do not serve
    #[arg(long, default_value_t, value_name = "KERNEL")]
    attention_kernel: AttentionKernel,
    /// Reduced widths and prompts of 256 tokens: seconds instead of minutes, and no useful speeds
    #[arg(long)]
    quick: bool,
    /// Also write everything to a JSON file, to send in
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Runs the command. Ends the process with 1 where a device is not sound, and with 130 where it was stopped.
pub fn run(args: Args) -> anyhow::Result<()> {
    args.json.as_deref().map_or(Ok(()), super::writable)?;
    args.attention_kernel.choose();
    let devices = engine::parse_devices(&args.device)?;
    let stop = interrupt::flag("step")?;
    let options = Options { devices, quick: args.quick, time: selftest::TIME };
    let report = match selftest::run(&options, &|| !stop.load(Ordering::Relaxed)) {
        Err(SelfTestError::Interrupted) => {
            note("stopped");
            std::process::exit(INTERRUPTED);
        }
        other => other?,
    };
    super::write_out(report.text().as_bytes())?;
    match &args.json {
        Some(path) => {
            let text = format!("{:#}\n", report.json());
            palimpsest_core::files::write_atomically(path, text.as_bytes())
                .with_context(|| format!("{}", path.display()))?;
            super::say(format_args!("{}: everything, to send in", path.display()))?;
        }
        None => super::say("--json FILE writes everything to a file, to send in.")?,
    }
    if !report.verdict().sound {
        std::process::exit(1);
    }
    Ok(())
}
