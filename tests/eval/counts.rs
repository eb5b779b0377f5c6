//! Filters of a plan, and counts against it.

use super::*;

#[test]
fn the_filter_takes_types_probes_and_both_and_lists_what_is_valid() {
    let cases = cases(4);
    let plan = |only: &str, limit| {
        Selection { only: Some(only.to_owned()), limit, ..Selection::of_all(&STALE) }.plan(&cases).map(
            |plan| {
                plan.iter()
                    .flat_map(|c| c.probes.iter().map(|p| format!("{}/{}", c.case, p.id)))
                    .collect::<Vec<_>>()
            },
        )
    };
    assert_eq!(plan("T1/SR", None).unwrap(), ["case-0/SR", "case-2/SR"]);
    assert_eq!(plan("t2", Some(1)).unwrap(), ["case-1/SR", "case-1/PR", "case-1/IPA"]);
    assert_eq!(plan("ipa", Some(2)).unwrap(), ["case-0/IPA", "case-1/IPA"]);
    for wrong in ["T3", "SR/T1", "", "T1/", "T1/SR/PR"] {
        let error = plan(wrong, None).unwrap_err().to_string();
        for valid in ["T1, T2", "SR, PR, IPA", "T1/SR"] {
            assert!(error.contains(valid), "{error}");
        }
    }
    assert!(plan("SR", Some(0)).unwrap_err().to_string().contains("limit is 0"));
}

#[test]
fn the_table_counts_against_the_plan_and_averages_its_six_cells() {
    let all = cases(20);
    let (_root, dir) = finished(20);
    let mut store = RunStore::open(&dir).unwrap();
    for row in store.answers() {
        let i: usize = row.case["case-".len()..].parse().unwrap();
        // T1/SR all correct, T2/SR half of the ten; one T1/PR fails, one T1/IPA is unjudged; the rest is incorrect.
        let correct = match (row.probe.as_str(), i % 2) {
            ("SR", 0) => true,
            ("SR", _) => i < 10,
            _ => false,
        };
        if i == 0 && row.probe == "IPA" {
            continue;
        }
        let failed = i == 0 && row.probe == "PR";
        store
            .append_verdict(VerdictRow {
                case: row.case,
                probe: row.probe,
                condition: row.condition,
                judge: "j".to_owned(),
                correct: (!failed).then_some(correct),
                error: failed.then(|| "unreadable".to_owned()),
                ..VerdictRow::default()
            })
            .unwrap();
    }
    drop(store);
    let folder = RunFolder::read(&dir).unwrap();
    let table_of = |verdicts: &[VerdictRow]| {
        AccuracyTable::of(&Outcomes::of(&STALE, &join(&folder.plan, "", &folder.answers, verdicts), "j"), "j")
    };
    let table = table_of(&folder.verdicts);
    assert_eq!(
        (table.kinds.clone(), table.dimensions.clone()),
        (vec!["T1".into(), "T2".into()], vec!["SR".into(), "PR".into(), "IPA".into()])
    );
    let counts: Vec<_> = table
        .cells
        .iter()
        .map(|c| (c.counts.correct, c.counts.judged, c.counts.answered, c.counts.expected))
        .collect();
    assert_eq!(
        counts,
        [(10, 10, 10, 10), (0, 9, 10, 10), (0, 9, 10, 10), (5, 10, 10, 10), (0, 10, 10, 10), (0, 10, 10, 10)]
    );
    let overall = &table.overall;
    assert_eq!((overall.accuracy, overall.complete, overall.cells), (Some(1.5 / 6.0), true, 6));
    assert_eq!((overall.correct, overall.judged, overall.expected), (15, 58, 60));
    // Each case counts with the mean of its three answers: all of T1 with 1/3, half of T2 with 1/3 and half with 0. Each type gets half a
    // case at 0 and half a one at 1; the interval is Student's t with 22 - 2 degrees of freedom.
    let interval = overall.interval.unwrap();
    let of_type = |thirds: [f64; 10]| {
        let mean = (thirds.iter().sum::<f64>() + 0.5) / 11.0;
        let squares: f64 = thirds.iter().map(|x| (x - mean).powi(2)).sum();
        (mean, (squares + 0.5 * mean.powi(2) + 0.5 * (1.0 - mean).powi(2)) / 10.0 / 11.0)
    };
    let third = 1.0 / 3.0;
    let (first, second) =
        (of_type([third; 10]), of_type([third, third, third, third, third, 0.0, 0.0, 0.0, 0.0, 0.0]));
    let (centre, half) = ((first.0 + second.0) / 2.0, 2.085_963_447 * ((first.1 + second.1) / 4.0).sqrt());
    assert!(
        (interval.low - (centre - half)).abs() < 1e-9 && (interval.high - (centre + half)).abs() < 1e-9,
        "{interval:?}"
    );
    assert_eq!(table, table_of(&folder.verdicts));
    assert_eq!(all.len(), 20);

    // Without verdicts everything counts as incorrect, and no row vanishes.
    let none = table_of(&[]);
    assert_eq!((none.overall.accuracy, none.overall.judged, none.overall.expected), (Some(0.0), 0, 60));
    assert_eq!(AccuracyTable::of(&Outcomes::of(&STALE, &[], "j"), "j").overall.accuracy, None);
}
