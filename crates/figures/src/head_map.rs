//! Layer-by-head maps of per-head measures, averaged over units, with a diverging scale around the neutral value.

use super::axis::write_value;
use super::columns::Column;
use super::map::{map, sheet, values};
use super::shades::Shades;
use super::sheet::Panel;
use super::{Figure, Origin};
use palimpsest_analysis::lens::selection::joined;
use palimpsest_analysis::lens::{HeadMap, Study};
use palimpsest_data::benchmarks::{Measure, Unit};
use palimpsest_data::ground::csv::CsvTable;
use palimpsest_run::runs::condition::label;

/// One figure per per-head measure.
pub fn of_study(study: &Study, origin: &Origin) -> Vec<Figure> {
    let measures = study.measures().into_iter().filter(|measure| measure.heads);
    let found = measures.map(|measure| (measure, study.heads(measure)));
    found
        .filter(|(_, maps)| !maps.is_empty())
        .map(|(measure, maps)| figure(measure, &maps, study.benchmark.unit, origin))
        .collect()
}

fn figure(measure: &Measure, found: &[HeadMap], unit: Unit, origin: &Origin) -> Figure {
    let many = unit.many();
    let name = format!("heads-{}-mass", measure.key.replace('_', "-"));
    let middle = measure.reference.unwrap_or(0.0);
    let of_map = |one: &HeadMap| {
        let title = match &one.condition {
            Some(condition) if found.len() > 1 => format!("{}, n = {}", label(condition), one.n),
            _ => format!("n = {}", one.n),
        };
        let heads = one.mean.columns().into_iter().enumerate();
        let columns = heads.map(|(head, values)| {
            let finite = values.iter().map(|value| if value.is_finite() { *value } else { f64::NAN });
            Column { label: head.to_string(), cells: Some(finite.collect()), ..Column::default() }
        });
        map(title, String::new(), "head".to_owned(), columns.collect())
    };
    let maps: Vec<Panel> = found.iter().map(of_map).collect();
    let layers = found.first().map(|map| map.layers.iter().map(usize::to_string).collect());
    let layers: Vec<String> = layers.unwrap_or_default();
    let heads = maps.iter().map(|map| map.columns().len()).max().unwrap_or(1) as i32;
    let size = ((heads * 14).clamp(150, 420), (layers.len() as i32 * 14).clamp(120, 420));
    let caption = format!(
        "{}: {}. Each cell: a head's own value, of masses, as the mean over {many}; white is {}, darker is farther from it, blue \
         above and orange below; the scale ends at the farthest head. Grey: no {} has a value. n is the number of {many}. Layers \
         with softmax attention only.",
        measure.label,
        measure.about,
        write_value(middle, false),
        unit.one(),
    );
    let cells =
        found.iter().flat_map(|map| map.mean.indexed_iter().map(move |(at, value)| (map, at, *value)));
    let csv = CsvTable::of(cells)
        .column("figure", |_| &name)
        .column("measure", |_| measure.key)
        .column("condition", |(map, ..)| match &map.condition {
            None => joined(measure.paired),
            Some(name) => joined(&[name]),
        })
        .column("layer", |(map, (layer, _), _)| map.layers.get(layer).copied().unwrap_or(layer))
        .column("head", |(_, (_, head), _)| head)
        .column("n", |(map, ..)| map.n)
        .optional("mean", |(.., value)| Some(value).filter(|value| value.is_finite()))
        .bytes();
    let shades = Shades::around(&values(&maps), middle, ["", ""], usize::MAX);
    let sheet = sheet(maps, shades, ("layer".to_owned(), layers), size);
    sheet.headed(origin, format!("By layer and head: {}", measure.label)).figure(name, caption, csv)
}
