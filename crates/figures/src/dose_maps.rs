//! Maps of a dose run: update effects over grids of two factors, and numbers by layer and level.

use super::Figure;
use super::dose::{factors, origin, spoken, ticks, unit_of};
use super::map::{Cells, Column, Grid, Map, RowAxis, Shades};
use palimpsest_analysis::dose::Doses;
use palimpsest_analysis::dose::cell::Cell;
use palimpsest_analysis::dose::sweep::Sweep;
use palimpsest_data::ground::csv::CsvTable;

pub(super) fn of_maps(doses: &Doses) -> Vec<Figure> {
    grids(doses).into_iter().chain(layers(doses)).chain(windows(doses)).collect()
}

fn grids(doses: &Doses) -> Option<Figure> {
    let of = |sweep: &Sweep| {
        let cells = sweep.grid(&doses.cells, Cell::u);
        let [rows, columns] = [0, 1].map(|axis| &sweep.axes[axis]);
        let by_column = columns.all.iter().enumerate().map(|(at, level)| {
            let means = cells.iter().map(|row| row.get(at).copied().flatten().map(|cell| cell.mean));
            (level.name.clone(), means.collect())
        });
        let title = format!("{} by {}", spoken(&rows.factor), spoken(&columns.factor));
        map(title, spoken(&columns.factor), by_column.collect())
    };
    let grids = || doses.sweeps.iter().filter(|sweep| sweep.is_grid());
    let rows = &grids().next()?.axes[0];
    let names: Vec<String> = rows.all.iter().map(|level| level.name.clone()).collect();
    let maps: Vec<Map> = grids().map(of).collect();
    let columns = maps.iter().map(|map| map.columns.len()).max().unwrap_or(1) as i32;
    let size = ((columns * 48).clamp(150, 420), names.len() as i32 * 30);
    let grid = Grid {
        shades: Shades::around(&maps, 0.0, ["u", "(nats)"], usize::MAX),
        maps,
        rows: RowAxis { axis: spoken(&rows.factor), names, kinds: Vec::new() },
        size,
        written: true,
    };
    let caption = "The update effect u in nats, the mean over items, by the levels of two factors: rows are the levels of the first, columns \
                   those of the second. Blue above 0: the update counts; orange below. Grey: no item was asked there.";
    Some(maps_figure(doses, ("dose-grid", "Update effect over two factors"), grid, caption.to_owned()))
}

/// One map per factor: rows by levels; empty maps are omitted.
fn by_level(
    doses: &Doses,
    axis: &str,
    rows: &[String],
    of: impl Fn(&Cell, usize) -> Option<f64>,
) -> (Vec<Map>, RowAxis) {
    let of_factor = |sweep: &Sweep| {
        let by_row = (0..rows.len()).map(|row| {
            let means = sweep.means(&sweep.by_item(&doses.cells, |cell| of(cell, row)));
            means.iter().map(|mean| mean.map(|mean| mean.mean)).collect::<Vec<_>>()
        });
        let by_row: Vec<Vec<Option<f64>>> = by_row.collect();
        let columns = ticks(sweep).into_iter().enumerate();
        let columns = columns
            .map(|(at, tick)| (tick, by_row.iter().map(|row| row.get(at).copied().flatten()).collect()));
        map(spoken(&sweep.factor), unit_of(sweep), columns.collect())
    };
    let maps = factors(doses).map(of_factor).filter(|map| !values(map).is_empty());
    (maps.collect(), RowAxis { axis: axis.to_owned(), names: rows.to_vec(), kinds: Vec::new() })
}

