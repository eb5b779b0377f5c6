//! `palimpsest causes`: what the answers of a run owe to each session.

use std::collections::{BTreeMap, BTreeSet};
use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};

use super::WrongValue;
use super::interrupt::INTERRUPTED;
use crate::ground::table::aligned;
use crate::lens::causes::Residues;
use crate::models::{DeviceArgs, Weights};
use crate::progress::{grouped, note};
use crate::run::carriers::{self, CarrierOptions};
use crate::run::cause_rows::{
    Ablation, ControlRow, SessionWeight, SurrogateRow, read_lines, read_replaced, read_surrogates,
    read_totals,
};
use crate::run::causes::{self, CAUSES, CauseOptions, CauseRow, Effect, Measured};
use crate::run::condition::named;
use crate::run::context_cite::{self, SurrogateOptions};
use crate::run::contrast_carriers;
use crate::run::contrast_causes;
use crate::run::contrast_rows::{CONTRAST_CAUSES, ContrastAblation, ContrastCauseRow, read_contrast_causes};
use crate::run::control_pool::{Pools, STRETCHES};
use crate::run::removal::{ReadingCost, SessionChoice};
use crate::run::store::{RunFolder, RunStore};
use crate::run::total_effect::{self, TotalOptions};
use palimpsest_core::attention::LayerKind;

const EXAMPLES: &str = "\
Examples:
  palimpsest causes runs/first
  palimpsest causes runs/first --windows 8 --controls 24
  palimpsest causes runs/first --total
  palimpsest causes runs/first --replace
  palimpsest causes runs/first --carriers
  palimpsest causes runs/first --contextcite 32
  palimpsest causes runs/dose --contrast --windows 8
  palimpsest causes runs/qwen3 --model ./qwen3-8b --device cuda";

/// Block each session in turn, and see what the answers of a run owe to it.
///
/// DIR is the folder of a run that recorded attention. For every answer and every session of its history, everything from the
/// question's first token on is kept from seeing the session, and the model's own answer is read again: what the answer loses of its log
/// probability (mean per token; above 0 it needs the session), how far the distributions of its first token and of all of its tokens move,
/// and whether some token of it is no longer the likeliest. A thought before the answer is counted apart. Beside the sessions a pool of
/// random stretches is blocked, drawn once a case: no evidence, of lengths that cover those of the sessions. A session's control is the
/// median effect of the stretches of about its own length. The history is computed once a case; each reading takes
/// the tokens from the question on alone. Rows go to DIR/causes.jsonl, which is gone on with after a stop. Only direct paths
/// are blocked: what other sessions took over from one still arrives (docs/measures.md).
///
/// --total removes each session in the place of blocking it and reads all after it again: what the answer owes to it altogether. --contextcite
/// N does so with N random subsets of the sessions, and says what each session adds to the logit of the answer's probability.
/// --replace puts neutral text of equal length in the place of each session of the evidence, so that what comes after it keeps its positions.
/// --carriers hides each session of the evidence from the question on and from one later session besides, whose rows are read again: which
/// later sessions hold what it leaves behind.
/// All say before they begin how much is to be computed, and go on after a stop too.
///
/// --contrast reads the contrasts of a benchmark whose questions name values (dose) in the place of answers: what blocking a session, or with
/// --total removing it, or with --replace replacing it, takes from log p of the current value less log p of the one that it is held against. Rows go to
/// DIR/contrast-causes.jsonl, measures of the prompt's last position to DIR/causes-contrast/.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The folder of a run
    dir: PathBuf,
    /// The run's model, where it is no longer found by its name
    #[arg(long, help_heading = "Model")]
    model: Option<String>,
    /// Block N layers at a time, window by window, in the place of all layers at once
    #[arg(long, value_name = "N", value_parser = super::positive, help_heading = "Paths and controls")]
    windows: Option<usize>,
    /// Of a model with linear-attention layers, block the softmax layers alone
    #[arg(long, help_heading = "Paths and controls")]
    softmax_only: bool,
    /// Random stretches of a case that are blocked as controls, a reading of every answer each; 0 for none
    #[arg(long, value_name = "N", default_value_t = STRETCHES, value_parser = controls, conflicts_with_all = ["total", "replace", "carriers", "contextcite"], help_heading = "Paths and controls")]
    controls: usize,
    /// Remove each session and read the rest again, in the place of blocking it
    #[arg(long, group = "left_out", conflicts_with_all = ["windows", "softmax_only", "contextcite"], help_heading = "Removal")]
    total: bool,
    /// Put neutral text of equal length in the place of each session and read the rest again
    #[arg(long, group = "left_out", conflicts_with_all = ["windows", "softmax_only", "contextcite"], help_heading = "Removal")]
    replace: bool,
    /// Find the later sessions that hold what an answer owes to the evidence beside its own place
    #[arg(long, conflicts_with_all = ["windows", "contextcite", "left_out"], help_heading = "Paths and controls")]
    carriers: bool,
    /// Of --carriers, look for single ones where hiding a session from all of them takes at least NATS more than from the question on
    #[arg(long, value_name = "NATS", default_value_t = carriers::LEAST, requires = "carriers", help_heading = "Paths and controls")]
    least: f64,
    /// The sessions that --total removes (all unless told otherwise) and --replace replaces (the evidence unless told otherwise)
    #[arg(long, value_enum, requires = "left_out", help_heading = "Removal")]
    sessions: Option<SessionChoice>,
    /// Leave out what N random subsets of the sessions do not hold, and fit a sparse linear function of what they hold
    #[arg(long, value_name = "N", value_parser = super::positive, conflicts_with = "windows", help_heading = "Removal")]
    contextcite: Option<usize>,
    /// Read contrasts of values in the place of the answers' log-probabilities
    #[arg(long, conflicts_with = "contextcite", help_heading = "Paths and controls")]
    contrast: bool,
    /// How --contextcite leaves sessions out
    #[arg(long, value_enum, default_value_t, requires = "contextcite", help_heading = "Removal")]
    ablate: Ablation,
    /// Seed of the controls' stretches and of the subsets
    #[arg(long, default_value_t = 0, help_heading = "Paths and controls")]
    seed: u64,
    #[command(flatten)]
    on: DeviceArgs,
    /// What to keep of quantised weights on the CPU
    #[arg(long, value_enum, default_value_t, help_heading = "Model")]
    weights: Weights,
}

