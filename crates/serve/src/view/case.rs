//! One answer with everything known about it: `/api/case`. Files are read on request.

use std::path::PathBuf;

use serde_json::{Map, Value, json};

use super::fields::Fields;
use super::folder::{Folder, Way};
use super::ranks::{kind_of, stages};
use super::roles::viewer;
use super::runs::Shape;
use super::sessions::{Session, Sources};
use super::snippets::snippets;
use super::strip::{Strip, Strips, WAYS};
use super::table::{known_key, side_key, state, verdict_in_words};
use palimpsest_analysis::lens::layers::mean_over;
use palimpsest_analysis::lens::{Baseline, ByLayer, Example, Scale, Target};
use palimpsest_analysis::losses::trace::Stage;
use palimpsest_core::ablate::Measure;
use palimpsest_core::attention::AttentionStore;
use palimpsest_core::span::Span;
use palimpsest_data::ground::numbers::in_json;
use palimpsest_run::memory::system::MemoryContext;
use palimpsest_run::memory::system::case_rows::MemoryRows;
use palimpsest_run::memory::system::protocol::{Memory, Source};
use palimpsest_run::memory::system::rows::HistoryRow;
use palimpsest_run::runs::causes::contrast_rows::{CONTRAST_CAUSES, ContrastCauseRow};
use palimpsest_run::runs::causes::rows::{CAUSES, CauseLine};
use palimpsest_run::runs::causes::session_measures::{SessionMeasures, measures_path};
use palimpsest_run::runs::condition::Condition;
use palimpsest_run::runs::judge_name::JudgeName;
use palimpsest_run::runs::plan::{PlannedCase, dimension_of};
use palimpsest_run::runs::rows::{AnswerKey, AnswerRow, Contrast, ReplyRow, VerdictRow};
use palimpsest_run::runs::store::{REPLIES, ShownCase, TRIALS, VERDICTS};
use palimpsest_run::runs::why_rows::WHY;

pub struct Case<'a> {
    folder: &'a Folder,
    row: usize,
    planned: PlannedCase,
    probe: usize,
    condition: &'a Condition,
    answer: Option<AnswerRow>,
    history: Option<ShownCase>,
    memory: Option<(MemoryContext, Option<MemoryRows>)>,
    pub attention: Option<Attention>,
    pub measures: Option<SessionMeasures>,
    lines: Vec<CauseLine>,
    contrasts: Vec<ContrastCauseRow>,
    pub sessions: Vec<Session>,
    warnings: Vec<String>,
}

pub struct Attention {
    pub path: PathBuf,
    pub store: AttentionStore,
    pub by_layer: ByLayer,
    pub viewer: Option<usize>,
}

impl Attention {
    /// `None` if no attention was recorded.
    pub fn of(folder: &Folder, row: usize) -> Result<Option<Self>, String> {
        let Some(path) = folder.attention(row) else { return Ok(None) };
        let store = AttentionStore::load(&path).map_err(|error| error.to_string())?;
        let by_layer = ByLayer::of(&path, &store, None).map_err(|error| error.to_string())?;
        let viewer = viewer(&store, folder.benchmark);
        Ok(Some(Attention { path, store, by_layer, viewer }))
    }
}

impl<'a> Case<'a> {
    /// Reads the files of a row; `None` if the run has no such row.
    pub fn open(folder: &'a Folder, row: usize) -> Option<Self> {
        let (_, _, condition) = folder.named(row)?;
        let name = folder.rows.get(row)?;
        let planned = folder.whole_case(name.case)?;
        let mut warnings = Vec::new();
        let mut told = |error: String| warnings.push(error);
        let answer = folder.answer(row);
        let history =
            folder.thin.shown(&planned.case).map_err(|error| told(error.to_string())).ok().flatten();
        let memory = condition.memory.clone().map(|context| {
            let rows = MemoryRows::read(folder.dir(), &context.system, &planned.case);
            let rows = rows.map_err(|error| told(error.to_string())).ok().flatten();
            (context, rows)
        });
        let attention = Attention::of(folder, row).map_err(&mut told).ok().flatten();
        let named = AnswerKey::of(&planned.case, &planned.probes.get(name.probe)?.id, &condition.name);
        let path = measures_path(folder.dir(), Measure::LogP, named);
        let measures = path
            .is_file()
            .then(|| SessionMeasures::open(&path).map_err(|error| told(error.to_string())).ok());
        let facts = folder.facts.get(row)?;
        let places = |of_contrasts: bool| {
            let is_contrast = |way| matches!(way, Way::ContrastDirect | Way::ContrastOther);
            facts.causes.iter().filter(move |one| is_contrast(one.way) == of_contrasts).map(|one| one.place)
        };
        let lines = folder.read_all(CAUSES, places(false));
        let contrasts = folder.read_all(CONTRAST_CAUSES, places(true));
        let mut case = Case {
            folder,
            row,
            probe: name.probe,
            planned,
            condition,
            answer,
            history,
            memory,
            attention,
            measures: measures.flatten(),
            lines,
            contrasts,
            sessions: Vec::new(),
            warnings,
        };
        let sources = Sources {
            folder,
            answer: case.answer.as_ref(),
            store: case.attention.as_ref().map(|attention| &attention.store),
            history: case.history.as_ref(),
            memory: case.memory.as_ref().map(|(context, rows)| (context, rows.as_ref())),
        };
        case.sessions = sources.sessions(row);
        Some(case)
    }

