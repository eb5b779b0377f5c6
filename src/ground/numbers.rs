//! Quantiles.

/// The quantile `q` in [0, 1] of ascending numbers, interpolated linearly between ranks as NumPy does by default (Hyndman and
/// Fan's type 7); NaN of no numbers.
pub fn quantile(ascending: &[f64], q: f64) -> f64 {
    let position = q.clamp(0.0, 1.0) * ascending.len().saturating_sub(1) as f64;
    let below = position.floor() as usize;
    let Some(&low) = ascending.get(below) else { return f64::NAN };
    let high = ascending.get(below + 1).copied().unwrap_or(low);
    low + (high - low) * (position - below as f64)
}
