//! Attention of an answer to sessions by role: mass, share, density, and value norms if measured.

use std::collections::BTreeMap;
use std::path::Path;

use ndarray::Axis;

use crate::lens::layers::mean_over;
use crate::lens::roles::role_attention;
use crate::lens::{Layer, LayerKind};
use palimpsest_core::ablate::Measure;
use palimpsest_data::benchmarks::QUERY;
use palimpsest_data::benchmarks::dose::terms::{NEW, ROLES};
use palimpsest_run::runs::causes::session_measures::{SessionMeasures, measures_file};
use palimpsest_run::runs::plan::PlannedEvidence;
use palimpsest_run::runs::rows::AnswerRow;
use palimpsest_run::runs::store::read_attention;

use super::error::DoseError;

pub const ROWS: [&str; 4] = [QUERY, "last", "answer", NEW];

/// Numbers by name ([`name`]): the mean over layers of one kind, and per layer.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Measured {
    pub means: BTreeMap<String, f64>,
    pub by_layer: BTreeMap<String, Vec<f64>>,
}

/// Formats a name such as `mass_query_new` or `density_new_old`.
pub fn name(measure: &str, from: &str, to: &str) -> String {
    format!("{measure}_{from}_{to}")
}

pub(super) fn measure(
    dir: &Path,
    file: &str,
    row: &AnswerRow,
    evidence: &[PlannedEvidence],
) -> Result<(Vec<Layer>, Measured), DoseError> {
    let path = dir.join(file);
    let store = read_attention(dir, file)?;
    let (layers, found) = role_attention(&path, (&store, None), &ROWS, &ROLES)?;
    // Prefer layers that see the whole prompt, else the first kind present.
    let kind = LayerKind::ALL.into_iter().find(|kind| layers.iter().any(|layer| layer.kind == *kind));
    let mut measured = Measured::default();
    // Skip a session's attention to itself.
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

/// Value-weighted attention norms of the rows to each role, if measured: summed over the role's sessions, averaged over layers and heads.
fn value_norms(
    dir: &Path,
    row: &AnswerRow,
    evidence: &[PlannedEvidence],
) -> Result<BTreeMap<String, f64>, DoseError> {
    // Prefer the contrast, whose row `answer` predicts the values, over the free answer.
    let mut names = [Measure::Contrast, Measure::LogP].into_iter().map(|of| measures_file(of, row.key()));
    let mut found = BTreeMap::new();
    let Some(file) = names.find(|file| SessionMeasures::is_there(dir, file)) else { return Ok(found) };
    let measures = SessionMeasures::open(dir, &file)?;
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
