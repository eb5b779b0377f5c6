//! One example, that is one probe of one case: its masses, noise baselines and densities, averaged over heads.
//!
//! **Mass** s(X -> Y) is read from the store and averaged over heads (STALE, appendix E.4): the attention that a token of
//! X pays to the whole of Y, on average. At a linear-attention layer the share of the implicit weights' sizes stands in
//! its place, averaged over value heads ([`super::layers`]): all that follows is computed from it as from a mass, layer by
//! layer. The signed sums of the weights are kept beside the curves.
//!
//! **Noise baseline**: the same mass with the evidence session Y replaced by its immediate neighbours, the sessions whose
//! original indices are Y's plus and minus one, where they are in the prompt and are not evidence themselves; the mean
//! over the two where both are there; absent where neither is.
//!
//! **Density** is mass divided by the mass that uniform attention would pay, the share: the mean over the rows i of X of
//! |visible(i) and Y| / |visible(i)|, where a row sees itself and what is before it within the layer's window
//! ([`crate::attention::uniform_share`]). A density of 1 is no preference, and long sessions do not win by their length. At a
//! linear layer, uniform attention is weights of one size over all tokens so far, which gives the same unit. A layer whose
//! window hides Y from all of X has no density there. Stores of version 0.1.0 do not say what the windows are: theirs are
//! computed as if every layer saw the whole prompt, which is wrong at windowed layers. The density of a baseline is the mean
//! of its neighbours' densities, of those that a layer sees.

use std::collections::BTreeMap;
use std::path::Path;

use ndarray::{Array2, Axis};

use super::layers::{self, ByLayer, Layer, LayerKind};
use crate::attention::{AttentionStore, StoreError};
use crate::prompt::{Span, SpanRole};

/// Who looks at whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Curve {
    /// The new session's tokens at the old session.
    NewToOld,
    /// The query's tokens at the old session.
    QueryToOld,
    /// The query's tokens at the new session.
    QueryToNew,
}

impl Curve {
    /// In the order in which figures show them.
    pub const ALL: [Curve; 3] = [Curve::NewToOld, Curve::QueryToOld, Curve::QueryToNew];

    /// As figures write it.
    pub fn label(self) -> &'static str {
        match self {
            Curve::NewToOld => "new to old",
            Curve::QueryToOld => "query to old",
            Curve::QueryToNew => "query to new",
        }
    }

    /// As tables write it.
    pub fn key(self) -> &'static str {
        match self {
            Curve::NewToOld => "new_to_old",
            Curve::QueryToOld => "query_to_old",
            Curve::QueryToNew => "query_to_new",
        }
    }

    fn ends(self) -> (SpanRole, SpanRole) {
        match self {
            Curve::NewToOld => (SpanRole::New, SpanRole::Old),
            Curve::QueryToOld => (SpanRole::Query, SpanRole::Old),
            Curve::QueryToNew => (SpanRole::Query, SpanRole::New),
        }
    }
}

/// The evidence session itself or what stands in for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// The mass on the evidence session.
    Signal,
    /// The mass on its neighbours.
    Noise,
}

/// Whether a session's length counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scale {
    /// The share of a row token's attention; at a linear layer, of its implicit weights' sizes.
    Mass,
    /// Mass over what uniform attention would pay.
    Density,
}

impl Scale {
    /// Both.
    pub const ALL: [Scale; 2] = [Scale::Mass, Scale::Density];

    /// As tables and file names write it.
    pub fn key(self) -> &'static str {
        match self {
            Scale::Mass => "mass",
            Scale::Density => "density",
        }
    }
}

/// What the query pays to one session.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionMass {
    /// The session's original index.
    pub index: usize,
    /// Old, new or neither.
    pub role: Option<SpanRole>,
    /// Tokens of the session's span.
    pub tokens: usize,
    /// The query's mass on the session, by layer, averaged over heads.
    pub mass: Vec<f64>,
    /// The same as density; NaN where the layer's window hides the session.
    pub density: Vec<f64>,
    /// The signed sums of the query's implicit weights; `None` at softmax layers.
    pub signed: Vec<Option<f64>>,
}

