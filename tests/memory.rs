//! Segments of the history that a probe sees under each condition, and the run's record of them.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use palimpsest::benchmarks::{Benchmark, Context, Dimension, Retriever, Setting};
use palimpsest::case::truncate::{TruncateError, truncate_ranked};
use palimpsest::case::{Case, Evidence, History, Keep, Probe, Segment, Turn};
use palimpsest::memory::similar::{ByWords, Similarity, ranked};
use palimpsest::memory::{Memory, evidence_present};
use palimpsest::progress::Status;
use palimpsest::prompt::{PromptBuilder, Templates};
use palimpsest::runs::condition::{Condition, Question};
use palimpsest::runs::context_budget::{Cut, Dropped, cut_messages, part_of};
use palimpsest::runs::error::RunError;
use palimpsest::runs::header::RunHeader;
use palimpsest::runs::plan::{PlannedCase, Selection};
use palimpsest::runs::runner::{Sink, Subject, Summary, run};
use palimpsest::runs::store::{RunFolder, RunStore};
use palimpsest_core::text::{CharsPerToken, ChatTemplate};

use crate::eval::{header, outcome};
use crate::toy::LOGBOOK;

/// The logbook under four conditions.
static FOUR_WAYS: Benchmark = Benchmark {
    name: "four-ways",
    title: "Four ways",
    dimension: Dimension::Probe,
    settings: &[
        Setting { name: "full", about: "all", context: Context::Whole },
        Setting { name: "backwards", about: "all, the last first", context: Context::Whole },
        Setting { name: "oracle", about: "the evidence", context: Context::Evidence },
        Setting {
            name: "two",
            about: "the best two",
            context: Context::Retrieved { by: Retriever::Bm25, most: 2 },
        },
    ],
    arrange: |case, setting, _| {
        let mut case = case.clone();
        if setting == "backwards" {
            case.history.segments.reverse();
        }
        case
    },
    ..LOGBOOK
};

fn event(index: usize, text: &str) -> Segment {
    Segment { kind: "event".to_owned(), index, time: None, turns: vec![Turn::new("what", text)] }
}

fn probe(id: &str, query: &str, about: &str, events: &[usize]) -> Probe {
    Probe {
        id: id.to_owned(),
        form: "question".to_owned(),
        query: query.to_owned(),
        evidence: events.iter().map(|&event| Evidence::segment("fact", event)).collect(),
        facets: BTreeMap::from([("about".to_owned(), about.to_owned())]),
        ..Probe::default()
    }
}

/// Five events; two probes share evidence, one has other evidence, one has none.
fn case() -> Case {
    let texts =
        ["The whale sounded.", "Rain, and rain again.", "A white whale!", "The mate sang of rain.", "Calm."];
    Case {
        id: "pequod".to_owned(),
        labels: BTreeMap::from([("ship".to_owned(), "Pequod".to_owned())]),
        history: History {
            segments: texts.iter().enumerate().map(|(at, text)| event(at, text)).collect(),
            query_time: None,
        },
        probes: vec![
            probe("q1", "Which whale was white?", "whale", &[2, 0]),
            probe("q2", "And the other whale?", "whale", &[0, 2]),
            probe("q3", "Who sang of the rain?", "rain", &[3]),
            probe("q4", "What else?", "rain", &[]),
        ],
        ..Case::default()
    }
}

/// Segments, probes, what truncation keeps first, and the reason for an empty view.
type Seen = (Vec<usize>, Vec<String>, Keep, Option<String>);

fn views(name: &str) -> Vec<Seen> {
    let setting = FOUR_WAYS.settings.iter().find(|setting| setting.name == name).unwrap();
    let views = Memory::new(&FOUR_WAYS, 0).views(&case(), Some(name), setting.context, None);
    let of = |view: palimpsest::memory::View| {
        let shown = view.case.history.segments.iter().map(|segment| segment.index).collect();
        assert_eq!(
            view.segments.clone().unwrap_or_default().is_empty(),
            view.segments.is_none() || view.refused.is_some()
        );
        (shown, view.case.probes.iter().map(|p| p.id.clone()).collect(), view.case.keep, view.refused)
    };
    views.into_iter().map(of).collect()
}

fn ids(all: &[&str]) -> Vec<String> {
    all.iter().map(|id| (*id).to_owned()).collect()
}

