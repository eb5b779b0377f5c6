//! Attention of the question and answer to each session, in several measures, for comparison with the effect of blocking it.
//!
//! One forward pass from the question on per answer; one safetensors file per answer.

use std::io::Read;
use std::path::Path;

use ndarray::{Array, Array3, Array4, ArrayD, Dimension};
use safetensors::tensor::{Dtype, SafeTensors};

use crate::runs::error::RunError;
use crate::runs::plan::attention_file;
use crate::runs::rows::AnswerKey;
use palimpsest_core::ablate::{self, Measure, Said};
use palimpsest_core::attention::{AttentionStore, Target, named_tensor, tensors_bytes};
use palimpsest_core::engine::{
    Branch, EngineError, Event, Measured, Observe, Request, RequestError, Reuse, Rows, Session, Task,
};
use palimpsest_core::span::Span;
use palimpsest_data::benchmarks::QUERY;
use palimpsest_data::ground::folder;

/// Maximum number of leading answer tokens used for logit attribution.
pub const ATTRIBUTED: usize = 32;

pub const MEASURES: &str = "causes";

/// Subfolder for contrasts, where the answer is one token: the current value's.
pub const CONTRAST_MEASURES: &str = "causes-contrast";

/// Rows of every answer: the question's tokens, and the positions that predict the answer after its thought.
pub const ROWS: [&str; 2] = [QUERY, "answer"];

/// Additional row for thoughts: the positions that predict its tokens.
pub const THOUGHT: &str = "thought";

/// Format 1 counted the thought as answer.
const FORMAT: &str = "palimpsest session measures 2";

#[derive(Debug, Clone, PartialEq)]
pub struct SessionMeasures {
    pub layers: Vec<usize>,
    /// Sessions before the question, in prompt order.
    pub spans: Vec<String>,
    /// [`ROWS`], then [`THOUGHT`] if there is one.
    pub rows: Vec<String>,
    /// f32 `[layers, heads, rows, spans]`, as in [`AttentionStore::mass`].
    pub mass: Array4<f32>,
    /// f32 `[layers, rows, spans]`: mass under uniform attention.
    pub share: Array3<f32>,
    /// Shape of `mass`: mean over rows of sum_j A_ij * norm2(W_O^h v_j).
    pub value_norm: Array4<f32>,
    /// Shape of `mass`: mean over rows of norm2(sum_j A_ij W_O^h v_j).
    pub output_norm: Array4<f32>,
    /// f32 `[layers, heads, spans]`: contribution to the answer's own logits, mean over its first [`ATTRIBUTED`] tokens after the thought.
    /// For contrasts: to the current value's logit minus the compared one's.
    pub attribution: Array3<f32>,
}

/// Spans that may be blocked: history spans before the question.
pub fn sessions(store: &AttentionStore) -> impl Iterator<Item = &Span> {
    let query = store.keys.iter().find(|span| span.is(QUERY)).map_or(0, |query| query.start);
    store.keys.iter().filter(move |span| span.segment().is_some() && !span.is_empty() && span.end <= query)
}

/// Name of an answer's measures within its run.
pub fn measures_file(of: Measure, answer: AnswerKey<&str>) -> String {
    let measures = match of {
        Measure::LogP => MEASURES,
        Measure::Contrast => CONTRAST_MEASURES,
    };
    let AnswerKey { case, probe, condition } = answer;
    attention_file(case, probe, condition).replacen("attention/", &format!("{measures}/"), 1)
}

