//! Bad input: one clear line, exit code 1 or 2, and no good file overwritten.
use super::*;

/// The single error line of a rejected command.
fn refusal(ended: &Ended, code: i32) -> &str {
    assert_eq!(ended.code, Some(code), "{}{}", ended.out, ended.err);
    let line = ended.err.trim_end_matches('\n');
    assert!(line.starts_with("error: ") && !line.contains('\n'), "not one line: {line}");
    line
}

/// A copy of the tiny model, damaged by `spoil`.
fn spoilt(root: &Path, spoil: impl FnOnce(&Path)) -> PathBuf {
    let folder = root.join("model");
    std::fs::create_dir(&folder).unwrap();
    for entry in std::fs::read_dir(model()).unwrap() {
        let entry = entry.unwrap();
        // Reference outputs are stored beside the model; as safetensors they would be read as weights.
        if !entry.file_name().to_string_lossy().starts_with("reference") {
            std::fs::copy(entry.path(), folder.join(entry.file_name())).unwrap();
        }
    }
    spoil(&folder);
    folder
}

fn run_model(root: &Path, model: &Path) -> Ended {
    let mut command = command(["run", "--data", "sample", "--sessions", "3", "--limit", "1"]);
    command.args(["--max-new-tokens", "4"]).arg("--model").arg(model).arg("--out").arg(root.join("run"));
    ended(command)
}

fn edit_json(path: &Path, edit: impl FnOnce(&mut serde_json::Value)) {
    let mut value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    edit(&mut value);
    std::fs::write(path, value.to_string()).unwrap();
}

#[test]
fn flags_that_make_no_sense_are_refused_before_any_work() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("run");
    let cases: &[(&[&str], &str)] = &[
        (&["--top-p", "0.5"], "greedy"),
        (&["--top-p", "0", "--temperature", "1"], "(0, 1]"),
        (&["--temperature", "-1"], "0 or more"),
        (&["--temperature", "nan"], "0 or more"),
        (&["--context", "8"], "no room"),
        (&["--tokenizer", "x.json"], "--tokenizer is for endpoints"),
        (&["--chars-per-token", "3"], "--chars-per-token is for endpoints"),
        (&["--parallel", "2"], "--parallel 2 is for endpoints"),
    ];
    for (flags, said) in cases {
        let refused = run(&dir, flags);
        assert!(refusal(&refused, 2).contains(said), "{flags:?}: {}", refused.err);
    }
    // clap rejects a second --model, so the endpoint's flags are spelled out.
    for flags in [
        &["--context", "900"][..],
        &["--context", "400", "--chars-per-token", "3"],
        &["--tokenizer", "x.json"],
        &["--chars-per-token", "0", "--context", "900"],
        &["--dtype", "f32"],
        &["--device", "cuda"],
        &["--allow-longer"],
        &["--stream"],
    ] {
        let mut command = command(["run", "--data", "sample", "--model", "http://127.0.0.1:9/v1#m", "--out"]);
        command.arg(&dir).args(flags);
        assert!(refusal(&ended(command), 2).contains(flags[0]), "{flags:?}");
    }
    let mut file = command(["run", "--data", "some.json", "--sessions", "3", "--out"]);
    file.arg(&dir);
    assert!(refusal(&ended(file), 2).contains("--sessions is for --data sample"));
    assert!(refusal(&palimpsest(["judge", "somewhere", "--judge", "gpt"]), 2).contains("`gpt`"));
    let on_a_device = ["judge", "somewhere", "--judge", "http://127.0.0.1:9/v1#m", "--dtype", "bf16"];
    assert!(refusal(&palimpsest(on_a_device), 2).contains("--cache-dtype are for local judges"));
    let local = ["judge", "somewhere", "--judge", "local:x", "--max-new-tokens", "9"];
    assert!(refusal(&palimpsest(local), 2).contains("--max-new-tokens is for judges that write a reply"));
    for flags in [&["--shard", "2/2"][..], &["--seed", "18446744073709551616"], &["--limit", "0"]] {
        assert_eq!(run(&dir, flags).code, Some(2), "{flags:?}");
    }
    assert!(!dir.exists());
}

