//! Wording of the prompts.

use std::path::Path;

use palimpsest::benchmarks::stale::STALE;
use palimpsest::prompt::{PromptBuilder, PromptError, Templates};
use palimpsest_core::text::ChatTemplate;

use super::{CHATML, cycling, probe, tokenizer};

fn build_with(dir: &Path) -> Result<palimpsest_core::text::Prompt, PromptError> {
    let chat = ChatTemplate::new("test", CHATML, None, None)?;
    PromptBuilder::new(Templates::load(&STALE, Some(dir))?, chat).build(
        &cycling(),
        &[],
        &probe("question", "Does the user cycle?"),
    )
}

#[test]
fn file_in_the_folder_replaces_the_embedded_one_alone() {
    let dir = tempfile::tempdir().unwrap();
    let before = build_with(dir.path()).unwrap();
    std::fs::write(dir.path().join("system.j2"), "Answer in verse.").unwrap();
    let after = build_with(dir.path()).unwrap();
    assert_eq!(after.messages[0].content, "Answer in verse.");
    assert_eq!(after.messages[1], before.messages[1]);
    std::fs::write(dir.path().join("system.j2"), "").unwrap();
    assert_eq!(
        build_with(dir.path()).unwrap().messages.len(),
        1,
        "an empty system.j2 sends no system message"
    );
}

#[test]
fn unknown_file_is_refused_with_the_known_names() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join(".hidden"), "").unwrap();
    std::fs::write(dir.path().join("judge.j2"), "").unwrap();
    assert!(Templates::load(&STALE, Some(dir.path())).is_ok());
    std::fs::write(dir.path().join("qestion.j2"), "").unwrap();
    let error = Templates::load(&STALE, Some(dir.path())).unwrap_err().to_string();
    assert!(error.contains("qestion.j2"), "{error}");
    assert!(STALE.templates.iter().all(|(name, _)| error.contains(name)), "{error}");
    assert!(Templates::load(&STALE, Some(&dir.path().join("absent"))).is_err());
}

#[test]
fn digest_changes_with_the_wording_and_with_nothing_else() {
    let embedded = Templates::load(&STALE, None).unwrap();
    assert_eq!(embedded.digest().len(), 64);
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(Templates::load(&STALE, Some(dir.path())).unwrap().digest(), embedded.digest());
    std::fs::write(dir.path().join("request.j2"), "{{ history }}{{ query }}").unwrap();
    let changed = Templates::load(&STALE, Some(dir.path())).unwrap();
    assert_ne!(changed.digest(), embedded.digest());
    std::fs::rename(dir.path().join("request.j2"), dir.path().join("question.j2")).unwrap();
    assert_ne!(Templates::load(&STALE, Some(dir.path())).unwrap().digest(), changed.digest());
}

#[test]
fn override_that_cannot_give_exact_spans_is_refused_by_name() {
    for (source, reason) in [
        ("{{ query }}\n{{ history }}", "before the history"),
        ("Read: {{ history }}{{ query }}", "line of its own"),
        ("Read:\n{{ history }}{{ history }}{{ query }}", "2 times"),
        ("Read:\n{{ query }}", "0 times"),
        ("Read:\n{{ history }}", "0 times"),
        ("Read:\n{{ history }}{{ query }} {{ query }}", "2 times"),
        ("Read:\n{{ history | upper }}{{ query }}", "times"),
        ("Read:\n{{ history }}{{ query | replace('cycle', 'walk') }}", "alters"),
        ("Read:\n{{ history }}{{ query }}{{ qery }}", "undefined"),
        ("Read:\n{{ history }}\n\n{% endif %}", "line"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("question.j2"), source).unwrap();
        let error = build_with(dir.path()).unwrap_err().to_string();
        assert!(error.contains("question.j2") && error.contains(reason), "{source:?}: {error}");
    }
}

#[test]
fn session_template_that_renders_nothing_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("session.j2"), " {# nothing #}").unwrap();
    let error = build_with(dir.path()).unwrap_err().to_string();
    assert!(error.contains("session.j2") && error.contains("session 0"), "{error}");
}

#[test]
fn blank_lines_after_the_history_belong_to_the_last_session() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("question.j2"), "Read:\n\n{{ history }}\n\n\n{{ query }}").unwrap();
    let prompt = build_with(dir.path()).unwrap();
    let last = prompt.spans.iter().find(|span| span.label == "session[4]").unwrap();
    assert!(prompt.text[last.start..last.end].ends_with("Rest well!  \n\n\n\n\n"));
    let tokenizer = tokenizer("smollm");
    let encoded = prompt.encode(&tokenizer).unwrap();
    let tokens = encoded.tokens_of(encoded.span("session[4]").unwrap());
    assert_eq!(tokenizer.decode(tokens, false).unwrap(), prompt.text[last.start..last.end]);
}

#[test]
fn wording_hints_at_neither_conflict_nor_evidence() {
    for form in ["question", "request"] {
        let chat = ChatTemplate::new("test", CHATML, None, None).unwrap();
        let prompt = PromptBuilder::new(Templates::load(&STALE, None).unwrap(), chat)
            .build(&cycling(), &[], &probe(form, "Q"))
            .unwrap();
        let ours: String = (prompt.spans.iter())
            .filter(|span| !span.label.starts_with("session"))
            .map(|span| prompt.text[span.start..span.end].to_lowercase())
            .collect();
        for hint in [
            "conflict",
            "contradict",
            "outdated",
            "stale",
            "evidence",
            "update",
            "changed",
            "most recent",
            "no longer",
        ] {
            assert!(!ours.contains(hint), "{hint:?} in {ours}");
        }
    }
}
