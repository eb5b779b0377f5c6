//! Rotary tables, cached per device for many positions, so that decode rarely uploads one. Tokens of branches at different positions
//! select their rows on the device.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use candle_core::{DType, Device, Result};

use crate::model::RopeSpec;
use crate::model::layers::Rope;
use crate::transfer;

/// Positions computed ahead.
const AHEAD: usize = 256;

#[derive(Debug, Default)]
pub(super) struct Ropes {
    kept: Mutex<Vec<Table>>,
}

#[derive(Debug)]
struct Table {
    spec: RopeSpec,
    device: Device,
    positions: Range<usize>,
    rope: Rope,
}

/// Tables of one forward pass, shared between layers.
pub(super) struct OfTokens<'a> {
    ropes: &'a Ropes,
    positions: &'a [usize],
    dtype: DType,
    made: Vec<(&'a RopeSpec, Device, Rope)>,
}

impl Ropes {
    /// `positions` must not be empty.
    pub fn of<'a>(&'a self, positions: &'a [usize], dtype: DType) -> OfTokens<'a> {
        OfTokens { ropes: self, positions, dtype, made: Vec::new() }
    }

    fn rows(&self, spec: &RopeSpec, positions: &[usize], dtype: DType, device: &Device) -> Result<Rope> {
        let (first, last) = (positions.iter().min(), positions.iter().max());
        let (Some(&first), Some(&last)) = (first, last) else {
            candle_core::bail!("This is a bug: rotary tables for no tokens");
        };
        if let Some(limit) = spec.limit().filter(|limit| last >= *limit) {
            candle_core::bail!(
                "position {last} is past the {limit} that this model's rotary factors are for (`short_factor`); \
                 those for longer contexts (`long_factor`) are not built, so keep prompt and answer within {limit} tokens"
            );
        }
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let of = |table: &Table| table.spec == *spec && table.device.same_device(device);
        let holds = |table: &Table| table.positions.start <= first && last < table.positions.end;
        let at = match kept.iter().position(|table| of(table) && holds(table)) {
            Some(at) => at,
            None => {
                kept.retain(|table| !of(table));
                let positions = first..last + 1 + AHEAD;
                let rope = Rope::new(spec, positions.clone(), dtype, device)?;
                kept.push(Table { spec: spec.clone(), device: device.clone(), positions, rope });
                kept.len() - 1
            }
        };
        let Table { positions: held, rope, .. } = &kept[at];
        if positions.windows(2).all(|pair| pair[0] + 1 == pair[1]) {
            return rope.narrow(first - held.start, positions.len());
        }
        let rows = positions.iter().map(|position| (position - held.start) as u32).collect();
        rope.select(&transfer::upload(rows, positions.len(), device)?)
    }
}

impl<'a> OfTokens<'a> {
    pub fn get(&mut self, spec: &'a RopeSpec, device: &Device) -> Result<&Rope> {
        let found = self.made.iter().position(|(made, on, _)| *made == spec && on.same_device(device));
        let at = match found {
            Some(at) => at,
            None => {
                let rope = self.ropes.rows(spec, self.positions, self.dtype, device)?;
                self.made.push((spec, device.clone(), rope));
                self.made.len() - 1
            }
        };
        Ok(&self.made[at].2)
    }
}
