//! Text tables of effects: means over answers and sessions, and the largest by session.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::repairs;
use super::residue::{Residues, in_words, numbers};
use palimpsest_core::ablate::Measure;
use palimpsest_core::attention::LayerKind;
use palimpsest_data::ground::sheet::Columns;
use palimpsest_data::ground::words::{counted, of_counted};
use palimpsest_data::statistics::spread::mean;
use palimpsest_run::runs::causes;
use palimpsest_run::runs::causes::contrast_rows::{AblationKind, ContrastCauseRow, read_contrast_causes};
use palimpsest_run::runs::causes::control_pool::Pools;
use palimpsest_run::runs::causes::removed::RemovalOptions;
use palimpsest_run::runs::causes::rows::{CauseRow, CauseRows, Effect, SessionWeight, SurrogateRow};
use palimpsest_run::runs::causes::ways::Way;
use palimpsest_run::runs::condition::named;

/// Table of a run's rows of this ablation and measure; total effects add the residues, repairs what they leave.
pub fn text(dir: &Path, (way, of): (Way, Measure), kinds: &[LayerKind]) -> anyhow::Result<String> {
    let is_of_residues = matches!(way, Way::Removed(_) | Way::Carriers(_) | Way::Thoughts(_));
    let is_repaired = matches!(way, Way::Repaired(_));
    let (text, residues) = match of {
        Measure::Contrast => (contrasts(&read_contrast_causes(dir)?, way), Residues::of_contrasts(dir)?),
        Measure::LogP => (answers(CauseRows::read(dir)?, way, kinds)?, Residues::of_answers(dir)?),
    };
    let left = match (is_of_residues, is_repaired) {
        (true, _) => left_behind(&residues),
        (_, true) => repairs::table(&residues),
        _ => String::new(),
    };
    Ok([text.trim_end(), left.trim_end()].join("\n").trim().to_owned())
}

fn answers(rows: CauseRows, way: Way, kinds: &[LayerKind]) -> anyhow::Result<String> {
    Ok(match way {
        Way::Blocked(options) => {
            let windows = causes::windows(kinds, (options.windows, options.softmax_only))?;
            let windows: Vec<Option<[usize; 2]>> =
                windows.into_iter().map(|w| w.map(|w| [w.start, w.end])).collect();
            let of = |row: &CauseRow| row.seed == Some(options.seed) && windows.contains(&row.layers);
            let CauseRows { blocked: mut sessions, controls: mut stretches, .. } = rows;
            sessions.retain(of);
            stretches.retain(of);
            blocked(&sessions, &stretches)
        }
        Way::Carriers(_) | Way::Thoughts(_) | Way::Repaired(_) => String::new(),
        Way::Forced(_) => totals("forced", &rows.forced),
        Way::Removed(RemovalOptions { replace: true, .. }) => totals("replaced", &rows.replaced),
        Way::Removed(_) => totals("removed", &rows.removed),
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
        Way::Forced(_) => &[AblationKind::Forced],
        Way::Carriers(_) | Way::Thoughts(_) | Way::Repaired(_) => return String::new(),
        Way::Blocked(_) | Way::Surrogate(_) => &[AblationKind::Blocked, AblationKind::Control],
    };
    let mut groups: BTreeMap<_, Vec<f64>> = BTreeMap::new();
    for row in rows.iter().filter(|row| shown.contains(&row.ablation)) {
        let name = if row.ablation == AblationKind::Control { STRETCHES } else { part(&row.role) };
        groups.entry((row.layers, row.ablation, name)).or_default().push(row.drop);
    }
    Columns::of(&groups)
        .text("layers", |((layers, ..), _)| layers_of(*layers))
        .text(if matches!(way, Way::Forced(_)) { "forced" } else { "hidden" }, |((.., name), _)| *name)
        .number("passes", |(_, drops)| drops.len())
        .number("contrast lost", |(_, drops)| signed(mean(drops)))
        .sheet(Vec::new())
        .text()
}

const STRETCHES: &str = "random stretches";

fn part(role: &Option<String>) -> &str {
    role.as_deref().unwrap_or("others")
}

/// One row per role: means over answers and sessions; then the largest effects.
fn totals(how: &str, rows: &[CauseRow]) -> String {
    let mut groups: BTreeMap<&str, Vec<&CauseRow>> = BTreeMap::new();
    for row in rows {
        groups.entry(part(&row.role)).or_default().push(row);
    }
    let table = Columns::of(&groups).text(how, |(role, _)| *role).number("sessions", |(_, rows)| rows.len());
    let table = with_means(table, |(_, rows)| rows).sheet(Vec::new());
    format!("{}\n{}", table.text(), largest(rows, &Pools::default()))
}

/// One row per role: mean weight over answers and sessions, and the number of non-zero weights; then fit quality and the largest weights.
fn surrogates(rows: &[SurrogateRow]) -> String {
    let mut groups: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for weight in rows.iter().flat_map(|row| &row.weights) {
        groups.entry(part(&weight.role)).or_default().push(weight.weight);
    }
    let set = |weights: &[f64]| {
        weights.iter().filter(|weight| **weight != 0.0).count() as f64 / weights.len() as f64
    };
    let table = Columns::of(&groups)
        .text("session", |(role, _)| *role)
        .number("sessions", |(_, weights)| weights.len())
        .number("mean weight", |(_, weights)| signed(mean(weights)))
        .number("not 0", |(_, weights)| percent(Some(set(weights))))
        .sheet(Vec::new());
    let fits: Vec<f64> = rows.iter().filter_map(|row| row.r2).collect();
    let head = format!(
        "sessions {}; mean explained variance of the logit: {:.3} ({} answers)",
        rows.first().map_or("", |row| row.ablation.key()),
        mean(&fits).unwrap_or_default(),
        rows.len()
    );
    let mut weights: Vec<(&SurrogateRow, &SessionWeight)> =
        rows.iter().flat_map(|row| row.weights.iter().map(move |weight| (row, weight))).collect();
    weights.sort_by(|a, b| b.1.weight.abs().total_cmp(&a.1.weight.abs()));
    let all = weights.len();
    weights.truncate(LARGEST);
    let shown = weights.len();
    let largest = Columns::of(weights)
        .text("case", |(row, _)| &*row.answer.case)
        .text("question", |(row, _)| named(&row.answer.probe, &row.answer.condition))
        .text("session", |(_, weight)| &*weight.span)
        .text("role", |(_, weight)| part(&weight.role))
        .number("weight", |(_, weight)| signed(Some(weight.weight)))
        .sheet(Vec::new());
    format!("{head}\n{}\nthe {shown} largest of {all} weights:\n{}", table.text(), largest.text())
}

const LARGEST: usize = 8;

/// Adds the mean effect over rows.
fn with_means<'a, R: Copy>(table: Columns<R>, rows: impl Fn(R) -> &'a Vec<&'a CauseRow>) -> Columns<R> {
    let over = |row: R, number: fn(&Effect) -> f64| {
        mean(&rows(row).iter().map(|row| number(&row.effect)).collect::<Vec<_>>())
    };
    table
        .number("log p lost", |row| signed(over(row, |effect| effect.log_p_drop)))
        .number("KL", |row| unsigned(over(row, |effect| effect.kl)))
        .number("KL answer", |row| unsigned(over(row, |effect| effect.kl_answer)))
        .number("changed", |row| percent(over(row, |effect| f64::from(u8::from(effect.changed)))))
}