#[test]
fn a_probe_is_shown_what_its_condition_says_and_probes_with_one_context_stay_together() {
    assert_eq!(views("full"), [(vec![0, 1, 2, 3, 4], ids(&["q1", "q2", "q3", "q4"]), Keep::Chosen, None)]);
    assert_eq!(views("backwards")[0].0, [4, 3, 2, 1, 0], "segments keep their indices");
    let oracle = views("oracle");
    assert_eq!(oracle[0], (vec![0, 2], ids(&["q1", "q2"]), Keep::Evidence, None));
    assert_eq!(oracle[1], (vec![3], ids(&["q3"]), Keep::Evidence, None));
    assert!(oracle[2].3.as_ref().is_some_and(|why| why.contains("no evidence")), "{oracle:?}");
    // `Which whale was white`: 2 has two of its words and is short, 0 has one.
    let two = views("two");
    assert_eq!(two[0], (vec![0, 2], ids(&["q1"]), Keep::Ranked(vec![2, 0]), None));
    let forgotten = Memory::new(&FOUR_WAYS, 0).views(
        &case(),
        Some("two"),
        Context::Retrieved { by: Retriever::Bm25, most: 1 },
        None,
    );
    let first = &forgotten[0].case;
    let left: Vec<usize> = first.probes[0].evidence.iter().map(|evidence| evidence.place.segment).collect();
    assert_eq!(left, [2], "evidence that is not shown has no label");
    assert_eq!(evidence_present(case().probes[0].evidence.iter().map(|e| e.place.segment), &[2]), (1, 2));
}

/// Okapi BM25 by definition, in f64.
fn bm25(texts: &[&str], query: &str) -> Vec<f64> {
    let words = |text: &str| -> Vec<String> {
        let words = text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
        words.map(str::to_lowercase).collect()
    };
    let documents: Vec<Vec<String>> = texts.iter().map(|text| words(text)).collect();
    let n = documents.len() as f64;
    let average = documents.iter().map(Vec::len).sum::<usize>() as f64 / n;
    let score = |document: &Vec<String>| -> f64 {
        let of_word = |word: String| {
            let holding = documents.iter().filter(|other| other.contains(&word)).count() as f64;
            let idf = (1.0 + (n - holding + 0.5) / (holding + 0.5)).ln();
            let tf = document.iter().filter(|other| **other == word).count() as f64;
            idf * tf * 2.2 / (tf + 1.2 * (0.25 + 0.75 * document.len() as f64 / average))
        };
        words(query).into_iter().map(of_word).sum()
    };
    documents.iter().map(score).collect()
}

#[test]
fn bm25_is_its_definition_and_equal_scores_keep_the_order_of_the_history() {
    let texts = [
        "Seven sheep; SEVEN, and a dog.",
        "A dog that minds the sheep of the valley",
        "nothing here",
        "Éclair, éclair and sheep",
        "nothing there",
    ];
    let mut words = ByWords::default();
    for query in ["seven sheep", "the dog the dog", "ÉCLAIR?", "sheep", "zebra"] {
        let ours = words.scores(&texts, query).unwrap();
        for (ours, theirs) in ours.iter().zip(bm25(&texts, query)) {
            assert!((ours - theirs).abs() < 1e-5, "{query}: {ours} and {theirs}");
        }
    }
    let mut case = case();
    case.history.segments = texts.iter().enumerate().map(|(at, text)| event(at, text)).collect();
    assert_eq!(ranked(&mut words, &case, "zebra").unwrap(), [0, 1, 2, 3, 4]);
    assert_eq!(ranked(&mut words, &case, "éclair").unwrap(), [3, 0, 1, 2, 4]);
    case.history.segments.truncate(2);
    assert_eq!(ranked(&mut words, &case, "valley").unwrap(), [1, 0], "another history, another index");
}

#[test]
fn e04_bm25_finds_the_evidence_in_languages_without_spaces() {
    // Texts, then questions with the index of the expected first hit.
    type Language = (&'static [&'static str], &'static [(&'static str, usize)]);
    let languages: [Language; 7] = [
        (
            &[
                "今天很冷，我喝了茶。",
                "我的弟弟养了一只猫。",
                "我在里斯本的公寓有一个阳台。",
                "我住在奥斯陆，骑自行车上班。",
            ],
            &[("用户现在住在奥斯陆吗？", 3), ("阳台上放什么花？", 2), ("弟弟养了什么？", 1)],
        ),
        (
            &["昨日はラーメンを食べました。", "京都に引っ越しました。", "妹はピアノを習っています。"],
            &[("どこに引っ越しましたか。", 1), ("ピアノ", 2), ("ﾗｰﾒﾝ", 0)],
        ),
        (
            &["오늘은 비가 왔어요.", "지난달에 부산으로 이사했습니다.", "동생이 기타를 배워요."],
            &[("부산에서 무엇을 해요?", 1), ("기타는 누가 치나요?", 2)],
        ),
        (
            &["วันนี้ฝนตกหนัก", "ฉันย้ายไปอยู่เชียงใหม่แล้ว", "น้องสาวเรียนเปียโน"],
            &[("ฉันอยู่เชียงใหม่หรือเปล่า", 1), ("ใครเรียนเปียโน", 2)],
        ),
        (&["ថ្ងៃនេះភ្លៀង", "ខ្ញុំរស់នៅសៀមរាប", "ប្អូនរៀនព្យាណូ"], &[("តើខ្ញុំរស់នៅសៀមរាបទេ", 1), ("អ្នកណារៀនព្យាណូ", 2)]),
        (
            &["आज बारिश हुई।", "मैं दिल्ली में रहता हूँ।", "बहन सितार सीखती है।"],
            &[("दिल्ली", 1), ("सितार कौन बजाता", 2)],
        ),
        // Decomposed vs. composed text, capitals, a soft hyphen.
        (
            &["Il pleut.", "J'habite à Orléans.", "Die Straße ist lang."],
            &[("ORLE\u{301}ANS", 1), ("STRAS\u{ad}SE", 2)],
        ),
    ];
    let mut words = ByWords::default();
    for (texts, questions) in languages {
        let mut case = case();
        case.history.segments = texts.iter().enumerate().map(|(at, text)| event(at, text)).collect();
        for (question, first) in questions {
            assert_eq!(ranked(&mut words, &case, question).unwrap()[0], *first, "{question}");
        }
    }
}

