//! Makers and checks of the full preset, over what a scripted model would have written.

use std::collections::BTreeSet;

use palimpsest::build::table::check;
use palimpsest::build::{Row, RowError};
use serde_json::{Value, json};

use super::{NAME, UNKNOWN, apart, lines, make, noise, only, owned, row, text, within};

#[test]
fn contexts_are_cut_at_sentences_and_never_inside_a_key() {
    let sentence = |nth: usize| format!("Sentence {nth} tells of a harbour with {nth} boats.");
    let mut all: Vec<String> = (0..40).map(sentence).collect();
    let key = "The mate took the compass. He put it into locker 17.";
    all.insert(17, key.to_owned());
    let whole = all.join(" ");
    let case = row(&json!({"id": "c", "question": "?", "answer": "locker 17", "keys": [key], "text": whole}));
    for most in [12, 30, 100, 10_000] {
        let made = only(make("chunks", json!({"chunk_tokens": most}), std::slice::from_ref(&case)));
        let chunks: Vec<String> = made.read("chunks").unwrap();
        assert_eq!(chunks.join(" "), whole);
        assert_eq!(chunks.iter().filter(|chunk| chunk.contains(key)).count(), 1);
        assert!(chunks.iter().all(|chunk| chunk.ends_with('.')));
        assert_eq!(chunks.len() == 1, most == 10_000);
        if most < 10_000 {
            let rest = only(make("without-keys", json!({}), std::slice::from_ref(&made)));
            let left: Vec<String> = rest.read("chunks").unwrap();
            assert!(left.len() == chunks.len() - 1 && left.iter().all(|chunk| !chunk.contains("compass")));
        }
    }
    let lost = row(
        &json!({"id": "c", "question": "?", "answer": "a", "keys": ["nowhere"], "chunks": ["one", "two"]}),
    );
    assert_eq!(
        make("chunks", json!({}), &[lost]),
        Err(RowError::Rejected("a key is in no chunk".to_owned()))
    );
}

#[test]
fn parts_are_equal_groups_with_one_more_after_them_and_are_joined_again() {
    let case = |chunks: usize| {
        let chunks: Vec<String> = (0..chunks).map(|nth| format!("chunk {nth}")).collect();
        row(
            &json!({"id": "c", "case": "c", "question": "?", "answer": "a", "keys": ["chunk 1"], "chunks": chunks}),
        )
    };
    for p in [2, 3] {
        for count in p + 1..14 {
            let parts = make("parts", json!({"parts": [p]}), &[case(count)]).unwrap();
            assert_eq!(parts.len(), p);
            let mut all: Vec<String> = Vec::new();
            let mut sizes = BTreeSet::new();
            for part in &parts {
                let own: Vec<String> = part.read("chunks").unwrap();
                sizes.insert(own.len());
                all.extend(own);
            }
            let tail: Vec<String> = parts[0].read("tail").unwrap();
            sizes.insert(tail.len());
            all.extend(tail.clone());
            assert_eq!(all, case(count).read::<Vec<String>>("chunks").unwrap());
            assert!(sizes.last().unwrap() - sizes.first().unwrap() <= 1, "{sizes:?}");
            // Read by a scripted agent, grouped as the engine does, and joined.
            let read = |part: &Row| {
                let mut fields = part.fields.clone();
                let chunks: Vec<String> = part.read("chunks").unwrap();
                fields
                    .insert("trace".to_owned(), chunks.iter().map(|chunk| format!("read {chunk}")).collect());
                fields.insert("wrong".to_owned(), chunks.iter().map(|_| json!(["nonsense"])).collect());
                Value::Object(fields)
            };
            let group = row(&json!({"id": "c.mixed", "rows": parts.iter().map(read).collect::<Vec<_>>()}));
            let joined = only(make("join", json!({}), &[group]));
            assert_eq!(joined.read::<Vec<String>>("chunks").unwrap(), tail);
            assert_eq!(joined.list("parts").unwrap().len(), p);
            assert_eq!(joined.text("parts.0.trace.0").unwrap(), "read chunk 0");
            assert_eq!(joined.text("parts.1.wrong.0.0").unwrap(), "nonsense");
            assert!(joined.get("trace").is_none() && joined.text("case").unwrap() == "c.mixed");
        }
        let few = make("parts", json!({"parts": [p]}), &[case(p)]);
        assert!(matches!(few, Err(RowError::Rejected(_))), "{few:?}");
    }
    let missing = row(&json!({"id": "g", "rows": [{"parallel": 2, "chunks": [], "trace": [], "tail": []}]}));
    assert_eq!(make("join", json!({}), &[missing]), Err(RowError::Rejected("a part is missing".to_owned())));
}

