//! A deterministic run folder without a model: random masses that sum to 1, with planted curves. Hybrid models also have linear layers,
//! with shares that sum to 1 and signed sums of any sign.

use std::collections::BTreeMap;
use std::path::Path;

use ndarray::Array4;
use palimpsest::chat::StopReason;
use palimpsest::figures::{Figure, Section, overview};
use palimpsest::lens::{Lens, LensError, Options, Study};
use palimpsest::runs::header::{Machine, RunHeader};
use palimpsest::runs::rows::{AnswerRow, VerdictRow};
use palimpsest_core::attention::{AttentionStore, DeltaMasses};
use palimpsest_core::span::Span;
use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};
use serde_json::json;

use crate::attention::store::of_masses;

pub const PROBES: [&str; 3] = ["SR", "PR", "IPA"];
pub const JUDGE: &str = "local:qwen3.5-27b";
/// Markup that must be escaped.
pub const HOSTILE: &str = "<script>alert('x')</script> & \"quotes\" <img src=x onerror=alert(1)> </details>";

/// Shape of a synthetic run.
pub struct Plan {
    pub cases: usize,
    pub layers: usize,
    pub heads: usize,
    /// The last layer of every group of this size has softmax attention, the others are linear. 1: all softmax; 0: none.
    pub softmax_every: usize,
    pub value_heads: usize,
    pub sessions: usize,
    pub verdicts: bool,
    pub model: &'static str,
}

impl Plan {
    pub fn small() -> Self {
        Plan {
            cases: 6,
            layers: 5,
            heads: 3,
            softmax_every: 1,
            value_heads: 4,
            sessions: 7,
            verdicts: true,
            model: "smollm2-135m",
        }
    }

    /// Eight layers, of which 3 and 7 have softmax attention.
    pub fn hybrid() -> Self {
        Plan { layers: 8, heads: 3, softmax_every: 4, value_heads: 2, ..Plan::small() }
    }

    /// A model without softmax attention.
    pub fn linear() -> Self {
        Plan { layers: 6, softmax_every: 0, ..Plan::small() }
    }

    pub fn is_softmax(&self, layer: usize) -> bool {
        self.softmax_every > 0 && (layer + 1).is_multiple_of(self.softmax_every)
    }
}

/// Examples of a run with only the plain condition.
pub fn lens(dir: &Path, options: &Options) -> Result<Lens, LensError> {
    Ok(try_lens(dir, options)?.unwrap())
}

/// [`lens`], or `None` if no answer has attention.
pub fn try_lens(dir: &Path, options: &Options) -> Result<Option<Lens>, LensError> {
    let study = Study::open(dir, &[], options)?;
    Ok(study.conditions.into_iter().next().and_then(|condition| condition.lens))
}

/// The overview of a run with these figures.
pub fn page(study: &Study, figures: Vec<Figure>) -> String {
    overview::html(study, &[Section { figures, ..Section::default() }], None).unwrap()
}

/// The synthetic judge's verdict. T2 PR is never correct: that group is empty.
pub fn correct(case: usize, probe: &str) -> bool {
    match (case % 2, probe) {
        (_, "SR") => case % 3 != 2,
        (0, "PR") => case.is_multiple_of(4),
        (_, "PR") => false,
        _ => case % 4 < 2,
    }
}

/// Original indices of the old and the new session.
pub fn evidence(case: usize, sessions: usize) -> (usize, usize) {
    (1 + case % 2, sessions - 2 - case % 2)
}

