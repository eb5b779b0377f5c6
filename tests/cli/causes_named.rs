//! Figures and report name the kind of intervention, the layers left open, and thoughts.
use std::collections::BTreeMap;

use palimpsest::runs::causes::rows::CauseRows;
use serde_json::json;

use super::causes_figures::{caused, rows};
use super::knockouts::fixture;
use super::*;

/// Lines of a figure with their groups.
fn lines(dir: &Path, figure: &str) -> Vec<(String, String)> {
    rows(dir, figure).into_iter().map(|row| (row["group"].clone(), row["line"].clone())).collect()
}

#[test]
fn each_kind_of_intervention_is_a_series_of_its_own_and_no_measure() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("run");
    caused("llama-tiny", 1, &dir, &["--controls", "0"]);
    let ways: [&[&str]; 5] = [
        &["--contextcite", "6", "--ablate", "block"],
        &["--contextcite", "9", "--ablate", "block"],
        &["--contextcite", "6", "--ablate", "remove"],
        &["--contextcite", "6", "--ablate", "block", "--seed", "1"],
        &["--total"],
    ];
    for way in ways {
        let mut causes = command(["causes"]);
        causes.arg(&dir).arg("--model").arg(fixture("llama-tiny")).args(way);
        let done = ended(causes);
        assert_eq!(done.code, Some(0), "{}", done.err);
    }
    for command_of in ["figures", "report"] {
        let mut drawn = command([command_of]);
        drawn.arg(&dir);
        assert_eq!(ended(drawn).code, Some(0));
    }
    let other = "other interventions".to_owned();
    let expected = [
        "total effect (removed)",
        "ContextCite (removed, 6 subsets)",
        "ContextCite (blocked, 6 subsets)",
        "ContextCite (blocked, 9 subsets)",
    ];
    let ranked = lines(&dir, "causes-ranks");
    let of_group = |wanted: &str| -> Vec<&str> {
        ranked.iter().filter(|(group, _)| group == wanted).map(|(_, line)| line.as_str()).collect()
    };
    // Sparse fits on few subsets may have only zero weights, which rank nothing: they have no line.
    assert!(of_group(&other).iter().all(|line| expected.contains(line)), "{ranked:?}");
    assert!(of_group(&other).contains(&expected[0]), "{ranked:?}");
    assert!(of_group("measures of one forward pass").contains(&"output norm"), "{ranked:?}");
    let found: Vec<String> = lines(&dir, "causes-found").into_iter().map(|(_, line)| line).collect();
    for label in expected {
        assert!(found.iter().any(|line| line == label), "{label}: {found:?}");
    }
    // Each column has the weights of its own rows; with two seeds of one kind, the last one.
    let surrogates = CauseRows::read(&dir).unwrap().surrogates;
    let points = rows(&dir, "causes-points");
    for (column, ablation, subsets, seed) in [
        ("contextcite_blocked_6", "blocked", 6, 1),
        ("contextcite_blocked_9", "blocked", 9, 0),
        ("contextcite_removed_6", "removed", 6, 0),
    ] {
        for point in &points {
            let own = surrogates.iter().find(|row| {
                (row.ablation.key(), row.subsets, row.seed) == (ablation, subsets, seed)
                    && (&row.answer.case, &row.answer.probe) == (&point["case"], &point["probe"])
            });
            let weight = own.unwrap().weights.iter().find(|one| one.span == point["session"]).unwrap().weight;
            let found: f64 = point[column].parse().unwrap();
            assert!((found - weight).abs() < 1e-9, "{column}: {point:?}");
            // Sparse fits leave rounding noise for zero weights; such sessions are still ties.
            assert!(point[column] == "0" || found.abs() >= 1e-9, "{column}: {point:?}");
        }
    }
    let page = std::fs::read_to_string(dir.join("report.html")).unwrap();
    let sentence =
        |begins: &str| page.lines().find(|line| line.contains(begins)).unwrap_or_default().to_owned();
    let measures = sentence("Over all cases, without a choice");
    assert!(
        measures.contains("With 1 case there are too few") && measures.contains("output norm"),
        "{measures}"
    );
    assert!(!measures.contains("total effect") && !measures.contains("ContextCite"), "{measures}");
    assert!(sentence("Other interventions, which are no measures").contains("total effect (removed)"));
}

