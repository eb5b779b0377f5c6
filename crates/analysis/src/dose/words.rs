//! Findings of a dose run as sentences, and one short table per factor.

use super::Doses;
use super::cell::{Cell, per_item};
use super::chains::{ChainLevel, Chains};
use super::estimate::Estimate;
use super::sweep::{ByItem, Sweep, Trend};
use palimpsest_data::ground::numbers::percent;
use palimpsest_data::ground::table::aligned;
use palimpsest_data::statistics::Interval;

const FEW: usize = 5;

/// Numbers with trends reported beside the update effect: name, description, unit.
const BESIDE: [(&str, &str, &str); 10] = [
    ("mass_query_new", "mass of the query to new", ""),
    ("density_query_new", "density of the query to new", ""),
    ("value_norm_query_new", "value norm of the query to new", ""),
    ("mass_query_old", "mass of the query to old", ""),
    ("density_query_old", "density of the query to old", ""),
    ("value_norm_query_old", "value norm of the query to old", ""),
    ("blocked_new", "effect of blocking new", " nats"),
    ("blocked_old", "effect of blocking old", " nats"),
    ("removed_new", "effect of removing new", " nats"),
    ("removed_old", "effect of removing old", " nats"),
];

pub fn overview(doses: &Doses) -> String {
    let base: Vec<&Cell> = doses.cells.iter().filter(|cell| cell.is_base()).collect();
    let at = if base.is_empty() { "all levels" } else { "the base level" };
    let cells: Vec<&Cell> = if base.is_empty() { doses.cells.iter().collect() } else { base };
    let over = |cells: &[&Cell], name: &str| {
        Estimate::of(&per_item(cells.iter().copied(), |cell| cell.number(name)))
    };
    let mut said = format!(
        "{} by {}: {} items, {} factors varied.",
        doses.dataset,
        doses.model,
        doses.items().len(),
        doses.sweeps.len()
    );
    if doses.gated {
        said += " Items that pass the gate alone.";
    }
    if let Some(u) = over(&cells, "u") {
        said += &format!(" At {at} the update effect u is {}", nats(&u));
        let gated: Vec<&Cell> = cells.iter().filter(|cell| cell.gate == Some(true)).copied().collect();
        if let Some(u) = over(&gated, "u").filter(|_| doses.has_others()) {
            said += &format!(", of items that pass the gate {}", nats(&u));
        }
        said += ".";
    }
    let spread = per_item(cells.iter().copied(), |cell| cell.number("b").map(f64::abs));
    if let Some(b) = Estimate::of(&spread) {
        said += &format!(" The value prior b has a mean size of {}.", nats(&b));
    }
    match doses.gate {
        (_, 0) => {
            said += " The gate is not known: there are no twins without the old or without the new session.";
        }
        (passed, of) => {
            said += &format!(
                " {passed} of {of} items pass the gate (right with old alone and with new alone, in both orders)."
            );
        }
    }
    if let Some((share, chance)) = &doses.blind {
        said += &format!(
            " Without either session the current value is chosen in {} of the blind twins, by chance in {}%.",
            shares(share),
            percent(*chance)
        );
    }
    if doses.without > 0 {
        said += &format!(" {} answers have no log-probabilities and are left out.", doses.without);
    }
    said + &over_updating(&cells)
}

fn over_updating(cells: &[&Cell]) -> String {
    let held = per_item(cells.iter().copied(), |cell| cell.number("no_update"));
    let Some(estimate) = Estimate::of(&held) else { return String::new() };
    let below: Vec<f64> = held.iter().map(|held| f64::from(u8::from(*held < 0.0))).collect();
    let mut said = format!(
        " Without an update the value that held leads one that was never given by {}",
        nats(&estimate)
    );
    if let Some(share) = Estimate::share(&below) {
        said += &format!("; it trails in {} of the items (over-updating)", shares(&share));
    }
    let differences = per_item(cells.iter().copied(), |cell| Some(cell.u()? - cell.number("no_update")?));
    if let Some(difference) = Estimate::of(&differences) {
        said += &format!("; u less that is {}", nats(&difference));
    }
    said + "."
}