    pub fn strips(&self) -> Vec<Strip> {
        let mut strips = Strips::of(&self.sessions);
        let layers = self.attention.as_ref().map(|attention| attention.by_layer.layers.as_slice());
        if let Some(Attention { store, by_layer, viewer, .. }) = &self.attention {
            strips.attention(store, by_layer, *viewer);
        }
        strips.effects(&self.lines, self.folder.seed);
        strips.contrasts(&self.contrasts);
        if let Some(measures) = &self.measures {
            strips.measures(measures, layers.unwrap_or_default());
        }
        strips.made
    }

    /// `at`: row number on the page; `run`: number of its run.
    pub fn json(&self, at: usize, run: usize) -> Value {
        let Some(probe) = self.planned.probes.get(self.probe) else { return Value::Null };
        let query_time = self.history.as_ref().and_then(|history| history.query_time);
        let (condition, benchmark) = (self.condition, self.folder.benchmark);
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
        .with("state", Some(state(self.answer.as_ref())));
        if let Some(answer) = &self.answer {
            case = answered(answer, case);
        }
        case["gold"] = gold(&self.planned, self.probe);
        case["verdicts"] = self.verdicts();
        case["replies"] = self.replies();
        case["sessions"] = self.sessions.iter().map(Session::json).collect();
        if let Some(Attention { store, by_layer, viewer, .. }) = &self.attention {
            case["layers"] = Shape::layers_json(&by_layer.layers);
            case["heads"] = json!(store.mass.dim().1);
            case["rows"] = store.rows.iter().map(span_json).collect();
            case["spans"] = self.spans(store);
            case["generated"] = json!(store.generated.len());
            case = case.with("viewer", *viewer);
        }
        case["strip"] = json!(self.strips());
        let facts = &self.folder.facts[self.row];
        case = case
            .with("curves", self.curves())
            .with("causes", self.causes())
            .with("why", facts.why.and_then(|(.., place)| self.folder.read::<Value>(WHY, place)))
            .with("memory", self.memory());
        let trials: Vec<Value> = self.folder.read_all(TRIALS, facts.trials.iter().copied());
        case["trials"] = json!(trials);
        case["missing"] = self.missing();
        case["warnings"] = json!(self.warnings);
        let named = AnswerKey::of(&self.planned.case, &probe.id, &self.condition.name);
        let has_attention = self.answer.as_ref().is_some_and(|row| row.attention.is_some());
        case["take"] = snippets(self.folder.dir(), named, has_attention);
        case
    }

    fn verdicts(&self) -> Value {
        let facts = &self.folder.facts[self.row];
        let rows: Vec<VerdictRow> = self.folder.read_all(VERDICTS, facts.verdicts.iter().copied());
        let judges = self.folder.thin.judges();
        // The last verdict of each judge counts.
        let last =
            judges.iter().filter_map(|judge| Some((judge, rows.iter().rev().find(|row| judge.gave(row))?)));
        let of = |(judge, row): (&JudgeName, &VerdictRow)| {
            let verdict = json!({
                "judge": judge.label, "counts": self.folder.judge.as_ref() == Some(judge), "verdict": verdict_in_words(row),
            });
            verdict
                .with("correct", self.folder.is_right(row))
                .with("score", row.score.map(in_json))
                .with("most", row.score.map(|_| self.folder.best_score()))
                .with("choice", row.choice.as_ref())
                .with("probability", row.probability)
                .with("reason", row.reason.as_ref())
                .with("error", row.error.as_ref())
        };
        last.map(of).collect()
    }

    fn replies(&self) -> Value {
        let facts = &self.folder.facts[self.row];
        let rows: Vec<ReplyRow> = self.folder.read_all(REPLIES, facts.replies.iter().copied());
        rows.iter().map(|row| json!({"judge": row.judge, "replies": row.replies})).collect()
    }

    fn spans(&self, store: &AttentionStore) -> Value {
        let of = |(key, span): (usize, &Span)| {
            let mut json = span_json(span);
            json["overlay"] = json!(span.overlay);
            json.with("session", self.sessions.iter().position(|session| session.span == Some(key)))
        };
        store.keys.iter().enumerate().map(of).collect()
    }

