//! Tables become pictures and the one-page report.
//!
//! Owns the look of every figure: [`sheet`] draws panels of curves, [`heat_map`] heat maps, [`bars`] counts, [`raster`] turns
//! the very same SVG into PNG and PDF, [`meaning`] says what colours and dashes mean, [`look`] holds size and style, and [`report`] sets the page. Called by the commands `figures` and `report`. It computes no statistic: what
//! a figure shows comes from [`crate::lens`] and lies beside it as CSV.
//!
//! A new figure is one function from a [`Lens`] to a [`Figure`] and one line in [`draw_all`]; one that can show several runs side
//! by side takes [`Source`]s, and has a line in [`draw_together`].

use std::path::{Path, PathBuf};

use crate::benchmarks::Chart;
use crate::lens::causes::Causes;
use crate::lens::{Lens, Scale, Study};

mod axis;
pub mod bars;
pub mod canvas;
mod captions;
mod cause_captions;
mod cause_effects;
mod cause_maps;
mod cause_words;
pub mod causes;
pub mod curves;
mod figure;
mod grid;
pub mod head_map;
pub mod heat_map;
mod intervals;
pub mod look;
pub mod meaning;
pub mod measures;
mod panels;
mod pdf;
mod plot;
pub mod raster;
pub mod ratios;
pub mod report;
mod rows;
mod scatter;
pub mod sheet;
mod source;
mod stacks;
pub mod style;
mod style_file;
mod trends;
mod typeface;

pub use bars::distribution;
pub use figure::{Figure, FigureError};
pub use look::Look;
pub use source::{Origin, Source};
pub use style_file::{Style, StyleError};
pub use typeface::Typeface;

/// A picture that only one benchmark has. `origin` says where its numbers come from.
///
/// # Errors
/// [`FigureError`], with the figure's name.
pub fn draw_chart(chart: &Chart, origin: &str) -> Result<Figure, FigureError> {
    match chart {
        Chart::Bars(chart) => stacks::stacked(chart, origin),
        Chart::Trends(chart) => trends::trends(chart, origin),
    }
}

/// Every figure of a run, in the order of the report.
///
/// # Errors
/// [`FigureError::Draw`] or [`FigureError::Table`], with the figure's name.
pub fn draw_all(lens: &Lens, origin: &Origin) -> Result<Vec<Figure>, FigureError> {
    let mut figures = Vec::new();
    for scale in Scale::ALL {
        figures.extend(of_layers(&[Source { lens, origin }], scale)?);
        if !lens.benchmark.anchors().is_empty() {
            figures.push(heat_map::mean(lens, origin, scale)?);
        }
        figures.push(heat_map::first_case(lens, origin, scale)?);
    }
    Ok(figures)
}

/// Every figure of a run under its conditions: its measures, and those of [`draw_all`] under each condition, by whose names their
/// own begin where there are several.
///
/// # Errors
/// [`FigureError::Draw`] or [`FigureError::Table`], with the figure's name.
pub fn draw_study(study: &Study) -> Result<Vec<Figure>, FigureError> {
    let Some(first) = study.conditions.first() else { return Ok(Vec::new()) };
    let origin = Origin::of(&first.run, study.judge.as_deref());
    let mut figures = Vec::new();
    for scale in Scale::ALL {
        figures.extend(measures::of_study(study, &origin, scale)?);
    }
    figures.extend(head_map::of_study(study, &origin)?);
    for (condition, lens) in study.measured() {
        let origin = Origin::of(&condition.run, lens.judge.as_deref());
        if study.conditions.len() == 1 {
            figures.extend(draw_all(lens, &origin)?);
            continue;
        }
        let named = if condition.name.is_empty() { "plain" } else { &condition.name };
        for mut figure in draw_all(lens, &origin.under(named))? {
            figure.name = format!("{named}-{}", figure.name);
            figure.title = format!("{named}: {}", figure.title);
            figures.push(figure);
        }
    }
    Ok(figures)
}

/// The figures of the effects of sessions on answers ([`causes`]).
///
/// # Errors
/// [`FigureError::Draw`] or [`FigureError::Table`], with the figure's name.
pub fn draw_causes(causes: &Causes, study: &Study) -> Result<Vec<Figure>, FigureError> {
    let Some(first) = study.conditions.first() else { return Ok(Vec::new()) };
    self::causes::of_causes(causes, study, &Origin::of(&first.run, study.judge.as_deref()))
}

/// One look at runs of several benchmarks by one model: the lift of their evidence, on the same axis.
///
/// # Errors
/// [`FigureError::Draw`] or [`FigureError::Table`], with the figure's name.
pub fn draw_overview(studies: &[(&Study, &Origin)]) -> Result<Vec<Figure>, FigureError> {
    Scale::ALL.into_iter().map(|scale| measures::lifts(studies, scale)).collect()
}

/// The figures of curves over layers of several runs, side by side on the same value axes. The runs are of one benchmark.
///
/// # Errors
/// [`FigureError::Draw`] or [`FigureError::Table`], with the figure's name.
pub fn draw_together(sources: &[Source<'_>]) -> Result<Vec<Figure>, FigureError> {
    let mut figures = Vec::new();
    for scale in Scale::ALL {
        figures.extend(of_layers(sources, scale)?);
    }
    Ok(figures)
}

/// Curves and ratios.
fn of_layers(sources: &[Source<'_>], scale: Scale) -> Result<Vec<Figure>, FigureError> {
    let mut figures = vec![curves::by_split(sources, scale)?, curves::by_type(sources, scale)?];
    if sources.iter().all(|source| source.lens.ratio.is_some()) {
        figures.extend([ratios::of_means(sources, scale)?, ratios::mean_of(sources, scale)?]);
    }
    Ok(figures)
}

/// Writes each figure as `<name>.svg`, `<name>.pdf`, `<name>.png` and `<name>.csv` and all captions as `captions.json`, each by rename.
///
/// # Errors
/// [`FigureError::Io`] where the folder or a file cannot be written, [`FigureError::Draw`] where the SVG cannot be
/// rasterised.
pub fn write(figures: &[Figure], folder: &Path) -> Result<Vec<PathBuf>, FigureError> {
    std::fs::create_dir_all(folder).map_err(|source| FigureError::Io { path: folder.to_owned(), source })?;
    let raster = raster::Rasteriser::new();
    let mut written = Vec::new();
    let mut put = |name: String, bytes: &[u8]| -> Result<(), FigureError> {
        let path = folder.join(name);
        crate::ground::files::write_atomically(&path, bytes)
            .map_err(|source| FigureError::Io { path: path.clone(), source })?;
        written.push(path);
        Ok(())
    };
    let mut captions = serde_json::Map::new();
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
