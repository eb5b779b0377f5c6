//! An item: subject, attribute, values and the sentences that state them. Each item has its own random stream.

use palimpsest_core::text::{CountTokens, TextError};

use super::error::Unmade;
use super::factors::{EchoBy, Explicitness, Factors, Overlap};
use super::texts::{Clause, Log, Template, Texts, fill, inside};
use crate::benchmarks::dose::implied::{step1, step2};
use crate::benchmarks::dose::terms::AS_AT_FIRST;
use crate::case::draw::Draws;

const PURPOSE: &str = "dose item";
const OTHERS_FAMILY: &str = "slots";
const VALUE: &str = "value";

/// The noun for a value, in a return that does not name it.
const NOUNS: [(&str, &str); 12] = [
    ("days", "day"),
    ("colours", "colour"),
    ("numbers", "number"),
    ("cities", "city"),
    ("guests", "person"),
    ("letters", "box"),
    ("rooms", "room"),
    ("countries", "country"),
    ("languages", "language"),
    ("workplaces", "building"),
    ("seasons", "season"),
    ("pets", "animal"),
];

#[derive(Clone, Copy, Debug)]
pub enum Attribute<'a> {
    One(&'a Template),
    Log(&'a Log),
}

impl Attribute<'_> {
    pub fn name(&self) -> &str {
        self.of(|template| &template.name, |log| &log.name)
    }

    pub fn topic(&self) -> &str {
        self.of(|template| &template.topic, |log| &log.topic)
    }

    fn prefix(&self) -> &str {
        self.of(|template| &template.prefix, |log| &log.prefix)
    }

    fn question(&self) -> &str {
        self.of(|template| &template.question, |log| &log.question)
    }

    fn of(&self, one: fn(&Template) -> &String, several: fn(&Log) -> &String) -> &str {
        match self {
            Attribute::One(template) => one(template),
            Attribute::Log(log) => several(log),
        }
    }
}

/// Values in order: the pair, further chain values, unused values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    /// `value` if there is only one key.
    pub name: String,
    pub set: String,
    pub values: Vec<String>,
}

impl Key {
    /// Values of a chain in order. The pair is first and last; if the chain returns, first and second.
    pub fn chain(&self, updates: usize, returns: bool, swapped: bool) -> Vec<&str> {
        let value = |at: usize| match (at, swapped) {
            (0, true) => self.values[1].as_str(),
            (1, true) => self.values[0].as_str(),
            _ => self.values[at].as_str(),
        };
        let mut chain = vec![value(0)];
        if returns {
            chain.extend((1..updates).map(value));
            chain.push(value(0));
        } else {
            chain.extend((2..=updates).map(value));
            chain.push(value(1));
        }
        chain
    }
}

#[derive(Debug)]
pub struct Item<'a> {
    pub id: String,
    pub attribute: Attribute<'a>,
    pub subject: String,
    pub people: Vec<String>,
    pub keys: Vec<Key>,
    /// Longest chain of the build; later values are spare.
    longest: usize,
    others: Vec<(&'a Template, Vec<&'a str>)>,
}

#[derive(Debug, Clone, Copy)]
pub struct Draft<'a> {
    pub texts: &'static Texts,
    pub seed: u64,
    pub keys: usize,
    pub longest: usize,
    pub attributes: &'a [Attribute<'static>],
}

/// Chain length plus one spare value.
pub fn needed(longest: usize) -> usize {
    longest + 2
}

pub fn single_tokens<'a>(
    values: &'a [String],
    prefix: &str,
    count: &dyn CountTokens,
) -> Result<Vec<&'a String>, TextError> {
    let before = count.count(prefix)?;
    let mut single = Vec::new();
    for value in values {
        if count.count(&format!("{prefix} {value}"))? == before + 1 {
            single.push(value);
        }
    }
    Ok(single)
}

