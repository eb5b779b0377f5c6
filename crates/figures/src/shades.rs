//! Colour scales of maps: discrete, so that equal cells merge.

use super::axis::{value_ticks, write_value};
use super::canvas::{TICK, units, write};
use super::drawing::{Drawing, Form};
use super::style::{Colour, GREY};
use palimpsest_analysis::lens::Scale;

#[derive(Debug, Clone)]
pub struct Shades {
    /// True for attention: logarithmic, dark is high. False: linear and diverging around white.
    pub of_attention: bool,
    low: f64,
    high: f64,
    ticks: Vec<f64>,
    percent: bool,
    /// Below the scale.
    unit: [&'static str; 2],
    /// Cells show their numbers.
    pub numbers: bool,
    /// Counts: all cells; cells beyond the ends (attention: below); zeros among those.
    cells: (usize, usize, usize),
}

const STEPS: i32 = 40;
/// Near white to blue to near black; lightness falls monotonically, so it works in greyscale.
const DARKENING: [u32; 5] = [0xfafbfd, 0xc6dbef, 0x5ca0ce, 0x10589e, 0x06204e];
/// Vermillion over white to blue.
const DIVERGING: [u32; 3] = [0xd55e00, 0xffffff, 0x0072b2];

impl Shades {
    pub fn of(values: &[f64], scale: Scale) -> Self {
        let high = values.iter().copied().fold(0.0, f64::max).max(1e-9);
        let low = values.iter().copied().filter(|v| *v > 0.0).fold(high, f64::min);
        // more than three decades would leave no contrast at high attention
        let low = low.max(high / 1000.0);
        let low = if low < high { low } else { high / 10.0 };
        let below = values.iter().filter(|value| **value < low).count();
        let zero = values.iter().filter(|value| **value == 0.0).count();
        let (percent, unit) = match scale {
            Scale::Mass => (true, ["share of", "attention"]),
            Scale::Density => (false, ["times", "uniform"]),
        };
        let cells = (values.len(), below, zero);
        let ticks = value_ticks(low, high);
        Shades { of_attention: true, low, high, ticks, percent, unit, numbers: false, cells }
    }

    /// Shades of effects; the range covers all but one in a hundred cells.
    pub fn of_effects(values: &[f64]) -> Self {
        Shades::around(values, 0.0, ["log p lost", "per token"], 100)
    }

    /// Diverging scale; the range covers all but one in `most` cells.
    pub fn around(values: &[f64], middle: f64, unit: [&'static str; 2], most: usize) -> Self {
        let mut sizes: Vec<f64> = values.iter().map(|value| (value - middle).abs()).collect();
        sizes.sort_by(f64::total_cmp);
        let reach = sizes.len().checked_sub(1 + sizes.len() / most).and_then(|at| sizes.get(at));
        let reach = reach.copied().unwrap_or(0.0).max(1e-9);
        let beyond = sizes.iter().filter(|size| **size > reach).count();
        let ticks = vec![middle - reach / 2.0, middle, middle + reach / 2.0];
        let (low, high, cells) = (middle - reach, middle + reach, (sizes.len(), beyond, 0));
        Shades { of_attention: false, low, high, ticks, percent: false, unit, numbers: false, cells }
    }

    pub fn in_words(&self) -> String {
        let (all, beyond, zero) = self.cells;
        let [low, high] = [self.low, self.high].map(|value| self.written(value));
        let beyond_it = match beyond {
            0 => String::new(),
            _ => format!("; {beyond} of {all} cells lie beyond and have the darkest shade"),
        };
        let zero = if zero == 0 { String::new() } else { format!(", {zero} of them 0") };
        match (self.of_attention, beyond) {
            (true, 0) => format!(" Shades from {low}, the least cell, to {high}, the greatest."),
            (true, _) => format!(
                " Shades from {low} to {high}, the greatest cell; {beyond} of {all} cells lie below and have the lightest shade{zero}."
            ),
            (false, _) => format!(
                " White is 0, blue above and orange below, darker the farther; the scale ends at {high}{beyond_it}."
            ),
        }
    }

    fn written(&self, value: f64) -> String {
        write_value(value, self.percent)
    }

    pub fn step(&self, value: f64) -> i32 {
        let Shades { low, high, .. } = *self;
        let share = match self.of_attention {
            true => (value.max(low) / low).ln() / (high / low).ln(),
            false => (value - low) / (high - low),
        };
        (share.clamp(0.0, 1.0) * f64::from(STEPS)).round() as i32
    }

    pub fn colour(&self, step: i32) -> Colour {
        let stops: &[u32] = if self.of_attention { &DARKENING } else { &DIVERGING };
        let at = f64::from(step) / f64::from(STEPS) * (stops.len() - 1) as f64;
        let below = (at.floor() as usize).min(stops.len() - 2);
        let [from, to] = [below, below + 1].map(|stop| stops[stop].to_be_bytes().map(f64::from));
        let mix = |c: usize| (from[c] + (to[c] - from[c]) * (at - below as f64)).round() as u8;
        Colour(mix(1), mix(2), mix(3))
    }

    /// The scale as a bar at (left, top), in pixels.
    pub fn draw(&self, area: &mut Drawing, (left, top): (i32, i32), height: i32) {
        const WIDTH: i32 = 12;
        let low = top + height;
        let at = |step: i32| low - step * height / (STEPS + 1);
        for step in 0..=STEPS {
            let corners = [(left, at(step + 1)), (left + WIDTH, at(step))];
            area.fill(Form::Rectangle(corners.map(units)), self.colour(step));
        }
        area.outline([(left, top), (left + WIDTH, low)].map(units), GREY);
        let beyond = self.cells.1 > 0;
        let less = if beyond { "≤ " } else { "" };
        let more = if beyond && !self.of_attention { "≥ " } else { "" };
        let [least, greatest] = [self.low, self.high].map(|value| self.written(value));
        let mut label = |text: &str, middle: i32| write(area, text, (left + WIDTH + 5, middle - 7), TICK);
        label(&format!("{less}{least}"), low);
        label(&format!("{more}{greatest}"), top);
        for tick in &self.ticks {
            let step = self.step(*tick);
            let middle = (at(step) + at(step + 1)) / 2;
            if middle - top >= 14 && low - middle >= 14 {
                label(&self.written(*tick), middle);
            }
        }
        for (line, text) in (0..).zip(self.unit) {
            write(area, text, (left, low + 9 + 12 * line), TICK);
        }
    }
}
