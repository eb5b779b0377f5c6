//! `palimpsest data`: check, measure and write benchmark files.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Subcommand;

use super::{data_check, data_stats};
use crate::benchmarks::dataset::{benchmark_named, cases_in_memory};
use crate::benchmarks::{ALL, Benchmark, SampleSpec};
use crate::ground::words::counted;
use palimpsest_core::files::write_atomically;

const EXAMPLES: &str = "\
Examples:
  palimpsest data check T1_T2_400_FULL.json
  palimpsest data sample --sessions 50 --out sample.json
  palimpsest data stats T1_T2_400_FULL.json";

/// Check, measure and write benchmark files.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    Check(data_check::Args),
    /// Write a benchmark's built-in sample in the format of its data: a file or a folder.
    #[command(
        after_help = "Examples:\n  palimpsest data sample --sessions 50 --seed 1 --out sample.json\n  palimpsest data sample --benchmark subtlememory --out sample"
    )]
    Sample {
        /// The benchmark.
        #[arg(long, default_value_t = crate::benchmarks::default_name(), value_name = "NAME")]
        benchmark: String,
        /// Sessions per case, if the benchmark's sample has a variable length (stale: 2 to 10,000) [default: 50 for stale].
        #[arg(long, value_name = "N")]
        sessions: Option<usize>,
        /// Seed of the assembly: positions, distractors and times follow from it.
        #[arg(long, default_value_t = 0)]
        seed: u64,
        /// Where to write; a single file goes to standard output if left out.
        #[arg(long, value_name = "FILE_OR_FOLDER")]
        out: Option<PathBuf>,
    },
    Stats(data_stats::Args),
}

pub fn run(args: Args) -> anyhow::Result<()> {
    match args.action {
        Action::Check(args) => data_check::run(&args),
        Action::Sample { benchmark, sessions, seed, out } => {
            write_sample(&benchmark, sessions, seed, out.as_deref())
        }
        Action::Stats(args) => data_stats::run(&args),
    }
}

/// Sessions per case of the default benchmark's sample.
const DEFAULT_SESSIONS: usize = 50;

fn write_sample(name: &str, sessions: Option<usize>, seed: u64, out: Option<&Path>) -> anyhow::Result<()> {
    let benchmark: &Benchmark =
        benchmark_named(&ALL, name).map_err(|error| super::WrongUsage(error.to_string()))?;
    let is_default = name == crate::benchmarks::default_name();
    let spec = SampleSpec { segments: sessions.or(is_default.then_some(DEFAULT_SESSIONS)), seed };
    let files = (benchmark.sample)(spec)?;
    let Some(path) = out else {
        let [(_, bytes)] = files.as_slice() else {
            return super::wrong(format!(
                "the sample of {} is a folder of {} files; name it with --out",
                benchmark.title,
                files.len()
            ));
        };
        return super::write_out(bytes);
    };
    let cannot = |path: &Path| {
        format!("cannot write {}; name a place in a folder that exists and can be written to", path.display())
    };
    if let [(_, bytes)] = files.as_slice() {
        write_atomically(path, bytes).with_context(|| cannot(path))?;
    } else {
        super::empty(path)?;
        for (name, bytes) in &files {
            let file = path.join(name);
            let folder = file.parent().unwrap_or(path);
            std::fs::create_dir_all(folder).with_context(|| cannot(folder))?;
            write_atomically(&file, bytes).with_context(|| cannot(&file))?;
        }
    }
    let cases: Vec<_> = cases_in_memory(benchmark, files).into_iter().collect::<Result<_, _>>()?;
    let questions: usize = cases.iter().map(|case| case.probes.len()).sum();
    let segments =
        spec.segments.map(|n| format!(" of {}", counted(n, benchmark.segment))).unwrap_or_default();
    super::say(format_args!(
        "wrote {}: {}{segments}, {}, seed {seed}",
        path.display(),
        counted(cases.len(), "case"),
        counted(questions, "question")
    ))
}
