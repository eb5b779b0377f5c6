//! Figures of a dose run: update effects, attention and causes by factor, chains, and maps. CSV: one row per point.

use std::path::Path;

use super::axis::{padded, spanning};
use super::meaning::Meaning;
use super::sheet::{Across, Mark, Panel, Plain, Sample, Sheet, ValueAxis};
use super::style::{Colour, GREY, INK, Stroke, UNIT, shortened};
use super::{Figure, Origin, charts};
use palimpsest_analysis::dose::Doses;
use palimpsest_analysis::dose::answer::Chosen;
use palimpsest_analysis::dose::cell::Cell;
use palimpsest_analysis::dose::chains::{ChainLevel, Chains};
use palimpsest_analysis::dose::estimate::Estimate;
use palimpsest_analysis::dose::sweep::{Level, Scale, Sweep};
use palimpsest_analysis::dose::words::recency;
use palimpsest_data::ground::csv::CsvTable;
use palimpsest_data::ground::numbers::quantile;
use palimpsest_data::ground::order::unique;
use palimpsest_data::ground::words::counted;

pub(super) fn of_lines(doses: &Doses) -> Vec<Figure> {
    let chains = Chains::of(doses);
    let of_chains = chains.iter().flat_map(|chains| [by_position(chains), errors(chains)]);
    let first = [effect(doses), over_updating(doses), order(doses)].into_iter().chain(of_chains);
    let all = first.chain([attention(doses)]).chain(beside_cause(doses));
    all.filter_map(|about| about.figure(&origin(doses))).collect()
}

#[derive(Debug, Clone)]
pub(super) struct DoseLine {
    /// Legend name; equal names have equal strokes in all panels.
    name: String,
    stroke: Stroke,
    pub points: Vec<Option<Estimate>>,
}

impl DoseLine {
    pub fn of(name: impl Into<String>, stroke: Stroke, points: Vec<Option<Estimate>>) -> Self {
        DoseLine { name: name.into(), stroke, points }
    }

    /// A thin line; its values are no means.
    fn item((nth, values): (usize, Vec<Option<f64>>)) -> Self {
        let value = |mean| Estimate { n: 0, mean, interval: None, sd: None };
        let points = values.into_iter().map(|one| one.map(value)).collect();
        DoseLine::of(format!("item {}", nth + 1), Meaning::Query.stroke(), points)
    }

    fn points(&self) -> impl Iterator<Item = (usize, &Estimate)> {
        self.points.iter().enumerate().filter_map(|(level, point)| Some((level, point.as_ref()?)))
    }
}

#[derive(Debug, Clone, Default)]
pub(super) struct DosePanel {
    pub title: String,
    pub x_label: String,
    pub levels: Vec<String>,
    pub lines: Vec<DoseLine>,
    pub items: Vec<DoseLine>,
    /// Dotted reference lines, in the colour of their series.
    pub baselines: Vec<(f64, Colour)>,
}

/// Opacity of a single item: a lone line must be seen in the legend, too.
const ITEM: f64 = 0.45;

fn item_look() -> Plain {
    Plain { ink: INK.mix(ITEM), width: UNIT, dash: None }
}

fn baseline_look(colour: Colour) -> Plain {
    Plain { ink: colour.into(), width: UNIT * 5 / 4, dash: Some((2, 3)) }
}

impl DosePanel {
    fn panel(&self) -> Panel {
        let end = self.levels.len() as f64 - 0.5;
        let baseline =
            |(at, colour): &(f64, Colour)| Mark::Path(vec![(-0.5, *at), (end, *at)], baseline_look(*colour));
        let item = |item: &DoseLine| {
            let places: Vec<_> = item.points().map(|(level, point)| (level as f64, point.mean)).collect();
            match places[..] {
                [at] => Mark::Dot(at, UNIT, INK.mix(ITEM)),
                _ => Mark::Path(places, item_look()),
            }
        };
        let point = |estimate: &Option<Estimate>| {
            let Estimate { mean, interval, .. } = (*estimate)?;
            Some((mean, interval.map(|interval| (interval.low, interval.high))))
        };
        let lines = self.lines.iter().map(|line| (line.stroke, line.points.iter().map(point).collect()));
        let lines = charts::marks(&lines.collect::<Vec<_>>());
        let n = self.lines.iter().flat_map(|line| line.points().map(|(_, point)| point.n));
        let marks = self.baselines.iter().map(baseline).chain(self.items.iter().map(item));
        Panel {
            title: self.title.clone(),
            legend: vec![(None, format!("n = {}", n.max().unwrap_or(0)))],
            marks: marks.chain(lines).collect(),
            x: Across::Names(self.levels.clone()),
            x_label: self.x_label.clone(),
            ..Panel::default()
        }
    }
}

