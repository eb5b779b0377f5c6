//! Lens: masses, baselines, densities, groups, ratios and bands, against plain definitions.

use std::collections::BTreeMap;
use std::path::Path;

use ndarray::Array4;
use palimpsest::benchmarks::Curve;
use palimpsest::benchmarks::stale::STALE;
use palimpsest::lens::{
    AnalysedRun, Baseline, Correctness, Example, Group, LayerKind, Lens, LensError, Options, Scale,
    Statistic, Study, Target, table,
};
use palimpsest_core::attention::{AttentionStore, Uniform};
use palimpsest_core::span::Span;

mod kinds;
mod measures;

use super::synthetic_run::{self as synthetic, PROBES, Plan};

use crate::attention::store::of_masses;

const NEW_TO_OLD: Curve = Curve::new("new", "old");
const QUERY_TO_OLD: Curve = Curve::new("query", "old");
const QUERY_TO_NEW: Curve = Curve::new("query", "new");

fn lens_of(plan: &Plan) -> (tempfile::TempDir, Lens) {
    let dir = tempfile::tempdir().unwrap();
    synthetic::write(dir.path(), plan);
    let lens = synthetic::lens(dir.path(), &Options::default()).unwrap();
    (dir, lens)
}

fn store(dir: &Path, case: usize, probe: &str) -> AttentionStore {
    AttentionStore::load(&dir.join(format!("attention/case-{case:03}-{probe}.safetensors"))).unwrap()
}

/// Mean over heads of one entry of a stored array.
fn over_heads(values: &Array4<f32>, layer: usize, row: usize, key: usize) -> f64 {
    let heads = values.dim().1;
    (0..heads).map(|h| f64::from(values[[layer, h, row, key]])).sum::<f64>() / heads as f64
}

/// From row span `row` to key span `key`, by decoder layer, straight from the store: head-averaged mass at softmax layers, share averaged
/// over value heads at linear ones.
fn to_span(store: &AttentionStore, row: usize, key: usize) -> Vec<f64> {
    let linear = store.delta.as_ref().map_or(0, |delta| delta.layers.len());
    let at = |layer: usize| match store.layers.iter().position(|l| *l == layer) {
        Some(place) => over_heads(&store.mass, place, row, key),
        None => {
            let delta = store.delta.as_ref().unwrap();
            let place = delta.layers.iter().position(|l| *l == layer).unwrap();
            over_heads(&delta.share, place, row, key)
        }
    };
    (0..store.layers.len() + linear).map(at).collect()
}

/// Same for a session's key span.
fn mass(store: &AttentionStore, row: usize, session: usize) -> Option<Vec<f64>> {
    let key = store.keys.iter().position(|span| span.segment() == Some(session))?;
    Some(to_span(store, row, key))
}

/// Mass under uniform attention over all visible tokens, token by token.
fn uniform(store: &AttentionStore, row: usize, session: usize) -> f64 {
    let key = store.keys.iter().find(|span| span.segment() == Some(session)).unwrap();
    let rows = store.rows[row].range();
    let count = rows.len() as f64;
    let one = |i: usize| (0..=i).filter(|j| key.range().contains(j)).count() as f64 / (i + 1) as f64;
    rows.map(one).sum::<f64>() / count
}

const NEW_ROW: usize = 0;
const QUERY_ROW: usize = 1;

fn assert_close(ours: &[f64], plain: &[f64], what: &str) {
    assert_eq!(ours.len(), plain.len(), "{what}");
    for (layer, (a, b)) in ours.iter().zip(plain).enumerate() {
        assert!((a - b).abs() <= 1e-9 * b.abs().max(1.0), "{what}, layer {layer}: {a} is not {b}");
    }
}

fn mean(rows: &[Vec<f64>]) -> Vec<f64> {
    (0..rows[0].len()).map(|l| rows.iter().map(|row| row[l]).sum::<f64>() / rows.len() as f64).collect()
}

#[test]
fn masses_baselines_and_densities_of_an_example_follow_their_definitions() {
    for plan in [Plan::small(), Plan::hybrid(), Plan::linear()] {
        examples_follow_their_definitions(&plan);
    }
}

