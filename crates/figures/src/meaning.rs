//! Single source of colours, markers and dashes in all figures.
//!
//! Colours are Okabe and Ito's and Tol's muted scheme, safe for colour-blind readers; markers, dashes and lightness distinguish lines in
//! greyscale. docs/figures.md tabulates [`Meaning::ALL`]; style files override it.

use super::style::{Colour, DOTS, Dash, Marker, Stroke};
use palimpsest_analysis::lens::Correctness;
use palimpsest_data::benchmarks::{Curve, QUERY, Side, side_of};

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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Looks {
    pub colour: Colour,
    pub dash: Option<Dash>,
    pub marker: Marker,
}

const fn looks(colour: u32, dash: Option<Dash>, marker: Marker) -> Looks {
    let [_, r, g, b] = colour.to_be_bytes();
    Looks { colour: Colour(r, g, b), dash, marker }
}

const LONG: Option<Dash> = Some((8, 3));
const SHORT: Option<Dash> = Some((4, 2));

impl Meaning {
    /// Meanings with a look of their own: style file key, description, default look.
    pub const ALL: [(Meaning, &'static str, &'static str, Looks); 14] = {
        use Marker::{Circle, Diamond, Down, Square, Triangle};
        use Meaning::{Back, Baseline, Group, New, Old, Others, Query, Right, Wrong};
        [
            (New, "newer", "the newer of two conflicting writings", looks(0x0072b2, None, Circle)),
            (Old, "older", "the older writing, that the newer one replaces", looks(0xd55e00, LONG, Square)),
            (Back, "back", "what the newer writing pays to the older one", looks(0x882255, SHORT, Triangle)),
            (Query, "query", "all that the question reads, not told apart", looks(0x1a1a1a, None, Circle)),
            (Right, "right", "right answers; what is chosen", looks(0x009e73, None, Circle)),
            (Wrong, "wrong", "wrong answers; what is rejected", looks(0xcc79a7, LONG, Square)),
            (
                Baseline,
                "baseline",
                "baselines and controls that belong to no one curve",
                looks(0x767676, Some(DOTS), Marker::None),
            ),
            (Others, "others", "parts of the history without a role", looks(0xa8a8a8, None, Circle)),
            (
                Group(0),
                "group-1",
                "types, models, conditions and other groups, in the legend's order",
                looks(0x332288, None, Circle),
            ),
            (Group(1), "group-2", "the second of them", looks(0xe69f00, LONG, Square)),
            (Group(2), "group-3", "the third", looks(0x44aa99, SHORT, Triangle)),
            (Group(3), "group-4", "the fourth", looks(0xaa4499, Some((12, 3)), Diamond)),
            (Group(4), "group-5", "the fifth", looks(0x999933, Some((6, 5)), Down)),
            (Group(5), "group-6", "the sixth", looks(0x56b4e9, Some((2, 2)), Circle)),
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

    pub fn own(self) -> Looks {
        let found = Self::ALL.into_iter().find(|(meaning, ..)| *meaning == self.key());
        found.map_or(looks(0, None, Marker::None), |(.., looks)| looks)
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

/// Strokes of named groups in legend order; role and verdict names keep theirs.
pub fn of_words<'a>(words: impl Iterator<Item = &'a str>) -> Vec<Stroke> {
    let mut groups = 0;
    let of = |word: &str| match word {
        "correct" | "right" => Some(Meaning::Right),
        "wrong" | "incorrect" => Some(Meaning::Wrong),
        "all" | "" | QUERY => Some(Meaning::Query),
        role => Meaning::of_role(role),
    };
    let stroke = |word: &'a str| {
        of(word).map(Meaning::stroke).unwrap_or_else(|| {
            groups += 1;
            Meaning::Group(groups - 1).stroke()
        })
    };
    words.map(stroke).collect()
}

#[cfg(test)]
fn luminance(Colour(r, g, b): Colour) -> f64 {
    let linear = |c: u8| {
        let c = f64::from(c) / 255.0;
        if c <= 0.04045 { c / 12.92 } else { ((c + 0.055) / 1.055).powf(2.4) }
    };
    0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b)
}

#[cfg(test)]
mod tests {
    use super::super::style::{GREY, INK};
    use super::*;

    #[test]
    fn no_two_meanings_look_alike_in_colour_or_without_it() {
        for (at, (_, key, _, one)) in Meaning::ALL.iter().enumerate() {
            for (_, name, _, other) in &Meaning::ALL[..at] {
                assert_ne!(one.colour, other.colour, "{key} and {name}");
            }
        }
        // Lines within one figure must differ in greyscale.
        let figures: [&[Meaning]; 3] = [
            &[Meaning::New, Meaning::Old, Meaning::Back, Meaning::Baseline],
            &[Meaning::Right, Meaning::Wrong],
            &[0, 1, 2, 3, 4, 5].map(Meaning::Group),
        ];
        for together in figures {
            for (at, one) in together.iter().enumerate() {
                for other in &together[..at] {
                    let (a, b) = (one.own(), other.own());
                    assert_ne!(a.dash, b.dash, "{one:?} and {other:?}");
                }
            }
        }
    }

    #[test]
    fn text_stands_out_from_white() {
        for colour in [INK, GREY] {
            let contrast = 1.05 / (luminance(colour) + 0.05);
            assert!(contrast >= 4.5, "{colour:?}: {contrast}");
        }
    }

    #[test]
    fn curves_have_the_look_of_what_they_look_at() {
        let curves = [Curve::new("new", "old"), Curve::new("query", "old"), Curve::new("query", "new")];
        let colours: Vec<Colour> = of_curves(&curves).iter().map(|stroke| stroke.colour).collect();
        assert_eq!(colours, [Meaning::Back, Meaning::Old, Meaning::New].map(Meaning::colour));
        let twice = of_curves(&[Curve::new("query", "chosen"), Curve::new("verdict", "chosen")]);
        assert!(twice[0].colour == twice[1].colour && twice[0] != twice[1]);
        let many: Vec<Stroke> = of_words(["T1", "T2", "T3", "T4", "T5", "T6", "T7", "T8"].into_iter());
        for (at, one) in many.iter().enumerate() {
            assert!(!many[..at].contains(one), "{at}");
        }
        assert_eq!(of_words(["wrong"].into_iter()), [Meaning::Wrong.stroke()]);
    }
}
