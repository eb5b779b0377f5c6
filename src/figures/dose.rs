//! The figures of a run of dose: update effects, attention and causes by factor, chains, and maps.
//!
//! Each is a function from [`Doses`] to figures. What a figure shows lies beside it as CSV: a row a point.

use plotters::style::RGBColor;

use super::dose_lines::{DoseLine, DoseLines, DosePanel};
use super::meaning::Meaning;
use super::style::{GREY, Stroke, shortened};
use super::value_maps::{OF_LEVEL, ValueMap, ValueMaps, WRITTEN};
use super::{Figure, FigureError, residue};
use crate::dose::Doses;
use crate::dose::answer::Chosen;
use crate::dose::cell::Cell;
use crate::dose::chains::{ChainLevel, Chains};
use crate::dose::estimate::Estimate;
use crate::dose::sweep::{Scale, Sweep};
use crate::dose::words::recency;
use crate::ground::csv::CsvTable;

/// Every figure of a run, in the order of the report.
pub fn draw_doses(doses: &Doses) -> Result<Vec<Figure>, FigureError> {
    let mut figures = Vec::new();
    figures.extend(effect(doses)?);
    figures.extend(over_updating(doses)?);
    figures.extend(order(doses)?);
    figures.extend(chains(doses)?);
    figures.extend(attention(doses)?);
    figures.extend(beside_cause(doses)?);
    figures.extend(grids(doses)?);
    figures.extend(layers(doses)?);
    let title = "What hiding a session leaves of its effect on the contrast".to_owned();
    figures.extend(residue::figure(&doses.residues, (title, origin(doses)))?);
    Ok(figures)
}

/// The line of origin.
fn origin(doses: &Doses) -> String {
    let gated = if doses.gated { " · items that pass the gate" } else { "" };
    let folder = doses.dir.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let name = |text: &str| shortened(text.rsplit(['/', '\\']).next().unwrap_or(text), 48);
    format!(
        "{} · {} · {} items{gated} · {folder}",
        name(&doses.model),
        name(&doses.dataset),
        doses.items().len()
    )
}

/// The factors that are varied alone at two levels or more.
fn factors(doses: &Doses) -> impl Iterator<Item = &Sweep> {
    doses.sweeps.iter().filter(|sweep| !sweep.is_grid() && sweep.levels().all.len() > 1)
}

/// The unit of the levels, below an axis.
fn unit_of(sweep: &Sweep) -> String {
    if sweep.levels().scale == Scale::Tokens { "tokens".to_owned() } else { String::new() }
}

/// A factor's name as words.
fn spoken(factor: &str) -> String {
    factor.replace(['_', '-'], " ")
}

/// The levels as ticks; the base level has an asterisk.
fn ticks(sweep: &Sweep) -> Vec<String> {
    let short = |number: f64, name: &str| match number {
        n if n >= 1024.0 && n % 1024.0 == 0.0 => format!("{}K", n / 1024.0),
        _ => name.to_owned(),
    };
    let tick = |level: &crate::dose::sweep::Level| {
        let name = level.number.map_or_else(|| level.name.clone(), |number| short(number, &level.name));
        if level.base { format!("{name}*") } else { name }
    };
    sweep.levels().all.iter().map(tick).collect()
}

/// A panel of a factor: lines of numbers, by name, look and the number's name in cells.
fn panel(doses: &Doses, sweep: &Sweep, lines: &[(&str, Stroke, &str)]) -> DosePanel {
    let line = |(name, stroke, number): &(&str, Stroke, &str)| {
        let points = sweep.means(&sweep.by_item(&doses.cells, |cell| cell.number(number)));
        DoseLine { name: (*name).to_owned(), stroke: *stroke, points }
    };
    let lines: Vec<DoseLine> =
        lines.iter().map(line).filter(|line| line.points.iter().any(Option::is_some)).collect();
    DosePanel {
        title: spoken(&sweep.factor),
        note: note(&lines),
        x_label: unit_of(sweep),
        levels: ticks(sweep),
        lines,
        ..DosePanel::default()
    }
}

