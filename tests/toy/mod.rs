//! A benchmark in one file, from its data to the report, and probes with their own evidence.

pub mod benchmark;

use std::path::Path;
use std::sync::atomic::AtomicBool;

use palimpsest::benchmarks::dataset::{Dataset, cases_in_memory};
use palimpsest::benchmarks::{Benchmark, Dimension, LensSpec, SampleSpec, row_roles};
use palimpsest::case::truncate::Truncation;
use palimpsest::case::{Case, Location};
use palimpsest::chat::{ChatError, ChatModel, Message, Reply, Sampling};
use palimpsest::figures::{self, Origin};
use palimpsest::judge::{self, Judge};
use palimpsest::lens::{
    AnalysedRun, Baseline, Condition, Curve, Group, Options, Scale, Statistic, Study, Target, table,
};
use palimpsest::memory::Memory;
use palimpsest::progress::Status;
use palimpsest::prompt::{PromptBuilder, Templates};
use palimpsest::runs::context_budget::Cut;
use palimpsest::runs::header::{ContextPolicy, Identity, Machine, NameAndDigest, RunHeader};
use palimpsest::runs::model_subject::{ModelSubject, SubjectOptions};
use palimpsest::runs::plan::Selection;
use palimpsest::runs::rows::AnswerKey;
use palimpsest::runs::runner::{self, Subject};
use palimpsest::runs::store::RunStore;
use palimpsest_core::attention::AttentionStore;
use palimpsest_core::engine::memory_plan::Branches;
use palimpsest_core::engine::{ContextLength, LocalModel, LocalOptions};
use palimpsest_core::model::ModelFiles;
use palimpsest_core::timing::Recorder;
use serde_json::{Value, json};
use tracing_subscriber::layer::SubscriberExt;

use crate::eval::header;
use crate::judge::said;
use crate::left_out::few_or_all;
use crate::parity::fixture;
use crate::parity::subject::plain;
use crate::synthetic_run;
pub use benchmark::LOGBOOK;

fn logbook(id: &str, ship: &str, events: usize, questions: Vec<Value>) -> Value {
    let event = |i: usize| {
        json!({
            "time": format!("1851-{:02}-{:02}T12:00", 1 + i / 28, 1 + i % 28),
            "where": format!("{} north of the line", ["Nantucket", "the Azores", "Java Head", "Formosa"][i % 4]),
            "what": format!("Lowered for whales, {} barrels; the mate {}.", 3 * i, ["sings", "sleeps", "swears"][i % 3]),
        })
    };
    json!({"id": id, "ship": ship, "events": (0..events).map(event).collect::<Vec<_>>(), "questions": questions})
}

/// Two ships, two questions each, with different evidence.
fn two_logbooks() -> String {
    let questions = || {
        vec![
            json!({"id": "q1", "about": "place", "text": "Where was the ship second?", "answer": "the Azores", "facts": [[1, 0]], "cause": 0}),
            json!({"id": "q2", "about": "oil", "text": "How many barrels in the last two events?", "answer": "21", "facts": [[3, 1], [4, 1]], "cause": null}),
        ]
    };
    let books = [logbook("a", "Pequod", 6, questions()), logbook("b", "Rachel", 5, questions())];
    books.map(|book| book.to_string() + "\n").concat()
}

pub fn model(name: &str, branches: Branches) -> LocalModel {
    let (context, path) = (ContextLength::Exactly(8192), fixture(name));
    let options = LocalOptions { context, allow_longer: true, branches, ..LocalOptions::default() };
    LocalModel::open(&ModelFiles::at(&path).unwrap(), &options).unwrap()
}

const SAMPLING: Sampling = Sampling { temperature: 0.0, top_p: 1.0, seed: 0, max_new_tokens: 6 };

fn options() -> SubjectOptions {
    SubjectOptions {
        sampling: SAMPLING,
        attention: true,
        selected: false,
        answer_rows: true,
        share_prefix: true,
    }
}

