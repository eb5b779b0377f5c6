//! Text output of `trace`: attention by span, top keys, next token.

use std::collections::BTreeMap;
use std::fmt::Write;

use ndarray::s;
use palimpsest_core::attention::{LargestKeys, Masses};
use palimpsest_core::engine::Likelihood;
use palimpsest_core::span::Span;
use palimpsest_core::text::Tokenizer;
use serde_json::{Map, Value, json};

use crate::ground::table::aligned;
use crate::observe::{NamedPrompt, TraceJob, Traced};

/// Number of listed next tokens and top keys.
const TOLD: usize = 6;

struct Paid<'a> {
    span: &'a Span,
    mean: f64,
    /// Mass under uniform attention, mean over layers.
    even: f64,
    most: f64,
    head: (usize, usize),
}

fn paid<'a>(masses: &Masses, keys: &'a [Span], row: usize) -> Vec<Paid<'a>> {
    let of_span = |(k, span): (usize, &'a Span)| {
        let mass = masses.mass.slice(s![.., .., row, k]); // (layers, heads)
        let (mut most, mut head) = (f64::NEG_INFINITY, (0, 0));
        for ((l, h), mass) in mass.indexed_iter() {
            if f64::from(*mass) > most {
                (most, head) = (f64::from(*mass), (masses.layers.get(l).copied().unwrap_or(l), h));
            }
        }
        let share = masses.uniform.share.slice(s![.., row, k]);
        let (mean, even) = (mean(mass.iter()), mean(share.iter()));
        Paid { span, mean, even, most: most.max(0.0), head }
    };
    keys.iter().enumerate().map(of_span).collect()
}

fn mean<'a>(values: impl ExactSizeIterator<Item = &'a f32>) -> f64 {
    let n = values.len().max(1) as f64;
    sum(values) / n
}

fn sum<'a>(values: impl Iterator<Item = &'a f32>) -> f64 {
    values.map(|value| f64::from(*value)).sum()
}

fn overlap(keys: &[Span]) -> bool {
    let mut ranges: Vec<_> = keys.iter().filter(|span| !span.is_empty()).map(Span::range).collect();
    ranges.sort_by_key(|range| range.start);
    ranges.windows(2).any(|pair| pair[0].end > pair[1].start)
}

fn next(traced: &Traced, tokenizer: &Tokenizer) -> Vec<(String, u32, f64)> {
    let logits = &traced.measured.logits;
    let Some(last) = logits.dim().0.checked_sub(1) else { return Vec::new() };
    let likeliest = Likelihood::of(0, &logits.row(last).to_vec(), TOLD).likeliest;
    likeliest.into_iter().map(|(id, log_p)| (shown(tokenizer, id), id, log_p.exp())).collect()
}

fn shown(tokenizer: &Tokenizer, id: u32) -> String {
    tokenizer.decode(&[id], false).unwrap_or_default()
}

/// Tables of masses by row (largest spans first), with the next token, top keys and the answer.
pub(super) fn told(
    job: &TraceJob,
    traced: &Traced,
    prompt: &NamedPrompt,
    tokenizer: &Tokenizer,
) -> anyhow::Result<String> {
    let (masses, keys) = (&traced.masses, &job.observe.keys);
    let (layers, heads, _, _) = masses.mass.dim();
    let mut text = String::new();
    for (r, row) in masses.rows.iter().enumerate() {
        let of = if row.label == "answer" { traced.generated.len() } else { row.len() };
        let tokens = if of == 1 { "token" } else { "tokens" };
        writeln!(
            text,
            "attention of `{}` ({of} {tokens}) in %, mean over {layers} layers and {heads} heads",
            row.label
        )?;
        let mut all = paid(masses, keys, r);
        let sum: f64 = all.iter().map(|paid| paid.mean).sum();
        all.sort_by(|a, b| b.mean.total_cmp(&a.mean));
        let head = ["span", "tokens", "mass", "even", "mass/even", "most of a head", "layer.head"];
        let mut lines = vec![head.map(str::to_owned).to_vec()];
        for Paid { span, mean, even, most, head } in all {
            let density = if even > 0.0 { format!("{:.2}", mean / even) } else { "-".to_owned() };
            lines.push(vec![
                span.label.clone(),
                span.len().to_string(),
                format!("{:.2}", 100.0 * mean),
                format!("{:.2}", 100.0 * even),
                density,
                format!("{:.2}", 100.0 * most),
                if most > 0.0 { format!("{}.{}", head.0, head.1) } else { "-".to_owned() },
            ]);
        }
        if !overlap(keys) {
            let left = format!("{:.2}", 100.0 * (1.0 - sum).max(0.0));
            lines.push(vec!["(elsewhere)".to_owned(), String::new(), left]);
        }
        text.push_str(&aligned(&lines, |column| column > 0));
        text.push('\n');
    }
    if !masses.rows.is_empty() {
        text.push_str(
            "even: the same if the row attended to every token that it sees alike; mass/even above 1 is more than that\n",
        );
        if overlap(keys) {
            text.push_str("some spans share tokens, so that their masses do not add up\n");
        }
        text.push('\n');
    }
    if let Some(largest) = &traced.largest {
        text.push_str(&told_keys(largest, job, prompt, tokenizer)?);
    }
    if let Some(found) = &traced.measured.attributions {
        for (t, target) in job.observe.targets.iter().enumerate() {
            let against = target.against.map(|id| format!(" less that of {:?}", shown(tokenizer, id)));
            let of_heads: Vec<f64> =
                (0..=keys.len()).map(|k| sum(found.heads.slice(s![t, .., .., k]).iter())).collect();
            let other = sum(found.other.row(t).iter());
            writeln!(
                text,
                "logit of {:?}{} at position {}: {:.3}, of which heads that read",
                shown(tokenizer, target.token),
                against.unwrap_or_default(),
                target.position,
                of_heads.iter().sum::<f64>() + other
            )?;
            let labels = keys.iter().map(|span| span.label.as_str()).chain(["(elsewhere)"]);
            let mut lines: Vec<(String, f64)> = labels.map(str::to_owned).zip(of_heads).collect();
            lines.sort_by(|a, b| b.1.total_cmp(&a.1));
            lines.push(("(feed-forwards and embedding)".to_owned(), other));
            let lines: Vec<_> = lines.into_iter().map(|(label, x)| [label, format!("{x:+.3}")]).collect();
            text.push_str(&aligned(&lines, |column| column > 0));
            text.push('\n');
        }
    }
    let next = next(traced, tokenizer);
    let next: Vec<String> = next.iter().map(|(token, _, p)| format!("{token:?} {:.1}%", 100.0 * p)).collect();
    writeln!(text, "next token: {}", next.join(", "))?;
    if job.generate > 0 {
        writeln!(text, "answer: {}", tokenizer.decode(&traced.generated, true)?.trim())?;
    }
    Ok(text)
}

