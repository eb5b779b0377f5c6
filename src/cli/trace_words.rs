//! Text output of `trace`: attention by span, top keys, next token; of one pass, or of a plain one beside one with knock-outs.

use std::collections::BTreeMap;
use std::fmt::Write;

use ndarray::{Array3, ArrayView2, s};
use palimpsest_core::attention::{LargestKeys, Masses, Selected, uniform_share};
use palimpsest_core::engine::Likelihood;
use palimpsest_core::span::Span;
use palimpsest_core::text::Tokenizer;
use serde_json::{Map, Value, json};

use crate::ground::table::aligned;
use crate::ground::words::counted;
use crate::observe::{AnswerEffect, Compared, Hidden, TraceJob, Traced};

/// Number of listed next tokens and top keys.
const TOLD: usize = 6;

/// Rows of a table beside the spans.
const FIRST_TOKEN: &str = "(first token)";
const SINKS: &str = "(learned sinks)";
const ELSEWHERE: &str = "(elsewhere)";

/// Inputs of the output beside the passes; token ids without a text have no tokenizer.
#[derive(Clone, Copy)]
pub(super) struct Words<'a> {
    pub job: &'a TraceJob,
    pub tokenizer: Option<&'a Tokenizer>,
}

/// Attention to a span, the first token, the sinks or the rest.
pub(super) struct Part<'a> {
    pub label: &'a str,
    tokens: Option<usize>,
    pub mean: f64,
    /// Mass under uniform attention, mean over layers; absent for what is not a range of tokens.
    even: Option<f64>,
    /// The largest mass of a head, with its layer and number; absent if every head's is 0.
    strongest: Option<(f64, usize, usize)>,
}

impl<'a> Part<'a> {
    /// `mass` is (layers, heads).
    fn new(label: &'a str, tokens: Option<usize>, masses: &Masses, mass: ArrayView2<'_, f32>) -> Self {
        let mut strongest: Option<(f32, usize, usize)> = None;
        for ((l, h), &mass) in mass.indexed_iter() {
            if mass > strongest.map_or(0.0, |(most, ..)| most) {
                strongest = Some((mass, masses.layers.get(l).copied().unwrap_or(l), h));
            }
        }
        let strongest = strongest.map(|(mass, layer, head)| (f64::from(mass), layer, head));
        Part { label, tokens, mean: mean(mass.iter()), even: None, strongest }
    }

    fn head(&self) -> [String; 2] {
        match self.strongest {
            Some((mass, layer, head)) => [format!("L{layer} H{head}"), percent(mass)],
            None => ["-", "-"].map(str::to_owned),
        }
    }
}

/// The attention of a row, in the order of the input: the spans, then what is in none of them. If no spans overlap, the masses sum to 1.
pub(super) fn parts<'a>(job: &'a TraceJob, masses: &Masses, row: usize) -> Vec<Part<'a>> {
    let keys = &job.observe.keys;
    let of_span = |(k, span): (usize, &'a Span)| {
        let share = masses.uniform.share.slice(s![.., row, k]);
        let even = Some(mean(share.iter()));
        let mass = masses.mass.slice(s![.., .., row, k]);
        Part { even, ..Part::new(&span.label, Some(span.len()), masses, mass) }
    };
    let mut parts: Vec<Part<'a>> = keys.iter().enumerate().map(of_span).collect();
    if let (Some(mass), None) = (&masses.first_token, holds_first(job)) {
        let windows = &masses.uniform.windows;
        let even = windows.iter().map(|window| uniform_share(masses.rows[row].range(), 0..1, *window));
        let even = Some(even.sum::<f64>() / windows.len().max(1) as f64);
        parts.push(Part { even, ..Part::new(FIRST_TOKEN, Some(1), masses, mass.slice(s![.., .., row])) });
    }
    if let Some(sink) = &masses.sink {
        parts.push(Part::new(SINKS, None, masses, sink.slice(s![.., .., row])));
    }
    if !overlap(keys) {
        let mean = (1.0 - parts.iter().map(|part| part.mean).sum::<f64>()).max(0.0);
        parts.push(Part { label: ELSEWHERE, tokens: None, mean, even: None, strongest: None });
    }
    parts
}

/// The first span with the prompt's first token.
fn holds_first(job: &TraceJob) -> Option<&Span> {
    job.observe.keys.iter().find(|span| span.range().contains(&0))
}

fn mean<'a>(values: impl ExactSizeIterator<Item = &'a f32>) -> f64 {
    let n = values.len().max(1) as f64;
    sum(values) / n
}

