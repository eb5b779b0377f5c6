//! Citations: the spans that each sentence of an answer attends to and depends on.
//!
//! Attention: masses of the sentence's tokens during generation, averaged over tokens, heads and layers, and their density. Effects: the
//! readings of [`Causes`] restricted to the sentence's tokens; readings are shared by all sentences. Control stretches are measured as
//! spans, giving a noise level for both. Spans above it are cited as OpenAI annotations and with all numbers in the extension.

use std::ops::Range;

use ndarray::s;
use serde_json::{Value, json};

use super::causes::{Causes, Effects};
use super::sentences::sentences;
use super::writer::Piece;
use palimpsest_core::attention::uniform_share;
use palimpsest_core::engine::Measured;
use palimpsest_core::span::Span;
use palimpsest_data::statistics::control::median;

/// Minimum cited effect, in nats per token.
const LEAST: f64 = 0.01;

/// Minimum number of controls for a noise level.
const FEWEST: usize = 2;

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

/// A span's value for a sentence, its control, values of disjoint controls, and values of the other spans.
struct Measure {
    number: f64,
    control: Option<f64>,
    apart: Vec<f64>,
    others: Vec<f64>,
}

impl Measure {
    fn of(nth: usize, spans: &[f64], causes: &Causes, controls: &[f64]) -> Option<Self> {
        let number = *spans.get(nth).filter(|number| !number.is_nan())?;
        let others = spans.iter().enumerate().filter(|(other, number)| *other != nth && !number.is_nan());
        let others = others.map(|(_, number)| *number).collect();
        let span = &causes.spans[nth];
        let mut apart = causes.apart(span, controls);
        apart.retain(|number| !number.is_nan());
        Some(Measure { number, control: causes.control(span, controls), apart, others })
    }

    /// True if above every control and, with fewer than `FEWEST` controls, above the median of the other spans.
    fn stands_out(&self) -> bool {
        let few = self.apart.len() < FEWEST && self.others.len() >= FEWEST;
        let few = few.then(|| median(self.others.clone())).flatten();
        self.apart.iter().chain(&few).all(|noise| self.number > *noise)
    }
}

/// A sentence: content bytes, and token range from the thought's start.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Sentence {
    bytes: Range<usize>,
    tokens: Range<usize>,
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
        let sentences = heard.sentences(answered.thought());
        let layers = whole(answered, causes);
        let (mut told, mut of_controls) = (Vec::new(), Vec::new());
        for sentence in &sentences {
            let Some(effects) = causes.effects(sentence.tokens.clone()) else { continue };
            let (json, densities) =
                heard.sentence(sentence, &effects, causes, answered, &layers, &mut self.annotations);
            told.push(json);
            of_controls.push((effects.controls, densities));
        }
        let control = |(nth, stretch): (usize, &Range<usize>)| {
            let drops: Vec<f64> = of_controls.iter().map(|(drops, _)| drops[nth]).collect();
            let densities: Vec<Option<f64>> =
                of_controls.iter().map(|(_, densities)| densities[nth]).collect();
            json!({"start": stretch.start, "end": stretch.end, "density": densities, "log_p_drop": drops})
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

    /// Sentences with their tokens. A token belongs to the sentence of the first character after the previously written text; tokens of
    /// calls belong to none.
    fn sentences(&self, thought: usize) -> Vec<Sentence> {
        let starts = self.starts.get(thought..).unwrap_or_default();
        let end = match self.calls {
            true => starts.partition_point(|start| *start < self.text.len()),
            false => starts.len(),
        };
        let cut = sentences(&self.text);
        let mut found: Vec<Sentence> = Vec::new();
        let mut begin = 0;
        for (nth, bytes) in cut.iter().enumerate() {
            let last = nth + 1 == cut.len();
            let until = if last { end } else { starts.partition_point(|start| *start < bytes.end).min(end) };
            if until > begin {
                found.push(Sentence { bytes: bytes.clone(), tokens: begin..until });
            }
            begin = begin.max(until);
        }
        found
    }

    /// Values of a sentence, and control densities; appends its citations to `annotations`.
    fn sentence(
        &self,
        sentence: &Sentence,
        effects: &Effects,
        causes: &Causes,
        answered: &Answered<'_>,
        layers: &[usize],
        annotations: &mut Vec<Value>,
    ) -> (Value, Vec<Option<f64>>) {
        let attended = |label: &str| answered.paid(label, sentence.tokens.clone(), layers);
        let density = |(mass, share): (f64, f64)| (share > 0.0).then(|| mass / share);
        let stretches = (0..causes.controls.len()).map(|nth| attended(&control_label(nth)).and_then(density));
        let densities: Vec<Option<f64>> = stretches.collect();
        let noise: Vec<f64> = densities.iter().map(|density| density.unwrap_or(f64::NAN)).collect();
        let paid: Vec<Option<(f64, f64)>> = causes.spans.iter().map(|span| attended(&span.label)).collect();
        let of_spans: Vec<f64> = paid.iter().map(|paid| paid.and_then(density).unwrap_or(f64::NAN)).collect();
        let drops: Vec<f64> = effects.spans.iter().map(|effect| effect.log_p_drop).collect();
        let mut cited: Vec<(&str, &str, f64)> = Vec::new();
        let mut spans = Vec::new();
        for (nth, (span, effect)) in causes.spans.iter().zip(&effects.spans).enumerate() {
            let caused = Measure::of(nth, &drops, causes, &effects.controls);
            let attention = Measure::of(nth, &of_spans, causes, &noise);
            let mut kinds = Vec::new();
            for (kind, measure, least) in
                [("cause", &caused, LEAST), ("attention", &attention, f64::MIN_POSITIVE)]
            {
                if let Some(one) = measure.as_ref().filter(|one| one.number >= least && one.stands_out()) {
                    kinds.push(kind);
                    cited.push((kind, &span.label, one.number));
                }
            }
            spans.push(json!({
                "label": span.label,
                "mass": paid[nth].map(|(mass, _)| mass),
                "density": attention.as_ref().map(|one| one.number),
                "density_control": attention.as_ref().and_then(|one| one.control),
                "log_p_drop": effect.log_p_drop, "changed": effect.changed,
                "control": caused.as_ref().and_then(|one| one.control),
                "cited": kinds
            }));
        }
        cited.sort_by(|a, b| b.0.cmp(a.0).then(b.2.total_cmp(&a.2)));
        let characters = |byte: usize| self.text[..byte].chars().count();
        let (start, end) = (characters(sentence.bytes.start), characters(sentence.bytes.end));
        annotations.extend(cited.into_iter().map(|(kind, label, score)| {
            json!({
                "type": "url_citation",
                "url_citation": {
                    "start_index": start, "end_index": end, "title": label, "url": format!("#{}", encoded(label))
                },
                "kind": kind, "score": score
            })
        }));
        let tokens = [sentence.tokens.start, sentence.tokens.end].map(|token| token + answered.thought());
        let json = json!({
            "start": start, "end": end, "text": &self.text[sentence.bytes.clone()], "tokens": tokens,
            "log_p": effects.log_p, "spans": spans
        });
        (json, densities)
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

/// Percent-encodes a label for a URL fragment (RFC 3986).
fn encoded(label: &str) -> String {
    let mut url = String::new();
    for byte in label.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => url.push(char::from(byte)),
            _ => url.push_str(&format!("%{byte:02X}")),
        }
    }
    url
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

    #[test]
    fn labels_are_fragments() {
        assert_eq!(encoded("doc 1/ä"), "doc%201%2F%C3%A4");
    }
}