/// Writes the run. Case 1's second probe is an error row (with at least two cases); case 0 drops session 0, the left neighbour of its old
/// session.
pub fn write(dir: &Path, plan: &Plan) {
    let line = |value: &serde_json::Value| format!("{value}\n");
    let (mut answers, mut verdicts, mut planned) = (String::new(), String::new(), String::new());
    std::fs::create_dir_all(dir.join("attention")).unwrap();
    std::fs::create_dir_all(dir.join("cases")).unwrap();
    for case in 0..plan.cases {
        let id = format!("case-{case:03}");
        let (old, new) = evidence(case, plan.sessions);
        let kind = if case % 2 == 0 { "T1" } else { "T2" };
        let dropped: Vec<usize> = if case == 0 { vec![0] } else { Vec::new() };
        let kept: Vec<usize> = (0..plan.sessions).filter(|i| !dropped.contains(i)).collect();
        let query = |probe: &str| format!("{probe}: what do I usually have for breakfast these days?");
        let probes: Vec<_> = PROBES.iter().map(|p| json!({ "id": p, "query": query(p) })).collect();
        let labels = BTreeMap::from([("type".to_owned(), kind.to_owned())]);
        planned += &line(&json!({
            "position": case, "case": id, "labels": labels, "probes": probes,
            "evidence": [{ "role": "old", "session": old }, { "role": "new", "session": new }],
            "judge": { "old": "o", "new": "n", "explanation": "e" },
        }));
        let turns = |i: usize| {
            let text = if case == 0 && i == 1 { HOSTILE.to_owned() } else { chat_text(i) };
            json!([{ "role": "user", "content": text }, { "role": "assistant", "content": format!("Noted, {i}.") }])
        };
        let sessions: Vec<_> = kept
            .iter()
            .map(|&i| json!({ "index": i, "time": format!("2026-0{}-1{}T08:30:00", 1 + i % 9, i % 10), "turns": turns(i) }))
            .collect();
        let shown = json!({ "case": id, "query_time": null, "sessions": sessions });
        std::fs::write(dir.join(format!("cases/{id}.json")), shown.to_string()).unwrap();
        for probe in PROBES {
            let file = format!("attention/{id}-{probe}.safetensors");
            let failed = case == 1 && probe == "PR";
            let answer = AnswerRow {
                case: id.clone(),
                probe: probe.to_owned(),
                condition: String::new(),
                labels: labels.clone(),
                query: query(probe),
                answer: (!failed).then(|| format!("Oatmeal with berries, since March. ({id} {probe})")),
                stop: (!failed).then_some(StopReason::EndOfTurn),
                prompt_tokens: Some(100),
                completion_tokens: Some(9),
                dropped_sessions: dropped.clone(),
                dropped_neighbours: dropped.clone(),
                attention: (!failed).then(|| file.clone()),
                error: failed
                    .then(|| "the evidence alone needs 9,000 tokens of a context of 4,096".to_owned()),
                ..AnswerRow::default()
            };
            answers += &line(&serde_json::to_value(&answer).unwrap());
            if failed {
                continue;
            }
            store(plan, case, probe, &kept).save(&dir.join(&file)).unwrap();
            let verdict = VerdictRow {
                case: id.clone(),
                probe: probe.to_owned(),
                judge: JUDGE.to_owned(),
                correct: Some(correct(case, probe)),
                probability: Some(0.73),
                reason: Some("The answer follows the later session.".to_owned()),
                ..VerdictRow::default()
            };
            verdicts += &line(&serde_json::to_value(&verdict).unwrap());
        }
    }
    let digest = "5f3ec375179e20e2e94469e018189188f34e2e7e5f21cbecbd99fcfa648c1876";
    let identity = json!({
        "dataset": { "name": "STALE sample", "digest": digest },
        "model": { "name": plan.model, "digest": digest },
        "dtype": "f32", "prompts": digest,
        "sampling": { "temperature": 0.0, "top_p": 1.0, "seed": 0, "max_new_tokens": 128 },
        "context": { "tokens": 4096, "policy": "evidence-preserving truncation" },
        "seed": 0, "only": null, "limit": plan.cases, "attention": true, "version": "0.1.0",
    });
    let machine =
        Machine { device: "cpu".to_owned(), os: "linux x86_64".to_owned(), threads: 2, ..Machine::default() };
    let header = RunHeader::new(serde_json::from_value(identity).unwrap(), None, machine);
    let header = serde_json::to_value(&header).unwrap();
    std::fs::write(dir.join("run.json"), format!("{header:#}\n")).unwrap();
    std::fs::write(dir.join("plan.jsonl"), planned).unwrap();
    std::fs::write(dir.join("answers.jsonl"), answers).unwrap();
    if plan.verdicts {
        std::fs::write(dir.join("verdicts.jsonl"), verdicts).unwrap();
    }
}

fn chat_text(i: usize) -> String {
    let topics =
        ["the leaking tap", "a train to the coast", "piano practice", "a birthday cake", "running shoes"];
    let topic = topics[i % topics.len()];
    format!("Session about {topic}. ").repeat(3 + i % 4)
}