fn subject<'a>(model: &'a mut LocalModel, stop: &'a AtomicBool) -> ModelSubject<'a> {
    let templates = Templates::load(&LOGBOOK, None).unwrap();
    let builder = PromptBuilder::new(templates, model.template().clone());
    let cut = Cut::of_model(Truncation::Evidence, 0, model.text(), SAMPLING.max_new_tokens);
    ModelSubject::local(model, builder, cut, row_roles(&LOGBOOK), options(), stop)
}

/// Scores by answer length, as JSON surrounded by prose.
struct Scorer(Vec<String>);

impl ChatModel for Scorer {
    fn name(&self) -> String {
        "http://host/v1#able-70b".to_owned()
    }

    fn reply(&mut self, messages: &[Message], _: &Sampling) -> Result<Reply, ChatError> {
        self.0.push(messages[0].content.clone());
        let text = format!("Well: {{\"score\": {}, \"reason\": \"so it is\"}}", self.0.len() % 3);
        Ok(said(text))
    }
}

#[test]
fn a_benchmark_in_a_file_of_its_own_goes_from_file_to_report() {
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("ships.jsonl");
    std::fs::write(&file, two_logbooks()).unwrap();
    let among: [&'static Benchmark; 2] = [palimpsest::benchmarks::ALL[0], &LOGBOOK];
    let dataset = Dataset::open_among(&among, &file, SampleSpec::default(), |_| {}).unwrap();
    assert_eq!(dataset.benchmark().name, "logbook");
    let cases: Vec<Case> = dataset.cases().unwrap().map(Result::unwrap).collect();

    let dir = root.path().join("run");
    let mut model = model("llama-tiny", Branches::for_answers(2, 6));
    let named = |name: &str| NameAndDigest { name: name.to_owned(), digest: "d".to_owned() };
    let identity = Identity {
        benchmark: LOGBOOK.name.to_owned(),
        dataset: named(dataset.name()),
        model: named("tiny"),
        dtype: None,
        prompts: None,
        sampling: Some(SAMPLING),
        context: ContextPolicy { tokens: Some(8192), policy: "full".to_owned(), ..ContextPolicy::default() },
        seed: 0,
        version: "0.2.0".to_owned(),
        ..header(None).identity
    };
    let header = RunHeader::new(identity, None, Machine::here("cpu", 1));
    let plan = Selection::of_all(&LOGBOOK).plan(&cases).unwrap();
    let mut store = RunStore::open_or_create(&dir, &header, plan).unwrap();
    let stop = AtomicBool::new(false);
    let all = cases.iter().cloned().map(Ok);
    let done = runner::run(
        &mut store,
        all,
        &mut Memory::new(&LOGBOOK, 0),
        &mut subject(&mut model, &stop),
        &stop,
        false,
    )
    .unwrap();
    assert_eq!((done.planned, done.done, done.errors), (4, 4, 0));

    // One call per probe; the judge sees the references.
    let mut scorer = Scorer(Vec::new());
    let mut by_reply = Judge::Reply { models: vec![&mut scorer], sampling: SAMPLING };
    let judged = judge::run(&mut store, &mut by_reply, &LOGBOOK.rubric(), &stop, false).unwrap();
    assert_eq!((judged.done, judged.errors), (4, 0));
    assert!(
        scorer.0[0].contains("On the ship Pequod:\nq1: Where was")
            && scorer.0[0].contains("Right: the Azores")
    );
    drop(store);
    let replies = std::fs::read_to_string(dir.join("replies.jsonl")).unwrap();
    assert_eq!(replies.lines().count(), 4);
    assert!(replies.contains(r#""replies":["Well: {\"score\": 1"#), "{replies}");

    let unknown = AnalysedRun::open_condition(&dir, "").unwrap_err().to_string();
    assert!(unknown.contains("`logbook`"), "{unknown}");
    let study = Study::open_among(&among, &dir, &[], &Options::default()).unwrap();
    let [condition @ Condition { run, lens: Some(lens), .. }] = &study.conditions[..] else { panic!("one") };
    let verdicts = condition.verdicts().unwrap();
    assert_eq!(verdicts.get(AnswerKey::of("a", "q1", "")).unwrap().score, Some(1.0));
    assert_eq!(
        (lens.kinds.join(" "), lens.probes.join(" ")),
        ("Pequod Rachel".to_owned(), "place oil".to_owned())
    );
    assert_eq!(lens.label(&Group::all()), "all ships all abouts");

    // Two facts add up, and their mass matches the file.
    let file = dir.join("attention/a-q2.safetensors");
    let stored = AttentionStore::load(&file).unwrap();
    let key = |label: &str| stored.keys.iter().position(|span| span.label == label).unwrap();
    let facts = [key("event[3].turn[1]"), key("event[4].turn[1]")];
    assert!(facts.iter().all(|&k| stored.keys[k].overlay && stored.keys[k].is("fact")));
    let query = stored.rows.iter().position(|row| row.label == "query").unwrap();
    let example = lens.examples.iter().find(|e| (&*e.case, &*e.probe) == ("a", "q2")).unwrap();
    let (curve, layer) = (Curve::new("query", "fact"), 1);
    let by_head = stored.mass.index_axis(ndarray::Axis(0), layer);
    let heads = by_head.outer_iter();
    let paid: f64 =
        heads.map(|head| facts.map(|k| f64::from(head[[query, k]])).iter().sum::<f64>()).sum::<f64>()
            / by_head.dim().0 as f64;
    assert!((example.curve(curve, Target::Signal, Scale::Mass).unwrap()[layer] - paid).abs() < 1e-9);
    // Overlays are excluded from sums over the prompt.
    let tiles: f32 =
        (0..stored.keys.len()).filter(|&k| !stored.keys[k].overlay).map(|k| by_head[[0, query, k]]).sum();
    assert!((tiles - 1.0).abs() < 1e-4, "{tiles}");
    // Event 5 is next to the facts and not evidence; the facts are in events 3 and 4.
    assert!(example.curve(curve, Target::Noise, Scale::Density).is_some());
    // From a fact to its cause: only q1 has one.
    let series =
        lens.series(&Group::all(), Statistic::Mean(Curve::new("fact", "cause"), Target::Signal), Scale::Mass);
    assert_eq!(series.n, 2);

    let tables = table::write("", lens, &dir.join("lens")).unwrap();
    assert_eq!(tables.len(), 4);
    let figures = figures::draw_all(lens, &Origin::of(run, lens.judge.as_deref()));
    let names: Vec<&str> = figures.iter().map(|figure| figure.name.as_str()).collect();
    assert_eq!(
        names,
        [
            "curves-by-split-mass",
            "curves-by-type-mass",
            "strip-case-mass",
            "curves-by-split-density",
            "curves-by-type-density",
            "strip-case-density"
        ]
    );
    let page = synthetic_run::page(&study, figures.clone());
    for part in ["Logbook", "mean over 4 questions", " of 2, n = "] {
        assert!(page.contains(part), "{part} is not on the page");
    }
    if let Ok(kept) = std::env::var("PALIMPSEST_KEEP_TOY") {
        figures::write(&figures, Path::new(&kept)).unwrap();
        std::fs::write(Path::new(&kept).join("overview.html"), &page).unwrap();
    }
    for word in ["session", "STALE", "overwritten"] {
        let lines: Vec<&str> = page.lines().filter(|line| line.contains(word)).collect();
        assert!(lines.is_empty(), "the page of a logbook says `{word}`: {lines:?}");
    }
}

/// A logbook with 150 questions with different evidence: a field of one or two events, and sometimes a cause.
fn many_questions() -> Case {
    let question = |i: usize| {
        let facts: Vec<[usize; 2]> = (0..1 + i % 2).map(|k| [(i * 7 + 5 * k) % 12, (i + k) % 2]).collect();
        let cause = i.is_multiple_of(3).then_some((i * 5 + 1) % 12);
        let cause = cause.filter(|cause| facts.iter().all(|[event, _]| event != cause));
        json!({"id": format!("q{i}"), "about": "all", "text": format!("What of barrel {i}?"), "answer": "x", "facts": facts, "cause": cause})
    };
    let book = logbook("many", "Pequod", 12, (0..150).map(question).collect()).to_string();
    let cases = cases_in_memory(&LOGBOOK, vec![("ships.jsonl".to_owned(), book.into_bytes())]);
    cases.into_iter().map(Result::unwrap).next().unwrap()
}

/// Answers a case's probes; returns the number of tokens read.
fn answered(model: &mut LocalModel, case: &Case) -> (Vec<AttentionStore>, f64) {
    let stop = AtomicBool::new(false);
    let recorder = Recorder::new();
    let subscriber = tracing_subscriber::registry().with(recorder.layer());
    let mut stores = Vec::new();
    tracing::subscriber::with_default(subscriber, || {
        let probes: Vec<_> = case.probes.iter().collect();
        let mut subject = subject(model, &stop);
        let mut keep =
            |_: palimpsest::runs::condition::Question<'_>,
             outcome: Result<runner::ProbeOutcome, palimpsest::runs::rows::NoAnswer>| {
                stores.push(outcome.unwrap().attention.unwrap());
                Ok(())
            };
        subject.answer_case(case, &plain(&probes), &Status::silent(), &mut keep).unwrap();
    });
    let read = recorder.report().json()["tokens"].as_f64().unwrap();
    (stores, read)
}

#[test]
fn many_probes_with_evidence_of_their_own_share_one_prefill_and_measure_as_if_alone() {
    let case = many_questions();
    // Union of rows and spans over softmax layers, windows and linear layers.
    for name in ["llama-tiny", "gpt-oss-tiny", "qwen35-text-tiny"] {
        let mut model = model(name, Branches::for_answers(8, 6));
        let (together, read) = answered(&mut model, &case);
        assert_eq!(together.len(), 150);
        let history =
            together[0].keys.iter().filter(|span| span.label.starts_with("event[")).map(|s| s.end).max();
        let own: usize = together.iter().map(|store| store.tokens.len() - history.unwrap()).sum();
        // The history once, and the rest per probe; a few tokens before the query are shared.
        let most = (history.unwrap() + own) as f64;
        assert!(read <= most, "{name}: {read} tokens were read, at most {most} are needed");
        let (mut apart, mut evidence) = (0f32, 0);
        for (probe, ours) in case.probes.iter().zip(&together) {
            let mut alone = case.clone();
            alone.probes = vec![probe.clone()];
            // Every tenth, or all with the fastest model.
            let each = few_or_all(false, name == "llama-tiny");
            if !each && !probe.id.ends_with('0') && probe.id != "q3" {
                continue;
            }
            let (theirs, _) = answered(&mut model, &alone);
            assert_eq!((&ours.rows, &ours.keys), (&theirs[0].rows, &theirs[0].keys), "{name} {}", probe.id);
            assert_eq!(ours.generated, theirs[0].generated);
            let labels: Vec<&str> =
                ours.keys.iter().filter(|k| k.overlay).map(|k| k.label.as_str()).collect();
            let expected: Vec<String> = (probe.evidence.iter().filter(|e| !e.place.is_segment()))
                .map(|e| format!("event[{}]{}", e.place.segment, e.place))
                .collect();
            assert_eq!(labels, expected, "its own evidence and no other's");
            evidence += labels.len();
            let both = ours.mass.iter().zip(&theirs[0].mass);
            apart = both.map(|(a, b)| (a - b).abs()).fold(apart, f32::max);
            if let (Some(a), Some(b)) = (&ours.delta, &theirs[0].delta) {
                apart = a.share.iter().zip(&b.share).map(|(a, b)| (a - b).abs()).fold(apart, f32::max);
            }
        }
        assert!(evidence > 15);
        assert!(apart < 1e-6, "{name}: {apart}");
    }
}

const ASKED_FIRST: &str = "Question: {{ query }}\nThe logbook:\n\n{{ history }}\nAnswer in a few words.\n";

/// The logbook with the question first.
static LOGBOOK_ASKED_FIRST: Benchmark = Benchmark {
    name: "asked-first",
    title: "Asked first",
    dimension: Dimension::Probe,
    templates: &[
        ("system.j2", ""),
        ("event.j2", "Event {{ number }}\n{% for turn in turns %}{{ turn.content }}\n{% endfor %}"),
        ("question.j2", ASKED_FIRST),
    ],
    question_first: true,
    lens: LensSpec {
        curves: &[Curve::new("last", "fact"), Curve::new("answer", "fact")],
        ..LensSpec::DEFAULT
    },
    ..LOGBOOK
};

#[test]
fn a_question_may_come_before_the_history_where_the_benchmark_says_so() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("question.j2"), ASKED_FIRST).unwrap();
    let mut case = many_questions();
    case.probes.truncate(2);
    let mut model = model("llama-tiny", Branches::for_answers(2, 6));
    let builder = |templates| PromptBuilder::new(templates, model.template().clone());
    let refused = builder(Templates::load(&LOGBOOK, Some(dir.path())).unwrap());
    let error = refused.build(&case.history, &case.evidence, &case.probes[0]).unwrap_err().to_string();
    assert!(error.contains("puts the query before the history"), "{error}");
    let allowed = builder(Templates::load(&LOGBOOK_ASKED_FIRST, None).unwrap());
    let stop = AtomicBool::new(false);
    let cut = Cut::of_model(Truncation::Evidence, 0, model.text(), SAMPLING.max_new_tokens);
    let mut subject =
        ModelSubject::local(&mut model, allowed, cut, row_roles(&LOGBOOK_ASKED_FIRST), options(), &stop);
    let probes: Vec<_> = case.probes.iter().collect();
    let mut stores = Vec::new();
    let mut keep =
        |_: palimpsest::runs::condition::Question<'_>,
         outcome: Result<runner::ProbeOutcome, palimpsest::runs::rows::NoAnswer>| {
            stores.push(outcome.unwrap().attention.unwrap());
            Ok(())
        };
    subject.answer_case(&case, &plain(&probes), &Status::silent(), &mut keep).unwrap();
    for store in &stores {
        let span = |label: &str| store.keys.iter().find(|span| span.label == label).unwrap();
        assert!(span("query").end <= span("event[0]").start);
        let path = Path::new("a.safetensors");
        let example =
            palimpsest::lens::Example::measure(path, store, &LOGBOOK_ASKED_FIRST, Baseline::Both, None)
                .unwrap();
        let last = example.curve(Curve::new("last", "fact"), Target::Signal, Scale::Mass).unwrap();
        assert!(last.iter().all(|mass| *mass > 0.0));
    }
}

#[test]
fn evidence_that_is_not_there_is_refused_by_name() {
    let mut case = many_questions();
    let model = model("llama-tiny", Branches::default());
    let builder = PromptBuilder::new(Templates::load(&LOGBOOK, None).unwrap(), model.template().clone());
    let place = |segment, turn, bytes| Location { segment, turn, bytes };
    for (place, said) in [
        (place(40, None, None), "holds no segment with that index"),
        (place(2, Some(7), None), "turn 7 of segment 2, which has 2"),
        (place(2, Some(0), Some(4..4)), "event[2].turn[0][4..4] is no text"),
        (place(2, Some(0), Some(4..4000)), "event[2].turn[0][4..4000] is no text"),
    ] {
        case.probes[0].evidence[0].place = place;
        let error = builder.build(&case.history, &case.evidence, &case.probes[0]).unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
    // A byte range of a field is its own span.
    case.probes[0].evidence[0].place = place(3, Some(1), Some(0..7));
    let prompt = builder.build(&case.history, &case.evidence, &case.probes[0]).unwrap();
    let overlay = &prompt.overlays[0];
    assert_eq!(
        (overlay.label.as_str(), &prompt.text[overlay.start..overlay.end]),
        ("event[3].turn[1][0..7]", "Lowered")
    );
    // A range is mapped to what truncation left of it.
    case.probes.truncate(1);
    case.stretches = vec![palimpsest::case::Stretch { label: "voyage".to_owned(), first: 2, last: 9 }];
    let mut cut = case.history.clone();
    cut.segments.retain(|segment| ![2, 8, 9].contains(&segment.index));
    let prompt = &builder.build_all(&case, &cut).unwrap()[0];
    let stretch = prompt.overlays.iter().find(|span| span.label == "voyage").unwrap();
    let span = |label: &str| prompt.spans.iter().find(|span| span.label == label).unwrap();
    assert_eq!((stretch.start, stretch.end), (span("event[3]").start, span("event[7]").end));
}
