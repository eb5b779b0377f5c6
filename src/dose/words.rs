//! The findings of a run of dose: tables for the command, and a sentence for each factor, which the report has too.

use super::Doses;
use super::answer::Chosen;
use super::cell::{Cell, per_item};
use super::chains::Chains;
use super::estimate::Estimate;
use super::sweep::{ByItem, Sweep, Trend};
use crate::ground::numbers::percent;
use crate::ground::sheet::{Columns, Sheet};
use crate::statistics::Interval;

/// Numbers whose trends over the levels of a factor are told: their names, and what they are.
const TRENDS: [(&str, &str); 13] = [
    ("u", "u (nats)"),
    ("mass_query_new", "mass of the query to new"),
    ("density_query_new", "density of the query to new"),
    ("value_norm_query_new", "value norm of the query to new"),
    ("mass_query_old", "mass of the query to old"),
    ("density_query_old", "density of the query to old"),
    ("value_norm_query_old", "value norm of the query to old"),
    ("blocked_new", "effect of blocking new (nats)"),
    ("blocked_old", "effect of blocking old (nats)"),
    ("removed_new", "effect of removing new (nats)"),
    ("removed_old", "effect of removing old (nats)"),
    ("mass_new_old", "s(new \u{2192} old)"),
    ("density_new_old", "density of new to old"),
];

/// The numbers of a level's row.
const LEVELS: [(&str, &str); 8] = [
    ("u", "u"),
    ("no_update", "no update"),
    ("choice", "choice"),
    ("mass_query_new", "mass q>new"),
    ("density_query_new", "density q>new"),
    ("density_query_old", "density q>old"),
    ("density_new_old", "density new>old"),
    ("blocked_new", "blocked new"),
];

/// The rule of intervals.
pub const NOTE: &str = "Brackets are 95% intervals over items, each for itself; * marks the base level.";

/// Tables and sentences, as the command prints them.
pub fn text(doses: &Doses) -> String {
    let mut text = format!("{}\n\n{}", overview(doses), items(doses).text());
    for sweep in &doses.sweeps {
        text += "\n";
        if !sweep.is_grid() {
            text += &levels(doses, sweep).text();
        }
        text += &format!("{}\n", sentence(doses, sweep));
        let trends = trends(doses, sweep);
        if !trends.rows.is_empty() {
            text += &format!("\n{}", trends.text());
        }
    }
    if let Some(found) = Chains::of(doses) {
        text += &format!("\n{}{}\n", chains(&found).text(), law(&found));
    }
    text + "\n" + NOTE + "\n"
}

pub fn paragraphs(doses: &Doses) -> Vec<String> {
    let mut all = vec![overview(doses)];
    all.extend(doses.sweeps.iter().map(|sweep| sentence(doses, sweep)));
    all.extend(Chains::of(doses).map(|found| law(&found)));
    all.push("Brackets are 95% intervals over items, each for itself.".to_owned());
    all
}

/// The cells at the base level, or all where there are none.
fn base(doses: &Doses) -> (&'static str, Vec<&Cell>) {
    let base: Vec<&Cell> = doses.cells.iter().filter(|cell| cell.is_base()).collect();
    match base.is_empty() {
        true => ("all levels", doses.cells.iter().collect()),
        false => ("the base level", base),
    }
}

fn overview(doses: &Doses) -> String {
    let (at, cells) = base(doses);
    let Doses { dataset, model, .. } = doses;
    let (items, factors) = (doses.items().len(), doses.sweeps.len());
    let mut said = format!("{dataset} by {model}: {items} items, {factors} factors varied.");
    if doses.gated {
        said += " Items that pass the gate alone.";
    }
    if let Some(u) = Estimate::of(&per_item(cells, Cell::u)) {
        said += &format!(" At {at} the update effect u is {} nats.", plain(&u));
    }
    said += &match doses.gate {
        (_, 0) => " The gate is not known: there are no twins without the old or without the new session."
            .to_owned(),
        (passed, of) => format!(
            " {passed} of {of} items pass the gate (right with old alone and with new alone, in both orders)."
        ),
    };
    if doses.without > 0 {
        said += &format!(" {} answers have no log-probabilities and are left out.", doses.without);
    }
    said
}