fn examples_follow_their_definitions(plan: &Plan) {
    let (dir, lens) = lens_of(plan);
    for case in 0..plan.cases {
        let (old, new) = synthetic::evidence(case, plan.sessions);
        for probe in PROBES {
            let id = format!("case-{case:03}");
            let Some(example) = lens.examples.iter().find(|e| e.case == id && e.probe == probe) else {
                assert_eq!((case, probe), (1, "PR"), "only the error row is not measured");
                continue;
            };
            let store = store(dir.path(), case, probe);
            let curves =
                [(NEW_TO_OLD, NEW_ROW, old), (QUERY_TO_OLD, QUERY_ROW, old), (QUERY_TO_NEW, QUERY_ROW, new)];
            for (curve, row, target) in curves {
                let what = format!("{id} {probe} {}", curve.key());
                let signal = mass(&store, row, target).unwrap();
                assert_close(example.curve(curve, Target::Signal, Scale::Mass).unwrap(), &signal, &what);
                let density: Vec<f64> = signal.iter().map(|m| m / uniform(&store, row, target)).collect();
                assert_close(example.curve(curve, Target::Signal, Scale::Density).unwrap(), &density, &what);

                // on either side the nearest session by original index that is in the prompt, is not evidence and not after the rows
                let last = if row == NEW_ROW { new } else { plan.sessions };
                let stands =
                    |i: &usize| *i != old && *i != new && *i < last && mass(&store, row, *i).is_some();
                let before = (0..target).rev().find(stands);
                let beside: Vec<usize> =
                    before.into_iter().chain((target + 1..plan.sessions).find(stands)).collect();
                assert!(!beside.is_empty(), "{what}");
                let told: Vec<usize> = example.stand_ins(curve).iter().map(|one| one.index).collect();
                assert_eq!(told, beside, "{what}");
                let masses: Vec<Vec<f64>> = beside.iter().map(|i| mass(&store, row, *i).unwrap()).collect();
                assert_close(
                    example.curve(curve, Target::Noise, Scale::Mass).unwrap(),
                    &mean(&masses),
                    &what,
                );
                let scaled = |i: &usize| {
                    let unit = uniform(&store, row, *i);
                    mass(&store, row, *i).unwrap().iter().map(|m| m / unit).collect()
                };
                let densities: Vec<Vec<f64>> = beside.iter().map(scaled).collect();
                assert_close(
                    example.curve(curve, Target::Noise, Scale::Density).unwrap(),
                    &mean(&densities),
                    &what,
                );
            }
        }
    }
}

#[test]
fn a_dropped_neighbour_leaves_the_baseline_to_the_other_one() {
    let plan = Plan::small();
    let (dir, lens) = lens_of(&plan);
    // session 0, left of case 0's old session 1, was dropped
    let example = lens.examples.iter().find(|e| e.case == "case-000" && e.probe == "SR").unwrap();
    let right = mass(&store(dir.path(), 0, "SR"), QUERY_ROW, 2).unwrap();
    assert_close(example.curve(QUERY_TO_OLD, Target::Noise, Scale::Mass).unwrap(), &right, "right neighbour");
}

#[test]
fn a_case_counts_once_in_a_group_over_probes() {
    let plan = Plan::small();
    let (dir, lens) = lens_of(&plan);
    let series = lens.series(&Group::all(), Statistic::Mean(QUERY_TO_NEW, Target::Signal), Scale::Mass);
    assert_eq!(series.n, plan.cases, "six cases, not eighteen examples");
    let by_case: Vec<Vec<f64>> = (0..plan.cases)
        .map(|case| {
            let (_, new) = synthetic::evidence(case, plan.sessions);
            // PR is not pooled
            let asked = ["SR", "IPA"].iter();
            mean(
                &asked
                    .map(|p| mass(&store(dir.path(), case, p), QUERY_ROW, new).unwrap())
                    .collect::<Vec<_>>(),
            )
        })
        .collect();
    let ours: Vec<f64> = series.points.iter().map(|p| p.value.unwrap()).collect();
    assert_close(&ours, &mean(&by_case), "mean over cases of means over probes");

    // new to old is the same for every probe of a case, so pooling changes only the missing example
    let pooled = lens.series(&Group::all(), Statistic::Mean(NEW_TO_OLD, Target::Signal), Scale::Mass);
    let single = Group { probe: Some("SR".to_owned()), ..Group::all() };
    let single = lens.series(&single, Statistic::Mean(NEW_TO_OLD, Target::Signal), Scale::Mass);
    let values = |s: &palimpsest::lens::Series| s.points.iter().map(|p| p.value.unwrap()).collect::<Vec<_>>();
    assert_close(&values(&pooled), &values(&single), "new to old");
}