pub(super) fn origin(doses: &Doses) -> Origin {
    let gated = if doses.gated { " · items that pass the gate" } else { "" };
    let items = counted(doses.items().len(), "item");
    origin_of((&doses.model, &doses.dataset), &format!("{items}{gated}"), &doses.dir)
}

/// Origin of figures of one run folder that counts its units itself.
pub(super) fn origin_of((model, dataset): (&str, &str), units: &str, dir: &Path) -> Origin {
    let folder = dir.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let name = |text: &str| shortened(text.rsplit(['/', '\\']).next().unwrap_or(text), 48);
    let (model, dataset) = (name(model), name(dataset));
    // A folder named after its data tells nothing more.
    let folder = if folder == dataset { String::new() } else { format!(" · {folder}") };
    Origin { line: format!("{model} · {dataset} · {units}{folder}"), ..Origin::default() }
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
        DoseLine::of(*name, *stroke, sweep.means(&sweep.by_item(&doses.cells, |cell| cell.number(number))))
    };
    let mut lines: Vec<DoseLine> = lines.iter().map(line).collect();
    lines.retain(|line| line.points.iter().any(Option::is_some));
    let (title, x_label) = (spoken(&sweep.factor), unit_of(sweep));
    DosePanel { title, x_label, levels: ticks(sweep), lines, ..DosePanel::default() }
}

/// A figure of lines over levels.
#[derive(Default)]
pub(super) struct About {
    pub name: &'static str,
    pub title: &'static str,
    pub caption: String,
    pub y_label: &'static str,
    pub baseline: Option<&'static str>,
    pub ends: (f64, f64),
    pub panels: Vec<DosePanel>,
}

const INTERVALS: &str =
    " Bars: 95% intervals of means over items. An asterisk marks the base level, at which all factors meet.";

impl About {
    /// `None` without lines.
    pub fn figure(mut self, origin: &Origin) -> Option<Figure> {
        self.panels.retain(|panel| !panel.lines.is_empty());
        if self.panels.is_empty() {
            return None;
        }
        let lines = || self.panels.iter().flat_map(|panel| &panel.lines);
        let names = unique(lines().map(|line| (&line.name, line.stroke)));
        let names = names.into_iter().map(|(name, stroke)| (Sample::Line(stroke), name.clone()));
        let items = self.panels.iter().any(|panel| !panel.items.is_empty());
        let items = items.then(|| (Sample::Plain(item_look()), "one item".to_owned()));
        let baseline = self.baseline.map(|words| (Sample::Plain(baseline_look(GREY)), words.to_owned()));
        let sheet = Sheet {
            y_label: self.y_label.to_owned(),
            axes: vec![ValueAxis { reference: Some(0.0), linear: Some(self.value_ends()) }],
            rows: self.panels.iter().map(|panel| vec![panel.panel()]).collect(),
            legend: names.chain(items).chain(baseline).collect(),
            panel: (270, 170),
            ..Sheet::default()
        };
        let csv = self.csv();
        Some(sheet.headed(origin, self.title.to_owned()).figure(self.name, self.caption, csv))
    }

    /// Value range of all panels; outliers among items do not extend it.
    fn value_ends(&self) -> (f64, f64) {
        let lines = self.panels.iter().flat_map(|panel| &panel.lines).flat_map(DoseLine::points);
        let means = lines.flat_map(|(_, point)| {
            let interval = point.interval.into_iter().flat_map(|interval| [interval.low, interval.high]);
            interval.chain([point.mean])
        });
        let items = self.panels.iter().flat_map(|panel| &panel.items).flat_map(DoseLine::points);
        let mut items: Vec<f64> = items.map(|(_, point)| point.mean).collect();
        items.sort_by(f64::total_cmp);
        padded(spanning(self.ends, means.chain([0.02, 0.98].map(|q| quantile(&items, q)))))
    }

    /// One row per point of a line or an item.
    fn csv(&self) -> Vec<u8> {
        let lines = self
            .panels
            .iter()
            .flat_map(|panel| panel.lines.iter().chain(&panel.items).map(move |line| (panel, line)));
        let rows = lines.flat_map(|(panel, line)| {
            line.points().map(move |(at, point)| (panel, line, panel.levels[at].as_str(), *point))
        });
        CsvTable::of(rows)
            .column("figure", |_| self.name)
            .column("panel", |(panel, ..)| &panel.title)
            .column("line", |(_, line, ..)| &line.name)
            .column("level", |(_, _, level, _)| level.trim_end_matches('*'))
            .column("base", |(_, _, level, _)| level.ends_with('*'))
            .optional("n", |(.., point)| Some(point.n).filter(|n| *n > 0))
            .column("value", |(.., point)| point.mean)
            .optional("low", |(.., point)| point.interval.map(|interval| interval.low))
            .optional("high", |(.., point)| point.interval.map(|interval| interval.high))
            .bytes()
    }
}

