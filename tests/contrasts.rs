//! Contrasts of models whose contrasts are known by construction, and which values can be compared.

use candle_core::{DType, Device, Tensor};
use palimpsest::case::Contrasted;
use palimpsest::runs::contrast::ContrastTokens;
use palimpsest::runs::rows::Contrast;
use palimpsest_core::engine::{Engine, Observe, Request, Task};

use crate::parity::checkpoint::Llama;
use crate::parity::induction::induction;
use crate::parity::{engine, session};

fn values(current: &str, stale: &[&str], absent: &[&str]) -> Contrasted {
    let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
    Contrasted { current: current.to_owned(), stale: owned(stale), absent: owned(absent) }
}

/// Contrast of single-token values after a prompt.
fn contrast(engine: &Engine, prompt: &[u32], current: u32, stale: u32) -> Contrast {
    let tokens = ContrastTokens::of(&values("current", &["stale"], &[]), &[vec![current], vec![stale]]);
    let tokens = tokens.unwrap().unwrap();
    let request = Request::of(prompt.to_vec(), Observe::default(), Task::Score(tokens.sequences()));
    let measured = session(engine, 64, (1, 0)).answer(request, &mut |_| true).unwrap();
    tokens.of_scores(&measured.scores).unwrap()
}

/// An item's subject and its two values.
const SUBJECT: u32 = 13;
const A: u32 = 14;
const B: u32 = 22;

/// Sessions of subject and value with fillers, then a question that ends with the subject.
fn prompt(told: &[u32]) -> Vec<u32> {
    let mut tokens = vec![0, 5, 6, 7];
    for (nth, value) in (0u32..).zip(told) {
        tokens.extend([SUBJECT, *value, 23 + 2 * nth, 24 + 2 * nth]);
    }
    tokens.extend([30, 31, SUBJECT]);
    tokens
}

#[test]
fn a_model_that_copies_holds_what_it_was_told_and_what_it_was_told_more_often() {
    let dir = tempfile::tempdir().unwrap();
    induction().write_folder(dir.path());
    let engine = engine(dir.path(), 64);
    let c = |told: &[u32], current: u32, stale: u32| contrast(&engine, &prompt(told), current, stale).value;
    for (a, b) in [(A, B), (B, A)] {
        // No old value; no update; an update told twice; an update of a value told twice.
        assert!(c(&[b], b, a) > 3.0 && c(&[a], b, a) < -3.0, "{} {}", c(&[b], b, a), c(&[a], b, a));
        assert!(c(&[a, b, b], b, a) > 0.5, "{}", c(&[a, b, b], b, a));
        assert!(c(&[a, a, b], b, a) < -0.5, "{}", c(&[a, a, b], b, a));
    }
    // The model has no priors and nearly ignores position: the twins agree.
    let (ab, ba) = (c(&[A, B, B], B, A), c(&[B, A, A], A, B));
    assert!((ab + ba) / 2.0 > 0.5 && ((ab - ba) / 2.0).abs() < 0.05, "{ab} {ba}");
}

/// A model whose logits are the token priors after any prompt: nothing is written to the residual stream, and the output reads the
/// dimension that is on in every embedding.
fn of_priors() -> Llama {
    let mut model = induction();
    for layer in 0..2 {
        let name = format!("model.layers.{layer}.self_attn.o_proj.weight");
        let nothing = model.tensors[&name].zeros_like().unwrap();
        model.tensors.insert(name, nothing);
    }
    let embedding = &model.tensors["model.embed_tokens.weight"];
    let (vocabulary, hidden) = embedding.dims2().unwrap();
    // Over all embedding rows.
    let on = (0..hidden)
        .find(|&at| {
            embedding
                .narrow(1, at, 1)
                .unwrap()
                .flatten_all()
                .unwrap()
                .to_vec1::<f32>()
                .unwrap()
                .iter()
                .all(|x| *x == 1.0)
        })
        .unwrap();
    let mut head = vec![0f32; vocabulary * hidden];
    for token in 0..vocabulary {
        head[token * hidden + on] = 0.37 * (token as f32 * 1.7).sin();
    }
    let head =
        Tensor::from_vec(head, (vocabulary, hidden), &Device::Cpu).unwrap().to_dtype(DType::F32).unwrap();
    model.tensors.insert("lm_head.weight".to_owned(), head);
    model
}

