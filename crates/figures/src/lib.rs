//! Draws figures and the one-page report.
//!
//! A figure is a [`sheet`] of panels, a `map` of shaded cells, or `rows` of bars and intervals. All produce a [`drawing`] of shapes,
//! written as SVG and, by [`raster`], as PNG and PDF. [`meaning`] assigns colours and dashes, [`look`] holds size and style. Computes no
//! statistics: numbers come from [`palimpsest_analysis::lens`] and are written beside each figure as CSV.
//!
//! A new figure is one function from a [`Lens`] to a [`Figure`] and one line in [`draw_all`]; a figure of several runs takes [`Source`]s
//! and a line in [`draw_together`].

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use palimpsest_analysis::dose::Doses;
use palimpsest_analysis::lens::causes::Causes;
use palimpsest_analysis::lens::selection::joined;
use palimpsest_analysis::lens::{Condition, Lens, Scale, Selection, Statistic, Study};
use palimpsest_data::benchmarks::Chart;
use palimpsest_data::ground::csv;
use palimpsest_run::runs::condition::label;

mod axis;
mod bars;
mod canvas;
mod captions;
mod cause_effects;
mod cause_maps;
mod cause_words;
pub mod causes;
pub mod curves;
mod difference;
mod dose;
mod dose_maps;
pub mod drawing;
mod figure;
pub mod head_map;
pub mod heat_map;
mod intervals;
mod legend;
pub mod look;
mod map;
pub mod meaning;
pub mod measures;
mod panels;
mod pdf;
mod plot;
pub mod raster;
pub mod report;
mod residue;
mod rows;
mod runs;
pub mod sheet;
mod source;
pub mod style;
mod style_error;
mod style_file;
mod trends;
mod typeface;
mod waterfall;

pub use bars::distribution;
pub use figure::{Figure, FigureError};
pub use look::Look;
pub use runs::{RunFigures, charts, draw_runs};
pub use source::{Origin, Source};
pub use style_error::StyleError;
pub use style_file::Style;
pub use typeface::Typeface;
pub use waterfall::memory_waterfall;

/// Draws a benchmark-specific chart. `origin` names the source of the numbers.
pub fn draw_chart(chart: &Chart, origin: &str) -> Figure {
    match chart {
        Chart::Bars(chart) => bars::of_parts(chart, origin),
        Chart::Trends(chart) => trends::trends(chart, origin),
    }
}

/// All figures of a run, in report order.
pub fn draw_all(lens: &Lens, origin: &Origin) -> Vec<Figure> {
    let mut figures = Vec::new();
    for scale in Scale::ALL {
        figures.extend(of_layers(&[Source { lens, origin }], scale));
        if !lens.benchmark.lens.anchors.is_empty() {
            figures.push(heat_map::mean(lens, origin, scale));
        }
        figures.push(heat_map::first_case(lens, origin, scale));
    }
    figures
}

/// Maximum number of conditions side by side, unless requested by name.
pub const MOST_BESIDE: usize = 4;

#[derive(Debug, Clone)]
pub struct Section {
    pub heading: Option<String>,
    pub about: Option<String>,
    pub figures: Vec<Figure>,
}

/// Figures of a run: measures and conditions side by side, then [`draw_all`] per condition. With conditions, figure names, titles, captions
/// and tables name theirs ([`palimpsest_analysis::lens::Selection`]).
pub fn draw_sections(study: &Study) -> Vec<Section> {
    let names: Vec<&str> = study.measured().map(|(condition, _)| condition.name.as_str()).collect();
    let Some(of_all) = OfConditions::of(study, &names) else { return Vec::new() };
    let measures = Scale::ALL.into_iter().flat_map(|scale| measures::of_study(study, &of_all.origin, scale));
    let figures = beside(study).into_iter().chain(measures);
    let figures = figures.chain(head_map::of_study(study, &of_all.origin)).collect();
    let figures = of_all.all(figures);
    let several = study.selection.several;
    let heading = several.then(|| "Conditions side by side".to_owned());
    let mut sections = vec![Section { heading, about: None, figures }];
    for (condition, lens) in study.measured() {
        let Some(of_one) = OfConditions::of(study, &[&condition.name]) else { continue };
        let figures = of_one.all(draw_all(lens, &of_one.origin));
        let heading = several.then(|| format!("Condition {}", label(&condition.name)));
        let about = several.then(|| study.condition_in_words(&condition.name));
        sections.push(Section { heading, about, figures });
    }
    sections
}