    fn curves(&self) -> Option<Value> {
        let Attention { path, store, .. } = self.attention.as_ref()?;
        let example = Example::measure(path, store, self.folder.benchmark, Baseline::default(), None).ok()?;
        let kind = kind_of(&example.layers)?;
        let of = |curve| {
            let mut json = json!({
                "key": palimpsest_analysis::lens::Curve::key(curve), "from": curve.from, "to": curve.to,
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

    fn causes(&self) -> Option<Value> {
        let facts = &self.folder.facts[self.row];
        let mut causes = Map::new();
        for (key, ways) in WAYS {
            let own = facts.causes.iter().filter(|one| ways.contains(&one.way)).map(|one| one.place);
            let rows: Vec<Value> = self.folder.read_all(CAUSES, own);
            if !rows.is_empty() {
                causes.insert(key.to_owned(), json!(rows));
            }
        }
        if !self.contrasts.is_empty() {
            causes.insert("contrast".to_owned(), json!(self.contrasts));
        }
        (!causes.is_empty()).then_some(Value::Object(causes))
    }

    fn memory(&self) -> Option<Value> {
        let (context, rows) = self.memory.as_ref()?;
        let probe = self.planned.probes.get(self.probe)?;
        let probe_of = (self.folder.benchmark, &self.planned, self.probe);
        let facts = stages(probe_of, context, rows.as_ref(), self.answer.as_ref());
        let facts = facts.into_iter().map(|fact| {
            let stages = Stage::ALL.into_iter().zip(fact.stages);
            let stages: Map<String, Value> =
                stages.map(|(stage, known)| (stage.key().to_owned(), json!(known_key(known)))).collect();
            json!({"role": fact.role, "sessions": fact.sessions, "stages": stages})
                .with("side", fact.side.map(side_key))
        });
        let mut memory = json!({
            "system": context.system, "show": context.show, "k": context.k, "facts": facts.collect::<Vec<_>>(),
            "written": [], "returned": [],
        });
        let Some(rows) = rows else { return Some(memory) };
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
        if let Some(search) = rows.search(&probe.id) {
            memory["searched"] = json!(search.query);
            memory = memory.with("failed", search.failed.as_ref().map(|failed| &failed.message));
            let shown = self.answer.as_ref().and_then(|row| row.memories.as_deref()).unwrap_or_default();
            let returned = search.memories.iter().enumerate().map(|(rank, one)| {
                let mut json = memory_json(one);
                json["rank"] = json!(rank);
                json["shown"] = json!(shown.contains(&one.id));
                json
            });
            memory["returned"] = returned.collect();
        }
        Some(memory)
    }

    fn missing(&self) -> Value {
        let dir = self.folder.dir().display();
        let mut missing: Vec<Value> = Vec::new();
        let mut say = |what: &str, command: String| missing.push(json!({"what": what, "command": command}));
        let facts = &self.folder.facts[self.row];
        let has = |way: Way| facts.causes.iter().any(|one| one.way == way);
        if facts.verdicts.is_empty() {
            say("a verdict", format!("palimpsest judge {dir}"));
        }
        let answered = self.answer.as_ref().filter(|row| row.error.is_none());
        let Some(answer) = answered else { return json!(missing) };
        if answer.attention.is_none() {
            if !matches!(&self.memory, Some((context, _)) if context.show == palimpsest_run::memory::system::Show::Answer)
            {
                say("attention", "palimpsest run ... (without --no-attention)".to_owned());
            }
            return json!(missing);
        }
        let ways = [
            (Way::Direct, "direct effects of sessions, and controls", ""),
            (Way::Total, "total effects", " --total"),
            (Way::Replaced, "effects of neutral text in their place", " --replace"),
            (Way::Carrier, "carriers", " --carriers"),
            (Way::ContrastDirect, "effects on the contrast", " --contrast"),
        ];
        for (way, what, flag) in ways {
            if !has(way) && (way != Way::ContrastDirect || answer.contrast.is_some()) {
                say(what, format!("palimpsest causes {dir}{flag}"));
            }
        }
        let sides = palimpsest_analysis::why::check_sides(self.folder.benchmark).is_ok();
        if sides && facts.why.is_none() && self.condition.knockout.is_none() {
            say("a label with its certificate", format!("palimpsest why {dir}"));
        }
        json!(missing)
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

/// Values with their field names in the file.
fn contrast_json(contrast: &Contrast) -> Value {
    let parts = serde_json::to_value(contrast).unwrap_or_default();
    let of = |(part, value): (&String, &Value)| -> Vec<Value> {
        let one = |value: &Value| json!({"part": part, "text": value["text"], "log_p": value["log_p"]});
        match value {
            Value::Object(_) => vec![one(value)],
            Value::Array(all) => all.iter().map(one).collect(),
            _ => Vec::new(),
        }
    };
    let values: Vec<Value> = parts.as_object().into_iter().flatten().flat_map(of).collect();
    json!({"value": contrast.value, "values": values})
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

/// Notes shown to judges only: the case's, then the probe's.
fn gold(case: &PlannedCase, probe: usize) -> Value {
    let of_probe = case.probes.get(probe).map(|probe| &probe.judge);
    let of_case = case.judge.iter().map(|(label, note)| ("case", label, note));
    let all = of_case.chain(of_probe.into_iter().flatten().map(|(label, note)| ("probe", label, note)));
    let text = |note: &Value| match note {
        Value::String(text) => text.clone(),
        Value::Array(all) if all.iter().all(Value::is_string) => {
            all.iter().filter_map(Value::as_str).collect::<Vec<_>>().join("\n")
        }
        other => other.to_string(),
    };
    all.map(|(of, label, note)| json!({"of": of, "label": label.replace('_', " "), "text": text(note)}))
        .collect()
}