/// Sentences on a factor: trends of the update effect, attention and causes, and attention from the new session to the old one.
pub fn sentences(doses: &Doses, sweep: &Sweep) -> Vec<String> {
    if sweep.is_grid() {
        return vec![grid(doses, sweep)];
    }
    let u = sweep.by_item(&doses.cells, Cell::u);
    let factor = &sweep.factor;
    if sweep.levels().all.len() < 2 {
        return vec![format!("{factor}: one level, so that nothing can be said of it.")];
    }
    if !u.iter().any(|(_, values)| values.iter().any(Option::is_some)) {
        return vec![format!("{factor}: no item has both orders of the update, so that there is no u.")];
    }
    let mut all = Vec::new();
    if sweep.levels().scale.is_ordered() {
        let mut said = moves(sweep, &u, "u", " nats");
        let gated = sweep.by_item(&doses.cells, |cell| cell.u().filter(|_| cell.gate == Some(true)));
        if doses.has_others() && is_known(&gated) {
            said += &format!("; of items that pass the gate {}", moves(sweep, &gated, "u", " nats"));
        }
        all.push(format!("{factor}: {said}."));
    } else {
        all.push(format!("{factor}: {}.", differences(sweep, &u)));
    }
    let mut beside = Vec::new();
    for (name, words, unit) in BESIDE {
        let numbers = sweep.by_item(&doses.cells, |cell| cell.number(name));
        if !is_known(&numbers) {
            continue;
        }
        let mut said = match sweep.levels().scale.is_ordered() {
            true => moves(sweep, &numbers, words, unit),
            false => format!("{words}: {}", differences(sweep, &numbers)),
        };
        if let Some(rho) = sweep.together(&numbers, &u) {
            said += &format!(", with u within items at rho {}", plain(&rho));
        }
        beside.push(said);
    }
    all.extend(beside.iter().map(|said| format!("{}.", capital(said))));
    all.extend(new_to_old(doses, sweep));
    all.extend(places(doses, sweep));
    all
}

/// The waiting hypothesis: does a dose raise the new session's attention to the old one?
fn new_to_old(doses: &Doses, sweep: &Sweep) -> Option<String> {
    let mut parts = Vec::new();
    for (name, words) in [("mass_new_old", "s(new \u{2192} old)"), ("density_new_old", "its density")] {
        let numbers = sweep.by_item(&doses.cells, |cell| cell.number(name));
        if !is_known(&numbers) {
            continue;
        }
        parts.push(match sweep.levels().scale.is_ordered() {
            true => moves(sweep, &numbers, words, ""),
            false => format!("{words}: {}", differences(sweep, &numbers)),
        });
    }
    (!parts.is_empty()).then(|| format!("{}.", parts.join("; ")))
}

