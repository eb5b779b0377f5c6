//! Figures of a dose run: update effects, attention and causes by factor, chains, and maps. CSV: one row per point.

use super::axis::Range;
use super::meaning::Meaning;
use super::plot::{Mark, Plain, Sample};
use super::sheet::{Across, Panel, Sheet};
use super::style::{Colour, GREY, INK, Stroke, UNIT, shortened};
use super::{Figure, trends};
use palimpsest_analysis::dose::Doses;
use palimpsest_analysis::dose::answer::Chosen;
use palimpsest_analysis::dose::cell::Cell;
use palimpsest_analysis::dose::chains::{ChainLevel, Chains};
use palimpsest_analysis::dose::estimate::Estimate;
use palimpsest_analysis::dose::sweep::{Level, Scale, Sweep};
use palimpsest_analysis::dose::words::recency;
use palimpsest_data::ground::csv::CsvTable;
use palimpsest_data::ground::order::unique;

pub(super) fn of_lines(doses: &Doses) -> Vec<Figure> {
    let first = [effect(doses), over_updating(doses), order(doses)];
    let last = [attention(doses), beside_cause(doses)];
    first.into_iter().flatten().chain(chains(doses)).chain(last.into_iter().flatten()).collect()
}

#[derive(Debug, Clone)]
struct DoseLine {
    /// Legend name; equal names have equal strokes in all panels.
    name: String,
    stroke: Stroke,
    points: Vec<Option<Estimate>>,
}

#[derive(Debug, Clone, Default)]
struct DosePanel {
    title: String,
    x_label: String,
    levels: Vec<String>,
    lines: Vec<DoseLine>,
    /// One thin line per item.
    items: Vec<Vec<Option<f64>>>,
    /// Dotted reference lines, in the colour of their series.
    baselines: Vec<(f64, Colour)>,
}

fn item_look() -> Plain {
    Plain { ink: INK.mix(0.22), width: UNIT * 3 / 4, dash: None }
}

fn baseline_look(colour: Colour) -> Plain {
    Plain { ink: colour.into(), width: UNIT * 5 / 4, dash: Some((2, 3)) }
}

impl DosePanel {
    fn panel(&self) -> Panel {
        let end = self.levels.len() as f64 - 0.5;
        let baselines = self.baselines.iter().map(|(at, colour)| Mark::Path {
            places: vec![(-0.5, *at), (end, *at)],
            look: baseline_look(*colour),
        });
        let item = |values: &Vec<Option<f64>>| {
            let known =
                values.iter().enumerate().filter_map(|(level, value)| Some((level as f64, (*value)?)));
            let places: Vec<(f64, f64)> = known.collect();
            match places[..] {
                [at] => Mark::Dot { at, radius: UNIT, ink: INK.mix(0.22) },
                _ => Mark::Path { places, look: item_look() },
            }
        };
        let point = |estimate: &Option<Estimate>| {
            let Estimate { mean, interval, .. } = (*estimate)?;
            Some((mean, interval.map(|interval| (interval.low, interval.high))))
        };
        let lines: Vec<_> =
            self.lines.iter().map(|line| (line.stroke, line.points.iter().map(point).collect())).collect();
        let n = self.lines.iter().flat_map(|line| line.points.iter().flatten().map(|estimate| estimate.n));
        Panel {
            title: self.title.clone(),
            legend: vec![(None, format!("n = {}", n.max().unwrap_or(0)))],
            marks: baselines.chain(self.items.iter().map(item)).chain(trends::marks(&lines)).collect(),
            x: Across::Names(self.levels.clone()),
            x_label: self.x_label.clone(),
            ..Panel::default()
        }
    }
}

pub(super) fn origin(doses: &Doses) -> String {
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

pub(super) fn factors(doses: &Doses) -> impl Iterator<Item = &Sweep> {
    doses.sweeps.iter().filter(|sweep| !sweep.is_grid() && sweep.levels().all.len() > 1)
}

pub(super) fn unit_of(sweep: &Sweep) -> String {
    if sweep.levels().scale == Scale::Tokens { "tokens".to_owned() } else { String::new() }
}

pub(super) fn spoken(factor: &str) -> String {
    factor.replace(['_', '-'], " ")
}

/// Level names; the base level has an asterisk.
pub(super) fn ticks(sweep: &Sweep) -> Vec<String> {
    let short = |number: f64, name: &str| match number {
        n if n >= 1024.0 && n % 1024.0 == 0.0 => format!("{}K", n / 1024.0),
        _ => name.to_owned(),
    };
    let tick = |level: &Level| {
        let name = level.number.map_or_else(|| level.name.clone(), |number| short(number, &level.name));
        if level.base { format!("{name}*") } else { name }
    };
    sweep.levels().all.iter().map(tick).collect()
}

fn panel(doses: &Doses, sweep: &Sweep, lines: &[(&str, Stroke, &str)]) -> DosePanel {
    let line = |(name, stroke, number): &(&str, Stroke, &str)| {
        let points = sweep.means(&sweep.by_item(&doses.cells, |cell| cell.number(number)));
        DoseLine { name: (*name).to_owned(), stroke: *stroke, points }
    };
    let lines: Vec<DoseLine> =
        lines.iter().map(line).filter(|line| line.points.iter().any(Option::is_some)).collect();
    DosePanel {
        title: spoken(&sweep.factor),
        x_label: unit_of(sweep),
        levels: ticks(sweep),
        lines,
        ..DosePanel::default()
    }
}

/// One row per point of a line or an item.
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

#[derive(Default)]
struct About<'a> {
    name: &'a str,
    title: &'a str,
    caption: String,
    y_label: &'a str,
    baseline: Option<&'a str>,
    ends: (f64, f64),
}