fn controls(typed: &str) -> Result<usize, WrongValue> {
    let pool = format!(
        "controls are a pool of stretches a case: give their number, {STRETCHES} unless told otherwise, or 0 for none"
    );
    typed.parse().map_err(|_| WrongValue(pool))
}

enum Way {
    Blocked(CauseOptions),
    Total(TotalOptions),
    Carriers(CarrierOptions),
    Surrogate(SurrogateOptions),
}

impl Args {
    fn way(&self) -> Way {
        let &Args { total, replace, contextcite, ablate, seed, windows, softmax_only, controls, .. } = self;
        let usual = if replace { SessionChoice::Evidence } else { SessionChoice::All };
        match contextcite {
            Some(subsets) => {
                Way::Surrogate(SurrogateOptions { subsets, seed, ablation: ablate, softmax_only })
            }
            None if self.carriers => Way::Carriers(CarrierOptions { softmax_only, least: self.least }),
            None if total || replace => {
                Way::Total(TotalOptions { sessions: self.sessions.unwrap_or(usual), replace })
            }
            None => Way::Blocked(CauseOptions { seed, windows, softmax_only, controls }),
        }
    }
}

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
    read_lines(&args.dir)?;
    let asked = if args.contrast { contrast_causes::asked(&folder) } else { causes::asked(&folder) };
    ensure!(
        !(args.contrast && asked.is_empty()),
        "{place} has no contrasts: they are of runs of a benchmark whose questions name values (dose), answered by a model on this \
         machine with its attention recorded"
    );
    ensure!(!asked.is_empty(), "{place} has no answers whose causes could be measured; finish the run first");
    let lengths = asked.iter().filter_map(|row| Some((row.prompt_tokens?, row.completion_tokens?)));
    let lengths: Vec<(usize, usize)> = lengths.collect();
    let longest = lengths.iter().map(|(prompt, answer)| prompt + answer).max().unwrap_or(0);
    // A question and its answer are read at once.
    let answer = lengths.iter().map(|(_, answer)| answer + QUESTION).max().unwrap_or(0);

    // 2. The model.
    let from = (args.model.as_deref(), &args.on, args.weights);
    let mut model = super::run_model::open(&place, identity, from, (longest, answer))?;

    // 3. Measure, and show.
    let stop = super::interrupt::flag("measure")?;
    let show = std::io::stderr().is_terminal();
    let kinds = model.engine().decoder().spec().layer_kinds();
    let way = args.way();
    let measured = match &way {
        Way::Blocked(options) if args.contrast => {
            contrast_causes::measure(&folder, &mut model, *options, &stop, show)
        }
        Way::Total(options) if args.contrast => {
            let cost = contrast_causes::cost(&folder, model.text(), &kinds, *options);
            announce(left_out(*options), cost.with_context(|| format!("{place}"))?);
            contrast_causes::measure_removals(&folder, &mut model, *options, &stop, show)
        }
        Way::Carriers(options) if args.contrast => {
            let cost = contrast_carriers::cost(&folder, model.text(), &kinds, *options);
            announce(CARRIERS, cost.with_context(|| format!("{place}"))?);
            contrast_carriers::measure(&folder, &mut model, *options, &stop, show)
        }
        Way::Carriers(options) => {
            announce(
                CARRIERS,
                carriers::cost(&folder, &kinds, *options).with_context(|| format!("{place}"))?,
            );
            carriers::measure(&folder, &mut model, *options, &stop, show)
        }
        Way::Blocked(options) => causes::measure(&folder, &mut model, *options, &stop, show),
        Way::Total(options) => {
            let cost = total_effect::cost(&folder, model.text(), &kinds, *options);
            announce(left_out(*options), cost.with_context(|| format!("{place}"))?);
            total_effect::measure(&folder, &mut model, *options, &stop, show)
        }
        Way::Surrogate(options) => {
            let cost = context_cite::cost(&folder, &kinds, *options);
            announce("subsets", cost.with_context(|| format!("{place}"))?);
            context_cite::measure(&folder, &mut model, *options, &stop, show)
        }
    };
    let Measured { skipped, done, stopped, histories, readings } =
        measured.with_context(|| format!("{place}"))?;
    let file = args.dir.join(if args.contrast { CONTRAST_CAUSES } else { CAUSES });
    note(format_args!("{done} rows added to {}, {skipped} were there", file.display()));
    for (what, (seconds, tokens)) in [("histories", histories), ("readings with a path blocked", readings)] {
        if tokens > 0 {
            note(format_args!("{what}: {tokens} tokens in {seconds:.1} s"));
        }
    }
    if stopped {
        super::say("stopped; the same command goes on from here")?;
        std::process::exit(INTERRUPTED);
    }
    let text = match args.contrast {
        true => contrasts(&read_contrast_causes(&args.dir)?, &way),
        false => shown(&args.dir, &way, &kinds)?,
    };
    let residues = match args.contrast {
        true => Residues::of_contrasts(&args.dir)?,
        false => Residues::of_answers(&args.dir)?,
    };
    let is_of_residues = matches!(way, Way::Total(_) | Way::Carriers(_));
    let left = if is_of_residues { super::residue::left_behind(&residues) } else { String::new() };
    super::say([text.trim_end(), left.trim_end()].join("\n").trim())
}

