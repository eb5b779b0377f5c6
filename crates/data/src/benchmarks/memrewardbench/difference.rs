//! Lines that one of two texts has alone: a longest common subsequence of lines (Hunt and Szymanski 1977).

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

/// Occurrences of a repeated line are compared only if their ordinal numbers differ by at most this.
const NEAR: usize = 32;

/// Byte ranges unique to `a` and to `b`: runs of adjacent lines, trimmed, without blank ones.
pub fn alone(a: &str, b: &str) -> (Vec<Range<usize>>, Vec<Range<usize>>) {
    let (of_a, of_b) = (lines(a), lines(b));
    let (in_a, in_b) = common(&of_a, &of_b).into_iter().unzip();
    (stretches(&of_a, &in_a), stretches(&of_b, &in_b))
}

/// Lines that are not blank, trimmed, with their offsets.
fn lines(text: &str) -> Vec<(usize, &str)> {
    let offset = |line: &str| line.as_ptr() as usize - text.as_ptr() as usize;
    let shown = text.lines().map(str::trim).filter(|line| !line.is_empty());
    shown.map(|line| (offset(line), line)).collect()
}

fn stretches(lines: &[(usize, &str)], common: &BTreeSet<usize>) -> Vec<Range<usize>> {
    let alone: Vec<usize> = (0..lines.len()).filter(|at| !common.contains(at)).collect();
    let stretch = |run: &[usize]| {
        let [(start, _), (last, line)] = [run[0], run[run.len() - 1]].map(|at| lines[at]);
        start..last + line.len()
    };
    alone.chunk_by(|one, next| one + 1 == *next).map(stretch).collect()
}

fn common(a: &[(usize, &str)], b: &[(usize, &str)]) -> Vec<(usize, usize)> {
    let same = a.iter().zip(b).take_while(|(x, y)| x.1 == y.1).count();
    // Places in `b`, and how often `a` had the line so far.
    let mut places: HashMap<&str, (Vec<usize>, usize)> = HashMap::new();
    for (j, (_, line)) in b.iter().enumerate().skip(same) {
        places.entry(line).or_default().0.push(j);
    }
    let mut pairs = Vec::new();
    for (i, (_, line)) in a.iter().enumerate().skip(same) {
        let Some((places, seen)) = places.get_mut(line) else { continue };
        let near = places.iter().take(*seen + NEAR).skip(seen.saturating_sub(NEAR)).rev();
        pairs.extend(near.map(|j| (i, *j)));
        *seen += 1;
    }
    (0..same).map(|at| (at, at)).chain(longest_increasing(&pairs)).collect()
}

/// Pairs are sorted by first, then by falling second; increasing in both.
fn longest_increasing(pairs: &[(usize, usize)]) -> Vec<(usize, usize)> {
    // By length: the index of the run's smallest end; and each pair's predecessor.
    let mut ends: Vec<usize> = Vec::new();
    let mut before: Vec<Option<usize>> = Vec::with_capacity(pairs.len());
    for (at, &(_, second)) in pairs.iter().enumerate() {
        let length = ends.partition_point(|&end| pairs[end].1 < second);
        before.push(length.checked_sub(1).map(|shorter| ends[shorter]));
        match ends.get_mut(length) {
            Some(end) => *end = at,
            None => ends.push(at),
        }
    }
    let mut run: Vec<_> = std::iter::successors(ends.last().copied(), |at| before[*at]).collect();
    run.reverse();
    run.into_iter().map(|at| pairs[at]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbouring_lines_of_one_text_alone_are_one_stretch_and_blank_lines_none() {
        let (a, b) = ("same\n  first\n\nsecond  \nsame too\n\n", "same\nsame too\nlast");
        let (only_a, only_b) = alone(a, b);
        assert_eq!((only_a.len(), &a[only_a[0].clone()]), (1, "first\n\nsecond"));
        assert_eq!((only_b.len(), &b[only_b[0].clone()]), (1, "last"));
        assert_eq!(alone(a, a), (vec![], vec![]));
        let (only_a, only_b) = alone("x\r\ny", "");
        assert_eq!((only_a.len(), only_b.len()), (1, 0));
        let (only_a, only_b) = alone("step\nfact\nstep\nfact\nend", "step\nfact\nend");
        assert_eq!((only_a.len(), only_a[0].clone(), only_b.len()), (1, 10..19, 0));
    }

    /// By the recursion that defines it.
    fn longest(a: &[(usize, &str)], b: &[(usize, &str)]) -> usize {
        match (a, b) {
            ([x, rest_a @ ..], [y, rest_b @ ..]) if x.1 == y.1 => 1 + longest(rest_a, rest_b),
            ([_, rest_a @ ..], [_, rest_b @ ..]) => longest(rest_a, b).max(longest(a, rest_b)),
            _ => 0,
        }
    }

    #[test]
    fn as_many_lines_as_possible_are_common() {
        let mut draws = crate::case::draw::Draws::new("difference", 7, "lines");
        for round in 0..300 {
            let mut text =
                || (0..3 + round % 6).map(|_| ["a\n", "b\n", "c\n", "d\n"][draws.index(4)]).collect();
            let (a, b): (String, String) = (text(), text());
            let (a, b) = (lines(&a), lines(&b));
            let found = common(&a, &b);
            assert!(found.windows(2).all(|w| w[0].0 < w[1].0 && w[0].1 < w[1].1), "{a:?} {b:?}");
            assert!(found.iter().all(|&(i, j)| a[i].1 == b[j].1));
            assert_eq!(found.len(), longest(&a, &b), "{a:?} {b:?}");
        }
    }
}
