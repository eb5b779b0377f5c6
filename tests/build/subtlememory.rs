//! SubtleMemory builds: quotas, topics, drafts, trials, merge, order.

mod whole;

use std::collections::{BTreeMap, BTreeSet};

use palimpsest::build::pool::Pool;
use palimpsest::build::subtlememory::KIND;
use palimpsest::build::subtlememory::plan::{Relation, quotas};
use palimpsest::build::subtlememory::questions::trials_of;
use palimpsest::build::subtlememory::spread::order;
use palimpsest::build::table::{Made, Maker, check, maker};
use palimpsest::build::{Row, RowError, Setting, Spec};
use palimpsest::case::draw::Draws;
use palimpsest_core::text::CharsPerToken;
use serde_json::{Map, Value, json};

fn preset() -> Spec {
    Spec::parse("full.toml", KIND.presets[0].1).unwrap()
}

fn fields(value: Value) -> Map<String, Value> {
    value.as_object().unwrap().clone()
}

fn row(id: &str, value: Value) -> Row {
    Row { id: id.to_owned(), parents: Vec::new(), fields: fields(value) }
}

/// User sets and what is not near them point elsewhere; what says `nearby` has a cosine of .4 to a user set, what says `beside`, .39.
fn embed(texts: &[&str]) -> Result<Vec<Vec<f32>>, String> {
    let vector = |text: &&str| {
        let along: f32 = match text {
            text if text.starts_with("Ilse") => 1.0,
            text if text.contains("nearby") => 0.4,
            text if text.contains("beside") => 0.39,
            _ => 0.0,
        };
        vec![along, (1.0 - along * along).sqrt()]
    };
    Ok(texts.iter().map(vector).collect())
}

