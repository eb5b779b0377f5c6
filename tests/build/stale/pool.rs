//! Files of distractors.

use std::path::PathBuf;

use palimpsest::build::BuildError;
use palimpsest::build::pool::Pool;
use palimpsest::case::Turn;
use palimpsest_core::digest::sha256;
use serde_json::{Value, json};

/// Reads files with these names and texts.
fn read(files: &[(&str, &str)]) -> Result<Pool, BuildError> {
    let folder = tempfile::tempdir().unwrap();
    let path = |(name, text): &(&str, &str)| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    Pool::read(&files.iter().map(path).collect::<Vec<PathBuf>>())
}

fn talk(text: &str) -> Value {
    json!([{"role": "user", "content": text}, {"role": "assistant", "content": "I see."}])
}

/// Of each session: its id behind the digest, topic, licence and first text.
fn told(pool: &Pool) -> Vec<[&str; 4]> {
    pool.sessions
        .iter()
        .map(|session| {
            [
                &session.id[12..],
                session.topic.as_str(),
                session.licence.as_str(),
                session.turns[0].content.as_str(),
            ]
        })
        .collect()
}

#[test]
fn every_form_is_read_with_its_licence() {
    let own = format!(
        "{}\n\n{}\n",
        json!({"topic": "tea", "turns": talk("Tea?"), "licence": "CC0-1.0"}),
        json!({"id": "f2", "licence": "MIT", "turns": talk("Milk?")})
    );
    let stale = json!([{"uid": "s", "relevant_session_index": [0, 2], "haystack_session": [talk("a"), talk("Bread?"), talk("c"), []]}]);
    let long = json!([{
        "question_id": "q", "answer_session_ids": ["answer_1"],
        "haystack_session_ids": ["sharegpt_x_0", "answer_1", "ultrachat_7", "85a1be56"],
        "haystack_sessions": [talk("One?"), talk("Two?"), talk("Three?"), talk("Four?")],
    }]);
    let subtle = json!([
        {"session_id": "s1", "source": "user-unrelated", "history": talk("Five?")},
        {"session_id": "s2", "source": "user-related", "history": talk("Six?")},
    ]);
    let share = json!([{"id": "g", "conversations": [
        {"from": "gpt", "value": "Cut off."}, {"from": "human", "value": "Seven?"}, {"from": "gpt", "value": "Yes."},
    ]}]);
    let locomo = json!({
        "speaker_a": "Ana", "speaker_b": "Ben", "session_1_date_time": "1:56 pm on 8 May, 2023",
        "session_1": [{"speaker": "Ben", "dia_id": "D1:1", "text": "Hi."}, {"speaker": "Ana", "dia_id": "D1:2", "text": "Eight?"},
                      {"speaker": "Ben", "dia_id": "D1:3", "text": "Yes."}],
        "session_2": [{"speaker": "Ana", "dia_id": "D2:1", "text": "Nine?"}],
    });
    let wrapped = json!({"data": [{"sample_id": "c", "conversation": {"speaker_a": "A", "session_1": [{"speaker": "A", "text": "Ten?"}]}}]});
    let pretty = serde_json::to_string_pretty(&locomo).unwrap();
    let texts = [stale, long, subtle, share, wrapped].map(|value| value.to_string());
    let pool = read(&[
        ("own.jsonl", &own),
        ("T1.json", &texts[0]),
        ("long.json", &texts[1]),
        ("history_sessions.json", &texts[2]),
        ("share.json", &texts[3]),
        ("26.json", &pretty),
        ("all.json", &texts[4]),
    ])
    .unwrap();
    assert_eq!(
        told(&pool),
        [
            ["-0", "tea", "CC0-1.0", "Tea?"],
            ["-1", "f2", "MIT", "Milk?"],
            ["-0.1", "", "CC-BY-4.0, with disputed parts (ShareGPT, UltraChat)", "Bread?"],
            ["-0.0", "sharegpt_x_0", "disputed (ShareGPT)", "One?"],
            ["-0.2", "ultrachat_7", "non-commercial (UltraChat)", "Three?"],
            ["-0.3", "85a1be56", "MIT", "Four?"],
            ["-0", "s1", "unknown", "Five?"],
            ["-0", "g", "disputed (ShareGPT)", "Seven?"],
            ["-0.1", "", "CC-BY-NC-4.0", "Eight?"],
            ["-0.2", "", "CC-BY-NC-4.0", "Nine?"],
            ["-0.1", "", "CC-BY-NC-4.0", "Ten?"],
        ]
    );
    assert_eq!(pool.sessions[0].id, format!("{}-0", &sha256(&own)[..12]));
    assert_eq!((pool.sessions[8].source.as_str(), pool.sessions[8].turns.len()), ("26", 2));
    assert_eq!(pool.sessions[8].turns[1], Turn::new("assistant", "Yes."));
}

#[test]
fn a_session_is_taken_once_and_a_wrong_row_is_named() {
    let one = json!({"topic": "tea", "turns": talk("Tea?")}).to_string();
    let same = json!({"topic": "other", "turns": talk(" tea!")}).to_string();
    let pool = read(&[("a.jsonl", &format!("{one}\n{same}")), ("b.jsonl", &same)]).unwrap();
    assert_eq!(told(&pool), [["-0", "tea", "unknown", "Tea?"]]);
    for (text, said) in [
        (format!("{one}\n{{\"topic\": \"x\"}}"), vec!["row 1, (row)", "none of the known fields"]),
        (format!("{one}\nnonsense"), vec!["row 1, (row)", "expected"]),
        (
            json!({"turns": [{"role": "narrator", "content": "x"}]}).to_string(),
            vec!["row 0, turns[0].role", "narrator"],
        ),
        (json!([{"turns": [{"role": "user"}]}]).to_string(), vec!["row 0, turns[0]", "role"]),
        (json!([{"turns": "x"}]).to_string(), vec!["row 0, turns", "list"]),
        ("[]".to_owned(), vec!["no session"]),
        (String::new(), vec!["no session"]),
    ] {
        let error = read(&[("a.json", &text)]).unwrap_err().to_string();
        assert!(said.iter().all(|part| error.contains(part)) && error.contains("a.json"), "{error}");
    }
}
