//! The command, the figures and the report.

use super::made::{self, Made};
use crate::cli::palimpsest;

fn run(made: Made) -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    made::write(dir.path(), made);
    let name = dir.path().to_str().unwrap().to_owned();
    (dir, name)
}

#[test]
fn dose_says_what_moves_the_update_effect() {
    let (_dir, run) = run(Made::USUAL);
    let ended = palimpsest(["dose", &run]);
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    for part in [
        "made slots by made: 6 items, 5 factors varied.",
        "distance: u changes by -0.35 [",
        "mass of the query to new",
        "s(new \u{2192} old)",
        "speaker: u against user, within items: assistant -0.50",
        "The later date accounts for",
        "chose the current value %",
        "u by distance*tail",
        "items pass the gate",
    ] {
        assert!(ended.out.contains(part), "no {part} in {}", ended.out);
    }
    let one = palimpsest(["dose", &run, "--factor", "speaker", "--gated"]);
    assert_eq!(one.code, Some(0), "{}", one.err);
    assert!(one.out.contains("speaker: ") && !one.out.contains("distance: "), "{}", one.out);
}

#[test]
fn the_table_has_a_row_an_item_and_level() {
    let (dir, run) = run(Made::USUAL);
    let ended = palimpsest(["dose", &run, "--csv", "-"]);
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    let mut reader = csv::Reader::from_reader(ended.out.as_bytes());
    let head = reader.headers().unwrap().clone();
    let at =
        |name: &str| head.iter().position(|column| column == name).unwrap_or_else(|| panic!("no {name}"));
    let rows: Vec<csv::StringRecord> = reader.records().map(Result::unwrap).collect();
    // Four distances, three chains, two orders, two speakers, and a grid of two distances and three tails.
    assert_eq!(rows.len(), 6 * (4 + 3 + 2 + 2 + 6));
    let row = rows.iter().find(|row| {
        &row[at("item")] == "item-2" && &row[at("sweep")] == "distance" && &row[at("level")] == "1024"
    });
    let row = row.unwrap();
    let u: f64 = row[at("u")].parse().unwrap();
    assert!((u - (2.2 - 2.0 * 0.34)).abs() < 1e-9, "{u}");
    for name in ["family", "b", "no_update", "right_with_old_alone", "gate", "choice", "exact", "blocked_new"]
    {
        at(name);
    }
    let file = dir.path().join("table.csv");
    let ended = palimpsest(["dose", &run, "--csv", file.to_str().unwrap()]);
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    assert_eq!(csv::Reader::from_path(file).unwrap().records().count(), rows.len());
}

#[test]
fn rows_without_a_right_value_count_in_no_table_of_choices() {
    let (dir, run) = run(Made::USUAL);
    let plan = std::fs::read_to_string(dir.path().join("plan.jsonl")).unwrap();
    let rows = plan.lines().count();
    let blind = plan.lines().filter(|line| line.contains("\"expects\":\"none\"")).count();
    assert!(blind == 6 && rows > 100, "{blind} of {rows}");
    let judged = palimpsest(["judge", &run]);
    assert_eq!(judged.code, Some(0), "{}", judged.err);
    let asked = rows - blind;
    assert!(
        judged.out.contains(&format!("choice: {asked} of {asked} verdicts, 0 unparsed")),
        "{}",
        judged.out
    );
    assert!(judged.out.contains(&format!("of {rows} verdicts")), "{}", judged.out);

    let of = |judge: &str| palimpsest(["table", &run, "--judge", judge]).out;
    let (choice, exact) = (of("choice"), of("exact"));
    assert!(exact.contains("blind") && exact.contains(&format!("/{rows}")), "{exact}");
    assert!(!choice.contains("0/6") && !choice.contains(&format!("/{rows}")), "{choice}");
    assert!(choice.contains(&format!("/{asked}")), "{choice}");
    assert!(choice.contains(&format!("{blind} questions have no right answer")), "{choice}");
    assert!(!choice.contains("have an answer and no verdict"), "{choice}");
    // In a combined table, the choice is empty where a row is blind.
    let both = palimpsest(["table", &run, "--format", "csv"]).out;
    let cells: Vec<Vec<&str>> = both.lines().map(|line| line.split(',').collect()).collect();
    let judges: Vec<&str> = cells.iter().filter(|row| row.contains(&"blind")).map(|row| row[4]).collect();
    assert!(!judges.is_empty() && judges.iter().all(|judge| *judge == "exact"), "{both}");
}

