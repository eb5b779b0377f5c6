//! Parsing of a judge's reply.

use palimpsest::benchmarks::VerdictKind;
use palimpsest::judge::reply::{Found, ReplyText, read_verdicts};
use palimpsest::judge::{Said, Verdict};
use proptest::prelude::*;

const IDS: [&str; 3] = ["SR", "PR", "IPA"];

/// Verdicts of a complete reply.
fn whole(text: &str, ids: &[&str], kind: VerdictKind) -> Vec<Option<Verdict>> {
    let sole = (ids.len() == 1).then_some(0);
    let found = read_verdicts(ReplyText { text, cut: false, sole }, ids, kind);
    let verdict = |found| match found {
        Found::Verdict(verdict) => Some(verdict),
        Found::Missing | Found::Unread(_) => None,
        Found::Differing(one, other) => panic!("{one} and {other} in {text}"),
    };
    found.into_iter().map(verdict).collect()
}

/// One letter per id: `t`rue, `f`alse, `?` missing, `!` both.
fn letters(text: &str, cut: bool) -> String {
    let found = read_verdicts(ReplyText { text, cut, sole: None }, &IDS, VerdictKind::Correct);
    let letter = |found: &Found| match found {
        Found::Verdict(Verdict { said: Said::Correct(true), .. }) => 't',
        Found::Verdict(_) => 'f',
        Found::Missing | Found::Unread(_) => '?',
        Found::Differing(..) => '!',
    };
    found.iter().map(letter).collect()
}

