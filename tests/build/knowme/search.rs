//! The preset that needs no model: makers over random lives, against computations of their own.

use super::*;

const NAMES: [&str; 6] = ["Anna", "Mr. Dahl", "Ilse Berg", "Tom", "Captain Rowe", "Wilhelmina"];
const PLACES: [&str; 6] = ["kitchen", "jetty", "ferry house", "mill", "church yard", "school"];
const VERBS: [&str; 8] = ["met", "saw", "helped", "painted", "followed", "thanked", "scolded", "missed"];
const THINGS: [&str; 12] = [
    "a lamp",
    "two oars",
    "old bread",
    "wet sand",
    "blue paint",
    "a ladder",
    "cold soup",
    "loud bells",
    "thin ice",
    "a map",
    "tall grass",
    "new rope",
];

/// Events of one month, in the order of time.
fn life(draws: &mut Draws) -> Vec<Value> {
    let (mut second, count) = (0, 8 + draws.index(30));
    let event = |nth: usize| {
        second += [0, 40, 600, 5000, 60_000][draws.index(5)];
        let mut one = |list: &'static [&'static str]| list[draws.index(list.len())];
        let (name, verb, place) = (one(&NAMES), one(&VERBS), one(&PLACES));
        let text = format!("Then I {verb} {name} near {}.", one(&THINGS));
        let field = ["action", "environment", "inner_thought"][draws.index(3)];
        let mut event =
            json!({"id": nth * 3, "timestamp": time(second), "location": place, "dialogue": null});
        event[field] = json!(text);
        if draws.index(9) == 0 {
            event["location"] = Value::Null;
        }
        event
    };
    (0..count).map(event).collect()
}

fn day(event: &Value) -> String {
    let stamp = event["timestamp"].as_str().unwrap();
    format!("April {}, 1890", stamp[8..10].parse::<u8>().unwrap())
}

fn seconds(stamp: &Value) -> i64 {
    let number = |from: usize| stamp.as_str().unwrap()[from..from + 2].parse::<i64>().unwrap();
    ((number(8) * 24 + number(11)) * 60 + number(14)) * 60 + number(17)
}

fn said(event: &Value) -> String {
    ["action", "environment", "inner_thought"].iter().filter_map(|name| event[*name].as_str()).collect()
}

/// Seconds of a text such as `1 hour 20 seconds`.
fn spelled(text: &str) -> i64 {
    let words: Vec<&str> = text.split(' ').collect();
    let units = [("second", 1), ("minute", 60), ("hour", 3600), ("day", 86400)];
    let part = |pair: &[&str]| {
        let (_, size) = units.iter().find(|(unit, _)| pair[1].trim_end_matches('s') == *unit).unwrap();
        pair[0].parse::<i64>().unwrap() * size
    };
    words.chunks(2).map(part).sum()
}

