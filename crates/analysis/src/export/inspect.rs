//! Inspect's eval log (JSON, version 2), for `inspect view` and `inspect_ai.log.read_eval_log`.
//!
//! One sample per answer: input is the query, preceded by the history with `with_history`; output is the answer; one score per judge.
//! Metadata holds case, probe, condition, labels, facets and the attention file's name. Samples are written one by one because histories
//! are large.
//!
//! A verdict is `C`, `I` or a numeric score. A judge's metric is the mean over the whole plan: errors and missing verdicts count as
//! incorrect. Each rubric and condition is a scorer of its own; with several conditions, scorer names and sample ids end in the condition.
//! If verdicts are no result (judge too small), there is no metric; the reason is in the metadata and in a tag. Warnings are in the
//! metadata.

use std::io::Write;
use std::time::SystemTime;

use serde_json::{Map, Value, json};

use super::{check_distinct, id};
use crate::records::{Labelled, Record, labelled};
use palimpsest_data::benchmarks::Benchmark;
use palimpsest_data::ground::numbers::in_json;
use palimpsest_run::chat::StopReason;
use palimpsest_run::runs::condition::label;
use palimpsest_run::runs::judged::Judged;
use palimpsest_run::runs::rows::{AnswerRow, VerdictRow};
use palimpsest_run::runs::store::RunFolder;
use palimpsest_run::runs::why_rows::WhyRow;

const NO_RESULT: &str = "no_result";
const WARNING: &str = "warning";

#[derive(Debug, Clone, Copy)]
pub struct Log<'a> {
    pub benchmark: &'a Benchmark,
    pub conditions: &'a [String],
    pub with_history: bool,
}

impl Log<'_> {
    fn id(&self, answered: &Labelled<'_>) -> String {
        let id = id(&answered.record);
        if self.conditions.len() > 1 { format!("{id}_{}", label(&answered.row.condition)) } else { id }
    }

    fn scorer(&self, judged: &Judged<'_>, condition: &str) -> String {
        let judge = &judged.name.label;
        if self.conditions.len() > 1 { format!("{judge} [{}]", label(condition)) } else { judge.clone() }
    }
}

/// Writes the log with these judges' scores; returns the number of samples.
pub fn write(
    mut out: impl Write,
    folder: &RunFolder,
    judges: &[Judged<'_>],
    log: Log<'_>,
) -> anyhow::Result<usize> {
    let answered = labelled(folder, log.conditions)?;
    check_distinct(answered.iter().map(|answered| log.id(answered)))?;
    let head = head(folder, &answered, judges, log);
    out.write_all(b"{")?;
    for (name, value) in head.as_object().into_iter().flatten() {
        writeln!(out, "{}: {value},", json!(name))?;
    }
    out.write_all(b"\"samples\": [")?;
    for (at, answered) in answered.iter().enumerate() {
        out.write_all(if at > 0 { b",\n" } else { b"\n" })?;
        let history =
            if log.with_history { history(folder, &answered.record.case.case)? } else { Vec::new() };
        let mut sample = sample(folder, answered, history, judges, log);
        if let Some(label) = &answered.label {
            sample["metadata"]["why"] = why(label);
        }
        serde_json::to_writer(&mut out, &sample)?;
    }
    out.write_all(b"\n]}\n")?;
    out.flush()?;
    Ok(answered.len())
}

fn why(row: &WhyRow) -> Value {
    let certificate = row.certificate.as_ref().map(|certificate| &certificate.sessions);
    json!({ "label": row.label, "why": row.why, "judge": row.judge, "certificate": certificate })
}

fn head(folder: &RunFolder, answered: &[Labelled<'_>], judges: &[Judged<'_>], log: Log<'_>) -> Value {
    let identity = &folder.header.identity;
    let probes: usize = folder.plan.iter().map(|case| case.probes.len()).sum();
    let expected = probes * log.conditions.len();
    let clean = answered.iter().filter(|a| a.row.error.is_none()).count();
    let (begun, ended) = (written(folder, "run.json"), written(folder, "answers.jsonl"));
    let sampling = identity.sampling.map(|sampling| {
        json!({
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "seed": sampling.seed,
            "max_tokens": sampling.max_new_tokens,
        })
    });
    let ids: Vec<String> = answered.iter().map(|answered| log.id(answered)).collect();
    let scorers = log.conditions.iter().flat_map(|condition| judges.iter().map(move |one| (one, condition)));
    let no_results: Map<String, Value> = scorers
        .filter(|(judged, condition)| judged.judged_under(condition))
        .filter_map(|(judged, condition)| Some((log.scorer(judged, condition), json!(judged.no_result()?))))
        .collect();
    let tags: Vec<String> = no_results.keys().map(|judge| format!("no result by {judge}")).collect();
    let labels: Vec<&str> = log.conditions.iter().map(|name| label(name)).collect();
    let mut metadata = json!({
        "run": folder.header,
        "condition": labels.join(", "),
        "missing": expected - answered.len(),
    });
    if !no_results.is_empty() {
        metadata[NO_RESULT] = Value::Object(no_results);
    }
    let under = |condition: &'_ String| -> Vec<Value> {
        let own: Vec<&Labelled<'_>> = answered.iter().filter(|a| a.row.condition == *condition).collect();
        let judged = judges.iter().filter(|judged| judged.judged_under(condition));
        judged.map(|judged| score(judged, condition, &own, log, probes)).collect()
    };
    let scores: Vec<Value> = log.conditions.iter().flat_map(under).collect();
    // A partial sum is not the total. A failed question may have made no request.
    let spent = || answered.iter().filter(|a| a.row.error.is_none() || a.row.prompt_tokens.is_some());
    let sum = |of: fn(&AnswerRow) -> Option<usize>| spent().map(|a| of(a.row)).sum::<Option<usize>>();
    let read = sum(|row| row.prompt_tokens).filter(|_| spent().next().is_some());
    let usage = usage(read, sum(|row| row.completion_tokens));
    let usage: Map<String, Value> =
        usage.map(|usage| (identity.model.name.clone(), usage)).into_iter().collect();
    json!({
        "version": 2,
        "status": if answered.len() == expected { "success" } else { "cancelled" },
        "eval": {
            "eval_id": folder.header.identity_sha256,
            "run_id": folder.header.identity_sha256,
            "created": begun,
            "task": log.benchmark.name,
            "task_display_name": log.benchmark.title,
            "task_id": folder.header.identity_sha256,
            "task_version": 0,
            "dataset": {
                "name": identity.dataset.name,
                "samples": expected,
                "sample_ids": ids,
                "shuffled": false,
            },
            "model": identity.model.name,
            "model_generate_config": sampling.unwrap_or_else(|| json!({})),
            "config": { "epochs": 1 },
            "packages": { "palimpsest": identity.version },
            "tags": tags,
            "metadata": metadata,
        },
        "plan": { "name": "plan", "steps": [{ "solver": "palimpsest", "params": {} }], "config": {} },
        "results": { "total_samples": expected, "completed_samples": clean, "scores": scores },
        "stats": { "started_at": begun, "completed_at": ended, "model_usage": usage },
    })
}

