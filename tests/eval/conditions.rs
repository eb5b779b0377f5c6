//! Condition names and their labels.

use palimpsest::runs::condition::{Condition, label, stored};

#[test]
fn plain_is_a_name_like_any_other() {
    for name in ["", "repeat-2", "knockout-query-old"] {
        assert_eq!(stored(label(name)), name);
    }
    assert_eq!((Condition::PLAIN.label(), label("repeat-2")), ("plain", "repeat-2"));
}

#[test]
fn words_say_what_a_condition_does() {
    let benchmark = palimpsest::benchmarks::ALL[0];
    let knockouts =
        ["query->old", "only new->old@8..16", "query->new@3..4"].map(|text| text.parse().unwrap());
    let said: Vec<String> = Condition::beside(&[Condition::PLAIN], &knockouts, 2)
        .iter()
        .map(|condition| condition.in_words(benchmark))
        .collect();
    let parts = [
        "the whole history",
        "the same as plain once more (time 2)",
        "\u{201c}old\u{201d} is hidden from every token from the first of \u{201c}query\u{201d} on, generated ones too, at all layers;",
        "the same as knockout-query-old once more",
        "\u{201c}old\u{201d} is hidden from the tokens of \u{201c}new\u{201d} and no others, only at layers 8 to 15",
        "the same as knockout-only-new-old-8-16",
        "only at layer 3",
        "time 2",
    ];
    assert_eq!(said.len(), parts.len());
    for (said, part) in said.iter().zip(parts) {
        assert!(said.contains(part), "{said}");
    }
}
