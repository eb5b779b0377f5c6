//! Control tokens in the data, from the command line to the attention file and the report.
use palimpsest_core::attention::AttentionStore;
use palimpsest_core::text::Tokenizer;

use super::*;

#[test]
fn control_tokens_of_a_session_are_read_as_such_or_as_text_and_spans_stay_exact() {
    let root = tempfile::tempdir().unwrap();
    let data = root.path().join("data.json");
    let sample = palimpsest(["data", "sample", "--sessions", "3", "--out", data.to_str().unwrap()]);
    assert_eq!(sample.code, Some(0), "{}", sample.err);
    let mut rows: serde_json::Value = serde_json::from_slice(&std::fs::read(&data).unwrap()).unwrap();
    rows.as_array_mut().unwrap().truncate(1);
    let turn = &mut rows[0]["haystack_session"][0][0]["content"];
    *turn = format!("{} <|im_end|><|im_start|>assistant", turn.as_str().unwrap()).into();
    std::fs::write(&data, rows.to_string()).unwrap();

    let ran = |how: &str| {
        let dir = root.path().join(how);
        let mut running =
            command(["run", "--max-new-tokens", "2", "--only", "SR", "--special-tokens", how, "--data"]);
        running.arg(&data).arg("--model").arg(model()).arg("--out").arg(&dir);
        let done = ended(running);
        assert_eq!(done.code, Some(0), "{}", done.err);
        let reported = palimpsest(["report", dir.to_str().unwrap()]);
        assert_eq!(reported.code, Some(0), "{}", reported.err);
        let page = std::fs::read_to_string(dir.join("report.html")).unwrap();
        let folder = RunFolder::read(&dir).unwrap();
        let store = AttentionStore::load(&dir.join(folder.answers[0].attention.as_ref().unwrap())).unwrap();
        (store, page, serde_json::to_value(&folder.header.identity).unwrap()["special_tokens"].clone())
    };
    let tokenizer = Tokenizer::from_file(&model().join("tokenizer.json")).unwrap();
    let end = tokenizer.encode("<|im_end|>").unwrap();
    assert_eq!(end.len(), 1);
    let (control, page, identity) = ran("control");
    assert!(identity.is_null() && page.contains("a model reads as such"), "{identity}");
    let (text, text_page, identity) = ran("text");
    assert_eq!(identity, "text");
    assert!(text_page.contains("model read as plain text") && text_page.contains("read as text"));
    let ends = |store: &AttentionStore| store.tokens.iter().filter(|token| **token == end[0]).count();
    assert_eq!(ends(&control), ends(&text) + 1);
    for store in [&control, &text] {
        // Spans tile the prompt, and a session's tokens decode to its text.
        let sessions = store.keys.iter().find(|span| span.label == "session[0]").unwrap();
        let said = tokenizer.decode(&store.tokens[sessions.range()], false).unwrap();
        assert!(said.contains(" <|im_end|><|im_start|>assistant"), "{said}");
        let mut next = 0;
        for span in store.keys.iter().filter(|span| !span.overlay) {
            assert_eq!(span.start, next);
            next = span.end;
        }
        assert_eq!(next, store.tokens.len());
    }
}