#[test]
fn names_that_mean_nothing_are_refused_with_those_that_do() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("run");
    let cases: &[(&[&str], &str)] = &[
        (&["--only", "T9"], "T1, T2"),
        (&["--only", "T1/XX"], "SR, PR, IPA"),
        (&["--device", "tpu"], "`cpu`"),
        (&["--dtype", "int8"], "`f32`"),
        (&["--context", "8193"], "--allow-longer"),
        (&["--shard", "1/2", "--limit", "1"], "fewer shards"),
        (&["--prompts", "/nowhere"], "/nowhere"),
    ];
    for (flags, said) in cases {
        let refused = run(&dir, flags);
        assert!(refusal(&refused, 1).contains(said), "{flags:?}: {}", refused.err);
    }
    for (name, said) in
        [("no-such-model", "smollm2-135m"), ("./nothing.gguf", "there is no file"), ("", "known:")]
    {
        assert!(refusal(&run_model(root.path(), Path::new(name)), 1).contains(said), "{name}");
    }
    assert!(!dir.exists());
}

#[test]
#[cfg(not(feature = "cuda"))]
fn a_device_that_was_not_built_in_names_the_feature() {
    let root = tempfile::tempdir().unwrap();
    let refused = run(&root.path().join("run"), &["--device", "cuda"]);
    assert!(refusal(&refused, 1).contains("feature `cuda`"), "{}", refused.err);
}

#[test]
fn a_model_folder_that_is_incomplete_or_damaged_is_refused_by_name() {
    type Spoil = fn(&Path);
    let cases: &[(&str, Spoil, &str)] = &[
        ("no config", |m| std::fs::remove_file(m.join("config.json")).unwrap(), "config.json"),
        ("no tokeniser", |m| std::fs::remove_file(m.join("tokenizer.json")).unwrap(), "tokenizer.json"),
        ("no weights", |m| std::fs::remove_file(m.join("model.safetensors")).unwrap(), "safetensors"),
        ("empty weights", |m| std::fs::write(m.join("model.safetensors"), b"").unwrap(), "fetch it again"),
        (
            "half of the weights",
            |m| {
                let bytes = std::fs::read(m.join("model.safetensors")).unwrap();
                std::fs::write(m.join("model.safetensors"), &bytes[..bytes.len() / 2]).unwrap();
            },
            "fetch it again",
        ),
        (
            "junk for a tokeniser",
            |m| std::fs::write(m.join("tokenizer.json"), "{").unwrap(),
            "tokenizer.json",
        ),
        (
            "unknown architecture",
            |m| edit_json(&m.join("config.json"), |c| c["model_type"] = "gpt9".into()),
            "`gpt9`; this build knows `llama`",
        ),
        (
            "contradicting sizes",
            |m| edit_json(&m.join("config.json"), |c| c["intermediate_size"] = 7.into()),
            "where the config implies",
        ),
        (
            "broken template",
            |m| edit_json(&m.join("tokenizer_config.json"), |c| c["chat_template"] = "{{ broken".into()),
            "line 1: syntax error",
        ),
        (
            "failing template",
            |m| {
                edit_json(&m.join("tokenizer_config.json"), |c| {
                    c["chat_template"] = "{{ raise_exception('no') }}".into();
                });
            },
            "chat_template",
        ),
    ];
    for (name, spoil, said) in cases {
        let root = tempfile::tempdir().unwrap();
        let refused = run_model(root.path(), &spoilt(root.path(), spoil));
        assert!(refusal(&refused, 1).contains(said), "{name}: {}", refused.err);
        assert!(!root.path().join("run").exists(), "{name}");
    }
}

