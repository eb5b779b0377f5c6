//! Builds the rows of one item: every twin at every level, with token counts checked for equality. Items are independent.

use std::collections::{BTreeMap, HashMap};

use jiff::ToSpan;
use jiff::civil::{DateTime, date};
use palimpsest_core::text::{CountTokens, TextError};
use serde_json::{Value, json};

use super::error::{BuildError, Unmade};
use super::factors::{EchoBy, Explicitness, Factors, Fillers, Order, Speaker};
use super::fillers::{Filler, GivenFillers, Source, Stream};
use super::item::{Attribute, Draft, Item, Saying, needed};
use super::layout::{Digits, Layout, Part, STRETCHES, Slot, lay_out};
use super::session::{Content, SmallTalk, rendered, tokens};
use super::spec::{Level, Spec, Twin};
use super::texts::{STREAMS_FAMILY, Texts, Topic};
use crate::benchmarks::dose::row::{DoseProbe, DoseRow, DoseSession};
use crate::benchmarks::dose::terms::{
    BLIND, ECHO, LURE, MID, NEW, NO_OLD, NO_UPDATE, OLD, OTHER, PARAPHRASE, UPDATE,
};
use crate::case::Turn;
use crate::case::draw::Draws;
use crate::ground::order::unique;

const FILLERS: &str = "dose fillers";
const SMALL_TALK: &str = "dose session";
const NEUTRAL: &str = "dose neutral";
const KEYS: &str = "dose keys";
const CURRENT: &str = "current";
const NO_VALUE: &str = "none";
const TIME: &str = "%Y-%m-%d %H:%M";

#[derive(Debug, Clone)]
pub struct Built {
    pub row: DoseRow,
    pub provenance: Value,
    /// For single-value items with an old and a new session.
    pub pair: Option<Statements>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Statements {
    pub old: String,
    pub new: String,
    pub places: [usize; 2],
    /// The new value follows by world knowledge.
    pub is_implied: bool,
    pub yesno: String,
    pub premise: String,
    pub question: String,
}

#[derive(Debug, Clone)]
pub struct Dropped {
    pub id: String,
    pub item: bool,
    pub reason: String,
}

#[derive(Debug, Clone, Default)]
pub struct BuiltItem {
    pub rows: Vec<Built>,
    pub dropped: Vec<Dropped>,
}

pub struct Builder<'a> {
    spec: &'a Spec,
    count: &'a dyn CountTokens,
    given: Option<&'a GivenFillers>,
    texts: &'static Texts,
    small_talk: SmallTalk<'static>,
    levels: Vec<Level>,
    /// Names of later factors that some level varies.
    later: Vec<&'static str>,
    attributes: Vec<Attribute<'static>>,
    longest: usize,
    /// (template, reason) of templates that cannot express the spec.
    pub left_out: Vec<(String, String)>,
}

