//! Tables become pictures and the one-page report.
//!
//! Owns the look of every figure: [`sheet`] draws panels of curves, [`heat_map`] heat maps, [`bars`] counts, [`raster`] turns
//! the very same SVG into PNG, and [`report`] sets the page. Called by the commands `figures` and `report`. It computes no statistic: what
//! a figure shows comes from [`crate::lens`] and lies beside it as CSV.
//!
//! A new figure is one function from a [`Lens`] to a [`Figure`] and one line in [`draw_all`]; one that can show several runs side
//! by side takes [`Source`]s, and has a line in [`draw_together`].

use std::path::{Path, PathBuf};

use crate::lens::{AnalysedRun, Correctness, Lens, Scale};
use sheet::Panel;

mod axis;
pub mod bars;
pub mod canvas;
mod captions;
pub mod curves;
mod grid;
pub mod heat_map;
mod plot;
pub mod raster;
pub mod ratios;
pub mod report;
pub mod sheet;
pub mod style;

pub use bars::distribution;

/// A picture with what belongs to it.
#[derive(Debug, Clone)]
pub struct Figure {
    /// File name without extension.
    pub name: String,
    /// What it shows, in a few words.
    pub title: String,
    /// How to read it, and which groups are missing from it.
    pub caption: String,
    /// The picture.
    pub svg: String,
    /// The numbers in it, in long format.
    pub csv: Vec<u8>,
}

/// Why a figure could not be made.
#[derive(Debug, thiserror::Error)]
pub enum FigureError {
    /// The drawing library refused.
    #[error("figure `{figure}`: {reason}")]
    Draw {
        /// The figure's name.
        figure: String,
        /// What the library said.
        reason: String,
    },
    /// The CSV writer refused.
    #[error("figure `{figure}`: its table: {source}")]
    Table {
        /// The figure's name.
        figure: String,
        /// What the writer said.
        source: csv::Error,
    },
    /// The page's template failed.
    #[error("report: {0}")]
    Template(#[from] minijinja::Error),
    /// The file system refused.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}

/// What every figure says of its origin.
#[derive(Debug, Clone)]
pub struct Origin {
    /// The model's name, without folders.
    pub model: String,
    /// One line: model, data, context, judge.
    pub line: String,
}

impl Origin {
    /// From a run's header and the judge whose verdicts split the examples.
    pub fn of(run: &AnalysedRun, judge: Option<&str>) -> Self {
        let named = |pointer: &str, fallback: &str| -> String {
            let text = run.header_text(pointer).unwrap_or_else(|| fallback.to_owned());
            let name = text.trim_end_matches(['/', '\\']).rsplit(['/', '\\']).next().unwrap_or(&text);
            style::shortened(name, 48)
        };
        let model = named("/identity/model/name", "model unnamed");
        let mut parts = vec![model.clone(), named("/identity/dataset/name", "data unnamed")];
        parts.push(match run.cases().len() {
            1 => "1 case".to_owned(),
            n => format!("{n} cases"),
        });
        if let Some(tokens) = run.header_text("/identity/context/tokens") {
            parts.push(format!("context {tokens} tokens"));
        }
        if let Some(judge) = judge {
            parts.push(format!("judge {}", style::shortened(judge, 40)));
        }
        Origin { model, line: parts.join(" · ") }
    }
}

/// A run in a figure.
#[derive(Debug, Clone, Copy)]
pub struct Source<'a> {
    /// Its examples.
    pub lens: &'a Lens,
    /// What the figure says of it. Where there are several, the models' names tell them apart.
    pub origin: &'a Origin,
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

/// The panels of each run, as rows of one sheet: beside each other where there is room, else below each other. Panels of several
/// runs are named by the run.
fn arranged(sources: &[Source<'_>], mut blocks: Vec<Vec<Vec<Option<Panel>>>>) -> Vec<Vec<Option<Panel>>> {
    const MOST_COLUMNS: usize = 4;
    if let [_] = sources {
        return blocks.pop().unwrap_or_default();
    }
    for (block, source) in blocks.iter_mut().zip(sources) {
        let name = style::shortened(&source.origin.model, 20);
        for panel in block.iter_mut().flatten().flatten() {
            panel.title = format!("{name} · {}", panel.title);
        }
    }
    let width = |block: &Vec<Vec<Option<Panel>>>| block.iter().map(Vec::len).max().unwrap_or(0);
    if blocks.iter().map(width).sum::<usize>() > MOST_COLUMNS {
        return blocks.into_iter().flatten().collect();
    }
    let rows = blocks.iter().map(Vec::len).max().unwrap_or(0);
    let beside = |row: usize| {
        let of_block = |block: &Vec<Vec<Option<Panel>>>| {
            let mut panels = block.get(row).cloned().unwrap_or_default();
            panels.resize(width(block), None);
            panels
        };
        blocks.iter().flat_map(of_block).collect()
    };
    (0..rows).map(beside).collect()
}

/// Where the numbers of a figure come from, a line a run.
fn origins(sources: &[Source<'_>]) -> String {
    sources.iter().map(|source| source.origin.line.clone()).collect::<Vec<_>>().join("\n")
}

/// Writes each figure as `<name>.svg`, `<name>.png` and `<name>.csv` and all captions as `captions.json`, each by rename.
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
    for figure in figures {
        put(format!("{}.svg", figure.name), figure.svg.as_bytes())?;
        put(format!("{}.png", figure.name), &raster.png(figure)?)?;
        put(format!("{}.csv", figure.name), &figure.csv)?;
        captions.insert(
            figure.name.clone(),
            serde_json::json!({ "title": figure.title, "caption": figure.caption }),
        );
    }
    let captions = format!("{:#}\n", serde_json::Value::Object(captions));
    put("captions.json".to_owned(), captions.as_bytes())?;
    Ok(written)
}

/// The probes that get panels of their own: all of them, or only their union where there are too many to draw.
fn panel_probes(lens: &Lens) -> Vec<Option<String>> {
    const MOST: usize = 6;
    match lens.probes.len() {
        1..=MOST => lens.probes.iter().cloned().map(Some).collect(),
        _ => vec![None],
    }
}

/// The probes that get panels where panels are split by verdict: those that the benchmark pools. Without verdicts, all.
fn split_probes(lens: &Lens) -> Vec<Option<String>> {
    match lens.splits() == [Correctness::All] {
        true => panel_probes(lens),
        false => panel_probes(lens)
            .into_iter()
            .filter(|probe| probe.as_ref().is_none_or(|probe| lens.pooled.contains(probe)))
            .collect(),
    }
}

/// The values of the split that get panels of their own; the union where the data has none.
fn panel_kinds(lens: &Lens) -> Vec<Option<String>> {
    match lens.kinds.is_empty() {
        true => vec![None],
        false => lens.kinds.iter().cloned().map(Some).collect(),
    }
}