/// A row a point of a line, and a row a point of an item.
fn csv(figure: &str, panels: &[DosePanel]) -> Vec<u8> {
    type Row<'a> = (&'a str, String, &'a str, Option<usize>, Option<f64>, Option<(f64, f64)>);
    let mut rows: Vec<Row<'_>> = Vec::new();
    for panel in panels {
        for line in &panel.lines {
            for (level, point) in panel.levels.iter().zip(&line.points) {
                let Some(point) = point else { continue };
                let band = point.interval.map(|interval| (interval.low, interval.high));
                rows.push((&panel.title, line.name.clone(), level, Some(point.n), Some(point.mean), band));
            }
        }
        for (nth, item) in panel.items.iter().enumerate() {
            for (level, value) in panel.levels.iter().zip(item).filter(|(_, value)| value.is_some()) {
                rows.push((&panel.title, format!("item {}", nth + 1), level, None, *value, None));
            }
        }
    }
    CsvTable::of(&rows)
        .column("figure", |_| figure)
        .column("panel", |row| row.0)
        .column("line", |row| &row.1)
        .column("level", |row| row.2.trim_end_matches('*'))
        .column("base", |row| row.2.ends_with('*'))
        .optional("n", |row| row.3)
        .optional("value", |row| row.4)
        .optional("low", |row| row.5.map(|band| band.0))
        .optional("high", |row| row.5.map(|band| band.1))
        .bytes()
}

/// Words and axis of a figure of lines.
#[derive(Default)]
struct About<'a> {
    name: &'a str,
    title: &'a str,
    caption: String,
    y_label: &'a str,
    baseline: Option<&'a str>,
    ends: (f64, f64),
    of_items: bool,
}

const INTERVALS: &str =
    " Bars: 95% intervals of means over items. An asterisk marks the base level, at which all factors meet.";

fn lines(doses: &Doses, about: About<'_>, panels: Vec<DosePanel>) -> Result<Option<Figure>, FigureError> {
    let panels: Vec<DosePanel> = panels.into_iter().filter(|panel| !panel.lines.is_empty()).collect();
    if panels.is_empty() {
        return Ok(None);
    }
    let csv = csv(about.name, &panels);
    let drawing = DoseLines {
        title: about.title.to_owned(),
        origin: origin(doses),
        y_label: about.y_label.to_owned(),
        panels,
        baseline: about.baseline.map(str::to_owned),
        ends: about.ends,
        of_items: about.of_items,
    };
    let svg = drawing.draw(about.name)?;
    let (name, title) = (about.name.to_owned(), about.title.to_owned());
    Ok(Some(Figure { name, title, caption: about.caption, svg, csv }))
}

/// The update effect by dose, with a line an item.
fn effect(doses: &Doses) -> Result<Option<Figure>, FigureError> {
    let of = |sweep: &Sweep| {
        let items = sweep.by_item(&doses.cells, Cell::u);
        let items =
            items.into_iter().map(|(_, values)| values).filter(|item| item.iter().any(Option::is_some));
        DosePanel {
            items: items.collect(),
            ..panel(doses, sweep, &[("mean over items", Meaning::New.stroke(), "u")])
        }
    };
    let about = About {
        name: "dose-effect",
        title: "Update effect by dose",
        caption: format!(
            "The update effect u by level of each factor: the mean over both orders of the values of log p of the current value less that of the replaced one, so \
             that a model which only prefers one value has 0. Above 0 the update counts. Thin lines: one item each.{INTERVALS}"
        ),
        y_label: "update effect u (nats)",
        of_items: true,
        ..About::default()
    };
    lines(doses, about, factors(doses).map(of).collect())
}

