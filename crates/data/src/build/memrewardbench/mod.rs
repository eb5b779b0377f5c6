//! MemoryRewardBench: what its build has of its own.

use std::path::Path;

use super::error::BuildError;
use super::row::Row;
use super::setting::Setting;
use super::table::{Kind, Published};

pub const KIND: Kind = Kind { name: "memrewardbench", presets: &[], makers: &[], checks: &[], write };

fn write(_: &Setting<'_>, _: &[Row], _: &Path) -> Result<Vec<Published>, BuildError> {
    Ok(Vec::new())
}
