//! A synthetic dose run whose update effects, priors, attention and causal effects follow from a few constants.

use std::collections::BTreeMap;
use std::path::Path;

use ndarray::{Array3, Array4};
use palimpsest::runs::causes::contrast_rows::{AblationKind, ContrastCauseRow};
use palimpsest::runs::causes::session_measures::{SessionMeasures, measures_file};
use palimpsest::runs::header::{Machine, RunHeader};
use palimpsest::runs::rows::{AnswerKey, AnswerRow, Contrast, ValueLogP, VerdictRow};
use palimpsest_core::ablate::Measure;
use palimpsest_core::attention::{AttentionStore, Uniform};
use palimpsest_core::span::Span;
use serde_json::{Value, json};

use crate::attention::store::of_masses;

pub(super) const DISTANCES: [usize; 4] = [256, 512, 1024, 2048];
pub(super) const CHAINS: [usize; 3] = [1, 2, 4];
pub(super) const LAYERS: usize = 3;

/// A synthetic model.
#[derive(Debug, Clone, Copy)]
pub(super) struct Made {
    pub items: usize,
    /// It knows only its preferred value.
    pub prior_only: bool,
    pub benchmark: &'static str,
    pub contrasts: bool,
}

impl Made {
    pub const USUAL: Made = Made { items: 6, prior_only: false, benchmark: "dose", contrasts: true };

    /// Preference for the item's first value, in nats.
    pub fn prior(self, item: usize) -> f64 {
        0.4 * (item as f64 - 2.0) + 0.1
    }

    /// Update effect of an item: decreases with distance, faster for later items.
    pub fn effect(self, item: usize, factors: &Factors) -> f64 {
        if self.prior_only {
            return 0.0;
        }
        let slope = -0.3 - 0.02 * item as f64;
        let crossed = if factors.order == "crossed" { 0.25 } else { 1.0 };
        let speaker = if factors.speaker == "assistant" { -0.5 } else { 0.0 };
        crossed * (2.0 + 0.1 * item as f64 + slope * (factors.distance as f64 / 256.0).log2()) + speaker
            - 0.4 * (factors.chain as f64 - 1.0)
            + 0.05 * factors.tail as f64
    }

    /// Lead of the old value without an update: item 0 drops it.
    pub fn held(self, item: usize) -> f64 {
        if self.prior_only { 0.0 } else { item as f64 - 0.5 }
    }
}

/// Factor levels of a row.
#[derive(Debug, Clone)]
pub(super) struct Factors {
    pub sweep: &'static str,
    pub distance: usize,
    pub tail: usize,
    pub chain: usize,
    pub order: &'static str,
    pub speaker: &'static str,
}

const BASE: Factors =
    Factors { sweep: "base", distance: 256, tail: 0, chain: 1, order: "place", speaker: "user" };

/// Rows of an item.
pub(super) fn rows() -> Vec<Factors> {
    let mut rows = vec![BASE];
    rows.extend(DISTANCES[1..].iter().map(|&distance| Factors { sweep: "distance", distance, ..BASE }));
    rows.extend(CHAINS[1..].iter().map(|&chain| Factors { sweep: "chain", chain, ..BASE }));
    rows.push(Factors { sweep: "order", order: "crossed", ..BASE });
    rows.push(Factors { sweep: "speaker", speaker: "assistant", ..BASE });
    for tail in [1, 2] {
        for distance in [256, 512] {
            rows.push(Factors { sweep: "distance*tail", distance, tail, ..BASE });
        }
    }
    rows
}

fn labels(item: usize, twin: &str, factors: &Factors) -> BTreeMap<String, String> {
    [
        ("item", format!("item-{item}")),
        ("twin", twin.to_owned()),
        ("family", "slots".to_owned()),
        ("sweep", factors.sweep.to_owned()),
        ("distance", factors.distance.to_string()),
        ("tail", factors.tail.to_string()),
        ("chain", factors.chain.to_string()),
        ("order", factors.order.to_owned()),
        ("speaker", factors.speaker.to_owned()),
    ]
    .into_iter()
    .map(|(name, level)| (name.to_owned(), level))
    .collect()
}

fn value(text: &str, token: u32, log_p: f64) -> ValueLogP {
    ValueLogP { text: text.to_owned(), token, log_p }
}

/// log p of values never mentioned.
pub(super) const NEVER: [f64; 2] = [-6.0, -7.0];