/// `None` if all are NaN.
fn mean_of_known<'a>(values: impl Iterator<Item = &'a f32>) -> Option<f64> {
    let known: Vec<&f32> = values.filter(|value| !value.is_nan()).collect();
    (!known.is_empty()).then(|| mean(known.into_iter()))
}

/// The shares of span `part` that choices left to a row, then its forgone masses: by pass with the row's number there, means over layers.
fn left(passes: &[Option<(&Selected, usize)>], part: usize) -> Vec<String> {
    let share = |found: &Selected, r: usize| mean_of_known(found.selected.slice(s![.., r, part]).iter());
    let forgone = |found: &Selected, r: usize| Some(mean(found.forgone.slice(s![.., r, part]).iter()));
    let of_pass = |value: &dyn Fn(&Selected, usize) -> Option<f64>| -> Vec<String> {
        let values = passes.iter().map(|pass| pass.and_then(|(found, r)| value(found, r)));
        values.map(|value| value.map_or_else(|| "-".to_owned(), percent)).collect()
    };
    [of_pass(&share), of_pass(&forgone)].concat()
}

fn sum<'a>(values: impl Iterator<Item = &'a f32>) -> f64 {
    values.map(|value| f64::from(*value)).sum()
}

fn overlap(keys: &[Span]) -> bool {
    let mut ranges: Vec<_> = keys.iter().filter(|span| !span.is_empty()).map(Span::range).collect();
    ranges.sort_by_key(|range| range.start);
    ranges.windows(2).any(|pair| pair[0].end > pair[1].start)
}

pub(super) fn percent(part: f64) -> String {
    format!("{:.2}", 100.0 * part)
}

/// With a sign; what rounds to 0 is positive.
fn signed(x: f64, digits: usize) -> String {
    let text = format!("{x:+.digits$}");
    if text.contains(|digit: char| ('1'..='9').contains(&digit)) { text } else { text.replace('-', "+") }
}

/// Right-aligns all columns but the first.
fn table(lines: &[Vec<String>]) -> String {
    aligned(lines, |column| column > 0) + "\n"
}

fn cells<const N: usize>(texts: [&str; N]) -> Vec<String> {
    texts.map(str::to_owned).to_vec()
}

/// One line per hidden part.
pub(super) fn banner(hidden: &[Hidden]) -> String {
    hidden.iter().map(|hidden| format!("knocked out: {hidden}\n")).collect()
}

/// The result of one pass.
pub(super) fn told(words: Words<'_>, traced: &Traced) -> anyhow::Result<String> {
    let mut text = words.attention(&[traced])?;
    let next = words.next(traced).into_iter().map(|(id, p)| format!("{} {:.1}%", words.token(id), 100.0 * p));
    writeln!(text, "next token: {}", next.collect::<Vec<_>>().join(", "))?;
    if words.job.generate > 0 {
        writeln!(text, "answer: {}", words.answer(traced))?;
    }
    Ok(text)
}

/// A plain pass beside one with knock-outs.
pub(super) fn compared(words: Words<'_>, found: &Compared) -> anyhow::Result<String> {
    let Compared { plain, knocked_out, kl, answer } = found;
    let mut text = words.attention(&[plain, knocked_out])?;
    writeln!(text, "next token: KL(plain || knocked out) {kl:.4} nats")?;
    let mut lines = vec![cells(["token", "plain %", "knocked out %", "change of log p"])];
    let mut ids: Vec<u32> = words.next(plain).into_iter().map(|(id, _)| id).collect();
    let others = words.next(knocked_out).into_iter().map(|(id, _)| id);
    ids.extend(others.filter(|id| !ids.contains(id)).collect::<Vec<_>>());
    for id in ids {
        let [before, after] =
            [plain, knocked_out].map(|traced| Likelihood::of(id, &traced.next_logits(), 0).log_p);
        let chance = |log_p: f64| format!("{:.1}", 100.0 * log_p.exp());
        lines.push(vec![words.token(id), chance(before), chance(after), signed(after - before, 2)]);
    }
    text += &table(&lines);
    if words.job.generate > 0 {
        writeln!(text, "answer, plain: {}", words.answer(plain))?;
        match plain.generated == knocked_out.generated {
            true => writeln!(text, "answer, knocked out: the same")?,
            false => writeln!(text, "answer, knocked out: {}", words.answer(knocked_out))?,
        }
    }
    if let Some(AnswerEffect { log_p, effect }) = answer {
        writeln!(
            text,
            "log-probability of the plain answer: {log_p:.3} nats per token plain, {:.3} knocked out (drop {:+.3})",
            log_p - effect.log_p_drop,
            effect.log_p_drop
        )?;
    }
    Ok(text)
}