#[test]
fn a_curve_and_its_baseline_are_means_over_the_same_cases_and_who_is_left_out_is_named() {
    for plan in [Plan::small(), Plan::hybrid()] {
        curves_and_baselines_are_over_the_same_cases(&Plan { cases: 8, ..plan });
    }
}

fn curves_and_baselines_are_over_the_same_cases(plan: &Plan) {
    let dir = tempfile::tempdir().unwrap();
    synthetic::write(dir.path(), plan);
    // The last case keeps only its evidence, so it has no substitutes.
    let (old, new) = synthetic::evidence(7, plan.sessions);
    for probe in PROBES {
        let path = dir.path().join(format!("attention/case-007-{probe}.safetensors"));
        synthetic::store(plan, 7, probe, &[old, new]).save(&path).unwrap();
    }
    let mut study = Study::open(dir.path(), &[], &Options::default()).unwrap();
    let said = palimpsest::lens::in_words(&study, 1000);
    let lens = study.conditions.remove(0).lens.unwrap();
    let named = "query to new: case-007 SR, case-007 PR, case-007 IPA";
    assert!(said.contains("left out of a curve") && said.contains(named), "{said}");

    let group = Group { probe: Some("SR".to_owned()), ..Group::all() };
    let example = |case: &usize| {
        lens.examples.iter().find(|e| e.case == format!("case-{case:03}") && e.probe == "SR").unwrap()
    };
    for curve in [NEW_TO_OLD, QUERY_TO_OLD, QUERY_TO_NEW] {
        for scale in Scale::ALL {
            let of = |target| {
                let rows: Vec<Vec<f64>> =
                    (0..7).map(|case| example(&case).curve(curve, target, scale).unwrap().to_vec()).collect();
                (lens.series(&group, Statistic::Mean(curve, target), scale), mean(&rows))
            };
            let both = [of(Target::Signal), of(Target::Noise)];
            for (series, of_seven) in &both {
                let ours: Vec<f64> = series.points.iter().map(|p| p.value.unwrap()).collect();
                assert_eq!((series.n, lens.units(&group)), (7, 8), "{}", curve.key());
                assert_close(&ours, of_seven, &curve.key());
            }
            let ns = |of: usize| both[of].0.points.iter().map(|point| point.n).collect::<Vec<_>>();
            assert_eq!(ns(0), ns(1));
        }
        let signed = |target| -> Vec<Option<f64>> {
            let means = |layer: usize| {
                let of = |case: usize| example(&case).signed(curve, target)?[layer];
                Some((0..7).map(of).sum::<Option<f64>>()? / 7.0)
            };
            (0..plan.layers).map(means).collect()
        };
        for target in [Target::Signal, Target::Noise].iter().filter(|_| lens.has_linear_layers()) {
            let series = lens.series(&group, Statistic::Mean(curve, *target), Scale::Mass);
            for (point, plain) in series.points.iter().zip(signed(*target)) {
                assert!(
                    (point.signed.unwrap_or(9.0) - plain.unwrap_or(9.0)).abs() < 1e-12,
                    "{point:?} {plain:?}"
                );
            }
        }
    }
    // The ratio needs no baseline: all eight have both of its curves.
    assert_eq!(lens.series(&group, Statistic::RatioOfMeans, Scale::Mass).n, 8);
    // PR of case 1 is an error row.
    let premise = Group { probe: Some("PR".to_owned()), ..Group::all() };
    assert_eq!(lens.series(&premise, Statistic::Mean(QUERY_TO_OLD, Target::Signal), Scale::Mass).n, 6);
    // A run without any baseline still has its curves.
    for case in 0..plan.cases {
        let (old, new) = synthetic::evidence(case, plan.sessions);
        for probe in PROBES.iter().filter(|probe| (case, **probe) != (1, "PR")) {
            let path = dir.path().join(format!("attention/case-{case:03}-{probe}.safetensors"));
            synthetic::store(plan, case, probe, &[old, new]).save(&path).unwrap();
        }
    }
    let lens = synthetic::lens(dir.path(), &Options::default()).unwrap();
    let of = |target| lens.series(&group, Statistic::Mean(QUERY_TO_OLD, target), Scale::Mass).n;
    assert_eq!((of(Target::Signal), of(Target::Noise), lens.without_baseline().len()), (8, 0, 0));
}

