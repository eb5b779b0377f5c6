//! A model whose answers are known by construction: two layers form an induction head.
//!
//! The first layer's head attends to the previous token and writes it; the second's attends to positions whose previous token equals the
//! current one, and copies theirs. So `b` follows `a b ... a`, and only because of the position of `b`.

use std::collections::HashMap;

use candle_core::{Device, Tensor};
use palimpsest::heads::score::{Answering, Planted, read};
use palimpsest_core::ablate::{Effect, EffectRow, History, Metric, Said, Target};
use palimpsest_core::attention::{Hole, LayerHoles};
use palimpsest_core::engine::Engine;
use serde_json::json;

use super::checkpoint::Llama;
use super::{engine, session};

pub const VOCAB: usize = 32;
/// Residual stream: the token, the previous one, a constant, the next token.
const BEFORE: usize = VOCAB;
const ON: usize = 2 * VOCAB;
pub const SAID: usize = ON + 16;
pub const HIDDEN: usize = SAID + VOCAB;
/// One head of 32 rotary pairs (i, 32 + i). The first rotate fast, the last 16 hardly.
pub const D: usize = 64;
const THETA: f64 = 1e9;

/// A matrix with these entries, (row, column, value).
pub fn matrix(rows: usize, columns: usize, entries: impl IntoIterator<Item = (usize, usize, f64)>) -> Tensor {
    let mut values = vec![0f32; rows * columns];
    for (row, column, value) in entries {
        values[row * columns + column] = value as f32;
    }
    Tensor::from_vec(values, (rows, columns), &Device::Cpu).unwrap()
}

/// The slow dimension of a token.
pub fn slow(token: usize) -> usize {
    if token < 16 { 16 + token } else { 32 + token }
}

pub fn induction() -> Llama {
    model(layers().into())
}

/// Same with a third layer, which attends like the second and copies its output: the position's own copy is passed on.
fn relay() -> Llama {
    let [first, second] = layers();
    let [query, key, ..] = &second;
    let taken_on = [
        query.clone(),
        key.clone(),
        matrix(D, HIDDEN, (0..VOCAB).map(|t| (t, SAID + t, 0.2))),
        matrix(HIDDEN, D, (0..VOCAB).map(|t| (SAID + t, t, 3.0))),
    ];
    model(vec![first, second, taken_on])
}

fn model(layers: Vec<[Tensor; 4]>) -> Llama {
    let mut tensors = HashMap::new();
    let embedding = (0..VOCAB).flat_map(|t| [(t, t, 1.0), (t, ON, 1.0)]);
    tensors.insert("model.embed_tokens.weight".to_owned(), matrix(VOCAB, HIDDEN, embedding));
    tensors
        .insert("lm_head.weight".to_owned(), matrix(VOCAB, HIDDEN, (0..VOCAB).map(|t| (t, SAID + t, 4.0))));
    let ones = Tensor::ones(HIDDEN, candle_core::DType::F32, &Device::Cpu).unwrap();
    tensors.insert("model.norm.weight".to_owned(), ones.clone());
    let count = layers.len();
    for (layer, [q, k, v, o]) in layers.into_iter().enumerate() {
        let mut put = |name: &str, tensor: Tensor| {
            tensors.insert(format!("model.layers.{layer}.{name}.weight"), tensor);
        };
        put("self_attn.q_proj", q);
        put("self_attn.k_proj", k);
        put("self_attn.v_proj", v);
        put("self_attn.o_proj", o);
        put("input_layernorm", ones.clone());
        put("post_attention_layernorm", ones.clone());
        // No feed-forward.
        put("mlp.gate_proj", matrix(32, HIDDEN, []));
        put("mlp.up_proj", matrix(32, HIDDEN, []));
        put("mlp.down_proj", matrix(HIDDEN, 32, []));
    }
    let config = json!({
        "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": 32, "vocab_size": VOCAB,
        "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": D, "num_hidden_layers": count,
        "rms_norm_eps": 1e-5, "max_position_embeddings": 512, "rope_theta": THETA,
        "tie_word_embeddings": false, "attention_bias": false,
    });
    Llama { config, tensors }
}

fn layers() -> [[Tensor; 4]; 2] {
    // A query rotated back by one step best matches the key of the previous position.
    let angle = |pair: usize| THETA.powf(-2.0 * pair as f64 / D as f64);
    let query = (0..32).flat_map(|i| [(i, ON, 3.0 * angle(i).cos()), (32 + i, ON, -3.0 * angle(i).sin())]);
    let key = (0..32).map(|i| (i, ON, 3.0));
    let copied = |from: usize| (0..VOCAB).map(move |t| (t, from + t, 0.2));
    let written = |to: usize| (0..VOCAB).map(move |t| (to + t, t, 1.0));
    [
        [
            matrix(D, HIDDEN, query),
            matrix(D, HIDDEN, key),
            matrix(D, HIDDEN, copied(0)),
            matrix(HIDDEN, D, written(BEFORE)),
        ],
        [
            matrix(D, HIDDEN, (0..VOCAB).map(|t| (slow(t), t, 4.0))),
            matrix(D, HIDDEN, (0..VOCAB).map(|t| (slow(t), BEFORE + t, 4.0))),
            matrix(D, HIDDEN, copied(0)),
            matrix(HIDDEN, D, written(SAID)),
        ],
    ]
}

