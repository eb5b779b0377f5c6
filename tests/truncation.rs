//! Truncation of prompts to a context, under every policy of every benchmark.

use std::collections::{BTreeMap, BTreeSet};

use palimpsest::benchmarks::dataset::cases_in_memory;
use palimpsest::benchmarks::knowme::KNOWME;
use palimpsest::benchmarks::memrewardbench::MEMREWARDBENCH;
use palimpsest::benchmarks::stale::STALE;
use palimpsest::benchmarks::subtlememory::SUBTLEMEMORY;
use palimpsest::benchmarks::{Benchmark, CUT_MARK, CutCount, Graded, HistoryCut, SampleSpec, Table};
use palimpsest::case::truncate::{Middle, TruncateError, Truncation};
use palimpsest::case::{Case, Keep};
use palimpsest::prompt::{BytePairEncoding, PromptBuilder, Templates};
use palimpsest::runs::context_budget::{
    BudgetError, BudgetedCase, Cut, Dropped, cut_messages, cut_prompts, cut_to_budget,
};
use palimpsest_core::text::{
    CharsPerToken, ChatTemplate, CountTokens, Message, MessageRole, Prompt, Tokenizer,
};

use crate::parity::fixture;
use crate::tables::answered;

const CHATML: &str = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

/// A template without a system role: the system message is prepended to the user's.
const NO_SYSTEM: &str = "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}\
    {% for message in messages %}{{ '<turn>' + message['content'] + '<end>' }}{% endfor %}";

fn cases(benchmark: &'static Benchmark, segments: Option<usize>) -> Vec<Case> {
    let files = (benchmark.sample)(SampleSpec { segments, seed: 0 }).unwrap();
    cases_in_memory(benchmark, files).into_iter().map(Result::unwrap).collect()
}

fn builder(benchmark: &Benchmark, chat: &str) -> PromptBuilder {
    let chat = ChatTemplate::new("test", chat, Some("<s>"), None).unwrap();
    PromptBuilder::new(Templates::load(benchmark, None).unwrap(), chat)
}

fn tokenizer() -> Tokenizer {
    Tokenizer::from_file(&fixture("tokenizers/smollm").join("tokenizer.json")).unwrap()
}

/// A benchmark's policy by name.
fn way(benchmark: &Benchmark, name: &str) -> Truncation {
    *benchmark.truncations.iter().find(|way| way.name() == name).unwrap()
}

fn user(messages: &[Message]) -> &str {
    &messages.iter().find(|message| message.role == MessageRole::User).unwrap().content
}

#[test]
fn each_benchmark_asks_as_its_authors_do_unless_told_otherwise() {
    let all: [(&Benchmark, usize, &[&str]); 4] = [
        (&STALE, 1024, &["evidence", "authors", "plain"]),
        (&SUBTLEMEMORY, 1024, &["plain", "evidence"]),
        (&KNOWME, 1024, &["plain", "evidence"]),
        (&MEMREWARDBENCH, 16_384, &["evidence", "authors"]),
    ];
    for (benchmark, tokens, ways) in all {
        assert_eq!(benchmark.max_new_tokens, tokens, "{}", benchmark.title);
        let names: Vec<&str> = benchmark.truncations.iter().map(|way| way.name()).collect();
        assert_eq!(names, ways, "{}", benchmark.title);
    }
    assert_eq!(way(&STALE, "authors").budget(131_072, 2048), 128_000 - 2048 - 512);
    let middle = Middle { from: 131_072, first: 65_536, last: 65_531 };
    assert_eq!(way(&MEMREWARDBENCH, "authors"), Truncation::Middle(middle));
}