/// Update effect by dose, with one line per item.
fn effect(doses: &Doses) -> About {
    let of = |sweep: &Sweep| {
        let items = sweep.by_item(&doses.cells, Cell::u).into_iter().map(|(_, values)| values);
        let items = items.filter(|item| item.iter().any(Option::is_some)).enumerate().map(DoseLine::item);
        let mean = ("mean over items", Meaning::New.stroke(), "u");
        DosePanel { items: items.collect(), ..panel(doses, sweep, &[mean]) }
    };
    About {
        name: "dose-effect",
        title: "Update effect by dose",
        caption: format!(
            "The update effect u by level of each factor: the mean over both orders of the values of log p of the current value less that of the replaced one, so \
             that a model which only prefers one value has 0. Above 0 the update counts. Thin lines: one item each.{INTERVALS}"
        ),
        y_label: "update effect u (nats)",
        panels: factors(doses).map(of).collect(),
        ..About::default()
    }
}

/// Update effect by dose, with one line per run.
pub(super) fn of_runs(all: &[Doses]) -> Vec<Figure> {
    let of = |factor: &str| {
        let own: Vec<_> =
            all.iter().map(|doses| (doses, factors(doses).find(|s| s.factor == factor))).collect();
        // Runs of one data set have the same levels; of several, those of the run with the most are drawn.
        let most = own.iter().filter_map(|(_, sweep)| *sweep).max_by_key(|sweep| sweep.levels().all.len())?;
        let line = |(nth, (doses, sweep)): (usize, &(&Doses, Option<&Sweep>))| {
            let sweep = (*sweep)?;
            let means = sweep.means(&sweep.by_item(&doses.cells, Cell::u));
            let at = |level: &Level| sweep.levels().all.iter().position(|own| own.name == level.name);
            let points = most.levels().all.iter().map(|level| means[at(level)?]).collect();
            Some(DoseLine::of(doses.run(), Meaning::Group(nth).stroke(), points))
        };
        Some(DosePanel {
            title: spoken(factor),
            x_label: unit_of(most),
            levels: ticks(most),
            lines: own.iter().enumerate().filter_map(line).collect(),
            ..DosePanel::default()
        })
    };
    let names = unique(all.iter().flat_map(factors).map(|sweep| sweep.factor.as_str()));
    let data = unique(all.iter().map(|doses| doses.dataset.as_str())).join(", ");
    let about = About {
        name: "dose-runs",
        title: "Update effect by dose, of several runs",
        caption: format!(
            "The update effect u by level of each factor, a line per run: the mean over both orders of the values of log p of the current \
             value less that of the replaced one, averaged over items. Above 0 the update counts.{INTERVALS}"
        ),
        y_label: "update effect u (nats)",
        panels: names.into_iter().filter_map(of).collect(),
        ..About::default()
    };
    let origin = Origin { line: format!("{} · {data}", counted(all.len(), "run")), ..Origin::default() };
    about.figure(&origin).into_iter().collect()
}

fn over_updating(doses: &Doses) -> About {
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
    About {
        name: "dose-over-updating",
        title: "Twins without an update beside those with one",
        caption: format!(
            "Contrasts of twins of equal length, means over both orders of the values. With an update: the current value over the replaced one. \
             Without: the value that held over one that was never given; below 0 the model gives up a value that nothing replaced.{INTERVALS}"
        ),
        y_label: "contrast (nats)",
        panels: shown.take(if several { usize::MAX } else { 1 }).collect(),
        ..About::default()
    }
}

fn order(doses: &Doses) -> About {
    let of = |sweep: &Sweep| {
        let [time, place] = recency(doses, sweep)?;
        let mean = |values: &[(String, f64)]| {
            Estimate::of(&values.iter().map(|(_, value)| *value).collect::<Vec<_>>())
        };
        let points = vec![mean(&time), mean(&place)];
        let items = time.iter().zip(&place).map(|(time, place)| vec![Some(time.1), Some(place.1)]);
        Some(DosePanel {
            title: spoken(&sweep.factor),
            x_label: "recency that moves the contrast".to_owned(),
            levels: vec!["of time".to_owned(), "of place".to_owned()],
            lines: vec![DoseLine::of("mean over items", Meaning::New.stroke(), points)],
            items: items.enumerate().map(DoseLine::item).collect(),
            ..DosePanel::default()
        })
    };
    About {
        name: "dose-recency",
        title: "Recency of time against recency of place",
        caption: format!(
            "Histories told in the order of dates, and crossed: the session with the later date stands first. The update effect of the first \
             is recency of time plus recency of place, that of the second their difference; half the sum and half the difference are shown. \
             Thin lines: one item each.{}",
            INTERVALS.split_inclusive('.').take(2).collect::<String>()
        ),
        y_label: "part of u (nats)",
        panels: factors(doses).filter_map(of).collect(),
        ..About::default()
    }
}

