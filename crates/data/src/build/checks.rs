//! Checks that all kinds have.

use super::table::Check;

pub const CHECKS: &[(&str, Check)] = &[];