/// Modification time of a run file, RFC 3339: rows have no timestamps.
fn written(folder: &RunFolder, name: &str) -> String {
    let time = std::fs::metadata(folder.dir.join(name)).and_then(|file| file.modified());
    let time = jiff::Timestamp::try_from(time.unwrap_or(SystemTime::UNIX_EPOCH)).unwrap_or_default();
    time.strftime("%Y-%m-%dT%H:%M:%S+00:00").to_string()
}

fn score(
    judged: &Judged<'_>,
    condition: &str,
    answered: &[&Labelled<'_>],
    log: Log<'_>,
    expected: usize,
) -> Value {
    let most = log.benchmark.rubric().verdict.most().unwrap_or(1);
    let verdict = |a: &Labelled<'_>| judged.get(a.row.key());
    let worth: Vec<f64> = answered.iter().filter_map(|a| verdict(a)?.worth(most)).collect();
    // An empty sum is -0.0.
    let mean = worth.iter().fold(0.0, |sum, worth| sum + worth) / expected.max(1) as f64;
    let (mut metrics, mut metadata) = (Map::new(), Map::new());
    metadata.insert("rubric".to_owned(), json!(judged.name.digest));
    metadata.insert("rubric_name".to_owned(), json!(judged.name.rubric));
    metadata.extend(judged.warning().map(|warning| (WARNING.to_owned(), json!(warning))));
    metadata.insert("denominator".to_owned(), json!(expected));
    metadata.insert("condition".to_owned(), json!(label(condition)));
    match judged.no_result() {
        None if answered.is_empty() => None,
        None => metrics.insert("accuracy".to_owned(), json!({ "name": "accuracy", "value": mean })),
        Some(why) => metadata.insert(NO_RESULT.to_owned(), json!(why)),
    };
    let name = log.scorer(judged, condition);
    json!({
        "name": name,
        "scorer": name,
        "scored_samples": worth.len(),
        "unscored_samples": expected - worth.len().min(expected),
        "metrics": metrics,
        "metadata": metadata,
    })
}

/// Inspect's `ModelUsage`; `None` unless both counts are known: imported answers lack them, and Inspect has no value for unknown.
fn usage(input: Option<usize>, output: Option<usize>) -> Option<Value> {
    let (input, output) = (input?, output?);
    Some(json!({ "input_tokens": input, "output_tokens": output, "total_tokens": input + output }))
}

fn sample(
    folder: &RunFolder,
    answered: &Labelled<'_>,
    history: Vec<Value>,
    judges: &[Judged<'_>],
    log: Log<'_>,
) -> Value {
    let Labelled { record: Record { case, probe, .. }, row, .. } = answered;
    let id = log.id(answered);
    let model = &folder.header.identity.model.name;
    let message = |role: &str, content: Value, source: &str| json!({ "id": format!("{id}_{role}"), "role": role, "content": content, "source": source });
    let mut input = history;
    input.push(message("user", json!(row.query), "input"));
    let mut messages = input.clone();
    let mut sample = json!({
        "id": id,
        "epoch": 1,
        "input": input,
        "target": "",
        "metadata": {
            "case": case.case,
            "probe": probe.id,
            "condition": label(&row.condition),
            "labels": row.labels,
            "facets": probe.facets,
            "dropped_sessions": row.dropped_sessions,
            "attention": row.attention,
        },
    });
    let Some(fields) = sample.as_object_mut() else { return sample };
    // Error rows count too: their tokens were spent.
    let tokens = usage(row.prompt_tokens, row.completion_tokens);
    if let Some(tokens) = &tokens {
        fields.insert("model_usage".to_owned(), json!({ model: tokens }));
    }
    if let Some(answer) = &row.answer {
        let reply = message("assistant", content(row, answer), "generate");
        let stop = match row.stop {
            Some(StopReason::EndOfTurn) => "stop",
            Some(StopReason::MaxNewTokens) => "max_tokens",
            Some(StopReason::Refused) => "content_filter",
            Some(StopReason::ThoughtCut | StopReason::ThoughtOnly) | None => "unknown",
        };
        messages.push(reply.clone());
        let choices = json!([{ "message": reply, "stop_reason": stop }]);
        fields.insert(
            "output".to_owned(),
            json!({ "model": model, "choices": choices, "completion": answer, "usage": tokens }),
        );
    }
    fields.insert("messages".to_owned(), Value::Array(messages));
    if let Some(error) = &row.error {
        let error = json!({ "message": error, "traceback": "", "traceback_ansi": "" });
        fields.insert("error".to_owned(), error);
    }
    let scores: Map<String, Value> = judges
        .iter()
        .filter_map(|judged| {
            let verdict = judged.get(row.key())?;
            Some((log.scorer(judged, &row.condition), verdict_score(verdict, row)?))
        })
        .collect();
    if !scores.is_empty() {
        fields.insert("scores".to_owned(), Value::Object(scores));
    }
    sample
}

/// The answer, with reasoning as a separate part if stored.
fn content(row: &AnswerRow, answer: &str) -> Value {
    match row.thought.as_deref().filter(|thought| !thought.is_empty()) {
        Some(thought) => json!([
            { "type": "reasoning", "reasoning": thought },
            { "type": "text", "text": answer },
        ]),
        None => json!(answer),
    }
}

fn verdict_score(verdict: &VerdictRow, row: &AnswerRow) -> Option<Value> {
    if verdict.error.is_some() {
        return None;
    }
    let value = match (verdict.score, verdict.correct) {
        (Some(score), _) => in_json(score),
        (None, correct) => json!(if correct? { "C" } else { "I" }),
    };
    let mut metadata = Map::new();
    metadata.extend(verdict.probability.map(|p| ("probability".to_owned(), json!(p))));
    metadata.extend(verdict.choice.as_ref().map(|choice| ("choice".to_owned(), json!(choice))));
    Some(json!({
        "value": value,
        "answer": row.answer,
        "explanation": verdict.reason,
        "metadata": metadata,
    }))
}

/// History as shown to the model, one message per turn. Roles unknown to Inspect are written into the text.
fn history(folder: &RunFolder, case: &str) -> anyhow::Result<Vec<Value>> {
    let Some(shown) = folder.shown(case)? else { return Ok(Vec::new()) };
    let mut messages = Vec::new();
    for segment in &shown.segments {
        for (at, turn) in segment.turns.iter().enumerate() {
            let (role, content) = match turn.role.as_str() {
                "user" | "assistant" => (turn.role.as_str(), turn.content.clone()),
                role => ("user", format!("{role}: {}", turn.content)),
            };
            messages.push(json!({
                "id": format!("{}_{}_{at}", segment.kind, segment.index),
                "role": role,
                "content": content,
                "source": "input",
                "metadata": { "kind": segment.kind, "index": segment.index, "time": segment.time },
            }));
        }
    }
    Ok(messages)
}
