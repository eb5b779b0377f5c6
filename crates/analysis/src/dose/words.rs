//! Findings of a dose run: tables for the command, and one sentence per factor, which the report has too.

use super::Doses;
use super::answer::Chosen;
use super::cell::{Cell, per_item};
use super::chains::{ChainLevel, Chains};
use super::estimate::Estimate;
use super::sweep::{ByItem, Level, Sweep, Trend};
use palimpsest_data::ground::numbers::percent;
use palimpsest_data::ground::sheet::{Columns, Sheet};
use palimpsest_data::ground::words::counted;
use palimpsest_data::statistics::Interval;

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

/// The last two rows ask if a dose raises the new session's attention to the old one.
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

const NOTE: &str = "Brackets are 95% intervals over items, without correction for several comparisons";

pub fn text(doses: &Doses) -> String {
    let mut parts = vec![format!("{}\n", overview(doses)), items(doses).text()];
    for sweep in &doses.sweeps {
        let tables = match sweep.is_grid() {
            true => vec![grid(doses, sweep)],
            false => vec![levels(doses, sweep), trends(doses, sweep)],
        };
        parts.extend(tables.iter().filter(|table| !table.rows.is_empty()).map(Sheet::text));
        parts.extend(sentence(doses, sweep).map(|said| said + "\n"));
    }
    if let Some(found) = Chains::of(doses) {
        parts.push(chains(&found.levels).text());
        parts.extend(law(&found).map(|said| said + "\n"));
    }
    parts.push(format!("{NOTE}; * marks the base level.\n"));
    parts.join("\n")
}

pub fn paragraphs(doses: &Doses) -> Vec<String> {
    let mut all = vec![overview(doses)];
    all.extend(doses.sweeps.iter().filter_map(|sweep| sentence(doses, sweep)));
    all.extend(Chains::of(doses).and_then(|found| law(&found)));
    all.push(format!("{NOTE}."));
    all
}

/// Cells at the base level; all cells without any.
fn base(doses: &Doses) -> (&'static str, Vec<&Cell>) {
    let base: Vec<&Cell> = doses.cells.iter().filter(|cell| cell.is_base()).collect();
    if base.is_empty() { ("all levels", doses.cells.iter().collect()) } else { ("the base level", base) }
}

fn overview(doses: &Doses) -> String {
    let (at, cells) = base(doses);
    let Doses { dataset, model, sweeps, gate: (passed, known), .. } = doses;
    let mut said = format!(
        "{dataset} by {model}: {}, {} varied.",
        counted(doses.items().len(), "item"),
        counted(sweeps.len(), "factor")
    );
    if doses.gated {
        said += " Only items that pass the gate are counted.";
    }
    if let Some(u) = Estimate::of(&per_item(cells.iter().copied(), Cell::u)) {
        said += &format!(" At {at} the update effect u is {} nats.", plain(&u));
    }
    said += &format!(
        " {passed} of {known} items pass the gate (right with old alone and with new alone, in both orders)."
    );
    if doses.without > 0 {
        said += &format!(" {} answers have no log-probabilities and are left out.", doses.without);
    }
    let held = Estimate::of(&per_item(cells, |cell| cell.number("no_update")));
    if let Some(held) = held.filter(|held| held.mean > 0.0) {
        said += &format!(" Without an update, the model prefers the stated value by {} nats.", plain(&held));
    }
    said
}

fn items(doses: &Doses) -> Sheet {
    let (at, cells) = base(doses);
    let over = |of: &dyn Fn(&Cell) -> Option<f64>| per_item(cells.iter().copied(), of);
    let held = over(&|cell| cell.number("no_update"));
    let below: Vec<f64> = held.iter().map(|held| f64::from(u8::from(*held < 0.0))).collect();
    let gated = over(&|cell| cell.u().filter(|_| doses.has_others() && cell.gate == Some(true)));
    let differences = over(&|cell| Some(cell.u()? - cell.number("no_update")?));
    let prior = over(&|cell| cell.number("b").map(f64::abs));
    let (blind, chance) = doses.blind.unzip();
    let chance = chance.map_or(String::new(), |chance| format!(" (chance: {}%)", percent(chance)));
    let rows = [
        ("update effect u (nats)".to_owned(), Estimate::of(&over(&Cell::u))),
        ("u of items that pass the gate (nats)".to_owned(), Estimate::of(&gated)),
        ("size of the value prior b (nats)".to_owned(), Estimate::of(&prior)),
        ("preference for the stated value without an update (nats)".to_owned(), Estimate::of(&held)),
        ("share of items that prefer another value (over-updating)".to_owned(), Estimate::share(&below)),
        ("u less that preference (nats)".to_owned(), Estimate::of(&differences)),
        (format!("share of blind twins that choose the current value{chance}"), blind),
    ];
    Columns::of(rows.iter().filter_map(|(name, estimate)| Some((name, estimate.as_ref()?))))
        .text(format!("at {at}"), |(name, _)| name.as_str())
        .number("mean", |(_, estimate)| plain(estimate))
        .number("items", |(_, estimate)| estimate.n)
        .sheet(Vec::new())
}