impl Draft<'_> {
    pub fn item(&self, number: usize, id: &str, count: &dyn CountTokens) -> Result<Item<'static>, Unmade> {
        let attribute = self.attributes[number % self.attributes.len()];
        let mut draws = Draws::new(PURPOSE, self.seed, id);
        let mut people = self.texts.chat.names.clone();
        draws.shuffle(&mut people);
        let subject = people.remove(0);
        let mut keys: Vec<(String, &String)> = match attribute {
            Attribute::One(template) => vec![(VALUE.to_owned(), &template.values)],
            Attribute::Log(_) => {
                self.texts.streams.keys.iter().map(|(key, set)| (key.clone(), set)).collect()
            }
        };
        draws.shuffle(&mut keys);
        keys.truncate(self.keys);
        let mut drawn = Vec::new();
        for (name, set) in keys {
            let prefix = fill(attribute.prefix(), &[("name", &subject), ("key", &name)]);
            let mut values = self.texts.values.get(set).cloned().unwrap_or_default();
            draws.shuffle(&mut values);
            let values: Vec<String> = single_tokens(&values, &prefix, count)?.into_iter().cloned().collect();
            if values.len() < needed(self.longest) {
                let (have, need) = (values.len(), needed(self.longest));
                let reason = format!(
                    "the set {set} has {have} values of one token, a chain of {} needs {need}",
                    self.longest
                );
                return Err(Unmade::Dropped(reason));
            }
            drawn.push(Key { name, set: set.clone(), values });
        }
        let mut others: Vec<(&Template, Vec<&str>)> = Vec::new();
        for template in self.texts.of_family(OTHERS_FAMILY) {
            let own = drawn.iter().any(|key| key.set == template.values);
            if let Some(values) = self.texts.values.get(&template.values).filter(|_| !own) {
                let mut values: Vec<&str> = values.iter().map(String::as_str).collect();
                draws.shuffle(&mut values);
                others.push((template, values));
            }
        }
        draws.shuffle(&mut others);
        let (id, longest) = (id.to_owned(), self.longest);
        Ok(Item { id, attribute, subject, people, keys: drawn, longest, others })
    }
}

#[derive(Debug, Clone, Copy)]
pub struct Saying<'a> {
    pub name: &'a str,
    pub chains: &'a [Vec<&'a str>],
    pub at: usize,
    pub before_told: bool,
}

impl Saying<'_> {
    /// A pattern of an item with one key.
    fn fill(&self, pattern: &str) -> String {
        fill(pattern, &[("name", self.name), ("v", self.chains[0][self.at])])
    }
}

