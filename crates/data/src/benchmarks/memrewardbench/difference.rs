//! Patience diff of two texts by trimmed lines, for spans unique to a trajectory. Between anchors (unique common lines) it uses a longest
//! common subsequence, or a greedy match for large blocks.

use std::collections::HashMap;
use std::ops::Range;

const CELLS: usize = 1 << 20;

/// Byte ranges unique to `a` and to `b`: runs of adjacent lines, trimmed, without blank ones.
pub(super) fn alone(a: &str, b: &str) -> (Vec<Range<usize>>, Vec<Range<usize>>) {
    let (of_a, of_b) = (lines(a), lines(b));
    let mut common = (vec![false; of_a.len()], vec![false; of_b.len()]);
    for (i, j) in matches(&trimmed(a, &of_a), &trimmed(b, &of_b)) {
        (common.0[i], common.1[j]) = (true, true);
    }
    (stretches(a, &of_a, &common.0), stretches(b, &of_b, &common.1))
}

fn trimmed<'a>(text: &'a str, lines: &[Range<usize>]) -> Vec<&'a str> {
    lines.iter().map(|line| text.get(line.clone()).unwrap_or_default().trim()).collect()
}

fn lines(text: &str) -> Vec<Range<usize>> {
    let mut start = 0;
    let of = |line: &str| {
        let range = start..start + line.trim_end_matches(['\n', '\r']).len();
        start += line.len();
        range
    };
    text.split_inclusive('\n').map(of).collect()
}

/// Runs of unmatched lines. Blank lines neither start nor end a run.
fn stretches(text: &str, lines: &[Range<usize>], common: &[bool]) -> Vec<Range<usize>> {
    let mut found: Vec<Range<usize>> = Vec::new();
    let mut open = false;
    for (line, common) in lines.iter().zip(common) {
        let shown = text.get(line.clone()).unwrap_or_default();
        if shown.trim().is_empty() {
            continue;
        }
        if *common {
            open = false;
            continue;
        }
        let start = line.start + (shown.len() - shown.trim_start().len());
        let end = line.start + shown.trim_end().len();
        match found.last_mut().filter(|_| open) {
            Some(last) => last.end = end,
            None => found.push(start..end),
        }
        open = true;
    }
    found
}

fn matches(a: &[&str], b: &[&str]) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    // Explicit stack instead of recursion.
    let mut blocks = vec![(0..a.len(), 0..b.len())];
    while let Some((mut of_a, mut of_b)) = blocks.pop() {
        while let (Some(x), Some(y)) = (a.get(of_a.start), b.get(of_b.start))
            && of_a.start < of_a.end
            && of_b.start < of_b.end
            && x == y
        {
            found.push((of_a.start, of_b.start));
            (of_a.start, of_b.start) = (of_a.start + 1, of_b.start + 1);
        }
        while of_a.start < of_a.end && of_b.start < of_b.end && a[of_a.end - 1] == b[of_b.end - 1] {
            (of_a.end, of_b.end) = (of_a.end - 1, of_b.end - 1);
            found.push((of_a.end, of_b.end));
        }
        if of_a.is_empty() || of_b.is_empty() {
            continue;
        }
        let anchors = anchors(&a[of_a.clone()], &b[of_b.clone()]);
        if anchors.is_empty() {
            let inside = within(&a[of_a.clone()], &b[of_b.clone()]);
            found.extend(inside.into_iter().map(|(i, j)| (of_a.start + i, of_b.start + j)));
            continue;
        }
        let (mut from_a, mut from_b) = (of_a.start, of_b.start);
        for (i, j) in anchors {
            let (i, j) = (of_a.start + i, of_b.start + j);
            found.push((i, j));
            blocks.push((from_a..i, from_b..j));
            (from_a, from_b) = (i + 1, j + 1);
        }
        blocks.push((from_a..of_a.end, from_b..of_b.end));
    }
    found.sort_unstable();
    found
}

