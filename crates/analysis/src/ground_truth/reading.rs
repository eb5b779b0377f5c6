//! Reads [`GroundTruth`] from run folders and files.

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::ensure;

use super::builtin::{self, OfRun};
use super::exact::{self, Source};
use super::{GroundTruth, Options, Run, scores};
use palimpsest_data::ground::words::counted;
use palimpsest_run::runs::rows::AnswerKey;

impl GroundTruth {
    /// Reads run folders, or files of exact effects, and all scores of their sessions. Errors name file and line.
    pub fn open(paths: &[PathBuf], options: Options) -> anyhow::Result<Self> {
        let Options { effects, ref heads, halves_seed, .. } = options;
        let teachers = options.learn_from.iter().map(|path| -> anyhow::Result<(OfRun, Source)> {
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
