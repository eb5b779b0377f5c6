//! Measures: under conditions, paired over conditions, grouped by verdict, by head.

use std::collections::BTreeMap;
use std::path::Path;

use ndarray::Array4;
use palimpsest::benchmarks::{
    Axis, Benchmark, Curve, Grouping, JudgeUnit, LensSpec, Measure, Rubric, Scale, VerdictKind,
};
use palimpsest::figures;
use palimpsest::lens::{MeasureRow, Options, Study, table};
use palimpsest::runs::header::{Machine, RunHeader};
use palimpsest::runs::rows::{AnswerRow, VerdictRow};
use palimpsest_core::attention::AttentionStore;
use palimpsest_core::span::Span;
use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};
use serde_json::json;

use crate::attention::store::of_masses;

const ORDERS: [&str; 2] = ["good-first", "bad-first"];
const BOTH: [&str; 2] = ["good", "bad"];
const LAYERS: usize = 4;
const HEADS: usize = 3;
const CASES: usize = 7;

const MEASURES: [Measure; 3] = [
    Measure {
        key: "first",
        label: "share of the first",
        about: "what the text that stands first gets of both",
        scales: &Scale::ALL,
        reference: Some(0.5),
        axis: Axis::Linear(0.0, 1.0),
        unit: ["share of", "the two"],
        paired: &[],
        heads: false,
        of: |at| at.first_of("last", BOTH),
    },
    Measure {
        key: "position",
        label: "position effect",
        about: "what the first text gets beyond half, over both orders",
        scales: &[Scale::Mass],
        reference: Some(0.0),
        axis: Axis::Linear(-0.05, 0.05),
        unit: ["share less", "one half"],
        paired: &ORDERS,
        heads: true,
        of: |at| Some(at.first_of("last", BOTH)? - 0.5),
    },
    Measure {
        key: "lift",
        label: "lift",
        about: "both over what stands beside them",
        scales: &[Scale::Density],
        reference: Some(1.0),
        axis: Axis::Logarithmic,
        unit: ["times", "baseline"],
        paired: &[],
        heads: false,
        of: |at| at.lift("last", &BOTH),
    },
];

const GROUPINGS: [Grouping; 1] = [Grouping {
    key: "stable",
    label: "stable and flipped pairs",
    of: |seen| {
        let [one, other] = ORDERS.map(|order| seen.under(order).and_then(|judged| judged.correct));
        let word = if one? == other? { "stable" } else { "flipped" };
        Some((seen.labels.get("kind")?.clone(), word.to_owned()))
    },
}];

/// Pairs of texts in both orders, judged by a letter.
static DUEL: Benchmark = Benchmark {
    name: "duel",
    title: "Duel",
    segment: "text",
    split: "kind",
    rubrics: &[Rubric {
        name: "plain",
        about: "the only one",
        template: "",
        unit: JudgeUnit::Probe,
        verdict: VerdictKind::Choice { of: &["A", "B"] },
        earlier: &[],
    }],
    lens: LensSpec {
        curves: &[Curve::new("last", "good"), Curve::new("last", "bad")],
        measures: &MEASURES,
        groupings: &GROUPINGS,
        ..LensSpec::DEFAULT
    },
    beside: Some("text"),
    ..Benchmark::DEFAULT
};

/// Does the judge prefer the good text? From case 4 on, only if it comes first.
fn correct(case: usize, order: &str) -> bool {
    case < 4 || order == ORDERS[0]
}

