//! Cohen's kappa: how far two raters agree beyond chance, of any number of categories.

/// The weight of a disagreement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weights {
    Plain,
    /// By the square of the distance between the categories, which are on a scale of even steps: scores.
    Quadratic,
}

/// Cohen's kappa of a square table: `table[i][j]` items are in category i by the one rater and in j by the other.
///
/// kappa = 1 - (observed disagreement) / (disagreement of independent raters with the same margins), each weighted. Absent for a
/// table that is empty or not square, and where independent raters would never disagree.
pub fn kappa<R: AsRef<[usize]>>(table: &[R], weights: Weights) -> Option<f64> {
    let rows: Vec<&[usize]> = table.iter().map(AsRef::as_ref).collect();
    if rows.iter().any(|row| row.len() != rows.len()) {
        return None;
    }
    let of_row: Vec<f64> = rows.iter().map(|row| row.iter().sum::<usize>() as f64).collect();
    let column = |j: usize| rows.iter().filter_map(|row| row.get(j)).sum::<usize>() as f64;
    let of_column: Vec<f64> = (0..rows.len()).map(column).collect();
    let n: f64 = of_row.iter().sum();
    let (mut observed, mut by_chance) = (0.0, 0.0);
    for (i, (row, in_row)) in rows.iter().zip(&of_row).enumerate() {
        for (j, (count, in_column)) in row.iter().zip(&of_column).enumerate() {
            let weight = match weights {
                Weights::Plain => f64::from(u8::from(i != j)),
                Weights::Quadratic => (i.abs_diff(j) as f64).powi(2),
            };
            observed += weight * *count as f64;
            by_chance += weight * in_row * in_column / n;
        }
    }
    let kappa = 1.0 - observed / by_chance;
    kappa.is_finite().then_some(kappa)
}

/// The table of pairs of categories, each below `categories`; a pair with another one is left out.
pub fn confusion(pairs: impl IntoIterator<Item = (usize, usize)>, categories: usize) -> Vec<Vec<usize>> {
    let mut table = vec![vec![0; categories]; categories];
    for (one, other) in pairs {
        if let Some(count) = table.get_mut(one).and_then(|row| row.get_mut(other)) {
            *count += 1;
        }
    }
    table
}
