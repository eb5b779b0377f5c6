//! Built-in sample: a diary of 128 events and fourteen questions in the released format; prompts have fewer than 6,000 SmolLM2 tokens.

use crate::benchmarks::{SampleError, SampleFiles, SampleSpec, fixed_sample};

macro_rules! file {
    ($path:literal) => {
        ($path, include_bytes!(concat!("sample/", $path)))
    };
}

const FILES: [(&str, &[u8]); 15] = [
    file!("answer/Adversarial Abstention_answers.json"),
    file!("answer/Expert-Annotated Psychoanalysis_answers.json"),
    file!("answer/Information Extraction_answers.json"),
    file!("answer/Logical Event Ordering_answers.json"),
    file!("answer/Mind-Body Interaction_answers.json"),
    file!("answer/Mnestic Trigger Analysis_answers.json"),
    file!("answer/Temporal Reasoning_answers.json"),
    file!("input/diary.json"),
    file!("question/Adversarial Abstention_questions.json"),
    file!("question/Expert-Annotated Psychoanalysis_questions.json"),
    file!("question/Information Extraction_questions.json"),
    file!("question/Logical Event Ordering_questions.json"),
    file!("question/Mind-Body Interaction_questions.json"),
    file!("question/Mnestic Trigger Analysis_questions.json"),
    file!("question/Temporal Reasoning_questions.json"),
];

pub(super) fn files(spec: SampleSpec) -> Result<SampleFiles, SampleError> {
    fixed_sample(spec, "one diary of fixed length", &FILES)
}
