//! Retrieval by embeddings, with the released model.

use std::collections::BTreeSet;

use palimpsest::benchmarks::{Context, Retriever};
use palimpsest::embedder::Embedder;
use palimpsest::memory::Memory;
use palimpsest::memory::similar::{ByEmbedding, Similarity};
use palimpsest::models::ModelStore;
use serde::Deserialize;

use super::*;

/// Output of `tests/reference/embedding_reference.py`.
#[derive(Deserialize)]
struct Reference {
    texts: Vec<String>,
    tokens: Vec<usize>,
    vectors: Vec<Vec<f32>>,
}

#[test]
fn vectors_are_those_of_transformers_alone_and_in_a_batch() {
    if crate::left_out::unless_all("all-MiniLM-L6-v2") {
        return;
    }
    let reference: Reference = serde_json::from_str(include_str!("../fixtures/minilm.json")).unwrap();
    // One text exceeds the model's limit.
    assert_eq!(reference.tokens.iter().max(), Some(&256));
    let embedder = Embedder::open(&ModelStore::open().unwrap().embedder().unwrap()).unwrap();
    let texts: Vec<&str> = reference.texts.iter().map(String::as_str).collect();
    let together = embedder.embed(&texts, |_| {}).unwrap();
    for (at, (text, expected)) in texts.iter().zip(&reference.vectors).enumerate() {
        let alone = embedder.embed(&[text], |_| {}).unwrap();
        for (found, how) in [(&together[at], "in a batch"), (&alone[0], "alone")] {
            assert_eq!(found.len(), 384);
            let apart = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(apart < 1e-4, "{text:.40} {how}: {apart}");
        }
    }
}

#[test]
fn events_are_ranked_by_cosine_and_ties_keep_file_order() {
    if crate::left_out::unless_all("all-MiniLM-L6-v2") {
        return;
    }
    let mut embedding = ByEmbedding::built_in(false).unwrap();
    let texts =
        ["I painted the hull.", "He fell through the ice.", "I painted the hull.", "We ate plum jam."];
    let cosines = embedding.scores(&texts, "Who broke into the frozen river?").unwrap();
    assert_eq!(cosines[0], cosines[2]);
    assert!((0..4).filter(|at| *at != 1).all(|at| cosines[1] > cosines[at]), "{cosines:?}");
    let own = embedding.scores(&texts, "We ate plum jam.").unwrap();
    assert!((own[3] - 1.0).abs() < 1e-5, "{own:?}");

    let case = case(sample());
    let mut memory = Memory::new(&KNOWME, 0).with_embedding(embedding);
    let context = Context::Retrieved { by: Retriever::Dense, most: 50 };
    let views = memory.views(&case, Some("rag-dense"), context, None);
    assert_eq!(views.iter().map(|view| view.case.probes.len()).sum::<usize>(), 14);
    for view in &views {
        let shown = view.segments.as_ref().unwrap();
        assert_eq!((shown.len(), view.refused.as_ref()), (50, None));
        // In file order, with original indices; a view has only its own probes.
        assert!(shown.is_sorted() && shown.iter().all(|at| *at < 128));
        let told: BTreeSet<&String> = view.case.judge.of_probes.keys().collect();
        assert_eq!(told, view.case.probes.iter().map(|probe| &probe.id).collect());
    }
    // Paraphrases are found.
    let of =
        |id: &str| views.iter().find(|view| view.case.probes.iter().any(|probe| probe.id == id)).unwrap();
    assert!(!probe(&of("T5-1").case, "T5-1").evidence.is_empty());
}
