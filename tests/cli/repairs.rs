//! Caches repaired after the replacement of a session, beside its exact replacement.
use std::collections::{BTreeMap, BTreeSet};

use palimpsest::lens::causes::Residues;
use palimpsest::lens::causes::residue::Whole;
use palimpsest::runs::causes::contrast_rows::{
    AblationKind, CONTRAST_CAUSES, ContrastCauseRow, read_contrast_causes,
};
use palimpsest::runs::causes::rows::{CAUSES, CauseRow, CauseRows};
use palimpsest_core::ablate::NEUTRAL;
use palimpsest_core::engine::LaterRows;

use super::knockouts::{causes, fixture, run_of};
use super::*;

/// Rows by answer, session and later rows.
fn keyed(rows: Vec<CauseRow>) -> BTreeMap<(String, String, LaterRows), CauseRow> {
    let key = |row: &CauseRow| (row.answer.probe.clone(), row.span.clone(), row.rows.unwrap().k);
    rows.into_iter().map(|row| (key(&row), row)).collect()
}

#[test]
fn repairs_are_measured_beside_the_exact_replacement_and_resumed() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("run");
    assert_eq!(ended(run_of("llama-tiny", &dir, &["--sessions", "4"])).code, Some(0));
    let flags = ["--repair", "0,4,all"];
    let done = ended(causes("llama-tiny", &dir, &flags));
    assert_eq!(done.code, Some(0), "{}", done.err);
    let CauseRows { replaced, repaired, .. } = CauseRows::read(&dir).unwrap();
    assert!(!replaced.is_empty() && repaired.len() == 3 * replaced.len());
    assert!(done.err.contains(&format!("{} repairs", repaired.len())), "{}", done.err);
    assert!(done.out.contains("left of the session's effect") && done.out.contains("all"), "{}", done.out);
    let found = keyed(repaired.clone());
    for exact in &replaced {
        let of = |k: LaterRows| &found[&(exact.answer.probe.clone(), exact.span.clone(), k)];
        let [own, some, all] = [LaterRows::Most(0), LaterRows::Most(4), LaterRows::All].map(of);
        // All rows read again are the exact replacement, to the last bit.
        assert_eq!((*all.effect, all.log_p), (*exact.effect, exact.log_p));
        assert_eq!(
            (&all.neutral, all.tokens, &all.role),
            (&Some(NEUTRAL.to_owned()), exact.tokens, &exact.role)
        );
        let session = exact.tokens[1] - exact.tokens[0];
        let rows = [own, some, all].map(|row| row.rows.unwrap().recomputed);
        assert_eq!(rows[0], session);
        assert!(rows[1] == rows[2].min(session + 4) && rows[2] >= session, "{rows:?}");
        assert_ne!(own.effect.log_p_drop, 0.0);
    }
    assert!(replaced.iter().any(|exact| {
        let own = &found[&(exact.answer.probe.clone(), exact.span.clone(), LaterRows::Most(0))];
        own.effect.log_p_drop != exact.effect.log_p_drop
    }));
    let residues = Residues::of_answers(&dir).unwrap();
    for point in residues.repairs() {
        let of_role = |row: &&CauseRow| row.role.as_ref() == Some(&point.role);
        let sum = |rows: Vec<&CauseRow>| rows.iter().map(|row| row.effect.log_p_drop).sum::<f64>();
        let exact = sum(replaced.iter().filter(of_role).collect());
        let own = repaired.iter().filter(of_role).filter(|row| row.rows.unwrap().k == point.later.0);
        let left = point.left.value.unwrap();
        assert!((left - (1.0 - sum(own.collect()) / exact)).abs() < 1e-9, "{point:?}");
        assert!(residues.mean(&point.role, |one| one.wholes.get(&Whole::Replaced).copied()).is_some());
    }

    // Torn in the middle of the repairs, and then nothing is left to do.
    let file = dir.join(CAUSES);
    let text = std::fs::read_to_string(&file).unwrap();
    let kept: String = text.lines().take(replaced.len() + 2).map(|line| format!("{line}\n")).collect();
    std::fs::write(&file, kept + "{\"kind\": \"rep").unwrap();
    let resumed = ended(causes("llama-tiny", &dir, &flags));
    assert_eq!(resumed.code, Some(0), "{}", resumed.err);
    assert!(!resumed.err.contains("replacements"), "{}", resumed.err);
    assert_eq!(keyed(CauseRows::read(&dir).unwrap().repaired), found);
    let again = ended(causes("llama-tiny", &dir, &flags));
    assert!(again.code == Some(0) && !again.err.contains(" repairs"), "{}", again.err);
    assert_eq!(again.out, done.out);
    // More numbers extend the rows.
    let more = ended(causes("llama-tiny", &dir, &["--repair", "2"]));
    assert!(more.err.contains(&format!("{} repairs", replaced.len())), "{}", more.err);

    let mut drawn = command(["figures"]);
    drawn.arg(&dir);
    assert_eq!(ended(drawn).code, Some(0));
    let csv = std::fs::read_to_string(dir.join("figures/causes-repaired.csv")).unwrap();
    let all = csv.lines().filter(|line| line.contains(",all,"));
    let roles: BTreeSet<_> = replaced.iter().map(|row| &row.role).collect();
    assert_eq!(all.count(), roles.len(), "{csv}");
}