const CARRIERS: &str =
    "readings of carriers at most, fewer where hiding a session from all of them changes nothing";

fn left_out(TotalOptions { replace, .. }: TotalOptions) -> &'static str {
    if replace { "replacements" } else { "removals" }
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

fn shown(dir: &Path, way: &Way, kinds: &[LayerKind]) -> anyhow::Result<String> {
    Ok(match way {
        Way::Blocked(options) => {
            let windows = causes::windows(kinds, *options)?;
            let windows: Vec<Option<[usize; 2]>> =
                windows.into_iter().map(|w| w.map(|w| [w.start, w.end])).collect();
            let of = |seed: u64, layers| seed == options.seed && windows.contains(&layers);
            let mut rows = causes::read_causes(dir)?;
            rows.retain(|row| of(row.seed, row.layers));
            let mut stretches = causes::read_controls(dir)?;
            stretches.retain(|row| of(row.seed, row.layers));
            blocked(&rows, &stretches)
        }
        Way::Carriers(_) => String::new(),
        Way::Total(TotalOptions { replace: false, .. }) => {
            let rows = read_totals(dir)?.into_iter().map(|row| NamedEffect {
                answer: [row.case, named(&row.probe, &row.condition)],
                session: [row.span, part(row.role.as_deref())],
                layers: None,
                effect: row.total,
                control: None,
            });
            totals("removed", rows.collect())
        }
        Way::Total(_) => {
            let rows = read_replaced(dir)?.into_iter().map(|row| NamedEffect {
                answer: [row.case, named(&row.probe, &row.condition)],
                session: [row.span, part(row.role.as_deref())],
                layers: None,
                effect: row.replaced,
                control: None,
            });
            totals("replaced", rows.collect())
        }
        Way::Surrogate(options) => {
            let mut rows = read_surrogates(dir)?;
            rows.retain(|row| {
                (row.seed, row.subsets, row.ablation) == (options.seed, options.subsets, options.ablation)
            });
            surrogates(&rows)
        }
    })
}

