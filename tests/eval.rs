use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

mod conditions;
mod costs;
mod counts;
mod exchange;
mod forecast;
mod machine;
mod refusals;
mod shards;

use ndarray::Array4;
use palimpsest::benchmarks::stale::STALE;
use palimpsest::benchmarks::stale::exchange::{StaleAnswers, format, parse};
use palimpsest::case::{Case, Evidence, History, JudgeOnly, Notes, Probe, Segment, Turn};
use palimpsest::chat::{Sampling, StopReason};
use palimpsest::memory::Memory;
use palimpsest::progress::Status;
use palimpsest::records::join;
use palimpsest::results::metrics::AccuracyTable;
use palimpsest::results::outcomes::Outcomes;
use palimpsest::runs::condition::{Condition, Question};
use palimpsest::runs::context_budget::Dropped;
use palimpsest::runs::cost::{Cost, MeanCost};
use palimpsest::runs::error::RunError;
use palimpsest::runs::exchange::{Import, Imported, export, import};
use palimpsest::runs::header::{ContextPolicy, Identity, Machine, NameAndDigest, RunHeader};
use palimpsest::runs::merge::merge;
use palimpsest::runs::plan::{Selection, Shard, attention_file};
use palimpsest::runs::rows::{AnswerRow, VerdictRow};
use palimpsest::runs::runner::{ProbeOutcome, Sink, Subject, Summary, run};
use palimpsest::runs::store::{RunFolder, RunStore};
use palimpsest_core::attention::AttentionStore;
use palimpsest_core::span::Span;
use palimpsest_core::text::{BorderRule, SpecialTokens};

use crate::attention::store::of_masses;

const PROBES: [(&str, &str); 3] = [("SR", "question"), ("PR", "question"), ("IPA", "request")];

/// Cases with six sessions each; even ones are T1, odd ones T2.
pub fn cases(n: usize) -> Vec<Case> {
    let session = |index: usize| Segment {
        kind: "session".to_owned(),
        index,
        time: Some(jiff::civil::date(2025, 3, 1 + index as i8).at(9, 30, 0, 0)),
        turns: vec![Turn::new("user", format!("message {index}")), Turn::new("assistant", "noted")],
    };
    (0..n)
        .map(|i| Case {
            id: format!("case-{i}"),
            labels: BTreeMap::from([("type".to_owned(), format!("T{}", 1 + i % 2))]),
            history: History { segments: (0..6).map(session).collect(), query_time: None },
            evidence: vec![Evidence::segment("old", 1), Evidence::segment("new", 4)],
            probes: PROBES
                .iter()
                .map(|(id, form)| Probe {
                    id: (*id).to_owned(),
                    form: (*form).to_owned(),
                    query: format!("{id} question {i}?"),
                    ..Probe::default()
                })
                .collect(),
            judge: JudgeOnly {
                notes: notes([("old", "old"), ("new", "new"), ("explanation", "because")], i),
                ..JudgeOnly::default()
            },
            ..Case::default()
        })
        .collect()
}

fn notes(notes: [(&str, &str); 3], i: usize) -> Notes {
    notes.into_iter().map(|(name, text)| (name.to_owned(), format!("{text} {i}").into())).collect()
}

pub fn header(shard: Option<Shard>) -> RunHeader {
    let identity = Identity {
        benchmark: "stale".to_owned(),
        dataset: NameAndDigest { name: "sample".to_owned(), digest: "d1".to_owned() },
        model: NameAndDigest { name: "tiny".to_owned(), digest: "m1".to_owned() },
        model_commit: None,
        dtype: Some("f32".to_owned()),
        cache_dtype: None,
        prompts: Some("p1".to_owned()),
        sampling: Some(Sampling { temperature: 0.0, top_p: 1.0, seed: 1, max_new_tokens: 16 }),
        context: ContextPolicy {
            tokens: Some(4096),
            policy: "evidence-preserving truncation".to_owned(),
            ..ContextPolicy::default()
        },
        seed: 1,
        only: None,
        limit: None,
        limit_probes: None,
        attention: true,
        selected: false,
        version: "0.1.0".to_owned(),
        sample: None,
        memory: Vec::new(),
        conditions: Vec::new(),
        thinking: None,
        stop: Vec::new(),
        special_tokens: SpecialTokens::default(),
        borders: BorderRule::FirstCharacter,
        words: None,
    };
    RunHeader::new(identity, shard, Machine::here("cpu", 2))
}