#[test]
fn the_question_texts_of_stale_say_nothing_of_length_and_nothing_of_the_whole_history_for_a_request() {
    let case = cases(&STALE, Some(3)).remove(0);
    let prompts = builder(&STALE, CHATML).build_all(&case, &case.history).unwrap();
    for (prompt, probe) in prompts.iter().zip(&case.probes) {
        let of_wording = |span: &&palimpsest_core::span::Span| {
            span.label == "system" || span.label == "preamble" || span.label.starts_with("instructions[")
        };
        let words: String =
            prompt.spans.iter().filter(of_wording).map(|span| &prompt.text[span.start..span.end]).collect();
        let words = words.to_lowercase();
        for length in ["sentence", "brief", "short", "concise", "word", "paragraph"] {
            assert!(!words.contains(length), "{}: `{length}` in {words}", probe.id);
        }
        for keeping in ["in keeping", "whole history"] {
            assert!(!words.contains(keeping), "{}: {words}", probe.id);
        }
    }
}

#[test]
fn a_prompt_without_its_middle_is_the_rest_of_it_in_spans_and_messages() {
    let case = cases(&STALE, Some(4)).remove(0);
    for chat in [CHATML, NO_SYSTEM] {
        for prompt in builder(&STALE, chat).build_all(&case, &case.history).unwrap() {
            let text_of = |prompt: &Prompt, label: &str| {
                let span = prompt.spans.iter().find(|span| span.label == label)?;
                Some(prompt.text[span.start..span.end].to_owned())
            };
            let at = |label: &str| prompt.spans.iter().find(|span| span.label == label).unwrap();
            let (first, third) = (at("session[0]"), at("session[2]"));
            // From inside the first session to inside the third; the second is removed.
            let bytes = first.start + 30..third.start + 40;
            let cut = prompt.without(bytes.clone());
            assert_eq!(cut.text, format!("{}{}", &prompt.text[..bytes.start], &prompt.text[bytes.end..]));
            assert_eq!(text_of(&cut, "session[0]").unwrap(), prompt.text[first.start..first.start + 30]);
            assert_eq!(text_of(&cut, "session[1]"), None);
            assert_eq!(text_of(&cut, "session[2]").unwrap(), prompt.text[third.start + 40..third.end]);
            for same in ["system", "preamble", "session[3]", "query", "instructions[1]"] {
                assert_eq!(text_of(&cut, same), text_of(&prompt, same), "{same}");
            }
            let mut reached = 0;
            for span in &cut.spans {
                assert_eq!(span.start, reached, "spans tile the text");
                reached = span.end;
            }
            assert_eq!(reached, cut.text.len());
            assert!(cut.text.contains(user(&cut.messages)));
            assert_eq!(user(&prompt.messages).len() - user(&cut.messages).len(), bytes.len());
            // Only the history is cut.
            let most = prompt.without(0..prompt.text.len());
            assert!(most.spans.iter().all(|span| span.segment().is_none()));
            assert_eq!(text_of(&most, "query"), text_of(&prompt, "query"));
            assert_eq!(text_of(&most, "preamble"), text_of(&prompt, "preamble"));
            assert_eq!(prompt.without(5..5), prompt);
        }
    }
    // Characters are never split.
    let mut odd = case.clone();
    odd.history.segments[0].turns[0].content = "ääääääääää".to_owned();
    let prompt = builder(&STALE, CHATML).build_all(&odd, &odd.history).unwrap().remove(0);
    let at = prompt.text.find("ää").unwrap();
    assert_eq!(prompt.without(at + 1..at + 3).text, prompt.text.replacen("ää", "", 1));
}

