//! The attention store round-trips; an invalid file is rejected.

use std::path::Path;

use ndarray::{Array3, Array4};
use palimpsest_core::attention::{
    AttentionStore, DeltaMasses, KeptShares, StoreError, Uniform, Values, write_tensors,
};
use palimpsest_core::span::Span;

/// A store with only these masses, [layers, heads, rows, keys]; layers from 0, one token per position.
pub fn of_masses(mass: Array4<f32>, rows: Vec<Span>, keys: Vec<Span>) -> AttentionStore {
    let tokens = rows.iter().chain(&keys).map(|span| span.end as u32).max().unwrap_or(0);
    AttentionStore {
        layers: (0..mass.dim().0).collect(),
        mass,
        sink: None,
        uniform: None,
        delta: None,
        kept: None,
        selected: None,
        rows,
        keys,
        tokens: (0..tokens).collect(),
        generated: Vec::new(),
        case: "case".to_owned(),
        probe: "SR".to_owned(),
        condition: String::new(),
        model: "made".to_owned(),
        dtype: "f32".to_owned(),
    }
}

fn store() -> AttentionStore {
    let number = |n: usize| n as f32 / 97.0;
    let new = Span::new("session[3]", 2..4).with_role("new");
    let query = Span::new("query", 4..5).with_role("query");
    AttentionStore {
        mass: Array4::from_shape_fn((2, 3, 2, 3), |(a, b, c, d)| number(a * 18 + b * 6 + c * 3 + d)),
        sink: Some(Array3::from_shape_fn((2, 3, 2), |(a, b, c)| number(a * 6 + b * 2 + c))),
        uniform: Some(Uniform {
            windows: vec![None, Some(3)],
            share: Array3::from_shape_fn((2, 2, 3), |(a, b, c)| number(a * 6 + b * 3 + c)),
        }),
        delta: Some(DeltaMasses {
            layers: vec![1, 2, 3],
            signed: Array4::from_shape_fn((3, 4, 2, 3), |(a, b, c, d)| number(a + b + c) - number(d * 9)),
            share: Array4::from_shape_fn((3, 4, 2, 3), |(a, b, c, d)| number(a * 24 + b * 6 + c * 3 + d)),
        }),
        kept: None,
        selected: None,
        layers: vec![0, 5],
        rows: vec![new.clone(), query.clone()],
        keys: vec![Span::new("bos", 0..2), new, query],
        tokens: vec![7, 0, u32::MAX, 3, 4],
        generated: vec![5, 6],
        case: "uid-1 \"é\"".to_owned(),
        condition: String::new(),
        probe: "SR".to_owned(),
        model: "smollm2-135m".to_owned(),
        dtype: "f32".to_owned(),
    }
}

#[test]
fn a_store_is_read_back_as_it_was_saved_with_and_without_sinks_and_with_and_without_linear_layers() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.safetensors");
    let with = store();
    let without_sinks = AttentionStore { sink: None, ..store() };
    let without_linear = AttentionStore { delta: None, ..store() };
    let without_softmax = AttentionStore {
        mass: Array4::zeros((0, 0, 2, 3)),
        sink: None,
        uniform: None,
        layers: vec![],
        ..store()
    };
    let of_version_0_1_0 = AttentionStore { uniform: None, ..store() };
    for store in [with, of_version_0_1_0, without_sinks, without_linear, without_softmax] {
        store.save(&path).unwrap();
        assert_eq!(AttentionStore::load(&path).unwrap(), store);
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left beside it");
}

#[test]
fn what_an_eviction_kept_is_read_back_and_must_fit_the_spans() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.safetensors");
    let shares = Array3::from_shape_fn((2, 4, 3), |(a, b, c)| (a * 12 + b * 3 + c) as f32 / 24.0);
    let store = AttentionStore { kept: Some(KeptShares { layers: vec![0, 5], shares }), ..store() };
    store.save(&path).unwrap();
    assert_eq!(AttentionStore::load(&path).unwrap(), store);
    let kept = |shape: Vec<usize>, layers: Option<&str>| {
        refusal(|tensors, metadata| {
            let values = Values::F32(vec![f32::NAN; shape.iter().product()]);
            tensors.push(("kept", values, shape));
            metadata.extend(layers.map(|layers| ("kept_layers", layers.to_owned())));
        })
    };
    assert_eq!(kept(vec![1, 5, 2], Some("[0]")), "");
    for (found, expected) in [
        (kept(vec![1, 5, 3], Some("[0]")), "`kept` has shape [1, 5, 3] where [1, 5, 2] is implied"),
        (kept(vec![2, 5, 2], Some("[0]")), "`kept` has shape [2, 5, 2] where [1, 5, 2] is implied"),
        (kept(vec![10], Some("[0]")), "`kept` has shape [10]"),
        (kept(vec![1, 5, 2], None), "no `kept_layers`"),
        (refusal(|_, m| m.push(("kept_layers", "[1]".to_owned()))), "`kept`"),
    ] {
        assert!(found.contains(expected), "{found:?} does not say {expected:?}");
    }
}

#[test]
fn a_store_that_cannot_be_written_names_its_path_and_leaves_the_old_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("missing/a.safetensors");
    let error = store().save(&path).unwrap_err();
    assert!(
        matches!(error, StoreError::Io { .. }) && error.to_string().contains("missing/a.safetensors"),
        "{error}"
    );
    let error = AttentionStore::load(&path).unwrap_err();
    assert!(matches!(error, StoreError::Io { .. }), "{error}");
}

