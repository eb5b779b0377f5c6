//! Numbers per example and layer, computed from attention to spans, and groupings of examples. Pure: no files, no tensors.
//!
//! Benchmarks choose them in [`LensSpec`](super::LensSpec); `lens` computes them, figures draw one panel per measure. Each is computed on
//! mass and on density ([`Scale`]); a span outside a layer's window has no density.

use std::collections::BTreeMap;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scale {
    /// Share of a row token's attention; in linear layers, of the absolute implicit weights.
    Mass,
    /// Mass divided by the mass of uniform attention.
    Density,
}

impl Scale {
    pub const ALL: [Scale; 2] = [Scale::Mass, Scale::Density];

    pub fn key(self) -> &'static str {
        match self {
            Scale::Mass => "mass",
            Scale::Density => "density",
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub struct Measure {
    pub key: &'static str,
    /// Panel title: `joint lift over the neighbours`.
    pub label: &'static str,
    /// Definition for captions, lower case, without a full stop.
    pub about: &'static str,
    /// Scales drawn; tables have both.
    pub scales: &'static [Scale],
    /// Reference line: 1 for a lift, .5 for a balance.
    pub reference: Option<f64>,
    pub axis: Axis,
    /// Below the colour bar of a map, in two short lines.
    pub unit: [&'static str; 2],
    pub paired: &'static [&'static str],
    /// Also stored per head (mass), for layer-by-head maps.
    pub heads: bool,
    /// `None` if undefined or a span is missing.
    pub of: fn(&LayerSpans<'_>) -> Option<f64>,
}

impl Measure {
    /// Base for ratios to noise baselines, around 1.
    pub const LIFT: Self = Measure {
        key: "",
        label: "",
        about: "",
        scales: &Scale::ALL,
        reference: Some(1.0),
        axis: Axis::Logarithmic,
        unit: ["times", "baseline"],
        paired: &[],
        heads: false,
        of: |_| None,
    };

    /// Base for shares of one of two, around one half.
    pub const SHARE: Self = Measure {
        reference: Some(0.5),
        axis: Axis::Linear(0.0, 1.0),
        unit: ["share of", "the two"],
        ..Self::LIFT
    };

    pub fn is_paired(&self) -> bool {
        !self.paired.is_empty()
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Axis {
    /// Log scale: 2 is as far from 1 as 1/2.
    Logarithmic,
    /// Linear; includes (from, to).
    Linear(f64, f64),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeySpan {
    /// `session[3]`, `event[2].turn[1]`
    pub label: String,
    pub role: Option<String>,
    /// Overlaps other spans: a turn or bytes of a segment.
    pub overlay: bool,
    /// First token in the prompt; the sort key.
    pub start: usize,
    pub tokens: usize,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Amount {
    pub mass: f64,
    /// NaN if outside the layer's window.
    pub density: f64,
}

impl Amount {
    pub fn at(self, scale: Scale) -> Option<f64> {
        let value = match scale {
            Scale::Mass => self.mass,
            Scale::Density => self.density,
        };
        value.is_finite().then_some(value)
    }
}

/// Attention of a role's rows at one layer, averaged over heads and row tokens.
#[derive(Debug, Clone, Copy)]
pub struct RowAt<'a> {
    /// Role, or the name of a row without one (`last`, `answer`, `verdict`).
    pub role: &'a str,
    /// 0: all spans of the role pooled; from 1: single spans in prompt order.
    pub nth: usize,
    pub start: usize,
    pub mass: &'a [f64],
    /// Uniform attention mass per key span.
    pub share: &'a [f64],
    /// (key span index, noise baseline), for spans that have one.
    pub noise: &'a [(usize, Amount)],
}

#[derive(Debug, Clone, Copy)]
pub struct LayerSpans<'a> {
    pub keys: &'a [KeySpan],
    pub rows: &'a [RowAt<'a>],
    pub scale: Scale,
}

#[derive(Debug, Clone, Copy)]
pub struct Paid<'a> {
    pub span: &'a KeySpan,
    pub mass: f64,
    pub share: f64,
    /// Mass or density; `None` outside the layer's window.
    pub value: Option<f64>,
    pub noise: Option<f64>,
}

impl<'a> LayerSpans<'a> {
    pub fn row(&self, from: &str) -> Option<&'a RowAt<'a>> {
        self.rows.iter().find(|row| row.role == from && row.nth == 0)
    }

    pub fn paid(&self, from: &str, to: &[&str]) -> Vec<Paid<'a>> {
        self.row(from).map_or_else(Vec::new, |row| self.paid_by(row, to))
    }

    fn paid_by(&self, row: &RowAt<'a>, to: &[&str]) -> Vec<Paid<'a>> {
        let meant = |span: &KeySpan| span.role.as_deref().is_some_and(|role| to.contains(&role));
        let keys = self.keys.iter().zip(row.mass).zip(row.share).enumerate();
        let mut found: Vec<Paid<'a>> = keys
            .filter(|(_, ((span, _), _))| meant(span))
            .map(|(place, ((span, &mass), &share))| {
                let density = if share > 0.0 { mass / share } else { f64::NAN };
                let noise = row.noise.iter().find(|(key, _)| *key == place);
                Paid {
                    span,
                    mass,
                    share,
                    value: Amount { mass, density }.at(self.scale),
                    noise: noise.and_then(|(_, amount)| amount.at(self.scale)),
                }
            })
            .collect();
        found.sort_by_key(|paid| paid.span.start);
        found
    }

    /// Attention to all spans of some roles: sum of masses, or density of their union. `None` if there are none or none is visible.
    pub fn total(&self, from: &str, to: &[&str]) -> Option<f64> {
        let paid = self.paid(from, to);
        if paid.is_empty() {
            return None;
        }
        let mass: f64 = paid.iter().map(|one| one.mass).sum();
        let share: f64 = paid.iter().map(|one| one.share).sum();
        Amount { mass, density: mass / share }.at(self.scale)
    }

    /// Attention to evidence over its noise baselines, for evidence that has one; 1 is a neighbour's level. `None` if undefined.
    pub fn lift(&self, from: &str, to: &[&str]) -> Option<f64> {
        lift(&self.paid(from, to))
    }

    /// Share of `this` in the attention to both, in [0, 1].
    pub fn balance(&self, from: &str, this: &[&str], other: &[&str]) -> Option<f64> {
        share_of(self.total(from, this)?, self.total(from, other)?)
    }

    /// [`LayerSpans::balance`] of the role that comes first in the prompt.
    pub fn first_of(&self, from: &str, [one, other]: [&str; 2]) -> Option<f64> {
        let start = |role: &str| self.paid(from, &[role]).first().map(|paid| paid.span.start);
        let (first, second) = if start(one)? <= start(other)? { (one, other) } else { (other, one) };
        self.balance(from, &[first], &[second])
    }

    /// `None` without spans, or if any is outside the window.
    pub fn least(&self, from: &str, to: &[&str]) -> Option<f64> {
        self.values(from, to)?.into_iter().reduce(f64::min)
    }

    pub fn greatest(&self, from: &str, to: &[&str]) -> Option<f64> {
        self.paid(from, to).iter().filter_map(|paid| paid.value).reduce(f64::max)
    }

    /// Normalised entropy over several spans: 1 is uniform, 0 is one span only. `None` for fewer than two.
    pub fn evenness(&self, from: &str, to: &[&str]) -> Option<f64> {
        let values = self.values(from, to)?;
        let sum: f64 = values.iter().sum();
        if values.len() < 2 || sum <= 0.0 {
            return None;
        }
        let parts = values.iter().map(|value| value / sum).filter(|part| *part > 0.0);
        Some(parts.map(|part| -part * part.ln()).sum::<f64>() / (values.len() as f64).ln())
    }

    /// [`LayerSpans::lift`] from each span of a role to the earlier ones, pooled over pairs.
    pub fn look_back(&self, role: &str) -> Option<f64> {
        let each = self.rows.iter().filter(|row| row.role == role && row.nth > 0);
        let before = |row: &RowAt<'a>| {
            let start = row.start;
            self.paid_by(row, &[role]).into_iter().filter(move |paid| paid.span.start < start)
        };
        lift(&each.flat_map(before).collect::<Vec<_>>())
    }

    fn values(&self, from: &str, to: &[&str]) -> Option<Vec<f64>> {
        let values: Option<Vec<f64>> = self.paid(from, to).iter().map(|paid| paid.value).collect();
        values.filter(|values| !values.is_empty())
    }
}

fn lift(paid: &[Paid<'_>]) -> Option<f64> {
    let both = paid.iter().filter_map(|one| Some((one.value?, one.noise?)));
    let (value, noise) = both.fold((0.0, 0.0), |(value, noise), (v, n)| (value + v, noise + n));
    (noise > 0.0).then(|| value / noise)
}

fn share_of(this: f64, other: f64) -> Option<f64> {
    (this + other > 0.0).then(|| this / (this + other))
}

#[derive(Debug, Clone, Copy)]
pub struct Seen<'a> {
    pub labels: &'a BTreeMap<String, String>,
    pub facets: &'a BTreeMap<String, String>,
    /// `None` if conditions are paired.
    pub condition: Option<&'a str>,
    pub judged: &'a BTreeMap<String, Judged>,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Judged {
    pub answer: Option<String>,
    pub correct: Option<bool>,
    pub score: Option<f64>,
    pub choice: Option<String>,
}

impl Seen<'_> {
    pub fn here(&self) -> Option<&Judged> {
        self.judged.get(self.condition?)
    }

    pub fn under(&self, condition: &str) -> Option<&Judged> {
        self.judged.get(condition)
    }

    pub fn verdict(&self) -> &'static str {
        match self.here().and_then(|judged| judged.correct) {
            Some(true) => "right",
            Some(false) => "wrong",
            None => "not judged",
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub struct Grouping {
    pub key: &'static str,
    /// For titles: `relation and verdict`.
    pub label: &'static str,
    /// (row, line), row empty if there is only one; `None` leaves the example out.
    pub of: fn(&Seen<'_>) -> Option<(String, String)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(label: &str, role: &str, start: usize, tokens: usize) -> KeySpan {
        let role = (!role.is_empty()).then(|| role.to_owned());
        KeySpan { label: label.to_owned(), role, overlay: false, start, tokens }
    }

    fn near(found: Option<f64>, expected: f64) {
        assert!(found.is_some_and(|found| (found - expected).abs() < 1e-12), "{found:?}, not {expected}");
    }

    #[test]
    fn lifts_balances_and_extremes_are_their_plain_definitions_on_both_scales() {
        let keys = [
            key("s[3]", "late", 40, 30),
            key("s[0]", "", 0, 10),
            key("s[1]", "early", 10, 10),
            key("s[9]", "hidden", 70, 5),
        ];
        let noise = [(0, Amount { mass: 0.15, density: 0.5 }), (2, Amount { mass: 0.05, density: 0.5 })];
        let (mass, share) = (&[0.3, 0.2, 0.1, 0.0], &[0.3, 0.1, 0.1, 0.0]);
        let rows = [RowAt { role: "query", nth: 0, start: 75, mass, share, noise: &noise }];
        let both = ["early", "late"];
        let at = LayerSpans { keys: &keys, rows: &rows, scale: Scale::Mass };
        let order: Vec<&str> = at.paid("query", &both).iter().map(|paid| &*paid.span.label).collect();
        assert_eq!(order, ["s[1]", "s[3]"], "in the order of the prompt");
        near(at.lift("query", &both), (0.1 + 0.3) / (0.05 + 0.15));
        near(at.balance("query", &["late"], &["early"]), 0.3 / 0.4);
        near(at.first_of("query", ["late", "early"]), 0.1 / 0.4);
        near(at.least("query", &both), 0.1);
        near(at.greatest("query", &both), 0.3);
        let (a, b) = (0.25f64, 0.75f64);
        near(at.evenness("query", &both), -(a * a.ln() + b * b.ln()) / 2f64.ln());
        near(at.total("query", &both), 0.4);
        assert_eq!(at.lift("last", &["early"]), None, "no such row");
        assert_eq!(at.lift("query", &["hidden"]), None, "nothing stands in for it");
        assert_eq!(at.balance("query", &["early"], &["other"]), None);
        assert_eq!(at.evenness("query", &["early"]), None, "one alone");
        assert_eq!(at.first_of("query", ["early", "other"]), None);
        let at = LayerSpans { scale: Scale::Density, ..at };
        near(at.lift("query", &both), (1.0 + 1.0) / (0.5 + 0.5));
        near(at.balance("query", &["late"], &["early"]), 0.5);
        near(at.evenness("query", &both), 1.0);
        near(at.total("query", &both), 0.4 / 0.4);
        assert_eq!(at.least("query", &["early", "hidden"]), None, "one is hidden");
        near(at.greatest("query", &["early", "hidden"]), 1.0);
    }

    #[test]
    fn spans_of_one_role_look_back_at_those_before_them() {
        let keys =
            [key("s[0]", "target", 0, 10), key("s[2]", "target", 20, 10), key("s[4]", "target", 40, 10)];
        let noise = |mass: f64| Amount { mass, density: mass / 0.1 };
        let (second, third) = ([(0, noise(0.1)), (1, noise(0.3))], [(0, noise(0.05)), (1, noise(0.05))]);
        let row =
            |nth, start, mass, noise| RowAt { role: "target", nth, start, mass, share: &[0.1; 3], noise };
        let rows = [
            row(0, 0, &[0.9; 3], &second),
            row(1, 0, &[1.0, 0.0, 0.0], &[]),
            row(2, 20, &[0.3, 0.6, 0.0], &second),
            row(3, 40, &[0.1, 0.2, 0.6], &third),
        ];
        let at = LayerSpans { keys: &keys, rows: &rows, scale: Scale::Mass };
        // pairs (2, 1), (3, 1), (3, 2)
        near(at.look_back("target"), (0.3 + 0.1 + 0.2) / (0.1 + 0.05 + 0.05));
    }
}
