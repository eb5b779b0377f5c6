//! Effects of removing sessions on a run's answers, and ContextCite's surrogate.
use std::collections::{BTreeMap, BTreeSet};

use palimpsest::lens::causes::residue::{Residues, Whole};
use palimpsest::runs::causes::carriers::ALL;
use palimpsest::runs::causes::context_cite::logit;
use palimpsest::runs::causes::rows::{Ablation, CAUSES, CauseLine, CauseRows, SubsetRow, read_lines};
use palimpsest::statistics::lasso::lasso;
use palimpsest_core::ablate::{NEUTRAL, neutral};
use palimpsest_core::attention::AttentionStore;
use palimpsest_core::engine::{ContextLength, LocalModel, LocalOptions};
use palimpsest_core::model::ModelFiles;
use palimpsest_core::span::Span;

use super::knockouts::{causes, fixture, run_of, stores, told, traced};
use super::resume::{interrupt, signal};
use super::*;
use crate::left_out::few_or_all;

fn answered(dir: &Path) -> Vec<AttentionStore> {
    stores(dir, "").into_iter().filter(|store| !store.generated.is_empty()).collect()
}

fn sessions(store: &AttentionStore) -> Vec<Span> {
    store.keys.iter().filter(|span| span.segment().is_some()).cloned().collect()
}

/// A store without the tokens of these spans; later spans are shifted.
pub fn without(store: &AttentionStore, removed: &[&Span]) -> AttentionStore {
    let gone = |at: &usize| removed.iter().any(|span| span.range().contains(at));
    let moved = |at: usize| at - (0..at).filter(|at| gone(at)).count();
    let mut store = store.clone();
    store.tokens = (0..store.tokens.len()).filter(|at| !gone(at)).map(|at| store.tokens[at]).collect();
    for span in &mut store.keys {
        (span.start, span.end) = (moved(span.start), moved(span.end));
    }
    store
}

/// Mean log-probability of the answer, that of its first token, and the argmax flags, from a full pass of `trace`.
fn read_again(name: &str, store: &AttentionStore) -> (f64, Vec<f64>, Vec<bool>) {
    told(&traced(name, store, serde_json::json!([])).0, &store.generated)
}