/// A deterministic model: the answer depends only on case and probe.
struct Fake<'a> {
    /// Failing probes, as `case/probe`.
    failing: &'a [&'a str],
    /// Requests a stop after this many more answers.
    stop_after: Option<(usize, &'a AtomicBool)>,
    asked: Vec<String>,
}

impl<'a> Fake<'a> {
    fn new() -> Self {
        Fake { failing: &[], stop_after: None, asked: Vec::new() }
    }

    fn failing(failing: &'a [&'a str]) -> Self {
        Fake { failing, ..Fake::new() }
    }
}

fn attention(case: &str, probe: &str) -> AttentionStore {
    let query = Span::new("query", 3..4);
    let keys = vec![Span::new("session[0]", 0..3), query.clone()];
    let store = of_masses(Array4::from_elem((2, 1, 1, 2), 0.5), vec![query], keys);
    AttentionStore { case: case.to_owned(), probe: probe.to_owned(), ..store }
}

/// An outcome with only an answer.
pub fn outcome(answer: String) -> ProbeOutcome {
    let stop = Some(StopReason::EndOfTurn);
    let row = AnswerRow { answer: Some(answer), stop, ..AnswerRow::default() };
    ProbeOutcome { row, ..ProbeOutcome::default() }
}

impl Subject for Fake<'_> {
    fn answer_case(
        &mut self,
        case: &Case,
        questions: &[Question<'_>],
        _: &Status,
        sink: &mut Sink<'_>,
    ) -> Result<(), RunError> {
        for &question in questions {
            let key = format!("{}/{question}", case.id);
            self.asked.push(key.clone());
            if let Some((left, flag)) = &mut self.stop_after {
                *left -= 1;
                flag.store(*left == 0, Ordering::Relaxed);
            }
            let outcome = if self.failing.contains(&key.as_str()) {
                Err("the model fell over".to_owned().into())
            } else {
                let row = outcome(format!("answer to {key}: \"é\"\nsecond line")).row;
                let (prompt_tokens, completion_tokens) = (Some(100), Some(7));
                let dropped = Dropped { segments: vec![2], neighbours: vec![2], tokens: 30, of: 120 };
                Ok(ProbeOutcome {
                    row: AnswerRow { prompt_tokens, completion_tokens, ..row }.without(dropped),
                    attention: Some(attention(&case.id, &question.probe.id)),
                    cost: Some(Cost {
                        tokens_computed: Some(100),
                        tokens_generated: Some(7),
                        ..Cost::default()
                    }),
                    ..ProbeOutcome::default()
                })
            };
            sink(question, outcome)?;
        }
        Ok(())
    }
}

fn go(
    store: &mut RunStore,
    cases: &[Case],
    subject: &mut dyn Subject,
    stop: &AtomicBool,
) -> Result<Summary, RunError> {
    run(store, cases.iter().cloned().map(Ok), &mut Memory::new(&STALE, 0), subject, stop, false)
}

fn answer(dir: &Path, cases: &[Case], subject: &mut dyn Subject) -> Result<Summary, RunError> {
    let mut store = open(dir, cases)?;
    go(&mut store, cases, subject, &AtomicBool::new(false))
}

fn open(dir: &Path, cases: &[Case]) -> Result<RunStore, RunError> {
    RunStore::open_or_create(dir, &header(None), Selection::of_all(&STALE).plan(cases)?)
}

fn bytes(dir: &Path) -> Vec<u8> {
    std::fs::read(dir.join("answers.jsonl")).unwrap()
}

/// A finished run of `n` cases and its folder.
pub fn finished(n: usize) -> (tempfile::TempDir, PathBuf) {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("run");
    let summary = answer(&dir, &cases(n), &mut Fake::new()).unwrap();
    assert_eq!(summary, Summary { planned: 3 * n, done: 3 * n, ..Summary::default() });
    (root, dir)
}