/// One probe of one case, measured.
#[derive(Debug, Clone, PartialEq)]
pub struct Example {
    /// The case's id.
    pub case: String,
    /// The probe's id.
    pub probe: String,
    /// The value of the label `type`, where the data has one.
    pub kind: Option<String>,
    /// The verdict, where there is one.
    pub correct: Option<bool>,
    /// The decoder layer of each entry of a curve, ascending.
    pub layers: Vec<Layer>,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// By session, in prompt order: the query's attention. Empty where the store has no query rows.
    pub sessions: Vec<SessionMass>,
    curves: BTreeMap<(Curve, Part, Scale), Vec<f64>>,
    signed: BTreeMap<(Curve, Part), Vec<Option<f64>>>,
}

impl Example {
    /// Measures a store.
    ///
    /// # Errors
    /// [`StoreError::Broken`] where a mass or share is not finite or negative, a layer comes twice, a span is empty where
    /// it must not be or ends past the prompt; the text says which.
    pub fn measure(path: &Path, store: &AttentionStore) -> Result<Self, StoreError> {
        let broken = |reason: String| StoreError::Broken { path: path.to_owned(), reason };
        let whole = store.tokens.len() + store.generated.len();
        let rows = store.rows.iter().map(|span| (span, whole));
        for (span, tokens) in rows.chain(store.keys.iter().map(|span| (span, store.tokens.len()))) {
            if span.start > span.end || span.end > tokens {
                return Err(broken(format!(
                    "span `{}` is [{}, {}) in a prompt of {} tokens",
                    span.label, span.start, span.end, tokens
                )));
            }
        }
        let ByLayer { layers, mass, share, signed } = ByLayer::of(path, store)?; // (layers, rows, keys)
        let (mut curves, mut sums) = (BTreeMap::new(), BTreeMap::new());
        for curve in Curve::ALL {
            let (from, to) = curve.ends();
            let (Some(row), Some(key)) = (only(&store.rows, from), only(&store.keys, to)) else { continue };
            let masses = mass.index_axis(Axis(1), row).to_owned(); // (layers, keys)
            let shares = share.index_axis(Axis(1), row).to_owned();
            let densities = densities_of(&masses, &shares);
            let targets = [(Part::Signal, vec![key]), (Part::Noise, neighbours(&store.keys, key))];
            for (part, spans) in targets {
                let of_row = signed.as_ref().map(|signed| signed.index_axis(Axis(1), row).to_owned());
                if let Some(values) = of_row.and_then(|signed| mean_of(&signed, &spans)) {
                    sums.insert((curve, part), present(values));
                }
                if let Some(values) = mean_of(&masses, &spans) {
                    curves.insert((curve, part, Scale::Mass), values);
                }
                // a span that no layer sees lies after the row
                let seen = |&span: &usize| shares.column(span).iter().any(|share| *share > 0.0);
                if spans.iter().all(seen)
                    && let Some(values) = mean_of(&densities, &spans)
                {
                    curves.insert((curve, part, Scale::Density), values);
                }
            }
        }
        let mut sessions = Vec::new();
        if let Some(row) = only(&store.rows, SpanRole::Query) {
            let masses = mass.index_axis(Axis(1), row).to_owned();
            let densities = densities_of(&masses, &share.index_axis(Axis(1), row).to_owned());
            for (key, span) in store.keys.iter().enumerate() {
                let Some(index) = span.session() else { continue };
                let signed = match &signed {
                    Some(signed) => present(signed.index_axis(Axis(1), row).column(key).to_vec()),
                    None => vec![None; layers.len()],
                };
                sessions.push(SessionMass {
                    index,
                    role: span.role,
                    tokens: span.len(),
                    mass: masses.column(key).to_vec(),
                    density: densities.column(key).to_vec(),
                    signed,
                });
            }
        }
        Ok(Example {
            case: store.case.clone(),
            probe: store.probe.clone(),
            kind: None,
            correct: None,
            layers,
            prompt_tokens: store.tokens.len(),
            sessions,
            curves,
            signed: sums,
        })
    }

