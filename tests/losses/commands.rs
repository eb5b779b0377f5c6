//! The tables, the figure and the report's section.

use ndarray::Array3;
use palimpsest_core::attention::{AttentionStore, Selected};
use serde_json::Value;

use super::stores;
use crate::cli::palimpsest;

#[test]
fn table_memory_writes_every_form() {
    let dir = tempfile::tempdir().unwrap();
    stores::write(dir.path());
    let run = dir.path().to_str().unwrap();
    let of = |format: &str| {
        let ended = palimpsest(["table", run, "--memory", "--format", format]);
        assert_eq!(ended.code, Some(0), "{}", ended.err);
        ended.out
    };
    let text = of("text");
    assert!(text.starts_with("memory-ideal: old (12): written 12 of 12"), "{text}");
    for part in [
        "Writing\n",
        "Retrieval\n",
        "Answers given the evidence\n",
        "The waterfall",
        "Systems against each other",
    ] {
        assert!(text.contains(part), "no {part} in {text}");
    }
    assert!(text.lines().any(|line| line.starts_with("level 2") && line.contains("ideal, no-old")), "{text}");
    assert!(text.contains("not measured"), "{text}");
    let json: Value = serde_json::from_str(&of("json")).unwrap();
    assert_eq!(json["rows"].as_array().unwrap().len(), 6 * 3 * 4);
    assert_eq!(json["runs"][0]["systems"][0]["sessions"], 24);
    assert_eq!(json["pairs"].as_array().unwrap().len(), 10);
    let csv = of("csv");
    let line = "memory-mixed,1,T1,SR,answers,right given both,,,2,2,0,1,";
    assert!(csv.lines().any(|row| row.contains(line)), "{csv}");
    assert!(of("md").contains("| condition |"));
    assert!(of("latex").contains("\\begin{tabular}"));
}

#[test]
fn a_run_without_a_memory_system_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    crate::synthetic_run::write(dir.path(), &crate::synthetic_run::Plan::small());
    let ended = palimpsest(["table", dir.path().to_str().unwrap(), "--memory"]);
    assert_eq!(ended.code, Some(1));
    assert!(ended.err.contains("has no memory system"), "{}", ended.err);
}

/// Three of the four measured answers: of two some layer saw the new memory, of one no layer did; what windows left to the fourth is
/// not known.
#[test]
fn the_stage_selected_counts_the_answers_whose_files_tell_and_is_absent_where_none_does() {
    let dir = tempfile::tempdir().unwrap();
    stores::write(dir.path());
    let run = dir.path().to_str().unwrap();
    let table = |format: &str| {
        let ended = palimpsest(["table", run, "--memory", "--format", format]);
        assert_eq!(ended.code, Some(0), "{}", ended.err);
        ended.out
    };
    let figure = || {
        assert_eq!(palimpsest(["figures", run]).code, Some(0));
        let read = |end: &str| {
            std::fs::read_to_string(dir.path().join(format!("figures/memory-waterfall.{end}"))).unwrap()
        };
        (read("csv"), read("svg"))
    };
    let before = table("csv");
    let (csv, svg) = figure();
    assert!([&before, &csv, &svg].iter().all(|text| !text.contains("selected")), "{csv}");
    let line = |csv: &str, stage: &str| {
        let begin = format!("memory-ideal,1,all,all,new,{stage},");
        csv.lines().find_map(|line| line.strip_prefix(&begin).map(str::to_owned)).unwrap()
    };
    let attended = line(&csv, "attended");
    assert!(attended.starts_with("3,12,8,4,"), "{attended}");
    // The query is the only row; the spans are bos, three memories and the query.
    for (case, shares) in [(0, [0.0, 0.25, 1.0, 1.0, 1.0]), (1, [0.0, 0.0, 0.5, 1.0, 1.0]), (2, [1.0; 5])] {
        let path = dir.path().join(format!("attention/case-{case}-SR--memory-ideal.safetensors"));
        let mut store = AttentionStore::load(&path).unwrap();
        let shares = Array3::from_shape_fn((1, 1, 5), |(.., key)| shares[key]);
        store.selected =
            Some(Selected { forgone: shares.mapv(|share| 0.1 * (1.0 - share)), selected: shares });
        store.save(&path).unwrap();
    }
    let (csv, svg) = figure();
    // Of 12 facts that were shown three were measured, and two of these were seen.
    assert!(line(&csv, "selected").starts_with("2,12,9,3,"), "{csv}");
    // The second case's is lost there.
    assert!(line(&csv, "attended").starts_with("2,11,8,"), "{csv}");
    assert!(svg.contains("selected"), "{svg}");
    let stages: Vec<&str> =
        csv.lines().filter(|line| line.starts_with("memory-ideal,1,all,all,new,")).collect();
    let stages: Vec<&str> = stages.iter().map(|line| line.split(',').nth(5).unwrap()).collect();
    let all = ["written", "kept", "retrieved", "shown", "selected", "attended", "used", "right"];
    assert_eq!(stages, all);
    // Of a condition without attention the stage is left out.
    assert!(
        !csv.lines().any(|line| line.starts_with("memory-mixed") && line.contains(",selected,")),
        "{csv}"
    );
    let numbers = "memory-ideal,1,all,all,waterfall,selected,new,,2,3,9,";
    assert!(table("csv").contains(numbers), "{}", table("csv"));
    // The old memory was shown to no question, so that the first row has no such stage.
    let md = table("md");
    let head = md.lines().find(|line| line.contains(" selected |")).unwrap();
    assert!(head.contains("| shown | selected | attended |"), "{head}");
    assert!(md.contains("selected: some layer"), "{md}");
    let report = palimpsest(["report", run]);
    assert_eq!(report.code, Some(0), "{}", report.err);
    let page = std::fs::read_to_string(dir.path().join("report.html")).unwrap();
    assert!(page.contains("selected: some layer"), "the caption says what the stage is");
}

#[test]
fn figures_draw_the_waterfall_and_the_report_tells_it() {
    let dir = tempfile::tempdir().unwrap();
    stores::write(dir.path());
    let run = dir.path().to_str().unwrap();
    let ended = palimpsest(["figures", run]);
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    let table = std::fs::read_to_string(dir.path().join("figures/memory-waterfall.csv")).unwrap();
    let head = "condition,level,type,probe,fact,stage,count,reached,unknown,of,low,high";
    assert_eq!(table.lines().next(), Some(head));
    // Of 12 new facts 11 reached the stage, two were measured, one is used.
    assert!(table.lines().any(|row| row.starts_with("memory-ideal,1,all,all,new,used,1,11,9,3,")), "{table}");
    let svg = std::fs::read_to_string(dir.path().join("figures/memory-waterfall.svg")).unwrap();
    assert!(svg.contains("memory-mixed") && svg.contains("not measured"));
    let ended = palimpsest(["report", run]);
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    let page = std::fs::read_to_string(dir.path().join("report.html")).unwrap();
    let (_, section) = page.split_once("<h2 id=\"lost\">Where it was lost</h2>").unwrap();
    assert!(section.trim_start().starts_with("<p>memory-ideal: old (12): written 12 of 12"));
}