/// Keys with the largest total weight among the heads' top keys.
fn told_keys(
    largest: &LargestKeys,
    job: &TraceJob,
    prompt: &NamedPrompt,
    tokenizer: &Tokenizer,
) -> anyhow::Result<String> {
    let [layers, heads, rows, k] = largest.shape;
    let mut weights: BTreeMap<u32, f64> = BTreeMap::new();
    for (&key, &weight) in largest.keys.iter().zip(&largest.weights) {
        *weights.entry(key).or_default() += f64::from(weight);
    }
    let n = (layers * heads * rows).max(1) as f64;
    let mut ranked: Vec<(u32, f64)> =
        weights.into_iter().filter(|(key, _)| (*key as usize) < prompt.encoded.ids.len()).collect();
    ranked.sort_by(|a, b| b.1.total_cmp(&a.1));
    let mut lines = vec![["token", "position", "weight", "span"].map(str::to_owned)];
    for (key, weight) in ranked.into_iter().take(TOLD) {
        let position = key as usize;
        let within = job.observe.keys.iter().filter(|span| span.range().contains(&position));
        let spans: Vec<&str> = within.map(|span| span.label.as_str()).collect();
        let id = prompt.encoded.ids.get(position).copied().unwrap_or_default();
        lines.push([
            format!("{:?}", shown(tokenizer, id)),
            position.to_string(),
            format!("{:.2}", 100.0 * weight / n),
            spans.join(", "),
        ]);
    }
    let what = format!(
        "the largest keys of each head and row position (top {k}), their weights in %, mean over {layers} layers, {heads} heads and {rows} positions\n"
    );
    Ok(what + &aligned(&lines, |column| column == 1 || column == 2) + "\n")
}

pub(super) fn row(job: &TraceJob, traced: &Traced, tokenizer: &Tokenizer) -> Map<String, Value> {
    let (masses, keys) = (&traced.masses, &job.observe.keys);
    let (mut mass, mut share) = (Map::new(), Map::new());
    for (r, row) in masses.rows.iter().enumerate() {
        let paid = paid(masses, keys, r);
        let of = |value: fn(&Paid<'_>) -> f64| -> Map<String, Value> {
            paid.iter().map(|paid| (paid.span.label.clone(), json!(value(paid)))).collect()
        };
        mass.insert(row.label.clone(), of(|paid| paid.mean).into());
        share.insert(row.label.clone(), of(|paid| paid.even).into());
    }
    let next = next(traced, tokenizer).into_iter();
    let next: Vec<Value> = next.map(|(token, id, p)| json!({"token": token, "id": id, "p": p})).collect();
    let mut fields = Map::from_iter([
        ("tokens".to_owned(), json!(job.tokens.len())),
        ("reused".to_owned(), json!(traced.measured.reused)),
        ("seconds".to_owned(), json!(traced.seconds)),
        ("mass".to_owned(), mass.into()),
        ("share".to_owned(), share.into()),
        ("next".to_owned(), next.into()),
    ]);
    if job.generate > 0 {
        fields.insert("generated".to_owned(), json!(traced.generated));
        fields.insert("answer".to_owned(), json!(tokenizer.decode(&traced.generated, true).ok()));
    }
    fields
}
