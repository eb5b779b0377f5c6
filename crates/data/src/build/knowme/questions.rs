//! Questions that need no model: facts (T1), relations that do not hold (T2), durations and orders (T3).
//!
//! Makers take one row, the events in the list `rows`. T1 and T2 keep in `given` what a question says that events are searched for.

use std::collections::{BTreeMap, BTreeSet};

use jiff::civil::DateTime;
use serde_json::{Map, Value, json};

use super::life::{Life, day, names};
use crate::build::{Row, RowError, Rows, Setting};
use crate::case::check::words::content_words;
use crate::case::draw::Draws;
use crate::ground::words::counted;

const FEWEST_TEMPLATES: usize = 5;
/// Draws for a question before the maker gives up.
const TRIES: usize = 20;

struct Made<'a> {
    row: &'a Row,
    life: Life,
    draws: Draws,
    /// By kind of question, with `{name}` for what is filled in.
    templates: BTreeMap<String, Vec<String>>,
    task: &'static str,
    name: &'static str,
    most: usize,
    rows: Vec<Row>,
}

impl<'a> Made<'a> {
    /// `name`: of the maker and of the setting that limits it; `kinds`: of the templates that it needs.
    fn new(
        setting: &Setting<'_>,
        row: &'a Row,
        [task, name]: [&'static str; 2],
        kinds: &[&str],
    ) -> Result<Self, RowError> {
        let templates: BTreeMap<String, Vec<String>> = setting.needed("questions")?;
        let count = |kind: &str| templates.get(kind).map_or(0, Vec::len);
        if let Some(kind) = kinds.iter().find(|kind| count(kind) < FEWEST_TEMPLATES) {
            let found = count(kind);
            return Err(RowError::Fault(format!(
                "the setting `questions.{kind}` has {found} templates; write {FEWEST_TEMPLATES} or more"
            )));
        }
        let (most, life, draws) = (setting.needed(name)?, Life::of(row)?, setting.draws(&row.id, 0));
        Ok(Made { row, life, draws, templates, task, name, most, rows: Vec::new() })
    }

    fn add(&mut self, kind: &str, said: &[(&str, impl AsRef<str>)], evidence: &[usize], fields: Value) {
        let templates = &self.templates[kind];
        let mut question = templates[self.draws.index(templates.len())].clone();
        for (name, text) in said {
            question = question.replace(&format!("{{{name}}}"), text.as_ref());
        }
        let ids: Vec<&Value> = evidence.iter().map(|at| &self.life.events[*at].id).collect();
        let made = self.row.part(format!("{}-{}", self.name, self.rows.len()), Map::new());
        let asked = json!({"task": self.task, "question": question, "evidence": ids});
        self.rows.push(made.with(asked).with(fields));
    }

    fn is_full(&self) -> bool {
        self.rows.len() >= self.most
    }

    fn done(self) -> Result<Vec<Row>, RowError> {
        if self.rows.is_empty() && self.most > 0 {
            return Err(RowError::Rejected(format!("the events give no {}", self.name)));
        }
        Ok(self.rows)
    }

    /// Indices of all events, shuffled.
    fn shuffled(&mut self) -> Vec<usize> {
        let mut all: Vec<usize> = (0..self.life.events.len()).collect();
        self.draws.shuffle(&mut all);
        all
    }
}

/// At most `facts` questions with one answer: what is told of a name on a day at a place that one event alone has; where, and on which day,
/// something was that one event alone says.
pub(super) fn facts(setting: &Setting<'_>, row: &Row) -> Rows {
    const KINDS: [&str; 3] = ["what", "where", "when"];
    let mut made = Made::new(setting, row, ["T1", "facts"], &KINDS)?;
    for at in made.shuffled() {
        if made.is_full() {
            break;
        }
        let mut kinds = KINDS;
        kinds.rotate_left(made.rows.len() % KINDS.len());
        for kind in kinds {
            let Some((said, answer, of)) = fact(&mut made, at, kind) else { continue };
            let given: Vec<&String> = said.iter().map(|(_, text)| text).collect();
            let told = json!({"answer": answer, "given": given, "type": "Information Extraction", "entity_type": of});
            made.add(kind, &said, &[at], told);
            break;
        }
    }
    made.done()
}

/// The text of a question, its answer, and the answer's kind.
type Fact = (Vec<(&'static str, String)>, String, &'static str);

fn fact(made: &mut Made<'_>, at: usize, kind: &str) -> Option<Fact> {
    let event = &made.life.events[at];
    let place = event.place.clone();
    match kind {
        "what" => {
            let (day, known) = (day(event.time?), event.names());
            let given = [known.get(made.draws.index(known.len()))?.clone(), day, place];
            let of_name = event.sentences().filter(|said| names(said).contains(&given[0]));
            let answer = of_name.collect::<Vec<_>>().join(" ");
            let new = content_words(&answer).difference(&content_words(&given.join(" "))).count();
            let sound = !event.place.is_empty() && new > 1 && made.life.holders(&given) == [at];
            let said = ["name", "day", "place"].into_iter().zip(given).collect();
            sound.then_some((said, answer, "Event"))
        }
        "where" => {
            let excerpt = made.life.excerpt(at)?;
            let betrayed = !content_words(&excerpt).is_disjoint(&content_words(&place));
            (!place.is_empty() && !betrayed).then(|| (vec![("excerpt", excerpt)], place, "Location"))
        }
        _ => Some((vec![("excerpt", made.life.excerpt(at)?)], day(event.time?), "Time")),
    }
}

/// At most `exchanges` questions about a name, a day and a place of one event, one of the three exchanged for that of another event, so that
/// no event has all three. They are worded as those of `facts`, so that the wording tells nothing. The answer is the setting `abstention`.
pub(super) fn exchanges(setting: &Setting<'_>, row: &Row) -> Rows {
    const STRATEGIES: [&str; 3] = ["Entity Swap", "Time Swap", "Place Swap"];
    let answer: String = setting.needed("abstention")?;
    let mut made = Made::new(setting, row, ["T2", "exchanges"], &["what"])?;
    let mut items: Vec<(usize, [String; 3])> = Vec::new();
    for (at, event) in made.life.events.iter().enumerate() {
        let Some(day) = event.time.map(day).filter(|_| !event.place.is_empty()) else { continue };
        items.extend(event.names().into_iter().map(|name| (at, [name, day.clone(), event.place.clone()])));
    }
    let mut order: Vec<usize> = (0..items.len()).collect();
    made.draws.shuffle(&mut order);
    for nth in order {
        if made.is_full() {
            break;
        }
        let (at, item) = &items[nth];
        let part = made.draws.index(item.len());
        for _ in 0..TRIES {
            let (from, other) = &items[made.draws.index(items.len())];
            let mut given = item.clone();
            given[part].clone_from(&other[part]);
            if given == *item || !made.life.holders(&given).is_empty() {
                continue;
            }
            let told = json!({"answer": answer, "given": given, "strategy": STRATEGIES[part]});
            let [name, day, place] = given;
            made.add("what", &[("name", name), ("day", day), ("place", place)], &[*at, *from], told);
            break;
        }
    }
    made.done()
}

/// At most `durations` questions how long it was from one event to a later one within `longest_hours`; the answer is end less start.
pub(super) fn durations(setting: &Setting<'_>, row: &Row) -> Rows {
    let longest = setting.needed::<i64>("longest_hours")?.saturating_mul(60 * 60);
    let mut made = Made::new(setting, row, ["T3", "durations"], &["how-long"])?;
    let dated = made.life.events.iter().enumerate().filter_map(|(at, event)| Some((event.time?, at)));
    let mut dated: Vec<(DateTime, usize)> = dated.collect();
    dated.sort_unstable();
    let (mut pairs, mut tries) = (BTreeSet::new(), TRIES * made.most);
    while !made.is_full() && tries > 0 && !dated.is_empty() {
        tries -= 1;
        let place = made.draws.index(dated.len());
        let (start, from) = dated[place];
        let after = |(time, _): &(DateTime, usize)| time.duration_since(start).as_secs();
        let first = place + dated[place..].partition_point(|event| after(event) == 0);
        let within = dated[first..].partition_point(|event| after(event) <= longest);
        let Some((end, to)) = dated[first..first + within].get(made.draws.index(within)).copied() else {
            continue;
        };
        let (Some(a), Some(b)) = (made.life.excerpt(from), made.life.excerpt(to)) else { continue };
        if pairs.insert((from, to)) {
            let answer = duration(end.duration_since(start).as_secs());
            let reasoning = format!("From {start} to {end}.").replace('T', " ");
            let said = [("day", day(start)), ("start", a), ("end", b)];
            let fields = json!({"answer": answer, "type": "duration calculation", "reasoning": reasoning});
            made.add("how-long", &said, &[from, to], fields);
        }
    }
    made.done()
}

/// `1 day 2 hours 10 seconds`.
fn duration(seconds: i64) -> String {
    let seconds = usize::try_from(seconds).unwrap_or_default();
    let parts = [
        (seconds / 86400, "day"),
        (seconds / 3600 % 24, "hour"),
        (seconds / 60 % 60, "minute"),
        (seconds % 60, "second"),
    ];
    let said = parts.into_iter().filter(|(n, _)| *n > 0).map(|(n, unit)| counted(n, unit));
    said.collect::<Vec<_>>().join(" ")
}

/// At most `orders` questions for the order in time of three events of three times, `A`, `B` and `C`.
pub(super) fn orders(setting: &Setting<'_>, row: &Row) -> Rows {
    const LETTERS: [&str; 3] = ["A", "B", "C"];
    let mut made = Made::new(setting, row, ["T3", "orders"], &["order"])?;
    let dated = made.life.events.iter().enumerate().filter_map(|(at, event)| Some((at, event.time?)));
    let dated: Vec<(usize, DateTime)> = dated.collect();
    let (mut sets, mut tries) = (BTreeSet::new(), TRIES * made.most);
    while !made.is_full() && tries > 0 && !dated.is_empty() {
        tries -= 1;
        let drawn = LETTERS.map(|_| dated[made.draws.index(dated.len())]);
        let times: BTreeSet<DateTime> = drawn.iter().map(|(_, time)| *time).collect();
        let excerpts: Option<Vec<String>> = drawn.iter().map(|(at, _)| made.life.excerpt(*at)).collect();
        let Some(excerpts) = excerpts.filter(|_| times.len() == drawn.len()) else { continue };
        if !sets.insert(drawn.map(|(at, _)| at).into_iter().collect::<BTreeSet<_>>()) {
            continue;
        }
        let mut order = [0usize, 1, 2];
        order.sort_by_key(|nth| drawn[*nth].1);
        let answer = order.map(|nth| LETTERS[nth]).join(" -> ");
        let reasoning =
            order.map(|nth| format!("{}: {}", LETTERS[nth], drawn[nth].1).replace('T', " ")).join("; ");
        let options = LETTERS.iter().zip(&excerpts).map(|(letter, said)| format!("{letter}: {said}"));
        let options = options.collect::<Vec<_>>().join("; ");
        let fields = json!({"answer": answer, "type": "chronological_ordering", "reasoning": reasoning});
        made.add("order", &[("options", &options)], &drawn.map(|(at, _)| at), fields);
    }
    made.done()
}
