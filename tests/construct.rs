//! Construction of dose updates: lengths, twins, replays, rejected specs.

use std::collections::BTreeMap;

use jiff::civil::DateTime;
use palimpsest::benchmarks::dose::row::DoseRow;
use palimpsest::benchmarks::dose::state::checks;
use palimpsest::case::draw::Draws;
use palimpsest::case::{Case, Contrasted, Evidence, History, Probe, Segment};
use palimpsest::construct::{BuildError, Builder, Counter, GivenFillers, Lines, PRESETS, Spec, write_build};
use palimpsest::models::TokenCounter;
use serde_json::{Value, json};

use crate::cli::shown;
use crate::data::command::palimpsest;
use crate::left_out::few_or_all;

/// Its vocabulary is built into the program.
fn tokenizer() -> TokenCounter {
    TokenCounter::open("o200k_base").unwrap()
}

fn preset(name: &str, items: usize) -> Spec {
    Spec { items, ..Spec::preset(name).unwrap().unwrap() }
}

/// Rows and provenance of a build.
fn build(spec: &Spec, given: Option<&GivenFillers>) -> (Vec<DoseRow>, Vec<Value>, String) {
    let folder = tempfile::tempdir().unwrap();
    let TokenCounter { name, digest, tokens } = tokenizer();
    let counter = Counter { name: &name, digest: &digest, tokens: tokens.as_ref() };
    write_build(folder.path(), spec, counter, given, &mut Lines, || {}).unwrap();
    let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    let rows = read("dose.jsonl");
    let provenance =
        read("provenance.jsonl").lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    (rows.lines().map(|line| serde_json::from_str(line).unwrap()).collect(), provenance, rows)
}

/// The row's case, as its reader builds it.
fn case(row: &DoseRow) -> Case {
    let text = |level: &Value| level.as_str().map_or_else(|| level.to_string(), str::to_owned);
    let mut labels: BTreeMap<String, String> =
        row.factors.iter().map(|(name, level)| (name.clone(), text(level))).collect();
    labels.insert("twin".to_owned(), row.twin.clone());
    let segments = row.sessions.iter().enumerate().map(|(index, session)| Segment {
        kind: "session".to_owned(),
        index,
        time: Some(DateTime::strptime("%Y-%m-%d %H:%M", &session.time).unwrap()),
        turns: session.turns.clone(),
    });
    let roles =
        row.sessions.iter().enumerate().filter_map(|(at, session)| Some((at, session.role.as_ref()?)));
    let probes = row.probes.iter().map(|probe| {
        let (current, stale, absent) = (probe.current.clone(), probe.stale.clone(), probe.absent.clone());
        Probe {
            id: probe.id.clone(),
            contrast: Some(Contrasted { current, stale, absent }),
            ..Probe::default()
        }
    });
    let mut case = Case {
        id: row.id.clone(),
        labels,
        history: History { segments: segments.collect(), query_time: None },
        evidence: roles.map(|(at, role)| Evidence::segment(role, at)).collect(),
        probes: probes.collect(),
        ..Case::default()
    };
    for probe in &row.probes {
        let notes = json!({"expects": probe.expects}).as_object().cloned().unwrap();
        case.judge.of_probes.insert(probe.id.clone(), notes);
    }
    case
}

/// A session as the benchmark's template renders it, written independently of the generator.
fn written(place: usize, session: &palimpsest::benchmarks::dose::row::DoseSession) -> String {
    let mut lines = vec![format!("Session {place} ({})", session.time)];
    for turn in &session.turns {
        let speaker = match turn.role.as_str() {
            "user" => "User",
            _ => "Assistant",
        };
        lines.push(format!("{speaker}: {}", turn.content));
    }
    lines.join("\n") + "\n\n"
}

/// Tokens added by each session, and the total.
fn lengths(row: &DoseRow, tokenizer: &TokenCounter) -> (Vec<usize>, usize) {
    let mut text = String::new();
    let mut ends = vec![0];
    for (at, session) in row.sessions.iter().enumerate() {
        text.push_str(&written(at + 1, session));
        ends.push(tokenizer.tokens.count(&text).unwrap());
    }
    (ends.windows(2).map(|pair| pair[1] - pair[0]).collect(), ends[ends.len() - 1])
}