#[test]
fn total_effects_are_what_whole_passes_without_the_session_give() {
    let root = tempfile::tempdir().unwrap();
    // Layers that can be rewound anywhere, sliding windows, linear layers.
    for &name in few_or_all(&["llama-tiny"][..], &["llama-tiny", "gemma3-tiny", "qwen35-text-tiny"]) {
        let dir = root.path().join(name);
        assert_eq!(ended(run_of(name, &dir, &["--sessions", "4"])).code, Some(0));
        let done = ended(causes(name, &dir, &["--total"]));
        assert_eq!(done.code, Some(0), "{name}: {}", done.err);
        let stores = answered(&dir);
        let rows = CauseRows::read(&dir).unwrap().removed;
        assert_eq!(rows.len(), stores.len() * 4, "{name}");
        assert!(done.err.contains(&format!("{} removals", rows.len())), "{}", done.err);
        assert!(done.out.contains("removed") && done.out.contains("old"), "{}", done.out);
        let largest =
            rows.iter().max_by(|a, b| a.effect.log_p_drop.abs().total_cmp(&b.effect.log_p_drop.abs()));
        let largest = largest.unwrap();
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let mut named =
            done.out.lines().map(words).skip_while(|words| words.first().is_none_or(|w| w != "case"));
        let first = named.nth(1).unwrap();
        let numbers = [largest.effect.log_p_drop, largest.effect.kl, largest.effect.kl_answer];
        assert_eq!((&first[1], &first[2]), (&largest.answer.probe, &largest.span));
        assert_eq!(first[4], format!("{:+.4}", numbers[0]));
        assert_eq!(first[5..7], numbers[1..].iter().map(|kl| format!("{kl:.4}")).collect::<Vec<_>>());
        for row in rows.iter().step_by(3) {
            let store = stores.iter().find(|store| store.probe == row.answer.probe).unwrap();
            let span = store.keys.iter().find(|span| span.label == row.span).unwrap();
            assert_eq!((row.tokens, &row.role), ([span.start, span.end], &span.role));
            let (plain, first, likeliest) = read_again(name, store);
            let (mean, other, now) = read_again(name, &without(store, &[span]));
            let kl: f64 = first.iter().zip(&other).map(|(p, q)| p.exp() * (p - q)).sum();
            assert!((row.log_p - plain).abs() < 1e-4, "{name}: {plain}, not {}", row.log_p);
            assert!(
                (row.effect.log_p_drop - (plain - mean)).abs() < 1e-4,
                "{name} {row:?}: {}",
                plain - mean
            );
            assert!((row.effect.kl - kl).abs() < 1e-4, "{name} {row:?}: {kl}");
            assert_eq!(row.effect.changed, now != likeliest, "{name} {row:?}");
        }
        let effects: BTreeSet<String> =
            rows.iter().map(|row| format!("{:.9}", row.effect.log_p_drop)).collect();
        assert!(effects.len() > rows.len() / 2, "{effects:?}");
        // Blocked and removed rows share the file and do not mix.
        if name == "llama-tiny" {
            assert_eq!(CauseRows::read(&dir).unwrap().blocked, []);
            assert_eq!(ended(causes(name, &dir, &[])).code, Some(0));
            assert_eq!(CauseRows::read(&dir).unwrap().blocked.len(), rows.len());
        }
        let again = ended(causes(name, &dir, &["--total"]));
        assert_eq!(again.code, Some(0), "{}", again.err);
        // A session's remainder is printed once both effects are known.
        let table = done.out.split_once("\nThe question pays").unwrap().0;
        let told = again.out.strip_prefix(table).unwrap();
        assert_eq!(told.contains("leaves"), name == "llama-tiny", "{told}");
        assert!(!again.err.contains("removals"), "{}", again.err);
        assert_eq!(CauseRows::read(&dir).unwrap().removed, rows);
    }
}

/// The store with a span replaced by neutral text.
pub fn replaced(name: &str, store: &AttentionStore, span: &Span) -> AttentionStore {
    let options =
        LocalOptions { context: ContextLength::Exactly(256), allow_longer: true, ..LocalOptions::default() };
    let model = LocalModel::open(&ModelFiles::at(&fixture(name)).unwrap(), &options).unwrap();
    let neutral = neutral(model.text()).unwrap();
    let mut store = store.clone();
    // The last token stays.
    for (nth, at) in (span.start..span.end - 1).enumerate() {
        store.tokens[at] = neutral[nth % neutral.len()];
    }
    store
}

#[test]
fn replaced_sessions_give_what_whole_passes_with_neutral_text_in_their_place_give() {
    let root = tempfile::tempdir().unwrap();
    for &name in few_or_all(&["gemma3-tiny"][..], &["llama-tiny", "gemma3-tiny", "qwen35-text-tiny"]) {
        let dir = root.path().join(name);
        assert_eq!(ended(run_of(name, &dir, &["--sessions", "4"])).code, Some(0));
        let stores = answered(&dir);
        // The evidence by default, then the others.
        let with_roles = sessions(&stores[0]).iter().filter(|span| span.role.is_some()).count();
        for (more, each) in [(&["--replace"][..], with_roles), (&["--replace", "--sessions", "all"], 4)] {
            let done = ended(causes(name, &dir, more));
            assert_eq!(done.code, Some(0), "{name}: {}", done.err);
            assert_eq!(CauseRows::read(&dir).unwrap().replaced.len(), stores.len() * each, "{name}");
            assert!(done.err.contains("replacements") && done.out.contains("replaced"), "{}", done.err);
        }
        let rows = CauseRows::read(&dir).unwrap().replaced;
        for row in rows.iter().step_by(3) {
            let store = stores.iter().find(|store| store.probe == row.answer.probe).unwrap();
            let span = store.keys.iter().find(|span| span.label == row.span).unwrap();
            assert_eq!((row.tokens, &row.role), ([span.start, span.end], &span.role));
            assert_eq!(row.neutral.as_deref(), Some(NEUTRAL));
            let (plain, ..) = read_again(name, store);
            let (mean, ..) = read_again(name, &replaced(name, store, span));
            assert!((row.log_p - plain).abs() < 1e-4, "{name}: {plain}, not {}", row.log_p);
            let lost = row.effect.log_p_drop;
            assert!((lost - (plain - mean)).abs() < 1e-4, "{name} {row:?}: {}", plain - mean);
        }
        let again = ended(causes(name, &dir, &["--replace", "--sessions", "all"]));
        assert!(again.code == Some(0) && !again.err.contains("replacements"), "{}", again.err);
        assert_eq!(CauseRows::read(&dir).unwrap().replaced, rows);
    }
}

