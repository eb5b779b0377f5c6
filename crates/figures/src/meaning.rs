//! Single source of colours, markers and dashes in all figures.
//!
//! Colours are Okabe and Ito's and Tol's muted scheme, safe for colour-blind readers; markers, dashes and lightness distinguish lines in
//! greyscale. docs/figures.md tabulates [`Meaning::ALL`]; style files override it.

use super::style::{Colour, DOTS, Dash, Marker, Stroke};
use palimpsest_analysis::lens::Correctness;
use palimpsest_data::benchmarks::{Curve, QUERY, Side, side_of};
use palimpsest_data::ground::order::unique;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Meaning {
    New,
    Old,
    /// Attention from the newer session to the older one.
    Back,
    /// All attention of the question.
    Query,
    Right,
    Wrong,
    /// Noise baselines and controls that belong to no curve.
    Baseline,
    Others,
    /// Types, models, conditions and others, by legend position.
    Group(usize),
}

/// Distinct group colours; further groups reuse them with other dashes.
pub const GROUPS: usize = 6;

const fn look(colour: u32, dash: Option<Dash>, marker: Marker) -> Stroke {
    Stroke { dash, ..Stroke::solid(Colour::of(colour), marker) }
}

const LONG: Option<Dash> = Some((8, 3));
const SHORT: Option<Dash> = Some((4, 2));

impl Meaning {
    /// Meanings with a look of their own: style file key, default look. The style file's example says what they mean.
    pub const ALL: [(Meaning, &'static str, Stroke); 14] = {
        use Marker::{Circle, Diamond, Down, Square, Triangle};
        use Meaning::{Back, Baseline, Group, New, Old, Others, Query, Right, Wrong};
        [
            (New, "newer", look(0x0072b2, None, Circle)),
            (Old, "older", look(0xd55e00, LONG, Square)),
            (Back, "back", look(0x882255, SHORT, Triangle)),
            (Query, "query", look(0x1a1a1a, None, Circle)),
            (Right, "right", look(0x009e73, None, Circle)),
            (Wrong, "wrong", look(0xcc79a7, LONG, Square)),
            (Baseline, "baseline", look(0x767676, Some(DOTS), Marker::None)),
            (Others, "others", look(0xa8a8a8, None, Circle)),
            (Group(0), "group-1", look(0x332288, None, Circle)),
            (Group(1), "group-2", look(0xe69f00, LONG, Square)),
            (Group(2), "group-3", look(0x44aa99, SHORT, Triangle)),
            (Group(3), "group-4", look(0xaa4499, Some((12, 3)), Diamond)),
            (Group(4), "group-5", look(0x999933, Some((6, 5)), Down)),
            (Group(5), "group-6", look(0x56b4e9, Some((2, 2)), Circle)),
        ]
    };

    pub fn of_key(key: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|(_, known, ..)| *known == key).map(|(meaning, ..)| meaning)
    }

    /// Role of evidence: the two sides of any benchmark.
    pub fn of_role(role: &str) -> Option<Self> {
        side_of(role).map(|side| match side {
            Side::Newer => Meaning::New,
            Side::Older => Meaning::Old,
            Side::Right => Meaning::Right,
            Side::Wrong => Meaning::Wrong,
        })
    }

    pub fn of_verdict(verdict: Correctness) -> Self {
        match verdict {
            Correctness::Correct => Meaning::Right,
            Correctness::Wrong => Meaning::Wrong,
            Correctness::All => Meaning::Query,
        }
    }

    /// Canonical meaning with the same look.
    pub(super) fn key(self) -> Self {
        if let Meaning::Group(at) = self { Meaning::Group(at % GROUPS) } else { self }
    }

    pub fn own(self) -> Stroke {
        let found = Self::ALL.into_iter().find(|(meaning, ..)| *meaning == self.key());
        found.map_or(look(0, None, Marker::None), |(.., look)| look)
    }
}

