//! Rows of `dose.jsonl`, every possible fault of one, and prompts that begin the answer.

use std::path::Path;

use palimpsest::benchmarks::dataset::{Dataset, cases_in_memory};
use palimpsest::benchmarks::dose::row::DoseRow;
use palimpsest::benchmarks::dose::{DOSE, FILE};
use palimpsest::benchmarks::reading::ReadError;
use palimpsest::benchmarks::{SampleSpec, row_roles};
use palimpsest::case::{Case, Contrasted, Evidence};
use palimpsest::prompt::{PromptBuilder, Templates};
use palimpsest_core::text::{ChatTemplate, MessageRole, ThinkingMode};
use serde_json::{Value, json};

fn sample() -> Vec<u8> {
    (DOSE.sample)(SampleSpec::default()).unwrap().remove(0).1
}

fn rows() -> Vec<Value> {
    String::from_utf8(sample()).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn read(rows: &[Value]) -> Vec<Result<Case, ReadError>> {
    let text: String = rows.iter().map(|row| format!("{row}\n")).collect();
    cases_in_memory(&DOSE, vec![(FILE.to_owned(), text.into_bytes())])
}

fn case(row: Value) -> Case {
    read(&[row]).remove(0).unwrap()
}

#[test]
fn rows_become_cases_whose_labels_are_the_factors() {
    let text = sample();
    for line in text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        // The file's own type has the same fields.
        let row: DoseRow = serde_json::from_slice(line).unwrap();
        assert_eq!(serde_json::to_value(row).unwrap(), serde_json::from_slice::<Value>(line).unwrap());
    }
    let mut row = rows().remove(0);
    row["factors"] =
        json!({"sweep": "distance", "distance": 750.0, "share": 0.5, "marked": true, "fillers": "none"});
    row["sessions"][4]["role"] = json!("new");
    row["sessions"][4]["turns"][0]["content"] = json!("As I said, my choir rehearses on Thursday.");
    row["sessions"][4]["time"] = json!("2024-01-01 08:00");
    let case = case(row);
    let label = |name: &str| case.labels[name].as_str();
    assert_eq!(
        ["item", "twin", "sweep", "distance", "share", "marked", "fillers"].map(label),
        ["sample-day", "ab", "distance", "750", "0.5", "true", "none"]
    );
    // Order is that of the file, whatever the dates; a role may occur twice.
    let indices: Vec<usize> = case.history.segments.iter().map(|segment| segment.index).collect();
    assert_eq!(indices, [0, 1, 2, 3, 4]);
    assert!(case.history.segments[4].time < case.history.segments[0].time);
    assert_eq!(
        case.evidence,
        [("old", 1), ("new", 3), ("new", 4)].map(|(role, at)| Evidence::segment(role, at))
    );
    let probe = &case.probes[0];
    let values = Contrasted {
        current: " Thursday".to_owned(),
        stale: vec![" Monday".to_owned()],
        absent: vec![" Tuesday".to_owned(), " Friday".to_owned()],
    };
    assert_eq!((probe.prefix.as_str(), &probe.contrast), ("Your choir rehearses on", &Some(values)));
    assert_eq!(case.judge.of_probes["value"]["expects"], "current");
    // No findings about times, copies or questions.
    let cases = read(&rows());
    let report = DOSE.check(Box::new(cases.into_iter().chain([Ok(case)])), &mut |_| {});
    assert!(report.is_sound() && report.findings.is_empty(), "{:?}", report.findings);
}

#[test]
fn everything_wrong_with_a_row_is_named_by_its_field() {
    let change = |path: &str, value: Value| {
        let mut row = rows().remove(0);
        *row.pointer_mut(path).unwrap() = value;
        row
    };
    let drop = |path: &str, name: &str| {
        let mut row = rows().remove(0);
        row.pointer_mut(path).unwrap().as_object_mut().unwrap().remove(name);
        row
    };
    let table = [
        (change("/id", json!("")), "id: found an empty string"),
        (drop("", "item"), "item: found no such field"),
        (change("/twin", json!("ab-no-update")), "twin: found \"ab-no-update\"; write ab or ba"),
        (change("/factors", json!({"x": 1})), "factors.sweep: found no such field"),
        (change("/factors/chain", json!([1])), "factors.chain: found an array of 1"),
        (
            change("/factors", json!({"sweep": "base", "item": 1})),
            "factors.item: found \"item\"; give the factor another name",
        ),
        (change("/sessions", json!([])), "sessions: found an empty array"),
        (
            change("/sessions/1/role", json!("older")),
            "sessions[1].role: found \"older\"; write old, mid, new, lure, echo",
        ),
        (
            change("/sessions/1/time", json!("2025-02-30 10:00")),
            "sessions[1].time: found \"2025-02-30 10:00\"",
        ),
        (change("/sessions/1/turns/0/role", json!("system")), "sessions[1].turns[0].role: found \"system\""),
        (
            change("/sessions/1/turns/0/content", json!(" ")),
            "sessions[1].turns[0].content: found an empty string",
        ),
        (change("/query_time", json!(5)), "query_time: found 5"),
        (drop("/probes/0", "prefix"), "probes[0].prefix: found no such field"),
        (
            change("/probes/0/prefix", json!("It is ")),
            "probes[0].prefix: found \"It is \"; write how the answer begins",
        ),
        (change("/probes/0/stale", json!(" Monday")), "probes[0].stale: found \" Monday\"; write an array"),
        (change("/probes/0/absent/0", json!("Monday")), "probes[0]: found the value \"Monday\" twice"),
        (
            change("/probes/0/expects", json!("stale")),
            "probes[0].expects: found \"stale\"; write current or none",
        ),
        (change("/probes/0", json!({"id": "value", "extra": 1})), "probes[0].extra: found an unknown field"),
    ];
    for (row, said) in table {
        let error = read(&[row]).remove(0).unwrap_err();
        assert!(matches!(error, ReadError::Row(_)) && error.to_string().contains(said), "{said}: {error}");
    }
    // Reading continues after a broken line; duplicate ids are rejected.
    let [first, second] = [rows().remove(0), rows().remove(1)];
    let text = format!("{first}\n\n{{\"id\": 3\n{first}\n{second}\n");
    let found = cases_in_memory(&DOSE, vec![(FILE.to_owned(), text.into_bytes())]);
    let said: Vec<String> = found
        .iter()
        .map(|case| case.as_ref().map_or_else(ToString::to_string, |case| case.id.clone()))
        .collect();
    assert_eq!((found.len(), said[0].as_str(), said[3].as_str()), (4, "sample-day-ab", "sample-day-ba"));
    assert!(
        said[1].contains("line 3, which is no row") && said[2].contains("the id of row 0 again"),
        "{said:?}"
    );
    assert!(matches!(read(&[])[..], [Err(ReadError::NoCases { .. })]));
}