#[test]
fn a_retrieved_history_keeps_the_best_ranked_that_fit_evidence_or_not() {
    let history = case().history;
    let cut = truncate_ranked(&history, &[4, 1, 0], &[10, 60, 1, 1, 20], 30, 80).unwrap();
    let kept: Vec<usize> = cut.history.segments.iter().map(|segment| segment.index).collect();
    // 30 + 20 of event 4, not 60 of event 1, and 10 of event 0; unranked events are dropped.
    assert_eq!((kept, cut.dropped, cut.tokens), (vec![0, 4], vec![1, 2, 3], 60));
    let none = truncate_ranked(&history, &[0], &[1; 5], 81, 80);
    assert!(matches!(none, Err(TruncateError::DoesNotFit { fixed: 81, budget: 80, .. })));
    assert!(matches!(truncate_ranked(&history, &[0], &[1], 0, 80), Err(TruncateError::Costs { .. })));
}

#[test]
fn where_the_evidence_of_all_probes_does_not_fit_they_are_parted_and_each_keeps_its_own() {
    let long = |at: usize| event(at, &format!("{at} {}", "word ".repeat(100)));
    let mut case = case();
    case.history.segments = (0..8).map(long).collect();
    case.probes = (0..8).map(|at| probe(&format!("q{at}"), "Which?", "all", &[at])).collect();
    let builder =
        PromptBuilder::new(Templates::load(&LOGBOOK, None).unwrap(), ChatTemplate::plain(None).unwrap());
    let tokens = CharsPerToken::new(1.0).unwrap();
    let whole = cut_messages(&builder, &tokens, &case, Cut::keeping_evidence(100_000, 0)).unwrap();
    assert_eq!((whole.len(), &whole[0].dropped), (1, &Dropped::default()));
    // Room for four events: two probes of each half share a history.
    let parts = cut_messages(&builder, &tokens, &case, Cut::keeping_evidence(2_700, 0)).unwrap();
    assert!((2..8).contains(&parts.len()), "{}", parts.len());
    for at in 0..8 {
        let (part, messages) = part_of(&parts, at).unwrap();
        assert!(part.probes.contains(&at) && !part.dropped.segments.contains(&at));
        let length: usize = messages.iter().map(|message| message.content.len()).sum();
        assert!(length <= 2_700, "{length}");
        assert!(messages.iter().any(|message| message.content.contains(&format!("{at} word"))));
    }
    assert!(part_of(&parts, 8).is_none());
    // Splitting does not help if one piece of evidence is too long.
    assert!(cut_messages(&builder, &tokens, &case, Cut::keeping_evidence(400, 0)).is_err());
}

/// Answers with its prompt.
struct Echo {
    asked: usize,
    stop_after: usize,
}

