//! Shares of a prompt's keys that an eviction kept, by what the keys are of.

use std::collections::{BTreeMap, BTreeSet};

use ndarray::Axis;
use palimpsest_core::attention::KeptShares;
use palimpsest_core::span::Span;

/// Shares of the keys before position `at`, over all layers that evict and their key/value heads: `all`, `session` (all segments) and each
/// role, if it has tokens there. `spans` are the eviction's.
pub fn by_role(kept: &KeptShares, spans: &[Span], at: usize) -> BTreeMap<String, f64> {
    let columns = spans.iter().zip(kept.shares.axis_iter(Axis(2)));
    let counted = columns.filter_map(|(span, shares)| {
        let tokens = span.end.min(at).saturating_sub(span.start);
        // Each share is of a whole number of keys.
        let keys: f64 = shares.iter().map(|share| (f64::from(*share) * tokens as f64).round()).sum();
        (tokens > 0).then_some((span, keys, (tokens * shares.len()) as f64))
    });
    let counted: Vec<(&Span, f64, f64)> = counted.collect();
    let share = |is_of: &dyn Fn(usize, &Span) -> bool| {
        let chosen = counted.iter().enumerate().filter(|(nth, (span, ..))| is_of(*nth, span));
        let (keys, of) = chosen.fold((0.0, 0.0), |(keys, of), (_, one)| (keys + one.1, of + one.2));
        (of > 0.0).then_some(keys / of)
    };
    // A turn with the role of its whole session counts once.
    let is_part = |nth: usize, span: &Span, role: &str| {
        let holds = |(other, (whole, ..)): (usize, &(&Span, f64, f64))| {
            let larger = whole.len() > span.len() || (whole.len() == span.len() && other < nth);
            whole.is(role) && larger && whole.start <= span.start && span.end <= whole.end
        };
        counted.iter().enumerate().any(holds)
    };
    let roles: BTreeSet<&str> = counted.iter().filter_map(|(span, ..)| span.role.as_deref()).collect();
    let of_role = |role: &&str| share(&|nth, span| span.is(role) && !is_part(nth, span, role));
    let mut shares: BTreeMap<String, f64> =
        roles.iter().filter_map(|role| Some(((*role).to_owned(), of_role(role)?))).collect();
    shares.extend(share(&|_, span| !span.overlay).map(|share| ("all".to_owned(), share)));
    shares.extend(share(&|_, span| span.segment().is_some()).map(|share| ("session".to_owned(), share)));
    shares
}

#[cfg(test)]
mod tests {
    use ndarray::Array3;

    use super::*;

    #[test]
    fn shares_are_of_tokens_layers_and_heads_and_of_each_role_once() {
        let spans = [
            Span::new("bos", 0..2),
            Span::new("session[0]", 2..12).with_role("old"),
            Span::new("session[1]", 12..16),
            Span::new("template[0]", 16..18),
            Span::new("query", 18..20).with_role("query"),
            Span::new("session[0].turn[1]", 4..8).with_role("old").as_overlay(),
            Span::new("session[1].turn[0]", 12..14).with_role("new").as_overlay(),
            Span::new("session[1].turn[0] again", 12..14).with_role("new").as_overlay(),
            Span::new("session[1].turn[1]", 14..15).with_role("new").as_overlay(),
        ];
        // Of two heads and one layer: keys 2, 3, 12, 14 and 0, 13, 17.
        let kept = [[2_u32, 3, 12, 14].as_slice(), &[0, 13, 17]];
        let shares = Array3::from_shape_fn((1, 2, spans.len()), |(_, head, span)| {
            let range = spans[span].start as u32..(spans[span].end as u32).min(18);
            let keys = kept[head].iter().filter(|key| range.contains(key)).count();
            keys as f32 / range.len() as f32
        });
        assert!(shares[[0, 0, 4]].is_nan(), "the question has no key before itself");
        let found = by_role(&KeptShares { layers: vec![3], shares }, &spans, 18);
        let expected =
            [("all", 7.0 / 36.0), ("new", 3.0 / 6.0), ("old", 2.0 / 20.0), ("session", 5.0 / 28.0)];
        assert_eq!(found, expected.map(|(name, share)| (name.to_owned(), share)).into());
    }

    #[test]
    fn a_span_that_the_question_cuts_counts_with_its_part_before_it() {
        let spans = [Span::new("session[0]", 0..3), Span::new("template[0]", 3..9), Span::new("query", 6..9)];
        let shares = Array3::from_shape_vec((1, 1, 3), vec![1.0, 1.0 / 3.0, f32::NAN]).unwrap();
        let found = by_role(&KeptShares { layers: vec![0], shares }, &spans, 6);
        assert_eq!(found, [("all".to_owned(), 4.0 / 6.0), ("session".to_owned(), 1.0)].into());
    }
}