#[test]
fn a_run_writes_rows_in_dataset_order_with_their_attention_and_what_was_shown() {
    let (_root, dir) = finished(2);
    let folder = RunFolder::read(&dir).unwrap();
    let keys: Vec<String> = folder.answers.iter().map(|r| format!("{}/{}", r.case, r.probe)).collect();
    assert_eq!(keys, ["case-0/SR", "case-0/PR", "case-0/IPA", "case-1/SR", "case-1/PR", "case-1/IPA"]);
    for row in &folder.answers {
        assert_eq!(row.attention.as_deref(), Some(attention_file(&row.case, &row.probe, "").as_str()));
        assert_eq!(folder.attention(row).unwrap().unwrap(), attention(&row.case, &row.probe));
        assert_eq!(
            (row.dropped_sessions.as_slice(), row.dropped_neighbours.as_slice()),
            (&[2][..], &[2][..])
        );
        assert_eq!((row.dropped_tokens, row.history_tokens, row.history_shown()), (30, 120, Some(0.75)));
    }
    let shown = folder.shown("case-1").unwrap().unwrap();
    assert_eq!(shown.segments.iter().map(|s| s.index).collect::<Vec<_>>(), [0, 1, 3, 4, 5]);
    // After the gap, prompt numbers differ from file numbers.
    let numbers: Vec<_> = shown.segments.iter().map(|s| s.number).collect();
    assert_eq!(numbers, [None, None, Some(3), Some(4), Some(5)]);
    assert_eq!(folder.plan[1].judge["explanation"], "because 1");
    assert_eq!(folder.shown("case-9").unwrap(), None);
}