/// Twins without an update beside update twins.
fn over_updating(doses: &Doses) -> Result<Option<Figure>, FigureError> {
    let of = |sweep: &Sweep| {
        let all = [
            ("update: the current value over the replaced one (u)", Meaning::New.stroke(), "u"),
            ("no update: the value that held over one never given", Meaning::Old.stroke(), "no_update"),
            ("somebody else's update: the same", Meaning::Group(0).stroke(), "other"),
        ];
        let panel = panel(doses, sweep, &all);
        let levels = |line: &DoseLine| line.points.iter().flatten().count();
        let twins = panel.lines.iter().filter(|line| line.stroke != Meaning::New.stroke()).map(levels).max();
        Some((twins?, panel))
    };
    // Where only the base level has such twins, one panel shows it.
    let panels: Vec<(usize, DosePanel)> = factors(doses).filter_map(of).collect();
    let several = panels.iter().any(|(levels, _)| *levels > 1);
    let shown = panels.into_iter().filter(|(levels, _)| *levels > 1 || !several).map(|(_, panel)| panel);
    let shown = shown.take(if several { usize::MAX } else { 1 }).collect();
    let about = About {
        name: "dose-over-updating",
        title: "Twins without an update beside those with one",
        caption: format!(
            "Contrasts of twins of equal length, means over both orders of the values. With an update: the current value over the replaced one. \
             Without: the value that held over one that was never given; below 0 the model gives up a value that nothing replaced.{INTERVALS}"
        ),
        y_label: "contrast (nats)",
        ..About::default()
    };
    lines(doses, about, shown)
}

/// Recency of place against recency of time.
fn order(doses: &Doses) -> Result<Option<Figure>, FigureError> {
    let of = |sweep: &Sweep| {
        let [time, place] = recency(doses, sweep)?;
        let mean = |values: &[(String, f64)]| {
            Estimate::of(&values.iter().map(|(_, value)| *value).collect::<Vec<_>>())
        };
        let line = DoseLine {
            name: "mean over items".to_owned(),
            stroke: Meaning::New.stroke(),
            points: vec![mean(&time), mean(&place)],
        };
        Some(DosePanel {
            title: spoken(&sweep.factor),
            note: format!("n = {}", time.len()),
            x_label: "recency that moves the contrast".to_owned(),
            levels: vec!["of time".to_owned(), "of place".to_owned()],
            lines: vec![line],
            items: time.iter().zip(&place).map(|(a, b)| vec![Some(a.1), Some(b.1)]).collect(),
            ..DosePanel::default()
        })
    };
    let about = About {
        name: "dose-recency",
        title: "Recency of time against recency of place",
        caption: format!(
            "Histories told in the order of dates, and crossed: the session with the later date stands first. The update effect of the first \
             is recency of time plus recency of place, that of the second their difference; half the sum and half the difference are shown. \
             Thin lines: one item each.{}",
            INTERVALS.split_inclusive('.').take(2).collect::<String>()
        ),
        y_label: "part of u (nats)",
        of_items: true,
        ..About::default()
    };
    lines(doses, about, factors(doses).filter_map(of).collect())
}