/// A trace as the full preset's stages leave it.
fn scripted(wrong: &Value) -> Row {
    row(&json!({
        "id": "s", "case": "s", "question": "Where is the key?", "answer": "in the safe", "keys": ["put the key into the safe"],
        "chunks": ["Fog lay on the sea.", "The captain put the key into the safe.", "The cook sang."],
        "trace": ["nothing yet", "the key is in the safe", "the key is in the safe"],
        "wrong": wrong, "final": "It is in the safe.",
    }))
}

#[test]
fn refused_updates_are_in_the_rejected_trace_alone() {
    let row =
        scripted(&json!([[], ["the captain has the key", "the key is lost"], ["the cook has the key"]]));
    let pair = only(make("corrected", json!({}), std::slice::from_ref(&row)));
    assert_eq!(text(&pair, "subtask"), "Sequential-Noise");
    assert!(
        !text(&pair, "chosen").contains("wrong")
            && text(&pair, "chosen").ends_with("Answer: It is in the safe.")
    );
    let [gone, added] = apart(&pair);
    let update = |text: &str| ["<wrong-updated-memory>", text, "</wrong-updated-memory>"].map(str::to_owned);
    let wanted = ["the captain has the key", "the key is lost", "the cook has the key"].map(update).concat();
    assert!(gone.is_empty());
    assert_eq!(added, wanted);
    assert_eq!(pair.read::<Vec<String>>("added").unwrap().len(), 3);
    // One that was never wrong takes a repeat, not its updates.
    let never = scripted(&json!([[], [], []]));
    assert_eq!(
        make("corrected", json!({}), std::slice::from_ref(&never)),
        Err(RowError::Rejected("no update was wrong".to_owned()))
    );
    assert_eq!(make("repeat", json!({}), &[row]), Err(RowError::Rejected("an update was wrong".to_owned())));
    assert_eq!(make("repeat", json!({}), &[never]).unwrap().len(), 1);
    let mut short = scripted(&json!([]));
    short.fields.insert("trace".to_owned(), json!(["one"]));
    let Err(RowError::Fault(what)) = make("repeat", json!({}), &[short]) else { panic!() };
    assert!(what.contains("3 chunks and 1 memories"), "{what}");
}

#[test]
fn a_trace_over_the_rest_is_set_against_the_one_over_the_whole() {
    let whole = scripted(&json!([[], ["a wrong one"], []]));
    let mut rest = only(make("without-keys", json!({}), std::slice::from_ref(&whole)));
    for (name, value) in [("trace", json!(["nothing yet", "nothing yet"])), ("final", json!(UNKNOWN))] {
        rest.fields.insert(name.to_owned(), value);
    }
    rest.fields.shift_remove("wrong");
    let group = |rows: &[&Row]| {
        let rows: Vec<Value> = rows.iter().map(|row| Value::Object(row.fields.clone())).collect();
        row(&json!({"id": "s", "rows": rows}))
    };
    // In any order.
    for rows in [[&whole, &rest], [&rest, &whole]] {
        let pair = only(make("against", json!({}), &[group(&rows)]));
        assert_eq!(text(&pair, "subtask"), "Sequential-Drop");
        assert!(text(&pair, "question").contains("put the key into the safe"));
        assert!(
            text(&pair, "chosen").contains("put the key into the safe")
                && !text(&pair, "chosen").contains("a wrong one")
        );
        assert!(!text(&pair, "rejected").contains("safe") && text(&pair, "rejected").ends_with(UNKNOWN));
        let passes = |name: &str, with: Value| {
            let with = with.as_object().unwrap().clone();
            within(&noise(), "s", &json!({}), |setting| {
                check(NAME, name).unwrap()(setting, &with, &pair).unwrap()
            })
        };
        assert_eq!(passes("no-keys", json!({})), None);
        assert_eq!(passes("outcomes", json!({"chosen": true, "rejected": false})), None);
        assert_eq!(
            passes("outcomes", json!({"rejected": true})).as_deref(),
            Some("the rejected answer is wrong")
        );
    }
    let alone = make("against", json!({}), &[group(&[&whole])]);
    assert_eq!(alone, Err(RowError::Rejected("one of the two traces is missing".to_owned())));
}

