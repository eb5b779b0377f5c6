//! Table 5 of the STALE paper (appendix D.4): context lengths in `o200k_base` tokens.

use crate::case::lengths::{PrintedLengths, TokenCounts};

/// Printed values; the mean session count is stated to be exactly 50.
pub(super) const TABLE_5: [PrintedLengths; 3] = [
    row("T1", 200, 593.37, [151_705.0, 151_505.0, 157_639.0], 162_693, 149_483.0),
    row("T2", 200, 593.42, [151_862.0, 152_264.0, 158_992.0], 164_919, 149_641.0),
    row("all", 400, 593.40, [151_784.0, 151_829.0, 158_657.0], 164_919, 149_562.0),
];

const fn row(
    split: &'static str,
    instances: usize,
    turns_mean: f64,
    [mean, median, p95]: [f64; 3],
    max: usize,
    content_mean: f64,
) -> PrintedLengths {
    let formatted = TokenCounts { mean, median, p95, max };
    PrintedLengths { split, instances, sessions_mean: 50.0, turns_mean, formatted, content_mean }
}