/// Attention of one probe: keys bos, preamble, the kept sessions, query and template; rows query and new.
pub fn store(plan: &Plan, case: usize, probe: &str, kept: &[usize]) -> AttentionStore {
    let place = PROBES.iter().position(|p| *p == probe).unwrap();
    let mut rng = ChaCha8Rng::seed_from_u64((case * 10 + place) as u64);
    // the new session's rows precede the query: they are the same for every probe of a case
    let mut shared = ChaCha8Rng::seed_from_u64(1000 + case as u64);
    let (old, new) = evidence(case, plan.sessions);
    let mut keys = vec![Span::new("bos", 0..1), Span::new("preamble", 1..6)];
    let mut at = 6;
    for &index in kept {
        let len = 8 + (index * 5 + case * 3) % 13;
        let span = Span::new(format!("session[{index}]"), at..at + len);
        keys.push(match index {
            i if i == old => span.with_role("old"),
            i if i == new => span.with_role("new"),
            _ => span,
        });
        at += len;
    }
    keys.push(Span::new("query", at..at + 7).with_role("query"));
    keys.push(Span::new("template", at + 7..at + 10));
    let tokens: Vec<u32> = (0..at as u32 + 10).collect();
    let query = keys[keys.len() - 2].clone();
    let of_new = keys.iter().find(|s| s.is("new")).unwrap().clone();
    let rows = vec![of_new, query];
    let (layers, linear): (Vec<usize>, Vec<usize>) = (0..plan.layers).partition(|&l| plan.is_softmax(l));
    // a model without softmax layers has no softmax heads
    let heads = if layers.is_empty() { 0 } else { plan.heads };
    let mut mass = Array4::zeros((layers.len(), heads, 2, keys.len()));
    let mut share = Array4::zeros((linear.len(), plan.value_heads, 2, keys.len()));
    let mut signed = share.clone();
    let mut signs = ChaCha8Rng::seed_from_u64(5000 + (case * 10 + place) as u64);
    for layer in 0..plan.layers {
        let depth = layer as f64 / (plan.layers.max(2) - 1) as f64;
        let bump = (-(depth - 0.55).powi(2) / 0.03).exp();
        let at_linear = linear.binary_search(&layer);
        let at_softmax = layers.binary_search(&layer);
        for head in 0..if at_linear.is_ok() { plan.value_heads } else { plan.heads } {
            for (r, row) in rows.iter().enumerate() {
                let of_query = r == 1;
                let mut weights = Vec::new();
                for key in &keys {
                    let jitter =
                        if of_query { rng.random_range(0.4..1.6) } else { shared.random_range(0.4..1.6) };
                    let weight = match (key.segment(), key.role.as_deref()) {
                        _ if key.start > row.start => 0.0,
                        // a gated delta rule has forgotten the first token
                        (None, _) if key.label == "bos" && at_linear.is_ok() => 0.1,
                        (None, _) if key.label == "bos" => 6.0,
                        (None, _) => 0.8,
                        (_, Some("new")) if of_query => {
                            0.05 + bump * if correct(case, probe) { 2.2 } else { 0.9 }
                        }
                        (_, Some("old")) if of_query => 0.05 + bump * 0.8,
                        (_, Some("old")) => 0.05 + bump * 0.06,
                        _ => 0.04 + depth * 0.03,
                    };
                    weights.push(weight * jitter);
                }
                let total: f64 = weights.iter().sum();
                for (k, weight) in weights.iter().enumerate() {
                    let part = (weight / total) as f32;
                    match (at_softmax, at_linear) {
                        (Ok(l), _) => mass[[l, head, r, k]] = part,
                        (_, Ok(l)) => {
                            share[[l, head, r, k]] = part;
                            signed[[l, head, r, k]] = part * signs.random_range(-0.9..0.9f32);
                        }
                        _ => unreachable!(),
                    }
                }
            }
        }
    }
    AttentionStore {
        delta: (!linear.is_empty()).then_some(DeltaMasses { layers: linear, signed, share }),
        layers,
        tokens,
        case: format!("case-{case:03}"),
        probe: probe.to_owned(),
        model: "smollm2-135m".to_owned(),
        ..of_masses(mass, rows, keys)
    }
}