/// Numbers over all items.
fn items(doses: &Doses) -> Sheet {
    let (at, cells) = base(doses);
    let over = |of: &dyn Fn(&Cell) -> Option<f64>| per_item(cells.iter().copied(), of);
    let held = over(&|cell| cell.number("no_update"));
    let below: Vec<f64> = held.iter().map(|held| f64::from(u8::from(*held < 0.0))).collect();
    let gated = over(&|cell| cell.u().filter(|_| doses.has_others() && cell.gate == Some(true)));
    let blind = doses.blind.as_ref();
    let chance = blind.map_or(String::new(), |(_, chance)| format!(" (chance {}%)", percent(*chance)));
    let rows = [
        ("update effect u (nats)".to_owned(), Estimate::of(&over(&Cell::u))),
        ("u of items that pass the gate (nats)".to_owned(), Estimate::of(&gated)),
        (
            "size of the value prior b (nats)".to_owned(),
            Estimate::of(&over(&|cell| cell.number("b").map(f64::abs))),
        ),
        ("lead of the value that held, without an update (nats)".to_owned(), Estimate::of(&held)),
        ("share of items where it trails (over-updating)".to_owned(), Estimate::share(&below)),
        (
            "u less that lead (nats)".to_owned(),
            Estimate::of(&over(&|cell| Some(cell.u()? - cell.number("no_update")?))),
        ),
        (
            format!("share of blind twins that choose the current value{chance}"),
            blind.map(|(share, _)| *share),
        ),
    ];
    let rows: Vec<(String, Estimate)> =
        rows.into_iter().filter_map(|(name, estimate)| Some((name, estimate?))).collect();
    Columns::of(&rows)
        .text(format!("at {at}"), |(name, _)| &**name)
        .number("mean", |(_, estimate)| plain(estimate))
        .number("items", |(_, estimate)| estimate.n)
        .sheet(Vec::new())
}

/// A row a level.
fn levels(doses: &Doses, sweep: &Sweep) -> Sheet {
    let by_item = |(name, words): (&'static str, &'static str)| {
        let items = sweep.by_item(&doses.cells, |cell| cell.number(name));
        let means = if name == "choice" { sweep.shares(&items) } else { sweep.means(&items) };
        is_known(&items).then_some((words, means))
    };
    let all: Vec<(&str, Vec<Option<Estimate>>)> = LEVELS.into_iter().filter_map(by_item).collect();
    let items = |at: usize| all.iter().filter_map(|(_, of)| of[at].map(|one| one.n)).max().unwrap_or(0);
    let mut table = Columns::of(sweep.levels().all.iter().enumerate())
        .text(&sweep.factor, |(_, level)| format!("{}{}", level.name, if level.base { "*" } else { "" }))
        .number("items", |(at, _)| items(at));
    for (words, means) in &all {
        table = table.number(*words, |(at, _)| means[at].as_ref().map_or_else(|| "-".to_owned(), plain));
    }
    table.sheet(Vec::new())
}

/// The trend of each number over the levels of a factor whose levels have an order, and how it goes with u within items.
fn trends(doses: &Doses, sweep: &Sweep) -> Sheet {
    let levels = sweep.levels();
    if sweep.is_grid() || levels.all.len() < 2 || !levels.scale.is_ordered() {
        return Sheet::default();
    }
    let u = sweep.by_item(&doses.cells, Cell::u);
    let trend = |(name, words): (&str, &'static str)| {
        let items = sweep.by_item(&doses.cells, |cell| cell.number(name));
        let together = sweep.together(&items, &u).filter(|_| name != "u");
        is_known(&items).then(|| (words, sweep.trend(&items), together))
    };
    let rows: Vec<(&str, Trend, Option<Estimate>)> = TRENDS.into_iter().filter_map(trend).collect();
    let shown = |estimate: Option<Estimate>| estimate.as_ref().map_or_else(|| "-".to_owned(), plain);
    Columns::of(&rows)
        .text("trend of", |(words, ..)| *words)
        .number(format!("slope {}", levels.scale.unit()), |(_, trend, _)| shown(trend.slope))
        .number("sd of slopes", |(_, trend, _)| {
            trend.slope.and_then(|slope| slope.sd).map_or_else(|| "-".to_owned(), number)
        })
        .number("rho", |(_, trend, _)| shown(trend.spearman))
        .number("rho with u", |(.., together)| shown(*together))
        .number("items", |(_, trend, _)| trend.slope.map_or(0, |slope| slope.n))
        .sheet(Vec::new())
}