fn replayed(rows: &[DoseRow]) {
    for row in rows {
        let findings = checks(&case(row)).findings;
        assert!(findings.is_empty(), "{}: {findings:?}", serde_json::to_string(row).unwrap());
    }
}

#[test]
fn twins_of_every_preset_have_equal_tokens_at_every_place_and_their_gold_replays() {
    let tokenizer = tokenizer();
    let items = few_or_all(2, 5);
    for (name, _) in PRESETS {
        let mut spec = preset(name, items);
        spec.twins =
            ["update", "no-update", "no-old", "other", "paraphrase", "blind"].map(str::to_owned).to_vec();
        let (rows, provenance, _) = build(&spec, None);
        let mut levels: BTreeMap<String, (Vec<usize>, usize)> = BTreeMap::new();
        for row in &rows {
            let level = row.id.trim_end_matches(&row.twin).to_owned();
            let lengths = lengths(row, &tokenizer);
            let first = levels.entry(level).or_insert_with(|| lengths.clone());
            assert_eq!(*first, lengths, "{}", row.id);
        }
        let dropped = provenance.iter().filter(|line| line.get("dropped").is_some()).count();
        assert!(
            levels.len() >= 4 * items && dropped == 0,
            "{name}: {} levels, {dropped} dropped",
            levels.len()
        );
        replayed(&rows);
    }
}

#[test]
fn a_return_names_no_value_and_other_people_say_the_old_one() {
    let tokenizer = tokenizer();
    for family in ["slots", "chains", "boxes", "streams", "implied"] {
        let session = if family == "streams" { 144 } else { 96 };
        let text = format!(
            "family = \"{family}\"\nitems = {}\nsession_tokens = {session}\ntwins = [\"update\", \"no-update\", \"other\", \"paraphrase\"]\n\
             [base]\nchain = 2\nreturns = true\nechoes = 2\nrestated_new = 1\nfillers = \"none\"\n\
             [sweeps]\nrevert = [true]\necho_by = [\"others\", \"assistant\"]\n",
            few_or_all(3, 9)
        );
        let (rows, provenance, _) = build(&Spec::parse("returns", &text).unwrap(), None);
        assert!(provenance.iter().all(|line| line.get("dropped").is_none()), "{family}: {provenance:#?}");
        replayed(&rows);
        let mut levels: BTreeMap<String, (Vec<usize>, usize)> = BTreeMap::new();
        for row in &rows {
            let level = row.id.trim_end_matches(&row.twin).to_owned();
            let lengths = lengths(row, &tokenizer);
            assert_eq!(*levels.entry(level).or_insert_with(|| lengths.clone()), lengths, "{}", row.id);
            let values = |row: &DoseRow| -> Vec<String> {
                row.probes.iter().flat_map(|probe| [&probe.current, &probe.stale[0]]).cloned().collect()
            };
            let says =
                |turn: &str, value: &str| palimpsest::benchmarks::dose::implied::holds(turn, value.trim());
            let of = |role: &str| -> Vec<_> {
                row.sessions.iter().filter(|session| session.role.as_deref() == Some(role)).collect()
            };
            let reverts = row.factors["revert"] == true;
            if reverts && ["ab", "ba", "paraphrase-ab"].contains(&row.twin.as_str()) {
                assert_eq!(of("new").len(), 2, "{}", row.id);
                for session in of("new") {
                    let told: Vec<&str> = session.turns.iter().map(|turn| turn.content.as_str()).collect();
                    assert!(
                        told.iter().any(|turn| turn.contains("the same") && turn.contains("as at first"))
                    );
                    assert!(
                        !values(row).iter().any(|value| told.iter().any(|turn| says(turn, value))),
                        "{told:?}"
                    );
                }
                let first = &of("old")[0].turns;
                for probe in &row.probes {
                    assert!(first.iter().any(|turn| says(&turn.content, &probe.current)), "{}", row.id);
                }
                // Beside the level where the return names the value: the same gold.
                let named =
                    rows.iter().find(|other| other.id == row.id.replace("revert-true", "base")).unwrap();
                assert_eq!(named.probes, row.probes);
            }
            let by = row.factors["echo_by"].as_str().unwrap();
            for echo in of("echo") {
                let stale = &row.probes[0].stale[0];
                let speakers: Vec<&str> = echo
                    .turns
                    .iter()
                    .filter(|turn| says(&turn.content, stale))
                    .map(|turn| turn.role.as_str())
                    .collect();
                assert_eq!(speakers, [if by == "assistant" { "assistant" } else { "user" }], "{}", row.id);
                let others =
                    echo.turns.iter().any(|turn| turn.content.contains(" has not heard of the change"));
                assert_eq!(others, by == "others", "{}", row.id);
            }
        }
        let said: Vec<String> = rows
            .iter()
            .flat_map(|row| row.sessions.iter().filter(|session| session.role.as_deref() == Some("echo")))
            .flat_map(|session| session.turns.iter().filter(|turn| turn.content.contains(" has not heard")))
            .map(|turn| turn.content.clone())
            .collect();
        assert!(said.len() > 4, "{family}");
        // Rows of specs that leave the two alone have neither.
        let usual = build(&preset(family, 1), None).0;
        assert!(
            usual
                .iter()
                .all(|row| !row.factors.contains_key("revert") && !row.factors.contains_key("echo_by"))
        );
    }
}

