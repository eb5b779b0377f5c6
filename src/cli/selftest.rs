//! `palimpsest selftest`: numerical checks of this build on a device.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use anyhow::Context;

use super::interrupt;
use crate::models::DeviceArgs;
use crate::selftest::{self, Report};

const EXAMPLES: &str = "\
Examples:
  palimpsest selftest
  palimpsest selftest --device cuda:0 --json selftest.json
  palimpsest selftest --device cuda:0,cuda:1 --quick

Exit codes: 0 sound, 1 not sound or failed, 130 stopped by Ctrl-C.";

/// Test that this build computes correctly on a device, without network and files, in minutes.
///
/// Small models of random weights, one of every architecture, are compared with the CPU in f32 and in half precision. (The tests of the
/// source compare the CPU with transformers.) Then single layers at the widths of Qwen3.5-9B, Llama-3.1-8B, Gemma-3-12B and gpt-oss-20b,
/// also of random weights, are compared with the CPU in f32 and process a prompt of 32,768 tokens (1,024 on the CPU) with attention
/// recorded. Printed are seconds, and memory beside the plan; on CUDA for every attention kernel. The last paragraph says whether the
/// device can be used.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    on: DeviceArgs,
    /// Reduced widths and prompts of 256 tokens: seconds instead of minutes, without useful speeds
    #[arg(long)]
    quick: bool,
    /// Also write everything to a JSON file, to send in; until the end what is known so far is in FILE.partial, which a crash or
    /// a time limit leaves
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Exits with 1 if a device fails, with 130 if interrupted.
pub fn run(args: Args) -> anyhow::Result<()> {
    args.json.as_deref().map_or(Ok(()), super::writable)?;
    let devices = args.on.open()?;
    let stop = interrupt::flag("stopping after the step under way")?;
    let going = || !stop.load(Ordering::Relaxed);
    let partial = args.json.as_ref().map(|path| with_ending(path, ".partial"));
    let mut save = |report: &Report| match &partial {
        Some(path) => super::save(path, format!("{:#}\n", report.json())),
        None => Ok(()),
    };
    let report = match selftest::run(&devices, args.on.attention_kernel, args.quick, &mut save, &going) {
        Err(error) if selftest::is_interrupted(&error) => interrupt::end("stopped"),
        other => other?,
    };
    super::write_out(report.text().as_bytes())?;
    match &args.json {
        Some(path) => {
            super::save(path, format!("{:#}\n", report.json()))?;
            if let Some(partial) = &partial {
                std::fs::remove_file(partial).with_context(|| partial.display().to_string())?;
            }
            super::say(format_args!("{}: everything, to send in", path.display()))?;
        }
        None => super::say("--json FILE writes everything to a file, to send in.")?,
    }
    if !report.verdict().sound {
        std::process::exit(1);
    }
    Ok(())
}

fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}
