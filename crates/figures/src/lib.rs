//! Draws figures and the overview of a run.
//!
//! Every figure is a [`sheet`] of panels, which hold lines, bars, dots or a `map`. A sheet becomes a drawing of shapes, written as SVG,
//! PNG and PDF. [`meaning`] assigns colours and dashes, [`look`] holds size and style. Computes no statistics: numbers come from
//! [`palimpsest_analysis::lens`] and are written beside each figure as CSV.
//!
//! A new figure is one function from a [`Lens`] to a [`Figure`] and one line in [`draw_all`]; a figure of several runs takes [`Source`]s
//! and a line in `draw_together`.

use std::collections::BTreeSet;

use palimpsest_analysis::dose::Doses;
use palimpsest_analysis::finding::Dot;
use palimpsest_analysis::lens::causes::Causes;
use palimpsest_analysis::lens::selection::joined;
use palimpsest_analysis::lens::{Lens, Scale, Statistic, Study};
use palimpsest_data::benchmarks::Chart;
use palimpsest_data::ground::csv;
use palimpsest_run::runs::condition::label;

mod axis;
mod canvas;
mod captions;
mod cause_effects;
mod cause_words;
mod causes;
mod charts;
mod columns;
mod curves;
mod difference;
mod dose;
mod dose_maps;
mod drawing;
mod evict;
mod figure;
mod ground_truth;
mod legend;
pub mod look;
mod map;
mod maps;
pub mod meaning;
mod measures;
pub mod overview;
mod panel;
mod pdf;
mod plot;
mod raster;
mod repairs;
mod rows;
mod runs;
mod shades;
pub mod sheet;
mod source;
pub mod style;
mod style_file;
mod typeface;
mod waterfall;

use cause_effects::Told;

pub use charts::{distribution, placement};
pub use figure::{Figure, FigureError, write};
pub use ground_truth::draw_ground_truth;
pub use look::Look;
pub use runs::{RunFigures, charts, draw_runs};
pub use source::{Origin, Source};
pub use style_file::Style;
pub use typeface::{StyleError, Typeface};

/// Draws a benchmark-specific chart. `origin` names the source of the numbers.
pub fn draw_chart(chart: &Chart, origin: &str) -> Figure {
    match chart {
        Chart::Bars(chart) => charts::of_parts(chart, origin),
        Chart::Trends(chart) => charts::trends(chart, origin),
    }
}

/// All figures of a run, in the overview's order.
pub fn draw_all(lens: &Lens, origin: &Origin) -> Vec<Figure> {
    let of_scale = |scale| {
        let aligned = !lens.benchmark.lens.anchors.is_empty();
        let curves = of_layers(&[Source { lens, origin }], scale);
        let mean = aligned.then(|| maps::mean(lens, origin, scale));
        curves.into_iter().chain(mean).chain([maps::first_case(lens, origin, scale)])
    };
    Scale::ALL.into_iter().flat_map(of_scale).collect()
}

/// Maximum number of conditions side by side, unless requested by name.
pub const MOST_BESIDE: usize = 4;

/// A part of the overview.
#[derive(Debug, Clone, Default)]
pub struct Section {
    /// Its address on the page, if it has one.
    pub id: &'static str,
    pub heading: Option<String>,
    pub about: Option<String>,
    pub words: Vec<String>,
    pub figures: Vec<Figure>,
}

/// Figures of a run: measures and conditions side by side, then [`draw_all`] per condition. With conditions, figure names, titles, captions
/// and tables name theirs ([`palimpsest_analysis::lens::Selection`]).
pub fn draw_sections(study: &Study) -> Vec<Section> {
    let all = of_conditions(study, &measured(study), |origin| {
        let measures = Scale::ALL.into_iter().flat_map(|scale| measures::of_study(study, origin, scale));
        let heads = maps::of_heads(study, origin);
        beside(study).into_iter().chain(measures).chain(heads).collect()
    });
    let several = study.selection.several;
    let heading = several.then(|| "Conditions side by side".to_owned());
    let each = study.measured().map(|(condition, lens)| Section {
        heading: several.then(|| format!("Condition {}", label(&condition.name))),
        about: several.then(|| study.condition_in_words(&condition.name)),
        figures: of_conditions(study, &[&condition.name], |origin| draw_all(lens, origin)),
        ..Section::default()
    });
    [Section { heading, figures: all, ..Section::default() }].into_iter().chain(each).collect()
}

pub fn draw_study(study: &Study) -> Vec<Figure> {
    draw_sections(study).into_iter().flat_map(|section| section.figures).collect()
}

pub fn draw_differences(study: &Study) -> Vec<Figure> {
    of_conditions(study, &measured(study), |origin| difference::of_study(study, origin))
}

/// Figures of session effects ([`causes`]), named by condition.
fn draw_causes(causes: &Causes, study: &Study) -> Vec<Figure> {
    let whole = causes.answers.iter().map(|answer| &answer.condition);
    let windowed = causes.windowed.iter().map(|answer| &answer.condition);
    let left = causes.residues.sessions.iter().map(|one| &one.condition);
    let found: BTreeSet<&String> = whole.chain(windowed).chain(left).collect();
    let names = study.conditions.iter().map(|condition| &condition.name);
    let names: Vec<&str> = names.filter(|name| found.contains(name)).map(String::as_str).collect();
    of_conditions(study, &names, |origin| self::causes::of_causes(causes, study, origin))
}

