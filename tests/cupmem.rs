//! CUPMem by transcripts (tests/fixtures/cupmem): the model's replies are given, everything else is checked.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use palimpsest::chat::{ChatError, Message, Sampling};
use palimpsest::memory::cupmem::asking::Complete;
use palimpsest::memory::cupmem::cost::{Rates, estimate};
use palimpsest::memory::cupmem::schema::{Slot, domains};
use palimpsest::memory::cupmem::settings::Step;
use palimpsest::memory::cupmem::store::{Change, ChangeKind, Moment};
use palimpsest::memory::cupmem::{self, CupMem, Settings, Store};
use palimpsest::memory::similar::{ByEmbedding, Similarity};
use palimpsest::memory::system::protocol::{
    FailureKind, HelloRequest, MemorySystem, ModelAddress, SessionInput, Status, SystemError, TurnInput,
};
use palimpsest_core::digest::sha256;
use serde::Serialize;
use serde_json::{Value, json};

mod port;
mod port_sessions;

const SCOPE: &str = "history";

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/cupmem")
}

/// Transcripts by file name.
fn files() -> BTreeMap<String, String> {
    let entries = std::fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path());
    let texts = entries.filter(|path| path.extension().is_some_and(|end| end == "txt"));
    texts
        .map(|path| {
            (path.file_stem().unwrap().to_str().unwrap().to_owned(), std::fs::read_to_string(path).unwrap())
        })
        .collect()
}

/// Cases of a file, each from its title on.
fn cases(text: &str) -> Vec<&str> {
    let mut starts: Vec<usize> = text.match_indices("\n## ").map(|(at, _)| at + 1).collect();
    starts.insert(0, 0);
    let ends = starts.iter().skip(1).copied().chain([text.len()]);
    starts.iter().zip(ends).map(|(start, end)| &text[*start..end]).collect()
}

/// The word after a key at the head of a case.
fn head<'a>(case: &'a str, key: &str) -> Option<&'a str> {
    case.lines().find_map(|line| line.strip_prefix(key))
}

fn settings(case: &str) -> Settings {
    let named = head(case, "settings ").unwrap();
    let (variant, without) = named.split_once('-').unwrap_or((named, ""));
    let mut words = vec![variant.to_owned()];
    let mut switch = String::new();
    // Switch names have two words, except the last.
    for word in without.split('-').filter(|word| !word.is_empty()) {
        match switch.is_empty() {
            true => switch = word.to_owned(),
            false => words.push(format!("{}-{word}", std::mem::take(&mut switch))),
        }
    }
    Settings::parse(&words.join(",")).unwrap()
}

/// Replays a transcript's replies and records its requests.
#[derive(Clone, Default)]
struct Replayed {
    replies: Arc<Mutex<VecDeque<(String, String)>>>,
    log: Arc<Mutex<String>>,
    shows: bool,
}

impl Replayed {
    fn model(&self) -> Complete {
        let model = self.clone();
        Box::new(move |step, messages, schema, sampling| model.complete(step, messages, schema, sampling))
    }

    fn complete(
        &self,
        step: Step,
        messages: &[Message],
        schema: Option<&Value>,
        sampling: &Sampling,
    ) -> Result<String, ChatError> {
        let said: Vec<Value> = messages.iter().map(|m| json!([format!("{:?}", m.role), m.content])).collect();
        let asked = json!([said, schema, sampling.temperature, sampling.seed, sampling.max_new_tokens]);
        let digest = sha256(asked.to_string());
        let mut log = self.log.lock().unwrap();
        for line in messages[1].content.lines().filter(|_| self.shows) {
            writeln!(log, "| {line}").unwrap();
        }
        let (expected, reply) = self.replies.lock().unwrap().pop_front().unwrap_or_default();
        if expected != step.to_string() {
            writeln!(log, "> {step} where the transcript has `{expected}`").unwrap();
            return Err(ChatError::from("the transcript has no reply".to_owned()));
        }
        writeln!(log, "> {step} {} {reply}", &digest[..12]).unwrap();
        if reply == "unreachable" { Err(ChatError::from("nobody is there".to_owned())) } else { Ok(reply) }
    }
}

/// A session with two user turns and one assistant turn between them.
fn session(text: &str) -> SessionInput {
    let Ok(at) = text.parse::<usize>() else { return serde_json::from_str(text).unwrap() };
    let turn = |(id, (role, content)): (usize, (&str, &str))| TurnInput {
        id,
        role: role.to_owned(),
        content: content.to_owned(),
    };
    let said = [("user", "I have news."), ("assistant", "Do tell."), ("user", "Here it is.")];
    SessionInput {
        id: format!("session[{at}]"),
        time: Some(format!("2024-05-{:02}", at + 1)),
        turns: said.into_iter().enumerate().map(turn).collect(),
    }
}

