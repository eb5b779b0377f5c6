//! `palimpsest causes`: what the answers of a run owe to each session.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};

use super::interrupt::INTERRUPTED;
use crate::attention::{AttentionKernel, LayerKind};
use crate::engine::memory_plan::{Branches, ObservedSpans};
use crate::engine::{self, ContextLength, LocalModel, LocalOptions};
use crate::ground::table::aligned;
use crate::progress::{grouped, note};
use crate::run::cause_rows::{Ablation, SurrogateRow, TotalRow, read_surrogates, read_totals};
use crate::run::causes::{self, CAUSES, CauseOptions, CauseRow, Effect, Measured};
use crate::run::context_cite::{self, SurrogateOptions};
use crate::run::removal::ReadingCost;
use crate::run::store::{RunFolder, RunStore};
use crate::run::total_effect;

const EXAMPLES: &str = "\
Examples:
  palimpsest causes runs/first
  palimpsest causes runs/first --windows 8
  palimpsest causes runs/first --total
  palimpsest causes runs/first --contextcite 32
  palimpsest causes runs/qwen3 --model ./qwen3-8b --device cuda";

/// Block each session in turn, and see what the answers of a run owe to it.
///
/// DIR is the folder of a run that recorded attention. For every answer and every session of its history, everything from the
/// question's first token on is kept from seeing the session, and the model's own answer is read again: what that changes of its log
/// probability (mean per token), of the first token's distribution, and whether some token of it is no longer the likeliest. Beside each
/// session a control: a random stretch of as many tokens that holds no evidence. The history is computed once a case; each reading takes
/// the tokens from the question on alone. Rows go to DIR/causes.jsonl, which is gone on with after a stop. Only direct paths
/// are blocked: what other sessions took over from one still arrives (docs/measures.md).
///
/// --total removes each session in the place of blocking it and reads all after it again: what the answer owes to it altogether. --contextcite
/// N does so with N random subsets of the sessions, and says what each session adds to the logit of the answer's probability.
/// Both say before they begin how much is to be computed, and go on after a stop too.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The folder of a run
    dir: PathBuf,
    /// The run's model, where it is no longer found by its name
    #[arg(long)]
    model: Option<String>,
    /// Block N layers at a time, window by window, in the place of all layers at once
    #[arg(long, value_name = "N", value_parser = super::positive)]
    windows: Option<usize>,
    /// Of a model with linear-attention layers, block the softmax layers alone
    #[arg(long)]
    softmax_only: bool,
    /// Which sessions get a control beside them, a reading each
    #[arg(long, value_enum, default_value_t, conflicts_with_all = ["total", "contextcite"])]
    controls: Controls,
    /// Remove each session and read the rest again, in the place of blocking it
    #[arg(long, conflicts_with_all = ["windows", "softmax_only", "contextcite"])]
    total: bool,
    /// Leave out what N random subsets of the sessions do not hold, and fit a sparse linear function of what they hold
    #[arg(long, value_name = "N", value_parser = super::positive, conflicts_with = "windows")]
    contextcite: Option<usize>,
    /// How --contextcite leaves sessions out
    #[arg(long, value_enum, default_value_t, requires = "contextcite")]
    ablate: Ablate,
    /// Seed of the controls and of the subsets
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// cpu, cuda, cuda:N, metal, or several with commas (cuda:0,cuda:1) to split the layers
    #[arg(long, default_value = "cpu")]
    device: String,
    /// What computes attention on CUDA: auto (flash where built in, else fused once a check on the card holds), products, fused
    /// (our own kernels, unchecked) or flash; products take what the others do not serve
    #[arg(long, default_value_t, value_name = "KERNEL")]
    attention_kernel: AttentionKernel,
    /// What to keep of quantised weights on the CPU in f32
    #[arg(long, value_enum, default_value_t)]
    weights: super::Weights,
}

/// How sessions are left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Ablate {
    /// Removed, and the rest read again, as ContextCite does
    #[default]
    Remove,
    /// Blocked from the question on: far cheaper, direct paths alone, our own variant
    Block,
}

/// Which sessions get a control.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Controls {
    /// Every session
    #[default]
    All,
    /// Sessions that play a part: hardly more than half of the time
    Evidence,
    /// No session: half of the time
    None,
}

/// What is measured.
enum Way {
    Blocked(CauseOptions),
    Total,
    Surrogate(SurrogateOptions),
}

