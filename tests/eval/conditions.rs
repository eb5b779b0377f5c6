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
    let said: Vec<String> = Condition::beside(&[Condition::PLAIN], (&knockouts, &[]), 2)
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

#[test]
fn evictions_are_crossed_with_settings_and_repetitions_and_not_with_knock_outs() {
    let benchmark = palimpsest::benchmarks::ALL[0];
    let settings: Vec<Condition> = ["full", "none"]
        .iter()
        .filter_map(|name| benchmark.all_settings().find(|setting| setting.name == *name))
        .map(Condition::of_setting)
        .collect();
    let evictions = ["snapkv:0.07", "streaming:1024@question"].map(|text| text.parse().unwrap());
    let all = Condition::beside(&settings, (&["query->old".parse().unwrap()], &evictions), 2);
    let parts = ["", "-knockout-query-old", "-evict-snapkv-0-07", "-evict-streaming-1024-tokens-question"];
    let expected = ["full", "none"].into_iter().flat_map(|setting| {
        let once = parts.into_iter().map(move |part| format!("{setting}{part}"));
        once.flat_map(|name| [name.clone(), format!("{name}-repeat-2")])
    });
    assert_eq!(all.iter().map(|one| one.name.clone()).collect::<Vec<_>>(), expected.collect::<Vec<_>>());
    let (hidden, open): (Vec<_>, Vec<_>) = all.iter().partition(|one| one.name.contains("evict"));
    assert!(hidden.iter().all(|one| one.evict.is_some() && one.knockout.is_none() && !one.is_open()));
    assert!(open.iter().all(|one| one.evict.is_none() && one.is_open() == one.knockout.is_none()));
    let said = |name: &str| all.iter().find(|one| one.name == name).unwrap().in_words(benchmark);
    let share = said("full-evict-snapkv-0-07");
    assert!(share.contains("keeps 7% of its keys of the history") && share.contains("snapkv"), "{share}");
    assert!(share.contains("by the history alone"), "{share}");
    let tokens = said("none-evict-streaming-1024-tokens-question");
    assert!(tokens.contains("keeps 1024 keys") && tokens.contains("and the question"), "{tokens}");
    assert!(said("full-evict-snapkv-0-07-repeat-2").contains("the same as full-evict-snapkv-0-07 once more"));
}

#[test]
fn a_condition_without_an_eviction_is_written_and_read_as_before() {
    let plain = "{\"name\":\"knockout-query-old\",\"knockout\":\"query->old\"}";
    let read: Condition = serde_json::from_str(plain).unwrap();
    assert_eq!((read.evict.is_none(), serde_json::to_string(&read).unwrap()), (true, plain.to_owned()));
    let evict = "{\"name\":\"evict-snapkv-0-25\",\"evict\":\"snapkv:0.25\"}";
    let read: Condition = serde_json::from_str(evict).unwrap();
    assert_eq!(
        read,
        Condition {
            name: "evict-snapkv-0-25".to_owned(),
            evict: Some("snapkv:0.25".parse().unwrap()),
            ..Condition::PLAIN
        }
    );
    assert_eq!(serde_json::to_string(&read).unwrap(), evict);
    assert!(serde_json::from_str::<Condition>(&evict.replace("0.25", "2.5")).is_err());
}