#[test]
fn repaired_contrasts_have_rows_of_their_own() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("run");
    let mut run = command(["run", "--data", "sample:dose", "--context", "4096", "--max-new-tokens", "4"]);
    run.args(["--allow-longer", "--model"]).arg(fixture("llama-tiny")).arg("--out").arg(&dir);
    assert_eq!(ended(run).code, Some(0));
    let done = ended(causes("llama-tiny", &dir, &["--contrast", "--repair", "all,0"]));
    assert_eq!(done.code, Some(0), "{}", done.err);
    assert!(done.out.contains("contrast lost"), "{}", done.out);
    let rows = read_contrast_causes(&dir).unwrap();
    let of = |kind| rows.iter().filter(move |row: &&ContrastCauseRow| row.ablation == kind);
    assert!(of(AblationKind::Replaced).count() > 0);
    assert_eq!(of(AblationKind::Repaired).count(), 2 * of(AblationKind::Replaced).count());
    for row in of(AblationKind::Repaired) {
        assert!((row.drop - (row.contrast - (row.current - row.stale))).abs() < 1e-9);
        let same = |exact: &&ContrastCauseRow| (&exact.answer, &exact.span) == (&row.answer, &row.span);
        let exact = of(AblationKind::Replaced).find(same).unwrap();
        match row.rows.unwrap().k {
            LaterRows::All => assert_eq!((row.current, row.stale), (exact.current, exact.stale)),
            LaterRows::Most(_) => assert_eq!(row.rows.unwrap().recomputed, row.tokens[1] - row.tokens[0]),
        }
    }
    assert!(dir.join(CONTRAST_CAUSES).exists());
    let wrong = ended(causes("llama-tiny", &dir, &["--repair", "0,some"]));
    assert!(wrong.code == Some(2) && wrong.err.contains("0,16,64,256,all"), "{}", wrong.err);
}

#[test]
fn models_that_do_not_keep_all_keys_are_refused_by_name_before_anything_is_measured() {
    let root = tempfile::tempdir().unwrap();
    for (name, what) in [("gemma3-tiny", "window of"), ("qwen35-text-tiny", "linear-attention layer")] {
        let dir = root.path().join(name);
        assert_eq!(ended(run_of(name, &dir, &[])).code, Some(0));
        let refused = ended(causes(name, &dir, &["--repair", "0"]));
        assert_eq!(refused.code, Some(1), "{}", refused.err);
        assert!(refused.err.contains(name) && refused.err.contains(what), "{}", refused.err);
        assert!(!dir.join(CAUSES).exists());
    }
}
