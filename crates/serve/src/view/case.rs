//! One answer with everything known about it: `/api/case`. Files are read on request.

use std::fmt::Display;

use serde_json::{Map, Value, json};

use super::attention::Attention;
use super::fields::Fields;
use super::folder::{CauseAt, Folder};
use super::ranks::{STAGES, kind_of, stages};
use super::runs::layers_json;
use super::sessions::{Session, sessions};
use super::strip::{Strip, Strips};
use super::table::{known_key, state, verdict_in_words};
use palimpsest_analysis::lens::layers::mean_over;
use palimpsest_analysis::lens::{Baseline, Curve, Example, Scale, Target};
use palimpsest_analysis::losses::trace::Stage;
use palimpsest_analysis::why::check_sides;
use palimpsest_core::ablate::Measure;
use palimpsest_core::attention::AttentionStore;
use palimpsest_core::span::Span;
use palimpsest_data::ground::folder::is_file;
use palimpsest_data::ground::numbers::in_json;
use palimpsest_run::memory::system::Show;
use palimpsest_run::memory::system::case_rows::MemoryRows;
use palimpsest_run::memory::system::protocol::{Memory, Source};
use palimpsest_run::memory::system::rows::HistoryRow;
use palimpsest_run::runs::causes::contrast_rows::{AblationKind, CONTRAST_CAUSES, ContrastCauseRow};
use palimpsest_run::runs::causes::rows::{CAUSES, CauseLine};
use palimpsest_run::runs::causes::session_measures::{SessionMeasures, measures_file};
use palimpsest_run::runs::condition::Condition;
use palimpsest_run::runs::judge_name::JudgeName;
use palimpsest_run::runs::judged::no_result;
use palimpsest_run::runs::plan::{PlannedCase, PlannedProbe, dimension_of};
use palimpsest_run::runs::rows::{AnswerRow, Contrast, ReplyRow, ValueLogP, VerdictRow};
use palimpsest_run::runs::store::{REPLIES, ShownCase};
use palimpsest_run::runs::why_rows::WHY;

pub struct Case<'a> {
    folder: &'a Folder,
    row: usize,
    planned: &'a PlannedCase,
    probe: &'a PlannedProbe,
    condition: &'a Condition,
    answer: Option<&'a AnswerRow>,
    history: Option<ShownCase>,
    /// Rows of the condition's memory system.
    memory: Option<MemoryRows>,
    pub attention: Option<Attention>,
    pub measures: Option<SessionMeasures>,
    lines: Vec<CauseLine>,
    contrasts: Vec<ContrastCauseRow>,
    pub sessions: Vec<Session>,
    warnings: Vec<String>,
}

/// Keeps the fault of a file that cannot be read.
fn read<T, E: Display>(warnings: &mut Vec<String>, found: Result<Option<T>, E>) -> Option<T> {
    found.unwrap_or_else(|error| {
        warnings.push(error.to_string());
        None
    })
}

impl<'a> Case<'a> {
    /// Reads the files of a row.
    pub fn open(folder: &'a Folder, row: usize) -> Self {
        let (planned, probe, condition) = folder.named(row);
        let (dir, facts) = (folder.dir(), &folder.rows[row]);
        let mut warnings = Vec::new();
        let history = read(&mut warnings, folder.run.shown(&planned.case));
        let system = condition.memory.as_ref().map(|context| context.system.as_str());
        let memory =
            system.and_then(|system| read(&mut warnings, MemoryRows::read(dir, system, &planned.case)));
        let attention = read(&mut warnings, folder.attention(row));
        let name = Some(measures_file(Measure::LogP, folder.key(row))).filter(|name| is_file(dir, name));
        let measures = read(&mut warnings, name.map(|name| SessionMeasures::open(dir, &name)).transpose());
        let places = |causes: &'a [CauseAt]| causes.iter().map(|one| one.place);
        let store = attention.as_ref().map(|attention| &attention.store);
        let sessions = sessions((folder, row), store, history.as_ref(), memory.as_ref());
        Case {
            folder,
            row,
            planned,
            probe,
            condition,
            answer: folder.answer(row),
            history,
            memory,
            attention,
            measures,
            lines: folder.read_all(CAUSES, places(&facts.causes)),
            contrasts: folder.read_all(CONTRAST_CAUSES, places(&facts.contrasts)),
            sessions,
            warnings,
        }
    }

    pub fn strips(&self) -> Vec<Strip> {
        let mut strips = Strips::of(&self.sessions);
        if let Some(attention) = &self.attention {
            strips.attention(attention);
        }
        strips.effects(&self.lines, self.folder.seed);
        strips.contrasts(&self.contrasts);
        if let Some(measures) = &self.measures {
            let layers = self.attention.as_ref().map(|attention| attention.by_layer.layers.as_slice());
            strips.measures(measures, layers.unwrap_or_default());
        }
        strips.made
    }