/// The likelihood of each value of a chain by its position, and the likeliest values by the number of updates.
fn chains(doses: &Doses) -> Result<Vec<Figure>, FigureError> {
    let Some(chains) = Chains::of(doses) else { return Ok(Vec::new()) };
    let mut figures = Vec::new();
    let of = |(nth, level): (usize, &ChainLevel)| {
        let longest = chains.levels.iter().map(|level| level.positions.len()).max().unwrap_or(0);
        let mut points = vec![None; longest - level.positions.len()];
        points.extend(level.positions.iter().map(|estimate| Some(*estimate)));
        (!level.positions.is_empty()).then(|| DoseLine {
            name: format!("{} update{}", level.updates, if level.updates == 1 { "" } else { "s" }),
            stroke: Meaning::Group(nth).stroke(),
            points,
        })
    };
    let by_position: Vec<DoseLine> = chains.levels.iter().enumerate().filter_map(of).collect();
    let longest = by_position.iter().map(|line| line.points.len()).max().unwrap_or(0);
    let back = |at: usize| if at + 1 == longest { "last".to_owned() } else { (longest - 1 - at).to_string() };
    let panels = match by_position.is_empty() {
        true => Vec::new(),
        false => vec![DosePanel {
            title: "By position in the chain".to_owned(),
            note: note(&by_position),
            x_label: "updates ago".to_owned(),
            levels: (0..longest).map(back).collect(),
            lines: by_position,
            ..DosePanel::default()
        }],
    };
    let about = About {
        name: "dose-chains",
        title: "Primacy and recency over chains",
        caption: "log p of every value of a chain by how many updates ago it held, less the mean of the values that the history never \
                  gives: at the left end of a line the first value (primacy), at the right the current one (recency). Means over items and both \
                  orders. Bars: 95% intervals over items."
            .to_owned(),
        y_label: "log p over values never given (nats)",
        ..About::default()
    };
    figures.extend(lines(doses, about, panels)?);
    let looks = [Meaning::New, Meaning::Old, Meaning::Group(3), Meaning::Others].map(Meaning::stroke);
    let share = |chosen: Chosen, level: &ChainLevel| {
        level.chosen.iter().find(|(known, _)| *known == chosen).map(|(_, share)| *share)
    };
    let line = |(chosen, stroke): (Chosen, Stroke)| DoseLine {
        name: chosen.in_words().to_owned(),
        stroke,
        points: chains.levels.iter().map(|level| share(chosen, level)).collect(),
    };
    let mut all: Vec<DoseLine> = Chosen::ALL.into_iter().zip(looks).map(line).collect();
    let chance =
        |level: &ChainLevel| Some(Estimate { n: level.items, mean: level.chance, interval: None, sd: None });
    all.push(DoseLine {
        name: "chance of each value".to_owned(),
        stroke: Meaning::Baseline.stroke(),
        points: chains.levels.iter().map(chance).collect(),
    });
    let panel = DosePanel {
        title: "The likeliest value".to_owned(),
        note: note(&all),
        x_label: "updates".to_owned(),
        levels: chains.levels.iter().map(|level| level.updates.to_string()).collect(),
        lines: all,
        ..DosePanel::default()
    };
    let about = About {
        name: "dose-errors",
        title: "The likeliest value by the number of updates",
        caption: "The share of histories whose likeliest value is the current one, the first, another that held before, or one that the \
                  history never gives, over items. Bars: 95% intervals over items. Dotted: the share of any one value by chance."
            .to_owned(),
        y_label: "share of histories",
        ends: (0.0, 1.0),
        ..About::default()
    };
    figures.extend(lines(doses, about, vec![panel])?);
    Ok(figures)
}

/// The number of items of a panel.
fn note(lines: &[DoseLine]) -> String {
    let counts = lines.iter().flat_map(|line| line.points.iter().flatten().map(|estimate| estimate.n));
    format!("n = {}", counts.max().unwrap_or(0))
}

/// Densities of attention by dose.
fn attention(doses: &Doses) -> Result<Option<Figure>, FigureError> {
    let of = |sweep: &Sweep| {
        let all = [
            ("question to new", Meaning::New.stroke(), "density_query_new"),
            ("question to old", Meaning::Old.stroke(), "density_query_old"),
            ("new to old", Meaning::Back.stroke(), "density_new_old"),
            ("question to lures", Meaning::Group(0).stroke(), "density_query_lure"),
            ("question to echoes", Meaning::Group(1).stroke(), "density_query_echo"),
            ("question to the values between", Meaning::Group(2).stroke(), "density_query_mid"),
        ];
        DosePanel { baselines: vec![(1.0, GREY)], ..panel(doses, sweep, &all) }
    };
    let about = About {
        name: "dose-attention",
        title: "Attention by dose",
        caption: format!(
            "Density: attention mass over what uniform attention would pay, averaged over heads and over the layers that see the whole prompt; 1 \
             is no preference. Sessions of one role count together.{INTERVALS}"
        ),
        y_label: "density",
        baseline: Some("uniform attention"),
        ends: (0.0, 1.0),
        ..About::default()
    };
    lines(doses, about, factors(doses).map(of).collect())
}

