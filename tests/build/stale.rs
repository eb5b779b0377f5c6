//! Builds of STALE: placement, packing, times, the files that are written.

mod checks;
mod pool;

use std::collections::BTreeSet;

use jiff::civil::{DateTime, Weekday};
use palimpsest::benchmarks::stale::sample::scenarios;
use palimpsest::benchmarks::stale::{STALE, read_stale};
use palimpsest::build::pool::{Pool, PoolSession};
use palimpsest::build::table::{Maker, Published, maker};
use palimpsest::build::{Row, RowError, Setting, Spec, stale};
use palimpsest::case::draw::Draws;
use palimpsest::case::{Case, Turn};
use palimpsest::prompt::BytePairEncoding;
use palimpsest_core::digest::sha256;
use palimpsest_core::text::{CharsPerToken, CountTokens};
use serde_json::{Map, Value, json};

fn object(value: Value) -> Map<String, Value> {
    let Value::Object(fields) = value else { panic!("{value} is no object") };
    fields
}

fn preset(name: &str) -> Spec {
    let (_, text) = stale::KIND.presets.iter().find(|(known, _)| *known == name).unwrap();
    Spec::parse(name, text).unwrap()
}

/// Runs with the settings `with`.
fn set<T>(with: Value, pool: &Pool, count: &dyn CountTokens, run: impl FnOnce(&Setting<'_>) -> T) -> T {
    let embed = |_: &[&str]| Err("no embedder".to_owned());
    let (spec, with) = (preset("haystack"), object(with));
    run(&Setting { spec: &spec, stage: "test", with, pool, count, embed: &embed, reviews: &[] })
}

fn made(setting: &Setting<'_>, name: &str, row: &Row) -> Result<Row, RowError> {
    let Some(Maker::Each(make)) = maker("stale", name) else { panic!("{name} is no maker of one row") };
    make(setting, row).map(|rows| {
        assert_eq!((rows.len(), &rows[0].parents), (1, &vec![row.id.clone()]));
        rows.into_iter().next().unwrap()
    })
}

fn row(id: &str, fields: Value) -> Row {
    Row { id: id.to_owned(), fields: object(fields), ..Row::default() }
}

/// A built-in scenario with its haystack and times.
fn built(setting: &Setting<'_>, nth: usize) -> Result<Row, RowError> {
    let mut row = row(&scenarios()[nth].uid, json!({}));
    for name in ["scenario", "candidates", "place", "haystack", "times"] {
        row = made(setting, name, &row)?;
    }
    Ok(row)
}

fn written(setting: &Setting<'_>, rows: &[Row]) -> (String, Vec<Published>, Vec<Case>) {
    let folder = tempfile::tempdir().unwrap();
    let published = (stale::KIND.write)(setting, rows, folder.path()).unwrap();
    let text = std::fs::read_to_string(folder.path().join("stale.json")).unwrap();
    let cases = read_stale(text.as_bytes(), None).map(Result::unwrap).collect();
    (text, published, cases)
}

/// Sessions of made-up words, with `least` to `most` of them.
fn gibberish(sessions: usize, (least, most): (usize, usize)) -> Pool {
    let mut draws = Draws::new("test gibberish", 0, "");
    let word = |draws: &mut Draws| {
        (0..3)
            .map(|_| {
                format!(
                    "{}{}",
                    ["b", "d", "k", "r", "v", "z"][draws.index(6)],
                    ["a", "o", "u"][draws.index(3)]
                )
            })
            .collect::<String>()
    };
    let session = |nth: usize| {
        let words = least + draws.index(most - least + 1);
        let said: Vec<String> = (0..words).map(|_| word(&mut draws)).collect();
        let (asked, answered) = said.split_at(words / 4);
        let turns =
            vec![Turn::new("user", asked.join(" ") + "?"), Turn::new("assistant", answered.join(" ") + ".")];
        PoolSession::new(format!("made-{nth}"), "made", "CC0-1.0", turns)
    };
    Pool { sessions: (0..sessions).map(session).collect() }
}

/// Characters, so that lengths are sums.
fn characters() -> CharsPerToken {
    CharsPerToken::new(1.0).unwrap()
}

fn placement(with: Value, id: &str) -> Result<[u64; 3], RowError> {
    let turns = json!([{"role": "user", "content": "x"}]);
    let row = row(id, json!({"old_session": turns, "new_session": turns}));
    let placed = set(with, &Pool::default(), &characters(), |setting| made(setting, "place", &row))?;
    Ok(["before", "between", "after"]
        .map(|part| placed.get(&format!("placement.{part}")).unwrap().as_u64().unwrap()))
}

#[test]
fn presets_are_specs() {
    for (name, _) in stale::KIND.presets {
        let spec = preset(name);
        assert_eq!(spec.kind, "stale", "{name}");
    }
    let ontology = &preset("stale").tables["ontology"];
    let categories: BTreeSet<&str> = ontology.iter().map(|row| row["category"].as_str().unwrap()).collect();
    assert_eq!((ontology.len(), categories.len()), (104, 10), "the paper's table 4");
}

#[test]
fn without_settings_places_are_those_of_the_published_code() {
    // CONSTRUCTION: distance 16 to 39, mean 27.5; after new 10 to 19, mean 14.5; mean places 7 and 34.5.
    let (n, mut sums) = (2_000, [0.0; 4]);
    for nth in 0..n {
        let [before, between, after] = placement(json!({}), &nth.to_string()).unwrap();
        let (old, new, distance) = (before, before + between + 1, between + 1);
        assert!((0..=14).contains(&old) && (30..=39).contains(&new) && (16..=39).contains(&distance));
        assert!((10..=19).contains(&after) && new + after == 49);
        for (sum, value) in sums.iter_mut().zip([old, new, distance, after]) {
            *sum += value as f64 / f64::from(n);
        }
    }
    for (mean, printed) in sums.into_iter().zip([7.0, 34.5, 27.5, 14.5]) {
        assert!((mean - printed).abs() < 0.5, "{mean} for {printed}");
    }
}

#[test]
fn a_list_of_distances_parts_the_depth_of_new_from_the_distance() {
    let correlation = |with: Value| {
        let drawn = (0..2_000).map(|nth| placement(with.clone(), &nth.to_string()).unwrap());
        let points: Vec<(f64, f64)> =
            drawn.map(|[before, between, _]| ((before + between + 1) as f64, (between + 1) as f64)).collect();
        let mean = |of: &dyn Fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / points.len() as f64;
        let (depth, distance) = (mean(&|point| point.0), mean(&|point| point.1));
        let product = mean(&|point| (point.0 - depth) * (point.1 - distance));
        let spread = [mean(&|point| (point.0 - depth).powi(2)), mean(&|point| (point.1 - distance).powi(2))];
        product / (spread[0] * spread[1]).sqrt()
    };
    // Uniform places have variances (10^2 - 1) / 12 and (15^2 - 1) / 12: 8.25 / sqrt(8.25 (8.25 + 18.67)) = 0.55.
    let own = correlation(json!({}));
    assert!((own - 0.55).abs() < 0.06, "{own}");
    let apart = correlation(json!({"distance": [2, 9, 16, 23, 30], "tail": [2, 6, 10, 14, 18]}));
    assert!(apart.abs() < 0.08, "{apart}");
}

#[test]
fn depth_distance_and_tail_are_set_one_by_one() {
    for id in (0..50).map(|nth| nth.to_string()) {
        let of = |with: Value| placement(with, &id).unwrap();
        let [before, between, after] = of(json!({}));
        let new = before + between + 1;
        assert_eq!(of(json!({"distance": 5})), [new - 5, 4, after]);
        assert_eq!(of(json!({"tail": 3})), [46 - between - 1, between, 3]);
        assert_eq!(of(json!({"distance": 8, "tail": 20})), [21, 7, 20]);
        assert_eq!(of(json!({"positions": {"old": 0.5}})), [25, new - 26, after]); // 24.5 rounds up
        assert_eq!(of(json!({"positions": {"old": 0.0, "new": 1.0}})), [0, 48, 0]);
        // The same tail and distance at another depth.
        assert_eq!(of(json!({"distance": 8, "tail": 20, "sessions": 40})), [11, 7, 20]);
        // Tokens: both sessions take 38 characters each.
        let turns = [Turn::new("user", "x")];
        let own = palimpsest::construct::session::tokens(&characters(), &turns).unwrap() as u64;
        let [before, between, after] = of(json!({"tokens": 100_000}));
        assert_eq!(before + between + after + 2 * own, 100_000);
        let farther = of(json!({"tokens": 100_000, "distance": 9_000}));
        assert_eq!(farther, [before + between - 9_000, 9_000, after]);
        let later = of(json!({"tokens": 100_000, "tail": 4_000}));
        assert_eq!(later, [before + after - 4_000, between, 4_000]);
        assert_eq!(
            of(json!({"tokens": 100_000, "positions": {"old": 0.1, "new": 0.5}})),
            [10_000, 40_000 - own, 50_000 - own]
        );
    }
    let drawn: BTreeSet<u64> = (0..100)
        .map(|nth| placement(json!({"distance": [2, 9, 30], "tail": 12}), &nth.to_string()).unwrap()[1] + 1)
        .collect();
    assert_eq!(drawn, [2, 9, 30].into());
    let rejected = placement(json!({"distance": 45, "tail": 12}), "0").unwrap_err();
    assert_eq!(rejected, RowError::Rejected("old and new do not fit into the history".to_owned()));
    for both in [json!({"tokens": 9_000, "sessions": 9}), json!({"positions": {"old": 0.1}, "tail": 3})] {
        let fault = placement(both, "0").unwrap_err();
        assert!(matches!(&fault, RowError::Fault(what) if what.contains("keep one")), "{fault:?}");
    }
    let fault = placement(json!({"positions": {"neu": 0.5}}), "0").unwrap_err();
    assert!(matches!(&fault, RowError::Fault(what) if what.contains("neu")), "{fault:?}");
}

#[test]
fn a_haystack_of_150_000_tokens_has_them_within_a_hundredth() {
    let (count, pool) = (BytePairEncoding::named("o200k_base").unwrap(), gibberish(400, (60, 900)));
    let with = json!({"tokens": 150_000, "positions": {"old": 0.1, "new": 0.5}, "from": "candidates"});
    set(with, &pool, &count, |setting| {
        let row = built(setting, 0).unwrap();
        let (_, published, cases) = written(setting, std::slice::from_ref(&row));
        let sessions: Vec<String> = (cases[0].history.segments.iter().enumerate())
            .map(|(at, session)| {
                let time = session.time.unwrap().strftime("%Y-%m-%d %H:%M").to_string();
                palimpsest::construct::session::rendered(at + 1, &time, &session.turns)
            })
            .collect();
        let [old, new] = [0, 1].map(|at| cases[0].evidence[at].place.segment);
        for (text, aim) in [
            (sessions.concat(), 150_000),
            (sessions[..old].concat(), 15_000),
            (sessions[..new].concat(), 75_000),
        ] {
            let tokens = count.count(&text).unwrap();
            assert!(tokens.abs_diff(aim) <= 1_500, "{tokens} for {aim}");
        }
        let details = &published[0].details;
        let errors: i64 =
            details["errors"].as_object().unwrap().values().map(|error| error.as_i64().unwrap()).sum();
        // Shares are of the whole; both evidence sessions are within it.
        assert_eq!(details["tokens"].as_i64().unwrap() - 150_000, errors);
        assert_eq!(details["depth"]["new"]["sessions"], json!(new));
        assert_eq!(details["distance"]["sessions"], json!(new - old));
        assert_eq!(details["tail"]["sessions"], json!(sessions.len() - 1 - new));
    });
}

#[test]
fn a_pool_that_cannot_fill_a_stretch_rejects_the_row() {
    let few = gibberish(4, (60, 80));
    let rejected = |with: Value| set(with, &few, &characters(), |setting| built(setting, 0)).unwrap_err();
    let wanted = json!({"sessions": 20, "from": "candidates"});
    assert_eq!(rejected(wanted), RowError::Rejected("too few fillers".to_owned()));
    let wanted = json!({"tokens": 90_000, "from": "candidates"});
    assert!(matches!(rejected(wanted), RowError::Rejected(why) if why.contains("64 and 1%")));
}

#[test]
fn data_check_finds_nothing_in_what_a_hundred_specs_make() {
    // Scenarios whose own statements and queries share no word that could become rare.
    const SCENARIOS: [usize; 6] = [0, 1, 4, 6, 10, 15];
    let pools = [Pool::default(), gibberish(300, (20, 120))];
    let count = CharsPerToken::new(4.0).unwrap();
    let mut accepted = 0;
    for nth in 0..100 {
        let mut draws = Draws::new("test specs", nth, "");
        let is_packed = nth % 2 == 1;
        let (size, unit) =
            if is_packed { (3_000 + draws.index(6_000), 100) } else { (10 + draws.index(30), 1) };
        let mut with = object(json!({"from": "candidates"}));
        with.insert(if is_packed { "tokens" } else { "sessions" }.to_owned(), size.into());
        match draws.index(3) {
            0 => {}
            1 => {
                let (old, new) = (draws.index(40) as f64 / 100.0, 0.5 + draws.index(40) as f64 / 100.0);
                with.insert("positions".to_owned(), json!({"old": old, "new": new}));
            }
            _ => {
                with.insert("distance".to_owned(), (unit * 4 + draws.index(size / 3)).into());
                with.insert("tail".to_owned(), (unit * 3 + draws.index(size / 4)).into());
            }
        }
        let said = format!("{nth}: {with:?}");
        set(with.into(), &pools[usize::from(is_packed)], &count, |setting| {
            let row = match built(setting, SCENARIOS[nth as usize % 6]) {
                Ok(row) => row,
                Err(RowError::Rejected(_)) => return,
                Err(fault) => panic!("{said}: {fault:?}"),
            };
            accepted += 1;
            let (text, ..) = written(setting, &[row]);
            let report = STALE.check(read_stale(text.as_bytes(), None), &mut |_| {});
            assert!(report.is_sound() && report.findings.is_empty(), "{said}: {:?}", report.findings);
        });
    }
    assert!(accepted >= 85, "{accepted} of 100 were made");
}

/// A row that stands in a history of `sessions` sessions, with old and new at `places`.
fn laid(fields: Value, places: [usize; 2], sessions: usize) -> Row {
    let turns = json!([{"role": "user", "content": "Nothing of note."}]);
    let mut row = row(
        "laid",
        json!({
            "old_session": turns, "new_session": turns, "probing_queries": {"dim1_query": "Is it so?"},
            "layout": {"places": places, "sessions": sessions},
        }),
    );
    row.fields.extend(object(fields));
    row
}

fn dated(setting: &Setting<'_>, row: &Row) -> Result<(Vec<DateTime>, DateTime), RowError> {
    let row = made(setting, "times", row)?;
    let time = |text: &str| text.parse::<DateTime>().unwrap();
    let all = row.list("times").unwrap().iter().map(|text| time(text.as_str().unwrap()));
    Ok((all.collect(), time(row.text("query_time").unwrap())))
}

#[test]
fn words_for_days_and_months_fit_the_dates() {
    let fields = json!({
        "old_session": [{"role": "user", "content": "Today is Monday, so I am free."}],
        "new_session": [{"role": "user", "content": "It's already May."}],
        "probing_queries": {"dim1_query": "Today is Friday. Is it so?"},
    });
    for id in ["a", "b", "c", "d"] {
        let row = Row { id: id.to_owned(), ..laid(fields.clone(), [1, 4], 8) };
        let (times, query) =
            set(json!({}), &Pool::default(), &characters(), |setting| dated(setting, &row)).unwrap();
        assert_eq!(
            (times[1].weekday(), times[4].month(), query.weekday()),
            (Weekday::Monday, 5, Weekday::Friday)
        );
    }
    let fields = json!({"old_session": [{"role": "user", "content": "Today is Monday. Today is Tuesday."}]});
    let row = laid(fields, [1, 4], 8);
    let none = set(json!({}), &Pool::default(), &characters(), |setting| dated(setting, &row)).unwrap_err();
    assert_eq!(none, RowError::Rejected("no day fits the words for days and months".to_owned()));
}

#[test]
fn durations_keep_to_their_classes_and_sessions_after_new_are_not_even() {
    const MINUTE: i64 = 60;
    const DAY: i64 = 24 * 60 * MINUTE;
    for (class, least, most) in [
        ("minutes", 30 * MINUTE, 60 * MINUTE),
        ("hours", 2 * 60 * MINUTE, 6 * 60 * MINUTE),
        ("days", DAY / 2, 7 * DAY),
        ("weeks", 6 * DAY, 28 * DAY),
        ("months", 29 * DAY, 301 * DAY),
        ("years", 365 * DAY, 1_001 * DAY),
        ("permanent", 29 * DAY, 301 * DAY),
    ] {
        for id in ["a", "b", "c", "d", "e"] {
            let row = laid(json!({"time_gap": class, "lasts": class}), [3, 9], 20);
            let row = Row { id: id.to_owned(), ..row };
            let (times, query) =
                set(json!({}), &Pool::default(), &characters(), |setting| dated(setting, &row)).unwrap();
            let seconds = |from: DateTime, to: DateTime| to.duration_since(from).as_secs();
            for gap in [seconds(times[3], times[9]), seconds(times[9], query)] {
                assert!((least..=most).contains(&gap), "{class}: {gap}");
            }
            assert!(
                times.windows(2).all(|pair| pair[0] <= pair[1]) && times[19] <= query,
                "{class}: {times:?}"
            );
            assert!(times.iter().all(|time| (8..22).contains(&time.hour())), "{class}: {times:?}");
            let gaps: Vec<i64> = times[9..].windows(2).map(|pair| seconds(pair[0], pair[1])).collect();
            let (shortest, longest) = (gaps.iter().min().unwrap(), gaps.iter().max().unwrap());
            assert!(*longest > 2 * shortest.max(&1), "{class}: {gaps:?}");
        }
    }
    // Days are kept exactly.
    let row = laid(json!({"gap_days": 40, "query_gap_days": 9}), [3, 9], 20);
    let (times, query) =
        set(json!({}), &Pool::default(), &characters(), |setting| dated(setting, &row)).unwrap();
    let days = |from: DateTime, to: DateTime| (to.date() - from.date()).get_days();
    assert_eq!((days(times[3], times[9]), days(times[9], query)), (40, 9));
    let row = laid(json!({"time_gap": "a while"}), [3, 9], 20);
    assert!(matches!(
        set(json!({}), &Pool::default(), &characters(), |setting| dated(setting, &row)),
        Err(RowError::Rejected(_))
    ));
}

#[test]
fn what_is_written_is_read_back_and_its_sources_are_told() {
    let with = json!({"sessions": 12, "from": "candidates"});
    set(with, &Pool::default(), &characters(), |setting| {
        let rows: Vec<Row> = [0, 1, 4].map(|nth| built(setting, nth).unwrap()).into();
        let (text, published, cases) = written(setting, &rows);
        let lines: Vec<&str> = text.lines().filter(|line| line.starts_with('{')).collect();
        assert_eq!((lines.len(), published.len(), cases.len()), (3, 3, 3));
        for (((line, published), case), nth) in lines.iter().zip(&published).zip(&cases).zip([0, 1, 4]) {
            let scenario = &scenarios()[nth];
            assert_eq!((&published.uid, &case.id), (&scenario.uid, &scenario.uid));
            assert_eq!(published.digest, sha256(line.trim_end_matches(',')));
            assert_eq!(case.labels["attribute"], scenario.attribute);
            let [old, new] = [0, 1].map(|at| case.evidence[at].place.segment);
            assert_eq!(case.history.segments[old].turns, scenario.old_session);
            assert_eq!(case.history.segments[new].turns, scenario.new_session);
            let sources = published.details["sources"].as_array().unwrap();
            let slots: BTreeSet<u64> =
                sources.iter().map(|source| source["slot"].as_u64().unwrap()).collect();
            let fillers: BTreeSet<u64> =
                (0..12).filter(|slot| ![old as u64, new as u64].contains(slot)).collect();
            assert_eq!(slots, fillers);
            assert!(sources.iter().all(|source| source["licence"] == "MIT OR Apache-2.0"));
        }
        let again: Vec<Row> = [0, 0].map(|nth| built(setting, nth).unwrap()).into();
        let (_, published, _) = written(setting, &again);
        assert_eq!(published[1].uid, format!("{0}-{0}", published[0].uid));
    });
}

#[cfg(feature = "figures")]
#[test]
fn the_figure_of_placements_has_a_point_a_case() {
    use palimpsest::case::lengths::{GroupBy, measure};
    let file = |with: Value| {
        set(with, &Pool::default(), &characters(), |setting| {
            let rows: Vec<Row> = [0, 1, 4].map(|nth| built(setting, nth).unwrap()).into();
            let cases = written(setting, &rows).2.into_iter().map(Ok::<_, std::convert::Infallible>);
            let mut rows =
                measure(cases, GroupBy::Case, |_| Ok(String::new()), |text| Ok(text.len())).unwrap();
            let all = rows.pop().unwrap().placement.unwrap();
            (rows, all)
        })
    };
    let (own, mean) = file(json!({"sessions": 20, "from": "candidates"}));
    let (apart, of_apart) = file(json!({"sessions": 20, "distance": 7, "tail": 2, "from": "candidates"}));
    assert_eq!((of_apart.new_at, of_apart.old_at, of_apart.distance, of_apart.tail), (17.0, 10.0, 7.0, 2.0));
    let of_first = own.iter().map(|row| row.placement.unwrap().distance).sum::<f64>() / 3.0;
    assert!((mean.distance - of_first).abs() < 1e-9 && mean.new_at + mean.tail == 19.0);
    let figure =
        palimpsest::figures::placement(&[("own".to_owned(), own), ("apart".to_owned(), apart)], "here");
    let csv = String::from_utf8(figure.csv).unwrap();
    assert_eq!(csv.lines().count(), 7, "{csv}");
    assert!(
        csv.lines().skip(4).all(|line| line.starts_with("apart,sample-") && line.contains(",17,7,2,")),
        "{csv}"
    );
    // A dot a case in either panel.
    assert!(figure.svg.matches("<circle").count() >= 12, "{}", figure.svg);
}

#[test]
fn a_filter_is_asked_about_a_candidate_once() {
    let spec = preset("stale");
    let filter = spec.stages.iter().find(|stage| stage.name == "filter").unwrap();
    let steps = filter.steps.as_ref().unwrap();
    assert!(
        filter.tries == 1 && steps.keep_item && steps.skip && steps.over.as_deref() == Some("candidates")
    );
    let pool = gibberish(100, (20, 60));
    let with = json!({"sessions": 20, "offer": 3.0, "texts": true});
    let candidates = set(with, &pool, &characters(), |setting| {
        let row = made(setting, "scenario", &row(&scenarios()[0].uid, json!({}))).unwrap();
        made(setting, "candidates", &row).unwrap()
    });
    let list = candidates.list("candidates").unwrap();
    let ids: BTreeSet<&str> = list.iter().map(|one| one["id"].as_str().unwrap()).collect();
    assert_eq!((list.len(), ids.len()), (54, 54));
    assert_eq!(candidates.get("needed"), Some(&json!({"sessions": 18, "tokens": 0})));
    let first = pool.get(list[0]["id"].as_str().unwrap()).unwrap();
    assert_eq!(list[0]["user"], json!([first.turns[0].content]));
}

#[test]
fn candidates_tell_no_statement_and_follow_quotas() {
    let session = |id: &str, source: &str, text: &str| {
        PoolSession::new(
            id,
            source,
            "CC0-1.0",
            vec![Turn::new("user", text), Turn::new("assistant", "I see.")],
        )
    };
    let mut pool = gibberish(60, (20, 40));
    pool.sessions.iter_mut().skip(30).for_each(|session| session.source = "other".to_owned());
    let plain = pool.clone();
    let double =
        pool.sessions[0].turns.iter().map(|turn| turn.content.as_str()).collect::<Vec<_>>().join(" ");
    pool.sessions.extend([
        session("told", "made", "I drink rooibos from the blue tin each evening here."),
        session("value", "made", "Is Lisbon warm?"),
        session("dated", "made", "Today is Monday, what now?"),
        session("stray", "made", "STOP"),
        session("double", "made", &double),
    ]);
    let fields = json!({
        "M_old": "I drink rooibos from the blue tin each evening.", "M_new": "The harbour wakes us at five.", "new_value": "Lisbon",
    });
    let listed = |with: Value, pool: &Pool| {
        let row = row("a", fields.clone());
        let made = set(with, pool, &characters(), |setting| made(setting, "candidates", &row)).unwrap();
        made.list("candidates").unwrap().iter().map(|id| id.as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let all = listed(json!({"sessions": 200, "values": ["new_value"]}), &pool);
    let left_out: Vec<&str> = pool
        .sessions
        .iter()
        .map(|one| one.id.as_str())
        .filter(|id| !all.iter().any(|one| one == id))
        .collect();
    // Of the two that are alike the later one in the drawn order.
    assert_eq!(left_out.len(), 5, "{left_out:?}");
    assert!(["told", "value", "dated", "stray"].iter().all(|id| left_out.contains(id)), "{left_out:?}");
    assert!(left_out.contains(&"double") || left_out.contains(&"made-0"), "{left_out:?}");
    let shared =
        listed(json!({"sessions": 22, "offer": 1.0, "quotas": {"made": 0.25, "other": 0.75}}), &plain);
    let of_other = shared.iter().filter(|id| id[5..].parse::<usize>().is_ok_and(|nth| nth >= 30)).count();
    assert_eq!((shared.len(), of_other), (20, 15));
    let unknown = set(json!({"quotas": {"mode": 1.0}}), &pool, &characters(), |setting| {
        made(setting, "candidates", &row("a", fields.clone()))
    });
    assert!(matches!(unknown, Err(RowError::Fault(why)) if why.contains("made, other")));
}

#[test]
fn a_session_is_planned_with_its_fact_and_made_of_what_was_said() {
    let fields = json!({"M_old": "I row at dawn.", "M_new": "My boat is firewood."});
    let mut told = BTreeSet::new();
    for id in (0..60).map(|nth| nth.to_string()) {
        set(json!({}), &Pool::default(), &characters(), |setting| {
            let mut planned = made(setting, "rounds", &row(&id, fields.clone())).unwrap();
            for (side, fact) in [("old", "I row at dawn."), ("new", "My boat is firewood.")] {
                let plan = planned.list(&format!("{side}_plan")).unwrap().to_vec();
                assert!([8, 10, 12].contains(&plan.len()));
                let facts: Vec<usize> = (0..plan.len()).filter(|at| plan[*at]["fact"] != "").collect();
                assert_eq!(
                    (facts.len(), &plan[facts[0]]["role"], &plan[facts[0]]["fact"]),
                    (1, &json!("user"), &json!(fact))
                );
                assert!(
                    plan.iter().enumerate().all(|(at, turn)| turn["role"] == ["user", "assistant"][at % 2])
                );
                told.insert(facts[0] / 2);
                let said =
                    plan.iter().map(|turn| json!(format!(" Well. {} ", turn["fact"].as_str().unwrap())));
                planned.fields.insert(format!("{side}_said"), said.collect());
            }
            let spoken = made(setting, "dialogue", &planned).unwrap();
            let turns: Vec<Turn> = spoken.read("new_session").unwrap();
            let fact = turns.iter().find(|turn| turn.content != "Well.").unwrap();
            assert_eq!(fact, &Turn::new("user", "Well. My boat is firewood."));
            planned.fields.insert("old_said".to_owned(), json!(["Well."]));
            assert!(matches!(made(setting, "dialogue", &planned), Err(RowError::Rejected(_))));
        });
    }
    assert_eq!(told, BTreeSet::from([0, 1, 2, 3]));
}