#[test]
fn what_lies_between_two_ends_is_counted_in_tokens() {
    let text = "The lamp stands in the hall, and nobody — neither the maid nor the cook — has lit it for 1,204 days. ".repeat(9);
    let exact = tokenizer();
    let ids = exact.encode_with_offsets(&text).unwrap().ids;
    let bound = CharsPerToken::new(3.0).unwrap();
    let encoding = BytePairEncoding::named("o200k_base").unwrap();
    let table = tiktoken_rs::o200k_base().unwrap();
    let in_encoding = table.encode_ordinary(&text);
    for (first, last) in [(0, 0), (1, 0), (0, 1), (10, 7), (60, 60)] {
        let bytes = exact.between(&text, first, last).unwrap();
        let ends = [exact.decode(&ids[..first], false), exact.decode(&ids[ids.len() - last..], false)];
        let [begins, ends] = ends.map(Result::unwrap);
        assert_eq!((&text[..bytes.start], &text[bytes.end..]), (&*begins, &*ends));
        // A counter without offsets finds the same ends if tokens do not depend on later text.
        let bytes = encoding.between(&text, first, last).unwrap();
        let begins = table.decode(&in_encoding[..first]).unwrap();
        assert!(text[..bytes.start].starts_with(&begins), "{first}: {}", &text[..bytes.start]);
        assert!(encoding.count(&text[..bytes.start]).unwrap() <= first);
        assert!(encoding.count(&text[bytes.end..]).unwrap() <= last);
        let bytes = bound.between(&text, first, last).unwrap();
        assert_eq!(text[..bytes.start].chars().count(), 3 * first);
        assert_eq!(text[bytes.end..].chars().count(), 3 * last);
    }
    let all = exact.between(&text, ids.len(), 3).unwrap();
    assert!(all.is_empty() && exact.between("", 4, 4).unwrap().is_empty());
}

#[test]
fn the_middle_of_a_pair_is_cut_out_as_by_the_authors() {
    let (tokenizer, builder) = (tokenizer(), builder(&MEMREWARDBENCH, CHATML));
    let by = way(&MEMREWARDBENCH, "authors");
    let mut equal = 0;
    for case in cases(&MEMREWARDBENCH, None) {
        let case = (MEMREWARDBENCH.arrange)(&case, "chosen-first", 0);
        let prompt = builder.build_all(&case, &case.history).unwrap().remove(0);
        let ids = tokenizer.encode_with_offsets(&prompt.text).unwrap().ids;
        let n = ids.len();
        let of = |budget, by| cut_to_budget(&builder, &tokenizer, &case, Cut { budget, by, seed: 0 });
        let [whole] = &of(n, by).unwrap()[..] else { panic!("one part") };
        assert_eq!((whole.prompts[0].tokens.len(), &whole.dropped), (n, &Dropped::default()));

        let budget = n * 9 / 10;
        let [part] = &of(budget, by).unwrap()[..] else { panic!("one part") };
        let tokens = &part.prompts[0].tokens;
        assert!(tokens.len() <= budget && tokens.len() + 12 > budget, "{} of {budget}", tokens.len());
        assert_eq!(part.dropped.segments, [] as [usize; 0]);
        assert_eq!(part.dropped.tokens, n - tokens.len());
        let history: usize = builder.segment_costs(&case.history, &tokenizer).unwrap().iter().sum();
        assert_eq!(part.dropped.of, history);
        // The authors' policy: this many tokens from the beginning and the end, as text, tokenised again. Ours gives the same text if that
        // adds no tokens, and cuts only the history.
        let last = budget * 65_531 / 131_067;
        let first = budget - last;
        let theirs = [&ids[..first], &ids[n - last..]].map(|ids| tokenizer.decode(ids, false).unwrap());
        let begins = prompt.spans.iter().find(|span| span.segment().is_some()).unwrap().start;
        let inside = theirs[0].len() >= begins;
        let theirs = theirs.concat();
        if inside && tokenizer.count(&theirs).unwrap() <= budget {
            assert_eq!(tokenizer.decode(tokens, false).unwrap(), theirs);
            equal += 1;
        }
        // The evidence-preserving policy rejects prompts that do not fit.
        let refused = of(budget, Truncation::Evidence).err().unwrap();
        assert!(matches!(refused, BudgetError::Truncate(TruncateError::DoesNotFit { .. })), "{refused}");
        let nothing = of(60, by).err().unwrap();
        assert!(nothing.to_string().contains("nothing of it is left"), "{nothing}");
        // Tables count both as not fitting.
        assert!(refused.is_too_long() && nothing.is_too_long());

        // A prompt of the length at which the authors truncate is cut whatever the context.
        let always = Truncation::Middle(Middle { from: n, first, last });
        let [cut] = &of(1_000_000, always).unwrap()[..] else { panic!("one part") };
        assert!(cut.dropped.tokens > 0 && cut.prompts[0].tokens.len() < n);

        // An endpoint gets both ends of the same message.
        let budget = budget + 256;
        let parts = cut_messages(&builder, &tokenizer, &case, Cut { budget, by, seed: 0 }).unwrap();
        let [BudgetedCase { prompts, .. }] = &parts[..] else { panic!("one part") };
        let counted: usize =
            prompts[0].iter().map(|message| tokenizer.count(&message.content).unwrap()).sum();
        assert!(counted + 256 <= budget, "{counted} of {budget}");
        let (sent, whole) = (user(&prompts[0]), user(&prompt.messages));
        assert!(sent.len() < whole.len() && sent[..40] == whole[..40]);
        assert!(sent[sent.len() - 40..] == whole[whole.len() - 40..]);
    }
    assert!(equal >= 5, "{equal} prompts are what the authors' code makes of them");
}

