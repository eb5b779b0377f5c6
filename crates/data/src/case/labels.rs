//! Case counts by label value (STALE, figure 5). Called by `palimpsest data stats --by`.

use std::collections::BTreeMap;

use serde::Serialize;

use super::Case;
use crate::ground::order::sorted_unique;

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LabelCounts {
    pub label: String,
    pub split: String,
    /// By descending count, ties by name.
    pub values: Vec<ValueCount>,
    pub cases: usize,
    pub without: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ValueCount {
    pub value: String,
    pub cases: usize,
    pub by_split: BTreeMap<String, usize>,
}

impl LabelCounts {
    pub fn splits(&self) -> Vec<&str> {
        sorted_unique(self.values.iter().flat_map(|value| value.by_split.keys().map(String::as_str)))
    }
}

/// Counts values of `label`, split by the label `split`. Stops at the first error.
pub fn count<E>(
    cases: impl IntoIterator<Item = Result<Case, E>>,
    label: &str,
    split: &str,
) -> Result<LabelCounts, E> {
    let mut counts = LabelCounts {
        label: label.to_owned(),
        split: split.to_owned(),
        values: Vec::new(),
        cases: 0,
        without: 0,
    };
    let mut found: BTreeMap<String, ValueCount> = BTreeMap::new();
    for case in cases {
        let labels = case?.labels;
        counts.cases += 1;
        let Some(value) = labels.get(label) else {
            counts.without += 1;
            continue;
        };
        let of = found.entry(value.clone()).or_insert_with(|| ValueCount {
            value: value.clone(),
            cases: 0,
            by_split: BTreeMap::new(),
        });
        of.cases += 1;
        if let Some(split) = labels.get(split) {
            *of.by_split.entry(split.clone()).or_default() += 1;
        }
    }
    counts.values = found.into_values().collect();
    // stable sort: ties stay alphabetical
    counts.values.sort_by_key(|value| std::cmp::Reverse(value.cases));
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(labels: &[(&str, &str)]) -> Result<Case, String> {
        let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Ok(Case { labels, ..Case::default() })
    }

    #[test]
    fn values_are_counted_by_split_and_cases_without_the_label_apart() {
        let cases = [
            case(&[("category", "Routine"), ("type", "T1")]),
            case(&[("category", "Routine"), ("type", "T2")]),
            case(&[("category", "Health"), ("type", "T2")]),
            case(&[("category", "Focus"), ("type", "T2")]),
            case(&[("type", "T1")]),
        ];
        let counts = count(cases, "category", "type").unwrap();
        let values: Vec<(&str, usize)> = counts.values.iter().map(|v| (v.value.as_str(), v.cases)).collect();
        assert_eq!(values, [("Routine", 2), ("Focus", 1), ("Health", 1)]);
        assert_eq!((counts.cases, counts.without), (5, 1));
        assert_eq!(counts.values[0].by_split, BTreeMap::from([("T1".to_owned(), 1), ("T2".to_owned(), 1)]));
        assert_eq!(counts.splits(), ["T1", "T2"]);
        let broken = [case(&[("category", "Routine")]), Err("row 2".to_owned())];
        assert_eq!(count(broken, "category", "type"), Err("row 2".to_owned()));
    }
}