fn levels(doses: &Doses, sweep: &Sweep) -> Sheet {
    let column = |(name, head): (&'static str, &'static str)| {
        let items = sweep.by_item(&doses.cells, |cell| cell.number(name));
        let means = if name == "choice" { sweep.shares(&items) } else { sweep.means(&items) };
        is_known(&items).then_some((head, means))
    };
    let columns: Vec<(&str, Vec<Option<Estimate>>)> = LEVELS.into_iter().filter_map(column).collect();
    let items = |at: usize| columns.iter().filter_map(|(_, means)| Some(means[at]?.n)).max().unwrap_or(0);
    let mut table = Columns::of(sweep.levels().all.iter().enumerate())
        .text(&sweep.factor, |(_, level)| starred(level))
        .number("items", |(at, _)| items(at));
    for (head, means) in &columns {
        table = table.number(*head, |(at, _)| shown(means[at].as_ref()));
    }
    table.sheet(Vec::new())
}

/// One row per number of a factor with ordered levels: its trend, and its correlation with u within items.
fn trends(doses: &Doses, sweep: &Sweep) -> Sheet {
    let levels = sweep.levels();
    if !levels.scale.is_ordered() || levels.all.len() < 2 {
        return Sheet::default();
    }
    let u = sweep.by_item(&doses.cells, Cell::u);
    let row = |(name, words): (&str, &'static str)| {
        let items = sweep.by_item(&doses.cells, |cell| cell.number(name));
        let together = sweep.together(&items, &u).filter(|_| name != "u");
        is_known(&items).then(|| (words, sweep.trend(&items), together))
    };
    let rows: Vec<(&str, Trend, Option<Estimate>)> = TRENDS.into_iter().filter_map(row).collect();
    Columns::of(&rows)
        .text("trend of", |(words, ..)| *words)
        .number(format!("slope {}", levels.scale.unit()), |(_, trend, _)| shown(trend.slope.as_ref()))
        .number("sd of slopes", |(_, trend, _)| {
            trend.slope.and_then(|slope| slope.sd).map_or_else(|| "-".to_owned(), number)
        })
        .number("rho", |(_, trend, _)| shown(trend.spearman.as_ref()))
        .number("rho with u", |(.., together)| shown(together.as_ref()))
        .number("items", |(_, trend, _)| trend.slope.map_or(0, |slope| slope.n))
        .sheet(Vec::new())
}

/// Update effect by level of the first factor, then of the second.
fn grid(doses: &Doses, sweep: &Sweep) -> Sheet {
    let cells = sweep.grid(&doses.cells, Cell::u);
    let mut table = Columns::of(sweep.levels().all.iter().zip(&cells))
        .text(format!("u by {}", sweep.factor), |(level, _)| starred(level));
    for (at, level) in sweep.axes[1].all.iter().enumerate() {
        table = table.number(starred(level), |(_, row)| shown(row[at].as_ref()));
    }
    table.sheet(Vec::new())
}

/// The finding on a factor; `None` for a grid.
fn sentence(doses: &Doses, sweep: &Sweep) -> Option<String> {
    if sweep.is_grid() {
        return None;
    }
    let moved = |items: &ByItem<'_>| match sweep.levels().scale.is_ordered() {
        true => slope(sweep, items),
        false => differences(sweep, items),
    };
    let mut said = moved(&sweep.by_item(&doses.cells, Cell::u))
        .unwrap_or_else(|| "no item has the update effect u at two levels".to_owned());
    let gated = sweep.by_item(&doses.cells, |cell| cell.u().filter(|_| cell.gate == Some(true)));
    if let Some(gated) = moved(&gated).filter(|_| doses.has_others()) {
        said += &format!("; only items that pass the gate: {gated}");
    }
    said += ".";
    if let Some([time, place]) = recency(doses, sweep) {
        let mean = |values: &[(String, f64)]| {
            shown(Estimate::of(&values.iter().map(|(_, value)| *value).collect::<Vec<_>>()).as_ref())
        };
        said += &format!(
            " The later date accounts for {} nats of u, the later place for {} nats.",
            mean(&time),
            mean(&place)
        );
    }
    Some(format!("{}: {said}", sweep.factor))
}

