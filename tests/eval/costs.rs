//! Mean costs per case, and rows of `costs.jsonl`.

use palimpsest::runs::cost::{Amount, Cost, CostRow, MeanCost};

#[test]
fn the_mean_is_over_cases_of_answers_or_of_judges() {
    let row = |case: &str, judge: Option<&str>, computed| CostRow {
        case: case.to_owned(),
        judge: judge.map(str::to_owned),
        cost: Cost {
            tokens_computed: Some(computed),
            tokens_reused: Some(10),
            tokens_generated: None,
            prefill_seconds: Some(1.5),
            decode_seconds: 0.5,
        },
        ..CostRow::default()
    };
    let rows = [row("a", None, 100), row("a", None, 20), row("b", None, 60)];
    let mean = MeanCost::of_answers(&rows).unwrap();
    assert_eq!((mean.cases, mean.rows), (2, 3));
    let tokens = [mean.tokens_computed, mean.tokens_reused, mean.tokens_generated].map(Amount::known);
    assert_eq!(tokens, [Some(90.0), Some(15.0), None]);
    assert_eq!((mean.prefill_seconds, mean.decode_seconds), (Some(2.25), 0.75));
    assert_eq!(
        mean.to_string(),
        "90 tokens prefilled (and 15 reused), those generated not told, 3.0 s (prefill 2.2, decode 0.8)"
    );
    assert_eq!(MeanCost::of_judges(&rows), None);
    let rows = [row("a", None, 1), row("a", None, 1), row("a", Some("j"), 1)];
    assert_eq!(MeanCost::of_judges(&rows).unwrap().rows, 1);
}

/// An endpoint with `usage: null` in every reply, and one with usage in one reply of two.
#[test]
fn tokens_that_are_not_told_are_not_zero() {
    let row = |computed, generated| CostRow {
        case: "a".to_owned(),
        cost: Cost { tokens_computed: computed, tokens_generated: generated, ..Cost::of_call(1.25) },
        ..CostRow::default()
    };
    let words = |rows: &[CostRow]| MeanCost::of_answers(rows).unwrap().to_string();
    assert_eq!(words(&[row(None, None), row(None, None)]), "tokens not told, 2.5 s");
    assert_eq!(
        words(&[row(Some(1200), Some(7)), row(None, None)]),
        "at least 1,200 tokens prefilled, at least 7 generated, 2.5 s"
    );
    assert_eq!(words(&[row(Some(0), Some(7))]), "0 tokens prefilled, 7 generated, 1.2 s");
    assert_eq!(words(&[row(None, Some(7))]), "7 tokens generated, those prefilled not told, 1.2 s");
}

#[test]
fn a_row_is_written_flat_with_null_for_unknown_tokens_and_read_back_also_with_the_energy_of_older_versions() {
    let cost = Cost { tokens_computed: Some(3), ..Cost::of(0.0, 0.0) };
    let row = CostRow { case: "a".to_owned(), probes: vec!["p".to_owned()], cost, ..CostRow::default() };
    let text = serde_json::to_string(&row).unwrap();
    for part in ["\"tokens_computed\":3", "\"tokens_reused\":null"] {
        assert!(text.contains(part), "{text}");
    }
    assert_eq!(serde_json::from_str::<CostRow>(&text).unwrap(), row);
    let older = text.replace('}', ",\"joules\":4.0,\"joules_from\":\"rapl_and_nvml\"}");
    assert_eq!(serde_json::from_str::<CostRow>(&older).unwrap(), row);
}
