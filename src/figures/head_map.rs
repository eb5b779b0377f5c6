//! Layers by heads: a measure of each head, as the mean over units, in two colours around the value that says nothing.
//!
//! For effects of either sign, as that of a position: heads of one colour look more at what comes first, those of the other at what
//! comes last.

use super::axis::write_value;
use super::value_maps::{OF_HEAD, ValueMap, ValueMaps};
use super::{Figure, FigureError, Origin};
use crate::benchmarks::{Measure, Unit};
use crate::ground::csv::CsvTable;
use crate::lens::selection::joined;
use crate::lens::{HeadMap, Study};
use crate::run::condition::label;

/// The maps of every measure that is kept by head, a figure each.
pub fn of_study(study: &Study, origin: &Origin) -> Result<Vec<Figure>, FigureError> {
    let mut figures = Vec::new();
    for measure in study.measures().into_iter().filter(|measure| measure.heads) {
        let maps = study.heads(measure);
        if !maps.is_empty() {
            figures.push(figure(measure, &maps, study.benchmark.unit, origin)?);
        }
    }
    Ok(figures)
}

fn figure(measure: &Measure, maps: &[HeadMap], unit: Unit, origin: &Origin) -> Result<Figure, FigureError> {
    let many = unit.many();
    let name = format!("heads-{}-mass", measure.key.replace('_', "-"));
    let title = origin.titled(format!("By layer and head: {}", measure.label));
    let middle = measure.reference.unwrap_or(0.0);
    let several = maps.len() > 1;
    let map = |map: &HeadMap| ValueMap {
        title: match &map.condition {
            Some(condition) if several => format!("{}, n = {}", label(condition), map.n),
            _ => format!("n = {}", map.n),
        },
        x_label: "head".to_owned(),
        columns: (0..map.mean.ncols()).map(|head| head.to_string()).collect(),
        rows: map.layers.iter().map(usize::to_string).collect(),
        values: (map.mean.rows().into_iter())
            .map(|row| row.iter().map(|value| Some(*value).filter(|value| value.is_finite())).collect())
            .collect(),
    };
    let drawing = ValueMaps {
        title,
        origin: origin.line.clone(),
        y_label: "layer".to_owned(),
        maps: maps.iter().map(map).collect(),
        unit: String::new(),
        middle,
        cell: OF_HEAD,
    };
    let svg = drawing.draw(&name)?;
    let caption = format!(
        "{}: {}. Each cell: a head's own value, of masses, as the mean over {many}; white is {}, darker is farther from it, blue \
         above and orange below; the scale ends at the farthest head. Grey: no {} has a value. n is the number of {many}. Layers \
         with softmax attention only.",
        measure.label,
        measure.about,
        write_value(middle, false),
        unit.one(),
    );
    let csv = csv(&name, measure, maps);
    Ok(Figure { name, title: drawing.title, caption, svg, csv })
}

/// A row a condition, layer and head.
fn csv(figure: &str, measure: &Measure, maps: &[HeadMap]) -> Vec<u8> {
    let cells = maps.iter().flat_map(|map| map.mean.indexed_iter().map(move |(at, value)| (map, at, *value)));
    CsvTable::of(cells)
        .column("figure", |_| figure)
        .column("measure", |_| measure.key)
        .column("condition", |(map, ..)| match &map.condition {
            None => joined(measure.paired),
            Some(name) => joined(&[name]),
        })
        .column("layer", |(map, (layer, _), _)| map.layers.get(layer).copied().unwrap_or(layer))
        .column("head", |(_, (_, head), _)| head)
        .column("n", |(map, ..)| map.n)
        .optional("mean", |(.., value)| Some(value).filter(|value| value.is_finite()))
        .bytes()
}