fn slope(sweep: &Sweep, items: &ByItem<'_>) -> Option<String> {
    let slope = sweep.trend(items).slope?;
    let (per, n) = (sweep.levels().scale.unit(), slope.n);
    Some(format!("u changes by {} nats {per} over {}", plain(&slope), counted(n, "item")))
}

fn differences(sweep: &Sweep, items: &ByItem<'_>) -> Option<String> {
    let levels = &sweep.levels().all;
    let (how, estimates) = match (levels.iter().find(|level| level.base), sweep.against_base(items)) {
        (Some(base), Some(all)) => (format!("u against {}, within items", base.name), all),
        _ => ("u".to_owned(), sweep.means(items)),
    };
    let each = levels.iter().zip(&estimates);
    let each = each.filter_map(|(level, one)| Some(format!("{} {}", level.name, plain(one.as_ref()?))));
    let each: Vec<String> = each.collect();
    (!each.is_empty()).then(|| format!("{how}: {}", each.join(", ")))
}

/// Components of the update effect due to the later date and to the later position, by item. Their sum is u in date order; their difference
/// is u in crossed order. `None` for other factors.
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

/// One row per number of updates.
fn chains(levels: &[ChainLevel]) -> Sheet {
    let share = |share: Option<&Estimate>| {
        share.map_or_else(|| "-".to_owned(), |share| with_interval(share, percent))
    };
    let mut table =
        Columns::of(levels).text("updates", |level| level.updates).number("items", |level| level.items);
    for chosen in Chosen::ALL {
        table = table.number(format!("chose {} %", chosen.in_words()), |level| {
            share(level.chosen.iter().find(|(known, _)| *known == chosen).map(|(_, share)| share))
        });
    }
    table
        .number("chance %", |level| percent(level.chance))
        .number("old of the errors %", |level| share(level.old_of_errors.as_ref()))
        .number("primacy (nats)", |level| shown(level.positions.first()))
        .number("recency (nats)", |level| shown(level.positions.last()))
        .sheet(Vec::new())
}

/// PI-LLM's law: right choices by the logarithm of the number of updates.
fn law(chains: &Chains) -> Option<String> {
    let (factor, right) = (chains.factor.as_ref()?, chains.right_slope.as_ref()?);
    let contrast = chains.contrast_slope.as_ref();
    let contrast = contrast.map_or(String::new(), |slope| format!(", the contrast by {} nats", plain(slope)));
    let floor = match chains.is_floor() {
        true => ". Right choices are at chance at every number of updates, so they cannot fall",
        false => "",
    };
    Some(format!(
        "{factor}: twice as many updates change the share of right choices by {}{contrast}{floor}.",
        plain(right)
    ))
}

fn starred(level: &Level) -> String {
    format!("{}{}", level.name, if level.base { "*" } else { "" })
}

fn is_known(items: &ByItem<'_>) -> bool {
    items.iter().any(|(_, values)| values.iter().any(Option::is_some))
}

fn shown(estimate: Option<&Estimate>) -> String {
    estimate.map_or_else(|| "-".to_owned(), plain)
}

fn plain(estimate: &Estimate) -> String {
    with_interval(estimate, number)
}

fn with_interval(estimate: &Estimate, shown: fn(f64) -> String) -> String {
    let interval = estimate.interval;
    let interval = interval.map(|Interval { low, high }| format!(" [{}, {}]", shown(low), shown(high)));
    format!("{}{}", shown(estimate.mean), interval.unwrap_or_default())
}

/// Two decimals; small numbers get two significant digits.
fn number(value: f64) -> String {
    let digits = if value == 0.0 { 2 } else { (1 - value.abs().log10().floor() as i32).clamp(2, 6) as usize };
    let text = format!("{value:.digits$}");
    // A rounded zero has no sign.
    match text.trim_start_matches('-') {
        size if size.chars().all(|c| matches!(c, '0' | '.')) => size.to_owned(),
        _ => text,
    }
}