/// The finding on a factor.
fn sentence(doses: &Doses, sweep: &Sweep) -> String {
    let factor = &sweep.factor;
    if sweep.is_grid() {
        return grid(doses, sweep);
    }
    let u = sweep.by_item(&doses.cells, Cell::u);
    if sweep.levels().all.len() < 2 {
        return format!("{factor}: one level, so that nothing can be said of it.");
    }
    if !is_known(&u) {
        return format!("{factor}: no item has both orders of the update, so that there is no u.");
    }
    if !sweep.levels().scale.is_ordered() {
        let places = places(doses, sweep).unwrap_or_default();
        return format!("{factor}: {}.{places}", differences(sweep, &u));
    }
    let gated = sweep.by_item(&doses.cells, |cell| cell.u().filter(|_| cell.gate == Some(true)));
    let of_gated = (doses.has_others() && is_known(&gated))
        .then(|| format!("; of items that pass the gate {}", moves(sweep, &gated)));
    let places = places(doses, sweep).unwrap_or_default();
    format!("{factor}: {}{}.{places}", moves(sweep, &u), of_gated.unwrap_or_default())
}

/// Recency of place and of time, where place and date are crossed.
fn places(doses: &Doses, sweep: &Sweep) -> Option<String> {
    let of = |values: &[(String, f64)]| {
        Estimate::of(&values.iter().map(|(_, value)| *value).collect::<Vec<_>>()).as_ref().map(plain)
    };
    let [time, place] = recency(doses, sweep)?;
    let (time, place) = (of(&time)?, of(&place)?);
    Some(format!(" Of u, recency of time makes up {time} nats and recency of place {place} nats."))
}

/// The parts of the update effect that go with the later date and with the later place, by item: told in order of date u is their sum,
/// crossed it is their difference. `None` of other factors.
pub fn recency(doses: &Doses, sweep: &Sweep) -> Option<[Vec<(String, f64)>; 2]> {
    let levels = &sweep.levels().all;
    let crossed =
        levels.iter().position(|level| level.name.contains("cross") || level.name == "place-first")?;
    let straight = (0..levels.len()).find(|level| *level != crossed).filter(|_| levels.len() == 2)?;
    let items = sweep.by_item(&doses.cells, Cell::u);
    let both = items.iter().filter_map(|(item, values)| Some((item, values[straight]?, values[crossed]?)));
    let both: Vec<(String, f64, f64)> = both.map(|(item, a, b)| ((*item).to_owned(), a, b)).collect();
    let part = |sign: f64| both.iter().map(|(item, a, b)| (item.clone(), (a + sign * b) / 2.0)).collect();
    (!both.is_empty()).then(|| [part(1.0), part(-1.0)])
}

/// `u falls by 0.31 nats a doubling [0.12, 0.50] over 32 items`.
fn moves(sweep: &Sweep, items: &ByItem<'_>) -> String {
    let Some(slope) = sweep.trend(items).slope else {
        return "u has no slope: no item has it at two levels with a place on the axis".to_owned();
    };
    let (n, per) = (slope.n, sweep.levels().scale.unit());
    // What is left of equal numbers is rounding.
    let values = items.iter().flat_map(|(_, values)| values.iter().flatten());
    let rounding = 1e-12 * values.fold(0.0, |most: f64, x| most.max(x.abs()));
    if slope.mean.abs() <= rounding && slope.sd.is_none_or(|sd| sd <= rounding) {
        return format!("u does not change at all over {n} items");
    }
    let size = number(slope.mean.abs());
    match (slope.interval, slope.side()) {
        (None, _) => {
            let verb = if slope.mean < 0.0 { "falls" } else { "rises" };
            let items = if n == 1 { "item" } else { "items" };
            format!("u {verb} by {size} nats {per} over {n} {items}: too few for an interval")
        }
        (Some(interval), 1) => format!("u rises by {size} nats {per} {} over {n} items", bracket(interval)),
        (Some(Interval { low, high }), -1) => {
            let ends = bracket(Interval { low: -high, high: -low });
            format!("u falls by {size} nats {per} {ends} over {n} items")
        }
        (Some(interval), _) => format!(
            "u does not move ({} nats {per} {} over {n} items)",
            number(slope.mean),
            bracket(interval)
        ),
    }
}

/// Differences to the base level, of levels without an order.
fn differences(sweep: &Sweep, items: &ByItem<'_>) -> String {
    let levels = &sweep.levels().all;
    let listed = |numbers: Vec<Option<Estimate>>| {
        let each = levels.iter().zip(numbers);
        let each = each.filter_map(|(level, one)| Some(format!("{} {}", level.name, plain(&one?))));
        each.collect::<Vec<_>>().join(", ")
    };
    let (Some(base), Some(all)) = (levels.iter().find(|level| level.base), sweep.against_base(items)) else {
        let means = listed(sweep.means(items));
        return format!("levels without an order, and none is the base: {means}");
    };
    match listed(all) {
        none if none.is_empty() => "no item has it at two levels".to_owned(),
        each => format!("against {}, within items: {each}", base.name),
    }
}

