//! Maps of a dose run: update effects over grids of two factors, and numbers by layer and level.

use super::Figure;
use super::columns::Column;
use super::dose::{factors, origin, spoken, ticks, unit_of};
use super::map::{map, sheet, values};
use super::shades::Shades;
use super::sheet::Panel;
use palimpsest_analysis::dose::Doses;
use palimpsest_analysis::dose::cell::Cell;
use palimpsest_analysis::dose::estimate::Estimate;
use palimpsest_analysis::dose::sweep::Sweep;
use palimpsest_data::ground::csv::CsvTable;

pub(super) fn of_maps(doses: &Doses) -> Vec<Figure> {
    let layers = [
        ("density_query_new", "the question to new"),
        ("density_query_old", "the question to old"),
        ("density_new_old", "new to old"),
    ];
    let layers = layers.map(|(key, words)| by_layer(doses, key, words));
    [grids(doses)].into_iter().chain(layers).chain([windows(doses)]).flatten().collect()
}

fn grids(doses: &Doses) -> Option<Figure> {
    let of = |sweep: &Sweep| {
        let cells = sweep.grid(&doses.cells, Cell::u);
        let [rows, columns] = [0, 1].map(|axis| &sweep.axes[axis]);
        let title = format!("{} by {}", spoken(&rows.factor), spoken(&columns.factor));
        let names = columns.all.iter().map(|level| level.name.clone());
        map(title, String::new(), spoken(&columns.factor), by_column(names, &cells))
    };
    let grids = || doses.sweeps.iter().filter(|sweep| sweep.is_grid());
    let rows = &grids().next()?.axes[0];
    let names = rows.all.iter().map(|level| level.name.clone()).collect();
    let caption = "The update effect u in nats, the mean over items, by the levels of two factors: rows are the levels of the first, columns \
                   those of the second. Blue above 0: the update counts; orange below. Grey: no item was asked there.";
    let told = ("dose-grid", "Update effect over two factors", caption);
    figure(doses, told, (spoken(&rows.factor), names), grids().map(of).collect(), (["u", "(nats)"], true))
}

fn by_layer(doses: &Doses, key: &str, words: &str) -> Option<Figure> {
    let layers: Vec<String> = doses.layers.iter().map(|layer| layer.index.to_string()).collect();
    let maps = by_level(doses, layers.len(), |cell, layer| {
        let value = *cell.by_layer.get(key)?.get(layer)?;
        (value > 0.0).then(|| value.log2())
    });
    let caption = format!(
        "The binary logarithm of the density of attention of {words}, the mean over items, by layer and level: white is uniform attention, \
         one more is twice as much (blue), one less half (orange). Grey: no item has a value. An asterisk marks the base level."
    );
    let name = key.replacen("density", "dose_layers", 1).replace('_', "-");
    let title = format!("Density by layer and dose: {words}");
    let rows = ("layer".to_owned(), layers);
    figure(doses, (&name, &title, &caption), rows, maps, (["log2", "density"], false))
}

fn windows(doses: &Doses) -> Option<Figure> {
    let start =
        |name: &str| name.split_once('@').and_then(|(_, at)| at.split_once('-')?.0.parse::<usize>().ok());
    let mut names: Vec<&str> =
        doses.numbers().into_iter().filter(|name| name.starts_with("blocked_new@")).collect();
    names.sort_by_key(|name| start(name));
    let rows = names.iter().map(|name| name.split_once('@').map_or("", |(_, range)| range).to_owned());
    let maps = by_level(doses, names.len(), |cell, row| cell.number(names[row]));
    let caption = "By how many nats the contrast drops when the new session is blocked from the question on at some layers alone, less the \
                   median of stretches without evidence: the mean over items. Blue above 0: the contrast needs the update at these layers.";
    let told = ("dose-windows", "Effect of blocking new at windows of layers", caption);
    figure(doses, told, ("layers".to_owned(), rows.collect()), maps, (["drop", "(nats)"], false))
}

/// One map per factor: rows by levels; empty maps are omitted.
fn by_level(doses: &Doses, rows: usize, of: impl Fn(&Cell, usize) -> Option<f64>) -> Vec<Panel> {
    let of_factor = |sweep: &Sweep| {
        let means = |row| sweep.means(&sweep.by_item(&doses.cells, |cell| of(cell, row)));
        let by_row: Vec<Vec<Option<Estimate>>> = (0..rows).map(means).collect();
        let columns = by_column(ticks(sweep).into_iter(), &by_row);
        map(spoken(&sweep.factor), String::new(), unit_of(sweep), columns)
    };
    factors(doses).map(of_factor).filter(|map| !values(std::slice::from_ref(map)).is_empty()).collect()
}

fn by_column(names: impl Iterator<Item = String>, rows: &[Vec<Option<Estimate>>]) -> Vec<Column> {
    let column = |(at, label): (usize, String)| {
        let mean =
            |row: &Vec<Option<Estimate>>| row.get(at).copied().flatten().map_or(f64::NAN, |one| one.mean);
        Column { label, cells: Some(rows.iter().map(mean).collect()), ..Column::default() }
    };
    names.enumerate().map(column).collect()
}

/// Maps of the same rows with a table of one row per cell; `unit` of the scale, and whether cells show their numbers.
fn figure(
    doses: &Doses,
    (name, title, caption): (&str, &str, &str),
    (axis, rows): (String, Vec<String>),
    maps: Vec<Panel>,
    (unit, numbers): ([&'static str; 2], bool),
) -> Option<Figure> {
    let columns = maps.iter().map(|map| map.columns().len()).max()? as i32;
    let size = match numbers {
        true => ((columns * 48).clamp(150, 420), rows.len() as i32 * 30),
        false => ((columns * 38).clamp(150, 420), (rows.len() as i32 * 10).clamp(120, 420)),
    };
    let cells = maps.iter().flat_map(|map| {
        rows.iter().enumerate().flat_map(move |(at, row)| {
            let cell = move |column: &Column| column.cells.as_ref()?.get(at).copied();
            let value = move |column: &Column| cell(column).filter(|value| !value.is_nan());
            let columns = map.columns().iter();
            columns.filter_map(move |column| Some((map, row.as_str(), column, value(column)?)))
        })
    });
    let csv = CsvTable::of(cells)
        .column("figure", |_| name)
        .column("map", |(map, ..)| &map.title)
        .column("row", |(_, row, ..)| row)
        .column("column", |(_, _, column, _)| column.label.trim_end_matches('*').to_owned())
        .column("value", |(.., value)| value)
        .bytes();
    let mut shades = Shades::around(&values(&maps), 0.0, unit, usize::MAX);
    shades.numbers = numbers;
    let sheet = sheet(maps, shades, (axis, rows), size).headed(&origin(doses), title.to_owned());
    Some(sheet.figure(name, caption.to_owned(), csv))
}