/// An operation's result in the transcript's format.
fn told(done: Result<impl Serialize, SystemError>) -> String {
    match done.map(|done| serde_json::to_value(done).unwrap()) {
        Ok(Value::Array(all)) => all.iter().fold(String::new(), |text, one| format!("{text}= {one}\n")),
        Ok(one) => format!("= {one}\n"),
        Err(error) => format!("! {:?} {error}\n", error.kind),
    }
}

/// Runs a case. `reloads`: save and load into another system after each session.
fn replay(case: &str, shows: bool, reloads: bool) -> String {
    let settings = settings(case);
    let model = Replayed { shows, ..Replayed::default() };
    let start = || CupMem::new(settings.clone(), "scripted", model.model(), None);
    let mut system = start();
    let lines: Vec<&str> = case.lines().collect();
    let is_head = |line: &&&str| {
        line.starts_with("## ") || line.starts_with("settings ") || line.starts_with("prompts ")
    };
    let mut out: String =
        lines.iter().take_while(is_head).fold(String::new(), |text, line| format!("{text}{line}\n"));
    for (at, line) in
        lines.iter().enumerate().filter(|(_, line)| line.starts_with(|c: char| c.is_lowercase()))
    {
        let (op, rest) = line.split_once(' ').unwrap_or((line, ""));
        let (scope, rest) = rest.split_once(' ').unwrap_or((rest, ""));
        let below = lines[at + 1..].iter().take_while(|line| !line.starts_with(|c: char| c.is_lowercase()));
        let replies = below.filter_map(|line| {
            let (step, reply) = line.strip_prefix("> ")?.split_once(' ')?;
            Some((step.to_owned(), reply.split_once(' ')?.1.to_owned()))
        });
        *model.replies.lock().unwrap() = replies.collect();
        let asked: Value = serde_json::from_str(rest).unwrap_or_default();
        let (query, as_of) = (asked["query"].as_str().unwrap_or_default(), asked["as_of"].as_str());
        let before = system.store(scope).cloned().unwrap_or_default();
        let result = match op {
            "hello" => told(system.hello()),
            "reset" => system.reset(scope).map(|()| String::new()).unwrap(),
            "close" => {
                system.close();
                String::new()
            }
            "ingest" => told(system.ingest(scope, &session(rest))),
            "search" => told(system.search(scope, query, asked["k"].as_u64().unwrap() as usize, as_of)),
            "answer" => told(system.answer(scope, query, as_of)),
            "readback" => told(system.readback(scope, &serde_json::from_str::<Vec<String>>(rest).unwrap())),
            "dump" => told(system.dump(scope)),
            "fingerprint" => told(system.fingerprint(scope)),
            "store" => {
                let store = system.store(SCOPE).unwrap();
                let words = cupmem::show(store);
                let words = words.lines().fold(String::new(), |text, line| format!("{text}: {line}\n"));
                format!("{words}= {}\n", store.fingerprint())
            }
            _ => continue,
        };
        if let (Some(after), "ingest") = (system.store(scope), op) {
            let ended_by_own = settings.is_code();
            if !result.starts_with('!') {
                hold(&before, after, ended_by_own);
            }
            if reloads {
                let folder = tempfile::tempdir().unwrap();
                system.save(scope, &folder.path().join("deep")).unwrap();
                if scope == SCOPE {
                    system = start();
                }
                system.load(scope, &folder.path().join("deep")).unwrap();
            }
        }
        let calls = std::mem::take(&mut *model.log.lock().unwrap());
        write!(out, "{line}\n{calls}{result}").unwrap();
        for (step, reply) in model.replies.lock().unwrap().drain(..) {
            writeln!(out, "not asked: {step} {reply}").unwrap();
        }
    }
    out
}