#[test]
fn carriers_are_what_whole_passes_with_both_paths_knocked_out_give() {
    let root = tempfile::tempdir().unwrap();
    let models = [
        ("llama-tiny", &["--carriers", "--least", "0"][..]),
        ("gemma3-tiny", &["--carriers", "--least", "0"]),
        ("qwen35-text-tiny", &["--carriers", "--least", "0", "--softmax-only"]),
    ];
    for &(name, more) in few_or_all(&models[2..], &models) {
        let dir = root.path().join(name);
        assert_eq!(ended(run_of(name, &dir, &["--sessions", "5"])).code, Some(0));
        let stores = answered(&dir);
        let done = ended(causes(name, &dir, more));
        assert_eq!(done.code, Some(0), "{name}: {}", done.err);
        assert!(done.err.contains("at most"), "{}", done.err);
        let rows = CauseRows::read(&dir).unwrap().carriers;
        // All rows at once, every later session, and the tokens before the question.
        let of_span = |span: &Span, store: &AttentionStore| {
            2 + sessions(store).iter().filter(|later| later.start >= span.end).count()
        };
        let evidence = |store: &AttentionStore| {
            sessions(store).into_iter().filter(|span| span.role.is_some()).collect::<Vec<_>>()
        };
        let expected: usize = stores
            .iter()
            .map(|store| evidence(store).iter().map(|span| of_span(span, store)).sum::<usize>())
            .sum();
        assert_eq!(rows.len(), expected, "{name}");
        let mut plains = BTreeMap::new();
        for row in rows.iter().filter(|row| row.carrier.as_deref() == Some(ALL) || row.tokens[0] % 2 == 0) {
            let store = stores.iter().find(|store| store.probe == row.answer.probe).unwrap();
            let hybrid = name == "qwen35-text-tiny";
            assert_eq!((row.softmax_only, row.layers_open), (hybrid, hybrid.then_some(0.75)));
            let knocked_out = |rows: Vec<String>| {
                let knockout = |rows: &String| {
                    let mut knockout = serde_json::json!({"rows": rows, "range": row.tokens});
                    if hybrid {
                        knockout["layers"] = serde_json::json!([2, 3]);
                    }
                    knockout
                };
                let knockouts: Vec<_> = rows.iter().map(knockout).collect();
                told(&traced(name, store, serde_json::json!(knockouts)).0, &store.generated).0
            };
            let plain = *plains.entry(&row.answer.probe).or_insert_with(|| read_again(name, store).0);
            let [first, end] = row.carrier_tokens.unwrap();
            let inside = |span: &&Span| !span.is_empty() && first <= span.start && span.end <= end;
            let mut blocked: Vec<String> =
                store.keys.iter().filter(inside).map(|span| span.label.clone()).collect();
            let covered: usize = store.keys.iter().filter(inside).map(|span| span.end - span.start).sum();
            assert_eq!(covered, end - first, "{row:?}");
            blocked.push("blocked".to_owned());
            let direct = plain - knocked_out(vec!["blocked".to_owned()]);
            let both = plain - knocked_out(blocked);
            assert!((row.direct.unwrap() - direct).abs() < 1e-4, "{name} {row:?}: {direct}");
            assert!((row.effect.log_p_drop - both).abs() < 1e-4, "{name} {row:?}: {both}");
        }
        let again = ended(causes(name, &dir, more));
        assert_eq!((again.code, again.out), (Some(0), done.out));
        assert_eq!(CauseRows::read(&dir).unwrap().carriers, rows);
        // Single carriers are searched only where all carriers together have an effect.
        let few = root.path().join(format!("{name}-few"));
        assert_eq!(ended(run_of(name, &few, &["--sessions", "5"])).code, Some(0));
        let more: Vec<&str> = more.iter().map(|flag| if *flag == "0" { "1000" } else { flag }).collect();
        assert_eq!(ended(causes(name, &few, &more)).code, Some(0));
        assert!(
            CauseRows::read(&few).unwrap().carriers.iter().all(|row| row.carrier.as_deref() == Some(ALL))
        );
    }
    let dir = root.path().join("qwen35-text-tiny");
    let refused = ended(causes("qwen35-text-tiny", &dir, &["--carriers"]));
    assert!(refused.code == Some(1) && refused.err.contains("--softmax-only"), "{}", refused.err);
}

