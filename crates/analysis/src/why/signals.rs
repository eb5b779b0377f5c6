//! Predicts labels from cheap signals, cross-validated over cases.
//!
//! A signal needs no further forward pass: attention masses over all or retrieval heads, and value norms and attributions if `palimpsest
//! causes` measured them. Each is fitted alone ([`palimpsest_data::statistics::logistic`]), leaving out one case at a time, and its
//! held-out probabilities are scored against the base rate.

use palimpsest_core::attention::AttentionStore;
use palimpsest_core::span::Span;

use super::evidence::{mass, roles, spans};
use super::labels::Labels;
use palimpsest_data::benchmarks::{Benchmark, QUERY, Side, Table};
use palimpsest_data::ground::sheet::Columns;
use palimpsest_data::statistics::logistic::{auc, base_rates, brier, held_out, reliability};
use palimpsest_run::runs::causes::session_measures::{SessionMeasures, measures_file};
use palimpsest_run::runs::error::RunError;
use palimpsest_run::runs::store::RunFolder;
use palimpsest_run::runs::why_rows::Label;

/// Minimum answers with and without a label.
const FEWEST: usize = 5;

const BINS: usize = 5;

/// Signals of one answer; `None` if not measured.
type Signals = Vec<(&'static str, Option<f64>)>;

/// Table of signals against the labels of re-read wrong answers; `None` if no label is frequent enough. `retrieving`: the model's retrieval
/// heads (decoder layer, head), if known.
pub fn table(
    folder: &RunFolder,
    labels: &Labels<'_>,
    retrieving: Option<&[(usize, usize)]>,
) -> Result<Option<Table>, RunError> {
    let benchmark = folder.benchmark()?;
    let mut known: Vec<(&str, Label, Signals)> = Vec::new();
    for (record, row) in &labels.answers {
        let Some(plain) = row.plain.filter(|_| row.label != Label::Right && row.newer.is_some()) else {
            continue;
        };
        let Some(store) = record.row.map(|row| folder.attention(row)).transpose()?.flatten() else {
            continue;
        };
        let (dir, name) = (&folder.dir, measures_file(plain.measure, row.key()));
        let there = SessionMeasures::is_there(dir, &name);
        let measures = there.then(|| SessionMeasures::open(dir, &name)).transpose()?;
        known.push((&row.case, row.label, signals(benchmark, (&store, retrieving), measures.as_ref())));
    }
    let mut rows = Vec::new();
    for label in [Label::NoEffect, Label::Overridden, Label::Carried, Label::Undecided] {
        let names = known.first().into_iter().flat_map(|(.., signals)| signals).map(|(name, _)| *name);
        for (nth, name) in names.enumerate() {
            let measured = known.iter().filter_map(|(case, own, signals)| {
                let value = signals.get(nth)?.1.filter(|value| value.is_finite())?;
                Some((*case, *own == label, value))
            });
            let cells = foretold(&measured.collect::<Vec<_>>());
            rows.extend(cells.map(|cells| (label, name, cells)));
        }
    }
    if rows.is_empty() {
        return Ok(None);
    }
    let mut table =
        Columns::of(&rows).text("label", |(label, ..)| label.key()).text("signal", |(_, name, _)| *name);
    for (at, head) in ["answers", "with label", "AUC", "Brier", "base rate's"].into_iter().enumerate() {
        table = table.number(head, |(.., cells)| &*cells[at]);
    }
    let note = "AUC below 0.5: low values go with the label. Brier scores are cross-validated over cases; a signal predicts a label if its \
                score is below the base rate's"
        .to_owned();
    Ok(Some(Table {
        key: "why_signals".to_owned(),
        title: "labels of wrong answers, predicted from one signal".to_owned(),
        sheet: table.text("predicted:observed (answers)", |(.., cells)| &*cells[5]).sheet(vec![note]),
    }))
}

/// Accuracy with which one signal, by case, predicts that an answer has a label; `None` with too few answers.
fn foretold(measured: &[(&str, bool, f64)]) -> Option<[String; 6]> {
    let with = measured.iter().filter(|(_, own, _)| *own).count();
    if with < FEWEST || measured.len() - with < FEWEST {
        return None;
    }
    let cases: Vec<&str> = measured.iter().map(|(case, ..)| *case).collect();
    let y: Vec<bool> = measured.iter().map(|(_, own, _)| *own).collect();
    let x: Vec<f64> = measured.iter().map(|(.., value)| *value).collect();
    let p = held_out(&x, &y, &cases);
    let bins = reliability(&p, &y, BINS);
    let bins = bins.iter().map(|bin| format!("{:.2}:{:.2} ({})", bin.foretold, bin.came, bin.count));
    let number = |x: f64| format!("{x:.3}");
    Some([
        measured.len().to_string(),
        with.to_string(),
        auc(&x, &y).map(number).unwrap_or_default(),
        number(brier(&p, &y)),
        number(brier(&base_rates(&y, &cases), &y)),
        bins.collect::<Vec<_>>().join(" "),
    ])
}

fn signals(
    benchmark: &Benchmark,
    (store, retrieving): (&AttentionStore, Option<&[(usize, usize)]>),
    measures: Option<&SessionMeasures>,
) -> Signals {
    let of = |side: Side| spans(store, &roles(benchmark, side));
    let (newer, older) = (of(Side::Newer), of(Side::Older));
    let mass = |row: &str, spans: &[&Span]| sum(spans, |span| mass(store, row, span));
    let last = |spans: &[&Span]| mass("last", spans);
    let retrieved = |spans: &[&Span]| retrieving.and_then(|heads| mass_of(store, heads, "last", spans));
    let ratio = |a: Option<f64>, b: Option<f64>| Some((a? / b?).ln());
    let place =
        |measures: &SessionMeasures, span: &Span| measures.spans.iter().position(|own| *own == span.label);
    // Value norms of the row that predicts the answer, averaged over layers and heads; attributions are summed.
    let norm = |spans: &[&Span]| {
        let of = |span: &Span| {
            let key = place(measures?, span)?;
            measures?.value_norm.slice(ndarray::s![.., .., 1, key]).mean().map(f64::from)
        };
        sum(spans, of)
    };
    let attributed = |spans: &[&Span]| {
        let of = |span: &Span| {
            let key = place(measures?, span)?;
            Some(f64::from(measures?.attribution.slice(ndarray::s![.., .., key]).sum()))
        };
        sum(spans, of)
    };
    let difference = |a: Option<f64>, b: Option<f64>| Some(a? - b?);
    vec![
        ("log mass, question to newer", mass(QUERY, &newer).map(f64::ln)),
        ("log mass, question to older", mass(QUERY, &older).map(f64::ln)),
        ("log mass ratio newer/older, question", ratio(mass(QUERY, &newer), mass(QUERY, &older))),
        ("log mass, last position to newer", last(&newer).map(f64::ln)),
        ("log mass ratio newer/older, last position", ratio(last(&newer), last(&older))),
        ("log mass, last position to newer, retrieval heads", retrieved(&newer).map(f64::ln)),
        (
            "log mass ratio newer/older, last position, retrieval heads",
            ratio(retrieved(&newer), retrieved(&older)),
        ),
        ("log value norm ratio newer/older", ratio(norm(&newer), norm(&older))),
        ("attribution to newer", attributed(&newer)),
        ("attribution to newer less older", difference(attributed(&newer), attributed(&older))),
    ]
}

/// Mass of a row on spans, averaged over heads (decoder layer, head); `None` if a layer is missing.
fn mass_of(store: &AttentionStore, heads: &[(usize, usize)], row: &str, spans: &[&Span]) -> Option<f64> {
    let row = store.rows.iter().position(|own| own.label == row || own.is(row))?;
    let of = |span: &Span| {
        let key = store.keys.iter().position(|key| key.label == span.label)?;
        let of_head = |&(layer, head): &(usize, usize)| {
            let at = store.layers.iter().position(|own| *own == layer)?;
            store.mass.get([at, head, row, key]).copied().map(f64::from)
        };
        let all: Vec<f64> = heads.iter().map(of_head).collect::<Option<_>>()?;
        Some(all.iter().sum::<f64>() / all.len().max(1) as f64)
    };
    sum(spans, of)
}

fn sum(spans: &[&Span], of: impl Fn(&Span) -> Option<f64>) -> Option<f64> {
    if spans.is_empty() { None } else { spans.iter().map(|span| of(span)).sum() }
}

#[cfg(test)]
mod tests {
    use ndarray::Array4;

    use super::*;

    #[test]
    fn retrieval_heads_are_found_by_their_decoder_layer() {
        // Layers 3 and 5, two heads, one row, two spans; every mass is distinct.
        let mass = Array4::from_shape_fn((2, 2, 1, 2), |(layer, head, _, key)| {
            (100 * layer + 10 * head + key) as f32
        });
        let store = AttentionStore {
            mass,
            sink: None,
            uniform: None,
            delta: None,
            kept: None,
            selected: None,
            layers: vec![3, 5],
            rows: vec![Span::new("last", 8..9)],
            keys: vec![Span::new("session[0]", 0..4), Span::new("session[1]", 4..8)],
            tokens: vec![0; 9],
            generated: Vec::new(),
            case: String::new(),
            probe: String::new(),
            condition: String::new(),
            model: String::new(),
            dtype: String::new(),
        };
        let both: Vec<&Span> = store.keys.iter().collect();
        // Span 2: (100 + 1) at layer 5 head 0, (10 + 1) at layer 3 head 1; span 1 adds 100 and 10.
        assert_eq!(mass_of(&store, &[(5, 0), (3, 1)], "last", &both[1..]), Some(56.0));
        assert_eq!(mass_of(&store, &[(5, 0), (3, 1)], "last", &both), Some(111.0));
        assert_eq!(mass_of(&store, &[(4, 0)], "last", &both), None);
        assert_eq!(mass_of(&store, &[(5, 0)], "last", &[]), None);
    }
}