/// Invariants after every session: nothing is deleted, and an item is ended only by a later one, or in the code variant by its own
/// session.
fn hold(before: &Store, after: &Store, ended_by_own: bool) {
    let later = |end: usize, created: usize| end > created || (ended_by_own && end == created);
    assert_eq!(after.sessions.len(), before.sessions.len() + 1);
    assert!(after.sessions.starts_with(&before.sessions) && after.links.starts_with(&before.links));
    assert!(after.items.len() >= before.items.len() && after.updates.starts_with(&before.updates));
    for (old, new) in before.items.iter().zip(&after.items) {
        assert_eq!((&old.id, &old.slot, &old.created), (&new.id, &new.slot, &new.created));
        assert!(new.history.starts_with(&old.history) && new.evidence.starts_with(&old.evidence));
        assert!(old.status == Status::Active || *new == *old, "{} was stale and changed", old.id);
    }
    for (old, new) in before.markers.iter().zip(&after.markers) {
        assert_eq!((&old.slot, &old.at), (&new.slot, &new.at));
        assert!(old.cleared.is_none() || old.cleared == new.cleared);
    }
    assert!(after.markers.len() >= before.markers.len());
    for item in after.stale() {
        let end = item.archived().expect("a stale item says why");
        assert!(later(end.at.index, item.created.index), "{} ended by nothing later", item.id);
        let by_later = |id: &String| after.update(id).is_some_and(|u| later(u.at.index, item.created.index));
        assert!(end.updates.iter().all(by_later));
    }
    for marker in after.standing() {
        assert_eq!(after.standing().filter(|other| other.slot == marker.slot).count(), 1);
    }
}

#[test]
fn the_transcripts_come_out_as_they_are_kept() {
    let writes = std::env::var("PALIMPSEST_GOLDENS").is_ok_and(|value| value == "write");
    let mut failures = Vec::new();
    for (name, text) in files() {
        let mut now = String::new();
        for case in cases(&text) {
            let shows = head(case, "prompts ").is_some();
            let out = replay(case, shows, false);
            if out != case && !writes {
                let title = case.lines().next().unwrap();
                let differs = case.lines().zip(out.lines()).find(|(kept, now)| kept != now);
                failures.push(format!(
                    "{name}: {title}: {differs:?}\nwith prompts:\n{}",
                    replay(case, true, false)
                ));
            }
            now.push_str(&out);
        }
        if writes {
            std::fs::write(folder().join(format!("{name}.txt")), now).unwrap();
        }
    }
    assert!(failures.is_empty(), "{} cases differ; the first:\n{}", failures.len(), failures[0]);
}

#[test]
fn saved_and_loaded_after_any_session_it_is_uninterrupted() {
    for (name, text) in files() {
        for case in cases(&text).into_iter().filter(|case| !case.contains("\n! ")) {
            let shows = head(case, "prompts ").is_some();
            assert_eq!(replay(case, shows, true), case, "{name}");
        }
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("cupmem.json"), "{\"items\": 3").unwrap();
    let mut system = CupMem::new(Settings::default(), "scripted", Replayed::default().model(), None);
    let broken = system.load(SCOPE, folder.path()).unwrap_err();
    assert!(broken.message.contains("cupmem.json is no saved CUPMem store"), "{broken}");
    let missing = system.load(SCOPE, &folder.path().join("none")).unwrap_err();
    assert!(missing.message.starts_with("cannot read "), "{missing}");
}

#[test]
fn an_item_ends_only_by_something_later() {
    let change = |index| Change {
        kind: ChangeKind::Invalidated,
        at: Moment { session: format!("session[{index}]"), index, time: None },
        step: Step::Adjudicate,
        updates: vec!["update-0".to_owned()],
        reason: "lost".to_owned(),
        before: None,
    };
    let text = files().remove("writing").unwrap();
    let case = cases(&text)[0];
    assert!(case.contains("item-0"), "it writes an item");
    let model = Replayed::default();
    let mut system = CupMem::new(settings(case), "scripted", model.model(), None);
    let lines = case.lines().skip_while(|line| !line.starts_with("ingest"));
    let replies = lines.filter_map(|line| line.strip_prefix("> ")?.split_once(' '));
    let replies = replies.map(|(step, reply)| (step.to_owned(), reply.split_once(' ').unwrap().1.to_owned()));
    *model.replies.lock().unwrap() = replies.collect();
    system.ingest(SCOPE, &session("0")).unwrap();
    let mut store = system.store(SCOPE).unwrap().clone();
    assert!(store.archive("item-0", change(0)).unwrap_err().contains("not older"));
    assert!(store.weaken("item-0", change(0)).is_err());
    assert_eq!(store, *system.store(SCOPE).unwrap());
    store.archive("item-0", change(1)).unwrap();
    assert!(store.archive("item-0", change(2)).unwrap_err().contains("already"));
    assert!(store.archive("item-9", change(2)).is_err());
    assert_eq!(store.items.len(), 1, "and it stays");
}

