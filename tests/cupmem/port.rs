//! An independent port of the public code's rules: turns session decisions into a store and shares only the decision words with the
//! product. [`super::port_sessions`] compares the product with it.

use std::collections::{BTreeMap, BTreeSet};

/// Slots with their domains; true for single-state slots.
pub const SLOTS: [(&str, &str, bool); 5] = [
    ("location_and_living", "current_base_location", true),
    ("location_and_living", "location_linked_condition", false),
    ("work_and_schedule", "current_workload", false),
    ("routine_and_transport", "current_commute_mode", true),
    ("current_focus_and_goals", "short_horizon_goal", false),
];

fn domain(slot: &str) -> &'static str {
    SLOTS.iter().find(|(_, name, _)| *name == slot).unwrap().0
}

fn single(slot: &str) -> bool {
    SLOTS.iter().find(|(_, name, _)| *name == slot).unwrap().2
}

/// W2 and W3: a proposition and its decision.
#[derive(Debug, Clone)]
pub struct Said {
    pub slot: &'static str,
    pub value: String,
    pub sure: f64,
    pub word: &'static str,
    pub target: Option<String>,
}

/// W5 and W6: a slot, optionally an item, and the verdict.
#[derive(Debug, Clone)]
pub struct Judged {
    pub slot: &'static str,
    pub hint: Option<String>,
    pub sure: f64,
    pub word: &'static str,
    pub target: Option<String>,
}

#[derive(Debug, Clone)]
pub struct Known {
    pub slot: &'static str,
    pub value: String,
    pub active: bool,
    pub weak: bool,
    pub sure: f64,
    pub born: usize,
}

#[derive(Debug, Default)]
pub struct Port {
    pub known: BTreeMap<String, Known>,
    pub written: usize,
    /// Unknown slots, with the last session that marked them.
    pub unknown: BTreeMap<&'static str, usize>,
    /// Values of the updates that W9 visits, per session.
    pub visited: Vec<BTreeSet<String>>,
}

/// An action during arbitration: kind, index, word, target, slot and specificity.
#[derive(Clone)]
struct Weighed {
    verdict: bool,
    place: usize,
    word: &'static str,
    target: Option<String>,
    slot: &'static str,
    particular: u8,
    sure: f64,
}

fn weight(word: &str) -> u8 {
    let order = ["SET_UNKNOWN_CURRENT", "WEAK_CHALLENGE", "ADD", "REFINE", "INVALIDATE", "REPLACE"];
    let word = if word == "INDIRECT_INVALIDATE" { "INVALIDATE" } else { word };
    order.iter().position(|known| *known == word).unwrap() as u8
}

impl Port {
    pub fn active(&self, slot: &str) -> Vec<String> {
        let mut ids: Vec<String> =
            self.known.iter().filter(|(_, k)| k.active && k.slot == slot).map(|(id, _)| id.clone()).collect();
        ids.sort_by_key(|id| id["item-".len()..].parse::<usize>().unwrap());
        ids
    }

    /// The proposals to judge, in order, with their lane's hints. All are in the lane of the first update's domain.
    pub fn chosen(&self, said: &[Said], judged: &[Judged]) -> Vec<Judged> {
        let Some(lane) = said.iter().find(|said| said.word != "NO_OP").map(|said| domain(said.slot)) else {
            return Vec::new();
        };
        // Proposals for the same item, or the same slot without an item, merge; ordered by confidence.
        let mut all: Vec<Judged> = Vec::new();
        for one in judged {
            let in_lane =
                |id: &String| self.known.get(id).is_some_and(|k| k.active && domain(k.slot) == lane);
            let one = Judged { hint: one.hint.clone().filter(in_lane), ..one.clone() };
            match all.iter_mut().find(|known| (known.slot, &known.hint) == (one.slot, &one.hint)) {
                Some(known) => *known = one,
                None => all.push(one),
            }
        }
        let exact = |one: &Judged| one.hint.as_ref().is_some_and(|id| self.known[id].slot == one.slot);
        all.sort_by(|a, b| exact(b).cmp(&exact(a)).then(b.sure.total_cmp(&a.sure)));
        all.truncate(2);
        // W6: keep a target in the slot; otherwise the hint if it is in the slot's domain; otherwise none.
        for one in &mut all {
            let of_slot = |id: &String| self.known.get(id).is_some_and(|k| k.active && k.slot == one.slot);
            let near = |id: &String| self.known.get(id).is_some_and(|k| domain(k.slot) == domain(one.slot));
            one.target = one.target.take().filter(of_slot);
            let hint = one.hint.clone().filter(near);
            // The named target may be the hint itself, in another slot of the domain; the fallback is the same.
            one.target = one.target.take().or(hint);
        }
        all
    }