impl Subject for Echo {
    fn answer_case(
        &mut self,
        case: &Case,
        questions: &[Question<'_>],
        _: &Status,
        sink: &mut Sink<'_>,
    ) -> Result<(), RunError> {
        for &question in questions {
            self.asked += 1;
            if self.asked > self.stop_after {
                return Err(RunError::Stopped);
            }
            let shown: Vec<String> = case.history.segments.iter().map(|s| s.index.to_string()).collect();
            sink(question, Ok(outcome(shown.join(" "))))?;
        }
        Ok(())
    }
}

fn four_ways(repeat: u32) -> RunHeader {
    let header = header(None);
    let mut identity = header.identity.clone();
    identity.benchmark = "four-ways".to_owned();
    let all: Vec<Condition> = FOUR_WAYS.settings.iter().map(Condition::of_setting).collect();
    identity.conditions = Condition::beside(&all, (&[], &[]), repeat);
    RunHeader::new(identity, None, header.machine)
}

fn answer(dir: &Path, header: &RunHeader, subject: &mut Echo) -> Summary {
    let plan = Selection::of_all(&FOUR_WAYS).plan(&[case()]).unwrap();
    let mut store = RunStore::open_or_create(dir, header, plan).unwrap();
    let (mut memory, stop) = (Memory::new(&FOUR_WAYS, 0), AtomicBool::new(false));
    let summary = run(&mut store, [Ok(case())], &mut memory, subject, &stop, false).unwrap();
    assert!(!stop.load(Ordering::Relaxed));
    summary
}

#[test]
fn rows_say_what_was_shown_and_an_interrupted_run_ends_with_the_same_bytes() {
    let root = tempfile::tempdir().unwrap();
    let whole = root.path().join("whole");
    let all = answer(&whole, &four_ways(2), &mut Echo { asked: 0, stop_after: usize::MAX });
    // Four probes, four settings, twice; one has no evidence to show.
    assert_eq!((all.planned, all.done, all.errors), (32, 30, 2));
    let folder = RunFolder::read(&whole).unwrap();
    let row = |probe: &str, condition: &str| {
        let rows = &folder.answers;
        rows.iter().find(|row| (&*row.probe, &*row.condition) == (probe, condition)).unwrap().clone()
    };
    assert_eq!(row("q1", "full").context, None);
    assert_eq!(row("q1", "backwards").answer.as_deref(), Some("4 3 2 1 0"));
    assert_eq!(row("q1", "oracle-repeat-2").context, Some(vec![0, 2]));
    assert_eq!(row("q3", "oracle").answer.as_deref(), Some("3"));
    assert!(row("q4", "oracle").error.is_some_and(|error| error.contains("no evidence")));
    assert_eq!(row("q1", "two").context, Some(vec![0, 2]));
    let names = ["full", "full-repeat-2", "backwards", "backwards-repeat-2"];
    assert_eq!(&folder.header.identity.condition_names()[..4], names);
    assert_eq!(folder.header.identity.conditions[5].base(), "oracle");
    assert_eq!(folder.clone().condition("").unwrap().answers.len(), 4, "the first where none is plain");
    assert!(folder.clone().condition("none").is_err());
    assert_eq!(folder.shown("pequod").unwrap().unwrap().segments.len(), 5);

    let broken = root.path().join("broken");
    let bytes = |dir: &Path| std::fs::read(dir.join("answers.jsonl")).unwrap();
    for stop_after in [1, 3, 7, 2, 5] {
        answer(&broken, &four_ways(2), &mut Echo { asked: 0, stop_after });
    }
    let last = answer(&broken, &four_ways(2), &mut Echo { asked: 0, stop_after: usize::MAX });
    assert_eq!((last.skipped, last.done), (18, 12));
    assert_eq!(bytes(&broken), bytes(&whole));
    let shown = |dir: &Path| std::fs::read(dir.join("cases/pequod.json")).unwrap();
    assert_eq!(shown(&broken), shown(&whole));

    let other = RunStore::open_or_create(
        &whole,
        &four_ways(3),
        Selection::of_all(&FOUR_WAYS).plan(&[case()]).unwrap(),
    );
    assert!(matches!(other, Err(RunError::DifferentRun { .. })));
}

#[test]
fn a_limit_of_questions_takes_groups_by_turns_over_all_cases() {
    let mut second = case();
    second.id = "rachel".to_owned();
    let all = [case(), second];
    let taken = |most: usize| -> Vec<String> {
        let selection = Selection { limit_probes: Some(most), ..Selection::of_all(&LOGBOOK) };
        let of = |case: PlannedCase| {
            let id = case.case.clone();
            case.probes.into_iter().map(move |probe| format!("{id}/{}", probe.id)).collect::<Vec<_>>()
        };
        selection.plan(&all).unwrap().into_iter().flat_map(of).collect()
    };
    // Groups: whale (q1, q2) and rain (q3, q4) of each ship.
    assert_eq!(taken(1), ["pequod/q1"]);
    assert_eq!(taken(3), ["pequod/q1", "pequod/q2", "pequod/q3"]);
    assert_eq!(taken(5), ["pequod/q1", "pequod/q2", "pequod/q3", "pequod/q4", "rachel/q1"]);
    assert_eq!(taken(100).len(), 8);
    let none = Selection { limit_probes: Some(0), ..Selection::of_all(&LOGBOOK) };
    assert!(none.plan(&all).is_err());
}