/// Six sessions, each writing a work state and a travel state, affecting the first session's goals, ending an older travel state and
/// weakening a work state; then three probes.
#[test]
fn the_estimate_of_a_fixed_script_is_what_it_takes() {
    let files = files();
    let cases = cases(&files["cost"]);
    assert_eq!(cases.len(), 8);
    for case in cases {
        let settings = settings(case);
        let mut counted: BTreeMap<String, f64> = BTreeMap::new();
        for call in case.lines().filter_map(|line| line.strip_prefix("> ")) {
            *counted.entry(call.split(' ').next().unwrap().to_owned()).or_default() += 1.0;
        }
        let words = settings.to_string();
        let rates = Rates {
            spanning: 1.0,
            updating: 1.0,
            candidates: 13.0 / 6.0,
            // The code variant also asks about the first session: three domains, one of them its goal's.
            direct_lanes: if settings.is_code() { 13.0 / 6.0 } else { 2.0 },
            affected_lanes: if settings.is_code() { 5.0 / 6.0 } else { 1.0 },
            first: 1.0,
            proposals: 2.0,
            // Travel: the new item and all of its slot, at most four; work: the new item and two neighbours.
            links: ((1.0 + 2.0 + 3.0 + 4.0 + 4.0) + (1.0 + 2.0 + 3.0 + 3.0 + 3.0)) / 5.0,
            lacking: match words.as_str() {
                "code-no-verifier" => 0.0,
                "code-readout-only" => 1.0 / 3.0,
                _ => 2.0 / 3.0,
            },
            unsure: if words == "code-readout-only" { 0.0 } else { 1.0 / 3.0 },
            planning: 1.0,
            ..Rates::default()
        };
        let estimated = estimate(&settings, 6, 1000.0, 3, &rates).unwrap();
        let rounded: BTreeMap<String, f64> =
            estimated.calls.iter().map(|(step, calls)| (step.to_string(), calls.round())).collect();
        assert_eq!(rounded, counted, "{words}");
        assert!((estimated.total() - counted.values().sum::<f64>()).abs() < 1e-6, "{words}");
    }
}

#[test]
fn prompt_tokens_grow_with_sessions_and_fall_with_switches() {
    let tokens = |words: &str, sessions, session_tokens| {
        let settings = Settings::parse(words).unwrap();
        estimate(&settings, sessions, session_tokens, 3, &Rates::default()).unwrap().prompt_tokens
    };
    let whole = tokens("code", 50, 3000.0);
    assert!(tokens("code", 100, 3000.0) > 1.9 * whole);
    for words in ["no-links", "no-affected", "no-global", "readout-only", "no-verifier", "no-recovery"] {
        assert!(tokens(words, 50, 3000.0) < whole, "{words}");
    }
    let more = tokens("code", 50, 4000.0) - whole;
    assert!((more - 50.0 * 250.0).abs() < 1e-6, "a quarter of a session is the user's: {more}");
    assert!((tokens("paper", 1, 4000.0) - tokens("paper", 1, 3000.0) - 1000.0).abs() < 1e-6);
    // The paper's price corresponds to about 2.2 million prompt tokens per instance: a value far from it means a wrong constant.
    assert!((2e5..5e6).contains(&whole), "{whole}");
}

#[test]
fn a_command_line_names_settings_and_the_request_models() {
    assert_eq!(cupmem::words("cupmem"), Some(""));
    assert_eq!(cupmem::words(" cupmem:paper,no-links"), Some("paper,no-links"));
    for other in ["cupmemory", "python3 cupmem.py", "http://127.0.0.1:1"] {
        assert_eq!(cupmem::words(other), None, "{other}");
    }
    let open = |name: &str, words: &str, request: &HelloRequest| {
        cupmem::open(name, words, request, Duration::from_secs(600))
    };
    let address = ModelAddress {
        base_url: "http://127.0.0.1:1/v1".into(),
        key: "label".into(),
        model: "small".into(),
        dimensions: None,
    };
    let mut request = HelloRequest { seed: 7, ..HelloRequest::default() };
    let refused = |words: &str, request: &HelloRequest| open("cup", words, request).err().unwrap();
    assert!(refused("", &request).contains("--memory-model"));
    request.llm = Some(address.clone());
    assert!(refused("no-sense", &request).contains("no-sense"));
    let mut system = open("cup", "paper", &request).unwrap();
    let hello = system.hello().unwrap();
    assert_eq!(hello.version, "1 paper by bm25");
    assert_eq!(system.dump("none").unwrap_err().system, "cup", "errors name the system as the run does");
    // The address may change between runs; the identity does not.
    request.llm = Some(ModelAddress { base_url: "http://127.0.0.1:2/v1".into(), ..address.clone() });
    assert_eq!(open("cup", "paper", &request).unwrap().hello().unwrap(), hello);
    request.embedder = Some(ModelAddress { model: "vectors".into(), ..address });
    assert_eq!(open("cup", "paper", &request).unwrap().hello().unwrap().version, "1 paper by vectors");
    request.config.insert("max_new_tokens".into(), json!(99));
    assert_ne!(open("cup", "paper", &request).unwrap().hello().unwrap().digest, hello.digest);
    request.config.insert("max_new_tokens".into(), json!(0));
    assert!(refused("", &request).contains("\"max_new_tokens\": 0"));
}