#[test]
fn swapped_twins_differ_in_their_values_alone() {
    let (rows, ..) = build(&preset("slots", 6), None);
    for ab in rows.iter().filter(|row| row.twin == "ab") {
        let ba = rows.iter().find(|row| row.id == ab.id.replace(".ab", ".ba")).unwrap();
        let (a, b) = (ab.probes[0].stale[0].trim(), ab.probes[0].current.trim());
        assert_eq!((ba.probes[0].stale[0].trim(), ba.probes[0].current.trim()), (b, a));
        let swap = |word: &str| match word {
            word if word == a => b.to_owned(),
            word if word == b => a.to_owned(),
            word => word.to_owned(),
        };
        for (one, other) in ab.sessions.iter().zip(&ba.sessions) {
            let (one, other) = (written(1, one), written(1, other));
            let words = other.split_inclusive(|c: char| !c.is_alphanumeric()).map(|part| {
                let word = part.trim_end_matches(|c: char| !c.is_alphanumeric());
                swap(word) + &part[word.len()..]
            });
            assert_eq!(one, words.collect::<String>(), "{}", ab.id);
        }
    }
}

#[test]
fn stretches_have_the_tokens_that_provenance_states_and_nearly_those_asked_for() {
    let tokenizer = tokenizer();
    let mut spec = preset("slots", 3);
    spec.sweeps = [("distance".to_owned(), json!([0, 300, 9000]))].into_iter().collect();
    let (rows, provenance, _) = build(&spec, None);
    for (row, of) in rows.iter().zip(&provenance) {
        if row.twin != "ab" {
            continue;
        }
        let (lengths, whole) = lengths(row, &tokenizer);
        let place = |role: &str| row.sessions.iter().position(|s| s.role.as_deref() == Some(role)).unwrap();
        let distance: usize = lengths[place("old") + 1..place("new")].iter().sum();
        assert_eq!(of["places"]["distance"]["reached"], distance, "{}", row.id);
        assert_eq!(of["tokens"], whole, "{}", row.id);
        let asked = row.factors["distance"].as_u64().unwrap();
        assert!(distance.abs_diff(asked as usize) <= 24, "{}: {distance} of {asked}", row.id);
    }
}

#[test]
fn a_larger_dose_has_the_fillers_of_a_smaller_one() {
    let mut spec = preset("slots", 2);
    spec.sweeps = [("distance".to_owned(), json!([512, 2048]))].into_iter().collect();
    let (_, provenance, _) = build(&spec, None);
    let whole = |row: &str| -> Vec<String> {
        let line = provenance.iter().find(|line| line["row"] == row).unwrap();
        let fillers = line["fillers"].as_array().unwrap().iter();
        fillers.filter(|f| f.get("cut").is_none()).map(|f| f["id"].as_str().unwrap().to_owned()).collect()
    };
    for item in ["slots-000", "slots-001"] {
        let [small, middle, large] =
            ["base", "distance-512", "distance-2048"].map(|l| whole(&format!("{item}.{l}.ab")));
        assert!(small.iter().all(|id| middle.contains(id)) && middle.iter().all(|id| large.contains(id)));
        assert!(large.len() > middle.len());
    }
}