/// A row for each role and layers, the means over contrasts and sessions, of what was left out or of what was blocked.
fn contrasts(rows: &[ContrastCauseRow], way: &Way) -> String {
    let shown: &[ContrastAblation] = match way {
        Way::Total(TotalOptions { replace: true, .. }) => &[ContrastAblation::Replaced],
        Way::Total(_) => &[ContrastAblation::Removed],
        Way::Carriers(_) => return String::new(),
        Way::Blocked(_) | Way::Surrogate(_) => &[ContrastAblation::Blocked, ContrastAblation::Control],
    };
    let mut groups: BTreeMap<_, Vec<f64>> = BTreeMap::new();
    for row in rows.iter().filter(|row| shown.contains(&row.ablation)) {
        let name = match row.ablation {
            ContrastAblation::Control => "random stretches".to_owned(),
            _ => part(row.role.as_deref()),
        };
        groups.entry((row.layers, row.ablation, name)).or_default().push(row.drop);
    }
    let mut lines = vec![["layers", "what", "readings", "contrast lost"].map(str::to_owned).to_vec()];
    for ((layers, _, name), drops) in groups {
        lines.push(vec![layers_of(layers), name, drops.len().to_string(), signed(mean(&drops))]);
    }
    format!("{}\n", aligned(&lines, |column| column > 1))
}

/// The name of a part in the analysis, where there is one.
fn part(role: Option<&str>) -> String {
    role.unwrap_or("others").to_owned()
}

/// A row for each role, the means over answers and sessions; and the largest by name.
fn totals(how: &str, rows: Vec<NamedEffect>) -> String {
    let mut groups: BTreeMap<String, Vec<Effect>> = BTreeMap::new();
    for NamedEffect { session: [_, part], effect, .. } in &rows {
        groups.entry(part.clone()).or_default().push(*effect);
    }
    let mut lines = vec![[how, "sessions"].map(str::to_owned).to_vec()];
    lines[0].extend(EFFECT.map(str::to_owned));
    for (role, effects) in groups {
        let mut line = vec![role, effects.len().to_string()];
        line.extend(means(&effects));
        lines.push(line);
    }
    format!("{}\n{}", aligned(&lines, |column| column > 0), by_name(rows))
}

/// A row for each role, the mean weight over answers and sessions, and how many are not 0; how well the fits are; and the largest weights
/// by name.
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
    let mut weights: Vec<(&SurrogateRow, &SessionWeight)> =
        rows.iter().flat_map(|row| row.weights.iter().map(move |weight| (row, weight))).collect();
    weights.sort_by(|a, b| b.1.weight.abs().total_cmp(&a.1.weight.abs()));
    let mut largest = vec![["case", "probe", "session", "part", "weight"].map(str::to_owned)];
    for (row, SessionWeight { span, role, weight, .. }) in weights.iter().take(LARGEST) {
        let probe = named(&row.probe, &row.condition);
        largest.push([row.case.clone(), probe, span.clone(), part(role.as_deref()), format!("{weight:+.4}")]);
    }
    format!(
        "{head}\n{}\nthe {} largest of {} weights:\n{}",
        aligned(&lines, |column| column > 0),
        largest.len() - 1,
        weights.len(),
        aligned(&largest, |column| column > 3)
    )
}