    fn weighed(said: &[Said], chosen: &[Judged]) -> Vec<Weighed> {
        let of_said = said.iter().enumerate().filter(|(_, s)| s.word != "NO_OP").map(|(place, s)| Weighed {
            verdict: false,
            place,
            word: s.word,
            target: s.target.clone(),
            slot: s.slot,
            particular: if s.target.is_some() { 3 } else { 2 },
            sure: s.sure,
        });
        let of_judged =
            chosen.iter().enumerate().filter(|(_, j)| j.word != "NO_OP").map(|(place, j)| Weighed {
                verdict: true,
                place,
                word: j.word,
                target: j.target.clone(),
                slot: j.slot,
                // No value is given, but always a reason.
                particular: if j.target.is_some() { 3 } else { 1 },
                sure: j.sure,
            });
        of_said.chain(of_judged).collect()
    }

    /// The remaining actions.
    fn left(mut all: Vec<Weighed>) -> Vec<Weighed> {
        let place = |w: &Weighed| (w.verdict, w.place);
        let mut out: BTreeSet<(bool, usize)> = BTreeSet::new();
        let targets: BTreeSet<String> = all.iter().filter_map(|w| w.target.clone()).collect();
        for target in targets {
            let rivals: Vec<&Weighed> = all.iter().filter(|w| w.target.as_ref() == Some(&target)).collect();
            let mut winner = rivals[0];
            for rival in &rivals[1..] {
                let key = |w: &Weighed| (weight(w.word), w.particular, (w.sure * 1e6) as i64, w.verdict);
                if key(rival) > key(winner) {
                    winner = rival;
                }
            }
            out.extend(rivals.iter().map(|w| place(w)).filter(|p| *p != place(winner)));
        }
        for slot in SLOTS.iter().filter(|(.., single)| *single).map(|(_, slot, _)| *slot) {
            let mut rivals: Vec<Weighed> =
                all.iter().filter(|w| w.slot == slot && !out.contains(&place(w))).cloned().collect();
            let writes = |w: &Weighed| !w.verdict && ["ADD", "REFINE", "REPLACE"].contains(&w.word);
            if rivals.iter().any(writes) {
                let general = |w: &Weighed| w.verdict && w.target.is_none() && w.word != "WEAK_CHALLENGE";
                out.extend(rivals.iter().filter(|w| general(w)).map(place));
                rivals.retain(|w| !general(w));
            }
            let sure = |w: &Weighed| !w.verdict && w.word == "ADD" && w.sure >= 0.85;
            let exact = |w: &Weighed| w.verdict && w.target.is_some() && w.word != "SET_UNKNOWN_CURRENT";
            let spared = rivals.iter().any(sure) && rivals.iter().any(exact);
            let Some(first) = rivals.first() else { continue };
            let mut winner = first;
            for rival in &rivals {
                let key = |w: &Weighed| (w.particular, weight(w.word), (w.sure * 1e6) as i64, !w.verdict);
                if key(rival) > key(winner) {
                    winner = rival;
                }
            }
            for rival in &rivals {
                if place(rival) != place(winner) && !(spared && (sure(rival) || exact(rival))) {
                    out.insert(place(rival));
                }
            }
        }
        all.retain(|w| !out.contains(&place(w)));
        all
    }