/// Strokes of a benchmark's curves, by the attended role; curves of one role differ by hollow markers, and roles other than the two sides
/// take group colours.
pub fn of_curves(curves: &[Curve]) -> Vec<Stroke> {
    let mut given: Vec<(Meaning, &str)> = Vec::new();
    let mut groups = 0;
    let of = |curve: &Curve| {
        let role = Meaning::of_role(curve.to);
        let between = role.is_some() && Meaning::of_role(curve.from).is_some();
        let known = if between { Some(Meaning::Back) } else { role };
        let of_part = given.iter().find(|(_, to)| *to == curve.to).map(|(meaning, _)| *meaning);
        let meaning = known.or(of_part).unwrap_or_else(|| {
            groups += 1;
            Meaning::Group(groups - 1)
        });
        let again = given.iter().filter(|(known, _)| *known == meaning).count();
        given.push((meaning, curve.to));
        let stroke = meaning.stroke();
        match again {
            0 => stroke,
            1 => stroke.hollow(),
            2 => Stroke { dash: Some((3, 4)), ..stroke },
            _ => Stroke { dash: Some((3, 4)), ..stroke.hollow() },
        }
    };
    curves.iter().map(of).collect()
}

/// Named groups in legend order with their strokes; role and verdict names keep theirs.
#[derive(Debug, Default)]
pub(super) struct Named<'a>(pub Vec<(&'a str, Stroke)>);

impl<'a> Named<'a> {
    pub fn of(words: impl Iterator<Item = &'a str>) -> Self {
        let mut groups = 0;
        let own = |word: &str| match word {
            "correct" | "right" => Some(Meaning::Right),
            "wrong" | "incorrect" => Some(Meaning::Wrong),
            "all" | "" | QUERY => Some(Meaning::Query),
            role => Meaning::of_role(role),
        };
        let named = |word: &'a str| {
            let meaning = own(word).unwrap_or_else(|| {
                groups += 1;
                Meaning::Group(groups - 1)
            });
            (word, meaning.stroke())
        };
        Named(unique(words).into_iter().map(named).collect())
    }

    pub fn stroke(&self, word: &str) -> Stroke {
        let known = self.0.iter().find(|(name, _)| *name == word);
        known.map_or_else(|| Meaning::Query.stroke(), |(_, stroke)| *stroke)
    }
}

#[cfg(test)]
mod tests {
    use super::super::style::{GREY, INK};
    use super::*;

    #[test]
    fn no_two_meanings_look_alike_in_colour_or_without_it() {
        let pairs = |all: &[Meaning]| -> Vec<[Meaning; 2]> {
            let before = |(at, one)| all[..at].iter().map(move |other| [one, *other]);
            all.iter().copied().enumerate().flat_map(before).collect()
        };
        for [one, other] in pairs(&Meaning::ALL.map(|(meaning, ..)| meaning)) {
            assert_ne!(one.own().colour, other.own().colour, "{one:?} and {other:?}");
        }
        // Lines within one figure must differ in greyscale.
        let figures: [&[Meaning]; 3] = [
            &[Meaning::New, Meaning::Old, Meaning::Back, Meaning::Baseline],
            &[Meaning::Right, Meaning::Wrong],
            &[0, 1, 2, 3, 4, 5].map(Meaning::Group),
        ];
        for [one, other] in figures.into_iter().flat_map(pairs) {
            assert_ne!(one.own().dash, other.own().dash, "{one:?} and {other:?}");
        }
    }

    #[test]
    fn text_stands_out_from_white() {
        let linear = |c: u8| ((f64::from(c) / 255.0 + 0.055) / 1.055).powf(2.4);
        for colour in [INK, GREY] {
            let Colour(r, g, b) = colour;
            let luminance = 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
            assert!(1.05 / (luminance + 0.05) >= 4.5, "{colour:?}");
        }
    }

    #[test]
    fn curves_have_the_look_of_what_they_look_at() {
        let curves = [Curve::new("new", "old"), Curve::new("query", "old"), Curve::new("query", "new")];
        let colours: Vec<Colour> = of_curves(&curves).iter().map(|stroke| stroke.colour).collect();
        assert_eq!(colours, [Meaning::Back, Meaning::Old, Meaning::New].map(Meaning::colour));
        let twice = of_curves(&[Curve::new("query", "chosen"), Curve::new("verdict", "chosen")]);
        assert!(twice[0].colour == twice[1].colour && twice[0] != twice[1]);
        let many = Named::of(["T1", "T2", "T3", "T4", "T5", "T6", "T7", "T8", "wrong"].into_iter());
        for (at, (name, one)) in many.0.iter().enumerate() {
            assert!(many.0[..at].iter().all(|(_, other)| one != other), "{name}");
        }
        assert_eq!(many.stroke("wrong"), Meaning::Wrong.stroke());
    }
}
