//! The constraints of a long-form question, and the question with a part of them (MemoryRewardBench, appendix D.4).
//!
//! The paper samples whole constraints in proportion and does not say what counts as one. Here it is:
//!
//! - a sentence that begins with `You can travel from`: a route of LongProc's;
//! - an item `1)`, `2)`, ... numbered in order, from its number to the next one's or to the end of its line;
//! - a line that begins with a bullet (`-`, `*`, `+`, `•`) or with a number and a full stop.
//!
//! The rest of the question, with the numbers of the items that stay, is left as it is. At 100% the question is unchanged, at 0%
//! all constraints are gone. Which go is drawn by the seed and the case, the same way at every density, so that what is kept at one
//! density is kept at every higher one.

use std::ops::Range;

use crate::data::draw::Draws;

/// How a route of a path puzzle begins.
const ROUTE: &str = "You can travel from ";

/// Where the constraints stand, ascending.
pub(super) fn constraints(question: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let (mut start, mut number) = (0, 0);
    for line in question.split_inclusive('\n') {
        let shown = line.trim_end();
        let before = found.len();
        found.extend(routes(shown).into_iter().map(|range| start + range.start..start + range.end));
        if found.len() == before {
            let marks = marks(shown, &mut number);
            let ends = marks.iter().skip(1).copied().chain([shown.len()]);
            found.extend(marks.iter().zip(ends).map(|(&from, to)| start + from..start + to));
        }
        if found.len() == before && is_item(shown) {
            let indent = shown.len() - shown.trim_start().len();
            found.push(start + indent..start + shown.len());
        }
        start += line.len();
    }
    found
}

/// The sentences of a line that are routes.
fn routes(line: &str) -> Vec<Range<usize>> {
    let sentence = |(at, _): (usize, &str)| {
        let rest = line.get(at..).unwrap_or_default();
        let ends = rest.match_indices('.').map(|(dot, _)| dot + 1);
        let end = ends.into_iter().find(|&end| rest[end..].is_empty() || rest[end..].starts_with(' '));
        at..at + end.unwrap_or(rest.len())
    };
    line.match_indices(ROUTE).map(sentence).collect()
}

/// Where the items `1)`, `2)`, ... of a line begin. `number` is the last one so far, over all lines.
fn marks(line: &str, number: &mut usize) -> Vec<usize> {
    let mut found = Vec::new();
    for (close, _) in line.match_indices(')') {
        let before = line.get(..close).unwrap_or_default();
        let start = before.trim_end_matches(|c: char| c.is_ascii_digit()).len();
        let Ok(value) = before.get(start..).unwrap_or_default().parse::<usize>() else { continue };
        let apart = !before[..start].ends_with(|c: char| c.is_alphanumeric() || c == '(' || c == '.');
        let stands = apart
            || before[..start].ends_with('.') && !before[..start].ends_with(|c: char| c.is_ascii_digit());
        if stands && (value == *number + 1 || value == 1) {
            found.push(start);
            *number = value;
        }
    }
    found
}

/// Whether a line is an item of a list.
fn is_item(line: &str) -> bool {
    let line = line.trim_start();
    let bullet = ["- ", "* ", "+ ", "• "].iter().any(|mark| line.starts_with(mark));
    let rest = line.trim_start_matches(|c: char| c.is_ascii_digit());
    let digits = line.len() - rest.len();
    bullet || ((1..=2).contains(&digits) && rest.starts_with(". "))
}

/// The question with `percent` of its constraints, rounded half up to whole ones.
pub(super) fn thinned(question: &str, percent: u32, seed: u64, case: &str) -> String {
    let all = constraints(question);
    let keep = (all.len() * percent.min(100) as usize + 50) / 100;
    if keep >= all.len() {
        return question.to_owned();
    }
    let mut order: Vec<usize> = (0..all.len()).collect();
    Draws::new("density of constraints", seed, case).shuffle(&mut order);
    let mut gone: Vec<usize> = order.split_off(keep);
    gone.sort_unstable();
    let mut text = String::with_capacity(question.len());
    let mut reached = 0;
    for range in gone.into_iter().filter_map(|at| all.get(at)) {
        text.push_str(question.get(reached..range.start).unwrap_or_default());
        reached = range.end;
        // A line of which nothing is left goes with its end, and of two spaces one does.
        let rest = question.get(reached..).unwrap_or_default();
        let line_is_gone = (text.is_empty() || text.ends_with('\n')) && rest.starts_with('\n');
        if line_is_gone || text.ends_with(' ') && rest.starts_with(' ') {
            reached += 1;
        }
    }
    text.push_str(question.get(reached..).unwrap_or_default());
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIARY: &str = "Write a diary. Captures:1) Birthdays: his wife (21 May), 2) A festival in week 30-31.3) Pottery every 5 weeks.\nEnd.";

    fn found(question: &str) -> Vec<&str> {
        constraints(question).into_iter().map(|range| question[range].trim()).collect()
    }

    #[test]
    fn constraints_are_numbered_items_list_lines_and_routes() {
        assert_eq!(
            found(DIARY),
            ["1) Birthdays: his wife (21 May),", "2) A festival in week 30-31.", "3) Pottery every 5 weeks."]
        );
        assert_eq!(found("Plan:\n1) one (as in 7)\n2) two\n"), ["1) one (as in 7)", "2) two"]);
        assert_eq!(found("Title\n- a\n * b\n2024. A year\n12. twelve"), ["- a", "* b", "12. twelve"]);
        let routes = "A is a city. You can travel from A to St. Ives by bus. B is a city. You can travel from B to C by train.\nFind it.";
        assert_eq!(found(routes).len(), 2);
        assert!(found("Tell me about (1) and 3) of them.").is_empty());
    }

    #[test]
    fn what_is_kept_at_one_density_is_kept_at_every_higher_one_and_the_rest_stays() {
        let question: String = "Do this:\n".to_owned()
            + &(1..=12).map(|i| format!("- point {i}\n")).collect::<String>()
            + "Now.";
        let kept = |percent| {
            found(&thinned(&question, percent, 3, "c")).into_iter().map(str::to_owned).collect::<Vec<_>>()
        };
        let counts = [0, 25, 50, 75, 100].map(|percent| kept(percent).len());
        assert_eq!(counts, [0, 3, 6, 9, 12]);
        for (less, more) in [(25, 50), (50, 75), (75, 100)] {
            let more = kept(more);
            assert!(kept(less).iter().all(|point| more.contains(point)));
        }
        assert_eq!(thinned(&question, 0, 3, "c"), "Do this:\nNow.");
        assert_eq!(thinned(&question, 100, 3, "c"), question);
        assert_ne!(kept(50), found(&thinned(&question, 50, 4, "c")));
        assert_eq!(thinned(DIARY, 0, 3, "c"), "Write a diary. Captures:\nEnd.");
    }
}
