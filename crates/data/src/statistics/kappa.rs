//! Cohen's kappa for any number of categories.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weights {
    Plain,
    /// Squared distance between ordinal categories (scores).
    Quadratic,
}

/// Cohen's weighted kappa: 1 - observed / expected disagreement. `None` if the table is empty or not square, or none is expected.
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

/// Confusion matrix; pairs with a category outside `categories` are skipped.
pub fn confusion(pairs: impl IntoIterator<Item = (usize, usize)>, categories: usize) -> Vec<Vec<usize>> {
    let mut table = vec![vec![0; categories]; categories];
    for (one, other) in pairs {
        if let Some(count) = table.get_mut(one).and_then(|row| row.get_mut(other)) {
            *count += 1;
        }
    }
    table
}
