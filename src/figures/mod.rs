//! Tables become pictures and the one-page report.
//!
//! Owns the look of every figure: [`sheet`] draws panels of curves, [`heat_map`] heat maps, [`raster`] turns the very same
//! SVG into PNG, and [`report`] sets the page. Called by the commands `figures` and `report`. It computes no statistic: what
//! a figure shows comes from [`crate::lens`] and lies beside it as CSV.
//!
//! A new figure is one function from a [`Lens`] to a [`Figure`] and one line in [`draw_all`].

use std::path::{Path, PathBuf};

use crate::lens::{AnalysedRun, Correctness, Group, LayerKind, Lens, Scale};

pub mod curves;
pub mod heat_map;
pub mod raster;
pub mod ratios;
pub mod report;
pub mod sheet;
pub mod style;

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

/// Every figure of a run, in the order of the report.
///
/// # Errors
/// [`FigureError::Draw`] or [`FigureError::Table`], with the figure's name.
pub fn draw_all(lens: &Lens, origin: &Origin) -> Result<Vec<Figure>, FigureError> {
    let mut figures = Vec::new();
    for scale in Scale::ALL {
        figures.push(curves::by_split(lens, origin, scale)?);
        figures.push(curves::by_type(lens, origin, scale)?);
        if lens.ratio.is_some() {
            figures.push(ratios::of_means(lens, origin, scale)?);
            figures.push(ratios::mean_of(lens, origin, scale)?);
        }
        if !lens.benchmark.anchors().is_empty() {
            figures.push(heat_map::mean(lens, origin, scale)?);
        }
        figures.push(heat_map::first_case(lens, origin, scale)?);
    }
    Ok(figures)
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

/// A sentence naming the groups without members, or nothing.
fn left_out(lens: &Lens, groups: &[Group]) -> String {
    if groups.is_empty() {
        return String::new();
    }
    let names: Vec<String> = groups.iter().map(|group| lens.label(group)).collect();
    format!(" Left out, having no members: {}.", names.join(", "))
}

/// A sentence on the windowed and one on the linear layers of a model that has any, with how a figure shows the linear ones;
/// nothing for the others.
fn about_layer_kinds(lens: &Lens, shown: &str) -> String {
    let mut said = String::new();
    if lens.layers.iter().any(|layer| layer.kind == LayerKind::Windowed) {
        said += &format!(
            " Windowed layers see only the last tokens, and are drawn and averaged apart from those that see the whole \
             prompt; where the window hides a {}, its density is left out.",
            lens.benchmark.segment()
        );
    }
    if !lens.has_linear_layers() {
        return said;
    }
    said + &format!(
        " At linear layers ({shown}) the share of |weight| stands for the mass: the sizes of the layer's implicit attention \
         weights on the {} over those on all tokens, averaged over value heads instead of heads.",
        lens.benchmark.segment()
    )
}

/// How curves show linear layers.
const LINEAR_CURVES: &str = "grey band, hollow markers, a thinner line of their own, noise dotted";
/// How heat maps show linear layers.
const LINEAR_ROWS: &str = "an open mark at the left of the row, the same scale of shades";

/// What a figure that splits by verdict says where there are no verdicts.
fn without_verdicts(lens: &Lens) -> String {
    let split = lens.splits() != [Correctness::All];
    match (&lens.judge, &lens.no_result) {
        (Some(_), _) if split => String::new(),
        (Some(_), _) => {
            " Left out: the groups by correctness, since the judge called no answer right or wrong."
                .to_owned()
        }
        (None, Some(why)) => {
            format!(" Left out: the groups by correctness, since the verdicts are no result ({why}).")
        }
        (None, None) => {
            " Left out: the groups by correctness, since this run has no verdicts yet (`palimpsest judge`)."
                .to_owned()
        }
    }
}

/// The probes that get panels of their own: all of them, or only their union where there are too many to draw.
fn panel_probes(lens: &Lens) -> Vec<Option<String>> {
    const MOST: usize = 6;
    match lens.probes.len() {
        1..=MOST => lens.probes.iter().cloned().map(Some).collect(),
        _ => vec![None],
    }
}

/// The values of the split that get panels of their own; the union where the data has none.
fn panel_kinds(lens: &Lens) -> Vec<Option<String>> {
    match lens.kinds.is_empty() {
        true => vec![None],
        false => lens.kinds.iter().cloned().map(Some).collect(),
    }
}
