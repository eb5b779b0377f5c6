//! What must hold for: answers in the authors' format.

use super::*;

/// Answers in the format of STALE's authors.
fn exported(folder: &RunFolder, partial: bool) -> Result<Vec<StaleAnswers>, ExchangeError> {
    export(folder, partial).map(format)
}

fn imported(dir: &Path, text: &[u8], cases: &[Case], partial: bool) -> Result<usize, String> {
    let entries = parse(text).map_err(|e| e.to_string())?;
    let dataset = Named { name: "sample".to_owned(), digest: "d1".to_owned() };
    let job = Import { benchmark: &Stale, dataset, cases, model: "theirs".to_owned(), partial };
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
    assert_eq!(imported(&back, &text, &all, false).unwrap(), 6);
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
    assert_eq!(imported(&back, &text, &all, true).unwrap(), 5);
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
    assert!(refused(format!("[{known}")).contains("exchange format"));
    assert_eq!(imported(&dir, format!("[{known}]").as_bytes(), &all, true).unwrap(), 2);
}