    fn write(&mut self, said: &Said, session: usize) {
        let id = format!("item-{}", self.written);
        self.written += 1;
        self.unknown.remove(said.slot);
        let known = Known {
            slot: said.slot,
            value: said.value.clone(),
            active: true,
            weak: false,
            sure: said.sure,
            born: session,
        };
        self.known.insert(id, known);
    }

    fn end(&mut self, id: &str) {
        self.known.get_mut(id).unwrap().active = false;
    }

    /// Applies an update; true if it changed anything.
    fn update(&mut self, said: &Said, session: usize) -> bool {
        let target =
            said.target.clone().filter(|id| self.known[id].active && self.known[id].slot == said.slot);
        match (said.word, target) {
            ("ADD", _) => {
                let there = self.active(said.slot);
                if single(said.slot) && !there.is_empty() {
                    let weakest = there.iter().min_by(|a, b| {
                        let key = |id: &String| (!self.known[id].weak, (self.known[id].sure * 1e6) as i64);
                        key(a).cmp(&key(b))
                    });
                    let weakest = weakest.unwrap().clone();
                    let gives_way =
                        self.known[&weakest].weak || said.sure >= self.known[&weakest].sure + 0.15;
                    if said.sure < 0.85 || !gives_way {
                        return false;
                    }
                    self.end(&weakest);
                }
                self.write(said, session);
                true
            }
            ("REFINE", Some(id)) => {
                let known = self.known.get_mut(&id).unwrap();
                (known.value, known.weak, known.sure) =
                    (said.value.clone(), false, known.sure.max(said.sure));
                self.unknown.remove(said.slot);
                true
            }
            ("REPLACE", Some(id)) => {
                self.end(&id);
                self.write(said, session);
                true
            }
            ("INVALIDATE", Some(id)) => {
                self.end(&id);
                self.unknown.insert(said.slot, session);
                true
            }
            _ => false,
        }
    }

    /// Applies a verdict; true if it changed anything.
    fn verdict(&mut self, judged: &Judged, session: usize) -> bool {
        let target = judged.target.clone().filter(|id| self.known[id].active);
        match (judged.word, target) {
            ("WEAK_CHALLENGE", Some(id)) => {
                self.known.get_mut(&id).unwrap().weak = true;
                true
            }
            ("INDIRECT_INVALIDATE" | "SET_UNKNOWN_CURRENT", Some(id)) => {
                self.end(&id);
                self.unknown.insert(self.known[&id].slot, session);
                true
            }
            ("SET_UNKNOWN_CURRENT", None) => {
                let there = self.active(judged.slot);
                let older = there.iter().filter(|id| self.known[*id].born < session).count();
                if older == 1 || (older > 1 && single(judged.slot)) {
                    there.iter().for_each(|id| self.end(id));
                }
                self.unknown.insert(judged.slot, session);
                true
            }
            _ => false,
        }
    }

    pub fn session(&mut self, said: &[Said], judged: &[Judged]) {
        let session = self.visited.len();
        let chosen = self.chosen(said, judged);
        let shown = |one: &Said| one.target.clone().filter(|id| self.active(one.slot).contains(id));
        let said: Vec<Said> = said.iter().map(|one| Said { target: shown(one), ..one.clone() }).collect();
        let left = Port::left(Port::weighed(&said, &chosen));
        let mut accepted: BTreeSet<String> = BTreeSet::new();
        for one in left.iter().filter(|w| !w.verdict) {
            if self.update(&said[one.place], session) {
                accepted.insert(said[one.place].value.clone());
            }
        }
        for one in left.iter().filter(|w| w.verdict) {
            if self.verdict(&chosen[one.place], session) {
                // A verdict rests on everything the session says that W3 does not dismiss.
                accepted.extend(said.iter().filter(|s| s.word != "NO_OP").map(|s| s.value.clone()));
            }
        }
        let older_is_stale = self.known.values().any(|k| !k.active && k.born < session);
        self.visited.push(if older_is_stale { accepted } else { BTreeSet::new() });
    }
}