fn layers_of(layers: Option<[usize; 2]>) -> String {
    layers.map_or("all".to_owned(), |[start, end]| format!("{start}..{end}"))
}

fn largest(rows: &[CauseRow], pools: &Pools) -> String {
    let mut largest: Vec<&CauseRow> = rows.iter().collect();
    largest.sort_by(|a, b| b.effect.log_p_drop.abs().total_cmp(&a.effect.log_p_drop.abs()));
    largest.truncate(LARGEST);
    let control = |row: &CauseRow| pools.control(row, |effect| effect.log_p_drop);
    let has_windows = largest.iter().any(|row| row.layers.is_some());
    let has_controls = largest.iter().any(|row| control(row).is_some());
    let table = Columns::of(largest.iter().copied())
        .text("case", |row| &*row.answer.case)
        .text("question", |row| named(&row.answer.probe, &row.answer.condition))
        .text("session", |row| &*row.span)
        .text("role", |row| part(&row.role))
        .text_if(has_windows, "layers", |row| layers_of(row.layers))
        .number("log p lost", |row| signed(Some(row.effect.log_p_drop)))
        .number("KL", |row| unsigned(Some(row.effect.kl)))
        .number("KL answer", |row| unsigned(Some(row.effect.kl_answer)))
        .number("changed", |row| if row.effect.changed { "yes" } else { "no" })
        .number_if(has_controls, "control", |row| signed(control(row)))
        .sheet(Vec::new());
    format!("the {} largest of {} effects:\n{}", largest.len(), rows.len(), table.text())
}

/// A group of rows: true for random stretches, the layers, the part.
type Blocked<'a> = (bool, Option<[usize; 2]>, &'a str);

