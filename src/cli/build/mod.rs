//! `palimpsest build`: datasets that are made.

use clap::{Subcommand, ValueEnum};

use super::write_out;

mod dose;
mod pipeline;
mod preset;
mod publish;
mod review;
mod show;

const EXAMPLES: &str = "\
Examples:
  palimpsest build dose slots --out slots
  palimpsest build init dose slots > mine.toml
  palimpsest build dose mine.toml --out mine --seed 1 --items 64
  palimpsest build init stale > stale.toml
  palimpsest build stale stale.toml --out built --model local:qwen3-8b --checker http://127.0.0.1:8000/v1#judge
  palimpsest build show built tea.0
  palimpsest run --data slots --model smollm2-135m --out runs/slots";

/// Build datasets: histories that vary one factor at a time, or the benchmarks' own construction on a domain of yours.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    Dose(dose::Dose),
    /// Build pairs of an old and a new fact in long histories, as STALE does.
    Stale(Box<pipeline::Pipeline>),
    /// Build relations between memories, told in sessions, with tasks on them, as SubtleMemory does.
    Subtlememory(Box<pipeline::Pipeline>),
    /// Build questions on a long text, as KnowMe-Bench does.
    Knowme(Box<pipeline::Pipeline>),
    /// Build pairs of a right and a wrong way to keep a memory, as MemoryRewardBench does.
    Memrewardbench(Box<pipeline::Pipeline>),
    /// Write a preset's spec in full to standard output.
    #[command(
        after_help = "Examples:\n  palimpsest build init dose > mine.toml\n  palimpsest build init dose chains > chains.toml\n  palimpsest build init stale > stale.toml"
    )]
    Init {
        /// The data that is built.
        kind: Kind,
        /// The preset [default: the kind's first]; a wrong name lists them.
        preset: Option<String>,
    },
    Show(show::Show),
    Review(review::ReviewArgs),
    Publish(publish::Publish),
}

/// Data that can be built.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Kind {
    /// Updates by dose.
    Dose,
    /// STALE's pairs.
    Stale,
    /// SubtleMemory's relations.
    Subtlememory,
    /// KnowMe-Bench's questions.
    Knowme,
    /// MemoryRewardBench's pairs.
    Memrewardbench,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    match args.action {
        Action::Dose(args) => dose::run(&args),
        Action::Stale(args) => pipeline::run("stale", &args),
        Action::Subtlememory(args) => pipeline::run("subtlememory", &args),
        Action::Knowme(args) => pipeline::run("knowme", &args),
        Action::Memrewardbench(args) => pipeline::run("memrewardbench", &args),
        Action::Init { kind: Kind::Dose, preset } => dose::init(preset.as_deref()),
        Action::Init { kind, preset } => {
            let kind = kind.to_possible_value();
            let kind = kind.as_ref().map_or("", |value| value.get_name());
            write_out(preset::text(kind, preset.as_deref())?.as_bytes())
        }
        Action::Show(args) => show::run(&args),
        Action::Review(args) => review::run(&args),
        Action::Publish(args) => publish::run(&args),
    }
}