/// Sessions of three distinct tokens each, after a first token and before a question that ends with the beginning of the third.
const PROMPT: [u32; 19] = [0, 5, 6, 7, 8, 9, 10, 13, 14, 15, 21, 22, 23, 25, 26, 27, 30, 31, 13];
const SESSIONS: [std::ops::Range<usize>; 5] = [1..4, 4..7, 7..10, 10..13, 13..16];
const QUESTION: usize = 16;
const SOURCE: usize = 2;
const ANSWER: [u32; 2] = [14, 15];

/// Mean log-probability of the answer after `thought` thought tokens, and the effect of hiding each session.
fn effects_behind(engine: &Engine, layers: std::ops::Range<usize>, thought: usize) -> (f64, Vec<Effect>) {
    let mut session = session(engine, 64, (1, 0));
    let history = History { tokens: PROMPT[..QUESTION].into(), rest: &PROMPT[QUESTION..] };
    let said = Target::Answer(Said { tokens: &ANSWER, thought });
    let answer = Metric::read(&mut session, &history, said, &mut |_| true).unwrap();
    let read = PROMPT.len() - QUESTION + ANSWER.len() - 1;
    assert_eq!(session.take_usage(), (QUESTION + read, 0));
    let kinds = engine.decoder().spec().layer_kinds();
    let holes = |keys: &std::ops::Range<usize>| {
        LayerHoles::at_softmax(&layers, &kinds, vec![Hole { rows: QUESTION..usize::MAX, keys: keys.clone() }])
    };
    let holes: Vec<LayerHoles> = SESSIONS.iter().map(holes).collect();
    let mut effects = Vec::new();
    let mut take = |nth: usize, row: EffectRow| {
        assert_eq!(nth, effects.len(), "in order");
        effects.push(row.effect().unwrap());
        true
    };
    answer.effects(&mut session, &history, &holes, &mut |_| true, &mut take).unwrap();
    assert_eq!(session.take_usage(), (holes.len() * read, 0), "the history stays in the cache");
    (answer.value(), effects)
}

fn effects(engine: &Engine, layers: std::ops::Range<usize>) -> (f64, Vec<Effect>) {
    effects_behind(engine, layers, 0)
}

#[test]
fn blocking_the_source_kills_the_copy_and_blocking_any_other_session_does_nothing() {
    let dir = tempfile::tempdir().unwrap();
    induction().write_folder(dir.path());
    let engine = engine(dir.path(), 64);
    let (log_p, all) = effects(&engine, 0..2);
    assert!(log_p > -0.01, "the copy is certain: {log_p}");
    for (nth, effect) in all.iter().enumerate() {
        if nth == SOURCE {
            // A positive sign: the answer needs it.
            assert!(effect.log_p_drop > 3.0 && effect.kl > 3.0 && effect.kl_answer > 3.0, "{effect:?}");
            assert!(effect.changed && effect.thought.is_none());
        } else {
            assert!(
                effect.log_p_drop.abs() < 1e-3 && effect.kl < 1e-3 && effect.kl_answer < 1e-3,
                "session {nth}: {effect:?}"
            );
            assert!(!effect.changed);
        }
    }
    // The head that copies is in the second layer; in the first the question attends to itself.
    let (_, first) = effects(&engine, 0..1);
    assert!(first.iter().all(|effect| effect.log_p_drop.abs() < 1e-3 && !effect.changed), "{first:?}");
    let (_, second) = effects(&engine, 1..2);
    assert!((second[SOURCE].log_p_drop - all[SOURCE].log_p_drop).abs() < 1e-3, "{second:?}");
    assert!(second.iter().enumerate().all(|(nth, effect)| effect.changed == (nth == SOURCE)));
}

/// Effects of hiding a session from the question on, then from all later rows, then from each later session.
fn carried(folder: &std::path::Path, prompt: &[u32], hidden: usize, answer: &[u32]) -> Vec<f64> {
    let engine = engine(folder, 64);
    let mut session = session(&engine, 64, (1, 0));
    let history = History { tokens: prompt[..QUESTION].into(), rest: &prompt[QUESTION..] };
    let said = Target::Answer(Said { tokens: answer, thought: 0 });
    let answer = Metric::read(&mut session, &history, said, &mut |_| true).unwrap();
    assert!(answer.value() > -0.01, "the copy is certain: {}", answer.value());
    let keys = SESSIONS[hidden].clone();
    let behind = [0..0, keys.end..usize::MAX].into_iter().chain(SESSIONS[hidden + 1..].iter().cloned());
    let kinds = engine.decoder().spec().layer_kinds();
    let effect = |rows: std::ops::Range<usize>| {
        let rows = [rows, QUESTION..usize::MAX].into_iter().filter(|rows| !rows.is_empty());
        let holes = rows.map(|rows| Hole { rows, keys: keys.clone() }).collect();
        let holes = [LayerHoles::at_softmax(&(0..kinds.len()), &kinds, holes)];
        let mut lost = f64::NAN;
        let mut take = |_: usize, row: EffectRow| {
            lost = row.effect().unwrap().log_p_drop;
            true
        };
        answer.effects(&mut session, &history, &holes, &mut |_| true, &mut take).unwrap();
        lost
    };
    behind.map(effect).collect()
}

