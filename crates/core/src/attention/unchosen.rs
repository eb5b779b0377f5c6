//! Keys that an indexer's choice hides from rows.

use std::ops::Range;

/// Keys that consecutive rows do not see because an indexer did not choose them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Unchosen {
    first_row: usize,
    /// By row: ascending, disjoint, non-adjacent ranges.
    rows: Vec<Vec<Range<usize>>>,
}

impl Unchosen {
    /// `rows`: the hidden keys of each row from position `first_row` on, as ascending, disjoint, non-adjacent ranges.
    pub fn new(first_row: usize, rows: Vec<Vec<Range<usize>>>) -> Self {
        Unchosen { first_row, rows }
    }

    /// Keys hidden from the row at `position`.
    pub fn row(&self, position: usize) -> &[Range<usize>] {
        let row = position.checked_sub(self.first_row);
        row.and_then(|row| self.rows.get(row)).map_or(&[], Vec::as_slice)
    }

    /// True if no key is hidden.
    pub fn is_empty(&self) -> bool {
        self.rows.iter().all(Vec::is_empty)
    }
}

/// The keys that a row does not choose by `scores`, one per key: all but the `count` largest of those not `hidden`. Keys in `shown` are
/// chosen in addition unless they are hidden. Of equal scores the earlier key is chosen.
pub(super) fn unchosen(
    scores: &[f32],
    count: usize,
    hidden: &[Range<usize>],
    shown: impl Iterator<Item = Range<usize>>,
) -> Vec<Range<usize>> {
    let n = scores.len();
    let inside = |keys: &Range<usize>| keys.start.min(n)..keys.end.min(n);
    let mut open = vec![true; n];
    hidden.iter().for_each(|keys| open[inside(keys)].fill(false));
    let mut keys: Vec<usize> = (0..n).filter(|key| open[*key]).collect();
    if keys.len() > count {
        // 0 and -0 are one score.
        let score = |key: &usize| scores[*key] + 0.0;
        keys.select_nth_unstable_by(count, |a, b| score(b).total_cmp(&score(a)).then(a.cmp(b)));
        keys.truncate(count);
    }
    let mut chosen = vec![false; n];
    keys.iter().for_each(|key| chosen[*key] = true);
    for keys in shown {
        inside(&keys).for_each(|key| chosen[key] = open[key]);
    }
    let mut rest = Vec::new();
    let mut from = 0;
    for run in chosen.chunk_by(|a, b| a == b) {
        if !run[0] {
            rest.push(from..from + run.len());
        }
        from += run.len();
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_scores_are_chosen_of_keys_that_are_not_hidden_and_what_is_shown_in_addition() {
        let scores = [0.5, 2.0, -1.0, 2.0, 0.0, -0.0, 3.0];
        let none = || std::iter::empty();
        assert!(unchosen(&scores, 9, &[], none()).is_empty());
        assert_eq!(unchosen(&scores, 2, &[], none()), [0..1, 2..6]);
        assert_eq!(unchosen(&scores, 5, &[], none()), [2..3, 5..6]);
        assert_eq!(unchosen(&scores, 0, &[], none()), [0..7]);
        assert_eq!(unchosen(&scores, 2, &[5..usize::MAX], none()), [0..1, 2..3, 4..7]);
        assert_eq!(unchosen(&scores, 9, &[0..2], none()), [0..2]);
        assert_eq!(unchosen(&scores, 2, &[1..2, 5..6], [0..2, 4..usize::MAX].into_iter()), [1..3, 5..6]);
        assert!(unchosen(&[], 2, &[0..3], none()).is_empty());
        let rows = Unchosen::new(4, vec![vec![0..1], vec![]]);
        assert_eq!(
            (rows.row(3), rows.row(4), rows.row(5), rows.row(6)),
            (&[][..], &[0..1][..], &[][..], &[][..])
        );
        assert!(!rows.is_empty() && Unchosen::new(4, vec![vec![]]).is_empty());
    }
}