/// Longest increasing sequence of lines unique in both.
fn anchors(a: &[&str], b: &[&str]) -> Vec<(usize, usize)> {
    let mut seen: HashMap<&str, (Vec<usize>, Vec<usize>)> = HashMap::new();
    a.iter().enumerate().for_each(|(i, line)| seen.entry(line).or_default().0.push(i));
    b.iter().enumerate().for_each(|(j, line)| seen.entry(line).or_default().1.push(j));
    let once = |line: &&str| match seen.get(*line) {
        Some((i, j)) if i.len() == 1 && j.len() == 1 && !line.is_empty() => Some((i[0], j[0])),
        _ => None,
    };
    let pairs: Vec<(usize, usize)> = a.iter().filter_map(once).collect();
    longest_increasing(&pairs)
}

/// Pairs are sorted by first; increasing in second.
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
    let mut run = Vec::with_capacity(ends.len());
    let mut at = ends.last().copied();
    while let Some(pair) = at {
        run.push(pairs[pair]);
        at = before[pair];
    }
    run.reverse();
    run
}

fn within(a: &[&str], b: &[&str]) -> Vec<(usize, usize)> {
    let width = b.len() + 1;
    if (a.len() + 1).saturating_mul(width) > CELLS {
        let mut from = 0;
        let mut found = Vec::new();
        for (i, line) in a.iter().enumerate() {
            if let Some(step) = b[from..].iter().position(|other| other == line) {
                found.push((i, from + step));
                from += step + 1;
            }
        }
        return found;
    }
    let mut longest = vec![0u32; (a.len() + 1) * width];
    for i in (0..a.len()).rev() {
        for j in (0..b.len()).rev() {
            longest[i * width + j] = match a[i] == b[j] {
                true => longest[(i + 1) * width + j + 1] + 1,
                false => longest[(i + 1) * width + j].max(longest[i * width + j + 1]),
            };
        }
    }
    let (mut i, mut j, mut found) = (0, 0, Vec::new());
    while i < a.len() && j < b.len() {
        if a[i] == b[j] {
            found.push((i, j));
            (i, j) = (i + 1, j + 1);
        } else if longest[(i + 1) * width + j] >= longest[i * width + j + 1] {
            i += 1;
        } else {
            j += 1;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str, ranges: &[Range<usize>]) -> Vec<String> {
        ranges.iter().map(|range| text[range.clone()].to_owned()).collect()
    }

    #[test]
    fn neighbouring_lines_of_one_text_alone_are_one_stretch_and_blank_lines_none() {
        let a = "same\n  first\n\nsecond  \nsame too\n\n";
        let b = "same\nsame too\nlast";
        let (only_a, only_b) = alone(a, b);
        assert_eq!(shown(a, &only_a), ["first\n\nsecond"]);
        assert_eq!(shown(b, &only_b), ["last"]);
        assert_eq!(alone(a, a), (vec![], vec![]));
        let (only_a, only_b) = alone("x\r\ny", "");
        assert_eq!((only_a.len(), only_b.len()), (1, 0));
    }

    #[test]
    fn a_line_that_comes_once_more_is_alone_that_once() {
        let a = "step\nfact\nstep\nfact\nend";
        let b = "step\nfact\nend";
        let (only_a, only_b) = alone(a, b);
        assert!(only_b.is_empty());
        assert_eq!(shown(a, &only_a).join("\n").lines().count(), 2);
    }

    /// Compares with the plain LCS on short texts.
    #[test]
    fn what_is_left_of_both_is_the_same_and_what_has_no_counterpart_is_alone() {
        let mut draws = crate::case::draw::Draws::new("difference", 7, "lines");
        for round in 0..300 {
            let n = 3 + round % 9;
            let mut text =
                || (0..n).map(|_| ["a", "b", "c", "d", "e", "f"][draws.index(6)]).collect::<Vec<_>>();
            let (a, b) = (text(), text());
            let found = matches(&a, &b);
            assert!(found.windows(2).all(|w| w[0].0 < w[1].0 && w[0].1 < w[1].1), "{a:?} {b:?}");
            assert!(found.iter().all(|&(i, j)| a[i] == b[j]));
            let plain = within(&a, &b).len();
            assert!(found.len() <= plain && (plain == 0 || !found.is_empty()), "{a:?} {b:?}");
        }
    }
}