    /// A curve over layers, NaN at layers that do not see the session; `None` where the store lacks a span for it (for noise: where no neighbour is in the prompt).
    pub fn curve(&self, curve: Curve, part: Part, scale: Scale) -> Option<&[f64]> {
        self.curves.get(&(curve, part, scale)).map(Vec::as_slice)
    }

    /// A curve's signed sums of the implicit weights: by layer, `None` at softmax layers. `None` altogether where the store
    /// lacks a span for it or has no linear layers.
    pub fn signed(&self, curve: Curve, part: Part) -> Option<&[Option<f64>]> {
        self.signed.get(&(curve, part)).map(Vec::as_slice)
    }

    /// The query's mass on a session, averaged over the layers of one kind; `None` where there are none.
    pub fn mean_over(&self, kind: LayerKind, session: &SessionMass) -> Option<f64> {
        layers::mean_over(&self.layers, kind, &session.mass)
    }

    /// s(query -> new) / s(query -> old) by layer; `None` at a layer whose denominator is 0 or that does not see both.
    pub fn ratio(&self, scale: Scale) -> Option<Vec<Option<f64>>> {
        let new = self.curve(Curve::QueryToNew, Part::Signal, scale)?;
        let old = self.curve(Curve::QueryToOld, Part::Signal, scale)?;
        Some(new.iter().zip(old).map(|(n, o)| (*o > 0.0 && !n.is_nan()).then(|| n / o)).collect())
    }
}

/// The place of the one span in a role; `None` where there is none or more than one, since then no single span is meant.
fn only(spans: &[Span], role: SpanRole) -> Option<usize> {
    let mut places =
        spans.iter().enumerate().filter(|(_, s)| s.role == Some(role) && !s.is_empty()).map(|(i, _)| i);
    let first = places.next()?;
    places.next().is_none().then_some(first)
}

/// The places of the sessions beside the evidence session at `key`, without evidence.
fn neighbours(keys: &[Span], key: usize) -> Vec<usize> {
    let Some(index) = keys.get(key).and_then(Span::session) else { return Vec::new() };
    let beside = |span: &Span| span.session().is_some_and(|other| other.abs_diff(index) == 1);
    let plain = |span: &Span| !matches!(span.role, Some(SpanRole::Old | SpanRole::New)) && !span.is_empty();
    keys.iter().enumerate().filter(|(_, span)| beside(span) && plain(span)).map(|(i, _)| i).collect()
}

/// Masses over shares, both (layers, keys); NaN where there is no share.
fn densities_of(masses: &Array2<f64>, shares: &Array2<f64>) -> Array2<f64> {
    let mut densities = masses.clone();
    densities.zip_mut_with(shares, |mass, share| *mass = if *share > 0.0 { *mass / share } else { f64::NAN });
    densities
}

/// By layer, the mean over those of `spans` that have a value, NaN where none has; `None` without spans.
fn mean_of(values: &Array2<f64>, spans: &[usize]) -> Option<Vec<f64>> {
    if spans.is_empty() {
        return None;
    }
    let mean = |layer: ndarray::ArrayView1<f64>| {
        let present = || spans.iter().map(|&span| layer[span]).filter(|value| !value.is_nan());
        present().sum::<f64>() / present().count() as f64
    };
    Some(values.rows().into_iter().map(mean).collect())
}

/// Values of which NaN marks the absent ones.
fn present(values: Vec<f64>) -> Vec<Option<f64>> {
    values.into_iter().map(|value| Some(value).filter(|value| !value.is_nan())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_go_by_original_index_and_are_never_evidence() {
        let span = |i: usize, at: usize| Span::new(format!("session[{i}]"), at..at + 2);
        let keys = [
            Span::new("bos", 0..1),
            span(2, 1),
            span(4, 3).with_role(SpanRole::Old),
            span(5, 5),
            span(6, 7).with_role(SpanRole::New),
            span(9, 9),
        ];
        assert_eq!(neighbours(&keys, 2), vec![3], "session 3 was dropped; 2 is no immediate neighbour");
        assert_eq!(neighbours(&keys, 4), vec![3]);
        let touching = [span(0, 0).with_role(SpanRole::Old), span(1, 2).with_role(SpanRole::New)];
        assert!(neighbours(&touching, 0).is_empty(), "the other evidence session is no noise");
    }
}
