//! Rubrics by name, from the judge to the raters, with a scripted endpoint as the judge.

use super::agree::{answered, write_rows};
use super::endpoints::server;
use super::*;

/// The endpoint's reply for every case; only the last key counts, not the order or the reasons.
const SAID: &str = r#"{"SR": {"reason": "it is", "correct": true}, "PR": {"reason": "no", "correct": false}, "IPA": {"reason": "yes", "correct": true}}"#;

/// A run of four answered cases, and a judge.
struct Bench {
    root: tempfile::TempDir,
    judge: String,
}

impl Bench {
    fn new() -> Self {
        let bench = Bench { root: tempfile::tempdir().unwrap(), judge: server(SAID) };
        answered(&bench.at("run"), "model", 4);
        bench
    }

    fn at(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.at(name).display().to_string()
    }

    fn judge(&self, more: &[&str]) -> Ended {
        palimpsest([&["judge", &self.text("run"), "--judge", &self.judge][..], more].concat())
    }

    fn judged(&self, more: &[&str]) {
        let done = self.judge(more);
        assert_eq!(done.code, Some(0), "{more:?}: {}", done.err);
    }

    fn done(&self, args: &[&str]) -> String {
        let done = palimpsest(args);
        assert_eq!(done.code, Some(0), "{args:?}: {}", done.err);
        done.out
    }

    /// Draws a sheet into `out`, rates all items correct, and scores it.
    fn agreed(&self, out: &str, draw: &[&str], score: &[&str]) -> (Ended, Option<Ended>) {
        let (run, sheet) = (self.text("run"), self.text(out));
        let draw = [&["agree", "draw", &run, "--per-cell", "2", "--out", &sheet][..], draw].concat();
        let drawn = palimpsest(draw);
        if drawn.code != Some(0) {
            return (drawn, None);
        }
        let key = palimpsest::agreement::key::Key::read(&self.at(out)).unwrap();
        let rows: String = key.items.iter().map(|item| format!("{},c\n", item.item)).collect();
        let ratings = self.text(&format!("{out}.csv"));
        std::fs::write(&ratings, format!("item,rating\n{rows}")).unwrap();
        let score = [&["agree", "score", &sheet, "--ratings", &ratings][..], score].concat();
        (drawn, Some(palimpsest(score)))
    }
}

/// Table lines that begin with the model (histories were truncated).
fn lines(text: &str) -> Vec<&str> {
    text.lines().filter(|line| line.starts_with("model* ")).collect()
}