impl Words<'_> {
    fn token(&self, id: u32) -> String {
        match self.tokenizer {
            Some(tokenizer) => format!("{:?}", tokenizer.decode(&[id], false).unwrap_or_default()),
            None => id.to_string(),
        }
    }

    pub fn answer(&self, traced: &Traced) -> String {
        match self.tokenizer {
            Some(tokenizer) => {
                tokenizer.decode(&traced.generated, true).unwrap_or_default().trim().to_owned()
            }
            None => traced.generated.iter().map(u32::to_string).collect::<Vec<_>>().join(" "),
        }
    }

    /// The likeliest next tokens with their probabilities.
    fn next(&self, traced: &Traced) -> Vec<(u32, f64)> {
        let likeliest = Likelihood::of(0, &traced.next_logits(), TOLD).likeliest;
        likeliest.into_iter().map(|(id, log_p)| (id, log_p.exp())).collect()
    }

    /// The likeliest next token: `" June" 9.2%`.
    pub fn likeliest(&self, traced: &Traced) -> String {
        let first = self.next(traced).into_iter().next();
        first.map_or_else(String::new, |(id, p)| format!("{} {:.1}%", self.token(id), 100.0 * p))
    }

    /// Tables of masses by row, of the largest keys, and of the parts of logits; of one pass, or of a plain and a knocked-out one.
    fn attention(&self, passes: &[&Traced]) -> anyhow::Result<String> {
        let keys = &self.job.observe.keys;
        let mut text = String::new();
        let most = passes.iter().max_by_key(|traced| traced.masses.rows.len());
        let rows = most.map(|traced| traced.masses.rows.as_slice()).unwrap_or_default();
        for row in rows {
            self.row(row, passes, &mut text)?;
        }
        if let ([_], false) = (passes, rows.is_empty()) {
            text.push_str("even: the mass of uniform attention; mass/even is above 1 for more than that\n");
        }
        if !rows.is_empty() && passes.iter().any(|traced| traced.selected.is_some()) {
            text.push_str(
                "selected: the share of the span that windows and indexers left to the row; forgone: its mass on the rest over all keys\n",
            );
        }
        if !rows.is_empty() && overlap(keys) {
            text.push_str("some spans share tokens, so that their masses do not add up\n");
        }
        if !text.is_empty() && !text.ends_with("\n\n") {
            text.push('\n');
        }
        for (nth, traced) in passes.iter().enumerate() {
            let pass = if passes.len() == 1 { "" } else { ["plain: ", "knocked out: "][nth.min(1)] };
            text += &traced.largest.as_ref().map_or_else(String::new, |largest| self.keys(pass, largest));
        }
        self.targets(passes, &mut text)?;
        Ok(text)
    }

    fn row(&self, row: &Span, passes: &[&Traced], text: &mut String) -> anyhow::Result<()> {
        let place = |traced: &&Traced| traced.masses.rows.iter().position(|other| other.label == row.label);
        let places: Vec<Option<usize>> = passes.iter().map(place).collect();
        let found: Vec<Vec<Part<'_>>> = (passes.iter().zip(&places))
            .map(|(traced, place)| place.map_or_else(Vec::new, |r| parts(self.job, &traced.masses, r)))
            .collect();
        let count = |(traced, place): (&&Traced, &Option<usize>)| {
            place.and_then(|r| traced.masses.rows.get(r)).map_or(0, Span::len)
        };
        let counts: Vec<usize> = passes.iter().zip(&places).map(count).collect();
        let tokens = match *counts.as_slice() {
            [1] | [1, 1] => "1 token".to_owned(),
            [one, other] if one != other => format!("{one} tokens plain, {other} knocked out"),
            _ => format!("{} tokens", row.len()),
        };
        let (layers, heads, ..) = passes[0].masses.mass.dim();
        writeln!(
            text,
            "attention of `{}` ({tokens}) in %, mean over {} and {}",
            row.label,
            counted(layers, "layer"),
            counted(heads, "head")
        )?;
        let mut lines = vec![match passes {
            [_] => cells(["span", "tokens", "mass", "even", "mass/even", "strongest head", "its mass"]),
            _ => cells([
                "span",
                "tokens",
                "plain",
                "knocked out",
                "change",
                "head, plain",
                "head, knocked out",
            ]),
        }];
        let selected: Vec<Option<(&Selected, usize)>> =
            passes.iter().zip(&places).map(|(traced, place)| traced.selected.as_ref().zip(*place)).collect();
        let chooses = selected.iter().any(Option::is_some);
        if chooses {
            lines[0].extend(match passes {
                [_] => cells(["selected", "forgone"]),
                _ => cells([
                    "selected, plain",
                    "selected, knocked out",
                    "forgone, plain",
                    "forgone, knocked out",
                ]),
            });
        }
        let one = |nth: usize, part: usize| found.get(nth).and_then(|parts| parts.get(part));
        for part in 0..found.iter().map(Vec::len).max().unwrap_or(0) {
            let Some(known) = (0..passes.len()).find_map(|nth| one(nth, part)) else { continue };
            let tokens = known.tokens.map_or_else(String::new, |tokens| tokens.to_string());
            let mut line = vec![known.label.to_owned(), tokens];
            let mass = |nth| one(nth, part).map_or_else(|| "-".to_owned(), |part| percent(part.mean));
            if passes.len() == 1 {
                let density =
                    known.even.filter(|even| *even > 0.0).map(|even| format!("{:.2}", known.mean / even));
                let even = known.even.map(percent);
                line.extend([mass(0), even.clone().unwrap_or_default()]);
                line.push(density.or(even.map(|_| "-".to_owned())).unwrap_or_default());
                if known.label != ELSEWHERE {
                    line.extend(known.head());
                }
            } else {
                let change = one(0, part).zip(one(1, part)).map(|(a, b)| 100.0 * (b.mean - a.mean));
                line.extend([mass(0), mass(1), change.map_or("-".to_owned(), |change| signed(change, 2))]);
                if known.label != ELSEWHERE {
                    let head = |nth| match one(nth, part).map(Part::head) {
                        Some([head, mass]) if head != "-" => format!("{head} {mass}"),
                        _ => "-".to_owned(),
                    };
                    line.extend([0, 1].map(head));
                }
            }
            if chooses && part < self.job.observe.keys.len() {
                line.extend(left(&selected, part));
            }
            lines.push(line);
        }
        text.push_str(table(&lines).trim_end_matches('\n'));
        text.push('\n');
        if let Some(span) = holds_first(self.job).filter(|span| span.len() > 1) {
            let first = |(traced, place): (&&Traced, &Option<usize>)| -> Option<f64> {
                let mass = traced.masses.first_token.as_ref()?;
                Some(mean(mass.slice(s![.., .., (*place)?]).iter()))
            };
            let firsts = passes.iter().zip(&places).map(first);
            let firsts = firsts.map(|mass| mass.map_or("-".to_owned(), percent)).collect::<Vec<_>>();
            writeln!(
                text,
                "`{}` holds the prompt's first token, which alone gets {}",
                span.label,
                firsts.join(" (plain) and ") + if firsts.len() > 1 { " (knocked out)" } else { "" }
            )?;
        }
        text.push('\n');
        Ok(())
    }

    /// Keys with the largest total weight among the heads' top keys.
    fn keys(&self, pass: &str, largest: &LargestKeys) -> String {
        let [layers, heads, rows, k] = largest.shape;
        let mut weights: BTreeMap<u32, f64> = BTreeMap::new();
        for (&key, &weight) in largest.keys.iter().zip(&largest.weights) {
            *weights.entry(key).or_default() += f64::from(weight);
        }
        let n = (layers * heads * rows).max(1) as f64;
        let tokens = &self.job.tokens;
        let mut ranked: Vec<(u32, f64)> =
            weights.into_iter().filter(|(key, _)| (*key as usize) < tokens.len()).collect();
        ranked.sort_by(|a, b| b.1.total_cmp(&a.1));
        let mut lines = vec![["token", "position", "weight", "span"].map(str::to_owned)];
        for (key, weight) in ranked.into_iter().take(TOLD) {
            let position = key as usize;
            let within = self.job.observe.keys.iter().filter(|span| span.range().contains(&position));
            let spans: Vec<&str> = within.map(|span| span.label.as_str()).collect();
            let token = self.token(tokens.get(position).copied().unwrap_or_default());
            lines.push([token, position.to_string(), percent(weight / n), spans.join(", ")]);
        }
        // Heads differ in their keys, so there may be more than `k`.
        let shown = lines.len() - 1;
        format!(
            "{pass}the largest keys of each head and row position ({k} each): the first {shown} by weight in %, mean over {}, {} and {}\n{}\n",
            counted(layers, "layer"),
            counted(heads, "head"),
            counted(rows, "position"),
            aligned(&lines, |column| column == 1 || column == 2)
        )
    }

    /// Logits taken apart by span.
    fn targets(&self, passes: &[&Traced], text: &mut String) -> anyhow::Result<()> {
        let found: Option<Vec<_>> =
            passes.iter().map(|traced| traced.measured.attributions.as_ref()).collect();
        let Some(found) = found else { return Ok(()) };
        let labels: Vec<&str> = self.job.observe.keys.iter().map(|span| span.label.as_str()).collect();
        let labels = labels.into_iter().chain([ELSEWHERE, "(feed-forwards and embedding)"]);
        let labels: Vec<&str> = labels.collect();
        for (t, target) in self.job.observe.targets.iter().enumerate() {
            let columns: Vec<Vec<f64>> = found
                .iter()
                .map(|found| {
                    let of_span = |k| sum(found.heads.slice(s![t, .., .., k]).iter());
                    let other = sum(found.other.row(t).iter());
                    (0..labels.len() - 1).map(of_span).chain([other]).collect()
                })
                .collect();
            let against = target.against.map(|id| format!(" minus logit of {}", self.token(id)));
            let all = columns.iter().map(|column| format!("{:.3}", column.iter().sum::<f64>()));
            let all = all.collect::<Vec<_>>().join(" plain, ");
            writeln!(
                text,
                "logit of {}{} at position {}: {all}{}, as a sum over what heads attend to",
                self.token(target.token),
                against.unwrap_or_default(),
                target.position,
                if passes.len() > 1 { " knocked out" } else { "" }
            )?;
            let mut lines = Vec::new();
            if passes.len() > 1 {
                lines.push(cells(["span", "plain", "knocked out", "change"]));
            }
            for (k, label) in labels.iter().enumerate() {
                let mut values: Vec<f64> = columns.iter().map(|column| column[k]).collect();
                if let [plain, now] = *values.as_slice() {
                    values.push(now - plain);
                }
                let values = values.iter().map(|x| signed(*x, 3));
                lines.push([(*label).to_owned()].into_iter().chain(values).collect());
            }
            text.push_str(&table(&lines));
        }
        Ok(())
    }

    /// The fields of a job's row, of one pass.
    pub fn fields(&self, traced: &Traced) -> Map<String, Value> {
        let masses = &traced.masses;
        let by_row = |value: &dyn Fn(usize) -> Value| -> Value {
            let rows = masses.rows.iter().enumerate();
            rows.map(|(r, row)| (row.label.clone(), value(r))).collect::<Map<_, _>>().into()
        };
        let by_span = |value: fn(&Part<'_>) -> f64| {
            by_row(&|r| {
                let spans = parts(self.job, masses, r).into_iter().take(self.job.observe.keys.len());
                spans.map(|part| (part.label.to_owned(), json!(value(&part)))).collect::<Map<_, _>>().into()
            })
        };
        let alone = |mass: &Array3<f32>| by_row(&|r| json!(mean(mass.slice(s![.., .., r]).iter())));
        let mut fields = Map::from_iter([
            ("mass".to_owned(), by_span(|part| part.mean)),
            ("share".to_owned(), by_span(|part| part.even.unwrap_or(0.0))),
        ]);
        if let Some(found) = &traced.selected {
            for (name, by_layer) in [("selected", &found.selected), ("forgone", &found.forgone)] {
                let of_span = |r: usize, k: usize| mean_of_known(by_layer.slice(s![.., r, k]).iter());
                let spans = self.job.observe.keys.iter().enumerate();
                let of_row =
                    |r: usize| spans.clone().map(move |(k, span)| (span.label.clone(), json!(of_span(r, k))));
                fields.insert(name.to_owned(), by_row(&|r| of_row(r).collect::<Map<_, _>>().into()));
            }
        }
        fields.extend(masses.first_token.as_ref().map(|mass| ("first_token".to_owned(), alone(mass))));
        fields.extend(masses.sink.as_ref().map(|mass| ("sink".to_owned(), alone(mass))));
        let text = |id: u32| self.tokenizer.and_then(|of| of.decode(&[id], false).ok());
        let next = self.next(traced).into_iter().map(|(id, p)| json!({"token": text(id), "id": id, "p": p}));
        fields.insert("next".to_owned(), next.collect::<Vec<_>>().into());
        if self.job.generate > 0 {
            fields.insert("generated".to_owned(), json!(traced.generated));
            let answer = self.tokenizer.and_then(|of| of.decode(&traced.generated, true).ok());
            fields.insert("answer".to_owned(), json!(answer));
        }
        fields
    }
}