#[test]
fn what_is_left_is_the_total_less_the_direct_effect_in_the_summary_the_figure_and_the_report() {
    let root = tempfile::tempdir().unwrap();
    let (name, dir) = ("llama-tiny", root.path().join("run"));
    assert_eq!(ended(run_of(name, &dir, &["--sessions", "4"])).code, Some(0));
    for flags in [&["--windows", "2"][..], &[], &["--total"], &["--carriers", "--least", "0"]] {
        assert_eq!(ended(causes(name, &dir, flags)).code, Some(0), "{flags:?}");
    }
    let done = ended(causes(name, &dir, &["--replace"]));
    assert_eq!(done.code, Some(0), "{}", done.err);
    let residues = Residues::of_answers(&dir).unwrap();
    let of = |rows: Vec<(Option<String>, f64)>| {
        let old: Vec<f64> =
            rows.into_iter().filter(|(role, _)| role.as_deref() == Some("old")).map(|(_, x)| x).collect();
        old.iter().sum::<f64>() / old.len() as f64
    };
    let blocked = CauseRows::read(&dir).unwrap().blocked.into_iter().filter(|row| row.layers.is_none());
    let direct = of(blocked.map(|row| (row.role, row.effect.log_p_drop)).collect());
    let total = of(CauseRows::read(&dir)
        .unwrap()
        .removed
        .into_iter()
        .map(|row| (row.role, row.effect.log_p_drop))
        .collect());
    let replaced = of(CauseRows::read(&dir)
        .unwrap()
        .replaced
        .into_iter()
        .map(|row| (row.role, row.effect.log_p_drop))
        .collect());
    for (whole, total) in [(Whole::Removed, total), (Whole::Replaced, replaced)] {
        let mean = residues.mean("old", |one| one.residue(whole)).unwrap();
        assert!((mean.value.unwrap() - (total - direct)).abs() < 1e-9);
        let left = residues.left("old", whole).unwrap().value.unwrap();
        assert!((left - (total - direct) / total).abs() < 1e-9);
        assert!(
            done.out.contains(&format!("{:.0}% (n = 1; no interval below 5)", 100.0 * left)),
            "{}",
            done.out
        );
    }
    assert!(
        done.out.contains("layers 0–1") && done.out.contains("carriers of the old session: "),
        "{}",
        done.out
    );
    for command_of in ["figures", "report"] {
        let mut drawn = command([command_of]);
        drawn.arg(&dir);
        assert_eq!(ended(drawn).code, Some(0));
    }
    let drawn = std::fs::read_to_string(dir.join("figures/causes-left-behind.csv")).unwrap();
    assert!(
        drawn.contains("left of it (replaced)") && drawn.contains("carried by the next session"),
        "{drawn}"
    );
    let page = std::fs::read_to_string(dir.join("report.html")).unwrap();
    assert!(page.contains("(n = 1; no interval below 5)"));
}

fn subsets(dir: &Path) -> Vec<SubsetRow> {
    let of = |line| if let CauseLine::Subset(row) = line { Some(row) } else { None };
    read_lines(dir).unwrap().into_iter().filter_map(of).collect()
}

