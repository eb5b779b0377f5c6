//! Noise baselines: segments compared with the evidence.
//!
//! Prefers the evidence's immediate neighbours by original index. If a neighbour was truncated or is evidence, the nearest kept segment
//! without evidence in that direction replaces it ([`StandIn::distance`]). Evidence at an edge has one stand-in. Stand-ins must be visible
//! to the rows (causal mask). Before and after follow prompt order. A benchmark may name one span instead
//! ([`LensSpec::stand_in`](palimpsest_data::benchmarks::LensSpec::stand_in)).
//!
//! STALE does not say which adjacent session it uses (appendix E.4), hence [`Baseline`].

use std::str::FromStr;

use palimpsest_core::span::Span;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Baseline {
    /// Mean of the stand-ins before and after.
    #[default]
    Both,
    /// The nearer stand-in; ties go to the one after the evidence.
    Adjacent,
    /// N segments before and N after, pooled into one span; for short segments, which are noisy alone.
    Pooled(usize),
}

impl Baseline {
    pub(super) fn is_pooled(self) -> bool {
        matches!(self, Baseline::Pooled(_))
    }
}

impl FromStr for Baseline {
    type Err = &'static str;

    /// Parses `both`, `adjacent` or `pooled:N` with N >= 1.
    fn from_str(text: &str) -> Result<Self, &'static str> {
        match text.split_once(':') {
            None if text == "both" => Ok(Baseline::Both),
            None if text == "adjacent" => Ok(Baseline::Adjacent),
            Some(("pooled", each)) if each.parse::<usize>().is_ok_and(|each| each > 0) => {
                Ok(Baseline::Pooled(each.parse().unwrap_or(1)))
            }
            _ => Err("give `both`, `adjacent`, or `pooled:N` for N segments on either side"),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StandIn {
    /// The evidence, or its enclosing segment.
    pub evidence: usize,
    pub index: usize,
}

impl StandIn {
    /// Distance in segments of the whole history; 1 for immediate neighbours.
    pub fn distance(self) -> usize {
        self.evidence.abs_diff(self.index)
    }
}

pub(super) struct Evidence<'a> {
    pub keys: &'a [Span],
    pub baseline: Baseline,
    /// Role of a span that stands in for all evidence.
    pub stand_in: Option<&'static str>,
}

impl Evidence<'_> {
    /// Original index of a span's segment: 3 for `session[3].turn[1]`.
    fn segment(span: &Span) -> Option<usize> {
        let whole = span.label.split_once('.').map_or(span.label.as_str(), |(whole, _)| whole);
        Span::new(whole, 0..0).segment()
    }

    /// Role of evidence inside a segment.
    pub fn inside(&self, index: usize) -> Option<String> {
        let mut inside = self.keys.iter().filter(|span| span.overlay && Self::segment(span) == Some(index));
        inside.find_map(|span| span.role.clone())
    }

    /// Stand-ins of the evidence at `key` for rows that end at token `end`, as positions in prompt order.
    pub fn neighbours(&self, key: usize, end: usize) -> Vec<usize> {
        let Some((evidence, index)) = self.keys.get(key).and_then(|span| Some((span, Self::segment(span)?)))
        else {
            return Vec::new();
        };
        let holds =
            |at: usize| self.keys.iter().any(|span| span.role.is_some() && Self::segment(span) == Some(at));
        let seen = |span: &Span| evidence.start >= end || span.start < end;
        if let Some(role) = self.stand_in {
            let found = self.keys.iter().enumerate().filter(|(_, span)| span.is(role) && seen(span));
            return found.map(|(place, _)| place).collect();
        }
        // By start: prompt order may differ from history order.
        let plain = self.keys.iter().enumerate().filter_map(|(place, span)| {
            let other = span.segment().filter(|_| !span.is_empty() && seen(span))?;
            (other != index && !holds(other)).then_some((span.start, other, place))
        });
        let (mut before, mut after): (Vec<_>, Vec<_>) =
            plain.partition(|(start, ..)| *start < evidence.start);
        before.sort_unstable_by(|a, b| b.cmp(a));
        after.sort_unstable();
        let of = |found: &(usize, usize, usize)| found.2;
        match (self.baseline, before.first(), after.first()) {
            (Baseline::Both, before, after) => before.into_iter().chain(after).map(of).collect(),
            (Baseline::Adjacent, Some(before), Some(after)) => {
                let nearer = if index.abs_diff(before.1) < after.1.abs_diff(index) { before } else { after };
                vec![of(nearer)]
            }
            (Baseline::Adjacent, before, after) => after.or(before).into_iter().map(of).collect(),
            (Baseline::Pooled(each), ..) => {
                let mut places: Vec<usize> =
                    before.iter().take(each).chain(after.iter().take(each)).map(of).collect();
                places.sort_unstable();
                places
            }
        }
    }