/// Attention beside the update effect and the effects of sessions, each divided by its largest mean.
fn beside_cause(doses: &Doses) -> Result<Option<Figure>, FigureError> {
    let any = doses.numbers().iter().any(|name| name.starts_with("blocked_") || name.starts_with("removed_"));
    if !any {
        return Ok(None);
    }
    let of = |sweep: &Sweep| {
        let all = [
            ("update effect u", Meaning::Query.stroke(), "u"),
            ("density of the question to new", Meaning::New.stroke(), "density_query_new"),
            ("effect of blocking new", Meaning::New.stroke().hollow(), "blocked_new"),
            ("effect of removing new", Meaning::Group(2).stroke(), "removed_new"),
            ("density of the question to old", Meaning::Old.stroke(), "density_query_old"),
            ("effect of blocking old", Meaning::Old.stroke().hollow(), "blocked_old"),
            ("effect of removing old", Meaning::Group(1).stroke(), "removed_old"),
        ];
        let mut panel = panel(doses, sweep, &all);
        let mut baselines: Vec<(f64, RGBColor)> = Vec::new();
        for line in &mut panel.lines {
            let most = line.points.iter().flatten().map(|point| point.mean.abs()).fold(0.0, f64::max);
            if most == 0.0 {
                continue;
            }
            if line.name.starts_with("density") {
                baselines.push((1.0 / most, line.stroke.colour));
            }
            for point in line.points.iter_mut().flatten() {
                point.mean /= most;
                point.interval = None;
            }
        }
        DosePanel { baselines: baselines.into_iter().filter(|(at, _)| *at <= 1.0).collect(), ..panel }
    };
    let about = About {
        name: "dose-attention-and-cause",
        title: "Attention beside cause by dose",
        caption: "Means over items, each divided by its largest size in the panel, so that shapes compare and sizes do not: the update effect, the \
                  density of the question's attention, and by how much the contrast drops when a session is blocked from the question on \
                  or removed, less the median of blocked stretches without evidence. Dotted: uniform attention, at the scale of the density \
                  of its colour, where that is below the largest. An asterisk marks the base level."
            .to_owned(),
        y_label: "share of the largest mean",
        baseline: Some("uniform attention"),
        ends: (-0.2, 1.0),
        ..About::default()
    };
    lines(doses, about, factors(doses).map(of).collect())
}

/// The update effect over grids of two factors.
fn grids(doses: &Doses) -> Result<Option<Figure>, FigureError> {
    let of = |sweep: &Sweep| {
        let cells = sweep.grid(&doses.cells, Cell::u);
        let names = |axis: usize| -> Vec<String> {
            sweep.axes[axis].all.iter().map(|level| level.name.clone()).collect()
        };
        ValueMap {
            title: format!("{} by {}", spoken(&sweep.axes[0].factor), spoken(&sweep.axes[1].factor)),
            x_label: spoken(&sweep.axes[1].factor),
            columns: names(1),
            rows: names(0),
            values: cells
                .iter()
                .map(|row| row.iter().map(|cell| cell.map(|cell| cell.mean)).collect())
                .collect(),
        }
    };
    let grids: Vec<&Sweep> = doses.sweeps.iter().filter(|sweep| sweep.is_grid()).collect();
    let Some(first) = grids.first() else { return Ok(None) };
    let drawing = ValueMaps {
        title: "Update effect over two factors".to_owned(),
        origin: origin(doses),
        y_label: spoken(&first.axes[0].factor),
        maps: grids.iter().map(|sweep| of(sweep)).collect(),
        unit: "u (nats)".to_owned(),
        middle: 0.0,
        cell: WRITTEN,
    };
    let caption = "The update effect u in nats, the mean over items, by the levels of two factors: rows are the levels of the first, columns \
                   those of the second. Blue above 0: the update counts; orange below. Grey: no item was asked there."
        .to_owned();
    map("dose-grid", drawing, caption).map(Some)
}