#[test]
fn a_call_to_a_model_that_never_replies_ends_at_the_limit_of_a_session() {
    // Connections wait in the backlog and get no reply.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = ModelAddress {
        base_url: format!("http://{}/v1", silent.local_addr().unwrap()),
        key: "label".into(),
        model: "small".into(),
        dimensions: None,
    };
    let request = HelloRequest { llm: Some(address), ..HelloRequest::default() };
    let mut system = cupmem::open("cup", "", &request, Duration::from_millis(100)).unwrap();
    system.hello().unwrap();
    system.reset(SCOPE).unwrap();
    let error = system.ingest(SCOPE, &session("0")).unwrap_err();
    assert_eq!(error.kind, FailureKind::Transient, "{error}");
    assert!(error.message.contains("no reply within"), "{error}");
}

#[test]
fn the_schema_is_that_of_table_8() {
    let names: std::collections::BTreeSet<&str> = Slot::all().map(|slot| slot.name()).collect();
    let single = Slot::all().filter(Slot::is_single).count();
    assert_eq!((domains().count(), Slot::all().count(), single), (10, 33, 6));
    assert_eq!(names.len(), 33, "slot names are unique, so a slot is known by its name");
}

#[test]
fn a_slot_is_found_with_its_names_swapped_or_under_another_domain() {
    let home = Slot::parse("location_and_living.current_base_location").unwrap();
    for (domain, slot, named, of_pair) in [
        ("location_and_living", "current_base_location", true, true),
        ("current_base_location", "location_and_living", true, true),
        ("health_and_mobility", "Current_Base_Location", true, false),
        ("current_base_location", "location_linked_condition", false, true),
        ("current_workload", "current_base_location", true, false),
        ("location_and_living", "favourite_colour", false, false),
        ("", "current_base_location", true, false),
    ] {
        assert_eq!(Slot::named(domain, slot).as_ref() == Some(&home), named, "{domain} {slot}");
        assert_eq!(Slot::of_pair(domain, slot).as_ref() == Some(&home), of_pair, "{domain} {slot}");
    }
    let written = serde_json::to_string(&home).unwrap();
    assert_eq!(written, r#""location_and_living.current_base_location""#);
    assert_eq!(serde_json::from_str::<Slot>(&written).unwrap(), home);
    assert!(serde_json::from_str::<Slot>(r#""a.b""#).is_err());
}

#[test]
fn settings_are_read_as_they_are_typed_and_a_wrong_word_is_named() {
    let settings = Settings::parse("paper, no-global,store-only").unwrap();
    assert_eq!(settings.to_string(), "paper-no-global-store-only");
    assert_eq!(Settings::parse("").unwrap(), Settings::default());
    let refused = Settings::parse("no-sense").unwrap_err();
    let all =
        "no-affected, no-global, no-unknown, no-links, no-verifier, no-recovery, readout-only, store-only";
    assert!(refused.contains("`no-sense`") && refused.contains(all), "{refused}");
    for word in all.split(", ") {
        assert_eq!(Settings::parse(word).unwrap().to_string(), format!("code-{word}"));
    }
}

#[test]
fn texts_are_embedded_once_and_compared_by_cosine() {
    let embedded = Arc::new(Mutex::new(0));
    let counted = Arc::clone(&embedded);
    let letters = move |texts: &[&str]| {
        *counted.lock().unwrap() += texts.len();
        let count = |text: &str, c| text.matches(c).count() as f32;
        Ok(texts.iter().map(|text| vec![count(text, 'a'), count(text, 'b')]).collect())
    };
    let mut similarity = ByEmbedding::new("letters", Box::new(letters));
    assert_eq!(
        similarity.scores(&["aa", "b", "zz"], "a").unwrap(),
        [1.0, 0.0, 0.0],
        "no direction, no cosine"
    );
    assert_eq!(similarity.scores(&["aa", "b"], "b").unwrap(), [0.0, 1.0]);
    assert_eq!(*embedded.lock().unwrap(), 4, "aa, b, zz and a");
}