#[test]
fn ratio_of_means_and_mean_of_ratios_are_what_their_names_say() {
    for plan in [Plan::small(), Plan::hybrid()] {
        ratios_are_what_their_names_say(&Plan { cases: 20, ..plan });
    }
}

fn ratios_are_what_their_names_say(plan: &Plan) {
    let (dir, lens) = lens_of(plan);
    let group = Group {
        probe: Some("IPA".to_owned()),
        kind: Some("T1".to_owned()),
        correctness: Correctness::Correct,
    };
    let members: Vec<usize> =
        (0..plan.cases).filter(|c| c % 2 == 0 && synthetic::correct(*c, "IPA")).collect();
    let of = |case: usize, new_not_old: bool| {
        let (old, new) = synthetic::evidence(case, plan.sessions);
        mass(&store(dir.path(), case, "IPA"), QUERY_ROW, if new_not_old { new } else { old }).unwrap()
    };
    let new: Vec<Vec<f64>> = members.iter().map(|c| of(*c, true)).collect();
    let old: Vec<Vec<f64>> = members.iter().map(|c| of(*c, false)).collect();
    let of_means: Vec<f64> = mean(&new).iter().zip(mean(&old)).map(|(n, o)| n / o).collect();
    let each: Vec<Vec<f64>> =
        new.iter().zip(&old).map(|(n, o)| n.iter().zip(o).map(|(n, o)| n / o).collect()).collect();
    for (statistic, plain) in [(Statistic::RatioOfMeans, of_means), (Statistic::MeanOfRatios, mean(&each))] {
        let series = lens.series(&group, statistic, Scale::Mass);
        assert_eq!(series.n, members.len());
        let ours: Vec<f64> = series.points.iter().map(|p| p.value.unwrap()).collect();
        assert_close(&ours, &plain, &statistic.key());
        for point in &series.points {
            let (low, high) = point.band.unwrap();
            assert!(low <= point.value.unwrap() && point.value.unwrap() <= high, "{}", statistic.key());
        }
    }
}

#[test]
fn correct_and_wrong_part_the_judged_examples_and_planted_curves_show() {
    let (_dir, lens) = lens_of(&Plan { cases: 12, ..Plan::small() });
    let middle = |correctness| {
        let group = Group { probe: Some("SR".to_owned()), kind: None, correctness };
        let series = lens.series(&group, Statistic::RatioOfMeans, Scale::Mass);
        (series.n, series.points[2].value.unwrap())
    };
    let (all, right, wrong) =
        (middle(Correctness::All), middle(Correctness::Correct), middle(Correctness::Wrong));
    assert_eq!(all.0, right.0 + wrong.0);
    assert!(right.1 > 1.5 * wrong.1, "the planted difference: {} against {}", right.1, wrong.1);
    let empty = Group {
        probe: Some("PR".to_owned()),
        kind: Some("T2".to_owned()),
        correctness: Correctness::Correct,
    };
    assert_eq!(lens.units(&empty), 0);
}

#[test]
fn a_zero_denominator_has_no_ratio_and_is_counted() {
    let plan = Plan::small();
    let dir = tempfile::tempdir().unwrap();
    synthetic::write(dir.path(), &plan);
    let path = dir.path().join("attention/case-002-SR.safetensors");
    let mut changed = AttentionStore::load(&path).unwrap();
    let (old, _) = synthetic::evidence(2, plan.sessions);
    let key = changed.keys.iter().position(|span| span.segment() == Some(old)).unwrap();
    for head in 0..plan.heads {
        changed.mass[[1, head, QUERY_ROW, key]] = 0.0;
    }
    changed.save(&path).unwrap();
    let lens = synthetic::lens(dir.path(), &Options::default()).unwrap();
    let group = Group { probe: Some("SR".to_owned()), ..Group::all() };
    let ratios = lens.series(&group, Statistic::MeanOfRatios, Scale::Mass);
    assert_eq!((ratios.points[1].n, ratios.points[1].undefined), (plan.cases - 1, 1));
    assert_eq!((ratios.points[2].n, ratios.points[2].undefined), (plan.cases, 0));
    assert!(ratios.points[1].value.unwrap().is_finite());
    let means = lens.series(&group, Statistic::RatioOfMeans, Scale::Mass);
    assert_eq!(means.points[1].n, plan.cases, "the group's means have no such trouble");
}

