//! The tables, the figure and the report's section.

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
