//! Truncation of histories and answer length limits, by flag and by benchmark.
use super::*;

/// A run of a benchmark's sample without attention.
fn begun(benchmark: &str, out: &Path, more: &[&str]) -> Ended {
    let mut command = command(["run", "--allow-longer", "--no-attention", "--limit-probes", "3"]);
    command.arg("--data").arg(format!("sample:{benchmark}")).arg("--model").arg(model());
    command.arg("--out").arg(out).args(more);
    ended(command)
}

#[test]
fn the_way_of_cutting_is_the_benchmarks_or_as_typed_and_part_of_the_run() {
    let root = tempfile::tempdir().unwrap();
    let at = |name: &str| root.path().join(name);
    let short = |context: usize| {
        ["--max-new-tokens".to_owned(), "2".to_owned(), "--context".to_owned(), context.to_string()]
    };
    let begin = |benchmark: &str, name: &str, context: usize, more: &[&str]| {
        let context = short(context);
        let flags: Vec<&str> = context.iter().map(String::as_str).chain(more.iter().copied()).collect();
        begun(benchmark, &at(name), &flags)
    };
    let done = |benchmark: &str, name: &str, context: usize, more: &[&str]| {
        let ended = begin(benchmark, name, context, more);
        assert_eq!(ended.code, Some(0), "{name}: {}", ended.err);
        RunFolder::read(&at(name)).unwrap()
    };
    let policy = |folder: &RunFolder| folder.header.identity.context.clone();

    let eight = ["--sessions", "8"];
    let authors = ["--sessions", "8", "--truncation", "authors"];
    let whole = done("stale", "whole", 200_000, &authors);
    assert_eq!((policy(&whole).tokens, policy(&whole).reserved), (Some(128_000), Some(512)));
    assert!(whole.answers.iter().all(|row| row.history_shown() == Some(1.0) && row.history_tokens == 0));
    let longest = whole.answers.iter().filter_map(|row| row.prompt_tokens).max().unwrap();

    let less = longest * 3 / 4;
    let kept = done("stale", "kept", less, &eight);
    assert_eq!(policy(&kept).policy, "evidence-preserving truncation");
    let plain = done("stale", "plain", less, &["--sessions", "8", "--truncation", "plain"]);
    assert!(policy(&plain).policy.starts_with("plain truncation"));
    let little = longest * 19 / 20;
    let phases = done("stale", "phases", little + 512, &authors);
    assert!(policy(&phases).policy.starts_with("the authors' truncation"));
    assert_eq!((policy(&phases).tokens, policy(&phases).reserved), (Some(little + 512), Some(512)));
    for (folder, most) in [(&kept, less), (&plain, less), (&phases, little)] {
        for row in &folder.answers {
            let (tokens, of) = (row.prompt_tokens.unwrap(), row.history_tokens);
            assert!(!row.dropped_sessions.is_empty() && tokens <= most - 2, "{row:?}");
            let shown = row.history_shown().unwrap();
            assert!(shown > 0.1 && shown < 0.999 && row.dropped_tokens < of, "{shown} of {of}");
            // Kept history, and the rest of the prompt.
            let left = of - row.dropped_tokens;
            assert!(tokens > left && longest - tokens <= row.dropped_tokens + longest / 10, "{row:?}");
        }
    }
    // All questions share a gap in the middle.
    let gap = &plain.answers[0].dropped_sessions;
    assert_eq!(gap.last().unwrap() - gap[0] + 1, gap.len());
    assert!(plain.answers.iter().all(|row| row.dropped_sessions == *gap));

    // A run resumes only with the same truncation.
    let refused = begin("stale", "kept", less, &["--sessions", "8", "--truncation", "plain"]);
    assert_eq!(refused.code, Some(1));
    assert!(refused.err.contains("context.policy: \"evidence-preserving truncation\""), "{}", refused.err);
    for again in [begin("stale", "kept", less, &eight), begin("stale", "phases", little + 512, &authors)] {
        let all = again.code == Some(0) && again.out.contains("3 from before, 0 new");
        assert!(all, "{}{}", again.out, again.err);
    }

    for benchmark in ["subtlememory", "knowme"] {
        let cut = done(benchmark, benchmark, 6000, &["--conditions", "full"]);
        assert!(policy(&cut).policy.starts_with("plain truncation"), "{benchmark}");
        let row = &cut.answers[0];
        assert!(row.history_shown().unwrap() < 1.0 && row.dropped_neighbours.is_empty(), "{row:?}");
        let name = format!("{benchmark}-evidence");
        begin(benchmark, &name, 6000, &["--conditions", "full", "--truncation", "evidence"]);
        let kept = RunFolder::read(&at(&name)).unwrap();
        assert_eq!(policy(&kept).policy, "evidence-preserving truncation");
    }
    let pairs = done("memrewardbench", "pairs", 4000, &["--truncation", "authors"]);
    assert!(policy(&pairs).policy.contains("the middle of the prompt"));
    for row in &pairs.answers {
        assert!(row.prompt_tokens.unwrap() <= 3998 && row.dropped_tokens > 0, "{row:?}");
        assert!(row.history_shown().unwrap() > 0.1, "{row:?}");
    }
}