#[test]
fn bands_are_the_intervals_of_the_plain_definition() {
    let (_dir, lens) = lens_of(&Plan { cases: 12, ..Plan::small() });
    let group = Group { probe: Some("SR".to_owned()), ..Group::all() };
    for scale in Scale::ALL {
        let series = lens.series(&group, Statistic::Mean(QUERY_TO_OLD, Target::Signal), scale);
        for (layer, point) in series.points.iter().enumerate() {
            let of = |e: &Example| e.curve(QUERY_TO_OLD, Target::Signal, scale).unwrap()[layer];
            let values: Vec<f64> = lens.examples.iter().filter(|e| e.probe == "SR").map(of).collect();
            let n = values.len() as f64;
            assert_eq!(values.len(), 12);
            let mean = values.iter().sum::<f64>() / n;
            let deviation = (values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (n - 1.0)).sqrt();
            let relative = deviation / n.sqrt() / mean;
            // Student's quantile, 11 degrees of freedom.
            let factor = (2.200_985_160 * relative * (1.0 + 4.0 * relative * relative).sqrt()).exp();
            let (low, high) = point.band.unwrap();
            assert!(
                (low / (mean / factor) - 1.0).abs() < 1e-8 && (high / (mean * factor) - 1.0).abs() < 1e-8
            );
        }
    }
}

#[test]
fn without_verdicts_only_the_group_of_all_is_there() {
    let (_dir, lens) = lens_of(&Plan { verdicts: false, ..Plan::small() });
    assert_eq!(lens.judge, None);
    assert!(lens.groups().iter().all(|group| group.correctness == Correctness::All));
}

#[test]
fn the_last_judge_splits_unless_another_is_named() {
    let plan = Plan::small();
    let dir = tempfile::tempdir().unwrap();
    synthetic::write(dir.path(), &plan);
    let path = dir.path().join("verdicts.jsonl");
    let mut rows = std::fs::read_to_string(&path).unwrap();
    for case in 0..plan.cases {
        rows += &format!(
            "{{\"case\":\"case-{case:03}\",\"probe\":\"SR\",\"judge\":\"second\",\"correct\":{}}}\n",
            case == 0
        );
    }
    std::fs::write(&path, rows).unwrap();
    let wrong = Group { probe: Some("SR".to_owned()), kind: None, correctness: Correctness::Wrong };
    let last = synthetic::lens(dir.path(), &Options::default()).unwrap();
    assert_eq!((last.judge.as_deref(), last.units(&wrong)), (Some("second"), plan.cases - 1));
    let named = Options { judge: Some(synthetic::JUDGE.to_owned()), ..Options::default() };
    assert_eq!(synthetic::lens(dir.path(), &named).unwrap().units(&wrong), 2);
    let unknown = Options { judge: Some("third".to_owned()), ..Options::default() };
    let error = synthetic::lens(dir.path(), &unknown).unwrap_err().to_string();
    assert!(
        error.contains("third") && error.contains("second") && error.contains(synthetic::JUDGE),
        "{error}"
    );
}

#[test]
fn tables_hold_every_series_in_long_format() {
    let plan = Plan::small();
    let (dir, lens) = lens_of(&plan);
    let out = dir.path().join("lens");
    let names = ["curves.csv", "ratios.csv", "strip.csv", "examples.csv"];
    assert_eq!(table::write("", &lens, &out).unwrap(), names.map(|name| out.join(name)));
    let mut reader = csv::Reader::from_path(out.join("curves.csv")).unwrap();
    let rows: Vec<BTreeMap<String, String>> = reader.deserialize().map(Result::unwrap).collect();
    let groups = lens.groups().iter().filter(|group| lens.units(group) > 0).count();
    assert_eq!(rows.len(), groups * 3 * 2 * 2 * plan.layers, "groups, curves, parts, scales, layers");
    let series = lens.series(&Group::all(), Statistic::Mean(NEW_TO_OLD, Target::Noise), Scale::Density);
    let wanted =
        [("probe", "SR+IPA"), ("type", "all"), ("correctness", "all"), ("scale", "density"), ("layer", "3")];
    let row = rows
        .iter()
        .find(|row| row["statistic"] == "new_to_old_noise" && wanted.iter().all(|(k, v)| row[*k] == *v))
        .unwrap();
    assert_eq!(row["mean"].parse::<f64>().unwrap(), series.points[3].value.unwrap());
    assert_eq!(row["lo"].parse::<f64>().unwrap(), series.points[3].band.unwrap().0);
    assert_eq!(row["n"], plan.cases.to_string());
}