    /// `at`: row number on the page; `run`: number of its run.
    pub fn json(&self, at: usize, run: usize) -> Value {
        let query_time = self.history.as_ref().and_then(|history| history.query_time);
        let (probe, condition, benchmark) = (self.probe, self.condition, self.folder.benchmark);
        let facts = &self.folder.rows[self.row];
        let mut case = json!({
            "row": at, "run": run, "case": self.planned.case, "probe": probe.id,
            "dimension": dimension_of(benchmark, probe),
            "condition": {
                "name": condition.name, "label": condition.label(), "about": condition.in_words(benchmark),
                "segment": condition.segment(benchmark),
            },
            "labels": self.planned.labels, "facets": probe.facets, "query": probe.query,
        })
        .with("query_time", query_time.map(|time| time.to_string()))
        .with("state", Some(state(self.answer)));
        if let Some(answer) = self.answer {
            case = answered(answer, case);
        }
        let replies: Vec<ReplyRow> = self.folder.read_all(REPLIES, facts.replies.iter().copied());
        let replies = replies.iter().filter(|row| no_result(&row.judge).is_none());
        let replies = replies.map(|row| json!({"judge": row.judge, "replies": row.replies}));
        case["gold"] = self.gold();
        case["verdicts"] = self.verdicts();
        case["replies"] = replies.collect();
        case["sessions"] = json!(self.sessions);
        if let Some(Attention { store, by_layer, viewer, .. }) = &self.attention {
            case["layers"] = layers_json(&by_layer.layers);
            case["heads"] = json!(store.mass.dim().1);
            case["rows"] = store.rows.iter().map(span_json).collect();
            case["spans"] = self.spans(store);
            case["generated"] = json!(store.generated.len());
            case = case.with("viewer", *viewer);
        }
        case["strip"] = json!(self.strips());
        case.with("curves", self.curves())
            .with("causes", self.causes())
            .with("why", self.why())
            .with("memory", self.memory())
            .with("trials", Some(self.folder.trials(self.row, at)))
            .with("missing", Some(self.missing()))
            .with("warnings", Some(&self.warnings))
    }

