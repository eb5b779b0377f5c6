//! Rows of causes: sessions beside their controls, older formats, total effects.

use palimpsest::runs::causes::control_pool::Pools;
use palimpsest::runs::causes::rows::{CauseRow, CauseRows, Effect};

use super::causes_figures::{caused, caused_within, control_of, rows};
use super::knockouts::fixture;
use super::*;

#[test]
fn sessions_are_compared_with_a_pool_of_stretches_at_equal_length() {
    let root = tempfile::tempdir().unwrap();
    let measured = |controls: &str| {
        let dir = root.path().join(controls);
        // Leaves room for controls as long as the evidence.
        caused_within("16384", "llama-tiny", 1, &dir, &["--controls", controls]);
        (CauseRows::read(&dir).unwrap().blocked, CauseRows::read(&dir).unwrap().controls, dir)
    };
    let [(rows, controls, dir), (same, none, _)] = ["12", "0"].map(measured);
    assert_eq!((controls.len(), none.len()), (3 * 12, 0));
    for (a, b) in rows.iter().zip(&same) {
        assert_eq!((&a.span, &a.answer.case, &a.answer.probe), (&b.span, &b.answer.case, &b.answer.probe));
        assert!((a.effect.log_p_drop - b.effect.log_p_drop).abs() < 1e-6);
    }
    // Every session has a control, evidence too.
    let pools = Pools::new(&controls);
    for row in &rows {
        let (found, expected) = (pools.control(row, |e| e.log_p_drop).unwrap(), control_of(row, &controls));
        assert!((found - expected.unwrap()).abs() < 1e-12, "{row:?}");
    }
    assert_eq!(Pools::new(&none).control(&rows[0], |e| e.log_p_drop), None);
    // Printed: means beside length-matched controls, each control counted once, and the largest effects by name.
    let again = || {
        let mut again = command(["causes"]);
        again.arg(&dir).arg("--model").arg(fixture("llama-tiny"));
        ended(again).out
    };
    let out = again();
    let of_role = |role: &str| -> Vec<&CauseRow> {
        rows.iter().filter(|row| row.role.as_deref() == Some(role)).collect()
    };
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let line = |begins: [&str; 2]| -> Vec<String> {
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        out.lines().map(words).find(|words| words.len() > 2 && words[..2] == begins).unwrap()
    };
    for role in ["old", "new"] {
        let (line, rows) = (line(["all", role]), of_role(role));
        let drops: Vec<f64> = rows.iter().map(|row| row.effect.log_p_drop).collect();
        let of_controls: Vec<f64> = rows.iter().filter_map(|row| control_of(row, &controls)).collect();
        let whole: Vec<f64> = rows.iter().map(|row| row.effect.kl_answer).collect();
        assert_eq!(line[2], rows.len().to_string());
        assert_eq!(line[3], format!("{:+.4}", mean(&drops)));
        assert_eq!(line[5], format!("{:.4}", mean(&whole)));
        assert_eq!(line[7], format!("{:+.4}", mean(&of_controls)));
        assert_eq!(line[10], rows.len().to_string());
    }
    let stretches: Vec<f64> = controls.iter().map(|row| row.effect.log_p_drop).collect();
    let own = line(["all", "random"]);
    assert_eq!((own[3].as_str(), &own[4]), ("36", &format!("{:+.4}", mean(&stretches))));
    assert!(
        out.contains("controls: 36 ") && out.contains(" 12 random stretches ") && out.contains("in 1 case;"),
        "{out}"
    );
    assert!(!out.contains("marked evidence") && controls.iter().all(|row| !row.anywhere), "{out}");
    let largest = rows.iter().max_by(|a, b| a.effect.log_p_drop.abs().total_cmp(&b.effect.log_p_drop.abs()));
    let largest = largest.unwrap();
    let first = line([&largest.answer.case, &largest.answer.probe]);
    let Effect { log_p_drop, kl, kl_answer, .. } = *largest.effect;
    let numbers = [format!("{log_p_drop:+.4}"), format!("{kl:.4}"), format!("{kl_answer:.4}")];
    assert_eq!((&first[2], &first[4..7]), (&largest.span, &numbers[..]));
    assert!(out.contains(&format!("the 8 largest of {} effects", rows.len())), "{out}");
    // A larger `--controls` adds controls; sessions are not measured again.
    let mut more = command(["causes", "--controls", "5"]);
    more.arg(&dir).arg("--model").arg(fixture("llama-tiny"));
    assert_eq!(ended(more).code, Some(0));
    assert_eq!(CauseRows::read(&dir).unwrap().blocked, rows);
    assert!(CauseRows::read(&dir).unwrap().controls.len() > controls.len());
    // Values of older versions are rejected with their replacement.
    for word in ["all", "evidence", "none"] {
        let mut refused = command(["causes", "--controls", word]);
        let refused = ended({
            refused.arg(&dir);
            refused
        });
        assert!(refused.code == Some(2) && refused.err.contains("12 by default"), "{}", refused.err);
    }
    let mut refused = command(["causes", "--total", "--controls", "0"]);
    refused.arg(&dir);
    assert_eq!(ended(refused).code, Some(2));
}