/// Contrast of an update: the current value leads the one it replaced by its effect and the prior; in chains the first is the likeliest of
/// all.
fn update(lead: f64, chain: usize) -> Contrast {
    let stale = -3.0;
    let earlier = (1..chain).map(|nth| value(" e", 20 + nth as u32, if nth == 1 { -1.0 } else { -4.0 }));
    Contrast {
        value: lead,
        current: value(" c", 1, stale + lead),
        stale: Some(value(" s", 2, stale)),
        absent: Some(value(" x", 3, NEVER[0])),
        earlier: earlier.collect(),
        others: vec![value(" y", 4, NEVER[1])],
    }
}

fn held(lead: f64) -> Contrast {
    Contrast {
        value: lead,
        current: value(" c", 1, -3.0 + lead),
        absent: Some(value(" x", 3, -3.0)),
        ..Contrast::default()
    }
}

/// Masses of a row on old and new, split over heads: the query attends less to new with distance.
pub(super) fn mass(from: &str, to: &str, item: usize, factors: &Factors, layer: usize) -> f64 {
    let far = (factors.distance as f64 / 256.0).log2();
    let more = 1.0 + 0.1 * layer as f64 + 0.01 * item as f64;
    match (from, to) {
        ("query", "new") => (0.2 - 0.02 * far) * more,
        ("query", "old") => 0.05 * more,
        ("new", "old") => 0.01 * more,
        _ => 0.02,
    }
}

pub(super) const SHARE: f64 = 0.1;

fn store(case: &str, item: usize, factors: &Factors) -> AttentionStore {
    let keys = vec![
        Span::new("bos", 0..1),
        Span::new("session[0]", 1..11).with_role("old"),
        Span::new("session[1]", 11..21),
        Span::new("session[2]", 21..31).with_role("new"),
        Span::new("query", 31..36).with_role("query"),
    ];
    let rows = vec![
        Span::new("query", 31..36).with_role("query"),
        Span::new("last", 36..37),
        Span::new("session[2]", 21..31).with_role("new"),
    ];
    let role = |span: &Span| span.role.clone().unwrap_or_else(|| span.label.clone());
    let of = |layer: usize, head: usize, row: usize, key: usize| {
        let whole = mass(&role(&rows[row]), &role(&keys[key]), item, factors, layer);
        (whole * if head == 0 { 0.5 } else { 1.5 }) as f32
    };
    let seen = |row: usize, key: usize| keys[key].end <= rows[row].start.max(keys[key].start + 1);
    let mass = Array4::from_shape_fn((LAYERS, 2, rows.len(), keys.len()), |(l, h, r, k)| of(l, h, r, k));
    let share =
        Array3::from_shape_fn(
            (LAYERS, rows.len(), keys.len()),
            |(_, r, k)| {
                if seen(r, k) { SHARE as f32 } else { 0.0 }
            },
        );
    AttentionStore {
        uniform: Some(Uniform { windows: vec![None; LAYERS], share }),
        case: case.to_owned(),
        probe: "value".to_owned(),
        ..of_masses(mass, rows.clone(), keys.clone())
    }
}

/// Value norms of two rows to the first three sessions: 1, 2 and 3 times (item + 1); half as much at the second head.
fn measures(item: usize) -> SessionMeasures {
    let shape = (LAYERS, 2, 2, 3);
    let norm = |head: usize, span: usize| {
        let whole = (item + 1) as f32 * (span + 1) as f32;
        if head == 0 { whole } else { whole / 2.0 }
    };
    SessionMeasures {
        layers: (0..LAYERS).collect(),
        spans: (0..3).map(|session| format!("session[{session}]")).collect(),
        rows: vec!["query".to_owned(), "answer".to_owned()],
        mass: Array4::zeros(shape),
        share: Array3::zeros((LAYERS, 2, 3)),
        value_norm: Array4::from_shape_fn(shape, |(_, head, _, span)| norm(head, span)),
        output_norm: Array4::zeros(shape),
        attribution: Array3::zeros((LAYERS, 2, 3)),
    }
}

/// Effects of blocking: old against, new for the current value, and three controls with median 0.02.
fn causes(case: &str, item: usize) -> Vec<Value> {
    let row = |ablation, role: Option<&str>, drop: f64, stretch: Option<usize>, tokens| ContrastCauseRow {
        answer: AnswerKey::of(case, "value", "").owned(),
        span: role.map(|role| format!("session[{}]", if role == "old" { 0 } else { 2 })).unwrap_or_default(),
        role: role.map(str::to_owned),
        stretch,
        carrier: None,
        neutral: None,
        rows: None,
        direct: None,
        tokens,
        layers: None,
        seed: 0,
        ablation,
        contrast: 0.0,
        drop,
        current: 0.0,
        stale: 0.0,
    };
    let mut rows = vec![
        row(AblationKind::Blocked, Some("new"), 1.0 + item as f64, None, [21, 31]),
        row(AblationKind::Blocked, Some("old"), -0.5, None, [1, 11]),
        row(AblationKind::Removed, Some("new"), 2.0 + item as f64, None, [21, 31]),
    ];
    for (stretch, drop) in [0.02, -0.1, 5.0].into_iter().enumerate() {
        rows.push(row(AblationKind::Control, None, drop, Some(stretch), [11 + stretch, 13 + stretch]));
    }
    let mut windowed = row(AblationKind::Blocked, Some("new"), 0.7, None, [21, 31]);
    windowed.layers = Some([0, 2]);
    rows.push(windowed);
    rows.iter().map(|row| serde_json::to_value(row).unwrap()).collect()
}

