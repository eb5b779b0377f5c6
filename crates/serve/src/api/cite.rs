//! Citations: the spans that each sentence of an answer attends to and depends on.
//!
//! Attention: masses of the sentence's tokens during generation, averaged over tokens, heads and layers, and their density. Effects: the
//! readings of [`Causes`] restricted to the sentence's tokens; readings are shared by all sentences. Control stretches are measured as
//! spans, giving a noise level for both. Spans above it are cited as OpenAI annotations and with all numbers in the extension.

use std::ops::Range;

use ndarray::s;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};

use super::causes::{Causes, Effects};
use super::writer::Piece;
use palimpsest_core::attention::uniform_share;
use palimpsest_core::engine::Measured;
use palimpsest_core::span::Span;
use palimpsest_core::text::Sentence;
use palimpsest_data::statistics::control::median;

/// Minimum cited effect, in nats per token.
const LEAST: f64 = 0.01;

/// Minimum number of controls for a noise level.
const FEWEST: usize = 2;

/// Unreserved characters of RFC 3986 stay in URLs.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

#[derive(Debug, Clone, Default)]
pub struct Cite {
    text: String,
    /// Content bytes before each token.
    starts: Vec<usize>,
    calls: bool,
    told: Value,
    annotations: Vec<Value>,
}

/// A measured answer to a prompt of `prompt` tokens, with masses over `keys`.
pub struct Answered<'a> {
    pub prompt: usize,
    pub measured: &'a Measured,
    pub keys: &'a [Span],
}

/// Values of a sentence, NaN if unknown: of the spans, and of the controls, which are the noise.
struct Values {
    spans: Vec<f64>,
    controls: Vec<f64>,
}

impl Values {
    /// True if a span's value is above every control and, with fewer than `FEWEST` controls, above the median of the other spans.
    fn stands_out(&self, nth: usize, causes: &Causes) -> bool {
        let mut apart = causes.apart(&causes.spans[nth], &self.controls);
        apart.retain(|number| !number.is_nan());
        let others =
            self.spans.iter().enumerate().filter(|(other, number)| *other != nth && !number.is_nan());
        let others: Vec<f64> = others.map(|(_, number)| *number).collect();
        let few = apart.len() < FEWEST && others.len() >= FEWEST;
        let few = few.then(|| median(others)).flatten();
        apart.iter().chain(&few).all(|noise| self.spans[nth] > *noise)
    }

    fn control(&self, nth: usize, causes: &Causes) -> Option<f64> {
        causes.control(&causes.spans[nth], &self.controls).filter(|_| !self.spans[nth].is_nan())
    }
}

impl Cite {
    pub fn hear(&mut self, piece: &Piece, is_token: bool) {
        if is_token {
            self.starts.push(self.text.len());
        }
        self.text.push_str(&piece.text);
        self.calls |= !piece.calls.is_empty();
    }

    pub fn settle(&mut self, causes: &Causes, answered: &Answered<'_>) {
        let heard = std::mem::take(self);
        let layers = whole(answered, causes);
        let (mut told, mut of_controls) = (Vec::new(), Vec::new());
        for sentence in &heard.sentences(answered.thought()) {
            let Some(effects) = causes.effects(sentence.tokens.clone()) else { continue };
            let (json, controls) =
                heard.sentence(sentence, effects, causes, answered, &layers, &mut self.annotations);
            told.push(json);
            of_controls.push(controls);
        }
        let control = |(nth, stretch): (usize, &Range<usize>)| {
            let of = |kind: usize| of_controls.iter().map(|of| of[kind][nth]).collect::<Vec<f64>>();
            json!({"start": stretch.start, "end": stretch.end, "density": of(1), "log_p_drop": of(0)})
        };
        let numbers: Vec<usize> =
            layers.iter().map(|&place| answered.measured.masses.layers[place]).collect();
        self.told = json!({
            "from": causes.from, "layers": numbers, "sentences": told,
            "controls": causes.controls.iter().enumerate().map(control).collect::<Vec<_>>()
        });
    }

    pub fn json(&self) -> &Value {
        &self.told
    }

    pub fn annotations(&self) -> &[Value] {
        &self.annotations
    }

    /// Sentences with their tokens from the thought's end on; tokens of calls belong to none.
    fn sentences(&self, thought: usize) -> Vec<Sentence> {
        let starts = self.starts.get(thought..).unwrap_or_default();
        let end = match self.calls {
            true => starts.partition_point(|start| *start < self.text.len()),
            false => starts.len(),
        };
        Sentence::of(&self.text, starts, end)
    }