fn level_grid((maps, rows): (Vec<Map>, RowAxis), unit: [&'static str; 2]) -> Grid {
    let columns = maps.iter().map(|map| map.columns.len()).max().unwrap_or(1) as i32;
    let size = ((columns * 38).clamp(150, 420), (rows.names.len() as i32 * 10).clamp(120, 420));
    Grid { shades: Shades::around(&maps, 0.0, unit, usize::MAX), maps, rows, size, written: false }
}

fn layers(doses: &Doses) -> Vec<Figure> {
    let indices: Vec<String> = doses.layers.iter().map(|layer| layer.index.to_string()).collect();
    let all = [
        ("density_query_new", "the question to new"),
        ("density_query_old", "the question to old"),
        ("density_new_old", "new to old"),
    ];
    let figure = |(key, words): (&str, &str)| {
        let found = by_level(doses, "layer", &indices, |cell, layer| {
            let value = *cell.by_layer.get(key)?.get(layer)?;
            (value > 0.0).then(|| value.log2())
        });
        if found.0.is_empty() {
            return None;
        }
        let caption = format!(
            "The binary logarithm of the density of attention of {words}, the mean over items, by layer and level: white is uniform attention, \
             one more is twice as much (blue), one less half (orange). Grey: no item has a value. An asterisk marks the base level."
        );
        let name = key.replacen("density", "dose_layers", 1).replace('_', "-");
        let title = format!("Density by layer and dose: {words}");
        Some(maps_figure(doses, (&name, &title), level_grid(found, ["log2", "density"]), caption))
    };
    all.into_iter().filter_map(figure).collect()
}

fn windows(doses: &Doses) -> Option<Figure> {
    let start =
        |name: &str| name.split_once('@').and_then(|(_, at)| at.split_once('-')?.0.parse::<usize>().ok());
    let mut names: Vec<&str> =
        doses.numbers().into_iter().filter(|name| name.starts_with("blocked_new@")).collect();
    names.sort_by_key(|name| start(name));
    let range = |name: &&str| name.split_once('@').map_or("", |(_, range)| range).to_owned();
    let rows: Vec<String> = names.iter().map(range).collect();
    let found = by_level(doses, "layers", &rows, |cell, row| cell.number(names[row]));
    let caption = "By how many nats the contrast drops when the new session is blocked from the question on at some layers alone, less the \
                   median of stretches without evidence: the mean over items. Blue above 0: these layers read the update.";
    let grid = level_grid(found, ["drop", "(nats)"]);
    let title = "Effect of blocking new at windows of layers";
    (!names.is_empty()).then(|| maps_figure(doses, ("dose-windows", title), grid, caption.to_owned()))
}

fn map(title: String, axis: String, columns: Vec<(String, Vec<Option<f64>>)>) -> Map {
    let columns = columns.into_iter().map(|(label, values)| Column {
        label,
        cells: Cells::Values(values.into_iter().map(|value| value.unwrap_or(f64::NAN)).collect()),
        ..Column::default()
    });
    Map { title, axis, columns: columns.collect(), ..Map::default() }
}

/// Finite cells with row and column, row by row.
fn values(map: &Map) -> Vec<(usize, &Column, f64)> {
    let cells = map.columns.iter().flat_map(|column| match &column.cells {
        Cells::Values(values) => {
            values.iter().enumerate().map(|(row, value)| (row, column, *value)).collect()
        }
        Cells::Gap => Vec::new(),
    });
    let mut known: Vec<(usize, &Column, f64)> = cells.filter(|(.., value)| !value.is_nan()).collect();
    known.sort_by_key(|(row, ..)| *row);
    known
}

/// CSV: one row per cell.
fn maps_figure(doses: &Doses, (name, title): (&str, &str), grid: Grid, caption: String) -> Figure {
    let cells: Vec<(&Map, (usize, &Column, f64))> =
        grid.maps.iter().flat_map(|map| values(map).into_iter().map(move |cell| (map, cell))).collect();
    let csv = CsvTable::of(&cells)
        .column("figure", |_| name)
        .column("map", |(map, _)| &map.title)
        .column("row", |(_, (row, ..))| &grid.rows.names[*row])
        .column("column", |(_, (_, column, _))| column.label.trim_end_matches('*').to_owned())
        .column("value", |(_, (.., value))| value)
        .bytes();
    grid.figure(name, (title.to_owned(), &origin(doses)), caption, csv)
}
