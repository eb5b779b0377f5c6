//! Text tables of effects: means over answers and sessions, and the largest by session.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::residue::{Residues, in_words, numbers};
use crate::lens::band::Estimate;
use palimpsest_core::ablate::Measure;
use palimpsest_core::attention::LayerKind;
use palimpsest_data::ground::table::aligned;
use palimpsest_data::statistics::spread::mean;
use palimpsest_run::runs::causes;
use palimpsest_run::runs::causes::contrast_rows::{AblationKind, ContrastCauseRow, read_contrast_causes};
use palimpsest_run::runs::causes::control_pool::Pools;
use palimpsest_run::runs::causes::removed::RemovalOptions;
use palimpsest_run::runs::causes::rows::{CauseRow, CauseRows, Effect, SessionWeight, SurrogateRow};
use palimpsest_run::runs::causes::ways::Way;
use palimpsest_run::runs::condition::named;

/// Table of a run's rows of this ablation and measure; total effects add the residues.
pub fn text(dir: &Path, (way, of): (Way, Measure), kinds: &[LayerKind]) -> anyhow::Result<String> {
    let (text, residues) = match of {
        Measure::Contrast => (contrasts(&read_contrast_causes(dir)?, way), Residues::of_contrasts(dir)?),
        Measure::LogP => (answers(CauseRows::read(dir)?, way, kinds)?, Residues::of_answers(dir)?),
    };
    let is_of_residues = matches!(way, Way::Removed(_) | Way::Carriers(_));
    let left = if is_of_residues { left_behind(&residues) } else { String::new() };
    Ok([text.trim_end(), left.trim_end()].join("\n").trim().to_owned())
}

fn answers(rows: CauseRows, way: Way, kinds: &[LayerKind]) -> anyhow::Result<String> {
    Ok(match way {
        Way::Blocked(options) => {
            let windows = causes::windows(kinds, (options.windows, options.softmax_only))?;
            let windows: Vec<Option<[usize; 2]>> =
                windows.into_iter().map(|w| w.map(|w| [w.start, w.end])).collect();
            let of = |seed, layers| seed == Some(options.seed) && windows.contains(&layers);
            let CauseRows { blocked: mut sessions, controls: mut stretches, .. } = rows;
            sessions.retain(|row| of(row.seed, row.layers));
            stretches.retain(|row| of(row.seed, row.layers));
            blocked(&sessions, &stretches)
        }
        Way::Carriers(_) => String::new(),
        Way::Removed(RemovalOptions { replace, .. }) => {
            let (how, rows) = if replace { ("replaced", rows.replaced) } else { ("removed", rows.removed) };
            let rows = rows.into_iter().map(|row| NamedEffect {
                answer: [row.answer.case, named(&row.answer.probe, &row.answer.condition)],
                session: [row.span, part(row.role.as_deref())],
                layers: None,
                effect: *row.effect,
                control: None,
            });
            totals(how, rows.collect())
        }
        Way::Surrogate(options) => {
            let mut fits = rows.surrogates;
            fits.retain(|row| {
                (row.seed, row.subsets, row.ablation) == (options.seed, options.subsets, options.ablation)
            });
            surrogates(&fits)
        }
    })
}

