//! The papers' numbers, from rows constructed to their counts.

use palimpsest::benchmarks::Side;
use palimpsest::losses::count::{Count, Number, Part, numbers};
use palimpsest::losses::fact::{Carrier, Fact, Known, Stated};
use palimpsest::losses::reading::{Effects, attended};
use palimpsest::losses::trace::{Evidence, Named, Trace};
use palimpsest::memory::system::Show;
use palimpsest::memory::system::case_rows::MemoryRows;
use palimpsest::memory::system::protocol::{LookedAt, Memory, Op, Source, Status, WriteEvent};
use palimpsest::memory::system::record::FINISH;
use palimpsest::memory::system::rows::{EventRow, HistoryRow, Provenance, SearchRow, SessionRow, StatedRow};

const OLD: usize = 1;
const NEW: usize = 4;
/// STALE, table 3: instances per probe.
const INSTANCES: usize = 400;

fn sources(session: usize) -> Option<Vec<Source>> {
    Some(vec![Source { session: format!("session[{session}]"), turns: Vec::new() }])
}

/// Twenty memories, some with the old or the new fact.
fn list(first: Option<usize>, second: Option<usize>) -> Vec<Memory> {
    let session = |rank: usize| match rank {
        0 => first.unwrap_or(20),
        5 => second.unwrap_or(21),
        other => 30 + other,
    };
    let memory = |rank: usize| Memory {
        id: format!("m{rank}"),
        sources: sources(session(rank)),
        status: Status::Active,
        ..Memory::default()
    };
    (0..20).map(memory).collect()
}

/// Counts of a column of table 3.
struct Column {
    probe: &'static str,
    new_retrieved: usize,
    both: usize,
    old_first: usize,
    new_first: usize,
    failures: usize,
}

/// LightMem, in the table's order.
#[rustfmt::skip]
const TABLE_3: [Column; 3] = [
    Column { probe: "SR", new_retrieved: 310, both: 284, old_first: 353, new_first: 21, failures: 174 },
    Column { probe: "PR", new_retrieved: 310, both: 283, old_first: 338, new_first: 30, failures: 307 },
    Column { probe: "IPA", new_retrieved: 271, both: 209, old_first: 102, new_first: 81, failures: 213 },
];
/// Old facts among the new entry's candidates, and the updated or deleted ones.
const LOOKED_AT: usize = 242;
const MARKED: usize = 8;

/// Search result of an instance: the first `both` have both facts, the last `new_first` of them with the new one first; then instances
/// with only the new one, never first; then only the old one, first as often as the table requires.
fn search(at: usize, column: &Column) -> Vec<Memory> {
    let Column { new_retrieved, both, old_first, new_first, .. } = *column;
    let old_alone = (INSTANCES - new_retrieved).min(old_first);
    let old_first_of_both = old_first - old_alone;
    match at {
        at if at < old_first_of_both => list(Some(OLD), Some(NEW)),
        at if at < both - new_first => {
            let mut memories = list(None, Some(NEW));
            memories[3].sources = sources(OLD);
            memories
        }
        at if at < both => list(Some(NEW), Some(OLD)),
        at if at < new_retrieved => list(None, Some(NEW)),
        at if at < new_retrieved + old_alone => list(Some(OLD), None),
        _ => list(None, None),
    }
}

fn event(session: usize, op: Op, memory: &str, of: usize, looked_at: Option<Vec<LookedAt>>) -> HistoryRow {
    HistoryRow::Event(EventRow {
        session: format!("session[{session}]"),
        event: WriteEvent {
            op,
            memory: Some(memory.to_owned()),
            text: Some(if op == Op::Update { "rewritten" } else { memory }.to_owned()),
            previous: None,
            sources: sources(of),
            looked_at,
            reason: None,
        },
        provenance: Provenance::Times,
    })
}

fn end(session: &str) -> HistoryRow {
    HistoryRow::Session(SessionRow { session: session.to_owned(), events: 1, told: Some(true), failed: None })
}