#[test]
fn a_run_whose_cut_histories_have_the_numbers_of_the_first_version_is_not_gone_on_with() {
    let (_root, dir) = finished(2);
    let rows = bytes(&dir);
    let first = rows.split_inclusive(|b| *b == b'\n').next().unwrap();
    // As written by that version, which did not count dropped tokens.
    let first = String::from_utf8(first.to_vec())
        .unwrap()
        .replace(r#""dropped_tokens":30,"history_tokens":120,"#, "");
    assert!(first.contains("dropped_sessions") && !first.contains("history_tokens"), "{first}");
    std::fs::write(dir.join("answers.jsonl"), &first).unwrap();
    let path = dir.join("cases/case-0.json");
    let mut shown: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    for segment in shown["sessions"].as_array_mut().unwrap() {
        segment.as_object_mut().unwrap().remove("number");
    }
    std::fs::write(&path, shown.to_string()).unwrap();
    let error = answer(&dir, &cases(2), &mut Fake::new()).unwrap_err().to_string();
    assert!(error.contains("case-0") && error.contains("another --out"), "{error}");
    assert_eq!(bytes(&dir), first.as_bytes());
}

#[test]
fn a_run_cut_off_at_any_byte_ends_with_the_same_bytes() {
    let cases = cases(2);
    let (_root, dir) = finished(2);
    let whole = bytes(&dir);
    let last = whole.trim_ascii_end().iter().rposition(|b| *b == b'\n').unwrap();
    // Every byte of the last row, and both sides of every row border.
    let borders = (0..last).filter(|i| whole[*i] == b'\n').flat_map(|i| [i, i + 1, i + 2]);
    for length in borders.chain([0, 1]).chain(last..=whole.len()) {
        std::fs::write(dir.join("answers.jsonl"), &whole[..length]).unwrap();
        let rows = whole[..length].iter().filter(|b| **b == b'\n').count();
        let mut subject = Fake::new();
        let summary = answer(&dir, &cases, &mut subject).unwrap();
        assert_eq!((summary.skipped, subject.asked.len()), (rows, 6 - rows), "cut at byte {length}");
        assert_eq!(bytes(&dir), whole, "cut at byte {length}");
    }
}

#[test]
fn a_last_line_of_garbage_is_cut_off_and_a_middle_one_refused_by_number() {
    let cases = cases(1);
    let (_root, dir) = finished(1);
    let whole = bytes(&dir);
    for tail in [&b"\0\0\0\0\0\0"[..], b"{\"case\": 3}\n", b"nonsense\n", b"\n"] {
        std::fs::write(dir.join("answers.jsonl"), [&whole, tail].concat()).unwrap();
        let summary = answer(&dir, &cases, &mut Fake::new()).unwrap();
        assert_eq!((summary.skipped, bytes(&dir)), (3, whole.clone()));
    }
    std::fs::write(dir.join("answers.jsonl"), [b"nonsense\n", &whole[..]].concat()).unwrap();
    let error = answer(&dir, &cases, &mut Fake::new()).unwrap_err().to_string();
    assert!(error.contains("answers.jsonl line 1"), "{error}");
    assert!(RunFolder::read(&dir).is_err());
}

#[test]
fn a_kill_between_any_two_writes_ends_with_the_same_bytes() {
    let cases = cases(2);
    let (_root, dir) = finished(2);
    let whole = bytes(&dir);
    let shown = std::fs::read(dir.join("cases/case-1.json")).unwrap();

    // An attention store without its row, and a temporary file of a dead writer.
    let lines: Vec<&[u8]> = whole.split_inclusive(|b| *b == b'\n').collect();
    std::fs::write(dir.join("answers.jsonl"), lines[..5].concat()).unwrap();
    std::fs::write(dir.join("attention/.tmpAbC"), b"half").unwrap();
    assert_eq!(answer(&dir, &cases, &mut Fake::new()).unwrap().done, 1);
    assert_eq!(bytes(&dir), whole);
    assert!(!dir.join("attention/.tmpAbC").exists());

    // A row without its attention store is redone.
    std::fs::remove_file(dir.join(attention_file("case-0", "PR", ""))).unwrap();
    let mut subject = Fake::new();
    answer(&dir, &cases, &mut subject).unwrap();
    assert_eq!(subject.asked, ["case-0/PR"]);
    assert_eq!(bytes(&dir), whole);
    assert!(dir.join(attention_file("case-0", "PR", "")).exists());

    // The case's last row exists, its shown history does not.
    std::fs::remove_file(dir.join("cases/case-1.json")).unwrap();
    assert_eq!(answer(&dir, &cases, &mut Fake::new()).unwrap().done, 0);
    assert_eq!(std::fs::read(dir.join("cases/case-1.json")).unwrap(), shown);

    // Folder, plan and lock, but no header yet.
    let fresh = tempfile::tempdir().unwrap();
    std::fs::write(fresh.path().join("run.lock"), b"").unwrap();
    std::fs::write(fresh.path().join("plan.jsonl"), b"{\"posi").unwrap();
    std::fs::write(fresh.path().join(".tmpXyZ"), b"{").unwrap();
    answer(fresh.path(), &cases, &mut Fake::new()).unwrap();
    assert_eq!(bytes(fresh.path()), whole);
}

#[test]
fn errors_are_rows_that_a_resumed_run_tries_again_and_puts_in_their_place() {
    let cases = cases(2);
    let (_undisturbed, clean) = finished(2);
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("run");
    let failing = ["case-0/PR", "case-1/SR"];
    let summary = answer(&dir, &cases, &mut Fake::failing(&failing)).unwrap();
    assert_eq!((summary.done, summary.errors), (4, 2));
    let folder = RunFolder::read(&dir).unwrap();
    assert_eq!(folder.answers.len(), 6);
    assert_eq!(folder.answers[1].error.as_deref(), Some("the model fell over"));
    assert_eq!((folder.answers[1].answer.as_ref(), folder.answers[1].attention.as_ref()), (None, None));

    let mut subject = Fake::failing(&failing[..1]);
    let summary = answer(&dir, &cases, &mut subject).unwrap();
    assert_eq!((summary.skipped, summary.done, summary.errors), (4, 1, 1));
    assert_eq!(subject.asked, failing);
    answer(&dir, &cases, &mut Fake::new()).unwrap();
    assert_eq!(bytes(&dir), bytes(&clean));
}

#[test]
fn a_run_killed_while_it_retries_errors_ends_with_the_same_bytes() {
    let cases = cases(2);
    let (_undisturbed, clean) = finished(2);
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("run");
    answer(&dir, &cases, &mut Fake::failing(&["case-0/PR", "case-1/SR"])).unwrap();
    let stop = AtomicBool::new(false);
    let mut subject = Fake { stop_after: Some((1, &stop)), ..Fake::new() };
    let summary = go(&mut open(&dir, &cases).unwrap(), &cases, &mut subject, &stop).unwrap();
    assert!(summary.stopped);
    // The retried row is at the end of the file for now; readers prefer it to the error.
    let folder = RunFolder::read(&dir).unwrap();
    assert_eq!((folder.answers[1].probe.as_str(), folder.answers[1].error.as_ref()), ("PR", None));
    assert_eq!(bytes(&dir).iter().filter(|b| **b == b'\n').count(), 7);
    answer(&dir, &cases, &mut Fake::new()).unwrap();
    assert_eq!(bytes(&dir), bytes(&clean));
}

#[test]
fn a_stop_after_any_answer_keeps_it_and_the_same_command_goes_on() {
    let cases = cases(2);
    let (_undisturbed, clean) = finished(2);
    for after in 1..=6 {
        let root = tempfile::tempdir().unwrap();
        let stop = AtomicBool::new(false);
        let mut subject = Fake { stop_after: Some((after, &stop)), ..Fake::new() };
        let mut store = open(root.path(), &cases).unwrap();
        let summary = go(&mut store, &cases, &mut subject, &stop).unwrap();
        assert_eq!((summary.done, summary.stopped), (after, true));
        drop(store);
        assert_eq!(answer(root.path(), &cases, &mut Fake::new()).unwrap().done, 6 - after);
        assert_eq!(bytes(root.path()), bytes(&clean));
        assert!(root.path().join("cases/case-1.json").exists());
    }
}

#[test]
fn a_subject_that_forgets_a_probe_or_answers_twice_leaves_one_row_each() {
    struct Careless;
    impl Subject for Careless {
        fn answer_case(
            &mut self,
            _: &Case,
            questions: &[Question<'_>],
            _: &Status,
            sink: &mut Sink<'_>,
        ) -> Result<(), RunError> {
            for text in ["first", "second"] {
                let mut outcome = outcome(text.to_owned());
                outcome.row.stop = Some(StopReason::MaxNewTokens);
                sink(questions[0], Ok(outcome))?;
            }
            Ok(())
        }
    }
    let root = tempfile::tempdir().unwrap();
    let summary = answer(root.path(), &cases(1), &mut Careless).unwrap();
    assert_eq!((summary.done, summary.errors), (1, 2));
    let rows = RunFolder::read(root.path()).unwrap().answers;
    assert_eq!((rows.len(), rows[0].answer.as_deref()), (3, Some("first")));
    assert_eq!(rows[2].error.as_deref(), Some("the model gave no answer"));
}

#[test]
fn questions_that_a_subject_leaves_out_leave_the_plan_with_their_earlier_errors_and_stay_out_of_it() {
    struct Lacking;
    impl Subject for Lacking {
        fn answer_case(
            &mut self,
            _: &Case,
            questions: &[Question<'_>],
            _: &Status,
            sink: &mut Sink<'_>,
        ) -> Result<(), RunError> {
            for &question in questions {
                let left_out = question.probe.id == "PR";
                let answered = if left_out { ProbeOutcome::default() } else { outcome("yes".to_owned()) };
                sink(question, Ok(ProbeOutcome { left_out, ..answered }))?;
            }
            Ok(())
        }
    }
    let (root, cases) = (tempfile::tempdir().unwrap(), cases(2));
    let failing = ["case-0/PR", "case-1/SR"];
    assert_eq!(answer(root.path(), &cases, &mut Fake::failing(&failing)).unwrap().errors, 2);
    let summary = answer(root.path(), &cases, &mut Lacking).unwrap();
    // The other PR was answered before.
    let expected = Summary { planned: 5, skipped: 4, done: 1, left_out: 1, ..Summary::default() };
    assert_eq!(summary, expected);
    let folder = RunFolder::read(root.path()).unwrap();
    assert!(
        folder.answers.iter().all(|row| row.error.is_none() && (row.case != "case-0" || row.probe != "PR"))
    );
    let asked: Vec<bool> =
        folder.plan.iter().flat_map(|case| &case.probes).map(|probe| probe.is_asked_under("")).collect();
    assert_eq!(asked, [true, false, true, true, true, true]);
    // The plan of the dataset asks it; the folder's does not.
    let mut again = Fake::new();
    let summary = answer(root.path(), &cases, &mut again).unwrap();
    assert_eq!(summary, Summary { planned: 5, skipped: 5, left_out: 1, ..Summary::default() });
    assert!(again.asked.is_empty(), "{:?}", again.asked);
}

/// A run of two conditions.
fn two_conditions(dir: &Path, cases: &[Case]) -> RunStore {
    let mut header = header(None);
    header.identity.conditions = Condition::beside(&[Condition::PLAIN], (&[], &[]), 2);
    let header = RunHeader::new(header.identity, None, header.machine);
    RunStore::open_or_create(dir, &header, Selection::of_all(&STALE).plan(cases).unwrap()).unwrap()
}

#[test]
fn one_folder_holds_several_conditions_with_files_and_rows_of_their_own() {
    let cases = cases(2);
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("run");
    let stop = AtomicBool::new(false);
    // The second condition of one probe fails and is retried alone.
    let mut store = two_conditions(&dir, &cases);
    let first = go(&mut store, &cases, &mut Fake::failing(&["case-1/PR repeat-2"]), &stop).unwrap();
    assert_eq!((first.planned, first.done, first.errors), (12, 11, 1));
    drop(store);
    let mut fake = Fake::new();
    go(&mut two_conditions(&dir, &cases), &cases, &mut fake, &stop).unwrap();
    assert_eq!(fake.asked, ["case-1/PR repeat-2"]);

    let folder = RunFolder::read(&dir).unwrap();
    let keys: Vec<_> = folder.answers.iter().map(|r| (r.probe.as_str(), r.condition.as_str())).collect();
    let of_a_case =
        [("SR", ""), ("SR", "repeat-2"), ("PR", ""), ("PR", "repeat-2"), ("IPA", ""), ("IPA", "repeat-2")];
    assert_eq!(keys, of_a_case.repeat(2));
    for row in &folder.answers {
        let file = attention_file(&row.case, &row.probe, &row.condition);
        assert!(row.attention.as_ref() == Some(&file) && dir.join(file).is_file());
    }
    let plain = folder.clone().condition("").unwrap();
    let second = folder.clone().condition("repeat-2").unwrap();
    assert_eq!((plain.answers.len(), second.answers.len()), (6, 6));
    assert!(second.answers.iter().all(|row| row.answer.as_ref().unwrap().contains("repeat-2")));
    let error = folder.condition("swapped").unwrap_err().to_string();
    assert!(error.contains("`swapped`") && error.contains("plain, repeat-2"), "{error}");
    // Rows of a run without conditions lack the field.
    assert!(!std::fs::read_to_string(dir.join("answers.jsonl")).unwrap().contains("\"condition\":\"\""));
}

#[test]
fn a_subject_hears_of_the_next_case_that_lacks_answers_before_it_is_asked_for_one() {
    #[derive(Default)]
    struct Listener(Vec<String>);
    impl Subject for Listener {
        fn prepare(&mut self, next: &std::sync::Arc<Case>) {
            self.0.push(format!("next: {}", next.id));
        }

        fn answer_case(
            &mut self,
            case: &Case,
            _: &[Question<'_>],
            _: &Status,
            _: &mut Sink<'_>,
        ) -> Result<(), RunError> {
            self.0.push(case.id.clone());
            Ok(())
        }
    }
    let cases = cases(4);
    let root = tempfile::tempdir().unwrap();
    let mut listener = Listener::default();
    answer(root.path(), &cases, &mut listener).unwrap();
    let ids: Vec<&str> = cases.iter().map(|case| case.id.as_str()).collect();
    let next = |case: usize| format!("next: {}", ids[case]);
    let expected =
        [next(1), ids[0].into(), next(2), ids[1].into(), next(3), ids[2].into(), ids[3].to_owned()];
    assert_eq!(listener.0, expected);

    // Answered cases are not prepared again.
    let root = tempfile::tempdir().unwrap();
    let of = |case: usize| ["SR", "PR", "IPA"].map(|probe| format!("{}/{probe}", ids[case]));
    let failing: Vec<String> = [of(1), of(3)].concat();
    let failing: Vec<&str> = failing.iter().map(String::as_str).collect();
    let mut fake = Fake { failing: &failing, ..Fake::new() };
    answer(root.path(), &cases, &mut fake).unwrap();
    let mut listener = Listener::default();
    answer(root.path(), &cases, &mut listener).unwrap();
    assert_eq!(listener.0, [next(3), ids[1].into(), ids[3].to_owned()]);
}

#[test]
fn every_answer_has_a_cost_row_in_a_file_of_its_own_that_a_resumed_run_appends_to() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("run");
    let failing = [format!("{}/PR", cases(2)[1].id)];
    let failing: Vec<&str> = failing.iter().map(String::as_str).collect();
    let mut subject = Fake { failing: &failing, ..Fake::new() };
    let summary = answer(&dir, &cases(2), &mut subject).unwrap();
    assert_eq!((summary.done, summary.errors), (5, 1));
    let costs = RunFolder::read(&dir).unwrap().costs;
    assert_eq!(costs.len(), 5, "errors have none");
    assert!(costs.iter().all(|row| row.cost.tokens_computed == Some(100) && row.probes.len() == 1));
    // The failed probe, in addition to the others.
    answer(&dir, &cases(2), &mut Fake::new()).unwrap();
    let folder = RunFolder::read(&dir).unwrap();
    assert_eq!((folder.costs.len(), &folder.costs[..5]), (6, &costs[..]));
    let mean = MeanCost::of_answers(&folder.costs).unwrap();
    let tokens = [mean.tokens_computed, mean.tokens_generated].map(|amount| amount.known());
    assert_eq!((mean.cases, tokens), (2, [Some(300.0), Some(21.0)]));
    // A run without the file is complete.
    std::fs::remove_file(dir.join("costs.jsonl")).unwrap();
    assert!(RunFolder::read(&dir).unwrap().costs.is_empty());
}