/// Writes a modified store file; returns the read error.
fn refusal(change: impl FnOnce(&mut Vec<(&str, Values, Vec<usize>)>, &mut Vec<(&str, String)>)) -> String {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.safetensors");
    let mut tensors = vec![
        ("mass", Values::F32(vec![0.25; 4]), vec![1, 2, 1, 2]),
        ("tokens", Values::U32(vec![1, 2, 3]), vec![3]),
    ];
    let mut metadata: Vec<(&str, String)> = [
        ("format", "palimpsest attention store 2"),
        ("layers", "[0]"),
        ("rows", r#"[{"label": "query", "role": "query", "start": 2, "end": 3}]"#),
        ("spans", r#"[{"label": "a", "start": 0, "end": 2}, {"label": "query", "start": 2, "end": 3}]"#),
        ("case", "c"),
        ("probe", "p"),
        ("model", "m"),
        ("dtype", "f32"),
    ]
    .map(|(key, value)| (key, value.to_owned()))
    .to_vec();
    change(&mut tensors, &mut metadata);
    write_tensors(&path, &tensors, &metadata).unwrap();
    match AttentionStore::load(&path) {
        Ok(_) => String::new(),
        Err(error @ StoreError::Broken { .. }) => {
            let message = error.to_string();
            assert!(
                message.contains("a.safetensors") && message.contains("start the run again"),
                "{message}"
            );
            message
        }
        Err(other) => panic!("{other}"),
    }
}

fn set(metadata: &mut [(&str, String)], key: &str, value: &str) {
    metadata.iter_mut().find(|(k, _)| *k == key).unwrap().1 = value.to_owned();
}

#[test]
fn a_broken_store_says_what_is_wrong_with_it() {
    assert_eq!(refusal(|_, _| {}), "", "the unchanged file is fine");
    let earlier = refusal(|_, metadata| set(metadata, "format", "palimpsest attention store 1"));
    assert_eq!(earlier, "", "version 0.1.0's is read");
    type Tensors<'a, 'b> = &'a mut Vec<(&'b str, Values, Vec<usize>)>;
    let tensor = |change: fn(Tensors)| refusal(|tensors, _| change(tensors));
    let meta = |key: &'static str, value: &'static str| refusal(|_, metadata| set(metadata, key, value));
    for (found, expected) in [
        (tensor(|t| drop(t.remove(0))), "`mass`"),
        (tensor(|t| drop(t.remove(1))), "`tokens`"),
        (tensor(|t| t[0].2 = vec![4]), "[4]"),
        (tensor(|t| t[0].2 = vec![2, 2, 1, 1]), "2 spans"),
        (tensor(|t| t[0].1 = Values::U32(vec![0; 4])), "`mass` is U32"),
        (tensor(|t| t.push(("sink", Values::F32(vec![0.0; 3]), vec![3]))), "sink"),
        (tensor(|t| t[1].2 = vec![3, 1]), "`tokens` has shape [3, 1]"),
        (meta("format", "palimpsest trace 1"), "palimpsest trace 1"),
        (meta("layers", "[0, 1]"), "2 layers"),
        (meta("layers", "zero"), "`layers` does not parse"),
        (meta("rows", "[]"), "0 rows"),
        (meta("rows", r#"[{"label": "query"}]"#), "`rows` does not parse"),
        (meta("rows", r#"[{"label": "query", "start": 3, "end": 2}]"#), "`query` [3, 2)"),
        (meta("rows", r#"[{"label": "query", "start": 2, "end": 4}]"#), "`query` [2, 4)"),
        (refusal(|_, m| m.retain(|(key, _)| *key != "case")), "no `case`"),
        (refusal(|_, m| m.retain(|(key, _)| *key != "spans")), "no `spans`"),
    ] {
        assert!(found.contains(expected), "{found:?} does not say {expected:?}");
    }
}

#[test]
fn a_store_whose_linear_layers_do_not_fit_together_says_so() {
    let linear = |share: Vec<usize>, layers: Option<&str>| {
        refusal(|tensors, metadata| {
            let zeros = |shape: &[usize]| Values::F32(vec![0.0; shape.iter().product()]);
            tensors.push(("delta_signed", zeros(&[2, 3, 1, 2]), vec![2, 3, 1, 2]));
            tensors.push(("delta_share", zeros(&share), share));
            metadata.extend(layers.map(|layers| ("delta_layers", layers.to_owned())));
        })
    };
    assert_eq!(linear(vec![2, 3, 1, 2], Some("[1, 2]")), "");
    for (found, expected) in [
        (
            linear(vec![2, 3, 1, 2], Some("[1]")),
            "`delta_signed` has shape [2, 3, 1, 2] but its metadata names 1",
        ),
        (linear(vec![2, 3, 2, 1], Some("[1, 2]")), "`delta_share` has shape [2, 3, 2, 1]"),
        (linear(vec![2, 4, 1, 2], Some("[1, 2]")), "`delta_share` [2, 4, 1, 2]"),
        (linear(vec![2, 3, 2], Some("[1, 2]")), "`delta_share` has shape [2, 3, 2]"),
        (linear(vec![2, 3, 1, 2], None), "no `delta_layers`"),
        (linear(vec![2, 3, 1, 2], Some("1")), "`delta_layers` does not parse"),
        (refusal(|_, m| m.push(("delta_layers", "[1]".to_owned()))), "`delta_signed`"),
    ] {
        assert!(found.contains(expected), "{found:?} does not say {expected:?}");
    }
}

#[test]
fn a_truncated_store_or_any_other_file_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.safetensors");
    store().save(&path).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let refused = |path: &Path| matches!(AttentionStore::load(path), Err(StoreError::Broken { .. }));
    for length in [0, 4, 8, 100, bytes.len() - 1] {
        std::fs::write(&path, &bytes[..length]).unwrap();
        assert!(refused(&path), "{length} bytes");
    }
    std::fs::write(&path, b"{\"not\": \"safetensors\"}").unwrap();
    assert!(refused(&path));
}