fn rows(at: usize, column: &Column) -> MemoryRows {
    let candidate = LookedAt { memory: if at < LOOKED_AT { "old" } else { "other" }.to_owned(), gated: None };
    let mut history = vec![
        event(0, Op::Add, "other", 0, Some(Vec::new())),
        event(OLD, Op::Add, "old", OLD, Some(Vec::new())),
        event(NEW, Op::Add, "new", NEW, Some(vec![candidate])),
    ];
    if at < MARKED {
        history.push(event(NEW, Op::Update, "old", OLD, None));
    }
    history.extend([end(&format!("session[{NEW}]")), end(FINISH)]);
    let search = SearchRow {
        probe: column.probe.to_owned(),
        query: "?".to_owned(),
        k: 20,
        memories: search(at, column),
        provenance: Provenance::Times,
        ..SearchRow::default()
    };
    MemoryRows { history, searches: vec![search], ..MemoryRows::default() }
}

fn facts() -> Vec<Fact> {
    let fact = |role: &str, side, session| Fact {
        role: role.to_owned(),
        side: Some(side),
        sessions: [session].into(),
    };
    vec![fact("old", Side::Older, OLD), fact("new", Side::Newer, NEW)]
}

fn traces(column: &Column, stated: Option<&Stated<'_>>) -> Vec<Trace> {
    let trace = |at: usize| {
        let named = Named {
            case: at.to_string(),
            probe: column.probe.to_owned(),
            kind: None,
            dimension: column.probe.to_owned(),
        };
        let rows = rows(at, column);
        let evidence = Evidence {
            rows: Some(&rows),
            k: 20,
            show: Show::Ranked,
            answer: None,
            densities: &[],
            selected: &[],
            effects: &Effects::default(),
            // Instances with the new fact come first.
            right: Known::of(at >= column.failures),
        };
        Trace::of(named, &facts(), &evidence, Carrier { stated })
    };
    (0..INSTANCES).map(trace).collect()
}

fn count(numbers: &[Number], part: Part, name: &str, role: &str, k: Option<usize>) -> (usize, usize) {
    let is =
        |number: &&Number| number.part == part && number.name == name && number.role == role && number.k == k;
    let Count { count, of, unknown } = numbers.iter().find(is).unwrap().count;
    assert_eq!(unknown, 0, "{name} {role}");
    (count, of)
}

#[test]
fn table_3_of_stale_is_as_printed() {
    for column in &TABLE_3 {
        let traces = traces(column, None);
        let numbers = numbers(&traces.iter().collect::<Vec<_>>(), true);
        let of = |name: &str, role: &str, k: usize| count(&numbers, Part::Retrieval, name, role, Some(k));
        let probe = column.probe;
        assert_eq!(of("hit", "new", 20), (column.new_retrieved, INSTANCES), "{probe}");
        assert_eq!(of("both", "", 20), (column.both, INSTANCES), "{probe}");
        assert_eq!(of("hit", "old", 1), (column.old_first, INSTANCES), "{probe}");
        assert_eq!(of("hit", "new", 1), (column.new_first, INSTANCES), "{probe}");
        // Distractors are the remainder: 1 - old - new.
        let distractors = INSTANCES - column.old_first - column.new_first;
        assert_eq!(of("distractor", "", 1), (distractors, INSTANCES), "{probe}");
        let failure = count(&numbers, Part::Answers, "failure despite", "new", None);
        assert_eq!(failure, (column.failures, column.new_retrieved), "{probe}");
        let of = |name: &str| count(&numbers, Part::Writing, name, "old", None);
        assert_eq!(of("looked at"), (LOOKED_AT, INSTANCES));
        assert_eq!(of("marked of looked at"), (MARKED, LOOKED_AT));
        assert_eq!(of("removed"), (0, INSTANCES));
    }
    let percent =
        |(count, of): (usize, usize)| palimpsest::ground::numbers::percent(count as f64 / of as f64);
    assert_eq!(
        (percent((LOOKED_AT, INSTANCES)), percent((MARKED, LOOKED_AT))),
        ("60.5".to_owned(), "3.3".to_owned())
    );
}

