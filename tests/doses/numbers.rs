//! Every value of a synthetic run against a plain definition.

use palimpsest::dose::answer::Chosen;
use palimpsest::dose::cell::{Cell, per_item};
use palimpsest::dose::chains::Chains;
use palimpsest::dose::estimate::{Estimate, slope};
use palimpsest::dose::sweep::{Scale, Sweep};
use palimpsest::dose::words::recency;
use palimpsest::dose::{DoseOptions, Doses};
use palimpsest::statistics::rank::spearman;

use super::made::{self, CHAINS, DISTANCES, LAYERS, Made, NEVER, SHARE};

fn open(made: Made, options: &DoseOptions) -> (tempfile::TempDir, Doses) {
    let dir = tempfile::tempdir().unwrap();
    made::write(dir.path(), made);
    let doses = Doses::open(dir.path(), options).unwrap();
    (dir, doses)
}

fn usual() -> (tempfile::TempDir, Doses) {
    open(Made::USUAL, &DoseOptions::default())
}

fn factor<'a>(doses: &'a Doses, name: &str) -> &'a Sweep {
    doses.sweeps.iter().find(|sweep| sweep.factor == name).unwrap()
}

fn near(found: f64, expected: f64) {
    assert!((found - expected).abs() < 1e-6, "{found} is not {expected}");
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Student's t at 97.5% with 5 degrees of freedom, from a printed table.
const T5: f64 = 2.570_581_8;

#[test]
fn the_update_effect_and_the_prior_are_those_that_were_put_in() {
    let (_dir, doses) = usual();
    assert_eq!(doses.cells.len(), Made::USUAL.items * made::rows().len());
    for item in 0..Made::USUAL.items {
        let own: Vec<&Cell> = doses.cells.iter().filter(|cell| cell.item == format!("item-{item}")).collect();
        for (cell, factors) in own.iter().zip(made::rows()) {
            near(cell.u().unwrap(), Made::USUAL.effect(item, &factors));
            near(cell.number("b").unwrap(), Made::USUAL.prior(item));
            assert_eq!(cell.exact, Some(0.5));
        }
        near(own[0].number("no_update").unwrap(), Made::USUAL.held(item));
        near(own[0].number("over_updating").unwrap(), (-Made::USUAL.held(item)).max(0.0));
        assert_eq!(own[1].number("no_update"), None);
    }
}

#[test]
fn a_model_that_only_knows_priors_has_no_update_effect_at_all() {
    let (_dir, doses) = open(Made { prior_only: true, ..Made::USUAL }, &DoseOptions::default());
    for cell in &doses.cells {
        assert_eq!(cell.u(), Some(0.0));
        assert!(cell.number("b").unwrap() != 0.0);
    }
    let said = palimpsest::dose::words::text(&doses);
    assert!(said.contains("distance: u changes by 0.00 nats a doubling over 6 items"), "{said}");
}

#[test]
fn a_trend_is_the_mean_over_items_of_slopes_and_ranks_within_items() {
    let (_dir, doses) = usual();
    let sweep = factor(&doses, "distance");
    assert_eq!(sweep.levels().scale, Scale::Tokens);
    let names: Vec<&str> = sweep.levels().all.iter().map(|level| level.name.as_str()).collect();
    assert_eq!(names, DISTANCES.map(|tokens| tokens.to_string()));
    assert!(sweep.levels().all[0].base && !sweep.levels().all[1].base);
    let u = sweep.by_item(&doses.cells, Cell::u);
    let trend = sweep.trend(&u);
    // By construction the slope of item i is -0.3 - 0.02 i per doubling.
    let slopes: Vec<f64> = (0..6).map(|item| -0.3 - 0.02 * f64::from(item)).collect();
    let found = trend.slope.unwrap();
    near(found.mean, mean(&slopes));
    let sd = (slopes.iter().map(|s| (s - mean(&slopes)).powi(2)).sum::<f64>() / 5.0).sqrt();
    near(found.sd.unwrap(), sd);
    // The slopes are symmetric about their mean, so the interval is Student's.
    let reach = T5 * sd / 6f64.sqrt();
    near(found.interval.unwrap().low, mean(&slopes) - reach);
    near(found.interval.unwrap().high, mean(&slopes) + reach);
    near(trend.spearman.unwrap().mean, -1.0);
    for (level, estimate) in sweep.means(&u).iter().enumerate() {
        let at: Vec<f64> = u.iter().filter_map(|(_, values)| values[level]).collect();
        near(estimate.unwrap().mean, mean(&at));
    }
    let mass = sweep.by_item(&doses.cells, |cell| cell.number("mass_query_new"));
    near(sweep.together(&u, &mass).unwrap().mean, 1.0);
    // A value that is constant over the levels has no correlation with u.
    let back = sweep.by_item(&doses.cells, |cell| cell.number("mass_new_old"));
    assert!(sweep.together(&u, &back).is_none());
}

#[test]
fn levels_without_an_order_are_held_against_the_base() {
    let (_dir, doses) = usual();
    let sweep = factor(&doses, "speaker");
    assert_eq!(sweep.levels().scale, Scale::Names);
    let u = sweep.by_item(&doses.cells, Cell::u);
    let against = sweep.against_base(&u).unwrap();
    assert!(against[0].is_none());
    near(against[1].unwrap().mean, -0.5);
    assert!(sweep.trend(&u).slope.is_none());
}

#[test]
fn crossed_histories_part_recency_of_time_from_recency_of_place() {
    let (_dir, doses) = usual();
    let [time, place] = recency(&doses, factor(&doses, "order")).unwrap();
    for item in 0..6 {
        let straight = 2.0 + 0.1 * item as f64;
        near(time[item].1, (straight + 0.25 * straight) / 2.0);
        near(place[item].1, (straight - 0.25 * straight) / 2.0);
    }
    assert!(recency(&doses, factor(&doses, "speaker")).is_none());
}

#[test]
fn grids_have_a_mean_a_pair_of_levels() {
    let (_dir, doses) = usual();
    let sweep = factor(&doses, "distance*tail");
    let grid = sweep.grid(&doses.cells, Cell::u);
    for (row, distance) in [256, 512].into_iter().enumerate() {
        for (column, tail) in [0, 1, 2].into_iter().enumerate() {
            // At a tail of 0 the rows of the base level and of the distance sweep are in the grid.
            let factors = made::rows().into_iter().find(|f| f.distance == distance && f.tail == tail);
            let expected =
                factors.map(|f| mean(&(0..6).map(|i| Made::USUAL.effect(i, &f)).collect::<Vec<_>>()));
            let found = grid[row][column].map(|estimate| estimate.mean);
            assert_eq!(found.is_some(), expected.is_some(), "{distance} {tail}");
            if let (Some(found), Some(expected)) = (found, expected) {
                near(found, expected);
            }
        }
    }
}

#[test]
fn the_gate_needs_both_sessions_alone_to_be_right_in_both_orders() {
    let (_dir, doses) = usual();
    let passes = |item: usize| {
        let (held, b) = (Made::USUAL.held(item), Made::USUAL.prior(item).abs());
        held - b > 0.0 && held + 1.0 - b > 0.0
    };
    let passed: Vec<usize> = (0..6).filter(|item| passes(*item)).collect();
    assert_eq!(doses.gate, (passed.len(), 6));
    assert!(!passed.is_empty() && passed.len() < 6);
    for cell in &doses.cells {
        let item: usize = cell.item.trim_start_matches("item-").parse().unwrap();
        assert_eq!(cell.gate, Some(passes(item)), "{item}");
    }
    let (_dir, gated) = open(Made::USUAL, &DoseOptions { gated: true, ..DoseOptions::default() });
    assert_eq!(gated.items().len(), passed.len());
    // Blind: item priors decide, and with two values chance is one half.
    let (share, chance) = doses.blind.unwrap();
    near(chance, 0.5);
    near(share.mean, (0..6).filter(|item| Made::USUAL.prior(*item) >= 0.0).count() as f64 / 6.0);
    let plain = palimpsest::statistics::wilson(4, 6, 0.95);
    assert_eq!(share.interval, plain);
}

#[test]
fn chains_have_primacy_recency_and_errors_of_old_values() {
    let (_dir, doses) = usual();
    let chains = Chains::of(&doses).unwrap();
    assert_eq!(chains.factor.as_deref(), Some("chain"));
    assert_eq!(chains.levels.iter().map(|level| level.updates).collect::<Vec<_>>(), CHAINS);
    let never = mean(&NEVER);
    for (level, chain) in chains.levels.iter().zip(CHAINS) {
        let factors = made::rows().into_iter().find(|f| f.chain == chain).unwrap();
        let u: Vec<f64> = (0..6).map(|item| Made::USUAL.effect(item, &factors)).collect();
        near(level.contrast.unwrap().mean, mean(&u));
        assert_eq!(level.positions.len(), chain + 1);
        near(level.positions.last().unwrap().mean, -3.0 + mean(&u) - never);
        let first = if chain == 1 { -3.0 } else { -1.0 };
        near(level.positions[0].mean, first - never);
        near(level.chance, 1.0 / (chain + 1 + 2) as f64);
        // Reference choice: correct if the current value leads all others.
        let right = |item: usize| {
            let (u, b) = (Made::USUAL.effect(item, &factors), Made::USUAL.prior(item));
            let most = if chain == 1 { -3.0 } else { -1.0 };
            let of = |lead: f64| f64::from(u8::from(-3.0 + lead >= most));
            (of(u + b) + of(u - b)) / 2.0
        };
        let rights: Vec<f64> = (0..6).map(right).collect();
        near(level.right().unwrap().mean, mean(&rights));
        let first = level.chosen.iter().find(|(chosen, _)| *chosen == Chosen::First).unwrap().1;
        near(first.mean, 1.0 - mean(&rights));
        if let Some(old) = level.old_of_errors {
            near(old.mean, 1.0);
        }
    }
    // The contrast falls by 0.4 per update: least squares on the logarithms 0, 1 and 2 of drops 0, 0.4 and 1.2.
    near(chains.contrast_slope.unwrap().mean, -0.6);
}

#[test]
fn attention_and_effects_are_means_over_heads_layers_and_orders() {
    let (_dir, doses) = usual();
    for (cell, nth) in doses.cells.iter().zip((0..made::rows().len()).cycle()) {
        let item: usize = cell.item.trim_start_matches("item-").parse().unwrap();
        let factors = &made::rows()[nth];
        for (from, to) in [("query", "new"), ("query", "old"), ("new", "old"), ("last", "new")] {
            let by_layer: Vec<f64> =
                (0..LAYERS).map(|layer| made::mass(from, to, item, factors, layer)).collect();
            near(cell.number(&format!("mass_{from}_{to}")).unwrap(), mean(&by_layer));
            near(cell.number(&format!("density_{from}_{to}")).unwrap(), mean(&by_layer) / SHARE);
            near(cell.number(&format!("share_{from}_{to}")).unwrap(), SHARE);
            let layers = &cell.by_layer[&format!("density_{from}_{to}")];
            for (found, mass) in layers.iter().zip(&by_layer) {
                near(*found, mass / SHARE);
            }
        }
        near(cell.number("value_norm_query_old").unwrap(), 0.75 * (item + 1) as f64);
        near(cell.number("value_norm_answer_new").unwrap(), 3.0 * 0.75 * (item + 1) as f64);
        // Causal: no session attends to a later one.
        assert_eq!(cell.number("mass_new_new"), None);
        near(cell.number("blocked_new").unwrap(), 1.0 + item as f64 - 0.02);
        near(cell.number("blocked_old").unwrap(), -0.52);
        near(cell.number("removed_new").unwrap(), 2.0 + item as f64 - 0.02);
        // No control was blocked at these layers alone.
        near(cell.number("blocked_new@0-2").unwrap(), 0.7);
    }
}

#[test]
fn estimates_are_students_and_slopes_least_squares() {
    let values = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
    let found = Estimate::of(&values).unwrap();
    let sd = 3.5f64.sqrt();
    near(found.mean, 3.5);
    near(found.sd.unwrap(), sd);
    near(found.interval.unwrap().low, 3.5 - T5 * sd / 6f64.sqrt());
    assert_eq!(Estimate::of(&[2.0, 2.0]).unwrap().interval, None);
    assert_eq!(Estimate::of(&[]), None);
    // Wilson's interval of two of three begins at 0.208.
    assert!(Estimate::share(&[0.0, 1.0, 1.0]).unwrap().is_above(0.2));
    assert!(!Estimate::share(&[0.0, 1.0, 1.0]).unwrap().is_above(0.21));
    // The interval of a mean of bounded values stays within the bounds, even if all are equal.
    let within = Estimate::between(&[1.0, 1.0, 1.0], (-1.0, 1.0)).unwrap();
    assert!(within.mean == 1.0 && within.interval.unwrap().high <= 1.0 && within.interval.unwrap().low < 1.0);
    // By the other form of the normal equations.
    let (x, y) = ([0.0, 1.0, 2.0, 5.0], [1.0, -2.0, 0.5, 7.0]);
    let sum = |f: &dyn Fn(usize) -> f64| (0..4).map(f).sum::<f64>();
    let (sx, sy) = (sum(&|i| x[i]), sum(&|i| y[i]));
    let plain = (4.0 * sum(&|i| x[i] * y[i]) - sx * sy) / (4.0 * sum(&|i| x[i] * x[i]) - sx * sx);
    near(slope(&x, &y).unwrap(), plain);
    assert_eq!(slope(&[1.0, 1.0], &[0.0, 1.0]), None);
    // Spearman without ties: 1 - 6 sum of squared differences of ranks / n (n^2 - 1).
    let ranks = |values: &[f64]| -> Vec<f64> {
        values.iter().map(|v| values.iter().filter(|w| *w < v).count() as f64 + 1.0).collect()
    };
    let squares: f64 = ranks(&x).iter().zip(ranks(&y)).map(|(a, b)| (a - b).powi(2)).sum();
    near(spearman(&x, &y).unwrap(), 1.0 - 6.0 * squares / (4.0 * 15.0));
}

#[test]
fn an_item_of_several_questions_counts_once() {
    let cell = |item: &str, probe: &str, u: f64| Cell {
        item: item.to_owned(),
        probe: probe.to_owned(),
        contrasts: [(("update", "ab"), u + 1.0), (("update", "ba"), u - 1.0)].into(),
        ..Cell::default()
    };
    let cells = [cell("a", "p", 1.0), cell("b", "p", 4.0), cell("a", "q", 2.0)];
    assert_eq!(per_item(&cells, Cell::u), [1.5, 4.0]);
    assert_eq!(per_item(&cells, |cell| cell.number("no_update")), [0.0; 0]);
}