impl Item<'_> {
    pub fn chains(&self, factors: &Factors, swapped: bool) -> Vec<Vec<&str>> {
        self.keys.iter().map(|key| key.chain(factors.chain, factors.returns, swapped)).collect()
    }

    /// Values that no chain uses; lures draw from them.
    pub fn spare(&self, key: usize) -> &[String] {
        &self.keys[key].values[self.longest + 1..]
    }

    /// Words that fillers must not contain: all values of the sets and the subject's name.
    pub fn forbidden(&self, texts: &Texts) -> Vec<String> {
        let sets = self.keys.iter().filter_map(|key| texts.values.get(&key.set));
        let values = sets.flatten().flat_map(|value| [Some(value.clone()), step1(value), step2(value)]);
        let mut words: Vec<String> = values.flatten().collect();
        words.push(self.subject.clone());
        words
    }

    pub fn old(&self, of: Saying<'_>, factors: &Factors, order: &mut Draws) -> String {
        match self.attribute {
            Attribute::One(template) => of.fill(template.clause.of(factors.overlap_old)),
            Attribute::Log(log) => self.entry(&log.statement, of, order),
        }
    }

    pub fn update(&self, of: Saying<'_>, factors: &Factors, order: &mut Draws) -> String {
        let Attribute::One(template) = self.attribute else { return self.marked(of, factors, order, false) };
        let told = self.told_as(of, factors);
        let plain = plain(template, of, factors);
        opened(template, of, told, plain).unwrap_or_else(|| implied(template, of, told))
    }

    pub fn paraphrase(&self, of: Saying<'_>, factors: &Factors, order: &mut Draws) -> String {
        let Attribute::One(template) = self.attribute else { return self.marked(of, factors, order, true) };
        let told = self.told_as(of, factors);
        let learned = |sentence: &str| format!("I just learned that {}", inside(sentence));
        // Keeps the overlap with the question of the full wording.
        let plain = match factors.overlap_new {
            Overlap::Full if !reverts(of, factors) => of.fill(&template.paraphrase),
            _ => learned(&plain(template, of, factors)),
        };
        opened(template, of, told, plain).unwrap_or_else(|| learned(&implied(template, of, told)))
    }

    /// Repeats the current value without update markers; stays implied if it was.
    pub fn restated(&self, of: Saying<'_>, factors: &Factors, order: &mut Draws) -> String {
        match self.attribute {
            Attribute::One(template) if factors.explicitness <= Explicitness::E2 => {
                plain(template, of, factors)
            }
            Attribute::One(template) => implied(template, of, self.told_as(of, factors)),
            Attribute::Log(log) if reverts(of, factors) => log_reverted(log, of),
            Attribute::Log(log) => self.entry(&log.statement, of, order),
        }
    }

    /// The old value after the update, past in everybody's words but those of others, who have not heard of the update.
    pub fn echo(&self, nth: usize, of: Saying<'_>, by: EchoBy, order: &mut Draws) -> String {
        let said = match (self.attribute, by) {
            (Attribute::One(template), EchoBy::Speaker) => return of.fill(&template.echo),
            (Attribute::Log(log), EchoBy::Speaker) => return self.entry(&log.echo, of, order),
            (Attribute::One(template), _) => of.fill(&template.clause.full),
            (Attribute::Log(log), _) => self.entry(&log.statement, of, order),
        };
        let said = inside(&said);
        match by {
            EchoBy::Assistant => format!("My first note, from before the change, says that {said}"),
            // Lures take people from the front.
            _ => {
                let other = &self.people[self.people.len() - 1 - nth % self.people.len()];
                format!("{other} has not heard of the change and still says that {said}")
            }
        }
    }

    /// Another person's attribute, with a spare value.
    pub fn lure(&self, nth: usize, order: &mut Draws) -> (String, String) {
        // people[0] is reserved for the twin `other`.
        let name = &self.people[(1 + nth) % self.people.len()];
        let spare = |key: usize| self.spare(key)[nth % self.spare(key).len()].as_str();
        let chains: Vec<Vec<&str>> = (0..self.keys.len()).map(|key| vec![spare(key)]).collect();
        let of = Saying { name, chains: &chains, at: 0, before_told: true };
        (self.old(of, &Factors::default(), order), name.clone())
    }

    pub fn other_attribute(&self, nth: usize) -> String {
        let (template, values) = &self.others[nth % self.others.len()];
        let value = values[(nth / self.others.len()) % values.len()];
        let Clause { full, .. } = &template.clause;
        format!("{} now", fill(full, &[("name", &self.subject), ("v", value)]))
    }

    pub fn neutral(&self, texts: &Texts, draws: &mut Draws) -> String {
        let name = [("name", self.subject.as_str())];
        match self.attribute {
            Attribute::One(_) => fill(&texts.chat.neutral[draws.index(texts.chat.neutral.len())], &name),
            Attribute::Log(log) => fill(&log.neutral, &name),
        }
    }

    pub fn prefix(&self, key: usize) -> String {
        fill(self.attribute.prefix(), &[("name", &self.subject), ("key", &self.keys[key].name)])
    }

    /// The question, optionally with a presupposed value.
    pub fn question(&self, key: usize, premise: Option<&str>) -> String {
        let question =
            fill(self.attribute.question(), &[("name", &self.subject), ("key", &self.keys[key].name)]);
        match premise {
            Some(value) => format!("As you know, {} {value}. {question}", inside(&self.prefix(key))),
            None => question,
        }
    }

    pub fn yesno(&self, value: &str) -> Option<String> {
        match self.attribute {
            Attribute::One(template) => Some(fill(&template.yesno, &[("name", &self.subject), ("v", value)])),
            Attribute::Log(_) => None,
        }
    }

    /// Effective explicitness: a denial needs a stated value, and only the last update of a chain may lack a replacement.
    fn told_as(&self, of: Saying<'_>, factors: &Factors) -> Explicitness {
        match factors.explicitness {
            Explicitness::E2 if !of.before_told => Explicitness::E1,
            Explicitness::EN if of.at < factors.chain => Explicitness::E1,
            told => told,
        }
    }

    fn marked(&self, of: Saying<'_>, factors: &Factors, order: &mut Draws, otherwise: bool) -> String {
        let Attribute::Log(log) = self.attribute else { return String::new() };
        let entry = match (reverts(of, factors), otherwise) {
            (true, false) => log_reverted(log, of),
            (true, true) => format!("I just learned that {}", inside(&log_reverted(log, of))),
            (false, true) => self.entry(&log.paraphrase, of, order),
            (false, false) => self.entry(&log.statement, of, order),
        };
        match factors.explicitness {
            Explicitness::E0 => entry,
            _ => format!("By now, {}", inside(&entry)),
        }
    }

    /// A log entry with shuffled keys.
    fn entry(&self, pattern: &str, of: Saying<'_>, order: &mut Draws) -> String {
        let mut keys: Vec<usize> = (0..self.keys.len()).collect();
        order.shuffle(&mut keys);
        let entries =
            keys.into_iter().map(|key| format!("{}: {}", self.keys[key].name, of.chains[key][of.at]));
        let list = entries.collect::<Vec<_>>().join("; ");
        fill(pattern, &[("name", of.name), ("list", &list)])
    }
}