#[test]
fn captions_and_page_of_hybrid_models_say_which_share_of_layers_still_saw_the_session() {
    let root = tempfile::tempdir().unwrap();
    for (name, windows) in [("qwen35-text-tiny", false), ("qwen35-text-tiny", true), ("llama-tiny", false)] {
        let dir = root.path().join(format!("{name}-{windows}"));
        let more: &[&str] =
            if windows { &["--windows", "4", "--controls", "0"] } else { &["--controls", "0"] };
        caused(name, 1, &dir, more);
        for command_of in ["figures", "report"] {
            let mut drawn = command([command_of]);
            drawn.arg(&dir);
            assert_eq!(ended(drawn).code, Some(0));
        }
        let causes = CauseRows::read(&dir).unwrap().blocked;
        // Weighted by the windows' widths.
        let config = std::fs::read_to_string(fixture(name).join("config.json")).unwrap();
        let (linear, all) =
            (config.matches("linear_attention").count(), causes[0].layers.map_or(0, |l| l[1]));
        let captions = std::fs::read_to_string(dir.join("figures/captions.json")).unwrap();
        let page = std::fs::read_to_string(dir.join("report.html")).unwrap();
        let said = "the linear-attention ones, still saw the session";
        if name == "llama-tiny" {
            assert!(!captions.contains(said) && !page.contains(said));
            continue;
        }
        let open = causes[0].layers_open.unwrap();
        assert!(linear > 0 && open > 0.0 && open < 1.0, "{open}, {all}");
        let figures: &[&str] = match windows {
            true => &["causes-by-window", "causes-map-mean", "causes-map-case"],
            false => &["causes-points", "causes-ranks", "causes-effects", "causes-kl", "causes-largest"],
        };
        let captions: serde_json::Value = serde_json::from_str(&captions).unwrap();
        let whose = if windows { "the windows'" } else { "the model's" };
        let share = format!("{:.1}% of {whose} layers, {said}", 100.0 * open);
        for figure in figures {
            let caption = captions[figure]["caption"].as_str().unwrap();
            assert!(caption.contains(&share), "{figure}: {share} is not in {caption}");
        }
        assert!(page.contains("Only softmax layers were blocked"), "{name}");
    }
}

#[test]
fn effects_on_thoughts_have_names_of_their_own() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("run");
    caused("llama-tiny", 1, &dir, &["--controls", "0"]);
    let figures = || {
        for command_of in ["figures", "report"] {
            let mut drawn = command([command_of]);
            drawn.arg(&dir);
            assert_eq!(ended(drawn).code, Some(0));
        }
    };
    figures();
    let page = || std::fs::read_to_string(dir.join("report.html")).unwrap();
    assert!(!page().contains("thinks before it answers"));
    let before = rows(&dir, "causes-points");
    assert!(!before[0].contains_key("thought_effect"));
    // The same rows with a thought before each answer, which has effects of its own.
    let file = dir.join("causes.jsonl");
    let with_thought = |(at, line): (usize, &str)| {
        let mut row: serde_json::Value = serde_json::from_str(line).unwrap();
        row["thought_tokens"] = json!(7);
        row["effect"]["thought"] = json!({"log_p_drop": at as f64 / 8.0, "kl": 0.5, "changed": true});
        format!("{row}\n")
    };
    let text: String =
        std::fs::read_to_string(&file).unwrap().lines().enumerate().map(with_thought).collect();
    std::fs::write(&file, text).unwrap();
    figures();
    let after = rows(&dir, "causes-points");
    for (before, after) in before.iter().zip(&after) {
        // The answer's values exclude the thought.
        assert_eq!((&before["effect"], &before["kl_answer"]), (&after["effect"], &after["kl_answer"]));
    }
    let of_rows: BTreeMap<_, _> = (CauseRows::read(&dir).unwrap().blocked.into_iter())
        .map(|row| ((row.answer.case, row.answer.probe, row.span), row.effect.thought.unwrap().log_p_drop))
        .collect();
    let mut old = Vec::new();
    for point in &after {
        let expected = of_rows[&(point["case"].clone(), point["probe"].clone(), point["session"].clone())];
        assert_eq!(point["thought_effect"].parse::<f64>().unwrap(), expected);
        old.extend((point["role"] == "old").then_some(expected));
    }
    let effects = rows(&dir, "causes-effects");
    let line = effects.iter().find(|row| row["line"] == "old, on the thought").unwrap();
    let mean = old.iter().sum::<f64>() / old.len() as f64;
    assert!((line["value"].parse::<f64>().unwrap() - mean).abs() < 1e-9, "{line:?}, not {mean}");
    let captions = std::fs::read_to_string(dir.join("figures/captions.json")).unwrap();
    assert!(captions.contains("The answer is the text behind the thought."));
    assert!(page().contains("Effects on the thought before the answer"));
}
