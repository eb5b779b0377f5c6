//! Kinds of layers, linear and windowed ones: indices, signed sums, means over one kind. Kinds of questions: a single one.

use super::*;

#[test]
fn every_layer_of_a_hybrid_model_has_its_own_index_and_kind() {
    let kinds = |plan: &Plan| -> Vec<(usize, LayerKind)> {
        lens_of(plan).1.layers.iter().map(|layer| (layer.index, layer.kind)).collect()
    };
    use LayerKind::{Linear, Softmax};
    let of = |kinds: &[LayerKind]| kinds.iter().copied().enumerate().collect::<Vec<_>>();
    let group = [Linear, Linear, Linear, Softmax];
    assert_eq!(kinds(&Plan::hybrid()), of(&[group, group].concat()));
    assert_eq!(kinds(&Plan::linear()), of(&[Linear; 6]));
    assert_eq!(kinds(&Plan::small()), of(&[Softmax; 5]));
    let (_dir, lens) = lens_of(&Plan::hybrid());
    assert_eq!(lens.layer_kinds(), vec![(Softmax, 2), (Linear, 6)]);
    assert_eq!(lens.layers_in_words(), "8 layers (2 softmax, 6 linear)");
    assert_eq!(lens_of(&Plan::small()).1.layers_in_words(), "5 layers");
    let series = lens.series(&Group::all(), Statistic::RatioOfMeans, Scale::Mass);
    assert_eq!(series.points.iter().map(|p| p.layer).collect::<Vec<_>>(), lens.layers);
}

#[test]
fn what_a_query_pays_to_the_whole_prompt_is_1_at_every_layer() {
    let (dir, lens) = lens_of(&Plan::hybrid());
    for example in lens.examples.iter().filter(|e| e.case == "case-003") {
        let store = store(dir.path(), 3, &example.probe);
        let outside = (0..store.keys.len()).filter(|k| store.keys[*k].segment().is_none());
        let outside: Vec<Vec<f64>> = outside.map(|key| to_span(&store, QUERY_ROW, key)).collect();
        for layer in 0..8 {
            let sessions: f64 = example.segments.iter().map(|s| s.mass[layer]).sum();
            let rest: f64 = outside.iter().map(|span| span[layer]).sum();
            assert!((sessions + rest - 1.0).abs() < 1e-6, "layer {layer}: {sessions} + {rest}");
            assert!(sessions > 0.0);
        }
    }
}

#[test]
fn signed_sums_stand_beside_the_curves_of_linear_layers() {
    let plan = Plan::hybrid();
    let (dir, lens) = lens_of(&plan);
    let signed = |case: usize, probe: &str| -> Vec<Option<f64>> {
        let store = store(dir.path(), case, probe);
        let (old, _) = synthetic::evidence(case, plan.sessions);
        let key = store.keys.iter().position(|span| span.segment() == Some(old)).unwrap();
        let delta = store.delta.as_ref().unwrap();
        let at = |layer: usize| {
            let place = delta.layers.iter().position(|l| *l == layer)?;
            Some(over_heads(&delta.signed, place, QUERY_ROW, key))
        };
        (0..plan.layers).map(at).collect()
    };
    let close = |ours: Option<f64>, plain: Option<f64>| match (ours, plain) {
        (Some(a), Some(b)) => (a - b).abs() < 1e-9,
        (a, b) => a == b,
    };
    let example = lens.examples.iter().find(|e| e.case == "case-002" && e.probe == "IPA").unwrap();
    let ours = example.signed(QUERY_TO_OLD, Target::Signal).unwrap();
    let (old, _) = synthetic::evidence(2, plan.sessions);
    let session = example.segments.iter().find(|s| s.index == old).unwrap();
    for (layer, plain) in signed(2, "IPA").into_iter().enumerate() {
        assert!(close(ours[layer], plain), "layer {layer}: {:?} is not {plain:?}", ours[layer]);
        assert_eq!(session.signed[layer], ours[layer]);
        assert_eq!(plain.is_none(), plan.is_softmax(layer));
    }

    let group = Group { probe: Some("SR".to_owned()), ..Group::all() };
    let statistic = Statistic::Mean(QUERY_TO_OLD, Target::Signal);
    let by_case: Vec<_> = (0..plan.cases).map(|case| signed(case, "SR")).collect();
    for point in lens.series(&group, statistic, Scale::Mass).points {
        let at: Option<Vec<f64>> = by_case.iter().map(|layers| layers[point.layer.index]).collect();
        let plain = at.map(|values| values.iter().sum::<f64>() / values.len() as f64);
        assert!(close(point.signed, plain), "{:?}: {:?} is not {plain:?}", point.layer, point.signed);
    }
    let density = lens.series(&group, statistic, Scale::Density);
    assert!(density.points.iter().all(|point| point.signed.is_none()));
    let (_dir, softmax) = lens_of(&Plan::small());
    assert_eq!(softmax.examples[0].signed(QUERY_TO_OLD, Target::Signal), None);
}