impl SessionMeasures {
    /// Computes the prompt and target after the first `shared` tokens, which end before the question. For contrasts, the row `answer` is
    /// the position that predicts the values (the prompt's last if they differ in their first token). `go_on` receives the number of
    /// computed tokens and returns false to stop.
    pub fn read(
        session: &mut Session,
        store: &AttentionStore,
        shared: usize,
        target: ablate::Target<'_>,
        go_on: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Self, RequestError> {
        let query = store.keys.iter().find(|span| span.is(QUERY)).ok_or(EngineError::EmptyPrompt)?;
        // Position n - 1 predicts the first token after a prompt of n tokens.
        let last = store.tokens.len().checked_sub(1).ok_or(EngineError::EmptyPrompt)?;
        let mut rows = vec![Span::new(ROWS[0], query.range())];
        let (before, targets) = match target {
            ablate::Target::Answer(Said { tokens, thought }) => {
                let answered = tokens.get(thought..).filter(|answer| !answer.is_empty());
                let answered = answered.ok_or(EngineError::EmptyPrompt)?;
                let (first, before) = (last + thought, &tokens[..tokens.len() - 1]);
                rows.push(Span::new(ROWS[1], first..store.tokens.len() + before.len()));
                rows.extend((thought > 0).then(|| Span::new(THOUGHT, last..first)));
                let said = answered.iter().take(ATTRIBUTED).enumerate();
                let target = |(i, &token)| Target { position: first + i, token, against: None };
                (before, said.map(target).collect())
            }
            ablate::Target::Values(pair) => {
                let position = last + pair.before().len();
                rows.push(Span::new(ROWS[1], position..position + 1));
                let target = Target { position, token: pair.current(), against: Some(pair.against) };
                (pair.before(), vec![target])
            }
        };
        let tokens = [&store.tokens[shared..], before].concat();
        let labels = rows.iter().map(|row| row.label.clone()).collect();
        let count = targets.len();
        let observe = Observe {
            rows: Rows { spans: rows, ..Rows::default() },
            keys: sessions(store).cloned().collect(),
            norms: true,
            targets,
            softmax_only: true,
            ..Observe::default()
        };
        let branch = Branch { tokens, observe, tasks: vec![Task::Read], ..Branch::default() };
        let request =
            Request { prefix: store.tokens[..shared].into(), reuse: Reuse::Prefix, branches: vec![branch] };
        let measured = session.answer(request, &mut |event| match event {
            Event::Prefilled(tokens) => go_on(*tokens),
            _ => true,
        })?;
        let Measured { masses, norms: Some(norms), attributions: Some(found), .. } = measured else {
            return Err(EngineError::EmptyPrompt.into());
        };
        let (_, layers, heads, _) = found.heads.dim();
        let spans = masses.mass.dim().3;
        let mean = |(l, h, s): (usize, usize, usize)| {
            let of_targets = (0..count).map(|t| f64::from(found.heads[[t, l, h, s]]));
            (of_targets.sum::<f64>() / count.max(1) as f64) as f32
        };
        Ok(SessionMeasures {
            layers: masses.layers,
            spans: sessions(store).map(|span| span.label.clone()).collect(),
            rows: labels,
            share: masses.uniform.share,
            mass: masses.mass,
            value_norm: norms.value_norm,
            output_norm: norms.output_norm,
            attribution: Array3::from_shape_fn((layers, heads, spans), mean),
        })
    }

    pub fn save(&self, dir: &Path, name: &str, store: &AttentionStore, of: Measure) -> Result<(), RunError> {
        let attributed = match of {
            Measure::LogP => (store.generated.len() - store.thought()).min(ATTRIBUTED),
            Measure::Contrast => 1,
        };
        let json = |value: serde_json::Value| value.to_string();
        let tensors = [
            named_tensor("mass", &self.mass),
            named_tensor("share", &self.share),
            named_tensor("value_norm", &self.value_norm),
            named_tensor("output_norm", &self.output_norm),
            named_tensor("attribution", &self.attribution),
        ];
        let metadata = [
            ("format", FORMAT.to_owned()),
            ("case", store.case.clone()),
            ("probe", store.probe.clone()),
            ("condition", store.condition.clone()),
            ("layers", json(serde_json::json!(self.layers))),
            ("rows", json(serde_json::json!(self.rows))),
            ("spans", json(serde_json::json!(self.spans))),
            ("attributed_tokens", attributed.to_string()),
        ];
        let path = dir.join(name);
        let bytes = tensors_bytes(&tensors, &metadata)
            .map_err(|e| RunError::GaveUp(format!("{}: {e}", path.display())))?;
        folder::write(dir, name, &bytes).map_err(RunError::io("write", &path))
    }

    /// True if a file of the current format exists. Tensors are not checked.
    pub fn is_there(dir: &Path, name: &str) -> bool {
        let format = || -> Option<String> {
            let mut file = folder::open(dir, name).ok()??;
            let mut length = [0; 8];
            file.read_exact(&mut length).ok()?;
            let mut header = Vec::new();
            file.take(u64::from_le_bytes(length)).read_to_end(&mut header).ok()?;
            let header: serde_json::Value = serde_json::from_slice(&header).ok()?;
            Some(header["__metadata__"]["format"].as_str()?.to_owned())
        };
        format().as_deref() == Some(FORMAT)
    }

    pub fn open(dir: &Path, name: &str) -> Result<Self, RunError> {
        let path = dir.join(name);
        let broken = |reason: String| {
            let path = path.display();
            let remedy = "delete it and measure the causes again, which makes it anew";
            RunError::GaveUp(format!("{path}: {reason}; {remedy}"))
        };
        let read = folder::read(dir, name).map_err(|error| broken(error.to_string()))?;
        let bytes = read.ok_or_else(|| broken("there is no such file".to_owned()))?;
        let wrong = |error: safetensors::SafeTensorError| broken(error.to_string());
        let (_, header) = SafeTensors::read_metadata(&bytes).map_err(wrong)?;
        let metadata = header.metadata().clone().unwrap_or_default();
        let text = |key: &str| metadata.get(key).map(String::as_str).unwrap_or_default();
        if text("format") != FORMAT {
            return Err(broken(format!("its format is `{}`, not `{FORMAT}`", text("format"))));
        }
        let list = |key: &str| format!("its metadata `{key}` is `{}`", text(key));
        let layers = serde_json::from_str(text("layers")).map_err(|_| broken(list("layers")))?;
        let spans = serde_json::from_str(text("spans")).map_err(|_| broken(list("spans")))?;
        let rows: Vec<String> = serde_json::from_str(text("rows")).map_err(|_| broken(list("rows")))?;
        let (known, behind) = rows.split_at(ROWS.len().min(rows.len()));
        if known != ROWS || !(behind.is_empty() || behind == [THOUGHT]) {
            return Err(broken(list("rows")));
        }
        let file = SafeTensors::deserialize(&bytes).map_err(wrong)?;
        let measures = SessionMeasures {
            layers,
            spans,
            rows,
            mass: array(&file, "mass").map_err(broken)?,
            share: array(&file, "share").map_err(broken)?,
            value_norm: array(&file, "value_norm").map_err(broken)?,
            output_norm: array(&file, "output_norm").map_err(broken)?,
            attribution: array(&file, "attribution").map_err(broken)?,
        };
        let (layers, heads, rows, spans) = measures.mass.dim();
        let fits = layers == measures.layers.len()
            && spans == measures.spans.len()
            && rows == measures.rows.len()
            && measures.share.dim() == (layers, rows, spans)
            && measures.value_norm.dim() == measures.mass.dim()
            && measures.output_norm.dim() == measures.mass.dim()
            && measures.attribution.dim() == (layers, heads, spans);
        if fits { Ok(measures) } else { Err(broken("its tensors do not fit each other".to_owned())) }
    }
}

/// A tensor of finite f32 numbers.
fn array<D: Dimension>(file: &SafeTensors<'_>, name: &str) -> Result<Array<f32, D>, String> {
    let tensor = file.tensor(name).map_err(|error| error.to_string())?;
    if tensor.dtype() != Dtype::F32 {
        return Err(format!("its tensor `{name}` is {:?}, not F32", tensor.dtype()));
    }
    let numbers = tensor.data().as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
    let numbers: Vec<f32> = numbers.collect();
    if let Some(x) = numbers.iter().find(|x| !x.is_finite()) {
        return Err(format!("its tensor `{name}` holds {x}"));
    }
    let array = ArrayD::from_shape_vec(tensor.shape(), numbers).and_then(ArrayD::into_dimensionality);
    array.map_err(|_| format!("its tensor `{name}` is of shape {:?}", tensor.shape()))
}
