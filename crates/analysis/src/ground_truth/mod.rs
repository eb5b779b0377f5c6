//! Holds scores of sessions, from anywhere, against the exact effects of `palimpsest causes`.
//!
//! [`exact`] reads effects, [`scores`] and `builtin` scores, [`metrics`] compares them for one answer, [`table`] averages over answers and
//! units. Definitions are in docs/ground-truth.md.

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::ensure;

use builtin::OfRun;
use exact::Source;
use palimpsest_data::ground::words::counted;
use palimpsest_run::runs::rows::AnswerKey;

mod builtin;
pub mod exact;
pub mod metrics;
pub mod scores;
pub mod table;

pub use exact::{Effects, EffectsLine, ExactAnswer};
pub use scores::Scored;

/// The effects themselves as scores: what the best method would reach.
pub const EXACT: &str = "exact";
/// Equal scores: what any order reaches on average.
pub const CHANCE: &str = "chance";

/// What rows are split by. Each is a property of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum By {
    /// The role of the answer's decisive session
    Role,
    /// Tokens from the decisive session to the end of the history
    Distance,
    /// Tokens of the history
    Length,
}

#[derive(Debug, Clone, Default)]
pub struct Options {
    pub effects: Effects,
    pub by: Option<By>,
    /// Sessions of the drop.
    pub top: usize,
    pub scores: Vec<PathBuf>,
    /// Files of `palimpsest heads`.
    pub heads: Vec<PathBuf>,
    /// Runs whose exact effects the ridge regression is fitted to.
    pub learn_from: Vec<PathBuf>,
    /// Runs of other models, or files of their effects.
    pub proxies: Vec<PathBuf>,
    pub halves_seed: u64,
}

#[derive(Debug, Clone, Default)]
pub struct Run {
    pub name: String,
    pub model: String,
    pub data: String,
    pub answers: Vec<ExactAnswer>,
    pub scored: Vec<Scored>,
}

#[derive(Debug, Clone, Default)]
pub struct GroundTruth {
    pub runs: Vec<Run>,
    /// What was fitted and tested on what, and what was left out.
    pub remarks: Vec<String>,
    pub options: Options,
}

impl GroundTruth {
    /// Reads run folders, or files of exact effects, and all scores of their sessions. Errors name file and line.
    pub fn open(paths: &[PathBuf], options: Options) -> anyhow::Result<Self> {
        let Options { effects, ref heads, halves_seed, .. } = options;
        let teachers = options.learn_from.iter().map(|path| {
            let mut sources = exact::read(path, effects)?;
            ensure!(path.is_dir(), "{} is no run folder; --learn-from takes one", path.display());
            let source = sources.remove(0);
            // Its own head scores are not needed.
            Ok((OfRun::of(&source, effects, &[], halves_seed)?, source))
        });
        let teachers: Vec<(OfRun, Source)> = teachers.collect::<anyhow::Result<_>>()?;
        let (mut runs, mut remarks): (Vec<Run>, Vec<String>) = (Vec::new(), Vec::new());
        for path in paths {
            for source in exact::read(path, effects)? {
                ensure!(
                    runs.iter().all(|run| run.name != source.run),
                    "two runs are called {}; rename a folder, since scores name their run",
                    source.run
                );
                let own = OfRun::of(&source, effects, heads, halves_seed)?;
                let mut scored = own.scored.clone();
                remarks.extend(own.remarks.iter().cloned());
                for (teacher, from) in &teachers {
                    ensure!(
                        from.run != source.run,
                        "--learn-from {} is the run itself, whose ridge regression is held out already",
                        from.run
                    );
                    let (scores, said) = teacher.taught(from, &own, &source)?;
                    scored.extend(scores);
                    remarks.push(said);
                }
                for proxy in &options.proxies {
                    let (scores, said) = builtin::proxy(proxy, &source, effects)?;
                    scored.extend(scores);
                    remarks.push(said);
                }
                if source.partial > 0 {
                    remarks.push(format!(
                        "{}: {} left out whose sessions are not all measured; go on with palimpsest causes",
                        source.run,
                        counted(source.partial, "answer")
                    ));
                }
                let keys: BTreeSet<&AnswerKey> = source.answers.iter().map(|answer| &answer.key).collect();
                scored.retain(|one| keys.contains(&one.key));
                let Source { run: name, model, data, answers, .. } = source;
                runs.push(Run { name, model, data, answers, scored });
            }
        }
        for path in &options.scores {
            scores::read(path, &mut runs)?;
        }
        Ok(GroundTruth { runs, remarks, options })
    }
}