/// Recency of position and of time, if order and date are crossed.
fn places(doses: &Doses, sweep: &Sweep) -> Option<String> {
    let [time, place] = recency(doses, sweep)?;
    let of =
        |values: &[(String, f64)]| Estimate::of(&values.iter().map(|(_, value)| *value).collect::<Vec<_>>());
    Some(format!(
        "Of u, recency of time makes up {} and recency of place {}.",
        nats(&of(&time)?),
        nats(&of(&place)?)
    ))
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

/// Example: `u falls by 0.31 nats a doubling [0.12, 0.50] over 32 items`, plus Spearman's correlation and the SD of slopes between items.
fn moves(sweep: &Sweep, items: &ByItem<'_>, words: &str, unit: &str) -> String {
    let Trend { spearman, slope } = sweep.trend(items);
    let Some(slope) = slope else {
        return format!("{words} has no slope: no item has it at two levels with a place on the axis");
    };
    let (n, per) = (slope.n, sweep.levels().scale.unit());
    let size = |value: f64| number(value.abs());
    let most = items
        .iter()
        .flat_map(|(_, values)| values.iter().flatten())
        .fold(0.0, |most: f64, x| most.max(x.abs()));
    if slope.mean.abs() <= 1e-12 * most && slope.sd.is_none_or(|sd| sd <= 1e-12 * most) {
        return format!("{words} does not change at all over {n} items");
    }
    let Some(interval) = slope.interval else {
        let verb = if slope.mean < 0.0 { "falls" } else { "rises" };
        return format!(
            "{words} {verb} by {}{unit} {per} over {n} item{}: too few for an interval",
            size(slope.mean),
            if n == 1 { "" } else { "s" }
        );
    };
    let mut said = match slope.side() {
        0 => format!(
            "{words} does not move ({}{unit} {per} {} over {n} items",
            number(slope.mean),
            bracket(interval)
        ),
        side => {
            let (verb, ends) = match side {
                1 => ("rises", interval),
                _ => ("falls", Interval { low: -interval.high, high: -interval.low }),
            };
            format!("{words} {verb} by {}{unit} {per} {} over {n} items (", size(slope.mean), bracket(ends))
        }
    };
    let mut beside = Vec::new();
    if let Some(rho) = spearman {
        beside.push(format!("rho {}", plain(&rho)));
    }
    if let Some(sd) = slope.sd {
        beside.push(format!("sd of slopes {}", number(sd)));
    }
    if n < FEW {
        beside.push("few items".to_owned());
    }
    if slope.side() == 0 && !beside.is_empty() {
        said += "; ";
    }
    said + &beside.join("; ") + ")"
}

/// Differences to the base level, for unordered levels.
fn differences(sweep: &Sweep, items: &ByItem<'_>) -> String {
    let levels = &sweep.levels().all;
    let (Some(base), Some(all)) = (levels.iter().find(|level| level.base), sweep.against_base(items)) else {
        let means = levels.iter().zip(sweep.means(items));
        let each = means.filter_map(|(level, mean)| Some(format!("{} {}", level.name, plain(&mean?))));
        return format!(
            "levels without an order, and none is the base: {}",
            each.collect::<Vec<_>>().join(", ")
        );
    };
    let each = levels
        .iter()
        .zip(all)
        .filter_map(|(level, difference)| Some(format!("{} {}", level.name, plain(&difference?))));
    let each: Vec<String> = each.collect();
    match each[..] {
        [] => "no item has it at two levels".to_owned(),
        _ => format!("against {}, within items: {}", base.name, each.join(", ")),
    }
}

fn grid(doses: &Doses, sweep: &Sweep) -> String {
    let cells = sweep.grid(&doses.cells, Cell::u);
    let all = cells.iter().enumerate().flat_map(|(row, of)| {
        of.iter().enumerate().filter_map(move |(column, estimate)| Some((row, column, (*estimate)?)))
    });
    let all: Vec<(usize, usize, Estimate)> = all.collect();
    let name = |row: usize, column: usize| {
        let level = |axis: usize, at: usize| {
            let levels = &sweep.axes[axis];
            format!("{} {}", levels.factor, levels.all[at].name)
        };
        format!("{} and {}", level(0, row), level(1, column))
    };
    let by = |a: &&(usize, usize, Estimate), b: &&(usize, usize, Estimate)| a.2.mean.total_cmp(&b.2.mean);
    let (Some(least), Some(most)) = (all.iter().min_by(by), all.iter().max_by(by)) else {
        return format!("{}: no item has both orders of the update.", sweep.factor);
    };
    format!(
        "{}: u is largest at {} ({}) and smallest at {} ({}).",
        sweep.factor,
        name(most.0, most.1),
        nats(&most.2),
        name(least.0, least.1),
        nats(&least.2)
    )
}

pub fn chains(chains: &Chains) -> Vec<String> {
    let mut all: Vec<String> = chains.levels.iter().map(of_level).collect();
    if let Some(factor) = &chains.factor {
        let mut said = format!("{factor}: ");
        said += &match &chains.right_slope {
            None => "no item has two numbers of updates, so that the law cannot be tested".to_owned(),
            Some(slope) if chains.is_floor() => format!(
                "a floor: at no number of updates are right choices above chance by their interval, so that accuracy has nowhere to fall \
                 from (slope {} a doubling of the updates)",
                plain(slope)
            ),
            Some(slope) => format!(
                "the share of right choices {} with the logarithm of the number of updates ({} a doubling)",
                ["falls", "does not move", "rises"][(slope.side() + 1) as usize],
                plain(slope)
            ),
        };
        if let Some(slope) = &chains.contrast_slope {
            said += &format!(
                "; the contrast {} ({} a doubling)",
                ["falls", "does not move", "rises"][(slope.side() + 1) as usize],
                plain(slope)
            );
        }
        all.push(said + ".");
    }
    all
}

fn of_level(level: &ChainLevel) -> String {
    let count = |n: usize, word: &str| format!("{n} {word}{}", if n == 1 { "" } else { "s" });
    let (updates, items) = (count(level.updates, "update"), count(level.items, "item"));
    let chosen = level
        .chosen
        .iter()
        .filter(|(chosen, share)| share.mean > 0.0 || *chosen == super::answer::Chosen::Current);
    let chosen: Vec<String> =
        chosen.map(|(chosen, share)| format!("{} in {}", chosen.in_words(), shares(share))).collect();
    let mut said = format!(
        "{updates}, {items}: the likeliest value is {} (chance {}%)",
        chosen.join(", "),
        percent(level.chance)
    );
    if let Some(old) = &level.old_of_errors {
        said += &format!("; of the errors {} are old values", shares(old));
    }
    if let [first, .., last] = &level.positions[..] {
        said += &format!(
            "; over values never given the first leads by {} (primacy), the last by {} (recency)",
            nats(first),
            nats(last)
        );
    }
    said + "."
}

pub fn table(doses: &Doses, sweep: &Sweep) -> String {
    const COLUMNS: [(&str, &str); 8] = [
        ("u", "u"),
        ("no_update", "no update"),
        ("choice", "choice"),
        ("mass_query_new", "mass q>new"),
        ("density_query_new", "density q>new"),
        ("density_query_old", "density q>old"),
        ("density_new_old", "density new>old"),
        ("blocked_new", "blocked new"),
    ];
    let all: Vec<(&str, &str, ByItem<'_>)> = (COLUMNS.into_iter())
        .map(|(name, words)| (name, words, sweep.by_item(&doses.cells, |cell| cell.number(name))))
        .filter(|(.., items)| is_known(items))
        .collect();
    let mut rows = vec![vec![sweep.factor.clone(), "items".to_owned()]];
    rows[0].extend(all.iter().map(|(_, words, _)| (*words).to_owned()));
    let means = |(name, _, items): &(&str, &str, ByItem<'_>)| match *name {
        "choice" => sweep.shares(items),
        _ => sweep.means(items),
    };
    let means: Vec<Vec<Option<Estimate>>> = all.iter().map(means).collect();
    for (at, level) in sweep.levels().all.iter().enumerate() {
        let items = means.iter().filter_map(|of| of[at].map(|estimate| estimate.n)).max().unwrap_or(0);
        let mark = if level.base { "*" } else { "" };
        let mut row = vec![format!("{}{mark}", level.name), items.to_string()];
        row.extend(means.iter().map(|of| of[at].as_ref().map_or_else(|| "-".to_owned(), plain)));
        rows.push(row);
    }
    aligned(&rows, |column| column > 0)
}

pub fn text(doses: &Doses) -> String {
    let mut text = overview(doses) + "\n";
    for sweep in &doses.sweeps {
        text += "\n";
        if !sweep.is_grid() {
            text += &table(doses, sweep);
        }
        for (at, sentence) in sentences(doses, sweep).iter().enumerate() {
            text += &format!("{}{sentence}\n", if at > 0 { "  " } else { "" });
        }
    }
    if let Some(found) = Chains::of(doses) {
        text += "\n";
        for sentence in chains(&found) {
            text += &format!("{sentence}\n");
        }
    }
    text + "\n" + NOTE + "\n"
}

pub const NOTE: &str = "Brackets are 95% intervals over items, each for itself; * marks the base level.";

pub fn paragraphs(doses: &Doses) -> Vec<String> {
    let mut all = vec![overview(doses)];
    all.extend(doses.sweeps.iter().map(|sweep| sentences(doses, sweep).join(" ")));
    all.extend(Chains::of(doses).map(|found| chains(&found).join(" ")));
    all.push("Brackets are 95% intervals over items, each for itself.".to_owned());
    all
}

fn capital(said: &str) -> String {
    let mut letters = said.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

fn is_known(items: &ByItem<'_>) -> bool {
    items.iter().any(|(_, values)| values.iter().any(Option::is_some))
}

fn nats(estimate: &Estimate) -> String {
    let interval = estimate.interval.map(|interval| format!(" {}", bracket(interval))).unwrap_or_default();
    format!("{} nats{interval}", number(estimate.mean))
}

fn plain(estimate: &Estimate) -> String {
    let interval = estimate.interval.map(|interval| format!(" {}", bracket(interval))).unwrap_or_default();
    format!("{}{interval}", number(estimate.mean))
}

fn shares(share: &Estimate) -> String {
    let interval =
        share.interval.map(|Interval { low, high }| format!(" [{}, {}]", percent(low), percent(high)));
    format!("{}%{} ({})", percent(share.mean), interval.unwrap_or_default(), share.n)
}

fn bracket(Interval { low, high }: Interval) -> String {
    format!("[{}, {}]", number(low), number(high))
}

/// Two decimals; small numbers get two significant digits.
fn number(value: f64) -> String {
    let digits = if value == 0.0 { 2 } else { (1 - value.abs().log10().floor() as i32).clamp(2, 6) as usize };
    let text = format!("{value:.digits$}");
    // Drop the sign of a rounded zero.
    if text.trim_start_matches('-').chars().all(|c| matches!(c, '0' | '.')) {
        return text.trim_start_matches('-').to_owned();
    }
    text
}