/// Attention by layer and level, and the effects of windows of layers where they were measured.
fn layers(doses: &Doses) -> Result<Vec<Figure>, FigureError> {
    let mut figures = Vec::new();
    let indices: Vec<String> = doses.layers.iter().map(|layer| layer.index.to_string()).collect();
    for (key, words) in [
        ("density_query_new", "the question to new"),
        ("density_query_old", "the question to old"),
        ("density_new_old", "new to old"),
    ] {
        let of = |sweep: &Sweep| {
            let at = |layer: usize| {
                let items = sweep.by_item(&doses.cells, |cell| {
                    let value = *cell.by_layer.get(key)?.get(layer)?;
                    (value > 0.0).then(|| value.log2())
                });
                sweep.means(&items).iter().map(|mean| mean.map(|mean| mean.mean)).collect::<Vec<_>>()
            };
            ValueMap {
                title: spoken(&sweep.factor),
                x_label: unit_of(sweep),
                columns: ticks(sweep),
                rows: indices.clone(),
                values: (0..indices.len()).map(at).collect(),
            }
        };
        let maps: Vec<ValueMap> = factors(doses).map(of).collect();
        let maps: Vec<ValueMap> = maps.into_iter().filter(has_values).collect();
        if maps.is_empty() {
            continue;
        }
        let drawing = ValueMaps {
            title: format!("Density by layer and dose: {words}"),
            origin: origin(doses),
            y_label: "layer".to_owned(),
            maps,
            unit: "log2 density".to_owned(),
            middle: 0.0,
            cell: OF_LEVEL,
        };
        let caption = format!(
            "The binary logarithm of the density of attention of {words}, the mean over items, by layer and level: white is uniform attention, \
             one more is twice as much (blue), one less half (orange). Grey: no item has a value. An asterisk marks the base level."
        );
        let name = key.replacen("density", "dose_layers", 1).replace('_', "-");
        figures.push(map(&name, drawing, caption)?);
    }
    figures.extend(windows(doses)?);
    Ok(figures)
}

/// Effects of blocking the new session at windows of layers.
fn windows(doses: &Doses) -> Result<Option<Figure>, FigureError> {
    let start =
        |name: &str| name.split_once('@').and_then(|(_, at)| at.split_once('-')?.0.parse::<usize>().ok());
    let mut names: Vec<&str> =
        doses.numbers().into_iter().filter(|name| name.starts_with("blocked_new@")).collect();
    names.sort_by_key(|name| start(name));
    if names.is_empty() {
        return Ok(None);
    }
    let of = |sweep: &Sweep| {
        let at = |name: &&str| {
            let means = sweep.means(&sweep.by_item(&doses.cells, |cell| cell.number(name)));
            means.iter().map(|mean| mean.map(|mean| mean.mean)).collect::<Vec<_>>()
        };
        let range = |name: &&str| name.split_once('@').map_or("", |(_, range)| range).to_owned();
        ValueMap {
            title: spoken(&sweep.factor),
            x_label: unit_of(sweep),
            columns: ticks(sweep),
            rows: names.iter().map(range).collect(),
            values: names.iter().map(at).collect(),
        }
    };
    let drawing = ValueMaps {
        title: "Effect of blocking new at windows of layers".to_owned(),
        origin: origin(doses),
        y_label: "layers".to_owned(),
        maps: factors(doses).map(of).filter(has_values).collect(),
        unit: "drop (nats)".to_owned(),
        middle: 0.0,
        cell: OF_LEVEL,
    };
    let caption = "By how many nats the contrast drops when the new session is blocked from the question on at some layers alone, less the \
                   median of stretches without evidence: the mean over items. Blue above 0: these layers read the update."
        .to_owned();
    map("dose-windows", drawing, caption).map(Some)
}

fn has_values(map: &ValueMap) -> bool {
    map.values.iter().flatten().any(Option::is_some)
}

/// A figure of maps, with a row a cell.
fn map(name: &str, drawing: ValueMaps, caption: String) -> Result<Figure, FigureError> {
    let mut rows: Vec<(&ValueMap, usize, usize, f64)> = Vec::new();
    for map in &drawing.maps {
        for (row, values) in map.values.iter().enumerate() {
            let known = values.iter().enumerate().filter_map(|(column, value)| Some((column, (*value)?)));
            rows.extend(known.map(|(column, value)| (map, row, column, value)));
        }
    }
    let csv = CsvTable::of(&rows)
        .column("figure", |_| name)
        .column("map", |row| &row.0.title)
        .column("row", |row| &row.0.rows[row.1])
        .column("column", |row| row.0.columns[row.2].trim_end_matches('*').to_owned())
        .column("value", |row| row.3)
        .bytes();
    let svg = drawing.draw(name)?;
    Ok(Figure { name: name.to_owned(), title: drawing.title.clone(), caption, svg, csv })
}