/// One row per role and layers: means over contrasts and sessions.
fn contrasts(rows: &[ContrastCauseRow], way: Way) -> String {
    let shown: &[AblationKind] = match way {
        Way::Removed(RemovalOptions { replace: true, .. }) => &[AblationKind::Replaced],
        Way::Removed(_) => &[AblationKind::Removed],
        Way::Carriers(_) => return String::new(),
        Way::Blocked(_) | Way::Surrogate(_) => &[AblationKind::Blocked, AblationKind::Control],
    };
    let mut groups: BTreeMap<_, Vec<f64>> = BTreeMap::new();
    for row in rows.iter().filter(|row| shown.contains(&row.ablation)) {
        let name = match row.ablation {
            AblationKind::Control => "random stretches".to_owned(),
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

fn part(role: Option<&str>) -> String {
    role.unwrap_or("others").to_owned()
}

/// One row per role: means over answers and sessions; then the largest effects.
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

/// One row per role: mean weight over answers and sessions, and the number of non-zero weights; then fit quality and the largest weights.
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
        let probe = named(&row.answer.probe, &row.answer.condition);
        largest.push([
            row.answer.case.clone(),
            probe,
            span.clone(),
            part(role.as_deref()),
            format!("{weight:+.4}"),
        ]);
    }
    format!(
        "{head}\n{}\nthe {} largest of {} weights:\n{}",
        aligned(&lines, |column| column > 0),
        largest.len() - 1,
        weights.len(),
        aligned(&largest, |column| column > 3)
    )
}

const LARGEST: usize = 8;

const EFFECT: [&str; 4] = ["log p lost", "KL", "KL answer", "changed"];

struct NamedEffect {
    answer: [String; 2],
    session: [String; 2],
    layers: Option<[usize; 2]>,
    effect: Effect,
    control: Option<f64>,
}

fn layers_of(layers: Option<[usize; 2]>) -> String {
    layers.map_or("all".to_owned(), |[start, end]| format!("{start}..{end}"))
}

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

/// Effects of blocking: means by layers and role beside length-matched controls, thoughts, and the largest effects.
fn blocked(rows: &[CauseRow], stretches: &[CauseRow]) -> String {
    let pools = Pools::new(stretches);
    let mut groups: BTreeMap<(Option<[usize; 2]>, String), Vec<&CauseRow>> = BTreeMap::new();
    for row in rows {
        groups.entry((row.layers, part(row.role.as_deref()))).or_default().push(row);
    }
    let mut controls: BTreeMap<Option<[usize; 2]>, Vec<Effect>> = BTreeMap::new();
    for row in stretches {
        controls.entry(row.layers).or_default().push(*row.effect);
    }
    let mut lines = vec![["layers", "blocked", "paths"].map(str::to_owned).to_vec()];
    lines[0].extend(EFFECT.map(str::to_owned));
    lines[0].extend(["control: log p lost", "KL", "KL answer", "of paths"].map(str::to_owned));
    let mut thoughts = vec![["layers", "blocked", "thoughts"].map(str::to_owned).to_vec()];
    thoughts[0].extend(["log p lost", "KL", "changed"].map(str::to_owned));
    for ((layers, role), rows) in &groups {
        let mut line = vec![layers_of(*layers), role.clone(), rows.len().to_string()];
        line.extend(means(&rows.iter().map(|row| *row.effect).collect::<Vec<_>>()));
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
        answer: [row.answer.case.clone(), named(&row.answer.probe, &row.answer.condition)],
        session: [row.span.clone(), part(row.role.as_deref())],
        layers: row.layers,
        effect: *row.effect,
        control: pools.control(row, |effect| effect.log_p_drop),
    });
    said.push(by_name(largest.collect()));
    said.concat()
}

fn about_controls(rows: &[CauseRow], stretches: &[CauseRow]) -> String {
    if stretches.is_empty() {
        return "no controls were measured\n".to_owned();
    }
    let with: BTreeSet<_> = stretches.iter().map(|row| (&row.answer, row.layers)).collect();
    let all: BTreeSet<_> = rows.iter().map(|row| (&row.answer, row.layers)).collect();
    let different: BTreeSet<_> = stretches.iter().map(|row| (&row.answer.case, row.tokens)).collect();
    let cases: BTreeSet<_> = stretches.iter().map(|row| &row.answer.case).collect();
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

/// One row per role and effect, then the findings; empty if only direct effects were measured.
fn left_behind(residues: &Residues) -> String {
    if !residues.is_measured() {
        return String::new();
    }
    let mut lines = vec![["session", "effect", "cases", "nats", "95% interval"].map(str::to_owned).to_vec()];
    for role in residues.roles() {
        for (name, Estimate { n, value, band, .. }, _) in numbers(residues, role) {
            let value = value.map_or("-".to_owned(), |value| format!("{value:+.4}"));
            let band = band.map_or("-".to_owned(), |(low, high)| format!("[{low:+.4}, {high:+.4}]"));
            lines.push(vec![role.to_owned(), name, n.to_string(), value, band]);
        }
    }
    let words = in_words(residues, "session").join("\n");
    format!("\n{}\n{words}\n", aligned(&lines, |column| column > 1))
}