fn grid(doses: &Doses, sweep: &Sweep) -> String {
    let cells = sweep.grid(&doses.cells, Cell::u);
    let all = cells.iter().enumerate().flat_map(|(row, of)| {
        of.iter().enumerate().filter_map(move |(column, estimate)| Some(([row, column], (*estimate)?)))
    });
    let all: Vec<([usize; 2], Estimate)> = all.collect();
    let name = |place: [usize; 2]| {
        let level = |(axis, at): (usize, usize)| {
            let levels = &sweep.axes[axis];
            format!("{} {}", levels.factor, levels.all[at].name)
        };
        place.into_iter().enumerate().map(level).collect::<Vec<_>>().join(" and ")
    };
    let by = |a: &&([usize; 2], Estimate), b: &&([usize; 2], Estimate)| a.1.mean.total_cmp(&b.1.mean);
    let factor = &sweep.factor;
    let (Some((low, least)), Some((high, most))) = (all.iter().min_by(by), all.iter().max_by(by)) else {
        return format!("{factor}: no item has both orders of the update.");
    };
    format!(
        "{factor}: u is largest at {} ({} nats) and smallest at {} ({} nats).",
        name(*high),
        plain(most),
        name(*low),
        plain(least)
    )
}

/// A row a number of updates.
fn chains(chains: &Chains) -> Sheet {
    let shown = |share: Option<&Estimate>| share.map_or_else(|| "-".to_owned(), share_in_percent);
    let mut table = Columns::of(&chains.levels)
        .text("updates", |level| level.updates)
        .number("items", |level| level.items);
    for chosen in Chosen::ALL {
        table = table.number(format!("chose {} %", chosen.in_words()), |level| {
            shown(level.chosen.iter().find(|(known, _)| *known == chosen).map(|(_, share)| share))
        });
    }
    let of_positions = |one: Option<&Estimate>| one.map_or_else(|| "-".to_owned(), plain);
    table
        .number("chance %", |level| percent(level.chance))
        .number("old of the errors %", |level| shown(level.old_of_errors.as_ref()))
        .number("primacy (nats)", |level| of_positions(level.positions.first()))
        .number("recency (nats)", |level| of_positions(level.positions.last()))
        .sheet(Vec::new())
}

/// The law of key-value streams: right choices and the logarithm of the number of updates.
fn law(chains: &Chains) -> String {
    let Some(factor) = &chains.factor else {
        return "One number of updates, so that the law of streams cannot be tested.".to_owned();
    };
    let verb = |slope: &Estimate| ["falls", "does not move", "rises"][(slope.side() + 1) as usize];
    let right = match &chains.right_slope {
        None => "no item has two numbers of updates, so that the law cannot be tested".to_owned(),
        Some(slope) if chains.is_floor() => format!(
            "a floor: at no number of updates are right choices above chance by their interval, so that accuracy has nowhere to fall \
             from (slope {} a doubling of the updates)",
            plain(slope)
        ),
        Some(slope) => format!(
            "the share of right choices {} with the logarithm of the number of updates ({} a doubling)",
            verb(slope),
            plain(slope)
        ),
    };
    let contrast = chains.contrast_slope.as_ref();
    let contrast =
        contrast.map(|slope| format!("; the contrast {} ({} a doubling)", verb(slope), plain(slope)));
    format!("{factor}: {right}{}.", contrast.unwrap_or_default())
}

fn is_known(items: &ByItem<'_>) -> bool {
    items.iter().any(|(_, values)| values.iter().any(Option::is_some))
}

fn plain(estimate: &Estimate) -> String {
    let interval = estimate.interval.map(|interval| format!(" {}", bracket(interval))).unwrap_or_default();
    format!("{}{interval}", number(estimate.mean))
}

fn share_in_percent(share: &Estimate) -> String {
    let interval =
        share.interval.map(|Interval { low, high }| format!(" [{}, {}]", percent(low), percent(high)));
    format!("{}{}", percent(share.mean), interval.unwrap_or_default())
}

fn bracket(Interval { low, high }: Interval) -> String {
    format!("[{}, {}]", number(low), number(high))
}

/// Two decimals, of small numbers two digits.
fn number(value: f64) -> String {
    let digits = if value == 0.0 { 2 } else { (1 - value.abs().log10().floor() as i32).clamp(2, 6) as usize };
    let text = format!("{value:.digits$}");
    // A number that rounds to 0 has no sign.
    match text.trim_start_matches('-') {
        size if size.chars().all(|c| matches!(c, '0' | '.')) => size.to_owned(),
        _ => text,
    }
}