#[test]
fn a_model_that_only_knows_priors_has_no_update_effect_at_all() {
    let dir = tempfile::tempdir().unwrap();
    of_priors().write_folder(dir.path());
    let engine = engine(dir.path(), 64);
    for told in [[A, B], [B, B], [A, A]] {
        let swapped = told.map(|value| if value == A { B } else { A });
        let ab = contrast(&engine, &prompt(&told), B, A).value;
        let ba = contrast(&engine, &prompt(&swapped), A, B).value;
        let (u, b) = ((ab + ba) / 2.0, (ab - ba) / 2.0);
        assert!(u == 0.0 && b.abs() > 0.01, "u {u}, b {b}");
    }
}

#[test]
fn values_are_read_where_they_differ_from_the_current_one_and_named_where_they_do_not() {
    // Values that share a prefix with the current one are scored after it; the current one where the last stale value differs.
    let given = values("abc", &["xy", "abd"], &["ae", "z"]);
    let tokens = [vec![1, 2, 3], vec![7, 8], vec![1, 2, 4], vec![1, 5], vec![9]];
    let found = ContrastTokens::of(&given, &tokens).unwrap().unwrap();
    let sequences = found.sequences();
    assert_eq!(sequences, [vec![1], vec![1, 2], vec![1, 2, 3], vec![1, 2, 4], vec![1, 5], vec![7], vec![9]]);
    let scores = [-1.0, -3.0, -3.5, -5.0, -4.0, -2.0, -6.0].map(Some);
    let contrast = found.of_scores(&scores).unwrap();
    let stale = contrast.stale.clone().unwrap();
    assert_eq!((contrast.current.token, contrast.current.log_p), (3, -0.5));
    assert_eq!((stale.text.as_str(), stale.token, stale.log_p), ("abd", 4, -2.0));
    assert_eq!((contrast.earlier[0].token, contrast.earlier[0].log_p), (7, -2.0));
    assert_eq!(contrast.absent.as_ref().map(|absent| (absent.token, absent.log_p)), Some((5, -3.0)));
    assert_eq!(contrast.others[0].log_p, -6.0);
    assert_eq!(contrast.value, 1.5);
    assert_eq!(contrast.values().count(), 5);
    let pair = found.pair().unwrap();
    assert_eq!((pair.before(), pair.current(), pair.against), (&[1, 2][..], 3, 4));
    // A missing score gives no contrast.
    assert!(found.of_scores(&[None; 7]).is_none());

    // Without a stale value: against the first absent one; without either, no contrast.
    let found =
        ContrastTokens::of(&values("a", &[], &["b", "c"]), &[vec![1], vec![2], vec![3]]).unwrap().unwrap();
    let contrast = found.of_scores(&[-1.0, -2.0, -4.0].map(Some)).unwrap();
    assert_eq!((contrast.value, contrast.stale.is_none(), contrast.others.len()), (1.0, true, 1));
    assert!(ContrastTokens::of(&values("a", &[], &[]), &[vec![1]]).unwrap().is_none());

    for (tokens, pair) in [
        ([vec![1], vec![1, 2], vec![3]], "\"a\" and \"ab\""),
        ([vec![1], vec![2], vec![2]], "\"ab\" and \"c\""),
    ] {
        let error = ContrastTokens::of(&values("a", &["ab"], &["c"]), &tokens).unwrap_err().to_string();
        assert!(error.contains(pair) && error.contains("differ in a token"), "{error}");
    }
}