fn plain(template: &Template, of: Saying<'_>, factors: &Factors) -> String {
    if reverts(of, factors) {
        let noun = NOUNS.iter().find(|(set, _)| *set == template.values).map_or("one", |(_, noun)| noun);
        let same = format!("the same {noun} {AS_AT_FIRST}");
        // The value with its article; a box's letter with its noun.
        let shown = ["the {v}", "a {v}", "box {v}", "{v}"];
        let full = &template.clause.full;
        let place = shown.into_iter().find(|shown| full.contains(&format!(" {shown}")));
        return fill(&full.replace(place.unwrap_or("{v}"), &same), &[("name", of.name)]);
    }
    of.fill(template.clause.of(factors.overlap_new))
}

/// True of the update that returns to the first value without naming it.
fn reverts(of: Saying<'_>, factors: &Factors) -> bool {
    factors.revert && of.at == factors.chain
}

fn log_reverted(log: &Log, of: Saying<'_>) -> String {
    fill(&log.statement, &[("name", of.name), ("list", &format!("the same {AS_AT_FIRST}"))])
}

fn implied(template: &Template, of: Saying<'_>, told: Explicitness) -> String {
    let value = of.chains[0][of.at];
    let (pattern, trigger) = match told {
        Explicitness::E4 => (&template.step1, step1(value)),
        Explicitness::E5 => (&template.step2, step2(value)),
        Explicitness::EN => return Saying { at: of.at - 1, ..of }.fill(&template.none),
        _ => (&None, None),
    };
    let pattern = pattern.as_ref().unwrap_or(&template.event);
    of.fill(&fill(pattern, &[("t", trigger.as_deref().unwrap_or(value))]))
}

/// Adds the explicit update markers to a statement; `None` for implied values.
fn opened(template: &Template, of: Saying<'_>, told: Explicitness, plain: String) -> Option<String> {
    Some(match told {
        Explicitness::E0 => plain,
        Explicitness::E1 => format!("{plain} now"),
        Explicitness::E2 => format!("{plain}, {}", fill(&template.deny, &[("v", of.chains[0][of.at - 1])])),
        _ => return None,
    })
}
