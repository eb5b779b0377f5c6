//! One file per command: its clap struct, validation, and the call into the library.

use std::ffi::OsString;
use std::io::IsTerminal;

use crate::progress::note;
use clap::{Parser, Subcommand};
use palimpsest_core::timing::Recorder;
use tracing_subscriber::Layer;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

mod agree;
mod arguments;
mod build;
mod causes;
mod data;
mod data_check;
mod data_stats;
mod dose;
mod driver;
mod export;
#[cfg(feature = "figures")]
mod figures;
mod finding;
mod ground_truth;
mod heads;
mod import;
mod interrupt;
mod judge;
mod lens;
mod memory;
mod memory_check;
mod merge;
mod model;
mod model_parity;
#[cfg(feature = "serve")]
mod other_users;
mod output;
pub mod process;
#[cfg(all(feature = "figures", feature = "serve"))]
mod quickstart;
#[cfg(all(feature = "figures", feature = "serve"))]
mod report;
mod run;
mod selftest;
#[cfg(feature = "serve")]
mod serve;
mod table;
mod trace;
mod trace_jobs;
mod trace_load;
mod trace_passes;
mod trace_words;
mod trial;
#[cfg(feature = "serve")]
mod view;
mod why;
#[cfg(not(all(feature = "figures", feature = "serve")))]
mod without;

#[cfg(not(feature = "figures"))]
use without::figures;
#[cfg(not(all(feature = "figures", feature = "serve")))]
use without::{report, report as quickstart};
#[cfg(not(feature = "serve"))]
use without::{serve, serve as view};

use arguments::{WrongUsage, WrongValue, check_context, positive, wrong};
pub use output::in_one_line;
use output::{
    EndedWithErrors, WITH_ERRORS, conclude, empty, own_folder, save, say, terminal_width, without_errors,
    writable, write_out, write_stats,
};

/// Measure which parts of a long history a language model attends to, and which its answers depend on.
#[derive(Debug, Parser)]
#[command(
    name = "palimpsest",
    version,
    about,
    propagate_version = true,
    after_help = "\
Examples:
  palimpsest quickstart
  palimpsest run --data sample --limit 4 --context 4096 --out runs/first
  palimpsest view runs/first
  palimpsest report runs/first

New here? docs/tutorial.md goes from the first command to a result in 15 minutes and explains fourteen words.

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 done except for rows that ended as errors (broken rows of the data, which stay until the
data is mended; all others, which the same command retries), 130 stopped by Ctrl-C (the same command resumes)."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// Each command's help is the doc comment of its `Args`.
#[derive(Debug, Subcommand)]
enum Command {
    Quickstart(quickstart::Args),
    // Boxed: it has the most flags by far.
    Run(Box<run::Args>),
    Judge(judge::Args),
    #[command(visible_alias = "curves")]
    Lens(lens::Args),
    Figures(figures::Args),
    Table(table::Args),
    Dose(dose::Args),
    Report(report::Args),
    View(view::Args),
    Agree(agree::Args),
    Causes(causes::Args),
    Why(why::Args),
    GroundTruth(ground_truth::Args),
    Heads(heads::Args),
    Trace(trace::Args),
    Serve(serve::Args),
    Export(export::Args),
    Import(import::Args),
    Merge(merge::Args),
    Data(data::Args),
    Build(build::Args),
    Memory(memory::Args),
    Model(model::Args),
    Selftest(selftest::Args),
}

impl Command {
    fn wants_stats(&self) -> bool {
        match self {
            Command::Run(args) => args.stats.is_some(),
            Command::Trace(args) => args.stats.is_some(),
            _ => false,
        }
    }
}

/// Parses the command line, runs the command and prints its error once. Exit codes: 0 success, 1 failure, 2 usage error, 3 finished with
/// error rows, 130 stopped by Ctrl-C.
fn main(args: impl Iterator<Item = OsString>) -> u8 {
    let command = Cli::parse_from(args).command;
    let stats = command.wants_stats().then(Recorder::new);
    show_warnings(stats.as_ref());
    let done = driver::guarded(|| match command {
        Command::Quickstart(args) => quickstart::run(args),
        Command::Run(args) => run::run(*args, stats.as_ref()),
        Command::Judge(args) => judge::run(args),
        Command::Lens(args) => lens::run(args),
        Command::Figures(args) => figures::run(args),
        Command::Table(args) => table::run(args),
        Command::Dose(args) => dose::run(args),
        Command::Report(args) => report::run(args),
        Command::View(args) => view::run(args),
        Command::Agree(args) => agree::run(args),
        Command::Causes(args) => causes::run(args),
        Command::Why(args) => why::run(args),
        Command::GroundTruth(args) => ground_truth::run(args),
        Command::Heads(args) => heads::run(args),
        Command::Trace(args) => trace::run(args, stats.as_ref()),
        Command::Serve(args) => serve::run(args),
        Command::Export(args) => export::run(args),
        Command::Import(args) => import::run(args),
        Command::Merge(args) => merge::run(args),
        Command::Data(args) => data::run(args),
        Command::Build(args) => build::run(args),
        Command::Memory(args) => memory::run(&args),
        Command::Model(args) => model::run(args),
        Command::Selftest(args) => selftest::run(args),
    });
    match done {
        Ok(()) => 0,
        Err(error) => {
            note(format_args!("error: {}", in_one_line(&error)));
            match () {
                () if error.is::<WrongUsage>() => 2,
                () if error.is::<EndedWithErrors>() => WITH_ERRORS,
                // A step that failed while it was being stopped.
                () if interrupt::is_set() => interrupt::INTERRUPTED,
                () => 1,
            }
        }
    }
}

/// Logs library warnings (retries, truncated rows) to stderr; RUST_LOG changes the level. Timings of `--stats` use their own layer.
fn show_warnings(stats: Option<&Recorder>) {
    let wanted = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("palimpsest=warn"));
    let log = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .without_time()
        .with_filter(wanted);
    tracing_subscriber::registry().with(log).with(stats.map(Recorder::layer)).init();
}
