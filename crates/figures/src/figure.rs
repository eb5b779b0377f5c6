//! A figure, its files and its errors.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use palimpsest_run::progress::over;
use serde_json::{Map, Value, json};

use super::drawing::{Drawing, Form};
use super::typeface::Fonts;
use super::{look, pdf, raster};

#[derive(Debug, Clone)]
pub struct Figure {
    pub name: String,
    pub title: String,
    /// How to read it, and which groups are missing.
    pub caption: String,
    pub svg: String,
    pub csv: Vec<u8>,
    pub(super) drawing: Drawing,
}

#[derive(Debug, thiserror::Error)]
pub enum FigureError {
    #[error("figure `{figure}`: {reason}")]
    Draw { figure: String, reason: String },
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: std::io::Error },
}

/// Writes `<name>.svg`, `.pdf`, `.png` and `.csv` per figure, and all captions as `captions.json`, each by rename. Captions of other
/// figures in the folder are kept.
pub fn write(figures: &[Figure], folder: &Path) -> Result<Vec<PathBuf>, FigureError> {
    std::fs::create_dir_all(folder).map_err(|source| FigureError::Io { path: folder.to_owned(), source })?;
    let look = look::current();
    let fonts = Fonts::of(&look.style.typeface);
    // Print: 576 dpi; screen: two pixels per CSS pixel.
    let zoom = if look.size.is_some() { 6.0 } else { 2.0 };
    let mut written = Vec::new();
    let mut put = |name: String, bytes: &[u8]| -> Result<(), FigureError> {
        let path = folder.join(name);
        palimpsest_core::files::write_atomically(&path, bytes)
            .map_err(|source| FigureError::Io { path: path.clone(), source })?;
        written.push(path);
        Ok(())
    };
    let (mut captions, mut told) = (still_there(folder), BTreeSet::new());
    for figure in over(figures.iter(), "writing figures") {
        let Figure { name, title, caption, svg, csv, drawing } = figure;
        tell_lacking(figure, &fonts, &mut told);
        let refused = |reason: String| FigureError::Draw { figure: name.clone(), reason };
        put(format!("{name}.svg"), svg.as_bytes())?;
        let page = pdf::page(title, drawing, &fonts);
        put(format!("{name}.pdf"), &page.map_err(|reason| refused(format!("as PDF: {reason}")))?)?;
        put(format!("{name}.png"), &raster::png(drawing, &fonts, zoom).map_err(refused)?)?;
        put(format!("{name}.csv"), csv)?;
        let words = json!({ "title": look::worded(title), "caption": look::worded(caption) });
        captions.insert(name.clone(), words);
    }
    put("captions.json".to_owned(), format!("{:#}\n", Value::Object(captions)).as_bytes())?;
    Ok(written)
}

fn still_there(folder: &Path) -> Map<String, Value> {
    // An invalid file is replaced.
    let text =
        palimpsest_data::ground::folder::read(folder, "captions.json").ok().flatten().unwrap_or_default();
    let mut captions: Map<String, Value> = serde_json::from_slice(&text).unwrap_or_default();
    captions.retain(|name, _| folder.join(format!("{name}.svg")).is_file());
    captions
}

/// Warns once per character missing in all fonts.
fn tell_lacking(figure: &Figure, fonts: &Fonts<'_>, told: &mut BTreeSet<char>) {
    const SHOWN: usize = 12;
    let texts = figure.drawing.shapes.iter().filter_map(|shape| match &shape.form {
        Form::Words(words) => Some(&*words.text),
        _ => None,
    });
    let lacking: BTreeSet<char> =
        texts.flat_map(|text| fonts.lacking(text)).filter(|letter| told.insert(*letter)).collect();
    if lacking.is_empty() {
        return;
    }
    let shown = lacking.iter().take(SHOWN).map(|one| format!("{one} (U+{:04X})", u32::from(*one)));
    let more = match lacking.len().saturating_sub(SHOWN) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    tracing::warn!(
        "figure {}: its font has no {}{more}; PDF and PNG show boxes in their place, the SVG whatever the viewer's fonts have; \
         name a font that has them in a style file (--style, `font`)",
        figure.name,
        shown.collect::<Vec<_>>().join(", ")
    );
}