#[test]
fn surrogates_are_fitted_to_answers_after_random_subsets_removed_or_blocked() {
    let root = tempfile::tempdir().unwrap();
    let (name, dir) = ("llama-tiny", root.path().join("run"));
    assert_eq!(ended(run_of(name, &dir, &["--sessions", "4"])).code, Some(0));
    let stores = answered(&dir);
    for (flags, ablation) in [(&[][..], Ablation::Removed), (&["--ablate", "block"], Ablation::Blocked)] {
        let more = [&["--contextcite", "6", "--seed", "3"], flags].concat();
        let done = ended(causes(name, &dir, &more));
        assert_eq!(done.code, Some(0), "{}", done.err);
        assert!(done.out.contains(&format!("sessions {}", ablation.key())), "{}", done.out);
        let weights: Vec<_> =
            CauseRows::read(&dir).unwrap().surrogates.into_iter().flat_map(|row| row.weights).collect();
        let of_last = &weights[weights.len() - stores.len() * 4..];
        let largest = of_last.iter().max_by(|a, b| a.weight.abs().total_cmp(&b.weight.abs())).unwrap();
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let mut named =
            done.out.lines().map(words).skip_while(|words| words.first().is_none_or(|w| w != "case"));
        let first = named.nth(1).unwrap();
        assert_eq!(first[2..], [largest.span.clone(), first[3].clone(), format!("{:+.4}", largest.weight)]);
        let rows: Vec<SubsetRow> = subsets(&dir).into_iter().filter(|row| row.ablation == ablation).collect();
        assert_eq!(rows.len(), stores.len() * 6);
        for row in rows.iter().step_by(4) {
            let store = stores.iter().find(|store| store.probe == row.answer.probe).unwrap();
            let all = sessions(store);
            let out: Vec<&Span> = all.iter().filter(|span| !row.sessions.contains(&span.label)).collect();
            let (mean, ..) = match ablation {
                Ablation::Removed => read_again(name, &without(store, &out)),
                Ablation::Blocked => {
                    let blocked = |span: &&Span| serde_json::json!({"rows": "blocked", "keys": span.label});
                    let knockouts: Vec<_> = out.iter().map(blocked).collect();
                    told(&traced(name, store, serde_json::json!(knockouts)).0, &store.generated)
                }
            };
            let expected = mean * store.generated.len() as f64;
            assert!((row.answer_log_p - expected).abs() < 1e-3, "{row:?}: {expected}");
        }
        // The answers of a case share the same distinct subsets.
        let distinct: BTreeSet<&Vec<String>> = rows.iter().map(|row| &row.sessions).collect();
        assert!(distinct.len() > 3 && distinct.len() <= 6, "{distinct:?}");

        let fits: Vec<_> = CauseRows::read(&dir)
            .unwrap()
            .surrogates
            .into_iter()
            .filter(|row| row.ablation == ablation)
            .collect();
        assert_eq!(fits.len(), stores.len());
        for fit in &fits {
            let own: Vec<&SubsetRow> =
                rows.iter().filter(|row| row.answer.probe == fit.answer.probe).collect();
            assert_eq!((own.len(), fit.subsets, fit.weights.len()), (6, 6, 4));
            let bit = |row: &SubsetRow, label: &String| if row.sessions.contains(label) { 1.0 } else { 0.0 };
            let x: Vec<Vec<f64>> =
                own.iter().map(|row| fit.weights.iter().map(|w| bit(row, &w.span)).collect()).collect();
            let tokens = fit.answer_tokens as f64;
            let y: Vec<f64> = own.iter().map(|row| logit(row.answer_log_p) / tokens).collect();
            let expected = lasso(&x, &y, 0.01);
            for (weight, expected) in fit.weights.iter().zip(expected.weights) {
                assert!((weight.weight - expected * tokens).abs() < 1e-6, "{fit:?}");
            }
            assert!((fit.intercept - expected.intercept * tokens).abs() < 1e-6, "{fit:?}");
        }
        let again = ended(causes(name, &dir, &more));
        assert_eq!((again.code, again.out), (Some(0), done.out));
    }
    // More subsets of the same seed extend the existing ones.
    let more = ended(causes(name, &dir, &["--contextcite", "8", "--seed", "3"]));
    assert!(
        more.code == Some(0) && more.err.contains(&format!("{} subsets", stores.len() * 2)),
        "{}",
        more.err
    );
    assert_eq!(CauseRows::read(&dir).unwrap().surrogates.len(), stores.len() * 3);
    let wrong = ended(causes(name, &dir, &["--total", "--windows", "2"]));
    assert_eq!(wrong.code, Some(2), "{}", wrong.err);
}

