//! Searches a small set of sessions whose blocking flips an answer: group testing by bisection, with a reading budget.
//!
//! Model-free: a reading is a closure. Candidates are ordered by likelihood. Doubling and bisection find the shortest flipping prefix; its
//! last element is a member. With all members blocked, the shorter prefix is searched again, until the members alone flip the answer. For
//! monotone answers the result is irreducible; since answers need not be monotone, that is verified.

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Search {
    /// Smallest set found, as ascending indices; `None` if none flips the answer.
    pub set: Option<Vec<usize>>,
    /// True if removing any single member was tested and did not flip the answer.
    pub irreducible: bool,
    pub readings: usize,
    /// True if the budget ran out.
    pub spent: bool,
}

struct Counted<'a, E> {
    turns: &'a mut dyn FnMut(&[usize]) -> Result<bool, E>,
    left: usize,
    made: usize,
}

impl<E> Counted<'_, E> {
    fn read(&mut self, set: &[usize]) -> Result<Option<bool>, E> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        self.made += 1;
        (self.turns)(set).map(Some)
    }
}

/// Searches a small set of `count` candidates with `turns` true, within `budget` readings. The empty set is known not to flip.
pub fn smallest<E>(
    count: usize,
    budget: usize,
    turns: &mut dyn FnMut(&[usize]) -> Result<bool, E>,
) -> Result<Search, E> {
    let mut counted = Counted { turns, left: budget, made: 0 };
    let (set, mut spent) = grow(count, &mut counted)?;
    let Some(mut set) = set else {
        return Ok(Search { set: None, irreducible: false, readings: counted.made, spent });
    };
    set.sort_unstable();
    // A single member is irreducible: the empty set does not flip.
    let mut at = 0;
    while !spent && set.len() > 1 && at < set.len() {
        let without: Vec<usize> = set.iter().copied().filter(|member| *member != set[at]).collect();
        match counted.read(&without)? {
            Some(true) => (set, at) = (without, 0),
            Some(false) => at += 1,
            None => spent = true,
        }
    }
    Ok(Search { irreducible: !spent, set: Some(set), readings: counted.made, spent })
}

/// A flipping set, built from the last member on; and whether the budget ran out.
fn grow<E>(count: usize, counted: &mut Counted<'_, E>) -> Result<(Option<Vec<usize>>, bool), E> {
    let mut members: Vec<usize> = Vec::new();
    // Members plus the first `known` candidates flip the answer.
    let mut known = None;
    loop {
        let with = |length: usize, members: &[usize]| -> Vec<usize> {
            (0..length).chain(members.iter().copied()).collect()
        };
        let (mut low, mut step) = (0, 1);
        let most = known.unwrap_or(count);
        let mut high = known;
        while low < most {
            let length = (low + step).min(most);
            if Some(length) == known {
                break;
            }
            match counted.read(&with(length, &members))? {
                None => return Ok((known.map(|length| with(length, &members)), true)),
                Some(true) => {
                    high = Some(length);
                    break;
                }
                Some(false) => (low, step) = (length, step * 2),
            }
        }
        let Some(mut high) = high else { return Ok((None, false)) };
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            match counted.read(&with(middle, &members))? {
                None => return Ok((Some(with(high, &members)), true)),
                Some(true) => high = middle,
                Some(false) => low = middle,
            }
        }
        // 3. The last candidate of the shortest prefix is a member.
        members.push(high - 1);
        if high == 1 {
            return Ok((Some(members), false));
        }
        match counted.read(&members)? {
            None => return Ok((Some(with(high - 1, &members)), true)),
            Some(true) => return Ok((Some(members), false)),
            Some(false) => known = Some(high - 1),
        }
    }
}

/// Narrowest half-open window of `layers` layers by bisection, first its end, then its start; all layers together are known to flip. The
/// window is `None` if the budget ran out or all layers are needed. Also returns the readings made.
pub fn window<E>(
    layers: usize,
    budget: usize,
    turns: &mut dyn FnMut(std::ops::Range<usize>) -> Result<bool, E>,
) -> Result<(Option<[usize; 2]>, usize), E> {
    let mut made = 0;
    let (mut low, mut end) = (0, layers);
    while end - low > 1 && made < budget {
        let middle = low + (end - low) / 2;
        made += 1;
        if turns(0..middle)? { end = middle } else { low = middle }
    }
    let (mut start, mut high) = (0, end);
    while high - start > 1 && made < budget {
        let middle = start + (high - start) / 2;
        made += 1;
        if turns(middle..end)? { start = middle } else { high = middle }
    }
    Ok((((start, end) != (0, layers)).then_some([start, end]), made))
}