#[test]
fn a_folder_is_read_by_its_file_alone() {
    let root = tempfile::tempdir().unwrap();
    let digest = |path: &Path| {
        let dataset = Dataset::open(path, SampleSpec::default(), |_| {}).unwrap();
        assert_eq!((dataset.benchmark().name, dataset.cases().unwrap().count()), ("dose", 8));
        dataset.digest().to_owned()
    };
    std::fs::write(root.path().join(FILE), sample()).unwrap();
    let before = digest(root.path());
    std::fs::write(root.path().join("build.json"), "{\"preset\": \"slots\"}").unwrap();
    std::fs::write(root.path().join("provenance.jsonl"), "{}\n").unwrap();
    assert_eq!(digest(root.path()), before);
    digest(&root.path().join(FILE));
    assert_eq!(row_roles(&DOSE), ["new"]);
}

#[test]
fn the_prefix_is_the_prompts_end_and_no_part_of_its_messages() {
    let chat = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
                {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
    let chat = ChatTemplate::new("chat", chat, None, None).unwrap();
    let builder = PromptBuilder::new(Templates::load(&DOSE, None).unwrap(), chat);
    let case = case(rows().remove(0));
    let prompt = builder.build(&case.history, &case.evidence, &case.probes[0]).unwrap();
    assert!(prompt.text.ends_with("<|im_start|>assistant\nYour choir rehearses on"), "{}", prompt.text);
    let last = prompt.spans.last().unwrap();
    assert_eq!(
        (last.label.as_str(), &prompt.text[last.start..last.end]),
        ("prefix", "Your choir rehearses on")
    );
    assert!(prompt.messages.iter().all(|message| message.role != MessageRole::Assistant));
    assert!(prompt.messages.iter().all(|message| !message.content.contains("Your choir rehearses on")));
    // Sessions are in file order, with their dates.
    assert!(prompt.text.contains("Session 2 (2025-01-13 18:40)\nUser: My choir rehearses on Monday in the old school.\nAssistant: Noted"));
    // Without a prefix the prompt is the same up to there.
    let mut bare = case.probes[0].clone();
    bare.prefix.clear();
    let without = builder.build(&case.history, &case.evidence, &bare).unwrap();
    assert_eq!(without.text + "Your choir rehearses on", prompt.text);
    assert_eq!(without.spans, prompt.spans[..prompt.spans.len() - 1]);
}

#[test]
fn an_answer_that_is_begun_is_not_thought_about() {
    let switched = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
                    {% if add_generation_prompt %}<|im_start|>assistant\n{% if enable_thinking is defined and not enable_thinking %}\
                    <think>\n\n</think>\n\n{% endif %}{% endif %}";
    let always = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
                  {% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}";
    for source in [switched, always] {
        let (chat, thoughts) = ChatTemplate::new("chat", source, None, None)
            .unwrap()
            .with_thinking(ThinkingMode::On, None)
            .unwrap();
        assert!(thoughts.is_some_and(|thoughts| thoughts.on));
        let builder = PromptBuilder::new(Templates::load(&DOSE, None).unwrap(), chat);
        let case = case(rows().remove(0));
        let mut probe = case.probes[0].clone();
        let prompt = builder.build(&case.history, &case.evidence, &probe).unwrap();
        assert!(prompt.text.ends_with("\n</think>\n\nYour choir rehearses on"), "{}", prompt.text);
        probe.prefix.clear();
        let without = builder.build(&case.history, &case.evidence, &probe).unwrap();
        assert!(!without.text.contains("</think>"), "{}", without.text);
    }
}