    /// The last verdict of each judge that can judge, which is the one that counts.
    fn verdicts(&self) -> Value {
        let key = self.folder.key(self.row);
        let run = &self.folder.run;
        let last = |judge: &'a JudgeName| {
            run.verdicts.iter().rfind(|row| row.key() == key && judge.gave(row)).map(|row| (judge, row))
        };
        let of = |(judge, row): (&JudgeName, &VerdictRow)| {
            let counts = self.folder.judge.as_ref() == Some(judge);
            json!({"judge": judge.label, "counts": counts, "verdict": verdict_in_words(row)})
                .with("correct", self.folder.is_right(row))
                .with("score", row.score.map(in_json))
                .with("most", row.score.map(|_| self.folder.best_score()))
                .with("choice", row.choice.as_ref())
                .with("probability", row.probability)
                .with("reason", row.reason.as_ref())
                .with("error", row.error.as_ref())
        };
        let judges = run.judges().iter().filter(|judge| no_result(&judge.judge).is_none());
        judges.filter_map(last).map(of).collect()
    }

    fn spans(&self, store: &AttentionStore) -> Value {
        let of = |(key, span): (usize, &Span)| {
            span_json(span)
                .with("overlay", Some(span.overlay))
                .with("session", self.sessions.iter().position(|session| session.span == Some(key)))
        };
        store.keys.iter().enumerate().map(of).collect()
    }

    fn curves(&self) -> Option<Value> {
        let Attention { path, store, .. } = self.attention.as_ref()?;
        let example = Example::measure(path, store, self.folder.benchmark, Baseline::default(), None).ok()?;
        let kind = kind_of(&example.layers)?;
        let of = |curve| {
            let mut json = json!({
                "key": Curve::key(curve), "from": curve.from, "to": curve.to,
                "stand_ins": example.stand_ins(curve).iter()
                    .map(|one| json!({"evidence": one.evidence, "index": one.index, "distance": one.distance()}))
                    .collect::<Vec<_>>(),
            });
            let all = [
                ("mass", Target::Signal, Scale::Mass),
                ("noise_mass", Target::Noise, Scale::Mass),
                ("density", Target::Signal, Scale::Density),
                ("noise_density", Target::Noise, Scale::Density),
            ];
            let mut means = Map::new();
            for (key, target, scale) in all {
                if let Some(values) = example.curve(curve, target, scale) {
                    json[key] = json!(values);
                    means.insert(key.to_owned(), json!(mean_over(&example.layers, kind, values)));
                }
            }
            json["mean"] = Value::Object(means);
            json
        };
        Some(example.curves().map(of).collect())
    }

    /// The row of why.jsonl; without its label where the verdict that it explains is withheld.
    fn why(&self) -> Option<Value> {
        let (label, _, place) = self.folder.rows[self.row].why?;
        let mut why: Value = self.folder.read_all(WHY, [place]).into_iter().next()?;
        let withheld = why["judge"].as_str().and_then(no_result);
        match (why.as_object_mut(), label) {
            (Some(fields), None) => fields.retain(|name, _| !["label", "why"].contains(&name.as_str())),
            (Some(fields), Some(label)) => _ = fields.insert("label".to_owned(), json!(label.key())),
            _ => (),
        }
        Some(why.with("withheld", withheld))
    }

    /// Rows of the causes' files by method.
    fn causes(&self) -> Option<Value> {
        const GROUPS: [&str; 8] =
            ["direct", "windows", "control", "total", "replaced", "forced", "carriers", "contextcite"];
        let mut causes = Map::new();
        for group in GROUPS {
            let rows: Vec<&CauseLine> =
                self.lines.iter().filter(|line| group_of(line) == Some(group)).collect();
            if !rows.is_empty() {
                causes.insert(group.to_owned(), json!(rows));
            }
        }
        if !self.contrasts.is_empty() {
            causes.insert("contrast".to_owned(), json!(self.contrasts));
        }
        (!causes.is_empty()).then_some(Value::Object(causes))
    }

    fn memory(&self) -> Option<Value> {
        let context = self.condition.memory.as_ref()?;
        let asked = (self.folder.benchmark, self.planned, self.probe);
        let facts = stages(asked, context, self.memory.as_ref(), self.answer).into_iter().map(|fact| {
            let stages = Stage::ALL.into_iter().zip(fact.stages).take(STAGES);
            let stages: Map<String, Value> =
                stages.map(|(stage, known)| (stage.key().to_owned(), json!(known_key(known)))).collect();
            json!({"role": fact.role, "sessions": fact.sessions, "stages": stages}).with("side", fact.side)
        });
        let mut memory = json!({
            "system": context.system, "show": context.show, "k": context.k, "facts": facts.collect::<Vec<_>>(),
            "written": [], "returned": [],
        });
        let Some(rows) = &self.memory else { return Some(memory) };
        let events = rows.history.iter().filter_map(|row| match row {
            HistoryRow::Event(row) => Some(json!({
                "session": row.session, "op": row.event.op, "id": row.event.memory, "text": row.event.text,
                "previous": row.event.previous, "sources": row.event.sources.as_deref().map(sources), "reason": row.event.reason,
            })),
            HistoryRow::Session(row) => {
                row.failed.as_ref().map(|failed| json!({"session": row.session, "op": "failed", "text": failed.message}))
            }
        });
        memory["written"] = events.collect();
        let kept = rows.dump.as_ref().map(|dump| dump.iter().map(memory_json).collect::<Value>());
        memory = memory.with("kept", kept);
        if let Some(search) = rows.search(&self.probe.id) {
            memory["searched"] = json!(search.query);
            memory = memory.with("failed", search.failed.as_ref().map(|failed| &failed.message));
            let shown = self.answer.and_then(|row| row.memories.as_deref()).unwrap_or_default();
            let returned = search.memories.iter().enumerate().map(|(rank, one)| {
                memory_json(one).with("rank", Some(rank)).with("shown", Some(shown.contains(&one.id)))
            });
            memory["returned"] = returned.collect();
        }
        Some(memory)
    }

    /// Missing data, each with the command that makes it.
    fn missing(&self) -> Value {
        let (dir, facts) = (self.folder.dir().display(), &self.folder.rows[self.row]);
        let mut missing: Vec<Value> = Vec::new();
        let mut say = |what: &str, command: String| missing.push(json!({"what": what, "command": command}));
        let key = self.folder.key(self.row);
        // Verdicts that are withheld are said above.
        if !self.folder.run.verdicts.iter().any(|row| row.key() == key) {
            say("a verdict", format!("palimpsest judge {dir} --judge JUDGE"));
        }
        let Some(answer) = self.answer.filter(|row| row.error.is_none()) else { return json!(missing) };
        if answer.attention.is_none() {
            if self.condition.memory.as_ref().is_none_or(|context| context.show != Show::Answer) {
                say("attention", "palimpsest run ... (without --no-attention)".to_owned());
            }
            return json!(missing);
        }
        let has = |group| self.lines.iter().any(|line| group_of(line) == Some(group));
        let is_direct =
            |row: &ContrastCauseRow| row.ablation == AblationKind::Blocked && row.layers.is_none();
        let has_contrasts = answer.contrast.is_none() || self.contrasts.iter().any(is_direct);
        for (has, what, flag) in [
            (has("direct"), "direct effects of sessions, and controls", ""),
            (has("total"), "total effects", " --total"),
            (has("replaced"), "effects of neutral text in their place", " --replace"),
            (has("carriers"), "carriers", " --carriers"),
            (has_contrasts, "effects on the contrast", " --contrast"),
        ] {
            if !has {
                say(what, format!("palimpsest causes {dir}{flag}"));
            }
        }
        let sides = check_sides(self.folder.benchmark).is_ok();
        // Labels of withheld verdicts would be withheld with them.
        let can_explain = sides && self.folder.no_result.is_none() && self.condition.is_open();
        if can_explain && facts.why.is_none() {
            say("a label with its certificate", format!("palimpsest why {dir}"));
        }
        json!(missing)
    }

    /// Notes shown to judges only: the case's, then the probe's.
    fn gold(&self) -> Value {
        let of_case = self.planned.judge.iter().map(|(label, note)| ("case", label, note));
        let of_probe = self.probe.judge.iter().map(|(label, note)| ("probe", label, note));
        of_case
            .chain(of_probe)
            .map(|(of, label, note)| json!({"of": of, "label": label.replace('_', " "), "text": note_text(note)}))
            .collect()
    }
}

