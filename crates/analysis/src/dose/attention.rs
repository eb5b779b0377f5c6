//! Attention of an answer to the sessions in each role: mass, share, density, and value norms where the measure of causes left them.

use std::collections::BTreeMap;
use std::path::Path;

use ndarray::Axis;

use crate::lens::layers::mean_over;
use crate::lens::roles::role_attention;
use crate::lens::{Layer, LayerKind};
use palimpsest_core::ablate::Measure;
use palimpsest_core::attention::AttentionStore;
use palimpsest_data::benchmarks::QUERY;
use palimpsest_data::benchmarks::dose::terms::{NEW, ROLES};
use palimpsest_run::runs::causes::session_measures::{SessionMeasures, measures_path};
use palimpsest_run::runs::plan::PlannedEvidence;
use palimpsest_run::runs::rows::AnswerRow;

use super::DoseError;

pub const ROWS: [&str; 4] = [QUERY, "last", "answer", NEW];

/// Numbers by name ([`name`]): the mean over the layers of one kind, and by layer.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Measured {
    pub means: BTreeMap<String, f64>,
    /// By layer; NaN where one is not defined.
    pub by_layer: BTreeMap<String, Vec<f64>>,
}

/// The name of a number: `mass_query_new`, `density_new_old`.
pub fn name(measure: &str, from: &str, to: &str) -> String {
    format!("{measure}_{from}_{to}")
}

/// The attention of an answer, whose file is relative to the run folder, with the layers of the file.
pub(super) fn measure(
    dir: &Path,
    file: &str,
    row: &AnswerRow,
    evidence: &[PlannedEvidence],
) -> Result<(Vec<Layer>, Measured), DoseError> {
    let path = dir.join(file);
    let store = AttentionStore::load(&path)?;
    let (layers, found) = role_attention(&path, (&store, None), &ROWS, &ROLES)?;
    // Layers that see the whole prompt, or those of the first kind that there is.
    let kind = LayerKind::ALL.into_iter().find(|kind| layers.iter().any(|layer| layer.kind == *kind));
    let mut measured = Measured::default();
    // Of a session's attention to itself nothing is asked.
    for one in found.into_iter().filter(|one| one.from != one.to) {
        for (measure, values) in [("mass", one.mass), ("share", one.share), ("density", one.density)] {
            let key = name(measure, &one.from, &one.to);
            let mean = kind.and_then(|kind| mean_over(&layers, kind, &values));
            if let Some(mean) = mean.filter(|mean| mean.is_finite()) {
                measured.means.insert(key.clone(), mean);
            }
            if measure != "share" {
                measured.by_layer.insert(key, values);
            }
        }
    }
    measured.means.extend(value_norms(dir, row, evidence)?);
    Ok((layers, measured))
}

/// Weighted value norms of the rows to each role, where they were measured: the mean over layers and heads of the sum over the role's sessions.
fn value_norms(
    dir: &Path,
    row: &AnswerRow,
    evidence: &[PlannedEvidence],
) -> Result<BTreeMap<String, f64>, DoseError> {
    // Those of a contrast, whose row `answer` predicts the values, before those of a free answer.
    let mut paths =
        [Measure::Contrast, Measure::LogP].into_iter().map(|of| measures_path(dir, of, row.key()));
    let mut found = BTreeMap::new();
    let Some(path) = paths.find(|path| SessionMeasures::is_there(path)) else { return Ok(found) };
    let measures = SessionMeasures::open(&path)?;
    let means =
        measures.value_norm.mapv(f64::from).mean_axis(Axis(1)).and_then(|mean| mean.mean_axis(Axis(0)));
    let Some(means) = means else { return Ok(found) }; // (rows, spans)
    for role in ROLES {
        let labels: Vec<String> = (evidence.iter().filter(|one| one.role == role))
            .map(|one| format!("session[{}]", one.segment))
            .collect();
        let spans: Vec<usize> = (measures.spans.iter().enumerate())
            .filter(|(_, span)| labels.contains(span))
            .map(|(at, _)| at)
            .collect();
        if spans.is_empty() {
            continue;
        }
        for (at, from) in measures.rows.iter().enumerate() {
            found.insert(name("value_norm", from, role), spans.iter().map(|&span| means[(at, span)]).sum());
        }
    }
    Ok(found)
}