fn lines(rows: impl IntoIterator<Item = Value>) -> String {
    rows.into_iter().map(|row| format!("{row}\n")).collect()
}

/// Writes the run.
pub(super) fn write(dir: &Path, made: Made) {
    std::fs::create_dir_all(dir.join("attention")).unwrap();
    std::fs::create_dir_all(dir.join("cases")).unwrap();
    let (mut answers, mut plan, mut effects, mut verdicts) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for item in 0..made.items {
        for (nth, factors) in rows().iter().enumerate() {
            let mut twins: Vec<(&str, Contrast)> = Vec::new();
            let (u, b) = (made.effect(item, factors), made.prior(item));
            twins.push(("ab", update(u + b, factors.chain)));
            twins.push(("ba", update(u - b, factors.chain)));
            if factors.sweep == "base" {
                let (lead, alone) = (made.held(item), made.held(item) + 1.0);
                twins.push(("no-update-ab", held(lead + b)));
                twins.push(("no-update-ba", held(lead - b)));
                twins.push(("no-old-ab", held(alone + b)));
                twins.push(("no-old-ba", held(alone - b)));
                twins.push(("blind", held(b)));
            }
            for (twin, contrast) in twins {
                let case = format!("item-{item}-{nth}-{twin}");
                let labels = labels(item, twin, factors);
                let expects = if twin == "blind" { "none" } else { "current" };
                plan.push(json!({
                    "position": plan.len(), "case": case, "labels": labels,
                    "probes": [{ "id": "value", "query": "?", "judge": {
                        "current": " c", "stale": [" s"], "absent": [" x", " y"], "expects": expects,
                    } }],
                    "evidence": [{ "role": "old", "session": 0 }, { "role": "new", "session": 2 }],
                    "judge": {},
                }));
                let is_update = twin.len() == 2;
                let file = format!("attention/{case}.safetensors");
                if is_update {
                    let store = store(&case, item, factors);
                    store.save(&dir.join(&file)).unwrap();
                    let name = measures_file(Measure::Contrast, AnswerKey::of(&case, "value", ""));
                    measures(item).save(dir, &name, &store, Measure::Contrast).unwrap();
                    effects.extend(causes(&case, item));
                    verdicts.push(serde_json::to_value(VerdictRow {
                        case: case.clone(),
                        probe: "value".to_owned(),
                        judge: "exact".to_owned(),
                        correct: Some(twin == "ab"),
                        ..VerdictRow::default()
                    }));
                }
                let row = AnswerRow {
                    case,
                    probe: "value".to_owned(),
                    labels,
                    query: "?".to_owned(),
                    answer: Some("so".to_owned()),
                    contrast: made.contrasts.then_some(contrast),
                    attention: is_update.then_some(file),
                    ..AnswerRow::default()
                };
                answers.push(serde_json::to_value(row).unwrap());
            }
        }
    }
    let digest = "5f3ec375179e20e2e94469e018189188f34e2e7e5f21cbecbd99fcfa648c1876";
    let identity = json!({
        "benchmark": made.benchmark,
        "dataset": { "name": "made slots", "digest": digest },
        "model": { "name": "made", "digest": digest },
        "dtype": "f32", "prompts": digest, "sampling": null,
        "context": { "tokens": 4096, "policy": "plain" },
        "seed": 0, "only": null, "limit": null, "attention": true, "version": "0.2.0",
    });
    let header = RunHeader::new(serde_json::from_value(identity).unwrap(), None, Machine::default());
    std::fs::write(dir.join("run.json"), serde_json::to_string(&header).unwrap()).unwrap();
    std::fs::write(dir.join("plan.jsonl"), lines(plan)).unwrap();
    std::fs::write(dir.join("answers.jsonl"), lines(answers)).unwrap();
    std::fs::write(dir.join("verdicts.jsonl"), lines(verdicts.into_iter().map(Result::unwrap))).unwrap();
    std::fs::write(dir.join("contrast-causes.jsonl"), lines(effects)).unwrap();
}