    /// True if the baseline's segments count as one span, measuring density near the evidence instead of the mass of another segment.
    pub fn is_pooled(&self) -> bool {
        self.baseline.is_pooled() || self.stand_in.is_some()
    }

    pub fn stand_ins(&self, keys: &[usize], end: usize) -> Vec<StandIn> {
        let of = |&key: &usize| {
            let evidence = self.keys.get(key).and_then(Self::segment);
            let places = self.neighbours(key, end).into_iter();
            places.filter_map(move |place| {
                Some(StandIn { evidence: evidence?, index: self.keys[place].segment()? })
            })
        };
        keys.iter().flat_map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: usize = 100;

    fn span(i: usize, at: usize) -> Span {
        Span::new(format!("session[{i}]"), at..at + 2)
    }

    /// Stand-ins of the evidence at `key`, by original index.
    fn indices(keys: &[Span], baseline: Baseline, key: usize, end: usize) -> Vec<(usize, usize)> {
        let stand_ins = Evidence { keys, baseline, stand_in: None }.stand_ins(&[key], end);
        stand_ins.iter().map(|one| (one.index, one.distance())).collect()
    }

    #[test]
    fn a_dropped_neighbour_is_replaced_by_the_nearest_kept_one_and_the_distance_is_told() {
        let keys = [
            Span::new("bos", 0..1),
            span(1, 1),
            span(4, 3).with_role("old"),
            span(5, 5),
            span(6, 7).with_role("new"),
            span(9, 9),
        ];
        assert_eq!(indices(&keys, Baseline::Both, 2, ALL), [(1, 3), (5, 1)], "3 and 2 were dropped");
        assert_eq!(indices(&keys, Baseline::Both, 4, ALL), [(5, 1), (9, 3)]);
        assert_eq!(indices(&keys, Baseline::Adjacent, 2, ALL), [(5, 1)]);
        assert_eq!(indices(&keys, Baseline::Adjacent, 4, ALL), [(5, 1)], "the nearer one");
    }

    #[test]
    fn evidence_never_stands_in_and_what_the_rows_cannot_see_does_not_either() {
        let keys = [span(0, 0), span(1, 2).with_role("old"), span(2, 4).with_role("new"), span(3, 6)];
        assert_eq!(indices(&keys, Baseline::Both, 1, ALL), [(0, 1), (3, 2)]);
        assert_eq!(indices(&keys, Baseline::Both, 1, 6), [(0, 1)], "the new session's rows end at token 6");
        assert_eq!(indices(&keys, Baseline::Adjacent, 1, ALL), [(0, 1)]);
        assert!(indices(&keys[1..3], Baseline::Both, 0, ALL).is_empty());
        let even = [span(2, 0), span(3, 2).with_role("old"), span(4, 4)];
        assert_eq!(
            indices(&even, Baseline::Adjacent, 1, ALL),
            [(4, 1)],
            "of two immediate ones the one after"
        );
        assert_eq!(indices(&even[1..], Baseline::Both, 0, ALL), [(4, 1)]);
    }
    #[test]
    fn pooled_baselines_take_so_many_on_either_side_and_none_of_the_evidence() {
        let keys: Vec<Span> = (0..9)
            .map(|i| if [3, 4].contains(&i) { span(i, 2 * i).with_role("fact") } else { span(i, 2 * i) })
            .collect();
        let pooled = |key, each| indices(&keys, Baseline::Pooled(each), key, ALL);
        assert_eq!(pooled(3, 2), [(1, 2), (2, 1), (5, 2), (6, 3)]);
        assert_eq!(pooled(4, 8).iter().map(|one| one.0).collect::<Vec<_>>(), [0, 1, 2, 5, 6, 7, 8]);
        let parsed = ["both", "adjacent", "pooled:8"].map(|text| text.parse::<Baseline>().unwrap());
        assert_eq!(parsed, [Baseline::Both, Baseline::Adjacent, Baseline::Pooled(8)]);
        assert!("pooled:0".parse::<Baseline>().is_err() && "pooled".parse::<Baseline>().is_err());
    }

    #[test]
    fn neighbours_are_those_in_the_prompt_and_a_named_stand_in_replaces_them() {
        // prompt order differs from history order
        let keys = [span(5, 0), span(2, 2).with_role("fact"), span(0, 4), span(1, 6)];
        assert_eq!(indices(&keys, Baseline::Both, 1, ALL), [(5, 3), (0, 2)]);
        let block = Span::new("question.end", 6..8).as_overlay().with_role("block");
        let keys = [span(5, 0), span(2, 2).with_role("fact"), span(0, 4), block];
        let evidence = Evidence { keys: &keys, baseline: Baseline::Both, stand_in: Some("block") };
        assert_eq!((evidence.neighbours(1, ALL), evidence.is_pooled()), (vec![3], true));
        assert_eq!(evidence.neighbours(1, 6), Vec::<usize>::new(), "the rows end before it");
    }
}