#[cfg(test)]
mod tests {
    use super::*;
    use palimpsest_data::case::draw::Draws;
    use std::convert::Infallible;

    fn least(count: usize, turns: &dyn Fn(&[usize]) -> bool) -> Option<usize> {
        let subset = |bits: u32| (0..count).filter(|at| bits >> at & 1 == 1).collect::<Vec<_>>();
        (1..1u32 << count).map(subset).filter(|set| turns(set)).map(|set| set.len()).min()
    }

    #[test]
    fn a_single_session_of_fifty_is_found_in_few_readings_wherever_it_stands() {
        let mut all = 0;
        for wanted in 0..50 {
            let mut turns = |set: &[usize]| Ok::<_, Infallible>(set.contains(&wanted));
            let found = smallest(50, 24, &mut turns).unwrap();
            assert_eq!((found.set, found.irreducible, found.spent), (Some(vec![wanted]), true, false));
            all += found.readings;
        }
        assert!(all <= 12 * 50, "{} readings in the mean", f64::from(all as u32) / 50.0);
        // No flipping set: one reading per doubling.
        let none = smallest(50, 24, &mut |_| Ok::<_, Infallible>(false)).unwrap();
        assert_eq!((none.set, none.readings, none.spent), (None, 6, false));
    }

    #[test]
    fn of_monotone_answers_the_set_is_irreducible_and_of_singles_and_unique_sets_the_smallest() {
        let mut draws = Draws::new("certificates", 0, "");
        for _ in 0..200 {
            let count = 4 + draws.index(7);
            // A conjunction of one to three sessions.
            let mut order: Vec<usize> = (0..count).collect();
            draws.shuffle(&mut order);
            let needed = &order[..1 + draws.index(3)];
            let turns = |set: &[usize]| needed.iter().all(|one| set.contains(one));
            let found = smallest(count, 100, &mut |set| Ok::<_, Infallible>(turns(set))).unwrap();
            let set = found.set.unwrap();
            assert!(turns(&set) && found.irreducible);
            assert_eq!(Some(set.len()), least(count, &turns), "{needed:?} {set:?}");
        }
    }

    #[test]
    fn what_is_not_monotone_still_turns_and_is_read_member_by_member() {
        let mut draws = Draws::new("certificates", 1, "");
        for seed in 0..200 {
            let turns = |set: &[usize]| {
                let mut sorted = set.to_vec();
                sorted.sort_unstable();
                Draws::new("turns", seed, &format!("{sorted:?}")).index(3) == 0
            };
            let count = 3 + draws.index(6);
            let found = smallest(count, 100, &mut |set| Ok::<_, Infallible>(turns(set))).unwrap();
            let Some(set) = found.set else { continue };
            assert!(turns(&set), "{set:?}");
            for one in set.iter().filter(|_| set.len() > 1) {
                let without: Vec<usize> = set.iter().copied().filter(|other| other != one).collect();
                assert!(!turns(&without), "{set:?} without {one}");
            }
        }
    }

    #[test]
    fn readings_are_bounded_and_a_set_found_before_the_end_turns_all_the_same() {
        for budget in 0..12 {
            let mut made = 0;
            let needed = [3, 17, 40];
            let mut turns = |set: &[usize]| {
                made += 1;
                Ok::<_, Infallible>(needed.iter().all(|one| set.contains(one)))
            };
            let found = smallest(50, budget, &mut turns).unwrap();
            assert!(found.readings <= budget && made == found.readings && found.spent);
            assert!(found.set.is_none_or(|set| needed.iter().all(|one| set.contains(one))));
            assert!(!found.irreducible);
        }
        assert!(smallest(50, 3, &mut |_| Err("no")).is_err());
    }

    #[test]
    fn the_window_is_the_shortest_end_and_then_the_latest_start() {
        for (from, to) in [(0, 30), (3, 9), (0, 1), (29, 30), (7, 8), (12, 30)] {
            let mut turns = |layers: std::ops::Range<usize>| {
                Ok::<_, Infallible>(layers.start <= from && to <= layers.end)
            };
            let (found, made) = window(30, 24, &mut turns).unwrap();
            assert_eq!(found, ((from, to) != (0, 30)).then_some([from, to]));
            assert!(made <= 10, "{made}");
        }
        assert_eq!(window(30, 0, &mut |_| Ok::<_, Infallible>(true)).unwrap(), (None, 0));
    }
}