/// A dot per session with a role and answer; `None` without dots.
fn draw_attended_used(causes: &Causes, study: &Study, dots: &[Dot]) -> Option<Figure> {
    let names: BTreeSet<&str> = dots.iter().map(|dot| dot.condition.as_str()).collect();
    let names: Vec<&str> = names.into_iter().collect();
    let drawn = of_conditions(study, &names, |origin| {
        vec![self::causes::attended_used(dots, &Told::of(causes, study, origin))]
    });
    drawn.into_iter().next().filter(|_| !dots.is_empty())
}

pub fn draw_doses(doses: &Doses) -> Vec<Figure> {
    let title = "What hiding a session leaves of its effect on the contrast".to_owned();
    let left = cause_effects::residue(&doses.residues, title, &dose::origin(doses));
    let repaired = repairs::left(&doses.residues, "session", &dose::origin(doses));
    let figures = dose::of_lines(doses).into_iter().chain(dose_maps::of_maps(doses));
    figures.chain(left).chain(repaired).collect()
}

/// The update effect of several dose runs by factor, a line per run.
pub fn draw_dose_runs(all: &[Doses]) -> Vec<Figure> {
    dose::of_runs(all)
}

/// Curves of several runs of one benchmark, side by side on shared value axes.
fn draw_together(sources: &[Source<'_>]) -> Vec<Figure> {
    Scale::ALL.into_iter().flat_map(|scale| of_layers(sources, scale)).collect()
}

fn of_layers(sources: &[Source<'_>], scale: Scale) -> Vec<Figure> {
    let curves = [curves::by_split(sources, scale), curves::by_type(sources, scale)];
    let have_ratios = sources.iter().all(|source| source.lens.ratio.is_some());
    let statistics = [Statistic::RatioOfMeans, Statistic::MeanOfRatios];
    let ratios = statistics.into_iter().filter(|_| have_ratios);
    let ratios = ratios.map(|statistic| curves::ratios(sources, scale, statistic));
    curves.into_iter().chain(ratios).flatten().collect()
}

fn measured(study: &Study) -> Vec<&str> {
    study.measured().map(|(condition, _)| condition.name.as_str()).collect()
}

fn beside(study: &Study) -> Vec<Figure> {
    let several = study.measured().count();
    if several < 2 || (several > MOST_BESIDE && study.selection.prefix.is_empty()) {
        return Vec::new();
    }
    let origins: Vec<Origin> = (study.measured())
        .map(|(one, _)| Origin::of(&one.run, study.judge.as_deref()).under(label(&one.name)))
        .collect();
    let sources = study.measured().zip(&origins).map(|((_, lens), origin)| Source { lens, origin });
    draw_together(&sources.collect::<Vec<_>>())
}

/// Draws figures of some conditions of a study, whose names, captions and tables name these.
fn of_conditions(study: &Study, names: &[&str], draw: impl FnOnce(&Origin) -> Vec<Figure>) -> Vec<Figure> {
    let Some(first) = study.conditions.first() else { return Vec::new() };
    let mut origin = Origin::of(&first.run, study.judge.as_deref());
    let (mut prefix, mut said) = (String::new(), String::new());
    if let Some(by) = &study.options().heads {
        said += &format!(" Heads are weighted by the {} scores of {}.", by.score.key(), by.path.display());
    }
    if study.selection.several {
        let labels: Vec<&str> = names.iter().map(|name| label(name)).collect();
        let all = names.len() > 1 && names.len() == study.measured().count();
        prefix = if all { study.selection.prefix.clone() } else { format!("{}-", joined(names)) };
        origin = match prefix.is_empty() {
            true => origin.over(&labels.join(", ")),
            false => origin.under(&labels.join(" and ")),
        };
        said += if labels.len() == 1 { " Condition:" } else { " Conditions:" };
        let each = names.iter().map(|name| format!(" {}: {}.", label(name), study.condition_in_words(name)));
        said.extend(each);
    }
    named(draw(&origin), &prefix, &said, &joined(names))
}

/// Adds a prefix to names, a sentence to captions, and the column `condition` to tables without it.
fn named(figures: Vec<Figure>, prefix: &str, said: &str, condition: &str) -> Vec<Figure> {
    let named = |figure: Figure| Figure {
        name: format!("{prefix}{}", figure.name),
        caption: figure.caption + said,
        csv: with_condition(&figure.csv, condition),
        ..figure
    };
    figures.into_iter().map(named).collect()
}

fn with_condition(table: &[u8], condition: &str) -> Vec<u8> {
    // In memory with flexible rows: cannot fail.
    let reader = ::csv::ReaderBuilder::new().has_headers(false).flexible(true).from_reader(table);
    let mut rows: Vec<_> = reader.into_byte_records().flatten().collect();
    if rows.first().is_some_and(|head| head.iter().any(|column| column == b"condition")) {
        return table.to_vec();
    }
    for (at, row) in rows.iter_mut().enumerate() {
        row.push_field(if at == 0 { "condition" } else { condition }.as_bytes());
    }
    csv::write(rows)
}