/// Tokens of a question and its instructions that a chunk holds beside an answer, at least.
const QUESTION: usize = 512;

/// Sessions that are shown by name, at most.
const LARGEST: usize = 8;

const EFFECT: [&str; 4] = ["log p lost", "KL", "KL answer", "changed"];

struct NamedEffect {
    /// Case and probe.
    answer: [String; 2],
    /// The session and its part.
    session: [String; 2],
    layers: Option<[usize; 2]>,
    effect: Effect,
    /// Of random text of its length.
    control: Option<f64>,
}

fn layers_of(layers: Option<[usize; 2]>) -> String {
    layers.map_or("all".to_owned(), |[start, end]| format!("{start}..{end}"))
}

/// The sessions with the largest effects on log-probabilities, whatever their sign.
fn by_name(mut rows: Vec<NamedEffect>) -> String {
    rows.sort_by(|a, b| b.effect.log_p_drop.abs().total_cmp(&a.effect.log_p_drop.abs()));
    let all = rows.len();
    rows.truncate(LARGEST);
    let (windows, controls) =
        (rows.iter().any(|row| row.layers.is_some()), rows.iter().any(|row| row.control.is_some()));
    let mut head = vec!["case", "probe", "session", "part"];
    head.extend(windows.then_some("layers"));
    head.extend(EFFECT);
    head.extend(controls.then_some("control"));
    let numbers = if windows { 5 } else { 4 };
    let mut lines = vec![head.into_iter().map(str::to_owned).collect::<Vec<_>>()];
    for row in &rows {
        let mut line: Vec<String> = row.answer.iter().chain(&row.session).cloned().collect();
        line.extend(windows.then(|| layers_of(row.layers)));
        let Effect { log_p_drop, kl, kl_answer, changed, .. } = row.effect;
        line.extend([format!("{log_p_drop:+.4}"), format!("{kl:.4}"), format!("{kl_answer:.4}")]);
        line.push(if changed { "yes" } else { "no" }.to_owned());
        line.extend(controls.then(|| signed(row.control)));
        lines.push(line);
    }
    let shown = rows.len();
    format!("the {shown} largest of {all} effects:\n{}", aligned(&lines, |column| column >= numbers))
}

fn signed(value: Option<f64>) -> String {
    value.map_or("-".to_owned(), |value| format!("{value:+.4}"))
}

