//! Order of a history's sessions and the fillers between them. Greedy packing: fillers in stream order while they fit, the last cut at a
//! sentence end. A larger dose contains all whole fillers of a smaller one.

use palimpsest_core::text::{CountTokens, TextError};

use super::error::Unmade;
use super::factors::{Factors, Fillers, Order};
use super::fillers::{Filler, Stream, beginnings};
use super::session::{digits, tokens};
use crate::benchmarks::dose::terms::{NEW, OLD};
use crate::case::Turn;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    Old,
    RestatedOld(usize),
    /// Intermediate value of a chain, from 1.
    Mid(usize),
    New,
    RestatedNew(usize),
    Echo(usize),
    Lure(usize),
    Other(usize),
}

impl Part {
    pub fn key(self) -> String {
        match self {
            Part::Old => OLD.to_owned(),
            Part::RestatedOld(n) => format!("restated-old-{n}"),
            Part::Mid(n) => format!("mid-{n}"),
            Part::New => NEW.to_owned(),
            Part::RestatedNew(n) => format!("restated-new-{n}"),
            Part::Echo(n) => format!("echo-{n}"),
            Part::Lure(n) => format!("lure-{n}"),
            Part::Other(n) => format!("other-{n}"),
        }
    }
}

#[derive(Debug, Clone)]
pub enum Slot {
    Part(Part),
    Filler { filler: Filler, shown: Vec<Turn> },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Length {
    pub requested: usize,
    pub reached: usize,
}

impl Length {
    /// Misses the request by more than 1% and 64 tokens.
    fn is_missed(self) -> bool {
        self.requested.abs_diff(self.reached) > (self.requested / 100).max(64)
    }
}

#[derive(Debug, Clone)]
pub struct Layout {
    pub slots: Vec<Slot>,
    /// Before, between and after the pair.
    pub lengths: [Length; 3],
}

impl Layout {
    pub fn place(&self, wanted: Part) -> Option<usize> {
        self.slots.iter().position(|slot| matches!(slot, Slot::Part(part) if *part == wanted))
    }
}

pub const STRETCHES: [&str; 3] = ["depth_old", "distance", "tail"];

#[derive(Default)]
pub struct Digits(Vec<isize>);

impl Digits {
    /// Token difference between this session number and a two-digit one.
    pub fn at(&mut self, place: usize, count: &dyn CountTokens) -> Result<isize, TextError> {
        while self.0.len() <= place {
            self.0.push(digits(count, self.0.len())?);
        }
        Ok(self.0[place])
    }
}

pub fn lay_out(
    factors: &Factors,
    session: usize,
    streams: &mut [Stream<'_>; 3],
    digits: &mut Digits,
    count: &dyn CountTokens,
) -> Result<Layout, Unmade> {
    let (first, second) = match factors.order {
        Order::Place => (Part::Old, Part::New),
        Order::Crossed => (Part::New, Part::Old),
    };
    let restated = (0..factors.restated_old).map(Part::RestatedOld);
    let of_chain: Vec<Part> = restated.chain((1..factors.chain).map(Part::Mid)).collect();
    let lures =
        |rest: usize| (0..factors.lures).filter(move |n| n % 2 == rest).map(Part::Lure).collect::<Vec<_>>();
    let others: Vec<Part> = (0..factors.others).map(Part::Other).collect();
    let restated: Vec<Part> = (0..factors.restated_new).map(Part::RestatedNew).collect();
    let echoes: Vec<Part> = (0..factors.echoes).map(Part::Echo).collect();
    let parts = [vec![], vec![of_chain, lures(0), others], vec![restated, lures(1), echoes]];
    let requested = [factors.depth_old, factors.distance, factors.tail];
    let mut slots: Vec<Slot> = Vec::new();
    let mut lengths = [Length::default(); 3];
    for (stretch, lists) in parts.into_iter().enumerate() {
        let start = slots.len() + 1;
        let evidence: usize = lists.iter().map(Vec::len).sum();
        let mut packed = Packed { start, sessions: evidence, tokens: 0 };
        for nth in 0..evidence {
            packed.tokens += session as isize + digits.at(start + nth, count)?;
        }
        let mut fillers = Vec::new();
        if factors.fillers != Fillers::None {
            let target = requested[stretch] as isize;
            let name = STRETCHES[stretch];
            fillers = packed.fill(target, &mut streams[stretch], digits, count)?.ok_or_else(|| {
                Unmade::Dropped(format!("the given fillers end before {name} has {target} tokens"))
            })?;
        }
        let length = Length { requested: requested[stretch], reached: packed.tokens.max(0) as usize };
        if factors.fillers != Fillers::None && length.is_missed() {
            let (name, Length { requested, reached }) = (STRETCHES[stretch], length);
            let reason = format!("{name} has {reached} tokens where {requested} are asked for");
            return Err(Unmade::Dropped(reason));
        }
        lengths[stretch] = length;
        let lists = lists.into_iter().map(|parts| parts.into_iter().map(Slot::Part).collect());
        slots.extend(spread(lists.chain([fillers])));
        match stretch {
            0 => slots.push(Slot::Part(first)),
            1 => slots.push(Slot::Part(second)),
            _ => {}
        }
    }
    Ok(Layout { slots, lengths })
}

/// Packing state: number of the first session, sessions, tokens.
struct Packed {
    start: usize,
    sessions: usize,
    tokens: isize,
}

impl Packed {
    /// Adds fillers up to `target` tokens; `None` if they run out.
    fn fill(
        &mut self,
        target: isize,
        stream: &mut Stream<'_>,
        digits: &mut Digits,
        count: &dyn CountTokens,
    ) -> Result<Option<Vec<Slot>>, TextError> {
        let mut fillers = Vec::new();
        while self.tokens < target {
            let Some((filler, cost)) = stream.get(fillers.len(), count)? else {
                // Accept a shortfall of up to 64 tokens.
                return Ok((target - self.tokens <= 64).then_some(fillers));
            };
            let of_place = digits.at(self.start + self.sessions, count)?;
            let whole = cost as isize + of_place;
            if self.tokens + whole <= target {
                let shown = filler.turns.clone();
                fillers.push(Slot::Filler { filler, shown });
                self.tokens += whole;
                self.sessions += 1;
                continue;
            }
            // Cut the last filler to the closest length, or drop it.
            let missing = target - self.tokens;
            let mut best: Option<(Vec<Turn>, isize)> = None;
            let mut error = missing;
            for cut in beginnings(&filler.turns) {
                let tokens = tokens(count, &cut)? as isize + of_place;
                if (tokens - missing).abs() < error {
                    error = (tokens - missing).abs();
                    best = Some((cut, tokens));
                }
                if tokens >= missing {
                    break;
                }
            }
            if let Some((shown, tokens)) = best {
                fillers.push(Slot::Filler { filler, shown });
                self.tokens += tokens;
                self.sessions += 1;
            }
            break;
        }
        Ok(Some(fillers))
    }
}

/// Interleaves lists evenly, keeping each list's order.
fn spread(lists: impl IntoIterator<Item = Vec<Slot>>) -> Vec<Slot> {
    let mut placed: Vec<(f64, Slot)> = Vec::new();
    for list in lists {
        let len = list.len() as f64;
        placed.extend(list.into_iter().enumerate().map(|(at, slot)| ((at as f64 + 0.5) / len, slot)));
    }
    placed.sort_by(|a, b| a.0.total_cmp(&b.0));
    placed.into_iter().map(|(_, slot)| slot).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_spread_evenly_and_keep_their_order() {
        let list = |parts: &[Part]| parts.iter().copied().map(Slot::Part).collect::<Vec<_>>();
        let lures: Vec<Part> = (0..4).map(Part::Lure).collect();
        let merged = spread([list(&[Part::Mid(1), Part::Mid(2)]), list(&lures)]);
        let keys = merged.iter().map(|slot| match slot {
            Slot::Part(part) => part.key(),
            Slot::Filler { .. } => String::new(),
        });
        assert_eq!(keys.collect::<Vec<_>>(), ["lure-0", "mid-1", "lure-1", "lure-2", "mid-2", "lure-3"]);
    }
}
