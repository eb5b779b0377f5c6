//! Answers in the authors' format.

use super::*;

fn exported(folder: &RunFolder, partial: bool) -> anyhow::Result<Vec<StaleAnswers>> {
    export(folder, partial).map(format)
}

fn imported(dir: &Path, text: &[u8], cases: &[Case], partial: bool) -> Result<Imported, String> {
    let entries = parse(text).map_err(|e| e.to_string())?;
    let dataset = NameAndDigest { name: "sample".to_owned(), digest: "d1".to_owned() };
    let job = Import { benchmark: &STALE, dataset, cases, model: "theirs".to_owned(), partial };
    import(dir, text, &entries, &job).map_err(|e| e.to_string())
}

#[test]
fn exported_answers_come_back_the_same() {
    let all = cases(2);
    let (root, dir) = finished(2);
    let answers = exported(&RunFolder::read(&dir).unwrap(), false).unwrap();
    let text = serde_json::to_vec(&answers).unwrap();
    let value: serde_json::Value = serde_json::from_slice(&text).unwrap();
    assert_eq!(value[1]["uid"], "case-1");
    assert_eq!(
        value[1]["target_model_responses"]["dim3_response"],
        "answer to case-1/IPA: \"é\"\nsecond line"
    );
    let back = root.path().join("imported");
    assert_eq!(imported(&back, &text, &all, false).unwrap(), Imported { answers: 6, thoughts: 0, cut: 0 });
    let folder = RunFolder::read(&back).unwrap();
    assert_eq!(exported(&folder, false).unwrap(), answers);
    assert_eq!(folder.header.identity.model.name, "theirs");
    assert!(imported(&back, &text, &all, false).unwrap_err().contains("holds a run already"));
}

#[test]
fn missing_answers_are_listed_and_only_exchanged_when_asked_for() {
    let all = cases(2);
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("run");
    answer(&dir, &all, &mut Fake::failing(&["case-1/PR"])).unwrap();
    let folder = RunFolder::read(&dir).unwrap();
    let error = exported(&folder, false).unwrap_err().to_string();
    assert!(error.contains("case-1/PR") && error.contains("--partial"), "{error}");
    let answers = exported(&folder, true).unwrap();
    assert_eq!(answers[1].target_model_responses.dim2_response, "");

    let text = serde_json::to_vec(&answers).unwrap();
    let back = root.path().join("imported");
    let error = imported(&back, &text, &all, false).unwrap_err();
    assert!(error.contains("case-1/PR"), "{error}");
    assert!(!back.exists());
    assert_eq!(imported(&back, &text, &all, true).unwrap().answers, 5);
    assert!(RunFolder::read(&back).unwrap().answers[4].error.is_some());
}

#[test]
fn foreign_answers_that_do_not_fit_the_dataset_are_refused() {
    let all = cases(1);
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("run");
    let row = r#"{"uid":"U","target_model_responses":{"dim1_response":"a","dim2_response":"b","dim3_response":null}}"#;
    let refused = |text: String| {
        let error = imported(&dir, text.as_bytes(), &all, true).unwrap_err();
        assert!(!dir.exists());
        error
    };
    assert!(refused(format!("[{row}]")).contains("not in the dataset (U)"));
    let known = row.replace('U', "case-0");
    assert!(refused(format!("[{known},{known}]")).contains("`case-0` occurs twice"));
    assert!(refused("{}".to_owned()).contains("target_model_responses"));
    assert!(refused(format!("{{\"data\": {known}}}")).contains("exchange format"));
    assert!(refused(format!("[{known}")).contains("exchange format"));
    assert_eq!(imported(&dir, format!("[{known}]").as_bytes(), &all, true).unwrap().answers, 2);
}

/// Output of a reasoning model, as the authors' script stored it.
#[test]
fn imported_answers_pass_the_same_split_as_generated_ones() {
    let all = cases(2);
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("imported");
    let texts = [
        "<think>It was Oslo, then Bergen.</think>\n\nBergen.",
        "the prompt opened this thought</think>Bergen.",
        "<think>It was Oslo, then",
        "<|channel|>analysis<|message|>Oslo?<|end|><|start|>assistant<|channel|>final<|message|>Bergen.",
        "<think></think>Bergen.",
        " In <think>Bergen</think>. ",
    ];
    let row = |case: usize, at: usize| {
        let [one, two, three] = [0, 1, 2].map(|probe| texts[at + probe]);
        serde_json::json!({ "uid": format!("case-{case}"),
            "target_model_responses": { "dim1_response": one, "dim2_response": two, "dim3_response": three } })
    };
    let text = serde_json::to_vec(&serde_json::json!([row(0, 0), row(1, 3)])).unwrap();
    assert_eq!(imported(&dir, &text, &all, false).unwrap(), Imported { answers: 5, thoughts: 3, cut: 1 });
    let folder = RunFolder::read(&dir).unwrap();
    let found: Vec<(Option<&str>, Option<&str>)> =
        folder.answers.iter().map(|row| (row.thought.as_deref(), row.answer.as_deref())).collect();
    let expected = [
        (Some("It was Oslo, then Bergen."), Some("Bergen.")),
        (Some("the prompt opened this thought"), Some("Bergen.")),
        (Some("It was Oslo, then"), None),
        (Some("Oslo?"), Some("Bergen.")),
        (None, Some("Bergen.")),
        // Unchanged: it does not begin with a thought.
        (None, Some(texts[5])),
    ];
    assert_eq!(found, expected);
    let cut = &folder.answers[2];
    assert!(
        cut.cut && cut.error.as_deref().is_some_and(|error| error.contains("inside its thought")),
        "{cut:?}"
    );
}

#[test]
fn answers_in_an_object_are_read_and_failed_calls_are_errors() {
    let all = cases(2);
    let root = tempfile::tempdir().unwrap();
    let row = |uid: &str, second: &str| {
        serde_json::json!({
            "uid": uid, "target_model": "theirs", "target_model_meta": {"dim1_meta": {"tokens": 3}},
            "target_model_responses": {
                "dim1_response": "a", "dim2_response": second, "dim3_response": "An ERROR: Failed after multiple retries. is no answer",
            },
        })
    };
    let rows =
        serde_json::json!([row("case-0", "b"), row("case-1", " ERROR: Failed after multiple retries.\n")]);
    let mut made = Vec::new();
    for (name, text) in
        [("list", rows.to_string()), ("object", serde_json::json!({"model": "x", "data": rows}).to_string())]
    {
        let dir = root.path().join(name);
        // Nothing is missing: the failed call is its own error row and is not requested.
        assert_eq!(imported(&dir, text.as_bytes(), &all, false).unwrap().answers, 5);
        let folder = RunFolder::read(&dir).unwrap();
        let errors: Vec<_> = folder.answers.iter().filter(|row| row.error.is_some()).collect();
        assert_eq!(errors.len(), 1);
        assert_eq!(
            (errors[0].case.as_str(), errors[0].probe.as_str(), errors[0].answer.as_deref()),
            ("case-1", "PR", None)
        );
        let error = errors[0].error.as_deref().unwrap();
        assert!(error.contains("ERROR: Failed after multiple retries."), "{error}");
        made.push(folder.answers);
    }
    assert_eq!(made[0], made[1]);
}