#[test]
fn causes_of_the_older_format_are_refused_with_the_remedy_and_left_as_they_are() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("run");
    caused("llama-tiny", 1, &dir, &["--controls", "0"]);
    let file = dir.join("causes.jsonl");
    let blocked = concat!(
        r#"{"case":"c","probe":"SR","span":"session[0]","tokens":[3,9],"seed":0,"answer_tokens":2,"log_p":-1.0,"#,
        r#""effect":{"log_p":-0.5,"kl":0.1,"changed":true},"control":{"tokens":[9,15],"effect":{"log_p":0.0,"kl":0.0,"changed":false}}}"#
    );
    let total = concat!(
        r#"{"kind":"total","case":"c","probe":"SR","span":"session[0]","tokens":[3,9],"answer_tokens":2,"log_p":-1.0,"#,
        r#""total":{"log_p":-0.5,"kl":0.1,"changed":true}}"#
    );
    let subset = concat!(
        r#"{"kind":"subset","case":"c","probe":"SR","seed":0,"subset":0,"ablation":"removed","sessions":[],"answer_tokens":2,"#,
        r#""answer_log_p":-2.0}"#
    );
    let fit = concat!(
        r#"{"kind":"contextcite","case":"c","probe":"SR","seed":0,"subsets":4,"ablation":"removed","answer_tokens":2,"#,
        r#""intercept":0.0,"weights":[]}"#
    );
    let whole = std::fs::read_to_string(&file).unwrap();
    for old in [blocked, total, subset, fit] {
        // Also as the last line, which a crash may have truncated.
        for text in [format!("{old}\n"), format!("{whole}{old}\n")] {
            std::fs::write(&file, &text).unwrap();
            let mut commands = [command(["causes"]), command(["causes", "--total"]), command(["figures"])];
            for refused in &mut commands {
                refused.arg(&dir);
            }
            for refused in &mut commands[..2] {
                refused.arg("--model").arg(fixture("llama-tiny"));
            }
            for refused in commands {
                let done = ended(refused);
                let line = format!("causes.jsonl line {} is of an older format", text.lines().count());
                assert!(done.code == Some(1) && done.err.contains(&line), "{old}: {}", done.err);
                assert!(done.err.contains("move the file away and measure the causes again"), "{}", done.err);
            }
            assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
        }
    }
}

#[test]
fn total_effects_stand_beside_the_direct_ones() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("run");
    caused("llama-tiny", 1, &dir, &[]);
    let mut total = command(["causes", "--total"]);
    total.arg(&dir).arg("--model").arg(fixture("llama-tiny"));
    let done = ended(total);
    assert_eq!(done.code, Some(0), "{}", done.err);
    for command_of in ["figures", "report"] {
        let mut drawn = command([command_of]);
        drawn.arg(&dir);
        assert_eq!(ended(drawn).code, Some(0));
    }
    let totals = CauseRows::read(&dir).unwrap().removed;
    let points = rows(&dir, "causes-points");
    assert!(!points.is_empty() && totals.len() == points.len(), "{} and {}", totals.len(), points.len());
    for point in &points {
        let own = totals.iter().find(|row| {
            (&row.answer.case, &row.answer.probe, &row.span)
                == (&point["case"], &point["probe"], &point["session"])
        });
        let found: f64 = point["total_effect"].parse().unwrap();
        assert!((found - own.unwrap().effect.log_p_drop).abs() < 1e-12, "{point:?}");
    }
    let mean = |role: &str| {
        let of_role: Vec<f64> = totals
            .iter()
            .filter(|row| row.role.as_deref() == Some(role))
            .map(|row| row.effect.log_p_drop)
            .collect();
        of_role.iter().sum::<f64>() / of_role.len() as f64
    };
    let drawn = rows(&dir, "causes-effects");
    let line = drawn.iter().find(|row| row["line"] == "old, removed").unwrap();
    assert!((line["value"].parse::<f64>().unwrap() - mean("old")).abs() < 1e-9);
    let page = std::fs::read_to_string(dir.join("report.html")).unwrap();
    assert!(page.contains("the total effect, in which indirect paths count"));
}