#[test]
fn in_phases_each_probe_has_a_cut_of_its_own_and_the_evidence_stays() {
    let by = way(&STALE, "authors");
    let builder = builder(&STALE, CHATML);
    let tokens = CharsPerToken::new(3.0).unwrap();
    let (mut differ, mut by_seed) = (0, 0);
    for case in cases(&STALE, Some(24)) {
        let count = |messages: &[Message]| -> usize {
            messages.iter().map(|message| tokens.count(&message.content).unwrap()).sum()
        };
        let of = |budget, seed| cut_messages(&builder, &tokens, &case, Cut { budget, by, seed });
        let whole = of(1_000_000, 0).unwrap();
        assert_eq!((whole.len(), whole[0].prompts.len()), (1, 3), "what fits is read once");
        let longest = whole[0].prompts.iter().map(|messages| count(messages)).max().unwrap();
        let budget = longest * 3 / 4;
        let anchor = |role: &str| case.evidence.iter().find(|e| e.role == role).unwrap().place.segment;
        let (old, new) = (anchor("old"), anchor("new"));
        let Ok(parts) = of(budget, 0) else { continue };
        assert_eq!(parts.len(), 3);
        for (at, part) in parts.iter().enumerate() {
            let gone = &part.dropped.segments;
            assert_eq!(part.probes, at..at + 1);
            assert!(count(&part.prompts[0]) <= budget, "no more is kept free for the template");
            assert!(!gone.contains(&old) && !gone.contains(&new));
            let before = gone.iter().filter(|&&gone| gone < old).count();
            let behind = gone.iter().filter(|&&gone| gone > new).count();
            let (head, tail) = (old.min(2), (23 - new).min(2));
            assert!(before <= head && behind <= tail, "{gone:?}");
            // Text between the two is cut only after both ends.
            assert!(gone.len() == before + behind || (before, behind) == (head, tail), "{gone:?}");
        }
        let again = of(budget, 0).unwrap();
        assert!(again.iter().zip(&parts).all(|(a, b)| a.dropped == b.dropped), "seeded");
        let sets: BTreeSet<&Vec<usize>> = parts.iter().map(|part| &part.dropped.segments).collect();
        differ += usize::from(sets.len() > 1);
        let other = of(budget, 1).unwrap();
        by_seed += usize::from(other.iter().zip(&parts).any(|(a, b)| a.dropped != b.dropped));
    }
    assert!(differ >= 4 && by_seed >= 4, "{differ} cases cut by probe, {by_seed} by seed");
}