#[test]
fn a_way_that_a_benchmark_does_not_have_is_refused_with_those_that_it_has() {
    let root = tempfile::tempdir().unwrap();
    let out = root.path().join("run");
    for (benchmark, way, has) in [
        ("subtlememory", "authors", "it has plain, evidence"),
        ("knowme", "authors", "it has plain, evidence"),
        ("memrewardbench", "plain", "it has evidence, authors"),
    ] {
        let refused = begun(benchmark, &out, &["--truncation", way]);
        assert_eq!(refused.code, Some(2), "{}", refused.err);
        assert!(refused.err.contains(&format!("--truncation {way}: ")), "{}", refused.err);
        assert!(refused.err.contains(has) && !out.exists(), "{}", refused.err);
    }
    let endpoint =
        ["run", "--data", "sample", "--model", "http://127.0.0.1:9/v1#m", "--truncation", "plain", "--out"];
    let refused = palimpsest(endpoint.iter().map(AsRef::as_ref).chain([out.as_os_str()]));
    assert_eq!(refused.code, Some(2));
    assert!(refused.err.contains("--truncation cuts to --context"), "{}", refused.err);
}

#[test]
fn how_long_an_answer_may_be_is_the_benchmarks_and_a_context_that_cannot_hold_it_says_so() {
    let root = tempfile::tempdir().unwrap();
    for (benchmark, tokens) in
        [("stale", 1024), ("subtlememory", 1024), ("knowme", 1024), ("memrewardbench", 16_384)]
    {
        let out = root.path().join(benchmark);
        let one = ["--limit-probes", "1", "--context", "40000"];
        let mut command =
            command(["run", "--allow-longer", "--no-attention", "--estimate", "--estimate-seconds", "1"]);
        command.arg("--data").arg(format!("sample:{benchmark}")).arg("--model").arg(model()).args(one);
        let estimated = ended(command);
        assert_eq!(estimated.code, Some(0), "{benchmark}: {}", estimated.err);
        assert!(estimated.out.contains(&format!("({tokens} an answer)")), "{benchmark}: {}", estimated.out);
        let small = tokens.to_string();
        let refused = begun(benchmark, &out, &["--context", &small]);
        assert_eq!(refused.code, Some(2), "{benchmark}: {}", refused.err);
        let told = format!("no room for a prompt beside --max-new-tokens {tokens} (");
        assert!(
            refused.err.contains(&told) && refused.err.contains("'s default); raise --context"),
            "{}",
            refused.err
        );
        assert!(!out.exists());
    }
    let given = begun("stale", &root.path().join("given"), &["--context", "600", "--max-new-tokens", "600"]);
    assert!(given.err.contains("beside --max-new-tokens 600; raise --context"), "{}", given.err);
    // The tokens that the authors' truncation reserves need room too.
    let flags = ["--context", "600", "--max-new-tokens", "100", "--truncation", "authors"];
    let kept = begun("stale", &root.path().join("kept"), &flags);
    assert!(kept.err.contains("and the 512 tokens that are kept free"), "{}", kept.err);
}

#[test]
fn a_run_whose_evidence_was_cut_away_is_analysed_and_marked() {
    let root = tempfile::tempdir().unwrap();
    let out = root.path().join("run");
    let dir = out.to_str().unwrap();
    for (benchmark, more) in [
        ("subtlememory", &["--context", "6000", "--conditions", "full", "--limit-probes", "15"][..]),
        ("memrewardbench", &["--context", "4000", "--truncation", "authors", "--limit-probes", "8"]),
    ] {
        let mut command = command(["run", "--max-new-tokens", "2", "--allow-longer", "--data"]);
        command
            .arg(format!("sample:{benchmark}"))
            .arg("--model")
            .arg(model())
            .arg("--out")
            .arg(&out)
            .args(more);
        let ran = ended(command);
        assert_eq!(ran.code, Some(0), "{benchmark}: {}", ran.err);
        let folder = RunFolder::read(&out).unwrap();
        for row in &folder.answers {
            let store = folder.attention(row).unwrap().unwrap();
            let shown: Vec<usize> =
                store.keys.iter().filter_map(palimpsest_core::span::Span::segment).collect();
            assert!(row.dropped_sessions.iter().all(|gone| !shown.contains(gone)), "{row:?}");
            assert!(store.keys.iter().all(|span| span.end <= store.tokens.len()));
        }
        for step in ["lens", "figures", "report"] {
            let done = palimpsest([step, dir]);
            assert_eq!(done.code, Some(0), "{benchmark} {step}: {}{}", done.out, done.err);
        }
        let table = palimpsest(["table", dir]);
        assert_eq!(table.code, Some(0), "{}", table.err);
        assert!(table.out.contains("* histories were truncated: "), "{}", table.out);
        std::fs::remove_dir_all(&out).unwrap();
    }
}