fn store(case: usize, order: usize) -> AttentionStore {
    let mut rng = ChaCha8Rng::seed_from_u64((case * 2 + order) as u64);
    let texts = if order == 0 { [(1, "good"), (2, "bad")] } else { [(2, "bad"), (1, "good")] };
    let mut keys = vec![Span::new("bos", 0..1), Span::new("task[0]", 1..9)];
    let mut at = 9;
    for (index, role) in texts {
        let tokens = if role == "good" { 12 } else { 7 };
        keys.push(Span::new(format!("text[{index}]"), at..at + tokens).with_role(role));
        at += tokens;
    }
    keys.push(Span::new("note[3]", at..at + 6));
    keys.push(Span::new("template", at + 6..at + 9));
    let rows = vec![Span::new("last", at + 8..at + 9)];
    let mut mass = Array4::zeros((LAYERS, HEADS, 1, keys.len()));
    for layer in 0..LAYERS {
        for head in 0..HEADS {
            // upper layers prefer the first text, the last head most
            let bias = 1.0 + layer as f64 * 0.4 + if head == HEADS - 1 { 0.8 } else { 0.0 };
            let weight = |key: usize, jitter: f64| match key {
                0 => 4.0 * jitter,
                2 => bias * jitter,
                _ => jitter,
            };
            let weights: Vec<f64> = (0..keys.len()).map(|k| weight(k, rng.random_range(0.7..1.3))).collect();
            let sum: f64 = weights.iter().sum();
            for (k, weight) in weights.iter().enumerate() {
                mass[[layer, head, 0, k]] = (weight / sum) as f32;
            }
        }
    }
    AttentionStore {
        case: format!("pair-{case}"),
        probe: "verdict".to_owned(),
        condition: ORDERS[order].to_owned(),
        ..of_masses(mass, rows, keys)
    }
}

/// Writes the run; the last case's second order failed.
fn write(dir: &Path) {
    std::fs::create_dir_all(dir.join("attention")).unwrap();
    std::fs::create_dir_all(dir.join("cases")).unwrap();
    let (mut plan, mut answers, mut verdicts) = (String::new(), String::new(), String::new());
    for case in 0..CASES {
        let id = format!("pair-{case}");
        let labels = BTreeMap::from([("kind".to_owned(), ["outcome", "process"][case % 2].to_owned())]);
        let turn = |text: &str| json!([{ "role": "step 1", "content": text }, { "role": "step 2", "content": "And so on." }]);
        let sessions = json!([
            { "kind": "task", "index": 0, "turns": turn("What did she order last?") },
            { "kind": "text", "index": 1, "turns": turn("Memory: she ordered tea, then coffee.") },
            { "kind": "text", "index": 2, "turns": turn("Memory: she ordered tea.") },
            { "kind": "note", "index": 3, "turns": turn("Choose.") },
        ]);
        let shown = json!({ "case": id, "query_time": null, "sessions": sessions });
        std::fs::write(dir.join(format!("cases/{id}.json")), shown.to_string()).unwrap();
        let evidence = [("good", 1), ("bad", 2)].map(|(role, at)| json!({ "role": role, "session": at }));
        let planned = json!({
            "position": case, "case": id, "labels": labels, "evidence": evidence, "judge": {},
            "probes": [{ "id": "verdict", "query": "Which is better?" }],
        });
        plan += &format!("{planned}\n");
        for (at, order) in ORDERS.into_iter().enumerate() {
            let failed = case == CASES - 1 && at == 1;
            let file = format!("attention/{id}-{order}.safetensors");
            let answer = AnswerRow {
                case: id.clone(),
                probe: "verdict".to_owned(),
                condition: order.to_owned(),
                labels: labels.clone(),
                query: "Which is better?".to_owned(),
                answer: (!failed).then(|| "[[A]] it keeps both orders".to_owned()),
                attention: (!failed).then(|| file.clone()),
                error: failed.then(|| "the prompt has too many tokens".to_owned()),
                ..AnswerRow::default()
            };
            answers += &format!("{}\n", serde_json::to_value(&answer).unwrap());
            if failed {
                continue;
            }
            store(case, at).save(&dir.join(file)).unwrap();
            let verdict = VerdictRow {
                case: id.clone(),
                probe: "verdict".to_owned(),
                condition: order.to_owned(),
                judge: "http://host/v1#able-70b".to_owned(),
                correct: Some(correct(case, order)),
                choice: Some(if correct(case, order) == (at == 0) { "A" } else { "B" }.to_owned()),
                ..VerdictRow::default()
            };
            verdicts += &format!("{}\n", serde_json::to_value(&verdict).unwrap());
        }
    }
    let identity = json!({
        "benchmark": "duel", "dataset": { "name": "pairs", "digest": "d" }, "model": { "name": "tiny", "digest": "d" },
        "dtype": "f32", "prompts": null, "sampling": null, "context": { "tokens": 512, "policy": "full" }, "seed": 0,
        "only": null, "limit": null, "attention": true, "version": "0.2.0",
        "conditions": ORDERS.map(|name| json!({ "name": name })),
    });
    let header = RunHeader::new(serde_json::from_value(identity).unwrap(), None, Machine::here("cpu", 1));
    std::fs::write(dir.join("run.json"), serde_json::to_string(&header).unwrap()).unwrap();
    std::fs::write(dir.join("plan.jsonl"), plan).unwrap();
    std::fs::write(dir.join("answers.jsonl"), answers).unwrap();
    std::fs::write(dir.join("verdicts.jsonl"), verdicts).unwrap();
}