#[test]
fn a_mean_over_layers_is_over_one_kind() {
    let (_dir, lens) = lens_of(&Plan::hybrid());
    let series = lens.series(&Group::all(), Statistic::Mean(QUERY_TO_NEW, Target::Signal), Scale::Mass);
    let at = |layer: usize| series.points[layer].value.unwrap();
    let softmax = (at(3) + at(7)) / 2.0;
    let linear = (at(0) + at(1) + at(2) + at(4) + at(5) + at(6)) / 6.0;
    assert!((series.mean_over(LayerKind::Softmax).unwrap() - softmax).abs() < 1e-12);
    assert!((series.mean_over(LayerKind::Linear).unwrap() - linear).abs() < 1e-12);
    assert!((softmax - linear).abs() > 0.01, "planted apart");
    let example = &lens.examples[0];
    let session = &example.segments[0];
    let plain = (session.mass[3] + session.mass[7]) / 2.0;
    assert!((example.mean_over(LayerKind::Softmax, session).unwrap() - plain).abs() < 1e-12);
    let (_dir, lens) = lens_of(&Plan::linear());
    let series = lens.series(&Group::all(), Statistic::RatioOfMeans, Scale::Mass);
    assert_eq!(series.mean_over(LayerKind::Softmax), None);
    assert!(series.mean_over(LayerKind::Linear).is_some());
}

#[test]
fn tables_name_the_kind_of_each_layer_where_kinds_differ() {
    let head = |path: &Path| std::fs::read_to_string(path).unwrap().lines().next().unwrap().to_owned();
    let plan = Plan::hybrid();
    let (dir, lens) = lens_of(&plan);
    let out = dir.path().join("lens");
    table::write("", &lens, &out).unwrap();
    let mut reader = csv::Reader::from_path(out.join("curves.csv")).unwrap();
    let rows: Vec<BTreeMap<String, String>> = reader.deserialize().map(Result::unwrap).collect();
    let groups = lens.groups().iter().filter(|group| lens.units(group) > 0).count();
    assert_eq!(rows.len(), groups * 3 * 2 * 2 * plan.layers, "groups, curves, parts, scales, layers");
    for row in &rows {
        let softmax = plan.is_softmax(row["layer"].parse().unwrap());
        assert_eq!(row["layer_kind"], if softmax { "softmax" } else { "linear" });
        assert_eq!(row["signed"].is_empty(), softmax || row["scale"] == "density");
        assert!(row["signed"].is_empty() || row["signed"].parse::<f64>().unwrap().is_finite());
    }
    assert!(head(&out.join("ratios.csv")).ends_with(",lo,hi,cases,layer_kind,condition"));
    assert!(head(&out.join("strip.csv")).ends_with(",n,mean,layer_kind,condition"));

    let (dir, lens) = lens_of(&Plan::small());
    for path in table::write("", &lens, &dir.path().join("lens")).unwrap() {
        assert!(!head(&path).contains("layer_kind") && !head(&path).contains("signed"), "{path:?}");
    }
}

#[test]
fn stores_whose_linear_layers_are_damaged_or_differ_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    synthetic::write(dir.path(), &Plan::hybrid());
    let path = dir.path().join("attention/case-003-SR.safetensors");
    let good = AttentionStore::load(&path).unwrap();
    let refusal = |change: &dyn Fn(&mut AttentionStore)| {
        let mut store = good.clone();
        change(&mut store);
        store.save(&path).unwrap();
        let error = synthetic::lens(dir.path(), &Options::default()).unwrap_err();
        assert!(error.to_string().contains("case-003-SR"), "{error}");
        error
    };
    let share = refusal(&|store| store.delta.as_mut().unwrap().share[[1, 0, 0, 0]] = -0.25);
    assert!(share.to_string().contains("`delta_share` holds -0.25"), "{share}");
    let signed = refusal(&|store| store.delta.as_mut().unwrap().signed[[1, 0, 0, 0]] = f32::NAN);
    assert!(signed.to_string().contains("`delta_signed` holds NaN"), "{signed}");
    let twice = refusal(&|store| store.layers[0] = 2);
    assert!(twice.to_string().contains("layer 2 twice"), "{twice}");
    let other = refusal(&|store| store.delta = None);
    assert!(matches!(other, LensError::Layers { .. }));
    assert!(other.to_string().contains("[3, 7]") && other.to_string().contains("6 (linear), 7]"), "{other}");
}