#[test]
fn what_a_check_should_refuse_it_refuses() {
    let mut pair = only(make("repeat", json!({}), &[scripted(&json!([]))]));
    let refused = |name: &str, pair: &Row| {
        within(&noise(), "s", &json!({}), |setting| {
            check(NAME, name).unwrap()(setting, &serde_json::Map::new(), pair).unwrap()
        })
    };
    assert_eq!(refused("differs", &pair), None);
    assert_eq!(refused("lengths", &pair).as_deref(), Some("the lengths differ too much"));
    let longer = format!("{}\nand one line more", text(&pair, "rejected"));
    pair.fields.insert("rejected".to_owned(), json!(longer));
    assert_eq!(refused("differs", &pair).as_deref(), Some("the traces differ elsewhere too"));
    let chosen = pair.fields["chosen"].clone();
    pair.fields.insert("rejected".to_owned(), chosen);
    assert_eq!(refused("differs", &pair).as_deref(), Some("the traces are equal"));
    assert_eq!(refused("lengths", &pair), None);
    assert_eq!(refused("no-keys", &pair).as_deref(), Some("a key is in the wrong trace"));
}

#[test]
fn an_answer_from_a_skipped_memory_decides_between_mem_and_out() {
    let base = json!({
        "id": "d.0", "copy": 0, "question": "Where does Ada live?", "answer": "Tarn", "keys": ["I moved to Tarn"],
        "turns": ["Ada: I moved to Tarn.", "Ben: Good.", "Ada: Yes.", "Ben: Bye."],
        "notes": ["Ada lives in Tarn", "Ben is glad", "Ada agrees", "Ben leaves"], "final": "Tarn",
    });
    let with = json!({"systems": ["Mem0", "A-Mem"], "run": [2, 2], "over_keys": true});
    let skipped = only(make("skip", with.clone(), &[row(&base)]));
    assert_eq!(skipped.read::<Vec<String>>("kept").unwrap(), ["", "", "Ada agrees", "Ben leaves"]);
    for (said, setting) in [("In Tarn, I think.", "Mem0-Mem"), ("In Velby.", "Mem0-Out")] {
        let mut answered = skipped.clone();
        answered.fields.insert("kept_final".to_owned(), json!(said));
        let pair = only(make("dialogue", json!({}), &[answered]));
        assert_eq!(text(&pair, "subtask"), setting);
        assert_eq!(
            text(&pair, "rejected"),
            format!("[turn 3]\nAda agrees\n\n[turn 4]\nBen leaves\n\nAnswer: {said}")
        );
        differs_by_answer(&pair);
    }
    let mut silent = base.clone();
    silent["notes"] = json!(["", "", "Ada agrees", ""]);
    let none = make("skip", with, &[row(&silent)]);
    assert_eq!(none, Err(RowError::Rejected("no run of turns can be skipped".to_owned())));
}

fn differs_by_answer(pair: &Row) {
    let [gone, added] = apart(pair);
    assert_eq!(gone, ["[turn 1]", "Ada lives in Tarn", "[turn 2]", "Ben is glad", "Answer: Tarn"]);
    assert_eq!(added.len(), 1);
}

#[test]
fn texts_differ_in_the_sections_of_the_constraints_that_were_picked() {
    let constraints: Vec<String> = (0..7).map(|nth| format!("Section {nth} names {nth} birds.")).collect();
    let right: Vec<String> =
        (0..7).map(|nth| format!("Here are {nth} birds.\nThey sing for {nth} hours.")).collect();
    let instruction = row(&json!({
        "id": "i", "question": "Title: Birds", "constraints": constraints, "scheme": "Parallel", "blocks": right,
    }));
    for (change, share, count) in [("altered", 0.34, 2), ("dropped", 0.01, 1)] {
        let with = json!({"change": change, "spoiled": share});
        let mut picked = only(make("pick", with, std::slice::from_ref(&instruction)));
        let places: Vec<usize> = picked.read("picked").unwrap();
        let texts: Vec<String> = picked.read("to_alter").unwrap();
        assert!(places.len() == count && places.is_sorted(), "{places:?}");
        assert_eq!(texts, places.iter().map(|nth| constraints[*nth].clone()).collect::<Vec<_>>());
        assert_eq!(picked.get("altered").cloned(), (change == "dropped").then(|| json!(vec![""; count])));
        let wrong: Vec<String> = places.iter().map(|nth| format!("No birds in {nth}.")).collect();
        picked.fields.insert("spoiled_blocks".to_owned(), json!(wrong));
        let pair = only(make("blocks", json!({}), &[picked]));
        assert_eq!(text(&pair, "subtask"), "Parallel");
        let [gone, added] = apart(&pair);
        let lost: Vec<&str> = places.iter().flat_map(|nth| lines(&right[*nth])).collect();
        assert_eq!((gone, added), (owned(&lost), wrong));
    }
}