fn opened(dir: &Path, conditions: &[&str]) -> Study {
    let among: [&'static Benchmark; 2] = [palimpsest::benchmarks::ALL[0], &DUEL];
    let conditions: Vec<String> = conditions.iter().map(|name| (*name).to_owned()).collect();
    Study::open_among(&among, dir, &conditions, &Options::default()).unwrap()
}

/// The first text's share of both, of head-averaged masses or of one head, straight from a store.
fn first(case: usize, order: usize, layer: usize, head: Option<usize>) -> f64 {
    let store = store(case, order);
    let heads: Vec<usize> = head.map_or((0..HEADS).collect(), |head| vec![head]);
    let paid = |key: usize| heads.iter().map(|&h| f64::from(store.mass[[layer, h, 0, key]])).sum::<f64>();
    paid(2) / (paid(2) + paid(3))
}

fn near(a: Option<f64>, b: f64) {
    assert!(a.is_some_and(|a| (a - b).abs() < 1e-9), "{a:?}, not {b}");
}

fn line<'a>(
    rows: &'a [MeasureRow],
    row: &str,
    condition: Option<&str>,
    word: &str,
) -> &'a [palimpsest::lens::Point] {
    let of = |found: &&MeasureRow| found.row == row && found.condition.as_deref() == condition;
    let found = rows.iter().find(of).unwrap_or_else(|| panic!("no {row} {condition:?} in {rows:?}"));
    &found.lines.iter().find(|line| line.word == word).unwrap().series.points
}

#[test]
fn measures_are_taken_under_each_condition_and_paired_over_both() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path());
    let study = opened(dir.path(), &[]);
    assert_eq!(study.conditions.iter().map(|c| c.name.as_str()).collect::<Vec<_>>(), ORDERS);
    let grouping = &study.groupings()[0];
    let mean = |cases: &[usize], of: &dyn Fn(usize) -> f64| {
        cases.iter().map(|&case| of(case)).sum::<f64>() / cases.len() as f64
    };
    for layer in 0..LAYERS {
        // Under a condition: outcome pairs 0, 2 are stable and 4 is flipped; process pairs are 1, 3 and 5. Pair 6 failed once.
        let rows = study.rows(&MEASURES[0], grouping, Scale::Mass);
        let stable = &line(&rows, "outcome", Some("bad-first"), "stable")[layer];
        near(stable.value, mean(&[0, 2], &|case| first(case, 1, layer, None)));
        assert_eq!((stable.n, stable.cases.len(), stable.band), (2, 2, None));
        let flipped = &line(&rows, "process", Some("good-first"), "flipped")[layer];
        near(flipped.value, first(5, 0, layer, None));
        // Over both orders: the mean of each pair first, then over pairs.
        let paired = study.overall(&MEASURES[1], Scale::Mass);
        let all = &line(&paired, "", None, "all")[layer];
        let effect =
            |case: usize| (0..2).map(|order| first(case, order, layer, None) - 0.5).sum::<f64>() / 2.0;
        near(all.value, mean(&[0, 1, 2, 3, 4, 5], &effect));
        assert_eq!(all.n, 6, "the pair that failed in one order is left out");
        assert!(all.band.is_some_and(|(low, high)| low <= all.value.unwrap() && all.value.unwrap() <= high));
    }
    // An unmeasured condition still separates pairs, but pairs nothing.
    let one = opened(dir.path(), &["good-first"]);
    let rows = one.rows(&MEASURES[0], grouping, Scale::Mass);
    assert_eq!(rows.len(), 2);
    assert!(rows.iter().all(|row| row.lines.len() == 2), "{rows:?}");
    assert!(one.rows(&MEASURES[1], grouping, Scale::Mass).is_empty());
    let unknown = Study::open_among(&[&DUEL], dir.path(), &["oracle".to_owned()], &Options::default());
    assert!(unknown.unwrap_err().to_string().contains("good-first, bad-first"));
}

