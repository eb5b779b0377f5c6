//! `why` labels on models whose causes are known by construction.
//!
//! The induction model copies the token after the question's last token: it is overridden if the older value is told twice, and ignores an
//! update about another subject. A second model (`carrier`) has a session that copies the older value, and a question that attends to that
//! session only.

use std::ops::Range;
use std::sync::atomic::AtomicBool;

use candle_core::Tensor;
use ndarray::Array4;
use palimpsest::case::Contrasted;
use palimpsest::case::draw::Draws;
use palimpsest::progress::Status;
use palimpsest::runs::contrast::ContrastTokens;
use palimpsest::runs::why_rows::{Label, WhyRow, WhySettings};
use palimpsest::why::controls::{CONTROLS, LEVEL};
use palimpsest::why::decide::{Facts, Presence};
use palimpsest::why::label::{Context, investigate};
use palimpsest::why::readings::{Reader, prompt};
use palimpsest_core::ablate::{Target, ValuePair};
use palimpsest_core::attention::{AttentionStore, LayerKind};
use palimpsest_core::engine::Session;
use palimpsest_core::span::Span;
use serde_json::json;

use crate::attention::store::of_masses;
use crate::parity::checkpoint::Llama;
use crate::parity::induction::{D, HIDDEN, SAID, VOCAB, induction, matrix, slow};
use crate::parity::{engine, session};

/// The subject, another one, and the two values.
const SUBJECT: u32 = 13;
const OTHER: u32 = 12;
const OLD: u32 = 14;
const NEW: u32 = 22;
/// Of the carrier: a session that begins with it copies the token after the subject; the question; the token before the new value.
const ECHO: u32 = 18;
const ASK: u32 = 19;
const UPDATE: u32 = 20;
/// Filler tokens.
const FILLERS: Range<u64> = 0..8;