#[test]
fn figures_and_report_have_the_doses() {
    let (dir, run) = run(Made::USUAL);
    let out = dir.path().join("out");
    let ended = palimpsest(["dose", &run, "--out", out.to_str().unwrap()]);
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    let captions: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(out.join("captions.json")).unwrap()).unwrap();
    for name in [
        "dose-effect",
        "dose-over-updating",
        "dose-recency",
        "dose-chains",
        "dose-errors",
        "dose-attention",
        "dose-attention-and-cause",
        "dose-grid",
        "dose-layers-query-new",
        "dose-layers-query-old",
        "dose-layers-new-old",
        "dose-windows",
    ] {
        assert!(captions[name]["caption"].is_string(), "{name}");
        for ending in ["svg", "pdf", "png", "csv"] {
            assert!(out.join(format!("{name}.{ending}")).is_file(), "{name}.{ending}");
        }
    }
    assert!(out.join("dose.csv").is_file() && out.join("dose.txt").is_file());
    let ended = palimpsest(["figures", &run]);
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    assert!(ended.out.contains("dose-effect: Update effect by dose"), "{}", ended.out);
    let ended = palimpsest(["report", &run]);
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    let page = std::fs::read_to_string(dir.path().join("report.html")).unwrap();
    for part in ["What moves the update effect", "id=\"dose-effect\"", "distance: u changes by -0.35 ["] {
        assert!(page.contains(part), "no {part}");
    }
}

#[test]
fn several_runs_have_a_line_each_in_one_figure() {
    let ((_a, first), (_b, second)) = (run(Made::USUAL), run(Made { prior_only: true, ..Made::USUAL }));
    let out = tempfile::tempdir().unwrap();
    let ended = palimpsest(["dose", &first, &second, "--out", out.path().to_str().unwrap()]);
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    let rows = |file: &str, columns: [&str; 3]| -> Vec<[String; 3]> {
        let mut reader = csv::Reader::from_path(out.path().join(file)).unwrap();
        let head = reader.headers().unwrap().clone();
        let at = columns.map(|column| head.iter().position(|name| name == column).unwrap());
        reader.records().map(|row| at.map(|at| row.as_ref().unwrap()[at].to_owned())).collect()
    };
    let name = |run: &str| run.rsplit('/').next().unwrap().to_owned();
    let drawn = rows("dose-runs.csv", ["line", "level", "value"]);
    let at = |run: &str, level: &str| -> f64 {
        let row = drawn.iter().find(|row| row[0] == name(run) && row[1] == level);
        row.unwrap_or_else(|| panic!("{run} at {level}"))[2].parse().unwrap()
    };
    // Means of 2.0 + 0.1 item - (0.3 + 0.02 item) over six items, and a run that knows its prior alone.
    assert!((at(&first, "256") - (2.0 + 0.25)).abs() < 1e-9);
    assert!((at(&first, "512") - (2.0 + 0.25 - 0.35)).abs() < 1e-9);
    assert!(at(&second, "256").abs() < 1e-9);
    let table = rows("dose.csv", ["run", "item", "u"]);
    let of = |run: &str| table.iter().filter(|row| row[0] == name(run)).count();
    assert!(of(&first) > 100 && of(&first) == of(&second) && table.len() == 2 * of(&first));
    let captions = std::fs::read_to_string(out.path().join("captions.json")).unwrap();
    assert!(captions.contains("a line per run") && !captions.contains("dose-effect"), "{captions}");
}

#[test]
fn runs_that_have_no_doses_are_refused_with_the_remedy() {
    let refused = |made: Made, more: &[&str]| {
        let (_dir, run) = run(made);
        let ended = palimpsest([&["dose", &run], more].concat());
        assert_eq!(ended.code, Some(1), "{}", ended.out);
        ended.err
    };
    let other = refused(Made { benchmark: "stale", ..Made::USUAL }, &[]);
    assert!(
        other.contains(
            "is a run of stale; palimpsest dose reads runs of data made by `palimpsest build dose`"
        ),
        "{other}"
    );
    let none = refused(Made { contrasts: false, ..Made::USUAL }, &[]);
    assert!(
        none.contains("has log-probabilities of its values") && none.contains("on this machine"),
        "{none}"
    );
    let unknown = refused(Made::USUAL, &["--factor", "depth"]);
    assert!(
        unknown.contains("no factor `depth` is varied in this run; varied are distance, chain"),
        "{unknown}"
    );
    let gated = refused(Made { items: 1, ..Made::USUAL }, &["--gated"]);
    assert!(gated.contains("leave --gated out"), "{gated}");
}