pub fn draw_study(study: &Study) -> Vec<Figure> {
    draw_sections(study).into_iter().flat_map(|section| section.figures).collect()
}

pub fn draw_differences(study: &Study) -> Vec<Figure> {
    let names: Vec<&str> = study.measured().map(|(condition, _)| condition.name.as_str()).collect();
    let Some(of_all) = OfConditions::of(study, &names) else { return Vec::new() };
    of_all.all(difference::of_study(study, &of_all.origin))
}

fn beside(study: &Study) -> Vec<Figure> {
    let several = study.measured().count();
    if several < 2 || (several > MOST_BESIDE && study.selection.prefix.is_empty()) {
        return Vec::new();
    }
    let of = |condition: &Condition| {
        Origin::of(&condition.run, study.judge.as_deref()).under(label(&condition.name))
    };
    let origins: Vec<Origin> = study.measured().map(|(condition, _)| of(condition)).collect();
    let sources = study.measured().zip(&origins);
    let sources: Vec<Source<'_>> = sources.map(|((_, lens), origin)| Source { lens, origin }).collect();
    draw_together(&sources)
}

/// Adds condition names to figures.
struct OfConditions {
    origin: Origin,
    prefix: String,
    said: String,
    /// Value of the column `condition`, for tables without it.
    column: String,
}

impl OfConditions {
    /// `None` for a study without conditions.
    fn of(study: &Study, names: &[&str]) -> Option<Self> {
        let first = study.conditions.first()?;
        let origin = Origin::of(&first.run, study.judge.as_deref());
        let column = joined(names);
        let heads = match &study.options().heads {
            None => String::new(),
            Some(by) => {
                format!(" Heads are weighted by the {} scores of {}.", by.score.key(), by.path.display())
            }
        };
        if !study.selection.several {
            return Some(OfConditions { origin, prefix: String::new(), said: heads, column });
        }
        let labels: Vec<&str> = names.iter().map(|name| label(name)).collect();
        let all = names.len() > 1 && names.len() == study.measured().count();
        let prefix = match all {
            true => study.selection.prefix.clone(),
            false => format!("{column}-"),
        };
        let origin = match prefix.is_empty() {
            true => origin.over(&labels.join(", ")),
            false => origin.under(&labels.join(" and ")),
        };
        let each = names.iter().map(|name| format!(" {}: {}.", label(name), study.condition_in_words(name)));
        let plural = if labels.len() == 1 { "" } else { "s" };
        let said = format!("{heads} Condition{plural}:{}", each.collect::<String>());
        Some(OfConditions { origin, prefix, said, column })
    }

    fn all(&self, figures: Vec<Figure>) -> Vec<Figure> {
        let named = |figure: Figure| Figure {
            name: format!("{}{}", self.prefix, figure.name),
            caption: figure.caption + &self.said,
            csv: with_condition(&figure.csv, &self.column),
            ..figure
        };
        figures.into_iter().map(named).collect()
    }
}

/// Charts restricted to the selected conditions.
fn charts_under(figures: Vec<Figure>, selection: &Selection, asked: bool) -> Vec<Figure> {
    let labels: Vec<&str> = selection.names.iter().map(|name| label(name)).collect();
    let plural = if labels.len() == 1 { "" } else { "s" };
    let (prefix, said) = match asked && !selection.prefix.is_empty() {
        true => (selection.prefix.clone(), format!(" Condition{plural}: {}.", labels.join(", "))),
        false => (String::new(), String::new()),
    };
    let named = OfConditions { origin: Origin::default(), prefix, said, column: joined(&selection.names) };
    named.all(figures)
}