/// Marks are in-place updates: the new text no longer states the old fact, the previous text did.
#[test]
fn the_second_level_counts_the_updates_of_table_3_that_overwrite_what_they_mark() {
    let row = |memory: &str, text: &str, role: &str, session: usize, states: bool| StatedRow {
        memory: memory.to_owned(),
        text: text.to_owned(),
        role: role.to_owned(),
        session: format!("session[{session}]"),
        states,
        judge: "j".to_owned(),
        refused_parameters: Vec::new(),
    };
    let rows = [
        row("old", "old", "old", OLD, true),
        row("old", "rewritten", "old", OLD, false),
        row("new", "new", "new", NEW, true),
    ];
    let traces = traces(&TABLE_3[0], Some(&Stated::of(&rows)));
    let numbers = numbers(&traces.iter().collect::<Vec<_>>(), true);
    let of = |name: &str, role: &str| count(&numbers, Part::Writing, name, role, None);
    assert_eq!(of("looked at", "old"), (LOOKED_AT, INSTANCES));
    assert_eq!(of("marked of looked at", "old"), (MARKED, LOOKED_AT));
    assert_eq!(of("written", "old"), (INSTANCES, INSTANCES));
    assert_eq!(of("kept", "old"), (INSTANCES - MARKED, INSTANCES));
    assert_eq!(of("lost at update", "old"), (MARKED, INSTANCES));
    assert_eq!(of("kept", "new"), (INSTANCES, INSTANCES));
}

/// Trace of an instance with only the new fact, at rank 6, whose search requested `k` and got three.
fn short(k: usize) -> Trace {
    let mut rows = rows(300, &TABLE_3[0]);
    rows.searches[0].k = k;
    rows.searches[0].memories.truncate(3);
    let (case, probe) = ("c".to_owned(), "SR".to_owned());
    let evidence = Evidence {
        rows: Some(&rows),
        k: 20,
        show: Show::Ranked,
        answer: None,
        densities: &[],
        selected: &[],
        effects: &Effects::default(),
        right: Known::Unknown,
    };
    let named = Named { case, dimension: probe.clone(), probe, kind: None };
    Trace::of(named, &facts(), &evidence, Carrier { stated: None })
}

#[test]
fn a_shorter_search_than_the_list_leaves_what_it_lacks_unknown() {
    let full = short(3);
    assert_eq!((full.search.hit(1, 3), full.search.hit(1, 5)), (Known::No, Known::Unknown));
    assert_eq!(full.list.hit(1, usize::MAX), Known::Unknown);
    // Fewer results than requested means that there are no more.
    assert_eq!(short(5).search.hit(1, 20), Known::No);
}

#[test]
fn a_memory_is_attended_above_its_neighbours_and_among_the_three_highest() {
    let densities = |values: &[f64]| values.iter().copied().enumerate().collect::<Vec<_>>();
    let plain = |_: usize| true;
    let five = densities(&[1.0, 3.0, 2.0, 4.0, 5.0]);
    // Its neighbours have 1 and 2, and two are higher.
    assert_eq!(attended(1, &five, plain), Known::Yes);
    // Its neighbours have 3 and 4.
    assert_eq!(attended(2, &five, plain), Known::No);
    // Above its neighbours, and three are higher.
    let six = densities(&[9.0, 1.0, 2.0, 1.0, 8.0, 7.0]);
    assert_eq!(attended(2, &six, plain), Known::No);
    // Evidence is not a baseline: the next plain memory on either side is.
    assert_eq!(attended(1, &five, |rank| rank == 4), Known::No);
    assert_eq!(attended(1, &five, |_| false), Known::Unknown);
    // Not measured.
    assert_eq!(attended(7, &five, plain), Known::Unknown);
}