#[test]
fn neighbouring_objects_are_one_group() {
    let objects = [r#"{"SR": {"correct": true}}"#, r#"{"PR": {"correct": false}}"#, r#"{"IPA": true}"#];
    for between in [
        "\n",
        "\n\n",
        ", ",
        "",
        ";\n",
        "\n- ",
        "\n* * *\n",
        "\n---\n",
        "\n```\n```json\n",
        "\n```\n\n```\n",
        "\n2. ",
        "\n(3)\n",
    ] {
        let text = format!("My verdicts:\n```json\n{}\n```\nThat is all.", objects.join(between));
        assert_eq!(letters(&text, false), "tft", "{text}");
    }
    let labelled = |label: &str| {
        let parts = objects.iter().zip(IDS).map(|(object, id)| label.replace("ID", id) + object);
        parts.collect::<Vec<_>>().join("\n")
    };
    for label in ["ID: ", "**ID**\n", "### ID\n", "Verdict on ID:\n", "1. `ID` - ", "ID:\n```json\n"] {
        assert_eq!(letters(&labelled(label), false), "tft", "{label}");
    }
}

#[test]
fn a_label_names_a_verdict_that_does_not_name_itself() {
    let text =
        "SR: {\"correct\": true}\nPR: {\"correct\": false}\n**IPA**\n```json\n{\"correct\": true}\n```";
    assert_eq!(letters(text, false), "tft");
    // It applies to no other probe.
    assert_eq!(letters(r#"PR: {"correct": false}"#, false), "?f?");
    assert_eq!(letters(r#"{"correct": false}"#, false), "???");
}

#[test]
fn prose_separates_and_what_stands_before_the_last_group_is_a_draft() {
    let draft = r#"{"SR": true, "PR": true, "IPA": true}"#;
    for between in [
        "\nWait, that is wrong.\n",
        " No. ",
        "\nFinal answer:\n",
        "\nOn reflection, PR is wrong:\n",
        "\n[1] says so\n",
        "\n{no json}\n",
        "</think>",
        "\n1234\n",
        "\n## Second thoughts\n",
    ] {
        let text = format!("{draft}{between}{{\"PR\": false}}\n{{\"IPA\": false}}");
        assert_eq!(letters(&text, false), "?ff", "{text}");
    }
    // A group without a verdict is ignored.
    assert_eq!(letters(&format!("{draft}\nI wrote it as {{\"note\": \"json\"}}."), false), "ttt");
}

#[test]
fn two_different_verdicts_on_one_id_within_a_group_are_told_apart_from_equal_ones() {
    for text in [
        "{\"SR\": true}\n{\"SR\": false}\n{\"PR\": true}",
        r#"{"SR": {"correct": true}, "PR": true, "SR": {"correct": false}}"#,
        r#"{"SR": {"correct": true, "correct": false}, "PR": true}"#,
        r#"[{"id": "SR", "correct": true}, {"id": "PR", "correct": true}, {"id": "SR", "correct": false}]"#,
        r#"{"draft": {"SR": true, "PR": true}, "final": {"SR": false, "PR": true}}"#,
        "SR: {\"correct\": true}\nSR: {\"correct\": false}\nPR: {\"correct\": true}",
    ] {
        assert_eq!(letters(text, false), "!t?", "{text}");
    }
    assert_eq!(letters("{\"SR\": true, \"PR\": false}\n{\"SR\": true}", false), "tf?");
    // Nested objects are not part of the group and do not override the object's own verdict.
    assert_eq!(
        letters(r#"{"SR": {"correct": true, "reason": "x", "was": {"SR": false}}, "PR": true}"#, false),
        "tt?"
    );
}

#[test]
fn an_unfinished_object_at_the_end_of_a_cut_reply_is_the_last_group() {
    let text = r#"{"SR": true, "PR": true} Now finally: {"SR": {"reason": "it see"#;
    assert_eq!((letters(text, true), letters(text, false)), ("???".to_owned(), "tt?".to_owned()));
    let text = r#"{"SR": true, "PR": true} Now finally: {"SR": {"correct": false, "reason": "it see"#;
    assert_eq!((letters(text, true), letters(text, false)), ("f??".to_owned(), "f??".to_owned()));
    // A truncated word does not count.
    assert_eq!(letters(r#"{"SR": {"correct": false}, "PR": {"correct": true"#, true), "f??");
    let score = VerdictKind::Score { most: 20, grades: &[] };
    let found = read_verdicts(ReplyText { text: r#"{"q": 1"#, cut: true, sole: Some(0) }, &["q"], score);
    assert_eq!(found, [Found::Missing]);
}

#[test]
fn a_verdict_without_an_id_is_on_the_only_one_that_was_asked_about_and_never_anothers() {
    let sole = |text| {
        let found = read_verdicts(ReplyText { text, cut: false, sole: Some(1) }, &IDS, VerdictKind::Correct);
        found.iter().map(|found| matches!(found, Found::Verdict(_))).collect::<Vec<_>>()
    };
    assert_eq!(sole(r#"{"correct": true}"#), [false, true, false]);
    assert_eq!(sole(r#"{"SR": {"correct": true}}"#), [true, false, false]);
    assert_eq!(sole(r#"{"id": "SR", "correct": true}"#), [true, false, false]);
}

proptest! {
    #[test]
    fn verdicts_are_the_same_however_they_are_split_over_the_objects_of_a_group(
        correct in prop::array::uniform3(any::<bool>()),
        owner in prop::array::uniform3(0..3_usize),
        order in Just([0, 1, 2]).prop_shuffle(),
        between in prop::sample::select(vec!["\n", ", ", "\n```\n```json\n", "\n- ", "\n2) "]),
        draft in any::<bool>(),
    ) {
        let mut objects = vec![serde_json::Map::new(); 3];
        for at in order {
            let verdict = serde_json::json!({"correct": correct[at], "reason": format!("because {{{at}}}")});
            objects[owner[at]].insert(IDS[at].to_owned(), verdict);
        }
        let objects: Vec<String> = objects.into_iter().filter(|map| !map.is_empty())
            .map(|map| serde_json::Value::Object(map).to_string()).collect();
        let opposite: Vec<String> = (0..3).map(|at| format!("\"{}\": {}", IDS[at], !correct[at])).collect();
        let draft = if draft { format!("{{{}}} but no:", opposite.join(", ")) } else { String::new() };
        let text = format!("{draft}{}", objects.join(between));
        let expected: String = correct.map(|correct| if correct { 't' } else { 'f' }).iter().collect();
        prop_assert_eq!(letters(&text, false), expected, "{}", text);
    }

    #[test]
    fn no_reply_makes_the_reader_panic_or_invents_ids(text in "[{}\\[\\]\"',:`#\\n SPRI1true-]{0,80}", cut in any::<bool>()) {
        for kind in [VerdictKind::Correct, VerdictKind::Score { most: 5, grades: &[] }, VerdictKind::Choice { of: &["S"] }] {
            let found = read_verdicts(ReplyText { text: &text, cut, sole: None }, &IDS, kind);
            prop_assert_eq!(found.len(), 3);
            if !text.contains("PR") {
                let text = text.to_lowercase();
                let spelt: String = text.chars().filter(|c| c.is_alphanumeric()).collect();
                prop_assert!(found[1] == Found::Missing || spelt.contains("pr"), "{}", text);
            }
        }
    }
}

#[test]
fn replies_are_read_in_every_way_that_models_write_them() {
    let ids = ["SR", "PR", "IPA"];
    let spellings = [
        r#"{"SR": {"correct": true, "reason": "a"}, "PR": {"correct": false, "reason": "b"}, "IPA": {"correct": true, "reason": "c"}}"#,
        "Sure! Here it is:\n```json\n{\"SR\": {\"correct\": true, \"reason\": \"a\"},\n \"PR\": {\"correct\": false, \"reason\": \"b\"},\n \"IPA\": {\"correct\": true, \"reason\": \"c\"},\n}\n```\nHope that helps {smile}.",
        "{'SR': {'correct': True, 'reason': 'a'}, 'PR': {'correct': False, 'reason': 'b'}, 'IPA': {'correct': True, 'reason': 'c'}}",
        r#"{"sr": {"correct": "yes", "reason": "a"}, "pr": {"correct": "No", "reason": "b"}, "ipa": {"correct": 1, "reason": "c"}}"#,
        r#"{"SR_correct": true, "SR_reason": "a", "PR_correct": false, "PR_reason": "b", "IPA_correct": true, "IPA_reason": "c"}"#,
        r#"{"SR": true, "SR_reason": "a", "PR": false, "PR_reason": "b", "IPA": "correct", "IPA_reason": "c"}"#,
        r#"{"verdicts": {"SR": {"verdict": true, "explanation": "a"}, "PR": {"verdict": false, "explanation": "b"}, "IPA": {"verdict": true, "explanation": "c"}}}"#,
        r#"[{"id": "SR", "correct": true, "reason": "a"}, {"id": "PR", "correct": false, "reason": "b"}, {"id": "IPA", "correct": true, "reason": "c"}]"#,
        r#"<think>Perhaps {"SR": {"correct": false}, "PR": {"correct": true}, "IPA": {"correct": false}}? No.</think>{"SR": {"correct": true, "reason": "a"}, "PR": {"correct": false, "reason": "b"}, "IPA": {"correct": true, "reason": "c"}}"#,
        "{SR: {correct: true, reason: a}, PR: {correct: false, reason: b}, IPA: {correct: true, reason: c}}",
        r#"{"SR": {"correct": true, "reason": "a"}, "PR": {"correct": false, "reason": "b"}, "IPA": {"correct": true, "reason": "c""#,
    ];
    for text in spellings {
        let found = whole(text, &ids, VerdictKind::Correct);
        let seen: Vec<_> =
            found.iter().flatten().map(|v| (v.said == Said::Correct(true), v.reason.as_deref())).collect();
        assert_eq!(seen, [(true, Some("a")), (false, Some("b")), (true, Some("c"))], "{text}");
    }
}

#[test]
fn quotes_within_reasons_are_kept() {
    let text = r#"{'SR': {'correct': true, 'reason': 'it doesn't cite the "old" job'}}"#;
    let found = whole(text, &["SR"], VerdictKind::Correct);
    assert_eq!(found[0].as_ref().unwrap().reason.as_deref(), Some("it doesn't cite the \"old\" job"));
}

#[test]
fn what_is_not_said_is_missing_and_never_guessed() {
    let none = |text: &str| {
        assert!(whole(text, &["SR"], VerdictKind::Correct).iter().all(Option::is_none), "{text}");
    };
    none("");
    none("All three are correct.");
    none("{");
    none("{}[]{]}");
    none(r#"{"SR": {"correct": true or false, "reason": "..."}}"#);
    none(r#"{"SR": {"correct": "partly", "reason": "..."}}"#);
    none(r#"{"SR": {"correct": null}}"#);
    none(r#"{"SR": {"reason": "true"}}"#);
    none(&"{\"a\":".repeat(100_000));
    none(&"[".repeat(1_000_000));
    let found =
        whole(r#"{"SR": {"correct": true}, "PR": "unsure"}"#, &["SR", "PR", "IPA"], VerdictKind::Correct);
    assert_eq!(found.iter().map(Option::is_some).collect::<Vec<_>>(), [true, false, false]);
    assert_eq!(found[0].as_ref().unwrap().reason, None);
}

#[test]
fn scores_and_choices_are_read_and_what_is_off_the_scale_is_missing() {
    let read = |text: &str, kind| whole(text, &["q"], kind)[0].as_ref().map(|v| v.said.clone());
    let score = VerdictKind::Score { most: 5, grades: &[] };
    for text in [
        r#"{"q": {"score": 4, "reason": "nearly"}}"#,
        r#"I think: {"score": "4/5", "reason": "nearly"}"#,
        r#"{"q": 4.0}"#,
        r#"{"verdicts": [{"id": "q", "rating": 4}]}"#,
    ] {
        assert_eq!(read(text, score), Some(Said::Score(4.0)), "{text}");
    }
    for text in [r#"{"q": 6}"#, r#"{"q": -1}"#, r#"{"q": "good"}"#, r#"{"q": true}"#] {
        assert_eq!(read(text, score), None, "{text}");
    }
    let choice = VerdictKind::Choice { of: &["first", "second"] };
    assert_eq!(read(r#"{"choice": "Second."}"#, choice), Some(Said::Choice("second".to_owned())));
    assert_eq!(read(r#"{"q": {"verdict": "first"}}"#, choice), Some(Said::Choice("first".to_owned())));
    assert_eq!(read(r#"{"q": "third"}"#, choice), None);
    // With several probes, each must be named.
    assert!(whole(r#"{"score": 4}"#, &["q", "r"], score).iter().all(Option::is_none));
}
