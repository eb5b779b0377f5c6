//! Quantiles and number formats.

/// Quantile `q` in [0, 1] of sorted numbers, linear interpolation (NumPy's default, Hyndman and Fan type 7); NaN if empty.
pub fn quantile(ascending: &[f64], q: f64) -> f64 {
    let position = q.clamp(0.0, 1.0) * ascending.len().saturating_sub(1) as f64;
    let below = position.floor() as usize;
    let Some(&low) = ascending.get(below) else { return f64::NAN };
    let high = ascending.get(below + 1).copied().unwrap_or(low);
    low + (high - low) * (position - below as f64)
}

/// Percent with one decimal, ties away from zero: 0.3125 is `31.3`. Exact for ratios of integers below 500 million.
pub fn percent(share: f64) -> String {
    let tenths = (share.abs() * 1000.0 + 0.5 + 1e-9).floor();
    let sign = if share < 0.0 && tenths > 0.0 { "-" } else { "" };
    format!("{sign}{:.1}", tenths / 10.0)
}

/// JSON number, integers without a decimal point; null if not finite.
pub fn in_json(number: f64) -> serde_json::Value {
    match number as i64 {
        whole if whole as f64 == number => whole.into(),
        _ => number.into(),
    }
}

/// Format of p-values in tables: `0.0312`, `1.9e-6`.
pub fn p_value(p: f64) -> String {
    if p < 0.0001 { format!("{p:.1e}") } else { format!("{p:.4}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_have_no_decimal_point_in_json() {
        let written = [4.0, 4.5, 0.0, -0.0, f64::NAN].map(|number| in_json(number).to_string());
        assert_eq!(written, ["4", "4.5", "0", "0", "null"]);
    }

    #[test]
    fn percentages_round_ties_up_and_nothing_else() {
        for n in 1..=400_u64 {
            for k in 0..=n {
                let tenths = (2000 * k + n) / (2 * n);
                assert_eq!(
                    percent(k as f64 / n as f64),
                    format!("{}.{}", tenths / 10, tenths % 10),
                    "{k}/{n}"
                );
            }
        }
        for (share, text) in
            [(0.3125, "31.3"), (-0.3125, "-31.3"), (-0.0004, "0.0"), (0.0, "0.0"), (1.0, "100.0")]
        {
            assert_eq!(percent(share), text);
        }
    }
}