impl<'a> Builder<'a> {
    pub fn new(
        spec: &'a Spec,
        count: &'a dyn CountTokens,
        given: Option<&'a GivenFillers>,
    ) -> Result<Self, BuildError> {
        spec.check()?;
        let texts = Texts::get()?;
        let levels = spec.levels()?;
        let longest = spec.longest_chain()?;
        let all: Vec<Attribute<'static>> = match spec.family.as_str() {
            STREAMS_FAMILY => texts.streams.log.iter().map(Attribute::Log).collect(),
            family => texts.of_family(family).map(Attribute::One).collect(),
        };
        let wanted = |attribute: &Attribute<'_>| {
            spec.templates.is_empty() || spec.templates.iter().any(|name| name == attribute.name())
        };
        let (mut attributes, mut left_out) = (Vec::new(), Vec::new());
        let mut most = 0;
        for attribute in all.into_iter().filter(wanted) {
            let reason = match attribute {
                Attribute::Log(_) => None,
                Attribute::One(template) => {
                    let have = texts.values.get(&template.values).map_or(0, Vec::len);
                    most = most.max(have);
                    let untold = levels.iter().find(|level| !template.tells(level.factors.explicitness));
                    let few = (have < needed(longest))
                        .then(|| format!("its set {} has {have} values", template.values));
                    few.or(untold.map(|level| format!("it tells no {:?}", level.factors.explicitness)))
                }
            };
            match reason {
                None => attributes.push(attribute),
                Some(reason) => left_out.push((attribute.name().to_owned(), reason)),
            }
        }
        if attributes.is_empty() {
            let why = left_out.first().map_or("no template", |(_, reason)| reason.as_str());
            let remedy = match most < needed(longest) {
                true => format!(
                    "set chain to at most {}, or take another family: chains and streams have longer sets",
                    most.saturating_sub(2)
                ),
                false => "take another family or other templates".to_owned(),
            };
            let found = format!("chain = {longest} in the family {} ({why})", spec.family);
            return Err(BuildError::field("base.chain", found, remedy));
        }
        let small_talk = SmallTalk::new(&texts.chat, count)?;
        let later = unique(levels.iter().flat_map(|level| level.factors.later()));
        Ok(Builder { spec, count, given, texts, small_talk, levels, later, attributes, longest, left_out })
    }

    pub fn item(&self, number: usize) -> Result<BuiltItem, BuildError> {
        let id = format!("{}-{number:03}", self.spec.family);
        match self.rows_of(number, &id) {
            Ok(built) => Ok(built),
            Err(Unmade::Failed(error)) => Err(error),
            Err(Unmade::Dropped(reason)) => {
                let dropped = vec![Dropped { id, item: true, reason }];
                Ok(BuiltItem { rows: Vec::new(), dropped })
            }
        }
    }

    fn rows_of(&self, number: usize, id: &str) -> Result<BuiltItem, Unmade> {
        let draft = Draft {
            texts: self.texts,
            seed: self.spec.seed,
            keys: self.spec.keys,
            longest: self.longest,
            attributes: &self.attributes,
        };
        let item = draft.item(number, id, self.count)?;
        let mut rows = Rows::new(self, &item);
        let mut built = BuiltItem::default();
        for level in &self.levels {
            let factors = level.factors.resolved(self.spec.session_tokens, "base")?;
            let layout = within(&level.label, rows.layout(&factors))?;
            // The first twin's evidence session tokens and total.
            let mut first: Option<(Vec<usize>, usize)> = None;
            for twin in self.spec.twins_at(level) {
                let row = format!("{id}.{}.{}", level.label, twin.name());
                let made = rows.row(&row, level, &factors, &layout, &twin).and_then(|(made, lengths)| {
                    let first = first.get_or_insert_with(|| lengths.clone());
                    if *first == lengths { Ok(made) } else { Err(Unmade::Dropped(unequal(first, &lengths))) }
                });
                match made {
                    Ok(row) => built.rows.push(row),
                    // Every level needs its update pair; without it the item is dropped.
                    Err(unmade) if twin.kind == UPDATE => return within(&row, Err(unmade)),
                    Err(Unmade::Dropped(reason)) => {
                        built.dropped.push(Dropped { id: row, item: false, reason });
                    }
                    Err(failed) => return Err(failed),
                }
            }
        }
        Ok(built)
    }
}

fn within<T>(place: &str, made: Result<T, Unmade>) -> Result<T, Unmade> {
    made.map_err(|unmade| match unmade {
        Unmade::Dropped(reason) => Unmade::Dropped(format!("{place}: {reason}")),
        failed => failed,
    })
}

fn unequal(one: &(Vec<usize>, usize), other: &(Vec<usize>, usize)) -> String {
    match one.0.iter().zip(&other.0).position(|(a, b)| a != b) {
        Some(at) => {
            let (a, b) = (one.0[at], other.0[at]);
            format!("the session of the evidence at place {at} has {b} tokens where its twin has {a}")
        }
        None => format!("{} tokens in all where its twin has {}", other.1, one.1),
    }
}

struct Told {
    statement: String,
    about: String,
    role: Option<&'static str>,
    /// Seeds the small talk.
    variant: &'static str,
}