    /// A sentence, with the drops and densities of the controls; appends its citations to `annotations`.
    fn sentence(
        &self,
        sentence: &Sentence,
        effects: Effects,
        causes: &Causes,
        answered: &Answered<'_>,
        layers: &[usize],
        annotations: &mut Vec<Value>,
    ) -> (Value, [Vec<f64>; 2]) {
        let attended = |label: &str| answered.paid(label, sentence.tokens.clone(), layers);
        let density = |paid: Option<(f64, f64)>| match paid {
            Some((mass, share)) if share > 0.0 => mass / share,
            _ => f64::NAN,
        };
        let paid: Vec<Option<(f64, f64)>> = causes.spans.iter().map(|span| attended(&span.label)).collect();
        let stretches = 0..causes.controls.len();
        let densities = Values {
            spans: paid.iter().map(|paid| density(*paid)).collect(),
            controls: stretches.map(|nth| density(attended(&control_label(nth)))).collect(),
        };
        let drops = Values {
            spans: effects.spans.iter().map(|(drop, _)| *drop).collect(),
            controls: effects.controls,
        };
        let mut cited: Vec<(&str, &str, f64)> = Vec::new();
        let mut spans = Vec::new();
        for (nth, (span, (drop, changed))) in causes.spans.iter().zip(&effects.spans).enumerate() {
            let mut kinds = Vec::new();
            for (kind, values, least) in
                [("cause", &drops, LEAST), ("attention", &densities, f64::MIN_POSITIVE)]
            {
                let number = values.spans[nth];
                if number >= least && values.stands_out(nth, causes) {
                    kinds.push(kind);
                    cited.push((kind, &span.label, number));
                }
            }
            spans.push(json!({
                "label": span.label, "mass": paid[nth].map(|(mass, _)| mass),
                "density": densities.spans[nth], "density_control": densities.control(nth, causes),
                "log_p_drop": drop, "changed": changed, "control": drops.control(nth, causes), "cited": kinds
            }));
        }
        cited.sort_by(|a, b| b.0.cmp(a.0).then(b.2.total_cmp(&a.2)));
        let characters = |byte: usize| self.text[..byte].chars().count();
        let (start, end) = (characters(sentence.bytes.start), characters(sentence.bytes.end));
        annotations.extend(cited.into_iter().map(|(kind, label, score)| {
            let url = format!("#{}", utf8_percent_encode(label, ESCAPED));
            json!({
                "type": "url_citation",
                "url_citation": {"start_index": start, "end_index": end, "title": label, "url": url},
                "kind": kind, "score": score
            })
        }));
        let tokens = [sentence.tokens.start, sentence.tokens.end].map(|token| token + answered.thought());
        let json = json!({
            "start": start, "end": end, "text": &self.text[sentence.bytes.clone()], "tokens": tokens,
            "log_p": effects.log_p, "spans": spans
        });
        (json, [drops.controls, densities.controls])
    }
}

impl Answered<'_> {
    fn thought(&self) -> usize {
        self.measured.generated.thought
    }

    fn window(&self, layer: usize) -> Option<usize> {
        self.measured.masses.uniform.windows.get(layer).copied().flatten()
    }

    /// Mean mass of answer tokens on a span, and its value under uniform attention, over tokens, heads and `layers`.
    fn paid(&self, label: &str, tokens: Range<usize>, layers: &[usize]) -> Option<(f64, f64)> {
        let key = self.keys.iter().position(|key| key.label == label)?;
        let mass = &self.measured.masses.each.as_ref()?.mass;
        let (_, heads, generated, _) = mass.dim();
        if tokens.end > generated {
            return None;
        }
        let of_layer = |&layer: &usize| mass.slice(s![layer, .., tokens.clone(), key]);
        let sum: f64 = layers.iter().flat_map(|layer| of_layer(layer).to_owned()).map(f64::from).sum();
        let count = (layers.len() * heads * tokens.len()).max(1) as f64;
        // A token's row is the position that predicts it.
        let first = (self.prompt + self.thought()).saturating_sub(1);
        let rows = first + tokens.start..first + tokens.end;
        let share = |&layer: &usize| uniform_share(rows.clone(), self.keys[key].range(), self.window(layer));
        let shares = layers.iter().map(share);
        Some((sum / count, shares.sum::<f64>() / layers.len().max(1) as f64))
    }
}

/// Indices of layers whose window covers the answer and all spans; all layers if there are none.
fn whole(answered: &Answered<'_>, causes: &Causes) -> Vec<usize> {
    let first = causes.spans.iter().map(|span| span.start).min().unwrap_or(0);
    let needed = answered.prompt + answered.thought() + causes.tokens() - first;
    let window = |place: &usize| answered.window(*place);
    let all = 0..answered.measured.masses.layers.len();
    let whole: Vec<usize> =
        all.clone().filter(|place| window(place).is_none_or(|window| window >= needed)).collect();
    if whole.is_empty() { all.collect() } else { whole }
}

pub fn control_label(nth: usize) -> String {
    format!("template[control {nth}]")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(pieces: &[&str]) -> Cite {
        let mut cite = Cite::default();
        for text in pieces {
            cite.hear(&Piece { text: (*text).to_owned(), ..Piece::default() }, true);
        }
        cite
    }

    #[test]
    fn tokens_belong_to_the_sentence_of_their_first_character() {
        let cite = heard(&["", "The", " fig", ".", " It", " is", " old", ".", ""]);
        let of = |tokens: Range<usize>, bytes: Range<usize>| Sentence { bytes, tokens };
        // White space belongs to the following token; trailing empty tokens to the last sentence.
        assert_eq!(cite.sentences(0), [of(0..4, 0..8), of(4..9, 9..19)]);
        assert_eq!(cite.sentences(2)[0], of(0..2, 0..8));
        let mut calls = heard(&["The", " fig", ".", "", ""]);
        calls.calls = true;
        assert_eq!(calls.sentences(0), [of(0..3, 0..8)]);
        // Text held back for a stop string is attributed to the token that releases it.
        assert_eq!(heard(&["", "No. Ob", "s."]).sentences(0), [of(0..2, 0..3), of(2..3, 4..8)]);
    }
}