const INTERVALS: &str =
    " Bars: 95% intervals of means over items. An asterisk marks the base level, at which all factors meet.";

fn lines(doses: &Doses, about: About<'_>, panels: Vec<DosePanel>) -> Option<Figure> {
    let panels: Vec<DosePanel> = panels.into_iter().filter(|panel| !panel.lines.is_empty()).collect();
    if panels.is_empty() {
        return None;
    }
    let all = || panels.iter().flat_map(|panel| &panel.lines);
    let names = unique(all().map(|line| line.name.as_str()));
    let known = names.iter().filter_map(|name| all().find(|line| line.name == *name));
    let mut legend: Vec<(Sample, String)> =
        known.map(|line| (Sample::Line(line.stroke), line.name.clone())).collect();
    if panels.iter().any(|panel| !panel.items.is_empty()) {
        legend.push((Sample::Plain(item_look()), "one item".to_owned()));
    }
    legend.extend(about.baseline.map(|words| (Sample::Plain(baseline_look(GREY)), words.to_owned())));
    let sheet = Sheet {
        title: about.title.to_owned(),
        origin: origin(doses),
        y_label: about.y_label.to_owned(),
        reference: Some(0.0),
        rows: panels.iter().map(|panel| vec![Some(panel.panel())]).collect(),
        legend,
        panel: (270, 170),
        range: Some(Range::between(value_ends(&panels, about.ends))),
        ..Sheet::default()
    };
    let csv = csv(about.name, &panels);
    Some(sheet.figure(about.name, about.caption, csv))
}

/// Value range of all panels; outliers among items do not extend it.
fn value_ends(panels: &[DosePanel], ends: (f64, f64)) -> (f64, f64) {
    let estimates =
        panels.iter().flat_map(|panel| &panel.lines).flat_map(|line| line.points.iter().flatten());
    let means = estimates.flat_map(|Estimate { mean, interval, .. }| {
        interval.map_or([*mean; 3], |interval| [*mean, interval.low, interval.high])
    });
    let items = panels.iter().flat_map(|panel| panel.items.iter().flatten().flatten());
    let mut items: Vec<f64> = items.copied().collect();
    items.sort_by(f64::total_cmp);
    let of_items = [0.02, 0.98].map(|q| palimpsest_data::ground::numbers::quantile(&items, q));
    let all = means.chain(of_items).filter(|value| value.is_finite());
    all.fold(ends, |(low, high), value| (low.min(value), high.max(value)))
}

/// Update effect by dose, with one line per item.
fn effect(doses: &Doses) -> Option<Figure> {
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
        ..About::default()
    };
    lines(doses, about, factors(doses).map(of).collect())
}

fn over_updating(doses: &Doses) -> Option<Figure> {
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
    // If only the base level has such twins, one panel suffices.
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

fn order(doses: &Doses) -> Option<Figure> {
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
        ..About::default()
    };
    lines(doses, about, factors(doses).filter_map(of).collect())
}

/// Likelihood of chain values by position, and most likely values by number of updates.
fn chains(doses: &Doses) -> Vec<Figure> {
    let Some(chains) = Chains::of(doses) else { return Vec::new() };
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
    let panel = DosePanel {
        title: "By position in the chain".to_owned(),
        x_label: "updates ago".to_owned(),
        levels: (0..longest).map(back).collect(),
        lines: by_position,
        ..DosePanel::default()
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
    figures.extend(lines(doses, about, vec![panel]));
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
    figures.extend(lines(doses, about, vec![panel]));
    figures
}

fn attention(doses: &Doses) -> Option<Figure> {
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
    };
    lines(doses, about, factors(doses).map(of).collect())
}

/// Attention, update effect and session effects, each divided by its largest mean.
fn beside_cause(doses: &Doses) -> Option<Figure> {
    let any = doses.numbers().iter().any(|name| name.starts_with("blocked_") || name.starts_with("removed_"));
    if !any {
        return None;
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
        let mut baselines: Vec<(f64, Colour)> = Vec::new();
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
    };
    lines(doses, about, factors(doses).map(of).collect())
}