struct Rows<'a> {
    builder: &'a Builder<'a>,
    item: &'a Item<'static>,
    near: [Stream<'a>; 3],
    far: [Stream<'a>; 3],
    digits: Digits,
    /// Cache by (part key, statement, speaker).
    sessions: HashMap<(String, String, Speaker), Option<Vec<Turn>>>,
}

impl<'a> Rows<'a> {
    fn new(builder: &'a Builder<'a>, item: &'a Item<'static>) -> Self {
        let is_near = |topic: &&Topic| topic.name == item.attribute.topic();
        let near: Vec<&Topic> = builder.texts.topics.iter().filter(is_near).collect();
        let far: Vec<&Topic> = builder.texts.topics.iter().filter(|topic| !is_near(topic)).collect();
        let streams = |kind: &str, topics: Vec<&'static Topic>, given: Option<&'a [Filler]>| {
            [0, 1, 2].map(|part| {
                let seed = builder.spec.seed;
                let of_item = Draws::new(FILLERS, seed, &item.id);
                let draws = Draws::new(FILLERS, seed, &format!("{}/{}/{kind}", item.id, STRETCHES[part]));
                let source = given.map_or(Source::Own(topics.clone()), Source::Given);
                Stream::new(source, of_item, draws, (part, STRETCHES.len()), item.forbidden(builder.texts))
            })
        };
        let given = builder.given.map(|given| given.fillers.as_slice());
        Rows {
            builder,
            item,
            near: streams("topic", near, None),
            far: streams("unrelated", far, given),
            digits: Digits::default(),
            sessions: HashMap::new(),
        }
    }

    fn layout(&mut self, factors: &Factors) -> Result<Layout, Unmade> {
        let streams = match factors.fillers {
            Fillers::Topic => &mut self.near,
            _ => &mut self.far,
        };
        let Builder { spec, count, .. } = self.builder;
        lay_out(factors, spec.session_tokens, streams, &mut self.digits, *count)
    }

    /// The row, the tokens of each evidence session and the total.
    fn row(
        &mut self,
        id: &str,
        level: &Level,
        factors: &Factors,
        layout: &Layout,
        twin: &Twin,
    ) -> Result<(Built, (Vec<usize>, usize)), Unmade> {
        let builder = self.builder;
        let (item, spec, count) = (self.item, builder.spec, builder.count);
        let chains = item.chains(factors, twin.swapped());
        let mut times = times(layout.slots.len());
        if factors.order == Order::Crossed
            && let (Some(old), Some(new)) = (layout.place(Part::Old), layout.place(Part::New))
        {
            times.swap(old, new);
        }
        let (mut sessions, mut lengths, mut whole) = (Vec::new(), Vec::new(), String::new());
        let (mut fillers, mut statements) = (Vec::new(), BTreeMap::new());
        for (place, slot) in layout.slots.iter().enumerate() {
            let (turns, role) = match slot {
                Slot::Filler { filler, shown } => {
                    let mut of = json!({"id": filler.id, "licence": filler.licence});
                    if *shown != filler.turns {
                        of["cut"] = json!(true);
                    }
                    fillers.push(of);
                    (shown.clone(), None)
                }
                Slot::Part(part) => {
                    let told = self.told(*part, factors, twin, &chains)?;
                    let role = told.role;
                    let speaker = match (part, factors.echo_by) {
                        (Part::Echo(_), EchoBy::Others) => Speaker::User,
                        (Part::Echo(_), EchoBy::Assistant) => Speaker::Assistant,
                        _ => factors.speaker,
                    };
                    let Some(turns) = self.session(*part, &told, speaker)? else {
                        let (part, wanted, said) = (part.key(), spec.session_tokens, told.statement);
                        let reason = format!(
                            "no small talk makes the session {part} one of {wanted} tokens: {said:?}"
                        );
                        return Err(Unmade::Dropped(reason));
                    };
                    lengths.push(tokens(count, &turns)?);
                    statements.insert(part.key(), told.statement);
                    (turns, role)
                }
            };
            let time = times[place].strftime(TIME).to_string();
            whole.push_str(&rendered(place + 1, &time, &turns));
            sessions.push(DoseSession { time, turns, role: role.map(str::to_owned) });
        }
        let whole = count.count(&whole)?;
        let mut levels = factors.as_levels(&spec.family, spec.session_tokens, &builder.later);
        levels.insert("sweep".to_owned(), json!(level.sweep));
        let probes: Vec<DoseProbe> =
            (0..item.keys.len()).map(|key| self.probe(key, factors, twin, &chains[key])).collect();
        let places: serde_json::Map<String, Value> = (STRETCHES.into_iter().zip(layout.lengths))
            .map(|(name, length)| {
                let error = length.reached as i64 - length.requested as i64;
                let length =
                    json!({"requested": length.requested, "reached": length.reached, "error": error});
                (name.to_owned(), length)
            })
            .collect();
        let values: BTreeMap<&str, Vec<&str>> =
            item.keys.iter().map(|key| key.name.as_str()).zip(chains.iter().cloned()).collect();
        let mut provenance = json!({
            "row": id,
            "item": item.id,
            "twin": twin.name(),
            "template": item.attribute.name(),
            "subject": item.subject,
            "values": values,
            "session_tokens": spec.session_tokens,
            "tokens": whole,
            "places": places,
            "fillers": fillers,
        });
        if probes.iter().any(|probe| probe.expects == NO_VALUE) {
            provenance["current"] = json!("a value that nobody names: no value of the set holds");
        }
        let pair = self.statements(layout, factors, &statements, &chains);
        let query_time = (times.iter().max().copied()).unwrap_or(start()) + 1.day();
        let row = DoseRow {
            id: id.to_owned(),
            item: item.id.clone(),
            twin: twin.name(),
            factors: levels,
            sessions,
            query_time: query_time.strftime(TIME).to_string(),
            probes,
        };
        Ok((Built { row, provenance, pair }, (lengths, whole)))
    }

    fn statements(
        &self,
        layout: &Layout,
        factors: &Factors,
        told: &BTreeMap<String, String>,
        chains: &[Vec<&str>],
    ) -> Option<Statements> {
        let text = |part: Part| told.get(&part.key()).cloned();
        Some(Statements {
            old: text(Part::Old)?,
            new: text(Part::New)?,
            places: [layout.place(Part::Old)?, layout.place(Part::New)?],
            is_implied: matches!(factors.explicitness, Explicitness::E4 | Explicitness::E5),
            yesno: self.item.yesno(chains[0][0])?,
            premise: self.item.question(0, Some(chains[0][0])),
            question: self.item.question(0, None),
        })
    }

    fn told(&self, part: Part, factors: &Factors, twin: &Twin, chains: &[Vec<&str>]) -> Result<Told, Unmade> {
        let item = self.item;
        let seed = self.builder.spec.seed;
        let mut order = Draws::new(KEYS, seed, &format!("{}/{}", item.id, part.key()));
        let last = factors.chain;
        let kind = twin.kind;
        let no_old = [NO_OLD, BLIND].contains(&kind);
        let no_new = [NO_UPDATE, BLIND].contains(&kind);
        let is_neutral = match part {
            Part::Old | Part::RestatedOld(_) => no_old,
            Part::Mid(_) => kind == BLIND,
            Part::New | Part::RestatedNew(_) => no_new,
            Part::Echo(_) => no_old || no_new || kind == OTHER,
            Part::Lure(_) | Part::Other(_) => false,
        };
        if is_neutral {
            let mut draws = Draws::new(NEUTRAL, seed, &format!("{}/{}", item.id, part.key()));
            let statement = item.neutral(self.builder.texts, &mut draws);
            return Ok(Told { statement, about: item.subject.clone(), role: None, variant: "neutral" });
        }
        let somebody_else = kind == OTHER && matches!(part, Part::New | Part::RestatedNew(_));
        let name = if somebody_else { &item.people[0] } else { &item.subject };
        let saying = |at: usize| Saying { name, chains, at, before_told: !(no_old && at <= 1) };
        let (statement, role) = match part {
            Part::Old | Part::RestatedOld(_) => (item.old(saying(0), factors, &mut order), Some(OLD)),
            Part::Mid(nth) => (item.update(saying(nth), factors, &mut order), Some(MID)),
            Part::New if kind == PARAPHRASE => {
                (item.paraphrase(saying(last), factors, &mut order), Some(NEW))
            }
            Part::New | Part::RestatedNew(_)
                if factors.explicitness == Explicitness::EN && no_old && last == 1 =>
            {
                let reason = "with EN a history without the old value tells nothing";
                return Err(Unmade::Dropped(reason.to_owned()));
            }
            Part::New | Part::RestatedNew(_) if factors.revert && no_old => {
                let reason = "with revert a history without the old value tells nothing";
                return Err(Unmade::Dropped(reason.to_owned()));
            }
            Part::New => (item.update(saying(last), factors, &mut order), Some(NEW)),
            Part::RestatedNew(_) => (item.restated(saying(last), factors, &mut order), Some(NEW)),
            Part::Echo(nth) => {
                let of = saying(usize::from(factors.returns));
                (item.echo(nth, of, factors.echo_by, &mut order), Some(ECHO))
            }
            Part::Lure(nth) => {
                let (statement, about) = item.lure(nth, &mut order);
                return Ok(Told { statement, about, role: Some(LURE), variant: "told" });
            }
            Part::Other(nth) => (item.other_attribute(nth), None),
        };
        let (role, variant) = if somebody_else { (Some(LURE), "other") } else { (role, "told") };
        let variant = if part == Part::New && kind == PARAPHRASE { PARAPHRASE } else { variant };
        Ok(Told { statement, about: name.clone(), role, variant })
    }

    /// A session of exactly the spec's tokens.
    fn session(&mut self, part: Part, told: &Told, speaker: Speaker) -> Result<Option<Vec<Turn>>, TextError> {
        let key = (format!("{}/{}", part.key(), told.variant), told.statement.clone(), speaker);
        if let Some(turns) = self.sessions.get(&key) {
            return Ok(turns.clone());
        }
        let Builder { spec, count, small_talk, .. } = self.builder;
        let mut draws = Draws::new(SMALL_TALK, spec.seed, &format!("{}/{}", self.item.id, key.0));
        let content = Content { statement: &told.statement, about: &told.about, speaker };
        let turns = small_talk.session(&mut draws, content, spec.session_tokens, *count)?;
        self.sessions.insert(key, turns.clone());
        Ok(turns)
    }

    fn probe(&self, key: usize, factors: &Factors, twin: &Twin, chain: &[&str]) -> DoseProbe {
        let last = factors.chain;
        let denied = factors.explicitness == Explicitness::EN;
        let updates = [UPDATE, PARAPHRASE, NO_OLD].contains(&twin.kind);
        let first = usize::from(twin.kind == NO_OLD);
        // `told`: values that the history states, in order.
        let (told, current, expects) = match twin.kind {
            BLIND => (&chain[..0], chain[last], NO_VALUE),
            _ if updates && denied => (&chain[first..last], chain[last], NO_VALUE),
            _ if updates => (&chain[first..], chain[last], CURRENT),
            _ => (&chain[..last], chain[last - 1], CURRENT),
        };
        let stale = unique(told.iter().copied().filter(|value| *value != current));
        let pair = self.item.keys[key].values[..2].iter().map(String::as_str);
        let pair = pair.filter(|value| *value != current && !stale.contains(value));
        let spare = self.item.spare(key).iter().map(String::as_str).take(self.builder.spec.absent);
        let followed = |value: &str| format!(" {value}");
        DoseProbe {
            id: self.item.keys[key].name.clone(),
            query: self.item.question(key, factors.premise.then_some(chain[0])),
            prefix: self.item.prefix(key),
            current: followed(current),
            stale: stale.iter().map(|value| followed(value)).collect(),
            absent: pair.chain(spare).map(followed).collect(),
            expects: expects.to_owned(),
        }
    }
}

fn start() -> DateTime {
    date(2025, 1, 6).at(8, 0, 0, 0)
}

/// One session per day, at varying hours.
fn times(sessions: usize) -> Vec<DateTime> {
    let time = |at: usize| {
        let minutes = (at * 137) % 600;
        start() + (at as i64).days() + (minutes as i64).minutes()
    };
    (0..sessions).map(time).collect()
}