/// Effects of blocking: means by layers and role beside length-matched controls, thoughts, and the largest effects.
fn blocked(rows: &[CauseRow], stretches: &[CauseRow]) -> String {
    let pools = Pools::new(stretches);
    // Random stretches come last.
    let mut groups: BTreeMap<Blocked<'_>, Vec<&CauseRow>> = BTreeMap::new();
    for row in rows {
        groups.entry((false, row.layers, part(&row.role))).or_default().push(row);
    }
    for row in stretches {
        groups.entry((true, row.layers, STRETCHES)).or_default().push(row);
    }
    let controls = |rows: &[&CauseRow], number: fn(&Effect) -> f64| -> Vec<f64> {
        rows.iter().filter_map(|row| pools.control(row, number)).collect()
    };
    let control = |((is_control, ..), rows): (&Blocked<'_>, &Vec<&CauseRow>), number| {
        mean(&controls(rows, number)).filter(|_| !is_control)
    };
    let table = Columns::of(&groups)
        .text("layers", |((_, layers, _), _)| layers_of(*layers))
        .text("hidden", |((.., name), _)| *name)
        .number("passes", |(_, rows)| rows.len());
    let table = with_means(table, |(_, rows)| rows)
        .number("control: log p lost", |group| signed(control(group, |effect| effect.log_p_drop)))
        .number("KL", |group| unsigned(control(group, |effect| effect.kl)))
        .number("KL answer", |group| unsigned(control(group, |effect| effect.kl_answer)))
        .number("of passes", |((is_control, ..), rows)| match is_control {
            true => "-".to_owned(),
            false => controls(rows, |effect| effect.log_p_drop).len().to_string(),
        });
    let mut said = vec![table.sheet(Vec::new()).text(), about_controls(rows, stretches)];
    let open: Vec<f64> = rows.iter().filter_map(|row| row.layers_open).collect();
    if !open.is_empty() {
        let least = 100.0 * open.iter().copied().fold(f64::INFINITY, f64::min);
        let most = 100.0 * open.iter().copied().fold(0.0, f64::max);
        let share = if least < most { format!("{least:.0} to {most:.0}%") } else { format!("{most:.0}%") };
        said.push(format!(
            "text was hidden at the softmax layers alone: {share} of the layers are linear-attention layers, through which it was still \
             seen\n"
        ));
    }
    let thoughts =
        groups.iter().filter(|((is_control, ..), _)| !is_control).map(|((_, layers, role), rows)| {
            (*layers, *role, rows.iter().filter_map(|row| row.effect.thought).collect::<Vec<_>>())
        });
    let thoughts: Vec<_> = thoughts.filter(|(.., thoughts)| !thoughts.is_empty()).collect();
    if !thoughts.is_empty() {
        let table = Columns::of(&thoughts)
            .text("layers", |(layers, ..)| layers_of(*layers))
            .text("hidden", |(_, role, _)| *role)
            .number("thoughts", |(.., all)| all.len())
            .number("log p lost", |(.., all)| {
                signed(mean(&Vec::from_iter(all.iter().map(|one| one.log_p_drop))))
            })
            .number("KL", |(.., all)| unsigned(mean(&Vec::from_iter(all.iter().map(|one| one.kl)))))
            .number("changed", |(.., all)| {
                percent(mean(&Vec::from_iter(all.iter().map(|one| f64::from(u8::from(one.changed))))))
            })
            .sheet(Vec::new());
        said.push(format!("thoughts before the answers (in no other number):\n{}", table.text()));
    }
    said.push(largest(rows, &pools));
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
        n => format!("; {} none, for lack of room", of_counted(n, all.len(), "answer", ["has", "have"])),
    };
    let anywhere = stretches.iter().filter(|row| row.anywhere);
    let anywhere: BTreeSet<_> = anywhere.map(|row| (&row.answer, row.layers)).collect();
    let unmarked = match anywhere.len() {
        0 => String::new(),
        n => format!(
            "{} no marked evidence in the prompt: the stretches may touch the session that the answer needs, and the controls may then be too \
             high\n",
            of_counted(n, all.len(), "answer", ["has", "have"])
        ),
    };
    let without = if anywhere.len() == with.len() { "" } else { " without evidence" };
    format!(
        "each row is the mean over its forward passes, the sentences below are means over cases\ncontrols: {} forward passes with {} random \
         stretches{without} hidden, in {}{lacking}; a session's control is the median effect of the stretches of about its \
         length\n{unmarked}",
        stretches.len(),
        different.len(),
        counted(cases.len(), "case")
    )
}

fn signed(value: Option<f64>) -> String {
    value.map_or("-".to_owned(), |value| format!("{value:+.4}"))
}

fn unsigned(value: Option<f64>) -> String {
    value.map_or("-".to_owned(), |value| format!("{value:.4}"))
}

fn percent(share: Option<f64>) -> String {
    share.map_or("-".to_owned(), |share| format!("{:.0}%", 100.0 * share))
}

/// One row per role and effect, then the findings; empty if only direct effects were measured.
fn left_behind(residues: &Residues) -> String {
    if !residues.is_measured() {
        return String::new();
    }
    let rows = residues.roles().into_iter();
    let rows = rows.flat_map(|role| numbers(residues, role).into_iter().map(move |number| (role, number)));
    let rows: Vec<_> = rows.collect();
    let table = Columns::of(&rows)
        .text("session", |(role, _)| *role)
        .text("effect", |(_, (name, ..))| &**name)
        .number("cases", |(_, (_, estimate, _))| estimate.n)
        .number("nats", |(_, (_, estimate, _))| signed(estimate.value))
        .number("95% interval", |(_, (_, estimate, _))| {
            estimate.band.map_or("-".to_owned(), |(low, high)| format!("[{low:+.4}, {high:+.4}]"))
        })
        .sheet(Vec::new());
    format!("\n{}\n{}\n", table.text(), in_words(residues, "session").join("\n"))
}