/// Likelihood of chain values by position.
fn by_position(chains: &Chains) -> About {
    let longest = chains.levels.iter().map(|level| level.positions.len()).max().unwrap_or(0);
    let of = |(nth, level): (usize, &ChainLevel)| {
        let mut points = vec![None; longest - level.positions.len()];
        points.extend(level.positions.iter().map(|estimate| Some(*estimate)));
        let name = format!("{} update{}", level.updates, if level.updates == 1 { "" } else { "s" });
        (!level.positions.is_empty()).then(|| DoseLine::of(name, Meaning::Group(nth).stroke(), points))
    };
    let back = |at: usize| if at + 1 == longest { "last".to_owned() } else { (longest - 1 - at).to_string() };
    let panel = DosePanel {
        title: "By position in the chain".to_owned(),
        x_label: "updates ago".to_owned(),
        levels: (0..longest).map(back).collect(),
        lines: chains.levels.iter().enumerate().filter_map(of).collect(),
        ..DosePanel::default()
    };
    About {
        name: "dose-chains",
        title: "Primacy and recency over chains",
        caption: "log p of every value of a chain by how many updates ago it held, less the mean of the values that the history never \
                  gives: at the left end of a line the first value (primacy), at the right the current one (recency). Means over items and both \
                  orders. Bars: 95% intervals over items."
            .to_owned(),
        y_label: "log p over values never given (nats)",
        panels: vec![panel],
        ..About::default()
    }
}

/// Most likely values by number of updates.
fn errors(chains: &Chains) -> About {
    let over_levels =
        |of: &dyn Fn(&ChainLevel) -> Option<Estimate>| -> Vec<_> { chains.levels.iter().map(of).collect() };
    let looks = [Meaning::New, Meaning::Old, Meaning::Group(3), Meaning::Others].map(Meaning::stroke);
    let line = |(chosen, stroke): (Chosen, Stroke)| {
        let share = |level: &ChainLevel| {
            level.chosen.iter().find(|(known, _)| *known == chosen).map(|(_, share)| *share)
        };
        DoseLine::of(chosen.in_words(), stroke, over_levels(&share))
    };
    let chance =
        |level: &ChainLevel| Some(Estimate { n: level.items, mean: level.chance, interval: None, sd: None });
    let chance = DoseLine::of("chance of each value", Meaning::Baseline.stroke(), over_levels(&chance));
    let panel = DosePanel {
        title: "The likeliest value".to_owned(),
        x_label: "updates".to_owned(),
        levels: chains.levels.iter().map(|level| level.updates.to_string()).collect(),
        lines: Chosen::ALL.into_iter().zip(looks).map(line).chain([chance]).collect(),
        ..DosePanel::default()
    };
    About {
        name: "dose-errors",
        title: "The likeliest value by the number of updates",
        caption: "The share of histories whose likeliest value is the current one, the first, another that held before, or one that the \
                  history never gives, over items. Bars: 95% intervals over items. Dotted: the share of any one value by chance."
            .to_owned(),
        y_label: "share of histories",
        ends: (0.0, 1.0),
        panels: vec![panel],
        ..About::default()
    }
}

fn attention(doses: &Doses) -> About {
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
    About {
        name: "dose-attention",
        title: "Attention by dose",
        caption: format!(
            "Density: attention mass over that of uniform attention, averaged over heads and over the layers that see the whole prompt; 1 \
             is no preference. Sessions of one role count together.{INTERVALS}"
        ),
        y_label: "density",
        baseline: Some("uniform attention"),
        ends: (0.0, 1.0),
        panels: factors(doses).map(of).collect(),
    }
}

/// Attention, update effect and session effects, each divided by its largest mean; `None` without effects.
fn beside_cause(doses: &Doses) -> Option<About> {
    let any = doses.numbers().iter().any(|name| name.starts_with("blocked_") || name.starts_with("removed_"));
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
        for line in &mut panel.lines {
            let most = line.points.iter().flatten().map(|point| point.mean.abs()).fold(0.0, f64::max);
            if most == 0.0 {
                continue;
            }
            let is_density = line.name.starts_with("density") && 1.0 / most <= 1.0;
            panel.baselines.extend(is_density.then(|| (1.0 / most, line.stroke.colour)));
            for point in line.points.iter_mut().flatten() {
                point.mean /= most;
                point.interval = None;
            }
        }
        panel
    };
    any.then(|| About {
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
        panels: factors(doses).map(of).collect(),
    })
}