#[test]
fn a_full_history_is_cut_plainly_for_all_its_questions_at_once() {
    let all: [(&'static Benchmark, &str); 2] = [(&SUBTLEMEMORY, "full"), (&KNOWME, "full")];
    for (benchmark, setting) in all {
        let builder = builder(benchmark, CHATML);
        let tokens = tokenizer();
        let case = (benchmark.arrange)(&cases(benchmark, None)[0], setting, 0);
        let by = benchmark.truncations[0];
        assert_eq!(by, Truncation::Plain);
        let prompts = builder.build_all(&case, &case.history).unwrap();
        let longest = prompts.iter().map(|p| tokens.count(&p.text).unwrap()).max().unwrap();
        let costs = builder.segment_costs(&case.history, &tokens).unwrap();
        let budget = longest / 2;
        let parts = cut_to_budget(&builder, &tokens, &case, Cut { budget, by, seed: 0 }).unwrap();
        let [part] = &parts[..] else { panic!("{} parts", parts.len()) };
        assert_eq!(part.prompts.len(), case.probes.len());
        assert!(part.prompts.iter().all(|prompt| prompt.tokens.len() <= budget));
        let gone = &part.dropped.segments;
        let (first, last) = (gone[0], gone[gone.len() - 1]);
        assert_eq!(*gone, (first..=last).collect::<Vec<_>>(), "one gap");
        assert!(first > 0 && last + 1 < case.history.segments.len(), "with something on either side");
        let evidence = case.probes.iter().flat_map(|probe| case.evidence_of(probe));
        assert!(evidence.clone().any(|e| gone.contains(&e.place.segment)), "evidence goes too");
        assert_eq!(part.dropped.tokens, gone.iter().map(|&i| costs[i]).sum::<usize>());
        assert_eq!(part.dropped.of, costs.iter().sum::<usize>());
        // Evidence-only contexts are rejected if they do not fit, whatever the run's policy.
        let oracle = Case { keep: Keep::Evidence, ..case.clone() };
        let mut one = oracle.clone();
        one.probes.truncate(1);
        let shown: BTreeSet<usize> = one.evidence_of(&one.probes[0]).map(|e| e.place.segment).collect();
        one.history = one.history.select(|_, segment| shown.contains(&segment.index));
        let refused = cut_prompts(&builder, &tokens, &one, Cut { budget: 300, by, seed: 0 }).err().unwrap();
        assert!(matches!(refused, BudgetError::Truncate(TruncateError::DoesNotFit { .. })), "{refused}");
    }
}

/// A graded answer of a run.
struct Answer {
    condition: &'static str,
    probe: usize,
    group: &'static str,
    right: bool,
    answered: bool,
    /// In percent of the history's tokens.
    dropped: Option<usize>,
}

fn answer(condition: &'static str, probe: usize, group: &'static str, dropped: Option<usize>) -> Answer {
    Answer { condition, probe, group, right: probe.is_multiple_of(2), answered: true, dropped }
}

/// Tables of a benchmark. Groups split the questions in its tables.
fn tables(benchmark: &Benchmark, answers: &[Answer]) -> Vec<Table> {
    let of = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    };
    let labels: Vec<_> =
        answers.iter().map(|a| of(&[("subtask", a.group), ("ctx_length", "8k"), ("dataset", "d")])).collect();
    let facets: Vec<_> = answers
        .iter()
        .map(|a| {
            let relation = if a.group == "contradictory" { a.group } else { "nuanced" };
            of(&[("relation", relation), ("subtype", a.group), ("task", a.group)])
        })
        .collect();
    let probes: Vec<String> = answers.iter().map(|a| a.probe.to_string()).collect();
    let graded: Vec<Graded<'_>> = answers
        .iter()
        .enumerate()
        .map(|(at, a)| Graded {
            condition: a.condition,
            case: &probes[at],
            probe: "q",
            answered: a.answered,
            answer: a.answered.then_some("an answer"),
            correct: a.answered.then_some(a.right),
            score: a.answered.then_some(f64::from(u8::from(a.right)) * 5.0),
            choice: a.answered.then_some(if a.right { "A" } else { "B" }),
            history_cut: a.dropped.filter(|_| a.answered).map(|dropped| HistoryCut { dropped, of: 100 }),
            ..answered(&labels[at], &facets[at])
        })
        .collect();
    (benchmark.counts)(&graded).tables
}

/// First lines of a row's cells by column; the row's setting or condition begins with `setting`.
fn row(tables: &[Table], key: &str, setting: &str) -> (BTreeMap<String, String>, Vec<String>) {
    let sheet = &tables.iter().find(|table| table.key == key).unwrap().sheet;
    let at = sheet.columns.iter().position(|c| ["setting", "condition"].contains(&&*c.name)).unwrap();
    let row = sheet.rows.iter().find(|row| row[at][0].starts_with(setting)).unwrap();
    let names = sheet.columns.iter().map(|column| column.name.clone());
    (names.zip(row.iter().map(|cell| cell[0].clone())).collect(), sheet.notes.clone())
}

#[test]
fn the_papers_own_tables_mark_what_rests_on_cut_histories_and_say_how_much_was_shown() {
    let mark = CUT_MARK;
    let full = |probe, group, dropped| answer("full", probe, group, dropped);
    let mut answers = vec![
        full(0, "temporal", Some(70)),
        full(1, "temporal", Some(50)),
        full(2, "contradictory", None),
        full(3, "contextual", None),
        Answer { answered: false, ..full(4, "contextual", Some(99)) },
    ];
    let groups: Vec<&'static str> = answers.iter().map(|a| a.group).collect();
    answers.extend((0..5).map(|probe| answer("oracle", probe, groups[probe], None)));
    let found = tables(&SUBTLEMEMORY, &answers);
    let note = format!(
        "{mark} run full (ours): 2 of 4 answers were given to cut histories, on average 40.0% of the tokens were shown \
         (30.0% to 50.0%)"
    );
    for key in ["accuracy", "intervals"] {
        let (cells, notes) = row(&found, key, "full");
        assert_eq!(cells["setting"], format!("full (ours){mark}"));
        for (column, marked) in [
            ("all", true),
            ("nuanced", true),
            ("temporal", true),
            ("contextual", false),
            ("contradictory", false),
        ] {
            assert_eq!(cells[column].ends_with(mark), marked, "{key} {column}: {}", cells[column]);
        }
        assert!(notes.contains(&note), "{notes:?}");
        assert!(row(&found, key, "oracle").0.values().all(|cell| !cell.contains(mark)));
    }
    let uncut: Vec<Answer> = answers.into_iter().map(|a| Answer { dropped: None, ..a }).collect();
    let said = |tables: &[Table]| tables.iter().any(|table| table.sheet.text().contains(mark));
    assert!(!said(&tables(&SUBTLEMEMORY, &uncut)));

    let mut answers: Vec<Answer> =
        (0..4).map(|n| answer("full", n, ["T1", "T2"][n % 2], (n % 2 == 0).then_some(75))).collect();
    answers.extend((0..4).map(|n| answer("rag", n, ["T1", "T2"][n % 2], None)));
    let found = tables(&KNOWME, &answers);
    let (base, notes) = row(&found, "d", "full");
    assert_eq!((&*base["T1"], &*base["T2"]), (&*format!("100.0{mark}"), "0.0"));
    assert!(
        notes.iter().any(|note| note.contains("model full: 2 of 4 answers") && note.contains("25.0%")),
        "{notes:?}"
    );
    // A difference to a truncated base carries its note.
    let (added, _) = row(&found, "d", "rag");
    assert_eq!((&*added["T1"], &*added["T2"]), (&*format!("+0.0{mark}"), "+0.0"));

    let answers: Vec<Answer> = ["chosen-first", "rejected-first"]
        .into_iter()
        .flat_map(|order| {
            (0..4)
                .map(move |n| answer(order, n, "Mem0-Out", (n == 0 && order == "chosen-first").then_some(10)))
        })
        .collect();
    let found = tables(&MEMREWARDBENCH, &answers);
    for key in ["accuracy", "lengths"] {
        let (cells, notes) = row(&found, key, "chosen-first");
        assert_eq!(cells["condition"], format!("chosen-first{mark}"));
        assert!(notes.iter().any(|note| note.contains("run chosen-first: 1 of 4 answers")), "{notes:?}");
        assert_eq!(row(&found, key, "rejected-first").0["condition"], "rejected-first");
    }
    let unknown = CutCount::of([Some(HistoryCut::default()), None].into_iter());
    assert!(
        unknown
            .note("old")
            .unwrap()
            .ends_with("1 of 2 answers was given to cut histories, by how much the run does not say")
    );
    assert_eq!((CutCount::of([None].into_iter()).note("whole"), CutCount::default().mark()), (None, ""));
}