#[test]
fn the_same_seed_gives_the_same_bytes_and_more_items_change_no_row() {
    let spec = preset("boxes", 3);
    let (_, _, bytes) = build(&spec, None);
    assert_eq!(build(&spec, None).2, bytes);
    let (_, _, more) = build(&Spec { items: 5, ..spec.clone() }, None);
    assert!(more.starts_with(&bytes) && more.len() > bytes.len());
    assert_ne!(build(&Spec { seed: 1, ..spec }, None).2, bytes);
}

/// A random valid spec.
fn random(draws: &mut Draws) -> Spec {
    let family = ["slots", "chains", "boxes", "streams", "implied"][draws.index(5)];
    let is_log = family == "streams";
    let longest = if family == "implied" { 3 } else { 8 };
    let session = if is_log { 144 } else { 96 };
    let mut base = serde_json::Map::new();
    let crossed = draws.index(5) == 0;
    let chain = if crossed { 1 } else { 1 + draws.index(longest) };
    let repeats = |draws: &mut Draws| if crossed { 0 } else { draws.index(4) };
    let (old, new, echoes) = (repeats(draws), repeats(draws), repeats(draws));
    let (lures, others) = (draws.index(4), draws.index(6));
    let open: &[&str] = match family {
        "streams" => &["E0", "E1"],
        "implied" => &["E0", "E1", "E2", "E3", "E4", "E5", "EN"],
        _ => &["E0", "E1", "E2", "E3", "EN"],
    };
    let explicitness = open[draws.index(open.len())];
    let filled = draws.index(5) > 0;
    let overlaps = [json!(0), json!("part"), json!("full")];
    let mut overlap = || if is_log { json!("full") } else { overlaps[draws.index(3)].clone() };
    let (overlap_old, overlap_new) = (overlap(), overlap());
    let returns = chain > 1 && explicitness != "EN" && draws.index(3) == 0;
    let unnamed = returns && explicitness < "E3" && overlap_new == "full" && draws.index(2) == 0;
    let by = ["speaker", "others", "assistant"][if echoes > 0 { draws.index(3) } else { 0 }];
    let gap = session * (old + chain - 1 + lures.div_ceil(2) + others);
    let tail = session * (new + echoes + lures / 2);
    for (name, level) in [
        ("fillers", json!(if filled { ["unrelated", "topic"][draws.index(2)] } else { "none" })),
        ("depth_old", json!(if filled { draws.index(300) } else { 0 })),
        ("distance", json!(if filled { gap + draws.index(400) } else { 0 })),
        ("tail", json!(if filled { tail + draws.index(200) } else { 0 })),
        ("chain", json!(chain)),
        ("returns", json!(returns)),
        ("revert", json!(unnamed)),
        ("echo_by", json!(by)),
        ("restated_old", json!(old)),
        ("restated_new", json!(new)),
        ("echoes", json!(echoes)),
        ("lures", json!(lures)),
        ("others", json!(others)),
        ("explicitness", json!(explicitness)),
        ("order", json!(if crossed { "crossed" } else { "place" })),
        ("speaker", json!(["user", "assistant"][draws.index(2)])),
        ("overlap_old", overlap_old),
        ("overlap_new", overlap_new),
        ("premise", json!(draws.index(3) == 0)),
    ] {
        base.insert(name.to_owned(), level);
    }
    let twins = ["update", "no-update", "no-old", "other", "paraphrase", "blind"];
    let twins: Vec<&str> =
        twins.into_iter().filter(|twin| *twin == "update" || draws.index(2) == 0).collect();
    let all = json!({
        "family": family, "items": 2, "seed": draws.below(1000), "session_tokens": session, "gate": draws.index(2) == 0,
        "absent": 1 + draws.index(3), "keys": if is_log { 1 + draws.index(5) } else { 1 }, "twins": twins, "base": base,
    });
    let text = toml::to_string(&all).unwrap();
    Spec::parse("random", &text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// The row with gold swapped: the current value and the first other one change places.
fn flipped(mut row: DoseRow) -> DoseRow {
    for probe in &mut row.probes {
        let other = probe.stale.first_mut().unwrap_or(&mut probe.absent[0]);
        std::mem::swap(&mut probe.current, other);
        // Swaps "a value is expected" and "none is expected".
        if probe.stale.is_empty() && probe.expects == "none" {
            probe.expects = "current".to_owned();
        }
    }
    row
}

#[test]
fn random_specs_build_and_replay() {
    let specs = few_or_all(20, 100);
    let mut draws = Draws::new("specs", 30, "");
    let (mut rows, mut missing) = (0, Vec::new());
    let tokenizer = tokenizer();
    for number in 0..specs {
        let spec = random(&mut draws);
        let builder = Builder::new(&spec, tokenizer.tokens.as_ref(), None).unwrap();
        for item in 0..spec.items {
            let item = builder.item(item).unwrap();
            let of_item: Vec<DoseRow> = item.rows.iter().map(|built| built.row.clone()).collect();
            replayed(&of_item);
            for row in of_item {
                assert!(!checks(&case(&flipped(row.clone()))).findings.is_empty(), "{}", row.id);
            }
            missing.extend(
                item.dropped
                    .into_iter()
                    .map(|dropped| format!("{number}: {} {}", dropped.id, dropped.reason)),
            );
            rows += item.rows.len();
        }
    }
    // A denial or a return without an old value is uninformative, and has no twin without the old session.
    missing.retain(|reason| !reason.contains("a history without the old value tells nothing"));
    assert!(rows > 8 * specs && missing.is_empty(), "{rows} rows, {missing:#?}");
}

#[test]
fn wrong_specs_are_refused_by_field_with_the_value() {
    for (text, field, found) in [
        ("family = \"slot\"", "family", "\"slot\""),
        ("items = 3", "family", "no such field"),
        ("family = \"slots\"\nitem = 3", "item", "an unknown field"),
        ("family = \"slots\"\nitems = 0", "items", "0"),
        ("family = \"slots\"\nseed = -1", "seed", "-1"),
        ("family = \"slots\"\ntemplates = [\"nobody\"]", "templates", "\"nobody\""),
        ("family = \"slots\"\nsession_tokens = 9", "session_tokens", "9"),
        ("family = \"slots\"\nkeys = 3", "keys", "3"),
        ("family = \"slots\"\norders = [\"ab\", \"bc\"]", "orders[1]", "\"bc\""),
        ("family = \"slots\"\ntwins = []", "twins", "an empty array"),
        ("family = \"slots\"\ntwins = \"update\"", "twins", "\"update\""),
        ("family = \"slots\"\ngate = 1", "gate", "1"),
        ("family = \"slots\"\n[base]\ndepht = 3", "base.depht", "`depht`"),
        ("family = \"slots\"\n[base]\ndistance = -5", "base.distance", "-5"),
        ("family = \"slots\"\n[base]\ndistance = 150001", "base.distance", "150001"),
        ("family = \"slots\"\n[base]\ndistance = 100000\ntail = 60000", "base", "160160 tokens in all"),
        (
            "family = \"slots\"\n[base]\ndepth_new = 300\ndistance = 100",
            "base.distance",
            "100 beside depth_new",
        ),
        ("family = \"slots\"\n[base]\ndepth_new = 30", "base.depth_new", "30 with depth_old = 0"),
        ("family = \"slots\"\n[base]\nfillers = \"some\"", "base.fillers", "\"some\""),
        ("family = \"slots\"\n[base]\nfillers = \"none\"\ntail = 5", "base.tail", "5"),
        (
            "family = \"slots\"\n[base]\nfillers = \"none\"\n[sweeps]\ndistance = [5]",
            "sweeps.distance",
            "\"none\"",
        ),
        ("family = \"slots\"\n[base]\nchain = 0", "base.chain", "0"),
        ("family = \"slots\"\n[base]\nchain = 17", "base.chain", "17"),
        ("family = \"slots\"\n[base]\nreturns = true", "base.returns", "true with chain = 1"),
        ("family = \"slots\"\n[base]\nrevert = true", "base.revert", "true with returns = false"),
        (
            "family = \"slots\"\n[base]\nrevert = true\nreturns = true\nchain = 2\ndistance = 200\nexplicitness = \"E3\"",
            "base.revert",
            "true with explicitness = \"E3\"",
        ),
        (
            "family = \"slots\"\n[base]\nrevert = true\nreturns = true\nchain = 2\ndistance = 200\noverlap_new = 0",
            "base.revert",
            "true with overlap_new = 0",
        ),
        ("family = \"slots\"\n[base]\necho_by = \"user\"", "base.echo_by", "\"user\""),
        ("family = \"slots\"\n[base]\necho_by = \"others\"", "base.echo_by", "\"others\" with echoes = 0"),
        ("family = \"slots\"\n[base]\nlures = 17\ndistance = 9000", "base.lures", "17"),
        (
            "family = \"slots\"\n[base]\nothers = 2\ndistance = 100",
            "base.distance",
            "100 tokens, less than the 2 sessions",
        ),
        ("family = \"slots\"\n[base]\nechoes = 1", "base.tail", "0 tokens, less than the 1 sessions"),
        (
            "family = \"slots\"\n[base]\nexplicitness = \"E4\"",
            "base.explicitness",
            "\"E4\" in the family slots",
        ),
        ("family = \"slots\"\n[base]\nexplicitness = \"E9\"", "base.explicitness", "\"E9\""),
        ("family = \"streams\"\n[base]\nexplicitness = \"E2\"", "base.explicitness", "E2"),
        ("family = \"streams\"\n[base]\noverlap_old = 0", "base.overlap_old", "0 in the family streams"),
        ("family = \"slots\"\n[base]\noverlap_old = 1", "base.overlap_old", "1"),
        (
            "family = \"chains\"\n[base]\norder = \"crossed\"\nchain = 2\ndistance = 200",
            "base.order",
            "chain = 2",
        ),
        ("family = \"slots\"\n[sweeps]\ndistances = [1]", "sweeps.distances", "`distances`"),
        ("family = \"slots\"\n[sweeps]\ndistance = 5", "sweeps.distance", "5"),
        ("family = \"slots\"\n[sweeps]\ndistance = [5, \"far\"]", "sweeps.distance[1]", "\"far\""),
        ("family = \"slots\"\n[sweeps]\npremise = [\"yes\"]", "sweeps.premise[0]", "\"yes\""),
        ("family = \"slots\"\n[grids]\n\"distance\" = [[1], [2]]", "grids.\"distance\"", "`distance`"),
        (
            "family = \"slots\"\n[grids]\n\"distance*tail\" = [[1]]",
            "grids.\"distance*tail\"",
            "not two lists",
        ),
        (
            "family = \"slots\"\n[grids]\n\"distance*tails\" = [[1], [2]]",
            "grids.\"distance*tails\"[1]",
            "`tails`",
        ),
    ] {
        match Spec::parse("wrong", text) {
            Err(error @ BuildError::Field { .. }) => {
                let shown = error.to_string();
                assert!(shown.starts_with(&format!("{field}: ")) && shown.contains(found), "{text}: {shown}");
            }
            other => panic!("{text}: {other:?}"),
        }
    }
    assert!(matches!(Spec::parse("wrong", "family ="), Err(BuildError::Toml { .. })));
    // Only the value sets limit a chain's length.
    let spec = Spec::parse("long", "family = \"implied\"\n[base]\nchain = 12\ndistance = 2000").unwrap();
    let error = Builder::new(&spec, tokenizer().tokens.as_ref(), None).err().unwrap().to_string();
    assert!(error.starts_with("base.chain: chain = 12 in the family implied"), "{error}");
}

#[test]
fn the_users_fillers_are_used_with_their_licence_and_refused_by_line_and_field() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("fillers.jsonl");
    let filler = |n: usize, said: &str| {
        json!({"id": format!("f{n}"), "licence": "CC0-1.0", "turns": [
            {"role": "user", "content": format!("Question {n} about soap bubbles. {said}")},
            {"role": "assistant", "content": "They are thin films. They burst when they dry out."}]})
        .to_string()
    };
    let lines: Vec<String> =
        (0..60).map(|n| filler(n, if n % 2 == 0 { "Is it Monday?" } else { "Why?" })).collect();
    std::fs::write(&path, lines.join("\n")).unwrap();
    let given = GivenFillers::read(&path).unwrap();
    let mut spec = preset("slots", 1);
    spec.templates = vec!["piano-day".to_owned()];
    let (rows, provenance, _) = build(&spec, Some(&given));
    assert!(rows.iter().flat_map(|row| &row.sessions).any(|s| s.turns[0].content.contains("soap bubbles")));
    let fillers = provenance[0]["fillers"].as_array().unwrap();
    assert!(!fillers.is_empty() && fillers.iter().all(|filler| filler["licence"] == "CC0-1.0"));
    // No dated fillers: they would name a value of the item's set.
    replayed(&rows);
    assert!(!rows.iter().any(|row| serde_json::to_string(row).unwrap().contains("Is it Monday?")));

    for (line, field) in [
        ("[1]", "whole line"),
        ("{\"id\": \"a\"}", "licence"),
        ("{\"id\": \"a\", \"licence\": \"MIT\"}", "turns"),
        ("{\"id\": \"a\", \"licence\": \"MIT\", \"turns\": [], \"x\": 1}", "x"),
        (
            "{\"id\": \"a\", \"licence\": \"MIT\", \"turns\": [{\"role\": \"me\", \"content\": \"b\"}]}",
            "turns[0].role",
        ),
        (
            "{\"id\": \"a\", \"licence\": \"MIT\", \"turns\": [{\"role\": \"user\", \"content\": \" \"}]}",
            "turns[0].content",
        ),
        (&filler(0, "Why?"), "id"),
    ] {
        std::fs::write(&path, format!("{}\n{line}\n", filler(0, "Why?"))).unwrap();
        let error = GivenFillers::read(&path).unwrap_err().to_string();
        assert!(error.contains(&format!("line 2, {field}: ")), "{error}");
    }
    std::fs::write(&path, format!("[1]\n{}\n{{}}\n", filler(0, "Why?"))).unwrap();
    let error = GivenFillers::read(&path).unwrap_err().to_string();
    for words in ["2 rows cannot be read, and none is used", "\n  line 1, whole line: ", "\n  line 3, id: "] {
        assert!(error.contains(words), "{words}: {error}");
    }
}

#[test]
fn the_command_builds_a_preset_writes_it_out_and_refuses_a_folder_that_is_not_empty() {
    let folder = tempfile::tempdir().unwrap();
    let (code, preset, _) = palimpsest(&["build", "init", "dose", "implied"]);
    assert_eq!((code, preset.as_str()), (0, PRESETS[4].1));
    let (spec, out) = (folder.path().join("mine.toml"), folder.path().join("out"));
    std::fs::write(&spec, &preset).unwrap();
    let args = [
        "build",
        "dose",
        shown(&spec),
        "--out",
        shown(&out),
        "--items",
        "2",
        "--seed",
        "7",
        "--tokenizer",
        "o200k_base",
    ];
    let (code, said, err) = palimpsest(&args);
    assert_eq!(code, 0, "{err}");
    assert!(said.contains("2 of 2 items") && said.contains("seed 7"), "{said}");
    let about: Value = serde_json::from_slice(&std::fs::read(out.join("build.json")).unwrap()).unwrap();
    assert_eq!(
        (&about["seed"], &about["items"]["kept"], &about["tokenizer"]["name"]),
        (&json!(7), &json!(2), &json!("o200k_base"))
    );
    let data = std::fs::read(out.join("dose.jsonl")).unwrap();
    assert_eq!(about["data"]["sha256"], palimpsest_core::digest::sha256(data));
    let (code, _, err) = palimpsest(&args);
    assert!(code == 1 && err.contains("is not an empty folder"), "{err}");
    let (code, _, err) = palimpsest(&["build", "dose", "slot", "--out", shown(&folder.path().join("x"))]);
    assert!(code == 2 && err.contains("\"slot\" is no preset and no file"), "{err}");
}

#[test]
fn updates_are_written_as_rows_of_stale_that_check() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("pairs");
    let (code, said, err) = palimpsest(&[
        "build",
        "dose",
        "implied",
        "--out",
        shown(&out),
        "--items",
        "2",
        "--tokenizer",
        "o200k_base",
        "--as",
        "stale",
    ]);
    assert_eq!(code, 0, "{err}");
    assert!(said.contains("stale.json") && !out.join("dose.jsonl").exists(), "{said}");
    let (code, said, err) = palimpsest(&["data", "check", shown(&out.join("stale.json"))]);
    assert!(code == 0 && said.contains("24 rows"), "{said}{err}");
}