/// Name of a line's method in replies. Repairs, single subsets and paths through thoughts are not shown.
fn group_of(line: &CauseLine) -> Option<&'static str> {
    Some(match line {
        CauseLine::Blocked(row) if row.layers.is_some() => "windows",
        CauseLine::Blocked(_) => "direct",
        CauseLine::Control(_) => "control",
        CauseLine::Total(_) => "total",
        CauseLine::Replaced(_) => "replaced",
        CauseLine::Carrier(_) => "carriers",
        CauseLine::Surrogate(_) => "contextcite",
        CauseLine::Forced(_) => "forced",
        CauseLine::Repaired(_) | CauseLine::Subset(_) | CauseLine::Thought(_) => return None,
    })
}

pub fn note_text(note: &Value) -> String {
    match note {
        Value::String(text) => text.clone(),
        Value::Array(all) if all.iter().all(Value::is_string) => {
            all.iter().filter_map(Value::as_str).collect::<Vec<_>>().join("\n")
        }
        other => other.to_string(),
    }
}

fn answered(row: &AnswerRow, case: Value) -> Value {
    let case = case
        .with("answer", row.answer.as_ref())
        .with("thought", row.thought.as_ref())
        .with("error", row.error.as_ref())
        .with("stop", row.stop.as_ref())
        .with("reached_limit", Some(row.reached_limit()))
        .with("scores", Some(&row.scores).filter(|scores| !scores.is_empty()))
        .with("contrast", row.contrast.as_ref().map(contrast_json));
    let tokens = json!({
        "prompt": row.prompt_tokens, "answer": row.completion_tokens, "dropped": row.dropped_tokens,
        "history": Some(row.history_tokens).filter(|tokens| *tokens > 0),
    });
    case.with("tokens", Some(tokens))
}

fn contrast_json(contrast: &Contrast) -> Value {
    let values: Vec<Value> =
        parts(contrast).map(|(part, value)| value_json(&part, value, value.log_p)).collect();
    json!({"value": contrast.value, "values": values})
}

/// Values with their field names in the file, in the order of [`Contrast::values`].
pub fn parts(contrast: &Contrast) -> impl Iterator<Item = (String, &ValueLogP)> {
    let fields = serde_json::to_value(contrast).unwrap_or_default();
    let fields: Vec<(String, Value)> = fields.as_object().cloned().unwrap_or_default().into_iter().collect();
    contrast.values().filter_map(move |value| {
        let own = json!(value);
        let holds = |held: &Value| *held == own || held.as_array().is_some_and(|all| all.contains(&own));
        let (name, _) = fields.iter().find(|(_, held)| holds(held))?;
        Some((name.clone(), value))
    })
}

pub fn value_json(part: &str, value: &ValueLogP, log_p: f64) -> Value {
    json!({"part": part, "text": value.text, "log_p": log_p})
}

fn span_json(span: &Span) -> Value {
    json!({"label": span.label, "tokens": [span.start, span.end]}).with("role", span.role.as_ref())
}

fn sources(sources: &[Source]) -> Vec<&str> {
    sources.iter().map(|source| source.session.as_str()).collect()
}

fn memory_json(memory: &Memory) -> Value {
    json!({"id": memory.id, "text": memory.text, "status": memory.status})
        .with("sources", memory.sources.as_deref().map(sources))
        .with("score", memory.score)
        .with("time", memory.time.as_ref())
}