#[test]
fn two_rubrics_of_one_judge_are_two_judges_in_rows_tables_reports_and_exports() {
    let bench = Bench::new();
    let unknown = bench.judge(&["--rubric", "harsh"]);
    assert_eq!(unknown.code, Some(2), "{}", unknown.err);
    for word in ["`harsh`", "released (", "the default", "strict ("] {
        assert!(unknown.err.contains(word), "{word}: {}", unknown.err);
    }
    bench.judged(&[]);
    bench.judged(&["--rubric", "strict"]);
    let folder = RunFolder::read(&bench.at("run")).unwrap();
    let names: Vec<&str> = folder.verdicts.iter().map(|row| row.rubric_name.as_deref().unwrap()).collect();
    assert_eq!(names, [["released"; 12], ["strict"; 12]].concat());
    let [released, strict] =
        ["released", "strict"].map(|rubric| format!("{} ({rubric}, reasons first)", bench.judge));
    // Tables for people omit the address.
    let short = |label: &str| label.rsplit_once('#').unwrap().1.to_owned();

    let run = bench.text("run");
    let text = bench.done(&["table", &run]);
    assert_eq!(lines(&text).len(), 2, "{text}");
    assert!(
        lines(&text)[0].contains(&short(&released)) && lines(&text)[1].contains(&short(&strict)),
        "{text}"
    );
    assert!(!text.contains("http://"), "{text}");
    for (choice, label) in [
        (["--rubric", "strict"], &strict),
        (["--judge", &strict], &strict),
        (["--judge", &released], &released),
        // The name as typed before a second judging existed.
        (["--judge", "stub (released)"], &released),
    ] {
        let text = bench.done(&[&["table", &run][..], &choice].concat());
        assert!(lines(&text).len() == 1 && text.contains(&format!("judge: {}\n", short(label))), "{text}");
    }
    let csv = bench.done(&["table", &run, "--format", "csv"]);
    assert!(csv.contains(&format!("{},\"strict, reasons first\",", bench.judge)), "{csv}");
    // Report and figures use the latest by default.
    bench.done(&["report", &run]);
    let page = |run: &Path| std::fs::read_to_string(run.join("report.html")).unwrap().replace("&#x2f;", "/");
    assert!(page(&bench.at("run")).contains(&format!("Judged by {strict}")));
    bench.done(&["report", &run, "--judge", &released]);
    assert!(page(&bench.at("run")).contains(&format!("Judged by {released}")));

    let log: serde_json::Value =
        serde_json::from_str(&bench.done(&["export", "--format", "inspect", &run])).unwrap();
    let scorers: Vec<&str> = log["results"]["scores"]
        .as_array()
        .unwrap()
        .iter()
        .map(|score| score["name"].as_str().unwrap())
        .collect();
    assert_eq!(scorers, [&released, &strict]);
    assert_eq!(log["results"]["scores"][1]["metadata"]["rubric_name"], "strict");
    assert_eq!(log["samples"][0]["scores"].as_object().unwrap().len(), 2);
    let one: serde_json::Value =
        serde_json::from_str(&bench.done(&["export", "--format", "inspect", &run, "--rubric", "released"]))
            .unwrap();
    assert_eq!(one["results"]["scores"].as_array().unwrap().len(), 1);
}

#[test]
fn the_same_rubric_asked_in_two_ways_stands_in_two_rows_and_both_can_be_had() {
    let bench = Bench::new();
    bench.judged(&[]);
    let first = bench.done(&["table", &bench.text("run")]);
    assert!(first.contains("judge: stub (released, reasons first)\n"), "{first}");
    bench.judged(&["--reasons", "last"]);
    let text = bench.done(&["table", &bench.text("run")]);
    let rows = lines(&text);
    assert_eq!(rows.len(), 2, "{text}");
    assert!(
        rows[0].contains("(released, reasons first)") && rows[1].contains("(released, reasons last)"),
        "{text}"
    );
    let one = bench.done(&["table", &bench.text("run"), "--rubric", "released, reasons first"]);
    assert_eq!(lines(&one).len(), 1, "{one}");
}