#[test]
fn a_gguf_file_that_is_cut_short_or_no_gguf_file_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("m.gguf");
    // GGUF version 3 that declares one tensor and one metadata value, then ends.
    let header = b"GGUF\x03\0\0\0\x01\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0";
    for length in 0..=header.len() {
        std::fs::write(&path, &header[..length]).unwrap();
        let refused = run_model(root.path(), &path);
        assert!(refusal(&refused, 1).contains("m.gguf"), "{length}: {}", refused.err);
    }
}

#[test]
fn weights_that_are_no_numbers_leave_rows_that_say_so_and_no_backtrace() {
    let root = tempfile::tempdir().unwrap();
    let spoilt = spoilt(root.path(), |m| {
        let path = m.join("model.safetensors");
        let mut bytes = std::fs::read(&path).unwrap();
        let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        bytes[8 + header..].fill(0xff);
        std::fs::write(&path, bytes).unwrap();
    });
    let ended = run_model(root.path(), &spoilt);
    assert_eq!(ended.code, Some(1), "{}", ended.out);
    assert!(ended.err.contains("answers failed"), "{}", ended.err);
    let rows = RunFolder::read(&root.path().join("run")).unwrap().answers;
    assert_eq!(rows.len(), 3);
    for row in rows {
        let error = row.error.unwrap();
        assert!(error.contains("not finite (NaN)") && !error.contains('\n'), "{error}");
    }
}

#[test]
fn a_context_too_small_for_the_evidence_leaves_rows_that_say_how_much_is_missing() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("run");
    let ended = run(&dir, &["--limit", "2", "--context", "400"]);
    assert_eq!(ended.code, Some(1), "{}", ended.err);
    let rows = RunFolder::read(&dir).unwrap().answers;
    assert_eq!(rows.len(), 6);
    assert!(rows.iter().all(|row| row.error.as_ref().is_some_and(|e| e.contains("raise --context"))));
}

#[test]
fn prompts_that_are_broken_or_drop_the_history_are_refused() {
    let root = tempfile::tempdir().unwrap();
    let prompts = root.path().join("prompts");
    std::fs::create_dir(&prompts).unwrap();
    let dir = root.path().join("run");
    let flags = ["--limit", "1", "--prompts", prompts.to_str().unwrap()];
    for (file, text) in [
        ("question.j2", "{{ broken"),
        ("questoin.j2", "a name that means nothing"),
        ("question.j2", "no history, only {{ query }}"),
        ("session.j2", "Session {{ number }}"),
    ] {
        std::fs::write(prompts.join(file), text).unwrap();
        let ended = run(&dir, &flags);
        assert!(refusal(&ended, 1).contains(file), "{file} {text}: {}", ended.err);
        assert!(!dir.exists(), "{file} {text}");
        std::fs::remove_file(prompts.join(file)).unwrap();
    }
}

#[test]
fn sessions_without_numbers_need_a_template_that_does_without() {
    let root = tempfile::tempdir().unwrap();
    let prompts = root.path().join("prompts");
    std::fs::create_dir(&prompts).unwrap();
    let dir = root.path().join("run");
    let flags = ["--limit", "1", "--session-numbers", "none", "--prompts", prompts.to_str().unwrap()];
    let refused = run(&dir, &flags);
    let line = refusal(&refused, 1);
    assert!(line.contains("session.j2") && line.contains("number is defined"), "{line}");
    assert!(!dir.exists());
    let template = "Session{% if number is defined %} {{ number }}{% endif %}\n{% for turn in turns %}{{ turn.content }}\n{% endfor %}";
    std::fs::write(prompts.join("session.j2"), template).unwrap();
    let done = run(&dir, &flags);
    assert_eq!(done.code, Some(0), "{}", done.err);
    let header = std::fs::read_to_string(dir.join("run.json")).unwrap();
    assert!(header.contains("\"session_numbers\": \"none\""), "{header}");
    // Another template error is not blamed on the numbers.
    std::fs::write(prompts.join("session.j2"), "{{ nubmer }}").unwrap();
    let refused = run(&root.path().join("other"), &flags);
    assert!(!refusal(&refused, 1).contains("--session-numbers"), "{}", refused.err);
}