impl Args {
    fn way(&self) -> Way {
        let &Args { total, contextcite, ablate, seed, windows, softmax_only, .. } = self;
        let ablation = match ablate {
            Ablate::Remove => Ablation::Removed,
            Ablate::Block => Ablation::Blocked,
        };
        let controls = match self.controls {
            Controls::All => causes::Controls::All,
            Controls::Evidence => causes::Controls::Evidence,
            Controls::None => causes::Controls::No,
        };
        match contextcite {
            Some(subsets) => Way::Surrogate(SurrogateOptions { subsets, seed, ablation, softmax_only }),
            None if total => Way::Total,
            None => Way::Blocked(CauseOptions { seed, windows, softmax_only, controls }),
        }
    }
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<()> {
    // 1. What can be refused before the model is opened. The folder is held, so that nobody else writes to it.
    let place = args.dir.display();
    let _held = RunStore::open(&args.dir)?;
    let folder = RunFolder::read(&args.dir)?;
    let identity = &folder.header.identity;
    ensure!(
        identity.attention,
        "{place} recorded no attention, and with it not which tokens its sessions are; run it again without --no-attention"
    );
    let asked = causes::asked(&folder);
    ensure!(!asked.is_empty(), "{place} has no answers whose causes could be measured; finish the run first");
    let lengths = asked.iter().filter_map(|row| Some((row.prompt_tokens?, row.completion_tokens?)));
    let lengths: Vec<(usize, usize)> = lengths.collect();
    let longest = lengths.iter().map(|(prompt, answer)| prompt + answer).max().unwrap_or(0);
    // A question and its answer are read at once.
    let answer = lengths.iter().map(|(_, answer)| answer + QUESTION).max().unwrap_or(0);
    let dtype = identity.dtype.as_deref().map(engine::parse_dtype).transpose()?;

    // 2. The model.
    let name = args.model.as_deref().unwrap_or(&identity.model.name);
    args.attention_kernel.choose();
    let options = LocalOptions {
        devices: engine::parse_devices(&args.device)?,
        dtype,
        context: ContextLength::Exactly(longest),
        allow_longer: true,
        chunk: engine::DEFAULT_CHUNK.max(answer),
        logits: engine::LOGITS_AT_ONCE,
        branches: Branches::default(),
        observed: ObservedSpans { rows: 0, keys: 0, generated: 0 },
        kept: args.weights.into(),
        hides_keys: true,
        ..LocalOptions::default()
    };
    let mut model = LocalModel::open(name, &options)
        .with_context(|| format!("the model of {place}; name its folder or file with --model"))?;
    ensure!(
        model.digest() == identity.model.digest,
        "{name} is not the model of {place}: its digest is {}, the run's {}; give that one with --model",
        model.digest(),
        identity.model.digest
    );

    // 3. Measure, and show.
    let stop = super::interrupt::flag("measure")?;
    let show = std::io::stderr().is_terminal();
    let kinds = model.engine().decoder().spec().layer_kinds();
    let way = args.way();
    let measured = match &way {
        Way::Blocked(options) => causes::measure(&folder, &mut model, *options, &stop, show),
        Way::Total => {
            announce("removals", total_effect::cost(&folder, &kinds).with_context(|| format!("{place}"))?);
            total_effect::measure(&folder, &mut model, &stop, show)
        }
        Way::Surrogate(options) => {
            let cost = context_cite::cost(&folder, &kinds, *options);
            announce("subsets", cost.with_context(|| format!("{place}"))?);
            context_cite::measure(&folder, &mut model, *options, &stop, show)
        }
    };
    let Measured { skipped, done, stopped, histories, readings } =
        measured.with_context(|| format!("{place}"))?;
    note(format_args!("{done} rows added to {}, {skipped} were there", args.dir.join(CAUSES).display()));
    for (what, (seconds, tokens)) in [("histories", histories), ("readings with a path blocked", readings)] {
        if tokens > 0 {
            note(format_args!("{what}: {tokens} tokens in {seconds:.1} s"));
        }
    }
    if stopped {
        super::say("stopped; the same command goes on from here")?;
        std::process::exit(INTERRUPTED);
    }
    super::say(shown(&args.dir, &way, &kinds)?.trim_end())
}

/// Says what is to be computed.
fn announce(what: &str, cost: ReadingCost) {
    let ReadingCost { readings, prefill, answers, histories } = cost;
    if readings > 0 {
        let number = |n: usize| grouped(n as u64);
        note(format_args!(
            "{} {what}: {} tokens of histories to read, {:.1} times the cases' whole histories, and {} of questions and answers",
            number(readings),
            number(prefill),
            prefill as f64 / histories.max(1) as f64,
            number(answers)
        ));
    }
}

/// The rows of what was measured, summed up.
fn shown(dir: &Path, way: &Way, kinds: &[LayerKind]) -> anyhow::Result<String> {
    Ok(match way {
        Way::Blocked(options) => {
            let windows = causes::windows(kinds, *options)?;
            let windows: Vec<Option<[usize; 2]>> =
                windows.into_iter().map(|w| w.map(|w| [w.start, w.end])).collect();
            let mut rows = causes::read_causes(dir)?;
            rows.retain(|row| row.seed == options.seed && windows.contains(&row.layers));
            table(&rows)
        }
        Way::Total => totals(&read_totals(dir)?),
        Way::Surrogate(options) => {
            let mut rows = read_surrogates(dir)?;
            rows.retain(|row| {
                (row.seed, row.subsets, row.ablation) == (options.seed, options.subsets, options.ablation)
            });
            surrogates(&rows)
        }
    })
}

/// The name of a part in the analysis, where there is one.
fn part(role: Option<&str>) -> String {
    role.unwrap_or("others").to_owned()
}

/// A row for each role: the means over answers and sessions.
fn totals(rows: &[TotalRow]) -> String {
    let mut groups: BTreeMap<String, Vec<Effect>> = BTreeMap::new();
    for row in rows {
        groups.entry(part(row.role.as_deref())).or_default().push(row.total);
    }
    let mut lines = vec![["removed", "sessions", "log p", "KL", "changed"].map(str::to_owned).to_vec()];
    for (role, effects) in groups {
        let mut line = vec![role, effects.len().to_string()];
        line.extend(means(effects.into_iter()));
        lines.push(line);
    }
    aligned(&lines, |column| column > 0)
}

/// A row for each role: the mean weight over answers and sessions, and how many are not 0; and how well the fits are.
fn surrogates(rows: &[SurrogateRow]) -> String {
    let mut groups: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for weight in rows.iter().flat_map(|row| &row.weights) {
        groups.entry(part(weight.role.as_deref())).or_default().push(weight.weight);
    }
    let mut lines = vec![["session", "sessions", "mean weight", "not 0"].map(str::to_owned).to_vec()];
    for (role, weights) in groups {
        let (n, set) = (weights.len(), weights.iter().filter(|weight| **weight != 0.0).count());
        let mean = weights.iter().sum::<f64>() / n as f64;
        let share = 100.0 * set as f64 / n as f64;
        lines.push(vec![role, n.to_string(), format!("{mean:+.4}"), format!("{share:.0}%")]);
    }
    let fits: Vec<f64> = rows.iter().filter_map(|row| row.r2).collect();
    let mean = fits.iter().sum::<f64>() / fits.len().max(1) as f64;
    let how = rows.first().map_or("", |row| row.ablation.key());
    let head = format!(
        "sessions {how}; mean share of the logit's variance explained: {mean:.3} ({} answers)",
        rows.len()
    );
    format!("{head}\n{}", aligned(&lines, |column| column > 0))
}

/// Tokens of a question and its instructions that a chunk holds beside an answer, at least.
const QUESTION: usize = 512;

/// A row for each layers and role: the means over answers and sessions, beside those of the controls.
fn table(rows: &[CauseRow]) -> String {
    type Group<'a> = Vec<&'a CauseRow>;
    let mut groups: BTreeMap<(Option<[usize; 2]>, String), Group<'_>> = BTreeMap::new();
    for row in rows {
        groups.entry((row.layers, part(row.role.as_deref()))).or_default().push(row);
    }
    let head = ["layers", "blocked", "paths", "log p", "KL", "changed", "control log p", "KL", "changed"];
    let mut lines = vec![head.map(str::to_owned).to_vec()];
    for ((layers, role), rows) in groups {
        let layers = layers.map_or("all".to_owned(), |[start, end]| format!("{start}..{end}"));
        let mut line = vec![layers, role, rows.len().to_string()];
        line.extend(means(rows.iter().map(|row| row.effect)));
        line.extend(means(rows.iter().filter_map(|row| Some(row.control?.effect))));
        lines.push(line);
    }
    aligned(&lines, |column| column > 1)
}

/// Means of changes of log probabilities, of divergences, and how often an answer changes.
fn means(effects: impl Iterator<Item = Effect>) -> [String; 3] {
    let all: Vec<Effect> = effects.collect();
    if all.is_empty() {
        return ["-", "-", "-"].map(str::to_owned);
    }
    let mean = |of: fn(&Effect) -> f64| all.iter().map(of).sum::<f64>() / all.len() as f64;
    [
        format!("{:+.4}", mean(|effect| effect.log_p)),
        format!("{:.4}", mean(|effect| effect.kl)),
        format!("{:.0}%", 100.0 * mean(|effect| f64::from(u8::from(effect.changed)))),
    ]
}