/// A run whose case 0 keeps only some sessions.
fn lens_of_few_sessions(options: &Options) -> (tempfile::TempDir, Lens) {
    let plan = Plan { sessions: 12, ..Plan::small() };
    let dir = tempfile::tempdir().unwrap();
    synthetic::write(dir.path(), &plan);
    // old is 1 and new is 10; of the others, 4 and 5 were kept
    for probe in PROBES {
        let path = dir.path().join(format!("attention/case-000-{probe}.safetensors"));
        synthetic::store(&plan, 0, probe, &[1, 4, 5, 10]).save(&path).unwrap();
    }
    let lens = synthetic::lens(dir.path(), options).unwrap();
    (dir, lens)
}

#[test]
fn where_neighbours_were_dropped_the_nearest_kept_sessions_stand_in_and_the_tables_say_so() {
    let (dir, lens) = lens_of_few_sessions(&Options::default());
    let example = lens.examples.iter().find(|e| e.case == "case-000" && e.probe == "SR").unwrap();
    let store = store(dir.path(), 0, "SR");
    let of = |row, session| mass(&store, row, session).unwrap();
    let noise = |example: &Example, curve| example.curve(curve, Target::Noise, Scale::Mass).unwrap().to_vec();
    // nothing was kept before old or after new
    assert_close(&noise(example, QUERY_TO_OLD), &of(QUERY_ROW, 4), "old");
    assert_close(&noise(example, QUERY_TO_NEW), &of(QUERY_ROW, 5), "new");
    assert_close(&noise(example, NEW_TO_OLD), &of(NEW_ROW, 4), "as the new session sees it");
    assert_eq!(example.baseline_distance(), Some(5));
    assert_eq!(lens.far_baselines().count(), 3, "the three probes of case 0");

    let out = dir.path().join("lens");
    table::write("", &lens, &out).unwrap();
    let mut reader = csv::Reader::from_path(out.join("examples.csv")).unwrap();
    let rows: Vec<BTreeMap<String, String>> = reader.deserialize().map(Result::unwrap).collect();
    assert_eq!(rows.len(), lens.examples.len() * 3, "a row an example and curve");
    let row = |case: &str, curve: &str| {
        rows.iter().find(|r| r["case"] == case && r["probe"] == "SR" && r["curve"] == curve).unwrap().clone()
    };
    let far = row("case-000", "query_to_new");
    let of = |row: &BTreeMap<String, String>| {
        ["evidence", "baseline", "distance", "correctness"].map(|name| row[name].clone())
    };
    assert_eq!(of(&far), ["10", "5", "5", "correct"]);
    // case 1 keeps all: old is 2
    assert_eq!(of(&row("case-001", "query_to_old")), ["2", "1;3", "1", "correct"]);
}

#[test]
fn the_adjacent_baseline_is_one_session_the_nearer_one_or_the_one_after() {
    let options = Options { baseline: Baseline::Adjacent, ..Options::default() };
    let (dir, lens) = lens_of_few_sessions(&options);
    let example = |case: &str| lens.examples.iter().find(|e| e.case == case && e.probe == "SR").unwrap();
    let noise = |case: &str, curve| example(case).curve(curve, Target::Noise, Scale::Mass).unwrap().to_vec();
    let of = |case, session| mass(&store(dir.path(), case, "SR"), QUERY_ROW, session).unwrap();
    assert_close(&noise("case-000", QUERY_TO_NEW), &of(0, 5), "new of case 0");
    // case 1 keeps all: old is 2, new is 9
    assert_close(&noise("case-001", QUERY_TO_OLD), &of(1, 3), "the one after old");
    assert_close(&noise("case-001", QUERY_TO_NEW), &of(1, 10), "the one after new");
}