#[test]
fn a_lift_is_over_the_neighbours_that_are_no_evidence() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path());
    let study = opened(dir.path(), &["bad-first"]);
    let rows = study.overall(&MEASURES[2], Scale::Density);
    // Neighbours of the texts: the task before and the note after.
    let lift = |case: usize, layer: usize| {
        let store = store(case, 1);
        let density = |key: usize| {
            let mass =
                (0..HEADS).map(|h| f64::from(store.mass[[layer, h, 0, key]])).sum::<f64>() / HEADS as f64;
            mass * store.tokens.len() as f64 / store.keys[key].len() as f64
        };
        (density(2) + density(3)) / (density(1) + density(4))
    };
    for layer in 0..LAYERS {
        let point = &line(&rows, "", Some("bad-first"), "all")[layer];
        near(point.value, (0..6).map(|case| lift(case, layer)).sum::<f64>() / 6.0);
        // Same for every benchmark.
        let common = study.overall(&palimpsest::lens::study::EVIDENCE_LIFT, Scale::Density);
        near(line(&common, "", Some("bad-first"), "all")[layer].value, point.value.unwrap());
    }
}

#[test]
fn heads_are_kept_apart_where_a_measure_asks_for_it() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path());
    let maps = opened(dir.path(), &[]).heads(&MEASURES[1]);
    assert_eq!((maps.len(), maps[0].n, maps[0].mean.dim()), (1, 6, (LAYERS, HEADS)));
    for ((layer, head), value) in maps[0].mean.indexed_iter() {
        let effect =
            |case: usize| (0..2).map(|order| first(case, order, layer, Some(head)) - 0.5).sum::<f64>() / 2.0;
        near(Some(*value), (0..6).map(effect).sum::<f64>() / 6.0);
    }
}

#[test]
fn a_run_under_conditions_has_figures_tables_and_a_page() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path());
    let study = opened(dir.path(), &[]);
    let sections = figures::draw_sections(&study);
    let drawn: Vec<_> = sections.iter().flat_map(|section| section.figures.clone()).collect();
    let names: Vec<&str> = drawn.iter().map(|figure| figure.name.as_str()).collect();
    for name in
        ["paired-stable-mass", "measures-stable-mass", "measures-stable-density", "heads-position-mass"]
    {
        assert!(names.contains(&name), "{name} is not in {names:?}");
    }
    assert!(names.contains(&"bad-first-curves-by-split-mass"), "{names:?}");
    let figure = drawn.iter().find(|figure| figure.name == "measures-stable-density").unwrap();
    // Two measures by two rows and two conditions.
    assert_eq!(figure.svg.matches("share of the first").count(), 4);
    assert_eq!(figure.svg.matches(">lift<").count() + figure.svg.matches("\nlift\n").count(), 4);
    let heads = drawn.iter().find(|figure| figure.name == "heads-position-mass").unwrap();
    assert!(
        ["share less", "one half"].iter().all(|unit| heads.svg.contains(unit)),
        "the colour bar has its unit"
    );
    assert!(figure.caption.contains("Lift: both over what stands beside them."), "{}", figure.caption);
    let written = table::write_study(&study, &dir.path().join("lens")).unwrap();
    assert!(written.contains(&dir.path().join("lens/bad-first-curves.csv")));
    let csv = std::fs::read_to_string(dir.path().join("lens/measures.csv")).unwrap();
    assert!(csv.contains("measures,stable,outcome,flipped,good-first,first,mass,0,softmax,"), "{csv}");
    let page = figures::overview::html(&study, &sections, None).unwrap();
    for part in ["Condition good-first", "id=\"bad-first-curves-by-split-mass\""] {
        assert!(page.contains(part), "{part} is not on the page");
    }
    if let Ok(kept) = std::env::var("PALIMPSEST_KEEP_MEASURES") {
        figures::write(&drawn, Path::new(&kept)).unwrap();
        std::fs::write(Path::new(&kept).join("overview.html"), &page).unwrap();
    }
}