#[test]
fn questions_by_search_hold_in_a_hundred_lives() {
    let mut counts = BTreeMap::<String, usize>::new();
    for seed in 0..100 {
        let mut draws = Draws::new("test", seed, "life");
        let events = life(&mut draws);
        let mut spec = preset("search");
        spec.seed = seed;
        for kind in ["facts", "exchanges", "durations", "orders"] {
            spec.settings.insert(kind.to_owned(), json!(1 + draws.index(20)));
        }
        spec.settings.insert("longest_hours".to_owned(), json!(1 + draws.index(48)));
        let given: Vec<Row> =
            events.iter().map(|event| row(&event["id"].to_string(), event.clone())).collect();
        let (rows, _) = built(&spec, BTreeMap::from([("diary".to_owned(), given.clone())]));
        let again = built(&spec, BTreeMap::from([("diary".to_owned(), given)])).0;
        assert_eq!(rows, again, "the same seed gives the same rows");
        let by_id = |id: &Value| events.iter().find(|event| event["id"] == *id).unwrap();
        let has = |event: &Value, given: &[Value]| {
            let [name, when, place] = given else { return said(event).contains(given[0].as_str().unwrap()) };
            said(event).contains(name.as_str().unwrap()) && day(event) == *when && event["location"] == *place
        };
        for row in rows["exchanges"].iter().chain(&rows["facts"]) {
            let (given, query) = (row.list("given").unwrap(), row.text("question").unwrap());
            assert!(given.iter().all(|part| query.contains(part.as_str().unwrap())), "{query}");
            let holders: Vec<&Value> =
                events.iter().filter(|event| has(event, given)).map(|event| &event["id"]).collect();
            if row.text("task") == Ok("T2") {
                assert!(holders.is_empty(), "{query}");
                let [own, other] = row.list("evidence").unwrap() else { panic!() };
                let parts = |event: &Value| {
                    [
                        said(event).contains(given[0].as_str().unwrap()),
                        day(event) == given[1],
                        event["location"] == given[2],
                    ]
                };
                let (own, other) = (parts(by_id(own)), parts(by_id(other)));
                assert_eq!(own.iter().filter(|has| **has).count(), 2, "{query}");
                assert!((0..3).all(|part| own[part] || other[part]), "{query}");
                continue;
            }
            assert_eq!(json!(holders), row.fields["evidence"], "{query}");
            let (event, answer) = (by_id(holders[0]), row.text("answer").unwrap());
            let right = match row.text("entity_type").unwrap() {
                "Event" => said(event).contains(answer),
                "Location" => event["location"] == answer,
                _ => day(event) == answer,
            };
            assert!(right, "{query}: {answer}");
        }
        let kept = &rows["assemble"];
        let (files, _) = written(&spec, kept);
        let has_task = |task: &str| kept.iter().any(|row| row.text("task") == Ok(task));
        let without: Vec<&str> =
            ["T1", "T2", "T3", "T4", "T5", "T6", "T7"].into_iter().filter(|task| !has_task(task)).collect();
        assert_sound(&files, &without);
        assert_eq!(list(&files, "diary.json").len(), events.len());
        let asked: Vec<Value> = files
            .iter()
            .filter(|(name, _)| name.starts_with("question/"))
            .flat_map(|(name, _)| list(&files, name))
            .collect();
        let distinct: BTreeSet<String> =
            asked.iter().map(|row| row["question"].as_str().unwrap().to_lowercase()).collect();
        assert_eq!(distinct.len(), asked.len());
        for answer in list(&files, "Temporal Reasoning_answers.json") {
            let cited: Vec<i64> = answer["evidence"]
                .as_array()
                .unwrap()
                .iter()
                .map(|id| seconds(&by_id(id)["timestamp"]))
                .collect();
            let gold = answer["answer"].as_str().unwrap();
            if let [start, end] = cited.as_slice() {
                assert!(spelled(gold) == end - start && end > start, "{gold}");
                assert!(end - start <= spec.settings["longest_hours"].as_i64().unwrap() * 3600);
            } else {
                let mut sorted: Vec<(i64, &str)> = cited.into_iter().zip(["A", "B", "C"]).collect();
                sorted.sort_unstable();
                assert_eq!(gold, sorted.iter().map(|(_, letter)| *letter).collect::<Vec<_>>().join(" -> "));
            }
        }
        for row in kept.iter().filter(|row| row.fields.contains_key("task")) {
            let kind = row.id.split(['.', '-']).nth(1).unwrap().to_owned();
            *counts.entry(kind).or_default() += 1;
        }
    }
    assert!(counts.len() == 4 && counts.values().all(|count| *count > 100), "{counts:?}");
}

#[test]
fn events_are_read_in_every_released_shape() {
    let spec = preset("search");
    let given = row(
        "9",
        json!({"id": "9", "timestamp": "1890-04-01 08:00:00", "Mind": "I was glad.", "Action": "", "category": ["Mind"], "data": "life"}),
    );
    let event = &made(&spec, "events", &given).unwrap()[0];
    let expected = json!({"id": "9", "timestamp": "1890-04-01 08:00:00", "location": null, "action": null, "dialogue": null, "environment": null, "background": null, "inner_thought": "I was glad.", "data": "life"});
    assert_eq!(json!(event.fields), expected);
    let empty =
        row("1", json!({"id": 1, "timestamp": "1890-04-01 08:00:00", "location": "mill", "action": "none"}));
    assert_eq!(
        made(&spec, "events", &empty),
        Err(RowError::Rejected("an event that says nothing".to_owned()))
    );
}
