//! The released format, and what the two rules that read nothing would get.

use serde_json::json;

use super::noise::tokens;
use super::trace::lines;
use crate::benchmarks::memrewardbench::{Length, Setting as Subtask};
use crate::build::kind::Data;
use crate::build::{Published, Row, RowError, Setting};
use crate::ground::csv::CsvTable;

const FILE: &str = "memrewardbench.jsonl";
/// The accuracy of the rules over all pairs and over those of each setting, beside the pairs.
pub const SHORTCUTS_FILE: &str = "shortcuts.csv";
const RULES: [&str; 2] = ["longer wins", "more repeated lines lose"];
/// Markup is shorter.
const WORDS_OF_LINE: usize = 3;

/// The score of each rule on a pair with traces of these tokens: 1, 0, or a half if it sees no difference.
pub fn shortcuts(chosen: (&str, usize), rejected: (&str, usize)) -> [f64; 2] {
    let won = |a: usize, b: usize| match a.cmp(&b) {
        std::cmp::Ordering::Greater => 1.0,
        std::cmp::Ordering::Equal => 0.5,
        std::cmp::Ordering::Less => 0.0,
    };
    [won(chosen.1, rejected.1), won(repeated(rejected.0), repeated(chosen.0))]
}

/// Lines of three words and more that stood in the text before.
fn repeated(text: &str) -> usize {
    let mut seen = std::collections::HashSet::new();
    lines(text).filter(|line| line.split_whitespace().count() >= WORDS_OF_LINE && !seen.insert(*line)).count()
}

pub fn data(setting: &Setting<'_>, rows: &[Row]) -> Result<Data, RowError> {
    let (mut text, mut published, mut scores) = (String::new(), Vec::new(), Vec::new());
    for (index, row) in rows.iter().enumerate() {
        let (subtask, question) = (row.text("subtask")?, row.text("question")?);
        let (chosen, rejected) = (row.text("chosen")?, row.text("rejected")?);
        let known = Subtask::parse(subtask).ok_or_else(|| {
            RowError::Fault(format!("row {}: {subtask:?} is no setting of the benchmark", row.id))
        })?;
        let [of_question, of_chosen, of_rejected] =
            [tokens(setting, question)?, tokens(setting, chosen)?, tokens(setting, rejected)?];
        // Names are numbers of 1,024 tokens.
        let tokens_of =
            |length: Length| length.name().trim_end_matches('k').parse::<usize>().unwrap_or(0) * 1024;
        let length = Length::ALL.into_iter().min_by_key(|length| tokens_of(*length).abs_diff(of_question));
        let line = json!({
            "index": index, "task": known.task().name(), "subtask": known.name(), "ctx_length": length.map(Length::name),
            "question": question, "chosen": chosen, "rejected": rejected,
        })
        .to_string();
        let won = shortcuts((chosen, of_chosen), (rejected, of_rejected));
        scores.push((known.name(), won));
        let field = |name: &str| row.get(name).cloned();
        let licence = field("licence").unwrap_or_else(|| json!(setting.spec.licence));
        let details = json!({
            "sources": [{"slot": "context", "source": field("source").unwrap_or_else(|| json!(row.parents)), "licence": licence}],
            "tokens": {"question": of_question, "chosen": of_chosen, "rejected": of_rejected},
            "construction": field("construction"), "told": field("told"), "answer": field("answer"), "finals": field("finals"),
            "shortcuts": {RULES[0]: won[0], RULES[1]: won[1]},
        });
        published.push(Published::new(index.to_string(), row, &line, details));
        text.push_str(&line);
        text.push('\n');
    }
    let files = [(FILE, text.into_bytes()), (SHORTCUTS_FILE, table(&scores))];
    Ok((files.map(|(name, bytes)| (name.to_owned(), bytes)).into(), published))
}

/// A line a rule and setting, `all` first.
fn table(scores: &[(&str, [f64; 2])]) -> Vec<u8> {
    let names = std::iter::once("all").chain(Subtask::ALL.map(Subtask::name));
    let mut lines = Vec::new();
    for name in names {
        let own: Vec<&[f64; 2]> =
            scores.iter().filter(|(of, _)| name == "all" || *of == name).map(|(_, won)| won).collect();
        for (nth, rule) in RULES.into_iter().enumerate().filter(|_| !own.is_empty()) {
            let right: f64 = own.iter().map(|won| won[nth]).sum();
            lines.push((name, rule, own.len(), right / own.len() as f64));
        }
    }
    CsvTable::of(lines)
        .column("setting", |(name, ..)| name)
        .column("rule", |(_, rule, ..)| rule)
        .column("pairs", |(.., pairs, _)| pairs)
        .column("accuracy", |(.., accuracy)| accuracy)
        .bytes()
}