#[test]
fn a_draw_measures_up_to_so_many_examples_of_each_probe_type_and_verdict() {
    let plan = Plan { cases: 12, ..Plan::small() };
    let dir = tempfile::tempdir().unwrap();
    synthetic::write(dir.path(), &plan);
    let drawn = |most, seed| {
        let per_group = Some(palimpsest::lens::PerGroup { most, seed });
        synthetic::lens(dir.path(), &Options { per_group, ..Options::default() }).unwrap()
    };
    let names = |lens: &Lens| -> Vec<(String, String)> {
        lens.examples.iter().map(|e| (e.case.clone(), e.probe.clone())).collect()
    };
    let whole = synthetic::lens(dir.path(), &Options::default()).unwrap();
    let two = drawn(2, 0);
    for group in whole.groups().iter().filter(|g| g.probe.is_some() && g.kind.is_some()) {
        if group.correctness != Correctness::All {
            assert_eq!(two.units(group), whole.units(group).min(2), "{}", whole.label(group));
        }
    }
    let told = two.drawn.unwrap();
    assert_eq!((told.kept, told.of), (two.examples.len(), whole.examples.len()));
    assert_eq!(names(&two), names(&drawn(2, 0)));
    assert_ne!(names(&two), names(&drawn(2, 1)));
    assert_eq!(names(&drawn(100, 3)), names(&whole));
}

#[test]
fn bands_are_of_five_cases_or_more_and_fewer_are_told_one_by_one() {
    let (dir, lens) = lens_of(&Plan { cases: 9, ..Plan::small() });
    let statistic = Statistic::Mean(QUERY_TO_NEW, Target::Signal);
    let of = |kind: &str| {
        let group = Group { probe: Some("SR".to_owned()), kind: Some(kind.to_owned()), ..Group::all() };
        lens.series(&group, statistic, Scale::Mass)
    };
    // cases 0, 2, 4, 6 and 8 are T1, the other four T2
    let (five, four) = (of("T1"), of("T2"));
    assert!(five.points.iter().all(|point| point.n == 5 && point.band.is_some() && point.cases.is_empty()));
    for point in &four.points {
        assert_eq!((point.n, point.band), (4, None));
        let each: Vec<f64> = [1, 3, 5, 7]
            .iter()
            .map(|&case| {
                let (_, new) = synthetic::evidence(case, 7);
                mass(&store(dir.path(), case, "SR"), QUERY_ROW, new).unwrap()[point.layer.index]
            })
            .collect();
        assert_close(&point.cases, &each, "the cases");
    }
}

#[test]
fn the_mean_strip_puts_old_and_new_in_their_places() {
    let plan = Plan::small();
    let (dir, lens) = lens_of(&plan);
    let group = Group { probe: Some("SR".to_owned()), ..Group::all() };
    let strip = lens.strip(&group, Scale::Mass);
    let plain: Vec<Vec<f64>> = (0..plan.cases)
        .map(|c| {
            mass(&store(dir.path(), c, "SR"), QUERY_ROW, synthetic::evidence(c, plan.sessions).0).unwrap()
        })
        .collect();
    let (_, n, old) =
        strip.cells.iter().find(|cell| cell.0 == palimpsest::lens::strip::AlignedPlace::Anchor(0)).unwrap();
    assert_eq!(*n, plan.cases);
    assert_close(old.as_ref().unwrap(), &mean(&plain), "old");
}

#[test]
fn a_folder_that_is_no_run_and_a_broken_store_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let error = AnalysedRun::open_condition(dir.path(), "").unwrap_err().to_string();
    assert!(error.contains("no run folder") && error.contains("run.json"), "{error}");
    let error = AnalysedRun::open_condition(&dir.path().join("absent"), "").unwrap_err().to_string();
    assert!(error.contains("no run folder"), "{error}");

    synthetic::write(dir.path(), &Plan::small());
    let path = dir.path().join("attention/case-003-SR.safetensors");
    let mut store = AttentionStore::load(&path).unwrap();
    store.mass[[0, 0, 0, 0]] = f32::NAN;
    store.save(&path).unwrap();
    let error = synthetic::lens(dir.path(), &Options::default()).unwrap_err().to_string();
    assert!(error.contains("case-003-SR") && error.contains("NaN"), "{error}");
    std::fs::remove_file(&path).unwrap();
    let error = synthetic::lens(dir.path(), &Options::default()).unwrap_err().to_string();
    assert!(error.contains("case-003-SR"), "{error}");
}
