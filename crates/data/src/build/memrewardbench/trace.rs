//! Traces: what an agent's memory was after each chunk, as rows hold them and as pairs show them.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::build::{Row, RowError};
use crate::ground::words::words;

/// Chunks with the memory after each.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct Strand {
    pub chunks: Vec<String>,
    pub trace: Vec<String>,
    /// Updates by chunk that a judge refused before the one that was kept.
    #[serde(default)]
    pub wrong: Vec<Vec<String>>,
}

/// A trace of a context: parts that were read side by side and then merged, if any, and what was read after them.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct Trace {
    pub question: String,
    pub answer: String,
    #[serde(default)]
    pub keys: Vec<String>,
    #[serde(default)]
    pub parts: Vec<Strand>,
    /// The memory that the parts were merged into.
    #[serde(default)]
    pub start: String,
    #[serde(flatten)]
    pub tail: Strand,
    /// The answer given from the last memory.
    #[serde(rename = "final")]
    pub last: String,
    /// Its context lacks the chunks with keys.
    #[serde(default)]
    pub dropped: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    pub text: String,
    /// The chunk and the memory after it, of blocks that are steps.
    pub step: Option<(String, String)>,
}

impl Block {
    fn plain(text: String) -> Self {
        Block { text, step: None }
    }

    /// Steps have no numbers, as a number would give away one that is put in.
    pub fn step(chunk: &str, wrong: &[String], memory: &str) -> Self {
        let wrong: String = wrong.iter().map(|update| refused(update) + "\n").collect();
        let text =
            format!("<section>\n{chunk}\n</section>\n{wrong}<updated-memory>\n{memory}\n</updated-memory>");
        Block { text, step: Some((chunk.to_owned(), memory.to_owned())) }
    }
}

/// An update that a judge refused, as it stands in a step.
pub fn refused(update: &str) -> String {
    format!("<wrong-updated-memory>\n{update}\n</wrong-updated-memory>")
}

pub fn shown(blocks: &[Block]) -> String {
    blocks.iter().map(|block| block.text.as_str()).collect::<Vec<_>>().join("\n\n")
}

pub fn answer(text: &str) -> String {
    format!("Answer: {text}")
}

/// True if the words of `sought` stand in `text` side by side.
pub fn says(text: &str, sought: &str) -> bool {
    let (text, sought) = (words(text), words(sought));
    !sought.is_empty() && text.windows(sought.len()).any(|part| part == sought)
}

pub fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map(str::trim).filter(|line| !line.is_empty())
}

impl Trace {
    /// The trace of a row. A fault if the row has none, or not one memory a chunk.
    pub fn of(row: &Row) -> Result<Self, RowError> {
        let fault = |what: String| RowError::Fault(format!("row {} has no trace: {what}", row.id));
        let trace = Trace::deserialize(Value::Object(row.fields.clone()))
            .map_err(|error| fault(error.to_string()))?;
        for Strand { chunks, trace: memories, .. } in trace.strands() {
            let (chunks, memories) = (chunks.len(), memories.len());
            if chunks != memories {
                return Err(fault(format!("{chunks} chunks and {memories} memories; give one a chunk")));
            }
        }
        Ok(trace)
    }

    pub fn strands(&self) -> impl Iterator<Item = &Strand> {
        self.parts.iter().chain([&self.tail])
    }

    pub fn is_key(&self, chunk: &str) -> bool {
        self.keys.iter().any(|key| chunk.contains(key.as_str()))
    }

    pub fn context(&self) -> String {
        self.strands().flat_map(|strand| &strand.chunks).map(String::as_str).collect::<Vec<_>>().join("\n")
    }

    /// Sequential or Mixed, with the setting's other half.
    pub fn subtask(&self, how: &str) -> String {
        format!("{}-{how}", if self.parts.is_empty() { "Sequential" } else { "Mixed" })
    }

    /// The trace as it is shown, with the refused updates or without.
    pub fn blocks(&self, with_wrong: bool) -> Vec<Block> {
        let steps = |strand: &Strand| -> Vec<Block> {
            let step = |(nth, (chunk, memory)): (usize, (&String, &String))| {
                let wrong = strand.wrong.get(nth).filter(|_| with_wrong);
                Block::step(chunk, wrong.map_or(&[], Vec::as_slice), memory)
            };
            strand.chunks.iter().zip(&strand.trace).enumerate().map(step).collect()
        };
        let mut blocks = vec![Block::plain(format!("Problem: {}", self.question))];
        for (nth, part) in self.parts.iter().enumerate() {
            blocks.push(Block::plain(format!("Part {} of {}", nth + 1, self.parts.len())));
            blocks.extend(steps(part));
        }
        if !self.parts.is_empty() {
            blocks.push(Block::plain(format!("Memory after the parts were merged\n{}", self.start)));
        }
        blocks.extend(steps(&self.tail));
        blocks.push(Block::plain(answer(&self.last)));
        blocks
    }
}

/// A pair to be written.
#[derive(Debug, Default, Serialize)]
pub struct Pair {
    pub subtask: String,
    pub question: String,
    pub chosen: String,
    pub rejected: String,
    /// The answers at the two ends.
    pub finals: [String; 2],
    #[serde(rename = "construction")]
    pub how: &'static str,
    /// Texts that the chosen trace has alone, and the rejected one, where the maker put them; `None` if a model wrote the difference.
    #[serde(skip)]
    pub apart: Option<[Vec<String>; 2]>,
}

impl Pair {
    /// A pair row made of `row`. Of its fields, those that say where it is from stay. `told` goes into the provenance.
    pub fn row(self, row: &Row, told: Value) -> Row {
        let mut pair = row.part(self.how, row.fields.clone()).with(json!({"told": told}));
        let kept = ["answer", "keys", "licence", "source", "told"];
        pair.fields.retain(|name, _| kept.contains(&name.as_str()));
        let apart = self.apart.as_ref().map(|[gone, added]| json!({"gone": gone, "added": added}));
        pair.with(json!(self)).with(apart.unwrap_or_default())
    }
}

/// A question with its long text.
pub fn asked(head: &str, context: &str, question: &str) -> String {
    format!("[{head}]\n{context}\n\n[Question]\n{question}")
}

pub fn rejected<T>(why: &str) -> Result<T, RowError> {
    Err(RowError::Rejected(why.to_owned()))
}