/// Effects of blocking: means by layers and role beside those of controls of equal length, thoughts, and the largest effects.
fn blocked(rows: &[CauseRow], stretches: &[ControlRow]) -> String {
    let pools = Pools::new(stretches);
    let mut groups: BTreeMap<(Option<[usize; 2]>, String), Vec<&CauseRow>> = BTreeMap::new();
    for row in rows {
        groups.entry((row.layers, part(row.role.as_deref()))).or_default().push(row);
    }
    let mut controls: BTreeMap<Option<[usize; 2]>, Vec<Effect>> = BTreeMap::new();
    for row in stretches {
        controls.entry(row.layers).or_default().push(row.effect);
    }
    let mut lines = vec![["layers", "blocked", "paths"].map(str::to_owned).to_vec()];
    lines[0].extend(EFFECT.map(str::to_owned));
    lines[0].extend(["control: log p lost", "KL", "KL answer", "of paths"].map(str::to_owned));
    let mut thoughts = vec![["layers", "blocked", "thoughts"].map(str::to_owned).to_vec()];
    thoughts[0].extend(["log p lost", "KL", "changed"].map(str::to_owned));
    for ((layers, role), rows) in &groups {
        let mut line = vec![layers_of(*layers), role.clone(), rows.len().to_string()];
        line.extend(means(&rows.iter().map(|row| row.effect).collect::<Vec<_>>()));
        let of = |number: fn(&Effect) -> f64| -> Vec<f64> {
            rows.iter().filter_map(|row| pools.control(row, number)).collect()
        };
        let drops = of(|effect| effect.log_p_drop);
        line.push(signed(mean(&drops)));
        line.extend([of(|effect| effect.kl), of(|effect| effect.kl_answer)].map(|kl| unsigned(mean(&kl))));
        line.push(drops.len().to_string());
        lines.push(line);
        let thought: Vec<_> = rows.iter().filter_map(|row| row.effect.thought).collect();
        if !thought.is_empty() {
            let all = |of: &dyn Fn(usize) -> f64| mean(&(0..thought.len()).map(of).collect::<Vec<_>>());
            thoughts.push(vec![
                layers_of(*layers),
                role.clone(),
                thought.len().to_string(),
                signed(all(&|i| thought[i].log_p_drop)),
                unsigned(all(&|i| thought[i].kl)),
                percent(all(&|i| f64::from(u8::from(thought[i].changed)))),
            ]);
        }
    }
    for (layers, effects) in &controls {
        let mut line = vec![layers_of(*layers), "random stretches".to_owned(), effects.len().to_string()];
        line.extend(means(effects));
        line.extend(["-", "-", "-", "-"].map(str::to_owned));
        lines.push(line);
    }
    let mut said = vec![aligned(&lines, |column| column > 1)];
    said.push(about_controls(rows, stretches));
    let open: Vec<f64> = rows.iter().filter_map(|row| row.layers_open).collect();
    if !open.is_empty() {
        let least = 100.0 * open.iter().copied().fold(f64::INFINITY, f64::min);
        let most = 100.0 * open.iter().copied().fold(0.0, f64::max);
        let share = if least < most { format!("{least:.0} to {most:.0}%") } else { format!("{most:.0}%") };
        said.push(format!(
            "softmax layers alone were blocked: {share} of the layers named are linear-attention layers, through which everything was \
             still seen\n"
        ));
    }
    if thoughts.len() > 1 {
        said.push(format!(
            "thoughts before the answers, which are in none of the other numbers:\n{}",
            aligned(&thoughts, |column| column > 1)
        ));
    }
    let largest = rows.iter().map(|row| NamedEffect {
        answer: [row.case.clone(), named(&row.probe, &row.condition)],
        session: [row.span.clone(), part(row.role.as_deref())],
        layers: row.layers,
        effect: row.effect,
        control: pools.control(row, |effect| effect.log_p_drop),
    });
    said.push(by_name(largest.collect()));
    said.concat()
}

/// A line on the number and the use of stretches.
fn about_controls(rows: &[CauseRow], stretches: &[ControlRow]) -> String {
    if stretches.is_empty() {
        return "no controls were measured\n".to_owned();
    }
    let answer =
        |case: &String, probe: &String, condition: &String| [case, probe, condition].map(String::clone);
    let with: BTreeSet<_> =
        stretches.iter().map(|row| (answer(&row.case, &row.probe, &row.condition), row.layers)).collect();
    let all: BTreeSet<_> =
        rows.iter().map(|row| (answer(&row.case, &row.probe, &row.condition), row.layers)).collect();
    let different: BTreeSet<_> = stretches.iter().map(|row| (&row.case, row.tokens)).collect();
    let cases: BTreeSet<_> = stretches.iter().map(|row| &row.case).collect();
    let lacking = match all.difference(&with).count() {
        0 => String::new(),
        n => format!("; there was no room for any in {n} of {} readings of answers", all.len()),
    };
    format!(
        "controls: {} readings of {} random stretches without evidence in {} {}{lacking}; a session's control is the median effect of the \
         stretches of about its length\n",
        stretches.len(),
        different.len(),
        cases.len(),
        if cases.len() == 1 { "case" } else { "cases" }
    )
}

fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

fn unsigned(value: Option<f64>) -> String {
    value.map_or("-".to_owned(), |value| format!("{value:.4}"))
}

fn percent(share: Option<f64>) -> String {
    share.map_or("-".to_owned(), |share| format!("{:.0}%", 100.0 * share))
}

fn means(effects: &[Effect]) -> [String; 4] {
    let of = |number: fn(&Effect) -> f64| mean(&effects.iter().map(number).collect::<Vec<_>>());
    [
        signed(of(|effect| effect.log_p_drop)),
        unsigned(of(|effect| effect.kl)),
        unsigned(of(|effect| effect.kl_answer)),
        percent(of(|effect| f64::from(u8::from(effect.changed)))),
    ]
}