/// Raters and judge must share the rubric only: an endpoint gives reasons first, a sheet asks for none.
#[test]
fn what_an_endpoint_judged_is_drawn_rated_and_scored_however_it_was_asked() {
    let bench = Bench::new();
    std::fs::create_dir(bench.at("prompts")).unwrap();
    let own = "Judge by the old saying: {{ old }}.\n{% for probe in probes %}{{ probe.id }}: {{ probe.answer }}\n{% endfor %}{{ reasons }}";
    std::fs::write(bench.at("prompts/judge.j2"), own).unwrap();
    let prompts = bench.text("prompts");
    let all: [&[&str]; 5] = [
        &[],
        &["--reasons", "none"],
        &["--thinking", "on"],
        &["--rubric", "strict"],
        &["--prompts", &prompts],
    ];
    for (at, flags) in all.into_iter().enumerate() {
        bench.judged(flags);
        let (drawn, scored) = bench.agreed(&format!("sheet{at}"), &[], &[]);
        assert_eq!(drawn.code, Some(0), "{flags:?}: {}", drawn.err);
        let scored = scored.unwrap();
        assert_eq!(scored.code, Some(0), "{flags:?}: {}", scored.err);
        // The judge accepts two of three answers, the rater all.
        assert!(scored.out.contains("66.67"), "{}", scored.out);
        assert!(scored.out.starts_with("judge: stub ("), "{}", scored.out);
    }
    // Raters read the judge's template from the sheet; the file may be gone.
    std::fs::remove_file(bench.at("prompts/judge.j2")).unwrap();
    let sheet = |name: &str| std::fs::read_to_string(bench.at(name).join("sheet.csv")).unwrap();
    assert!(
        sheet("sheet4").contains("Judge by the old saying") && sheet("sheet3").contains("Both are needed")
    );
    let folder = RunFolder::read(&bench.at("run")).unwrap();
    let name = folder.verdicts.last().unwrap().rubric_name.clone().unwrap();
    assert!(name.starts_with("own-"), "{name}");
    let (drawn, scored) = bench.agreed("again", &["--rubric", &name], &[]);
    assert!(drawn.out.contains(&format!("by the rubric {name}")), "{}{}", drawn.out, drawn.err);
    assert_eq!(scored.unwrap().code, Some(0));
    // With several variants of the sheet's rubric: the last one, or the named one.
    let (_, scored) = bench.agreed("named", &["--rubric", "released"], &[]);
    assert!(scored.unwrap().out.contains("(released, reasons first, thinking on)"));
    let plain = format!("{} (released, reasons none)", bench.judge);
    let (_, scored) = bench.agreed("plain", &["--rubric", "released"], &["--judge", &plain]);
    assert!(scored.unwrap().out.starts_with("judge: stub (released, reasons none)\ncondition: plain\n"));
    // A different rubric is still rejected, and so is an unknown name.
    let strict = format!("{} (strict)", bench.judge);
    let (_, scored) = bench.agreed("mixed", &["--rubric", "released"], &["--judge", &strict]);
    let scored = scored.unwrap();
    assert!(
        scored.code == Some(1) && scored.err.contains("no verdicts by the rubric released"),
        "{}",
        scored.err
    );
    let (drawn, _) = bench.agreed("none", &["--rubric", "harsh"], &[]);
    assert!(
        drawn.err.contains("`harsh`") && drawn.err.contains(&format!("runs were judged by: {name}")),
        "{}",
        drawn.err
    );
}

/// Rows without a rubric name: identified by digest, or unknown.
#[test]
fn verdicts_of_earlier_versions_are_read_and_named_by_their_digests() {
    let bench = Bench::new();
    bench.judged(&["--rubric", "strict"]);
    std::fs::remove_file(bench.at("run/rubrics.jsonl")).unwrap();
    let rows = RunFolder::read(&bench.at("run")).unwrap().verdicts;
    let earlier = |digest: &str| {
        let rows: Vec<_> = rows
            .iter()
            .map(|row| palimpsest::runs::rows::VerdictRow {
                rubric: Some(digest.to_owned()),
                rubric_name: None,
                ..row.clone()
            })
            .collect();
        write_rows(&bench.at("run/verdicts.jsonl"), &rows);
        bench.done(&["table", &bench.text("run")])
    };
    // Reasons first, as endpoints were asked then.
    let strict = "24a09b7cbc80363beb1fcbdb7ec294eb26b8672ab1977f8a056cb230c56bd067";
    let text = earlier(strict);
    assert!(text.contains("judge: stub (strict)"), "{text}");
    let (_, scored) = bench.agreed("sheet", &[], &[]);
    let scored = scored.unwrap();
    assert!(scored.out.contains("earlier wording"), "{}{}", scored.out, scored.err);
    // An old sheet, with reasons last in its key.
    let path = bench.at("sheet/key.json");
    let mut key: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    key["format"] = "palimpsest agreement 1".into();
    key["rubric"] = "2dbcdde1a6de8380b91633aea4874e8b61134ea57182c9469e7155e03c663d67".into();
    key.as_object_mut().unwrap().remove("rubric_name");
    std::fs::write(&path, key.to_string()).unwrap();
    let scored = palimpsest(["agree", "score", &bench.text("sheet"), "--ratings", &bench.text("sheet.csv")]);
    assert_eq!(scored.code, Some(0), "{}", scored.err);
    let text = earlier(&"ab".repeat(32));
    assert!(text.contains("(unnamed rubric abababab)"), "{text}");
    let lost = bench.agreed("lost", &[], &[]).0;
    assert!(lost.code == Some(1) && lost.err.contains("--rubric NAME"), "{}", lost.err);
}