/// Sessions by role, and a question.
struct Story {
    sessions: Vec<(Option<&'static str>, Vec<u32>)>,
    question: Vec<u32>,
}

impl Story {
    /// These sessions in order, at random positions among fillers.
    fn among_fillers(told: &[(&'static str, Vec<u32>)], question: &[u32], draws: &mut Draws) -> Self {
        let filler = |draws: &mut Draws| {
            let length = 3 + draws.index(4);
            let tokens = (0..length).map(|_| 1 + draws.below(FILLERS.end) as u32).collect::<Vec<u32>>();
            (None, tokens)
        };
        let mut sessions = Vec::new();
        for (role, tokens) in told {
            for _ in 0..2 + draws.index(4) {
                sessions.push(filler(draws));
            }
            sessions.push((Some(*role), tokens.clone()));
        }
        for _ in 0..2 + draws.index(4) {
            sessions.push(filler(draws));
        }
        Story { sessions, question: question.to_vec() }
    }

    fn store(&self) -> AttentionStore {
        let mut tokens = vec![0];
        let mut keys = vec![Span::new("bos", 0..1)];
        for (nth, (role, own)) in self.sessions.iter().enumerate() {
            let range = tokens.len()..tokens.len() + own.len();
            keys.push(Span { role: role.map(str::to_owned), ..Span::new(format!("session[{nth}]"), range) });
            tokens.extend(own);
        }
        let range = tokens.len()..tokens.len() + self.question.len();
        let query = Span { role: Some("query".to_owned()), ..Span::new("query", range) };
        keys.push(query.clone());
        tokens.extend(&self.question);
        let store = of_masses(Array4::zeros((1, 1, 1, keys.len())), vec![query], keys);
        AttentionStore { tokens, generated: vec![OLD], ..store }
    }
}

fn pair() -> ValuePair {
    let values = Contrasted { current: "new".to_owned(), stale: vec!["old".to_owned()], absent: vec![] };
    let tokens = ContrastTokens::of(&values, &[vec![NEW], vec![OLD]]).unwrap().unwrap();
    tokens.pair().unwrap()
}

fn label(session: &mut Session, layers: usize, story: &Story, seed: u64) -> WhyRow {
    let (store, pair) = (story.store(), pair());
    let (stop, status) = (AtomicBool::new(false), Status::silent());
    let kinds = vec![LayerKind::Softmax { window: None, sinks: false, indexed: false }; layers];
    let question = store.keys.last().unwrap().start;
    let prompt = prompt(&store, question, &kinds).unwrap();
    let mut reader = Reader::new(session, prompt, (Target::Values(&pair), None), (&stop, &status)).unwrap();
    let of = |role: &str| -> Vec<&Span> {
        store.keys.iter().filter(|span| span.role.as_deref() == Some(role)).collect()
    };
    let settings = WhySettings { seed, controls: CONTROLS, readings: 24, anew: false };
    let context = Context { store: &store, newer: of("new"), older: of("old"), settings };
    let (newer, older) = (Presence::Shown, Presence::Shown);
    let facts = Facts { correct: Some(false), newer, older, ..Facts::default() };
    investigate(&mut reader, &context, facts).unwrap()
}

/// Three layers. The first writes the previous token. In the second an echo and the question attend to what they copy: an echo to the
/// token after the subject, the question to the token after the update. In the third the question copies the echo's token.
fn carrier() -> Llama {
    let Llama { mut config, mut tensors } = induction();
    config["num_hidden_layers"] = json!(3);
    let names: Vec<String> =
        tensors.keys().filter(|name| name.starts_with("model.layers.1.")).cloned().collect();
    for name in names {
        let third = tensors[&name].clone();
        tensors.insert(name.replace("layers.1.", "layers.2."), third);
    }
    let mut put = |layer: usize, name: &str, tensor: Tensor| {
        tensors.insert(format!("model.layers.{layer}.self_attn.{name}.weight"), tensor);
    };
    let token = |token: u32| token as usize;
    let looks = [(ECHO, SUBJECT), (ASK, UPDATE)].map(|(at, of)| (slow(token(of)), token(at), 8.0));
    put(1, "q_proj", matrix(D, HIDDEN, looks));
    put(2, "q_proj", matrix(D, HIDDEN, [(slow(token(ECHO)), token(ASK), 8.0)]));
    put(2, "k_proj", matrix(D, HIDDEN, (0..VOCAB).map(|t| (slow(t), t, 8.0))));
    put(2, "v_proj", matrix(D, HIDDEN, (0..VOCAB).map(|t| (t, SAID + t, 1.0))));
    put(2, "o_proj", matrix(HIDDEN, D, (0..VOCAB).map(|t| (SAID + t, t, 2.0))));
    Llama { config, tensors }
}

const SEEDS: u64 = 200;

/// Labels random stories: at most the stated share, plus three standard deviations of sampling noise, may have another label. `right`
/// checks the others.
fn check(
    (model, layers): (&Llama, usize),
    (purpose, wanted): (&str, Label),
    story: impl Fn(&mut Draws) -> Story,
    right: impl Fn(&Story, &WhyRow),
) {
    let dir = tempfile::tempdir().unwrap();
    model.write_folder(dir.path());
    let engine = engine(dir.path(), 64);
    let mut session = session(&engine, 256, (1, 0));
    let mut wrong = Vec::new();
    for seed in 0..SEEDS {
        let story = story(&mut Draws::new(purpose, seed, ""));
        let found = label(&mut session, layers, &story, seed);
        match found.label == wanted {
            true => right(&story, &found),
            false => wrong.push((seed, found)),
        }
    }
    let most = SEEDS as f64 * LEVEL + 3.0 * (SEEDS as f64 * LEVEL * (1.0 - LEVEL)).sqrt();
    assert!((wrong.len() as f64) <= most, "{} of {SEEDS} are wrong: {:?}", wrong.len(), wrong.first());
}

#[test]
fn a_model_that_copies_is_overridden_by_what_is_told_more_often() {
    let story = |draws: &mut Draws| {
        let old = || ("old", vec![SUBJECT, OLD, 7]);
        let told = [old(), old(), ("new", vec![SUBJECT, NEW, 6])];
        Story::among_fillers(&told, &[30, 31, SUBJECT], draws)
    };
    check((&induction(), 2), ("overridden", Label::Overridden), story, |_, found| {
        // Both old sessions and no other, or one if that suffices to flip it.
        let certificate = found.certificate.as_ref().unwrap();
        let olds: Vec<&String> = found.older.iter().flat_map(|side| &side.sessions).collect();
        assert!(certificate.sessions.iter().all(|label| olds.contains(&label)), "{found:?}");
        assert!(certificate.irreducible && certificate.before < 0.0 && certificate.after > 0.0);
        assert_eq!(certificate.controls.flips, 0);
        // The head that copies is in the second layer.
        assert_eq!(certificate.layers, Some([1, 2]), "{found:?}");
        assert!(found.search.as_ref().unwrap().sessions <= 6, "{found:?}");
    });
}

#[test]
fn an_update_about_another_subject_is_not_read() {
    let story = |draws: &mut Draws| {
        let told = [("old", vec![SUBJECT, OLD, 7]), ("new", vec![OTHER, 5, 6])];
        Story::among_fillers(&told, &[30, 31, SUBJECT], draws)
    };
    check((&induction(), 2), ("not read", Label::NoEffect), story, |_, _| {});
}

#[test]
fn what_a_later_session_took_over_is_carried() {
    let story = |draws: &mut Draws| {
        let told =
            [("old", vec![SUBJECT, OLD, 7]), ("echo", vec![5, ECHO, 6]), ("new", vec![UPDATE, NEW, 6])];
        Story::among_fillers(&told, &[30, 31, ASK], draws)
    };
    check((&carrier(), 3), ("carried", Label::Carried), story, |story, found| {
        // The session that holds it is the certificate, at the layer that reads it.
        let echo = story.sessions.iter().position(|(role, _)| *role == Some("echo")).unwrap();
        let certificate = found.certificate.as_ref().unwrap();
        assert_eq!(certificate.sessions, [format!("session[{echo}]")], "{found:?}");
        assert_eq!(certificate.layers, Some([2, 3]), "{found:?}");
    });
}