/// Calls `then` with the settings of the preset and those of `with` over them.
fn with<T>(spec: &Spec, stage: &str, with: Value, then: impl FnOnce(&Setting<'_>) -> T) -> T {
    let mut settings = spec.settings.clone();
    settings.extend(fields(with));
    let (pool, count) = (Pool::default(), CharsPerToken::new(4.0).unwrap());
    then(&Setting { spec, stage, with: settings, pool: &pool, count: &count, embed: &embed, reviews: &[] })
}

fn each(spec: &Spec, name: &str, given: Value, row: &Row) -> Result<Vec<Row>, RowError> {
    let Some(Maker::Each(make)) = maker("subtlememory", name) else { panic!("{name}") };
    with(spec, name, given, |setting| make(setting, row))
}

fn all(spec: &Spec, name: &str, rows: &[Row]) -> Vec<Made> {
    let Some(Maker::All(make)) = maker("subtlememory", name) else { panic!("{name}") };
    with(spec, name, json!({}), |setting| make(setting, rows)).unwrap()
}

#[test]
fn the_preset_parses_and_names_ten_personas() {
    let spec = preset();
    assert_eq!((spec.kind.as_str(), spec.tables["personas"].len()), ("subtlememory", 10));
    let names: BTreeSet<Option<&str>> =
        spec.tables["personas"].iter().map(|persona| persona["persona"].as_str()).collect();
    assert_eq!(names.len(), 10);
    let types = spec.settings["types"].as_array().unwrap();
    assert!(types.len() == 10 && types.iter().all(|of| of["flows"].as_array().unwrap().len() == 3));
    assert_eq!(spec.stages.last().unwrap().make.as_deref(), Some("spread"));
}

/// Deals rows out one at a time.
fn dealt(n: usize, relations: &[Relation]) -> BTreeMap<(String, String), usize> {
    let mut counts = BTreeMap::new();
    let mut of_relation = vec![0; relations.len()];
    for row in 0..n {
        let at = row % relations.len();
        let Relation { relation, subtypes } = &relations[at];
        let subtype = subtypes[of_relation[at] % subtypes.len()].clone();
        of_relation[at] += 1;
        *counts.entry((relation.clone(), subtype)).or_default() += 1;
    }
    counts
}

#[test]
fn quotas_are_exact_whatever_the_generator_proposes() {
    let spec = preset();
    let relations: Vec<Relation> = serde_json::from_value(spec.settings["relations"].clone()).unwrap();
    let mut draws = Draws::new("test", 51, "plans");
    let names = |fields: &Map<String, Value>| {
        (fields["relation"].as_str().unwrap().to_owned(), fields["subtype"].as_str().unwrap().to_owned())
    };
    for plan in 0..100 {
        let n = 1 + draws.index(40);
        let expected = dealt(n, &relations);
        let rows: Vec<Value> = (0..n).map(|nth| json!({"persona": "7", "preference": nth})).collect();
        let mut proposals = Vec::new();
        for _ in 0..draws.index(2 * n + 1) {
            let of = &relations[draws.index(relations.len())];
            let subtype = ["temporal", "any_one", "no such one", of.subtypes[0].as_str()][draws.index(4)];
            // Also numbers that no row has.
            proposals
                .push(json!({"number": draws.index(n + 3), "relation": of.relation, "subtype": subtype}));
        }
        let group = json!({"persona": "7", "rows": rows, "proposals": proposals});
        let planned = each(&spec, "plan", json!({}), &row(&format!("{plan}"), group)).unwrap();
        let mut counts: BTreeMap<(String, String), usize> = BTreeMap::new();
        for row in &planned {
            *counts.entry(names(&row.fields)).or_default() += 1;
        }
        assert_eq!(counts, expected, "plan {plan}, {n} rows");
        let of_quotas = quotas(n, &relations).into_iter().filter(|quota| quota.rows > 0);
        let of_quotas = of_quotas.map(|quota| ((quota.relation, quota.subtype), quota.rows)).collect();
        assert_eq!(counts, of_quotas);
        let kept: Vec<&Value> = planned.iter().map(|row| &row.fields["preference"]).collect();
        assert_eq!(kept, (0..n).map(Value::from).collect::<Vec<_>>().iter().collect::<Vec<_>>());
    }
    // The paper's remainders, by hand: 14 = 5 nuanced, 5 contradictory, 4 complementary.
    let by_hand: Vec<usize> = quotas(14, &relations).into_iter().map(|quota| quota.rows).collect();
    assert_eq!(by_hand, [3, 2, 5, 2, 2]);
}

#[test]
fn a_proposal_that_fits_the_quotas_is_kept_and_other_rows_are_drawn() {
    let spec = preset();
    let rows: Vec<Value> = (0..5).map(|_| json!({"persona": "7"})).collect();
    let proposals = [
        ("contradictory", "contradictory"),
        ("complementary", "any_one"),
        ("nuanced", "contextual"),
        ("contradictory", "contradictory"),
        ("nuanced", "contextual"),
    ];
    let proposed: Vec<Value> = (1..).zip(proposals).map(|(number, (relation, subtype))| {
        json!({"number": number, "relation": relation, "subtype": subtype})
    }).collect();
    let plan = |group: Value| -> Vec<String> {
        let rows = each(&spec, "plan", json!({}), &row("7", group)).unwrap();
        rows.iter().map(|row| row.text("subtype").unwrap().to_owned()).collect()
    };
    // Quotas: temporal 1, contextual 1, contradictory 2, multi_evidence 1. Rows 2 and 5 keep their relation.
    let planned = plan(json!({"persona": "7", "rows": rows, "proposals": proposed}));
    assert_eq!(planned, ["contradictory", "multi_evidence", "contextual", "contradictory", "temporal"]);
    let drawn = plan(json!({"persona": "7", "rows": rows}));
    assert_eq!(drawn, plan(json!({"persona": "7", "rows": rows})));
}

#[test]
fn topics_are_merged_only_if_each_is_mapped_exactly_once() {
    let spec = preset();
    let group = |topics: Value| {
        let rows = json!([{"topic": "Tea", "persona": "0"}, {"topic": "Food", "persona": "1"}]);
        each(&spec, "canonical", json!({}), &row("all", json!({"rows": rows, "topics": topics})))
    };
    let tea = json!({"source": "Tea", "canonical": "Food"});
    let food = json!({"source": "Food", "canonical": "Food"});
    let merged = group(json!([tea, food])).unwrap();
    assert_eq!(merged.iter().map(|row| row.text("topic").unwrap()).collect::<Vec<_>>(), ["Food", "Food"]);
    assert_eq!(merged[1].id, "all.1");
    for wrong in [json!([tea]), json!([tea, food, tea])] {
        assert!(matches!(group(wrong), Err(RowError::Rejected(_))));
    }
    // The preset's own check asks for the same of the reply, foreign topics included.
    let stage = spec.stages.iter().find(|stage| stage.name == "merge-topics").unwrap();
    let holds = |topics: Value| {
        let row = row(
            "all",
            json!({"rows": [{"topic": "Tea"}, {"topic": "Food"}, {"topic": "Tea"}], "topics": topics}),
        );
        let call = &stage.checks[0];
        let check = check("subtlememory", &call.check).unwrap();
        with(&spec, "merge-topics", json!({}), |setting| check(setting, &call.with, &row)).unwrap()
    };
    assert_eq!(holds(json!([food, tea])), None);
    let foreign = json!({"source": "Art", "canonical": "Food"});
    for wrong in [json!([tea]), json!([tea, food, tea]), json!([tea, food, foreign])] {
        assert!(holds(wrong).is_some());
    }
}

#[test]
fn answers_that_length_gives_away_are_refused() {
    let spec = preset();
    let stage = spec.stages.iter().find(|stage| stage.name == "tasks").unwrap();
    let found = |right: [&str; 3], wrong: [&str; 3]| {
        let row = row("q", json!({"right": right, "wrong": wrong}));
        let calls = stage.checks.iter().filter(|call| {
            call.with
                .values()
                .any(|value| value.to_string().contains("join") || value.to_string().contains("max"))
        });
        let calls: Vec<_> = calls.collect();
        assert_eq!(calls.len(), 2);
        let results = calls.into_iter().map(|call| {
            let check = check("subtlememory", &call.check).unwrap();
            with(&spec, "tasks", json!({}), |setting| check(setting, &call.with, &row)).unwrap().is_some()
        });
        results.collect::<Vec<_>>()
    };
    let even = ["one two three", "four five", "six seven eight nine"];
    assert_eq!(found(even, ["one two", "three four five", "six seven eight nine"]), [false, false]);
    assert_eq!(found(even, ["one two", "three", "six seven eight"]), [true, false], "9 words and 6");
    assert_eq!(
        found(["aaaa bb", "aaaa bb", "aaaa bb"], ["a b", "a b", "a b"]),
        [false, true],
        "each right one is longer"
    );
}

#[test]
fn facts_of_records_follow_the_relation() {
    let spec = preset();
    let select = |subtype: &str, answers: &[&str]| {
        let entries: Vec<Value> =
            answers.iter().map(|answer| json!({"answer": answer, "statement": "x"})).collect();
        let told: Vec<String> = (0..answers.len()).map(|nth| format!("It is {nth}.")).collect();
        let record = json!({"subtype": subtype, "entries": entries, "told": told});
        each(&spec, "select", json!({}), &row("mill.3", record)).map(|rows| rows[0].clone())
    };
    let facts = |row: &Row| row.read::<Vec<String>>("facts").unwrap();
    // Answers once each, in order; 2 sessions up to 4 facts, else 3.
    let four = select("temporal", &["a", "b", "A", "c", "d"]).unwrap();
    assert_eq!(facts(&four), ["It is 0. It is 1.", "It is 3. It is 4."]);
    assert_eq!(four.text("case_id").unwrap(), "mill-3");
    let five = select("temporal", &["a", "b", "c", "d", "e", "f"]).unwrap();
    assert_eq!(facts(&five), ["It is 0. It is 1.", "It is 2. It is 3.", "It is 4."]);
    assert_eq!(facts(&select("any_one", &["a", "A", "b"]).unwrap()), ["It is 0.", "It is 1."]);
    assert_eq!(facts(&select("multi_evidence", &["a", "b", "c"]).unwrap()).len(), 3);
    let mut pairs = BTreeSet::new();
    for nth in 0..60 {
        let record = json!({"subtype": "contradictory", "told": ["It is 0.", "It is 1.", "It is 2."],
            "entries": [{"answer": "a"}, {"answer": "b"}, {"answer": "a"}]});
        let row = &each(&spec, "select", json!({}), &row(&format!("mill.{nth}"), record)).unwrap()[0];
        let facts = facts(row);
        assert!(facts.len() == 2 && facts.contains(&"It is 1.".to_owned()), "{facts:?}");
        pairs.insert(row.read::<Vec<String>>("speakers").unwrap().join("/"));
    }
    assert_eq!(pairs, ["assistant/assistant", "user/assistant", "user/user"].map(str::to_owned).into());
    for (subtype, answers) in
        [("contradictory", ["a", "A"]), ("temporal", ["a", "a"]), ("any_one", ["a", "b"])]
    {
        assert!(matches!(select(subtype, &answers), Err(RowError::Rejected(_))), "{subtype}");
    }
}

#[test]
fn drafts_prefer_other_types_for_siblings() {
    let spec = preset();
    for nth in 0..30 {
        let facts = ["One.", "Two.", "Three.", "Four."];
        let row = row(&format!("0.{nth}"), json!({"facts": facts}));
        let drafts: Vec<Value> = each(&spec, "drafts", json!({}), &row).unwrap()[0].read("drafts").unwrap();
        let types = |draft: &Value| -> Vec<String> {
            let of = draft["candidates"].as_array().unwrap().iter();
            of.map(|candidate| candidate["type"].as_str().unwrap().to_owned()).collect()
        };
        let preferred: BTreeSet<String> = drafts.iter().map(|draft| types(draft)[0].clone()).collect();
        assert_eq!(preferred.len(), 4);
        for (draft, fact) in drafts.iter().zip(facts) {
            assert_eq!(types(draft).into_iter().collect::<BTreeSet<_>>().len(), 4, "four different types");
            assert_eq!(draft["fact"], fact);
            assert!([10, 12, 14].contains(&draft["messages"].as_u64().unwrap()));
            assert!(["low", "medium", "high"].contains(&draft["signal"].as_str().unwrap()));
        }
        let plain = &each(&spec, "drafts", json!({"signals": []}), &row).unwrap()[0];
        assert_eq!(plain.get("drafts.0.signal"), Some(&Value::Null));
    }
}

#[test]
fn trials_ask_what_each_relation_promises() {
    let trials = |subtype: &str, target: usize| -> Vec<(&'static str, Vec<usize>, bool)> {
        trials_of(subtype, 3, target)
            .into_iter()
            .map(|trial| (trial.name, trial.shown, trial.right))
            .collect()
    };
    let both = [("all", vec![0, 1, 2], true), ("blind", vec![], false)];
    let more = |added: &[(&'static str, Vec<usize>, bool)]| [&both[..], added].concat();
    let alone = |right| [("alone", vec![0], right), ("alone", vec![1], right), ("alone", vec![2], right)];
    assert_eq!(trials("any_one", 0), more(&alone(true)));
    assert_eq!(trials("multi_evidence", 0), more(&alone(false)));
    assert_eq!(trials("temporal", 1), more(&[("other condition", vec![0, 2], false)]));
    assert_eq!(trials("contextual", 2), more(&[("other condition", vec![0, 1], false)]));
    assert_eq!(trials("contradictory", 0), more(&[("reversed", vec![2, 1, 0], true)]));
    let spec = preset();
    let question = json!({
        "case_id": "c", "copy": 1, "relation": "nuanced", "subtype": "temporal", "query": "When?",
        "facts": ["In May.", "In June."], "right_kept": ["June", "in June"], "wrong_kept": ["May"],
    });
    let rows = each(&spec, "trials", json!({}), &row("c.1", question)).unwrap();
    assert_eq!(rows.len(), 3);
    for (row, (given, right)) in
        rows.iter().zip([(vec!["In May.", "In June."], true), (vec![], false), (vec!["In May."], false)])
    {
        assert_eq!(row.read::<Vec<String>>("given").unwrap(), given);
        let accepted: Vec<String> = row.read("accepted").unwrap();
        let options = row.list("options").unwrap();
        assert_eq!(options.len(), 4);
        for option in options {
            let is_right = option["text"].as_str().unwrap().contains("June");
            let letter = option["letter"].as_str().unwrap().to_owned();
            assert_eq!(accepted.contains(&letter), is_right == right, "{option}");
        }
    }
}

#[test]
fn a_session_tells_its_fact_late_and_in_other_words() {
    let spec = preset();
    let found = |texts: [&str; 3]| {
        let turns: Vec<Value> = texts.iter().map(|text| json!({"role": "user", "content": text})).collect();
        let row =
            row("s", json!({"fact": "Ilse drinks rooibos without sugar.", "session": {"turns": turns}}));
        let call = fields(json!({"fact": "fact", "turns": "session.turns", "least": 0.5, "opening": 0.5}));
        let check = check("subtlememory", "told").unwrap();
        with(&spec, "sessions", json!({}), |setting| check(setting, &call, &row)).unwrap()
    };
    assert_eq!(found(["A cup, please.", "Which tea?", "Rooibos, and leave out the sugar."]), None);
    assert!(
        found(["A cup, please.", "Which tea?", "Rooibos."])
            .is_some_and(|what| what.contains("session says 25%"))
    );
    let early = found(["Rooibos, and no sugar.", "Yes.", "Thanks."]);
    assert!(early.is_some_and(|what| what.contains("first turn says 50%")));
    let blunt = found(["A cup, please.", "Which?", "Note: Ilse drinks rooibos without sugar!"]);
    assert!(blunt.is_some_and(|what| what.contains("turn 2")));
}

#[test]
fn non_user_sets_are_dealt_evenly_and_never_beside_a_user_set() {
    let spec = preset();
    let own = |(id, persona): (&str, &str)| {
        row(
            id,
            json!({
                "persona": persona, "profile": format!("P{persona}"), "case_id": id,
                "relation": "nuanced", "facts": ["Ilse rows."],
            }),
        )
    };
    let mut rows: Vec<Row> = [("a1", "0"), ("a2", "0"), ("a3", "0"), ("b1", "1")].map(own).into();
    for nth in 0..9 {
        let relation = ["complementary", "nuanced", "contradictory"][nth % 3];
        let fact = match nth {
            7 => "The mill stands nearby.",
            8 => "The mill stands beside it.",
            _ => "The mill stands.",
        };
        let id = format!("m{nth}");
        rows.push(row(&id, json!({"case_id": id, "relation": relation, "facts": [fact]})));
    }
    let made = all(&spec, "merge", &rows);
    let mut of: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for row in made.iter().flatten().filter(|row| row.id.starts_with('m')) {
        let persona = row.text("persona").unwrap();
        assert_eq!(row.text("case_id").unwrap(), format!("unrelated-persona_{persona}-{}", row.id));
        assert_eq!(row.text("profile").unwrap(), format!("P{persona}"));
        of.entry(persona.to_owned()).or_default().push(row.text("relation").unwrap().to_owned());
    }
    assert_eq!((of["0"].len(), of["1"].len()), (3, 1));
    assert_eq!(of["0"].iter().collect::<BTreeSet<_>>().len(), 3, "a relation each");
    let rejected = |why: &str| -> Vec<&str> {
        made.iter()
            .filter_map(|made| made.as_ref().err())
            .filter(|(_, of)| of == why)
            .map(|(id, _)| id.as_str())
            .collect()
    };
    assert_eq!(rejected("near a user set"), ["m7"]);
    assert_eq!(rejected("no history has room").len(), 9 - 1 - 4);
    assert_eq!(made.len(), rows.len());
    // Cosine .39 alone is no reason: of m8 alone, it is taken.
    let made = all(&spec, "merge", &[rows[3].clone(), rows[12].clone()]);
    assert!(made.iter().all(Result::is_ok), "{made:?}");
    // Two sets of one id.
    let Some(Maker::All(merge)) = maker("subtlememory", "merge") else { panic!() };
    let twice = [rows[0].clone(), rows[0].clone()];
    let failed = with(&spec, "merge", json!({}), |setting| merge(setting, &twice));
    assert!(matches!(failed, Err(RowError::Fault(what)) if what.contains("a1")));
}

#[test]
fn siblings_are_never_side_by_side_if_there_are_enough_others() {
    let mut draws = Draws::new("test", 51, "orders");
    for round in 0..2000 {
        let sets = 1 + draws.index(if round % 2 == 0 { 4 } else { 30 });
        let sizes: Vec<usize> = (0..sets).map(|_| 1 + draws.index(5)).collect();
        let order = order(&sizes, &mut draws);
        let all: usize = sizes.iter().sum();
        for (set, size) in sizes.iter().enumerate() {
            assert_eq!(order.iter().filter(|of| **of == set).count(), *size, "{sizes:?}");
        }
        let meet = order.windows(2).filter(|pair| pair[0] == pair[1]).count();
        // The largest set needs one session of another between each two of its own.
        let largest = sizes.iter().max().unwrap();
        let needed = (2 * largest).saturating_sub(all + 1);
        assert_eq!(meet, needed, "{sizes:?}: {order:?}");
    }
    // In a long history a pair is half of it apart in the mean.
    let sizes = [2; 100];
    let order = order(&sizes, &mut draws);
    let apart = (0..100).map(|set| {
        let places: Vec<usize> = (0..200).filter(|place| order[*place] == set).collect();
        places[1] - places[0]
    });
    let mean = apart.sum::<usize>() as f64 / 100.0;
    assert!((80.0..120.0).contains(&mean), "{mean}");
}