/// Adds the column `condition` if missing.
fn with_condition(table: &[u8], condition: &str) -> Vec<u8> {
    // In memory with flexible rows: cannot fail.
    let reader = ::csv::ReaderBuilder::new().has_headers(false).flexible(true).from_reader(table);
    let mut rows = reader.into_byte_records().flatten();
    let mut head = rows.next().unwrap_or_default();
    if head.iter().any(|column| column == b"condition") {
        return table.to_vec();
    }
    head.push_field(b"condition");
    csv::write([head].into_iter().chain(rows.map(|mut row| {
        row.push_field(condition.as_bytes());
        row
    })))
}

/// Figures of session effects ([`causes`]), named by condition.
pub fn draw_causes(causes: &Causes, study: &Study) -> Vec<Figure> {
    let whole = causes.answers.iter().map(|answer| answer.condition.as_str());
    let windowed = causes.windowed.iter().map(|answer| answer.condition.as_str());
    let left = causes.residues.sessions.iter().map(|one| one.condition.as_str());
    let found: BTreeSet<&str> = whole.chain(windowed).chain(left).collect();
    let names = study.conditions.iter().map(|condition| condition.name.as_str());
    let names: Vec<&str> = names.filter(|name| found.contains(name)).collect();
    let Some(of_all) = OfConditions::of(study, &names) else { return Vec::new() };
    of_all.all(self::causes::of_causes(causes, study, &of_all.origin))
}

pub fn draw_doses(doses: &Doses) -> Vec<Figure> {
    let title = "What hiding a session leaves of its effect on the contrast".to_owned();
    let left = residue::figure(&doses.residues, title, &dose::origin(doses));
    dose::of_lines(doses).into_iter().chain(dose_maps::of_maps(doses)).chain(left).collect()
}

/// Lift of the evidence in several benchmarks by one model, on one axis.
pub fn draw_overview(studies: &[(&Study, &Origin)]) -> Vec<Figure> {
    Scale::ALL.into_iter().map(|scale| measures::lifts(studies, scale)).collect()
}

/// Curves of several runs of one benchmark, side by side on shared value axes.
pub fn draw_together(sources: &[Source<'_>]) -> Vec<Figure> {
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

/// Writes `<name>.svg`, `.pdf`, `.png` and `.csv` per figure, and all captions as `captions.json`, each by rename. Captions of other
/// figures in the folder are kept.
pub fn write(figures: &[Figure], folder: &Path) -> Result<Vec<PathBuf>, FigureError> {
    std::fs::create_dir_all(folder).map_err(|source| FigureError::Io { path: folder.to_owned(), source })?;
    let raster = raster::Rasteriser::new();
    let mut written = Vec::new();
    let mut put = |name: String, bytes: &[u8]| -> Result<(), FigureError> {
        let path = folder.join(name);
        palimpsest_core::files::write_atomically(&path, bytes)
            .map_err(|source| FigureError::Io { path: path.clone(), source })?;
        written.push(path);
        Ok(())
    };
    let mut captions = still_there(folder);
    let worded = |text: &str| look::current().style.worded(text);
    for figure in figures {
        put(format!("{}.svg", figure.name), figure.svg.as_bytes())?;
        put(format!("{}.pdf", figure.name), &raster.pdf(figure)?)?;
        put(format!("{}.png", figure.name), &raster.png(figure)?)?;
        put(format!("{}.csv", figure.name), &figure.csv)?;
        captions.insert(
            figure.name.clone(),
            serde_json::json!({ "title": worded(&figure.title), "caption": worded(&figure.caption) }),
        );
    }
    let captions = format!("{:#}\n", serde_json::Value::Object(captions));
    put("captions.json".to_owned(), captions.as_bytes())?;
    Ok(written)
}

fn still_there(folder: &Path) -> serde_json::Map<String, serde_json::Value> {
    let text = std::fs::read_to_string(folder.join("captions.json")).unwrap_or_default();
    // An invalid file is replaced.
    let mut captions: serde_json::Map<String, serde_json::Value> =
        serde_json::from_str(&text).unwrap_or_default();
    captions.retain(|name, _| folder.join(format!("{name}.svg")).is_file());
    captions
}