#[test]
fn a_copy_from_its_source_has_no_carrier_and_a_copy_of_a_later_copy_has_that_one() {
    let dir = tempfile::tempdir().unwrap();
    induction().write_folder(dir.path());
    let effects = carried(dir.path(), &PROMPT, SOURCE, &ANSWER);
    let (direct, others) = effects.split_first().unwrap();
    assert!(*direct > 3.0 && others.len() == 3, "{effects:?}");
    assert!(others.iter().all(|other| (other - direct).abs() < 1e-3), "nothing is left: {effects:?}");

    // The second session says that 14 follows 13; the fourth has 13 after 20, and so holds 14 there; the question ends with 20.
    let dir = tempfile::tempdir().unwrap();
    relay().write_folder(dir.path());
    let prompt = [0, 5, 6, 7, 13, 14, 15, 8, 9, 10, 20, 13, 11, 21, 22, 23, 30, 31, 20];
    let effects = carried(dir.path(), &prompt, 1, &[14]);
    let [direct, all, third, carrier, fifth] = effects[..] else { panic!("{effects:?}") };
    assert!(direct.abs() < 1e-2, "the question does not read it: {effects:?}");
    assert!(all > 3.0 && (carrier - all).abs() < 1e-2, "the fourth holds it: {effects:?}");
    assert!((third - direct).abs() < 1e-2 && (fifth - direct).abs() < 1e-2, "the others do not: {effects:?}");
}

#[test]
fn an_answer_begins_behind_its_thought_and_the_thought_has_effects_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    induction().write_folder(dir.path());
    let engine = engine(dir.path(), 64);
    let ((whole, all), (behind, split)) = (effects(&engine, 0..2), effects_behind(&engine, 0..2, 1));
    // Two tokens are generated: the first is the thought, the second the answer.
    for (all, split) in all.iter().zip(&split) {
        let thought = split.thought.unwrap();
        let halves = 0.5 * (thought.log_p_drop + split.log_p_drop);
        assert!((all.log_p_drop - halves).abs() < 1e-9, "{all:?} {split:?}");
        assert!((all.kl - thought.kl).abs() < 1e-12, "what was generated first is the thought's");
        assert!((split.kl - split.kl_answer).abs() < 1e-12, "an answer of one token");
        assert!((all.kl_answer - 0.5 * (thought.kl + split.kl)).abs() < 1e-9);
        assert_eq!(all.changed, thought.changed || split.changed);
    }
    assert!((whole - behind).abs() < 0.01);
    let thought = split[SOURCE].thought.unwrap();
    assert!(thought.log_p_drop > 3.0 && thought.changed && split[SOURCE].log_p_drop > 3.0, "{split:?}");
}

#[test]
fn the_head_that_copies_is_the_retrieval_head_and_the_one_that_the_question_looks_with() {
    let dir = tempfile::tempdir().unwrap();
    induction().write_folder(dir.path());
    let engine = engine(dir.path(), 64);
    let planted = Planted {
        tokens: PROMPT.to_vec(),
        query: QUESTION..PROMPT.len(),
        gold: SESSIONS[SOURCE].clone(),
        // The tokens after the session's first one, with which the question ends.
        answer: SESSIONS[SOURCE].start + 1..SESSIONS[SOURCE].end,
        null_tokens: [&PROMPT[..QUESTION], &[30, 31]].concat(),
        null_query: QUESTION..QUESTION + 2,
    };
    let answering = Answering { max_new_tokens: 2, stop: &[] };
    let mut session = session(&engine, 64, (1, 0));
    let found = read(&mut session, &planted, answering, &mut |_| true).unwrap();
    assert_eq!((found.layers, found.generated, found.recall), (vec![0, 1], ANSWER.to_vec(), 1.0));
    assert_eq!(found.copied, ndarray::array![[0.0], [1.0]]);
    // One row of three puts all its weight on the session, the others are uniform, as are both of the null question.
    let alike = |rows: &[f64]| rows.iter().map(|keys| 3.0 / keys).sum::<f64>();
    let expected = (alike(&[17.0, 18.0]) + 1.0) / 3.0 - alike(&[17.0, 18.0]) / 2.0;
    assert!((found.qr[[1, 0]] - expected).abs() < 0.01, "{} is not {expected}", found.qr);
    assert!(found.qr[[0, 0]].abs() < 1e-3, "{}", found.qr);
}