#[test]
#[cfg(unix)]
fn removals_killed_and_started_again_end_with_the_same_rows() {
    let root = tempfile::tempdir().unwrap();
    let (whole, dir) = (root.path().join("whole"), root.path().join("killed"));
    for dir in [&whole, &dir] {
        assert_eq!(ended(run_of("llama-tiny", dir, &["--sessions", "4"])).code, Some(0));
    }
    let lines =
        || std::fs::read(dir.join(CAUSES)).map_or(0, |bytes| bytes.iter().filter(|b| **b == b'\n').count());
    let mut before = 0;
    for flags in [
        &["--total"][..],
        &["--replace", "--sessions", "all"],
        &["--repair", "0,4,all"],
        &["--carriers", "--least", "0"],
        &["--contextcite", "4"],
    ] {
        assert_eq!(ended(causes("llama-tiny", &whole, flags)).code, Some(0));
        interrupt(causes("llama-tiny", &dir, flags), || lines() >= before + 2, signal("-KILL"));
        let resumed = ended(causes("llama-tiny", &dir, flags));
        assert_eq!(resumed.code, Some(0), "{}", resumed.err);
        before = lines();
    }
    let key = |line: &CauseLine| match line {
        CauseLine::Total(row) => (row.answer.probe.clone(), row.span.clone()),
        CauseLine::Replaced(row) => (row.answer.probe.clone(), format!("{} replaced", row.span)),
        CauseLine::Repaired(row) => {
            (row.answer.probe.clone(), format!("{} repaired {:?}", row.span, row.rows.unwrap()))
        }
        CauseLine::Carrier(row) => {
            (row.answer.probe.clone(), format!("{} by {}", row.span, row.carrier.as_deref().unwrap()))
        }
        CauseLine::Subset(row) => (row.answer.probe.clone(), row.subset.to_string()),
        CauseLine::Surrogate(row) => (row.answer.probe.clone(), String::new()),
        CauseLine::Blocked(_) | CauseLine::Control(_) | CauseLine::Forced(_) | CauseLine::Thought(_) => {
            unreachable!()
        }
    };
    let keys = |dir: &Path| read_lines(dir).unwrap().iter().map(key).collect::<BTreeSet<_>>();
    assert_eq!(keys(&whole), keys(&dir));
    assert_eq!(read_lines(&whole).unwrap().len(), read_lines(&dir).unwrap().len());
    for (a, b) in
        CauseRows::read(&whole).unwrap().surrogates.iter().zip(&CauseRows::read(&dir).unwrap().surrogates)
    {
        assert!(a.weights.iter().zip(&b.weights).all(|(a, b)| (a.weight - b.weight).abs() < 1e-3));
    }
}

