//! Dataset text that spells special tokens.

use std::collections::BTreeSet;

use super::sound_cases;
use crate::models::ModelStore;
use palimpsest_core::engine::TextSide;
use palimpsest_core::text::known_special_tokens;
use palimpsest_data::benchmarks::dataset::Dataset;
use palimpsest_data::prompt::contents;

pub fn special_tokens(
    dataset: &Dataset,
    model: Option<&str>,
) -> anyhow::Result<Vec<(String, BTreeSet<String>)>> {
    let tokenizer = match model {
        Some(model) => Some(TextSide::open(&ModelStore::open()?.resolve(model)?)?.tokenizer),
        None => None,
    };
    let mut cases = Vec::new();
    for case in sound_cases(dataset)? {
        let case = case?;
        let mut found: BTreeSet<String> = BTreeSet::new();
        for text in contents(&case) {
            found.extend(known_special_tokens(text).into_iter().map(str::to_owned));
            found.extend(tokenizer.iter().flat_map(|tokenizer| tokenizer.special_tokens_in(text)));
        }
        if !found.is_empty() {
            cases.push((case.id, found));
        }
    }
    Ok(cases)
}