#[test]
fn density_respects_windows_and_means_over_layers_keep_windowed_layers_apart() {
    let keys = [
        Span::new("session[0]", 0..4).with_role("old"),
        Span::new("session[2]", 4..6),
        Span::new("session[3]", 6..8).with_role("new"),
        Span::new("query", 8..10).with_role("query"),
    ];
    let rows = vec![keys[3].clone()];
    // Rows 8 and 9 see everything before them at layer 0, and 5..9 and 6..10 at layer 1.
    let uniform = Uniform::new(vec![None, Some(4)], &rows, &keys);
    let share = |layer: usize, key: usize| f64::from(uniform.share[[layer, 0, key]]);
    for (key, expected) in [0.0, 0.125, 0.5, 0.375].into_iter().enumerate() {
        assert!((share(1, key) - expected).abs() < 1e-7, "{key}: {}", share(1, key));
    }
    let density = [[0.5, 1.0, 2.0, 0.25], [f64::NAN, 3.0, 0.5, 1.0]];
    let mass = |layer: usize, key: usize| match share(layer, key) {
        0.0 => 0.0,
        share => (share * density[layer][key]) as f32,
    };
    let mass = Array4::from_shape_fn((2, 1, 1, 4), |(l, _, _, k)| mass(l, k));
    let store = AttentionStore { uniform: Some(uniform.clone()), ..of_masses(mass, rows, keys.to_vec()) };
    let example = Example::measure(Path::new("a.safetensors"), &store, &STALE, Baseline::Both, None).unwrap();
    let kinds: Vec<LayerKind> = example.layers.iter().map(|layer| layer.kind).collect();
    assert_eq!(kinds, [LayerKind::Softmax, LayerKind::Windowed]);
    let of = |curve, scale| example.curve(curve, Target::Signal, scale).unwrap().to_vec();
    let new = of(QUERY_TO_NEW, Scale::Density);
    assert!((new[0] - 2.0).abs() < 1e-6 && (new[1] - 0.5).abs() < 1e-6, "{new:?}");
    let old = of(QUERY_TO_OLD, Scale::Density);
    assert!((old[0] - 0.5).abs() < 1e-6 && old[1].is_nan(), "{old:?}");
    let ratio = example.ratio((QUERY_TO_NEW, QUERY_TO_OLD), Scale::Density).unwrap();
    assert!((ratio[0].unwrap() - 4.0).abs() < 1e-5 && ratio[1].is_none(), "{ratio:?}");
    let session = &example.segments[1];
    assert_eq!(example.mean_over(LayerKind::Softmax, session), Some(session.mass[0]));
    assert_eq!(example.mean_over(LayerKind::Windowed, session), Some(session.mass[1]));

    // A file of version 0.1.0 lacks the windows: every layer counts as full attention.
    let before = AttentionStore { uniform: None, ..store };
    let example =
        Example::measure(Path::new("a.safetensors"), &before, &STALE, Baseline::Both, None).unwrap();
    assert!(example.layers.iter().all(|layer| layer.kind == LayerKind::Softmax));
    let new = example.curve(QUERY_TO_NEW, Target::Signal, Scale::Density).unwrap();
    assert!((new[1] - 0.25 / share(0, 2)).abs() < 1e-6, "{new:?}");
}

#[test]
fn the_only_question_form_has_no_second_rows_and_empty_columns_are_not_printed() {
    let (dir, plan) = (tempfile::tempdir().unwrap(), &Plan::small());
    synthetic::write(dir.path(), plan);
    let rewrite = |file: &str, keep: &dyn Fn(&mut serde_json::Value) -> bool| {
        let text = std::fs::read_to_string(dir.path().join(file)).unwrap();
        let kept = text.lines().filter_map(|line| {
            let mut row = serde_json::from_str(line).unwrap();
            keep(&mut row).then(|| format!("{row}\n"))
        });
        std::fs::write(dir.path().join(file), kept.collect::<String>()).unwrap();
    };
    rewrite("plan.jsonl", &|row| {
        row["probes"].as_array_mut().unwrap().retain(|probe| probe["id"] == "SR");
        true
    });
    for file in ["answers.jsonl", "verdicts.jsonl"] {
        rewrite(file, &|row| row["probe"] == "SR");
    }
    // No prompt shows the old session.
    for case in 0..plan.cases {
        let (old, _) = synthetic::evidence(case, plan.sessions);
        let kept: Vec<usize> = (0..plan.sessions).filter(|session| *session != old).collect();
        let path = dir.path().join(format!("attention/case-{case:03}-SR.safetensors"));
        synthetic::store(plan, case, "SR", &kept).save(&path).unwrap();
    }
    let study = Study::open(dir.path(), &[], &Options::default()).unwrap();
    let text = palimpsest::lens::in_words(&study, 1000);
    let table: Vec<Vec<&str>> = text
        .lines()
        .skip_while(|line| !line.starts_with("group "))
        .take_while(|line| !line.is_empty())
        .map(|line| line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect())
        .collect();
    assert_eq!(table[0], ["group", "n", "query to new"], "{text}");
    let labels: Vec<&str> = table[1..].iter().map(|row| row[0]).collect();
    let expected = ["all types SR", "all types SR correct", "all types SR wrong"];
    assert_eq!(labels[..3], expected, "{text}");
    assert_eq!(labels.iter().filter(|label| expected.contains(label)).count(), 3, "{text}");
    // The tables keep the group of the form.
    let (_, lens) = study.measured().next().unwrap();
    assert!(lens.groups().iter().any(|group| group.probe.as_deref() == Some("SR")));
}