#[test]
fn merged_shards_have_the_causes_of_the_whole_run() {
    let root = tempfile::tempdir().unwrap();
    let at = |name: &str| root.path().join(name);
    let run = |name: &str, more: &[&str]| {
        let mut run =
            command(["run", "--data", "sample", "--sessions", "4", "--limit", "3", "--context", "8192"]);
        run.args(["--max-new-tokens", "6", "--allow-longer", "--model"]).arg(fixture("llama-tiny"));
        run.arg("--out").arg(at(name)).args(more);
        let done = ended(run);
        assert_eq!(done.code, Some(0), "{}", done.err);
    };
    run("whole", &[]);
    run("a", &["--shard", "0/2"]);
    run("b", &["--shard", "1/2"]);
    for name in ["whole", "a", "b"] {
        for more in [&["--controls", "2"][..], &["--contextcite", "3", "--ablate", "block"]] {
            assert_eq!(ended(causes("llama-tiny", &at(name), more)).code, Some(0));
        }
    }
    let merge = |out: &str| {
        let mut merge = command(["merge"]);
        merge.arg(at(out)).args([at("b"), at("a")]);
        ended(merge)
    };
    let merged = merge("merged");
    assert_eq!(merged.code, Some(0), "{}", merged.err);
    // By case, a case's rows unchanged to the last digit.
    let text = |name: &str| std::fs::read_to_string(at(name).join(CAUSES)).unwrap();
    let whole = text("whole");
    let mut lines: Vec<(String, &str)> = read_lines(&at("whole"))
        .unwrap()
        .iter()
        .map(|row| row.answer().case.clone())
        .zip(whole.lines())
        .collect();
    let cases: Vec<String> =
        RunFolder::read(&at("whole")).unwrap().plan.iter().map(|case| case.case.clone()).collect();
    lines.sort_by_key(|(of, _)| cases.iter().position(|case| case == of));
    let expected: String = lines.iter().map(|(_, line)| format!("{line}\n")).collect();
    assert!(text("merged") == expected);
    assert!(merged.out.contains(&format!("{} rows of causes", lines.len())), "{}", merged.out);
    let measures = |name: &str| {
        let files = std::fs::read_dir(at(name).join("causes")).unwrap().map(|file| file.unwrap().path());
        let read = |path: PathBuf| (path.file_name().unwrap().to_owned(), std::fs::read(&path).unwrap());
        files.map(read).collect::<std::collections::BTreeMap<_, _>>()
    };
    assert!(measures("merged") == measures("whole"));
    // Nothing is left to measure there.
    let again = ended(causes("llama-tiny", &at("merged"), &["--controls", "2"]));
    assert_eq!(again.code, Some(0), "{}", again.err);
    assert_eq!(read_lines(&at("merged")).unwrap().len(), lines.len());
    let whole = ended(causes("llama-tiny", &at("whole"), &["--controls", "2"]));
    assert_eq!(again.out, whole.out);

    // An incomplete shard is named; its rows can be measured after merging.
    assert_eq!(ended(causes("llama-tiny", &at("a"), &["--total"])).code, Some(0));
    let uneven = merge("uneven");
    let said = format!("causes are missing in {};", at("b").display());
    assert!(uneven.code == Some(0) && uneven.out.contains(&said), "{}", uneven.out);
    assert_eq!(ended(causes("llama-tiny", &at("uneven"), &["--total"])).code, Some(0));
    let expected = ended(causes("llama-tiny", &at("whole"), &["--total"]));
    assert_eq!(ended(causes("llama-tiny", &at("uneven"), &["--total"])).out, expected.out);
    // Likewise a shard without the contrast causes that another has.
    let row = r#"{"case":"c","probe":"SR","span":"session[0]","tokens":[3,9],"seed":0,"ablation":"blocked","contrast":1.0,"#;
    std::fs::write(
        at("b").join("contrast-causes.jsonl"),
        format!("{row}{}\n", r#""drop":0.5,"current":-1.0,"stale":-2.0}"#),
    )
    .unwrap();
    let contrasts = merge("contrasts");
    let said = format!("causes are missing in {}, {};", at("b").display(), at("a").display());
    assert!(contrasts.code == Some(0) && contrasts.out.contains(&said), "{}", contrasts.out);
    std::fs::remove_file(at("b").join("contrast-causes.jsonl")).unwrap();
    // Causes of the older format prevent a merge.
    let old = r#"{"case":"c","probe":"SR","span":"session[0]","tokens":[3,9],"seed":0,"answer_tokens":2,"log_p":-1.0,"#;
    let old = format!("{old}{}\n", r#""effect":{"log_p":-0.5,"kl":0.1,"changed":true}}"#);
    std::fs::write(at("b").join(CAUSES), old).unwrap();
    let refused = merge("refused");
    assert!(refused.code == Some(1) && refused.err.contains("of an older format"), "{}", refused.err);
    assert!(!at("refused").exists());
}