#[test]
fn a_bad_data_file_is_refused_and_points_to_the_check() {
    let root = tempfile::tempdir().unwrap();
    let data = root.path().join("bad.json");
    for text in ["", "{}", "[{\"uid\": 3}]", "\u{0}\u{0}", "[1, 2"] {
        std::fs::write(&data, text).unwrap();
        let mut command = command(["run", "--limit", "1", "--data"]);
        command.arg(&data).arg("--model").arg(model()).arg("--out").arg(root.path().join("run"));
        let ended = ended(command);
        assert_eq!(ended.code, Some(1), "{text}");
        assert!(ended.err.contains("bad.json") && ended.err.contains("data check"), "{text}: {}", ended.err);
    }
    assert!(!root.path().join("run").exists());
}

#[test]
fn a_file_in_the_place_of_the_run_folder_stays_as_it_is() {
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("thesis.txt");
    std::fs::write(&file, "not to be lost").unwrap();
    for out in [file.clone(), file.join("run")] {
        let refused = run(&out, &["--limit", "1"]);
        assert!(refusal(&refused, 1).contains("a file is in the way"), "{}", refused.err);
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "not to be lost");
}

#[test]
#[cfg(target_os = "linux")]
fn a_run_folder_may_have_a_name_that_is_no_unicode() {
    use std::os::unix::ffi::OsStrExt;
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join(OsStr::from_bytes(b"run-\xff"));
    assert_eq!(run(&dir, &["--limit", "1"]).code, Some(0));
    assert_eq!(RunFolder::read(&dir).unwrap().answers.len(), 3);
}

#[test]
fn a_trace_is_refused_before_the_model_reads_a_token() {
    let root = tempfile::tempdir().unwrap();
    let at = |name: &str| root.path().join(name).display().to_string();
    let (tokens, out, stats) = (at("tokens.json"), at("out.safetensors"), at("no/stats.json"));
    let fixture = model().display().to_string();
    let trace = ["trace", "--model", &fixture, "--tokens", &tokens, "--out", &out];
    let cases = [
        ("{", "is not a tokens file"),
        (r#"{"tokens": [], "spans": {}, "rows": []}"#, "`tokens` is empty"),
        (r#"{"tokens": [1, 2], "spans": {"a": [0, 3]}, "rows": ["a"]}"#, "tokens.json"),
        (r#"{"tokens": [1, 2], "spans": {"a": [0]}, "rows": ["a"]}"#, "not [start, end)"),
        (r#"{"tokens": [1, 2], "spans": {}, "rows": ["b"]}"#, "row `b`"),
        (r#"{"tokens": [1, 999999], "spans": {"a": [0, 2]}, "rows": ["a"]}"#, "999999"),
        (r#"{"tokens": [1], "spans": {"a": [0, 1]}, "rows": ["a"], "logits": 2}"#, "2 positions of 1"),
    ];
    for (text, said) in cases {
        std::fs::write(&tokens, text).unwrap();
        let refused = palimpsest(trace);
        assert!(refusal(&refused, 1).contains(said), "{text}: {}", refused.err);
    }
    std::fs::write(&tokens, r#"{"tokens": [1, 2], "spans": {"a": [0, 2]}, "rows": ["a"]}"#).unwrap();
    let refused = palimpsest(trace.iter().copied().chain(["--stats", stats.as_str()]));
    assert!(refusal(&refused, 1).contains("stats.json"), "{}", refused.err);
    assert!(!Path::new(&out).exists());
    assert_eq!(palimpsest(trace).code, Some(0));
}
